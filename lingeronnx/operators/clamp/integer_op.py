"""Relu and Clip on integers; input and output have the same scale.

Relu clamps at the integer 0. For tensors with a nonzero zero point, a Clip with the zero point as
its lower bound is used instead.
"""

from __future__ import annotations

import numpy as np

from simulator.kernel import Kernel

from ...ir import ir
from .._integer_op import Format
from .._kernel_info import KernelInfo
from ..float_model import FloatNodeBuilder

__all__ = ["FAMILY", "RELU", "CLIP"]


class Relu(Format):
    """Negative integers become 0: ``max(0, x)``."""

    name = "Relu"
    nonstandard_usage = (
        "on int8, which the standard allows from opset 14 on; the format is opset 12"
    )
    domain = ""

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the simulator kernel max(0, x), which needs no scale; `info` is not looked at."""
        from simulator.kernels import Relu as Kernel

        return Kernel()


RELU = Relu()


class Clip(Format):
    """``min(max(x, low), high)`` with constant bounds, quantized with the tensor's scale."""

    name = "Clip"
    domain = ""
    supports_zero_points = True

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the Clip kernel with the constant integer bounds at inputs 1 and 2 of the node.

        Absent bounds are the limits of int32.
        """
        from simulator.kernels import Clip as Kernel

        low, high = info.constants.get(1), info.constants.get(2)
        return Kernel(
            -(1 << 31) if low is None else int(low.reshape(())),
            (1 << 31) - 1 if high is None else int(high.reshape(())),
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Clip of the float input with dequantized bounds; return [its output].

        Absent bounds stay absent.
        """
        bounds: list[ir.Value | None] = []
        for index, suffix in ((1, "low"), (2, "high")):
            constant = builder.info.constants.get(index)
            if constant is None:
                bounds.append(None)
                continue
            bound = np.float32(builder.dequantize_scalar(int(constant.reshape(()))))
            bounds.append(builder.add_constant(bound, suffix))
        return [builder("Clip", builder.float_input(), *bounds)]


CLIP = Clip()


FAMILY: tuple[Format, ...] = (RELU, CLIP)
