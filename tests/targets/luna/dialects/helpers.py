"""Graphs of generation 3 in a few words, and runs of one operator or layer through Session."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.targets import PLATFORMS
from tests.case_selection import limit_examples

CHIPS = [target.name for target in PLATFORMS if target.has_packer]
MODES = ("floor_add", "floor", "round", "ceil")
#: Operators of generation 1 -> of generation 3. Quant, Dequant and Gather have one name.
THIRD = {
    "Conv1dInt": "QConv1d",
    "Conv2dInt": "QConv2d",
    "ConvTranspose2dInt": "QConvTranspose2d",
    "LinearInt": "QLinear",
    "BatchNorm2dInt": "QBatchNorm2d",
    "LayerNormInt": "QLayerNorm",
    "AvgPool2dInt": "QAvgPool2d",
    "BmmInt": "QBmm",
    "iqAdd": "QAdd",
    "iqMul": "QMul",
    "iqCat": "QCat",
    "iqSigmoid": "QSigmoid",
    "iqTanh": "QTanh",
    "SoftmaxInt": "QSoftmax",
    "GluInt": "QGLU",
    "LSTMInt": "QLSTM",
    "GRUInt": "QGRU",
}
few = limit_examples(20)

ADD = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0, "x_bits": 8, "y_bits": 8, "o_bits": 8}


def model(nodes, inputs, constants=(), outputs=("y",), domain="linger"):
    """A model of integer inputs {name: array} and nodes (type, inputs, outputs, attributes)."""
    onnx_nodes = [
        helper.make_node(kind, ins, outs, name=f"{kind}_{outs[0]}", domain=at, **attrs)
        for kind, ins, outs, attrs, at in nodes
    ]
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    tensors = [numpy_helper.from_array(a, n) for n, a in dict(constants).items()]
    graph = helper.make_graph(onnx_nodes, "g", values, results, tensors)
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid(domain, 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=7))


def declare_outputs(graph, **outputs):
    """The protobuf of a graph with these output types: name=(element type, shape)."""
    proto = ir.to_proto(graph)
    del proto.graph.output[:]
    proto.graph.output.extend(
        helper.make_tensor_value_info(name, *type_and_shape)
        for name, type_and_shape in outputs.items()
    )
    return proto


def run(
    kind,
    attrs,
    *arrays,
    platform="venus",
    mode="floor_add",
    constants=(),
    domain="linger",
    arithmetic=None,
):
    """One operator on integers."""
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    attrs = {"platform": platform, "quant_mode": mode, **attrs}
    graph = model(
        [(kind, [*inputs, *dict(constants)], ["y"], attrs, domain)],
        inputs,
        constants,
        domain=domain,
    )
    session = lo.Session(graph, arithmetic)
    ((_, array, scale),) = session.taps(inputs, ["y"])
    assert scale == attrs["scale_o"]
    return array


def some(seed, *shape, extremes=False):
    """Random int8."""
    rng = np.random.default_rng(seed)
    return (
        rng.choice([-128, -127, -1, 0, 1, 127], shape).astype(np.int8)
        if extremes
        else rng.integers(-128, 128, shape).astype(np.int8)
    )


def same(got, want, dtype=np.int8):
    assert got.dtype == dtype
    assert got.tolist() == np.asarray(want).tolist()


def layer(seed, gates, units=3, size=4, times=5):
    """x, weights and biases by name."""
    rng = np.random.default_rng(seed)
    w, r = some(seed, gates * units, size), some(seed + 1, gates * units, units)
    b, d = (rng.integers(-3000, 3000, gates * units).astype(np.int32) for _ in range(2))
    return some(seed + 2, 1, times, size), {"w": w, "r": r, "b": b, "d": d}


def recurrent(kind, x, constants, platform, outputs, domain="linger", arithmetic=None, **attrs):
    """Every output of one layer, by name."""
    attributes = {
        "input_size": 4,
        "hidden_size": 3,
        "num_layers": 1,
        "batch_first": 1,
        "go_forward": 1,
        "o_bits": 8,
    }
    scales = {
        "scale_x": 32.0,
        "scale_iw": 128.0,
        "scale_h": 32.0,
        "scale_hw": 64.0,
        "scale_o": 32.0,
    }
    attributes |= {"platform": platform, **scales, **attrs}
    graph = model(
        [(kind, ["x", *constants], outputs, attributes, domain)],
        {"x": x},
        constants,
        outputs,
        domain,
    )
    session = lo.Session(graph, arithmetic)
    return {name: array for name, array, _ in session.taps({"x": x})}
