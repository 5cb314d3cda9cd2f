"""What packs and is not computed right: by operator, by place, by constants that are shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..formats import (
    ADD,
    BMM,
    CONCAT,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    DEQUANT,
    LAYER_NORM,
    LINEAR,
    LSTM,
    MUL,
    PAD,
    QUANT,
    SOFTMAX,
    SUB,
)
from ..platforms import Platform
from .areas import Node
from .memory import BUFFERS, Memory
from .net import Finding, Net, Step
from .options import FLASH, PSRAM, SHARE, Options

__all__ = ["RESHAPED", "Plan", "faults", "placement_refused"]

_HALF = 65536


@dataclass(frozen=True)
class Plan:
    """A planned graph: all that a fault may depend on."""

    net: Net
    memory: Memory
    row: Platform
    options: Options
    places: Mapping[str, str]

    def node(self, step: Step) -> Node:
        """Look a step's tensors up."""
        return Node.of(self.net, step, self.places)


def _right(step: Step, rule: str, value: Any, remedy: str) -> Finding:
    return Finding("right", step.origin, rule, str(value), remedy)


def _packs(step: Step, rule: str, value: Any, remedy: str) -> Finding:
    return Finding("packs", step.origin, rule, str(value), remedy)


def placement_refused(plan: Plan) -> Iterator[Finding]:
    """Yield what the packer refuses because of a place."""
    for step in plan.net.steps:
        node, kind = plan.node(step), plan.row.packing
        assert kind is not None
        if step.op == CONV1D.name and node.outside():
            yield _packs(step, "the input of a Conv1dInt lies in shared memory", "psram", "leave it there")
        if step.op == CONV_TRANSPOSE2D.name and kind.transposed_shared:
            if node.outside() or node.away:
                yield _packs(
                    step, "input and output of a ConvTranspose2dInt lie in shared memory", "psram", "leave them there"
                )
            elif kind.transposed_weights and plan.places[step.inputs[1]] != SHARE:
                yield _packs(
                    step, "the weight of a ConvTranspose2dInt lies in shared memory", "psram", "-m params:share-mem"
                )


def faults(plan: Plan) -> Iterator[Finding]:
    """Yield what is not computed right under this plan, work areas apart."""
    kind = plan.row.packing
    assert kind is not None
    yield from _names(plan)
    yield from _shared(plan)
    yield from _inputs(plan)
    for step in plan.net.steps:
        yield from _operator(plan, step)
        for name in dict.fromkeys((*step.outputs, *step.inputs)):
            if plan.options.places.get(name) == FLASH:
                yield _right(step, "tensors of a run lie in memory that can be written", "flash", "choose psram")
        rules = (*_PLACED.get("", {}).get(step.op, ()), *_PLACED.get(kind.areas, {}).get(step.op, ()))
        for rule in rules:
            yield from rule(plan, step, plan.node(step))


def _names(plan: Plan) -> Iterator[Finding]:
    kind = plan.row.packing
    assert kind is not None
    for tensor in plan.net.values():
        what = ""
        if "workspace" in tensor.name and plan.memory.areas and kind.reserved_workspace:
            what = "no tensor has 'workspace' in its name"
        elif tensor.name in BUFFERS and plan.options.parameters != SHARE:
            what = "no tensor is named dma_buffer"
        if what:
            at = plan.net.maker(tensor.name) or plan.net.readers(tensor.name)[0]
            yield _right(at, what, f"'{tensor.name}'", "rename it")


def _shared(plan: Plan) -> Iterator[Finding]:
    """Constants that several nodes read while their other constants differ, and that are fetched ahead.

    A weight is stored in the form that its first reader wants: one of another operator reads it wrong, fetched or not.
    """
    users = _users(plan)
    for name, steps in users.items():
        kinds = {s.op for s in steps if s.op in (LINEAR.name, BMM.name, CONV2D.name, CONV1D.name)}
        if len(kinds) > 1:
            value = f"'{name}' by {' and '.join(sorted(kinds))}"
            yield _right(steps[-1], "a constant is read by operators of one kind", value, "copy the constant")
    if not plan.memory.prefetched:
        return
    for name, steps in users.items():
        if len(steps) == 1:
            continue
        sets = {tuple(t.name for t in plan.net.constants(s)) for s in steps}
        if len(sets) > 1 and all(len(one) > 1 for one in sets):
            yield _right(
                steps[-1],
                "nodes that share a constant share all, where they are fetched ahead",
                f"'{name}'",
                "copy the constant, or --dma_prefetch False",
            )


def _users(plan: Plan) -> dict[str, list[Step]]:
    users: dict[str, list[Step]] = {}
    for step in plan.net.steps:
        for tensor in plan.net.constants(step):
            users.setdefault(tensor.name, []).append(step)
    return users


