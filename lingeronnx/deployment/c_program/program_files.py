"""Write a program's files into a deployed folder, and describe it for the manifest."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...common.files import write_text
from ...runtime.dump import write_npz
from ...runtime.parts_runner import PartRun
from ...targets import Target
from ..dumps import to_raw_bytes
from .firmware_files import make_board_header, make_firmware_c
from .known_answers import get_golden_folder, make_main_c
from .packages import PackedPart, compute_arguments_crc, format_pack_script, make_package_header
from .program import BoardProgram, ChipPart, HostPart
from .source_files import (
    StaticMemory,
    get_template_values,
    make_host_header,
    make_model_c,
    make_model_h,
    render_template,
)
from .vectors import collect_vectors, make_selftest_c

__all__ = [
    "describe_program",
    "list_package_files",
    "make_pack_script",
    "write_golden_calls",
    "write_program",
]


def list_package_files(program: BoardProgram, separate_packages: bool) -> list[str]:
    """List the package files that `init` takes: one, or one per unique chip part if separate.

    Names are "<stem>.pkg" or "<stem>_<part>.pkg".
    """
    if separate_packages and len(program.unique_chip_parts) > 1:
        return [f"{program.stem}_{part.name}.pkg" for part in program.unique_chip_parts]
    return [f"{program.stem}.pkg"]


def make_pack_script(
    folder: Path, program: BoardProgram, target: Target, separate_packages: bool
) -> tuple[str, list[str]]:
    """Return the text of pack.sh and the packer command of each unique chip part.

    `folder` contains the ONNX files of the chip parts. `separate_packages` says that packages are
    not joined into one file.
    """
    has_one_package = len(program.unique_chip_parts) == 1
    parts = []
    for part in program.unique_chip_parts:
        package = f"{program.stem}.pkg" if has_one_package else f"{program.stem}_{part.name}.pkg"
        command = target.vendor.format_packer_command(part.choice.argv, part.file, package)
        header = make_package_header(
            program.platform,
            part.package_index,
            _compute_crc(folder, part),
            compute_arguments_crc(part.choice.argv),
        )
        parts.append(PackedPart(part.file, package, command, header))
    blob_file = None
    if not separate_packages and not has_one_package:
        (blob_file,) = list_package_files(program, separate_packages)
    script = format_pack_script(program.platform, blob_file, parts)
    return script, [part.command for part in parts]


def _compute_crc(folder: Path, part: ChipPart) -> int:
    """Return the CRC-32 of a chip part's ONNX file."""
    return zlib.crc32((folder / part.file).read_bytes())


def compute_crcs(folder: Path, program: BoardProgram) -> dict[str, int]:
    """Return {part: CRC-32 of its ONNX file in `folder`} of the unique chip parts."""
    return {part.name: _compute_crc(folder, part) for part in program.unique_chip_parts}


def write_program(
    folder: Path,
    program: BoardProgram,
    target: Target,
    calls: Sequence[Sequence[PartRun]],
    separate_packages: bool,
    constants: str,
) -> None:
    """Write the program's C files and headers, main.c, Makefile, CMakeLists.txt, and the example.

    Parameters
    ----------
    folder
        The deployed folder, with the ONNX files of the parts.
    program
        The program.
    target
        The chip.
    calls
        Golden calls; the first one becomes the self-test.
    separate_packages
        Whether each chip part is a package file.
    constants
        Macros of a chip part's ports, for the header.
    """
    packages = list_package_files(program, separate_packages)
    vectors = [collect_vectors(program, runs) for runs in calls]
    stem = program.stem
    texts = {
        f"{stem}.h": make_model_h(program, len(packages), constants),
        f"{stem}.c": make_model_c(program, compute_crcs(folder, program)),
        f"{stem}_host.h": make_host_header(program),
        f"{stem}_selftest.c": make_selftest_c(program, vectors),
        "main.c": make_main_c(program),
    }
    for part in program.unique_host_parts:
        texts[f"{stem}_{part.name}.c"] = part.source.text
    sources = [name for name in texts if name.endswith(".c") and name != "main.c"]
    values = get_template_values(program) | {
        "objects": " ".join(f"{name[:-2]}.o" for name in sources),
        "sources": " ".join(sources),
        "packages": " ".join(packages),
    }
    for name in ("Makefile", "CMakeLists.txt"):
        texts[name] = render_template(name, values)
    texts[f"{stem}_board.h"] = make_board_header(program, target)
    texts[f"{stem}_firmware.c"] = make_firmware_c(program, packages[0])
    for name, text in texts.items():
        write_text(folder / name, text)


