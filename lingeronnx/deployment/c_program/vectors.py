"""Collect inputs and outputs of each part in a call, and write them as C: `model_selftest.c`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...common.arithmetic import round_up
from ...runtime.parts_runner import PartRun
from ..dumps import max_magnitude
from ..ports import Port
from .program import BoardProgram, ChipPart, HostPart, ProgramTensor, get_c_type
from .source_files import get_template_values, render_template

__all__ = [
    "PartVector",
    "collect_vectors",
    "compute_selftest_constant_bytes",
    "compute_selftest_ram_bytes",
    "make_selftest_c",
]


@dataclass(frozen=True)
class PartVector:
    """Inputs and outputs of one part in one call.

    Those of a chip part are the executor's integers.
    """

    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


def collect_vectors(program: BoardProgram, runs: Sequence[PartRun]) -> list[PartVector]:
    """Collect the inputs and outputs of every part in one call, in C order.

    `runs` has one run per part. Those of chip parts are as the package sees them, at its ports:
    integers where it is quantized.
    """
    vectors = []
    for part, run in zip(program.parts, runs, strict=True):
        if isinstance(part, ChipPart):
            tensors = {name: array for name, array, _ in run.tensors}
            tensors = {**run.inputs, **tensors}
            inputs = tuple(np.ascontiguousarray(tensors[port.tensor]) for port in part.inputs)
            outputs = tuple(np.ascontiguousarray(tensors[port.tensor]) for port in part.outputs)
        else:
            inputs = tuple(np.ascontiguousarray(run.inputs[a.tensor]) for a in part.sources)
            outputs = tuple(np.ascontiguousarray(run.outputs[a.tensor]) for a in part.targets)
        vectors.append(PartVector(inputs, outputs))
    return vectors


def _compute_tolerance(arrays: Sequence[np.ndarray], relative_tolerance: float) -> float:
    """Return the absolute tolerance of a host part's output; 0 if it is not float32 or empty.

    arrays : the output in all calls, whose largest magnitude `relative_tolerance` multiplies. At
    least 1e-30.
    """
    if arrays[0].dtype != np.float32 or not arrays[0].size:
        return 0.0
    return max(max_magnitude(arrays) * relative_tolerance, 1e-30)


def make_selftest_c(program: BoardProgram, calls: Sequence[Sequence[PartVector]]) -> str:
    """Return the text of model_selftest.c, which tests every unique part on its first inputs.

    `calls` are the vectors of all parts, call by call; the inputs are those of the first call, and
    tolerances are relative to the range in all calls.
    """
    members, arrays, rows = [], [], []
    offsets: list[str] = []
    sizes: list[str] = []
    tolerances: list[str] = []
    max_inputs = max_outputs = 1
    for index, (part, *vectors) in enumerate(zip(program.parts, *calls, strict=True)):
        if part.first != part.name:
            continue  # equal parts are tested once
        vector = vectors[0]
        counts = f"{len(vector.inputs)}, {len(vector.outputs)}"
        rows.append(f"    {{{index}, {counts}, {len(offsets)}, {len(sizes)}}}, /* {part.name} */")
        for direction, side in (("in", vector.inputs), ("out", vector.outputs)):
            for position, array in enumerate(side):
                name = f"{part.name}_{direction}{position}"
                c_type = get_c_type(str(array.dtype))
                members.append(f"    {c_type} {name}[{max(array.size, 1)}];\n")
                arrays.append(_format_array(name, array))
                offsets.append(f"offsetof(part_arrays, {name})")
        sizes += [str(array.nbytes) for array in vector.outputs]
        tolerances += map(_format_float, _compute_tolerances(program, part, vectors))
        max_inputs = max(max_inputs, len(vector.inputs))
        max_outputs = max(max_outputs, len(vector.outputs))
    part_count = len(program.unique_parts)
    tables = [
        _format_table("uint32_t", "offsets", offsets),
        _format_table("uint32_t", "sizes", sizes),
        _format_table("float", "tolerances", tolerances),
        f"static const vector vectors[{part_count}] = {{",
        *rows,
        "};",
        "",
    ]
    values = get_template_values(program) | {
        "kinds": part_count,
        "members": "".join(members),
        "arrays": "".join(arrays),
        "vectors": "\n".join(tables),
        "room": compute_selftest_ram_bytes(program),
        "most": max_outputs,
        "most_inputs": max_inputs,
    }
    return render_template("selftest.c", values)


def compute_selftest_ram_bytes(program: BoardProgram) -> int:
    """Return the bytes of the self-test's only writable array: the outputs of the largest part.

    Each output is padded to 16 bytes.
    """
    part_bytes = []
    for part in program.unique_parts:
        outputs = part.outputs if isinstance(part, ChipPart) else part.targets
        part_bytes.append(sum(round_up(output.bytes, 16) for output in outputs))
    return max(16, *part_bytes)


def compute_selftest_constant_bytes(program: BoardProgram) -> int:
    """Return the bytes of the self-test's struct of inputs and outputs, padding included."""
    size, max_item_bytes = 0, 1
    for part in program.unique_parts:
        for port in _get_stored_tensors(part):
            item_bytes = np.dtype(port.dtype).itemsize
            size = round_up(size, item_bytes) + max(port.bytes, item_bytes)
            max_item_bytes = max(max_item_bytes, item_bytes)
    return round_up(size, max_item_bytes)


