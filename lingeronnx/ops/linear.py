"""Fully connected layer: LinearInt, ``y = sat(rescale(x W^T + b))`` over the last axis, weight [O, I]."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ir
from ..platforms import Platform
from ._base import Bound
from .conv import WEIGHT, WeightLayer

__all__ = ["Linear"]


class Linear(WeightLayer):
    """Linear layer with constant weight."""

    name = "LinearInt"
    floats = ((ir.DOMAIN, "Linear"),)
    aliases = ("QLinear",)
    attributes = WEIGHT

    def packer_args(self, node: ir.Node, row: Platform) -> str:
        """Several rows may need a place of their own for the output."""
        rows = math.prod(int(d or 1) for d in (ir.shape(node.outputs[0]) or ())[:-1])
        return super().packer_args(node, row) if rows > 1 else ""

    def macs(self, node: ir.Node) -> int:
        """Rows times weight."""
        result, weight = ir.shape(node.outputs[0]) or (), ir.shape(node.inputs[1]) or ()
        return math.prod(int(d or 1) for d in result[1:]) * int(weight[1] or 1)

    def lower(self, node: ir.Node, low: Any) -> None:
        """As every weight layer; a bias of zeros only is left out."""
        bias = ir.const(node.inputs[2]) if len(node.inputs) > 2 else None
        attrs = self.lowered_attributes(node, low)
        inputs = [low.integer(node, 0), low.weight(node, 1)]
        if bias is not None and np.any(bias):
            inputs += low.bias(node, 2, attrs["scale_x"] * attrs["scale_w"])
        low.emit(self, node, inputs, attrs)

    def bind(self, bound: Bound) -> Any:
        """Return the matrix kernel."""
        from simulator.kernels import Linear as Kernel

        weight = bound.constant(1, "int8 int16", "weight")
        rescale = bound.rescale(bound.ratio(bound.attrs["scale_x"], bound.attrs["scale_w"]))
        return Kernel(weight, bound.bias(2, len(weight)), rescale)
