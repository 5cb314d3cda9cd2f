"""Channels chosen through the batch axis become a Gather.

ShuffleNet's halves as its authors write them.
    [N, C, H, W] -> Reshape [N*C/2, 2, H*W] -> Transpose -> Reshape [2, N, C/2, H, W] -> Gather 0:
    channels 0, 2, 4, ..

What lies between two tensors of which axis 0 counts the samples, and only moves data, is run on
numbered elements. Where whole channels of a sample end up in the same sample, it is a Gather of
them (and a Reshape, where the sizes differ).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...errors import ModelError
from ...graph import ir, operators
from ...graph.builder import SubgraphBuilder
from ...run.runners import FloatFallback
from .._pass import PassResult, SkipReason

_MOVE_OPS = operators.RESHAPING_OPS | operators.SELECTION_OPS - {"Split"} | {"Transpose"}
_MAX_SAMPLE_ELEMENTS = 1 << 23  # elements of a sample that float32 can number twice


def fold_channel_selection(model: ir.Model) -> PassResult:
    """Rewrite the choices of channels in `model` that pass through its batch axis."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        chain = _collect_move_chain(node)
        chosen = None if chain is None else _trace_channel_order(model, *chain)
        if chain is not None and chosen is not None:
            _emit_gather(model, node, ir.require_input(chain[0]), chosen)
            changed += 1
        elif chain is not None:
            why.append(
                SkipReason(
                    node, "the moves up to it do not choose whole channels of the same sample"
                )
            )
    return PassResult(changed, why)


def _has_unfolded_batch(value: ir.Value | None) -> bool:
    """Whether axis 0 of `value` counts samples of known size, and nothing else does."""
    shape = ir.get_shape(value) if value is not None else None
    known = shape is not None and len(shape) > 1 and shape[0] is None and None not in shape[1:]
    return known and value is not None and not ir.has_folded_batch(value)


def _collect_move_chain(end: ir.Node) -> tuple[ir.Node, list[ir.Node]] | None:
    """Return (the first node, all) of the moves up to `end`, of which one folds channels into the batch, or None."""
    nodes: list[ir.Node] = []
    node: ir.Node | None = end
    if len(end.outputs) != 1 or not _has_unfolded_batch(end.outputs[0]):
        return None
    while node is not None and not node.domain and node.op_type in _MOVE_OPS:
        if any(ir.const_value(value) is None for value in node.inputs[1:] if value is not None):
            return None
        nodes.insert(0, node)
        if _has_unfolded_batch(node.inputs[0]):
            folded = any(ir.has_folded_batch(each.outputs[0]) for each in nodes)
            return (node, nodes) if folded else None
        node = ir.producer(node.inputs[0])
    return None


def _trace_channel_order(
    model: ir.Model, first: ir.Node, nodes: Sequence[ir.Node]
) -> np.ndarray | None:
    """Return which channels of the input of `first` the last of `nodes` holds, in their order.

    None for other moves.
    """
    sizes = [int(d or 1) for d in (ir.get_shape(first.inputs[0]) or ())[1:]]
    count, each = math.prod(sizes), math.prod(sizes[1:])
    kind = ir.require_input(first).dtype
    if kind is None or kind.name != "FLOAT" or not 0 < count <= _MAX_SAMPLE_ELEMENTS:
        return None
    fallback = FloatFallback(model, nodes, {str(nodes[-1].outputs[0].name)})
    numbers = np.arange(2 * count, dtype=np.float32).reshape(2, *sizes)
    wanted = fallback.outputs.index(str(nodes[-1].outputs[0].name))
    try:
        both, alone = (fallback.run_batch([x])[wanted] for x in (numbers, numbers[:1]))
    except ModelError:
        return None
    if (
        len(alone) != 1
        or len(both) != 2
        or not all(np.array_equal(both[i], alone[0] + i * count) for i in (0, 1))
    ):
        return None
    if alone.size % each:
        return None
    rows = alone.astype(np.int64).reshape(-1, each)
    whole = np.array_equal(rows, rows[:, :1] + np.arange(each)) and not (rows[:, 0] % each).any()
    return rows[:, 0] // each if whole else None


def _emit_gather(model: ir.Model, node: ir.Node, source: ir.Value, chosen: np.ndarray) -> None:
    """Put a Gather of channels, and a Reshape where the sizes differ, in the place of `node`."""
    shape, result = (
        list(source.shape or ()),
        [int(d or 1) for d in (ir.get_shape(node.outputs[0]) or ())[1:]],
    )
    make = SubgraphBuilder(model, node)
    value, sizes = source, [len(chosen), *(int(d) for d in shape[2:])]  # type: ignore[arg-type]
    if not np.array_equal(chosen, np.arange(int(shape[1]))):  # type: ignore[arg-type]
        value = make(
            "Gather",
            [value, make.constant(chosen, "channels")],
            [shape[0], *sizes],
            "chosen",
            {"axis": 1},
        )
    if sizes != result or value is source:
        make.reshape(value, result, "sizes")
    make.replace_node()