def _get_stored_tensors(part: ChipPart | HostPart) -> Sequence[Port | ProgramTensor]:
    """Return a part's inputs, then outputs, as the self-test stores them.

    These are the ports of a chip part, the tensors of a host part.
    """
    if isinstance(part, ChipPart):
        return (*part.inputs, *part.outputs)
    return (*part.sources, *part.targets)


def _format_table(c_type: str, name: str, values: Sequence[str]) -> str:
    """Format a static constant C array with one value per line."""
    lines = [f"    {value}," for value in values]
    return "\n".join([f"static const {c_type} {name}[{len(values)}] = {{", *lines, "};"])


def _compute_tolerances(
    program: BoardProgram, part: ChipPart | HostPart, vectors: Sequence[PartVector]
) -> list[float]:
    """Compute the absolute tolerance of each output of a part; 0 for chip parts.

    `vectors` are the part's, by call; their range scales the program's relative tolerance.
    """
    if isinstance(part, ChipPart):
        return [0.0] * len(part.targets)
    tolerances = []
    for index, tensor in enumerate(part.targets):
        arrays = [vector.outputs[index] for vector in vectors]
        relative_tolerance = program.host_tolerances.get(tensor.tensor, 0.0)
        tolerances.append(_compute_tolerance(arrays, relative_tolerance))
    return tolerances


def _format_array(name: str, array: np.ndarray) -> str:
    """Format an array as the initializer of a member, 8 floats or 24 other values per line.

    An empty array gets one element 0.
    """
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        literals = [_format_float(float(value)) for value in flat]
    elif array.dtype.kind == "b":
        literals = [str(int(value)) for value in flat]
    else:
        suffix = "" if array.dtype.itemsize < 8 else "LL"
        literals = [_format_integer(int(value), suffix) for value in flat]
    lines, width = [], 8 if array.dtype.kind == "f" else 24
    for start in range(0, len(literals), width):
        lines.append("        " + ", ".join(literals[start : start + width]) + ",")
    lines = lines or ["        0"]  # C has no empty arrays
    return "\n".join([f"    {{ /* {name} */", *lines, "    },", ""])


def _format_integer(value: int, suffix: str) -> str:
    """Return a C literal of an integer; the smallest one of its type is written as a difference.

    `suffix` is "LL" for 64 bits, else "".
    """
    min_value = -(2**31) if not suffix else -(2**63)
    return f"({value + 1}{suffix} - 1)" if value == min_value else f"{value}{suffix}"


def _format_float(value: float) -> str:
    """Return a C literal of a float32 with 9 significant digits, or NAN or (-)INFINITY."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    digits = f"{value:.9g}"
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"
