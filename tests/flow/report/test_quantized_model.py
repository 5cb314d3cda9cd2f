"""What `QuantizedModel.write` writes: the graph, the part for the packer, the plan, and the line
that packs them.
"""

import copy
import pickle
import shlex
from dataclasses import replace

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.interchange.convert import convert
from lingeronnx.ir import ir
from lingeronnx.quantization.report.quantized_model import DeferredReport
from tests import nets

X = np.random.default_rng(0).standard_normal((40, 3, 8, 8)).astype(np.float32)


def net(softmax=True):
    """A convolution, of names that no packer takes, and a Softmax that the host computes."""
    made = nets.Net(3, 8, 8)
    made.node("Relu", made.conv("x", (4, 3, 3, 3), pads=[1] * 4), out="g" if softmax else "y")
    if softmax:
        made.node("Softmax", "g", out="y", axis=1)
    model = made.graph("y")
    next(node for node in model.graph if node.op_type == "Conv").outputs[0].name = "Scale@1"
    return model


def quantized(platform="arcs", softmax=True, **settings):
    return lo.quantize(net(softmax), {"x": X}, platform=platform, effort="fast", **settings)


def line(done):
    """Return the packer's line as {option: value} of its files."""
    words = shlex.split(done.report.packer)
    return {option: words[words.index(option) + 1] for option in ("-g", "-o")}


def test_the_part_stands_beside_and_the_line_names_it(tmp_path):
    """All files, and nothing else; the packer takes no Softmax, so its line is about the part."""
    result = quantized()
    done = result.write(tmp_path / "net.onnx", plan=tmp_path / "plan.json")
    assert (done.graph, done.chip, done.plan) == tuple(
        tmp_path / n for n in ("net.onnx", "net_chip.onnx", "plan.json")
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "net_chip.onnx", "plan.json"]
    assert line(done) == {
        "-g": str(tmp_path / "net_chip.onnx"),
        "-o": str(tmp_path / "net_chip.pkg"),
    }
    kinds = [
        [node.op_type for node in onnx.load(path).graph.node] for path in (done.graph, done.chip)
    ]
    assert kinds[0] == [*kinds[1], "Softmax"]
    assert lo.Plan.from_json(done.plan.read_text()) == result.plan


def test_the_line_before_anything_is_written():
    """It speaks of the files that `write` would write by default."""
    assert line(type("", (), {"report": quantized().report})) == {
        "-g": "model_quant_chip.onnx",
        "-o": "model_quant_chip.pkg",
    }
    assert (
        line(type("", (), {"report": quantized(softmax=False).report}))["-g"] == "model_quant.onnx"
    )


def test_without_a_host_part_there_is_one_file(tmp_path):
    """The graph itself is packed."""
    done = quantized(softmax=False).write(tmp_path / "net.onnx")
    assert (done.chip, done.plan) == (None, None)
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    assert line(done)["-g"] == str(tmp_path / "net.onnx")


def test_generic_has_no_line(tmp_path):
    """Nobody packs it; names stay."""
    done = quantized("generic").write(tmp_path / "net.onnx")
    assert (done.chip, done.report.packer) == (None, "")
    assert "Scale@1" in {v.name for v in ir.iter_values(ir.load(done.graph))}


@pytest.mark.parametrize("to", ("thinker", "linger"))
def test_both_files_have_the_same_names(tmp_path, to):
    """In either generation; what is written alone is the same."""
    result = quantized()
    done = result.write(tmp_path / "net.onnx", to)
    whole, part = (ir.load(path) for path in (done.graph, done.chip))
    names = [{str(v.name) for v in ir.iter_values(graph)} for graph in (whole, part)]
    assert names[1] <= names[0]
    assert not any("@" in name or name.startswith("Scale") for name in names[0])
    result.save(tmp_path / "alone.onnx", to)
    result.save_chip(tmp_path / "part.onnx", to)
    assert (tmp_path / "alone.onnx").read_bytes() == done.graph.read_bytes()
    assert (tmp_path / "part.onnx").read_bytes() == done.chip.read_bytes()


