"""onnxruntime's operators on integers, written as QuantizeLinear, DequantizeLinear and the operator on real numbers.

    QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b)  ->  QuantizeLinear(Conv(DequantizeLinear(x), ...),
    ys, yz)

The bias of a product is int32 at both scales. An operator that is not here stays, and is refused
later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import ModelError
from ..graph import ir, operators

__all__ = [
    "expand_qoperators",
    "is_dynamic",
    "is_qoperator",
    "reshape_constant",
    "transpose_constant",
]

#: Scales of activations are worked out at run time: a file has none.
_DYNAMIC_OPS = operators.DYNAMIC_QUANTIZATION_OPS | {
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "MatMulIntegerToFloat",
}


def is_dynamic(node: ir.Node) -> bool:
    """Whether a node belongs to a model whose activations get their scales at run time."""
    return node.op_type in _DYNAMIC_OPS


@dataclass(frozen=True)
class _QOperatorForm:
    """How an operator on integers is read.

    kind : the operator on real numbers. operands : where (tensor, scale, zero point) begin. result
    : where the output's scale and zero point are. bias : where an int32 bias is, or None. kept :
    attributes that the operator on
    real numbers has, too.
    """

    kind: str
    operands: tuple[int, ...]
    result: int
    bias: int | None = None
    kept: tuple[str, ...] = ()


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


def is_qoperator(node: ir.Node) -> bool:
    """Whether a node is an operator on integers that `expand_qoperators` rewrites."""
    return node.op_type in _QOPERATOR_FORMS or node.op_type == _CONCAT


def expand_qoperators(model: ir.Model) -> int:
    """Rewrite the operators on integers of `model` in place; return how many."""
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
                f"{node.op_type} {node.name}: channels_last = 1 is not read; write the model "
                "without"
            )
        _expand_node(model, node, form)
        count += 1
    return count


def _expand_node(model: ir.Model, node: ir.Node, form: _QOperatorForm) -> None:
    nodes: list[ir.Node] = []
    taken = ir.get_tensor_names(model)

    def name(what: str) -> str:
        return ir.reserve_name(f"{node.outputs[0].name}_{what}", taken)

    def make(kind: str, inputs: list[ir.Value | None], what: str, **attributes: int) -> ir.Value:
        while inputs and inputs[-1] is None:
            inputs.pop()
        nodes.append(
            ir.make_node(kind, inputs, attributes, output=name(what), origin=node, suffix=what)
        )
        return nodes[-1].outputs[0]

    def get_input(index: int) -> ir.Value | None:
        return node.inputs[index] if index < len(node.inputs) else None

    def channels(index: int) -> int:
        scale = ir.const_value(get_input(index + 1))
        return 1 if scale is None else scale.size

    inputs: list[ir.Value | None] = []
    for number, index in enumerate(form.operands):
        weight = ir.const_value(get_input(index))
        axis = (
            0
            if form.bias == 8 or weight is None
            else 0
            if ir.get_attr(node, "transB", 0)
            else weight.ndim - 1
        )
        along: dict[str, int] = {"axis": axis} if channels(index) > 1 else {}
        inputs.append(
            make(
                "DequantizeLinear",
                [get_input(index), get_input(index + 1), get_input(index + 2)],
                f"real{number}",
                **along,
            )
        )
    bias = None if form.bias is None else get_input(form.bias)
    if bias is not None:
        scales = [
            np.ravel(scale)
            for index in form.operands
            if (scale := ir.const_value(get_input(index + 1))) is not None
        ]
        if len(scales) < len(form.operands):
            raise ModelError(
                f"{node.op_type} {node.name}: its scales are computed at run time; store them as "
                "constants"
            )
        counts = {scale.size for scale in scales} - {1}
        if len(counts) > 1 or 0 in counts:
            raise ModelError(
                f"{node.op_type} {node.name}: its scales have {sorted(counts)} values; they do not "
                "fit"
            )
        step = np.asarray(np.prod(np.broadcast_arrays(*scales), axis=0), np.float32)
        value = ir.add_initializer(
            model, name("bias_scale"), step.reshape(-1) if step.size > 1 else step.reshape(())
        )
        inputs.append(
            make(
                "DequantizeLinear", [bias, value], "bias", **({"axis": 0} if step.size > 1 else {})
            )
        )
    kept = {key: ir.get_attr(node, key) for key in form.kept if key in node.attributes}
    real = ir.make_node(form.kind, inputs, kept, output=name("real"), origin=node, like=None)
    nodes.append(real)
    ends = [real.outputs[0], get_input(form.result), get_input(form.result + 1)]
    last = ir.make_node(
        "QuantizeLinear", ends, {}, output="", origin=node, suffix="integers", like=node.outputs[0]
    )
    ir.replace_nodes(model, [node], [*nodes, last])


def transpose_constant(array: np.ndarray, node: ir.Node) -> np.ndarray:
    """Return a constant with its axes as the Transpose `node` has them.

    ModelError where they are others.
    """
    order = ir.get_attr(node, "perm", range(array.ndim)[::-1])
    if sorted(order) != [*range(array.ndim)]:
        raise ModelError(
            f"Transpose {node.name}: perm = {[*order]}; its constant has {array.ndim} axes"
        )
    return array.transpose(order)


def reshape_constant(array: np.ndarray, shape: np.ndarray, node: ir.Node) -> np.ndarray:
    """Return a constant with the sizes that the Reshape `node` gives it.

    ModelError where they do not hold it.
    """
    try:
        return array.reshape(shape.tolist())
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"Reshape {node.name}: its constant of the sizes {list(array.shape)} has not those of "
            f"{shape.tolist()}"
        ) from error
