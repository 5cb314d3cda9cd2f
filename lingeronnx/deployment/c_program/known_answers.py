"""`main.c`, the known-answer test.

Each part on its golden inputs, then the whole program, call by call.
From its golden inputs a chip part must give its golden integers, a host part floats within 1e-5 of
their range, or what `rounding` says of them; a range is that of all golden calls together. Of the
whole program that is not to be asked where a host part stands before a chip part: another C
library's exp may move a value across a tie. How far that may move an output is measured:
`measure_tolerance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...run.parts_runner import PartRun, PartsRunner
from ...run.program_parts import PartitionedProgram, ProgramPart
from ...run.runners import FloatRunner
from ..dumps import HOST_TOLERANCE, absolute_difference, make_dump_name, max_magnitude
from ..host_dumps import make_host_port_prefix
from ..ports import Port
from .arena import round_up
from .call_writer import make_c_names
from .program import BoardProgram, ChipPart, HostPart, ProgramTensor, get_c_type
from .source_files import get_template_values, render_template

__all__ = ["get_golden_folder", "make_main_c", "measure_tolerance"]

#: How many times what is allowed them the floats of host parts are moved, to see what that does.
PERTURBATION_FACTOR = 10


class _PerturbedHost:
    """Host parts in onnxruntime, whose float outputs are perturbed.

    Each float moves by `PERTURBATION_FACTOR` times its limit, relative to the range of its array in
    `calls`.
    """

    def __init__(
        self, program: BoardProgram, parts: PartitionedProgram, calls: Sequence[Sequence[PartRun]]
    ) -> None:
        self._limits = program.host_tolerances
        self._made = {
            runs[0].part.name: [run.outputs for run in runs] for runs in zip(*calls, strict=True)
        }
        self._runners = {
            part.name: FloatRunner(part.graph, part.outputs) for part in parts.host_parts
        }
        self._rng = np.random.default_rng(0)

    def __call__(self, part: ProgramPart, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        given = dict(zip(part.inputs, arrays, strict=True))
        found = {name: np.asarray(a) for name, a, _ in self._runners[part.name].run(given)}
        return [
            self._perturb(name, found[name], [made[name] for made in self._made[part.name]])
            for name in part.outputs
        ]

    def _perturb(self, name: str, array: np.ndarray, made: Sequence[np.ndarray]) -> np.ndarray:
        if array.dtype != np.float32:
            return array
        far = PERTURBATION_FACTOR * self._limits[name]
        signs = self._rng.choice(np.array([-far, far], np.float32), array.shape)
        return (array + signs * max_magnitude(made)).astype(np.float32)


def measure_tolerance(
    program: BoardProgram,
    parts: PartitionedProgram,
    calls: Sequence[Sequence[PartRun]],
    feeds: Sequence[Mapping[str, np.ndarray]],
) -> float:
    """Return how far an output may be from the golden one, as a fraction of its range.

    0 where only integers are computed, the largest of `program.limits` where host parts stand
    behind the last chip part only. Else what is measured: the calls `feeds`, whose parts gave
    `calls`, run once more in a row with the host's floats moved.
    """
    kinds = [isinstance(part, ChipPart) for part in program.parts]
    if all(kinds):
        return 0.0
    if not program.states and not any(
        not kind and True in kinds[index:] for index, kind in enumerate(kinds)
    ):
        return max(program.host_tolerances.values(), default=HOST_TOLERANCE)
    runner, most = (
        PartsRunner(parts, "executor", host=_PerturbedHost(program, parts, calls)),
        HOST_TOLERANCE,
    )
    want = [_collect_outputs(runs) for runs in calls]
    made: list[dict[str, np.ndarray]] = []
    for given in feeds:
        state = {one.tensor: made[-1][two.tensor] for one, two in program.states} if made else {}
        made.append(_collect_outputs(runner.iter_parts({**given, **state})))
    for array in program.outputs:
        right = [one[array.tensor] for one in want]
        if array.dtype == "float32" and (span := max_magnitude(right)):
            moved = (
                absolute_difference(one[array.tensor], two)
                for one, two in zip(made, right, strict=True)
            )
            most = max(most, max_magnitude(moved) / span)
    return float(f"{most:.2g}")


def _collect_outputs(runs: Iterable[PartRun]) -> dict[str, np.ndarray]:
    return {name: array for run in runs for name, array in run.outputs.items()}


def get_golden_folder(program: BoardProgram, part: ChipPart | HostPart) -> str:
    """Return the folder of a part's golden vectors below a call's."""
    return "" if isinstance(part, ChipPart) and len(program.chip) == 1 else f"{part.name}/"


def make_main_c(program: BoardProgram) -> str:
    """Return main.c."""
    ins, outs = make_c_names(program.inputs, "in"), make_c_names(program.outputs, "out")
    buffers = [
        f"static {get_c_type(a.dtype)} {ins[a.tensor]}[{max(a.element_count, 1)}];"
        for a in program.inputs
    ]
    for array in program.outputs:
        name = outs[array.tensor]
        buffers.append(
            f"static {get_c_type(array.dtype)} {name}[{max(array.element_count, 1)}], "
            f"want_{name}[{max(array.element_count, 1)}];"
        )
    reads = _format_all_reads(
        program.inputs, ins, 'read_array(folder, call, "model_input", {i}, {n}, sizeof {n})'
    )
    wants = _format_all_reads(
        program.outputs,
        outs,
        'read_array(folder, call, "model_output", {i}, want_{n}, sizeof want_{n})',
    )
    ranges, compares = [], []
    for index, array in enumerate(program.outputs):
        name = outs[array.tensor]
        if array.dtype == "float32":
            ranges.append(
                f'    ranges[{index}] = range_of(folder, "model_output", {index}, want_{name}, '
                f"{array.element_count});"
            )
            arrays = f'"output {name}", {name}, want_{name}, {array.element_count}'
            compares.append(
                f"    if (differs(call, {arrays}, ranges[{index}] * TOLERANCE, largest)) return 1;"
            )
        else:
            arrays = (
                f'"output {name}", {name}, want_{name}, sizeof {name}, {_get_element_width(array)}'
            )
            compares.append(f"    if (unequal(call, {arrays})) return 1;")
    values = get_template_values(program) | {
        "tolerance": repr(program.tolerance),
        "room": max(_get_buffer_bytes(part) for part in program.parts),
        "most": max(max(len(part.sources), len(part.targets)) for part in program.parts),
        "files": "\n".join(_iterate_file_tables(program)),
        "buffers": "\n".join([*buffers, ""]),
        "names": "".join(f'        "{name}",\n' for name in _make_dump_names(program)[0]),
        "first": ", ".join(map(str, _make_dump_names(program)[1])),
        "arguments": ", ".join([*ins.values(), *outs.values()]),
    }
    text = render_template("main.c", values)
    calls = [
        f"static double ranges[{len(program.outputs)}];",
        "",
        "static int read_call(const char *folder, int call)",
        "{",
        f"    return {reads};",
        "}",
        "",
        "static void read_ranges(const char *folder)",
        "{",
        *ranges,
        "    (void)folder;",
        "}",
        "",
        "static int compare_call(const char *folder, int call, float *largest)",
        "{",
        f"    if (!({wants})) {{",
        '        printf("FAIL: call %d: no outputs to compare with\\n", call);',
        "        return 1;",
        "    }",
        *compares,
        "    (void)largest;",
        "    return 0;",
        "}",
        "",
    ]
    return text.replace("int main(int argc", "\n".join(calls) + "\nint main(int argc")


def _get_element_width(array: ProgramTensor | Port) -> int:
    """Return the bytes of an element, below 0 where it has no sign."""
    dtype = np.dtype(array.dtype)
    return dtype.itemsize if dtype.kind in "if" else -dtype.itemsize


def _get_ports(
    part: ChipPart | HostPart,
) -> tuple[Sequence[ProgramTensor | Port], Sequence[ProgramTensor | Port]]:
    """Return a part's inputs, and its outputs."""
    return (
        (part.inputs, part.outputs) if isinstance(part, ChipPart) else (part.sources, part.targets)
    )


