"""What a deployed program does in one call, as values.

What it takes and gives, its steps, and where bytes lie.
    quantize -> forward -> take (dequantize or copy) -> host part -> quantize -> ...        states
    are kept at the end

Floats go between parts, and integers where the parts have them so. Must not know C beyond names of
types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from ...errors import ConstraintError
from ...formats import DEQUANT, QUANT, find_integer_op
from ...graph import ir, operators
from ...ops.macs import count_macs
from ...run.parts_runner import PartRun
from ...run.program_parts import PartitionedProgram
from ...targets import PackerArguments, Target
from ..header import make_c_identifier
from ..ports import Port, make_ports
from ..simulation import SampleRun
from .arena import BufferLifetime, plan_arena, round_up
from .host_source import HostSource, fix_sample_shapes, generate_host_source

__all__ = [
    "ProgramTensor",
    "ChipPart",
    "HostPart",
    "BoardProgram",
    "get_c_type",
    "build_program",
    "sanitize_c_name",
]

_TYPES = {"float32": "float", "float64": "double", "bool": "bool"}


def get_c_type(dtype: str) -> str:
    """Return the C type of a NumPy type's name."""
    return _TYPES.get(dtype, f"{dtype}_t")


def sanitize_c_name(name: str) -> str:
    """Return what of a tensor's name can stand in a C name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:40] or "x"


@dataclass(frozen=True)
class ProgramTensor:
    """A tensor between parts, or at the program's ends, of one call. key : unique among buffers."""

    key: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def element_count(self) -> int:
        """Elements."""
        return int(np.prod(self.shape))

    @property
    def bytes(self) -> int:
        """Bytes."""
        return self.element_count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ChipPart:
    """A part that is packed.

    first : the part that this one is equal to but for its tensors' names, itself where it is the
    first: equal parts are one package. number : of the package, from 0. file : the graph's. inputs,
    outputs : ports of the package. sources, targets : the tensors of the whole graph that they are
    made of, or become. quantized, dequantized : by port, whether a Quant or a Dequant stands there.
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
        """Whether its constants lie in shared memory."""
        return "params:share-mem" in " ".join(self.choice.argv)


@dataclass(frozen=True)
class HostPart:
    """A part of float operators. operations : float operations of a call, about.

    First : as of a chip part.
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
    """All of it.

    inputs, outputs : without states. states : (input, output) tensors, the output becomes the next
    call's input. arena_offsets : {buffer: offset in the arena}. tolerance : of outputs against
    golden vectors, as a fraction of their range. host_tolerances : {tensor: the same of a float
    that a host part writes}, see `rounding`.
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
        """Its chip parts."""
        return tuple(part for part in self.parts if isinstance(part, ChipPart))

    @property
    def host(self) -> tuple[HostPart, ...]:
        """Its host parts."""
        return tuple(part for part in self.parts if isinstance(part, HostPart))

    @property
    def unique_parts(self) -> tuple[ChipPart | HostPart, ...]:
        """Its parts that are equal to none before them."""
        return tuple(part for part in self.parts if part.first == part.name)

    @property
    def unique_chip_parts(self) -> tuple[ChipPart, ...]:
        """Its chip parts that are equal to none before them, in the order of their packages."""
        return tuple(part for part in self.unique_parts if isinstance(part, ChipPart))

    @property
    def unique_host_parts(self) -> tuple[HostPart, ...]:
        """Its host parts that are equal to none before them."""
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
    """Return the program of `parts`, with the sizes of one run of them.

    state : {output: input} of the whole graph. choices, files : the packer's arguments of chip
    parts, the ONNX files of all. equal : {part: the first that is equal to it}. Raises
    ConstraintError for a graph whose outputs are inputs, and as `generate_host_source` and
    `make_ports` do.
    """
    prefix = make_c_identifier(stem)
    arrays: dict[str, ProgramTensor] = {}
    for run in runs:
        for name, array in (*run.inputs.items(), *run.outputs.items()):
            arrays.setdefault(name, ProgramTensor(name, name, tuple(array.shape), str(array.dtype)))
    made: list[ChipPart | HostPart] = []
    for run in runs:
        sources = tuple(arrays[name] for name in run.part.inputs)
        targets = tuple(arrays[name] for name in run.part.outputs)
        name = run.part.name
        before = next((part for part in made if part.name == canonical_names[name]), None)
        if before is not None and isinstance(before, HostPart):
            made.append(replace(before, name=name, sources=sources, targets=targets))
        elif run.part.chip:
            number = sum(isinstance(part, ChipPart) and part.first == part.name for part in made)
            chip = _make_chip_part(
                run, files[name], choices[canonical_names[name]], sources, targets
            )
            number = before.package_index if before is not None else number
            made.append(replace(chip, first=canonical_names[name], package_index=number))
        else:
            made.append(_make_host_part(run, f"{prefix}_{name}", files[name], sources, targets))
    written = {array.tensor for part in made for array in part.targets}
    ends = [str(v.name) for v in parts.graph.graph.outputs]
    if lost := [name for name in ends if name not in written]:
        raise ConstraintError(
            f"output '{lost[0]}' is an input or a constant of the graph: take it out of the model"
        )
    fed = set(state.values())
    entries = [
        str(v.name)
        for v in parts.graph.graph.inputs
        if v.const_value is None and str(v.name) in arrays
    ]
    inputs = tuple(arrays[name] for name in entries if name not in fed)
    outputs = tuple(arrays[name] for name in ends if name not in state)
    states = tuple((arrays[two], arrays[one]) for one, two in state.items() if two in arrays)
    places, arena = _plan_buffers(
        made, {a.tensor for a in (*inputs, *outputs)} | {one.tensor for one, _ in states}, state
    )
    return BoardProgram(
        prefix=prefix,
        stem=stem,
        platform=target.name,
        parts=tuple(made),
        inputs=inputs,
        outputs=outputs,
        states=states,
        arena_offsets=places,
        arena_bytes=arena,
    )


def _make_chip_part(
    run: PartRun,
    file: str,
    choice: PackerArguments,
    sources: tuple[ProgramTensor, ...],
    targets: tuple[ProgramTensor, ...],
) -> ChipPart:
    whole = {name: a for name, a, _ in run.tensors if a.dtype.kind == "i"}
    floats = {name: a for name, a, _ in run.tensors if a.dtype.kind == "f"} | {
        name: np.asarray(a) for name, a in run.inputs.items() if name not in whole
    }
    scales = {name: held.scale for name, _, held in run.tensors if held is not None}
    graph = run.part.graph
    ports = make_ports(graph, graph, SampleRun(whole, floats, scales), {})
    for value in graph.graph.inputs:
        quants = [use.node for use in value.uses() if use.node.op_type == QUANT.name]
        if len({float(ir.get_attr(node, "scale_x")) for node in quants}) > 1:
            raise ConstraintError(
                f"input '{value.name}' of {run.part.name} is quantized with several scales; "
                "quantize the model again"
            )
    quantized = tuple(
        any(use.node.op_type == QUANT.name for use in v.uses()) for v in graph.graph.inputs
    )
    dequantized = tuple(_is_dequantized(value) for value in graph.graph.outputs)
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
        quantized=quantized,
        dequantized=dequantized,
    )


def _is_dequantized(value: ir.Value) -> bool:
    node = ir.producer(value)
    return node is not None and find_integer_op(node) is DEQUANT


def _make_host_part(
    run: PartRun,
    name: str,
    file: str,
    sources: tuple[ProgramTensor, ...],
    targets: tuple[ProgramTensor, ...],
) -> HostPart:
    model = ir.to_proto(run.part.graph)
    source = generate_host_source(
        model, name, list(run.inputs.values()), list(run.outputs.values())
    )
    operations = _count_operations(
        fix_sample_shapes(model, list(run.inputs.values()), list(run.outputs.values()))
    )
    return HostPart(run.part.name, run.part.name, file, model, source, sources, targets, operations)


def _count_operations(model: onnx.ModelProto) -> int:
    """Return about how many float operations a call takes.

    Two a multiply-accumulate, else one an output element.
    """
    total = 0
    for node in ir.from_proto(model).graph:
        shapes = [ir.get_shape(v) for v in node.outputs]
        counts = [math.prod(int(d or 1) for d in shape) for shape in shapes if shape is not None]
        total += 2 * count_macs(node) or (
            0 if node.op_type in operators.DATA_MOVEMENT_OPS | {"Constant"} else sum(counts)
        )
    return total


def get_integer_buffer_key(part: ChipPart, index: int) -> str:
    """Return the buffer of the integers that input `index` of a chip part takes."""
    return f"{part.name}.{index}"


def _plan_buffers(
    parts: Iterable[ChipPart | HostPart], elsewhere: set[str], state: Mapping[str, str]
) -> tuple[dict[str, int], int]:
    """Plan the arena: tensors between parts, the integers a chip part takes, a host part's scratch."""
    parts = list(parts)
    uses: dict[str, BufferLifetime] = {}
    for step, part in enumerate(parts):
        for array in part.targets:
            if array.tensor not in elsewhere:
                last = len(parts) if array.tensor in state else step
                uses[array.key] = BufferLifetime(array.bytes, step, last)
        for array in part.sources:
            if array.key in uses:
                uses[array.key] = BufferLifetime(
                    array.bytes, uses[array.key].first, max(step, uses[array.key].last)
                )
        if isinstance(part, ChipPart):
            for index, port in enumerate(part.inputs):
                if part.quantized[index]:
                    uses[get_integer_buffer_key(part, index)] = BufferLifetime(
                        port.bytes, step, step
                    )
        elif part.source.scratch_bytes:
            uses[f"{part.name}.scratch"] = BufferLifetime(part.source.scratch_bytes, step, step)
    offsets, size = plan_arena(uses)
    return offsets, round_up(size)
