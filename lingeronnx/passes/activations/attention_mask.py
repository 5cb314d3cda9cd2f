"""A mask in front of a Softmax is one sum with a constant that is 0 or `MASK_VALUE`.

    Add(s, m)        entries of m from -1000 down, or from -50 where the others are 0  -> Add(Add(s,
    rest), m') Where(c, s, v)   v such a number, or minus infinity; c constant                    ->
    Add(s, m') Where(c, p, 0)   anywhere                                                          ->
    Mul(p, c)

What is masked gets no share from the Softmax, before and after; -1e9 and minus infinity have no
place in eight bits, `MASK_VALUE` saturates there. `ops.constant_operand` sees to it that the lowest
integer is far enough. Rows that are masked as a whole stay as they are: they would get other
shares. The guard ``Where(IsNaN(p), 0, p)`` that exporters put behind a Softmax for such rows goes
where there are none.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...ops.functions.attention_masks import (
    CERTAIN_MASK_THRESHOLD,
    LIKELY_MASK_THRESHOLD,
    MASK_VALUE,
)
from .._pass import PassResult, SkipReason


def canonicalize_attention_masks(model: ir.Model) -> PassResult:
    """Rewrite the masks of `model`."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.domain:
            continue
        if node.op_type == "Softmax":
            done = _rewrite_mask_before_softmax(model, node)
            why += [done] if isinstance(done, SkipReason) else []
            changed += not isinstance(done, SkipReason) and done
        elif node.op_type == "Where":
            changed += _remove_nan_guard(model, node) or _convert_where_to_mul(model, node)
    return PassResult(changed, why)


def _rewrite_mask_before_softmax(model: ir.Model, softmax: ir.Node) -> int | SkipReason:
    """Rewrite the mask in front of `softmax`; a Reason for one that stays."""
    node = ir.producer(softmax.inputs[0])
    if node is None or node.domain or ir.sole_consumer(node.outputs[0]) is not softmax:
        return 0
    masked = (
        _match_add_mask(node)
        if node.op_type == "Add"
        else _match_where_mask(node)
        if node.op_type == "Where"
        else None
    )
    if masked is None:
        return 0
    scores, array = masked
    shape = ir.get_shape(node.outputs[0])
    hidden = _find_masked_positions(array)
    if not hidden.any():
        return 0
    if (
        not shape
        or ir.get_shape(scores) != shape
        or not _is_batch_invariant_float(array, len(shape))
    ):
        return SkipReason(
            node, "its mask widens the tensor, is not of floats, or differs between samples"
        )
    full = hidden.reshape((1,) * (len(shape) - hidden.ndim) + hidden.shape)
    if full.all(axis=ir.get_attr(softmax, "axis", -1)).any():
        return SkipReason(node, "it masks a whole row, which would get other shares")
    rest = np.where(hidden, np.float32(0), array).astype(np.float32)
    wanted = np.where(full, np.float32(MASK_VALUE), np.float32(0))
    if (
        node.op_type == "Add"
        and not rest.any()
        and np.array_equal(array.reshape(full.shape), wanted)
    ):
        return 0
    base = node.outputs[0].name
    new: list[ir.Node] = []
    for what, constant in (("bias", rest), ("masked", wanted)):
        if what == "bias" and not rest.any():
            continue
        initializer = ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{base}_{what}_constant"), constant
        )
        new.append(
            ir.make_node(
                "Add",
                [new[-1].outputs[0] if new else scores, initializer],
                origin=node,
                suffix="bias" if what == "bias" else "",
                output=ir.unique_tensor_name(model, f"{base}_{what}"),
                like=node.outputs[0],
            )
        )
    name = new[-1].outputs[0].name
    ir.replace_nodes(model, [node], new)
    new[-1].outputs[0].name = name  # its values are others where it is masked
    return 1


def _match_add_mask(node: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    """Return the computed and the constant operand of an Add."""
    arrays = [ir.const_value(value) for value in node.inputs]
    index = 0 if arrays[0] is None else 1
    array = arrays[1 - index]
    return (
        None
        if array is None or arrays[index] is not None
        else (ir.require_input(node, index), array)
    )


def _match_where_mask(node: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    """Return what a Where by a constant shows of its computed operand, and 0 or the other, constant one as a sum."""
    shown, arrays = (
        ir.const_value(node.inputs[0]),
        [ir.const_value(value) for value in node.inputs[1:]],
    )
    if shown is None or (arrays[0] is None) == (arrays[1] is None):
        return None
    index = 0 if arrays[0] is None else 1
    array, shown = arrays[1 - index], shown if index == 0 else ~shown
    assert array is not None
    hidden = (
        np.broadcast_arrays(array, shown)[0][~shown.astype(bool)]
        if array.ndim <= shown.ndim
        else array
    )
    if array.ndim > shown.ndim or (hidden > LIKELY_MASK_THRESHOLD).any():
        return None
    return ir.require_input(node, 1 + index), np.where(shown, np.float32(0), array).astype(
        np.float32
    )


def _find_masked_positions(array: np.ndarray) -> np.ndarray:
    """Return where a summand masks."""
    surely, likely = array <= CERTAIN_MASK_THRESHOLD, array <= LIKELY_MASK_THRESHOLD
    return surely if surely.any() or array[~likely].any() else likely


def _is_batch_invariant_float(array: np.ndarray, rank: int) -> bool:
    """Whether a constant is the same for all samples and float."""
    return array.dtype == np.float32 and (
        array.ndim < rank or (array.ndim == rank and array.shape[0] == 1)
    )


def _convert_where_to_mul(model: ir.Model, node: ir.Node) -> int:
    """Rewrite a choice between a tensor and 0 by a constant as a product."""
    shown, arrays = (
        ir.const_value(node.inputs[0]),
        [ir.const_value(value) for value in node.inputs[1:]],
    )
    if shown is None or (arrays[0] is None) == (arrays[1] is None):
        return 0
    index = 0 if arrays[0] is None else 1
    array, value = arrays[1 - index], ir.require_input(node, 1 + index)
    shape = ir.get_shape(node.outputs[0])
    if (
        array is None
        or array.any()
        or array.dtype != np.float32
        or not shape
        or ir.get_shape(value) != shape
    ):
        return 0
    factor = (shown if index == 0 else ~shown).astype(np.float32)
    if not _is_batch_invariant_float(factor, len(shape)):
        return 0
    initializer = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{node.outputs[0].name}_shown"), factor
    )
    new = ir.make_node("Mul", [value, initializer], origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [new])
    return 1


def _remove_nan_guard(model: ir.Model, node: ir.Node) -> int:
    """Take out a choice of another value where a Softmax is NaN.

    It is not, unless a row is masked as a whole.
    """
    test = ir.producer(node.inputs[0])
    softmax = ir.producer(node.inputs[2])
    if (
        test is None
        or test.op_type != "IsNaN"
        or test.inputs[0] is not node.inputs[2]
        or softmax is None
    ):
        return 0
    before = ir.producer(softmax.inputs[0])
    constants = [] if before is None else [ir.const_value(value) for value in before.inputs]
    endless = any(
        a is not None and a.dtype.kind == "f" and not np.isfinite(a).all() for a in constants
    )
    if (
        softmax.op_type != "Softmax"
        or softmax.domain
        or endless
        or not ir.can_bypass_node(node, softmax.outputs[0])
    ):
        return 0
    ir.bypass_node(model, node, softmax.outputs[0])
    if not test.outputs[0].uses():
        model.graph.remove(test, safe=True)
    return 1
