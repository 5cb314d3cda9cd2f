"""States that are fed back from call to call.

Their errors are, too, so they get more than other tensors.
A packed state (hidden states and cells in one tensor) is taken apart and joined by the host, so
that each part keeps its own scale; what lies between a state's input and its output is held in 16
bits where the platform has them. Where it has not, cells may stay in float: every call adds a
little to them, which eight bits lose. So may the gates, but not their products; and the steps of a
recurrent layer that is written out, where a model runs in parts anyway: its products with x, for
all steps, are the chip's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ...graph import ir, operators
from ...ops import find_lowering_rule
from ...ops.macs import count_macs
from ...passes.folding.scalar_inputs import find_scalar_inputs, format_fix_suggestion
from ...run.runners import iter_read_values
from ...targets import Target
from ..partition import Partition

__all__ = [
    "find_16bit_state_tensors",
    "find_cell_updates",
    "find_gates",
    "find_state_ancestors",
    "find_state_packing",
    "find_unrolled_steps",
    "propose_states",
    "suggest_missing_input_fix",
]

_MIN_MACS_PER_ELEMENT = 4  # multiply-accumulates for each number that a step writes
_HOST_CELLS_REASON = "a step of a recurrent layer, and cells are wanted on the host"
_GATES = ("HardSigmoid", "Sigmoid", "Tanh")
_LOWERED_AFFINE_OP = (
    "BatchNormalization"  # what a sum or product with a constant is written as, of a tanh too
)
_DIRECTION_WORDS = (
    "in",
    "out",
    "input",
    "output",
    "new",
    "next",
    "n",
    "old",
    "prev",
    "previous",
    "cur",
    "current",
    "o",
    "i",
)


def find_state_packing(model: ir.Model, state: Mapping[str, str], target: Target) -> dict[str, str]:
    """Return {node: why} of the nodes of the normalised `model` that take packed states apart, or join them.

    state : {output: input}. They only move data; the host does that.
    """
    reasons: dict[str, str] = {}
    for output, name in state.items():
        taking = _state_unpacking_nodes(model, name, target)
        if any(node.op_type in operators.SELECTION_OPS for node in taking):
            why = f"it takes the packed state '{name}' apart: each part keeps its own scale"
            reasons.update({str(node.name): why for node in taking})
        joining = _state_packing_nodes(model, output, target)
        if any(node.op_type == "Concat" and len(node.inputs) > 1 for node in joining):
            why = f"it packs the state '{output}': each part keeps its own scale"
            reasons.update({str(node.name): why for node in joining})
    return reasons


def _only_moves_data(node: ir.Node, target: Target) -> bool:
    op, _ = find_lowering_rule(node, target)
    return (
        op.is_data_movement
        if op is not None
        else node.op_type in operators.PERMUTATION_OPS | operators.SELECTION_OPS
    )


def _state_unpacking_nodes(model: ir.Model, name: str, target: Target) -> list[ir.Node]:
    """Return the nodes that only move what comes from the input `name`."""
    reached = {name}
    taking = []
    for node in model.graph:
        data = [str(v.name) for v in node.inputs if v is not None and ir.const_value(v) is None]
        if data and set(data) <= reached and _only_moves_data(node, target):
            reached.update(str(v.name) for v in node.outputs)
            taking.append(node)
    return taking


def _state_packing_nodes(model: ir.Model, output: str, target: Target) -> list[ir.Node]:
    """Return the nodes that only move or join what nothing but the output `output` is made of."""
    inside: set[int] = set()
    joining = []
    for node in reversed(list(model.graph)):
        ends = any(str(v.name) == output for v in node.outputs)
        leaves = any(v.is_graph_output() for v in node.outputs)
        uses = [use.node for v in node.outputs for use in v.uses()]
        leads = ends or (bool(uses) and not leaves)
        if (
            leads
            and all(id(use) in inside for use in uses)
            and (_only_moves_data(node, target) or node.op_type == "Concat")
        ):
            inside.add(id(node))
            joining.append(node)
    return joining


def find_cell_updates(model: ir.Model, state: Mapping[str, str], target: Target) -> dict[str, str]:
    """Return {node: why} of what makes the next state of the last one without a layer between.

    None with 16 bits.
    That is ``c' = f*c + i*g, h = o*tanh(c')`` of an LSTM: few operations, but their errors add up
    from call to call.
    """
    if 16 in target.bits:
        return {}
    behind, before = set(state.values()), set(state)
    nodes = [node for node in model.graph if count_macs(node) == 0]
    for node in nodes:
        if any(v is not None and str(v.name) in behind for v in node.inputs):
            behind.update(str(v.name) for v in node.outputs)
    for node in reversed(nodes):
        if any(str(v.name) in before for v in node.outputs):
            before.update(str(v.name) for v in node.inputs if v is not None)
    between = [
        n for n in nodes if any(str(v.name) in behind and str(v.name) in before for v in n.outputs)
    ]
    if all(_only_moves_data(node, target) or node.op_type == "Concat" for node in between):
        return {}
    why = "it accumulates a state over calls, for which 8 bits are too few: measured to be better in float"
    return dict.fromkeys((str(node.name) for node in between), why)


def find_gates(
    model: ir.Model, state: Mapping[str, str], target: Target, masks: bool = False
) -> dict[str, str]:
    """Return {node: why} of `find_cell_updates` and all that only they read, back to the layers.

    None where there are no cells.
    These are the gates' sums and curves: a gate near 1 keeps a cell for long, and how long is
    decided by 1 minus it, of which steps of 1/128 leave little. masks : products by a gate
    elsewhere and what only they read, too.
    """
    found = find_cell_updates(model, state, target)
    if not found:
        return {}
    why = "gate product upstream of a state, for which 8 bits are too few: measured to be better in float"
    for node in reversed(list(model.graph)):
        readers = [use.node for v in node.outputs for use in v.uses()]
        leaves = any(v.is_graph_output() for v in node.outputs)
        only = bool(readers) and not leaves and all(str(reader.name) in found for reader in readers)
        if (only and _is_elementwise(node, target)) or (masks and _multiplies_by_gate(node)):
            found.setdefault(str(node.name), why)
    return found


def _is_elementwise(node: ir.Node, target: Target) -> bool:
    """Whether it works number by number, or only moves data.

    So a sum or product may be written for a chip.
    """
    known = operators.ACTIVATION_OPS | operators.BINARY_FUNCTIONS.keys() | {_LOWERED_AFFINE_OP}
    return count_macs(node) == 0 and (node.op_type in known or _only_moves_data(node, target))


def _multiplies_by_gate(node: ir.Node) -> bool:
    """Whether it multiplies by a gate, in whatever order or shape, as it is or as 2*sigmoid(2*x) - 1."""
    return node.op_type == "Mul" and any(map(_is_gate, node.inputs))


def _is_gate(value: ir.Value | None) -> bool:
    maker = ir.producer(value)
    while maker is not None and maker.op_type in operators.PERMUTATION_OPS | {_LOWERED_AFFINE_OP}:
        maker = ir.producer(maker.inputs[0])
    return maker is not None and maker.op_type in _GATES


def find_unrolled_steps(model: ir.Model, all_of_them: bool = False) -> dict[str, str]:
    """Return {node: why} of the steps of recurrent layers that are written out.

    Their products with x are none of them.
    Of layers with so few products at a step that they are not worth the nodes; all_of_them : of
    every layer, but then without the products, which are the chip's.
    """
    of_steps = [node for node in model.graph if ir.has_constant_base_name(node)]
    steps = Counter(map(ir.constant_base_name, of_steps))
    layers: dict[str, list[ir.Node]] = {}
    for node in of_steps:
        if steps[ir.constant_base_name(node)] > 1:
            layers.setdefault(ir.origin_name(node), []).append(node)
    why = (
        "a step of a recurrent layer, with hardly more multiply-accumulates than numbers that "
        "it "
        "writes"
    )
    found: dict[str, str] = {}
    for nodes in layers.values():
        if all_of_them:
            found.update(
                dict.fromkeys(
                    (str(node.name) for node in nodes if not count_macs(node)), _HOST_CELLS_REASON
                )
            )
            continue
        written = sum(
            math.prod(int(d or 1) for d in ir.get_shape(node.outputs[0]) or ()) for node in nodes
        )
        if sum(map(count_macs, nodes)) < _MIN_MACS_PER_ELEMENT * written:
            found.update(dict.fromkeys((str(node.name) for node in nodes), why))
    return found


def find_state_ancestors(model: ir.Model, state: Mapping[str, str]) -> list[str]:
    """Return the tensors of `model` that a state is made of, in graph order."""
    into = set(state)
    for node in reversed(list(model.graph)):
        if any(str(v.name) in into for v in node.outputs):
            into.update(str(v.name) for v in node.inputs if v is not None)
    return [str(v.name) for v in ir.iter_values(model) if str(v.name) in into]


def find_16bit_state_tensors(
    partition: Partition, state: Mapping[str, str], target: Target
) -> list[str]:
    """Return the integer activations and weights that are to have 16 bits.

    None where `target` has no such width.
    """
    if not state or 16 not in target.bits:
        return []
    inside = set(find_state_ancestors(partition.graph, state))
    weights = [
        ir.input_name(node, index)
        for node, op in partition.integer_nodes
        for index in op.weight_inputs(node)
        if any(str(v.name) in inside for v in node.outputs)
    ]
    return [*(name for name in partition.activations if name in inside), *weights]


def propose_states(model: ir.Model) -> dict[str, str]:
    """Return {output: input} of what looks by its name like a state of `model` that a caller feeds back.

    An output computed from an input, both of one type and shape (open sizes may be any), whose
    names are one but for words such as in, out and new.
    """
    proposed = {}
    for name in _inputs_by_name(model):
        same = [
            o for o in _matching_outputs(model, name) if _name_stem(o) == _name_stem(name) != ""
        ]
        if len(same) == 1:
            proposed[same[0]] = name
    return proposed


def suggest_missing_input_fix(model: ir.Model, missing: Sequence[str]) -> str:
    """Return what to say of inputs of `model` that data do not have: a state, or settings.

    Nothing for others.
    States are the `propose_states`, and an input whose shape one output has and nothing else, or as
    many outputs as inputs, which then follow each other as these do.
    """
    named = {i: o for o, i in propose_states(model).items()}
    found = {}
    for name in missing:
        output = named.get(name) or _match_outputs_in_order(model, name).get(name)
        if output is not None:
            found[name] = output
    if missing[0] in found:
        line = " ".join(f"--state {output}={state}" for state, output in {**named, **found}.items())
        return f"is '{found[missing[0]]}' its next value? feed it back with {line}"
    numbers = find_scalar_inputs(model)
    return (
        format_fix_suggestion(model, [name for name in missing if name in numbers])
        if missing[0] in numbers
        else ""
    )


def _inputs_by_name(model: ir.Model) -> dict[str, ir.Value]:
    return {str(v.name): v for v in model.graph.inputs if v.const_value is None}


def _match_outputs_in_order(model: ir.Model, name: str) -> dict[str, str]:
    """Return {input: output} of `name` and the one output like it, or of as many inputs as outputs, as they follow."""
    outputs = _matching_outputs(model, name, exact=True)
    if len(outputs) == 1:
        return {name: outputs[0]}
    like = {other: _matching_outputs(model, other, exact=True) for other in _inputs_by_name(model)}
    like = {other: each for other, each in like.items() if not set(each).isdisjoint(outputs)}
    results = [
        str(v.name)
        for v in model.graph.outputs
        if any(str(v.name) in each for each in like.values())
    ]
    fits = len(like) == len(results) and all(
        r in each for r, each in zip(results, like.values(), strict=True)
    )
    return dict(zip(like, results, strict=True)) if fits else {}


def _matching_outputs(model: ir.Model, name: str, exact: bool = False) -> list[str]:
    """Return the outputs of the type and shape of the input `name` that are computed from it.

    exact : open sizes are open in both.
    """
    wanted = _inputs_by_name(model)[name]
    shape, reached = ir.get_shape(wanted), {name}
    if not shape:
        return []
    for node in model.graph:
        if any(v is not None and str(v.name) in reached for v in iter_read_values(node)):
            reached.update(str(v.name) for v in node.outputs)

    def matches(value: ir.Value) -> bool:
        other = ir.get_shape(value)
        if (
            other is None
            or len(other) != len(shape)
            or value.dtype != wanted.dtype
            or str(value.name) not in reached
        ):
            return False
        return all(
            a == b or (not exact and None in (a, b)) for a, b in zip(shape, other, strict=True)
        )

    return [str(v.name) for v in model.graph.outputs if v is not wanted and matches(v)]


def _name_stem(name: str) -> str:
    """Return a name without the words that tell an input from an output."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+", name)
    return "".join(word.lower() for word in words if word.lower() not in _DIRECTION_WORDS)
