"""Write `main.c`, the known-answer test of all parts by themselves and of the complete program.

For its golden inputs a chip part must compute its golden integers, and a host part floats within
1e-5 of their range in all golden calls, or within the tolerance of `host_tolerances`. The complete
program cannot be required to be exact if a host part precedes a chip part, because exp of another C
library may move a value across a tie. `measure_tolerance` measures how far that changes an output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...common.arithmetic import round_up
from ...common.escaping import format_c_string
from ...runtime.parts_runner import PartRun, PartsRunner
from ...runtime.program_parts import PartitionedProgram, ProgramPart
from ...runtime.runners import FloatRunner
from ..dumps import HOST_TOLERANCE, absolute_difference, make_dump_name, max_magnitude
from ..host_dumps import make_host_port_prefix
from ..ports import Port
from .call_writer import make_c_names
from .program import BoardProgram, ChipPart, HostPart, ProgramTensor, get_c_type
from .source_files import get_template_values, render_template

__all__ = [
    "compute_test_ram_bytes",
    "get_golden_folder",
    "make_main_c",
    "measure_tolerance",
]

#: Multiple of their tolerance by which host floats are perturbed, to measure the effect on outputs.
PERTURBATION_FACTOR = 10
_FIELDS = "test.fields."  # of main.c's writable data


class _PerturbedHost:
    """Host parts in onnxruntime, with every float of their outputs perturbed.

    The perturbation is `PERTURBATION_FACTOR` times the tolerance, which is relative to the range of
    the output in `calls`, with a random sign.
    """

    def __init__(
        self, program: BoardProgram, parts: PartitionedProgram, calls: Sequence[Sequence[PartRun]]
    ) -> None:
        """Create a runner for each host part, and store all parts' outputs in `calls` by part.

        The random signs have a fixed seed.
        """
        self._tolerances = program.host_tolerances
        self._outputs_by_part = {}
        for runs in zip(*calls, strict=True):
            self._outputs_by_part[runs[0].part.name] = [run.outputs for run in runs]
        self._runners = {
            part.name: FloatRunner(part.graph, part.outputs) for part in parts.host_parts
        }
        self._rng = np.random.default_rng(0)

    def __call__(self, part: ProgramPart, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run a host part on `arrays`, its inputs, and return its outputs with perturbed floats.

        Each float32 value moves up or down, at random, by a multiple of its tolerance.
        """
        feeds = dict(zip(part.inputs, arrays, strict=True))
        results = {
            name: np.asarray(array) for name, array, _ in self._runners[part.name].run(feeds)
        }
        perturbed = []
        for name in part.outputs:
            golden = [outputs[name] for outputs in self._outputs_by_part[part.name]]
            perturbed.append(self._perturb(name, results[name], golden))
        return perturbed

    def _perturb(self, name: str, array: np.ndarray, golden: Sequence[np.ndarray]) -> np.ndarray:
        """Add or subtract at random a multiple of the tolerance of a float32 output.

        `golden` has its values in all calls, whose largest magnitude scales the tolerance. Other
        types are unchanged.
        """
        if array.dtype != np.float32:
            return array
        step = PERTURBATION_FACTOR * self._tolerances[name]
        signs = self._rng.choice(np.array([-step, step], np.float32), array.shape)
        return (array + signs * max_magnitude(golden)).astype(np.float32)


def measure_tolerance(
    program: BoardProgram,
    parts: PartitionedProgram,
    calls: Sequence[Sequence[PartRun]],
    feeds: Sequence[Mapping[str, np.ndarray]],
) -> float:
    """Measure the tolerance of the program's outputs against golden ones.

    Without host parts it is 0. If host parts only follow the last chip part, and there are no
    states, it is the largest tolerance of a host float. Otherwise the calls are run again with
    perturbed host floats, and the largest change of a float output is returned, at least
    HOST_TOLERANCE.

    Parameters
    ----------
    program, parts
        The program, and the parts that it was built from.
    calls, feeds
        Runs of all parts, and inputs, of each golden call.

    Returns
    -------
    float
        Tolerance as a fraction of the output's largest magnitude in all calls, rounded to 2 digits.
    """
    if not program.host:
        return 0.0
    if not program.states and not _has_host_upstream_of_chip(program):
        return max(program.host_tolerances.values(), default=HOST_TOLERANCE)
    runner = PartsRunner(parts, "executor", host=_PerturbedHost(program, parts, calls))
    golden = [_collect_outputs(runs) for runs in calls]
    perturbed = _run_stream(program, runner, feeds)
    tolerance = HOST_TOLERANCE
    for tensor in program.outputs:
        expected = [outputs[tensor.tensor] for outputs in golden]
        actual = [outputs[tensor.tensor] for outputs in perturbed]
        if tensor.dtype == "float32" and (output_range := max_magnitude(expected)):
            max_change = max_magnitude(map(absolute_difference, actual, expected))
            tolerance = max(tolerance, max_change / output_range)
    return float(f"{tolerance:.2g}")


