"""Build the float model of an integer node from standard operators.

Integer operators emit nodes through a `FloatNodeBuilder`. Constants get a DequantizeLinear, ``(q -
zero) * y_scale`` with ``y_scale = 1 / scale`` in float32; the caller adds QuantizeLinear after the
result. This module knows no integer operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..common.errors import ModelError
from ..ir import ir
from ..ir.attributes import Attributes, AttributeValue
from ..ir.plan import Affine, PerGroup
from ._kernel_info import KernelInfo

__all__ = ["MIN_OPSET", "INT4_INT16_OPSET", "FloatNodeBuilder", "integer_storage_type"]

#: First opsets with per-channel scales, and with integers of 4 and 16 bits.
MIN_OPSET, INT4_INT16_OPSET = 13, 21

_TYPES = {4: ir.DataType.INT4, 8: ir.DataType.INT8, 16: ir.DataType.INT16, 32: ir.DataType.INT32}


def integer_storage_type(bits: int, min_bits: int = 4) -> ir.DataType:
    """Return the narrowest signed integer type of ONNX with at least `bits` and `min_bits` bits."""
    return _TYPES[next(width for width in sorted(_TYPES) if max(bits, min_bits) <= width)]


class FloatNodeBuilder:
    """Emits the float model of an integer node in standard operators.

    Names are derived from those of the node.

    Parameters
    ----------
    model
        Model that gets the constants.
    info
        The integer node.
    values
        Float value of each input, None for absent ones and constants.
    qparams
        Quantization parameters of each input, None for float ones.
    used_names
        Names in use; extended by new names.
    stores_uint8
        Whether to store 8-bit constants as uint8, with zero point 128.

    Attributes
    ----------
    nodes
        The emitted nodes, in order.
    opset
        Opset that the emitted nodes need.
    scales_by_y_scale
        Scale of each y_scale initializer, by its name.
    """

    def __init__(
        self,
        model: ir.Model,
        info: KernelInfo,
        values: Sequence[ir.Value | None],
        qparams: Sequence[Affine | None],
        used_names: set[str],
        stores_uint8: bool = False,
    ) -> None:
        """Prepare the float nodes of the integer node of `info`; `nodes` gets them in order.

        Parameters
        ----------
        model
            Model that gets the constants; the nodes are not inserted.
        info
            Properties of the node.
        values
            Float value of each input, None where there is none.
        qparams
            Parameters of each input, None if unknown.
        used_names
            Names in use; modified.
        stores_uint8
            Whether 8-bit constants are stored as uint8 plus 128.
        """
        self.info, self.node, self.attrs = info, info.node, info.attributes
        self.nodes: list[ir.Node] = []
        self.opset, self.stores_uint8 = MIN_OPSET, stores_uint8
        self.scales_by_y_scale: dict[str, float | Sequence[float]] = {}
        self._model, self._values = model, list(values)
        self._qparams, self._used_names = qparams, used_names

    def input_scale(self, index: int = 0) -> float:
        """Return the scale of integer input `index` (real value = integer / scale).

        Raises ModelError if its quantization parameters are unknown.
        """
        q = self._qparams[index]
        if q is None:
            raise ModelError(f"{self.info.label}: the scale of its input {index} is unknown")
        return q.scale

    def input_qparams(self, index: int) -> Affine | None:
        """Return scale, bits and zero point of input `index`.

        None if it is float or does not exist.
        """
        return self._qparams[index] if index < len(self._qparams) else None

    def set_input_value(self, index: int, value: ir.Value) -> None:
        """Let `float_input` return `value` as the float value of input `index` from now on."""
        self._values[index] = value

    def dequantize_scalar(self, integer: float, index: int = 0) -> float:
        """Return the real value of an integer of input `index`: (integer - zero point) / scale.

        Raises ModelError if its scale is unknown.
        """
        q = self._qparams[index]
        return (integer - (0 if q is None else q.zero_point)) / self.input_scale(index)

    def __call__(
        self, op_type: str, *inputs: ir.Value | None, **attributes: AttributeValue
    ) -> ir.Value:
        """Append a standard node with one output, and return that output.

        Attributes that are None are omitted. The node is named after the integer node.
        """
        return self.add_multi_output_node(op_type, *inputs, outputs=1, **attributes)[0]

    def add_multi_output_node(
        self, op_type: str, *inputs: ir.Value | None, outputs: int, **attributes: AttributeValue
    ) -> list[ir.Value]:
        """Append a standard node with `outputs` outputs and return them.

        Attributes that are None are omitted. Node and outputs are named after the integer node; the
        origin of the node is the integer node.
        """
        name = self._make_name(f"{self.node.outputs[0].name}_{op_type}")
        node = ir.node(
            op_type, list(inputs), {}, num_outputs=outputs, name=f"{self.node.name}_{op_type}"
        )
        for key, attribute in attributes.items():
            if attribute is not None:
                ir.set_attr(node, key, attribute)
        for index, value in enumerate(node.outputs):
            value.name = name if index == 0 else self._make_name(name)
        ir.mark_origin(node, self.node)
        self.nodes.append(node)
        return list(node.outputs)

    def require_opset(self, opset: int) -> None:
        """Raise `self.opset`, which the emitted nodes need, to `opset` if that is higher."""
        self.opset = max(self.opset, opset)

    def float_input(self, index: int = 0) -> ir.Value:
        """Return the float value of input `index` of the integer node.

        A constant without a float value is dequantized by a new node. Raises ModelError if the
        input is absent or its scale is unknown.
        """
        value = self._values[index] if index < len(self._values) else None
        if value is not None:
            return value
        if index not in self.info.constants:
            raise ModelError(f"{self.info.label}: it has no input {index}")
        return self.dequantize_constant(index, self.input_scale(index))

    def raw_input(self, index: int) -> ir.Value | None:
        """Return input `index` of the integer node unchanged, for indices or sizes.

        None if absent.
        """
        return ir.get_input(self.node, index)

    def add_constant(self, array: ArrayLike, suffix: str) -> ir.Value:
        """Add `array` as an initializer named after the node and `suffix`, and return its value."""
        return ir.add_initializer(
            self._model, self._make_name(f"{self.node.outputs[0].name}_{suffix}"), np.asarray(array)
        )

    def dequantize_constant(
        self,
        index: int,
        scale: float | Sequence[float],
        axis: int | None = None,
        view: Callable[[np.ndarray], np.ndarray] | None = None,
        bits: int | None = None,
    ) -> ir.Value:
        """Emit a DequantizeLinear of constant input `index` and return its output.

        The result has the name of the constant if that is unused. An int64 constant becomes a
        float32 initializer instead.

        Parameters
        ----------
        index
            Index of the input. ModelError if it is not constant.
        scale
            Scale, or scales along `axis`; real value = integer / scale.
        axis
            Axis of a sequence of scales; default 0.
        view
            Rearranges the integers first.
        bits
            Bits to store; default: those of the dtype.
        """
        if index not in self.info.constants:
            raise ModelError(f"{self.info.label}: its input {index} must be a constant")
        array, name = self.info.constants[index], ir.input_name(self.node, index)
        array = array if view is None else view(array)
        channels = len(scale) if isinstance(scale, Sequence) else 0
        if array.dtype == np.int64:  # DequantizeLinear does not support int64
            return self._add_float_constant(name, array, scale, axis)
        y_scale = self.add_y_scale(name, scale)
        scale_shape = [channels] if channels else []
        attributes = {"axis": axis or 0} if channels else {}
        return self._add_dequantize_linear(
            index, array, bits or 8 * array.dtype.itemsize, y_scale, scale_shape, attributes
        )

    def _add_float_constant(
        self, name: str, array: np.ndarray, scale: float | Sequence[float], axis: int | None
    ) -> ir.Value:
        """Add the integers `array`, divided by `scale`, as a float32 initializer; return its value.

        It is named after `name`, the constant that `array` comes from; a sequence of scales is
        along `axis`.
        """
        divisor: ArrayLike = scale
        if isinstance(scale, Sequence) and scale:
            divisor = np.reshape(scale, [-1 if i == axis else 1 for i in range(array.ndim)])
        return ir.add_initializer(
            self._model, self._make_name(f"{name}_real"), (array / divisor).astype(np.float32)
        )

    def dequantize_grouped_constant(
        self, index: int, q: Affine, transposed: bool = False
    ) -> ir.Value:
        """Dequantize constant input `index`, a matrix with per-group qparams `q`.

        Emits a blocked DequantizeLinear, and a Transpose if `transposed`, and returns the output;
        requires opset 21. `scales_by_y_scale` gets the scales of the rows; those of the groups
        follow from y_scale.
        """
        assert isinstance(q.granularity, PerGroup)
        self.require_opset(INT4_INT16_OPSET)
        array, name = self.info.constants[index], ir.input_name(self.node, index)
        y_scale = ir.add_initializer(
            self._model, self._make_name(f"{name}_scale"), (1.0 / q.scales).astype(np.float32)
        )
        self.scales_by_y_scale[str(y_scale.name)] = q.factors[0].tolist()
        attributes = {"axis": q.granularity.axis, "block_size": q.granularity.size}
        value = self._add_dequantize_linear(
            index, array, q.bits, y_scale, q.scales.shape, attributes
        )
        if not transposed:
            return value
        # With a transposed constant, onnxruntime fuses an integer product that ignores blocks.
        result_name, value.name = value.name, self._make_name(f"{name}_rows")
        value = self("Transpose", value, perm=[1, 0])
        value.name = result_name
        return value

    def _add_dequantize_linear(
        self,
        index: int,
        array: np.ndarray,
        bits: int,
        y_scale: ir.Value,
        scale_shape: Sequence[int],
        attributes: Mapping[str, int],
    ) -> ir.Value:
        """Emit a DequantizeLinear of integers of `bits`, with a y_scale of `scale_shape`.

        The integers `array` of constant input `index` are stored in the narrowest type for `bits`;
        as uint8 plus 128 with `stores_uint8` and 8 bits. `attributes` are those of the node.
        Returns its output, named as the constant if that is unused.
        """
        name, kind, zero = ir.input_name(self.node, index), integer_storage_type(bits), 0
        if self.stores_uint8 and kind == _TYPES[8]:
            kind, zero, array = ir.DataType.UINT8, 128, array.astype(np.int16) + 128
        inputs = [
            self._add_integer_initializer(self._make_name(f"{name}_quantized"), array, kind),
            y_scale,
            *self.zero_point_inputs(kind, scale_shape, zero),
        ]
        dequantize = ir.make_node(
            "DequantizeLinear",
            inputs,
            dict(attributes),
            output=self._reuse_constant_name(name),
            origin=self.node,
            suffix=f"input{index}",
        )
        dequantize.outputs[0].shape = ir.Shape(array.shape)
        dequantize.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        self.nodes.append(dequantize)
        return dequantize.outputs[0]

    def add_y_scale(self, name: str, scale: float | Sequence[float]) -> ir.Value:
        """Add the float32 constant y_scale = 1 / `scale` of the tensor `name` and return its value.

        Its scale is recorded in `scales_by_y_scale`.
        """
        y_scale = np.asarray(1.0 / np.asarray(scale), np.float32)
        value = ir.add_initializer(self._model, self._make_name(f"{name}_scale"), y_scale)
        self.scales_by_y_scale[str(value.name)] = scale
        return value

    def zero_point_inputs(
        self, kind: ir.DataType, sizes: Sequence[int] = (), zero_point: int = 0
    ) -> list[ir.Value]:
        """Return a list with the zero point input of integers of type `kind`; [] for int32.

        The initializer has the shape `sizes`, is filled with `zero_point`, and is shared by all
        nodes of the model that need the same. Types other than 8 bits require opset 21, which is
        noted.
        """
        if kind == _TYPES[32]:
            return []
        if kind not in (_TYPES[8], ir.DataType.UINT8):
            self.require_opset(INT4_INT16_OPSET)
        shape_suffix = "_" * bool(sizes) + "x".join(map(str, sizes))
        name = f"{kind.name.lower()}_zero{zero_point or ''}{shape_suffix}"
        existing = self._model.graph.initializers.get(name)
        if existing is not None:
            return [existing]
        self._used_names.add(name)
        return [self._add_integer_initializer(name, np.full(sizes, zero_point), kind)]

    def _add_integer_initializer(self, name: str, array: np.ndarray, kind: ir.DataType) -> ir.Value:
        """Add `array`, converted to type `kind`, as initializer `name` and return its value."""
        tensor = ir.tensor(np.asarray(array, order="C").astype(kind.numpy()), dtype=kind, name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(array.shape), type=ir.TensorType(kind), const_value=tensor
        )
        self._model.graph.register_initializer(value)
        return value

    def _reuse_constant_name(self, name: str) -> str:
        """Reserve and return a name for the float values of the integer constant `name`.

        At the first use for this constant it is `name` itself, later `name` with a number.
        """
        return self._make_name(name, f"{name} ")

    def _make_name(self, base: str, key: str = "") -> str:
        """Reserve and return `base`, or `base` with a number if it is in use.

        With a `key` that is not reserved yet, the name is `base` even if it is in use, and `key` is
        reserved.
        """
        if key and key not in self._used_names:
            self._used_names.add(key)
            return base
        free = ir.unique_name(base, self._used_names)
        self._used_names.add(free)
        return free

    def add_same_op(
        self, *inputs: ir.Value | None, attributes: Attributes | None = None
    ) -> list[ir.Value]:
        """Append the standard operator with the name of the integer operator.

        Return all its outputs. `attributes` default to those of the integer node that the standard
        operator has in opset 12 or the newest one.
        """
        import onnx

        op_type = str(self.node.op_type)
        if attributes is None:
            standard_names = {*onnx.defs.get_schema(op_type, 12).attributes}
            standard_names |= {*onnx.defs.get_schema(op_type).attributes}
            names = [name for name in self.node.attributes if name in standard_names]
            attributes = {name: ir.get_attr(self.node, name) for name in names}
        outputs = len(self.node.outputs)
        return self.add_multi_output_node(op_type, *inputs, outputs=outputs, **attributes)
