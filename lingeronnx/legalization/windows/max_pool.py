"""A large max pooling window in two steps.

A maximum of maxima over windows that together cover the same, exact.
Where the windows tile the map, ``k = a*b`` pools a by a and then b by b. Else a window of a, one
position apart, and one of b with ``a + b - 1 = k`` and the stride. Padding never wins a maximum, so
it may stand in either.
"""

from __future__ import annotations

from ...graph import ir
from ...targets import Target
from .._base import RewriteBuilder, format_sizes

__all__ = ["split_max_pool"]


def split_max_pool(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Pool twice; what is still too large is split again."""
    if node.op_type != "MaxPool" or target.pool_limits is None or len(node.outputs) != 1:
        return None
    if not target.needs_rewrite(node, "split-max-pool"):
        return None
    kernel = list(ir.get_attr(node, "kernel_shape"))
    rank = len(kernel)
    strides, pads = (
        ir.get_attr(node, "strides") or [1] * rank,
        ir.get_attr(node, "pads") or [0] * 2 * rank,
    )
    source = ir.get_shape(node.inputs[0])
    if (
        source is None
        or None in source[2:]
        or len(source) != rank + 2
        or node.outputs[0].shape is None
    ):
        return None
    most = target.pool_limits.max_kernel
    first: dict[str, list[int]] = {"kernel_shape": [], "strides": [], "pads": [0] * 2 * rank}
    second: dict[str, list[int]] = {"kernel_shape": [], "strides": [], "pads": [0] * 2 * rank}
    shape = list(ir.require_input(node).shape or ())
    for axis, (k, s) in enumerate(zip(kernel, strides, strict=True)):
        begin, end = pads[axis], pads[rank + axis]
        size = int(source[2 + axis] or 0)
        tile = max((d for d in range(2, most + 1) if k % d == 0), default=1)
        tiles = s == k > most and tile > 1 and begin == end == 0
        a = min(
            k, tile if tiles else min(most, k - s + 1)
        )  # the second window is no smaller than the stride
        if k > most and a < 2:
            return None
        step = a if tiles else 1
        if k <= most:
            a, step = 1, 1
        b, t = (k // a, s // a) if tiles else (k - a + 1, s)
        early = min(begin, a - 1), min(end, a - 1)
        for window, values in (
            (first, (a, step, *early)),
            (second, (b, t, begin - early[0], end - early[1])),
        ):
            window["kernel_shape"].append(values[0])
            window["strides"].append(values[1])
            window["pads"][axis], window["pads"][rank + axis] = values[2:]
        shape[2 + axis] = (size + sum(early) - a) // step + 1
    make = RewriteBuilder(model, node)
    between = make("MaxPool", [ir.require_input(node)], shape, "first", first)
    make("MaxPool", [between], list(make.result.shape or ()), "second", second)
    make.replace_node()
    windows = format_sizes(first["kernel_shape"]), format_sizes(second["kernel_shape"])
    return (
        f"maximum over {format_sizes(kernel)} in two steps, {windows[0]} and {windows[1]}",
        "exact",
    )