def _get_port_bytes(part: ChipPart | HostPart) -> tuple[list[int], list[int]]:
    """Return the bytes of a part's inputs, and of its outputs."""
    ins, outs = _get_ports(part)
    return [one.bytes for one in ins], [one.bytes for one in outs]


def _get_buffer_bytes(part: ChipPart | HostPart) -> int:
    """Return the bytes of a part's inputs and outputs, each at a multiple of 64, and of a golden output."""
    ins, outs = _get_port_bytes(part)
    return sum(round_up(size, 64) for size in (*ins, *outs)) + max(outs)


def _iterate_file_tables(program: BoardProgram) -> Iterator[str]:
    """Yield what main.c knows of the parts' golden files."""
    for part in program.parts:
        ins, outs = _get_port_bytes(part)
        limits = [
            program.host_tolerances[a.tensor]
            if isinstance(part, HostPart) and a.dtype == "float32"
            else 0
            for a in part.targets
        ]
        yield (
            f"static const uint32_t {part.name}_bytes[] = {{{', '.join(map(str, [*ins, *outs]))}}};"
        )
        widths = ", ".join(str(_get_element_width(port)) for port in _get_ports(part)[1]) or "0"
        yield f"static const int {part.name}_widths[] = {{{widths}}};"
        yield (
            f"static const double {part.name}_limits[] = {{{', '.join(map(repr, limits)) or '0'}}};"
        )
    yield f"static const part_files files[{len(program.parts)}] = {{"
    for part in program.parts:
        ins, outs = _get_port_bytes(part)
        folder = get_golden_folder(program, part)
        tables = ", ".join(f"{part.name}_{what}" for what in ("bytes", "widths", "limits"))
        yield f'    {{"{folder}", "{part.name}", {len(ins)}, {len(outs)}, {tables}}},'
    yield "};"


