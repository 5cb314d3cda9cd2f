"""Which axis of an input counts samples, and data, runs and files that go by it."""

import numpy as np
import onnx
import pytest

from lingeronnx.api import quantize
from lingeronnx.common.errors import DataError
from lingeronnx.ir import ir
from lingeronnx.ir.batch_axes import infer_batch_axes, store_inferred_batch_axes
from lingeronnx.runtime.data import Data, InputSpec
from lingeronnx.runtime.runners import FloatRunner, get_input_specs
from lingeronnx.runtime.session import Session
from tests.ops.test_recurrent_forms import WIDTH, H, Recurrent, T, streaming, time_first_input

F32 = np.dtype(np.float32)


def fed_by(*nodes, shape=(T, "N", WIDTH), kind="x"):
    """Return {input: axis} where the nodes of (op, attributes, constants) lead from an input to a
    GRU's x or state.
    """
    net = Recurrent(T, WIDTH)
    value = net.enter("given", *shape)
    for op, attributes, *constants in nodes:
        value = net.node(op, value, *(net.const(np.asarray(c)) for c in constants), **attributes)
    x, more = (value, []) if kind == "x" else (net.time_first(), ["", value])
    y, *_ = net.layer("GRU", x, WIDTH, more=more)
    return infer_batch_axes(net.graph(y))


CHAINS = {
    "straight": ((), 1),
    "element by element": ((("Relu", {}), ("Mul", {}, np.float32(2))), 1),
    "turned": ((("Transpose", {"perm": [1, 0, 2]}),), None),
    "an axis cut out": ((("Squeeze", {}, [0]),), 2),
    "an axis put in": ((("Unsqueeze", {}, [0]),), None),
    "a row of a matrix": ((("MatMul", {}, np.zeros((3, WIDTH), np.float32)),), 1),
    "one of several": ((("Gather", {"axis": 0}, np.array(1)),), 2),
    "some of several": ((("Gather", {"axis": 0}, np.array([1])),), 1),
    "reshaped: by the name": ((("Reshape", {}, [T, -1, WIDTH]),), 1),
    "samples chosen: by the name": ((("Gather", {"axis": 1}, np.array([1])),), 1),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name):
    """The axis is followed back to the input, or given up."""
    nodes, axis = CHAINS[name]
    assert fed_by(*nodes) == ({} if axis is None else {"given": axis})


def test_states():
    """Initial states are [D, N, H]; what several layers read differently is not told."""
    assert fed_by(shape=(1, "N", H), kind="h") == {"given": 1}
    assert infer_batch_axes(streaming("LSTM", 2)) == {"h": 1, "c": 1}
    net = Recurrent(T, WIDTH)
    net.layer("GRU", "x", WIDTH, outputs=1)
    y, *_ = net.layer("GRU", net.time_first(), WIDTH, outputs=1)
    assert infer_batch_axes(net.graph(y)) == {}


@pytest.mark.parametrize(
    ("first", "state", "axis"),
    (
        ([None, 6], [2, None, 4], 1),
        ([None, None], [2, 3, None], 2),
        ([None, 6], [None, 2, 4], 0),  # the usual axis
        ([None, 6], [2, None, None], 0),  # which one is not known
        ([None, 6], [2, None], 0),  # such as two channels of a sound
        ([None, 6], [2, 3, 4], 0),
        ([5, 6], [2, None, 4], 0),  # no other input has an open batch
    ),
)
def test_open_sizes_without_names(first, state, axis):
    """A state of fixed size on axis 0 has its samples where its only open size is."""
    kind = onnx.TensorProto.FLOAT
    inputs = [onnx.helper.make_tensor_value_info("x", kind, first)]
    inputs.append(onnx.helper.make_tensor_value_info("s", kind, state))
    nodes = [onnx.helper.make_node("Relu", [name], [f"{name}2"]) for name in ("x", "s")]
    outputs = [onnx.helper.make_tensor_value_info(f"{name}2", kind, None) for name in ("x", "s")]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", inputs, outputs))
    assert infer_batch_axes(ir.from_proto(model)) == ({"s": axis} if axis else {})


def test_metadata():
    """It outlives the operators it was found by, also in a file."""
    model = time_first_input("GRU", "N")
    store_inferred_batch_axes(model)
    for node in list(model.graph):
        node.domain = "elsewhere"
    assert infer_batch_axes(model) == {"x": 1}
    found = quantize(streaming("GRU"), platform="generic", effort="fast")
    assert infer_batch_axes(ir.from_proto(ir.to_proto(found.graph))) == {"h": 1}
    plain = Recurrent(T, WIDTH)
    model = plain.graph(plain.node("Relu", "x"))
    store_inferred_batch_axes(model)
    assert not model.metadata_props


def test_data():
    """Batches are cut along it, and sizes compared."""
    inputs = [InputSpec("x", (None, 3), F32), InputSpec("h", (2, None, 4), F32, 1)]
    x, h = np.arange(15, dtype=F32).reshape(5, 3), np.arange(40, dtype=F32).reshape(2, 5, 4)
    parts = [feeds for feeds, _ in Data({"x": x, "h": h}, inputs).batches(2)]
    assert [p["h"].shape for p in parts] == [(2, 2, 4), (2, 2, 4), (2, 1, 4)]
    np.testing.assert_array_equal(np.concatenate([p["h"] for p in parts], axis=1), h)
    assert Data({"x": x, "h": h}, inputs).first()["h"].shape == (2, 1, 4)
    with pytest.raises(DataError, match="batch sizes differ"):
        next(Data({"x": x[:4], "h": h}, inputs).batches(2))
    with pytest.raises(DataError, match=r"the model takes \[2, N, 4\]"):
        next(Data({"x": x, "h": h[:1]}, inputs).batches(2))


def test_optional_inputs():
    """May be missing; a bare array is the other one."""
    inputs = [InputSpec("x", (None, 3), F32), InputSpec("h", (None, 4), F32)]
    x, h = np.ones((2, 3), F32), np.ones((2, 4), F32)
    for source in ({"x": x}, x, {"whatever": x}):
        assert list(next(Data(source, inputs, optional=["h"]).batches(9))[0]) == ["x"]
    assert list(next(Data({"x": x, "h": h}, inputs, optional=["h"]).batches(9))[0]) == ["x", "h"]
    with pytest.raises(DataError, match="no array for input 'x'"):
        next(Data({"h": h}, inputs, optional=["h"]).batches(9))


def test_one_sample_models():
    """A file for one sample takes many: one by one, put together along the axis."""
    open_model, one = time_first_input("LSTM", "N"), time_first_input("LSTM", 1)
    x = np.random.default_rng(0).standard_normal((T, 3, WIDTH)).astype(F32)
    want = Session(open_model).run(None, {"x": x})
    assert [spec.axis for spec in get_input_specs(one)] == [1]
    found = {name: array for name, array, _ in FloatRunner(one, ["x"]).run({"x": x})}
    np.testing.assert_array_equal(found["x"], x)
    have = quantize(one, {"x": x}, platform="generic", effort="fast").session().run(None, {"x": x})
    assert [a.shape for a in have] == [a.shape for a in want]
