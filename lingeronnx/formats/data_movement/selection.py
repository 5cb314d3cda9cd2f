"""Operators that choose a part of a tensor: Slice, Split, Gather, ArgMax. Scales pass through.

Gather is either a choice along an axis or, with a constant table, an embedding: the table is then
quantized at the scale of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simulator.kernel import Kernel

from ...errors import ModelError
from ...graph import ir
from ...graph.attributes import Attributes, AttributeValue, get_int, get_ints, get_number
from ...plan import Affine
from .. import shape_inference as rules
from .._base import Attr, Format, KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["FAMILY", "SLICE", "SPLIT", "GATHER", "ARG_MAX"]


def read_slices(
    node: ir.Node, get_constant: Callable[[int], np.ndarray | None], rank: int
) -> dict[int, slice] | None:
    """Return {axis: slice} of a Slice in either form (attributes, or inputs from opset 10 on).

    None when computed.
    get_constant : returns constant input `index`, or None.
    """
    if "starts" in node.attributes:
        starts, ends, axes = (ir.get_attr(node, name) for name in ("starts", "ends", "axes"))
        steps = None
    else:
        parts = []
        for index in range(1, 5):
            array = get_constant(index)
            present = len(node.inputs) > index and node.inputs[index] is not None
            if array is None and (present or index < 3):
                return None
            if array is not None and array.dtype.kind not in "iu":
                raise ModelError(
                    f"{node.op_type} {node.name}: input {index} holds {array.dtype}; it must be "
                    "integers"
                )
            parts.append(None if array is None else [int(v) for v in array.reshape(-1)])
        starts, ends, axes, steps = parts
    lists = [each for each in (starts, ends, axes, steps) if each is not None]
    if (
        any(not isinstance(each, Sequence) or len(each) != len(lists[0]) for each in lists)
        or starts is ends is None
    ):
        raise ModelError(
            f"{node.op_type} {node.name}: starts, ends, axes and steps must be lists of one length"
        )
    axes = range(len(starts)) if axes is None else [a % max(rank, 1) for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    return {
        axis: _to_python_slice(*each) for axis, *each in zip(axes, starts, ends, steps, strict=True)
    }


def read_constant_slices(node: ir.Node) -> dict[int, slice] | None:
    """Return `read_slices` of a Slice by the constants of its own graph."""
    rank = len(ir.get_shape(node.inputs[0]) or (0,))
    return read_slices(
        node, lambda i: ir.const_value(node.inputs[i]) if len(node.inputs) > i else None, rank
    )


def sliced_positions(node: ir.Node, axis: int) -> range | None:
    """Return the positions of a Slice along `axis` alone, or None if unknown or different."""
    shape = ir.get_shape(node.inputs[0]) if node.inputs else None
    length = shape[axis] if shape is not None and axis < len(shape) else None
    if node.op_type != "Slice" or node.domain or length is None:
        return None
    ranges = read_constant_slices(node)
    return (
        range(*ranges[axis].indices(length))
        if ranges is not None and set(ranges) == {axis}
        else None
    )


def _to_python_slice(start: int, end: int, step: int) -> slice:
    """Return Python's slice of ONNX's numbers.

    An end beyond the first element, going backwards, is no end.
    """
    return slice(start, None if step < 0 and end < -(1 << 30) else end, step)


class Slice(Format):
    """A range of positions along one axis or several."""

    name = "Slice"
    domain = ""
    supports_zero_points = True

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the positions of each axis."""
        from simulator.kernels import IndexSelect

        shape = info.input_shapes[0]
        ranges = read_slices(info.node, info.constants.get, len(shape))
        if ranges is None:
            raise ModelError(f"{info.label}: its bounds must be constants")
        places: list[np.ndarray | None] = [None] * len(shape)
        for axis, part in ranges.items():
            index = np.arange(shape[axis])[part]
            places[axis] = None if len(index) == shape[axis] and part.step == 1 else index
        return IndexSelect(tuple(places))


SLICE = Slice()


