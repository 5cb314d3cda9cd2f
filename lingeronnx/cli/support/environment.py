"""Inspection of the environment: versions, processor, cache of compiled code, and known problems.

Changes nothing, except that the folder of the cache is created, as in every run. Does not depend on
models.
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

from ...common.files import resolve_path

__all__ = ["Environment", "Requirement", "inspect_environment"]

_DISTRIBUTION = "lingeronnx"
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?P<limits>[^;]*)(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?"
)
_LIMIT = re.compile(r"(?P<sign>>=|==|<)\s*(?P<version>[\w.+]+)")
_DEVELOPER_EXTRAS = ("test", "bench", "dev")  # extras for the development of lingeronnx
_MIN_FREE_DISK_BYTES = 200e6  # kernels, graphs and dumps need about that much


@dataclass(frozen=True)
class Requirement:
    """A required distribution.

    Attributes
    ----------
    name
        Name of the distribution.
    version
        Installed version, or None if it is not installed.
    limits
        Required versions, such as ">=1.26,<3".
    extra
        Extra of lingeronnx that requires it; empty if it is always required.
    """

    name: str
    version: str | None
    limits: str
    extra: str

    @property
    def is_satisfied(self) -> bool:
        """Whether the installed version is within all limits.

        If the distribution is not installed, whether it is optional (required by an extra).
        """
        if self.version is None:
            return bool(self.extra)
        return all(
            _satisfies(self.version, limit["sign"], limit["version"])
            for limit in _LIMIT.finditer(self.limits)
        )


@dataclass(frozen=True)
class Environment:
    """Environment of a run.

    Attributes
    ----------
    version, folder
        Version and folder of lingeronnx.
    python, system, processor
        Python, operating system and processor.
    instructions
        Name of the instruction set of the simulator; "plain loops" or "none" without one.
    rows
        Names of the instruction sets that this processor supports.
    threads
        Number of processors that this process may use: CPU affinity and quota of the control group.
    cores
        Number of cores that they belong to; fewer if some are hyperthreads of one core. None if it
        is unknown.
    memory
        Free memory in bytes, or None if it is unknown.
    packages
        Required distributions.
    compiler
        Path of the C compiler, or None.
    cache
        Folder of compiled code, or None if it cannot be created.
    code
        Total bytes and number of the files in the cache.
    settings
        Environment variables that affect lingeronnx.
    problems
        One message per problem, with the remedy.
    """

    version: str
    folder: str
    python: str
    system: str
    processor: str
    instructions: str
    rows: tuple[str, ...]
    threads: int
    cores: int | None
    memory: int | None
    packages: tuple[Requirement, ...]
    compiler: str | None
    cache: str | None
    code: tuple[int, int]
    settings: dict[str, str]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return {field: JSON value}.

        Each package also has `fits`, whether its version is suitable.
        """
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["packages"] = [
            {**vars(package), "fits": package.is_satisfied} for package in self.packages
        ]
        for name in ("rows", "code", "problems"):
            values[name] = list(values[name])
        return values


def inspect_environment() -> Environment:
    """Inspect the environment; problems are reported in `problems`, not raised.

    Creates the folder of the cache if there is none.
    """
    from simulator._disk_cache import cache_folder
    from simulator._threads import count_usable_cores, count_usable_processors
    from simulator.instruction_sets import (
        INSTRUCTION_SETS,
        get_host_features,
        get_instruction_set,
        is_supported_by_host,
    )
    from simulator.kernel import SimulatorError

    problems = []
    try:
        instruction_set = get_instruction_set()
        instructions = instruction_set.name if instruction_set else "plain loops"
    except SimulatorError as error:
        instructions = "none"
        problems.append(f"{error}; unset LINGERONNX_SIMD")
    cache = cache_folder()
    packages = tuple(
        sorted(_iter_requirements(), key=lambda package: (package.extra, package.name))
    )
    problems += [
        *_find_package_problems(packages),
        *_find_cache_problems(cache),
        *_find_setting_problems(instructions),
        *_find_disk_problems(cache),
    ]
    if not get_host_features():
        problems.append(
            "LLVM does not recognize the features of this processor, so that the simulator uses "
            "slow generic instructions"
        )
    from ... import __version__

    return Environment(
        version=__version__,
        folder=str(Path(__file__).resolve().parents[2]),
        python=f"{platform.python_version()} ({sys.executable})",
        system=platform.platform(),
        processor=_processor_name(),
        instructions=instructions,
        rows=tuple(row.name for row in INSTRUCTION_SETS if is_supported_by_host(row)),
        threads=count_usable_processors(),
        cores=count_usable_cores(),
        memory=_free_memory_bytes(),
        packages=packages,
        compiler=shutil.which(os.environ.get("CC") or "cc"),
        cache=cache,
        code=_measure_cache(cache),
        settings={
            name: value for name, value in sorted(os.environ.items()) if _is_relevant_variable(name)
        },
        problems=tuple(problems),
    )


# ---- properties of the environment ---------------------------------------------------------------


