"""Fully connected layer: LinearInt, ``y = sat(rescale(x W^T + b))`` over the last axis, weight [O, I]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.kernel import PlainKernel, Spec, require

from ..graph import ir
from ..packer.limits import limits
from ..platforms import Platform
from ._base import Bound, Violation
from .conv import WEIGHT, WeightLayer, sum_scale
from .shape import Reshape

__all__ = ["Linear"]


@dataclass(frozen=True, eq=False)
class FloatLinear(PlainKernel):
    """``y = (sum x*w + b) / scale`` in float32: the layer that leaves the integers without rounding to any.

    weight : integers [O, I]. bias : int64 [O] or None. scale : of the accumulator, scale_x * scale_w, one or [O].
    """

    weight: np.ndarray
    bias: np.ndarray | None
    scale: float | np.ndarray

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Map x [..., I] -> y [..., O]."""
        (x,) = specs
        require(x.dtype.kind == "i" and x.shape[-1:] == self.weight.shape[1:],
                f"weights {list(self.weight.shape)} do not fit {x}")  # fmt: skip
        return (Spec((*x.shape[:-1], len(self.weight)), np.dtype(np.float32)),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Accumulate in int64, divide in float64."""
        total = arrays[0].astype(np.int64) @ self.weight.T.astype(np.int64)
        return (((total if self.bias is None else total + self.bias) / self.scale).astype(np.float32),)


class Linear(WeightLayer):
    """Linear layer with constant weight."""

    name = "LinearInt"
    floats = ((ir.DOMAIN, "Linear"),)
    aliases = ("QLinear",)
    attributes = WEIGHT
    constraints = limits("LinearInt")
    wide = True

    def violations(self, node: ir.Node, row: Platform) -> list[Violation]:
        """Those of the integer operator; a float one may have any rank."""
        return [] if node.domain == ir.DOMAIN else super().violations(node, row)

    def macs(self, node: ir.Node) -> int:
        """Rows times weight."""
        result, weight = ir.shape(node.outputs[0]) or (), ir.shape(node.inputs[1]) or ()
        return math.prod(int(d or 1) for d in result[1:]) * int(weight[1] or 1)

    def lower(self, node: ir.Node, low: Any) -> None:
        """As every weight layer; a bias of zeros only is left out. Without scale_o where the output is float.

        Chips read two or three axes: of more, all before the last become one.
        """
        bias = ir.const(node.inputs[2]) if len(node.inputs) > 2 else None
        x, w = low.read(node, 0), low.read(node, 1)
        attrs = {"data_bits": x.bits, "parameter_bits": w.bits, "scale_x": x.scale, "scale_w": w.scale}
        if not low.leaves_in_float(node):
            attrs = self.lowered_attributes(node, low)
        inputs = [low.integer(node, 0), low.weight(node, 1)]
        if bias is not None and np.any(bias):
            inputs += low.bias(node, 2, sum_scale(attrs))
        full = [int(d or 1) for d in ir.shape(node.outputs[0]) or ()]
        if low.row.packing is None or len(full) <= 3:
            low.emit(self, node, inputs, attrs)
            return
        rows, base = [1, math.prod(full[1:-1])], ir.written_name(node)
        sizes = [*rows, int((ir.shape(node.inputs[0]) or ())[-1] or 1)]
        target = low.array(f"{base}_flat_shape", np.array(sizes, np.int64))
        inputs[0] = low.insert(RESHAPE.name, node, "flat", [inputs[0], target], {}, sizes, low.read(node, 0), domain="")
        value = low.insert(self.name, node, "rows", inputs, attrs, [*rows, full[-1]], low.written(node))
        back = low.array(f"{base}_shape", np.array([1, *full[1:]], np.int64))
        low.emit(RESHAPE, node, [value, back], {}, domain="")

    def out_scale(self, attrs: Mapping[str, Any], scales: Sequence[float | None]) -> float | None:
        """scale_o; without one the output is float."""
        return None if attrs["scale_o"] is None else float(attrs["scale_o"])

    def bind(self, bound: Bound) -> Any:
        """Return the matrix kernel."""
        from simulator.kernels import Linear as Kernel

        weight = bound.constant(1, "int8 int16", "weight")
        if bound.attrs["scale_o"] is None:
            scale = sum_scale(bound.attrs)
            held = np.array(scale) if isinstance(scale, tuple) else float(scale)
            return FloatLinear(weight, bound.bias(2, len(weight)), held)
        return Kernel(weight, bound.bias(2, len(weight)), bound.weighted_rescale(len(weight)))


RESHAPE = Reshape()
