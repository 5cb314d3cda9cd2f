"""Relu and Clip on integers; scales pass through.

Relu cuts at the integer 0. Where another one stands for the real 0, Clip has that for its lower
bound.
"""

from __future__ import annotations

import numpy as np

from simulator.kernel import Kernel

from ..graph import ir
from ._base import Format, KernelInfo
from .float_model import FloatNodeBuilder

__all__ = ["FAMILY", "RELU", "CLIP"]


class Relu(Format):
    """Negative integers become 0: ``max(0, x)``."""

    name = "Relu"
    nonstandard_usage = (
        "on int8, which the standard allows from opset 14 on; the format is opset 12"
    )
    domain = ""

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel, which needs no scale."""
        from simulator.kernels import Relu as Kernel

        return Kernel()


RELU = Relu()


class Clip(Format):
    """``min(max(x, low), high)`` with constant bounds, quantized with the tensor's scale."""

    name = "Clip"
    domain = ""
    supports_zero_points = True

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel; absent bounds are the type's."""
        from simulator.kernels import Clip as Kernel

        low, high = (info.constants.get(i) for i in (1, 2))
        return Kernel(
            -(1 << 31) if low is None else int(low.reshape(())),
            (1 << 31) - 1 if high is None else int(high.reshape(())),
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """The bounds in real numbers."""
        bounds = [
            builder.add_constant(
                np.float32(
                    builder.dequantize_scalar(int(builder.info.constants[index].reshape(())))
                ),
                what,
            )
            if index in builder.info.constants
            else None
            for index, what in ((1, "low"), (2, "high"))
        ]
        return [builder("Clip", builder.float_input(), *bounds)]


CLIP = Clip()


FAMILY: tuple[Format, ...] = (RELU, CLIP)
