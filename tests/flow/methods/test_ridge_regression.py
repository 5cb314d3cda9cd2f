"""Weights aimed at the float model's outputs, and the effort that does it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx import api
from lingeronnx.quantization.methods.ridge_regression import fit_weights_to_outputs
from tests import nets
from tests.case_selection import limit_examples, mark_rest_slow

HALF = np.arange(400) % 2 == 0


def error(weight, rows, values, floor=-np.inf):
    """Oracle: the squared error of centred outputs, element by element."""
    total, x, y = 0.0, rows - rows.mean(axis=0), values - values.mean(axis=0)
    for n in range(len(rows)):
        for o in range(len(weight)):
            have = sum(float(a) * float(b) for a, b in zip(x[n], weight[o], strict=True))
            shifted = values[n, o] - (y[n, o] - have)
            if not (values[n, o] < floor and shifted < floor):
                total += (y[n, o] - have) ** 2
    return total


@given(st.integers(0, 10_000))
@limit_examples(15)
def test_errors_of_the_inputs_are_made_up_for(seed):
    """What the inputs lost, and correlates with what they still have, comes back: the error falls,
    on new rows too.
    """
    rng = np.random.default_rng(seed)
    weight, mix = rng.standard_normal((3, 4)), rng.standard_normal((4, 4))
    exact = rng.standard_normal((400, 4)) @ mix
    rows = exact * np.array([0.5, 1.0, 1.5, 1.0])  # as an earlier layer left them
    moved = fit_weights_to_outputs(weight, rows[:300], exact[:300] @ weight.T, -np.inf, HALF[:300])
    assert error(moved, rows[:300], exact[:300] @ weight.T) < error(
        weight, rows[:300], exact[:300] @ weight.T
    )
    assert error(moved, rows[300:], exact[300:] @ weight.T) < error(
        weight, rows[300:], exact[300:] @ weight.T
    )


def test_nothing_moves_where_nothing_is_learnt():
    """Exact inputs, noise that no weight explains, too few rows, rows of zeros: the weight comes
    back as it was.
    """
    rng = np.random.default_rng(1)
    weight, rows = rng.standard_normal((3, 8)), rng.standard_normal((300, 8))
    assert fit_weights_to_outputs(weight, rows, rows @ weight.T, -np.inf, HALF[:300]) is weight
    noise = 0.01 * rng.standard_normal((300, 3))
    assert (
        fit_weights_to_outputs(weight, rows, rows @ weight.T + noise, -np.inf, HALF[:300]) is weight
    )
    assert (
        fit_weights_to_outputs(weight, rows[:20], 2 * rows[:20] @ weight.T, -np.inf, HALF[:20])
        is weight
    )
    assert fit_weights_to_outputs(weight, 0 * rows, rows @ weight.T, -np.inf, HALF[:300]) is weight


def test_what_a_relu_cuts_off_does_not_count():
    """Outputs that are far below zero either way may be as wrong as they like."""
    rng = np.random.default_rng(2)
    weight, rows = rng.standard_normal((2, 5)), rng.standard_normal((200, 5))
    values = 3 * rows @ weight.T - 100.0
    assert fit_weights_to_outputs(weight, rows, values, 0.0, HALF[:200]) is weight
    assert fit_weights_to_outputs(weight, rows, values, -np.inf, HALF[:200]) is not weight


@pytest.mark.parametrize(
    ("name", "platform"),
    mark_rest_slow(
        1,
        [
            ("shortcut", "venus"),
            ("residual", "venus"),
            ("residual", "generic"),
            ("depthwise", "venus"),
        ],
    ),
)
def test_best_is_never_worse_where_it_is_measured(name, platform):
    """Law: on the samples that the report speaks of; a note says what was gained, kept or not."""
    net = getattr(nets, name)()
    images = nets.samples(net, 64 if name == "shortcut" else 256)
    normal, best = (
        api.quantize(net, images, platform=platform, effort=effort) for effort in ("normal", "best")
    )

    def scores(result):
        values = [values["sqnr"] for values in result.report.outputs.values()]
        return min(values), sum(values) / len(values)

    assert scores(best) >= scores(normal)
    notes = [note for note in best.report.notes if note.startswith("effort best:")]
    tried = [note for note in notes if "held-out samples" in note or "changes nothing" in note]
    assert 2 <= len(tried) <= 7
    kept = [note for note in tried if "not kept" not in note and "changes nothing" not in note]
    for note in kept:  # by more than chance
        gained, error = (float(word) for word in note.partition(": gain ")[2].split()[0:3:2])
        assert gained > 1.6 * error
    undone = any("none of these was kept" in note for note in notes)
    assert (scores(best) == scores(normal)) == (undone or not kept)
    assert best.plan == normal.plan or any(
        word in kept[0] for word in ("choosing scales", "last outputs")
    )


def test_inputs_that_never_change_aim_at_nothing():
    """Their sums are singular, whatever the ridge."""
    weight, first = np.ones((3, 2)), np.arange(40) < 20
    values = np.random.default_rng(0).standard_normal((40, 3))
    assert np.array_equal(
        fit_weights_to_outputs(weight, np.ones((40, 2)), values, -np.inf, first), weight
    )


def test_too_few_samples_to_choose_by():
    """With a handful of samples nothing can be set aside: the result is the default's, and a note
    says so.
    """
    net = nets.shortcut()
    images = nets.samples(net, 12)
    normal, best = (api.quantize(net, images, effort=effort) for effort in ("normal", "best"))
    assert best.plan == normal.plan
    assert any("12 calibration samples are too few" in note for note in best.report.notes)


@pytest.mark.slow
def test_best_on_weights_of_one_scale_per_channel_and_four_bits():
    """The effort serves every kind of weight; with 4 bits there is more to gain."""
    net = nets.residual()
    images = nets.samples(net, 256)
    made = {
        "platform": "generic",
        "mode": "max-value",
        "weight_bits": 4,
        "weight_scales": "channel",
    }
    found = [
        api.quantize(net, images, effort=effort, **made).report.outputs
        for effort in ("normal", "best")
    ]
    assert all(found[1][name]["sqnr"] >= found[0][name]["sqnr"] for name in found[0])
