"""Embeddings whose index the host prepares: the chip's part begins at the index, before any
Quant.
"""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from lingeronnx import api
from lingeronnx.analysis.check.packer_file import check_packed
from lingeronnx.deployment.c_program import host_source
from lingeronnx.ir import ir
from lingeronnx.operators.chip_part import extract_chip_part
from lingeronnx.runtime.session import Session
from tests import nets
from tests.packer import judge

CHIPS = ("venus", "arcs", "venusA")
STEPS, WIDTH, HIDDEN = 8, 8, 6


def reader(*, cast, softmax):
    """A table of 256 rows, an LSTM, a fully connected layer; the index as it is fed, or cast from
    bytes.
    """
    net = nets.Net(STEPS, seed=3)
    kind = TensorProto.UINT8 if cast else TensorProto.INT64
    net.inputs = [helper.make_tensor_value_info("x", kind, ["N", STEPS])]
    index = net.node("Cast", "x", to=TensorProto.INT64) if cast else "x"

    def weight(*shape):
        return net.const((0.4 * net.rng.standard_normal(shape)).astype(np.float32))

    steps = net.node("Transpose", net.node("Gather", weight(256, WIDTH), index), perm=[1, 0, 2])
    weights = (weight(1, 4 * HIDDEN, WIDTH), weight(1, 4 * HIDDEN, HIDDEN), weight(1, 8 * HIDDEN))
    net.nodes.append(
        helper.make_node("LSTM", [steps, *weights], ["", "last"], "lstm", hidden_size=HIDDEN)
    )
    last = net.node("Squeeze", "last", net.const(np.array([0])))
    y = net.linear(last, (HIDDEN, 5), out=None if softmax else "y")
    return net.graph(net.node("Softmax", y, axis=1, out="y") if softmax else y)


def letters(cast, count=16):
    x = np.random.default_rng(0).integers(0, 256, (count, STEPS))
    return {"x": x.astype(np.uint8 if cast else np.int64)}


@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize("cast, softmax", ((True, False), (True, True), (False, True)))
def test_the_part_for_the_chip(platform, cast, softmax):
    """It is ready, as both judges say; its input is the index."""
    feed = letters(cast)
    result = api.quantize(
        reader(cast=cast, softmax=softmax), feed, platform=platform, effort="fast"
    )
    report = result.report
    assert report.chip_ready
    assert report.integer_macs == 1
    assert {node.op_type for node in report.host_part} == {
        *(["Cast"] if cast else []),
        *(["Softmax"] if softmax else []),
    }
    chip = extract_chip_part(result.graph, result.platform)
    (index,) = chip.graph.inputs
    assert (index.name == "x") == (not cast)
    assert index.dtype.name == "INT64"
    proto = ir.to_proto(chip)
    assert "Cast" not in {node.op_type for node in proto.graph.node}
    verdict = judge(proto, platform, report.packer_args)
    assert (verdict.problems, verdict.packs, verdict.right) == ([], True, True)
    checked = check_packed(ir.to_proto(result.graph))
    assert not checked.violations
    assert checked.choice.verdict.is_chip_ready


def test_host_and_chip_together(tmp_path, monkeypatch):
    """The files for a board compute the same as the whole graph, part by part."""
    monkeypatch.setattr(host_source, "explain_missing_generator", lambda: "no C is asked for")
    feed = letters(True)
    result = api.quantize(reader(cast=True, softmax=True), feed, platform="arcs", effort="fast")
    deployment = api.deploy(result, tmp_path / "board", feed, stem="reader", samples=1)
    tensors = {"x": feed["x"][:1]}
    for part in ("host_head", "chip", "host_tail"):
        file = deployment.folder / f"reader_{part}.onnx"
        session = (
            Session(file)
            if part == "chip"
            else ort.InferenceSession(file, providers=["CPUExecutionProvider"])
        )
        names = [value.name for value in session.get_outputs()]
        part_feed = {value.name: tensors[value.name] for value in session.get_inputs()}
        tensors |= dict(zip(names, session.run(names, part_feed), strict=True))
    np.testing.assert_array_equal(
        tensors["y"], Session(result.graph).run(["y"], {"x": feed["x"][:1]})[0]
    )
    assert (
        onnx.load(deployment.folder / "reader_chip.onnx").graph.input[0].type.tensor_type.elem_type
        == TensorProto.INT64
    )


def test_a_float_operator_on_integers_is_still_named():
    """A Cast of an integer layer's output stays a problem, unlike a Cast of an input."""
    feed = letters(False)
    result = api.quantize(reader(cast=False, softmax=False), feed, platform="arcs", effort="fast")
    proto = ir.to_proto(result.graph)
    (dequant,) = [node for node in proto.graph.node if node.op_type == "Dequant"]
    dequant.CopyFrom(
        helper.make_node("Cast", dequant.input, dequant.output, "cast", to=TensorProto.FLOAT)
    )
    assert any(
        "a float operator reads real numbers" in str(v) for v in check_packed(proto).violations
    )
