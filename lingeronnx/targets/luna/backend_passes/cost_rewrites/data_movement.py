"""Other forms of what only moves data: concatenations, slices and transposes.

The executor copies line by line, and each copy has its start of 500 cycles, even for one byte.
Where lines are short, the matrix is turned, its rows are moved as a whole, and it is turned back.
What one form turns back the next one turns again: both go.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

from .....formats import CONCAT, SLICE, TRANSPOSE
from .....graph import ir
from .graph_editor import MAX_CONCAT_INPUTS, Matrix, RewriteEditor, element_count, static_shape
from .proposal import RewriteProposal

__all__ = [
    "get_concat_axis",
    "propose_matrix_transposes",
    "propose_slice_bypass",
    "propose_transposed_concat",
    "propose_transposed_slice",
]


def get_concat_axis(node: ir.Node, rank: int) -> int:
    """Return the axis of an iqCat."""
    axis = ir.get_attr(node, "axis")
    return int(ir.get_attr(node, "dim", 1) if axis is None else axis) % rank


def propose_transposed_concat(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """An iqCat of short lines: matrices that are turned, one below the other."""
    shape = static_shape(node.outputs[0])
    if (
        node.op_type != CONCAT.name
        or shape is None
        or any(static_shape(v) is None for v in node.inputs)
    ):
        return None
    rows = math.prod(shape[: get_concat_axis(node, len(shape))])
    values = [ir.require_input(node, i) for i in range(len(node.inputs))]
    parts = [Matrix(v, rows) for v in values]
    attributes = {
        **{name: ir.get_attr(node, name) for name in node.attributes if name != "axis"},
        "dim": 0,
    }
    result = [sum(p.columns for p in parts), rows]
    joining = editor.costs.estimate_cycles(
        CONCAT.name, [p.shape[::-1] for p in parts], result, **attributes
    )

    def write() -> None:
        turned = [editor.reshape(editor.transpose(p, node), p.shape[::-1], node) for p in parts]
        joined = editor.add_operator(CONCAT.name, turned, attributes, result, node)
        editor.replace_output(editor.transpose(Matrix(joined, result[0]), node), node)

    what = "joined as matrices that are turned, since its lines are short"
    return RewriteProposal(
        what,
        editor.estimate_transpose_cycles(*parts)
        + joining
        + editor.costs.estimate_transpose_cycles(*result),
        write,
    )


def _match_slice(node: ir.Node) -> tuple[int, int, int] | None:
    """Return axis, start and end of a Slice of one axis.

    None for anything else, and for open sizes.
    """
    if node.op_type != SLICE.name or len(node.inputs) < 4:
        return None
    before, after = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if before is None or after is None:
        return None
    starts, axes = ir.const_value(node.inputs[1]), ir.const_value(node.inputs[3])
    steps = ir.const_value(node.inputs[4]) if len(node.inputs) > 4 else None
    if (
        starts is None
        or axes is None
        or starts.size != 1
        or axes.size != 1
        or (steps is not None and steps.any() != 1)
    ):
        return None
    axis, start = int(axes.flat[0]) % len(before), int(starts.flat[0])
    start = max(0, start + before[axis] if start < 0 else start)
    return axis, start, start + after[axis]


def propose_transposed_slice(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """A Slice of short lines: some rows of the matrix that is turned."""
    place = _match_slice(node)
    if place is None:
        return None
    axis, start, end = place
    shape = static_shape(node.inputs[0]) or []
    rows, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    source = Matrix(ir.require_input(node), rows)
    taken = [(end - start) * inner, rows]
    cycles = (
        editor.estimate_transpose_cycles(source)
        + editor.costs.estimate_slice_cycles(element_count(source.value), math.prod(taken))
        + editor.costs.estimate_transpose_cycles(*taken)
    )

    def write() -> None:
        turned = editor.reshape(editor.transpose(source, node), source.shape[::-1], node)
        some = editor.slice_rows(turned, start * inner, end * inner, node, str(node.name))
        editor.replace_output(editor.transpose(Matrix(some, taken[0]), node), node)

    return RewriteProposal(
        "rows of a matrix that is turned, since its lines are short", cycles, write
    )


def propose_slice_bypass(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """A Slice of what an iqCat joined, where it is one of its inputs at the same scale."""
    place, join = _match_slice(node), ir.producer(node.inputs[0]) if node.inputs else None
    if place is None or join is None or join.op_type != CONCAT.name:
        return None
    axis, start, end = place
    if get_concat_axis(join, len(static_shape(join.outputs[0]) or [0])) != axis:
        return None
    begin = 0
    for index, value in enumerate(join.inputs):
        length = (static_shape(value) or [0] * (axis + 1))[axis]
        if (begin, begin + length) == (start, end) and ir.get_attr(
            join, f"scale_x_{index}"
        ) == ir.get_attr(join, "scale_o"):
            return RewriteProposal(
                "it is what was joined before",
                0.0,
                partial(editor.replace_output, ir.require_input(join, index), node),
            )
        begin += length
    return None


#: Axes that move by themselves, at most: of more nobody has asked.
_MAX_AXES = 3


# ---- transposes ----------------------------------------------------------------------------------------------------


def propose_matrix_transposes(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """A Transpose: of axes that stay together one is made.

    Then matrices are turned, as a whole or one by one.
    """
    shape, perm = (
        static_shape(node.inputs[0]) if node.inputs else None,
        list(ir.get_attr(node, "perm") or []),
    )
    if (
        node.op_type != TRANSPOSE.name
        or shape is None
        or len(perm) != len(shape)
        or len(shape) == 2
    ):
        return None
    lengths, order = _merge_axes(shape, perm)
    steps = (
        _find_cheapest_moves(editor, ir.require_input(node), lengths, order)
        if len(order) <= _MAX_AXES
        else None
    )
    if steps is None:
        return None
    cycles, moves = steps

    def write() -> None:
        value = ir.require_input(node)
        for move in moves:
            value = move(value, node)
        editor.replace_output(value, node)

    return RewriteProposal("turned as matrices, whose price is known", cycles, write)


def _merge_axes(shape: Sequence[int], perm: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the sizes of the axes that move by themselves, and their order afterwards."""
    moved = [axis for axis in perm if shape[axis] > 1]
    groups: list[list[int]] = []
    real = [axis for axis in range(len(shape)) if shape[axis] > 1]
    for axis in moved:
        after = groups and real.index(axis) == real.index(groups[-1][-1]) + 1
        groups[-1].append(axis) if after else groups.append([axis])
    first = sorted(groups)
    return [math.prod(shape[axis] for axis in group) for group in first], [
        first.index(group) for group in groups
    ]


