"""Climbs the ladder: up until the wish is met, then back down to the cheapest attempt that still meets it.

With limits alone it tries mixes of widths instead, and takes the most accurate that keeps them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..analysis.sensitivity.journal import Journal
from ..analysis.sensitivity.layers import weight_bits_by_operator
from ..errors import ConstraintError
from ..flow import Candidate, QuantizedModel
from ..run.data import Progress
from ..targets import Target
from .attempts import AttemptPrefetcher, AttemptRunner, StartFactory, journal_header
from .cost import AttemptCost
from .goal import Goal, Measurement
from .ladder import (
    EFFORTS,
    MAX_FLOAT_MAC_SHARE,
    Attempt,
    NarrowLayer,
    iter_rungs,
    rank_narrow_layers,
)
from .mixes import search_mixes
from .records import is_complete, parse_cost

__all__ = ["SearchResult", "AttemptResult", "search"]

_MAX_ATTEMPTS = 15  # attempts that are evaluated
_JOURNAL_PART = "attempts"  # of the journal


@dataclass(frozen=True)
class AttemptResult:
    """An attempt that was made, what it gave and what it costs.

    measurement, cost : None where it is not allowed, for `why`. ready : for a chip, where the
    platform is one. limit_excess : by which share of a limit it costs more than that; infinite
    where nobody knows what it costs. is_ranked_by_value : whether what keeps the limits is judged
    by its value alone.
    """

    attempt: Attempt
    measurement: Measurement | None
    cost: AttemptCost | None
    seconds: float
    is_chip_ready: bool = True
    why: str = ""
    limit_excess: float = 0.0
    is_ranked_by_value: bool = False

    @property
    def meets_goal(self) -> bool:
        """Whether the wish is met."""
        return (
            self.measurement is not None
            and self.measurement.shortfall <= 0
            and self.limit_excess <= 0
        )

    @property
    def shortfall(self) -> float:
        """What is missing to the wish; infinite where the attempt is not allowed."""
        return math.inf if self.measurement is None else self.measurement.shortfall

    @property
    def rank(self) -> tuple[float, ...]:
        """Less is better: the cheapest of those that meet the wish, else of those fit for a chip what is missing."""
        if self.measurement is None or self.cost is None:
            return (2,)
        cost: tuple[float, ...] = self.cost.work, self.cost.bytes
        cost = (-self.measurement.value, *cost) if self.is_ranked_by_value else cost
        return (
            (0, *cost)
            if self.meets_goal
            else (
                1,
                not self.is_chip_ready,
                max(self.measurement.shortfall, 0.0),
                self.limit_excess,
                *cost,
            )
        )


@dataclass(frozen=True)
class SearchResult:
    """What a search ends with.

    trials : in the order in which they were made. chosen : the best of them. stopped : why it
    ended, and where the wish is not met what would be needed. weight_bits : {layer of the chosen
    one: bits of its weights}.
    """

    goal: Goal
    target: Target
    trials: Sequence[AttemptResult]
    best: AttemptResult
    stopped: str
    weight_bits: Mapping[str, int] = field(default_factory=dict)

    @property
    def _measurement(self) -> Measurement:
        assert self.best.measurement is not None
        return self.best.measurement

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values, for the report."""
        return {
            "goal": self.goal.text,
            "unit": self.goal.unit,
            "met": self.best.meets_goal,
            "stopped": self.stopped,
            "options": self.best.attempt.to_cli_options(self.target),
            "float": self._measurement.float_value,
            "wanted": None
            if self.goal.is_limits_only
            else self._measurement.value + self._measurement.shortfall,
            "weight_bits": dict(self.weight_bits),
            "trials": [
                {
                    "what": trial.attempt.description,
                    "options": trial.attempt.to_cli_options(self.target),
                    "value": None if trial.measurement is None else trial.measurement.value,
                    "missing": None
                    if trial.measurement is None
                    else max(trial.measurement.shortfall, 0.0),
                    "met": trial.meets_goal,
                    "chosen": trial is self.best,
                    "bytes": None if trial.cost is None else trial.cost.bytes,
                    "macs": None if trial.cost is None else dict(trial.cost.macs),
                    "work": None if trial.cost is None else trial.cost.work,
                    "cycles": None if trial.cost is None else trial.cost.cycles,
                    "flash": None if trial.cost is None else trial.cost.flash,
                    "seconds": trial.seconds,
                    "why": trial.why,
                }
                for trial in self.trials
            ],
        }


class _SearchStopped(Exception):
    """The search ends; its text says why."""


