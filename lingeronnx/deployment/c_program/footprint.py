"""What a program's C takes on a small core: cross-compiled, its sections and its deepest stack.

Stacks are added up along the calls, from what gcc tells with -fcallgraph-info=su: of each function
its bytes, and whom it calls. What is not compiled here (the C library, the executor) is named, not
counted.
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
from .build import HOST_FLAGS, OWN_FLAGS, find_compiler, get_stub_folder, run_compiler
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

#: {core: compiler, size of its sections, flags}; each is a Debian package.
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
#: What the generated C of host parts is warned of under the flags of our own, and why that may stay.
ACCEPTED_WARNINGS = {
    "-Wpedantic": (
        "rows that a function only reads are given as rows that may be written: the "
        "same "
        "bytes; C23 has it"
    ),
    "-Wconversion": (
        "an index of Gather and its like, of 64 bits, is kept in 32: no axis has as many elements"
    ),
    "-Wsign-conversion": "sizes of Concat and Split, known and above 0, are multiplied by a sizeof",
}
#: Of two equal functions gcc would keep one, and tell no bytes of the other, whose callers name it all the same.
_OPTIMIZED = ("-Os", "-fno-ipa-icf", "-fcallgraph-info=su")
_NODE = re.compile(r'node: \{ title: "([^"]*)" label: "([^"]*)"')
_EDGE = re.compile(r'edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"')


@dataclass(frozen=True)
class Footprint:
    """Bytes on one core.

    code_bytes, constant_bytes : of the program without its self test. ram : its data and zeros,
    without shared memory and psram. selftest_bytes : flash that the self test takes in addition.
    init, run : stack of the two calls. chain : the functions that are deepest in `run`. outside :
    functions that are called and not compiled here.
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
        """Return it as one line."""
        library = [name for name in self.external_functions if not re.match("t[A-Z]", name)]
        return (
            f"compiled for a {self.core} with -Os: code {self.code_bytes} bytes, constants "
            f"{self.constant_bytes}, "
            "static RAM "
            f"{self.ram_bytes}, the self test {self.selftest_bytes} more of flash; stack "
            f"{self.init_stack_bytes} bytes "
            f"in init, {self.run} in "
            f"run ({' > '.join(self.deepest_chain)}), beside what "
            f"{', '.join(['the executor', *library])} take"
        )


