"""Replace a dilated kernel if the platform has no dilation: by rows of phases, or with zeros.

A 1-D input viewed in rows of ``d`` positions has each phase of the dilation ``d`` in a column. A
kernel of ``k`` taps with dilation ``d`` therefore is an undilated ``k x 1`` kernel over these rows:
exact, with as many products as before. The same holds for an image and a kernel of one column.

A kernel that becomes too large by inserting zeros is then split by `kernel_split`, which omits
parts with zeros only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....ir import ir
from ....operators.conv_geometry import ConvGeometry
from ....targets import Target
from .._base import RewriteBuilder, can_lower, format_sizes, get_sizes, match_conv

__all__ = ["expand_dilation", "fold_dilation_into_rows"]

_MAX_EXPANDED_KERNEL = 33  # taps per side; in larger kernels the zeros would dominate the cost


def expand_dilation(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Insert zeros between the taps of a dilated convolution, and remove the dilation, in place.

    Only if the target says that this fixes a limit that the node breaks, and the expanded kernel
    has at most `_MAX_EXPANDED_KERNEL` taps on every axis. Returns the description and the cost of
    the change, or None without a change.
    """
    conv = match_conv(node, target)
    if conv is None or not target.needs_rewrite(node, "expand-dilation"):
        return None
    geometry, weight = conv
    kernel = [
        (size - 1) * dilation + 1
        for size, dilation in zip(geometry.kernel, geometry.dilations, strict=True)
    ]
    if max(kernel) > _MAX_EXPANDED_KERNEL:
        return None
    expanded = np.zeros((*weight.shape[:2], *kernel), weight.dtype)
    tap_slices = (slice(None, None, dilation) for dilation in geometry.dilations)
    expanded[(slice(None), slice(None), *tap_slices)] = weight
    ir.set_constant_input(model, node, 1, expanded, "spread")
    ir.set_attr(node, "kernel_shape", kernel)
    ir.set_attr(node, "dilations", [1] * len(kernel))
    description = (
        f"{_format_dilated_kernel(geometry)} expanded to {format_sizes(kernel)} with zeros"
    )
    return description, "exact"


def _format_dilated_kernel(geometry: ConvGeometry) -> str:
    """Format kernel and dilation of `geometry` as "kernel 3x3 with dilation 2x2"."""
    kernel, dilation = format_sizes(geometry.kernel), format_sizes(geometry.dilations)
    return f"kernel {kernel} with dilation {dilation}"


