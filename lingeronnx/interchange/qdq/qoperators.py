"""Recognize quantized models, and expand onnxruntime's integer operators between QDQ nodes.

    QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b)
        ->  QuantizeLinear(Conv(DequantizeLinear(x), ...), ys, yz)

The bias of a product is int32 at the product of both scales. Other operators are unchanged; they
are rejected later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...common.errors import ModelError
from ...ir import float_ops, ir
from .constant_types import format_element_type, is_number

__all__ = [
    "DYNAMIC_OPS",
    "QOPERATORS",
    "expand_qoperators",
    "is_dynamically_quantized",
    "is_quantized",
    "reshape_constant",
    "transpose_constant",
]

#: Operators whose activation scales are computed at run time, so that a file has none.
DYNAMIC_OPS = float_ops.DYNAMIC_QUANTIZATION_OPS | {
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "MatMulIntegerToFloat",
}


class _QOperatorForm(NamedTuple):
    """Where an integer operator of ONNX has its inputs, and which float operator it stands for.

    Attributes
    ----------
    float_op_type
        The corresponding float operator.
    operands
        Input indices at which (tensor, scale, zero point) of the operands begin.
    result
        Input index of the output's scale; the zero point follows.
    bias
        Input index of an int32 bias, or None.
    attribute_names
        Attributes that the float operator has, too.
    """

    float_op_type: str
    operands: tuple[int, ...]
    result: int
    bias: int | None = None
    attribute_names: tuple[str, ...] = ()


_CONCAT = "QLinearConcat"
_WINDOW = (
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
    "ceil_mode",
    "count_include_pad",
)

_QOPERATOR_FORMS: Mapping[str, _QOperatorForm] = {
    "QLinearConv": _QOperatorForm("Conv", (0, 3), 6, 8, _WINDOW),
    "QLinearMatMul": _QOperatorForm("MatMul", (0, 3), 6),
    "QGemm": _QOperatorForm("Gemm", (0, 3), 7, 6, ("alpha", "transA", "transB")),
    "QLinearAdd": _QOperatorForm("Add", (0, 3), 6),
    "QLinearMul": _QOperatorForm("Mul", (0, 3), 6),
    "QLinearSigmoid": _QOperatorForm("Sigmoid", (0,), 3),
    "QLinearLeakyRelu": _QOperatorForm("LeakyRelu", (0,), 3, None, ("alpha",)),
    "QLinearSoftmax": _QOperatorForm("Softmax", (0,), 3, None, ("axis",)),
    "QLinearAveragePool": _QOperatorForm("AveragePool", (0,), 3, None, _WINDOW),
    "QLinearGlobalAveragePool": _QOperatorForm("GlobalAveragePool", (0,), 3),
    "QLinearReduceMean": _QOperatorForm("ReduceMean", (0,), 3, None, ("axes", "keepdims")),
}


#: Integer operators (QLinear..., QGemm) that have a float form here.
QOPERATORS = frozenset((*_QOPERATOR_FORMS, _CONCAT))

_QUANTIZED_OPS = {"QuantizeLinear", "DequantizeLinear", *QOPERATORS}


def is_quantized(model: ir.Model) -> bool:
    """Whether a file has scales of another tool: QDQ nodes, or integer operators with scales.

    False for dynamic quantization, whose activation scales are computed at run time.
    """
    return any(node.op_type in _QUANTIZED_OPS for node in ir.iter_all_nodes(model))


def is_dynamically_quantized(model: ir.Model) -> bool:
    """Whether `model` has operators whose scales are computed at run time."""
    return any(node.op_type in DYNAMIC_OPS for node in ir.iter_all_nodes(model))


def expand_qoperators(model: ir.Model) -> int:
    """Expand the integer operators of `model` to float operators between QDQ nodes, in place.

    Returns their number. Raises ModelError for channels_last, and for a bias whose operands' scales
    are computed at run time or differ in number.
    """
    count = 0
    for node in list(model.graph):
        if node.op_type == _CONCAT:
            form = _QOperatorForm(
                "Concat", tuple(range(2, len(node.inputs), 3)), 0, None, ("axis",)
            )
        elif node.op_type in _QOPERATOR_FORMS:
            form = _QOPERATOR_FORMS[node.op_type]
        else:
            continue
        if ir.get_attr(node, "channels_last", 0):
            raise ModelError(
                f"{node.op_type} {node.name}: channels_last = 1 is not supported; export the model "
                "without it"
            )
        _QOperatorExpander(model, node, form).run()
        count += 1
    return count


class _QOperatorExpander:
    """Replaces one integer operator of ONNX by its float operator between QDQ nodes."""

    def __init__(self, model: ir.Model, node: ir.Node, form: _QOperatorForm) -> None:
        """Prepare to replace `node` of `model`, whose inputs and attributes `form` describes."""
        self.model, self.node, self.form = model, node, form
        self.new_nodes: list[ir.Node] = []
        self.reserved_names = ir.get_tensor_names(model)

    def run(self) -> None:
        """Replace the node by its float operator between QDQ nodes.

        Operands and bias are dequantized, the result is quantized. Only the attributes that `form`
        names are kept.
        """
        node, form = self.node, self.form
        inputs: list[ir.Value | None] = []
        for position, index in enumerate(form.operands):
            inputs.append(self._dequantize_operand(index, f"real{position}"))
        bias = None if form.bias is None else self._get_input(form.bias)
        if bias is not None:
            inputs.append(self._dequantize_bias(bias))
        names = [key for key in form.attribute_names if key in node.attributes]
        attributes = {key: ir.get_attr(node, key) for key in names}
        float_node = ir.make_node(
            form.float_op_type,
            inputs,
            attributes,
            output=self._reserve_name("real"),
            origin=node,
            like=None,
        )
        result_qparams = [self._get_input(form.result), self._get_input(form.result + 1)]
        quantize = ir.make_node(
            "QuantizeLinear",
            [float_node.outputs[0], *result_qparams],
            {},
            output="",
            origin=node,
            suffix="integers",
            like=node.outputs[0],
        )
        ir.replace_nodes(self.model, [node], [*self.new_nodes, float_node, quantize])

    def _dequantize_operand(self, index: int, suffix: str) -> ir.Value:
        """Append a DequantizeLinear of the operand that begins at input `index`.

        Its tensor, scale and zero point follow each other there. Returns its output. Several scales
        of a constant lie along its axis 0 for a convolution or with transB, else along its last
        axis; those of a variable along axis 0.
        """
        scale, weight = self._get_scale(index), ir.const_value(self._get_input(index))
        attributes = {}
        if scale is not None and scale.size > 1:
            is_output_first = self.form.bias == 8 or ir.get_attr(self.node, "transB", 0)
            attributes["axis"] = 0 if is_output_first or weight is None else weight.ndim - 1
        inputs = [self._get_input(index + offset) for offset in range(3)]
        return self._add_dequantize(inputs, suffix, attributes)

    def _dequantize_bias(self, bias: ir.Value) -> ir.Value:
        """Append a DequantizeLinear of the int32 `bias` with the product of the operands' scales.

        Returns its output. The product is one scale, or one per channel. ModelError if scales are
        computed at run time, are no numbers, or their counts differ.
        """
        node = self.node
        scales: list[np.ndarray] = []
        for index in self.form.operands:
            scale = self._get_scale(index)
            if scale is None:
                raise ModelError(
                    f"{node.op_type} {node.name}: its scales are computed at run time; store them "
                    "as constants"
                )
            if not is_number(scale):
                raise ModelError(
                    f"{node.op_type} {node.name}: its scale (input {index + 1}) is "
                    f"{format_element_type(scale)}; it must be a positive number"
                )
            scales.append(np.ravel(scale))
        counts = {scale.size for scale in scales} - {1}
        if len(counts) > 1 or 0 in counts:
            raise ModelError(
                f"{node.op_type} {node.name}: its scales have {sorted(counts)} values; all must "
                "have one value, or one per channel"
            )
        step = np.asarray(np.prod(np.broadcast_arrays(*scales), axis=0), np.float32)
        is_per_channel = step.size > 1
        bias_scale = ir.add_initializer(
            self.model,
            self._reserve_name("bias_scale"),
            step.reshape(-1) if is_per_channel else step.reshape(()),
        )
        return self._add_dequantize(
            [bias, bias_scale], "bias", {"axis": 0} if is_per_channel else {}
        )

    def _add_dequantize(
        self, inputs: list[ir.Value | None], suffix: str, attributes: Mapping[str, int]
    ) -> ir.Value:
        """Add a DequantizeLinear of `inputs` (tensor, scale, zero point); return its output.

        Trailing absent inputs are removed from `inputs`, in place.
        """
        while inputs and inputs[-1] is None:
            inputs.pop()
        node = ir.make_node(
            "DequantizeLinear",
            inputs,
            attributes,
            output=self._reserve_name(suffix),
            origin=self.node,
            suffix=suffix,
        )
        self.new_nodes.append(node)
        return node.outputs[0]

    def _reserve_name(self, suffix: str) -> str:
        """Reserve and return a tensor name: that of the node's output with `suffix`."""
        return ir.reserve_name(f"{self.node.outputs[0].name}_{suffix}", self.reserved_names)

    def _get_input(self, index: int) -> ir.Value | None:
        """Return input `index` of the integer operator, or None if it is absent."""
        return ir.get_input(self.node, index)

    def _get_scale(self, index: int) -> np.ndarray | None:
        """Return the scale of the operand whose tensor is input `index`.

        None if it is not a constant.
        """
        return ir.const_value(self._get_input(index + 1))


def transpose_constant(array: np.ndarray, node: ir.Node) -> np.ndarray:
    """Return `array` transposed by `perm` of `node`; without `perm`, with all axes reversed.

    Raises ModelError if `perm` is no permutation of the axes.
    """
    order = ir.get_attr(node, "perm", range(array.ndim)[::-1])
    if sorted(order) != [*range(array.ndim)]:
        raise ModelError(
            f"Transpose {node.name}: perm = {[*order]} does not match its constant with "
            f"{array.ndim} axes"
        )
    return array.transpose(order)


def reshape_constant(array: np.ndarray, shape: np.ndarray, node: ir.Node) -> np.ndarray:
    """Return `array` reshaped to `shape`, with -1 for the remaining size.

    Raises ModelError, which names `node`, if the numbers of elements do not match.
    """
    try:
        return array.reshape(shape.tolist())
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"Reshape {node.name}: its constant {list(array.shape)} cannot be reshaped to "
            f"{shape.tolist()}"
        ) from error
