"""What nodes write beyond the work area that is planned for them, and what lies there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .....formats import AVG_POOL2D, GLU, LAYER_NORM, LINEAR, LSTM, SOFTMAX
from ....verdict import VerdictFinding
from ...packer_profile import PackerProfile
from ..assumptions import unmeasured
from ..options import PSRAM, SHARE
from ..packer_graph import PackerGraph, PackerStep
from ..window import round_up
from .plan import Allocation, MemoryPlan
from .work_areas import PlacedStep

__all__ = [
    "OVERRUNS",
    "POSSIBLE_OVERRUNS",
    "UNCONFIRMED_RULE",
    "Overrun",
    "check_output_overruns",
    "check_overruns",
    "find_overruns",
]

#: Bytes from `start` to `end`, `end` not included.
Span = tuple[int, int]

#: Need = what is written, counted from the start of the work area.
OverrunRule = Callable[[PlacedStep], tuple[Span, ...]]


def _from_start(need: int) -> tuple[Span, ...]:
    return ((0, need),) if need else ()


def _is_global_pool(node: PlacedStep) -> bool:
    return list(node.step.get("kernel_shape")) == list(node.x.shape[2:])


def _average(node: PlacedStep) -> tuple[Span, ...]:
    area = math.prod(node.step.get("kernel_shape"))
    return _from_start(
        area + 4 * node.x.shape[1] if _is_global_pool(node) and area & (area - 1) == 0 else 0
    )


def _norm_venus(node: PlacedStep) -> tuple[Span, ...]:
    return _from_start(8 * node.inputs[1].elements)


def _norm_later(node: PlacedStep) -> tuple[Span, ...]:
    """Scratch of a row, copies of the factor (T bytes) and the bias (4 T), and 16 T behind these the row itself.

    A factor in shared memory is not copied, nor is the bias: the row then lies 16 T behind the bias
    itself (`inside`).
    """
    row = node.inputs[1].elements
    if node.places[node.inputs[1].name] == SHARE:
        return _from_start(8 * row + 8)
    return (0, 13 * row + 8), (25 * row + 8, 27 * row + 8)


def _lstm_venus(node: PlacedStep) -> tuple[Span, ...]:
    return _from_start(40 * int(node.step.get("hidden_size")))


def _linear_venusa(node: PlacedStep) -> tuple[Span, ...]:
    columns = node.x.shape[-1]
    rows, outputs = node.x.elements // columns, node.y.shape[-1]
    return _from_start(
        rows * (outputs + max(outputs, columns)) if node.is_output_in_psram and rows > 1 else 0
    )


@unmeasured("a single output makes as many more bytes as are planned; 96 were seen behind one plan")
def _linear_perhaps(node: PlacedStep) -> int:
    """Return the bytes that a LinearInt with one output may write, where those of others are not the whole truth."""
    rows = node.x.elements // node.x.shape[-1]
    return (
        2 * node.x.elements if node.y.shape[-1] == 1 and node.is_output_in_psram and rows > 1 else 0
    )


def _glu(node: PlacedStep) -> tuple[Span, ...]:
    lines = math.prod(node.x.shape[: int(node.step.get("dim", -1)) % len(node.x.shape)])
    return _from_start(7 * lines * node.x.shape[-1])


def _softmax_venusa(node: PlacedStep) -> tuple[Span, ...]:
    """What lay between the planned area and 16 bytes for each element came to no harm, whoever read it later."""
    return ((16 * node.x.elements, 22 * node.x.elements),)


def _relu_later(node: PlacedStep) -> tuple[Span, ...]:
    return _from_start(
        node.x.size_bytes if node.is_input_in_psram() or node.is_output_in_psram else 0
    )


#: Packing.areas -> operator -> need.
OVERRUNS: Mapping[str, Mapping[str, OverrunRule]] = MappingProxyType(
    {
        "venus": {LAYER_NORM.name: _norm_venus, LSTM.name: _lstm_venus},
        "arcs": {LAYER_NORM.name: _norm_later, AVG_POOL2D.name: _average, "Relu": _relu_later},
        "venusA": {
            LAYER_NORM.name: _norm_later,
            AVG_POOL2D.name: _average,
            LINEAR.name: _linear_venusa,
            GLU.name: _glu,
            SOFTMAX.name: _softmax_venusa,
            "Relu": _relu_later,
        },
    }
)

#: Packing.areas -> operator -> bytes from the start of the work area that may be written; they are told of, no more.
POSSIBLE_OVERRUNS: Mapping[str, Mapping[str, Callable[[PlacedStep], int]]] = {
    "venusA": {LINEAR.name: _linear_perhaps}
}

#: Operators that stop, or err, where the work area is too small, whatever lies behind it.
_ALWAYS_HARMFUL_OPERATORS = ("Relu",)

#: The rule of a warning that nobody measured.
UNCONFIRMED_RULE = "a LinearInt of one output stays within its work area, for all that is known"

_REMEDY = (
    "place its tensors elsewhere (-m), take --dma_prefetch False, or give another node a "
    "larger work area"
)


def find_work_area(net: PackerGraph, memory: MemoryPlan) -> Allocation | None:
    """Return the work area that all nodes use: the one of the first node that needs one."""
    areas = [spot for spot in memory.allocations.values() if spot.kind == "area"]
    return min(areas, key=lambda spot: spot.first, default=None)


@dataclass(frozen=True)
class Overrun:
    """A node that writes more bytes than the work area has, up to `end_offset`.

    `overwritten` is what is alive there.
    is_confirmed : it was measured that it writes behind the memory that is planned in all, if it
    does.
    """

    step: PackerStep
    required_bytes: int
    end_offset: int
    overwritten: tuple[str, ...]
    is_confirmed: bool


def find_overruns(
    net: PackerGraph, memory: MemoryPlan, table: str, places: Mapping[str, str]
) -> Iterator[Overrun]:
    """Yield every node that writes past the work area."""
    block = find_work_area(net, memory)
    if block is None:
        return
    for index, step in enumerate(net.steps):
        rule = OVERRUNS[table].get(step.op)
        node = PlacedStep.of(net, step, places)
        spans = () if rule is None else rule(node)
        perhaps = POSSIBLE_OVERRUNS.get(table, {}).get(step.op)
        known = max((end for _, end in spans), default=0)
        need = max(known, 0 if perhaps is None else perhaps(node))
        if need <= block.size:
            continue
        sure = need == known or block.offset + known > _get_region_end(memory, block)
        exposed = _EXPOSURE_RULES.get(step.op, _all_exposed)(node, memory, block, table)
        hit: set[str] = set()
        for start, end in spans:
            behind = (block.offset + max(start, block.size), block.offset + end)
            hit |= set(_find_live_overlaps(net, memory, block.place, behind, index, exposed))
        yield Overrun(step, need, block.offset + need, tuple(sorted(hit)), sure)


def check_overruns(
    net: PackerGraph, memory: MemoryPlan, table: str, places: Mapping[str, str]
) -> Iterator[VerdictFinding]:
    """Yield a finding for every node that writes past its work area onto something alive, or past the plan."""
    block = find_work_area(net, memory)
    if block is None:
        return
    for overrun in find_overruns(net, memory, table, places):
        step = overrun.step
        text = f"{step.op} stays within its work area"
        value = f"{overrun.required_bytes} bytes, {block.size} are planned"
        if overrun.overwritten or step.op in _ALWAYS_HARMFUL_OPERATORS:
            where = f"; {', '.join(overrun.overwritten)} lies behind" if overrun.overwritten else ""
            yield VerdictFinding("right", step.origin, text, f"{value}{where}", _REMEDY)
        elif overrun.end_offset > _get_region_end(memory, block):
            written = "are written" if overrun.is_confirmed else "may be written"
            past = (
                f"{value}; {overrun.end_offset - _get_region_end(memory, block)} bytes behind "
                f"the plan {written}"
            )
            yield VerdictFinding(
                "plan",
                step.origin,
                text if overrun.is_confirmed else UNCONFIRMED_RULE,
                past,
                _REMEDY,
            )


def _get_region_end(memory: MemoryPlan, spot: Allocation) -> int:
    """Return where the memory ends that is reserved in the place of `spot`.

    The plan, rounded up to 64.
    """
    return round_up(memory.shared if spot.place == SHARE else memory.psram_bytes, 64)


def _find_live_overlaps(
    net: PackerGraph,
    memory: MemoryPlan,
    place: str,
    span: Span,
    index: int,
    exposed: Mapping[str, Span] = MappingProxyType({}),
) -> list[str]:
    """Return what is alive at node `index` within the bytes `span` of a place.

    exposed : {tensor or buffer: the bytes of it that come to harm}, of all others any.
    """
    start, end = span
    hits = []
    for name, spot in memory.allocations.items():
        first, last = exposed.get(name, (spot.offset, spot.offset + spot.size))
        if spot.place != place or spot.kind == "area" or not max(first, start) < min(last, end):
            continue
        if not spot.first <= index <= spot.last_step:
            continue
        if spot.kind == "buffer":
            alive = any(
                memory.prefetch_buffers.get(later.name) == name for later in net.steps[index:]
            )
        else:
            alive = name in net.outputs or bool(net.find_consumers(name))
        if alive:
            hits.append(name)
    return hits


#: What an operator may hit without harm, told by what is left.
ExposureRule = Callable[[PlacedStep, MemoryPlan, Allocation, str], Mapping[str, Span]]
_NOTHING = (0, 0)


def _all_exposed(
    node: PlacedStep, memory: MemoryPlan, block: Allocation, table: str
) -> dict[str, Span]:
    return {}


def _linear_exposed(
    node: PlacedStep, memory: MemoryPlan, block: Allocation, table: str
) -> dict[str, Span]:
    """The input has been read when the sums are written."""
    return {} if _is_input_live_later(node, memory) else {node.x.name: _NOTHING}


def _softmax_exposed(
    node: PlacedStep, memory: MemoryPlan, block: Allocation, table: str
) -> dict[str, Span]:
    """All is read before anything is written here, and written after all."""
    return {
        node.y.name: _NOTHING,
        **({} if _is_input_live_later(node, memory) else {node.x.name: _NOTHING}),
    }


def _average_exposed(
    node: PlacedStep, memory: MemoryPlan, block: Allocation, table: str
) -> dict[str, Span]:
    """The output is hit only by the sums, behind the ones."""
    own, ones = memory.allocations[node.y.name], block.offset + math.prod(node.x.shape[2:])
    return {node.y.name: _NOTHING} if own.offset <= ones else {}


def _norm_exposed(
    node: PlacedStep, memory: MemoryPlan, block: Allocation, table: str
) -> dict[str, Span]:
    """Row by row: the scratch of one row is written over the results of those before and the inputs of those behind.

    Constants have been copied from their buffer before the first row; only the copies may lie over
    what is still to be copied. Neither this nor the input is known of venus.
    """
    row, source, result = (
        node.inputs[1].elements,
        memory.allocations[node.x.name],
        memory.allocations[node.y.name],
    )
    rows = node.x.elements // row
    exposed = {node.y.name: (result.offset, result.offset + (rows - 1) * row)}
    if OVERRUNS[table][LAYER_NORM.name] is not _norm_venus:
        if (name := memory.prefetch_buffers.get(node.step.name)) is not None:
            buffer, copies = (
                memory.allocations[name],
                (block.offset + 8 * row + 8, block.offset + 13 * row + 8),
            )
            exposed[name] = (
                max(buffer.offset, copies[0]),
                min(buffer.offset + buffer.size, copies[1]),
            )
        if not _is_input_live_later(node, memory):
            exposed[node.x.name] = (source.offset + row, source.offset + rows * row)
    return exposed


def _is_input_live_later(node: PlacedStep, memory: MemoryPlan) -> bool:
    """Whether the input is read again later."""
    return memory.allocations[node.x.name].last_step > memory.allocations[node.y.name].first


_EXPOSURE_RULES: Mapping[str, ExposureRule] = {
    LINEAR.name: _linear_exposed,
    AVG_POOL2D.name: _average_exposed,
    LAYER_NORM.name: _norm_exposed,
    SOFTMAX.name: _softmax_exposed,
}


def check_output_overruns(
    net: PackerGraph, memory: MemoryPlan, kind: PackerProfile
) -> Iterator[VerdictFinding]:
    """Yield a finding for every output of which more bytes are written than planned, where these hit something."""
    for index, step in enumerate(net.steps):
        name, need, what = _get_output_overrun(net, step, kind)
        if not name or need <= memory.allocations[name].size:
            continue
        spot = memory.allocations[name]
        end = spot.offset + need
        behind, over = (spot.offset + spot.size, end), end - _get_region_end(memory, spot)
        hit = [
            *_find_live_overlaps(net, memory, spot.place, behind, index),
            *_find_cell_overlap(step, memory, spot.place, behind),
        ]
        if over > 0 and spot.place == PSRAM:
            hit.append("the executor's own memory")
        text, value = f"{what} stays where it is planned", f"{need} bytes, {spot.size} are planned"
        if hit:
            yield VerdictFinding(
                "right", step.origin, text, f"{value}; {', '.join(hit)} lies behind", _REMEDY
            )
        elif over > 0:
            yield VerdictFinding(
                "plan",
                step.origin,
                text,
                f"{value}; {over} bytes behind the plan are written",
                _REMEDY,
            )


@unmeasured("the last cell of an LSTMInt is worked on where it lies, though nobody reads it later")
def _find_cell_overlap(step: PackerStep, memory: MemoryPlan, place: str, span: Span) -> list[str]:
    """Return the last cell of an LSTMInt that lies within the bytes `span` of a place.

    No row had it there.
    """
    cells = [
        memory.allocations[name]
        for name in step.outputs[2:]
        if step.op == LSTM.name and name in memory.allocations
    ]
    hit = [
        c.place == place and max(c.offset, span[0]) < min(c.offset + c.size, span[1]) for c in cells
    ]
    return [step.outputs[2]] if any(hit) else []


def _get_output_overrun(
    net: PackerGraph, step: PackerStep, kind: PackerProfile
) -> tuple[str, int, str]:
    """Return an output, the bytes written to it, and what it is.

    A last state in 32 bits, two lines whatever it has.
    """
    if step.op == LSTM.name and kind.has_32bit_lstm_state and len(step.outputs) > 1:
        return (
            step.outputs[1],
            4 * net.tensors[step.outputs[1]].elements,
            "the last state of an LSTMInt",
        )
    if (
        step.op == LAYER_NORM.name
        and kind.supports_2d_layer_norm
        and len(net.tensors[step.inputs[0]].shape) == 2
    ):
        return (
            step.outputs[0],
            2 * net.tensors[step.inputs[1]].elements,
            "the output of a LayerNormInt of two axes",
        )
    return "", 0, ""
