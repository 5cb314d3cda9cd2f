"""What each part of a program reads and writes in one call, and its C: `model_selftest.c`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...run.parts_runner import PartRun
from ..dumps import max_magnitude
from .program import BoardProgram, ChipPart, get_c_type
from .source_files import get_template_values, render_template

__all__ = ["PartVector", "collect_vectors", "make_selftest_c"]


@dataclass(frozen=True)
class PartVector:
    """What one part is given and makes in one call.

    Of a chip part integers, as the executor has them.
    """

    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


def collect_vectors(program: BoardProgram, runs: Sequence[PartRun]) -> list[PartVector]:
    """Return the vectors of one call, part by part."""
    found = []
    for part, run in zip(program.parts, runs, strict=True):
        if isinstance(part, ChipPart):
            tensors = {name: array for name, array, _ in run.tensors}
            tensors = {**run.inputs, **tensors}
            ins = tuple(np.ascontiguousarray(tensors[port.tensor]) for port in part.inputs)
            outs = tuple(np.ascontiguousarray(tensors[port.tensor]) for port in part.outputs)
        else:
            ins = tuple(np.ascontiguousarray(run.inputs[a.tensor]) for a in part.sources)
            outs = tuple(np.ascontiguousarray(run.outputs[a.tensor]) for a in part.targets)
        found.append(PartVector(ins, outs))
    return found


def _compute_tolerance(arrays: Sequence[np.ndarray], limit: float) -> float:
    """Return how far an output of a host part, which was `arrays` in the calls, may be off.

    0 for what is no float.
    limit : as a fraction of their range.
    """
    if arrays[0].dtype != np.float32 or not arrays[0].size:
        return 0.0
    return max(max_magnitude(arrays) * limit, 1e-30)


def make_selftest_c(program: BoardProgram, calls: Sequence[Sequence[PartVector]]) -> str:
    """Return model_selftest.c: the first of `calls`; ranges are those of all of them."""
    arrays, tables, rows, room, most = [], [], [], 16, 1
    for number, (part, *seen) in enumerate(zip(program.parts, *calls, strict=True)):
        vector = seen[0]
        if part.first != part.name:
            continue  # what is equal is tried once
        names: dict[str, list[str]] = {"in": [], "out": []}
        for word, side in (("in", vector.inputs), ("out", vector.outputs)):
            for index, array in enumerate(side):
                name = f"{part.name}_{word}{index}"
                names[word].append(name)
                arrays.append(_format_array(name, array))
        outputs = zip(part.targets, *(one.outputs for one in seen), strict=True)
        tolerances = [
            0.0
            if isinstance(part, ChipPart)
            else _compute_tolerance(made, program.host_tolerances.get(array.tensor, 0.0))
            for array, *made in outputs
        ]
        for word in ("in", "out"):
            listed = ", ".join(names[word]) or "NULL"
            tables.append(f"static const void *const {part.name}_{word}[] = {{{listed}}};")
        tables.append(
            f"static const uint32_t {part.name}_sizes[] = "
            f"{{{', '.join(str(a.nbytes) for a in vector.outputs)}}};"
        )
        tables.append(
            f"static const float {part.name}_tolerances[] = "
            f"{{{', '.join(_format_float(t) for t in tolerances)}}};"
        )
        rows.append(
            f"    {{{number}, {len(vector.inputs)}, {len(vector.outputs)}, {part.name}_in, "
            f"{part.name}_out, "
            f"{part.name}_sizes, {part.name}_tolerances}},"
        )
        room = max(room, sum(-(-a.nbytes // 16) * 16 for a in vector.outputs))
        most = max(most, len(vector.outputs))
    values = get_template_values(program) | {
        "kinds": len(program.unique_parts),
        "arrays": "\n".join(arrays),
        "vectors": "\n".join(
            [
                *tables,
                "",
                f"static const vector vectors[{len(program.unique_parts)}] = {{",
                *rows,
                "};",
                "",
            ]
        ),
        "room": room,
        "most": most,
    }
    return render_template("selftest.c", values)


def _format_array(name: str, array: np.ndarray) -> str:
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        texts = [_format_float(float(value)) for value in flat]
    elif array.dtype.kind == "b":
        texts = [str(int(value)) for value in flat]
    else:
        suffix = "" if array.dtype.itemsize < 8 else "LL"
        texts = [_format_integer(int(value), suffix) for value in flat]
    lines, width = [], 8 if array.dtype.kind == "f" else 24
    for start in range(0, len(texts), width):
        lines.append("    " + ", ".join(texts[start : start + width]) + ",")
    # An array of no constants is no C.
    return "\n".join(
        [
            f"static const {get_c_type(str(array.dtype))} {name}[{max(flat.size, 1)}] = {{",
            *(lines or ["    0"]),
            "};",
        ]
    )


def _format_integer(value: int, suffix: str) -> str:
    low = -(2**31) if not suffix else -(2**63)
    return f"({value + 1}{suffix} - 1)" if value == low else f"{value}{suffix}"


def _format_float(value: float) -> str:
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value:.9g}f" if any(c in f"{value:.9g}" for c in ".e") else f"{value:.9g}.0f"
