"""Convert a selection of channels by way of the batch axis to a Gather.

ShuffleNet's halves, as its authors write them:

    [N, C, H, W] -> Reshape [N*C/2, 2, H*W] -> Transpose -> Reshape [2, N, C/2, H, W] -> Gather 0:
    channels 0, 2, 4, ..

A chain of data movement between two tensors with the batch on axis 0 is run on numbered elements.
If complete channels of a sample end up in the same sample, the chain is a Gather of channels, and a
Reshape if the shape differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....common.errors import ModelError
from ....ir import float_ops, ir
from ....ir.builder import SubgraphBuilder
from ....runtime.runners import FloatFallback
from .._pass import PassResult, SkipReason

MOVE_OPS = float_ops.RESHAPING_OPS | float_ops.SELECTION_OPS - {"Split"} | {"Transpose"}
_MAX_SAMPLE_ELEMENTS = 1 << 23  # the elements of two samples can be numbered in float32


def fold_channel_selection(model: ir.Model) -> PassResult:
    """Convert node chains of `model` that select channels by way of the batch axis to a Gather.

    In place. A chain of nodes that reshape, transpose or select (`MOVE_OPS`) between tensors with
    the plain batch on axis 0 becomes one Gather of channels (and a Reshape) if it selects complete
    channels of a sample, else it is skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        chain = _collect_move_chain(node)
        if chain is None:
            continue
        channels = _trace_channel_order(model, chain)
        if channels is None:
            reason = "the data movement up to it does not select complete channels of a sample"
            skipped.append(SkipReason(node, reason))
            continue
        _emit_gather(model, node, ir.require_input(chain[0]), channels)
        changes += 1
    return PassResult(changes, skipped)


def _has_unfolded_batch(value: ir.Value | None) -> bool:
    """Whether axis 0 of `value` is exactly the batch and all other sizes are known."""
    shape = ir.get_shape(value) if value is not None else None
    is_batched = shape is not None and len(shape) > 1 and shape[0] is None and None not in shape[1:]
    return is_batched and value is not None and not ir.has_folded_batch(value)


def _collect_move_chain(end: ir.Node) -> list[ir.Node] | None:
    """Return the chain of nodes up to `end` that folds channels into the batch, or None.

    Its nodes are of `MOVE_OPS`, with constant operands besides input 0. It starts and ends at
    tensors whose axis 0 is exactly the batch.
    """
    if len(end.outputs) != 1 or not _has_unfolded_batch(end.outputs[0]):
        return None
    nodes: list[ir.Node] = []
    node: ir.Node | None = end
    while ir.is_standard_op(node, *MOVE_OPS) and _has_constant_operands(node):
        nodes.insert(0, node)
        if _has_unfolded_batch(node.inputs[0]):
            folds_batch = any(ir.has_folded_batch(member.outputs[0]) for member in nodes)
            return nodes if folds_batch else None
        node = ir.producer(node.inputs[0])
    return None


def _has_constant_operands(node: ir.Node) -> bool:
    """Whether all inputs of `node` except the first are constant."""
    operands = [value for value in node.inputs[1:] if value is not None]
    return all(ir.const_value(value) is not None for value in operands)


def _trace_channel_order(model: ir.Model, chain: Sequence[ir.Node]) -> np.ndarray | None:
    """Return the channels (axis 1) of the input of `chain` that its output contains, in order.

    None if the output does not consist of complete channels of the same sample, or if the input is
    not float32 or has more than `_MAX_SAMPLE_ELEMENTS` elements per sample. `chain` is run on
    numbered elements.
    """
    source = ir.require_input(chain[0])
    sample_dims = ir.get_sample_dims(source)
    sample_size, channel_size = math.prod(sample_dims), math.prod(sample_dims[1:])
    if not ir.is_float32(source) or not 0 < sample_size <= _MAX_SAMPLE_ELEMENTS:
        return None
    order = _trace_element_order(model, chain, [2, *sample_dims])
    if order is None or order.size % channel_size:
        return None
    rows = order.reshape(-1, channel_size)
    starts = rows[:, 0]
    if (starts % channel_size).any():
        return None
    if not np.array_equal(rows, starts[:, None] + np.arange(channel_size)):
        return None
    return starts // channel_size


def _trace_element_order(
    model: ir.Model, chain: Sequence[ir.Node], shape: Sequence[int]
) -> np.ndarray | None:
    """Return for each output element of `chain` its index in the input, for one sample.

    `shape` is that of an input of two samples, which is run with numbered elements. None if the
    chain fails, or mixes samples.
    """
    output_name = str(chain[-1].outputs[0].name)
    fallback = FloatFallback(model, chain, {output_name})
    output_index = fallback.outputs.index(output_name)
    numbered = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    try:
        both = fallback.run_batch([numbered])[output_index]
        first = fallback.run_batch([numbered[:1]])[output_index]
    except ModelError:
        return None
    if len(first) != 1 or len(both) != 2:
        return None
    sample_size = math.prod(shape[1:])
    if any(not np.array_equal(both[i], first[0] + i * sample_size) for i in (0, 1)):
        return None
    return first.astype(np.int64)


def _emit_gather(model: ir.Model, node: ir.Node, source: ir.Value, channels: np.ndarray) -> None:
    """Replace `node` by a Gather of `channels` (axis 1 of `source`) and a Reshape.

    There is no Gather if `channels` are all in order, and a Reshape only if the shape differs or
    there is no Gather.
    """
    shape = list(source.shape or ())
    result_shape = [int(dim or 1) for dim in (ir.get_shape(node.outputs[0]) or ())[1:]]
    build = SubgraphBuilder(model, node)
    value = source
    sizes = [len(channels), *(int(dim) for dim in shape[2:])]  # type: ignore[arg-type]
    if not np.array_equal(channels, np.arange(int(shape[1]))):  # type: ignore[arg-type]
        value = build(
            "Gather",
            [value, build.constant(channels, "channels")],
            [shape[0], *sizes],
            "chosen",
            {"axis": 1},
        )
    if sizes != result_shape or value is source:
        build.reshape(value, result_shape, "sizes")
    build.replace_node()