def search(
    base: Candidate,
    goal: Goal,
    *,
    minutes: float | None = None,
    log: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    create_start: StartFactory | None = None,
    cluster: str | None = None,
) -> tuple[QuantizedModel, SearchResult]:
    """Return the cheapest result that meets `goal`, or the best one there is, and how it was found.

    Parameters
    ----------
    base
        What the user's options give.
    goal
        The wish.
    minutes
        No attempt is begun that would end later than that, judged by the longest so far.
    log
        A file to which every attempt is written as it is made.
    resume
        Go on with the attempts that are in `log`.
    progress
        As `quantize` takes it.
    begin, cluster
        Attempts are made side by side on the Dask cluster with this address, whose workers begin
        with what `create_start` returns there. The attempts that count, and what they give, are the
        same to the last bit.

    Raises
    ------
    ConfigError, DataError
        For a goal that cannot be measured, for a log of another search, and where the cluster does
        not answer or begins with something else.
    ConstraintError
        With require_chip, where what the user asked for is not chip-ready.
    """
    goal.check()
    goal.validate_time_limit(base.planned.target)
    ahead, maker = (
        AttemptPrefetcher(base, goal, create_start, cluster),
        AttemptRunner(base, goal, progress),
    )
    journal_of = Journal(None if log is None else Path(log), journal_header(base, goal), resume)
    with journal_of as journal, contextlib.closing(ahead):
        climb = _Search(base, goal, minutes, journal, maker, ahead, progress)
        stopped = climb.run()
    trials = list(climb.trials.values())
    chosen = min(trials, key=lambda trial: trial.rank)
    made = maker.build_candidate(chosen.attempt)
    result = made.checked_model
    outcome = SearchResult(
        goal, base.planned.target, trials, chosen, stopped, weight_bits_by_operator(made.planned)
    )
    warnings = list(result.report.warnings)
    if not chosen.meets_goal:
        assert chosen.measurement is not None
        value = (
            f"{chosen.measurement.value:.4g} {goal.unit}".rstrip()
            + f" is the best of {len(trials)} attempts"
        )
        warnings.insert(
            0, f"the wish is not met ({goal.text}): {stopped if goal.is_limits_only else value}"
        )
    report = replace(result.report, search=outcome.to_dict(), warnings=tuple(warnings))
    return replace(result, report=report), outcome


