"""Static memory and flash of a program's object files: computed, or measured with a cross compiler.

The writable data of each C file are unions and arrays of a multiple of 16 or 64 bytes, so that
`.data` + `.bss` of its object is the sum of the declarations, with every compiler, optimization
level and pointer size. `.rodata` and `.text` depend on the compiler: of these only the arrays of
constants can be computed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ...common.errors import ConfigError
from .build import HOST_FLAGS, PROGRAM_FLAGS, get_stub_folder, run_compiler
from .known_answers import compute_test_ram_bytes
from .program import BoardProgram
from .source_files import StaticMemory
from .vectors import compute_selftest_constant_bytes, compute_selftest_ram_bytes

__all__ = [
    "CORES",
    "ObjectSize",
    "ProgramSizes",
    "Toolchain",
    "compile_object",
    "compute_program_sizes",
    "get_program_sizes",
    "iterate_sources",
    "measure_program_sizes",
    "parse_sections",
]


class Toolchain(NamedTuple):
    """A C compiler, the tool that prints section sizes, and the compiler's flags for a core."""

    compiler: str
    size_tool: str
    flags: tuple[str, ...] = ()


#: Cross compilers by core; each is a Debian package.
CORES = {
    "Cortex-M4": Toolchain(
        "arm-none-eabi-gcc",
        "arm-none-eabi-size",
        ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    ),
    "RV32": Toolchain(
        "riscv64-unknown-elf-gcc",
        "riscv64-unknown-elf-size",
        ("-march=rv32imafc", "-mabi=ilp32f", "--specs=picolibc.specs"),
    ),
}
PROGRAM, SELF_TEST, PC_TEST = "program", "self-test", "test on a PC"
_SIZE_FLAG = "-Os"


@dataclass(frozen=True)
class ObjectSize:
    """Bytes of one object file.

    role : PROGRAM, SELF_TEST (linked only if it is called) or PC_TEST (`main.c`). ram_bytes,
    shared_bytes, psram_bytes : of `.data` and `.bss`; the last two can be moved to sections of
    their own. array_bytes : constant arrays. rodata_bytes, code_bytes :
    of `.rodata` and `.text`; None if they are not measured.
    """

    object: str
    role: str
    ram_bytes: int = 0
    shared_bytes: int = 0
    psram_bytes: int = 0
    array_bytes: int = 0
    rodata_bytes: int | None = None
    code_bytes: int | None = None

    @property
    def static_bytes(self) -> int:
        """Bytes of `.data` and `.bss` as `size` prints them, with default sections."""
        return self.ram_bytes + self.shared_bytes + self.psram_bytes


@dataclass(frozen=True)
class ProgramSizes:
    """Bytes of all object files of a program.

    compiler : that measured them; empty if they are computed from the declarations.
    not_measured_because : reasons, if they are computed.
    """

    objects: tuple[ObjectSize, ...]
    compiler: str = ""
    not_measured_because: str = ""

    def get_program_total(self) -> ObjectSize:
        """Return the sum of the objects that `run` needs: without self-test and test on a PC.

        Sizes of code and .rodata are None if nothing was compiled.
        """
        objects = [size for size in self.objects if size.role == PROGRAM]
        is_measured = bool(self.compiler)
        return ObjectSize(
            object="total",
            role=PROGRAM,
            ram_bytes=sum(size.ram_bytes for size in objects),
            shared_bytes=sum(size.shared_bytes for size in objects),
            psram_bytes=sum(size.psram_bytes for size in objects),
            array_bytes=sum(size.array_bytes for size in objects),
            rodata_bytes=sum(size.rodata_bytes or 0 for size in objects) if is_measured else None,
            code_bytes=sum(size.code_bytes or 0 for size in objects) if is_measured else None,
        )

    def to_dict(self) -> dict[str, object]:
        """Return the total of the program, the compiler and the figures of each object, JSON-ready.

        "compiler" is None if nothing was compiled.
        """
        total = self.get_program_total()
        values = {**_format_values(total), "compiler": self.compiler or None}
        del values["object"], values["role"]
        return {**values, "objects": [_format_values(size) for size in self.objects]}

    def format_summary(self) -> str:
        """Return the static memory of the program, and where the figures come from, as one line."""
        total = self.get_program_total()
        return (
            f"static memory of the program: {total.static_bytes} bytes of .data + .bss (RAM "
            f"{total.ram_bytes}, shared memory {total.shared_bytes}, psram {total.psram_bytes}), "
            f"without stack, heap and the executor's library; {self.format_origin()}"
        )

    def format_origin(self) -> str:
        """Format the origin of the figures: a compiler that measured them, or declarations."""
        if self.compiler:
            return f"measured with {self.compiler}"
        return "computed from the declarations in the C files"


def _format_values(size: ObjectSize) -> dict[str, object]:
    """Return the fields of an object's figures, and `static_bytes`, as JSON-ready values.

    That is the sum of RAM, shared memory and PSRAM.
    """
    return {**asdict(size), "static_bytes": size.static_bytes}


def compute_program_sizes(program: BoardProgram) -> ProgramSizes:
    """Compute the sizes of all object files from the declarations in the C files.

    Nothing is compiled. They equal `.data` + `.bss` exactly. `array_bytes` is exact for the arrays
    themselves; `.rodata` has in addition tables, literals and the padding in front of each array.
    """
    memory = StaticMemory(program)
    objects = [
        ObjectSize(
            object=f"{program.stem}.o",
            role=PROGRAM,
            ram_bytes=memory.ram_bytes,
            shared_bytes=memory.shared_array_bytes,
            psram_bytes=memory.psram_array_bytes,
        )
    ]
    for part in program.unique_host_parts:
        name = f"{program.stem}_{part.name}.o"
        objects.append(ObjectSize(name, PROGRAM, array_bytes=part.source.weight_bytes))
    objects += [
        ObjectSize(
            f"{program.stem}_selftest.o",
            SELF_TEST,
            ram_bytes=compute_selftest_ram_bytes(program),
            array_bytes=compute_selftest_constant_bytes(program),
        ),
        ObjectSize("main.o", PC_TEST, ram_bytes=compute_test_ram_bytes(program)),
    ]
    return ProgramSizes(tuple(objects))


