"""Find states that are fed back from call to call, and the nodes that need special care for them.

The errors of states are fed back, too, so these tensors get more precision than others. A packed
state (hidden states and cells in one tensor) is split and joined by the host, so that each part
keeps its own scale. Tensors between the input and the output of a state use 16 bits if the platform
supports that. If not, cells may stay in float: every call adds small values to them, which eight
bits lose. So may the gates, but not their matrix products. And so may the steps of an unrolled
recurrent layer if a model runs in parts anyway: its products with x, for all steps, stay on the
chip.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ...ir import float_ops, ir
from ...operators.lowerings import find_lowering_rule
from ...operators.macs import count_macs
from ...targets import Target
from ..normalize.folding.scalar_inputs import find_scalar_inputs, format_fix_suggestion
from ..partition import Partition, consumers_of

__all__ = [
    "find_16bit_state_tensors",
    "find_cell_updates",
    "find_gates",
    "find_state_ancestors",
    "find_state_packing",
    "find_unrolled_steps",
    "propose_states",
    "suggest_missing_input_fix",
    "suggest_state_feedback",
]

_MIN_MACS_PER_ELEMENT = 4  # MACs per output element, below which a step runs on the host
_HOST_CELLS_REASON = "step of a recurrent layer, whose cells are placed on the host"
_STEP_REASON = "step of a recurrent layer with hardly more multiply-accumulates than outputs"
_GATES = ("HardSigmoid", "Sigmoid", "Tanh")
_LOWERED_AFFINE_OP = "BatchNormalization"  # form of a sum or product with a constant
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
    """Return the nodes that split or join packed states, which are to run on the host.

    They only move data, and with them each part of a state keeps its own scale.

    Parameters
    ----------
    model
        Normalized graph.
    state
        {output: input} of the states.
    target
        The target.

    Returns
    -------
    dict
        {node: reason}. Nodes that unpack count only if one of them selects a part, those that pack
        only if one joins several.
    """
    reasons: dict[str, str] = {}
    for output, name in state.items():
        unpacking = _state_unpacking_nodes(model, name, target)
        if any(node.op_type in float_ops.SELECTION_OPS for node in unpacking):
            reason = f"splits the packed state '{name}', so that each part keeps its own scale"
            reasons.update({str(node.name): reason for node in unpacking})
        packing = _state_packing_nodes(model, output, target)
        if any(node.op_type == "Concat" and len(node.inputs) > 1 for node in packing):
            reason = f"packs the state '{output}', so that each part keeps its own scale"
            reasons.update({str(node.name): reason for node in packing})
    return reasons


def _only_moves_data(node: ir.Node, target: Target) -> bool:
    """Whether `node` only moves data on `target`, by its lowering rule.

    Without a rule, permutation and selection operators do.
    """
    op, _ = find_lowering_rule(node, target)
    if op is not None:
        return op.is_data_movement
    return node.op_type in float_ops.PERMUTATION_OPS | float_ops.SELECTION_OPS


def _state_unpacking_nodes(model: ir.Model, name: str, target: Target) -> list[ir.Node]:
    """Return the nodes that only move data from the input `name`, directly or over others.

    All of their computed inputs must come from it. In graph order.
    """
    reached = {name}
    unpacking = []
    for node in model.graph:
        inputs = {
            str(value.name)
            for value in node.inputs
            if value is not None and ir.const_value(value) is None
        }
        if inputs and inputs <= reached and _only_moves_data(node, target):
            reached.update(str(value.name) for value in node.outputs)
            unpacking.append(node)
    return unpacking


def _state_packing_nodes(model: ir.Model, output: str, target: Target) -> list[ir.Node]:
    """Return the nodes that only move or join data, and only for the output `output`.

    They write it, or are read only by such nodes. In reverse graph order.
    """
    packing_ids: set[int] = set()
    packing = []
    for node in reversed(list(model.graph)):
        if not _only_moves_data(node, target) and node.op_type != "Concat":
            continue
        consumers = consumers_of(node)
        if any(id(consumer) not in packing_ids for consumer in consumers):
            continue
        writes_state = output in _output_names(node)
        writes_other_output = any(value.is_graph_output() for value in node.outputs)
        if writes_state or (consumers and not writes_other_output):
            packing_ids.add(id(node))
            packing.append(node)
    return packing


def find_cell_updates(model: ir.Model, state: Mapping[str, str], target: Target) -> dict[str, str]:
    """Return the nodes that compute the next state from the last one without a layer in between.

    That is ``c' = f*c + i*g, h = o*tanh(c')`` of an LSTM: few operations, but their errors
    accumulate from call to call. `state` is {output: input}.

    Returns
    -------
    dict
        {node: reason}; empty without states, if the target has 16 bits, or if all of the nodes only
        move or join data. Layers are nodes with sums of products.
    """
    if not state or 16 in target.bits:
        return {}
    nodes = [node for node in model.graph if not _has_sums_of_products(node)]
    on_path = _tensors_on_state_paths(nodes, state)
    updates = [node for node in nodes if not on_path.isdisjoint(_output_names(node))]
    if all(_only_moves_data(node, target) or node.op_type == "Concat" for node in updates):
        return {}
    reason = (
        "it accumulates a state over calls, for which 8 bits are too few: measured to be better in "
        "float"
    )
    return dict.fromkeys((str(node.name) for node in updates), reason)


def _has_sums_of_products(node: ir.Node) -> bool:
    """Whether `node` has more than one multiply-accumulate per output element.

    A factor per channel, such as that of a cell whose range is halved, has one.
    """
    shape = ir.get_shape(node.outputs[0]) or ()
    return count_macs(node) > math.prod(int(dim or 1) for dim in shape)


def _tensors_on_state_paths(nodes: Sequence[ir.Node], state: Mapping[str, str]) -> set[str]:
    """Return the tensors on a path of `nodes` from the input of a state to the output of one.

    `state` is {output: input}; `nodes` are in graph order. Both ends are included.
    """
    downstream, upstream = set(state.values()), set(state)
    for node in nodes:
        if not downstream.isdisjoint(_input_names(node)):
            downstream.update(_output_names(node))
    for node in reversed(nodes):
        if not upstream.isdisjoint(_output_names(node)):
            upstream.update(_input_names(node))
    return downstream & upstream


def _input_names(node: ir.Node) -> list[str]:
    """Return the names of the inputs of `node`, without absent ones."""
    return [str(value.name) for value in node.inputs if value is not None]


def _output_names(node: ir.Node) -> list[str]:
    """Return the names of the outputs of `node`."""
    return [str(value.name) for value in node.outputs]


def find_gates(
    model: ir.Model, state: Mapping[str, str], target: Target, masks: bool = False
) -> dict[str, str]:
    """Return the nodes that update states, and the elementwise nodes that feed only them.

    These are the sums and activations of the gates, back to the layers. A gate near 1 retains a
    cell for long, and how long is determined by 1 minus the gate, of which steps of 1/128 leave
    little.

    Parameters
    ----------
    model
        Normalized graph.
    state
        {output: input} of the states.
    target
        The target.
    masks
        Whether products by a gate elsewhere, and the elementwise nodes that feed only them, are
        included.

    Returns
    -------
    dict
        {node: reason}; empty if no node updates a state, as on targets with 16 bits.
    """
    gates = find_cell_updates(model, state, target)
    if not gates:
        return {}
    reason = (
        "gate product upstream of a state, for which 8 bits are too few: measured to be better in "
        "float"
    )
    for node in reversed(list(model.graph)):
        feeds_gates = _feeds_only(node, gates) and _is_elementwise_or_data_movement(node, target)
        if feeds_gates or (masks and _multiplies_by_gate(node)):
            gates.setdefault(str(node.name), reason)
    return gates


def _feeds_only(node: ir.Node, names: Collection[str]) -> bool:
    """Whether `node` has consumers, all named in `names`, and none of its values is an output."""
    if any(value.is_graph_output() for value in node.outputs):
        return False
    consumers = consumers_of(node)
    return bool(consumers) and all(str(consumer.name) in names for consumer in consumers)


def _is_elementwise_or_data_movement(node: ir.Node, target: Target) -> bool:
    """Whether `node` is an activation, a binary function, data movement or a factor per channel.

    A BatchNormalization counts: a sum or product with a constant becomes one, or a layer with one
    multiply-accumulate per element.
    """
    known = float_ops.ACTIVATION_OPS | float_ops.BINARY_FUNCTIONS.keys() | {_LOWERED_AFFINE_OP}
    if count_macs(node):
        return not _has_sums_of_products(node)
    return node.op_type in known or _only_moves_data(node, target)


def _multiplies_by_gate(node: ir.Node) -> bool:
    """Whether `node` is a Mul by a sigmoid or tanh, possibly permuted, or as 2*sigmoid(2*x) - 1."""
    return node.op_type == "Mul" and any(map(_is_gate, node.inputs))


def _is_gate(value: ir.Value | None) -> bool:
    """Whether `value` is the output of a (hard) sigmoid or tanh, possibly permuted or scaled."""
    producer = ir.producer(value)
    while producer is not None and producer.op_type in float_ops.PERMUTATION_OPS | {
        _LOWERED_AFFINE_OP
    }:
        producer = ir.producer(producer.inputs[0])
    return producer is not None and producer.op_type in _GATES


def find_unrolled_steps(model: ir.Model, every_layer: bool = False) -> dict[str, str]:
    """Return the nodes of the steps of unrolled recurrent layers, without their products with x.

    By default only the layers whose steps have fewer than 4 multiply-accumulates per output
    element, complete with these products.

    Parameters
    ----------
    model
        Normalized graph.
    every_layer
        Whether steps of all layers are returned, but without sums of products, which stay on the
        chip.

    Returns
    -------
    dict
        {node: reason}.
    """
    reasons: dict[str, str] = {}
    for nodes in _group_steps_by_layer(model):
        if every_layer:
            names = [str(node.name) for node in nodes if not _has_sums_of_products(node)]
            reasons.update(dict.fromkeys(names, _HOST_CELLS_REASON))
        elif _has_few_macs(nodes):
            reasons.update(dict.fromkeys((str(node.name) for node in nodes), _STEP_REASON))
    return reasons


def _group_steps_by_layer(model: ir.Model) -> list[list[ir.Node]]:
    """Return the nodes of the steps of each unrolled recurrent layer, a list per layer.

    These are nodes that share their constants with others, grouped by the node they come from.
    """
    step_nodes = [node for node in model.graph if ir.has_constant_base_name(node)]
    step_counts = Counter(map(ir.constant_base_name, step_nodes))
    layers: dict[str, list[ir.Node]] = {}
    for node in step_nodes:
        if step_counts[ir.constant_base_name(node)] > 1:
            layers.setdefault(ir.origin_name(node), []).append(node)
    return list(layers.values())


def _has_few_macs(nodes: Sequence[ir.Node]) -> bool:
    """Whether `nodes` have fewer than 4 multiply-accumulates per output element, taken together."""
    elements = 0
    for node in nodes:
        shape = ir.get_shape(node.outputs[0]) or ()
        elements += math.prod(int(dim or 1) for dim in shape)
    return sum(map(count_macs, nodes)) < _MIN_MACS_PER_ELEMENT * elements


def find_state_ancestors(model: ir.Model, state: Mapping[str, str]) -> list[str]:
    """Return the tensors that the next states are computed from, in graph order.

    `state` is {output: input}. The states' outputs are included, constants are not.
    """
    ancestors = set(state)
    for node in reversed(list(model.graph)):
        if not ancestors.isdisjoint(_output_names(node)):
            ancestors.update(_input_names(node))
    names = [str(value.name) for value in ir.iter_values(model)]
    return [name for name in names if name in ancestors]


def find_16bit_state_tensors(
    partition: Partition, state: Mapping[str, str], target: Target
) -> list[str]:
    """Return the integer activations and weights that states depend on and that get 16 bits.

    Activations come first. Empty without states ({output: input}), or if `target` does not support
    16 bits.
    """
    if not state or 16 not in target.bits:
        return []
    ancestors = set(find_state_ancestors(partition.graph, state))
    names = [name for name in partition.activations if name in ancestors]
    for node, op in partition.integer_nodes:
        if not ancestors.isdisjoint(_output_names(node)):
            names += [ir.input_name(node, index) for index in op.weight_inputs(node)]
    return names


def propose_states(model: ir.Model) -> dict[str, str]:
    """Return {output: input} of pairs that look like states, by names and shapes.

    A state is the only output computed from an input of the same type and shape (open dimensions
    match any), with the same name except for words such as in, out and new. Empty without any.

    Returns
    -------
    dict
        {output: input}.
    """
    states = {}
    output_stems = {str(value.name): _name_stem(str(value.name)) for value in model.graph.outputs}
    for name in _inputs_by_name(model):
        stem = _name_stem(name)
        if not stem or stem not in output_stems.values():
            continue
        outputs = [
            output for output in _matching_outputs(model, name) if output_stems[output] == stem
        ]
        if len(outputs) == 1:
            states[outputs[0]] = name
    return states


def suggest_missing_input_fix(model: ir.Model, missing: Sequence[str]) -> str:
    """Return text that suggests options for inputs that the data do not contain, or "".

    The first of `missing` decides between states and scalar settings.
    """
    if advice := suggest_state_feedback(model, missing):
        return advice
    scalar_inputs = find_scalar_inputs(model)
    if missing[0] not in scalar_inputs:
        return ""
    return format_fix_suggestion(model, [name for name in missing if name in scalar_inputs])


def suggest_state_feedback(model: ir.Model, missing: Sequence[str]) -> str:
    """Return text that suggests `--state` options if the first of `missing` is a state, or "".

    An input is a state if an output has its name but for words such as in and out, or if it
    matches an output computed from it by type and shape.
    """
    outputs_by_input = {name: output for output, name in propose_states(model).items()}
    matched = {}
    for name in missing:
        output = outputs_by_input.get(name) or _match_outputs_in_order(model, name).get(name)
        if output is not None:
            matched[name] = output
    first = missing[0]
    if first not in matched:
        return ""
    states = {**outputs_by_input, **matched}
    options = " ".join(f"--state {output}={name}" for name, output in states.items())
    return f"if '{matched[first]}' is its next value, feed it back with {options}"


def _inputs_by_name(model: ir.Model) -> dict[str, ir.Value]:
    """Return {name: input} of the graph inputs that are not initializers."""
    return {str(v.name): v for v in model.graph.inputs if v.const_value is None}


def _match_outputs_in_order(model: ir.Model, name: str) -> dict[str, str]:
    """Return {input: output} of input `name`, and of others like it, by type and shape.

    If several outputs match, they are assigned in order to as many inputs that match any of them.

    Returns
    -------
    dict
        {input: output}; empty if the numbers or the order do not match.
    """
    outputs = _matching_outputs(model, name, exact=True)
    if len(outputs) == 1:
        return {name: outputs[0]}
    candidates = {}
    for input_name in _inputs_by_name(model):
        matches = _matching_outputs(model, input_name, exact=True)
        if not set(matches).isdisjoint(outputs):
            candidates[input_name] = matches
    all_matches = {output for matches in candidates.values() for output in matches}
    results = ir.get_output_names(model)
    results = [output for output in results if output in all_matches]
    if len(candidates) != len(results):
        return {}
    assignment = dict(zip(candidates, results, strict=True))
    is_valid = all(output in candidates[name] for name, output in assignment.items())
    return assignment if is_valid else {}


def _matching_outputs(model: ir.Model, name: str, exact: bool = False) -> list[str]:
    """Return the outputs computed from the input `name` that have its type and shape.

    With `exact`, open dimensions must be open in both; otherwise they match any size. Empty for a
    scalar or an input of unknown rank. Raises KeyError for an unknown input.
    """
    source = _inputs_by_name(model)[name]
    shape = ir.get_shape(source)
    if not shape:
        return []
    reached = _tensors_computed_from(model, name)
    outputs = []
    for value in model.graph.outputs:
        if value is source or str(value.name) not in reached or value.dtype != source.dtype:
            continue
        if _matches_shape(ir.get_shape(value), shape, exact):
            outputs.append(str(value.name))
    return outputs


def _tensors_computed_from(model: ir.Model, name: str) -> set[str]:
    """Return the names of the input `name` and of all tensors that are computed from it."""
    reached = {name}
    for node in model.graph:
        inputs = {str(value.name) for value in ir.iter_read_values(node) if value is not None}
        if not inputs.isdisjoint(reached):
            reached.update(_output_names(node))
    return reached


def _matches_shape(
    shape: Sequence[int | None] | None, expected: Sequence[int | None], exact: bool
) -> bool:
    """Whether `shape` is known and equals `expected`; unless `exact`, None matches any size."""
    if shape is None or len(shape) != len(expected):
        return False
    return all(
        a == b or (not exact and None in (a, b)) for a, b in zip(expected, shape, strict=True)
    )


def _name_stem(name: str) -> str:
    """Return `name` in lower case without words that distinguish inputs from outputs.

    Words are runs of letters, split where capitals begin, and numbers; separators are dropped. Left
    out are words such as in, out, new, prev.
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+", name)
    return "".join(word.lower() for word in words if word.lower() not in _DIRECTION_WORDS)
