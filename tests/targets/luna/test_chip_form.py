"""Graphs that were judged wrong become right by the workarounds, without changing an integer."""

import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna.backend_passes.node_builders import insert_concat
from lingeronnx.runtime.session import Session
from lingeronnx.targets import get_target
from tests import nets
from tests.packer import judge

#: The module, whose name in the package is that of its function.
LAST_STAGE = importlib.import_module("lingeronnx.luna.backend_passes.pipeline")
CHIPS = {"venus": "venus", "arcs": "arcs", "venusA": "venusa"}


def to_packer_proto(model):
    """Return the integer graph as a protobuf with names that the packer accepts."""
    text = ir.to_proto(model)
    graph = text.graph
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("@", "_at_") for name in names]
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = value.name.replace("@", "_at_")
    return text


def judge_result(result, platform, *arguments):
    """Return the verdict on a quantized model; LINEAR stands for the tensors to place in PSRAM.

    These are the outputs of fully connected layers, and the iqCat that enlarges a softmax's input.
    """
    proto = to_packer_proto(result.graph)
    nodes = proto.graph.node
    names = [node.output[0] for node in nodes if node.op_type == "LinearInt"]
    names += [node.output[0] for node in nodes if node.output[0].endswith("_repeated")]
    placements = ",".join(f"{name}:psram" for name in names)
    arguments = [placements if word == "LINEAR" else word for word in arguments]
    return judge(proto, platform, ["-d", "False", "-p", CHIPS[platform], *arguments])


def assert_fixed(monkeypatch, model, platform, text, *arguments):
    """Quantize without and with the workarounds; `text` is the problem without. Return both."""
    feed = nets.samples(model, 12)
    after = quantize(model, feed, platform=platform, effort="fast")
    with monkeypatch.context() as patch:
        patch.setattr(LAST_STAGE, "apply_fault_workarounds", lambda graph, row: [])
        before = quantize(model, feed, platform=platform, effort="fast")
    wrong = judge_result(before, platform, *arguments)
    assert not wrong.right
    assert any(text in problem for problem in wrong.problems), wrong.problems
    assert judge_result(after, platform, *arguments).problems == []
    assert len(after.report.fitted) > len(before.report.fitted)
    old, new = Session(before.graph), Session(after.graph)
    new_feed = {spec.name: feed[spec.name] for spec in new.inputs}
    tensors = {name: array for name, array, _ in new.taps(new_feed)}
    old_tensors = [
        (name, array) for name, array, _ in old.taps(feed) if name in new_feed or name not in feed
    ]
    for name, array in old_tensors:
        np.testing.assert_array_equal(tensors[name], array)
    onnx.checker.check_model(
        helper.make_model(
            to_packer_proto(after.graph).graph,
            opset_imports=to_packer_proto(after.graph).opset_import,
        )
    )
    return before, after


def get_op_types(result):
    return [node.op_type for node in result.graph.graph]


@pytest.mark.parametrize("platform", CHIPS)
def test_constants_shared_in_part_are_copied(monkeypatch, platform):
    """One weight with two biases."""
    net = nets.Net(4, 5, 5, seed=1)
    weight = net.const((0.3 * net.rng.standard_normal((4, 4, 1, 1))).astype(np.float32))
    biases = [net.const(net.rng.standard_normal(4).astype(np.float32)) for _ in range(2)]
    a = net.node("Relu", net.node("Conv", "x", weight, biases[0]))
    model = net.graph(net.node("Relu", net.node("Conv", a, weight, biases[1]), out="y"))
    _, after = assert_fixed(
        monkeypatch, model, platform, "shared by nodes whose other constants differ"
    )
    users = {}
    for node in after.graph.graph:
        if node.op_type == "Conv2dInt":
            names = tuple(value.name for value in node.inputs[1:])
            for name in names:
                users.setdefault(name, set()).add(names)
    assert all(len(groups) == 1 for groups in users.values())


def test_nodes_that_share_all_constants_share_them_still():
    net = nets.Net(4, 5, 5, seed=1)
    weight = net.const(np.ones((4, 4, 1, 1), np.float32))
    first, second = (net.node("Conv", "x", weight) for _ in range(2))
    result = nets.quantized(
        net.graph(net.node("Add", first, second, out="y")), platform="arcs", effort="fast"
    )
    assert (get_op_types(result).count("Conv2dInt"), result.report.fitted) == (2, [])