def test_what_conversion_changes_is_a_note(tmp_path):
    """Once, and only of what was written; the model's own report stays."""
    result = quantized()
    done = result.write(tmp_path / "net.onnx", "linger")
    more = convert(result.graph, "linger").notes
    assert more
    assert list(done.report.notes) == [*result.report.notes, *more]
    assert done.report.packer == ""  # which reads generation 1 alone


def test_what_cannot_be_converted_writes_nothing(tmp_path):
    """Not even the plan."""
    with pytest.raises(lo.ModelError, match="supports chips only"):
        quantized("generic").write(tmp_path / "net.onnx", "linger", plan=tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


def test_quantize_measures_what_it_is_given(tmp_path):
    """The accuracy of the report is that of `evaluate` on the written file; values beyond
    calibration are noted.
    """
    onnx.save(ir.to_proto(net()), tmp_path / "float.onnx")
    data = {"x": 8 * X[:8]}
    result = quantized(eval_data=data, metric="sqnr")
    result.save(tmp_path / "net.onnx")
    found = lo.evaluate(
        tmp_path / "net.onnx", data, metric="sqnr", baseline=tmp_path / "float.onnx"
    )
    assert result.report.accuracy == found.accuracy
    assert any("exceed the calibrated range" in note for note in result.report.notes)


def test_parts_of_an_earlier_run_are_told(tmp_path):
    """They stay, since nobody knows whose they are; those that are written anew, and other names,
    are not named.
    """
    for name in (
        "net_chip.onnx",
        "net_chip2.onnx",
        "net_chip12.onnx",
        "net_chips.onnx",
        "other_chip1.onnx",
    ):
        (tmp_path / name).write_bytes(b"old")
    done = quantized().write(tmp_path / "net.onnx")
    told = [note for note in done.report.notes if "from an earlier run" in note]
    (note,) = told
    assert note == (
        "net_chip12.onnx, net_chip2.onnx next to net.onnx: left over from an earlier run, not part "
        "of this graph"
    )
    assert (tmp_path / "net_chip2.onnx").read_bytes() == b"old"
    clean = quantized().write(tmp_path / "clean.onnx")
    assert not [note for note in clean.report.notes if "from an earlier run" in note]


def test_a_report_is_copied_and_pickled_before_it_is_read():
    """What the report is built from cannot be pickled: the report is built instead."""
    result = quantized()
    loaded = pickle.loads(pickle.dumps(result.deferred_report))
    assert loaded.read().to_dict() == result.report.to_dict()
    copied = copy.deepcopy(quantized().deferred_report)
    assert copied.read().to_dict() == result.report.to_dict()


def test_the_report_is_built_when_it_is_first_read():
    """Once, whatever the copy that reads it, and with what a caller puts in its place."""
    built = []
    result = quantized()
    source = DeferredReport(lambda: built.append(1) or result.report)
    deferred = replace(result, deferred_report=source)
    assert not built
    other = replace(deferred, steps=())
    assert other.report is deferred.report is result.report
    assert built == [1]
    noted = other.with_report(replace(other.report, notes=("a note",)))
    assert noted.report.notes == ("a note",)
    assert "a note" not in other.report.notes


def test_samples_are_counted_where_the_inputs_have_them():
    """The output has its steps in front of the samples."""
    net = nets.Net(5, 4, seed=1)
    net.node(
        "Transpose",
        net.node("MatMul", "x", net.const(np.eye(4, 3, dtype=np.float32))),
        perm=[1, 0, 2],
        out="y",
    )
    model = net.graph("y")
    feed = nets.samples(model, 12)
    result = lo.quantize(model, feed, platform="generic", effort="fast")
    assert lo.evaluate(result, feed, baseline=model).samples == 12
