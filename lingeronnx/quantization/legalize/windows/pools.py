"""Split a pool with a large window into two pools.

The maximum of maxima over windows that cover the same elements is the same, so that a max pool is
split exactly. If the windows tile the map, ``k = a*b`` pools a by a and then b by b. Otherwise the
first window is a with stride 1 and the second one b with ``a + b - 1 = k`` and the stride. Padding
never is a maximum, so either pool may have it.

An average pool is split over some rows, then over the results, if the platform computes the smaller
windows correctly. This applies to windows that tile the map without padding, and costs one more
rounding, half a step at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....ir import ir
from ....targets import Target
from .._base import RewriteBuilder, format_sizes

__all__ = ["split_average", "split_max_pool"]


class _AxisWindow(NamedTuple):
    """A pooling window along one axis."""

    kernel: int
    stride: int
    pad_begin: int
    pad_end: int


def split_max_pool(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a MaxPool by two; if one of these is still too large, it is split again later.

    Only if the target says that this fixes a limit that the node breaks, with one output and a
    known shape. Returns the description and the cost of the change; None, without a change, also if
    the window of an axis cannot be split.
    """
    if node.op_type != "MaxPool" or target.pool_limits is None or len(node.outputs) != 1:
        return None
    if not target.needs_rewrite(node, "split-max-pool"):
        return None
    windows = _get_windows(node)
    source_shape = ir.get_shape(node.inputs[0])
    if source_shape is None or None in source_shape[2:] or len(source_shape) != len(windows) + 2:
        return None
    if node.outputs[0].shape is None:
        return None
    first_windows, second_windows = [], []
    shape = list(ir.require_input(node).shape or ())
    for axis, window in enumerate(windows, start=2):
        split = _split_window(window, target.pool_limits.max_kernel)
        if split is None:
            return None
        first, second = split
        first_windows.append(first)
        second_windows.append(second)
        padded_size = int(source_shape[axis] or 0) + first.pad_begin + first.pad_end
        shape[axis] = (padded_size - first.kernel) // first.stride + 1
    builder = RewriteBuilder(model, node)
    attributes = _make_pool_attributes(first_windows)
    partial = builder("MaxPool", [ir.require_input(node)], shape, "first", attributes)
    attributes = _make_pool_attributes(second_windows)
    builder("MaxPool", [partial], list(builder.result.shape or ()), "second", attributes)
    builder.replace_node()
    kernels = (_format_kernel(axes) for axes in (windows, first_windows, second_windows))
    return "maximum over {} in two steps, {} and {}".format(*kernels), "exact"


def _get_windows(node: ir.Node) -> list[_AxisWindow]:
    """Return the window of the pool `node` along each spatial axis.

    Strides default to 1, pads to 0.
    """
    kernel = list(ir.get_attr(node, "kernel_shape"))
    rank = len(kernel)
    strides = ir.get_attr(node, "strides") or [1] * rank
    pads = ir.get_attr(node, "pads") or [0] * 2 * rank
    return [
        _AxisWindow(kernel[axis], strides[axis], pads[axis], pads[rank + axis])
        for axis in range(rank)
    ]


def _format_kernel(windows: Sequence[_AxisWindow]) -> str:
    """Format the kernel sizes of `windows`, one per axis, as "3x3"."""
    return format_sizes([window.kernel for window in windows])


