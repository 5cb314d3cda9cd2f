"""A dilated kernel where the platform has no dilation.

Rows of phases, or the same kernel with zeros between its taps.
A line in rows of ``d`` positions holds each phase of the dilation ``d`` in a column. So a kernel of
``k`` taps, dilated by ``d``, is an undilated one of ``k x 1`` over these rows: exact, with as many
products as before. Likewise an image under a kernel of one column.

What becomes too large by zeros is then split by `kernel`, which leaves out parts that hold only
zeros.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...ops.layers.conv import ConvGeometry
from ...targets import Target
from .._base import RewriteBuilder, can_lower, format_sizes, match_conv

__all__ = ["expand_dilation", "fold_dilation_into_rows"]

_MAX_EXPANDED_KERNEL = 33  # taps per side beyond which the zeros would be most of the work


def expand_dilation(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Spread the taps of the kernel and drop the dilation."""
    conv = match_conv(node, target)
    if conv is None or not target.needs_rewrite(node, "expand-dilation"):
        return None
    g, weight = conv
    kernel = [(k - 1) * d + 1 for k, d in zip(g.kernel, g.dilations, strict=True)]
    if max(kernel) > _MAX_EXPANDED_KERNEL:
        return None
    spread = np.zeros((*weight.shape[:2], *kernel), weight.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, d) for d in g.dilations))] = weight
    ir.set_constant_input(model, node, 1, spread, "spread")
    ir.set_attr(node, "kernel_shape", kernel)
    ir.set_attr(node, "dilations", [1] * len(kernel))
    return (
        (
            f"kernel {format_sizes(g.kernel)} with dilation {format_sizes(g.dilations)} written as "
            f"{format_sizes(kernel)} with zeros"
        ),
        "exact",
    )


def fold_dilation_into_rows(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Write a convolution that is dilated along one axis as one over rows of phases.

    Where the axis has to be filled up to whole rows, or the result cut, only if the zeros between
    would take several kernels.
    """
    conv = match_conv(node, target)
    if conv is None or not target.needs_rewrite(node, "expand-dilation"):
        return None
    g, weight = conv
    axis = _find_dilated_axis(g)
    if axis is None:
        return None
    taps, dilation, before = g.kernel[axis], g.dilations[axis], g.pads[axis]
    source, result = ([int(d or 0) for d in sizes[1:]] for sizes in (g.input_shape, g.result))
    length, wanted, columns = source[1 + axis], result[1 + axis], int(np.prod(source[2 + axis :]))
    rows = max(
        -(-length // dilation), taps
    )  # the packer wants a map that is no smaller than the kernel
    above = -(-before // dilation)
    cut = above * dilation - before
    below = max(0, -(-(cut + wanted) // dilation) - rows - above + taps - 1)
    written = rows + above + below - taps + 1
    whole = (rows * dilation, written * dilation) == (length, wanted)
    if not whole and (taps - 1) * dilation < _max_line_kernel(g, target):
        return None
    make = RewriteBuilder(model, node)
    value = ir.require_input(node)
    batch: ir.Dim = (value.shape or ["N"])[0]
    if rows * dilation > length:
        pads = np.zeros((2, 1 + len(source)), np.int64)
        pads[1, 2 + axis] = rows * dilation - length
        source[1 + axis] = rows * dilation
        value = make(
            "Pad", [value, make.constant(pads.reshape(-1), "pads")], [batch, *source], "filled"
        )
    value = make.reshape(value, [source[0], rows, dilation * columns], "phases")
    column = np.ascontiguousarray(weight.reshape(*weight.shape[:2], taps, 1))
    attributes = {
        "kernel_shape": [taps, 1],
        "strides": [1, 1],
        "dilations": [1, 1],
        "pads": [above, 0, below, 0],
        "group": g.group,
    }
    shape = [batch, result[0], written, dilation * columns]
    value = make(
        "Conv",
        [value, make.constant(column, "column"), *node.inputs[2:]],
        shape,
        "rows",
        attributes,
    )
    result[1 + axis] = written * dilation
    value = make.reshape(value, result, "joined")
    make.slice_axis(value, 2 + axis, cut, cut + wanted, "cut")
    if not all(can_lower(each, target) for each in make.nodes if each.op_type in ("Pad", "Conv")):
        make.discard()
        return None
    make.replace_node()
    return (
        (
            f"kernel {format_sizes(g.kernel)} with dilation {format_sizes(g.dilations)} written as "
            f"{taps}x1 over rows of {dilation}"
        ),
        "exact",
    )


def _find_dilated_axis(g: ConvGeometry) -> int | None:
    """Return the axis along which alone the kernel has an extent.

    None for others, and where an axis lies before it.
    """
    axis = next((i for i, k in enumerate(g.kernel) if k > 1), 0)
    others = [i for i in range(len(g.kernel)) if i != axis]
    alone = all(g.kernel[i] == 1 and g.pads[i] == g.pads[len(g.kernel) + i] == 0 for i in others)
    before = any(g.input_shape[2 + i] != 1 for i in range(axis))
    return axis if alone and not before and max(g.strides) == 1 and g.dilations[axis] > 1 else None


def _max_line_kernel(g: ConvGeometry, target: Target) -> int:
    """Return the largest kernel of a line that needs no second one."""
    assert target.conv_limits is not None
    return target.conv_limits.max_kernel_1d if g.group == 1 else target.conv_limits.max_kernel
