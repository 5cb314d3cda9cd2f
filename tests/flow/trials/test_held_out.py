"""Figures on samples that a trial did not use, and the calibrator that is chosen by them."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.api import quantization
from lingeronnx.ir import ir
from lingeronnx.quantization.scales import scale_policy, scales
from lingeronnx.quantization.trials import held_out
from lingeronnx.quantization.trials.requirements import TrialRequirement
from lingeronnx.quantization.trials.stage_ablation import StageAblation
from lingeronnx.runtime.data import Data, HoldOut, InputSpec
from tests.nets import Net
from tests.passes.helpers import proto, rand

MEASURED_ON = "held back in a trial run"


def _model() -> ir.Model:
    """Two layers; the weights of the first have as many inputs as there are samples."""
    text = "g (float[N,32] x) => (float[N,8] y) { a = MatMul(x, w) r = Relu(a) y = MatMul(r, v) }"
    return ir.from_proto(proto(text, w=rand(32, 32, seed=1), v=rand(32, 8, seed=2)))


def _samples(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, (count, 32)).astype(np.float32)


def _fresh_sqnr(model: ir.Model, result: lo.QuantizedModel, x: np.ndarray) -> float:
    expected = lo.Session(model).run(None, {"x": x})[0]
    actual = result.session().run(None, {"x": x})[0]
    return 10 * float(np.log10(np.square(expected).sum() / np.square(expected - actual).sum()))


@pytest.mark.parametrize(
    ("count", "settings", "measured_on"),
    [
        (64, {}, "on 16 samples held back in a trial run"),
        (500, {}, "on 64 samples held back in a trial run"),
        (15, {}, "on the calibration data (optimistic)"),
        (64, {"effort": "fast"}, "on the calibration data (optimistic)"),
        (640, {}, "on 16 samples held back from calibration"),
    ],
)
def test_where_figures_come_from(count, settings, measured_on):
    report = lo.quantize(_model(), _samples(count, 0), platform="generic", **settings).report
    assert report.measured_on == measured_on


def test_a_given_plan_may_have_seen_all_samples():
    x = _samples(64, 0)
    result = lo.quantize(_model(), x, platform="generic")
    mode = result.plan.mode
    again = lo.quantize(_model(), x, platform="generic", plan=result.plan, mode=mode)
    assert again.report.measured_on == "on the calibration data (optimistic)"


def test_the_trial_is_closer_to_fresh_data_and_changes_nothing(monkeypatch):
    model, x = _model(), _samples(24, 0)
    result = lo.quantize(model, x, platform="generic", calibrator="mse")
    monkeypatch.setattr(quantization, "measure_on_held_out", lambda best, *_: best)
    fitted = lo.quantize(model, x, platform="generic", calibrator="mse")
    assert ir.to_bytes(result.graph) == ir.to_bytes(fitted.graph)
    shown, flattering = (r.report.outputs["y"]["sqnr"] for r in (result, fitted))
    fresh = _fresh_sqnr(model, result, _samples(512, 99))
    assert flattering > fresh + 1
    assert abs(shown - fresh) < abs(flattering - fresh)


def test_the_trial_does_not_see_the_held_out_samples(monkeypatch):
    """Samples that are left out may be anything: the trial is calibrated alike."""
    planned = []
    plan_alike = held_out._plan_alike

    def record(reduced, old):
        planned.append(plan_alike(reduced, old))
        return planned[-1]

    monkeypatch.setattr(held_out, "_plan_alike", record)
    x = _samples(64, 0)
    is_held_out = np.arange(64) % 8 >= 6
    for factor in (1, 50):
        lo.quantize(
            _model(),
            np.where(is_held_out[:, None], x * factor, x),
            platform="generic",
            calibrator="max",
        )
    assert planned[0].ranges["x"] == planned[1].ranges["x"]
    assert planned[0].plan.tensors["x"] == planned[1].plan.tensors["x"]


def test_a_clearly_better_calibrator_is_chosen(monkeypatch):
    """With a default calibrator that is too coarse, another is measured to be better."""
    model, x = _model(), rand(64, 32, seed=0)
    choose_scale = scale_policy.choose_symmetric_scale

    def choose_coarse(stats, bits, *, calibrator, **options):
        scale = choose_scale(stats, bits, calibrator=calibrator, **options)
        return scale / 32 if calibrator == "mse" else scale

    monkeypatch.setattr(scale_policy, "choose_symmetric_scale", choose_coarse)
    monkeypatch.setattr(scales, "_CHANNEL_SCALES", OrderedDict())
    chosen = lo.quantize(model, x, platform="generic", activations="symmetric")
    (note,) = [note for note in chosen.report.notes if "instead of mse" in note]
    assert MEASURED_ON in note
    assert chosen.plan.settings["calibrator"] in ("max", "percentile")
    kept = lo.quantize(model, x, platform="generic", activations="symmetric", calibrator="mse")
    assert "calibrator" not in kept.plan.settings
    fresh = rand(512, 32, seed=99)
    assert _fresh_sqnr(model, chosen, fresh) > _fresh_sqnr(model, kept, fresh) + 0.5


@pytest.mark.parametrize("damage", [0.3, 0.0])
def test_refinement_that_is_clearly_worse_on_held_out_samples_is_dropped(monkeypatch, damage):
    """Refinement that misleads: its weights fit the samples, which the ablation compares on."""

    def refine(planned, *_, **__):
        graph = planned.graph.clone()
        for name, value in graph.graph.initializers.items():
            weights = value.const_value.numpy()
            noise = rand(*weights.shape, seed=5) * weights.std() * damage
            graph.graph.initializers[name].const_value = ir.tensor(weights + noise + 1e-6)
        return graph

    monkeypatch.setattr("lingeronnx.quantization.pipeline.refine_weights", refine)
    monkeypatch.setattr(held_out, "refine_weights", refine)
    never = TrialRequirement("nothing", lambda _: False)
    monkeypatch.setattr(StageAblation, "requirements", [never])
    model, x = _model(), rand(64, 32, seed=0)
    result = lo.quantize(model, x, platform="generic")
    notes = [note for note in result.report.notes if "refinement was disabled" in note]
    fresh = rand(512, 32, seed=99)
    if damage:
        (note,) = notes
        assert MEASURED_ON in note
        assert _fresh_sqnr(model, result, fresh) > 25
        assert result.report.outputs["y"]["sqnr"] > 25
    else:
        assert not notes


def test_hold_out_of_data():
    """The rule selects samples, whatever the batch size, and the original data keep theirs."""
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    data = Data(x, [InputSpec("x", (None, 2), np.dtype(np.float32))])
    reduced = data.with_hold_out(HoldOut(period=8, count=2, first_index=0))
    for size in (1, 3, 20):
        calibration = np.concatenate([feeds["x"] for feeds, _ in reduced.batches(size)])
        assert (calibration[:, 0] // 2 % 8 < 6).all()
        assert len(calibration) == 16
    held = np.concatenate([feeds["x"] for feeds in reduced.held_out_batches()])
    np.testing.assert_array_equal(held[:, 0] // 2, [6, 7, 14, 15])
    np.testing.assert_array_equal(reduced.first(7)["x"][-1], x[8])
    beyond = data.with_hold_out(HoldOut(period=8, count=2, first_index=0, end_index=8))
    held = np.concatenate([feeds["x"] for feeds in beyond.held_out_batches()])
    np.testing.assert_array_equal(held[:, 0] // 2, [6, 7, *range(8, 20)])
    assert data.held_out_batches() == []
    assert sum(len(feeds["x"]) for feeds, _ in data.batches(7)) == 20


def test_held_out_samples_without_a_value_of_an_output_show_nothing():
    """A detector's output that is 0 on all held-out samples keeps the figure of the others."""
    net = Net(4, 8, 8)
    weight = np.zeros((1, 4, 1, 1), np.float32)
    weight[0, 0] = 1
    bias = np.array([-1.0], np.float32)
    net.node("Relu", net.node("Conv", "x", net.const(weight), net.const(bias)), out="y")
    x = np.random.default_rng(0).uniform(-0.9, 0.9, (64, 4, 8, 8)).astype(np.float32)
    x[::16, 0, 3, 3] = 1.2  # not in the last two of every eight samples
    report = lo.quantize(net.graph("y"), {"x": x}, platform="venus").report
    assert report.measured_on == "on the calibration data (optimistic)"
    assert np.isfinite(report.outputs["y"]["sqnr"])
