"""Operators that move data: Reshape, Flatten, Squeeze, Unsqueeze, Transpose. Scales pass through.

Graphs carry Squeeze's and Unsqueeze's axes as attributes (opset 12).
"""

from __future__ import annotations

import numpy as np

from simulator.kernel import Kernel

from ...errors import ModelError
from ...graph.attributes import get_int, get_ints
from .._base import Attr, Format, KernelInfo

__all__ = ["FAMILY", "RESHAPE", "FLATTEN", "SQUEEZE", "UNSQUEEZE", "TRANSPOSE"]


class _ShapeIntegerOp(Format):
    domain = ""
    supports_zero_points = True

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a reshape to the declared output shape."""
        from simulator.kernels import Reshape as Kernel

        target, source = self.reshape_target(info), self.source_shape(info)
        same = int(np.prod(target[1:], dtype=int)) == int(np.prod(source[1:], dtype=int))
        counted = (
            same or min(target[1:], default=1) < 1
        )  # numbers that may yet turn out to be the same
        keeps = bool(target) and ((target[0] in (0, 1) and counted) or (target[0] == -1 and same))
        return Kernel(tuple(target), is_per_sample=info.has_batch_axis and keeps)

    def reshape_target(self, bound: KernelInfo) -> list[int]:
        """Return the ONNX Reshape target that this node means."""
        raise NotImplementedError

    def source_shape(self, bound: KernelInfo) -> tuple[int, ...]:
        """Return the shape of the input as the simulator sees it."""
        return bound.input_shapes[0]


class Reshape(_ShapeIntegerOp):
    """Reshape to a constant target."""

    name = "Reshape"

    def reshape_target(self, bound: KernelInfo) -> list[int]:
        """Return the constant target."""
        array = bound.constants.get(1)
        if array is None:
            raise ModelError(f"{bound.label}: its target must be a constant")
        if array.dtype.kind not in "iu":
            raise ModelError(f"{bound.label}: its target holds {array.dtype}; it must be integers")
        return [int(d) for d in array.reshape(-1)]


RESHAPE = Reshape()


class Flatten(_ShapeIntegerOp):
    """Flatten from an axis on."""

    name = "Flatten"
    attributes = (Attr("axis", "i", 1),)

    def reshape_target(self, bound: KernelInfo) -> list[int]:
        """Return a target of two axes."""
        shape = self.source_shape(bound)
        axis = get_int(bound.attributes, "axis") % (len(shape) + 1)
        return [0, -1] if axis == 1 else [int(np.prod(shape[:axis], dtype=int)), -1]


FLATTEN = Flatten()


class Squeeze(_ShapeIntegerOp):
    """Drop axes of size 1."""

    name = "Squeeze"
    nonstandard_usage = (
        "axes as an attribute in any opset; from 13 on the standard has them as an input"
    )
    nonstandard_attribute = "axes"
    attributes = (Attr("axes", "ints", None),)

    def reshape_target(self, bound: KernelInfo) -> list[int]:
        """What is left; the batch axis stays."""
        shape = self.source_shape(bound)
        told = bound.constants[1].reshape(-1).tolist() if 1 in bound.constants else []
        axes = get_ints(bound.attributes, "axes", told)
        gone = (
            {a % len(shape) for a in axes} if axes else {i for i, d in enumerate(shape) if d == 1}
        )
        return [d for i, d in enumerate(shape) if i not in gone]


SQUEEZE = Squeeze()


class Unsqueeze(_ShapeIntegerOp):
    """Insert axes of size 1."""

    name = "Unsqueeze"
    nonstandard_usage = (
        "axes as an attribute in any opset; from 13 on the standard has them as an input"
    )
    nonstandard_attribute = "axes"
    attributes = (Attr("axes", "ints", None),)

    def reshape_target(self, bound: KernelInfo) -> list[int]:
        """The input's sizes with ones between."""
        shape = list(self.source_shape(bound))
        axes = get_ints(
            bound.attributes,
            "axes",
            bound.constants[1].reshape(-1).tolist() if 1 in bound.constants else None,
        )
        for axis in sorted(a % (len(shape) + len(axes)) for a in axes):
            shape.insert(axis, 1)
        return shape


UNSQUEEZE = Unsqueeze()


class Transpose(_ShapeIntegerOp):
    """Permute axes; the batch axis stays first."""

    name = "Transpose"
    attributes = (Attr("perm", "ints", None),)

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel that permutes the axes."""
        from simulator.kernels import Transpose as Kernel

        rank = len(self.source_shape(info))
        return Kernel(tuple(get_ints(info.attributes, "perm", range(rank)[::-1])))


TRANSPOSE = Transpose()


FAMILY: tuple[Format, ...] = (RESHAPE, FLATTEN, SQUEEZE, UNSQUEEZE, TRANSPOSE)
