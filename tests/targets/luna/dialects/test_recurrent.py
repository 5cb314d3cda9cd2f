"""Recurrent layers of generation 3 and of the training side of generation 1, through Session."""

import math

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.ir import ir
from tests.oracles import training
from tests.targets.luna.dialects.helpers import (
    CHIPS,
    declare_outputs,
    few,
    layer,
    model,
    recurrent,
    same,
    some,
)


@pytest.mark.slow
@few
@given(st.integers(0, 9999), st.sampled_from(CHIPS), st.booleans())
def test_lstm(seed, platform, forward):
    """venus has gates of 15 bits, the others compute what their executor does; h and c are real."""
    x, held = layer(seed, 4)
    got = recurrent(
        "QLSTM", x, held, platform, ["y", "h", "c"], go_forward=int(forward), scale_c=32768.0
    )
    arrays = [a.tolist() for a in held.values()]
    if platform == "venus":
        y, h, c = training.lstm(
            x.tolist(), *arrays, (12 - 11, 11 - 11), (25, 8), None, "q15", forward
        )
    else:
        from tests.oracles.recurrent import lstm

        y, h, c = lstm(
            x.tolist(), *arrays, 12 - 27, 11 - 27, (1 << 30, 55, 8), "q27", platform, forward
        )
    same(got["y"], y)
    assert got["h"].tolist() == (np.array(h, np.float32) / 32).tolist()
    assert got["c"].tolist() == (np.array(c, np.float32) / np.float32(2**15)).tolist()
    assert set(got) == {"x", "y", "h", "c"}


@pytest.mark.slow
@few
@given(st.integers(0, 9999), st.sampled_from(CHIPS), st.booleans())
def test_gru(seed, platform, forward):
    x, held = layer(seed, 3)
    got = recurrent("QGRU", x, held, platform, ["y", "h"], go_forward=int(forward))
    kind, sums = {"venus": ("q15", 11), "arcs": ("before", 27)}.get(platform, ("common", 12))
    y, h = training.gru(
        x.tolist(),
        *(a.tolist() for a in held.values()),
        (12 - sums, 11 - sums),
        5,
        8,
        None,
        sums if kind == "common" else 27,
        kind,
        platform,
        forward,
    )
    same(got["y"], y)
    assert got["h"].tolist() == (np.array(h, np.float32) / 32).tolist()


@pytest.mark.slow
@few
@given(st.integers(0, 9999), st.sampled_from((16.0, 32.0, 64.0)))
def test_layers_of_the_first_generation(seed, scale_o):
    """The output is requantized to scale_o, and from there to scale_h for the next step."""
    x, held = layer(seed, 4)
    q = int(math.log2(scale_o))
    message = {"domain": "thinker", "arithmetic": "training", "scale_o": scale_o}
    got = recurrent("LSTMInt", x, held, "venus", ["y", "h", "c"], **message)
    arrays = [a.tolist() for a in held.values()]
    y, _, c = training.lstm(x.tolist(), *arrays, (1, 0), (14 - q, 8), (q - 5, 8), "q7", True)
    same(got["y"], y)
    assert got["c"].tolist() == (np.array(c, np.float32) / np.float32(2**14)).tolist()
    x, held = layer(seed, 3)
    got = recurrent("GRUInt", x, held, "venus", ["y", "h"], **message)
    arrays = [a.tolist() for a in held.values()]
    same(
        got["y"],
        training.gru(x.tolist(), *arrays, (1, 0), q, 8, (q - 5, 8), 27, "q7", "venus", True)[0],
    )


@pytest.mark.parametrize("forward", (True, False))
def test_one_example_of_each_layer(forward):
    """One example of each of the three laws above, on one chip: each further kernel takes long to
    compile.
    """
    test_lstm.hypothesis.inner_test(1, "venus", forward)
    test_gru.hypothesis.inner_test(2, "venus", forward)
    test_layers_of_the_first_generation.hypothesis.inner_test(3, 64.0 if forward else 16.0)


