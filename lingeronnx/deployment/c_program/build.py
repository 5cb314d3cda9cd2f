"""Compile a program on a PC, against the stand-in executor or the vendor's library."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from ...common.errors import ConfigError
from ...common.escaping import join_shell
from ..ports import Port
from .packages import compute_arguments_crc, make_package, make_package_header
from .program import BoardProgram
from .source_files import (
    _DTYPE_CODES,
    MAX_PORT_NAME_BYTES,
    UNREPORTED_PSRAM_BYTES,
    StaticMemory,
)
from .vectors import PartVector

__all__ = [
    "HOST_FLAGS",
    "PROGRAM_FLAGS",
    "SANITIZER_FLAGS",
    "build_stub_containers",
    "compile_program",
    "find_compiler",
    "get_stub_folder",
    "run_compiler",
]

#: Flags for the program's C, which compiles without warnings, and for the generated host parts.
PROGRAM_FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-ffp-contract=off")
HOST_FLAGS = ("-std=c99", "-Wall", "-ffp-contract=off")
#: Flags that detect accesses outside of arrays and undefined behaviour.
SANITIZER_FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def find_compiler() -> list[str]:
    """Return the command of the C compiler as a list of arguments: $CC if set, else cc.

    Raises
    ------
    ConfigError
        If it is not on the PATH.
    """
    argv = shlex.split(os.environ.get("CC", "cc"))
    if not argv or shutil.which(argv[0]) is None:
        raise ConfigError(
            f"no C compiler '{' '.join(argv) or 'cc'}' on the PATH; install one, or set CC"
        )
    return argv


def get_stub_folder() -> Path:
    """Return the folder with the C files of the stand-in executor, which replaces the vendor's."""
    return Path(str(files(__package__).joinpath("standin")))


def compile_program(
    sources: Sequence[tuple[Path, Sequence[str]]],
    output: Path,
    flags: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> str:
    """Compile and link C files; object files are removed afterwards.

    Parameters
    ----------
    sources
        C files, each with its own flags.
    output
        The program, or a shared library if its suffix is .so.
    flags
        Flags for all files and for linking.
    libraries
        Linker arguments; -lm is always added.

    Returns
    -------
    str
        Messages of the compiler.

    Raises
    ------
    ConfigError
        With the first error, if compilation fails.
    """
    cc, objects, messages = find_compiler(), [], ""
    for index, (source, source_flags) in enumerate(sources):
        object_path = output.parent / f"{output.name}.{index}.o"
        argv = [*cc, *source_flags, *flags, "-c", "-o", str(object_path), str(source)]
        messages += run_compiler(argv)
        objects.append(object_path)
    shared = ["-shared"] if output.suffix == ".so" else []
    object_names = map(str, objects)
    messages += run_compiler(
        [*cc, *flags, *shared, "-o", str(output), *object_names, *libraries, "-lm"]
    )
    for object_path in objects:
        object_path.unlink()
    return messages


def run_compiler(argv: Sequence[str]) -> str:
    """Run a compiler and return the text that it writes to stderr.

    Raises
    ------
    ConfigError
        With the first error, if its exit status is not 0.
    """
    process = subprocess.run(list(argv), capture_output=True, text=True, check=False)
    if process.returncode:
        lines = process.stderr.splitlines()
        errors = [line for line in lines if "error" in line] or lines[-1:]
        raise ConfigError(
            f"C compilation failed ({errors[0] if errors else join_shell(argv)}); set CC to use "
            "another compiler"
        )
    return process.stderr


def build_stub_containers(
    program: BoardProgram, crcs: Mapping[str, int], calls: Sequence[Sequence[PartVector]] = ()
) -> dict[str, bytes]:
    """Build a package for the stand-in executor of each unique chip part.

    Parameters
    ----------
    program
        The program.
    crcs
        CRC-32 of the chip parts' files, by part name, for the headers.
    calls
        Inputs and outputs of every part, call by call, which the stand-in replays; without them it
        asks a callback. Calls with equal inputs are stored once.

    Returns
    -------
    dict of str to bytes
        Package with its header, by part name.
    """
    memory, packages = StaticMemory(program), {}
    for part in program.unique_chip_parts:
        indices = [
            i for i, equal_part in enumerate(program.parts) if equal_part.first == part.first
        ]
        outputs_by_inputs, order = {}, part.list_executor_outputs()
        for vectors in calls:
            for index in indices:
                inputs = _pack_arrays(vectors[index].inputs)
                outputs = [vectors[index].outputs[position] for position in order]
                outputs_by_inputs[inputs] = _pack_arrays(outputs)
        shared_bytes = memory.shared_bytes_by_part[part.name]
        psram_bytes = memory.psram_bytes_by_part[part.name] - UNREPORTED_PSRAM_BYTES
        body = struct.pack("<8s12sI", b"LNGRPLAY", program.platform.encode(), part.package_index)
        body += struct.pack(
            "<IIIIII",
            shared_bytes,
            psram_bytes,
            len(part.inputs),
            len(part.outputs),
            len(outputs_by_inputs),
            part.has_resident_constants,
        )
        ports = [*part.inputs, *(part.outputs[position] for position in order)]
        body += b"".join(map(_pack_port, ports))
        body += b"".join(itertools.chain.from_iterable(outputs_by_inputs.items()))
        header = make_package_header(
            program.platform,
            part.package_index,
            crcs[part.name],
            compute_arguments_crc(part.choice.argv),
        )
        packages[part.name] = make_package(header, body)
    return packages


def _pack_port(port: Port) -> bytes:
    """Pack type code, rank, seven dimensions, shift and name of a port, little-endian.

    Missing dimensions are 0; the shift is a float32, -1 if there is none. The name is
    cut after 72 bytes, and has zeros behind it.
    """
    scale = -1.0 if port.shift is None else float(port.shift)
    dims = [*port.shape, *([0] * (7 - len(port.shape)))]
    fields = _DTYPE_CODES[port.dtype], len(port.shape), *dims, scale, port.package_name.encode()
    return struct.pack(f"<II7If{MAX_PORT_NAME_BYTES + 8}s", *fields)


def _pack_arrays(arrays: Sequence[np.ndarray]) -> bytes:
    """Return the bytes of all arrays, little-endian, each padded with zeros to a multiple of 8."""
    chunks = [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays]
    return b"".join(chunk + bytes(-len(chunk) % 8) for chunk in chunks)