def _measure_cache(cache: str | None) -> tuple[int, int]:
    """Return (bytes, number) of the files directly in the cache folder; (0, 0) without one."""
    if not cache:
        return 0, 0
    sizes = [path.stat().st_size for path in Path(cache).iterdir() if path.is_file()]
    return sum(sizes), len(sizes)


def _iter_requirements() -> Iterator[Requirement]:
    """Yield the requirements in the metadata of lingeronnx, without those of developer extras.

    The version of one that is not installed is None. Yields nothing if lingeronnx is not installed.
    """
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None or match["extra"] in _DEVELOPER_EXTRAS:
            continue
        try:
            version = metadata.version(match["name"])
        except metadata.PackageNotFoundError:
            version = None
        yield Requirement(match["name"], version, match["limits"].strip(), match["extra"] or "")


def _processor_name() -> str:
    """Return the processor's name: "model name" in /proc/cpuinfo, or else what `platform` tells."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _free_memory_bytes() -> int | None:
    """Return the bytes of free physical memory, or None if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _is_relevant_variable(name: str) -> bool:
    """Whether an environment variable concerns lingeronnx, Numba, OpenMP or the cache folder."""
    return name.startswith(("LINGERONNX_", "NUMBA_", "OMP_")) or name == "XDG_CACHE_HOME"


# ---- problems ------------------------------------------------------------------------------------


def _find_package_problems(packages: tuple[Requirement, ...]) -> Iterator[str]:
    """Yield a message per missing or unsuitable distribution, and one if `packages` is empty."""
    if not packages:
        yield (
            "lingeronnx is not installed, but imported from a source folder on the path: pip "
            f"install {_DISTRIBUTION}"
        )
    for package in packages:
        if package.is_satisfied:
            continue
        installed = "is not installed" if package.version is None else f"is {package.version}"
        extra = f"[{package.extra}]" if package.extra else ""
        specifier = f"{package.name}{package.limits}"
        yield (
            f"{package.name} {installed}, but lingeronnx{extra} requires {specifier}: pip install "
            f"'{specifier}'"
        )


def _find_cache_problems(cache: str | None) -> Iterator[str]:
    """Yield messages if compiled code cannot be cached in the configured folder.

    `cache` is the folder in use, None if none could be created.
    """
    if cache is None:
        yield (
            "compiled code is not cached, since no folder can be created for it, so each run "
            "compiles again; set LINGERONNX_CACHE_DIR to a writable folder"
        )
        return
    root = os.environ.get("LINGERONNX_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    if resolve_path(Path(cache).parent) != resolve_path(os.path.expanduser(root)):
        yield (
            f"the cache of compiled code in {root} is not used, since other users can write to it; "
            "restrict it (chmod go-w), or set LINGERONNX_CACHE_DIR"
        )
    if not os.access(cache, os.W_OK | os.X_OK):
        yield (
            f"compiled code cannot be cached in {cache}, which is not writable; set "
            "LINGERONNX_CACHE_DIR"
        )


def _find_setting_problems(instructions: str) -> Iterator[str]:
    """Yield messages about environment variables that are invalid or slow the simulator down.

    `instructions` is the name of the instruction set in use, or "plain loops".
    """
    if instructions == "plain loops":
        yield "LINGERONNX_SIMD=0: the simulator runs its plain loops, many times slower; unset it"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        yield (
            "NUMBA_DISABLE_JIT is set: kernels run as plain Python, a thousand times slower; "
            "unset it"
        )
    threads = os.environ.get("LINGERONNX_THREADS")
    if threads is not None and not (threads.isdecimal() and int(threads) > 0):
        yield f"LINGERONNX_THREADS={threads}: it must be an integer of at least 1; unset it"


def _find_disk_problems(cache: str | None) -> Iterator[str]:
    """Yield messages if the disk of `cache` or of the current folder is almost full.

    That is less than `_MIN_FREE_DISK_BYTES`; None is no folder.
    """
    for folder in filter(None, (cache, ".")):
        try:
            free_bytes = shutil.disk_usage(folder).free
        except OSError:  # the folder does not exist any more
            continue
        if free_bytes < _MIN_FREE_DISK_BYTES:
            yield (
                f"the disk of {folder} has {free_bytes / 1e6:.0f} MB free; up to "
                f"{_MIN_FREE_DISK_BYTES / 1e6:.0f} MB are needed; delete files"
            )


def _satisfies(version: str, sign: str, limit: str) -> bool:
    """Whether `version` satisfies `limit`: ``>=`` or ``<`` by `sign`, any other sign means equal.

    Missing parts of a version count as 0, so that 1.2 equals 1.2.0.
    """
    actual, expected = _parse_version(version), _parse_version(limit)
    length = max(len(actual), len(expected))
    actual += (0,) * (length - len(actual))
    expected += (0,) * (length - len(expected))
    if sign == ">=":
        return actual >= expected
    return actual < expected if sign == "<" else actual == expected


def _parse_version(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: (1, 26, 4) for "1.26.4rc1".

    () without any.
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