def _inputs(plan: Plan) -> Iterator[Finding]:
    kind = plan.row.packing
    assert kind is not None
    for name in plan.net.inputs:
        if plan.net.tensors[name].scale is None and kind.needs_scale:
            for step in plan.net.readers(name):
                if step.get("scale_x") is None and step.get("scale_x_0") is None:
                    yield _right(
                        step, "the first reader of an integer graph input tells its scale", step.op, "write a Quant"
                    )


def _operator(plan: Plan, step: Step) -> Iterator[Finding]:
    kind, node = plan.row.packing, plan.node(step)
    assert kind is not None
    if step.op in (QUANT.name, DEQUANT.name):
        yield _right(step, "no float operator stands between integers", step.op, "quantize it, or cut the graph")
    elif step.made == "pad":
        others = plan.net.readers(step.outputs[0])
        if len(others) > 1 or any(other.made == "group" for other in others):
            yield _right(
                others[0],
                "a convolution over a map smaller than its kernel, whose pads the packer moves, "
                "reads a tensor of its own",
                f"{len(others)} readers, group or not",
                "copy the tensor, or split the groups by Slice",
            )
    elif step.op in kind.unmeasured:
        yield _right(step, f"{step.op} could be measured on {plan.row.name}", "it could not", "leave it in float")
    elif not plan.row.runs(step.op):
        yield _right(step, f"the executor of {plan.row.name} computes this operator right", step.op, "replace it")
    if step.op in kind.curve_bits and 8 * node.x.width != kind.curve_bits[step.op]:
        yield _right(step, f"{step.op} reads {kind.curve_bits[step.op]} bits", 8 * node.x.width, "add a Requant")
    if step.op == LINEAR.name and step.get("o_bits") not in kind.linear_bits:
        yield _right(step, f"o_bits of a LinearInt is one of {kind.linear_bits}", step.get("o_bits"), "write 8 or 32")
    if step.op == LAYER_NORM.name and node.inputs[1].width != kind.norm_width:
        yield _right(
            step,
            f"the weight of a LayerNormInt has {8 * kind.norm_width} bits",
            8 * node.inputs[1].width,
            "quantize for this chip",
        )
    if step.op in (CONV2D.name, CONV1D.name) and node.x.shape[0] > 1 and not kind.batches:
        yield _right(step, "the batch is 1", node.x.shape[0], "write the graph for one sample")
    yield from _output_scale(plan, step)


def _output_scale(plan: Plan, step: Step) -> Iterator[Finding]:
    scale, x, y = (step.get(k) for k in ("scale_o", "scale_x", "scale_y"))
    if scale is None or x is None:
        return
    if step.op in (ADD.name, SUB.name) and y is not None and scale > min(x, y):
        yield _right(step, "the output's scale is not above those of the inputs", f"{scale:g}", "lower scale_o")
    if step.op in (MUL.name, BMM.name) and scale > x * (y or 1):
        yield _right(
            step, "the output's scale is not above the product of the inputs' scales", f"{scale:g}", "lower scale_o"
        )


# ---- by place ----------------------------------------------------------------------------------------------------

Rule = Callable[[Plan, Step, Node], Iterator[Finding]]


