"""The batch of a chip's graph in standard ONNX: dynamic as in the float model, with the same integers."""

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.interchange.qdq.exact.verification import (
    open_as_user,
    output_qparams,
    outputs_match,
    random_feeds,
)
from lingeronnx.ir import ir
from tests import nets
from tests.nets import Net, quantized

DIGITS = ("cnn", "lstm", "gru", "attention")
FIXED = "batch 1, as the integer graph: the float model fixes it"


def fix_batch(path):
    """Return a model of a file with a batch of 1 instead of a dynamic one."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return ir.from_proto(model)


def batch_dims(model):
    """Return the first size of all inputs and outputs."""
    return {ir.get_shape(value)[0] for value in (*model.graph.inputs, *model.graph.outputs)}


@pytest.mark.parametrize("name", DIGITS)
@pytest.mark.parametrize("platform", ("venus", pytest.param("arcs", marks=pytest.mark.slow)))
def test_any_batch_gives_the_same(name, platform):
    """In the exact form those of the simulator, in the plain one those of its samples one by one."""
    made = lo.quantize(f"models/digits_{name}.onnx", None, platform=platform, effort="fast").graph
    feeds = random_feeds(made, True, 4) + random_feeds(made, False, 4)
    batch = {key: np.concatenate([feed[key] for feed in feeds]) for key in feeds[0]}
    for options in ({}, {"exact": True, "functions": True}):
        converted = lo.convert(made, "qdq", **options)
        assert converted.notes[-1] == "any batch size"
        assert batch_dims(converted.graph) == {None}
        session = open_as_user(ir.as_owned_model(converted.graph))
        names = [value.name for value in session.get_outputs()]
        single = [session.run(names, feed) for feed in feeds]
        together = session.run(names, batch)
        for index in range(len(names)):
            stacked = np.concatenate([outputs[index] for outputs in single])
            np.testing.assert_array_equal(together[index], stacked)
        if options:
            qparams, expected = output_qparams(made), lo.Session(made).run(names, batch)
            for name, a, b in zip(names, expected, together, strict=True):
                assert outputs_match(a, b, qparams.get(name))


@pytest.mark.parametrize("exact", (False, True))
def test_a_batch_that_the_float_model_fixes_stays(exact):
    made = lo.quantize(
        fix_batch("models/digits_cnn.onnx"), None, platform="venus", effort="fast"
    ).graph
    converted = lo.convert(made, "qdq", exact=exact)
    assert converted.notes[-1] == FIXED
    assert batch_dims(converted.graph) == {1}
    other = lo.convert(made, "linger").graph  # another dialect of it remembers
    assert lo.convert(other, "qdq").notes[-1] == FIXED


def test_operators_on_integers_take_any_batch():
    converted = lo.convert(
        quantized(nets.residual(), platform="venus", effort="fast").graph, "qoperator"
    )
    assert converted.notes[-1] == "any batch size"
    x = np.random.default_rng(0).standard_normal((3, 4, 8, 8)).astype(np.float32)
    session = open_as_user(converted.graph)
    shape = [3, *(n or 1 for n in ir.get_shape(converted.graph.graph.inputs[0])[1:])]
    x = np.resize(x, shape)
    (together,) = session.run(None, {"x": x})
    single = [session.run(None, {"x": x[i : i + 1]})[0] for i in range(3)]
    np.testing.assert_array_equal(together, np.concatenate(single))


def test_a_float_operator_that_may_mix_samples_keeps_the_batch():
    net = Net(2, 4, 4)
    y = net.node("Flatten", net.conv("x", (2, 2, 1, 1)))
    made = quantized(
        net.graph(net.node("CumSum", y, net.const(np.int64(0)), out="y")),
        platform="venus",
        effort="fast",
    ).graph
    converted = lo.convert(made, "qdq")
    assert converted.notes[-1] == "batch 1, as the integer graph: CumSum may mix samples"
    assert batch_dims(converted.graph) == {1}


@pytest.mark.parametrize("platform", ("venus", "generic"))
def test_weights_of_recurrent_layers_are_int32_and_read_as_8_bits(platform):
    """OpenVINO opens no recurrent layer whose weights are dequantized from int8."""
    made = lo.quantize("models/digits_lstm.onnx", None, platform=platform, effort="fast")
    graph = lo.convert(made.graph, "qdq").graph
    (layer,) = (node for node in graph.graph if node.op_type == "LSTM")
    for value in layer.inputs[1:3]:
        assert ir.producer(value).inputs[0].dtype == ir.DataType.INT32
    again = lo.quantize(graph, None, platform=platform, effort="fast")
    x = {"input": np.random.default_rng(0).standard_normal((8, 1, 8, 8)).astype(np.float32)}
    np.testing.assert_array_equal(
        lo.Session(made.graph).run(None, x)[0], lo.Session(again.graph).run(None, x)[0]
    )


def test_the_mean_of_an_image_is_global():
    """OpenVINO computes an AveragePool of a whole image wrongly between scales; windows stay."""
    net = Net(4, 6, 6)
    window = net.node(
        "AveragePool", net.conv("x", (4, 4, 1, 1)), kernel_shape=[2, 2], strides=[2, 2]
    )
    made = quantized(
        net.graph(net.node("GlobalAveragePool", window, out="y")), platform="generic", effort="fast"
    )
    graph = lo.convert(made.graph, "qdq").graph
    pools = [node.op_type for node in graph.graph if "Pool" in node.op_type]
    assert pools == ["AveragePool", "GlobalAveragePool"]
