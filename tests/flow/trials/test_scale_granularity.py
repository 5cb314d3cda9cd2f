"""Where the usual scales are far off, and the target has finer ones, these are tried, and told
of.
"""

import pytest

import lingeronnx as lo
from lingeronnx.quantization import pipeline
from lingeronnx.quantization.methods.refine import RefinementOptions
from lingeronnx.quantization.report.candidate import build_refined_candidate
from lingeronnx.quantization.steps import scale_assignment
from lingeronnx.quantization.trials import Criterion, scale_granularity
from lingeronnx.quantization.trials.scale_granularity import FinerGranularity
from tests import nets
from tests.flow.trials.sqnr_limits import set_sqnr_limit


@pytest.fixture
def far(monkeypatch):
    """Call every output far off."""
    set_sqnr_limit(monkeypatch, FinerGranularity, 1000.0)
    monkeypatch.setattr(scale_granularity, "_MAX_SQNR_DB", 1000.0)


@pytest.fixture(scope="module")
def usual():
    """What the usual scales give."""
    return made(weight_scales="tensor", mode="q-value")


def made(**settings):
    model = nets.shortcut()
    return lo.quantize(model, nets.samples(model, 32), **{"platform": "generic", **settings})


def told(result):
    return [line for line in result.report.notes if "to keep the default scales" in line]


def least(result):
    return min(output["sqnr"] for output in result.report.outputs.values())


def test_they_are_kept_where_they_are_clearly_better(far, usual):
    found = made()
    (line,) = told(found)
    assert line.startswith(
        "using one weight scale per output channel, scales that are not powers of two and zero "
        "points: "
    )
    assert line.endswith(
        "; to keep the default scales, pass --weight-scales tensor --mode q-value --activations "
        "symmetric"
    )
    assert not told(usual)
    assert least(found) >= least(usual) + FinerGranularity.criterion.mean_db
    assert any(not q.single for q in found.plan.tensors.values())
    assert not all(q.power_of_two for q in found.plan.tensors.values())
    assert any(q.shifted for q in found.plan.tensors.values())
    assert all(q.single and q.power_of_two for q in usual.plan.tensors.values())


def test_the_note_on_too_few_samples_stays_under_finer_scales(far):
    """No scales make them more."""
    model = nets.shortcut()
    found = lo.quantize(model, nets.samples(model, 8), platform="generic", effort="best")
    assert told(found)
    assert "effort best: 8 calibration samples are too few to select methods" in found.report.notes


def test_zero_points_gain_behind_relus(far, usual):
    """A range around 0 leaves half of the integers unused there."""
    settings = {"weight_scales": "channel", "mode": "max-value"}
    symmetric, asymmetric = made(**settings, activations="symmetric"), made(**settings)
    assert least(asymmetric) > least(symmetric) + 2
    (line,) = told(asymmetric)
    assert line.startswith("using zero points: ")
    assert not told(symmetric)


def test_weights_are_refined_once_for_all_finer_settings(far, monkeypatch):
    refined = []
    build = scale_granularity.build_refined_candidate
    monkeypatch.setattr(
        scale_granularity,
        "build_refined_candidate",
        lambda planned, *args: refined.append(planned.prepared.conf) or build(planned, *args),
    )
    assert told(made())
    (conf,) = refined
    assert (conf.weight_scales, conf.mode, conf.activations) == (
        "channel",
        "max-value",
        "asymmetric",
    )


def test_range_transforms_that_lose_are_left_out_before_refinement(far, monkeypatch):
    monkeypatch.setattr(
        scale_assignment,
        "find_costly_clipping",
        lambda parts, *args: dict.fromkeys(parts.activations[2:4], 2.0**12),
    )
    (note,) = (line for line in made().report.notes if "range transforms were disabled" in line)
    assert note.endswith("on the calibration data (optimistic)")


def test_what_is_not_clearly_better_is_not_kept(far, usual, monkeypatch):
    monkeypatch.setattr(FinerGranularity, "criterion", Criterion(mean_db=1000.0))
    found = made()
    assert found.plan == usual.plan
    assert not told(found)


@pytest.mark.parametrize(
    "named", ({"mode": "q-value"}, {"weight_scales": "tensor"}, {"activations": "symmetric"})
)
def test_a_setting_that_was_named_stays(far, named):
    ((name, value),) = named.items()
    found = made(**named)
    if name == "mode":
        assert found.plan.mode == value
        assert not any(q.shifted for q in found.plan.tensors.values())
    elif name == "activations":
        assert not any(q.shifted for q in found.plan.tensors.values())
    else:
        assert all(q.single for q in found.plan.tensors.values())
    option = "--" + name.replace("_", "-")
    assert all(option not in line for line in told(found))


@pytest.mark.parametrize("settings", ({"effort": "fast"}, {"platform": "venus"}))
def test_nothing_is_tried_without_effort_or_on_chips(far, settings):
    found = made(**settings)
    assert all(q.single and q.power_of_two for q in found.plan.tensors.values())


def test_what_is_near_stays():
    found = made()
    assert least(found) >= scale_granularity._MAX_SQNR_DB
    assert all(q.single and q.power_of_two for q in found.plan.tensors.values())


def test_a_plan_that_is_given_stays(far, usual):
    plan, model = usual.plan, nets.shortcut()
    assert lo.quantize(model, nets.samples(model, 32), platform="generic", plan=plan).plan == plan


@pytest.mark.parametrize("has_box", [True, False])
def test_logits_decide_where_a_softmax_has_too_few_rows(far, has_box):
    """32 samples are too few for probabilities. The logits and the other output are compared.

    Without another output that is far, nothing is tried.
    """
    net = nets.Net(3, 8, 8, seed=5)
    x = net.node("Relu", net.conv("x", (8, 3, 3, 3)))
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    net.linear(x, (8, 4), out="box")
    net.node("Softmax", net.linear(x, (8, 4), out="logits"), axis=1, out="p")
    model = net.graph("box", "p") if has_box else net.graph("p")
    data = nets.samples(model, 32)
    found = lo.quantize(model, data, platform="generic")
    assert bool(told(found)) == has_box
    assert has_box != all(q.single and q.power_of_two for q in found.plan.tensors.values())


def test_methods_of_refinement_stay_under_finer_scales(far, monkeypatch):
    """They were selected before the scales, and their notes still hold; those on scales do not."""
    kept = RefinementOptions(coordinate_descent=True)

    class Selected:
        name = "methods"
        requirements = ()

        def propose(self, best, log):
            yield from ()
            candidate = build_refined_candidate(best.planned, None, kept)
            return candidate.with_notes(["an octave finer", "by descent"], ["by descent"])

    used = []

    def build(planned, progress=None, options=None, **others):
        used.append(options)
        return build_refined_candidate(planned, progress, options, **others)

    monkeypatch.setattr(pipeline, "TRIALS", {**pipeline.TRIALS, "methods": Selected})
    monkeypatch.setattr(scale_granularity, "build_refined_candidate", build)
    found = made(effort="best")
    assert told(found)
    assert used
    assert set(used) == {kept}
    assert "by descent" in found.report.notes
    assert "an octave finer" not in found.report.notes
