"""Operators that move data: Reshape, Flatten, Squeeze, Unsqueeze, Transpose. Scales pass through.

Chips run them with batch 1; the vendor's graphs carry Squeeze's and Unsqueeze's axes as attributes
(opset 12).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ... import formats
from ...errors import InternalError
from ...formats import Format
from ...graph import ir
from ...lowering import LoweringContext
from ...targets import Target
from .._base import Op, fix_batch_to_one

__all__ = ["Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "explain_batch_move"]


def explain_batch_move(node: ir.Node) -> str | None:
    """Return a reason when a node does not keep axis 0 as the batch, judged by the traced
    shapes.
    """
    source, result = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if source is None or result is None or any(d is None for d in (*source[1:], *result[1:])):
        return "its shape is not known before the run"
    if not source or not result or source[0] != result[0]:
        return "it moves the batch axis"
    return None


class _ShapeRule(Op):
    is_data_movement = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """The batch axis stays where it is."""
        return explain_batch_move(node)


class Reshape(_ShapeRule):
    """Reshape to a constant target."""

    integer_op = formats.RESHAPE
    floats = (("", "Reshape"),)
    may_emit_reshape = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """The target is constant and keeps the batch axis."""
        if ir.const_value(node.inputs[1]) is None:
            return "its target is computed at run time"
        reason = super().explain_rejection(node)
        sizes = [
            math.prod(int(d or 1) for d in (ir.get_shape(v) or ())[1:])
            for v in (node.inputs[0], node.outputs[0])
        ]
        return reason or ("it moves the batch axis" if sizes[0] != sizes[1] else None)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with the target in numbers; batch 1 where graphs hold one sample."""
        shape = ir.require_shape(node.outputs[0])
        target = [int(d) if d is not None else -1 for d in shape]
        if context.target.single_sample:
            target = fix_batch_to_one([-1, *target[1:]])
        else:
            target[0] = -1
        name = f"{node.outputs[0].name}_shape"
        context.emit(
            formats.RESHAPE,
            node,
            [context.get_integer_input(node, 0), context.array(name, np.array(target, np.int64))],
            {},
        )


class Flatten(_ShapeRule):
    """Flatten from an axis on."""

    integer_op = formats.FLATTEN
    floats = (("", "Flatten"),)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Axis 1 only: another one moves the batch."""
        rank = len(ir.get_shape(node.inputs[0]) or ())
        axis = ir.get_attr(node, "axis", 1)
        return (
            super().explain_rejection(node)
            if axis == 1 or axis == 1 - rank
            else "it flattens the batch axis"
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit it with axis 1, the only one that keeps the samples apart."""
        context.emit(formats.FLATTEN, node, context.inputs(node), {"axis": 1})


class Squeeze(_ShapeRule):
    """Drop axes of size 1."""

    integer_op = formats.SQUEEZE
    floats = (("", "Squeeze"),)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with axes as an attribute."""
        source = ir.require_shape(node.inputs[0])
        axes = ir.get_axes(node)
        axes = (
            [i for i, d in enumerate(source) if d == 1 and i]
            if axes is None
            else [a % len(source) for a in axes]
        )
        context.emit(formats.SQUEEZE, node, [context.get_integer_input(node, 0)], {"axes": axes})


class Unsqueeze(_ShapeRule):
    """Insert axes of size 1."""

    integer_op = formats.UNSQUEEZE
    floats = (("", "Unsqueeze"),)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with axes as an attribute."""
        rank = len(ir.require_shape(node.outputs[0]))
        axes = sorted(a % rank for a in ir.get_axes(node) or [])
        context.emit(formats.UNSQUEEZE, node, [context.get_integer_input(node, 0)], {"axes": axes})


def check_transpose_rank(node: ir.Node, target: Target) -> object:
    """transposed tensors have at most {target.transpose.max_rank} axes | merge axes that stay
    together.
    """
    perm, limits = ir.get_attr(node, "perm"), target.transpose
    too_many = limits is not None and perm is not None and len(perm) > limits.max_rank
    return f"{len(perm)} axes" if too_many else None


