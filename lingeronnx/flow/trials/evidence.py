"""What counts as evidence that one integer graph is better than another, and how far both are from the float model.

Only real data that can be read again are evidence, and only where nobody fixed the weights or asked
for no effort. Of an output behind a Softmax a few undecided rows tell nearly all of the error: some
hundred rows are no evidence.
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

MAX_SQNR_DB = 100.0  #: dB: beyond that nothing is gained
MIN_GAIN_DB = 0.2  #: dB of the mean SQNR of the outputs
_MIN_SOFTMAX_ROWS = 500  # of a Softmax


def has_decisive_samples(candidate: Candidate) -> bool:
    """Whether what the samples say of `candidate` and of graphs like it decides which of them is kept."""
    return can_choose_by_samples(candidate.prepared) and not _has_too_few_softmax_rows(candidate)


def can_choose_by_samples(prepared: PreparedModel) -> bool:
    """Whether the samples are real and can be read again, and something may be chosen by them."""
    return (
        prepared.conf.effort != "fast"
        and not prepared.synthetic
        and not prepared.weights_fixed
        and prepared.data.is_rereadable
    )


def _has_too_few_softmax_rows(candidate: Candidate) -> bool:
    """Whether an output is what a Softmax gives for fewer rows than say how far it is from the float model's."""
    for value in candidate.prepared.graph.graph.outputs:
        maker = ir.producer(value)
        if maker is not None and maker.op_type in operators.SOFTMAX_OPS:
            shape = ir.get_shape(value) or ()
            rows = math.prod(size or 1 for size in shape[1:-1])
            if rows * candidate.fidelity.errors.shape[-1] < _MIN_SOFTMAX_ROWS:
                return True
    return False


def is_better(old: Candidate, new: Candidate) -> bool:
    """Whether the outputs are clearly nearer, and by more than chance.

    What is not finite by now has no chance.
    """
    chance = compute_gain(
        old.fidelity.errors, new.fidelity.errors, old.fidelity.power, 0
    ).standard_error_db
    value = mean_sqnr_gain_db(old, new)
    return value >= MIN_GAIN_DB and not value <= SIGNIFICANCE_Z * chance


def mean_sqnr_gain_db(old: Candidate, new: Candidate) -> float:
    """Return by how many dB the outputs are nearer on average, no gain where the farthest of them is farther."""
    before, after = (output_sqnr_levels(result) for result in (old, new))
    if not before or min(after) < min(before):
        return 0.0
    return (sum(after) - sum(before)) / len(before)


def output_sqnr_levels(candidate: Candidate) -> list[float]:
    """Return the SQNR of the outputs and of the parts that they join.

    What is not finite is the worst.
    """
    every = [output["sqnr"] for output in candidate.fidelity.outputs.values()]
    every += [part.sqnr for part in candidate.fidelity.parts]
    return [clamp_sqnr_db(sqnr) for sqnr in every]


def clamp_sqnr_db(sqnr: float) -> float:
    """Return the level that counts: what is not finite in the integer graph alone is the worst."""
    return -MAX_SQNR_DB if sqnr != sqnr else max(min(sqnr, MAX_SQNR_DB), -MAX_SQNR_DB)
