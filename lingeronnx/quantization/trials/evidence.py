"""Measure how much closer one integer graph is to the float model than another.

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
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...common.arithmetic import convert_to_db
from ...ir.digests import have_same_structure
from ..prepare.float_outputs import has_too_few_softmax_rows, is_softmax_output
from ..prepare.preparation import PreparedModel
from ..report.candidate import Candidate
from ..report.fidelity import select_measured_tensors

__all__ = [
    "Gain",
    "MAX_SQNR_DB",
    "MIN_GAIN_DB",
    "SIGNIFICANCE_Z",
    "STEP_SIGNIFICANCE_Z",
    "can_choose_by_samples",
    "clamp_sqnr_db",
    "compare_measured_tensors",
    "compare_outputs",
    "compute_gain",
    "find_lowest_decisive_sqnr_db",
    "has_decisive_samples",
    "keeps_chip",
    "output_sqnr_levels",
    "select_comparison",
]

MAX_SQNR_DB = 100.0  #: SQNR above this counts as this
MIN_GAIN_DB = 0.2  #: minimum gain of the mean SQNR of the outputs
SIGNIFICANCE_Z = 1.645  #: minimum gain in standard errors (one-sided test at 5 %)
STEP_SIGNIFICANCE_Z = 3.0  #: the same for one of dozens of scales: by chance one of 700
_EPSILON = 1e-10  # lower bound of an error, as a fraction of the output's power


def has_decisive_samples(candidate: Candidate) -> bool:
    """Whether the samples are sufficient to choose between `candidate` and similar graphs.

    `can_choose_by_samples` must hold, and a Softmax output must have enough rows.
    """
    prepared, sample_count = candidate.prepared, candidate.fidelity.errors.shape[-1]
    return can_choose_by_samples(prepared) and not has_too_few_softmax_rows(
        prepared.graph, sample_count
    )


def can_choose_by_samples(prepared: PreparedModel) -> bool:
    """Whether samples may decide: they are not synthetic, and the settings allow a choice.

    That is, the effort measures alternatives, and the weights are not fixed.
    """
    return (
        prepared.recipe.measures_alternatives
        and not prepared.synthetic
        and not prepared.weights_fixed
    )


def compare_outputs(
    old: Candidate,
    new: Candidate,
    *,
    min_level_db: float = -MAX_SQNR_DB,
    max_part_db: float = MAX_SQNR_DB,
) -> Gain:
    """Compare the SQNR of the outputs of two candidates, and of tensors that outputs concatenate.

    Parameters
    ----------
    old, new
        The candidates, measured on the same samples.
    min_level_db
        An SQNR below this, in dB, counts as this.
    max_part_db
        An SQNR of a concatenated tensor above this counts as this.

    Returns
    -------
    Gain
        The gain of `new`. Its value is 0 if the lowest SQNR decreases, or without outputs.
    """
    old_levels = output_sqnr_levels(old, min_level_db, max_part_db)
    new_levels = output_sqnr_levels(new, min_level_db, max_part_db)
    if not old_levels:
        return Gain(0.0)
    worst_gain_db = min(new_levels) - min(old_levels)
    value = 0.0
    if worst_gain_db >= 0:
        value = (sum(new_levels) - sum(old_levels)) / len(old_levels)
    jackknife = compute_gain(old.fidelity.errors, new.fidelity.errors, old.fidelity.power, 0)
    gains = [new - old for old, new in zip(old_levels, new_levels, strict=True)]
    return Gain(
        value,
        jackknife.standard_error_db,
        worst_output_db=worst_gain_db,
        output_gains_db=gains,
        old_worst_db=min(old_levels),
    )


def compare_measured_tensors(old: Candidate, new: Candidate) -> Gain:
    """Compare the errors of two candidates at the tensors of `select_measured_tensors`.

    These are outputs, or the inputs of their final activations. If they differ between the
    candidates, the outputs are compared.
    """
    if select_measured_tensors(old.planned) == select_measured_tensors(new.planned):
        old_errors, new_errors = old.fidelity.measured_errors, new.fidelity.measured_errors
        power = old.fidelity.measured_power
    else:
        old_errors, new_errors = old.fidelity.errors, new.fidelity.errors
        power = old.fidelity.power
    return compute_gain(old_errors, new_errors, power, old_errors.shape[1])


def select_comparison(candidate: Candidate) -> Callable[[Candidate, Candidate], Gain]:
    """Return `compare_outputs`, or `compare_measured_tensors` if a Softmax has too few rows."""
    return compare_outputs if has_decisive_samples(candidate) else compare_measured_tensors


def find_lowest_decisive_sqnr_db(candidate: Candidate) -> float:
    """Return the lowest SQNR of the outputs in dB, infinity without any.

    If a Softmax output has too few rows, only the outputs that no Softmax computes count.
    """
    if has_decisive_samples(candidate):
        return min(output_sqnr_levels(candidate), default=math.inf)
    outputs = candidate.prepared.graph.graph.outputs
    softmax_outputs = {str(value.name) for value in outputs if is_softmax_output(value)}
    levels = [
        clamp_sqnr_db(figures["sqnr"])
        for name, figures in candidate.fidelity.outputs.items()
        if name not in softmax_outputs
    ]
    return min(levels, default=math.inf)


def keeps_chip(old: Candidate, new: Candidate) -> bool:
    """Whether `new` is chip-ready if `old` was.

    True for a model that float operators split anyway, and if only weights or biases differ, which
    no limit of a chip depends on.
    """
    if old.prepared.parts.has_inner_floats:
        return True
    if have_same_structure(old.lowered.graph, new.lowered.graph):
        return True
    return new.report.chip_ready or not old.report.chip_ready


def output_sqnr_levels(
    candidate: Candidate, min_level_db: float = -MAX_SQNR_DB, max_part_db: float = MAX_SQNR_DB
) -> list[float]:
    """Return the SQNR in dB of each output, then of each tensor that outputs concatenate.

    Each is clamped to +-MAX_SQNR_DB, NaN as the worst value, and then to at least `min_level_db`;
    those of concatenated tensors to at most `max_part_db`.
    """
    levels = [clamp_sqnr_db(output["sqnr"]) for output in candidate.fidelity.outputs.values()]
    for part in candidate.fidelity.parts:
        levels.append(min(clamp_sqnr_db(part.sqnr), max_part_db))
    return [max(level, min_level_db) for level in levels]


def clamp_sqnr_db(sqnr: float) -> float:
    """Clamp an SQNR in dB to [-MAX_SQNR_DB, MAX_SQNR_DB]; NaN counts as the worst value."""
    if math.isnan(sqnr):
        return -MAX_SQNR_DB
    return max(min(sqnr, MAX_SQNR_DB), -MAX_SQNR_DB)


class Gain(NamedTuple):
    """SQNR gain of one graph over another.

    Attributes
    ----------
    value
        Mean gain of the outputs in dB.
    standard_error_db
        Its standard error in dB.
    samples
        Number of samples that were compared; 0 if unknown.
    worst_output_db
        Gain of the lowest SQNR among the outputs in dB.
    output_gains_db
        Gain of each output in dB; empty if they were not compared one by one.
    old_worst_db
        The lowest SQNR among the outputs of the old graph in dB.
    """

    value: float
    standard_error_db: float = 0.0
    samples: int = 0
    worst_output_db: float = 0.0
    output_gains_db: Sequence[float] = ()
    old_worst_db: float = MAX_SQNR_DB

    @property
    def highest_db(self) -> float:
        """The largest gain of an output in dB; 0 without outputs."""
        return max(self.output_gains_db, default=0.0)

    @property
    def lowest_db(self) -> float:
        """The smallest gain of an output in dB, negative for a loss; 0 without outputs."""
        return min(self.output_gains_db, default=0.0)

    @property
    def is_nonzero(self) -> bool:
        """Whether any sample differs between the two graphs."""
        return self.value != 0 or self.standard_error_db != 0

    @property
    def measured_db(self) -> dict[str, float]:
        """The figures by name, in dB, for the log."""
        figures = {
            "gain_db": self.value,
            "standard_error_db": self.standard_error_db,
            "worst_gain_db": self.worst_output_db,
        }
        if self.output_gains_db:
            figures |= {"highest_gain_db": self.highest_db, "lowest_gain_db": self.lowest_db}
        return figures

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
