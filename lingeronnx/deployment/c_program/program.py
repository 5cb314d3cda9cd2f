"""Values that describe one call of a deployed program: its inputs, outputs, parts and memory.

    quantize -> forward -> dequantize or copy -> host part -> quantize -> ... -> save states

Tensors between parts are floats, or integers if the parts have them so. Must not know C beyond
names of types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from ...common.arithmetic import round_up
from ...common.errors import ConstraintError
from ...common.escaping import make_c_identifier
from ...ir import float_ops, ir
from ...operators.chip_part import is_dequantized
from ...operators.integer_ops import QUANT
from ...operators.macs import count_macs
from ...runtime.parts_runner import PartRun
from ...runtime.program_parts import PartitionedProgram
from ...targets import PackerArguments, Target
from ..ports import Port, make_ports
from ..simulation import SampleRun
from .arena import ALIGNMENT, BufferLifetime, plan_arena
from .host_source import HostSource, fix_sample_shapes, generate_host_source

__all__ = [
    "ProgramTensor",
    "ChipPart",
    "HostPart",
    "BoardProgram",
    "get_c_type",
    "build_program",
]

_TYPES = {"float32": "float", "float64": "double", "bool": "bool"}


def get_c_type(dtype: str) -> str:
    """Return the C type for the name of a NumPy dtype: float, double, bool or, e.g., int8_t."""
    return _TYPES.get(dtype, f"{dtype}_t")


@dataclass(frozen=True)
class ProgramTensor:
    """A tensor between parts, or an input or output of the program, in one call.

    key : unique name of its buffer. tensor : name in the graph.
    """

    key: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def element_count(self) -> int:
        """Number of elements of the tensor."""
        return int(np.prod(self.shape))

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        return self.element_count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ChipPart:
    """A part that is packed for the chip.

    first : name of the first part that is equal except for tensor names, possibly this one; equal
    parts share one package. package_index : of the package, from 0. file : the part's ONNX file.
    inputs, outputs : ports of the package. sources, targets : tensors of the complete graph that
    the ports are computed from, or become. quantized, dequantized : whether each port has a Quant
    or Dequant.
    """

    name: str
    first: str
    package_index: int
    file: str
    graph: ir.Model
    choice: PackerArguments
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    sources: tuple[ProgramTensor, ...]
    targets: tuple[ProgramTensor, ...]
    quantized: tuple[bool, ...]
    dequantized: tuple[bool, ...]

    @property
    def has_resident_constants(self) -> bool:
        """Whether the packer's arguments store the part's constants in shared memory.

        Then no other part may use that memory.
        """
        return "params:share-mem" in " ".join(self.choice.argv)

    def list_executor_outputs(self) -> list[int]:
        """Return the indices of `outputs` in the order that the packer gives them.

        Where a package names no outputs, the program relies on the order of the part's graph,
        which must be the same.
        """
        names = self.choice.verdict.outputs
        if not names:
            return list(range(len(self.outputs)))
        indices: dict[str, list[int]] = {}
        for index, port in enumerate(self.outputs):
            indices.setdefault(port.tensor, []).append(index)
        return [indices[name].pop(0) for name in names]


@dataclass(frozen=True)
class HostPart:
    """A part of float operators.

    first : name of the first part that is equal except for tensor names, possibly this one.
    source : its C source. sources, targets : tensors of the complete graph that it reads and
    computes. float_operations : approximate number of float operations per call.
    """

    name: str
    first: str
    file: str
    model: onnx.ModelProto
    source: HostSource
    sources: tuple[ProgramTensor, ...]
    targets: tuple[ProgramTensor, ...]
    float_operations: int


@dataclass(frozen=True)
class BoardProgram:
    """A complete program.

    inputs, outputs : without states. states : (input, output) tensors; the output becomes the input
    of the next call. arena_offsets : {buffer: offset in the arena}. tolerance : of outputs against
    golden vectors, as a fraction of their range. host_tolerances : the same for each float output
    of a host part, by tensor.
    """

    prefix: str
    stem: str
    platform: str
    parts: tuple[ChipPart | HostPart, ...]
    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    states: tuple[tuple[ProgramTensor, ProgramTensor], ...]
    arena_offsets: Mapping[str, int]
    arena_bytes: int
    tolerance: float = 0.0
    host_tolerances: Mapping[str, float] = field(default_factory=dict)

    @property
    def chip(self) -> tuple[ChipPart, ...]:
        """All chip parts, in the order in which they run."""
        return tuple(part for part in self.parts if isinstance(part, ChipPart))

    @property
    def host(self) -> tuple[HostPart, ...]:
        """All host parts, in the order in which they run."""
        return tuple(part for part in self.parts if isinstance(part, HostPart))

    @property
    def unique_parts(self) -> tuple[ChipPart | HostPart, ...]:
        """The parts that are not equal to an earlier one except for tensor names."""
        return tuple(part for part in self.parts if part.first == part.name)

    @property
    def unique_chip_parts(self) -> tuple[ChipPart, ...]:
        """The chip parts that are not equal to an earlier one, in the order of their packages."""
        return tuple(part for part in self.unique_parts if isinstance(part, ChipPart))

    @property
    def unique_host_parts(self) -> tuple[HostPart, ...]:
        """The host parts that are not equal to an earlier one except for tensor names."""
        return tuple(part for part in self.unique_parts if isinstance(part, HostPart))


def build_program(
    parts: PartitionedProgram,
    target: Target,
    runs: Sequence[PartRun],
    state: Mapping[str, str],
    *,
    stem: str,
    choices: Mapping[str, PackerArguments],
    files: Mapping[str, str],
    canonical_names: Mapping[str, str],
) -> BoardProgram:
    """Build the program of a partitioned graph, with the shapes of one call.

    Parameters
    ----------
    parts
        The partitioned graph.
    target
        The chip.
    runs
        Inputs and outputs of every part in one call.
    state
        {output: input} of states of the complete graph. They are neither inputs nor outputs of the
        program.
    stem
        Beginning of the file names.
    choices
        Packer arguments of the unique chip parts, by part name.
    files
        ONNX file of each part, by part name.
    canonical_names
        {part: the first part that is equal to it}.

    Raises
    ------
    ConstraintError
        If an output of the graph is also an input, or as `generate_host_source` and `make_ports`.
    ConfigError
        As `generate_host_source`.
    """
    prefix = make_c_identifier(stem)
    tensors = _collect_tensors(runs)
    program_parts: list[ChipPart | HostPart] = []
    for run in runs:
        name = run.part.name
        first_name = canonical_names[name]
        first = next((part for part in program_parts if part.name == first_name), None)
        sources = tuple(tensors[tensor] for tensor in run.part.inputs)
        targets = tuple(tensors[tensor] for tensor in run.part.outputs)
        part: ChipPart | HostPart
        if isinstance(first, HostPart):
            part = replace(first, name=name, sources=sources, targets=targets)
        elif run.part.chip:
            part = _make_chip_part(run, files[name], choices[first_name], sources, targets)
            package_index = _count_packages(program_parts) if first is None else first.package_index
            part = replace(part, first=first_name, package_index=package_index)
        else:
            part = _make_host_part(run, f"{prefix}_{name}", files[name], sources, targets)
        program_parts.append(part)
    output_names = ir.get_output_names(parts.graph)
    _check_outputs(output_names, program_parts)
    variables = [value for value in parts.graph.graph.inputs if value.const_value is None]
    input_names = [str(value.name) for value in variables if str(value.name) in tensors]
    fed_back = set(state.values())
    inputs = tuple(tensors[name] for name in input_names if name not in fed_back)
    outputs = tuple(tensors[name] for name in output_names if name not in state)
    states = tuple(
        (tensors[fed], tensors[output]) for output, fed in state.items() if fed in tensors
    )
    state_inputs = [fed for fed, _ in states]
    external = {tensor.tensor for tensor in (*inputs, *outputs, *state_inputs)}
    arena_offsets, arena_bytes = _plan_buffers(program_parts, external, state)
    return BoardProgram(
        prefix=prefix,
        stem=stem,
        platform=target.name,
        parts=tuple(program_parts),
        inputs=inputs,
        outputs=outputs,
        states=states,
        arena_offsets=arena_offsets,
        arena_bytes=arena_bytes,
    )


def _collect_tensors(runs: Sequence[PartRun]) -> dict[str, ProgramTensor]:
    """Return {name: tensor} of inputs and outputs of all parts, with the shapes of the runs."""
    tensors: dict[str, ProgramTensor] = {}
    for run in runs:
        for name, array in (*run.inputs.items(), *run.outputs.items()):
            tensors.setdefault(
                name, ProgramTensor(name, name, tuple(array.shape), str(array.dtype))
            )
    return tensors


def _count_packages(parts: Sequence[ChipPart | HostPart]) -> int:
    """Return the number of chip parts in `parts` that are not equal to an earlier one."""
    return sum(isinstance(part, ChipPart) and part.first == part.name for part in parts)


def _check_outputs(names: Sequence[str], parts: Sequence[ChipPart | HostPart]) -> None:
    """Raise ConstraintError if one of the graph outputs `names` is not computed by any part."""
    computed: set[str] = set()
    for part in parts:
        computed.update(tensor.tensor for tensor in part.targets)
    for name in names:
        if name not in computed:
            raise ConstraintError(
                f"output '{name}' is an input or a constant of the graph; remove it from the model"
            )


def _make_chip_part(
    run: PartRun,
    file: str,
    choice: PackerArguments,
    sources: tuple[ProgramTensor, ...],
    targets: tuple[ProgramTensor, ...],
) -> ChipPart:
    """Make a chip part with the ports of one run; the caller sets `first` and the package index.

    `sources` and `targets` are the program's tensors that its inputs and outputs read and write.

    Raises
    ------
    ConstraintError
        If Quants of several scales read an input.
    """
    graph = run.part.graph
    ports = make_ports(graph, graph, _make_sample_run(run), {})
    quantized = []
    for value in graph.graph.inputs:
        quants = [use.node for use in value.uses() if use.node.op_type == QUANT.name]
        if len({float(ir.get_attr(node, "scale_x")) for node in quants}) > 1:
            raise ConstraintError(
                f"input '{value.name}' of {run.part.name} is quantized with several scales; "
                "quantize the model again"
            )
        quantized.append(bool(quants))
    return ChipPart(
        name=run.part.name,
        first=run.part.name,
        package_index=0,
        file=file,
        graph=graph,
        choice=choice,
        inputs=ports.inputs,
        outputs=ports.outputs,
        sources=sources,
        targets=targets,
        quantized=tuple(quantized),
        dequantized=tuple(is_dequantized(value) for value in graph.graph.outputs),
    )


def _make_sample_run(run: PartRun) -> SampleRun:
    """Collect the integers, floats and scales of a part's run by tensor name, without feeds.

    The part's inputs count as floats, unless the run has integers of that name.
    """
    integers, floats, scales = {}, {}, {}
    for name, array, qparams in run.tensors:
        if array.dtype.kind == "i":
            integers[name] = array
        if array.dtype.kind == "f":
            floats[name] = array
        if qparams is not None:
            scales[name] = qparams.scale
    for name, array in run.inputs.items():
        if name not in integers:
            floats[name] = np.asarray(array)
    return SampleRun(integers, floats, scales)


def _make_host_part(
    run: PartRun,
    function_name: str,
    file: str,
    sources: tuple[ProgramTensor, ...],
    targets: tuple[ProgramTensor, ...],
) -> HostPart:
    """Return the host part of one run, with C function `function_name` generated for its shapes.

    `sources` and `targets` are the program's tensors that its inputs and outputs read and write,
    `file` is the part's file name. Raises ConfigError if the generator is not installed,
    ConstraintError if it cannot write the part.
    """
    model, name = ir.to_proto(run.part.graph), run.part.name
    inputs, outputs = list(run.inputs.values()), list(run.outputs.values())
    source = generate_host_source(model, function_name, inputs, outputs)
    operations = _count_operations(fix_sample_shapes(model, inputs, outputs))
    return HostPart(name, name, file, model, source, sources, targets, operations)


def _count_operations(model: onnx.ModelProto) -> int:
    """Return the approximate number of float operations of a call.

    A multiply-accumulate counts as two. Other nodes count as one per output element, or as none if
    their output is a constant or only elements of their inputs (`DATA_MOVEMENT_OPS`).
    """
    operation_count = 0
    for node in ir.from_proto(model).graph:
        if macs := count_macs(node):
            operation_count += 2 * macs
        elif node.op_type not in float_ops.DATA_MOVEMENT_OPS | {"Constant"}:
            for value in node.outputs:
                shape = ir.get_shape(value)
                if shape is not None:
                    operation_count += math.prod(int(dim or 1) for dim in shape)
    return operation_count


def get_integer_buffer_key(part: ChipPart, index: int) -> str:
    """Return the key of the buffer for quantized input `index` of a chip part."""
    return f"{part.name}.{index}"


def _iterate_part_buffers(part: ChipPart | HostPart) -> Iterator[tuple[str, int]]:
    """Yield (buffer key, bytes) of the buffers that only this part uses.

    These are the scratch memory of a host part, or the quantized inputs of a chip part.
    """
    if isinstance(part, HostPart):
        if part.source.scratch_bytes:
            yield f"{part.name}.scratch", part.source.scratch_bytes
        return
    for index, port in enumerate(part.inputs):
        if part.quantized[index]:
            yield get_integer_buffer_key(part, index), port.bytes


def _plan_buffers(
    parts: Sequence[ChipPart | HostPart], external: set[str], state: Mapping[str, str]
) -> tuple[dict[str, int], int]:
    """Plan the arena: tensors between parts, quantized inputs of chip parts, scratch of host parts.

    Buffers that are not in use at the same time may overlap.

    Parameters
    ----------
    parts
        Parts in the order in which they run.
    external
        Tensors that have memory elsewhere.
    state
        {output: input fed}; such an output lives to the end of the call.

    Returns
    -------
    offsets : dict of str to int
        Byte offset by buffer.
    arena_bytes : int
        Size, a multiple of ALIGNMENT.
    """
    lifetimes: dict[str, BufferLifetime] = {}
    for step, part in enumerate(parts):
        for tensor in part.targets:
            if tensor.tensor not in external:
                last = len(parts) if tensor.tensor in state else step
                lifetimes[tensor.key] = BufferLifetime(tensor.bytes, step, last)
        for tensor in part.sources:
            if tensor.key in lifetimes:
                lifetime = lifetimes[tensor.key]
                last = max(step, lifetime.last)
                lifetimes[tensor.key] = BufferLifetime(tensor.bytes, lifetime.first, last)
        for key, size in _iterate_part_buffers(part):
            lifetimes[key] = BufferLifetime(size, step, step)
    offsets, arena_bytes = plan_arena(lifetimes)
    return offsets, round_up(arena_bytes, ALIGNMENT)