def test_a_layer_that_says_two_things():
    """The training side leaves the output at scale_h, the file says scale_o: no answer is the
    file's meaning.
    """
    x, held = layer(0, 4)
    with pytest.raises(lo.ModelError, match="scale_o = 64, scale_h = 32"):
        recurrent("QLSTM", x, held, "venus", ["y", "h", "c"], scale_o=64.0)
    attrs = {
        "input_size": 4,
        "hidden_size": 3,
        "batch_first": 1,
        "scale_x": 1.0,
        "scale_h": 1.0,
        "scale_iw": 1.0,
        "scale_hw": 1.0,
    }
    graph = model(
        [("LSTMInt", ["x", *held], ["y"], attrs, "thinker")], {"x": x}, held, domain="thinker"
    )
    session = lo.Session(graph, "training")
    with pytest.raises(lo.ModelError, match="no scale_o"):
        session.run(None, {"x": x})


@pytest.mark.slow
@pytest.mark.parametrize("kind", (onnx.TensorProto.FLOAT, onnx.TensorProto.INT8))
def test_states_may_be_declared_real(kind):
    """The vendor's exports declare float states; a sequence declared float is wrong all the
    same.
    """
    x, held = layer(0, 3)
    attrs = {
        "input_size": 4,
        "hidden_size": 3,
        "batch_first": 1,
        "scale_x": 32.0,
        "scale_iw": 1.0,
        "scale_h": 32.0,
        "scale_hw": 1.0,
        "scale_o": 32.0,
        "o_bits": 8,
        "has_hidden": 0,
    }
    graph = model([("QGRU", ["x", *held], ["y", "h"], attrs, "linger")], {"x": x}, held, ["y", "h"])
    proto = declare_outputs(graph, y=(onnx.TensorProto.INT8, [1, 5, 3]), h=(kind, [1, 1, 3]))
    lo.check_model(proto)
    got = lo.Session(ir.from_proto(proto)).run(None, {"x": x})[1]
    assert got.dtype == (np.float32 if kind == onnx.TensorProto.FLOAT else np.int8)
    wrong = declare_outputs(graph, y=(onnx.TensorProto.FLOAT, [1, 5, 3]), h=(kind, [1, 1, 3]))
    with pytest.raises(lo.ModelError, match="elem type"):
        lo.check_model(wrong)


def test_schemas_of_what_the_executor_has_not():
    x = {"x": some(0, 1, 2, 4, 4)}
    attrs = {"scale_x": 16.0, "scale_o": 16.0, "x_bits": 8, "o_bits": 8, "platform": "venusA"}
    kinds = ("QGelu", "QSwish", "QGlobalAveragePool2d")
    chain = [
        (kind, [f"t{i}" if i else "x"], [f"t{i + 1}"], attrs, "linger")
        for i, kind in enumerate(kinds)
    ]
    lo.check_model(
        declare_outputs(model(chain, x, outputs=["t3"]), t3=(onnx.TensorProto.INT8, [1, 2, 1, 1]))
    )
    wrong = model([("QGelu", ["x"], ["y"], {**attrs, "scale_y": 1.0}, "linger")], x)
    with pytest.raises(lo.ModelError, match="scale_y"):
        lo.check_model(declare_outputs(wrong, y=(onnx.TensorProto.INT8, [1, 2, 4, 4])))


@pytest.mark.slow
def test_time_first():
    """To the training side batch_first = 0 is [T, N, I], whatever the sizes."""
    x, held = layer(3, 4)
    output = recurrent("QLSTM", x, held, "venus", ["y", "h", "c"])
    turned = recurrent(
        "QLSTM",
        np.ascontiguousarray(x.swapaxes(0, 1)),
        held,
        "venus",
        ["y", "h", "c"],
        batch_first=0,
    )
    assert np.array_equal(output["y"].swapaxes(0, 1), turned["y"])
