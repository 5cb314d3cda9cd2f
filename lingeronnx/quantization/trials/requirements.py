"""What must hold for a trial to be run, as data: one `TrialRequirement` after the other.

`run_trial` evaluates them in order and stops at the first one that does not hold, whose description
is shown by `quantize --steps`. Requirements that several trials have are defined here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from ..report.candidate import Candidate
from .evidence import can_choose_by_samples, find_lowest_decisive_sqnr_db, has_decisive_samples

__all__ = [
    "CALIBRATED",
    "CHOICE_BY_SAMPLES",
    "DECISIVE_SAMPLES",
    "FREE_SCALES",
    "TrialRequirement",
    "find_unmet_requirement",
    "require_low_sqnr",
]

T = TypeVar("T")


class TrialRequirement(NamedTuple, Generic[T]):
    """Something that must hold for the best candidate so far.

    Attributes
    ----------
    description
        What it needs, in words.
    holds
        Whether the candidate has it.
    otherwise
        Returns the candidate with a note for the report if it does not hold; None: without one.
    """

    description: str
    holds: Callable[[T], bool]
    otherwise: Callable[[T], T] | None = None


def find_unmet_requirement(
    requirements: Iterable[TrialRequirement[T]], best: T
) -> TrialRequirement[T] | None:
    """Return the first requirement that does not hold for `best`; None if all hold."""
    return next((unmet for unmet in requirements if not unmet.holds(best)), None)


#: Scales that a trial may replace by those of other settings.
FREE_SCALES = TrialRequirement[Candidate](
    "scales without overrides that are neither imported nor given by a plan",
    lambda best: (
        not best.prepared.conf.overrides
        and best.prepared.read is None
        and best.planned.basis.policy is not None
    ),
)

CALIBRATED = TrialRequirement[Candidate](
    "calibrated scales", lambda best: best.planned.calibration is not None
)

CHOICE_BY_SAMPLES = TrialRequirement[Candidate](
    "real samples, weights that may change, and an effort that measures alternatives",
    lambda best: can_choose_by_samples(best.prepared),
)

DECISIVE_SAMPLES = TrialRequirement[Candidate](
    "samples that decide, also for a Softmax output", has_decisive_samples
)


def require_low_sqnr(limit_db: float) -> TrialRequirement[Candidate]:
    """Require an output, or a tensor that an output concatenates, with an SQNR below `limit_db`.

    Without outputs it does not hold. A Softmax output with too few rows does not count.
    """
    return TrialRequirement(
        f"an output with an SQNR below {limit_db:g} dB",
        lambda best: find_lowest_decisive_sqnr_db(best) < limit_db,
    )
