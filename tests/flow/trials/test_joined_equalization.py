"""Channels across a LeakyRelu, PRelu or Concat are equalized if the outputs come closer."""

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConstraintError
from lingeronnx.quantization.trials import Criterion, joined_equalization
from lingeronnx.quantization.trials.joined_equalization import JoinedEqualization
from tests import nets
from tests.flow.trials.sqnr_limits import set_sqnr_limit

SPREAD = 2.0 ** np.linspace(-1.5, 1.5, 8)  # too little for the prediction alone


@pytest.fixture
def far(monkeypatch):
    """Try it for outputs at any distance."""
    set_sqnr_limit(monkeypatch, JoinedEqualization, 1000.0)


def uneven(function="LeakyRelu"):
    """Two layers whose channels between them differ, with `function` between the layers."""
    net = nets.Net(3, 8, 8, seed=3)
    rows, columns = SPREAD[:, None, None, None], SPREAD[None, :, None, None]
    first = net.rng.normal(size=(8, 3, 3, 3)) * rows
    second = net.rng.normal(size=(6, 8, 3, 3)) / columns
    hidden = net.node("Conv", "x", net.const(first.astype(np.float32)))
    if function == "Concat":
        halves = [
            net.node("Relu", net.node("Conv", "x", net.const(half.astype(np.float32))))
            for half in (first[:4], first[4:])
        ]
        hidden = net.node("Concat", *halves, axis=1)
    elif function == "PRelu":
        slopes = np.full((8, 1, 1), 0.25, np.float32)
        hidden = net.node("PRelu", hidden, net.const(slopes))
    else:
        hidden = net.node(function, hidden)
    net.node("Conv", hidden, net.const(second.astype(np.float32)), out="y")
    return net.graph("y")


def quantize(model, **settings):
    return lo.quantize(model, nets.samples(model, 48), **{"platform": "venus", **settings})


def find_notes(result):
    return [note for note in result.report.notes if note.startswith("channels equalized across")]


def lowest_sqnr(result):
    return min(output["sqnr"] for output in result.report.outputs.values())


@pytest.mark.parametrize("function", ["LeakyRelu", "PRelu", "Concat"])
def test_it_is_kept_if_it_is_clearly_better(far, function, monkeypatch):
    found = quantize(uneven(function))
    assert len(find_notes(found)) == 1
    set_sqnr_limit(monkeypatch, JoinedEqualization, -1000.0)
    usual = quantize(uneven(function))
    assert not find_notes(usual)
    assert lowest_sqnr(found) >= lowest_sqnr(usual) + JoinedEqualization.criterion.mean_db


@pytest.mark.parametrize("name", ["criterion", "draft_criterion"])
def test_it_is_dropped_if_it_is_not_clearly_better(far, name, monkeypatch):
    """With the criterion of drafts, no weights are refined for it."""
    monkeypatch.setattr(JoinedEqualization, name, Criterion(mean_db=1000.0))
    found = quantize(uneven())
    assert not find_notes(found)
    (step,) = [step for step in found.steps if step.name == "joined"]
    assert [verdict.accepted for verdict in step.verdicts] == (
        [True, False] if name == "criterion" else [False]
    )


def test_a_scale_that_the_target_lacks_ends_the_trial_alone(far, monkeypatch):
    def refuse(*_):
        raise ConstraintError("it needs a scale of 2^-9")

    monkeypatch.setattr(joined_equalization, "assign_scales", refuse)
    assert not find_notes(quantize(uneven()))


def test_it_is_not_tried_without_such_channels_or_far_outputs(monkeypatch):
    near = quantize(uneven())
    set_sqnr_limit(monkeypatch, JoinedEqualization, 1000.0)
    plain = quantize(uneven("Relu"))
    fast = quantize(uneven(), effort="fast")
    for result in (near, plain, fast):
        assert not find_notes(result)


def test_the_trial_run_on_held_out_samples_is_equalized_too(far, monkeypatch):
    """Its figure is that of the model that is returned, within what fewer samples cost."""
    found = quantize(uneven("PRelu"))
    assert find_notes(found)
    assert "held back" in found.report.measured_on
    set_sqnr_limit(monkeypatch, JoinedEqualization, -1000.0)
    assert lowest_sqnr(found) > lowest_sqnr(quantize(uneven("PRelu")))
