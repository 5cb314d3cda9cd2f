"""Reshape and Transpose of integers; a limit returns None if kept, else the offending value.

Also Flatten, Squeeze and Unsqueeze. The scale is unchanged.

Chips run them with batch 1. In the vendor's graphs the axes of Squeeze and Unsqueeze are attributes
(opset 12).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ...common.errors import InternalError
from ...ir import ir
from ...targets import Target
from .. import integer_ops
from .._lowering import Op, fix_batch_to_one
from ..integer_ops import Format
from ..lowering_context import LoweringContext

__all__ = ["Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "explain_batch_move"]


def explain_batch_move(node: ir.Node) -> str | None:
    """Explain why axis 0 of the output of `node` is not the batch of its input, or None if it is.

    Reasons: the sizes of axis 0 differ, or another size of input or output is unknown.
    """
    source, result = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if source is None or result is None or any(d is None for d in (*source[1:], *result[1:])):
        return "its shape is not known before the run"
    if not source or not result or source[0] != result[0]:
        return "it moves the batch axis"
    return None


class _ShapeRule(Op):
    """Base of rules that keep the batch axis."""

    is_data_movement = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why `node` has no integer form: it moves the batch axis, or a size is unknown.

        Or None.
        """
        return explain_batch_move(node)


def _count_sample_elements(shape: Sequence[int | None]) -> int:
    """Return the number of elements of a sample of `shape`, unknown dimensions counted as 1."""
    return math.prod(int(dim or 1) for dim in shape[1:])


class Reshape(_ShapeRule):
    """Reshape to a constant target."""

    integer_op = integer_ops.RESHAPE
    floats = (("", "Reshape"),)
    may_emit_reshape = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the Reshape has no integer form, or None if it has one.

        Reasons: a target computed at run time, unknown sizes, another batch axis, and numbers of
        elements per sample (without axis 0) that differ between input and output.
        """
        if ir.const_value(node.inputs[1]) is None:
            return "its target is computed at run time"
        reason = super().explain_rejection(node)
        if reason is not None:
            return reason
        source, result = ir.get_shape(node.inputs[0]) or (), ir.get_shape(node.outputs[0]) or ()
        if _count_sample_elements(source) != _count_sample_elements(result):
            return "it moves the batch axis"
        return None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Reshape to the inferred output shape, not to the node's own target.

        The batch dimension is 1 on single-sample targets and -1 on others; an unknown other
        dimension is -1.
        """
        shape = ir.require_shape(node.outputs[0])
        target = [int(d) if d is not None else -1 for d in shape]
        if context.target.single_sample:
            target = fix_batch_to_one([-1, *target[1:]])
        else:
            target[0] = -1
        name = f"{node.outputs[0].name}_shape"
        context.emit(
            integer_ops.RESHAPE,
            node,
            [context.get_integer_input(node, 0), context.array(name, np.array(target, np.int64))],
            {},
        )


class Flatten(_ShapeRule):
    """Flatten of all axes after the batch."""

    integer_op = integer_ops.FLATTEN
    floats = (("", "Flatten"),)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the Flatten has no integer form, or None if it has one.

        An axis other than 1 (also written 1 - rank) is rejected, since it would flatten the batch
        axis; unknown sizes are too.
        """
        rank = len(ir.get_shape(node.inputs[0]) or ())
        axis = ir.get_attr(node, "axis", 1)
        if axis not in (1, 1 - rank):
            return "it flattens the batch axis"
        return super().explain_rejection(node)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Flatten with axis 1 into `context`: all axes after the batch become one."""
        context.emit(integer_ops.FLATTEN, node, context.inputs(node), {"axis": 1})


class Squeeze(_ShapeRule):
    """Remove axes of size 1."""

    integer_op = integer_ops.SQUEEZE
    floats = (("", "Squeeze"),)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Squeeze with the axes as an attribute, counted from the front, into `context`.

        Without axes, all of size 1 but the batch are removed.
        """
        source = ir.require_shape(node.inputs[0])
        axes = ir.get_axes(node)
        if axes is None:
            axes = [axis for axis, dim in enumerate(source) if dim == 1 and axis]
        else:
            axes = [axis % len(source) for axis in axes]
        context.emit(
            integer_ops.SQUEEZE, node, [context.get_integer_input(node, 0)], {"axes": axes}
        )


class Unsqueeze(_ShapeRule):
    """Insert axes of size 1."""

    integer_op = integer_ops.UNSQUEEZE
    floats = (("", "Unsqueeze"),)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Unsqueeze with the axes, sorted and counted from the front, as an attribute."""
        rank = len(ir.require_shape(node.outputs[0]))
        axes = sorted(a % rank for a in ir.get_axes(node) or [])
        context.emit(
            integer_ops.UNSQUEEZE, node, [context.get_integer_input(node, 0)], {"axes": axes}
        )