_Move = Callable[[ir.Value, ir.Node], ir.Value]


def _find_cheapest_moves(
    sheet: RewriteEditor, source: ir.Value, lengths: Sequence[int], order: Sequence[int]
) -> tuple[float, list[_Move]] | None:
    """Return cycles and moves that bring the axes into `order`.

    The shortest way over all orders of three axes.
    """
    numbers = itertools.count()  # of equal prices the first
    heap: list[tuple[float, int, tuple[int, ...], list[_Move]]] = [
        (0.0, next(numbers), tuple(range(len(order))), [])
    ]
    done = set()
    while heap:
        cycles, _, axes, moves = heapq.heappop(heap)
        if axes == tuple(order):
            return cycles, moves
        if axes in done:
            continue
        done.add(axes)
        for more, after, move in _list_moves(sheet, source, lengths, axes, bool(moves)):
            heapq.heappush(heap, (cycles + more, next(numbers), after, [*moves, move]))
    return None


def _list_moves(
    sheet: RewriteEditor,
    source: ir.Value,
    lengths: Sequence[int],
    axes: tuple[int, ...],
    has_moved: bool,
) -> list[tuple[float, tuple[int, ...], _Move]]:
    """Return cycles, order afterwards and what is done of every move from the order `axes`.

    source : what moves; moved : whether it has moved before, and is no tensor of the graph yet.
    """
    found: list[tuple[float, tuple[int, ...], _Move]] = []
    whole = math.prod(lengths)
    for split in range(1, len(axes)):
        rows = math.prod(lengths[axis] for axis in axes[:split])
        cycles = (
            sheet.costs.estimate_transpose_cycles(rows, whole // rows)
            if has_moved
            else sheet.estimate_transpose_cycles(Matrix(source, rows))
        )
        found.append((cycles, axes[split:] + axes[:split], _make_transpose_move(sheet, rows)))
    scale = sheet.find_scale(source)
    if len(axes) == _MAX_AXES and lengths[axes[0]] <= MAX_CONCAT_INPUTS and scale is not None:
        count, rows, columns = (lengths[axis] for axis in axes)
        one = rows * columns
        each = sheet.costs.estimate_slice_cycles(
            whole, one
        ) + sheet.costs.estimate_transpose_cycles(rows, columns)
        cycles = count * each + sheet.costs.estimate_concat_cycles([one] * count)
        found.append(
            (
                cycles,
                (axes[0], axes[2], axes[1]),
                _make_batched_transpose_move(sheet, count, rows, scale),
            )
        )
    return found


def _make_transpose_move(editor: RewriteEditor, rows: int) -> _Move:
    return lambda value, node: editor.transpose(Matrix(value, rows), node)


def _make_batched_transpose_move(
    sheet: RewriteEditor, count: int, rows: int, scale: float
) -> _Move:
    """Return the move that turns `count` matrices of so many rows, held at `scale`, that lie one behind the other."""

    def move(value: ir.Value, node: ir.Node) -> ir.Value:
        one = element_count(value) // count
        lines = sheet.reshape(value, [count, one], node)
        turned = []
        for index in range(count):
            alone = sheet.slice_rows(lines, index, index + 1, node)
            turned.append(sheet.reshape(sheet.transpose(Matrix(alone, rows), node), [1, one], node))
        return sheet.concat_rows(turned, scale, node)

    return move