def _slice(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    if node.away:
        yield _right(step, "the output of a Slice lies in shared memory", "psram", "move the large tensors by name")


def _max_shared(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    if node.outside() or node.away:
        yield _right(step, "input and output of a MaxPool lie in shared memory", "psram", "leave them there")


def _conv_half(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    _, channels, height, width = node.x.shape
    need = -(-channels // 8) * 8 * -(-width // (8 * step.get("strides")[1])) * 8 * step.get("strides")[1] * height
    if need > _HALF and (node.outside() or node.away):
        yield _right(
            step,
            "input and output of a convolution over more than 65536 bytes lie in shared memory",
            f"{need} bytes",
            "leave them there, or cut the map into tiles",
        )


def _cat_venus(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    scale = step.get("scale_o")
    other = [i for i in range(len(step.inputs)) if step.get(f"scale_x_{i}", scale) != scale]
    if node.away and other:
        yield _right(step, "the output of an iqCat of other scales lies in shared memory", "psram", "leave it there")


def _transpose_broken(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    kind = plan.row.packing
    assert kind is not None
    if tuple(step.get("perm")) not in kind.move.broken:
        return
    if not (node.outside() and node.away and node.x.bytes <= kind.move.max_broken):
        rule = (
            f"transposes are none of {kind.move.broken}, unless input and output lie in psram and have at most "
            f"{kind.move.max_broken} bytes"
        )
        yield _right(step, rule, f"{step.get('perm')}", "use two others in a row")


def _transpose_between(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    kind = plan.row.packing
    assert kind is not None
    maker, readers = plan.net.maker(step.inputs[0]), plan.net.readers(step.outputs[0])
    between = maker is not None and maker.op == CONV2D.name and any(r.op == CONV2D.name for r in readers)
    if tuple(step.get("perm")) in kind.move.between_convolutions and between:
        yield _right(
            step,
            f"transposes between convolutions are none of {kind.move.between_convolutions}",
            f"{step.get('perm')}",
            "swap the axes of the whole network",
        )


def _rows_outside(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    rows = node.x.elements // node.x.shape[-1]
    if rows > 1 and not node.away:
        yield _right(
            step,
            "the output of a LinearInt of several rows lies in psram",
            f"{rows} rows",
            f"-m {step.outputs[0]}:psram",
        )


def _add_second(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    if node.x.bytes >= _HALF and node.outside(1):
        yield _right(
            step, "the second operand of a sum of 65536 bytes or more lies in shared memory", "psram", "leave it there"
        )


def _sub(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    if not (node.outside() and node.outside(1) and node.away):
        yield _right(step, "operands and result of an iqSub lie in psram", "shared memory", "--threshold4 1")


def _back(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    if node.outside() and not node.away:
        yield _right(step, "what is reshaped in psram stays there", "moved to shared memory", "place both sides alike")


def _sequence(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    first = plan.row.packing is not None and plan.row.packing.batch_first
    if bool(step.get("batch_first")) != first:
        yield _right(
            step, f"batch_first of an LSTMInt is {int(first)}", step.get("batch_first"), "quantize for this chip"
        )
    if first and node.x.shape[1] != node.x.shape[2]:
        yield _right(step, "a sequence has as many steps as a step has elements", list(node.x.shape), "pad the shorter")


def _unfetched(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    if plan.memory.prefetched:
        yield _right(step, "the constants of an LSTMInt are not fetched ahead", "they are", "--dma_prefetch False")


def _sequence_alike(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    """An input in psram by itself, measured wrong but where the plan happens to be large."""
    states = [n for n in step.outputs[1:] if plan.places[n] != PSRAM]
    used = plan.net.readers(step.outputs[0]) or step.outputs[0] in plan.net.outputs
    if node.outside() and states and used:
        yield _right(
            step, "where the input of an LSTMInt lies in psram, so do its outputs", ", ".join(states), "--threshold4 1"
        )


def _sequence_away(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    """All that were measured right lay there; in shared memory they were wrong, if for another reason as well."""
    if not node.away and plan.net.readers(step.outputs[0]):
        yield _right(step, "the output of an LSTMInt lies in psram", "shared memory", f"-m {step.outputs[0]}:psram")


def _softmax_shared(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    """Elsewhere it was not measured."""
    if node.outside() or node.away:
        yield _right(step, "input and output of a SoftmaxInt lie in shared memory", "psram", "leave them there")


def _transposed_outside(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    if plan.options.parameters == SHARE and (node.outside() or node.away):
        yield _right(
            step,
            "with its weight in shared memory, a ConvTranspose2dInt reads and writes there",
            "psram",
            "leave the constants in psram",
        )


def _norms_shared(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    count = sum(s.op == LAYER_NORM.name for s in plan.net.steps)
    if plan.options.parameters == SHARE and count > 1:
        yield _right(
            step,
            "constants lie in psram where there are several LayerNormInt",
            f"{count} with share-mem",
            "--dma_prefetch False without -m params",
        )


def _pad_first(plan: Plan, step: Step, node: Node) -> Iterator[Finding]:
    first = next((s for s in plan.net.steps if s.name in plan.memory.areas), None)
    if node.outside() and first is not None and first.name == step.name:
        yield _right(
            step,
            "the work area of all nodes, which a first iqPad places, lies in shared memory",
            "psram",
            "leave its input in shared memory",
        )


#: What keeps the order of the elements.
RESHAPED = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")

#: Packing.areas ("" for all) -> operator -> rules.
_PLACED: Mapping[str, Mapping[str, tuple[Rule, ...]]] = MappingProxyType(
    {
        "": {LSTM.name: (_sequence,), PAD.name: (_pad_first,), SUB.name: (_sub,)},
        "venus": {CONV2D.name: (_conv_half,), CONCAT.name: (_cat_venus,), "Transpose": (_transpose_between,),
                  LSTM.name: (_sequence_alike, _sequence_away)},
        "arcs": {
            "Slice": (_slice,), "MaxPool": (_max_shared,), LSTM.name: (_unfetched,),
            LAYER_NORM.name: (_norms_shared,), SOFTMAX.name: (_softmax_shared,),
        },
        "venusA": {
            LINEAR.name: (_rows_outside,), LAYER_NORM.name: (_norms_shared,), "Transpose": (_transpose_broken,),
            LSTM.name: (_unfetched,), ADD.name: (_add_second,), CONV_TRANSPOSE2D.name: (_transposed_outside,),
            SOFTMAX.name: (_softmax_shared,), **dict.fromkeys(RESHAPED, (_back,)),
        },
    }
)  # fmt: skip
