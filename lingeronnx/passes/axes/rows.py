"""A fully connected layer of every step keeps the axis of steps: exporters fold it into the batch for a Gemm.

    [N, T, K] -> Reshape [N*T, K] -> Linear, activations -> Reshape [N, T, O]

becomes the same operators on [N, T, K]: they work along the last axis, or element by element. Needs traced shapes.
"""

from __future__ import annotations

from ...graph import ir, operators


def rows(model: ir.Graph) -> int:
    """Take the Reshapes around such layers of `model` out; return how many pairs."""
    changed = 0
    for node in list(model.graph):
        chain = _match(node)
        if chain is None:
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
    return changed


def _match(fold: ir.Node) -> list[ir.Node] | None:
    """Return the layers behind the Reshape `fold`, up to the Reshape that undoes it; None for anything else."""
    if fold.op_type != "Reshape" or fold.domain or fold.outputs[0].is_graph_output():
        return None
    before, after = ir.shape(fold.inputs[0]), ir.shape(fold.outputs[0])
    if before is None or after is None or len(before) < 3 or len(after) != 2 or before[-1] != after[-1]:
        return None
    if before[-1] is None or None in before[1:] or not ir.has_folded_batch(fold.outputs[0]):
        return None
    chain: list[ir.Node] = []
    value = fold.outputs[0]
    while (node := ir.sole_consumer(value)) is not None and (not chain or node.inputs[0] is value):
        chain.append(node)
        value = node.outputs[0]
        if node.op_type == "Reshape" and not node.domain:
            sizes = ir.shape(value)
            made = ir.shape(node.inputs[0]) or (None,)
            return chain if len(chain) > 1 and sizes is not None and sizes == (*before[:-1], made[-1]) else None
        if (node.domain, node.op_type) != (ir.DOMAIN, "Linear") and (
            node.domain or node.op_type not in operators.ONE_TENSOR
        ):
            return None
    return None
