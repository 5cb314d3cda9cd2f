"""The mechanism of trials: alternatives that are built, judged by a criterion, kept if they help.

A `Trial` proposes alternatives to the best candidate so far, one after the other. `run_trial`
builds each, compares it with the best, keeps it if the gain meets the `Criterion` of the proposal,
and sends the verdict back to the trial. So a trial can stop at the first rejection, go on from a
new best, or compare two alternatives with each other. Every verdict is logged.

An idea for better accuracy is one class with a name, `requirements` and `propose`; its name in
`quantization/recipe.py` says which efforts run it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, Protocol, TypeVar

from ...common.errors import ConstraintError
from ..run_log import RunLog, StepRecord, VerdictRecord
from .evidence import Gain
from .requirements import TrialRequirement, find_unmet_requirement

__all__ = ["Criterion", "Proposal", "Proposals", "Trial", "TrialVerdict", "judge", "run_trial"]


T = TypeVar("T")


@dataclass(frozen=True)
class Criterion:
    """The gain that an alternative needs; thresholds that are None do not apply.

    Attributes
    ----------
    mean_db
        Smallest mean gain of the outputs in dB; their lowest SQNR must not decrease either.
    errors
        The mean gain must exceed so many of its standard errors.
    some_db
        Smallest gain in dB that some output must reach.
    loss_db
        Largest loss of any output in dB.
    rescue_below_db, rescue_db
        A larger loss is accepted if the lowest SQNR was below `rescue_below_db`, and it and the
        mean of the outputs gain `rescue_db`.
    """

    mean_db: float | None = None
    errors: float | None = None
    some_db: float | None = None
    loss_db: float | None = None
    rescue_below_db: float | None = None
    rescue_db: float | None = None

    def is_met(self, gain: Gain) -> bool:
        """Whether `gain` reaches all thresholds."""
        if self.mean_db is not None and not (
            gain.value >= self.mean_db and gain.worst_output_db >= 0
        ):
            return False
        if self.errors is not None and gain.value <= self.errors * gain.standard_error_db:
            return False
        if self.some_db is not None and not gain.highest_db >= self.some_db:
            return False
        return self.loss_db is None or gain.lowest_db >= -self.loss_db or self.is_rescue(gain)

    def is_rescue(self, gain: Gain) -> bool:
        """Whether the gain makes a useless output usable, at the expense of others."""
        if self.rescue_below_db is None or self.rescue_db is None or not gain.output_gains_db:
            return False
        mean_db = sum(gain.output_gains_db) / len(gain.output_gains_db)
        return (
            gain.old_worst_db < self.rescue_below_db
            and gain.worst_output_db >= self.rescue_db
            and mean_db >= self.rescue_db
        )

    @property
    def thresholds(self) -> dict[str, float]:
        """The thresholds that apply, by name, for the log."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class TrialVerdict(NamedTuple, Generic[T]):
    """The decision on one proposal.

    Attributes
    ----------
    accepted
        Whether the proposal was kept.
    best
        The better one of the alternative and what it was compared with.
    gain
        The measured gain; None if the proposal could not be built or changes nothing.
    error
        Why it could not be built; empty if it could, or if the trial gave no reason.
    """

    accepted: bool
    best: T
    gain: Gain | None = None
    error: str = ""


class Proposal(NamedTuple, Generic[T]):
    """An alternative that a trial wants to be built and judged.

    Attributes
    ----------
    build
        Builds the alternative. None if it is not possible, also for a `ConstraintError`; the
        object that it is compared with if it changes nothing.
    compare
        Returns the gain of its second argument over its first one.
    criterion
        The gain that it needs.
    label
        Which of the proposals of the trial, for the log.
    condition
        Further condition on the alternative and its gain, checked if the criterion is met.
    against
        What it is compared with; None for the best candidate.
    describe
        Returns what is kept for an accepted alternative and its gain, such as a copy with a note;
        None keeps the alternative itself.
    """

    build: Callable[[], T | None]
    compare: Callable[[T, T], Gain]
    criterion: Criterion
    label: str = ""
    condition: Callable[[T, Gain], bool] | None = None
    against: T | None = None
    describe: Callable[[T, Gain], T] | None = None


#: What `Trial.propose` returns: yields proposals, receives verdicts, and may return the final
#: candidate, such as the best with a note; None for the best itself.
Proposals = Generator[Proposal[T], TrialVerdict[T], "T | None"]


class Trial(Protocol[T]):
    """Something that is tried, and kept if the evidence supports it."""

    @property
    def name(self) -> str:
        """Name in the log and in recipes."""
        ...

    @property
    def requirements(self) -> Sequence[TrialRequirement[T]]:
        """What must hold for the trial to be run, in the order of evaluation."""
        ...

    def propose(self, best: T, log: RunLog) -> Proposals[T]:
        """Propose alternatives to `best` one after the other; see `Proposals`."""
        ...


def judge(step: StepRecord, proposal: Proposal[T], best: T) -> TrialVerdict[T]:
    """Build the alternative of a proposal and decide between it and `best`.

    A decision by measurement is added to the verdicts of `step`, the record of the trial.
    """
    old = best if proposal.against is None else proposal.against
    try:
        alternative = proposal.build()
    except ConstraintError as error:  # such as a scale that the chip lacks, with require_chip
        return TrialVerdict(False, old, error=str(error))
    if alternative is None or alternative is old:
        return TrialVerdict(False, old)
    gain = proposal.compare(old, alternative)
    accepted = proposal.criterion.is_met(gain)
    if accepted and proposal.condition is not None:
        accepted = proposal.condition(alternative, gain)
    record = VerdictRecord(
        step.name, proposal.label, accepted, proposal.criterion.thresholds, gain.measured_db
    )
    record.log()
    step.verdicts.append(record)
    if not accepted:
        return TrialVerdict(False, old, gain)
    if proposal.describe is not None:
        alternative = proposal.describe(alternative, gain)
    return TrialVerdict(True, alternative, gain)


def run_trial(trial: Trial[T], best: T, log: RunLog) -> T:
    """Run a trial and return the best candidate: an alternative, or `best`.

    With a requirement that does not hold it returns `best`, with its note if it has one.
    """
    with log.step(trial.name) as step:
        unmet = find_unmet_requirement(trial.requirements, best)
        if unmet is not None:
            step.changes.append(f"does not apply: needs {unmet.description}")
            return best if unmet.otherwise is None else unmet.otherwise(best)
        proposals = trial.propose(best, log)
        verdict: TrialVerdict[T] | None = None
        while True:
            try:
                proposal = next(proposals) if verdict is None else proposals.send(verdict)
            except StopIteration as stop:
                final: T | None = stop.value
                return best if final is None else final
            verdict = judge(step, proposal, best)
            if proposal.against is None:
                best = verdict.best