def _run_stream(
    program: BoardProgram, runner: PartsRunner, feeds: Sequence[Mapping[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """Run consecutive calls from zero states; return the outputs of all parts of each call.

    The zeros are in the first feeds; later the outputs replace the states in the feeds.
    """
    calls = []
    states: dict[str, np.ndarray] = {}  # the feeds of the first call contain zeros
    for inputs in feeds:
        outputs = _collect_outputs(runner.iter_parts({**inputs, **states}))
        states = {fed.tensor: outputs[output.tensor] for fed, output in program.states}
        calls.append(outputs)
    return calls


def _has_host_upstream_of_chip(program: BoardProgram) -> bool:
    """Whether a chip part runs after a host part; the program must have a host part."""
    is_chip = [isinstance(part, ChipPart) for part in program.parts]
    first_host = is_chip.index(False)
    return any(is_chip[first_host:])


def _collect_outputs(runs: Iterable[PartRun]) -> dict[str, np.ndarray]:
    """Return {tensor: array} of the outputs of all parts' runs."""
    outputs: dict[str, np.ndarray] = {}
    for run in runs:
        outputs.update(run.outputs)
    return outputs


def get_golden_folder(program: BoardProgram, part: ChipPart | HostPart) -> str:
    """Return the folder of a part's golden vectors, relative to that of a call.

    It is "<part>/", or "" for the only chip part.
    """
    return "" if isinstance(part, ChipPart) and len(program.chip) == 1 else f"{part.name}/"


def make_main_c(program: BoardProgram) -> str:
    """Return the text of main.c, which runs the known-answer test of all parts and the program."""
    input_names = make_c_names(program.inputs, "in")
    output_names = make_c_names(program.outputs, "out")
    dump_names, first_dumps = _make_dump_names(program)
    values = get_template_values(program) | {
        "tolerance": repr(program.tolerance),
        "room": _compute_room_bytes(program),
        "ram": compute_test_ram_bytes(program),
        "output_count": len(program.outputs),
        "folder_chars": 1 + max(len(get_golden_folder(program, part)) for part in program.parts),
        "name_chars": 1 + max(len(part.name) for part in program.parts),
        "dump_name_chars": 1 + max(len(name.encode()) for name in dump_names),
        "run_name_chars": len(f"call 2147483647: {program.prefix}_run") + 1,
        "most": max(max(len(part.sources), len(part.targets)) for part in program.parts),
        "files": "\n".join(_iterate_file_tables(program)),
        "buffers": "".join(_iterate_buffers(program, input_names, output_names)),
        "names": "".join(f"        {format_c_string(name)},\n" for name in dump_names),
        "first": ", ".join(map(str, first_dumps)),
        "arguments": ", ".join(
            f"{_FIELDS}{name}" for name in (*input_names.values(), *output_names.values())
        ),
    }
    text = render_template("main.c", values)
    functions = "\n".join(_iterate_call_functions(program, input_names, output_names))
    return text.replace("int main(int argc", functions + "\nint main(int argc")


def _iterate_buffers(
    program: BoardProgram, input_names: Mapping[str, str], output_names: Mapping[str, str]
) -> Iterator[str]:
    """Yield members of a C struct: the program's inputs, outputs and expected outputs (want_NAME).

    `input_names` and `output_names` have the C names by tensor.
    """
    for tensor in program.inputs:
        c_type, name = get_c_type(tensor.dtype), input_names[tensor.tensor]
        yield f"        {c_type} {name}[{max(tensor.element_count, 1)}];\n"
    for tensor in program.outputs:
        c_type, name = get_c_type(tensor.dtype), output_names[tensor.tensor]
        size = max(tensor.element_count, 1)
        yield f"        {c_type} {name}[{size}], want_{name}[{size}];\n"


def _compute_room_bytes(program: BoardProgram) -> int:
    """Return the bytes of main.c's buffer for the ports of a part, 64 to align it included."""
    return round_up(max(_get_buffer_bytes(part) for part in program.parts) + 64, 8)


def compute_test_ram_bytes(program: BoardProgram) -> int:
    """Return the bytes of all writable data of main.c, a multiple of 64.

    They are at least those of the struct, for pointers and alignments of up to 8 bytes.
    """
    tensors = [*program.inputs, *program.outputs, *program.outputs]
    tensor_bytes = [
        max(tensor.element_count, 1) * np.dtype(tensor.dtype).itemsize for tensor in tensors
    ]
    fields = [8 * len(program.outputs), _compute_room_bytes(program), *tensor_bytes, 8, 4]
    return round_up(sum(round_up(size, 8) for size in fields), 64)


def _iterate_call_functions(
    program: BoardProgram, input_names: Mapping[str, str], output_names: Mapping[str, str]
) -> Iterator[str]:
    """Yield the C functions read_call, read_ranges and compare_call of main.c.

    Float outputs are compared within a tolerance of their range, others exactly.

    Parameters
    ----------
    input_names, output_names
        C names by tensor.
    """
    input_reads = _format_all_reads(
        program.inputs,
        input_names,
        f'read_array(folder, call, "model_input", {{i}}, {_FIELDS}{{n}}, sizeof {_FIELDS}{{n}})',
    )
    output_reads = _format_all_reads(
        program.outputs,
        output_names,
        'read_array(folder, call, "model_output", {i}, '
        f"{_FIELDS}want_{{n}}, sizeof {_FIELDS}want_{{n}})",
    )
    yield "static int read_call(const char *folder, int call)"
    yield "{"
    yield f"    return {input_reads};"
    yield "}"
    yield ""
    yield "static void read_ranges(const char *folder)"
    yield "{"
    for index, tensor in enumerate(program.outputs):
        if tensor.dtype == "float32":
            yield (
                f'    {_FIELDS}ranges[{index}] = range_of(folder, "model_output", {index}, '
                f"{_FIELDS}want_{output_names[tensor.tensor]}, {tensor.element_count});"
            )
    yield "    (void)folder;"
    yield "}"
    yield ""
    yield "static int compare_call(const char *folder, int call, float *largest)"
    yield "{"
    yield f"    if (!({output_reads})) {{"
    yield '        printf("FAIL: call %d: no outputs to compare with\\n", call);'
    yield "        return 1;"
    yield "    }"
    for index, tensor in enumerate(program.outputs):
        name = output_names[tensor.tensor]
        arrays = f'"output {name}", {_FIELDS}{name}, {_FIELDS}want_{name}'
        if tensor.dtype == "float32":
            tolerance = f"{_FIELDS}ranges[{index}] * TOLERANCE"
            arguments = f"{arrays}, {tensor.element_count}, {tolerance}, largest"
            yield f"    if (differs(call, {arguments})) return 1;"
        else:
            arguments = f"{arrays}, sizeof {_FIELDS}{name}, {_get_element_width(tensor)}"
            yield f"    if (unequal(call, {arguments})) return 1;"
    yield "    (void)largest;"
    yield "    return 0;"
    yield "}"
    yield ""


def _get_element_width(array: ProgramTensor | Port) -> int:
    """Return the bytes of an element, negative for unsigned types."""
    dtype = np.dtype(array.dtype)
    return dtype.itemsize if dtype.kind in "if" else -dtype.itemsize


def _get_ports(
    part: ChipPart | HostPart,
) -> tuple[Sequence[ProgramTensor | Port], Sequence[ProgramTensor | Port]]:
    """Return (inputs, outputs) of a part as they are stored: ports of a chip part, else tensors."""
    if isinstance(part, ChipPart):
        return part.inputs, part.outputs
    return part.sources, part.targets


def _get_port_bytes(part: ChipPart | HostPart) -> tuple[list[int], list[int]]:
    """Return the sizes in bytes of a part's inputs, and of its outputs."""
    inputs, outputs = _get_ports(part)
    return [port.bytes for port in inputs], [port.bytes for port in outputs]


def _get_buffer_bytes(part: ChipPart | HostPart) -> int:
    """Return the bytes of a part's ports, each padded to 64, plus those of its largest output."""
    input_bytes, output_bytes = _get_port_bytes(part)
    return sum(round_up(size, 64) for size in (*input_bytes, *output_bytes)) + max(output_bytes)


def _iterate_file_tables(program: BoardProgram) -> Iterator[str]:
    """Yield main.c's tables of the parts' golden files: sizes, element widths and tolerances."""
    sizes: list[int] = []
    widths: list[int] = []
    tolerances: list[float] = []
    rows = []
    for part in program.parts:
        inputs, outputs = _get_ports(part)
        folder, first_indices = get_golden_folder(program, part), f"{len(sizes)}, {len(widths)}"
        rows.append(
            f'    {{"{folder}", "{part.name}", {len(inputs)}, {len(outputs)}, {first_indices}}},'
        )
        sizes += [port.bytes for port in (*inputs, *outputs)]
        widths += [_get_element_width(port) for port in outputs]
        tolerances += [_get_tolerance(program, part, tensor) for tensor in part.targets]
    yield "/* bytes of the inputs and outputs of each part */"
    yield f"static const uint32_t port_bytes[] = {{{', '.join(map(str, sizes))}}};"
    yield "/* bytes of an element of each output, negative for unsigned types */"
    yield f"static const int output_widths[] = {{{', '.join(map(str, widths))}}};"
    yield "/* tolerance of each output as a fraction of its range; 0: all bits */"
    yield f"static const double output_limits[] = {{{', '.join(map(repr, tolerances))}}};"
    yield f"static const part_files files[{len(program.parts)}] = {{"
    yield from rows
    yield "};"


def _get_tolerance(
    program: BoardProgram, part: ChipPart | HostPart, tensor: ProgramTensor
) -> float:
    """Return the relative tolerance of a part's output: that of a host part's float32, else 0."""
    if isinstance(part, HostPart) and tensor.dtype == "float32":
        return program.host_tolerances[tensor.tensor]
    return 0


def _format_all_reads(tensors: Sequence[ProgramTensor], names: Mapping[str, str], call: str) -> str:
    """Return a C condition that reads all tensors, "call == 0" without tensors.

    call : a format with {i} index and {n} C name; `names` has the C names by tensor.
    """
    calls = [call.format(i=i, n=names[tensor.tensor]) for i, tensor in enumerate(tensors)]
    return " &&\n           ".join(calls) or "call == 0"


def _make_dump_names(program: BoardProgram) -> tuple[list[str], list[int]]:
    """Return the dump file name of every port, inputs and outputs part by part.

    Also return the index in that list of the first input and of the first output of each part.
    """
    names: list[str] = []
    first_indices: list[int] = []
    for part in program.parts:
        for ports in _get_named_ports(part):
            first_indices.append(len(names))
            for tensor, shape in ports:
                names.append(_sanitize_file_name(make_dump_name(tensor, shape, ".bin")))
    return names, first_indices


def _get_named_ports(
    part: ChipPart | HostPart,
) -> tuple[list[tuple[str, tuple[int, ...]]], list[tuple[str, tuple[int, ...]]]]:
    """Return (name in dumps, shape) of a part's inputs, and of its outputs.

    A name of a host part begins with its name, direction and number; that of a chip part is the
    tensor's name.
    """
    if isinstance(part, ChipPart):
        return (
            [(port.tensor, port.shape) for port in part.inputs],
            [(port.tensor, port.shape) for port in part.outputs],
        )
    return _name_host_ports(part, "in", part.sources), _name_host_ports(part, "out", part.targets)


def _name_host_ports(
    part: HostPart, direction: str, tensors: Sequence[ProgramTensor]
) -> list[tuple[str, tuple[int, ...]]]:
    """Return (name in dumps, shape) of a host part's inputs or outputs.

    `direction` is "in" or "out" and part of the names.
    """
    return [
        (f"{make_host_port_prefix(part.name, direction, index)}{tensor.tensor}", tensor.shape)
        for index, tensor in enumerate(tensors)
    ]


def _sanitize_file_name(name: str) -> str:
    """Replace characters that a file name in C must not have by underscores.

    Allowed are printable ASCII characters except space, double quote, backslash and question mark.
    """
    return "".join(char if 32 < ord(char) < 127 and char not in '"\\?' else "_" for char in name)
