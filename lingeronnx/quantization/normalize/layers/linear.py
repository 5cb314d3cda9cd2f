"""Convert fully connected layers to one form: ``lingeronnx.Linear(x, weight [O, I], bias [O])``.

Gemm and MatMul with a constant second operand, merged with an Add of a bias after them (in either
operand order), become a call of a model-local function with the body ``Add(MatMul(x,
Transpose(weight)), bias)``: one node for the quantizer, plain ONNX for onnxruntime. A bias that is
not constant, or does not match the last axis, remains a separate Add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....ir import ir
from .._pass import PassResult, SkipReason


class _LinearMatch(NamedTuple):
    """Nodes that together compute x weight^T + bias, with weight [O, I] and bias [O] as arrays."""

    nodes: list[ir.Node]
    weight: np.ndarray
    bias: np.ndarray


def fuse_linear(model: ir.Model) -> PassResult:
    """Convert Gemm and MatMul, with an Add of a bias, of `model` to fully connected layers.

    They become calls of ``lingeronnx.Linear``, in place; others are skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    used_names = ir.get_tensor_names(model)  # once: reading all of them takes linear time
    for node in list(model.graph):
        if node.domain or node.op_type not in ("Gemm", "MatMul"):
            continue
        match = _match_gemm(node) if node.op_type == "Gemm" else _match_matmul(node)
        if match is None:
            skipped.append(SkipReason(node, _explain_unchanged(node)))
            continue
        _replace_with_linear(model, match, used_names)
        changes += 1
    if changes:
        declare_linear_function(model)
    return PassResult(changes, skipped)


def _explain_unchanged(node: ir.Node) -> str:
    """Explain why `node`, a Gemm or MatMul that was not converted, is no fully connected layer."""
    weight = ir.const_value(node.inputs[1])
    if weight is None:
        return "its second operand is computed at run time"
    if weight.ndim != 2:
        return f"its weight has {weight.ndim} dimensions"
    if node.op_type == "MatMul":
        return "its first operand is constant, or has one dimension"
    if ir.get_attr(node, "transA", 0):
        return "it transposes its input"
    return "its bias is not a constant with one value per output"


def _match_gemm(node: ir.Node) -> _LinearMatch | None:
    """Return weight [outputs, inputs] and bias of the Gemm `node` if it is a linear layer, or None.

    alpha and beta are multiplied in; without C the bias is zero. None if B is no constant matrix,
    with transA, and if C is computed or not one value per output.
    """
    weight = ir.const_value(node.inputs[1])
    bias_value = node.inputs[2] if len(node.inputs) > 2 else None
    bias = ir.const_value(bias_value)
    if weight is None or weight.ndim != 2 or ir.get_attr(node, "transA", 0):
        return None
    if bias_value is not None and bias is None:
        return None
    if not ir.get_attr(node, "transB", 0):
        weight = weight.T
    row: np.ndarray | None = np.zeros(len(weight), weight.dtype)
    if bias is not None:
        row = _bias_per_output(bias, len(weight))
    if row is None:
        return None
    alpha, beta = ir.get_attr(node, "alpha", 1.0), ir.get_attr(node, "beta", 1.0)
    return _LinearMatch([node], weight * weight.dtype.type(alpha), row * weight.dtype.type(beta))


def _match_matmul(node: ir.Node) -> _LinearMatch | None:
    """Return weight [outputs, inputs] and bias of a MatMul by a constant matrix, or None.

    An Add of a constant bias that alone reads the product is included, else the bias is zero. None
    if the first operand is constant or has one axis.
    """
    weight = ir.const_value(node.inputs[1])
    if weight is None or weight.ndim != 2 or ir.const_value(node.inputs[0]) is not None:
        return None
    shape = ir.get_shape(node.inputs[0])
    if shape is not None and len(shape) < 2:
        return None
    weight = weight.T
    add = ir.sole_consumer(node.outputs[0])
    if ir.is_standard_op(add, "Add"):
        max_rank = len(shape) if shape is not None else 1
        bias = _match_bias(add, len(weight), max_rank)
        if bias is not None:
            return _LinearMatch([node, add], weight, bias)
    return _LinearMatch([node], weight, np.zeros(len(weight), weight.dtype))


def _match_bias(add: ir.Node, size: int, max_rank: int) -> np.ndarray | None:
    """Return the constant operand of the Add `add` as `size` values, one per output, or None.

    None also if it has more than `max_rank` axes.
    """
    operand = ir.match_constant_operand(add)
    if operand is None or operand.array.ndim > max_rank:
        return None
    return _bias_per_output(operand.array, size)


def _bias_per_output(bias: np.ndarray, size: int) -> np.ndarray | None:
    """Return `bias` as `size` values, one per output; None if it varies along another axis.

    A single element is repeated.
    """
    if bias.size == 1:
        return np.full(size, bias.reshape(()))
    return bias.reshape(-1) if bias.size == size and bias.shape[-1] == size else None


def _replace_with_linear(model: ir.Model, match: _LinearMatch, used_names: set[str]) -> None:
    """Replace the nodes of `match` by a call of Linear with new initializers for weight and bias.

    The weight takes over the name of the original one if nothing else uses that; else it gets a new
    name. `used_names` are those of all tensors of `model`; new ones are added.
    """
    first, last = match.nodes[0], match.nodes[-1]
    weight_name = ir.input_name(first, 1)
    is_private = ir.sole_consumer(ir.require_input(first, 1)) is not None
    new_weight_name = ir.reserve_name(f"{weight_name}_linear", used_names)
    weight = ir.add_initializer(model, new_weight_name, match.weight)
    bias_name = ir.reserve_name(f"{last.outputs[0].name}_bias", used_names)
    bias = ir.add_initializer(model, bias_name, match.bias)
    linear = ir.make_node(
        "Linear",
        [first.inputs[0], weight, bias],
        domain=ir.FUNCTION_DOMAIN,
        origin=first,
        output="",
        like=last.outputs[0],
    )
    ir.replace_nodes(model, match.nodes, [linear])
    old_weight = model.graph.initializers.get(weight_name)
    if is_private and old_weight is not None and not old_weight.uses():
        del model.graph.initializers[weight_name]
        ir.rename_initializer(model, weight, weight_name)
        used_names.discard(new_weight_name)


def declare_linear_function(model: ir.Model) -> None:
    """Add the function ``lingeronnx.Linear`` to the model, unless it has it already.

    It computes x weight^T + bias.
    """
    if any(f.domain == ir.FUNCTION_DOMAIN and f.name == "Linear" for f in model.functions.values()):
        return
    version = ir.get_opset(model)
    x, weight, bias = (ir.Value(name=name) for name in ("x", "weight", "bias"))
    transpose = ir.node("Transpose", [weight], {"perm": [1, 0]})
    product = ir.node("MatMul", [x, transpose.outputs[0]])
    total = ir.node("Add", [product.outputs[0], bias])
    for node, name in ((transpose, "w_t"), (product, "xw"), (total, "y")):
        node.outputs[0].name = name
    body = ir.Graph(
        [x, weight, bias],
        [total.outputs[0]],
        nodes=[transpose, product, total],
        opset_imports={"": version},
        name="Linear",
    )
    function = ir.Function(ir.FUNCTION_DOMAIN, "Linear", graph=body, attributes=[])
    model.functions[function.identifier()] = function
    model.graph.opset_imports[ir.FUNCTION_DOMAIN] = 1
    model.ir_version = max(model.ir_version or 8, 8)
