"""A rewrite that fails, or after which an output is another one: the graph without it is used, and
a line says so.
"""

from __future__ import annotations

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import InternalError, ModelError
from lingeronnx.ir import ir
from lingeronnx.quantization import normalize as passes
from lingeronnx.quantization.prepare import rewriter
from lingeronnx.quantization.steps import scale_assignment
from tests import nets


def _wrong(model):
    """Change what the model computes."""
    for node in model.graph:
        if node.op_type == "Relu":
            node.op_type = "Tanh"
            return 1
    return 0


def _failing(model):
    """Fail on the way."""
    next(iter(model.graph)).op_type = "Tanh"
    raise KeyError("k")


def _refused(model):
    """Make what onnxruntime cannot open."""
    if any(node.op_type == "NoSuch" for node in model.graph):
        return 0
    next(node for node in model.graph if node.op_type == "Relu").op_type = "NoSuch"
    return 1


def _with(monkeypatch, step, run):
    changed = tuple(
        p._replace(run=run, operators=()) if p.name == step else p
        for p in passes.NORMALIZATION_PASSES
    )
    monkeypatch.setattr(passes, "NORMALIZATION_PASSES", changed)


@pytest.mark.parametrize(
    ("run", "words"),
    (
        (_wrong, "first at node Relu_"),
        (_failing, "it failed: 'k'"),
        (_refused, "onnxruntime cannot run"),
    ),
)
def test_a_pass_that_breaks_the_law_is_left_out(run, words, monkeypatch):
    monkeypatch.setenv("LINGERONNX_STRICT", "0")
    _with(monkeypatch, "split", run)
    found = nets.quantized(nets.plain(), platform="venus", effort="fast")
    (line,) = [note for note in found.report.notes if "is left out" in note]
    assert line.startswith("the rewrite split is left out")
    assert words in line
    plain = nets.quantized(nets.plain(), platform="venus", effort="fast")
    assert found.report.outputs["y"]["sqnr"] == pytest.approx(plain.report.outputs["y"]["sqnr"])


def test_two_wrong_passes_are_both_left_out(monkeypatch):
    monkeypatch.setenv("LINGERONNX_STRICT", "0")
    _with(monkeypatch, "split", _wrong)
    _with(monkeypatch, "curves", _wrong)
    notes = nets.quantized(nets.plain(), platform="generic", effort="fast").report.notes
    assert [
        name
        for name in ("split", "curves")
        if any(f"the rewrite {name} is left out" in n for n in notes)
    ]
    assert sum("is left out" in note for note in notes) == 2


def test_our_tests_hear_of_it(monkeypatch):
    _with(monkeypatch, "split", _wrong)
    with pytest.raises(InternalError, match="normalization changed output 'y'"):
        nets.quantized(nets.plain(), platform="venus")


def test_what_others_need_is_not_left_out(monkeypatch):
    monkeypatch.setenv("LINGERONNX_STRICT", "0")
    _with(monkeypatch, "clean", _wrong)
    with pytest.raises(InternalError, match="normalization changed output 'y'"):
        nets.quantized(nets.plain(), platform="venus")


def test_fitting_is_left_out(monkeypatch):
    monkeypatch.setenv("LINGERONNX_STRICT", "0")
    monkeypatch.setattr(rewriter, "legalize_graph", lambda model, row, keep: [0] * _wrong(model))
    notes = nets.quantized(nets.plain(), platform="venus", effort="fast").report.notes
    assert any(note.startswith("the rewrite fit is left out") for note in notes)


def test_factors_that_break_the_law_are_left_out(monkeypatch):
    monkeypatch.setenv("LINGERONNX_STRICT", "0")
    real = scale_assignment.fit_range_factors
    wrong = {"on": True}

    def doubled(parts, *args, **kwargs):
        if kwargs["optimize"]:
            wrong["seen"] = True
            weight = next(n for n in parts.graph.graph if n.op_type == "Conv")
            ir.set_constant_input(
                parts.graph, weight, 1, 2 * ir.const_value(weight.inputs[1]), "twice"
            )
        return real(parts, *args, **kwargs)

    monkeypatch.setattr(scale_assignment, "fit_range_factors", doubled)
    found = nets.quantized(nets.plain(), platform="venus")
    assert wrong["seen"]
    assert any("ranges into weights is left out" in note for note in found.report.notes)
    assert not any(len(t.factor) > 1 for t in found.plan.transforms.values())


def test_random_numbers_are_the_models_own(monkeypatch):
    monkeypatch.setenv("LINGERONNX_STRICT", "0")
    net = nets.Net(3, 8, 8)
    noise = net.node("RandomNormalLike", net.conv("x", (4, 3, 3, 3)))
    with pytest.raises(ModelError, match="output 'y' differs between runs"):
        lo.quantize(
            net.graph(net.conv(noise, (4, 4, 3, 3), out="y")),
            {"x": np.ones((4, 3, 8, 8), np.float32)},
        )
