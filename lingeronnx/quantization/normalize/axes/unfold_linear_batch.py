"""Keep the time axis of fully connected layers that exporters fold into the batch for a Gemm.

    [N, T, K] -> Reshape [N*T, K] -> Linear, activations -> Reshape [N, T, O]

becomes the same operators on [N, T, K]: they work along the last axis, or element by element. If
other axes come before, as in [N, T, H, K/H], or after, a Reshape per sample remains there. Needs
traced shapes.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import float_ops, ir
from ....ir.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["set_sample_target", "unfold_linear_batch"]


def unfold_linear_batch(model: ir.Model) -> PassResult:
    """Remove the Reshapes of `model` that fold the time axis into the batch around linear layers.

    Layers are Linear functions and standard unary elementwise operators, which stay as they are. If
    the leading axes before a folding and after its restoring Reshape differ, the layers read [N, T,
    K], by another Reshape if necessary, and the restoring one remains. Needs traced shapes. In
    place; one change per chain of layers between a folding and a restoring Reshape. A folding
    Reshape with a consumer that starts no such chain is also listed as skipped.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if not _folds_steps_into_batch(node):
            continue
        chains = [_match_layer_chain(node, use.node) for use in node.outputs[0].uses()]
        if None in chains:
            reason = "its consumers, up to the Reshape that restores the time axis, are not layers"
            skipped.append(SkipReason(node, reason))
        matched = [chain for chain in chains if chain is not None]
        _unfold_chains(model, node, matched)
        changes += len(matched)
        if not node.outputs[0].uses():
            model.graph.remove(node, safe=True)
    return PassResult(changes, skipped)


def _unfold_chains(model: ir.Model, fold: ir.Node, chains: list[list[ir.Node]]) -> None:
    """Let the layers of each of `chains` read the tensor before `fold`, in place.

    `fold` is a Reshape that folds axes into the batch, and the last node of a chain the Reshape
    that restores them. If the leading axes are the same before and after, the chain reads the input
    of `fold` and the restoring Reshape is dropped; else it reads that input as [N, T, K].
    """
    direct = [chain for chain in chains if _keeps_leading_axes(fold, chain)]
    for chain in direct:
        _apply_unfolded(model, ir.require_input(fold), chain)
        ir.absorb_consumer(model, chain[-2], chain[-1])
    if len(direct) == len(chains):
        return
    steps = _reshape_to_steps(model, fold)
    for chain in chains:
        if chain not in direct:
            set_sample_target(model, chain[-1])
            _apply_unfolded(model, steps, chain)


def _folds_steps_into_batch(node: ir.Node) -> bool:
    """Whether `node` is a Reshape from [N, T, .., K] to [N * steps, K'], marked as a folded batch.

    Sizes other than N must be known, K' must divide the elements per sample, and the result must
    not be a graph output.
    """
    if node.op_type != "Reshape" or node.domain or node.outputs[0].is_graph_output():
        return False
    source_shape, folded_shape = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if source_shape is None or len(source_shape) < 3 or None in source_shape[1:]:
        return False
    if folded_shape is None or len(folded_shape) != 2 or not folded_shape[-1]:
        return False
    if _sample_size(source_shape) % folded_shape[-1]:
        return False
    return ir.has_folded_batch(node.outputs[0])


def _sample_size(shape: tuple[int | None, ...]) -> int:
    """Return the number of elements per sample of a tensor of `shape`: all sizes but the first.

    An unknown size counts as 0.
    """
    return math.prod(int(d or 0) for d in shape[1:])


def _match_layer_chain(fold: ir.Node, first: ir.Node) -> list[ir.Node] | None:
    """Match the layers from `first` on between the Reshape `fold` and the one that reverts it.

    Returns the layers and that Reshape as the last node. None if a node in between is no layer or
    elementwise operator, has not exactly one consumer or does not pass the tensor on by input 0, if
    there is no node in between, or if the Reshape does not restore the batch.
    """
    source_shape = ir.require_shape(fold.inputs[0])
    steps = _sample_size(source_shape) // int(ir.require_shape(fold.outputs[0])[-1] or 1)
    chain: list[ir.Node] = []
    value, node = fold.outputs[0], first
    while node.inputs[0] is value:
        chain.append(node)
        if node.op_type == "Reshape" and not node.domain:
            return chain if len(chain) > 1 and _restores_batch(node, steps) else None
        if not _is_layer_or_elementwise(node):
            return None
        value = node.outputs[0]
        consumer = ir.sole_consumer(value)
        if consumer is None:
            return None
        node = consumer
    return None


