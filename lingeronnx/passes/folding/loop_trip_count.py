"""Find the trip count of a Loop from constants: a number, or a condition computed from a counter.

A `while` of TensorFlow has no trip count: its body adds 1 to a state and compares it. Such a
condition is evaluated here for one iteration after the other, from the states that it depends on,
if their initial values are constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...graph import ir, operators
from ...graph.expansion_limits import MAX_UNROLLED_ITERATIONS
from ...run.runners import extract_submodel, find_ancestors

__all__ = ["find_trip_count"]


def find_trip_count(model: ir.Model, node: ir.Node) -> int | None:
    """Return the trip count of the Loop `node`, 1 to `MAX_UNROLLED_ITERATIONS`, or None.

    From a constant limit, or by evaluating the condition. None if the initial condition is not
    constant and true, the limit is computed, the condition cannot be evaluated, or the count is 0
    or larger.
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
    """Return the iterations until the condition of `body` is false, at most `limit`.

    None if the condition cannot be evaluated, or is still true after `MAX_UNROLLED_ITERATIONS`.
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
    nodes = find_ancestors(body, {str(value.name) for value in targets})
    sources = set(targets)
    for node in nodes:
        sources.update(value for value in node.inputs if value is not None)
    for node in nodes:
        sources.difference_update(node.outputs)
    return nodes, sources


def _is_evaluable(node: ir.Node) -> bool:
    """Whether onnx's reference evaluator can run `node` deterministically."""
    return (
        not node.domain and not ir.has_subgraphs(node) and node.op_type not in operators.RANDOM_OPS
    )