def write_golden_calls(
    folder: Path,
    program: BoardProgram,
    calls: Sequence[Sequence[PartRun]],
    feeds: Sequence[Mapping[str, np.ndarray]],
) -> None:
    """Write inputs and outputs of the complete program and of its host parts, call by call.

    The files of call N are in `folder`/N, which is created. model_input.npz contains the inputs of
    the complete graph, states included, for `verify`.
    """
    for index, (runs, inputs) in enumerate(zip(calls, feeds, strict=True)):
        call_folder = folder / str(index)
        call_folder.mkdir(parents=True, exist_ok=True)
        outputs: dict[str, np.ndarray] = {}
        for run in runs:
            outputs.update(run.outputs)
        input_arrays = [np.asarray(inputs[t.tensor], t.dtype) for t in program.inputs]
        output_arrays = [np.asarray(outputs[t.tensor], t.dtype) for t in program.outputs]
        _write_arrays(call_folder, "model_input", input_arrays)
        _write_arrays(call_folder, "model_output", output_arrays)
        contiguous = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        write_npz(call_folder / "model_input.npz", contiguous)
        for part, run in zip(program.parts, runs, strict=True):
            if isinstance(part, HostPart):
                part_folder = call_folder / get_golden_folder(program, part)
                part_folder.mkdir(exist_ok=True)
                _write_arrays(part_folder, "input", run.inputs.values())
                _write_arrays(part_folder, "output", run.outputs.values())


def _write_arrays(folder: Path, prefix: str, arrays: Iterable[np.ndarray]) -> None:
    """Write arrays as raw little-endian files PREFIX0.bin, PREFIX1.bin ... in `folder`."""
    for index, array in enumerate(arrays):
        (folder / f"{prefix}{index}.bin").write_bytes(to_raw_bytes(np.asarray(array)))


def describe_program(program: BoardProgram) -> dict[str, Any]:
    """Return the manifest's entry of a program: prefix, memory in bytes, operations, and parts.

    `Session(path, host=DIR)` reads the host parts from it.
    """
    memory = StaticMemory(program)
    return {
        "prefix": program.prefix,
        "arena": program.arena_bytes,
        "state_bytes": memory.states,
        "shared_bytes": memory.shared,
        "psram_bytes": memory.psram_bytes,
        "operations": sum(part.float_operations for part in program.host),
        "host_weights": sum(part.source.weight_bytes for part in program.unique_host_parts),
        "parts": [_describe_part(program, part) for part in program.parts],
    }


def _describe_part(program: BoardProgram, part: ChipPart | HostPart) -> dict[str, Any]:
    """Return the manifest's entry of one part.

    Its keys are name, chip (a bool: False for a host part), file (ONNX), and inputs and outputs,
    lists of [tensor, dtype, shape]. A host part also has source (C file), function and scratch
    (bytes).
    """
    entry: dict[str, Any] = {
        "name": part.name,
        "chip": isinstance(part, ChipPart),
        "file": part.file,
        "inputs": [[t.tensor, t.dtype, list(t.shape)] for t in part.sources],
        "outputs": [[t.tensor, t.dtype, list(t.shape)] for t in part.targets],
    }
    if isinstance(part, HostPart):
        entry["source"] = f"{program.stem}_{part.first}.c"
        entry["function"] = f"{program.prefix}_{part.first}"
        entry["scratch"] = part.source.scratch_bytes
    return entry