def test_every_reader_has_an_iqpad_of_its_own(monkeypatch):
    """The first layer of keyword spotting: its kernel of 10 rows is split, and both parts read the
    padded input.
    """
    net = nets.Net(1, 29, 10, seed=2)
    model = net.graph(net.conv("x", (4, 1, 10, 4), strides=[2, 2], pads=[4, 1, 5, 1], out="y"))
    before, after = assert_fixed(monkeypatch, model, "venus", "several readers of a padded tensor")
    assert (get_op_types(before).count("iqPad"), get_op_types(after).count("iqPad")) == (1, 2)


def test_added_nodes_have_names_of_their_own(monkeypatch):
    """Copies of an iqPad are numbered, and so is a node of the user's."""
    net = nets.Net(1, 29, 10, seed=2)
    model = net.graph(net.conv("x", (4, 1, 10, 4), strides=[2, 2], pads=[4, 1, 5, 1], out="y"))
    before, _ = assert_fixed(monkeypatch, model, "venus", "several readers of a padded tensor")
    pad, last = (
        next(n for n in before.graph.graph if n.op_type == op) for op in ("iqPad", "Dequant")
    )
    last.name = f"{pad.name}_2"
    rewritten, _ = get_target("venus").run_backend_passes(before.graph)
    names = [node.name for node in rewritten.graph]
    assert len(set(names)) == len(names)
    assert f"{pad.name}_2_2" in names


def test_padding_that_is_moved_has_an_input_of_its_own(monkeypatch):
    """A 3x3 convolution of two channels beside another reader of its input."""
    net = nets.Net(3, 9, 9, seed=3)
    a = net.conv("x", (2, 3, 3, 3))
    b = net.conv(a, (2, 2, 3, 3), pads=[1] * 4)
    model = net.graph(net.node("Add", a, b, out="y"))
    before, after = assert_fixed(monkeypatch, model, "venus", "")
    assert get_op_types(after).count("Conv2dInt") == get_op_types(before).count("Conv2dInt") + 1
    assert (
        get_op_types(quantize(model, nets.samples(model), platform="arcs", effort="fast")).count(
            "Conv2dInt"
        )
        == 2
    )


def test_no_copy_for_the_only_reader():
    net = nets.Net(2, 9, 9, seed=3)
    a = net.conv("x", (2, 2, 3, 3))
    result = nets.quantized(
        net.graph(net.conv(a, (4, 2, 3, 3), pads=[1] * 4, out="y")), platform="venus"
    )
    assert result.report.fitted == []


@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize("shape", ((3, 8, 8), (5, 8)))
def test_a_graph_without_a_weight_gets_one(monkeypatch, platform, shape):
    net = nets.Net(*shape, seed=4)
    y = (
        net.node("Relu", "x")
        if len(shape) == 2
        else net.node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])
    )
    model = net.graph(net.node("Relu", y, out="y"))
    _, after = assert_fixed(monkeypatch, model, platform, "constant")
    assert get_op_types(after).count("Conv2dInt") == 1


def test_an_input_that_nobody_reads_is_left_out(monkeypatch):
    net = nets.Net(3, 8, 8, seed=5)
    net.inputs.append(helper.make_tensor_value_info("idle", 1, ["N", 4]))
    model = net.graph(net.conv("x", (4, 3, 3, 3), out="y"))
    _, after = assert_fixed(monkeypatch, model, "arcs", "idle")
    assert [v.name for v in after.graph.graph.inputs] == ["x"]
    generic = quantize(model, nets.samples(model), platform="generic", effort="fast")
    assert [v.name for v in generic.graph.graph.inputs] == ["x", "idle"]


def test_rows_of_a_linear_layer_have_their_work_area(monkeypatch):
    net = nets.Net(6, 16, seed=6)
    model = net.graph(
        net.node(
            "MatMul", "x", net.const(net.rng.standard_normal((16, 48)).astype(np.float32)), out="y"
        )
    )
    _, after = assert_fixed(
        monkeypatch, model, "venusA", "past the planned memory", "--threshold4", "1"
    )
    assert get_op_types(after) == ["Quant", "LinearInt", "LinearInt", "iqCat", "Dequant"]
    assert get_op_types(quantize(model, nets.samples(model), platform="arcs", effort="fast")) == [
        "Quant",
        "LinearInt",
        "Dequant",
    ]


