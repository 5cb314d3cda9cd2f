"""Multiply-accumulates of an ONNX file, counted from its nodes and onnx's shape inference alone.

Shares no code with the package. Every product of two numbers that are summed counts: convolutions,
matrix products and recurrent layers.
"""

import math

import onnx

__all__ = ["count_model_macs"]


def count_model_macs(path, input_shapes=None):
    """Return {node name or first output: MACs} of one sample, None for a shape that is unknown.

    `input_shapes` are {input: shape}; the batch, a symbol on axis 0, is one.
    """
    model = onnx.load(str(path))
    constants = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        given = (input_shapes or {}).get(info.name)
        for axis, dim in enumerate(dims):
            if given is not None:
                dim.dim_value = given[axis]
            elif axis == 0 and not dim.dim_value:
                dim.dim_value = 1
    del model.graph.value_info[:]
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    shapes = dict(constants)
    for info in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        dims = info.type.tensor_type.shape.dim
        known = info.type.tensor_type.HasField("shape") and all(
            d.HasField("dim_value") for d in dims
        )
        shapes[info.name] = [d.dim_value for d in dims] if known else None
    for node in inferred.graph.node:
        if node.op_type == "Constant":
            shapes[node.output[0]] = list(node.attribute[0].t.dims)
    counts = {}
    for node in inferred.graph.node:
        count = _count(node, [shapes.get(name) for name in node.input], shapes.get(node.output[0]))
        if count != 0:
            counts[node.name or node.output[0]] = count
    return counts


def _count(node, inputs, output):
    """Return the MACs of a node, 0 of an operator without products."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    kind = node.op_type
    if kind not in ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN"):
        return 0
    if None in inputs[:2] or (output is None and kind in ("Conv", "MatMul", "Gemm")):
        return None
    if kind == "Conv":
        batch, channels, *sizes = output
        outputs, per_group, *kernel = inputs[1]
        assert channels == outputs
        return batch * channels * math.prod(sizes) * per_group * math.prod(kernel)
    if kind == "ConvTranspose":
        return math.prod(inputs[0]) * math.prod(inputs[1][1:])
    if kind in ("MatMul", "Gemm"):
        inner = inputs[0][-2] if attributes.get("transA") else inputs[0][-1]
        return math.prod(output) * inner
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    directions, rows, width = inputs[1]
    steps, sequences = inputs[0][:2]  # in this order, or the other one with layout 1
    hidden = rows // gates
    return steps * sequences * directions * gates * hidden * (width + hidden)