def _format_all_reads(arrays: Sequence[ProgramTensor], names: Mapping[str, str], call: str) -> str:
    joint = " &&\n           ".join(
        call.format(i=i, n=names[a.tensor]) for i, a in enumerate(arrays)
    )
    return joint or "call == 0"


def _make_dump_names(program: BoardProgram) -> tuple[list[str], list[int]]:
    """Return a file's name for each port of each part, and where the inputs and the outputs of a part begin."""
    names: list[str] = []
    first: list[int] = []
    for part in program.parts:
        for side in _get_named_ports(part):
            first.append(len(names))
            names += [
                _escape_c_string(make_dump_name(tensor, shape, ".bin")) for tensor, shape in side
            ]
    return names, first


def _get_named_ports(
    part: ChipPart | HostPart,
) -> tuple[list[tuple[str, tuple[int, ...]]], list[tuple[str, tuple[int, ...]]]]:
    if isinstance(part, ChipPart):
        return (
            [(p.tensor, p.shape) for p in part.inputs],
            [(p.tensor, p.shape) for p in part.outputs],
        )
    return _name_host_ports(part, "in", part.sources), _name_host_ports(part, "out", part.targets)


def _name_host_ports(
    part: HostPart, end: str, arrays: Sequence[ProgramTensor]
) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (f"{make_host_port_prefix(part.name, end, index)}{a.tensor}", a.shape)
        for index, a in enumerate(arrays)
    ]


def _escape_c_string(text: str) -> str:
    """Return what stands in a C string, without what would be a trigraph or an escape."""
    return "".join(c if 32 < ord(c) < 127 and c not in '"\\?' else "_" for c in text)