@dataclass
class CallGraph:
    """Functions of a program: bytes of stack by name, and the calls.

    Unbounded : whose stack has no fixed size.
    """

    stack_bytes: dict[str, int] = field(default_factory=dict)
    calls: dict[str, set[str]] = field(default_factory=dict)
    unbounded: set[str] = field(default_factory=set)

    def add_callgraph_info(self, text: str) -> None:
        """Add what gcc wrote of one file; a static function's name has its file in front."""
        for title, label in _NODE.findall(text):
            if match := re.search(r"(\d+) bytes \(([\w,]+)\)", label):
                self.stack_bytes[title] = int(match[1])
                if match[2] not in ("static", "dynamic,bounded"):
                    self.unbounded.add(title)
        for source, target in _EDGE.findall(text):
            self.calls.setdefault(source, set()).add(target)

    def find_deepest_chain(
        self, name: str, callers: tuple[str, ...] = ()
    ) -> tuple[int, tuple[str, ...]]:
        """Return the bytes of the deepest chain from `name` on, and the chain.

        Raises ConfigError for a function without a fixed size, and for one that calls itself.
        """
        if name in callers:
            raise ConfigError(f"the stack of {name} has no limit: it calls itself")
        if name in self.unbounded:
            raise ConfigError(f"the stack of {name} has no limit: it is sized at run time")
        below = [
            self.find_deepest_chain(one, (*callers, name))
            for one in sorted(self.calls.get(name, ()))
            if one in self.stack_bytes
        ]
        most, chain = max(below, key=lambda found: found[0], default=(0, ()))
        return self.stack_bytes[name] + most, (name.rpartition(":")[2], *chain)

    def find_external_functions(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return what `names` call, or what they call calls, that is not known."""
        seen: set[str] = set()
        wanted = list(names)
        while wanted:
            name = wanted.pop()
            if name not in seen:
                seen.add(name)
                wanted += self.calls.get(name, ())
        return tuple(sorted(name for name in seen if name not in self.stack_bytes))


def measure_footprint(program: BoardProgram, folder: Path, core: str) -> Footprint:
    """Compile the program in `folder` for a core of `CORES`.

    ConfigError without its compiler, and where that fails.
    """
    cc, size, flags = CORES[core]
    missing = next((tool for tool in (cc, size) if shutil.which(tool) is None), None)
    if missing:
        raise ConfigError(f"no {missing} on the PATH")
    up, functions = program.prefix.upper(), CallGraph()
    places = [
        f'-D{up}_{kind}_SECTION=__attribute__((section(".{kind.lower()}")))'
        for kind in ("SHARED", "PSRAM")
    ]
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="lingeronnx-core-") as name:
        place = Path(name)
        for source, own in _iterate_sources(program, folder):
            made = place / f"{source.stem}.o"
            run_compiler(
                [cc, *flags, *own, *_OPTIMIZED, *places, "-w", "-c", "-o", str(made), str(source)]
            )
            functions.add_callgraph_info(made.with_suffix(".ci").read_text(encoding="utf-8"))
            kinds = _parse_sections(
                subprocess.run(
                    [size, "-A", str(made)], capture_output=True, text=True, check=True
                ).stdout
            )
            if source.stem == f"{program.stem}_selftest":
                kinds = Counter(selftest=kinds["code"] + kinds["constants"])
            found += kinds
    init, run = (f"{program.prefix}_{end}" for end in ("init", "run"))
    stack, chain = functions.find_deepest_chain(run)
    return Footprint(
        core=core,
        code_bytes=found["code"],
        constant_bytes=found["constants"],
        ram_bytes=found["ram"],
        selftest_bytes=found["selftest"],
        init_stack_bytes=functions.find_deepest_chain(init)[0],
        run=stack,
        deepest_chain=chain,
        external_functions=functions.find_external_functions([init, run]),
    )


def format_footprints(program: BoardProgram, folder: Path) -> list[str]:
    """Return a line for each core, with the reason where it has no figures."""
    lines = []
    for core in CORES:
        try:
            lines.append(measure_footprint(program, folder, core).summary())
        except ConfigError as error:
            lines.append(f"not compiled for a {core}: {error}")
    return lines


def _iterate_sources(program: BoardProgram, folder: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    for end in ("", "_selftest"):
        yield folder / f"{program.stem}{end}.c", (*OWN_FLAGS, f"-I{get_stub_folder()}")
    for part in program.unique_host_parts:
        yield folder / f"{program.stem}_{part.name}.c", HOST_FLAGS


def _parse_sections(said: str) -> Counter[str]:
    """Return bytes of code, constants and RAM from what `size -A` says."""
    found: Counter[str] = Counter()
    for line in said.splitlines():
        match = re.match(r"\.(s?\w+)\S*\s+(\d+)\s", line)
        kinds = {"text": "code", "rodata": "constants", "srodata": "constants"}
        kinds |= dict.fromkeys(("data", "bss", "sdata", "sbss"), "ram")
        if match and match[1] in kinds:
            found[kinds[match[1]]] += int(match[2])
    return found


def count_host_warnings(program: BoardProgram, folder: Path) -> Mapping[str, int]:
    """Return {warning: how often} of the generated host parts under the flags of the program's own C."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="lingeronnx-warnings-") as place:
        for part in program.unique_host_parts:
            source = folder / f"{program.stem}_{part.name}.c"
            made = Path(place) / "made.o"
            said = run_compiler([*find_compiler(), *OWN_FLAGS, "-c", "-o", str(made), str(source)])
            found.update(re.findall(r"warning: .*\[(-W[\w-]+)", said))
    return found
