"""Pooling: MaxPool on integers and AvgPool2dInt.

Average pooling sums the window, padded zeros included, and divides by the whole area. Chips ignore or mis-handle a
scale change there, so input and output are tied; `generic` requantizes in one step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from .. import ir
from ..platforms import Platform
from ._base import Attr, Bound, Op, Tie

if TYPE_CHECKING:
    from ..lower import Lowering

__all__ = ["AvgPool2d", "MaxPool"]

#: How each platform algorithm divides a window's sum (see `simulator.kernels.luna_average`).
_DIVISIONS: dict[str, Literal["venus", "arcs"]] = {"luna-area8": "venus", "luna": "arcs"}

_WINDOW = (Attr("kernel_shape", "ints"), Attr("strides", "ints", None), Attr("pads", "ints", None),
           Attr("ceil_mode", "i", 0))  # fmt: skip


def window_limit(node: ir.Node, row: Platform) -> Any:
    """max pooling windows are at most {pool.max_kernel} on a side | pool in two steps."""
    if row.pool is None:
        return None
    kernel = ir.attr(node, "kernel_shape")
    return "x".join(map(str, kernel)) if max(kernel) > row.pool.max_kernel else None


def area_limit(node: ir.Node, row: Platform) -> Any:
    """average pooling windows have at most {pool.max_average_area} elements | pool in two steps."""
    if row.pool is None:
        return None
    area = math.prod(ir.attr(node, "kernel_shape"))
    return f"{area} elements" if area > row.pool.max_average_area else None


def _window(node: ir.Node) -> dict[str, Any]:
    kernel = list(ir.attr(node, "kernel_shape"))
    rank = len(kernel)
    return {"kernel_shape": kernel, "strides": ir.attr(node, "strides") or [1] * rank,
            "pads": ir.attr(node, "pads") or [0] * 2 * rank, "ceil_mode": ir.attr(node, "ceil_mode", 0)}  # fmt: skip


def _reject(node: ir.Node) -> str | None:
    if ir.attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return "its padding depends on an input size that is not known"
    if len(ir.attr(node, "kernel_shape")) != 2:
        return "its window is not two-dimensional"
    return "ceil_mode adds windows past the edge" if ir.attr(node, "ceil_mode", 0) else None


class MaxPool(Op):
    """Largest of a window; padding never wins."""

    name = "MaxPool"
    domain = ""
    floats = (("", "MaxPool"),)
    attributes = (*_WINDOW, Attr("dilations", "ints", None))
    constraints = (window_limit,)

    def reject(self, node: ir.Node) -> str | None:
        """Two dimensions, one output, no dilation."""
        if len(node.outputs) > 1 and node.outputs[1].name and node.outputs[1].uses():
            return "its indices are used"
        if any(d != 1 for d in ir.attr(node, "dilations", [1])):
            return "its window is dilated"
        return _reject(node)

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit on integers."""
        low.emit(self, node, low.inputs(node), _window(node), domain="")

    def bind(self, bound: Bound) -> Any:
        """Return the kernel."""
        from simulator.kernels import MaxPool as Kernel

        a, rank = bound.attrs, len(bound.attrs["kernel_shape"])
        return Kernel(tuple(a["kernel_shape"]), tuple(a["strides"] or [1] * rank), tuple(a["pads"] or [0] * 2 * rank),
                      ceil_mode=bool(a["ceil_mode"]))  # fmt: skip


class AvgPool2d(Op):
    """Mean of a window."""

    name = "AvgPool2dInt"
    floats = (("", "AveragePool"),)
    aliases = ("QAvgPool2d",)
    attributes = (*_WINDOW, Attr("data_bits", "i", 8), Attr("o_bits", "i", 8), Attr("scale_x", "f"),
                  Attr("scale_o", "f", None))  # fmt: skip
    constraints = (area_limit,)

    def reject(self, node: ir.Node) -> str | None:
        """Padding, if any, counts; two dimensions."""
        if any(ir.attr(node, "pads", [0])) and not ir.attr(node, "count_include_pad", 0):
            return "its padding does not count (count_include_pad = 0); the NPU divides by the whole window"
        return _reject(node)

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """Tied on chips."""
        return super().ties(node, row) if row.ops.get(self.name) != "generic" else []

    def packer_args(self, node: ir.Node, row: Platform) -> str:
        """External memory for large windows."""
        large = row.pool is not None and math.prod(ir.attr(node, "kernel_shape")) > row.pool.max_shared_area
        return row.pool.external_args if large and row.pool is not None else ""

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with both scales."""
        x, o = low.read(node, 0), low.written(node)
        attrs = {**_window(node), "data_bits": x.bits, "o_bits": o.bits, "scale_x": x.scale, "scale_o": o.scale}
        low.emit(self, node, low.inputs(node), attrs)

    def out_scale(self, attrs: Any, scales: Any) -> float | None:
        """scale_o, by default scale_x."""
        return float(attrs["scale_o"] or attrs["scale_x"])

    def bind(self, bound: Bound) -> Any:
        """Return the kernel with the platform's division."""
        from simulator.kernels import AvgPool, luna_average

        a, rank = bound.attrs, len(bound.attrs["kernel_shape"])
        area = math.prod(a["kernel_shape"])
        x, o = float(a["scale_x"]), float(a["scale_o"] or a["scale_x"])
        if bound.algorithm == "generic":
            rule = bound.rescale(o / (x * area))
        else:
            q_x, q_o = (bound.exponent(key, scale) for key, scale in (("scale_x", x), ("scale_o", o)))
            rule = luna_average(_DIVISIONS[bound.algorithm], area, q_x, q_o)
        window = (tuple(a["kernel_shape"]), tuple(a["strides"] or [1] * rank), tuple(a["pads"] or [0] * 2 * rank))
        return AvgPool(*window, rule=rule, ceil_mode=bool(a["ceil_mode"]))
