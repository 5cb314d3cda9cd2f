"""A fully connected layer of every step keeps the axis of steps.

Exporters fold it into the batch for a Gemm.
    [N, T, K] -> Reshape [N*T, K] -> Linear, activations -> Reshape [N, T, O]

becomes the same operators on [N, T, K]: they work along the last axis, or element by element. Where
other sizes stand in front, as [N, T, H, K/H], or behind, a Reshape of one sample stays there. Needs
traced shapes.
"""

from __future__ import annotations

import math

import numpy as np

from ...graph import ir, operators
from ...graph.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason


def unfold_linear_batch(model: ir.Model) -> PassResult:
    """Take the Reshapes around such layers of `model` out, counted by chains of layers."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if not _folds_steps_into_batch(node):
            continue
        chains = [_match_layer_chain(node, use.node) for use in node.outputs[0].uses()]
        if None in chains:
            why.append(
                SkipReason(
                    node,
                    "what follows it, up to where the axis of steps is back, is no chain of layers",
                )
            )
        matched = [chain for chain in chains if chain is not None]
        straight = [chain for chain in matched if _keeps_leading_axes(node, chain)]
        for chain in straight:
            _apply_unfolded(model, ir.require_input(node), chain)
            ir.absorb_consumer(model, chain[-2], chain[-1])
        if len(straight) < len(matched):
            steps = _reshape_to_steps(model, node)
            for chain in matched:
                if chain not in straight:
                    _fix_reshape_target(model, chain[-1])
                    _apply_unfolded(model, steps, chain)
        changed += len(matched)
        if not node.outputs[0].uses():
            model.graph.remove(node, safe=True)
    return PassResult(changed, why)


def _folds_steps_into_batch(node: ir.Node) -> bool:
    """Whether `node` is a Reshape that folds steps [N, T, .., K] into the batch."""
    if node.op_type != "Reshape" or node.domain or node.outputs[0].is_graph_output():
        return False
    before, after = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if before is None or after is None or len(before) < 3 or len(after) != 2 or not after[-1]:
        return False
    return (
        None not in before[1:]
        and _sample_size(before) % after[-1] == 0
        and ir.has_folded_batch(node.outputs[0])
    )


def _sample_size(shape: tuple[int | None, ...]) -> int:
    """Return the elements of one sample."""
    return math.prod(int(d or 0) for d in shape[1:])


def _match_layer_chain(fold: ir.Node, reader: ir.Node) -> list[ir.Node] | None:
    """Return the layers from `reader` on, behind the Reshape `fold`, up to the Reshape that undoes it, or None."""
    before = ir.require_shape(fold.inputs[0])
    steps = _sample_size(before) // int(ir.require_shape(fold.outputs[0])[-1] or 1)
    chain: list[ir.Node] = []
    value, node = fold.outputs[0], reader
    while node.inputs[0] is value:
        chain.append(node)
        if node.op_type == "Reshape" and not node.domain:
            sizes, width = ir.get_shape(node.outputs[0]) or (), (ir.get_shape(value) or (None,))[-1]
            back = len(sizes) > 2 and sizes[0] is None and None not in sizes[1:]
            whole = back and width is not None and _sample_size(sizes) == steps * width
            return (
                chain
                if len(chain) > 1 and whole and not ir.has_folded_batch(node.outputs[0])
                else None
            )
        if (node.domain, node.op_type) != (ir.FUNCTION_DOMAIN, "Linear") and (
            node.domain or node.op_type not in operators.UNARY_ELEMENTWISE_OPS
        ):
            return None
        value = node.outputs[0]
        following = ir.sole_consumer(value)
        if following is None:
            return None
        node = following
    return None


def _keeps_leading_axes(fold: ir.Node, chain: list[ir.Node]) -> bool:
    """Whether the axes in front of `fold` are those behind `chain`, but for the last one."""
    before, behind = ir.require_shape(fold.inputs[0]), ir.require_shape(chain[-1].inputs[0])[-1]
    same_width = before[-1] == ir.require_shape(fold.outputs[0])[-1]
    return same_width and ir.require_shape(chain[-1].outputs[0]) == (*before[:-1], behind)


def _reshape_to_steps(model: ir.Model, fold: ir.Node) -> ir.Value:
    """Return what `fold` reads as [N, T, K]."""
    source, width = ir.require_input(fold), int(ir.require_shape(fold.outputs[0])[-1] or 1)
    before = ir.require_shape(source)
    sizes = [_sample_size(before) // width, width]
    if list(before[1:]) == sizes:
        return source
    make = SubgraphBuilder(model, fold)
    steps = make.reshape(source, sizes, "steps")
    model.graph.insert_before(fold, make.nodes)
    return steps


def _fix_reshape_target(model: ir.Model, reshape: ir.Node) -> None:
    """Let `reshape` give the same sizes whatever it reads."""
    target = np.array(
        [0, *(int(d or 0) for d in ir.require_shape(reshape.outputs[0])[1:])], np.int64
    )
    reshape.replace_input_with(1, SubgraphBuilder(model, reshape).constant(target, "shape"))


def _apply_unfolded(model: ir.Model, source: ir.Value, chain: list[ir.Node]) -> None:
    """Let the layers of `chain` work on `source` [N, T, .., K]."""
    whole = source.shape
    assert whole is not None
    chain[0].replace_input_with(0, source)
    for each in chain[:-1]:
        value = each.outputs[0]
        value.shape = ir.make_shape([*whole[:-1], (ir.get_shape(value) or (None,))[-1]])
        ir.mark_folded_batch(value, False)
        value.name = ir.unique_tensor_name(
            model, f"{value.name}_steps"
        )  # of another shape than the tensor it was
