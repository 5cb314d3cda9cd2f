"""Compose Attention (opset 23 and later) of products, a mask and a Softmax.

    scores  = softcap(scale Q K^T) + bias       Y = softmax(scores) V

Query heads that share a key head are rows of one product with that head, so that keys and values
are not repeated. Bounds of the standard (causal, windows) and a constant mask are one constant.
A mask of bools computed at run time hides positions by a large negative number before the Softmax
and by zero weights after it: a row without any position gives zeros, as the standard says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ....ir import ir
from ....ir.builder import SubgraphBuilder

__all__ = ["compose_attention"]

_HIDDEN = -1e4  # exp of any score minus this is 0 in float32
_PAST_KEY, _PAST_VALUE, _VALID_LENGTHS = 4, 5, 6  # inputs
_PRESENT_KEY, _PRESENT_VALUE, _SCORES = 1, 2, 3  # outputs
_SCALED, _CAPPED, _MASKED, _WEIGHTS = range(4)  # stages of the scores


class _Geometry(NamedTuple):
    """Sizes of an attention; `past` positions are cached, `keys` is their total number."""

    batch: ir.Dim
    heads: int
    key_heads: int
    queries: int
    keys: int
    past: int
    size: int
    value_size: int
    is_packed: bool

    @property
    def group_rows(self) -> int:
        """Rows of scores per key head."""
        return self.heads // self.key_heads * self.queries


def compose_attention(model: ir.Model, node: ir.Node) -> bool:
    """Replace an Attention by its composition, in place; return whether that was possible.

    It is not with sizes that are not known, valid lengths per sample, masks that are shorter than
    the keys or differ between samples, rows that are hidden completely, and masked scores as an
    output, where hidden positions are infinite.
    """
    geometry = _read_geometry(node)
    if geometry is None or _input(node, _VALID_LENGTHS) is not None:
        return False
    mask = _input(node, 3)
    if mask is not None and not _fits_scores(mask, geometry):
        return False
    bias = _make_constant_bias(node, geometry)
    if bias is not None and np.isneginf(bias).all(axis=-1).any():
        return False
    if _outputs_hidden_scores(node, mask, bias):
        return False
    builder = SubgraphBuilder(model, node)
    query = _split_heads(builder, _require(node, 0), geometry.heads, geometry.size, "query")
    key = _split_heads(builder, _require(node, 1), geometry.key_heads, geometry.size, "key")
    value = _split_heads(
        builder, _require(node, 2), geometry.key_heads, geometry.value_size, "value"
    )
    key = _append_to_cache(builder, _input(node, _PAST_KEY), key, "present_key")
    value = _append_to_cache(builder, _input(node, _PAST_VALUE), value, "present_value")
    outputs: dict[int, ir.Value] = {}
    for index, present in ((_PRESENT_KEY, key), (_PRESENT_VALUE, value)):
        if _is_used(node, index):
            suffix = "key_output" if index == _PRESENT_KEY else "value_output"
            outputs[index] = builder("Identity", [present], list(present.shape or ()), suffix)
    stages = _compute_scores(builder, query, key, geometry)
    _compute_weights(builder, stages, bias, geometry)
    if _is_used(node, _SCORES):
        output = stages[_get_scores_mode(node)]
        outputs[_SCORES] = builder("Identity", [output], list(output.shape or ()), "scores_output")
    _sum_values(builder, stages[_WEIGHTS], value, geometry)
    builder.replace_node(outputs)
    return True


def _input(node: ir.Node, index: int) -> ir.Value | None:
    """Return input `index` of `node`, None if it is absent."""
    return node.inputs[index] if len(node.inputs) > index else None


def _require(node: ir.Node, index: int) -> ir.Value:
    """Return input `index` of `node`, which the standard requires."""
    return ir.require_input(node, index)


def _is_used(node: ir.Node, index: int) -> bool:
    """Whether output `index` of `node` exists and is read or a graph output."""
    if len(node.outputs) <= index:
        return False
    value = node.outputs[index]
    return bool(value.uses()) or value.is_graph_output()


def _get_scores_mode(node: ir.Node) -> int:
    """Return the stage of the scores that `node` has as its fourth output, such as `_MASKED`."""
    return int(ir.get_attr(node, "qk_matmul_output_mode", _SCALED))


def _read_geometry(node: ir.Node) -> _Geometry | None:
    """Return the sizes of the attention `node`; None if one other than the batch is not known."""
    shapes = [ir.get_shape(_require(node, index)) for index in range(3)]
    if any(shape is None or len(shape) not in (3, 4) for shape in shapes):
        return None
    query_dims, key_dims, value_dims = (list(shape or ()) for shape in shapes)
    if len({len(query_dims), len(key_dims), len(value_dims)}) > 1:
        return None
    past_key = _input(node, _PAST_KEY)
    past_shape = (0, 0, 0) if past_key is None else ir.get_shape(past_key)
    fixed_dims = [*query_dims[1:], *key_dims[1:], *value_dims[1:], *(past_shape or ())[2:3]]
    if past_shape is None or any(dim is None for dim in fixed_dims):
        return None
    query, key, value = (
        [int(dim or 0) for dim in dims] for dims in (query_dims, key_dims, value_dims)
    )
    past = int(past_shape[2] or 0)
    if len(query) == 3:
        heads = ir.get_attr(node, "q_num_heads")
        key_heads = ir.get_attr(node, "kv_num_heads")
        sizes = (query[2] // heads, value[2] // key_heads)
        lengths = (query[1], key[1])
    else:
        heads, key_heads = query[1], key[1]
        sizes, lengths = (query[3], value[3]), (query[2], key[2])
    if heads % key_heads:
        return None
    return _Geometry(
        batch=(_require(node, 0).shape or ("N",))[0],
        heads=heads,
        key_heads=key_heads,
        queries=lengths[0],
        keys=past + lengths[1],
        past=past,
        size=sizes[0],
        value_size=sizes[1],
        is_packed=len(query) == 3,
    )


def _fits_scores(mask: ir.Value, geometry: _Geometry) -> bool:
    """Whether `mask` broadcasts to the scores and a constant one is equal for all samples."""
    shape = ir.get_shape(mask)
    if shape is None or len(shape) > 4 or (shape and shape[-1] not in (1, geometry.keys)):
        return False
    is_constant = ir.const_value(mask) is not None
    return not (is_constant and len(shape) == 4 and shape[0] != 1)


def _outputs_hidden_scores(node: ir.Node, mask: ir.Value | None, bias: np.ndarray | None) -> bool:
    """Whether the masked scores are an output, and the mask hides positions by infinity."""
    if not _is_used(node, _SCORES) or _get_scores_mode(node) != _MASKED:
        return False
    has_bools = mask is not None and mask.dtype == ir.DataType.BOOL
    return has_bools or (bias is not None and bool(np.isneginf(bias).any()))


def _make_constant_bias(node: ir.Node, geometry: _Geometry) -> np.ndarray | None:
    """Return the sum of the constant mask and the bounds of `node`, None if it has neither.

    The last two axes are queries and keys. A key j is visible for query i if
    i + past - left <= j <= i + past + right, with right = 0 if the attention is causal.
    """
    mask = ir.const_value(_input(node, 3))
    left = int(ir.get_attr(node, "left_window_size", -1))
    right = int(ir.get_attr(node, "right_window_size", -1))
    if ir.get_attr(node, "is_causal", 0):
        right = 0
    if mask is None and left < 0 and right < 0:
        return None
    distance = np.arange(geometry.keys) - np.arange(geometry.queries)[:, None] - geometry.past
    is_hidden = np.zeros(distance.shape, bool)
    if left >= 0:
        is_hidden |= distance < -left
    if right >= 0:
        is_hidden |= distance > right
    bias = np.where(is_hidden, -np.inf, 0.0).astype(np.float32)
    if mask is None:
        return bias
    if mask.dtype == bool:
        mask = np.where(mask, 0.0, -np.inf)
    return np.asarray(bias + mask.astype(np.float32), np.float32)


def _split_heads(
    builder: SubgraphBuilder, source: ir.Value, heads: int, size: int, suffix: str
) -> ir.Value:
    """Return `source` as [batch, heads, positions, size]; one of four axes is unchanged."""
    dims = ir.require_shape(source)
    if len(dims) == 4:
        return source
    rows = builder.reshape(source, [int(dims[1] or 0), heads, size], suffix)
    return _transpose(builder, rows, (0, 2, 1, 3), f"{suffix}_heads")


def _transpose(
    builder: SubgraphBuilder, source: ir.Value, perm: Sequence[int], suffix: str
) -> ir.Value:
    """Append a Transpose of `source` and return its output."""
    dims = list(source.shape or ())
    shape = [dims[axis] for axis in perm]
    return builder("Transpose", [source], shape, suffix, {"perm": list(perm)})


def _append_to_cache(
    builder: SubgraphBuilder, past: ir.Value | None, value: ir.Value, suffix: str
) -> ir.Value:
    """Return `past` and `value` joined along the positions, `value` itself without a past."""
    if past is None:
        return value
    shape = list(value.shape or ())
    shape[2] = int(ir.require_shape(past)[2] or 0) + int(ir.require_shape(value)[2] or 0)
    return builder("Concat", [past, value], shape, suffix, {"axis": 2})


def _compute_scores(
    builder: SubgraphBuilder, query: ir.Value, key: ir.Value, geometry: _Geometry
) -> dict[int, ir.Value]:
    """Append the scaled products of queries and keys, and softcap, as [batch, heads, rows, keys].

    There is one row per query and head. With softcap, the scaled products are only appended as an
    output of the node.
    """
    node, grouped = builder.node, query
    if geometry.heads != geometry.key_heads:
        sizes = [geometry.key_heads, geometry.group_rows, geometry.size]
        grouped = builder.reshape(query, sizes, "query_groups")
    transposed_key = _transpose(builder, key, (0, 1, 3, 2), "key_columns")
    shape = [geometry.batch, geometry.key_heads, geometry.group_rows, geometry.keys]
    scores = builder("MatMul", [grouped, transposed_key], shape, "products")
    scale = float(ir.get_attr(node, "scale", 0.0) or 1 / math.sqrt(geometry.size))
    softcap = float(ir.get_attr(node, "softcap", 0.0))
    results = {}
    if softcap > 0:
        if _is_used(node, _SCORES) and _get_scores_mode(node) == _SCALED:
            results[_SCALED] = _multiply(builder, scores, scale, "scaled")
        scores = _multiply(builder, scores, scale / softcap, "uncapped")
        scores = builder("Tanh", [scores], shape, "cap")
        scores = _multiply(builder, scores, softcap, "capped")
    else:
        scores = _multiply(builder, scores, scale, "scaled")
    if geometry.heads != geometry.key_heads:
        sizes = [geometry.heads, geometry.queries, geometry.keys]
        scores = builder.reshape(scores, sizes, "scores")
        if _SCALED in results:
            results[_SCALED] = builder.reshape(results[_SCALED], sizes, "scaled_scores")
    return {_SCALED: scores, _CAPPED: scores, **results}


def _multiply(builder: SubgraphBuilder, source: ir.Value, factor: float, suffix: str) -> ir.Value:
    """Append the product of `source` and a number, and return it."""
    constant = builder.constant(np.array(factor, np.float32), f"{suffix}_factor")
    return builder("Mul", [source, constant], list(source.shape or ()), suffix)


def _compute_weights(
    builder: SubgraphBuilder,
    stages: dict[int, ir.Value],
    bias: np.ndarray | None,
    geometry: _Geometry,
) -> None:
    """Append the mask and the Softmax of the capped scores, and add both results to `stages`.

    `bias` is the constant mask, None without one; another mask is input 3 of the node.
    """
    scores = stages[_CAPPED]
    shape, mask, visible = list(scores.shape or ()), _input(builder.node, 3), None
    if mask is not None and ir.const_value(mask) is None:
        addend = mask
        if mask.dtype == ir.DataType.BOOL:
            visible, addend = _convert_visibility(builder, mask)
        scores = builder("Add", [scores, addend], shape, "masked")
    if bias is not None and bias.any():
        constant = builder.constant(bias, "bias")
        scores = builder("Add", [scores, constant], shape, "visible")
    weights = builder("Softmax", [scores], shape, "weights", {"axis": -1})
    if visible is not None:
        weights = builder("Mul", [weights, visible], shape, "visible_weights")
    stages.update({_MASKED: scores, _WEIGHTS: weights})


def _convert_visibility(builder: SubgraphBuilder, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Convert a mask of bools to 1 or 0, and to 0 or a large negative number to add."""
    shape = list(mask.shape or ())
    visible = builder("Cast", [mask], shape, "visibility", {"to": int(ir.DataType.FLOAT)})
    one = builder.constant(np.array(1, np.float32), "one")
    hidden = builder("Sub", [one, visible], shape, "hidden")
    return visible, _multiply(builder, hidden, _HIDDEN, "penalty")


def _sum_values(
    builder: SubgraphBuilder, weights: ir.Value, value: ir.Value, geometry: _Geometry
) -> None:
    """Append the weighted sums of values, in the layout of the node's output."""
    if geometry.heads != geometry.key_heads:
        sizes = [geometry.key_heads, geometry.group_rows, geometry.keys]
        weights = builder.reshape(weights, sizes, "weight_groups")
    shape = [geometry.batch, geometry.key_heads, geometry.group_rows, geometry.value_size]
    sums = builder("MatMul", [weights, value], shape, "sums")
    if geometry.heads != geometry.key_heads:
        sizes = [geometry.heads, geometry.queries, geometry.value_size]
        sums = builder.reshape(sums, sizes, "heads")
    if not geometry.is_packed:
        return
    rows = _transpose(builder, sums, (0, 2, 1, 3), "rows")
    builder.reshape(rows, [geometry.queries, geometry.heads * geometry.value_size], "packed")
