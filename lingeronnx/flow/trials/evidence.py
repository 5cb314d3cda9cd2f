"""Decide whether one integer graph is measurably better than another.

Only real data count as evidence, and only if the weights are not fixed and the effort measures
alternatives. The error of an output after a Softmax is dominated by a few undecided rows, so that a
few hundred rows are not enough to decide.
"""

from __future__ import annotations

import math

from ...graph import ir, operators
from ..prepare.preparation import PreparedModel
from ..report.candidate import Candidate
from .gains import SIGNIFICANCE_Z, compute_gain

__all__ = [
    "MAX_SQNR_DB",
    "MIN_GAIN_DB",
    "can_choose_by_samples",
    "clamp_sqnr_db",
    "has_decisive_samples",
    "is_better",
    "mean_sqnr_gain_db",
    "output_sqnr_levels",
]

MAX_SQNR_DB = 100.0  #: SQNR above this counts as this
MIN_GAIN_DB = 0.2  #: minimum gain of the mean SQNR of the outputs
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
        prepared.conf.recipe.measures_alternatives
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