def _factor_permutation(
    perm: tuple[int, ...], broken: Collection[tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two permutations that make `perm` one after the other, none of them `broken`.

    The last two axes are swapped in the end, where that may be.
    """
    rank = len(perm)
    swap = (*range(rank - 2), rank - 1, rank - 2)
    rest = ((0, *places) for places in itertools.permutations(range(1, rank)))
    for last in (swap, *rest):
        first = tuple(perm[last.index(axis)] for axis in range(rank))
        if not {first, last} & {*broken, tuple(range(rank))}:
            return first, last
    raise InternalError(f"no two transposes make {perm}")


class Transpose(_ShapeRule):
    """Permute axes; the batch axis stays first."""

    constraints = (check_transpose_rank,)
    integer_op = formats.TRANSPOSE
    floats = (("", "Transpose"),)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """The batch axis stays first."""
        perm = ir.get_attr(node, "perm")
        return "it moves the batch axis" if perm is None or perm[0] != 0 else None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit; a permutation that the executor cannot do is made by two others, and of a large
        tensor in parts.
        """
        perm, value = tuple(ir.get_attr(node, "perm")), context.get_integer_input(node, 0)
        shape = ir.require_shape(node.inputs[0])
        if perm in context.target.unsupported_perms:
            first, perm = _factor_permutation(perm, context.target.unsupported_perms)
            form, inputs, attrs = _emit_permutation(node, context, value, shape, first)
            shape = tuple(shape[axis] for axis in first)
            value = context.emit_intermediate(
                form, node, "rotated", inputs, attrs, shape, context.input_qparams(node, 0)
            )
        form, inputs, attrs = _emit_permutation(node, context, value, shape, perm)
        context.emit(form, node, inputs, attrs)


def _emit_permutation(
    node: ir.Node,
    low: LoweringContext,
    value: ir.Value,
    shape: Sequence[int | None],
    perm: tuple[int, ...],
) -> tuple[Format, Sequence[ir.Value], dict[str, Any]]:
    """Return the operator that writes `value` with its axes in the order `perm`, what it reads, and
    its attributes.

    Of a large tensor parts are permuted, which are inserted, and put side by side again: an iqCat.
    """
    q = low.input_qparams(node, 0)
    split_parts = _plan_transpose_parts(shape, perm, low.target)
    if split_parts is None:
        return formats.TRANSPOSE, [value], {"perm": list(perm)}
    axis, ranges = split_parts
    name, size, parts = ir.output_name(node), list(shape), []
    for number, (start, end) in enumerate(ranges):
        bounds = {"start": start, "end": end, "axis": axis, "step": 1}
        slice_bounds = [
            low.array(f"{name}_{key}", np.array([n], np.int64)) for key, n in bounds.items()
        ]
        size[axis] = end - start
        part = low.emit_intermediate(
            formats.SLICE, node, f"part{number}", [value, *slice_bounds], {}, size, q
        )
        turned = [size[a] for a in perm]
        parts.append(
            low.emit_intermediate(
                formats.TRANSPOSE, node, f"turned{number}", [part], {"perm": list(perm)}, turned, q
            )
        )
    return (
        formats.CONCAT,
        parts,
        {"dim": perm.index(axis), **formats.CONCAT.scales([q] * len(parts), q)},
    )


def _plan_transpose_parts(
    shape: Sequence[int | None], perm: tuple[int, ...], target: Target
) -> tuple[int, Sequence[tuple[int, int]]] | None:
    """Return the axis along which a tensor is cut to be permuted, and its ranges; None where it is
    small enough.

    The axis that comes first in the result, if that is long enough: so parts lie one behind the
    other.
    """
    whole = None if target.transpose is None else target.transpose.max_bytes
    if whole is None or None in shape[1:]:
        return None
    sizes = [int(d or 1) for d in shape[1:]]
    total = math.prod(sizes)
    for axis in perm[1:]:
        length = sizes[axis - 1]
        most = whole * length // total
        if 0 < most < length:
            count = -(-length // most)
            each = -(-length // count)
            return axis, [(start, min(start + each, length)) for start in range(0, length, each)]
    return None
