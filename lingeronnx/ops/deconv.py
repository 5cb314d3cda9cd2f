"""Transposed convolution: ConvTranspose2dInt, weight [I, O/group, k...]; the bias is required (zeros where none is)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..emit import Lowering
from ..graph import ir
from ..packer.limits import limits
from ._base import Attr, Bound, Constraint
from .conv import CONV2D, Geometry, WeightLayer, sum_scale

__all__ = ["ConvTranspose2d"]


class ConvTranspose2d(WeightLayer):
    """Two-dimensional transposed convolution."""

    name = "ConvTranspose2dInt"
    floats = (("", "ConvTranspose"),)
    aliases = ("QConvTranspose2d", "QConvTranspose1d")
    factor = "fixed"  # its weight has the outputs on axis 1, where no other layer has them
    channel_axis = 1  # channels at the same place of different groups share one
    attributes = (*CONV2D.attributes, Attr("output_padding", "ints", None))
    constraints: tuple[Constraint, ...] = limits("ConvTranspose2dInt")

    def reject(self, node: ir.Node) -> str | None:
        """Two-dimensional, with explicit padding."""
        reason = super().reject(node)
        if reason is None and len(ir.shape(node.inputs[1]) or ()) != 4:
            reason = "its kernel is not 2-dimensional"
        if reason is None and (ir.attr(node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes):
            reason = "its padding follows from a wanted output size"
        return reason

    def macs(self, node: ir.Node) -> int:
        """Inputs times the kernel's size."""
        source, weight = ir.shape(node.inputs[0]) or (), ir.shape(node.inputs[1]) or ()
        return math.prod(int(d or 1) for d in source[1:]) * math.prod(int(d or 1) for d in weight[1:])

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with a bias in any case."""
        g = Geometry(node)
        attrs = {**CONV2D.geometry_attributes(g), **self.lowered_attributes(node, low),
                 "output_padding": list(ir.attr(node, "output_padding") or [0, 0])}  # fmt: skip
        bias = low.bias(node, 2, sum_scale(attrs, g.group))
        if not bias:
            bias = [low.integers(f"{node.outputs[0].name}_bias", np.zeros(g.weight[1] * g.group), 1.0)]
        low.emit(self, node, [low.integer(node, 0), low.weight(node, 1), *bias], attrs)

    def bind(self, bound: Bound) -> Any:
        """Return the kernel."""
        from simulator.kernels import ConvTranspose

        weight, a = bound.constant(1, "int8 int16", "weight"), bound.attrs
        channels, group = weight.shape[1], int(a["group"])
        return ConvTranspose(
            weight, bound.bias(2, channels * group), bound.weighted_rescale(channels, group), strides=a["strides"],
            pads=a["pads"], dilations=a["dilations"], output_padding=a["output_padding"], group=group,
        )  # fmt: skip
