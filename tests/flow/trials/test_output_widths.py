"""Outputs of a chip in 32 bits: raw integers that the host scales; and sums in 16 bits, which a
curve reads.
"""

import json
import math

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError, ConstraintError
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine, Plan
from lingeronnx.runtime.program_parts import split_into_parts
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.targets import PLATFORMS
from tests import artefacts, nets
from tests.oracles.curves import curve
from tests.oracles.fixed import rsh, sat

CHIPS = [target for target in PLATFORMS if target.has_packer]
WIDE = {"z": {"out_bits": 32}}


def classifier(softmax=True):
    """Conv, Relu and a layer that gives `z`; `y` is its softmax."""
    net = nets.Net(2, 5, 5, seed=8)
    f = net.node("Flatten", net.node("Relu", net.conv("x", (3, 2, 3, 3))), out="f")
    z = net.linear(f, (27, 4), out="z")
    return net.graph(net.node("Softmax", z, out="y", axis=-1) if softmax else z)


@pytest.mark.parametrize("softmax", (True, False), ids=("tail", "end"))
@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
def test_the_chip_writes_integers_and_the_host_scales_them(target, softmax):
    """The chip's part ends in the layer's int32; with the host's tail it computes the outputs of
    the whole graph.
    """
    model = classifier(softmax)
    feed = nets.samples(model, 3)
    result = lo.quantize(model, feed, platform=target, effort="fast", overrides=WIDE)
    assert result.report.chip_ready
    assert ("Dequant_z", "Dequant") in [(n.node, n.op_type) for n in result.report.host_part]
    (output,) = result.chip.graph.outputs
    assert (output.name, output.dtype) == ("z_q32", ir.DataType.INT32)
    assert not [node for node in result.chip.graph if node.op_type == "Dequant"]
    tail = split_into_parts(result.graph, target).host_parts[-1].graph
    assert {node.domain for node in tail.graph} == {""}
    raw = lo.Session(result.chip).run(None, feed)[0]
    ((_, got, _),) = FloatRunner(tail, {"y" if softmax else "z"}).run({"z_q32": raw})
    want = result.session().run(None, feed)[0]
    np.testing.assert_allclose(got, want, rtol=1e-6) if softmax else np.testing.assert_array_equal(
        got, want
    )


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
def test_between_two_parts_the_host_reads_whole_sums(target):
    """By default, with any effort; the last layer and one with a width of its own keep 8 bits."""
    net = nets.Net(6)
    a = net.node("Sin", net.linear("x", (6, 8), out="a"))
    b = net.node("Sin", net.linear(a, (8, 8), out="b"))
    model = net.graph(net.node("Sin", net.linear(b, (8, 4), out="c"), out="y"))
    feed = nets.samples(model, 8)
    fixed = {"b": {"out_bits": 8}}
    result = lo.quantize(model, feed, platform=target, effort="fast", overrides=fixed)
    tensors = result.plan.tensors
    assert [tensors[name].bits for name in "abc"] == [32, 8, 8]
    wide = {node.inputs[0].name for node in result.graph.graph if node.op_type == "Dequant"}
    assert "a_q32" in wide
    default = lo.quantize(model, feed, platform=target, effort="fast")
    assert [default.plan.tensors[name].bits for name in "abc"] == [32, 32, 8]


def test_nothing_is_rounded_behind_the_sums():
    """The integers are the layer's sums with their bias."""
    model = classifier()
    feed = nets.samples(model, 3)
    result = lo.quantize(model, feed, effort="fast", overrides=WIDE)
    node = next(n for n in result.graph.graph if n.op_type == "LinearInt")
    weight, bias = (ir.const_value(node.inputs[i]).astype(np.int64) for i in (1, 2))
    taps = {name: array for name, array, _ in result.session().taps(feed)}
    np.testing.assert_array_equal(taps["z_q32"], taps["f"].astype(np.int64) @ weight.T + bias)


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
def test_a_file_and_a_plan(target, tmp_path):
    """The file is judged without the host's Dequant; its plan makes it again."""
    model = classifier(False)
    feed = nets.samples(model)
    result = lo.quantize(model, feed, platform=target, effort="fast", overrides=WIDE)
    written = result.write(tmp_path / "m.onnx")
    assert written.chip is not None
    found = lo.check(tmp_path / "m.onnx")
    assert found.packs
    assert found.runs_right
    assert [o.type.tensor_type.elem_type for o in onnx.load(written.chip).graph.output] == [
        onnx.TensorProto.INT32
    ]
    plan = Plan.from_json(result.plan.to_json())
    again = lo.quantize(model, feed, platform=target, effort="fast", plan=plan)
    assert ir.to_bytes(again.graph) == ir.to_bytes(result.graph)


def test_deploy(tmp_path):
    """The folder's header and manifest speak of 32 bits, and the host has a tail."""
    model = classifier(False)
    feed = nets.samples(model)
    result = lo.quantize(model, feed, effort="fast", overrides=WIDE)
    lo.deploy(result.graph, tmp_path / "board", feed, stem="rows")
    header = (tmp_path / "board" / "rows.h").read_text()
    assert "typedef int32_t rows_output0_t;" in header
    exponent = result.plan.tensors["z"].exponent
    assert f"#define ROWS_OUTPUT0_SHIFT ({exponent})" in header
    assert (tmp_path / "board" / "rows_host_tail.onnx").is_file()
    raw = np.fromfile(tmp_path / "board" / "golden" / "0" / "output0.bin", np.int32)
    want = result.session().run(None, {"x": feed["x"][:1]})[0].reshape(-1)
    np.testing.assert_array_equal((raw / 2.0**exponent).astype(np.float32), want)
    assert (
        json.loads((tmp_path / "board" / "manifest.json").read_text())["outputs"][0]["dtype"]
        == "int32"
    )


