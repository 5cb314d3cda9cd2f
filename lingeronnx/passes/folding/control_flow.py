"""Control flow that is decided before the run.

If on a constant inlined, Loop with a known number of turns unrolled.
A Loop is unrolled where it runs at most `MAX_UNROLLED_ITERATIONS` times, as `loop_turns` finds.
Everything else is refused by `reject_control_flow`, with the node's name: the chips run straight
lines.
"""

from __future__ import annotations

import numpy as np

from ...errors import ModelError
from ...graph import ir
from ...graph.expansion_limits import MAX_UNROLLED_ITERATIONS
from .._pass import PassResult, SkipReason
from .loop_trip_count import find_trip_count
from .scalar_inputs import format_fix_option


def inline_static_control_flow(model: ir.Model) -> PassResult:
    """Inline the decided If and Loop nodes of `model`'s main graph."""
    done = 0
    for node in list(model.graph):
        if node.domain:
            continue
        if node.op_type == "If":
            done += _inline_if(model, node)
        elif node.op_type == "Loop":
            done += _unroll_loop(model, node)
    if done:
        ir.assign_node_names(model)
    left = [node for node in model.graph if ir.has_subgraphs(node)]
    return PassResult(done, [SkipReason(node, _explain_and_advise(node)[0]) for node in left])


def reject_control_flow(model: ir.Model) -> int:
    """Raise ModelError for control flow that is left in `model`; changes nothing."""
    for node in model.graph:
        if ir.has_subgraphs(node):
            raise ModelError(f"{node.op_type} {node.name}: {'; '.join(_explain_and_advise(node))}")
    return 0


def _explain_and_advise(node: ir.Node) -> tuple[str, str]:
    """Return why `node`, which has subgraphs, is left, and what the user can do."""
    if node.op_type == "If" and (value := _find_scalar_input(node.inputs[0])) is not None:
        return (
            f"its condition depends on input '{value.name}'",
            f"fix that input: {format_fix_option(value)}",
        )
    if (
        node.op_type == "Loop"
        and (value := _find_scalar_input(node.inputs[0]) or _find_scalar_input(node.inputs[1]))
        is not None
    ):
        return (
            f"its number of turns depends on input '{value.name}'",
            f"fix that input: {format_fix_option(value)}",
        )
    why = _UNSUPPORTED_REASONS.get(node.op_type, "it runs a graph of its own")
    return why, "export the model without it, or what lies behind it as a model of its own"


def _find_scalar_input(value: ir.Value | None) -> ir.Value | None:
    """Return the only graph input that `value` depends on, where that is a setting (a single number), else None."""
    inputs: dict[str, ir.Value] = {}
    visited: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        at = waiting.pop()
        if at is None or at in visited:
            continue
        visited.add(at)
        if at.is_graph_input() and at.const_value is None:
            inputs[str(at.name)] = at
        maker = at.producer()
        waiting += [] if maker is None else list(maker.inputs)
    if len(inputs) != 1:
        return None
    (setting,) = inputs.values()
    return setting if ir.get_shape(setting) in ((), (1,)) else None


_UNSUPPORTED_REASONS = {
    "If": "its condition is computed at run time",
    "Loop": (
        f"it is not a loop of at most {MAX_UNROLLED_ITERATIONS} turns whose number is known "
        "before the run"
    ),
    "Scan": "it loops over a sequence",
}


def _inline_if(model: ir.Model, node: ir.Node) -> int:
    condition = ir.const_value(node.inputs[0])
    if condition is None or condition.size != 1:
        return 0
    branch = node.attributes[
        "then_branch" if condition.reshape(())[()] else "else_branch"
    ].as_graph()
    results = _move_subgraph(model, node, branch.clone(allow_outer_scope_values=True), [])
    _replace_outputs(model, node, results)
    return 1


def _unroll_loop(model: ir.Model, node: ir.Node) -> int:
    count, body = find_trip_count(model, node), node.attributes["body"].as_graph()
    if count is None:
        return 0
    states: list[ir.Value] = list(node.inputs[2:])  # type: ignore[arg-type]
    carried = len(states)
    scans: list[list[ir.Value]] = [[] for _ in body.outputs[1 + carried :]]
    true = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{node.name}_true"), np.array(True)
    )
    for turn in range(count):
        number = ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{node.name}_turn"), np.array(turn, np.int64)
        )
        results = _move_subgraph(
            model, node, body.clone(allow_outer_scope_values=True), [number, true, *states]
        )
        states = results[1 : 1 + carried]
        for column, value in zip(scans, results[1 + carried :], strict=True):
            column.append(value)
    stacked = [_stack_iterations(model, node, column) for column in scans]
    _replace_outputs(model, node, [*states, *stacked])
    return 1


def _move_subgraph(
    model: ir.Model, before: ir.Node, graph: ir.Graph, given: list[ir.Value]
) -> list[ir.Value]:
    """Move the nodes of `graph`, with its inputs replaced by `given`, in front of `before`.

    Return its outputs.
    """
    outputs = list(graph.outputs)
    replaced: dict[int, ir.Value] = {}
    for value, new in zip(graph.inputs, given, strict=True):
        replaced[id(value)] = new
    for name, value in list(graph.initializers.items()):
        array = value.const_value.numpy() if value.const_value is not None else np.zeros(0)
        replaced[id(value)] = ir.add_initializer(model, ir.unique_tensor_name(model, name), array)
    for value in (*graph.inputs, *graph.initializers.values()):
        for user, index in list(value.uses()):
            user.replace_input_with(index, replaced[id(value)])
    graph.outputs.clear()
    nodes = list(graph)
    graph.remove(nodes)
    for node in nodes:
        for value in node.outputs:
            if value.name:
                value.name = ir.unique_tensor_name(model, value.name)
        model.graph.insert_before(before, node)
    return [replaced.get(id(value), value) for value in outputs]


def _stack_iterations(model: ir.Model, node: ir.Node, values: list[ir.Value]) -> ir.Value:
    """Return the values of all turns, stacked along a new axis 0."""
    newer = ir.get_opset(model) >= 13
    axis = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{node.name}_axis"), np.array([0], np.int64)
    )
    rows = []
    for value in values:
        row = ir.make_node(
            "Unsqueeze",
            [value, axis] if newer else [value],
            None if newer else {"axes": [0]},
            origin=node,
            suffix="row",
            output=ir.unique_tensor_name(model, f"{value.name}_row"),
        )
        model.graph.insert_before(node, row)
        rows.append(row.outputs[0])
    whole = ir.make_node(
        "Concat",
        rows,
        {"axis": 0},
        origin=node,
        suffix="stack",
        output=ir.unique_tensor_name(model, f"{node.name}_stack"),
    )
    model.graph.insert_before(node, whole)
    return whole.outputs[0]


def _replace_outputs(model: ir.Model, node: ir.Node, results: list[ir.Value]) -> None:
    """Let the outputs of `node` be the `results`, through Identity nodes that keep their names."""
    for old, value in zip(list(node.outputs), results, strict=True):
        name = old.name
        if not name or not (old.uses() or old.is_graph_output()):
            continue
        old.name = None
        same = ir.make_node(
            "Identity", [value], origin=node, suffix=str(name), output=str(name), like=old
        )
        model.graph.insert_before(node, same)
        ir.replace_all_uses(old, same.outputs[0])
    model.graph.remove(node, safe=True)
