"""What an integer node means in real numbers.

The standard nodes that a format writes for it through a `FloatNodeBuilder`.
Integers that a node holds itself stand behind a DequantizeLinear, ``(q - zero) * y_scale`` with
``y_scale = 1 / scale`` in float32. Whoever asks puts the QuantizeLinear behind the result. Knows no
integer operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ModelError
from ..graph import ir
from ..graph.attributes import Attributes, AttributeValue
from ..plan import Affine, PerGroup
from ._kernel_info import KernelInfo

__all__ = ["MIN_OPSET", "INT4_INT16_OPSET", "FloatNodeBuilder", "integer_storage_type"]

#: Opset with one scale for each channel; that with integers of 4 and 16 bits.
MIN_OPSET, INT4_INT16_OPSET = 13, 21

_TYPES = {4: ir.DataType.INT4, 8: ir.DataType.INT8, 16: ir.DataType.INT16, 32: ir.DataType.INT32}


def integer_storage_type(bits: int) -> ir.DataType:
    """Return the narrowest integer type of ONNX's that holds signed `bits`."""
    return _TYPES[next(width for width in sorted(_TYPES) if bits <= width)]


class FloatNodeBuilder:
    """Makes the nodes that mean in real numbers what the integer node `info` computes.

    info : what is known of the node. values : the real value of each input, None where it is absent
    or a constant. held : how each input is held, None where it is real. unsigned : whether
    constants of 8 bits are stored without a sign, 128 higher. opset : what the nodes made so far
    need. steps : {initializer with y_scale: the scale}. Names come from the node's.
    """

    def __init__(
        self,
        model: ir.Model,
        bound: KernelInfo,
        values: Sequence[ir.Value | None],
        held: Sequence[Affine | None],
        taken: set[str],
        unsigned: bool = False,
    ) -> None:
        self.info, self.node, self.attrs = bound, bound.node, bound.attributes
        self.nodes: list[ir.Node] = []
        self.opset, self.stores_uint8 = MIN_OPSET, unsigned
        self.scales_by_y_scale: dict[str, float | Sequence[float]] = {}
        self._model, self._values, self._held, self._used_names = model, list(values), held, taken

    def input_scale(self, index: int = 0) -> float:
        """Return the scale of integer input `index`, counts per unit."""
        q = self._held[index]
        if q is None:
            raise ModelError(f"{self.info.label}: the scale of its input {index} is not known")
        return q.scale

    def input_qparams(self, index: int) -> Affine | None:
        """Return how integer input `index` is held, None where that is not known."""
        return self._held[index] if index < len(self._held) else None

    def set_input_value(self, index: int, value: ir.Value) -> None:
        """Let `value` be the real value of input `index`."""
        self._values[index] = value

    def dequantize_scalar(self, integer: float, index: int = 0) -> float:
        """Return the real number that an integer of input `index` stands for."""
        q = self._held[index]
        return (integer - (0 if q is None else q.zero_point)) / self.input_scale(index)

    def __call__(
        self, op_type: str, *inputs: ir.Value | None, **attributes: AttributeValue
    ) -> ir.Value:
        """Append a standard node; return its output. Attributes of None are left out."""
        return self.add_multi_output_node(op_type, *inputs, outputs=1, **attributes)[0]

    def add_multi_output_node(
        self, op_type: str, *inputs: ir.Value | None, outputs: int, **attributes: AttributeValue
    ) -> list[ir.Value]:
        """Append a standard node with so many outputs; return these."""
        name = self._make_name(f"{self.node.outputs[0].name}_{op_type}")
        node = ir.node(
            op_type, list(inputs), {}, num_outputs=outputs, name=f"{self.node.name}_{op_type}"
        )
        for key, attribute in attributes.items():
            if attribute is not None:
                ir.set_attr(node, key, attribute)
        for number, value in enumerate(node.outputs):
            value.name = name if not number else self._make_name(name)
        ir.mark_origin(node, self.node)
        self.nodes.append(node)
        return list(node.outputs)

    def require_opset(self, opset: int) -> None:
        """Note that a node made here exists from `opset` on."""
        self.opset = max(self.opset, opset)

    def float_input(self, index: int = 0) -> ir.Value:
        """Return the real value of input `index`; of a constant, the one its integers stand for."""
        value = self._values[index] if index < len(self._values) else None
        if value is not None:
            return value
        if index not in self.info.constants:
            raise ModelError(f"{self.info.label}: it has no input {index}")
        return self.held(index, self.input_scale(index))

    def raw_input(self, index: int) -> ir.Value | None:
        """Return input `index` as it is: an index, a size; None where it is absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def add_constant(self, array: ArrayLike, suffix: str) -> ir.Value:
        """Return a constant."""
        return ir.add_initializer(
            self._model, self._make_name(f"{self.node.outputs[0].name}_{suffix}"), np.asarray(array)
        )

    def held(
        self,
        index: int,
        scale: float | Sequence[float],
        axis: int | None = None,
        view: Callable[[np.ndarray], np.ndarray] | None = None,
        bits: int | None = None,
    ) -> ir.Value:
        """Return the real numbers for constant input `index`, integers at `scale` (a sequence: along `axis`).

        view : rearranges them first. bits : as many are stored, default those of their type. The
        result has the name of the constant where that is free.
        """
        if index not in self.info.constants:
            raise ModelError(f"{self.info.label}: its input {index} must be a constant")
        array, name = self.info.constants[index], ir.input_name(self.node, index)
        array = array if view is None else view(array)
        channels = len(scale) if isinstance(scale, Sequence) else 0
        if array.dtype == np.int64:  # which has no DequantizeLinear
            factor = (
                np.reshape(scale, [-1 if i == axis else 1 for i in range(array.ndim)])
                if channels
                else scale
            )
            return ir.add_initializer(
                self._model, self._make_name(f"{name}_real"), (array / factor).astype(np.float32)
            )
        step = self.step(name, scale)
        sizes = [channels] if channels else []
        where = {"axis": axis or 0} if channels else {}
        return self._add_dequantize_linear(
            index, array, bits or 8 * array.dtype.itemsize, step, sizes, where
        )

    def dequantize_grouped_constant(self, index: int, q: Affine, turned: bool = False) -> ir.Value:
        """Return the real numbers for constant input `index`, a matrix in groups `q`.

        A blocked DequantizeLinear.
        turned : whether its axes change places. `scales_by_y_scale` has the scales of the products,
        from which and from y_scale those of the groups follow.
        """
        assert isinstance(q.granularity, PerGroup)
        self.require_opset(INT4_INT16_OPSET)
        array, name = self.info.constants[index], ir.input_name(self.node, index)
        y_scale = ir.add_initializer(
            self._model, self._make_name(f"{name}_scale"), (1.0 / q.scales).astype(np.float32)
        )
        self.scales_by_y_scale[str(y_scale.name)] = q.factors[0].tolist()
        where = {"axis": q.granularity.axis, "block_size": q.granularity.size}
        value = self._add_dequantize_linear(index, array, q.bits, y_scale, q.scales.shape, where)
        if not turned:
            return value
        # Were the constant turned, onnxruntime would make an integer product that knows no blocks.
        own, value.name = value.name, self._make_name(f"{name}_rows")
        value = self("Transpose", value, perm=[1, 0])
        value.name = own
        return value

    def _add_dequantize_linear(
        self,
        index: int,
        array: np.ndarray,
        bits: int,
        step: ir.Value,
        sizes: Sequence[int],
        where: Mapping[str, int],
    ) -> ir.Value:
        """Return what DequantizeLinear gives for integers of `bits`, with a y_scale of these sizes."""
        name, kind, zero = ir.input_name(self.node, index), integer_storage_type(bits), 0
        if self.stores_uint8 and kind == _TYPES[8]:
            kind, zero, array = ir.DataType.UINT8, 128, array.astype(np.int16) + 128
        inputs = [
            self._add_integer_initializer(self._make_name(f"{name}_quantized"), array, kind),
            step,
            *self.zero_point_inputs(kind, sizes, zero),
        ]
        dequantize = ir.make_node(
            "DequantizeLinear",
            inputs,
            dict(where),
            output=self._reuse_constant_name(name),
            origin=self.node,
            suffix=f"input{index}",
        )
        dequantize.outputs[0].shape, dequantize.outputs[0].type = (
            ir.Shape(array.shape),
            ir.TensorType(ir.DataType.FLOAT),
        )
        self.nodes.append(dequantize)
        return dequantize.outputs[0]

    def step(self, name: str, scale: float | Sequence[float]) -> ir.Value:
        """Return the constant y_scale of the tensor `name` at `scale`."""
        y_scale = np.asarray(1.0 / np.asarray(scale), np.float32)
        value = ir.add_initializer(self._model, self._make_name(f"{name}_scale"), y_scale)
        self.scales_by_y_scale[str(value.name)] = scale
        return value

    def zero_point_inputs(
        self, kind: ir.DataType, sizes: Sequence[int] = (), zero_point: int = 0
    ) -> list[ir.Value]:
        """Return the zero point of integers of a `kind`, as an input or none.

        Int32 has no other than 0.
        """
        if kind == _TYPES[32]:
            return []
        if kind not in (_TYPES[8], ir.DataType.UINT8):
            self.require_opset(INT4_INT16_OPSET)
        name = f"{kind.name.lower()}_zero{zero_point or ''}{'_' * bool(sizes)}{'x'.join(map(str, sizes))}"
        known = self._model.graph.initializers.get(name)
        if known is not None:
            return [known]
        self._used_names.add(name)
        return [self._add_integer_initializer(name, np.full(sizes, zero_point), kind)]

    def _add_integer_initializer(self, name: str, array: np.ndarray, kind: ir.DataType) -> ir.Value:
        tensor = ir.tensor(np.asarray(array, order="C").astype(kind.numpy()), dtype=kind, name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(array.shape), type=ir.TensorType(kind), const_value=tensor
        )
        self._model.graph.register_initializer(value)
        return value

    def _reuse_constant_name(self, name: str) -> str:
        """Return the name of the integer constant `name`, which goes, or one like it where it is used already."""
        return self._make_name(name, f"{name} ")

    def _make_name(self, base: str, key: str = "") -> str:
        """Return `base`, or `base` with a number when it is taken; with `key` it is free once."""
        if key and key not in self._used_names:
            self._used_names.add(key)
            return base
        free = ir.unique_name(base, self._used_names)
        self._used_names.add(free)
        return free

    def add_same_op(
        self, *inputs: ir.Value | None, attributes: Attributes | None = None
    ) -> list[ir.Value]:
        """Append the standard operator of the node's own name.

        Attributes: default the node's that the standard has.
        """
        import onnx

        op_type, stated = str(self.node.op_type), attributes
        if stated is None:
            known = set(onnx.defs.get_schema(op_type, 12).attributes) | set(
                onnx.defs.get_schema(op_type).attributes
            )
            stated = {
                key: ir.get_attr(self.node, key) for key in self.node.attributes if key in known
            }
        return self.add_multi_output_node(
            op_type, *inputs, outputs=len(self.node.outputs), **stated
        )
