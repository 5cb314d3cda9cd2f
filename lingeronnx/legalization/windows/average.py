"""Split average pooling over a large window into two pools: over some rows, then over the results.

The platform computes the smaller windows correctly. This applies to windows that tile the map
without padding, and costs one more rounding, half a step at most.
"""

from __future__ import annotations

from ...graph import ir
from ...targets import Target

__all__ = ["split_average"]


def split_average(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace an AveragePool by two, whose windows are [h1, width] and [height / h1, 1].

    Only if a limit requires it and the windows tile the map; h1 is the largest divisor of the
    height that keeps the area within the limit. Returns the description and the cost of the change,
    or None without a change.
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
    row_count = int(dims[2] or 1) * second_height
    rows.shape = ir.make_shape([dims[0] or "N", dims[1], row_count, dims[3]])
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
    """Whether the windows of a 2-D pool tile the map, or there is only one.

    The strides must be the kernel's sizes, or the output 1x1; False with padding or ceil_mode.
    """
    if any(ir.get_attr(node, "pads", [0])) or ir.get_attr(node, "ceil_mode", 0):
        return False
    kernel = list(ir.get_attr(node, "kernel_shape"))
    dims = ir.get_shape(node.outputs[0]) or ()
    return list(ir.get_attr(node, "strides") or [1, 1]) == kernel or tuple(dims[2:]) == (1, 1)