class _Search:
    """The attempts of one search; `trials` holds them as they are made."""

    def __init__(
        self,
        base: Candidate,
        goal: Goal,
        minutes: float | None,
        journal: Journal,
        maker: AttemptRunner,
        ahead: AttemptPrefetcher,
        progress: Progress | None,
    ) -> None:
        self._base, self._goal, self._journal, self._progress = base, goal, journal, progress
        self._maker, self._ahead = maker, ahead
        self._target = base.planned.target
        self._began, self._minutes = time.monotonic(), minutes
        labels = goal.max_drop is not None
        self._known = {
            _attempt_key(r["attempt"]): r
            for r in journal.records(_JOURNAL_PART)
            if is_complete(r, labels)
        }
        self.trials: dict[Attempt, AttemptResult] = {}

    def run(self) -> str:
        """Climb; return why it ended."""
        try:
            if self._goal.is_limits_only:
                return self._search_mixes()
            start = self._try_efforts()
            if (
                (dear := self.trials[start]).shortfall <= 0 < dear.limit_excess
            ):  # what is more accurate costs no less
                return f"accurate enough, but {self._format_excess(dear)}; take a smaller model"
            if self.trials[start].meets_goal or any(
                self._search_rung(rung)
                for rung in iter_rungs(self._maker.plan_attempt(start), start)
            ):
                return "met"
            return self._format_unmet()
        except (_SearchStopped, KeyboardInterrupt) as stop:
            if not self.trials:
                raise
            return str(stop) or "interrupted; --resume goes on"

    # ---- climbing ----------------------------------------------------------------------------------------------

    def _try_efforts(self) -> Attempt:
        """Try what was asked for, then more effort, which costs nothing where the model runs.

        Return the best.
        """
        asked = self._base.planned.config.effort
        best = Attempt()
        every = (best, *(Attempt(effort) for effort in EFFORTS[EFFORTS.index(asked) + 1 :]))
        for attempt in every:
            trial = self._run_attempt(attempt, every)
            if trial.measurement is None and attempt == Attempt():
                raise ConstraintError(trial.why)
            if trial.meets_goal:
                return attempt
            best = min((best, attempt), key=lambda candidate: self.trials[candidate].rank)
        return best

    def _search_rung(self, rung: Sequence[Attempt]) -> bool:
        """Whether an attempt of the rung meets the wish.

        Try the 1st, 2nd, 4th ..., then look between.
        """
        low, high, step = -1, -1, 0
        while low < len(rung) - 1:
            place = min(step, len(rung) - 1)
            trial = self._run_attempt(
                rung[place], (rung[each] for each in _galloping_indices(len(rung)))
            )
            if trial.meets_goal:
                high = place
                break
            low, step = place, 2 * step + 1
        if high < 0:
            return False
        while high - low > 1:
            middle = (low + high) // 2
            if self._run_attempt(
                rung[middle], (rung[each] for each in _bisection_indices(low, high))
            ).meets_goal:
                high = middle
            else:
                low = middle
        return True

    def _search_mixes(self) -> str:
        """Try mixes of widths up to the limits; return how that ended."""
        bits, narrow = self._base.planned.config.bits, rank_narrow_layers(self._base.planned)

        def widen_layers(wide: Sequence[NarrowLayer]) -> Attempt:
            return Attempt(wide=tuple((layer.selector, bits, bits) for layer in wide))

        def evaluate_mix(wide: Sequence[NarrowLayer]) -> list[float]:
            trial = self._run_attempt(
                widen_layers(wide), (widen_layers(()), widen_layers(narrow))
            )  # both ends are tried in any case
            return [share for share, _ in self._goal.limit_usage(trial.cost)]

        if search_mixes(narrow, evaluate_mix):
            return "met"
        near = min(self.trials.values(), key=lambda trial: trial.rank)
        if near.measurement is None:
            raise ConstraintError(near.why)
        return (
            f"nearest is '{near.attempt.description}': {self._format_excess(near)}; take a "
            "smaller model"
        )

    def _format_excess(self, trial: AttemptResult) -> str:
        """Return what an attempt costs more than it may."""
        return " and ".join(
            words for share, words in self._goal.limit_usage(trial.cost) if share > 1
        )

    def _format_unmet(self) -> str:
        """Return what would meet the wish where the ladder does not."""
        near = min(self.trials.values(), key=lambda trial: trial.shortfall)
        why = f"nearest is '{near.attempt.description}' with {near.shortfall:.3g} missing"
        why += (
            f"; more would leave over {MAX_FLOAT_MAC_SHARE:.0%} of the multiply-accumulates in "
            "float"
        )
        wider = (
            ""
            if max(self._target.bits) > 8
            else f"; {self._target.name} computes in 8 bits only, generic in 16"
        )
        return f"{why}{wider}; what is left needs another model or training (lingeronnx finetune)"

    def _run_attempt(self, attempt: Attempt, next_ones: Iterable[Attempt] = ()) -> AttemptResult:
        """Return what an attempt gives.

        A cluster makes `next_ones`, which may be asked for next, beside it.
        """
        if attempt in self.trials:
            return self.trials[attempt]
        record, result = self._known.get(_attempt_key(asdict(attempt))), None
        if record is None:
            self._check_budget()
            if self._progress is not None:
                self._progress(f"attempt {len(self.trials) + 1}", 0, None)
            known = next(
                (
                    t.measurement.float_value
                    for t in self.trials.values()
                    if t.measurement is not None
                ),
                None,
            )
            record = self._ahead.record(
                attempt, (each for each in next_ones if self._is_new(each)), known
            )
            if record is None:
                record, result = self._maker.run_attempt(attempt, known)
            self._journal.add({"part": _JOURNAL_PART, **record})
        trial = self._parse_record(attempt, record)
        if result is not None and all(trial.rank < other.rank for other in self.trials.values()):
            self._maker.keep_best(attempt, result)
        self.trials[attempt] = trial
        return trial

    def _is_new(self, attempt: Attempt) -> bool:
        return attempt not in self.trials and _attempt_key(asdict(attempt)) not in self._known

    def _check_budget(self) -> None:
        """Raise _Stop where no more attempts may be made, once there is one."""
        if not self.trials:
            return
        if len(self.trials) >= _MAX_ATTEMPTS:
            raise _SearchStopped(f"{_MAX_ATTEMPTS} attempts were made")
        longest = max(trial.seconds for trial in self.trials.values())
        spent = time.monotonic() - self._began
        if self._minutes is not None and spent + longest > 60 * self._minutes:
            raise _SearchStopped(
                f"the budget of {self._minutes:g} minutes is spent; --resume with a larger one "
                "goes on"
            )

    def _parse_record(self, attempt: Attempt, record: Mapping[str, Any]) -> AttemptResult:
        if "why" in record:
            return AttemptResult(attempt, None, None, record["seconds"], why=record["why"])
        measure, cost = (
            self._goal.measured(record["value"], record.get("float")),
            parse_cost(record),
        )
        over = max((share - 1 for share, _ in self._goal.limit_usage(cost)), default=0.0)
        fills = self._goal.is_limits_only
        return AttemptResult(
            attempt,
            measure,
            cost,
            record["seconds"],
            record["ready"],
            limit_excess=max(over, 0),
            is_ranked_by_value=fills,
        )


def _galloping_indices(count: int) -> Iterator[int]:
    """Yield the places that a climb of `count` steps tries before one meets the wish.

    0, 1, 3, 7 ... and the last.
    """
    place = 0
    while place < count - 1:
        yield place
        place = 2 * place + 1
    yield count - 1


def _bisection_indices(low: int, high: int) -> Iterator[int]:
    """Yield the place in the middle between two, and those between it and either, whichever is asked for next."""
    middle = (low + high) // 2
    yield from (
        each
        for each in ((low + middle) // 2, (middle + high) // 2)
        if low < each < high and each != middle
    )


def _attempt_key(attempt: Mapping[str, Any]) -> str:
    return json.dumps(attempt, sort_keys=True)