def check_transpose_rank(node: ir.Node, target: Target) -> str | None:
    """transposed tensors have at most {target.transpose.max_rank} axes | merge axes that stay
    together.
    """
    perm, limits = ir.get_attr(node, "perm"), target.transpose
    too_many = limits is not None and perm is not None and len(perm) > limits.max_rank
    return f"{len(perm)} axes" if too_many else None


def _factor_permutation(
    perm: tuple[int, ...], broken: Collection[tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (first, second): Transposes by first, then second, permute the axes by `perm`.

    Neither is in `broken`, nor the identity. The second one swaps the last two axes if that meets
    this condition, and keeps axis 0 in any case. Raises an InternalError if there is no such pair.
    """
    rank = len(perm)
    swap = (*range(rank - 2), rank - 1, rank - 2)
    candidates = ((0, *axes) for axes in itertools.permutations(range(1, rank)))
    for last in (swap, *candidates):
        first = tuple(perm[last.index(axis)] for axis in range(rank))
        if not {first, last} & {*broken, tuple(range(rank))}:
            return first, last
    raise InternalError(f"no two supported transposes compose to {perm}")


class Transpose(_ShapeRule):
    """Permutation of axes that keeps the batch first: Transpose."""

    constraints = (check_transpose_rank,)
    integer_op = integer_ops.TRANSPOSE
    floats = (("", "Transpose"),)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why the Transpose has no integer form: its permutation moves axis 0; or None.

        Without `perm`, which reverses the axes, it does.
        """
        perm = ir.get_attr(node, "perm")
        return "it moves the batch axis" if perm is None or perm[0] != 0 else None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Transpose into `context`, or two if the executor does not support the permutation.

        A permutation in the target's `unsupported_perms` is factored in two that are not. A tensor
        that is too large for one Transpose is transposed in slices.
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
    """Return the operator that permutes the axes of `value` by `perm`, with inputs and attributes.

    The caller emits it. It is a Transpose; for a tensor above the target's limit, an iqCat of
    transposed slices, whose nodes are emitted here into `low`. `shape` is that of `value`.
    """
    q = low.input_qparams(node, 0)
    split_parts = _plan_transpose_parts(shape, perm, low.target)
    if split_parts is None:
        return integer_ops.TRANSPOSE, [value], {"perm": list(perm)}
    axis, ranges = split_parts
    name, part_shape, parts = ir.output_name(node), list(shape), []
    attrs = {"perm": list(perm)}
    for number, (start, end) in enumerate(ranges):
        inputs = [value]
        for key, bound in (("start", start), ("end", end), ("axis", axis), ("step", 1)):
            inputs.append(low.array(f"{name}_{key}", np.array([bound], np.int64)))
        part_shape[axis] = end - start
        part = low.emit_intermediate(
            integer_ops.SLICE, node, f"part{number}", inputs, {}, part_shape, q
        )
        transposed_shape = [part_shape[axis] for axis in perm]
        transposed = low.emit_intermediate(
            integer_ops.TRANSPOSE, node, f"turned{number}", [part], attrs, transposed_shape, q
        )
        parts.append(transposed)
    qparams_attrs = integer_ops.CONCAT.make_qparams_attributes([q] * len(parts), q)
    return integer_ops.CONCAT, parts, {"dim": perm.index(axis), **qparams_attrs}


def _plan_transpose_parts(
    shape: Sequence[int | None], perm: tuple[int, ...], target: Target
) -> tuple[int, Sequence[tuple[int, int]]] | None:
    """Return the input axis and the ranges (start, end) of slices in which to transpose a tensor.

    None if the tensor has at most the target's `max_bytes` per sample, no limit or shape is known,
    or no axis is long enough. The first axis of the result is preferred, so that the slices are
    contiguous there.
    """
    max_bytes = None if target.transpose is None else target.transpose.max_bytes
    if max_bytes is None or None in shape[1:]:
        return None
    dims = [int(dim or 1) for dim in shape[1:]]
    total = math.prod(dims)
    for axis in perm[1:]:
        length = dims[axis - 1]
        max_length = max_bytes * length // total
        if 0 < max_length < length:
            slice_count = -(-length // max_length)
            step = -(-length // slice_count)
            return axis, [(start, min(start + step, length)) for start in range(0, length, step)]
    return None
