"""Search for the cheapest attempt that meets a goal: climb the ladder, then bisect the last rung.

With limits alone, mixes of narrow and wide weights are tried instead, and the most accurate result
within the limits is selected.
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
from ..common.errors import ConstraintError
from ..quantization import Candidate, QuantizedModel
from ..quantization.recipe import EFFORTS
from ..runtime.data import Progress
from ..targets import Target
from .attempts import AttemptPrefetcher, AttemptRunner, StartFactory, journal_header
from .cost import AttemptCost
from .goal import Goal, Measurement
from .ladder import (
    MAX_FLOAT_MAC_FRACTION,
    Attempt,
    NarrowLayer,
    iter_rungs,
    rank_narrow_layers,
)
from .mixes import search_mixes
from .records import is_complete, parse_cost

__all__ = ["SearchResult", "AttemptResult", "search"]

_MAX_ATTEMPTS = 15
_JOURNAL_PART = "attempts"  # value of "part" in the journal's records


@dataclass(frozen=True)
class AttemptResult:
    """An attempt with its measured accuracy and cost.

    Parameters
    ----------
    attempt
        The options that were tried.
    measurement, cost
        Accuracy and cost, or None if a constraint does not allow the attempt.
    seconds
        Time spent on the attempt.
    is_chip_ready
        Whether the result is fit for the chip; True if the platform is not a chip.
    reason
        Why the attempt is not allowed, or "".
    limit_excess
        By which fraction of its limit a cost exceeds it, for the limit that is exceeded most; 0 if
        all limits are kept, infinite if the cost is unknown.
    is_ranked_by_value
        Whether attempts within the limits are ranked by accuracy instead of cost.
    """

    attempt: Attempt
    measurement: Measurement | None
    cost: AttemptCost | None
    seconds: float
    is_chip_ready: bool = True
    reason: str = ""
    limit_excess: float = 0.0
    is_ranked_by_value: bool = False

    @property
    def meets_goal(self) -> bool:
        """Whether the attempt was measured, reaches the accuracy target and keeps all limits.

        That is a shortfall and a limit excess of 0 or less.
        """
        return (
            self.measurement is not None
            and self.measurement.shortfall <= 0
            and self.limit_excess <= 0
        )

    @property
    def shortfall(self) -> float:
        """The accuracy missing to the goal, in the goal's unit.

        Infinite if the attempt is not allowed. Zero or negative if the accuracy target is reached.
        """
        return math.inf if self.measurement is None else self.measurement.shortfall

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key of attempts, best first.

        Attempts that meet the goal come first, by cost (or by accuracy, then cost). Then come the
        others: chip-ready ones first, by shortfall, limit excess and cost. Attempts that are not
        allowed come last.
        """
        if self.measurement is None or self.cost is None:
            return (2,)
        cost_key: tuple[float, ...] = self.cost.work, self.cost.bytes
        if self.is_ranked_by_value:
            cost_key = (-self.measurement.value, *cost_key)
        if self.meets_goal:
            return (0, *cost_key)
        missing = max(self.measurement.shortfall, 0.0)
        return (1, not self.is_chip_ready, missing, self.limit_excess, *cost_key)


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search.

    Parameters
    ----------
    goal, target
        Requirement and platform of the search.
    trials
        Results of all attempts in the order in which they were made.
    best
        The attempt with the best rank.
    stop_reason
        "met", or why the search ended and how the goal might be met.
    weight_bits
        Bits of the weights by layer, for the best attempt.
    """

    goal: Goal
    target: Target
    trials: Sequence[AttemptResult]
    best: AttemptResult
    stop_reason: str
    weight_bits: Mapping[str, int] = field(default_factory=dict)

    @property
    def _measurement(self) -> Measurement:
        """The accuracy of the best attempt, which must have been measured."""
        assert self.best.measurement is not None
        return self.best.measurement

    def to_dict(self) -> dict[str, object]:
        """Return the goal, whether it is met, the options of the best attempt and all attempts.

        The values are JSON-ready; a report of `quantize` has them as `search`.
        """
        required = None
        if not self.goal.is_limits_only:
            required = self._measurement.value + self._measurement.shortfall
        return {
            "goal": self.goal.text,
            "unit": self.goal.unit,
            "met": self.best.meets_goal,
            "stopped": self.stop_reason,
            "options": self.best.attempt.to_cli_options(self.target),
            "float": self._measurement.float_value,
            "wanted": required,
            "weight_bits": dict(self.weight_bits),
            "trials": [self._trial_to_dict(trial) for trial in self.trials],
        }

    def _trial_to_dict(self, trial: AttemptResult) -> dict[str, object]:
        """Return the options, accuracy, costs and outcome of one attempt as JSON values.

        Accuracy and costs are None where they were not measured; the shortfall is at least 0.
        """
        measurement, cost = trial.measurement, trial.cost
        return {
            "what": trial.attempt.description,
            "options": trial.attempt.to_cli_options(self.target),
            "value": None if measurement is None else measurement.value,
            "missing": None if measurement is None else max(measurement.shortfall, 0.0),
            "met": trial.meets_goal,
            "chosen": trial is self.best,
            "bytes": None if cost is None else cost.bytes,
            "macs": None if cost is None else dict(cost.macs),
            "work": None if cost is None else cost.work,
            "cycles": None if cost is None else cost.cycles,
            "flash": None if cost is None else cost.flash,
            "seconds": trial.seconds,
            "why": trial.reason,
        }


class _SearchStopped(Exception):
    """Raised to end the search; the message is the reason."""


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
    """Search for the cheapest attempt that meets `goal`, or the best one if none does.

    Parameters
    ----------
    base
        Candidate quantized with the user's options.
    goal
        Accuracy target and limits.
    minutes
        Time budget. No attempt is started that would probably exceed it, judged by the longest
        attempt so far.
    log
        Journal file to which every attempt is written as soon as it is measured.
    resume
        Reuse the attempts stored in `log`.
    progress
        Called with the current activity, the completed items, and their total or None.
    create_start, cluster
        Address of a Dask cluster that runs attempts in parallel, and a function that creates `base`
        on its workers. The attempts that count and their figures are the same to the last bit.

    Returns
    -------
    model : QuantizedModel
        Result of the best attempt. If it does not meet the goal, its report has a warning.
    outcome : SearchResult
        All attempts, the best one, and why the search ended.

    Raises
    ------
    ConfigError, DataError
        If the goal cannot be measured, if the log belongs to another search, or if the cluster does
        not answer or starts from something else.
    ConstraintError
        With require_chip, if the user's own options do not give a chip-ready result.
    """
    goal.check()
    goal.validate_time_limit(base.planned.prepared.target)
    prefetcher = AttemptPrefetcher(base, goal, create_start, cluster)
    runner = AttemptRunner(base, goal, progress)
    journal_path = None if log is None else Path(log)
    with (
        Journal(journal_path, journal_header(base, goal), resume) as journal,
        contextlib.closing(prefetcher),
    ):
        state = _Search(base, goal, minutes, journal, runner, prefetcher, progress)
        stop_reason = state.run()
    trials = list(state.trials.values())
    best = min(trials, key=lambda trial: trial.rank)
    candidate = runner.build_candidate(best.attempt)
    result = candidate.checked_model
    weight_bits = weight_bits_by_operator(candidate.planned)
    outcome = SearchResult(
        goal, base.planned.prepared.target, trials, best, stop_reason, weight_bits
    )
    warnings = list(result.report.warnings)
    if not best.meets_goal:
        assert best.measurement is not None
        reason = stop_reason
        if not goal.is_limits_only:
            value = f"{best.measurement.value:.4g} {goal.unit}".rstrip()
            reason = f"{value} is the best of {len(trials)} attempts"
        warnings.insert(0, f"search goal not met ({goal.text}): {reason}")
    report = replace(result.report, search=outcome.to_dict(), warnings=tuple(warnings))
    return result.with_report(report), outcome


class _Search:
    """State of one search; `trials` has the results of all attempts so far."""

    def __init__(
        self,
        base: Candidate,
        goal: Goal,
        minutes: float | None,
        journal: Journal,
        runner: AttemptRunner,
        prefetcher: AttemptPrefetcher,
        progress: Progress | None,
    ) -> None:
        """Start the clock, and read the journal's complete records of earlier attempts.

        `minutes` is the time budget; None: unlimited.
        """
        self._base, self._goal, self._journal, self._progress = base, goal, journal, progress
        self._runner, self._prefetcher = runner, prefetcher
        self._target = base.planned.prepared.target
        self._start_time, self._minutes = time.monotonic(), minutes
        has_labels = goal.max_drop is not None
        self._stored_records = {
            _attempt_key(record["attempt"]): record
            for record in journal.records(_JOURNAL_PART)
            if is_complete(record, has_labels)
        }
        self.trials: dict[Attempt, AttemptResult] = {}

    def run(self) -> str:
        """Make attempts until the goal is met or nothing is left to try; return why it ended.

        A goal of limits only is searched by mixes of widths, others by the ladder. A stop or an
        interruption before the first result is raised.
        """
        try:
            if self._goal.is_limits_only:
                return self._search_mixes()
            return self._climb_ladder()
        except (_SearchStopped, KeyboardInterrupt) as stop:
            if not self.trials:
                raise
            return str(stop) or "interrupted; continue with --resume"

    # ---- the search -----------------------------------------------------------------------

    def _climb_ladder(self) -> str:
        """Search rung by rung, from the cheapest attempts on, for one that meets the goal.

        Returns "met", or a sentence on why the search ended. It ends at once if the cheapest
        attempt is accurate enough but exceeds a limit, since more accurate ones do not cost less.
        """
        start = self._try_efforts()
        start_result = self.trials[start]
        if start_result.shortfall <= 0 < start_result.limit_excess:
            # more accurate attempts do not cost less
            excess = self._format_excess(start_result)
            return f"accurate enough, but {excess}; use a smaller model"
        if start_result.meets_goal:
            return "met"
        for rung in iter_rungs(self._runner.plan_attempt(start), start):
            if self._search_rung(rung):
                return "met"
        return self._format_unmet()

    def _try_efforts(self) -> Attempt:
        """Try the user's options, then higher efforts, which cost nothing when the model runs.

        Returns the first attempt that meets the goal, else the best one.

        Raises
        ------
        ConstraintError
            If the user's own options cannot be measured.
        """
        user_effort = self._base.planned.prepared.conf.effort
        higher_efforts = EFFORTS[EFFORTS.index(user_effort) + 1 :]
        best = Attempt()
        attempts = (best, *(Attempt(effort) for effort in higher_efforts))
        for attempt in attempts:
            result = self._run_attempt(attempt, attempts)
            if result.measurement is None and attempt == Attempt():
                raise ConstraintError(result.reason)
            if result.meets_goal:
                return attempt
            best = min((best, attempt), key=lambda candidate: self.trials[candidate].rank)
        return best

    def _search_rung(self, rung: Sequence[Attempt]) -> bool:
        """Search a rung, attempts by rising cost, for the first that meets the goal.

        The 1st, 2nd, 4th ... and at last the last attempt are tried until one meets the goal;
        bisection then finds the first that does. Returns whether one meets it.
        """
        last = len(rung) - 1
        failed, met, step = -1, -1, 0
        while failed < last:
            index = min(step, last)
            likely_next = (rung[i] for i in _galloping_indices(len(rung)))
            if self._run_attempt(rung[index], likely_next).meets_goal:
                met = index
                break
            failed, step = index, 2 * step + 1
        if met < 0:
            return False
        while met - failed > 1:
            middle = (failed + met) // 2
            likely_next = (rung[i] for i in _bisection_indices(failed, met))
            if self._run_attempt(rung[middle], likely_next).meets_goal:
                met = middle
            else:
                failed = middle
        return True

    def _search_mixes(self) -> str:
        """Try mixes of weight widths within the limits; return why the search ended.

        A mix widens some of the narrow layers to the bits of the data; none and all are tried in
        any case. The result is "met" if any mix keeps the limits, else a sentence on the best one.

        Raises
        ------
        ConstraintError
            If not even the closest attempt could be measured.
        """
        bits = self._base.planned.prepared.conf.bits
        narrow_layers = rank_narrow_layers(self._base.planned)

        def widen_layers(layers: Sequence[NarrowLayer]) -> Attempt:
            """Return the attempt that gives data and weights of `layers` the bits of the data."""
            return Attempt(wide=tuple((layer.selector, bits, bits) for layer in layers))

        extremes = (widen_layers(()), widen_layers(narrow_layers))  # both are tried in any case

        def evaluate_mix(wide_layers: Sequence[NarrowLayer]) -> list[float]:
            """Run the attempt with wide weights in `wide_layers`.

            Return the used fraction of each limit.
            """
            result = self._run_attempt(widen_layers(wide_layers), extremes)
            return [fraction for fraction, _ in self._goal.limit_usage(result.cost)]

        if search_mixes(narrow_layers, evaluate_mix):
            return "met"
        nearest = min(self.trials.values(), key=lambda trial: trial.rank)
        if nearest.measurement is None:
            raise ConstraintError(nearest.reason)
        return (
            f"closest attempt is '{nearest.attempt.description}': {self._format_excess(nearest)}; "
            "use a smaller model"
        )

    def _format_excess(self, result: AttemptResult) -> str:
        """Return the costs of an attempt that exceed their limits as text; "" if none does."""
        usage = self._goal.limit_usage(result.cost)
        return " and ".join(text for fraction, text in usage if fraction > 1)

    def _format_unmet(self) -> str:
        """Explain how close the ladder came to the goal, and how it might be reached.

        The closest attempt is that of the least shortfall.
        """
        nearest = min(self.trials.values(), key=lambda trial: trial.shortfall)
        reason = (
            f"closest attempt is '{nearest.attempt.description}', {nearest.shortfall:.3g} short of "
            f"the goal; more layers would put over {MAX_FLOAT_MAC_FRACTION:.0%} of the "
            "multiply-accumulates in float"
        )
        if max(self._target.bits) <= 8:
            reason += f"; {self._target.name} computes in 8 bits only, generic in 16"
        return f"{reason}; improve the model or train it further (lingeronnx finetune)"

    def _run_attempt(self, attempt: Attempt, likely_next: Iterable[Attempt] = ()) -> AttemptResult:
        """Return the result of an attempt: from memory, from the journal, or by running it.

        Before it runs, the budget is checked, which may end the search (_SearchStopped). The result
        is added to `trials`, a new one to the journal too, and the candidate is kept if it was
        built here and is the best so far. A cluster computes the attempts of `likely_next` in
        parallel.
        """
        if attempt in self.trials:
            return self.trials[attempt]
        record = self._stored_records.get(_attempt_key(asdict(attempt)))
        candidate = None
        if record is None:
            self._check_budget()
            if self._progress is not None:
                self._progress(f"attempt {len(self.trials) + 1}", 0, None)
            float_value = self._float_value()
            unknown = (other for other in likely_next if self._is_new(other))
            record = self._prefetcher.record(attempt, unknown, float_value)
            if record is None:
                record, candidate = self._runner.run_attempt(attempt, float_value)
            self._journal.add({"part": _JOURNAL_PART, **record})
        result = self._parse_record(attempt, record)
        is_best = all(result.rank < earlier.rank for earlier in self.trials.values())
        if candidate is not None and is_best:
            self._runner.keep_best(attempt, candidate)
        self.trials[attempt] = result
        return result

    def _float_value(self) -> float | None:
        """Return the metric of the float model, or None if it is not known.

        It is known after the first measured attempt, if the goal has `max_drop`.
        """
        for trial in self.trials.values():
            if trial.measurement is not None:
                return trial.measurement.float_value
        return None

    def _is_new(self, attempt: Attempt) -> bool:
        """Whether an attempt has neither been made nor is stored in the journal."""
        return (
            attempt not in self.trials and _attempt_key(asdict(attempt)) not in self._stored_records
        )

    def _check_budget(self) -> None:
        """Raise _SearchStopped if the number of attempts or the time budget is used up.

        The time counts as used up if another attempt as long as the longest so far would exceed it.
        The first attempt is always made.
        """
        if not self.trials:
            return
        if len(self.trials) >= _MAX_ATTEMPTS:
            raise _SearchStopped(f"limit of {_MAX_ATTEMPTS} attempts reached")
        longest_seconds = max(trial.seconds for trial in self.trials.values())
        elapsed_seconds = time.monotonic() - self._start_time
        if self._minutes is not None and elapsed_seconds + longest_seconds > 60 * self._minutes:
            raise _SearchStopped(
                f"time budget of {self._minutes:g} minutes exhausted; continue with --resume and a "
                "larger budget"
            )

    def _parse_record(self, attempt: Attempt, record: Mapping[str, Any]) -> AttemptResult:
        """Create the result of an attempt from its journal record.

        A record with "why" is of an attempt that is not allowed, without measurement and cost.
        """
        if "why" in record:
            return AttemptResult(attempt, None, None, record["seconds"], reason=record["why"])
        cost = parse_cost(record)
        usage = self._goal.limit_usage(cost)
        excess = max((fraction - 1 for fraction, _ in usage), default=0.0)
        return AttemptResult(
            attempt,
            self._goal.create_measurement(record["value"], record.get("float")),
            cost,
            record["seconds"],
            record["ready"],
            limit_excess=max(excess, 0),
            is_ranked_by_value=self._goal.is_limits_only,
        )


def _galloping_indices(count: int) -> Iterator[int]:
    """Yield the indices that a galloping search over `count` items tries: 0, 1, 3, 7 ..., last.

    `count` must be at least 1.
    """
    index = 0
    while index < count - 1:
        yield index
        index = 2 * index + 1
    yield count - 1


def _bisection_indices(low: int, high: int) -> Iterator[int]:
    """Yield the indices that a bisection of (low, high) may try after its middle.

    These are the middles of both halves; the result at the middle decides which one is needed.
    """
    middle = (low + high) // 2
    for quarter in ((low + middle) // 2, (middle + high) // 2):
        if low < quarter < high and quarter != middle:
            yield quarter


def _attempt_key(attempt: Mapping[str, Any]) -> str:
    """Return the JSON of an attempt's fields with sorted keys: its key in the journal."""
    return json.dumps(attempt, sort_keys=True)