def _is_layer_or_elementwise(node: ir.Node) -> bool:
    """Whether `node` is a Linear function or a standard unary elementwise operator."""
    if node.domain:
        return (node.domain, node.op_type) == (ir.FUNCTION_DOMAIN, "Linear")
    return node.op_type in float_ops.UNARY_ELEMENTWISE_OPS


def _restores_batch(node: ir.Node, steps: int) -> bool:
    """Whether the Reshape `node` makes [N, ...] with `steps` rows per sample of [N * steps, width].

    The result must have more than two axes, known dimensions except N, and no folded batch.
    """
    result_shape = ir.get_shape(node.outputs[0]) or ()
    if len(result_shape) <= 2 or result_shape[0] is not None or None in result_shape[1:]:
        return False
    width = (ir.get_shape(node.inputs[0]) or (None,))[-1]
    if width is None or _sample_size(result_shape) != steps * width:
        return False
    return not ir.has_folded_batch(node.outputs[0])


def _keeps_leading_axes(fold: ir.Node, chain: list[ir.Node]) -> bool:
    """Whether before `fold` and after `chain` all sizes but that of the last axis are equal.

    `fold` is a Reshape that folds axes into the batch, and the last node of `chain` restores them.
    The last sizes must be the widths of the folded tensor and of the tensor to be restored, so that
    no Reshape is needed.
    """
    source_shape = ir.require_shape(fold.inputs[0])
    if source_shape[-1] != ir.require_shape(fold.outputs[0])[-1]:
        return False
    width = ir.require_shape(chain[-1].inputs[0])[-1]
    return ir.require_shape(chain[-1].outputs[0]) == (*source_shape[:-1], width)


def _reshape_to_steps(model: ir.Model, fold: ir.Node) -> ir.Value:
    """Return the input of `fold` as [N, T, K], with K the width of the folded tensor.

    Returns it unchanged if it has that shape; else inserts a Reshape before `fold`.
    """
    source = ir.require_input(fold)
    source_shape = ir.require_shape(source)
    width = int(ir.require_shape(fold.outputs[0])[-1] or 1)
    sizes = [_sample_size(source_shape) // width, width]
    if list(source_shape[1:]) == sizes:
        return source
    build = SubgraphBuilder(model, fold)
    steps = build.reshape(source, sizes, "steps")
    model.graph.insert_before(fold, build.nodes)
    return steps


def set_sample_target(model: ir.Model, reshape: ir.Node) -> None:
    """Set the target of `reshape` to [0, *sizes of its output after axis 0], in place.

    So it no longer depends on its input shape, except for the batch.
    """
    target = np.array([0, *ir.get_sample_dims(reshape.outputs[0])], np.int64)
    ir.set_constant_input(model, reshape, 1, target, "sample")
    reshape.attributes.pop("allowzero", None)  # a 0 in the target copies the size of the input


def _apply_unfolded(model: ir.Model, source: ir.Value, chain: list[ir.Node]) -> None:
    """Let the first layer of `chain` read `source` [N, T, .., K], and set the shapes downstream.

    Outputs of all nodes but the last get new names and the leading axes of `source`, in place.
    """
    source_shape = source.shape
    assert source_shape is not None
    chain[0].replace_input_with(0, source)
    for node in chain[:-1]:
        value = node.outputs[0]
        width = (ir.get_shape(value) or (None,))[-1]
        value.shape = ir.Shape([*source_shape[:-1], width])
        ir.mark_folded_batch(value, False)
        # a new name, because its shape differs from that of the original tensor
        value.name = ir.unique_tensor_name(model, f"{value.name}_steps")
