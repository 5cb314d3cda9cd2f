"""Climbs the ladder: up until the wish is met, then back down to the cheapest attempt that still meets it.

With limits alone it tries mixes of widths instead, and takes the most accurate that keeps them.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..analysis.sensitivity.journal import Journal, hashed
from ..analysis.sensitivity.layers import widths
from ..errors import ConstraintError
from ..flow import (
    Compared,
    Observed,
    Planned,
    Prepared,
    QuantizedModel,
    assign_scales,
    compared,
    observe_model,
    refined,
    with_best_effort,
)
from ..graph import ir
from ..run.data import Progress
from ..targets import Target
from .cost import AttemptCost, cost_of
from .goal import Goal, Measured
from .ladder import EFFORTS, MOST_FLOAT, Attempt, NarrowLayer, narrow_weights, rungs
from .mixes import mixes_within
from .records import cost_in, is_whole, record_of

__all__ = ["Found", "AttemptResult", "search"]

_MOST = 15  # attempts that are evaluated
_PART = "attempts"  # of the journal


@dataclass(frozen=True)
class AttemptResult:
    """An attempt that was made, what it gave and what it costs.

    measured, cost : None where it is not allowed, for `why`. ready : for a chip, where the platform is one.
    over : by which share of a limit it costs more than that; infinite where nobody knows what it costs.
    fills : whether what keeps the limits is judged by its value alone.
    """

    attempt: Attempt
    measured: Measured | None
    cost: AttemptCost | None
    seconds: float
    ready: bool = True
    why: str = ""
    over: float = 0.0
    fills: bool = False

    @property
    def met(self) -> bool:
        """Whether the wish is met."""
        return self.measured is not None and self.measured.missing <= 0 and self.over <= 0

    @property
    def missing(self) -> float:
        """What is missing to the wish; infinite where the attempt is not allowed."""
        return math.inf if self.measured is None else self.measured.missing

    @property
    def rank(self) -> tuple[float, ...]:
        """Less is better: the cheapest of those that meet the wish, else of those fit for a chip what is missing."""
        if self.measured is None or self.cost is None:
            return (2,)
        cost: tuple[float, ...] = self.cost.work, self.cost.bytes
        cost = (-self.measured.value, *cost) if self.fills else cost
        return (0, *cost) if self.met else (1, not self.ready, max(self.measured.missing, 0.0), self.over, *cost)


@dataclass(frozen=True)
class Found:
    """What a search ends with.

    trials : in the order in which they were made. chosen : the best of them. stopped : why it ended, and where the
    wish is not met what would be needed. weight_bits : {layer of the chosen one: bits of its weights}.
    """

    goal: Goal
    target: Target
    trials: Sequence[AttemptResult]
    chosen: AttemptResult
    stopped: str
    weight_bits: Mapping[str, int] = field(default_factory=dict)

    @property
    def _measured(self) -> Measured:
        assert self.chosen.measured is not None
        return self.chosen.measured

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values, for the report."""
        return {
            "goal": self.goal.text,
            "unit": self.goal.unit,
            "met": self.chosen.met,
            "stopped": self.stopped,
            "options": self.chosen.attempt.options(self.target),
            "float": self._measured.float_value,
            "wanted": None if self.goal.fills else self._measured.value + self._measured.missing,
            "weight_bits": dict(self.weight_bits),
            "trials": [
                {
                    "what": trial.attempt.text,
                    "options": trial.attempt.options(self.target),
                    "value": None if trial.measured is None else trial.measured.value,
                    "missing": None if trial.measured is None else max(trial.measured.missing, 0.0),
                    "met": trial.met,
                    "chosen": trial is self.chosen,
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


class _Stop(Exception):
    """The search ends; its text says why."""


def search(
    base: Compared,
    goal: Goal,
    *,
    minutes: float | None = None,
    log: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> tuple[QuantizedModel, Found]:
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

    Raises
    ------
    ConfigError, DataError
        For a goal that cannot be measured, and for a log of another search.
    ConstraintError
        With require_chip, where what the user asked for is not chip-ready.
    """
    goal.check()
    goal.check_time(base.planned.target)
    with Journal(None if log is None else Path(log), _header(base, goal), resume) as journal:
        climb = _Climb(base, goal, minutes, journal, progress)
        stopped = climb.run()
    trials = list(climb.trials.values())
    chosen = min(trials, key=lambda trial: trial.rank)
    made = climb.made(chosen.attempt)
    result = made.checked
    outcome = Found(goal, base.planned.target, trials, chosen, stopped, widths(made.planned))
    warnings = list(result.report.warnings)
    if not chosen.met:
        assert chosen.measured is not None
        value = f"{chosen.measured.value:.4g} {goal.unit}".rstrip() + f" is the best of {len(trials)} attempts"
        warnings.insert(0, f"the wish is not met ({goal.text}): {stopped if goal.fills else value}")
    report = replace(result.report, search=outcome.to_dict(), warnings=tuple(warnings))
    return replace(result, report=report), outcome


def _header(base: Compared, goal: Goal) -> dict[str, object]:
    """Return what the results of a search depend on."""
    return {
        "model": hashed(ir.to_bytes(base.planned.original)),
        "plan (calibration data, settings)": hashed(base.planned.plan.to_json().encode()),
        "goal": goal.text,
        "limit": goal.limit,
    }


class _Climb:
    """The attempts of one search; `trials` holds them as they are made."""

    def __init__(
        self, base: Compared, goal: Goal, minutes: float | None, journal: Journal, progress: Progress | None
    ) -> None:
        self._base, self._goal, self._journal, self._progress = base, goal, journal, progress
        self._row = base.planned.target
        self._began, self._minutes = time.monotonic(), minutes
        labels = goal.max_drop is not None
        self._known = {_key(r["attempt"]): r for r in journal.records(_PART) if is_whole(r, labels)}
        #: The best attempt so far.
        self._best: tuple[Attempt, Compared] = (Attempt(), base)
        self._calibrated: dict[str, Observed] = {}
        self.trials: dict[Attempt, AttemptResult] = {}

    def run(self) -> str:
        """Climb; return why it ended."""
        try:
            if self._goal.fills:
                return self._fill()
            start = self._efforts()
            if (dear := self.trials[start]).missing <= 0 < dear.over:  # what is more accurate costs no less
                return f"accurate enough, but {self._beyond(dear)}; take a smaller model"
            if self.trials[start].met or any(self._climb(rung) for rung in rungs(self._planned(start), start)):
                return "met"
            return self._needed()
        except (_Stop, KeyboardInterrupt) as stop:
            if not self.trials:
                raise
            return str(stop) or "interrupted; --resume goes on"

    # ---- climbing ----------------------------------------------------------------------------------------------

    def _efforts(self) -> Attempt:
        """Try what was asked for, then more effort, which costs nothing where the model runs; return the best."""
        asked = self._base.planned.conf.effort
        best = Attempt()
        for attempt in (best, *(Attempt(effort) for effort in EFFORTS[EFFORTS.index(asked) + 1 :])):
            trial = self._try(attempt)
            if trial.measured is None and attempt == Attempt():
                raise ConstraintError(trial.why)
            if trial.met:
                return attempt
            best = min((best, attempt), key=lambda candidate: self.trials[candidate].rank)
        return best

    def _climb(self, rung: Sequence[Attempt]) -> bool:
        """Whether an attempt of the rung meets the wish: try the 1st, 2nd, 4th ..., then look between."""
        low, high, step = -1, -1, 0
        while low < len(rung) - 1:
            place = min(step, len(rung) - 1)
            trial = self._try(rung[place])
            if trial.met:
                high = place
                break
            low, step = place, 2 * step + 1
        if high < 0:
            return False
        while high - low > 1:
            middle = (low + high) // 2
            if self._try(rung[middle]).met:
                high = middle
            else:
                low = middle
        return True

    def _fill(self) -> str:
        """Try mixes of widths up to the limits; return how that ended."""
        bits = self._base.planned.conf.bits

        def tried(wide: Sequence[NarrowLayer]) -> list[float]:
            trial = self._try(Attempt(wide=tuple((layer.selector, bits, bits) for layer in wide)))
            return [share for share, _ in self._goal.spent(trial.cost)]

        if mixes_within(narrow_weights(self._base.planned), tried):
            return "met"
        near = min(self.trials.values(), key=lambda trial: trial.rank)
        if near.measured is None:
            raise ConstraintError(near.why)
        return f"nearest is '{near.attempt.text}': {self._beyond(near)}; take a smaller model"

    def _beyond(self, trial: AttemptResult) -> str:
        """Return what an attempt costs more than it may."""
        return " and ".join(words for share, words in self._goal.spent(trial.cost) if share > 1)

    def _needed(self) -> str:
        """Return what would meet the wish where the ladder does not."""
        near = min(self.trials.values(), key=lambda trial: trial.missing)
        why = f"nearest is '{near.attempt.text}' with {near.missing:.3g} missing"
        why += f"; more would leave over {MOST_FLOAT:.0%} of the multiply-accumulates in float"
        wider = "" if max(self._row.bits) > 8 else f"; {self._row.name} computes in 8 bits only, generic in 16"
        return f"{why}{wider}; what is left needs another model or training (lingeronnx finetune)"

    def _try(self, attempt: Attempt) -> AttemptResult:
        if attempt in self.trials:
            return self.trials[attempt]
        record, result = self._known.get(_key(asdict(attempt))), None
        if record is None:
            self._check_room()
            record, result = self._record(attempt)
            self._journal.add({"part": _PART, **record})
        trial = self._read(attempt, record)
        if result is not None and all(trial.rank < other.rank for other in self.trials.values()):
            self._best = attempt, result
        self.trials[attempt] = trial
        return trial

    def _check_room(self) -> None:
        """Raise _Stop where no more attempts may be made, once there is one."""
        if not self.trials:
            return
        if len(self.trials) >= _MOST:
            raise _Stop(f"{_MOST} attempts were made")
        longest = max(trial.seconds for trial in self.trials.values())
        spent = time.monotonic() - self._began
        if self._minutes is not None and spent + longest > 60 * self._minutes:
            raise _Stop(f"the budget of {self._minutes:g} minutes is spent; --resume with a larger one goes on")

    def _record(self, attempt: Attempt) -> tuple[dict[str, Any], Compared | None]:
        """Make an attempt; return what goes to the log, and what was made, None where that is not allowed."""
        began = time.monotonic()
        record: dict[str, Any] = {"attempt": asdict(attempt)}
        if self._progress is not None:
            self._progress(f"attempt {len(self.trials) + 1}", 0, None)
        try:
            attempt_made = self.made(attempt)
            result = attempt_made.checked
        except ConstraintError as error:
            return {**record, "why": str(error), "seconds": time.monotonic() - began}, None
        known = next((t.measured.float_value for t in self.trials.values() if t.measured is not None), None)
        measure, cost = self._goal.measure(result, known, self._progress), cost_of(attempt_made)
        entry = record_of(measure, cost, result.report.chip_ready or not result.report.is_chip)
        return {**record, **entry, "seconds": time.monotonic() - began}, attempt_made

    def _read(self, attempt: Attempt, record: Mapping[str, Any]) -> AttemptResult:
        if "why" in record:
            return AttemptResult(attempt, None, None, record["seconds"], why=record["why"])
        measure, cost = self._goal.measured(record["value"], record.get("float")), cost_in(record)
        over = max((share - 1 for share, _ in self._goal.spent(cost)), default=0.0)
        fills = self._goal.fills
        return AttemptResult(attempt, measure, cost, record["seconds"], record["ready"], over=max(over, 0), fills=fills)

    # ---- making ------------------------------------------------------------------------------------------------

    def made(self, attempt: Attempt) -> Compared:
        """Return what an attempt makes; the best is not made again, unless it was read from the log."""
        if self._best[0] == attempt:
            return self._best[1]
        prepared, planned = self._prepared(attempt), self._planned(attempt)
        model = compared(prepared, planned, refined(planned, progress=self._progress), self._progress)
        return with_best_effort(model, self._progress) if planned.conf.effort == "best" else model

    def _prepared(self, attempt: Attempt) -> Prepared:
        """Return the model under the attempt's settings."""
        conf = self._base.prepared.conf.model_copy(update={"effort": self._observed(attempt).effort})
        return replace(self._base.prepared, conf=attempt.config(conf, self._row))

    def _planned(self, attempt: Attempt) -> Planned:
        if self._best[0] == attempt:
            return self._best[1].planned
        observed, prepared = self._observed(attempt), self._prepared(attempt)
        parts = observed.parts
        names = prepared.selectors(parts.graph).skipped(attempt.floats)
        if more := {name: "left in float for accuracy" for name in names if name in parts.ops}:
            parts = parts.without(more)
        return assign_scales(prepared, replace(observed, parts=parts))

    def _observed(self, attempt: Attempt) -> Observed:
        """Return what calibration saw under the attempt's effort: the data run once for each."""
        prepared, observed = self._base.prepared, self._base.planned.observed
        effort = attempt.effort or prepared.conf.effort
        if effort not in self._calibrated:
            if effort == prepared.conf.effort and observed is not None:
                self._calibrated[effort] = observed
            else:
                conf = prepared.conf.model_copy(update={"effort": effort})
                self._calibrated[effort] = observe_model(replace(prepared, conf=conf), self._progress)
        return self._calibrated[effort]


def _key(attempt: Mapping[str, Any]) -> str:
    return json.dumps(attempt, sort_keys=True)
