"""How often a Loop turns, where constants alone say it.

A number, or a condition that is reckoned from a counter.
A `while` of TensorFlow comes without a number: its body adds 1 to a state and compares it. Such a
condition is computed turn by turn here, from the states that it depends on, where these begin with
constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph import ir, operators
from ...graph.expansion_limits import MAX_UNROLLED_ITERATIONS
from ...run.runners import extract_submodel, find_ancestors

__all__ = ["find_trip_count"]


def find_trip_count(model: ir.Model, node: ir.Node) -> int | None:
    """Return how often the Loop `node` of `model` turns: 1 to `MAX_UNROLLED_ITERATIONS`.

    None where that is not known, or not so.
    """
    most, start = (node.inputs[i] if len(node.inputs) > i else None for i in (0, 1))
    number, begins = ir.const_value(most), ir.const_value(start)
    if most is not None and (number is None or number.size != 1):
        return None
    if start is not None and (begins is None or not begins.all()):
        return None
    limit = None if number is None else int(number.reshape(()))
    body = node.attributes["body"].as_graph()
    count = limit if _has_true_condition(body) else _simulate_trip_count(model, node, body, limit)
    return count if count is not None and 0 < count <= MAX_UNROLLED_ITERATIONS else None


def _has_true_condition(body: ir.Graph) -> bool:
    """Whether the condition that `body` hands to the next turn is always true."""
    value = body.outputs[0]
    while (
        (maker := value.producer()) is not None
        and maker.op_type in ("Identity", "Cast")
        and maker.inputs[0]
    ):
        value = maker.inputs[0]
    if maker is not None and maker.op_type == "Constant":
        constant = ir.get_attr(maker, "value")
        return constant is not None and bool(np.all(constant))
    array = ir.const_value(value)
    return value is body.inputs[1] or (array is not None and bool(np.all(array)))


def _simulate_trip_count(
    model: ir.Model, node: ir.Node, body: ir.Graph, limit: int | None
) -> int | None:
    """Return the turns after which the condition of `body` is false, or `limit`.

    None where it is not known by then.
    """
    from onnx.reference import ReferenceEvaluator  # takes a while to import

    goes_on, following = body.outputs[0], dict(zip(body.inputs[2:], body.outputs[1:], strict=False))
    wanted, nodes, leaves = [goes_on], *_collect_dependencies(body, [goes_on])
    while more := [following[v] for v in leaves & following.keys() if following[v] not in wanted]:
        wanted += more
        nodes, leaves = _collect_dependencies(body, wanted)
    begins = dict(zip(body.inputs[2:], node.inputs[2:], strict=True))
    now = {value: ir.const_value(begins.get(value, value)) for value in leaves}
    now |= {body.inputs[0]: np.array(0, np.int64), body.inputs[1]: np.array(True)}
    if any(array is None for array in now.values()) or not all(map(_is_evaluable, nodes)):
        return None
    made = [value for value in wanted if value.producer() in nodes]
    given = {str(value.name): value for value in leaves}
    step = ReferenceEvaluator(
        extract_submodel(model, nodes, given, [str(value.name) for value in made], {})
    )
    for turn in range(1, MAX_UNROLLED_ITERATIONS + 1):
        results = dict(
            zip(
                made,
                step.run(None, {name: now[value] for name, value in given.items()}),
                strict=True,
            )
        )
        after = {value: results.get(value, now.get(value)) for value in wanted}
        if turn == limit or not np.all(after[goes_on]):
            return turn
        now |= {value: after[new] for value, new in following.items() if value in leaves}
        now[body.inputs[0]] = np.array(turn, np.int64)
    return None


def _collect_dependencies(
    body: ir.Graph, wanted: Sequence[ir.Value]
) -> tuple[list[ir.Node], set[ir.Value]]:
    """Return the nodes of `body` that make the `wanted` values, in order, and what these read of others."""
    nodes = find_ancestors(body, {str(value.name) for value in wanted})
    read = {value for node in nodes for value in node.inputs if value is not None}
    return nodes, read.union(wanted).difference(value for node in nodes for value in node.outputs)


def _is_evaluable(node: ir.Node) -> bool:
    return (
        not node.domain and not ir.has_subgraphs(node) and node.op_type not in operators.RANDOM_OPS
    )
