"""Operators that select parts of a tensor: Slice, Split, Gather, ArgMax.

Input and output have the same scale. Gather either selects along an axis, or is an embedding if
input 0 is a constant table, which is then quantized with the scale of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int, get_ints, get_number
from ...ir.plan import Affine
from .. import shape_inference as rules
from .._integer_op import Attr, Format
from .._kernel_info import KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["FAMILY", "SLICE", "SPLIT", "GATHER", "ARG_MAX"]


def read_slices(
    node: ir.Node, get_constant: Callable[[int], np.ndarray | None], rank: int
) -> dict[int, slice] | None:
    """Return {axis: slice} of a Slice node, or None if its bounds are computed at run time.

    Parameters
    ----------
    node
        Slice with bounds as attributes (below opset 10) or as inputs.
    get_constant
        Returns the constant input at an index, or None.
    rank
        Rank of input 0.

    Returns
    -------
    dict of int to slice, or None
        Axes are counted from 0; ends are those of the node, not clipped to the size.

    Raises
    ------
    ModelError
        If the bounds are not lists of integers of one length.
    """
    bounds = _read_slice_bounds(node, get_constant)
    if bounds is None:
        return None
    starts, ends, axes, steps = bounds
    lists = [values for values in bounds if values is not None]
    are_lists = all(isinstance(values, Sequence) for values in lists)
    if not are_lists or len(set(map(len, lists))) > 1 or starts is None or ends is None:
        raise ModelError(
            f"{node.op_type} {node.name}: starts, ends, axes and steps must be lists of one length"
        )
    axes = range(len(starts)) if axes is None else [axis % max(rank, 1) for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    return {
        axis: _to_python_slice(start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


def _read_slice_bounds(
    node: ir.Node, get_constant: Callable[[int], np.ndarray | None]
) -> tuple[Any, Any, Any, Any] | None:
    """Return starts, ends, axes and steps, or None if one of them is computed at run time.

    Absent axes and steps are None; so are steps if the bounds are attributes. Raises ModelError for
    inputs that are not integers.
    """
    if "starts" in node.attributes:
        starts, ends, axes = (ir.get_attr(node, name) for name in ("starts", "ends", "axes"))
        return starts, ends, axes, None
    bounds: list[list[int] | None] = []
    for index in range(1, 5):
        array = get_constant(index)
        if array is None:
            is_present = len(node.inputs) > index and node.inputs[index] is not None
            if is_present or index < 3:
                return None
            bounds.append(None)
            continue
        if array.dtype.kind not in "iu":
            raise ModelError(
                f"{node.op_type} {node.name}: input {index} holds {array.dtype}; it must be "
                "integers"
            )
        bounds.append([int(value) for value in array.reshape(-1)])
    starts, ends, axes, steps = bounds
    return starts, ends, axes, steps


def read_constant_slices(node: ir.Node) -> dict[int, slice] | None:
    """Return {axis: slice} of `node`, a float or integer Slice; None if its bounds are computed.

    Axes are counted from 0; slices are Python's, not clipped to the size. Raises ModelError if the
    bounds are not lists of integers of one length.
    """
    rank = len(ir.get_shape(node.inputs[0]) or (0,))

    def get_constant(index: int) -> np.ndarray | None:
        """Return input `index` of the Slice if it is constant; None if it is computed or absent."""
        return ir.const_value(node.inputs[index]) if len(node.inputs) > index else None

    return read_slices(node, get_constant, rank)


def sliced_positions(node: ir.Node, axis: int) -> range | None:
    """Return the positions that `node` selects, if it is a Slice along `axis` alone, or None.

    None for other nodes, and if the bounds or the size of the axis are unknown. `axis` is not
    negative.
    """
    shape = ir.get_shape(node.inputs[0]) if node.inputs else None
    length = shape[axis] if shape is not None and axis < len(shape) else None
    if node.op_type != "Slice" or node.domain or length is None:
        return None
    slices = read_constant_slices(node)
    if slices is None or set(slices) != {axis}:
        return None
    return range(*slices[axis].indices(length))


def _to_python_slice(start: int, end: int, step: int) -> slice:
    """Return the Python slice for the ONNX bounds `start` and `end` (exclusive) and `step`.

    With a negative step, a very small end stands for "up to the first element", in Python None.
    """
    return slice(start, None if step < 0 and end < -(1 << 30) else end, step)


class Slice(Format):
    """Range of positions along one or more axes."""

    name = "Slice"
    domain = ""
    supports_zero_points = True

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a kernel that selects the positions of each sliced axis; complete axes are None.

        Raises ModelError if the bounds are not constants.
        """
        from simulator.kernels import IndexSelect

        shape = info.input_shapes[0]
        slices = read_slices(info.node, info.constants.get, len(shape))
        if slices is None:
            raise ModelError(f"{info.label}: its bounds must be constants")
        indices: list[np.ndarray | None] = [None] * len(shape)
        for axis, axis_slice in slices.items():
            positions = np.arange(shape[axis])[axis_slice]
            is_complete = len(positions) == shape[axis] and axis_slice.step == 1
            indices[axis] = None if is_complete else positions
        return IndexSelect(tuple(indices))