@pytest.mark.parametrize(
    ("is_transposed", "outputs"), [(False, 48), (True, 1)], ids=["rows", "mean over steps"]
)
def test_rows_of_32_bits_stay_whole(is_transposed, outputs):
    """An iqCat of parts, and a convolution in a layer's place, write 8 bits: sums of 32 would be
    cut off.
    """
    net = nets.Net(6, 16, seed=6)
    source = net.node("Transpose", "x", perm=[0, 2, 1]) if is_transposed else "x"
    weight = net.rng.standard_normal((6 if is_transposed else 16, outputs)).astype(np.float32)
    model = net.graph(net.node("MatMul", source, net.const(weight), out="y"))
    feed = nets.samples(model, 12)
    result = quantize(
        model, feed, platform="venusA", effort="fast", overrides={"y": {"out_bits": 32}}
    )
    assert get_op_types(result).count("LinearInt") == 1
    assert judge_result(result, "venusA", "-m", "LINEAR").problems == []
    x = feed["x"][:1].swapaxes(1, 2) if is_transposed else feed["x"][:1]
    (y,) = Session(result.graph).run(None, {"x": feed["x"][:1]})
    assert np.abs(y - x @ weight).max() < 0.02 * np.abs(y).max()


def test_a_softmax_has_its_work_area(monkeypatch):
    net = nets.Net(8, 16, seed=7)
    weights = [net.const(net.rng.standard_normal((16, 16)).astype(np.float32)) for _ in range(2)]
    soft = net.node("Softmax", net.node("MatMul", "x", weights[0]), axis=-1)
    model = net.graph(net.node("MatMul", soft, weights[1], out="y"))
    _, after = assert_fixed(monkeypatch, model, "venusA", "SoftmaxInt", "-m", "LINEAR")
    assert get_op_types(after).count("SoftmaxInt") == get_op_types(after).count("Slice") > 1
    assert (
        get_op_types(quantize(model, nets.samples(model), platform="arcs", effort="fast")).count(
            "SoftmaxInt"
        )
        == 1
    )


def test_an_lstm_has_its_work_area(monkeypatch):
    """8 steps of 8 pixels: the layer that changes nothing is widened, and cut again."""
    model = ir.load(Path(__file__).resolve().parents[3] / "models" / "digits_lstm.onnx")
    _, after = assert_fixed(
        monkeypatch, model, "venus", "LSTMInt", "--dma_prefetch", "False", "--threshold4", "1"
    )
    start = get_op_types(after).index("LSTMInt")
    assert get_op_types(after)[start + 1 : start + 3] == ["LinearInt", "Slice"]
    arcs = quantize(model, nets.samples(model, 12), platform="arcs", effort="fast")
    assert get_op_types(arcs).count("LinearInt") == get_op_types(after).count("LinearInt") - 1


def test_the_last_state_of_an_lstm_has_room(monkeypatch):
    """It takes four bytes per unit, one is planned."""
    model = ir.load(Path(__file__).resolve().parents[3] / "models" / "digits_lstm.onnx")
    _, after = assert_fixed(
        monkeypatch,
        model,
        "venusA",
        "past the planned memory",
        "--dma_prefetch",
        "False",
        "-m",
        "input:psram,/Squeeze_output_0:psram",
    )
    start = get_op_types(after).index("LSTMInt")
    assert get_op_types(after)[start + 1 : start + 4] == ["Slice", "Slice", "iqCat"]


def test_two_that_are_joined_have_names_of_their_own():
    """Of two nodes that repeat one tensor, the second has another name, as its output has."""
    net = nets.Net(4, 6)
    graph = net.graph(net.node("Relu", "x", out="y"))
    node = graph.graph[0]
    concats = [
        insert_concat(graph, node, [node.inputs[0]] * 2, 1, 16.0, "x_repeated").producer()
        for _ in range(2)
    ]
    assert (
        len({node.name for node in concats}) == len({node.outputs[0].name for node in concats}) == 2
    )
