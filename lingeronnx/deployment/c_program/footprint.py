"""Measure flash, RAM and stack of a program's C, cross-compiled for small cores.

Flash and RAM are those of `object_sizes`. The stack is added up along the calls, from the function
sizes and calls that gcc reports with -fcallgraph-info=su. Functions that are not compiled here (of
the C library or the executor) are listed but not counted.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...common.errors import ConfigError
from .build import PROGRAM_FLAGS, find_compiler, run_compiler
from .object_sizes import (
    CORES,
    SELF_TEST,
    ProgramSizes,
    compile_object,
    iterate_sources,
    measure_program_sizes,
)
from .program import BoardProgram

__all__ = [
    "ACCEPTED_WARNINGS",
    "Footprint",
    "CallGraph",
    "measure_footprint",
    "format_footprints",
    "count_host_warnings",
]

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
_CALL_GRAPH_FLAGS = ("-fno-ipa-icf", "-fcallgraph-info=su")
_NODE = re.compile(r'node: \{ title: "([^"]*)" label: "([^"]*)"')
_EDGE = re.compile(r'edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"')


@dataclass(frozen=True)
class Footprint:
    """Memory that a program needs on one core, in bytes.

    sizes : of its objects. init_stack_bytes, run : stack of the two functions. deepest_chain :
    calls with the deepest stack in `run`. external_functions : called functions that are not
    compiled here.
    """

    core: str
    sizes: ProgramSizes
    init_stack_bytes: int
    run: int
    deepest_chain: tuple[str, ...]
    external_functions: tuple[str, ...]

    def summary(self) -> str:
        """Return code, constants, RAM, self-test and stack in bytes as one line of text.

        It names the deepest chain of calls and the functions that are not counted.
        """
        library = [name for name in self.external_functions if not re.match("t[A-Z]", name)]
        total = self.sizes.get_program_total()
        self_test = next(size for size in self.sizes.objects if size.role == SELF_TEST)
        selftest_flash = (self_test.code_bytes or 0) + (self_test.rodata_bytes or 0)
        return (
            f"compiled for a {self.core} with -Os: code {total.code_bytes} bytes, constants "
            f"{total.rodata_bytes}, static RAM {total.ram_bytes} without shared memory "
            f"({total.shared_bytes}) and psram ({total.psram_bytes}), self-test {selftest_flash} "
            f"bytes of additional flash and {self_test.ram_bytes} of RAM; stack "
            f"{self.init_stack_bytes} bytes in init, {self.run} in run "
            f"({' > '.join(self.deepest_chain)}), not including "
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
        """Return the functions of unknown stack size that `names` call, directly or indirectly.

        They are sorted by name; such functions are not compiled here.
        """
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
    toolchain, call_graph = CORES[core], CallGraph()
    sizes = measure_program_sizes(program, folder, core, toolchain)
    with tempfile.TemporaryDirectory(prefix="lingeronnx-core-") as name:
        for source, flags in iterate_sources(program, folder):
            object_path = compile_object(
                program, source, flags, toolchain, Path(name), _CALL_GRAPH_FLAGS
            )
            callgraph_info = object_path.with_suffix(".ci").read_text(encoding="utf-8")
            call_graph.add_callgraph_info(callgraph_info)
    init, run = f"{program.prefix}_init", f"{program.prefix}_run"
    run_stack_bytes, chain = call_graph.find_deepest_chain(run)
    return Footprint(
        core=core,
        sizes=sizes,
        init_stack_bytes=call_graph.find_deepest_chain(init)[0],
        run=run_stack_bytes,
        deepest_chain=chain,
        external_functions=call_graph.find_external_functions([init, run]),
    )


def format_footprints(program: BoardProgram, folder: Path) -> list[str]:
    """Return a line for each core of `CORES`: its figures, or why it was not compiled."""
    lines = []
    for core in CORES:
        try:
            lines.append(measure_footprint(program, folder, core).summary())
        except ConfigError as error:
            lines.append(f"not compiled for a {core}: {error}")
    return lines


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
