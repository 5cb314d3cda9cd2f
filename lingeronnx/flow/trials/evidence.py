"""Decide whether one integer graph is measurably better than another.

Only real data count as evidence, and only if the weights are not fixed and the effort measures
alternatives. The error of an output after a Softmax is dominated by a few undecided rows, so that a
few hundred rows are not enough to decide.

Both graphs are compared on the same samples. With E the summed squared error of an output, the gain
in dB is

    G = mean over the outputs of 10 log10(E_old / E_new)

and its standard error s is that of the jackknife, with G_i the gain without sample i (Efron and
Stein 1981):

    s^2 = (n - 1) / n * sum_i (G_i - mean of G_i)^2
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...decibels import convert_to_db
from ...graph import ir, operators
from ..prepare.preparation import PreparedModel
from ..report.candidate import Candidate
from .verdict_log import log_verdict

__all__ = [
    "Gain",
    "MAX_SQNR_DB",
    "MIN_GAIN_DB",
    "SIGNIFICANCE_Z",
    "STEP_SIGNIFICANCE_Z",
    "accept_gain",
    "can_choose_by_samples",
    "clamp_sqnr_db",
    "compute_gain",
    "has_decisive_samples",
    "is_better",
    "mean_sqnr_gain_db",
    "output_sqnr_levels",
]

MAX_SQNR_DB = 100.0  #: SQNR above this counts as this
MIN_GAIN_DB = 0.2  #: minimum gain of the mean SQNR of the outputs
SIGNIFICANCE_Z = 1.645  #: minimum gain in standard errors (one-sided test at 5 %)
STEP_SIGNIFICANCE_Z = 3.0  #: the same for one of dozens of scales: by chance one of 700
_EPSILON = 1e-10  # lower bound of an error, as a fraction of the output's power
_MIN_SOFTMAX_ROWS = 500  # minimum number of rows of a Softmax output


def has_decisive_samples(candidate: Candidate) -> bool:
    """Whether the samples are sufficient to choose between `candidate` and similar graphs.

    `can_choose_by_samples` must hold, and a Softmax output must have enough rows.
    """
    return can_choose_by_samples(candidate.prepared) and not _has_too_few_softmax_rows(candidate)


def can_choose_by_samples(prepared: PreparedModel) -> bool:
    """Whether samples may decide: they are not synthetic, and the settings allow a choice.

    That is, the effort measures alternatives, and the weights are not fixed.
    """
    return (
        prepared.recipe.measures_alternatives
        and not prepared.synthetic
        and not prepared.weights_fixed
    )


def _has_too_few_softmax_rows(candidate: Candidate) -> bool:
    """Whether some output comes from a Softmax with fewer than `_MIN_SOFTMAX_ROWS` rows in all.

    Rows are counted over the measured samples.
    """
    sample_count = candidate.fidelity.errors.shape[-1]
    for value in candidate.prepared.graph.graph.outputs:
        producer = ir.producer(value)
        if producer is None or producer.op_type not in operators.SOFTMAX_OPS:
            continue
        shape = ir.get_shape(value) or ()
        rows = math.prod(dim or 1 for dim in shape[1:-1])
        if rows * sample_count < _MIN_SOFTMAX_ROWS:
            return True
    return False


def is_better(old: Candidate, new: Candidate) -> bool:
    """Whether the outputs of `new` are clearly closer to float, and by more than chance.

    The mean gain must be at least MIN_GAIN_DB and above SIGNIFICANCE_Z standard errors. The
    standard error is NaN if a graph is not finite; then only the gain decides.
    """
    standard_error_db = compute_gain(
        old.fidelity.errors, new.fidelity.errors, old.fidelity.power, 0
    ).standard_error_db
    gain_db = mean_sqnr_gain_db(old, new)
    return gain_db >= MIN_GAIN_DB and not gain_db <= SIGNIFICANCE_Z * standard_error_db


def mean_sqnr_gain_db(old: Candidate, new: Candidate) -> float:
    """Return the mean SQNR gain of `new` over `old` in dB, or 0 if the lowest SQNR decreased.

    Tensors that outputs concatenate count as outputs; 0 also without outputs.
    """
    old_levels = output_sqnr_levels(old)
    new_levels = output_sqnr_levels(new)
    if not old_levels or min(new_levels) < min(old_levels):
        return 0.0
    return (sum(new_levels) - sum(old_levels)) / len(old_levels)


def output_sqnr_levels(candidate: Candidate) -> list[float]:
    """Return the clamped SQNR in dB of each output, and of each tensor that outputs concatenate."""
    levels = [output["sqnr"] for output in candidate.fidelity.outputs.values()]
    levels += [part.sqnr for part in candidate.fidelity.parts]
    return [clamp_sqnr_db(sqnr) for sqnr in levels]


def clamp_sqnr_db(sqnr: float) -> float:
    """Clamp an SQNR in dB to [-MAX_SQNR_DB, MAX_SQNR_DB]; NaN counts as the worst value."""
    if math.isnan(sqnr):
        return -MAX_SQNR_DB
    return max(min(sqnr, MAX_SQNR_DB), -MAX_SQNR_DB)


@dataclass(frozen=True)
class Gain:
    """SQNR gain of one graph over another.

    Attributes
    ----------
    value
        Mean gain of the outputs in dB.
    standard_error_db
        Its standard error in dB.
    samples
        Number of samples that were compared.
    worst_output_db
        Gain of the lowest SQNR among the outputs in dB.
    """

    value: float
    standard_error_db: float
    samples: int
    worst_output_db: float = 0.0

    def is_significant(self, min_db: float, z: float) -> bool:
        """Whether the gain reaches `min_db` dB and exceeds `z` standard errors.

        The worst output must not get worse either.
        """
        return (
            self.value >= min_db
            and self.value > z * self.standard_error_db
            and self.worst_output_db >= 0
        )

    @property
    def is_nonzero(self) -> bool:
        """Whether any sample differs between the two graphs."""
        return self.value != 0 or self.standard_error_db != 0

    @property
    def figures(self) -> dict[str, float]:
        """The figures by name, in dB, for `log_verdict`."""
        return {
            "gain_db": self.value,
            "standard_error_db": self.standard_error_db,
            "worst_gain_db": self.worst_output_db,
        }

    def is_hopeless(self, z: float) -> bool:
        """Whether the gain would not be positive even with `z` standard errors added."""
        return self.value + z * self.standard_error_db <= 0

    def __str__(self) -> str:
        """Format the gain in dB with its standard error, which is left out if infinite."""
        spread = "" if math.isinf(self.standard_error_db) else f" +- {self.standard_error_db:.2f}"
        return f"{self.value:+.2f}{spread} dB"


def compute_gain(old: np.ndarray, new: np.ndarray, power: np.ndarray, counts: int) -> Gain:
    """Compute the gain of `new` over `old`.

    The gain is the mean over the outputs, in dB; its standard error is that of the jackknife over
    the n errors, infinite for n = 1.

    Parameters
    ----------
    old, new
        Squared errors [outputs, n] on the same samples, not averaged.
    power
        Power of each output, [outputs].
    counts
        Number of samples that the `n` errors were summed from, for messages.
    """
    tiny = np.finfo(float).tiny
    errors = np.stack([old, new])  # [2, outputs, n]
    totals = errors.sum(axis=2)
    floor = _EPSILON * power + tiny
    total_db = convert_to_db(totals, floor)
    leave_one_out_db = convert_to_db(totals[..., None] - errors, floor[:, None])
    jackknife_gains = (leave_one_out_db[0] - leave_one_out_db[1]).mean(axis=0)
    n = len(jackknife_gains)
    standard_error = math.inf
    if n > 1:
        squares = np.square(jackknife_gains - jackknife_gains.mean())
        standard_error = math.sqrt((n - 1) / n * float(squares.sum()))
    power_db = convert_to_db(power, tiny)
    worst_gain = float((power_db - total_db[1]).min() - (power_db - total_db[0]).min())
    return Gain(float((total_db[0] - total_db[1]).mean()), standard_error, counts, worst_gain)


def accept_gain(trial: str, gain: Gain, min_db: float, z: float, label: str = "") -> bool:
    """Whether a gain reaches `min_db` dB and `z` standard errors (`Gain.is_significant`).

    The verdict is logged for the proposal `label` of `trial`, see `log_verdict`.
    """
    return log_verdict(
        trial,
        gain.is_significant(min_db, z),
        criterion={"mean_db": min_db, "errors": z},
        measured=gain.figures,
        label=label,
    )
