"""4-bit weights on the chips: graphs pack, both judges call them right, integers are unchanged."""

import importlib

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session
from tests import nets
from tests.case_selection import mark_rest_slow
from tests.packer import judge

LAST_STAGE = importlib.import_module("lingeronnx.luna.backend_passes.pipeline")
CHIPS = ("arcs", "venusA")


def quantize_int4(model, platform, **settings):
    """Return `model` with 4-bit weights, quantized on random samples without effort."""
    settings = {"weight_bits": 4, "effort": "fast", **settings}
    return lo.quantize(model, nets.samples(model, 8), platform=platform, **settings)


def get_weight_bits(result):
    """Return {node: (operator, bits of its weights)} of a result."""
    nodes = [node for node in result.graph.graph if "parameter_bits" in node.attributes]
    return {
        str(node.name): (str(node.op_type), ir.get_attr(node, "parameter_bits")) for node in nodes
    }


def is_right(result, platform):
    """Whether both judges call the packed part right, with the printed arguments."""
    part = result.chip or result.graph
    words = result.report.packer_args.split()
    verdict = judge(ir.to_proto(part), platform, words)
    return result.report.chip_ready and verdict.packs and len(verdict.problems) == len(verdict.past)


def assert_unchanged(monkeypatch, model, platform, **settings):
    """Assert that workarounds change no integer of a tensor; return the result with them."""
    after = quantize_int4(model, platform, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(LAST_STAGE, "apply_fault_workarounds", lambda graph, target: [])
        before = quantize_int4(model, platform, **settings)
    old, new = Session(before.graph), Session(after.graph)
    feed = {spec.name: nets.samples(model, 3)[spec.name] for spec in new.inputs}
    old_taps = {name: array for name, array, _ in old.taps(feed)}
    new_taps = {name: array for name, array, _ in new.taps(feed)}
    shared = old_taps.keys() & new_taps.keys()
    assert shared
    for name in shared:
        assert np.array_equal(old_taps[name], new_taps[name]), name
    return after


def build_odd_conv(kernel, channels=8, outputs=2, group=1, bias=True):
    """A convolution whose 4-bit weights fill nothing on arcs, in front of another."""
    net = nets.Net(channels, 9, 8, seed=3)
    weight = (outputs, channels // group, *kernel)
    y = net.conv("x", weight, pads=[k // 2 for k in kernel] * 2, group=group, bias=bias)
    return net.graph(net.conv(net.node("Relu", y), (4, outputs, 1, 1), out="y"))


def build_linear_rows(count, inputs, outputs):
    """Fully connected layers over several rows, or one."""
    net = nets.Net(*([count] if count > 1 else []), inputs, seed=4)
    weights = [
        net.const(net.rng.standard_normal(s).astype(np.float32))
        for s in ((inputs, outputs), (outputs, 4))
    ]
    return net.graph(
        net.node(
            "MatMul", net.node("Relu", net.node("MatMul", "x", weights[0])), weights[1], out="y"
        )
    )


NETS = {
    "plain": nets.plain,
    "residual": nets.residual,
    "depthwise": nets.depthwise,
    "concat": nets.concat,
    "branches": nets.branches,
    "line": nets.line,
    "asymmetric": nets.asymmetric,
    "odd": lambda: build_odd_conv((3, 3)),
    "odd 1x3": lambda: build_odd_conv((1, 3)),
    "odd depthwise": lambda: build_odd_conv((3, 3), 8, 8, 8),
    "odd 1x1": lambda: build_odd_conv((1, 1)),
    "odd 5x5": lambda: build_odd_conv((5, 5)),
    "groups": lambda: build_odd_conv((3, 3), 16, 4, 2),
    "row": lambda: build_linear_rows(1, 33, 16),
    "rows": lambda: build_linear_rows(6, 33, 16),
    "rows of one": lambda: build_linear_rows(6, 16, 1),
}


@pytest.mark.sweep
@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize("net", mark_rest_slow(5, NETS))
def test_what_is_written_is_right(monkeypatch, net, platform):
    """And no integer has changed on the way; weights said to have 4 bits are integers from -8 to
    7.
    """
    result = assert_unchanged(monkeypatch, NETS[net](), platform)
    assert is_right(result, platform), result.report.findings
    for node in result.graph.graph:
        if "parameter_bits" in node.attributes and ir.get_attr(node, "parameter_bits") == 4:
            held = ir.require_const_value(node.inputs[1])
            assert node.op_type == "Conv2dInt" or (platform, node.op_type) == ("arcs", "LinearInt")
            assert held.dtype == np.int8
            assert -8 <= held.min() <= held.max() <= 7


def test_a_kernel_gets_zeros():
    """3x3 becomes 3x4, which takes fewer bytes than at 8 bits; a 1x1 would not, and stays at 8 by a
    note.
    """
    result = quantize_int4(build_odd_conv((3, 3)), "arcs")
    shapes = [
        ir.require_const_value(n.inputs[1]).shape
        for n in result.graph.graph
        if n.op_type == "Conv2dInt"
    ]
    assert shapes[0] in ((2, 8, 3, 4), (2, 8, 4, 3))
    assert any("padded with zeros to" in fitted.what for fitted in result.report.fitted)
    stays = quantize_int4(build_odd_conv((1, 1)), "arcs")
    assert [bits for _, bits in get_weight_bits(stays).values()] == [8, 4]
    assert any("keep 8 bits: with 4 bits they do not fill" in note for note in stays.report.notes)


def test_layers_of_rows():
    """LinearInt on arcs where it is right there, 1x1 convolutions elsewhere; rows are turned before
    and after.
    """
    assert {
        op
        for op, _ in get_weight_bits(quantize_int4(build_linear_rows(1, 32, 16), "arcs")).values()
    } == {"LinearInt"}
    for platform, count in (("venusA", 1), ("venusA", 6)):
        result = quantize_int4(build_linear_rows(count, 32, 16), platform)
        assert set(get_weight_bits(result).values()) == {("Conv2dInt", 4)}
        assert any("1x1 convolution" in fitted.what for fitted in result.report.fitted)


def test_an_override_of_one_layer():
    """The others keep 8 bits; the constants of both lie where they are."""
    result = quantize_int4(
        nets.plain(), "arcs", weight_bits=8, overrides={"Conv_t0": {"weight_bits": 4}}
    )
    assert sorted(bits for _, bits in get_weight_bits(result).values())[:2] == [4, 8]
    assert is_right(result, "arcs")


@pytest.mark.parametrize("platform", CHIPS)
def test_what_has_no_four_bits_stays(platform):
    """A recurrent layer and a transposed convolution are named in the notes, told by default or by
    override.
    """
    net = nets.Net(4, 6, 6, seed=5)
    weight = net.const(net.rng.standard_normal((4, 4, 2, 2)).astype(np.float32))
    model = net.graph(net.node("ConvTranspose", "x", weight, strides=[2, 2], out="y"))
    for settings in (
        {},
        {"weight_bits": 8, "overrides": {"type:ConvTranspose": {"weight_bits": 4}}},
    ):
        result = quantize_int4(model, platform, **settings)
        assert all(bits == 8 for _, bits in get_weight_bits(result).values())
        assert any(
            "keep 8 bits: the chip does not support 4-bit weights" in note
            for note in result.report.notes
        )


def test_wide_outputs_stay():
    """A layer whose output has 32 bits keeps weights of 8."""
    result = quantize_int4(build_linear_rows(1, 32, 16), "arcs", overrides={"y": {"out_bits": 32}})
    assert sorted(get_weight_bits(result).values()) == [("LinearInt", 4), ("LinearInt", 8)]
    assert is_right(result, "arcs")


def test_the_package_is_smaller():
    """By nearly half, and the cost says 8x4."""
    int8_result, int4_result = (
        quantize_int4(nets.residual(), "arcs", weight_bits=bits) for bits in (8, 4)
    )
    assert int4_result.report.cost.weights < 0.75 * int8_result.report.cost.weights
    assert (
        int4_result.report.cost.macs["8x4"] > 100 * int4_result.report.cost.macs["8x8"]
    )  # the mean has weights of its own


def test_nothing_is_fetched_ahead():
    """With biases the constants lie in shared memory: nothing waits. Read outside they have no
    price, which is told.
    """
    result = quantize_int4(nets.plain(), "arcs")
    assert "params:share-mem" in result.report.packer_args
    assert lo.latency(result.graph).waits == 0
    outside = lo.latency(result.graph, packer_args="-p arcs -d False --dma_prefetch False")
    assert sum("constants read in external memory" in work.what for work in outside.unpriced) == 4


def test_a_plan_comes_back():
    """Its widths are those of the text, and it makes the same graph again."""
    result = quantize_int4(nets.plain(), "arcs")
    plan = lo.Plan.from_json(result.plan.to_json())
    assert get_weight_bits(
        quantize_int4(nets.plain(), "arcs", weight_bits=8, plan=plan)
    ) == get_weight_bits(result)


@pytest.mark.parametrize("platform", CHIPS)
def test_as_standard_operators(tmp_path, platform):
    """Weights of 4 bits are INT4, which opset 21 knows."""
    result = quantize_int4(nets.plain(), platform)
    result.save(tmp_path / "g.onnx")
    lo.convert(tmp_path / "g.onnx", to="qdq").save(tmp_path / "q.onnx")
    model = onnx.load(tmp_path / "q.onnx")
    assert onnx.TensorProto.INT4 in {
        initializer.data_type for initializer in model.graph.initializer
    }
    assert model.opset_import[0].version >= 21
    onnx.checker.check_model(model)
