"""Resolve static control flow: inline If on a constant, unroll Loop and Scan of known trip count.

A Loop is unrolled if it runs at most `MAX_UNROLLED_ITERATIONS` times, as `find_trip_count` finds
from constants: a number, or a condition computed from a counter. A `while` of TensorFlow has no
trip count: its body adds 1 to a state and compares it. Such a condition is evaluated for one
iteration after the other, from the states that it depends on, if their initial values are constant.
A Scan runs once per element of an axis; it is unrolled if that size is known and its body has no
control flow.

`reject_control_flow` rejects everything else, naming the node: the platforms have no control flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ....common.errors import ModelError
from ....ir import float_ops, ir
from ....ir.expansion_limits import MAX_UNROLLED_ITERATIONS
from ....runtime.runners import extract_submodel
from .._pass import PassResult, SkipReason
from .scalar_inputs import format_fix_option

__all__ = ["find_trip_count"]


def inline_static_control_flow(model: ir.Model) -> PassResult:
    """Inline the static If, Loop and Scan nodes of `model`'s main graph, in place.

    Static are an If on a constant, a Loop for which `find_trip_count` returns a number, and a Scan
    along an axis of known size; other nodes with subgraphs are skipped with a reason.
    """
    changes = 0
    for node in list(model.graph):
        if node.domain:
            continue
        if node.op_type == "If":
            changes += _inline_if(model, node)
        elif node.op_type == "Loop":
            changes += _unroll_loop(model, node)
        elif node.op_type == "Scan":
            changes += _unroll_scan(model, node)
    if changes:
        ir.assign_node_names(model)
    remaining = [node for node in model.graph if ir.has_subgraphs(node)]
    skipped = [SkipReason(node, _explain_and_advise(node)[0]) for node in remaining]
    return PassResult(changes, skipped)


def reject_control_flow(model: ir.Model) -> int:
    """Raise ModelError for the first node of `model` with subgraphs.

    Changes nothing and returns 0. The message has the reason and a remedy.
    """
    for node in model.graph:
        if ir.has_subgraphs(node):
            raise ModelError(f"{node.op_type} {node.name}: {'; '.join(_explain_and_advise(node))}")
    return 0


def _explain_and_advise(node: ir.Node) -> tuple[str, str]:
    """Explain why `node`, which has subgraphs, cannot be inlined, and the remedy, as two texts.

    If the condition or trip count depends on one scalar input, the remedy is to fix that input.
    """
    value, subject = None, "its condition"
    if node.op_type == "If":
        value = _find_scalar_input(node.inputs[0])
    elif node.op_type == "Loop":
        value = _find_scalar_input(node.inputs[0]) or _find_scalar_input(node.inputs[1])
        subject = "its trip count"
    if value is not None:
        return (
            f"{subject} depends on input '{value.name}'",
            f"fix that input: {format_fix_option(value)}",
        )
    reason = _UNSUPPORTED_REASONS.get(node.op_type, "it runs a subgraph")
    return reason, "export the model without it, or the nodes after it as a separate model"


def _find_scalar_input(value: ir.Value | None) -> ir.Value | None:
    """Return the only graph input that `value` depends on, if it is a scalar, else None.

    A scalar has the shape [] or [1].
    """
    inputs: dict[str, ir.Value] = {}
    visited: set[ir.Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current is None or current in visited:
            continue
        visited.add(current)
        if current.is_graph_input() and current.const_value is None:
            inputs[str(current.name)] = current
        producer = current.producer()
        if producer is not None:
            stack += producer.inputs
    if len(inputs) != 1:
        return None
    (scalar,) = inputs.values()
    return scalar if ir.get_shape(scalar) in ((), (1,)) else None


_UNSUPPORTED_REASONS = {
    "If": "its condition is computed at run time",
    "Loop": (
        f"only loops of at most {MAX_UNROLLED_ITERATIONS} iterations with a trip count known "
        "before the run are supported"
    ),
    "Scan": (
        f"it loops over a sequence that is longer than {MAX_UNROLLED_ITERATIONS} or of unknown "
        "length, or contains control flow"
    ),
}


def _inline_if(model: ir.Model, node: ir.Node) -> int:
    """Replace an If on a constant by the nodes of the branch taken, and return 1.

    Returns 0 and changes nothing if the condition is computed at run time or not a single element.
    """
    condition = ir.const_value(node.inputs[0])
    if condition is None or condition.size != 1:
        return 0
    name = "then_branch" if condition.reshape(())[()] else "else_branch"
    branch = node.attributes[name].as_graph()
    results = _move_subgraph(model, node, branch.clone(allow_outer_scope_values=True), [])
    _replace_outputs(model, node, results)
    return 1


def _unroll_loop(model: ir.Model, node: ir.Node) -> int:
    """Replace a Loop of known trip count by copies of its body; return 1.

    Scan outputs are stacked along a new axis 0. Returns 0, without a change, if the trip count is
    not known, is 0, or exceeds the limit.
    """
    trip_count, body = find_trip_count(model, node), node.attributes["body"].as_graph()
    if trip_count is None:
        return 0
    states: list[ir.Value] = list(node.inputs[2:])  # type: ignore[arg-type]
    state_count = len(states)
    scan_outputs: list[list[ir.Value]] = [[] for _ in body.outputs[1 + state_count :]]
    condition = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{node.name}_true"), np.array(True)
    )
    for iteration in range(trip_count):
        index = ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{node.name}_turn"), np.array(iteration, np.int64)
        )
        copy = body.clone(allow_outer_scope_values=True)
        results = _move_subgraph(model, node, copy, [index, condition, *states])
        states = results[1 : 1 + state_count]
        for values, value in zip(scan_outputs, results[1 + state_count :], strict=True):
            values.append(value)
    stacked = [_stack_iterations(model, node, values, 0) for values in scan_outputs]
    _replace_outputs(model, node, [*states, *stacked])
    return 1


def _unroll_scan(model: ir.Model, node: ir.Node) -> int:
    """Replace a Scan of known length by copies of its body; return 1.

    Returns 0, without a change, if the length is unknown, is 0 or exceeds the limit, or if the body
    has subgraphs.
    """
    body = node.attributes["body"].as_graph()
    scan_count = int(ir.get_attr(node, "num_scan_inputs"))
    state_count = len(node.inputs) - scan_count
    states, sequences = list(node.inputs[:state_count]), list(node.inputs[state_count:])
    axes = [_normalize_axis(node, "scan_input_axes", k, value) for k, value in enumerate(sequences)]
    length = _find_scan_length(sequences, axes)
    if length is None or any(ir.has_subgraphs(inner) for inner in body):
        return 0
    reversed_inputs = ir.get_attr(node, "scan_input_directions", [0] * scan_count)
    scan_outputs: list[list[ir.Value]] = [[] for _ in body.outputs[state_count:]]
    for iteration in range(length):
        elements = []
        for value, axis, is_reversed in zip(sequences, axes, reversed_inputs, strict=True):
            index = length - 1 - iteration if is_reversed else iteration
            elements.append(_select_element(model, node, value, axis, index))
        copy = body.clone(allow_outer_scope_values=True)
        results = _move_subgraph(model, node, copy, [*states, *elements])  # type: ignore[list-item]
        states = list(results[:state_count])
        for values, value in zip(scan_outputs, results[state_count:], strict=True):
            values.append(value)
    reversed_outputs = ir.get_attr(node, "scan_output_directions", [0] * len(scan_outputs))
    output_axes = ir.get_attr(node, "scan_output_axes", [0] * len(scan_outputs))
    stacked = []
    for values, axis, is_reversed in zip(scan_outputs, output_axes, reversed_outputs, strict=True):
        ordered = values[::-1] if is_reversed else values
        stacked.append(_stack_iterations(model, node, ordered, int(axis)))
    _replace_outputs(model, node, [*states, *stacked])  # type: ignore[list-item]
    return 1


def _normalize_axis(node: ir.Node, attribute: str, index: int, value: ir.Value | None) -> int:
    """Return entry `index` of the axes in `attribute`, counted from the front of `value`.

    0 without the attribute, and -1 if the rank is needed and unknown.
    """
    axes = ir.get_attr(node, attribute)
    axis = int(axes[index]) if axes else 0
    rank = len(ir.get_shape(value) or ())
    return axis if axis >= 0 or not rank else axis + rank


def _find_scan_length(sequences: Sequence[ir.Value | None], axes: Sequence[int]) -> int | None:
    """Return the size of the scanned `axes` of `sequences`, None if unknown or beyond the limit."""
    for value, axis in zip(sequences, axes, strict=True):
        shape = ir.get_shape(value)
        if shape is not None and 0 <= axis < len(shape) and shape[axis] is not None:
            length = int(shape[axis] or 0)
            return length if 0 < length <= MAX_UNROLLED_ITERATIONS else None
    return None


def _select_element(
    model: ir.Model, node: ir.Node, value: ir.Value | None, axis: int, index: int
) -> ir.Value:
    """Insert a Gather of element `index` of `axis` of `value` before `node`; return its output."""
    base = ir.unique_tensor_name(model, f"{node.name}_element")
    position = ir.add_initializer(model, f"{base}_index", np.array(index, np.int64))
    gather = ir.make_node(
        "Gather", [value, position], {"axis": axis}, origin=node, suffix="element", output=base
    )
    model.graph.insert_before(node, gather)
    return gather.outputs[0]


def _move_subgraph(
    model: ir.Model, position: ir.Node, graph: ir.Graph, arguments: list[ir.Value]
) -> list[ir.Value]:
    """Move the nodes of `graph`, called with `arguments`, before `position`.

    Return its output values. Initializers move too; values get new names if theirs are taken.
    `graph` has no nodes afterwards.
    """
    outputs = list(graph.outputs)
    replacements: dict[int, ir.Value] = {}
    for value, argument in zip(graph.inputs, arguments, strict=True):
        replacements[id(value)] = argument
    for name, value in list(graph.initializers.items()):
        array = value.const_value.numpy() if value.const_value is not None else np.zeros(0)
        initializer = ir.add_initializer(model, ir.unique_tensor_name(model, name), array)
        replacements[id(value)] = initializer
    for value in (*graph.inputs, *graph.initializers.values()):
        for user, index in list(value.uses()):
            user.replace_input_with(index, replacements[id(value)])
    graph.outputs.clear()
    nodes = list(graph)
    graph.remove(nodes)
    for node in nodes:
        for value in node.outputs:
            if value.name:
                value.name = ir.unique_tensor_name(model, value.name)
        model.graph.insert_before(position, node)
    return [replacements.get(id(value), value) for value in outputs]


def _stack_iterations(
    model: ir.Model, node: ir.Node, values: list[ir.Value], axis: int
) -> ir.Value:
    """Return `values`, one per iteration, stacked along a new `axis`.

    Inserts an Unsqueeze per value and a Concat before `node`.
    """
    has_axes_input = ir.get_opset(model) >= 13
    axes_value = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{node.name}_axis"), np.array([axis], np.int64)
    )
    rows = []
    for value in values:
        unsqueeze = ir.make_node(
            "Unsqueeze",
            [value, axes_value] if has_axes_input else [value],
            None if has_axes_input else {"axes": [axis]},
            origin=node,
            suffix="row",
            output=ir.unique_tensor_name(model, f"{value.name}_row"),
        )
        model.graph.insert_before(node, unsqueeze)
        rows.append(unsqueeze.outputs[0])
    concat = ir.make_node(
        "Concat",
        rows,
        {"axis": axis},
        origin=node,
        suffix="stack",
        output=ir.unique_tensor_name(model, f"{node.name}_stack"),
    )
    model.graph.insert_before(node, concat)
    return concat.outputs[0]


def _replace_outputs(model: ir.Model, node: ir.Node, results: list[ir.Value]) -> None:
    """Remove `node`; its outputs become Identity nodes of `results`, with the old names.

    `results` has one tensor per output, in order. Outputs without a name or consumer are dropped.
    """
    for old, value in zip(list(node.outputs), results, strict=True):
        name = old.name
        if not name or not (old.uses() or old.is_graph_output()):
            continue
        old.name = None
        identity = ir.make_node(
            "Identity", [value], origin=node, suffix=str(name), output=str(name), like=old
        )
        model.graph.insert_before(node, identity)
        old.replace_all_uses_with(identity.outputs[0], replace_graph_outputs=True)
    model.graph.remove(node, safe=True)


def find_trip_count(model: ir.Model, node: ir.Node) -> int | None:
    """Return the number of iterations of the Loop `node`, 1 to `MAX_UNROLLED_ITERATIONS`, or None.

    It is the constant limit, or found by evaluating the condition. None if the initial condition is
    not constant and true, if the limit is computed, if the condition cannot be evaluated, or for 0
    and larger numbers.
    """
    limit_value, condition_value = (*node.inputs, None, None)[:2]
    limit_array, condition = ir.const_value(limit_value), ir.const_value(condition_value)
    if condition_value is not None and (condition is None or not condition.all()):
        return None
    limit = None
    if limit_value is not None:
        if limit_array is None or limit_array.size != 1:
            return None
        limit = int(limit_array.reshape(()))
    body = node.attributes["body"].as_graph()
    count = limit
    if not _has_true_condition(body):
        count = _simulate_trip_count(model, node, body, limit)
    return count if count is not None and 0 < count <= MAX_UNROLLED_ITERATIONS else None


def _has_true_condition(body: ir.Graph) -> bool:
    """Whether the condition that `body` returns for the next iteration is always true.

    It is a true constant, or the incoming condition itself, possibly through Identity and Cast.
    """
    value = body.outputs[0]
    producer = value.producer()
    while producer is not None and producer.op_type in ("Identity", "Cast") and producer.inputs[0]:
        value = producer.inputs[0]
        producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        constant = ir.get_attr(producer, "value")
        return constant is not None and bool(np.all(constant))
    array = ir.const_value(value)
    return value is body.inputs[1] or (array is not None and bool(np.all(array)))


def _simulate_trip_count(
    model: ir.Model, node: ir.Node, body: ir.Graph, limit: int | None
) -> int | None:
    """Return the iterations until the condition of `body` is false, at most `limit`, by running it.

    Only the nodes that the condition depends on are run. None if they cannot be evaluated, or if
    the condition is still true after `MAX_UNROLLED_ITERATIONS`.
    """
    from onnx.reference import ReferenceEvaluator  # slow to import

    next_states = dict(zip(body.inputs[2:], body.outputs[1:], strict=False))
    targets, nodes, sources = _collect_condition_dependencies(body, next_states)
    current = _get_initial_arrays(node, body, sources)
    if current is None or not all(map(_is_evaluable, nodes)):
        return None
    computed = [value for value in targets if value.producer() in nodes]
    inputs = {str(value.name): value for value in sources}
    evaluator = ReferenceEvaluator(
        extract_submodel(model, nodes, inputs, [str(value.name) for value in computed], {})
    )
    for iteration in range(1, MAX_UNROLLED_ITERATIONS + 1):
        feed = {name: current[value] for name, value in inputs.items()}
        results = current | dict(zip(computed, evaluator.run(None, feed), strict=True))
        if iteration == limit or not np.all(results[body.outputs[0]]):
            return iteration
        for state in sources & next_states.keys():
            current[state] = results[next_states[state]]
        current[body.inputs[0]] = np.array(iteration, np.int64)
    return None


def _get_initial_arrays(
    node: ir.Node, body: ir.Graph, sources: set[ir.Value]
) -> dict[ir.Value, np.ndarray] | None:
    """Return the arrays of `sources` in the first iteration of a Loop, or None if not constant.

    `sources` are inputs of the body or tensors outside it; the iteration number is 0, the condition
    true.
    """
    initial = dict(zip(body.inputs[2:], node.inputs[2:], strict=True))
    arrays = {body.inputs[0]: np.array(0, np.int64), body.inputs[1]: np.array(True)}
    for value in sources - arrays.keys():
        array = ir.const_value(initial.get(value, value))
        if array is None:
            return None
        arrays[value] = array
    return arrays


def _collect_condition_dependencies(
    body: ir.Graph, next_states: Mapping[ir.Value, ir.Value]
) -> tuple[list[ir.Value], list[ir.Node], set[ir.Value]]:
    """Return everything that the condition of `body` depends on, over all iterations.

    Parameters
    ----------
    body
        The body of a Loop.
    next_states
        State input of the body -> its output for the next iteration.

    Returns
    -------
    targets : list of ir.Value
        The condition and the state outputs it depends on.
    nodes : list of ir.Node
        The nodes that compute them, in order.
    sources : set of ir.Value
        The other tensors that these nodes read, such as state inputs.
    """
    targets = [body.outputs[0]]
    while True:
        nodes, sources = _collect_dependencies(body, targets)
        new_targets = [
            next_states[value]
            for value in sources & next_states.keys()
            if next_states[value] not in targets
        ]
        if not new_targets:
            return targets, nodes, sources
        targets += new_targets


def _collect_dependencies(
    body: ir.Graph, targets: Sequence[ir.Value]
) -> tuple[list[ir.Node], set[ir.Value]]:
    """Return the nodes of `body` that compute `targets`, in order, and the tensors they read.

    Tensors that these nodes compute themselves are left out.
    """
    nodes = ir.find_ancestors(body, {str(value.name) for value in targets})
    sources = set(targets)
    for node in nodes:
        sources.update(value for value in node.inputs if value is not None)
    for node in nodes:
        sources.difference_update(node.outputs)
    return nodes, sources


def _is_evaluable(node: ir.Node) -> bool:
    """Whether onnx's reference evaluator can run `node` with a determined result.

    False for operators of other domains, with subgraphs, and for random ones.
    """
    return (
        not node.domain and not ir.has_subgraphs(node) and node.op_type not in float_ops.RANDOM_OPS
    )