SLICE = Slice()


class Split(Format):
    """Split along an axis, into one slice per output."""

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
        """Return the simulator kernel that splits the input along its axis into the outputs."""
        from simulator.kernels import Split as Kernel

        return Kernel(*self.split_sizes(info))

    def split_sizes(self, info: KernelInfo) -> tuple[int, list[int]]:
        """Return the axis, counted from 0, and the size of each output along it.

        The sizes are attribute `split`, else constant input 1, else a list `dims`, else equal,
        rounded up, with the remainder in the last.
        """
        shape, a = info.input_shapes[0], info.attributes
        axis, count = get_int(a, "axis") % len(shape), len(info.node.outputs)
        chunk_size = -(-shape[axis] // count)
        equal_sizes = [chunk_size] * (count - 1) + [shape[axis] - chunk_size * (count - 1)]
        input_sizes = info.constants[1].reshape(-1).tolist() if 1 in info.constants else None
        dims = get_ints(a, "dims") if isinstance(a["dims"], list) else None
        return axis, get_ints(a, "split", input_sizes or dims or equal_sizes)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Split of the float input with explicit sizes to `builder`.

        Return all its outputs.
        """
        axis, sizes = self.split_sizes(builder.info)
        return builder.add_same_op(builder.float_input(), attributes={"axis": axis, "split": sizes})


SPLIT = Split()


class Gather(Format):
    """Selection along an axis by a constant index, or rows of a constant table (embedding)."""

    name = v3_name = "Gather"
    domain = ""
    supports_zero_points = True
    attributes = (
        Attr("axis", "i", 0),
        Attr("parameter_bits", "i", 8),
        Attr("scale_x", "f", None),
        Attr("scale_o", "f", None),
    )

    def make_qparams_attributes(self, table_qparams: Affine) -> dict[str, AttributeValue]:
        """Return the node attributes of an embedding: bits and scale of its constant table.

        Input and output have the same scale.
        """
        return {
            "parameter_bits": table_qparams.bits,
            "scale_x": table_qparams.scale,
            "scale_o": table_qparams.scale,
        }

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return a copy of `attrs`: dialect v3 has the same attributes for this operator."""
        return dict(attrs)

    def kernel_inputs(self, node: ir.Node) -> list[int]:
        """Return the input that is read at run time: [0], or [1] if input 0 is constant.

        A constant input 0 is an embedding table.
        """
        return [0] if ir.const_value(node.inputs[0]) is None else [1]

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a kernel that looks up rows of a constant table, or selects by a constant index.

        The selection is along `axis`; negative indices count from the end. Raises ModelError if
        neither input or both are constant, or a table is not used along axis 0.
        """
        from simulator.kernels import Gather as Kernel
        from simulator.kernels import Lookup

        axis, index = get_int(info.attributes, "axis"), info.constants.get(1)
        if 0 in info.constants:
            if axis or index is not None:
                raise ModelError(
                    f"{info.label}: a constant table needs axis = 0 and a computed index"
                )
            return Lookup(info.require_constant(0, "int8 int16", "table"))
        if index is None:
            raise ModelError(f"{info.label}: its index must be a constant")
        size = info.input_shapes[0][axis]
        return Kernel(axis % len(info.input_shapes[0]), np.where(index < 0, index + size, index))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Gather from the float input or dequantized constant table to `builder`.

        Returns [its output]. The scale of a table is scale_o, else scale_x.
        """
        axis, bits = get_int(builder.attrs, "axis"), get_int(builder.attrs, "parameter_bits", 8)
        if 0 not in builder.info.constants:
            return [builder("Gather", builder.float_input(), builder.raw_input(1), axis=axis)]
        scale = get_number(builder.attrs, "scale_o" if builder.attrs["scale_o"] else "scale_x")
        table = builder.dequantize_constant(0, scale, bits=bits)
        return [builder("Gather", table, builder.raw_input(1), axis=axis)]

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale, bits and zero point of the output: from scale_o, else from scale_x.

        Without both, those of input 0.
        """
        return super().output_qparams({"scale_o": attrs["scale_o"] or attrs["scale_x"]}, scales)


GATHER = Gather()


class ArgMax(Format):
    """Maximum of a single row and its first position, int32 [2, 1, ..., 1], as in vendor graphs."""

    name = "ArgMax"
    signature = Signature("x:integer", "integer", rules.infer_argmax)
    nonstandard_usage = (
        "gives the largest integer and its position as int32 [2, 1, ..]; the "
        "standard gives int64 positions"
    )
    domain = ""
    attributes = (Attr("axis", "i", 0),)

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel that computes maximum and position along attribute `axis`."""
        from simulator.kernels import ArgMax as Kernel

        return Kernel(get_int(info.attributes, "axis"))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Raise ModelError: no standard operator returns the maximum together with its position."""
        raise ModelError(f"{builder.info.label}: standard operators have no counterpart")


ARG_MAX = ArgMax()


FAMILY: tuple[Format, ...] = (SLICE, SPLIT, GATHER, ARG_MAX)