class Split(Format):
    """An axis cut into parts, one per output."""

    name = "Split"
    signature = Signature("x:integer split:index?", "integer*", rules.infer_split)
    nonstandard_usage = (
        "sizes in an attribute dims, a number or a list, beside the standard's split"
    )
    nonstandard_attribute = "dims"
    domain = ""
    supports_zero_points = True
    attributes = (Attr("axis", "i", 0), Attr("dims", "ints", None), Attr("split", "ints", None))

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the cutter; the sizes are `split`, a second input, a list `dims`, or equal."""
        from simulator.kernels import Split as Kernel

        return Kernel(*self.split_sizes(info))

    def split_sizes(self, bound: KernelInfo) -> tuple[int, list[int]]:
        """Return the axis, and the size of each part along it."""
        shape, a = bound.input_shapes[0], bound.attributes
        axis, count = get_int(a, "axis") % len(shape), len(bound.node.outputs)
        each = -(-shape[axis] // count)
        equal = [each] * (count - 1) + [shape[axis] - each * (count - 1)]
        second = bound.constants[1].reshape(-1).tolist() if 1 in bound.constants else None
        listed = get_ints(a, "dims") if isinstance(a["dims"], list) else None
        return axis, get_ints(a, "split", second or listed or equal)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the parts."""
        axis, sizes = self.split_sizes(builder.info)
        return builder.add_same_op(builder.float_input(), attributes={"axis": axis, "split": sizes})


SPLIT = Split()


class Gather(Format):
    """A choice along an axis by a constant index, or rows of a constant table by a computed one."""

    name = v3_name = "Gather"
    domain = ""
    supports_zero_points = True
    attributes = (
        Attr("axis", "i", 0),
        Attr("parameter_bits", "i", 8),
        Attr("scale_x", "f", None),
        Attr("scale_o", "f", None),
    )

    def scales(self, q: Affine) -> dict[str, AttributeValue]:
        """Return the attributes of an embedding whose table is held as `q`."""
        return {"parameter_bits": q.bits, "scale_x": q.scale, "scale_o": q.scale}

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes unchanged."""
        return dict(attrs)

    def kernel_inputs(self, node: ir.Node) -> list[int]:
        """The index of an embedding."""
        return [0] if ir.const_value(node.inputs[0]) is None else [1]

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel of the one or the other."""
        from simulator.kernels import Gather as Kernel
        from simulator.kernels import Lookup

        axis, index = get_int(info.attributes, "axis"), info.constants.get(1)
        if 0 in info.constants:
            if axis or index is not None:
                raise ModelError(
                    f"{info.label}: a constant table is read by rows and by a computed index only"
                )
            return Lookup(info.require_constant(0, "int8 int16", "table"))
        if index is None:
            raise ModelError(f"{info.label}: its index must be a constant")
        size = info.input_shapes[0][axis]
        return Kernel(axis % len(info.input_shapes[0]), np.where(index < 0, index + size, index))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the choice, of the table's real values where there is one."""
        axis, bits = get_int(builder.attrs, "axis"), get_int(builder.attrs, "parameter_bits", 8)
        if 0 not in builder.info.constants:
            return [builder("Gather", builder.float_input(), builder.raw_input(1), axis=axis)]
        scale = get_number(builder.attrs, "scale_o" if builder.attrs["scale_o"] else "scale_x")
        return [
            builder("Gather", builder.held(0, scale, bits=bits), builder.raw_input(1), axis=axis)
        ]

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """The table's, or the input's."""
        return super().output_qparams({"scale_o": attrs["scale_o"] or attrs["scale_x"]}, scales)


GATHER = Gather()


class ArgMax(Format):
    """The largest integer of a single row and its first position, as the vendor's graphs have them: [2, 1, .., 1]."""

    name = "ArgMax"
    signature = Signature("x:integer", "integer", rules.infer_argmax)
    nonstandard_usage = (
        "gives the largest integer and its position as int32 [2, 1, ..]; the "
        "standard gives int64 positions"
    )
    domain = ""
    attributes = (Attr("axis", "i", 0),)

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the search for the largest integer."""
        from simulator.kernels import ArgMax as Kernel

        return Kernel(get_int(info.attributes, "axis"))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """There is none: the standard operator gives positions alone."""
        raise ModelError(f"{builder.info.label}: standard operators have no counterpart")


ARG_MAX = ArgMax()


FAMILY: tuple[Format, ...] = (SLICE, SPLIT, GATHER, ARG_MAX)
