"""A stage that takes the outputs away from the float model's is taken back, and the report says
so.
"""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Plan
from lingeronnx.quantization import pipeline, refine_weights
from lingeronnx.quantization.report import describe
from lingeronnx.quantization.steps import scale_assignment
from lingeronnx.quantization.trials import stage_ablation
from tests.flow.methods.test_refine import net, smooth

CALIB = {"x": smooth(24, 0)}


@pytest.fixture(scope="module")
def good():
    """What all stages give."""
    return quantize(net(), CALIB)


def _sqnr(result):
    return result.report.outputs["y"]["sqnr"]


def _told(result, words):
    return [note for note in result.report.notes if words in note]


def _spoiled(planned, *args, **kwargs):
    """Return what refinement would give if it put every bias off."""
    copy = planned.graph.clone()
    for node in copy.graph:
        if node.op_type == "Conv":
            ir.set_constant_input(
                copy, node, 2, ir.const_value(node.inputs[2]) + np.float32(0.5), "spoiled"
            )
    return copy


def test_stages_that_gain_stay(good):
    assert _sqnr(good) > _sqnr(quantize(net(), CALIB, effort="fast"))
    assert not _told(good, "taken back")
    assert not _told(good, "behind Relus")


def test_refinement_that_loses_is_taken_back(good, monkeypatch):
    monkeypatch.setattr(pipeline, "refine_weights", _spoiled)
    monkeypatch.setattr("lingeronnx.quantization.report.candidate.refine_weights", _spoiled)
    result = quantize(net(), CALIB)
    (note,) = _told(result, "weight and bias refinement was disabled")
    assert note.endswith("on the calibration data (optimistic)")
    assert _sqnr(good) - 10 < _sqnr(result) < _sqnr(good) + 1  # of a trial with fewer samples


def test_biases_alone_need_no_second_look_at_the_chip(monkeypatch):
    """Law: no limit of a chip depends on weights or biases, so that only the kept graph is tiled
    and packed.
    """
    monkeypatch.setattr(pipeline, "refine_weights", _spoiled)
    built = []
    build_report = describe.build_report
    monkeypatch.setattr(
        describe, "build_report", lambda *args: built.append(args) or build_report(*args)
    )
    result = quantize(net(), CALIB)
    assert _told(result, "biases match the means after Relus")
    assert result.report.chip_ready
    assert len(built) == 1


def test_a_choice_that_the_chip_does_not_run_is_undone(monkeypatch):
    monkeypatch.setattr(pipeline, "refine_weights", _spoiled)
    monkeypatch.setattr("lingeronnx.quantization.report.candidate.refine_weights", _spoiled)
    monkeypatch.setattr(stage_ablation, "keeps_chip", lambda old, new: old is new)
    result = quantize(net(), CALIB)
    assert not _told(result, "was disabled")


def test_a_given_plan_makes_the_same_graph(monkeypatch):
    """What was taken back is so under the plan that came of it, too."""
    monkeypatch.setattr(pipeline, "refine_weights", _spoiled)
    monkeypatch.setattr("lingeronnx.quantization.report.candidate.refine_weights", _spoiled)
    result = quantize(net(), CALIB)
    again = quantize(net(), CALIB, plan=Plan.from_json(result.plan.to_json()))
    assert _told(again, "weight and bias refinement was disabled")
    assert ir.to_bytes(again.graph) == ir.to_bytes(result.graph)


@pytest.mark.parametrize("platform", ("venus", "generic"))
def test_ranges_that_lose_are_taken_back(monkeypatch, platform):
    """The tensor that a wrong choice cuts to nothing has the scale that it has without effort."""
    monkeypatch.setattr(
        scale_assignment,
        "find_costly_clipping",
        lambda parts, *args: dict.fromkeys(parts.activations[2:4], 2.0**12),
    )
    usual = {"mode": "q-value", "weight_scales": "tensor"}
    result = quantize(net(), CALIB, platform=platform, **usual)
    fast = quantize(net(), CALIB, platform=platform, effort="fast")
    assert _told(result, "range transforms were disabled")
    assert result.plan.tensors == fast.plan.tensors
    assert _sqnr(result) > _sqnr(fast) - 0.2


def test_random_inputs_are_no_evidence(monkeypatch):
    monkeypatch.setattr(pipeline, "refine_weights", _spoiled)
    assert not _told(quantize(net()), "taken back")


def test_refined_weights_stay_without_biases_that_lose(good, monkeypatch):
    """Corrected biases that do harm are dropped, and the weights remain refined."""

    def refine_and_spoil(planned, *args, **kwargs):
        copy = refine_weights(planned, *args, **kwargs)
        for node in copy.graph:
            if node.op_type == "Conv":
                bias = ir.const_value(node.inputs[2])
                ir.set_constant_input(copy, node, 2, bias + np.float32(0.5), "spoiled")
        return copy

    monkeypatch.setattr(pipeline, "refine_weights", refine_and_spoil)
    monkeypatch.setattr("lingeronnx.quantization.report.candidate.refine_weights", refine_and_spoil)
    result = quantize(net(), CALIB)
    assert _told(result, "biases were not corrected")
    assert not _told(result, "refinement was disabled")
    assert _sqnr(result) > _sqnr(quantize(net(), CALIB, effort="fast"))
    assert _sqnr(result) > _sqnr(good) - 3
