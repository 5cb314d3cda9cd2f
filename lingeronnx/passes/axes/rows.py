"""A fully connected layer of every step keeps the axis of steps: exporters fold it into the batch for a Gemm.

    [N, T, K] -> Reshape [N*T, K] -> Linear, activations -> Reshape [N, T, O]

becomes the same operators on [N, T, K]: they work along the last axis, or element by element. Needs traced shapes.
"""

from __future__ import annotations

from ...graph import ir, operators
from .._pass import Answer, Reason


def rows(model: ir.Graph) -> Answer:
    """Take the Reshapes around such layers of `model` out, counted by pairs."""
    changed, why = 0, list[Reason]()
    for node in list(model.graph):
        if not _folds(node):
            continue
        chain = _match(node)
        if chain is None:
            why.append(Reason(node, "what follows it, up to where the axis of steps is back, is no chain of layers"))
            continue
        first, *_, last, unfold = [node, *chain]
        middle, source = chain[:-1], ir.source(first)
        whole = source.shape
        assert whole is not None
        middle[0].replace_input_with(0, source)
        for each in middle:
            value = each.outputs[0]
            value.shape = ir.oir_shape([*whole[:-1], (ir.shape(value) or (None,))[-1]])
            ir.mark_folded_batch(value, False)
            value.name = ir.fresh_name(model, f"{value.name}_steps")  # of another shape than the tensor it was
        ir.absorb(model, last, unfold)
        if not first.outputs[0].uses():
            model.graph.remove(first, safe=True)
        changed += 1
    return Answer(changed, why)


def _folds(node: ir.Node) -> bool:
    """Whether `node` is a Reshape that folds the steps [N, T, K] into the batch."""
    if node.op_type != "Reshape" or node.domain or node.outputs[0].is_graph_output():
        return False
    before, after = ir.shape(node.inputs[0]), ir.shape(node.outputs[0])
    if before is None or after is None or len(before) < 3 or len(after) != 2 or before[-1] != after[-1]:
        return False
    return before[-1] is not None and None not in before[1:] and ir.has_folded_batch(node.outputs[0])


def _match(fold: ir.Node) -> list[ir.Node] | None:
    """Return the layers behind the Reshape `fold`, up to the Reshape that undoes it; None where there is none."""
    before = ir.known_shape(fold.inputs[0])
    chain: list[ir.Node] = []
    value = fold.outputs[0]
    while (node := ir.sole_consumer(value)) is not None and (not chain or node.inputs[0] is value):
        chain.append(node)
        value = node.outputs[0]
        if node.op_type == "Reshape" and not node.domain:
            sizes = ir.shape(value)
            folded = ir.shape(node.inputs[0]) or (None,)
            return chain if len(chain) > 1 and sizes is not None and sizes == (*before[:-1], folded[-1]) else None
        if (node.domain, node.op_type) != (ir.DOMAIN, "Linear") and (
            node.domain or node.op_type not in operators.ONE_TENSOR
        ):
            return None
    return None