def test_best_effort_takes_what_gains():
    """A layer at the very end gains, says so, and keeps what the user said of it."""
    model = classifier(False)
    feed = nets.samples(model, 48)
    best = artefacts.quantized(model, "venus", feed, effort="best")
    assert best.plan.tensors["z"].bits == 32
    (note,) = [note for note in best.report.notes if "last outputs at accumulator width" in note]
    assert note.startswith("effort best: last outputs at accumulator width: gain +")
    assert lo.quantize(model, feed).plan.tensors["z"].bits == 8
    assert (
        lo.quantize(model, feed, effort="best", overrides={"z": {"out_bits": 8}})
        .plan.tensors["z"]
        .bits
        == 8
    )


def test_rows_of_more_axes_are_refused():
    """Of four axes a chip writes rows and moves them: those have 8 bits."""
    net = nets.Net(2, 4, 4)
    weight = net.const(np.eye(4, 3, dtype=np.float32))
    model = net.graph(
        net.node("MatMul", net.conv("x", (3, 2, 3, 3), pads=[1] * 4), weight, out="z")
    )
    with pytest.raises(ConfigError, match="only a fully connected layer"):
        lo.quantize(model, nets.samples(model), overrides=WIDE)


# ---- in front of curves --------------------------------------------------------------------------------------------

FINE = {"z": {"out_bits": 16}}


def curved(op):
    """Conv, Relu, a layer that gives `z`, a curve of it, and another layer."""
    net = nets.Net(2, 5, 5, seed=8)
    f = net.node("Flatten", net.node("Relu", net.conv("x", (3, 2, 3, 3))), out="f")
    s = net.node(op, net.linear(f, (27, 6), out="z"), out="s")
    return net.graph(net.linear(s, (6, 4), out="y"))


@pytest.mark.parametrize("op", ("Sigmoid", "Tanh"))
def test_a_curve_reads_16_bits_of_the_sums(op, tmp_path):
    """Oracle: the sums shifted to Q11 and cut to 16 bits, then the table. No Requant; the plan
    makes it again.
    """
    model = curved(op)
    feed = nets.samples(model, 6)
    result = lo.quantize(model, feed, effort="fast", overrides=FINE)
    assert result.plan.tensors["z"] == Affine(2.0**11, 16)
    assert [n for n in result.graph.graph if n.op_type == "Requant"] == []
    taps = {name: array for name, array, _ in result.session().taps(feed)}
    node = next(n for n in result.graph.graph if ir.output_name(n) == "z")
    weight, bias = (ir.const_value(node.inputs[i]).astype(int) for i in (1, 2))
    down = round(math.log2(ir.get_attr(node, "scale_x") * ir.get_attr(node, "scale_w"))) - 11
    sums = taps["f"].astype(int) @ weight.T + bias
    want = [[sat(rsh(int(v), down), 16) for v in row] for row in sums]
    np.testing.assert_array_equal(taps["z"], want)
    np.testing.assert_array_equal(
        taps["s"], [[curve(op.lower(), "venus", v, 8) for v in row] for row in want]
    )
    result.save(tmp_path / "m.onnx")
    found = lo.check(tmp_path / "m.onnx")
    assert (found.packs, found.runs_right) == (True, True)
    again = lo.quantize(model, feed, effort="fast", plan=Plan.from_json(result.plan.to_json()))
    assert ir.to_bytes(again.graph) == ir.to_bytes(result.graph)


def test_best_effort_takes_16_bits_in_front_of_a_curve():
    """Where that gains, with a line in the report."""
    model = curved("Tanh")
    feed = nets.samples(model, 32)
    best = lo.quantize(model, feed, effort="best")
    assert best.plan.tensors["z"].bits == 16
    assert any(
        note.startswith("effort best: 16-bit inputs of activation functions: gain +")
        for note in best.report.notes
    )
    assert lo.quantize(model, feed).plan.tensors["z"].bits == 8


@pytest.mark.slow
def test_best_effort_leaves_the_users_width_in_front_of_a_curve():
    """As `test_best_effort_takes_what_gains` has it for outputs."""
    model = curved("Tanh")
    result = lo.quantize(
        model, nets.samples(model, 32), effort="best", overrides={"z": {"out_bits": 8}}
    )
    assert result.plan.tensors["z"].bits == 8


def test_16_bits_where_nothing_reads_them_right():
    """Only venus has them, only between a layer and a curve, and only where the sums are as fine as
    the table.
    """
    model = curved("Sigmoid")
    feed = nets.samples(model, 6)
    with pytest.raises(ConfigError, match="out_bits 16 on platform arcs"):
        lo.quantize(model, feed, platform="arcs", overrides=FINE)
    with pytest.raises(ConfigError, match="16 bits are only for the input of a sigmoid or tanh"):
        lo.quantize(model, feed, overrides={"y": {"out_bits": 16}})
    coarse = {**FINE, "f": {"scale": 2.0}}
    with pytest.raises(ConstraintError, match="needs at least 2\\^11; use 8 bits"):
        lo.quantize(model, feed, overrides=coarse)