def _split_window(window: _AxisWindow, max_kernel: int) -> tuple[_AxisWindow, _AxisWindow] | None:
    """Split `window`, along one axis, into two that are applied in turn; None if impossible.

    A window within `max_kernel` is left to the second one, with a first one of 1. Windows that tile
    the map without padding are split by the largest divisor of the kernel up to `max_kernel`,
    others by a first one of stride 1.
    """
    kernel, stride, pad_begin, pad_end = window
    if kernel <= max_kernel:
        return _AxisWindow(1, 1, 0, 0), window
    divisor = max((d for d in range(2, max_kernel + 1) if kernel % d == 0), default=1)
    if stride == kernel and divisor > 1 and pad_begin == pad_end == 0:  # the windows tile the map
        second = _AxisWindow(kernel // divisor, stride // divisor, 0, 0)
        return _AxisWindow(divisor, divisor, 0, 0), second
    # The second window is no smaller than the stride.
    first_kernel = min(kernel, max_kernel, kernel - stride + 1)
    if first_kernel < 2:
        return None
    first_begin, first_end = min(pad_begin, first_kernel - 1), min(pad_end, first_kernel - 1)
    return (
        _AxisWindow(first_kernel, 1, first_begin, first_end),
        _AxisWindow(
            kernel - first_kernel + 1, stride, pad_begin - first_begin, pad_end - first_end
        ),
    )


def _make_pool_attributes(windows: Sequence[_AxisWindow]) -> dict[str, list[int]]:
    """Return `kernel_shape`, `strides` and `pads` of a pool with `windows`, one per axis."""
    begins, ends = [w.pad_begin for w in windows], [w.pad_end for w in windows]
    return {
        "kernel_shape": [window.kernel for window in windows],
        "strides": [window.stride for window in windows],
        "pads": [*begins, *ends],
    }


def split_average(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace an AveragePool by two, whose windows are [h1, width] and [height / h1, 1].

    Only if the target says that this fixes a limit that the node breaks, and the windows tile the
    map; h1 is the largest divisor of the height that keeps the area within `max_average_area`.
    Returns the description and the cost of the change, or None without a change.
    """
    if node.op_type != "AveragePool" or target.pool_limits is None:
        return None
    if not target.needs_rewrite(node, "split-average") or not _has_tiling_windows(node):
        return None
    height, width = ir.get_attr(node, "kernel_shape")
    max_area = target.pool_limits.max_average_area
    first_height = _find_largest_divisor(height, max_area // width)
    if not first_height or height // first_height > max_area:
        return None
    source, result = node.inputs[0], node.outputs[0]
    dims = ir.get_shape(result) or ()
    second_height = height // first_height
    first_window, second_window = [first_height, width], [second_height, 1]
    first = ir.make_node(
        "AveragePool",
        [source],
        {"kernel_shape": first_window, "strides": first_window},
        origin=node,
        suffix="rows",
        output=ir.unique_tensor_name(model, f"{result.name}_rows"),
        like=result,
    )
    rows = first.outputs[0]
    map_height = (ir.get_shape(source) or (None,) * 4)[2]
    row_count = int(dims[2] or 1) * second_height
    if map_height is not None:
        row_count = map_height // first_height  # rows that no second window reads count, too
    rows.shape = ir.Shape([dims[0] or "N", dims[1], row_count, dims[3]])
    second = ir.make_node(
        "AveragePool",
        [rows],
        {"kernel_shape": second_window, "strides": second_window},
        origin=node,
        output="",
        like=result,
    )
    ir.replace_nodes(model, [node], [first, second])
    return (
        f"average over {height}x{width} in two steps, {first_height}x{width} and {second_height}x1",
        "half a step at most",
    )


def _find_largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` that is at most `limit`, or 0 if there is none."""
    candidates = range(1, min(number, limit) + 1)
    return max((d for d in candidates if number % d == 0), default=0)


def _has_tiling_windows(node: ir.Node) -> bool:
    """Whether the windows of the 2-D pool `node` tile the map, or one covers it.

    The strides or the map must have the kernel's sizes; False with padding or ceil_mode.
    """
    if any(ir.get_attr(node, "pads", [0])) or ir.get_attr(node, "ceil_mode", 0):
        return False
    kernel = list(ir.get_attr(node, "kernel_shape"))
    dims = ir.get_shape(node.inputs[0]) or ()
    return list(ir.get_attr(node, "strides") or [1, 1]) == kernel or list(dims[2:]) == kernel
