"""Writing a program's files into a deployed folder, and what a manifest tells of it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...run.dump import write_npz
from ...run.parts_runner import PartRun
from ...targets import Target
from ..dumps import to_raw_bytes
from .known_answers import get_golden_folder, make_main_c
from .packages import compute_arguments_crc, format_pack_script, make_package_header
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
    """Return the files that `init` takes."""
    if separate_packages and len(program.unique_chip_parts) > 1:
        return [f"{program.stem}_{part.name}.pkg" for part in program.unique_chip_parts]
    return [f"{program.stem}.pkg"]


def make_pack_script(
    made: Path, program: BoardProgram, target: Target, separate_packages: bool
) -> tuple[str, list[str]]:
    """Return pack.sh and the packer's lines; the graphs of the chip's parts are in `made`."""
    blobs, parts = list_package_files(program, separate_packages), []
    alone = len(program.unique_chip_parts) == 1
    for part in program.unique_chip_parts:
        package = f"{program.stem}.pkg" if alone else f"{program.stem}_{part.name}.pkg"
        command = target.vendor.format_packer_command(part.choice.argv, part.file, package)
        head = make_package_header(
            program.platform,
            part.package_index,
            _compute_crc(made, part),
            compute_arguments_crc(part.choice.argv),
        )
        parts.append((part.file, package, command, head))
    one = None if separate_packages or alone else blobs[0]
    return format_pack_script(program.platform, one, parts), [command for _, _, command, _ in parts]


def _compute_crc(made: Path, part: ChipPart) -> int:
    return zlib.crc32((made / part.file).read_bytes())


def compute_crcs(made: Path, program: BoardProgram) -> dict[str, int]:
    """Return the CRC-32 of the chip parts' files."""
    return {part.name: _compute_crc(made, part) for part in program.unique_chip_parts}


def write_program(
    made: Path,
    program: BoardProgram,
    calls: Sequence[Sequence[PartRun]],
    many: bool,
    constants: str,
) -> None:
    """Write the program's C. calls : golden ones, for the self-test.

    Constants : macros of a chip part's ports.
    """
    packages = list_package_files(program, many)
    stem = program.stem
    texts = {
        f"{stem}.h": make_model_h(program, len(packages), constants),
        f"{stem}.c": make_model_c(program, compute_crcs(made, program)),
        f"{stem}_host.h": make_host_header(program),
        f"{stem}_selftest.c": make_selftest_c(
            program, [collect_vectors(program, runs) for runs in calls]
        ),
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
    for name, text in texts.items():
        (made / name).write_text(text, encoding="utf-8")


def write_golden_calls(
    folder: Path,
    program: BoardProgram,
    calls: Sequence[Sequence[PartRun]],
    feeds: Sequence[Mapping[str, np.ndarray]],
) -> None:
    """Write what the whole program and its host parts take and give, call by call, beside the chip's vectors.

    model_input.npz : what `verify` takes for the whole graph, states among it.
    """
    for number, (runs, given) in enumerate(zip(calls, feeds, strict=True)):
        place = folder / str(number)
        place.mkdir(parents=True, exist_ok=True)
        made = {name: array for run in runs for name, array in run.outputs.items()}
        for word, arrays, held in (
            ("input", program.inputs, given),
            ("output", program.outputs, made),
        ):
            for index, array in enumerate(arrays):
                (place / f"model_{word}{index}.bin").write_bytes(
                    to_raw_bytes(np.asarray(held[array.tensor], array.dtype))
                )
        write_npz(
            place / "model_input.npz",
            {name: np.ascontiguousarray(array) for name, array in given.items()},
        )
        for part, run in zip(program.parts, runs, strict=True):
            if isinstance(part, HostPart):
                (where := place / get_golden_folder(program, part)).mkdir(exist_ok=True)
                for word, tensors in (("input", run.inputs), ("output", run.outputs)):
                    for index, tensor in enumerate(tensors.values()):
                        (where / f"{word}{index}.bin").write_bytes(to_raw_bytes(np.asarray(tensor)))


def describe_program(program: BoardProgram) -> dict[str, Any]:
    """Return what the manifest tells of a program.

    `Session(path, host=DIR)` reads the host parts of it.
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
        "parts": [
            {
                "name": part.name,
                "chip": isinstance(part, ChipPart),
                "file": part.file,
                "inputs": [[a.tensor, a.dtype, list(a.shape)] for a in part.sources],
                "outputs": [[a.tensor, a.dtype, list(a.shape)] for a in part.targets],
                **(
                    {}
                    if isinstance(part, ChipPart)
                    else {
                        "source": f"{program.stem}_{part.first}.c",
                        "function": f"{program.prefix}_{part.first}",
                        "scratch": part.source.scratch_bytes,
                    }
                ),
            }
            for part in program.parts
        ],
    }