def get_program_sizes(program: BoardProgram, folder: Path) -> ProgramSizes:
    """Measure the program in `folder` with the first cross compiler on the PATH, or compute.

    The compilers are those of CORES. The result is computed (`compute_program_sizes`), with the
    reasons, if there is none or all fail, for example without a C library.
    """
    reasons = []
    for core, toolchain in CORES.items():
        try:
            return measure_program_sizes(program, folder, core, toolchain)
        except ConfigError as error:
            reasons.append(str(error))
    return replace(compute_program_sizes(program), not_measured_because="; ".join(reasons))


def measure_program_sizes(
    program: BoardProgram, folder: Path, core: str, toolchain: Toolchain
) -> ProgramSizes:
    """Compile the program in `folder` to temporary objects, and read the sections of each.

    Parameters
    ----------
    program, folder
        The program, and the folder with its C files.
    core
        Name of the processor, for the text.
    toolchain
        The compiler.

    Raises
    ------
    ConfigError
        If a tool is missing or fails.
    """
    check_tools(toolchain)
    computed = {Path(size.object).stem: size for size in compute_program_sizes(program).objects}
    objects = []
    with tempfile.TemporaryDirectory(prefix="lingeronnx-size-") as name:
        for source, flags in iterate_sources(program, folder, with_main=True):
            object_path = compile_object(program, source, flags, toolchain, Path(name))
            sections = parse_sections(read_sections(object_path, toolchain))
            objects.append(
                replace(
                    computed[source.stem],
                    ram_bytes=sections["ram"],
                    shared_bytes=sections["shared"],
                    psram_bytes=sections["psram"],
                    rodata_bytes=sections["constants"],
                    code_bytes=sections["code"],
                )
            )
    version = run_compiler_version(toolchain)
    return ProgramSizes(tuple(objects), f"{version} {_SIZE_FLAG} for a {core}")


def check_tools(toolchain: Toolchain) -> None:
    """Raise ConfigError if the compiler or the tool that prints sizes is not on the PATH."""
    for tool in (toolchain.compiler, toolchain.size_tool):
        if shutil.which(tool) is None:
            raise ConfigError(f"no {tool} on the PATH")


def run_compiler_version(toolchain: Toolchain) -> str:
    """Return the compiler's command and version as text; only the command if that fails."""
    process = subprocess.run(
        [toolchain.compiler, "-dumpfullversion"], capture_output=True, text=True, check=False
    )
    return f"{toolchain.compiler} {process.stdout.strip()}".strip()


def iterate_sources(
    program: BoardProgram, folder: Path, with_main: bool = False
) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield (C file, compiler flags) of the program in `folder`.

    Main.c comes last if `with_main`.
    """
    program_flags = (*PROGRAM_FLAGS, f"-I{get_stub_folder()}")
    yield folder / f"{program.stem}.c", program_flags
    for part in program.unique_host_parts:
        yield folder / f"{program.stem}_{part.name}.c", HOST_FLAGS
    yield folder / f"{program.stem}_selftest.c", program_flags
    if with_main:
        yield folder / "main.c", program_flags


def compile_object(
    program: BoardProgram,
    source: Path,
    source_flags: Sequence[str],
    toolchain: Toolchain,
    folder: Path,
    flags: Sequence[str] = (),
) -> Path:
    """Compile a C file for size to `folder`, and return the path of the object file.

    Shared memory and PSRAM are in the sections .shared and .psram; `flags` come after the others.

    Raises
    ------
    ConfigError
        If the compiler fails.
    """
    prefix, object_path = program.prefix.upper(), folder / f"{source.stem}.o"
    section_macros = [
        f'-D{prefix}_{memory}_SECTION=__attribute__((section(".{memory.lower()}")))'
        for memory in ("SHARED", "PSRAM")
    ]
    argv = [toolchain.compiler, *toolchain.flags, *source_flags, _SIZE_FLAG, *flags]
    run_compiler([*argv, *section_macros, "-w", "-c", "-o", str(object_path), str(source)])
    return object_path


def read_sections(object_path: Path, toolchain: Toolchain) -> str:
    """Return the output of the toolchain's `size -A` for the object file at `object_path`.

    Raises ConfigError if the tool fails.
    """
    process = subprocess.run(
        [toolchain.size_tool, "-A", str(object_path)], capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise ConfigError(
            f"{toolchain.size_tool} -A fails ({process.stderr.strip()}); install the binutils of "
            f"{toolchain.compiler}"
        )
    return process.stdout


_SECTION_KINDS: Mapping[str, str] = {
    "text": "code",
    "rodata": "constants",
    "srodata": "constants",
    **dict.fromkeys(("data", "bss", "sdata", "sbss"), "ram"),
    "shared": "shared",
    "psram": "psram",
}


def parse_sections(text: str) -> Counter[str]:
    """Return bytes of code, constants, ram, shared and psram from the output of `size -A`."""
    bytes_by_kind: Counter[str] = Counter()
    for line in text.splitlines():
        match = re.match(r"\.(\w+)\S*\s+(\d+)\s", line)
        if match and match[1] in _SECTION_KINDS:
            bytes_by_kind[_SECTION_KINDS[match[1]]] += int(match[2])
    return bytes_by_kind
