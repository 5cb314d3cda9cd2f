"""What a run stands on: versions, processor, cache of compiled code.

And what of it is known to be wrong.
Looks, and changes nothing but that the cache's folder is made, as every run makes it. Knows no
model.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = ["Environment", "Requirement", "inspect_environment"]

_DISTRIBUTION = "lingeronnx"
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?P<limits>[^;]*)(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?"
)
_LIMIT = re.compile(r"(?P<sign>>=|==|<)\s*(?P<version>[\w.+]+)")
_DEVELOPER_EXTRAS = ("test", "dev")  # extras of those who work on lingeronnx
_MIN_FREE_DISK_BYTES = 200e6  # bytes; kernels, graphs and dumps need about that much


@dataclass(frozen=True)
class Requirement:
    """One distribution: its version here (None: it is absent), what is asked for, and by which extra ("": always)."""

    name: str
    version: str | None
    limits: str
    extra: str

    @property
    def is_satisfied(self) -> bool:
        """Whether the version is within the limits; an optional one may be absent."""
        if self.version is None:
            return bool(self.extra)
        return all(
            _satisfies(self.version, each["sign"], each["version"])
            for each in _LIMIT.finditer(self.limits)
        )


@dataclass(frozen=True)
class Environment:
    """What a run stands on.

    instructions : the row of dot instructions, or why there is none. rows : those that this
    processor can run. threads, memory : what a run may use; memory in bytes, None where the system
    does not say. cache : the folder of compiled code, None where there can be none. code : bytes
    and number of its files. settings : environment variables that change what lingeronnx does.
    problems : one line each, with the remedy.
    """

    version: str
    folder: str
    python: str
    system: str
    processor: str
    instructions: str
    rows: tuple[str, ...]
    threads: int
    memory: int | None
    packages: tuple[Requirement, ...]
    compiler: str | None
    cache: str | None
    code: tuple[int, int]
    settings: dict[str, str]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return all of it as plain values, for JSON."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__}
        told["packages"] = [{**vars(each), "fits": each.is_satisfied} for each in self.packages]
        told["rows"], told["code"], told["problems"] = (
            list(self.rows),
            list(self.code),
            list(self.problems),
        )
        return told


def inspect_environment() -> Environment:
    """Look around; never raises for what is wrong, but says so in `problems`."""
    from simulator._disk_cache import cache_folder
    from simulator.instruction_sets import (
        INSTRUCTION_SETS,
        get_host_features,
        get_instruction_set,
        is_supported_by_host,
    )
    from simulator.kernel import SimulatorError

    problems = []
    try:
        chosen = get_instruction_set()
        instructions = chosen.name if chosen else "plain loops"
    except SimulatorError as error:
        instructions = "none"
        problems.append(f"{error}; unset LINGERONNX_SIMD")
    cache = cache_folder()
    packages = tuple(sorted(_iter_requirements(), key=lambda each: (each.extra, each.name)))
    problems += [
        *_find_package_problems(packages),
        *_find_cache_problems(cache),
        *_find_setting_problems(instructions),
        *_find_disk_problems(cache),
    ]
    if not get_host_features():
        problems.append(
            "LLVM does not name the features of this processor: plain instructions are used, which "
            "are slow"
        )
    files = (
        [path.stat().st_size for path in Path(cache).iterdir() if path.is_file()] if cache else []
    )
    from .. import __version__

    return Environment(
        version=__version__,
        folder=str(Path(__file__).resolve().parents[1]),
        python=f"{platform.python_version()} ({sys.executable})",
        system=platform.platform(),
        processor=_processor_name(),
        instructions=instructions,
        rows=tuple(each.name for each in INSTRUCTION_SETS if is_supported_by_host(each)),
        threads=_available_threads(),
        memory=_free_memory_bytes(),
        packages=packages,
        compiler=shutil.which(os.environ.get("CC") or "cc"),
        cache=cache,
        code=(sum(files), len(files)),
        settings={
            name: value for name, value in sorted(os.environ.items()) if _is_relevant_variable(name)
        },
        problems=tuple(problems),
    )


# ---- what is here ------------------------------------------------------------------------------------------------


def _iter_requirements() -> Iterator[Requirement]:
    try:
        asked = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    for line in asked:
        match = _REQUIREMENT.match(line)
        if match is None or match["extra"] in _DEVELOPER_EXTRAS:
            continue
        try:
            here = metadata.version(match["name"])
        except metadata.PackageNotFoundError:
            here = None
        yield Requirement(match["name"], here, match["limits"].strip(), match["extra"] or "")


def _processor_name() -> str:
    with_model = Path("/proc/cpuinfo")
    if with_model.is_file():
        for line in with_model.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _available_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _is_relevant_variable(name: str) -> bool:
    return name.startswith(("LINGERONNX_", "NUMBA_", "OMP_")) or name == "XDG_CACHE_HOME"


# ---- what is wrong with it ---------------------------------------------------------------------------------------


def _find_package_problems(packages: tuple[Requirement, ...]) -> Iterator[str]:
    if not packages:
        yield (
            "the package is not installed (a folder of sources on the path): pip install "
            f"{_DISTRIBUTION}"
        )
    for each in packages:
        if not each.is_satisfied:
            here = "is not there" if each.version is None else f"{each.version} is here"
            extra = f"[{each.extra}]" if each.extra else ""
            asked = f"{each.name} {here}, lingeronnx{extra} asks for {each.name}{each.limits}"
            yield f"{asked}: pip install '{each.name}{each.limits}'"


def _find_cache_problems(cache: str | None) -> Iterator[str]:
    if cache is None:
        yield (
            "compiled code is not kept: no folder for it can be made, so each run compiles anew; "
            "set LINGERONNX_CACHE_DIR to a folder that you may write"
        )
        return
    given = os.environ.get("LINGERONNX_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    if Path(cache).parent.resolve() != Path(given).expanduser().resolve():
        yield (
            f"the cache of compiled code below {given} may be written by others and is not used; "
            "make it yours alone (chmod go-w), or set LINGERONNX_CACHE_DIR"
        )
    if not os.access(cache, os.W_OK | os.X_OK):
        yield (
            f"compiled code cannot be kept in {cache}: it may not be written; set "
            "LINGERONNX_CACHE_DIR"
        )


def _find_setting_problems(instructions: str) -> Iterator[str]:
    if instructions == "plain loops":
        yield "LINGERONNX_SIMD=0: the simulator runs its plain loops, many times slower; unset it"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        yield (
            "NUMBA_DISABLE_JIT is set: kernels run as plain Python, a thousand times slower; "
            "unset it"
        )
    asked = os.environ.get("LINGERONNX_THREADS")
    if asked is not None and not (asked.isdecimal() and int(asked) > 0):
        yield f"LINGERONNX_THREADS={asked}: it must be a whole number from 1; unset it"


def _find_disk_problems(cache: str | None) -> Iterator[str]:
    for place in filter(None, (cache, ".")):
        try:
            free = shutil.disk_usage(place).free
        except OSError:  # a folder that is gone
            continue
        if free < _MIN_FREE_DISK_BYTES:
            yield (
                f"the disk of {place} has {free / 1e6:.0f} MB left; "
                f"{_MIN_FREE_DISK_BYTES / 1e6:.0f} MB are needed "
                "now and then"
            )


def _satisfies(version: str, sign: str, limit: str) -> bool:
    here, asked = _parse_version(version), _parse_version(limit)
    length = max(len(here), len(asked))
    here, asked = (each + (0,) * (length - len(each)) for each in (here, asked))
    return here >= asked if sign == ">=" else here < asked if sign == "<" else here == asked


def _parse_version(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
