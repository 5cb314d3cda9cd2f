"""The average of a large window in two steps.

Over rows of windows that the platform divides right, then over those.
For windows that tile the map without padding. Costs one more rounding, half a step at most.
"""

from __future__ import annotations

from ...graph import ir
from ...targets import Target

__all__ = ["split_average"]


def split_average(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Put two averages in place of the one."""
    if (
        node.op_type != "AveragePool"
        or target.pool_limits is None
        or not target.needs_rewrite(node, "split-average")
    ):
        return None
    height, width = ir.get_attr(node, "kernel_shape")
    dims = ir.get_shape(node.outputs[0]) or ()
    tiles = list(ir.get_attr(node, "strides") or [1, 1]) == [height, width] or tuple(dims[2:]) == (
        1,
        1,
    )
    if not tiles or any(ir.get_attr(node, "pads", [0])) or ir.get_attr(node, "ceil_mode", 0):
        return None
    most = target.pool_limits.max_average_area
    first = max(
        (d for d in range(1, height + 1) if height % d == 0 and d * width <= most), default=0
    )
    if not first or height // first > most:
        return None
    source, result = node.inputs[0], node.outputs[0]
    window = {"kernel_shape": [first, width], "strides": [first, width]}
    between = ir.unique_tensor_name(model, f"{result.name}_rows")
    before = ir.make_node(
        "AveragePool", [source], window, origin=node, suffix="rows", output=between, like=result
    )
    rows = before.outputs[0]
    rows.shape = ir.make_shape(
        [dims[0] or "N", dims[1], int(dims[2] or 1) * (height // first), dims[3]]
    )
    rest = [height // first, 1]
    after = ir.make_node(
        "AveragePool",
        [rows],
        {"kernel_shape": rest, "strides": rest},
        origin=node,
        output="",
        like=result,
    )
    ir.replace_nodes(model, [node], [before, after])
    return (
        f"average over {height}x{width} in two steps, {first}x{width} and {rest[0]}x1",
        "half a step at most",
    )