def fold_dilation_into_rows(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Replace a convolution that is dilated along one axis by one over rows of phases.

    A row has one dilation's positions, so that a column is one phase. Only if the node breaks a
    limit on dilation. If the axis would have to be padded to full rows, or the result sliced, the
    expanded kernel must also be longer than the longest kernel that need not be split. Returns the
    description and the cost of the change; None, without a change, also if no single axis is
    dilated or the platform cannot run the new Conv or Pad.
    """
    conv = match_conv(node, target)
    if conv is None or not target.needs_rewrite(node, "expand-dilation"):
        return None
    geometry, weight = conv
    axis = _find_dilated_axis(geometry)
    if axis is None:
        return None
    rows = _plan_phase_rows(geometry, axis)
    taps, dilation = geometry.kernel[axis], geometry.dilations[axis]
    if not rows.is_exact and (taps - 1) * dilation < _get_max_1d_kernel(geometry, target):
        return None
    builder = RewriteBuilder(model, node)
    _emit_phase_row_conv(builder, geometry, weight, axis, rows)
    limited_nodes = [new for new in builder.nodes if new.op_type in ("Pad", "Conv")]
    if not all(can_lower(new, target) for new in limited_nodes):
        builder.discard()
        return None
    builder.replace_node()
    return f"{_format_dilated_kernel(geometry)} as {taps}x1 over rows of {dilation}", "exact"


class _PhaseRows(NamedTuple):
    """Layout of a dilated axis in rows as long as the dilation: a column is one phase."""

    in_count: int  # rows of the input
    pad_above: int
    pad_below: int
    out_count: int  # rows of the result
    out_start: int  # first position of the result that is used
    is_exact: bool  # whether input and result consist of full rows


def _plan_phase_rows(geometry: ConvGeometry, axis: int) -> _PhaseRows:
    """Plan the layout of `axis` in rows of as many positions as its dilation, with padding.

    A column is one phase then, and the kernel is a column of its taps.
    """
    taps, dilation, pad = geometry.kernel[axis], geometry.dilations[axis], geometry.pads[axis]
    in_length, out_length = (
        int(shape[2 + axis] or 0) for shape in (geometry.input_shape, geometry.result)
    )
    count = max(-(-in_length // dilation), taps)  # the packer requires a map as large as the kernel
    pad_above = -(-pad // dilation)
    out_start = pad_above * dilation - pad
    pad_below = max(0, -(-(out_start + out_length) // dilation) - count - pad_above + taps - 1)
    out_count = count + pad_above + pad_below - taps + 1
    is_exact = (count * dilation, out_count * dilation) == (in_length, out_length)
    return _PhaseRows(count, pad_above, pad_below, out_count, out_start, is_exact)


def _emit_phase_row_conv(
    builder: RewriteBuilder,
    geometry: ConvGeometry,
    weight: np.ndarray,
    axis: int,
    rows: _PhaseRows,
) -> None:
    """Append a convolution without dilation that computes the dilated one, along `axis`.

    Pad and Reshapes turn positions that are `dilation` apart into neighboring rows, over which the
    taps run as a column; a Reshape and a Slice restore the result. `rows` has the sizes and pads.
    """
    node = builder.node
    taps, dilation = geometry.kernel[axis], geometry.dilations[axis]
    in_sizes, out_sizes = get_sizes(geometry.input_shape[1:]), get_sizes(geometry.result[1:])
    in_length, out_length = in_sizes[1 + axis], out_sizes[1 + axis]
    columns = int(np.prod(in_sizes[2 + axis :]))
    value = ir.require_input(node)
    batch: ir.Dim = (value.shape or ["N"])[0]
    padded_length = rows.in_count * dilation
    if padded_length > in_length:
        pads = np.zeros((2, 1 + len(in_sizes)), np.int64)
        pads[1, 2 + axis] = padded_length - in_length
        in_sizes[1 + axis] = padded_length
        pads_constant = builder.constant(pads.reshape(-1), "pads")
        value = builder("Pad", [value, pads_constant], [batch, *in_sizes], "filled")
    value = builder.reshape(value, [in_sizes[0], rows.in_count, dilation * columns], "phases")
    column = np.ascontiguousarray(weight.reshape(*weight.shape[:2], taps, 1))
    attributes = {
        "kernel_shape": [taps, 1],
        "strides": [1, 1],
        "dilations": [1, 1],
        "pads": [rows.pad_above, 0, rows.pad_below, 0],
        "group": geometry.group,
    }
    inputs = [value, builder.constant(column, "column"), *node.inputs[2:]]
    shape = [batch, out_sizes[0], rows.out_count, dilation * columns]
    value = builder("Conv", inputs, shape, "rows", attributes)
    out_sizes[1 + axis] = rows.out_count * dilation
    value = builder.reshape(value, out_sizes, "joined")
    builder.slice_axis(value, 2 + axis, rows.out_start, rows.out_start + out_length, "cut")


def _find_dilated_axis(geometry: ConvGeometry) -> int | None:
    """Return the first axis on which the kernel is longer than 1, if its dilation is above 1.

    None if the kernel is longer than 1, or padded, on another axis, the map is longer than 1 on an
    axis before it, or a stride is above 1.
    """
    rank = len(geometry.kernel)
    axis = next((i for i, size in enumerate(geometry.kernel) if size > 1), 0)
    if max(geometry.strides) > 1 or geometry.dilations[axis] <= 1:
        return None
    for other_axis in range(rank):
        if other_axis == axis:
            continue
        pads = geometry.pads[other_axis], geometry.pads[rank + other_axis]
        if geometry.kernel[other_axis] != 1 or pads != (0, 0):
            return None
        if other_axis < axis and geometry.input_shape[2 + other_axis] != 1:
            return None
    return axis


def _get_max_1d_kernel(geometry: ConvGeometry, target: Target) -> int:
    """Return the longest 1-D kernel on `target` that need not be split.

    It is smaller for a convolution with several groups.
    """
    assert target.conv_limits is not None
    return (
        target.conv_limits.max_kernel_1d if geometry.group == 1 else target.conv_limits.max_kernel
    )
