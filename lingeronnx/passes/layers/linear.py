"""One form for fully connected layers: ``lingeronnx.Linear(x, weight [O, I], bias [O])``.

Gemm with constant B and MatMul with constant B, the bias Add after it merged (in either operand
order), become a call of a model-local function with the body ``Add(MatMul(x, Transpose(weight)),
bias)``: one node for the quantizer, plain ONNX for onnxruntime. A bias that is not constant, or
does not match the last axis, is left as a separate Add.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from .._pass import PassResult, SkipReason


def fuse_linear(model: ir.Model) -> PassResult:
    """Rewrite fully connected layers of `model`."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.domain or node.op_type not in ("Gemm", "MatMul"):
            continue
        layer = _match_gemm(node) if node.op_type == "Gemm" else _match_matmul(node)
        if layer is None:
            why.append(SkipReason(node, _explain_unchanged(node)))
            continue
        nodes, weight, bias = layer
        _replace_with_linear(model, nodes, weight, bias)
        changed += 1
    if changed:
        declare_linear_function(model)
    return PassResult(changed, why)


def _explain_unchanged(node: ir.Node) -> str:
    """Return why `node`, a Gemm or MatMul, is no layer."""
    weight = ir.const_value(node.inputs[1])
    if weight is None:
        return "its second operand is computed at run time"
    if weight.ndim != 2:
        return f"its weight has {weight.ndim} dimensions"
    if node.op_type == "MatMul":
        return "its first operand is constant, or has one dimension"
    return (
        "it transposes its input"
        if ir.get_attr(node, "transA", 0)
        else "its bias is no constant of one value per output"
    )


def _match_gemm(node: ir.Node) -> tuple[list[ir.Node], np.ndarray, np.ndarray] | None:
    weight = ir.const_value(node.inputs[1])
    extra = node.inputs[2] if len(node.inputs) > 2 else None
    bias = ir.const_value(extra)
    if (
        weight is None
        or weight.ndim != 2
        or ir.get_attr(node, "transA", 0)
        or (extra is not None and bias is None)
    ):
        return None
    if not ir.get_attr(node, "transB", 0):
        weight = weight.T
    alpha, beta = ir.get_attr(node, "alpha", 1.0), ir.get_attr(node, "beta", 1.0)
    zero = np.zeros(len(weight), weight.dtype)
    row = _bias_per_output(bias, len(weight)) if bias is not None else zero
    if row is None:
        return None
    return [node], weight * weight.dtype.type(alpha), row * weight.dtype.type(beta)


def _match_matmul(node: ir.Node) -> tuple[list[ir.Node], np.ndarray, np.ndarray] | None:
    weight = ir.const_value(node.inputs[1])
    source = ir.get_shape(node.inputs[0]) if node.inputs[0] is not None else None
    if weight is None or weight.ndim != 2 or ir.const_value(node.inputs[0]) is not None:
        return None
    if source is not None and len(source) < 2:
        return None
    weight = weight.T
    zero = np.zeros(len(weight), weight.dtype)
    add = ir.sole_consumer(node.outputs[0])
    if add is not None and add.op_type == "Add" and not add.domain:
        other = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
        array = ir.const_value(other)
        narrow = array is not None and array.ndim <= (
            len(source) if source is not None else 1
        )  # keeps the rank
        row = _bias_per_output(array, len(weight)) if array is not None and narrow else None
        if row is not None:
            return [node, add], weight, row
    return [node], weight, zero


def _bias_per_output(bias: np.ndarray, size: int) -> np.ndarray | None:
    """Return the bias as one value per output, or None when it differs along another axis."""
    if bias.size == 1:
        return np.full(size, bias.reshape(()))
    return bias.reshape(-1) if bias.size == size and bias.shape[-1] == size else None


def _replace_with_linear(
    model: ir.Model, nodes: list[ir.Node], weight: np.ndarray, bias: np.ndarray
) -> None:
    first, last = nodes[0], nodes[-1]
    base = ir.input_name(first, 1)
    free = ir.sole_consumer(ir.require_input(first, 1)) is not None
    source = first.inputs[0]
    new_weight = ir.add_initializer(model, ir.unique_tensor_name(model, f"{base}_linear"), weight)
    new_bias = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{last.outputs[0].name}_bias"), bias
    )
    new = ir.make_node(
        "Linear",
        [source, new_weight, new_bias],
        domain=ir.FUNCTION_DOMAIN,
        origin=first,
        output="",
        like=last.outputs[0],
    )
    ir.replace_nodes(model, nodes, [new])
    if free and base in model.graph.initializers and not model.graph.initializers[base].uses():
        del model.graph.initializers[base]
        ir.rename_initializer(model, new_weight, base)


def declare_linear_function(model: ir.Model) -> None:
    """Add the function to the model, once."""
    if any(f.domain == ir.FUNCTION_DOMAIN and f.name == "Linear" for f in model.functions.values()):
        return
    version = ir.get_opset(model)
    x, weight, bias = (ir.Value(name=name) for name in ("x", "weight", "bias"))
    turn = ir.node("Transpose", [weight], {"perm": [1, 0]})
    product = ir.node("MatMul", [x, turn.outputs[0]])
    total = ir.node("Add", [product.outputs[0], bias])
    for node, name in ((turn, "w_t"), (product, "xw"), (total, "y")):
        node.outputs[0].name = name
    body = ir.Graph(
        [x, weight, bias],
        [total.outputs[0]],
        nodes=[turn, product, total],
        opset_imports={"": version},
        name="Linear",
    )
    function = ir.Function(ir.FUNCTION_DOMAIN, "Linear", graph=body, attributes=[])
    model.functions[function.identifier()] = function
    model.graph.opset_imports[ir.FUNCTION_DOMAIN] = 1
    model.ir_version = max(model.ir_version or 8, 8)
