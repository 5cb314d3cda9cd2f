"""Measure flash, RAM and stack of a program's C, cross-compiled for small cores.

The stack is added up along the calls, from the function sizes and calls that gcc reports with
-fcallgraph-info=su. Functions that are not compiled here (of the C library or the executor) are
listed but not counted.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import ConfigError
from .build import HOST_FLAGS, PROGRAM_FLAGS, find_compiler, get_stub_folder, run_compiler
from .program import BoardProgram

__all__ = [
    "CORES",
    "ACCEPTED_WARNINGS",
    "Footprint",
    "CallGraph",
    "measure_footprint",
    "format_footprints",
    "count_host_warnings",
]

#: {core: compiler, tool that prints section sizes, flags}; each is a Debian package.
CORES = {
    "Cortex-M4": (
        "arm-none-eabi-gcc",
        "arm-none-eabi-size",
        ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    ),
    "RV32": (
        "riscv64-unknown-elf-gcc",
        "riscv64-unknown-elf-size",
        ("-march=rv32imafc", "-mabi=ilp32f", "--specs=picolibc.specs"),
    ),
}
#: Warnings of generated host parts under the program's flags, and why they are acceptable.
ACCEPTED_WARNINGS = {
    "-Wpedantic": (
        "pointers to arrays are passed as pointers to const arrays: the same bytes; valid in C23"
    ),
    "-Wconversion": (
        "a 64-bit index of Gather and similar operators is stored in 32 bits: no axis is that long"
    ),
    "-Wsign-conversion": "positive constant sizes of Concat and Split are multiplied by a sizeof",
}
#: With -fipa-icf gcc merges equal functions and reports no size of the removed one, although
#: callers still refer to it.
_OPTIMIZED = ("-Os", "-fno-ipa-icf", "-fcallgraph-info=su")
_NODE = re.compile(r'node: \{ title: "([^"]*)" label: "([^"]*)"')
_EDGE = re.compile(r'edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"')


@dataclass(frozen=True)
class Footprint:
    """Memory that a program needs on one core, in bytes.

    code_bytes, constant_bytes : flash of the program without its self-test. ram_bytes : data and
    bss, without shared memory and PSRAM. selftest_bytes : additional flash of the self-test.
    init_stack_bytes, run : stack of the two functions. deepest_chain : calls with the deepest stack
    in `run`. external_functions : called functions that are not compiled here.
    """

    core: str
    code_bytes: int
    constant_bytes: int
    ram_bytes: int
    selftest_bytes: int
    init_stack_bytes: int
    run: int
    deepest_chain: tuple[str, ...]
    external_functions: tuple[str, ...]

    def summary(self) -> str:
        """Return the figures as one line."""
        library = [name for name in self.external_functions if not re.match("t[A-Z]", name)]
        return (
            f"compiled for a {self.core} with -Os: code {self.code_bytes} bytes, constants "
            f"{self.constant_bytes}, static RAM {self.ram_bytes}, self-test {self.selftest_bytes} "
            f"bytes of additional flash; stack {self.init_stack_bytes} bytes in init, {self.run} "
            f"in run ({' > '.join(self.deepest_chain)}), not including "
            f"{', '.join(['the executor', *library])}"
        )


@dataclass
class CallGraph:
    """Functions of a program with their stack sizes and calls.

    unbounded : functions whose stack size is not fixed.
    """

    stack_bytes: dict[str, int] = field(default_factory=dict)
    calls: dict[str, set[str]] = field(default_factory=dict)
    unbounded: set[str] = field(default_factory=set)

    def add_callgraph_info(self, text: str) -> None:
        """Add the functions and calls of gcc's report on one file (.ci).

        Names of static functions are prefixed by the file. A function whose stack is neither static
        nor bounded goes to `unbounded`.
        """
        for title, label in _NODE.findall(text):
            if match := re.search(r"(\d+) bytes \(([\w,]+)\)", label):
                self.stack_bytes[title] = int(match[1])
                if match[2] not in ("static", "dynamic,bounded"):
                    self.unbounded.add(title)
        for caller, callee in _EDGE.findall(text):
            self.calls.setdefault(caller, set()).add(callee)

    def find_deepest_chain(
        self, name: str, callers: tuple[str, ...] = ()
    ) -> tuple[int, tuple[str, ...]]:
        """Return the stack bytes and the functions of the deepest chain of calls from `name`.

        `name` comes first, and its own stack counts; functions of unknown stack size count nothing.
        `callers` are the functions already on the chain.

        Raises
        ------
        ConfigError
            If a function is recursive or has no fixed stack size.
        """
        if name in callers:
            raise ConfigError(f"cannot bound the stack of {name}: it is recursive")
        if name in self.unbounded:
            raise ConfigError(f"cannot bound the stack of {name}: it uses a variable-length frame")
        callees = [
            callee for callee in sorted(self.calls.get(name, ())) if callee in self.stack_bytes
        ]
        chains = [self.find_deepest_chain(callee, (*callers, name)) for callee in callees]
        max_bytes, chain = max(chains, key=lambda item: item[0], default=(0, ()))
        return self.stack_bytes[name] + max_bytes, (name.rpartition(":")[2], *chain)

    def find_external_functions(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the functions of unknown stack size that `names` call, also indirectly, sorted."""
        visited: set[str] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name not in visited:
                visited.add(name)
                pending += self.calls.get(name, ())
        return tuple(sorted(name for name in visited if name not in self.stack_bytes))


