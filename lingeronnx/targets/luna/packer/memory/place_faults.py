"""What packs and is not computed right because of where a tensor lies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from .....formats import (
    ADD,
    BATCH_NORM2D,
    CONCAT,
    CONV2D,
    CONV_TRANSPOSE2D,
    LAYER_NORM,
    LINEAR,
    LSTM,
    PAD,
    SOFTMAX,
    SUB,
)
from ....verdict import VerdictFinding
from ...packing import packing
from ..beliefs import unmeasured
from ..net import NetStep
from ..options import PSRAM, SHARE
from .areas import AreaNode
from .findings import HALF, PlannedNet, wrong

__all__ = ["PLACED"]

Rule = Callable[[PlannedNet, NetStep, AreaNode], Iterator[VerdictFinding]]


def _slice(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if node.away:
        yield wrong(step, "the output of a Slice lies in shared memory", "psram", "move the large tensors by name")


def _max_shared(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if node.outside() or node.away:
        yield wrong(step, "input and output of a MaxPool lie in shared memory", "psram", "leave them there")


def _conv_half(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    _, channels, height, width = node.x.shape
    need = -(-channels // 8) * 8 * -(-width // (8 * step.get("strides")[1])) * 8 * step.get("strides")[1] * height
    if need > HALF and (node.outside() or node.away):
        yield wrong(
            step,
            "input and output of a convolution over more than 65536 bytes lie in shared memory",
            f"{need} bytes",
            "leave them there, or cut the map into tiles",
        )


def _cat_venus(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    scale = step.get("scale_o")
    other = [i for i in range(len(step.inputs)) if step.get(f"scale_x_{i}", scale) != scale]
    if node.away and other:
        yield wrong(step, "the output of an iqCat of other scales lies in shared memory", "psram", "leave it there")


def _transpose_broken(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    kind = packing(plan.target)
    if tuple(step.get("perm")) not in kind.move.broken:
        return
    if not (node.outside() and node.away and node.x.bytes <= kind.move.max_broken):
        rule = (
            f"transposes are none of {kind.move.broken}, unless input and output lie in psram and have at most "
            f"{kind.move.max_broken} bytes"
        )
        yield wrong(step, rule, f"{step.get('perm')}", "use two others in a row")


def _transpose_between(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    kind = packing(plan.target)
    maker, readers = plan.net.maker(step.inputs[0]), plan.net.readers(step.outputs[0])
    between = maker is not None and maker.op == CONV2D.name and any(r.op == CONV2D.name for r in readers)
    if tuple(step.get("perm")) in kind.move.between_convolutions and between:
        yield wrong(
            step,
            f"transposes between convolutions are none of {kind.move.between_convolutions}",
            f"{step.get('perm')}",
            "swap the axes of the whole network",
        )


def _rows_outside(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    """Rows change places with outputs: of one output there is nothing to mix up (`places.beliefs` tells of it)."""
    rows = node.x.elements // node.x.shape[-1]
    if rows > 1 and node.y.shape[-1] > 1 and not node.away:
        yield wrong(
            step,
            "the output of a LinearInt of several rows lies in psram",
            f"{rows} rows",
            f"-m {step.outputs[0]}:psram",
        )


def _transpose_moved(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    """No work area is planned for it, and it takes one."""
    if node.away and not node.outside() and node.x.planned < HALF:
        rule = "a transpose of less than 65536 bytes that writes to psram reads from there"
        yield wrong(step, rule, "shared memory", f"-m {step.inputs[0]}:psram")


def _transpose_last(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if tuple(step.get("perm")) == (0, 1, 3, 2) and node.outside():
        yield wrong(step, "a transpose (0, 1, 3, 2) reads from shared memory", "psram", "leave its input there")


def _add_alone(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    """It copies the operand in blocks as large as the work area planned for it, which has no bytes: it never ends."""
    outside = node.outside() + node.outside(1)
    if outside == 1 and not node.away and not any(_rescaled(step)):
        rule = "operands of a sum at the scale of the result lie in one place, or the result in psram"
        yield wrong(step, rule, "one operand in psram", f"-m {step.inputs[0]}:psram,{step.inputs[1]}:psram")


@unmeasured("the second operand is shifted by the first one's amount")
def _add_shift(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if node.away and not node.outside() and _rescaled(step) == (False, True):
        rule = "where the second operand of a sum is rescaled and the result lies in psram, so does the first"
        yield wrong(step, rule, "shared memory", f"-m {step.inputs[0]}:psram")


def _rescaled(step: NetStep) -> tuple[bool, bool]:
    """Return of both operands whether they have another scale than the result."""
    scale = step.get("scale_o")
    return step.get("scale_x") != scale, step.get("scale_y") != scale


def _norm_batch(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if node.outside() or node.away:
        yield wrong(step, "input and output of a BatchNorm2dInt lie in shared memory", "psram", "leave them there")


def _norm_constants(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    """A factor in shared memory is not copied, nor is the bias; rows go behind the bias all the same."""
    if plan.options.parameters != SHARE:
        return
    row = node.inputs[1].elements
    stored = plan.memory.stored
    offsets = dict(zip(stored, itertools.accumulate(stored.values(), initial=0), strict=False))
    start, end = (offsets[node.inputs[2].name] + times * row for times in (16, 18))
    hit = [name for name, at in offsets.items() if at < end and start < at + _filled(plan, name)]
    if hit:
        rule = "a LayerNormInt whose constants lie in shared memory has none 16 to 18 bytes an element behind its bias"
        yield wrong(step, rule, ", ".join(hit), "leave the constants in psram")


def _filled(plan: PlannedNet, name: str) -> int:
    """Return the bytes of a stored constant that are read: all but what rounds it up to 16."""
    tensor, stored = plan.net.tensors[name], plan.memory.stored[name]
    return tensor.bytes if tensor.planned == stored else stored


def _add_second(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if node.x.bytes >= HALF and node.outside(1):
        yield wrong(
            step, "the second operand of a sum of 65536 bytes or more lies in shared memory", "psram", "leave it there"
        )


@unmeasured("a sum of 65536 bytes or more may read its first operand in psram only where it writes to shared memory")
def _add_through(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    """With the result in shared memory it was right; with all three in psram it was wrong."""
    if node.x.bytes >= HALF and node.outside() and not node.outside(1) and node.away:
        rule = "a sum of 65536 bytes or more that reads its first operand in psram writes to shared memory"
        yield wrong(step, rule, "psram", "leave the result there")


def _sub(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if not (node.outside() and node.outside(1) and node.away):
        yield wrong(step, "operands and result of an iqSub lie in psram", "shared memory", "--threshold4 1")


@unmeasured("a Squeeze does what an Unsqueeze did")
def _back(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if node.outside() and not node.away:
        yield wrong(
            step,
            "what an Unsqueeze or Squeeze reads in psram stays there",
            "moved to shared memory",
            "place both sides alike",
        )


def _sequence(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    first = packing(plan.target).batch_first
    if bool(step.get("batch_first")) != first:
        yield wrong(
            step, f"batch_first of an LSTMInt is {int(first)}", step.get("batch_first"), "quantize for this chip"
        )
    if first and node.x.shape[1] != node.x.shape[2]:
        yield wrong(step, "a sequence has as many steps as a step has elements", list(node.x.shape), "pad the shorter")


def _unfetched(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if plan.memory.prefetched:
        yield wrong(step, "the constants of an LSTMInt are not fetched ahead", "they are", "--dma_prefetch False")


@unmeasured("an input in psram by itself harms; such rows were wrong but where the plan happened to be large")
def _sequence_alike(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    states = [n for n in step.outputs[1:] if plan.places[n] != PSRAM]
    used = plan.net.readers(step.outputs[0]) or step.outputs[0] in plan.net.outputs
    if node.outside() and states and used:
        yield wrong(
            step, "where the input of an LSTMInt lies in psram, so do its outputs", ", ".join(states), "--threshold4 1"
        )


@unmeasured("the place harms; all rows with it were wrong, if for another reason as well")
def _sequence_away(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if not node.away and plan.net.readers(step.outputs[0]):
        yield wrong(step, "the output of an LSTMInt lies in psram", "shared memory", f"-m {step.outputs[0]}:psram")


@unmeasured("a SoftmaxInt in psram is wrong on venusA as it is on arcs")
def _softmax_shared(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if node.outside() or node.away:
        yield wrong(step, "input and output of a SoftmaxInt lie in shared memory", "psram", "leave them there")


def _transposed_outside(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    if plan.options.parameters == SHARE and (node.outside() or node.away):
        yield wrong(
            step,
            "with its weight in shared memory, a ConvTranspose2dInt reads and writes there",
            "psram",
            "leave the constants in psram",
        )


def _pad_first(plan: PlannedNet, step: NetStep, node: AreaNode) -> Iterator[VerdictFinding]:
    first = next((s for s in plan.net.steps if s.name in plan.memory.areas), None)
    if node.outside() and first is not None and first.name == step.name:
        yield wrong(
            step,
            "the work area of all nodes, which a first iqPad places, lies in shared memory",
            "psram",
            "leave its input in shared memory",
        )


#: What arcs and venusA have in common.
_LATER: Mapping[str, tuple[Rule, ...]] = {
    LSTM.name: (_unfetched,), LAYER_NORM.name: (_norm_constants,), SOFTMAX.name: (_softmax_shared,),
    BATCH_NORM2D.name: (_norm_batch,),
}  # fmt: skip

#: Packing.areas ("" for all) -> operator -> rules.
PLACED: Mapping[str, Mapping[str, tuple[Rule, ...]]] = MappingProxyType(
    {
        "": {LSTM.name: (_sequence,), PAD.name: (_pad_first,), SUB.name: (_sub,), "Transpose": (_transpose_moved,)},
        "venus": {
            CONV2D.name: (_conv_half,), CONCAT.name: (_cat_venus,),
            "Transpose": (_transpose_between, _transpose_last), LSTM.name: (_sequence_alike, _sequence_away),
        },
        "arcs": {
            **_LATER, "Slice": (_slice,), "MaxPool": (_max_shared,), ADD.name: (_add_alone, _add_shift),
        },
        "venusA": {
            **_LATER, LINEAR.name: (_rows_outside,), "Transpose": (_transpose_broken,),
            ADD.name: (_add_alone, _add_shift, _add_second, _add_through),
            CONV_TRANSPOSE2D.name: (_transposed_outside,),
            **dict.fromkeys(("Squeeze", "Unsqueeze"), (_back,)),
        },
    }
)  # fmt: skip
