"""Cheaper forms of data movement: concatenations, slices and transposes.

The executor copies row by row, and each copy has a start of 500 cycles, even for one byte. Where
rows are short, the matrix is transposed, its rows are moved as a whole, and it is transposed back.
If the next form transposes it again, both transposes disappear.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ....ir import ir
from ....operators.integer_ops import CONCAT, SLICE, TRANSPOSE
from ..node_builders import MAX_CONCAT_INPUTS
from .graph_editor import Matrix, RewriteEditor, element_count, static_shape
from .proposal import RewriteProposal

__all__ = [
    "get_concat_axis",
    "propose_matrix_transposes",
    "propose_slice_bypass",
    "propose_transposed_concat",
    "propose_transposed_slice",
]


def get_concat_axis(node: ir.Node, rank: int) -> int:
    """Return the nonnegative axis of an iqCat of tensors of `rank`.

    It is attribute `axis`, else `dim`, else 1.
    """
    axis = ir.get_attr(node, "axis")
    return int(ir.get_attr(node, "dim", 1) if axis is None else axis) % rank


def propose_transposed_concat(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """Propose to join rows of transposed matrices and transpose back, for an iqCat.

    This is faster where rows are short, as the executor copies row by row. The cycles contain all
    transposes; the caller decides whether they are fewer. None for other nodes and unknown shapes.
    """
    if node.op_type != CONCAT.name:
        return None
    shape = static_shape(node.outputs[0])
    if shape is None or any(static_shape(value) is None for value in node.inputs):
        return None
    rows = math.prod(shape[: get_concat_axis(node, len(shape))])
    parts = [Matrix(ir.require_input(node, i), rows) for i in range(len(node.inputs))]
    attributes = {name: ir.get_attr(node, name) for name in node.attributes if name != "axis"}
    attributes["dim"] = 0
    concat_shape = [sum(part.columns for part in parts), rows]
    concat_cycles = editor.costs.estimate_cycles(
        CONCAT.name, [part.shape[::-1] for part in parts], concat_shape, **attributes
    )
    cycles = (
        editor.estimate_transpose_cycles(*parts)
        + concat_cycles
        + editor.costs.estimate_transpose_cycles(*concat_shape)
    )

    def write() -> None:
        """Replace `node` by transposes of its inputs, an iqCat on axis 0 and a transpose back."""
        inputs = [
            editor.reshape(editor.transpose(part, node), part.shape[::-1], node) for part in parts
        ]
        result = editor.add_operator(CONCAT.name, inputs, attributes, concat_shape, node)
        editor.replace_output(editor.transpose(Matrix(result, concat_shape[0]), node), node)

    description = "concatenated after transposing, because its rows are short"
    return RewriteProposal(description, cycles, write)


class _SliceRange(NamedTuple):
    """The indices start .. end-1 along an axis."""

    axis: int
    start: int
    end: int


def _match_slice(node: ir.Node) -> _SliceRange | None:
    """Return (axis, start, end) of a Slice of one axis with step 1 and constant bounds.

    None for other nodes, without input 3 (axes), and for unknown shapes.
    """
    if node.op_type != SLICE.name or len(node.inputs) < 4:
        return None
    shape, sliced_shape = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    starts, axes = ir.const_value(node.inputs[1]), ir.const_value(node.inputs[3])
    if shape is None or sliced_shape is None or starts is None or axes is None:
        return None
    steps = ir.const_value(node.inputs[4]) if len(node.inputs) > 4 else None
    if (steps is not None and steps.any() != 1) or (starts.size, axes.size) != (1, 1):
        return None
    axis, start = int(axes.flat[0]) % len(shape), int(starts.flat[0])
    start = max(0, start + shape[axis] if start < 0 else start)
    return _SliceRange(axis, start, start + sliced_shape[axis])


def propose_transposed_slice(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """Propose to slice whole rows of the transposed matrix and transpose back, for a Slice.

    This is faster where rows are short. The cycles contain both transposes; the caller decides.
    None unless it is a Slice of one axis with step 1, constant bounds and known shapes.
    """
    match = _match_slice(node)
    if match is None:
        return None
    axis, start, end = match
    shape = static_shape(node.inputs[0]) or []
    rows, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    source = Matrix(ir.require_input(node), rows)
    sliced_shape = [(end - start) * inner, rows]
    cycles = (
        editor.estimate_transpose_cycles(source)
        + editor.costs.estimate_slice_cycles(element_count(source.value), math.prod(sliced_shape))
        + editor.costs.estimate_transpose_cycles(*sliced_shape)
    )

    def write() -> None:
        """Replace `node` by transpose, slice of whole rows, and transpose back, in place."""
        transposed = editor.reshape(editor.transpose(source, node), source.shape[::-1], node)
        sliced = editor.slice_rows(transposed, start * inner, end * inner, node, str(node.name))
        editor.replace_output(editor.transpose(Matrix(sliced, sliced_shape[0]), node), node)

    description = "sliced after transposing, because its rows are short"
    return RewriteProposal(description, cycles, write)


def propose_slice_bypass(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """Propose to read an input of an iqCat directly, for a Slice that selects just this input.

    The Slice must have the iqCat's axis, and the input the output's scale; the form takes 0 cycles.
    None for other nodes.
    """
    match = _match_slice(node)
    concat = ir.producer(node.inputs[0]) if node.inputs else None
    if match is None or concat is None or concat.op_type != CONCAT.name:
        return None
    axis, start, end = match
    if get_concat_axis(concat, len(static_shape(concat.outputs[0]) or [0])) != axis:
        return None
    input_start = 0
    for index, value in enumerate(concat.inputs):
        input_end = input_start + (static_shape(value) or [0] * (axis + 1))[axis]
        in_scale, out_scale = (ir.get_attr(concat, key) for key in (f"scale_x_{index}", "scale_o"))
        if (input_start, input_end) == (start, end) and in_scale == out_scale:
            write = partial(editor.replace_output, ir.require_input(concat, index), node)
            return RewriteProposal("replaced by the concatenated input it selects", 0.0, write)
        input_start = input_end
    return None


#: Largest number of axes that move independently; no model needs more.
_MAX_AXES = 3


# ---- transposes ----------------------------------------------------------------------------------


def propose_matrix_transposes(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """Propose transposes of matrices, whose cost is known, for a Transpose of not exactly two axes.

    Axes that stay adjacent are merged, then matrices are transposed as a whole or one by one, by
    the cheapest sequence. None for other nodes, unknown shapes, and with more than `_MAX_AXES`
    merged axes.
    """
    if node.op_type != TRANSPOSE.name or not node.inputs:
        return None
    shape, perm = static_shape(node.inputs[0]), list(ir.get_attr(node, "perm") or [])
    if shape is None or len(perm) != len(shape) or len(shape) == 2:
        return None
    lengths, order = _merge_axes(shape, perm)
    if len(order) > _MAX_AXES:
        return None
    cheapest = _find_cheapest_moves(editor, ir.require_input(node), lengths, order)
    if cheapest is None:
        return None
    cycles, moves = cheapest

    def write() -> None:
        """Apply the moves one by one to the input of `node` and replace the node by the result."""
        value = ir.require_input(node)
        for move in moves:
            value = move(value, node)
        editor.replace_output(value, node)

    description = "transposed as matrices, for which there is a cost model"
    return RewriteProposal(description, cycles, write)


def _merge_axes(shape: Sequence[int], perm: Sequence[int]) -> tuple[list[int], list[int]]:
    """Merge the axes of `shape` that `perm` leaves adjacent, and drop axes of length 1.

    Returns
    -------
    lengths : list of int
        Lengths of the merged axes, in the original order.
    order : list of int
        Permutation of the merged axes.
    """
    long_axes = [axis for axis in range(len(shape)) if shape[axis] > 1]
    permuted_axes = [axis for axis in perm if shape[axis] > 1]
    groups: list[list[int]] = []
    for axis in permuted_axes:
        if groups and long_axes.index(axis) == long_axes.index(groups[-1][-1]) + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    sorted_groups = sorted(groups)
    lengths = [math.prod(shape[group[0] : group[-1] + 1]) for group in sorted_groups]
    return lengths, [sorted_groups.index(group) for group in groups]


_Move = Callable[[ir.Value, ir.Node], ir.Value]


def _find_cheapest_moves(
    editor: RewriteEditor, source: ir.Value, lengths: Sequence[int], order: Sequence[int]
) -> tuple[float, list[_Move]] | None:
    """Find the cheapest sequence of moves that brings merged axes of `lengths` into `order`.

    Dijkstra's algorithm over all orders of the axes of `source`. Returns (cycles, moves), with no
    moves if nothing is to be done; None if no sequence leads there.
    """
    counter = itertools.count()  # among equal costs, the first one is used
    heap: list[tuple[float, int, tuple[int, ...], list[_Move]]] = [
        (0.0, next(counter), tuple(range(len(order))), [])
    ]
    visited = set()
    while heap:
        cycles, _, axes, moves = heapq.heappop(heap)
        if axes == tuple(order):
            return cycles, moves
        if axes in visited:
            continue
        visited.add(axes)
        for step in _list_steps(editor, source, lengths, axes, has_moved=bool(moves)):
            entry = (cycles + step.cycles, next(counter), step.axes, [*moves, step.move])
            heapq.heappush(heap, entry)
    return None


class _MoveOption(NamedTuple):
    """A move, its cycles, and the order of the axes after it."""

    cycles: float
    axes: tuple[int, ...]
    move: _Move


def _list_steps(
    editor: RewriteEditor,
    source: ir.Value,
    lengths: Sequence[int],
    axes: tuple[int, ...],
    has_moved: bool,
) -> list[_MoveOption]:
    """List the moves that are possible from one order of the merged axes, with their cycles.

    A move transposes the tensor as one matrix, split at any axis, or, for three axes, each matrix
    of the last two on its own.

    Parameters
    ----------
    source
        Tensor whose axes are moved.
    lengths
        Lengths of its axes in the original order.
    axes
        Current order.
    has_moved
        Whether it was moved before, so that the tensor to move does not exist yet.
    """
    steps: list[_MoveOption] = []
    total = math.prod(lengths)
    for split in range(1, len(axes)):
        rows = math.prod(lengths[axis] for axis in axes[:split])
        if has_moved:
            cycles = editor.costs.estimate_transpose_cycles(rows, total // rows)
        else:
            cycles = editor.estimate_transpose_cycles(Matrix(source, rows))
        move = _make_transpose_move(editor, rows)
        steps.append(_MoveOption(cycles, axes[split:] + axes[:split], move))
    scale = editor.find_scale(source)
    if len(axes) != _MAX_AXES or lengths[axes[0]] > MAX_CONCAT_INPUTS or scale is None:
        return steps
    count, rows, columns = (lengths[axis] for axis in axes)
    matrix_bytes = rows * columns
    matrix_cycles = editor.costs.estimate_slice_cycles(
        total, matrix_bytes
    ) + editor.costs.estimate_transpose_cycles(rows, columns)
    concat_cycles = editor.costs.estimate_concat_cycles([matrix_bytes] * count)
    move = _make_batched_transpose_move(editor, count, rows, scale)
    steps.append(
        _MoveOption(count * matrix_cycles + concat_cycles, (axes[0], axes[2], axes[1]), move)
    )
    return steps


def _make_transpose_move(editor: RewriteEditor, rows: int) -> _Move:
    """Return a function that transposes a tensor, viewed as a matrix of `rows` rows, before a node.

    It takes (tensor, node) and returns the transposed tensor.
    """
    return lambda value, node: editor.transpose(Matrix(value, rows), node)


def _make_batched_transpose_move(
    editor: RewriteEditor, count: int, rows: int, scale: float
) -> _Move:
    """Return a function that transposes `count` consecutive matrices with `rows` rows each.

    It takes (tensor, node), slices out each matrix, transposes it, and joins the results by an
    iqCat with `scale`, whose output it returns.
    """

    def move(value: ir.Value, node: ir.Node) -> ir.Value:
        """Insert, before `node`, a Slice and a transpose per matrix of `value`, joined by an iqCat.

        Returns the output of the iqCat.
        """
        matrix_size = element_count(value) // count
        flat = editor.reshape(value, [count, matrix_size], node)
        results = []
        for index in range(count):
            matrix = Matrix(editor.slice_rows(flat, index, index + 1, node), rows)
            transposed = editor.transpose(matrix, node)
            results.append(editor.reshape(transposed, [1, matrix_size], node))
        return editor.concat_rows(results, scale, node)

    return move
