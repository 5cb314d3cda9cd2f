"""Makes attempts and measures them: here, or side by side on a cluster.

A cluster makes more than the climb has asked for: what it may ask for next, whatever becomes of the
attempts before. The climb takes of these what it would have made itself, so that it ends with the
same attempts and the same figures.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ..analysis.sensitivity.journal import hash_parts
from ..errors import ConfigError, ConstraintError
from ..flow import (
    CalibrationResult,
    Candidate,
    PlannedModel,
    PreparedModel,
    assign_scales,
    build_candidate,
    calibrate_model,
    refine_weights,
    try_best_effort,
)
from ..graph import ir
from ..run.cluster import map_jobs
from ..run.data import Progress
from .cost import measure_cost
from .goal import Goal
from .ladder import Attempt
from .records import Record, make_record

__all__ = ["AttemptPrefetcher", "AttemptRunner", "StartFactory", "journal_header"]

#: Returns what the user's options give, in another process too.
StartFactory = Callable[[], Candidate]


def journal_header(base: Candidate, goal: Goal) -> dict[str, object]:
    """Return what the results of a search depend on."""
    return {**_start_digest(base), "goal": goal.text, "limit": goal.limit}


def _start_digest(base: Candidate) -> dict[str, object]:
    return {
        "model": hash_parts(ir.to_bytes(base.planned.original)),
        "plan (calibration data, settings)": hash_parts(base.planned.plan.content),
    }


class AttemptRunner:
    """Makes attempts of one search from `base`, what the user's options give.

    Remembers the best that was kept.
    """

    def __init__(self, base: Candidate, goal: Goal, progress: Progress | None = None) -> None:
        self._base, self._goal, self._progress = base, goal, progress
        self._best: tuple[Attempt, Candidate] = (Attempt(), base)
        self._calibrated: dict[str, CalibrationResult] = {}

    def run_attempt(
        self, attempt: Attempt, float_value: float | None
    ) -> tuple[Record, Candidate | None]:
        """Make an attempt; return what goes to the log, and what was made, None where that is not allowed.

        float_value : the metric of the float model where it is known, which is not measured again.
        """
        began = time.monotonic()
        record: Record = {"attempt": asdict(attempt)}
        try:
            attempt_made = self.build_candidate(attempt)
            result = attempt_made.checked_model
        except ConstraintError as error:
            return {**record, "why": str(error), "seconds": time.monotonic() - began}, None
        measure, cost = (
            self._goal.measure(result, float_value, self._progress),
            measure_cost(attempt_made),
        )
        entry = make_record(measure, cost, result.report.chip_ready or not result.report.is_chip)
        return {**record, **entry, "seconds": time.monotonic() - began}, attempt_made

    def keep_best(self, attempt: Attempt, made: Candidate) -> None:
        """Remember the best attempt so far, which is not made again."""
        self._best = attempt, made

    def build_candidate(self, attempt: Attempt) -> Candidate:
        """Return what an attempt makes.

        The best is not made again, unless it was read from the log.
        """
        if self._best[0] == attempt:
            return self._best[1]
        prepared, planned = self._prepare_attempt(attempt), self.plan_attempt(attempt)
        model = build_candidate(
            prepared, planned, refine_weights(planned, progress=self._progress), self._progress
        )
        return try_best_effort(model, self._progress) if planned.config.effort == "best" else model

    def plan_attempt(self, attempt: Attempt) -> PlannedModel:
        """Return the plan of an attempt."""
        if self._best[0] == attempt:
            return self._best[1].planned
        observed, prepared = self._calibrate_attempt(attempt), self._prepare_attempt(attempt)
        parts = observed.partition
        names = prepared.selectors(parts.graph).resolve_skips(attempt.floats)
        if more := {name: "left in float for accuracy" for name in names if name in parts.ops}:
            parts = parts.move_to_float(more)
        return assign_scales(prepared, replace(observed, partition=parts))

    def _prepare_attempt(self, attempt: Attempt) -> PreparedModel:
        """Return the model under the attempt's settings."""
        conf = self._base.prepared.conf.model_copy(
            update={"effort": self._calibrate_attempt(attempt).effort}
        )
        return replace(self._base.prepared, conf=attempt.apply_to(conf, self._base.planned.target))

    def _calibrate_attempt(self, attempt: Attempt) -> CalibrationResult:
        """Return what calibration saw under the attempt's effort: the data run once for each."""
        prepared, observed = self._base.prepared, self._base.planned.calibration
        effort = attempt.effort or prepared.conf.effort
        if effort not in self._calibrated:
            if effort == prepared.conf.effort and observed is not None:
                self._calibrated[effort] = observed
            else:
                conf = prepared.conf.model_copy(update={"effort": effort})
                self._calibrated[effort] = calibrate_model(
                    replace(prepared, conf=conf), self._progress
                )
        return self._calibrated[effort]


# ---- side by side ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AttemptJob:
    """Attempts as items of work: each worker begins the search once for itself.

    start_digest : of the search here; a worker that begins with something else would give other
    figures.
    """

    create_start: StartFactory
    goal: Goal
    start_digest: Mapping[str, object]

    def start(self) -> Callable[[tuple[Attempt, float | None]], Record]:
        """Return what makes one attempt and returns its record."""
        base = self.create_start()
        for what, value in _start_digest(base).items():
            if value != self.start_digest[what]:
                raise ConfigError(
                    f"a worker of the cluster begins with another {what} than this machine; all "
                    "need the same files, "
                    "the same versions and the same kind of processor"
                )
        maker = AttemptRunner(base, self.goal)
        return lambda item: maker.run_attempt(*item)[0]


class AttemptPrefetcher:
    """Records of attempts that a Dask cluster makes side by side, before the climb asks for them.

    begin : as `_AttemptJob` has it. cluster : the address of the scheduler; None: nothing is made
    ahead.
    """

    def __init__(
        self, base: Candidate, goal: Goal, begin: StartFactory | None, cluster: str | None
    ) -> None:
        self._cluster = cluster
        self._job = (
            None
            if begin is None or cluster is None
            else _AttemptJob(begin, goal, _start_digest(base))
        )
        self._records: dict[Attempt, Record] = {}
        self._coming: Generator[tuple[Attempt, Record], None, None] | None = None
        self._awaited: set[Attempt] = set()

    def record(
        self, attempt: Attempt, next_ones: Iterable[Attempt], float_value: float | None
    ) -> Record | None:
        """Return the record of an attempt; None without a cluster.

        Where it is not on its way, what is comes to its end, and it and `next_ones` are given out
        in its place.
        """
        if self._job is None:
            return None
        if attempt not in self._records and attempt not in self._awaited:
            self.close()
            new = [
                each for each in dict.fromkeys((attempt, *next_ones)) if each not in self._records
            ]
            self._awaited = set(new)
            self._coming = self._dispatch(self._job, new, float_value)
        while attempt not in self._records:
            assert self._coming is not None
            done, record = next(self._coming)
            self._records[done] = record
        return self._records[attempt]

    def _dispatch(
        self, job: _AttemptJob, attempts: Sequence[Attempt], float_value: float | None
    ) -> Generator[tuple[Attempt, Record], None, None]:
        items = ((attempt, float_value) for attempt in attempts)
        with contextlib.closing(map_jobs(job, items, cluster=self._cluster)) as records:
            yield from zip(attempts, records, strict=True)

    def close(self) -> None:
        """Give up what is on its way."""
        if self._coming is not None:
            self._coming.close()
        self._coming, self._awaited = None, set()
