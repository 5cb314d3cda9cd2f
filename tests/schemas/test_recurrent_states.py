"""Shapes of the states of recurrent layers: those of the simulator, also for one step."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.ir import ir

H, INPUTS = 3, 2


def layer(op_type, steps, samples, batch_first, declared=None):
    """Return an integer graph of one layer whose last state is an output."""
    gates = 4 if op_type == "LSTMInt" else 3
    rng = np.random.default_rng(0)
    arrays = {
        "wx": rng.integers(-9, 9, (gates * H, INPUTS)).astype(np.int8),
        "wh": rng.integers(-9, 9, (gates * H, H)).astype(np.int8),
        "bx": np.zeros(gates * H, np.int32),
        "bh": np.zeros(gates * H, np.int32),
    }
    attributes = {
        "hidden_size": H,
        "input_size": INPUTS,
        "num_layers": 1,
        "batch_first": int(batch_first),
        "go_forward": 1,
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": 8,
        "scale_x": 32.0,
        "scale_iw": 64.0,
        "scale_hw": 64.0,
        "scale_o": 128.0,
        "scale_h": 128.0,
    }
    size = [samples, steps, INPUTS] if batch_first else [steps, samples, INPUTS]
    outputs = ["y", "h", "c"][: 3 if op_type == "LSTMInt" else 2]
    nodes = [
        helper.make_node("Quant", ["x"], ["q"], domain="thinker", data_bits=8, scale_x=32.0),
        helper.make_node(op_type, ["q", *arrays], outputs, "layer", domain="thinker", **attributes),
        helper.make_node("Dequant", ["h"], ["z"], domain="thinker", scale_o=128.0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, declared)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid("thinker", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=6)


@pytest.mark.parametrize("op_type", ["GRUInt", "LSTMInt"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("steps", "samples"), [(1, 4), (5, 1), (1, 1), (5, 4)])
def test_states(op_type, batch_first, steps, samples):
    """The checker accepts the shape that the simulator computes, and no other where it knows it."""
    model = layer(op_type, steps, samples, batch_first)
    x = np.zeros([d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim], np.float32)
    (z,) = lo.Session(ir.from_proto(model)).run(None, {"x": x})
    lo.check_model(layer(op_type, steps, samples, batch_first, declared=list(z.shape)))
    wrong = [size + 1 for size in z.shape]
    with pytest.raises(lo.ModelError):
        lo.check_model(layer(op_type, steps, samples, batch_first, declared=wrong))


def test_a_gru_of_one_step():
    """Time first, one step, four samples: each sample has a state."""
    model = layer("GRUInt", 1, 4, batch_first=False)
    lo.register_schemas()
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    (h,) = (info for info in inferred.graph.value_info if info.name == "h")
    assert [d.dim_value for d in h.type.tensor_type.shape.dim] == [1, 4, H]