def measure_footprint(program: BoardProgram, folder: Path, core: str) -> Footprint:
    """Compile the program in `folder` for a core of `CORES` and measure its memory.

    Raises
    ------
    ConfigError
        If the compiler is missing or fails, or the stack is not bounded.
    """
    cc, size_tool, flags = CORES[core]
    missing = next((tool for tool in (cc, size_tool) if shutil.which(tool) is None), None)
    if missing:
        raise ConfigError(f"no {missing} on the PATH")
    prefix, call_graph = program.prefix.upper(), CallGraph()
    section_macros = [
        f'-D{prefix}_{memory}_SECTION=__attribute__((section(".{memory.lower()}")))'
        for memory in ("SHARED", "PSRAM")
    ]
    bytes_by_kind: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="lingeronnx-core-") as name:
        for source, source_flags in _iterate_sources(program, folder):
            object_path = Path(name) / f"{source.stem}.o"
            argv = [cc, *flags, *source_flags, *_OPTIMIZED, *section_macros]
            run_compiler([*argv, "-w", "-c", "-o", str(object_path), str(source)])
            callgraph_info = object_path.with_suffix(".ci").read_text(encoding="utf-8")
            call_graph.add_callgraph_info(callgraph_info)
            process = subprocess.run(
                [size_tool, "-A", str(object_path)], capture_output=True, text=True, check=True
            )
            sections = _parse_sections(process.stdout)
            if source.stem == f"{program.stem}_selftest":
                sections = Counter(selftest=sections["code"] + sections["constants"])
            bytes_by_kind += sections
    init, run = f"{program.prefix}_init", f"{program.prefix}_run"
    run_stack_bytes, chain = call_graph.find_deepest_chain(run)
    return Footprint(
        core=core,
        code_bytes=bytes_by_kind["code"],
        constant_bytes=bytes_by_kind["constants"],
        ram_bytes=bytes_by_kind["ram"],
        selftest_bytes=bytes_by_kind["selftest"],
        init_stack_bytes=call_graph.find_deepest_chain(init)[0],
        run=run_stack_bytes,
        deepest_chain=chain,
        external_functions=call_graph.find_external_functions([init, run]),
    )


def format_footprints(program: BoardProgram, folder: Path) -> list[str]:
    """Return a line of figures for each core of `CORES`, or the reason why there are none."""
    lines = []
    for core in CORES:
        try:
            lines.append(measure_footprint(program, folder, core).summary())
        except ConfigError as error:
            lines.append(f"not compiled for a {core}: {error}")
    return lines


def _iterate_sources(program: BoardProgram, folder: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield the program's C files with their flags: program, self-test, unique host parts.

    main.c is not among them.
    """
    for suffix in ("", "_selftest"):
        yield folder / f"{program.stem}{suffix}.c", (*PROGRAM_FLAGS, f"-I{get_stub_folder()}")
    for part in program.unique_host_parts:
        yield folder / f"{program.stem}_{part.name}.c", HOST_FLAGS


def _parse_sections(text: str) -> Counter[str]:
    """Return the bytes of "code", "constants" and "ram" from the output of `size -A`.

    Other sections are left out.
    """
    kinds = {"text": "code", "rodata": "constants", "srodata": "constants"}
    kinds |= dict.fromkeys(("data", "bss", "sdata", "sbss"), "ram")
    bytes_by_kind: Counter[str] = Counter()
    for line in text.splitlines():
        match = re.match(r"\.(s?\w+)\S*\s+(\d+)\s", line)
        if match and match[1] in kinds:
            bytes_by_kind[kinds[match[1]]] += int(match[2])
    return bytes_by_kind


def count_host_warnings(program: BoardProgram, folder: Path) -> Mapping[str, int]:
    """Count the compiler's warnings of the generated host parts under the program's flags.

    Returns {warning option: count}; ConfigError if compilation fails.
    """
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="lingeronnx-warnings-") as name:
        object_path = Path(name) / "host_part.o"
        for part in program.unique_host_parts:
            source = folder / f"{program.stem}_{part.name}.c"
            argv = [*find_compiler(), *PROGRAM_FLAGS, "-c", "-o", str(object_path), str(source)]
            counts.update(re.findall(r"warning: .*\[(-W[\w-]+)", run_compiler(argv)))
    return counts
