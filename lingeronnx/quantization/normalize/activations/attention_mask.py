"""Convert attention masks before a Softmax to the sum with a constant of 0 and `MASK_VALUE`.

    Add(s, m)        entries of m up to -1000, or up to -50 if all others are 0  -> Add(Add(s,
    bias), m') Where(c, s, v)   v such a value or minus infinity, c constant                ->
    Add(s, m') Where(c, p, 0)   anywhere                                                    ->
    Mul(p, c)

Masked positions get the weight zero from the Softmax before and after. Values such as -1e9 or minus
infinity cannot be represented in eight bits; `MASK_VALUE` saturates there, and
the rule of a constant operand ensures that the lowest integer is far enough from the others. A
mask with a completely masked row stays unchanged, because the Softmax weights of that row would
change. The guard ``Where(IsNaN(p), 0, p)`` that exporters add after a Softmax for such rows is
removed if there are none.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from ....operators.attention_masks import CERTAIN_MASK_THRESHOLD, LIKELY_MASK_THRESHOLD, MASK_VALUE
from .._pass import PassResult, SkipReason


def canonicalize_attention_masks(model: ir.Model) -> PassResult:
    """Convert attention masks around the Softmax nodes of `model`, in place; return the changes.

    A constant mask before a Softmax becomes the sum with a constant of 0 and `MASK_VALUE`, or is
    skipped with a reason. A Where after a Softmax that replaces NaN is removed. Any Where with a
    constant condition that selects between a tensor and zeros becomes a product with 0 and 1.
    """
    changes, skipped = 0, list[SkipReason]()
    used_names = ir.get_tensor_names(model)  # once: reading all of them takes linear time
    for node in list(model.graph):
        if node.domain:
            continue
        if node.op_type == "Softmax":
            outcome = _rewrite_mask_before_softmax(model, node, used_names)
            if isinstance(outcome, SkipReason):
                skipped.append(outcome)
            else:
                changes += outcome
        elif node.op_type == "Where":
            changes += _remove_nan_guard(model, node) or _convert_where_to_mul(
                model, node, used_names
            )
    return PassResult(changes, skipped)


def _rewrite_mask_before_softmax(
    model: ir.Model, softmax: ir.Node, used_names: set[str]
) -> int | SkipReason:
    """Convert the mask before `softmax` to a sum with 0 and `MASK_VALUE`, in place; return 1.

    Returns 0 if there is no constant mask that only `softmax` reads, or if it has this form
    already, and a reason if the mask broadcasts the scores, is not float32, differs between
    samples, or masks a complete row.
    """
    node = ir.producer(softmax.inputs[0])
    mask = _match_mask(node)
    if node is None or mask is None or ir.sole_consumer(node.outputs[0]) is not softmax:
        return 0
    scores, array = mask
    shape = ir.get_shape(node.outputs[0])
    masked = _find_masked_positions(array)
    if not masked.any():
        return 0
    if (
        not shape
        or ir.get_shape(scores) != shape
        or not _is_batch_invariant_float(array, len(shape))
    ):
        return SkipReason(
            node, "its mask broadcasts the tensor, is not float, or differs between samples"
        )
    aligned = masked.reshape((1,) * (len(shape) - masked.ndim) + masked.shape)
    if aligned.all(axis=ir.get_attr(softmax, "axis", -1)).any():
        return SkipReason(node, "it masks a complete row, whose weights would change")
    bias = np.where(masked, np.float32(0), array).astype(np.float32)
    mask_array = np.where(aligned, np.float32(MASK_VALUE), np.float32(0))
    has_bias = bool(bias.any())
    is_mask_only = node.op_type == "Add" and not has_bias
    if is_mask_only and np.array_equal(array.reshape(aligned.shape), mask_array):
        return 0
    _replace_with_sums(
        model, node, scores, bias if has_bias else None, mask_array, used_names=used_names
    )
    return 1


def _match_mask(node: ir.Node | None) -> tuple[ir.Value, np.ndarray] | None:
    """Return (computed scores, constant to add) if `node` masks scores by constants, or None.

    `node` is an Add with a constant operand, or a Where with a constant condition that selects
    between the scores and a constant of large negative numbers.
    """
    if ir.is_standard_op(node, "Add"):
        return _match_add_mask(node)
    return _match_where_mask(node) if ir.is_standard_op(node, "Where") else None


def _replace_with_sums(
    model: ir.Model,
    node: ir.Node,
    scores: ir.Value,
    bias: np.ndarray | None,
    mask: np.ndarray,
    *,
    used_names: set[str],
) -> None:
    """Replace `node` by an Add of `scores` and `mask`, with an Add of `bias` before if given.

    `bias` and `mask` become initializers. The output gets a new name instead of that of `node`,
    because the masked elements have other values than before.
    """
    base = node.outputs[0].name
    summands = {"masked": mask} if bias is None else {"bias": bias, "masked": mask}
    new_nodes: list[ir.Node] = []
    source = scores
    for label, array in summands.items():
        initializer = ir.add_initializer(
            model, ir.reserve_name(f"{base}_{label}_constant", used_names), array
        )
        add = ir.make_node(
            "Add",
            [source, initializer],
            origin=node,
            suffix="bias" if label == "bias" else "",
            output=ir.reserve_name(f"{base}_{label}", used_names),
            like=node.outputs[0],
        )
        new_nodes.append(add)
        source = add.outputs[0]
    name = source.name
    ir.replace_nodes(model, [node], new_nodes)
    source.name = name  # a new name, because the masked elements have other values


def _match_add_mask(node: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    """Return (computed operand, constant operand) of an Add, or None if it has no constant."""
    operand = ir.match_constant_operand(node)
    return None if operand is None else (operand.source, operand.array)


def _match_where_mask(node: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    """Return the computed operand of a Where and its constant one as a mask to add, or None.

    The mask is 0 where the computed operand is selected, else the constant. None unless the
    condition and exactly one operand are constant and all selected constants are at most
    `LIKELY_MASK_THRESHOLD`.
    """
    choice = _match_constant_choice(node)
    if choice is None:
        return None
    value, array, visible = choice
    if array.ndim > visible.ndim:
        return None
    masked_values = np.broadcast_arrays(array, visible)[0][~visible.astype(bool)]
    if (masked_values > LIKELY_MASK_THRESHOLD).any():
        return None
    return value, np.where(visible, np.float32(0), array).astype(np.float32)


def _match_constant_choice(node: ir.Node) -> tuple[ir.Value, np.ndarray, np.ndarray] | None:
    """Match a Where with a constant condition and exactly one constant operand.

    Returns (computed operand, constant operand, boolean array: where the computed one is selected),
    or None.
    """
    condition = ir.const_value(node.inputs[0])
    arrays = [ir.const_value(value) for value in node.inputs[1:]]
    if condition is None or (arrays[0] is None) == (arrays[1] is None):
        return None
    index = 0 if arrays[0] is None else 1
    array = arrays[1 - index]
    assert array is not None
    return ir.require_input(node, 1 + index), array, condition if index == 0 else ~condition


def _find_masked_positions(array: np.ndarray) -> np.ndarray:
    """Return a boolean array: which elements of a summand mask their position.

    Those of at most `CERTAIN_MASK_THRESHOLD`, if there is one or if elements above
    `LIKELY_MASK_THRESHOLD` are not all 0; else those of at most `LIKELY_MASK_THRESHOLD`.
    """
    certain, likely = array <= CERTAIN_MASK_THRESHOLD, array <= LIKELY_MASK_THRESHOLD
    return certain if certain.any() or array[~likely].any() else likely


def _is_batch_invariant_float(array: np.ndarray, rank: int) -> bool:
    """Whether `array` is float32 and the same for all samples of a tensor with `rank` axes.

    That holds if it has fewer than `rank` axes, or `rank` axes with size 1 on axis 0 (the batch).
    """
    return array.dtype == np.float32 and (
        array.ndim < rank or (array.ndim == rank and array.shape[0] == 1)
    )


def _convert_where_to_mul(model: ir.Model, node: ir.Node, used_names: set[str]) -> int:
    """Convert a Where between a tensor and zeros to a Mul by 0 and 1, in place.

    Return 1, or 0 if not. The condition must be constant and the same for all samples, the other
    operand a float32 constant of zeros, and the tensor must have the shape of the result. The name
    of the constant is reserved in `used_names`.
    """
    choice = _match_constant_choice(node)
    if choice is None:
        return 0
    value, array, visible = choice
    shape = ir.get_shape(node.outputs[0])
    if array.any() or array.dtype != np.float32 or not shape or ir.get_shape(value) != shape:
        return 0
    factor = visible.astype(np.float32)
    if not _is_batch_invariant_float(factor, len(shape)):
        return 0
    initializer = ir.add_initializer(
        model, ir.reserve_name(f"{node.outputs[0].name}_shown", used_names), factor
    )
    product = ir.make_node(
        "Mul", [value, initializer], origin=node, output="", like=node.outputs[0]
    )
    ir.replace_nodes(model, [node], [product])
    return 1


def _remove_nan_guard(model: ir.Model, node: ir.Node) -> int:
    """Remove a Where(IsNaN(y), ..., y) whose y is the output of a Softmax.

    Return 1, or 0 if it stays. It stays if the producer of the Softmax's input has a constant with
    infinity or NaN: only a completely masked row makes a Softmax NaN, and that needs an infinite
    mask. An IsNaN that nothing reads afterwards is removed too.
    """
    is_nan = ir.producer(node.inputs[0])
    softmax = ir.producer(node.inputs[2])
    if is_nan is None or is_nan.op_type != "IsNaN" or is_nan.inputs[0] is not node.inputs[2]:
        return 0
    if softmax is None or softmax.op_type != "Softmax" or softmax.domain:
        return 0
    if _has_infinite_constant(ir.producer(softmax.inputs[0])):
        return 0
    if not ir.can_bypass_node(node, softmax.outputs[0]):
        return 0
    ir.bypass_node(model, node, softmax.outputs[0])
    if not is_nan.outputs[0].uses():
        model.graph.remove(is_nan, safe=True)
    return 1


def _has_infinite_constant(node: ir.Node | None) -> bool:
    """Whether a constant float input of `node` contains an infinity or NaN.

    False if `node` is None.
    """
    arrays = [] if node is None else [ir.const_value(value) for value in node.inputs]
    return any(
        array is not None and array.dtype.kind == "f" and not np.isfinite(array).all()
        for array in arrays
    )
