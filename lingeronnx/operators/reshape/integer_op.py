"""Operators that change the shape: Reshape, Flatten, Squeeze, Unsqueeze, Transpose.

Input and output have the same scale. The axes of Squeeze and Unsqueeze are attributes (opset 12).
"""

from __future__ import annotations

import numpy as np

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir.attributes import get_int, get_ints
from .._integer_op import Attr, Format
from .._kernel_info import KernelInfo

__all__ = ["FAMILY", "RESHAPE", "FLATTEN", "SQUEEZE", "UNSQUEEZE", "TRANSPOSE"]


class _ShapeIntegerOp(Format):
    """Base of operators that the simulator computes as a Reshape."""

    domain = ""
    supports_zero_points = True

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a reshape to `reshape_target`, sample by sample if the batch axis is preserved.

        That requires that axis 0 is the batch, and that the target begins with 0 or 1 and its other
        sizes multiply to those of the input (or contain 0 or -1), or begins with -1 and they do.
        """
        from simulator.kernels import Reshape as Kernel

        target, source = self.reshape_target(info), self.source_shape(info)
        has_same_size = int(np.prod(target[1:], dtype=int)) == int(np.prod(source[1:], dtype=int))
        # A target with 0 or -1 may yet have the size of a sample.
        can_have_same_size = has_same_size or min(target[1:], default=1) < 1
        preserves_batch = bool(target) and (
            (target[0] in (0, 1) and can_have_same_size) or (target[0] == -1 and has_same_size)
        )
        return Kernel(tuple(target), is_per_sample=info.has_batch_axis and preserves_batch)

    def reshape_target(self, info: KernelInfo) -> list[int]:
        """Return the target of a Reshape that does the same as the node: 0 unchanged, -1 inferred.

        Subclasses must override it.
        """
        raise NotImplementedError

    def source_shape(self, info: KernelInfo) -> tuple[int, ...]:
        """Return the shape of input 0 of the node in the simulator."""
        return info.input_shapes[0]


class Reshape(_ShapeIntegerOp):
    """Reshape to a constant shape."""

    name = "Reshape"

    def reshape_target(self, info: KernelInfo) -> list[int]:
        """Return the constant target shape at input 1 of the Reshape, which may contain 0 and -1.

        Raises ModelError if it is computed at run time or does not hold integers.
        """
        array = info.constants.get(1)
        if array is None:
            raise ModelError(f"{info.label}: its target must be a constant")
        if array.dtype.kind not in "iu":
            raise ModelError(f"{info.label}: its target holds {array.dtype}; it must be integers")
        return [int(d) for d in array.reshape(-1)]


RESHAPE = Reshape()


class Flatten(_ShapeIntegerOp):
    """Flatten to a matrix at `axis`."""

    name = "Flatten"
    attributes = (Attr("axis", "i", 1),)

    def reshape_target(self, info: KernelInfo) -> list[int]:
        """Return the target shape of an equal Reshape: [0, -1] for `axis` 1, else [size, -1].

        The size is the product of the sizes of the axes before `axis`.
        """
        shape = self.source_shape(info)
        axis = get_int(info.attributes, "axis") % (len(shape) + 1)
        return [0, -1] if axis == 1 else [int(np.prod(shape[:axis], dtype=int)), -1]


FLATTEN = Flatten()


class Squeeze(_ShapeIntegerOp):
    """Remove axes of size 1."""

    name = "Squeeze"
    nonstandard_usage = (
        "axes as an attribute in any opset; from 13 on the standard has them as an input"
    )
    nonstandard_attribute = "axes"
    attributes = (Attr("axes", "ints", None),)

    def reshape_target(self, info: KernelInfo) -> list[int]:
        """Return the shape of the input without the given axes, by default without all of size 1.

        The axes are attribute `axes`, else constant input 1.
        """
        shape = self.source_shape(info)
        input_axes = info.constants[1].reshape(-1).tolist() if 1 in info.constants else []
        axes = get_ints(info.attributes, "axes", input_axes)
        if axes:
            removed_axes = {axis % len(shape) for axis in axes}
        else:
            removed_axes = {axis for axis, size in enumerate(shape) if size == 1}
        return [size for axis, size in enumerate(shape) if axis not in removed_axes]


SQUEEZE = Squeeze()


class Unsqueeze(_ShapeIntegerOp):
    """Insert axes of size 1."""

    name = "Unsqueeze"
    nonstandard_usage = (
        "axes as an attribute in any opset; from 13 on the standard has them as an input"
    )
    nonstandard_attribute = "axes"
    attributes = (Attr("axes", "ints", None),)

    def reshape_target(self, info: KernelInfo) -> list[int]:
        """Return the shape of the input with sizes of 1 inserted at the given axes of the output.

        The axes are attribute `axes`, else constant input 1; ModelError without both.
        """
        shape = list(self.source_shape(info))
        input_axes = info.constants[1].reshape(-1).tolist() if 1 in info.constants else None
        axes = get_ints(info.attributes, "axes", input_axes)
        rank = len(shape) + len(axes)
        for axis in sorted(axis % rank for axis in axes):
            shape.insert(axis, 1)
        return shape


UNSQUEEZE = Unsqueeze()


class Transpose(_ShapeIntegerOp):
    """Permutation of axes; the batch axis remains first."""

    name = "Transpose"
    attributes = (Attr("perm", "ints", None),)

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel that permutes the axes by the attribute `perm`.

        Without it, reverses them.
        """
        from simulator.kernels import Transpose as Kernel

        rank = len(self.source_shape(info))
        return Kernel(tuple(get_ints(info.attributes, "perm", range(rank)[::-1])))


TRANSPOSE = Transpose()


FAMILY: tuple[Format, ...] = (RESHAPE, FLATTEN, SQUEEZE, UNSQUEEZE, TRANSPOSE)
