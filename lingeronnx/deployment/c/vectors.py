"""What each part of a program reads and writes in one call, and its C: `model_selftest.c` and `main.c`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...run.in_parts import PartRun
from ..dumps import dump_name
from .call import names_of
from .program import Array, BoardProgram, ChipPart, HostPart, c_type
from .source import filled, substitutions

__all__ = ["PartVector", "host_tolerance", "main_c", "selftest_c", "vectors_of"]

#: Of a host part's outputs, as a fraction of their range: another C library's exp and tanh differ in the last bits.
HOST_TOLERANCE = 1e-5


@dataclass(frozen=True)
class PartVector:
    """What one part is given and makes in one call: of a chip part integers, as the executor has them."""

    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


def vectors_of(program: BoardProgram, runs: Sequence[PartRun]) -> list[PartVector]:
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


def host_tolerance(array: np.ndarray) -> float:
    """Return how far a host part's output may be from `array`; 0 for what is no float."""
    if array.dtype != np.float32 or not array.size:
        return 0.0
    finite = np.abs(array[np.isfinite(array)])
    return max(float(finite.max(initial=0.0)) * HOST_TOLERANCE, 1e-30)


def selftest_c(program: BoardProgram, vectors: Sequence[PartVector]) -> str:
    """Return model_selftest.c."""
    arrays, tables, rows, room, most = [], [], [], 16, 1
    for number, (part, vector) in enumerate(zip(program.parts, vectors, strict=True)):
        if part.first != part.name:
            continue  # what is equal is tried once
        names: dict[str, list[str]] = {"in": [], "out": []}
        for word, side in (("in", vector.inputs), ("out", vector.outputs)):
            for index, array in enumerate(side):
                name = f"{part.name}_{word}{index}"
                names[word].append(name)
                arrays.append(_array(name, array))
        tolerances = [0.0 if isinstance(part, ChipPart) else host_tolerance(a) for a in vector.outputs]
        for word in ("in", "out"):
            listed = ", ".join(names[word]) or "NULL"
            tables.append(f"static const void *const {part.name}_{word}[] = {{{listed}}};")
        tables.append(
            f"static const uint32_t {part.name}_sizes[] = {{{', '.join(str(a.nbytes) for a in vector.outputs)}}};"
        )
        tables.append(f"static const float {part.name}_tolerances[] = {{{', '.join(_float(t) for t in tolerances)}}};")
        rows.append(
            f"    {{{number}, {len(vector.inputs)}, {len(vector.outputs)}, {part.name}_in, {part.name}_out, "
            f"{part.name}_sizes, {part.name}_tolerances}},"
        )
        room = max(room, sum(-(-a.nbytes // 16) * 16 for a in vector.outputs))
        most = max(most, len(vector.outputs))
    values = substitutions(program) | {
        "kinds": len(program.kinds),
        "arrays": "\n".join(arrays),
        "vectors": "\n".join([*tables, "", f"static const vector vectors[{len(program.kinds)}] = {{", *rows, "};", ""]),
        "room": room,
        "most": most,
    }
    return filled("selftest.c", values)


def _array(name: str, array: np.ndarray) -> str:
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        texts = [_float(float(value)) for value in flat]
    elif array.dtype.kind == "b":
        texts = [str(int(value)) for value in flat]
    else:
        suffix = "" if array.dtype.itemsize < 8 else "LL"
        texts = [_whole(int(value), suffix) for value in flat]
    lines, width = [], 8 if array.dtype.kind == "f" else 24
    for start in range(0, len(texts), width):
        lines.append("    " + ", ".join(texts[start : start + width]) + ",")
    # An array of no constants is no C.
    return "\n".join(
        [f"static const {c_type(str(array.dtype))} {name}[{max(flat.size, 1)}] = {{", *(lines or ["    0"]), "};"]
    )


def _whole(value: int, suffix: str) -> str:
    low = -(2**31) if not suffix else -(2**63)
    return f"({value + 1}{suffix} - 1)" if value == low else f"{value}{suffix}"


def _float(value: float) -> str:
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value:.9g}f" if any(c in f"{value:.9g}" for c in ".e") else f"{value:.9g}.0f"


def main_c(program: BoardProgram) -> str:
    """Return main.c."""
    ins, outs = names_of(program.inputs, "in"), names_of(program.outputs, "out")
    buffers = [f"static {c_type(a.dtype)} {ins[a.tensor]}[{max(a.count, 1)}];" for a in program.inputs]
    for array in program.outputs:
        name = outs[array.tensor]
        buffers.append(
            f"static {c_type(array.dtype)} {name}[{max(array.count, 1)}], want_{name}[{max(array.count, 1)}];"
        )
    reads = _both(program.inputs, ins, 'read_array(folder, call, "model_input", {i}, {n}, sizeof {n})')
    wants = _both(program.outputs, outs, 'read_array(folder, call, "model_output", {i}, want_{n}, sizeof want_{n})')
    compares = []
    for array in program.outputs:
        name = outs[array.tensor]
        if array.dtype == "float32":
            compares.append(f'    if (differs(call, "{name}", {name}, want_{name}, {array.count}, largest)) return 1;')
        else:
            compares.append(f"    if (memcmp({name}, want_{name}, sizeof {name}) != 0) {{")
            compares.append(f'        printf("FAIL: call %d, output {name} differs\\n", call);')
            compares += ["        return 1;", "    }"]
    values = substitutions(program) | {
        "tolerance": repr(program.tolerance),
        "kinds": len(program.kinds),
        "buffers": "\n".join([*buffers, ""]),
        "names": "".join(f'        "{name}",\n' for name in _dump_names(program)[0]),
        "first": ", ".join(map(str, _dump_names(program)[1])),
        "arguments": ", ".join([*ins.values(), *outs.values()]),
    }
    text = filled("main.c", values)
    calls = [
        "static int read_call(const char *folder, int call)", "{", f"    return {reads};", "}", "",
        "static int compare_call(const char *folder, int call, float *largest)", "{",
        f"    if (!({wants})) {{", '        printf("FAIL: call %d: no outputs to compare with\\n", call);',
        "        return 1;", "    }", *compares, "    (void)largest;", "    return 0;", "}", "",
    ]  # fmt: skip
    return text.replace("int main(int argc", "\n".join(calls) + "\nint main(int argc")


def _both(arrays: Sequence[Array], names: Mapping[str, str], call: str) -> str:
    joint = " &&\n           ".join(call.format(i=i, n=names[a.tensor]) for i, a in enumerate(arrays))
    return joint or "call == 0"


def _dump_names(program: BoardProgram) -> tuple[list[str], list[int]]:
    """Return a file's name for each port of each part, and where the inputs and the outputs of a part begin."""
    names: list[str] = []
    first: list[int] = []
    for part in program.parts:
        for side in _sides(part):
            first.append(len(names))
            names += [_escaped(dump_name(tensor, shape, ".bin")) for tensor, shape in side]
    return names, first


def _sides(part: ChipPart | HostPart) -> tuple[list[tuple[str, tuple[int, ...]]], list[tuple[str, tuple[int, ...]]]]:
    if isinstance(part, ChipPart):
        return ([(p.tensor, p.shape) for p in part.inputs], [(p.tensor, p.shape) for p in part.outputs])
    # What the host has is float: its files have names that no tensor of integers has.
    return tuple([(f"{part.name}_{a.tensor}", a.shape) for a in side] for side in (part.sources, part.targets))  # type: ignore[return-value]


def _escaped(text: str) -> str:
    """Return what stands in a C string, without what would be a trigraph or an escape."""
    return "".join(c if 32 < ord(c) < 127 and c not in '"\\?' else "_" for c in text)
