"""Compiling a program on a PC, against the stand-in executor or the vendor's library."""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from ...errors import ConfigError
from .packages import compute_arguments_crc, make_package, make_package_header
from .program import BoardProgram
from .source_files import _DTYPE_CODES, StaticMemory
from .vectors import PartVector

__all__ = [
    "HOST_FLAGS",
    "OWN_FLAGS",
    "SANITIZER_FLAGS",
    "build_stub_containers",
    "compile_program",
    "find_compiler",
    "get_stub_folder",
    "run_compiler",
]

#: How the program's own C is compiled, without a warning, and the generated C of the host's parts.
OWN_FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-ffp-contract=off")
HOST_FLAGS = ("-std=c99", "-Wall", "-ffp-contract=off")
#: What finds a byte written past an array, and what C leaves undefined.
SANITIZER_FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def find_compiler() -> list[str]:
    """Return the compiler's call, $CC or cc; ConfigError where there is none."""
    words = shlex.split(os.environ.get("CC", "cc"))
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(
            f"no C compiler '{' '.join(words) or 'cc'}' on the PATH; install one, or name it in CC"
        )
    return words


def get_stub_folder() -> Path:
    """Return the folder of the stand-in executor."""
    return Path(str(files(__package__).joinpath("standin")))


def compile_program(
    sources: Sequence[tuple[Path, Sequence[str]]],
    output: Path,
    flags: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> str:
    """Compile `sources`, each with flags of its own, and link them into `output`.

    Return what the compiler said.
    Raises ConfigError with the first error where it fails.
    """
    cc, objects, said = find_compiler(), [], ""
    for number, (source, own) in enumerate(sources):
        made_object = output.parent / f"{output.name}.{number}.o"
        said += run_compiler([*cc, *own, *flags, "-c", "-o", str(made_object), str(source)])
        objects.append(str(made_object))
    shared = ["-shared"] if output.suffix == ".so" else []
    said += run_compiler([*cc, *flags, *shared, "-o", str(output), *objects, *libraries, "-lm"])
    for item in objects:
        Path(item).unlink()
    return said


def run_compiler(words: Sequence[str]) -> str:
    """Return what a compiler says; ConfigError with its first error where it fails."""
    done = subprocess.run(list(words), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [
            line for line in done.stderr.splitlines() if "error" in line
        ] or done.stderr.splitlines()[-1:]
        raise ConfigError(
            f"the C compiler fails ({lines[0] if lines else shlex.join(words)}); name another one "
            "in CC"
        )
    return done.stderr


def build_stub_containers(
    program: BoardProgram, crcs: Mapping[str, int], calls: Sequence[Sequence[PartVector]] = ()
) -> dict[str, bytes]:
    """Return a package for the stand-in of each chip part, with its header, by part.

    calls : what the parts read and wrote, call by call, to be replayed; none: the stand-in asks a
    callback. What a part is given twice is written once.
    """
    memory, found = StaticMemory(program), {}
    for part in program.unique_chip_parts:
        steps = [index for index, one in enumerate(program.parts) if one.first == part.first]
        sizes = memory.shared_bytes_by_part[part.name], memory.psram_bytes_by_part[part.name] - 4096
        known = {
            _pack_arrays(v.inputs): _pack_arrays(v.outputs)
            for v in (call[index] for call in calls for index in steps)
        }
        counts = len(part.inputs), len(part.outputs), len(known)
        body = struct.pack("<8s12sI", b"LNGRPLAY", program.platform.encode(), part.package_index)
        body += struct.pack("<IIIIII", *sizes, *counts, part.has_resident_constants)
        body += b"".join(
            struct.pack(
                "<II7If",
                _DTYPE_CODES[port.dtype],
                len(port.shape),
                *_pad_dims(port.shape),
                -1.0 if port.shift is None else float(port.shift),
            )
            for port in (*part.inputs, *part.outputs)
        )
        body += b"".join(given + made for given, made in known.items())
        words = part.choice.argv
        found[part.name] = make_package(
            make_package_header(
                program.platform, part.package_index, crcs[part.name], compute_arguments_crc(words)
            ),
            body,
        )
    return found


def _pack_arrays(arrays: Sequence[np.ndarray]) -> bytes:
    """Return arrays as they lie in a package: little-endian, each filled up to 8 bytes."""
    found = [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays]
    return b"".join(raw + bytes(-len(raw) % 8) for raw in found)


def _pad_dims(shape: Sequence[int]) -> list[int]:
    return [*shape, *([0] * (7 - len(shape)))]
