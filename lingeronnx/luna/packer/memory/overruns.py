"""Writes of nodes past their planned work area or output, and the live tensors they overwrite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ....common.arithmetic import round_up
from ....operators.integer_ops import AVG_POOL2D, GLU, LAYER_NORM, LINEAR, LSTM, MUL, SOFTMAX
from ....targets.verdict import RuleBasis, VerdictFinding
from ...packer_profile import PackerProfile
from ..assumptions import unmeasured
from ..options import PSRAM, SHARE
from ..packer_graph import PackerGraph, PackerStep
from .plan import Allocation, MemoryPlan
from .work_areas import PlacedStep

__all__ = [
    "OVERRUNS",
    "OVERRUN_FORMS",
    "POSSIBLE_OVERRUNS",
    "UNCONFIRMED_RULE",
    "Overrun",
    "check_output_overruns",
    "check_overruns",
    "find_overruns",
]

#: Byte range from a start to an end, which is excluded.
Span = tuple[int, int]

#: Returns the byte ranges that a node writes, relative to the start of its work area.
OverrunRule = Callable[[PlacedStep], tuple[Span, ...]]


def _from_start(written_bytes: int) -> tuple[Span, ...]:
    """Return the byte range (0, `written_bytes`) from the start of a work area; () for 0 bytes."""
    return ((0, written_bytes),) if written_bytes else ()


def _get_average_pool_spans(node: PlacedStep) -> tuple[Span, ...]:
    """Return the bytes that a global AvgPool2dInt writes: area + 4 per channel, from the start.

    Empty unless the kernel is the whole map and its area a power of two.
    """
    area = math.prod(node.step.get("kernel_shape"))
    is_global = list(node.step.get("kernel_shape")) == list(node.x.shape[2:])
    is_power_of_two = area & (area - 1) == 0
    return _from_start(area + 4 * node.x.shape[1] if is_global and is_power_of_two else 0)


def _get_layer_norm_spans_venus(node: PlacedStep) -> tuple[Span, ...]:
    """Return the bytes of its work area that a LayerNormInt writes on venus: 8 per row element."""
    return _from_start(8 * node.inputs[1].elements)


def _get_layer_norm_spans(node: PlacedStep) -> tuple[Span, ...]:
    """Return the byte ranges, from the start of its work area, that a LayerNormInt writes.

    For arcs and venusA, with rows of T elements: 8 T + 8 bytes of scratch, then copies of the
    factor (T bytes) and the bias (4 T), and 2 T that begin 16 T after the start of the bias copy.
    With constants in shared memory nothing is copied and only the scratch is written.
    """
    row_length = node.inputs[1].elements
    if node.placements[node.inputs[1].name] == SHARE:
        return _from_start(8 * row_length + 8)
    return (0, 13 * row_length + 8), (25 * row_length + 8, 27 * row_length + 8)


def _get_lstm_spans_venus(node: PlacedStep) -> tuple[Span, ...]:
    """Return the bytes of its work area that an LSTMInt writes on venus: 40 per hidden unit."""
    return _from_start(40 * int(node.step.get("hidden_size")))


def _get_linear_spans_venusa(node: PlacedStep) -> tuple[Span, ...]:
    """Return the bytes of its work area that a LinearInt writes on venusA, from the start.

    Per row they are outputs + max(outputs, inputs). Empty for a single row or an output in shared
    memory.
    """
    columns = node.x.shape[-1]
    rows, outputs = node.x.elements // columns, node.y.shape[-1]
    if rows == 1 or not node.is_output_in_psram:
        return ()
    return _from_start(rows * (outputs + max(outputs, columns)))


@unmeasured(
    "a LinearInt with one output writes twice the planned bytes; 96 bytes were seen past one plan"
)
def _get_possible_linear_bytes(node: PlacedStep) -> int:
    """Return the bytes from the start of its work area that a LinearInt on venusA may write.

    Twice the input elements for a single output, several rows and a result in PSRAM, otherwise 0;
    not confirmed.
    """
    rows = node.x.elements // node.x.shape[-1]
    may_overrun = node.y.shape[-1] == 1 and node.is_output_in_psram and rows > 1
    return 2 * node.x.elements if may_overrun else 0


def _get_glu_spans(node: PlacedStep) -> tuple[Span, ...]:
    """Return the bytes of its work area that a GluInt writes on venusA, from the start.

    They are 7 per input element in the last axis, times the sizes of all axes before the gated one.
    """
    rows = math.prod(node.x.shape[: int(node.step.get("dim", -1)) % len(node.x.shape)])
    return _from_start(7 * rows * node.x.shape[-1])


def _get_softmax_spans_venusa(node: PlacedStep) -> tuple[Span, ...]:
    """Return the byte range that a SoftmaxInt on venusA writes beyond its work area.

    It is from 16 to 22 bytes per input element; tensors below 16 bytes per element were measured to
    be unharmed.
    """
    return ((16 * node.x.elements, 22 * node.x.elements),)


def _get_relu_spans(node: PlacedStep) -> tuple[Span, ...]:
    """Return the bytes of its work area that a Relu writes: those of the input.

    Empty if both input and output are in shared memory.
    """
    uses_psram = node.is_input_in_psram() or node.is_output_in_psram
    return _from_start(node.x.size_bytes if uses_psram else 0)


def _get_channel_mul_spans(node: PlacedStep) -> tuple[Span, ...]:
    """Return the range of the product of an iqMul by [1, C, 1, 1], which starts C bytes in.

    Empty for operands of one shape. A map of 1x1 has no work area (`_get_output_overrun`).
    """
    if node.x.shape == node.inputs[1].shape:
        return ()
    channels = node.x.shape[1]
    return ((channels, channels + node.x.elements),)


#: PackerProfile.work_area_table -> operator -> rule.
OVERRUNS: Mapping[str, Mapping[str, OverrunRule]] = MappingProxyType(
    {
        "venus": {
            LAYER_NORM.name: _get_layer_norm_spans_venus,
            LSTM.name: _get_lstm_spans_venus,
            MUL.name: _get_channel_mul_spans,
        },
        "arcs": {
            LAYER_NORM.name: _get_layer_norm_spans,
            AVG_POOL2D.name: _get_average_pool_spans,
            MUL.name: _get_channel_mul_spans,
            "Relu": _get_relu_spans,
        },
        "venusA": {
            LAYER_NORM.name: _get_layer_norm_spans,
            AVG_POOL2D.name: _get_average_pool_spans,
            MUL.name: _get_channel_mul_spans,
            LINEAR.name: _get_linear_spans_venusa,
            GLU.name: _get_glu_spans,
            SOFTMAX.name: _get_softmax_spans_venusa,
            "Relu": _get_relu_spans,
        },
    }
)


def _get_layer_norm_spans_q15(node: PlacedStep) -> tuple[Span, ...]:
    """Return the bytes of its work area that a LayerNormInt in Q15 writes: 9 per row element."""
    return _from_start(9 * node.inputs[1].elements)


#: Name -> rule of a later version that replaces the table's, for `PackerProfile.overruns`.
OVERRUN_FORMS: Mapping[str, OverrunRule] = MappingProxyType(
    {"none": lambda node: (), "layer norm Q15": _get_layer_norm_spans_q15}
)

#: PackerProfile.work_area_table -> operator -> function that returns the bytes, from the start of
#: the work area, that may be written. Such an overrun is reported as a warning at most.
POSSIBLE_OVERRUNS: Mapping[str, Mapping[str, Callable[[PlacedStep], int]]] = {
    "venusA": {LINEAR.name: _get_possible_linear_bytes}
}

#: Operators that stop or compute wrong results if the work area is too small, whatever follows it.
_ALWAYS_HARMFUL_OPERATORS = ("Relu",)

#: The rule of a warning that was not measured.
UNCONFIRMED_RULE = "a LinearInt with one output must stay within its work area (not measured)"

_REMEDY = (
    "place its tensors elsewhere (-m), pass --dma_prefetch False, or give another node a "
    "larger work area"
)


def find_work_area(memory: MemoryPlan) -> Allocation | None:
    """Return the work area that all nodes use: the one in `memory` whose lifetime starts first.

    None if no node needs a work area.
    """
    work_areas = [
        allocation for allocation in memory.allocations.values() if allocation.kind == "area"
    ]
    return min(work_areas, key=lambda allocation: allocation.first_step, default=None)


@dataclass(frozen=True)
class Overrun:
    """A node that writes past the end of its work area.

    required_bytes : bytes of work area that the node needs.
    end_offset : end of the written range in the memory of the work area.
    overwritten : live tensors and buffers in the written range.
    is_confirmed : whether the range, if it extends past the end of the planned memory, was measured
    to do so.
    """

    step: PackerStep
    required_bytes: int
    end_offset: int
    overwritten: tuple[str, ...]
    is_confirmed: bool


def find_overruns(
    net: PackerGraph, memory: MemoryPlan, profile: PackerProfile, placements: Mapping[str, str]
) -> Iterator[Overrun]:
    """Yield an `Overrun` for each step that writes past the end of the common work area.

    Each lists the live tensors and buffers in the excess. `profile` is that of the chip,
    `placements` the memory of each tensor. Yields nothing without a work area; overruns need not do
    harm.
    """
    work_area = find_work_area(memory)
    if work_area is None:
        return
    for index, step in enumerate(net.steps):
        rule, possible_rule = _get_overrun_rule(profile, step.op), None
        if step.op not in profile.overruns:
            possible_rule = POSSIBLE_OVERRUNS.get(profile.work_area_table, {}).get(step.op)
        if rule is None and possible_rule is None:
            continue
        node = PlacedStep.from_step(net, step, placements)
        spans = () if rule is None else rule(node)
        confirmed_bytes = max((end for _, end in spans), default=0)
        possible_bytes = 0 if possible_rule is None else possible_rule(node)
        required_bytes = max(confirmed_bytes, possible_bytes)
        if required_bytes <= work_area.size:
            continue
        is_confirmed = (
            required_bytes == confirmed_bytes
            or work_area.offset + confirmed_bytes > _get_region_end(memory, work_area)
        )
        find_exposed = _EXPOSURE_RULES.get(step.op, _find_exposed_default)
        exposed = dict(find_exposed(node, memory, work_area, profile.work_area_table))
        if _is_input_needed_later(net, node, index):
            exposed.pop(node.x.name, None)
        overwritten: set[str] = set()
        for start, end in spans:
            span = (work_area.offset + max(start, work_area.size), work_area.offset + end)
            overwritten.update(
                _find_live_overlaps(net, memory, work_area.memory, span, index, exposed)
            )
        end_offset = work_area.offset + required_bytes
        yield Overrun(step, required_bytes, end_offset, tuple(sorted(overwritten)), is_confirmed)


def _get_overrun_rule(profile: PackerProfile, operator: str) -> OverrunRule | None:
    """Return the rule of `operator` on the chip of `profile`; None if it stays in its work area."""
    if operator in profile.overruns:
        return OVERRUN_FORMS[profile.overruns[operator]]
    return OVERRUNS[profile.work_area_table].get(operator)


def check_overruns(
    net: PackerGraph, memory: MemoryPlan, profile: PackerProfile, placements: Mapping[str, str]
) -> Iterator[VerdictFinding]:
    """Yield a finding for each step that writes past its work area, if that does or may do harm.

    Level "right" if a live tensor is overwritten or the operator always fails then (Relu); level
    "plan" if only bytes past the end of the planned memory are written, with basis "read" if that
    was not measured. Other overruns have no finding.
    """
    work_area = find_work_area(memory)
    if work_area is None:
        return
    for overrun in find_overruns(net, memory, profile, placements):
        step = overrun.step
        rule = f"{step.op} must stay within its work area"
        value = f"{overrun.required_bytes} bytes, {work_area.size} are planned"
        overflow_bytes = overrun.end_offset - _get_region_end(memory, work_area)
        if overrun.overwritten or step.op in _ALWAYS_HARMFUL_OPERATORS:
            if overrun.overwritten:
                value += f"; it overwrites {', '.join(overrun.overwritten)}"
            yield VerdictFinding("right", step.origin, rule, value, _REMEDY)
        elif overflow_bytes > 0:
            written = "are written" if overrun.is_confirmed else "may be written"
            value += f"; {overflow_bytes} bytes past the plan {written}"
            if overrun.is_confirmed:
                yield VerdictFinding("plan", step.origin, rule, value, _REMEDY)
            else:
                yield VerdictFinding("plan", step.origin, UNCONFIRMED_RULE, value, _REMEDY, "read")


def _get_region_end(memory: MemoryPlan, allocation: Allocation) -> int:
    """Return the number of bytes planned in the memory of `allocation`, rounded up to 64."""
    planned_bytes = memory.shared if allocation.memory == SHARE else memory.psram_bytes
    return round_up(planned_bytes, 64)


def _find_live_overlaps(
    net: PackerGraph,
    memory: MemoryPlan,
    memory_name: str,
    span: Span,
    step_index: int,
    exposed: Mapping[str, Span] = MappingProxyType({}),
) -> list[str]:
    """Return the tensors and buffers in `memory_name` that are live at a step and overlap `span`.

    `span` is (first byte, one past the last). `exposed` limits the bytes that count, by name; all
    bytes of others count. A DMA buffer is live if this or a later step uses it, a tensor if it has
    a consumer or is a graph output; work areas do not count.
    """
    start, end = span
    overlapping = []
    for name, allocation in memory.allocations.items():
        first, last = exposed.get(name, (allocation.offset, allocation.offset + allocation.size))
        if allocation.memory != memory_name or allocation.kind == "area":
            continue
        if max(first, start) >= min(last, end):
            continue
        if not allocation.first_step <= step_index <= allocation.last_step:
            continue
        if allocation.kind == "buffer":
            is_live = any(
                memory.prefetch_buffers.get(step.name) == name for step in net.steps[step_index:]
            )
        else:
            is_live = name in net.outputs or bool(net.find_consumers(name))
        if is_live:
            overlapping.append(name)
    return overlapping


#: Returns, by tensor or buffer, the bytes that a node's overrun can harm; all bytes of others. It
#: does not apply to an input that is needed after the node.
ExposureRule = Callable[[PlacedStep, MemoryPlan, Allocation, str], Mapping[str, Span]]
_NOTHING = (0, 0)


def _find_exposed_default(
    node: PlacedStep, memory: MemoryPlan, work_area: Allocation, table: str
) -> dict[str, Span]:
    """Return {}: no restriction on which bytes of which tensor an overrun can harm."""
    return {}


def _find_exposed_by_linear(
    node: PlacedStep, memory: MemoryPlan, work_area: Allocation, table: str
) -> dict[str, Span]:
    """Return {input name: no bytes}: a LinearInt has read its input before it writes sums."""
    return {node.x.name: _NOTHING}


def _find_exposed_by_mul(
    node: PlacedStep, memory: MemoryPlan, work_area: Allocation, table: str
) -> dict[str, Span]:
    """Return {second operand: no bytes}: an iqMul has read it before it writes the product."""
    return {node.inputs[1].name: _NOTHING}


def _find_exposed_by_softmax(
    node: PlacedStep, memory: MemoryPlan, work_area: Allocation, table: str
) -> dict[str, Span]:
    """Return {tensor name: no bytes} for the tensors that the overrun of a SoftmaxInt cannot harm.

    These are the input, read before the overrun, and the output, written after it; all bytes of
    others count.
    """
    return {node.x.name: _NOTHING, node.y.name: _NOTHING}


def _find_exposed_by_average_pool(
    node: PlacedStep, memory: MemoryPlan, work_area: Allocation, table: str
) -> dict[str, Span]:
    """Return {output name: no bytes} if an average pool writes its output after the overrun.

    That is so unless the output starts after the row of ones in the work area, where sums are
    written; then {}.
    """
    output = memory.allocations[node.y.name]
    sums_offset = work_area.offset + math.prod(node.x.shape[2:])
    return {node.y.name: _NOTHING} if output.offset <= sums_offset else {}


def _find_exposed_by_layer_norm(
    node: PlacedStep, memory: MemoryPlan, work_area: Allocation, table: str
) -> dict[str, Span]:
    """Return tensor or buffer name -> range of bytes that the overrun of a LayerNormInt can harm.

    Rows are computed one after the other: scratch of one row harms results of earlier rows (all but
    the last) and inputs of later rows (all but the first), and copied constants only those bytes of
    the DMA buffer that are still to be copied. Names that are missing are exposed in full: on venus
    all but the output.
    """
    row_length = node.inputs[1].elements
    source, result = memory.allocations[node.x.name], memory.allocations[node.y.name]
    rows = node.x.elements // row_length
    exposed = {node.y.name: (result.offset, result.offset + (rows - 1) * row_length)}
    if OVERRUNS[table][LAYER_NORM.name] is _get_layer_norm_spans_venus:
        return exposed
    buffer_name = memory.prefetch_buffers.get(node.step.name)
    if buffer_name is not None:
        buffer = memory.allocations[buffer_name]
        exposed[buffer_name] = (
            max(buffer.offset, work_area.offset + 8 * row_length + 8),
            min(buffer.offset + buffer.size, work_area.offset + 13 * row_length + 8),
        )
    exposed[node.x.name] = (source.offset + row_length, source.offset + rows * row_length)
    return exposed


def _is_input_needed_later(net: PackerGraph, node: PlacedStep, index: int) -> bool:
    """Whether the first input of step `index` is read by a later step, or is a graph output."""
    name = node.x.name
    return name in net.outputs or any(name in step.inputs for step in net.steps[index + 1 :])


_EXPOSURE_RULES: Mapping[str, ExposureRule] = {
    LINEAR.name: _find_exposed_by_linear,
    AVG_POOL2D.name: _find_exposed_by_average_pool,
    MUL.name: _find_exposed_by_mul,
    LAYER_NORM.name: _find_exposed_by_layer_norm,
    SOFTMAX.name: _find_exposed_by_softmax,
}


def check_output_overruns(
    net: PackerGraph, memory: MemoryPlan, profile: PackerProfile
) -> Iterator[VerdictFinding]:
    """Yield a finding for each output that `net` writes past its planned size, if that does harm.

    Level "right" if it overwrites a live tensor, the cell of an LSTMInt (basis "read") or, past the
    plan in PSRAM, the executor's own memory; level "plan" if it only passes the end of the plan in
    shared memory.
    """
    for step_index, step in enumerate(net.steps):
        overrun = _get_output_overrun(net, step, profile)
        if overrun is None or overrun.written_bytes <= memory.allocations[overrun.name].size:
            continue
        allocation = memory.allocations[overrun.name]
        end = allocation.offset + overrun.written_bytes
        span = (allocation.offset + allocation.size, end)
        overwritten = _find_live_overlaps(net, memory, allocation.memory, span, step_index)
        cells = _find_cell_overlap(step, memory, allocation.memory, span)
        overflow_bytes = end - _get_region_end(memory, allocation)
        if overflow_bytes > 0 and allocation.memory == PSRAM:
            overwritten.append("the executor's own memory")
        rule = f"{overrun.description} must stay within its planned bytes"
        value = f"{overrun.written_bytes} bytes, {allocation.size} are planned"
        if overwritten or cells:
            value += f"; it overwrites {', '.join([*overwritten, *cells])}"
            basis: RuleBasis = "measured" if overwritten else "read"
            yield VerdictFinding("right", step.origin, rule, value, _REMEDY, basis)
        elif overflow_bytes > 0:
            value += f"; {overflow_bytes} bytes past the plan are written"
            yield VerdictFinding("plan", step.origin, rule, value, _REMEDY)


@unmeasured("the last cell of an LSTMInt is updated in place, even if it has no consumer")
def _find_cell_overlap(
    step: PackerStep, memory: MemoryPlan, memory_name: str, span: Span
) -> list[str]:
    """Return the name of the last cell of an LSTMInt in a list if it overlaps `span`, else [].

    `span` is a byte range of memory `memory_name`. Unmeasured: no measured graph had the cell
    there.
    """
    if step.op != LSTM.name:
        return []
    cells = [memory.allocations[name] for name in step.outputs[2:] if name in memory.allocations]
    overlaps = any(
        cell.memory == memory_name
        and max(cell.offset, span[0]) < min(cell.offset + cell.size, span[1])
        for cell in cells
    )
    return [step.outputs[2]] if overlaps else []


class _OutputOverrun(NamedTuple):
    """An output, the bytes that the executor writes to it, and its description for messages."""

    name: str
    written_bytes: int
    description: str


def _get_output_overrun(
    net: PackerGraph, step: PackerStep, profile: PackerProfile
) -> _OutputOverrun | None:
    """Return the output of `step` that the executor writes larger than declared, or None.

    These are the last state of an LSTMInt, written with 32 bits, and the result of a LayerNormInt
    over two axes, written as two rows, each only on chips that do so. The bytes may still fit in
    the allocation.
    """
    if step.op == LSTM.name and profile.has_32bit_lstm_state and len(step.outputs) > 1:
        state = step.outputs[1]
        return _OutputOverrun(
            state, 4 * net.tensors[state].elements, "the last state of an LSTMInt"
        )
    if step.op == MUL.name and net.tensors[step.inputs[0]].shape[2:] == (1, 1):
        product = net.tensors[step.outputs[0]]
        return _OutputOverrun(product.name, 2 * product.size_bytes, "the output of a 1x1 iqMul")
    if (
        step.op == LAYER_NORM.name
        and profile.supports_2d_layer_norm
        and len(net.tensors[step.inputs[0]].shape) == 2
    ):
        return _OutputOverrun(
            step.outputs[0],
            2 * net.tensors[step.inputs[1]].elements,
            "the output of a LayerNormInt with two axes",
        )
    return None
