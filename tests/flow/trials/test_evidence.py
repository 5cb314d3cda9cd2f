"""What counts as evidence: gains beyond chance, enough rows behind a Softmax, data that are
real.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from lingeronnx.quantization import build_candidate, plan_model, prepare_model, refine_weights
from lingeronnx.quantization.report.fidelity import Fidelity
from lingeronnx.quantization.trials.evidence import (
    MIN_GAIN_DB,
    SIGNIFICANCE_Z,
    clamp_sqnr_db,
    compare_outputs,
    has_decisive_samples,
)
from lingeronnx.quantization.trials.trial import Criterion
from tests import nets


@pytest.mark.parametrize("samples", (1, 16))
def test_what_a_single_sample_gains_is_chance(samples):
    """A gain of the same size in every one of several samples is none."""

    def compared(errors):
        level = 10 * np.log10(1000 / sum(errors))
        fidelity = Fidelity(
            {"y": {"sqnr": level}}, "", (), errors=np.array([errors]), power=np.array([1000.0])
        )
        return SimpleNamespace(fidelity=fidelity)

    rest = [1.0] * (samples - 1)
    criterion = Criterion(mean_db=MIN_GAIN_DB, errors=SIGNIFICANCE_Z)
    lucky = compare_outputs(compared([100.0, *rest]), compared([1.0, *rest]))
    steady = compare_outputs(compared([2.0] * samples), compared([1.0] * samples))
    assert not criterion.is_met(lucky)
    assert criterion.is_met(steady) == (samples > 1)


def test_what_is_not_finite_is_the_worst():
    assert clamp_sqnr_db(float("nan")) == clamp_sqnr_db(float("-inf")) == -100.0
    assert clamp_sqnr_db(float("inf")) == 100.0


def test_a_mean_gain_does_not_pay_for_a_loss_of_the_worst():
    """Two outputs: one gains 20 dB, the worse one loses one."""

    def made(*levels):
        outputs = {str(number): {"sqnr": sqnr} for number, sqnr in enumerate(levels)}
        errors, power = np.ones((len(levels), 4)), np.ones(len(levels))
        return SimpleNamespace(fidelity=Fidelity(outputs, "", (), errors=errors, power=power))

    assert compare_outputs(made(40.0, 20.0), made(60.0, 19.0)).value == 0.0
    assert compare_outputs(made(40.0, 20.0), made(41.0, 21.0)).value == pytest.approx(1.0)


@pytest.mark.parametrize(
    "settings, data, expected",
    (
        ({}, True, True),
        ({"effort": "fast"}, True, False),
        ({}, False, False),
    ),
)
def test_real_data_and_effort_are_evidence(settings, data, expected):
    model = nets.plain()
    prepared = prepare_model(model, nets.samples(model, 24) if data else None, None, settings)
    planned = plan_model(prepared)
    assert has_decisive_samples(build_candidate(planned, refine_weights(planned))) is expected
