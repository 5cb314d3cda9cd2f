"""Law: a vendor is one folder. One that shares nothing with LUNA quantizes, checks, simulates and
writes nets of three
kinds, and no file of the core knows of it.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.targets import GENERIC, Target, Vendor
from lingeronnx.targets.arithmetic import LayerArithmetic, RoundingMode
from tests.nets import Net, depthwise, plain, samples
from tests.ops.test_recurrent import classifier, inputs
from tests.targets.cirrus.cirrus_npu import AWAY, CIRRUS

SETTINGS = {
    "platform": CIRRUS,
    "mode": "max-value",
    "activations": "asymmetric",
    "weight_scales": "channel",
}


def separable():
    """A depthwise convolution within a residual block."""
    net = Net(8, 8, 8, seed=3)
    a = net.node("Relu", net.conv("x", (8, 1, 3, 3), pads=[1] * 4, group=8))
    return net.graph(net.node("Add", "x", net.conv(a, (8, 8, 1, 1)), out="y"))


def quantized(model, feeds, **settings):
    return lo.quantize(model, feeds, effort="fast", **{**SETTINGS, **settings})


def agree(result, feeds, path):
    """Write the graph and run the file: the simulator's integers are those of the plain classes."""
    result.write(path)
    proto = onnx.load(path)
    assert (proto.opset_import[0].version, proto.ir_version) == (CIRRUS.opset, CIRRUS.ir_version)
    outputs = [value.name for value in proto.graph.output]
    got = lo.Session(path, platform=CIRRUS).run(outputs, feeds)
    plain_classes = ReferenceEvaluator(proto, new_ops=lo.reference_ops(CIRRUS))
    for i in range(len(next(iter(feeds.values())))):
        want = plain_classes.run(outputs, {name: array[i : i + 1] for name, array in feeds.items()})
        for one, other in zip(got, want, strict=True):
            assert np.array_equal(one[i : i + 1], other)
    return got[0]


def recurrent():
    """Two LSTMs one behind the other, and a fully connected layer."""
    return classifier("LSTM", "forward")


@pytest.mark.parametrize(
    "build, kinds",
    (
        (plain, {"Conv2dInt"}),
        (separable, {"Conv2dInt", "iqAdd"}),
        (recurrent, {"LSTMInt", "LinearInt"}),
    ),
)
def test_three_nets(build, kinds, tmp_path):
    """Every layer in integers, with its scale for each channel and its zero points, close to the
    float net.
    """
    model = build()
    data = inputs if build is recurrent else lambda *args: samples(*args)["x"]
    calib, feeds = {"x": data(model, 32)}, {"x": data(model, 4, 1)}
    result = quantized(model, calib)
    report = result.report
    assert (report.integer_macs, report.platform, report.is_chip, report.packer) == (
        1.0,
        "cirrus",
        False,
        "",
    )
    assert kinds <= report.layers.keys()
    assert any(not q.single for q in result.plan.tensors.values())
    got = agree(result, feeds, tmp_path / "net.onnx")
    want = lo.Session(model).run(None, feeds)[0]
    assert np.corrcoef(want.reshape(-1), got.reshape(-1))[0, 1] > 0.99
    assert not lo.check(model, platform=CIRRUS).violations


def test_its_rounding_is_its_own():
    """The same graph gives other integers where layers round down."""
    model = plain()
    result, feeds = quantized(model, samples(model)), samples(model, 16, 1)
    down = CIRRUS
    for operator in ("Conv2dInt", "LinearInt"):
        down = down.with_op(
            operator, arithmetic=LayerArithmetic(replace(AWAY, rounding=RoundingMode.DOWN))
        )
    assert not np.array_equal(
        *(
            s.run(None, feeds)[0]
            for s in (result.session(), lo.Session(result.graph, platform=down))
        )
    )


def test_its_limits_are_told_and_kept(tmp_path):
    """check speaks of its rules in its words, and a rewrite of the core mends what it says can be
    mended.
    """
    net = Net(24, 12, 12, seed=4)
    model = net.graph(net.conv("x", (4, 24, 5, 5), pads=[2] * 4, out="y"))
    (found,) = lo.check(model, platform=CIRRUS).violations
    assert (found.rule, found.value) == ("a kernel is at most 3 on a side", "5x5")
    assert found.remedy == "let --fit split it into kernels that are added"
    assert not lo.check(model, platform="generic").violations
    result = quantized(model, samples(model))
    kernels = [
        ir.get_attr(node, "kernel_shape")
        for node in result.graph.graph
        if node.op_type == "Conv2dInt"
    ]
    assert len(kernels) > 1
    assert max(side for kernel in kernels for side in kernel) <= 3
    agree(result, samples(model, 2, 1), tmp_path / "net.onnx")


def test_a_map_in_bricks(tmp_path):
    """17 channels are two bricks: a row of 40 columns is too long, and is cut into tiles."""
    net = Net(17, 6, 40, seed=5)
    model = net.graph(net.conv("x", (4, 17, 3, 3), pads=[1] * 4, out="y"))
    (found,) = lo.check(model, platform=CIRRUS).violations
    assert (found.value, found.rule) == (
        "1280 bytes",
        "a row of a map in bricks of 16 channels fits 1024 bytes",
    )
    result = quantized(model, samples(model))
    assert result.report.integer_macs == 1
    agree(result, samples(model, 2, 1), tmp_path / "net.onnx")


def test_what_it_has_not_is_said():
    """No packer: nothing is chip-ready, the verdict is refused in one line, and the names stay."""
    model = plain()
    with pytest.raises(lo.ConfigError, match="cirrus has no packer"):
        CIRRUS.evaluate_packing(model)
    with pytest.raises(lo.ConstraintError, match="platform cirrus is not a chip"):
        quantized(model, samples(model), require_chip=True)
    assert CIRRUS.with_safe_names(model) is model


class Null(Vendor):
    """Answers nothing: every default must do."""


def test_a_vendor_that_answers_nothing():
    """Law: what a vendor leaves out has a default, and the core keeps its own copy of what it hands
    out.
    """
    target = replace(GENERIC, name="null", vendor=Null())
    model = depthwise()
    result = lo.quantize(model, samples(model), platform=target, effort="fast")
    of_generic = lo.quantize(model, samples(model), platform="generic", effort="fast")
    assert [n.op_type for n in result.graph.graph] == [n.op_type for n in of_generic.graph.graph]
    finished, done = target.run_backend_passes(result.graph)
    assert finished is not result.graph
    assert not done
    with pytest.raises(TypeError, match="Target is final"):
        type("Mine", (Target,), {})


def test_nobody_knows_it():
    """The core has no line on it."""
    root = Path(__file__).resolve().parents[2]
    files = [path for part in ("lingeronnx", "simulator") for path in (root / part).rglob("*.py")]
    assert files
    assert not [path for path in files if "cirrus" in path.read_text(encoding="utf-8").lower()]
