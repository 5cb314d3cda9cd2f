"""Build and measure attempts, on this machine or in parallel on a cluster.

A cluster works ahead: it also builds the attempts that the search may ask for next, whichever way
the pending ones turn out. The search uses only the results that it would have computed itself, so
it ends with the same attempts and the same figures.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ..common.errors import ConfigError, ConstraintError
from ..common.hashing import hash_concatenation
from ..ir import ir
from ..quantization import (
    BestEffortMethods,
    CalibrationResult,
    Candidate,
    PlannedModel,
    PreparedModel,
    RunLog,
    assign_scales,
    build_refined_candidate,
    calibrate_model,
    run_trial,
)
from ..runtime.cluster import map_jobs
from ..runtime.data import Progress
from .cost import measure_cost
from .goal import Goal
from .ladder import Attempt
from .records import Record, make_record

__all__ = ["AttemptPrefetcher", "AttemptRunner", "StartFactory", "journal_header"]

#: Creates the candidate of the user's own options; picklable, so that workers can call it.
StartFactory = Callable[[], Candidate]


def journal_header(base: Candidate, goal: Goal) -> dict[str, object]:
    """Return the header of a search journal: everything that its results depend on.

    Digests of the model and of the plan, the text of the goal, and its limit of samples.
    """
    return {**_start_digest(base), "goal": goal.text, "limit": goal.limit}


def _start_digest(base: Candidate) -> dict[str, object]:
    """Return digests of the float model and of the plan: {name as used in messages: digest}."""
    return {
        "model": hash_concatenation([ir.to_bytes(base.planned.prepared.original)]),
        "plan (calibration data, settings)": hash_concatenation([base.planned.plan.content]),
    }


class AttemptRunner:
    """Builds and measures the attempts of one search.

    Starts from `base`, the candidate of the user's own options, and caches the best attempt so far.
    """

    def __init__(self, base: Candidate, goal: Goal, progress: Progress | None = None) -> None:
        """Store the goal, and `base`, the result of the user's own options, as the best so far."""
        self._base, self._goal, self._progress = base, goal, progress
        self._best: tuple[Attempt, Candidate] = (Attempt(), base)
        self._calibrated: dict[str, CalibrationResult] = {}

    def run_attempt(
        self, attempt: Attempt, float_value: float | None
    ) -> tuple[Record, Candidate | None]:
        """Build and measure an attempt.

        Parameters
        ----------
        attempt
            The options to try.
        float_value
            The metric of the float model, or None to measure it.

        Returns
        -------
        record : dict
            Entry for the journal. If a constraint does not allow the attempt, it has the reason as
            "why" instead of measurements.
        candidate : Candidate or None
            The quantized model, or None if the attempt is not allowed.
        """
        start_time = time.monotonic()
        record: Record = {"attempt": asdict(attempt)}
        try:
            candidate = self.build_candidate(attempt)
            result = candidate.checked_model
        except ConstraintError as error:
            seconds = time.monotonic() - start_time
            return {**record, "why": str(error), "seconds": seconds}, None
        measurement = self._goal.measure(result, float_value, self._progress)
        is_ready = result.report.chip_ready or not result.report.is_chip
        entry = make_record(measurement, measure_cost(candidate), is_ready)
        return {**record, **entry, "seconds": time.monotonic() - start_time}, candidate

    def keep_best(self, attempt: Attempt, candidate: Candidate) -> None:
        """Store `attempt` with its model as the best so far, so that it is not built again."""
        self._best = attempt, candidate

    def build_candidate(self, attempt: Attempt) -> Candidate:
        """Return the model quantized with the options of an attempt: planned, refined and lowered.

        The best attempt so far comes from the cache, if it was built here. If the recipe of the
        effort has further methods, these are tried too.
        """
        if self._best[0] == attempt:
            return self._best[1]
        planned = self.plan_attempt(attempt)
        model = build_refined_candidate(planned, self._progress)
        if not planned.prepared.recipe.tries_methods:
            return model
        return run_trial(BestEffortMethods(), model, RunLog(self._progress))

    def plan_attempt(self, attempt: Attempt) -> PlannedModel:
        """Plan an attempt, with its `floats` (selectors) left in float.

        The best attempt so far is not planned again.
        """
        if self._best[0] == attempt:
            return self._best[1].planned
        calibration = self._calibrate_attempt(attempt)
        prepared = self._prepare_attempt(attempt)
        partition = calibration.partition
        names = prepared.selectors(partition.graph).resolve_skips(attempt.floats)
        float_reasons = {
            name: "left in float for accuracy" for name in names if name in partition.ops
        }
        if float_reasons:
            partition = partition.move_to_float(float_reasons)
        return assign_scales(prepared, replace(calibration, partition=partition))

    def _prepare_attempt(self, attempt: Attempt) -> PreparedModel:
        """Return the start's prepared model with the attempt's settings on top of the user's.

        The effort is the attempt's, or the user's if it has none.
        """
        conf = self._base.prepared.conf.model_copy(
            update={"effort": self._calibrate_attempt(attempt).recipe.effort}
        )
        return replace(
            self._base.prepared, conf=attempt.apply_to(conf, self._base.planned.prepared.target)
        )

    def _calibrate_attempt(self, attempt: Attempt) -> CalibrationResult:
        """Return the calibration of the attempt's effort, computed once per effort.

        An attempt without an effort has the base's, whose calibration is reused.
        """
        prepared, base_calibration = self._base.prepared, self._base.planned.calibration
        effort = attempt.effort or prepared.conf.effort
        if effort not in self._calibrated:
            if effort == prepared.conf.effort and base_calibration is not None:
                self._calibrated[effort] = base_calibration
            else:
                conf = prepared.conf.model_copy(update={"effort": effort})
                self._calibrated[effort] = calibrate_model(
                    replace(prepared, conf=conf), self._progress
                )
        return self._calibrated[effort]


# ---- parallel execution ---------------------------------------------------------------------


@dataclass(frozen=True)
class _AttemptJob:
    """Cluster job that builds and measures attempts; each worker creates its own start.

    Parameters
    ----------
    create_start
        Creates the candidate of the user's options on the worker.
    goal
        Requirement that the attempts are measured for.
    start_digest
        Digest of the start on this machine. A worker with another start would give other figures.
    """

    create_start: StartFactory
    goal: Goal
    start_digest: Mapping[str, object]

    def start(self) -> Callable[[tuple[Attempt, float | None]], Record]:
        """Create the start on this worker, and return a function that measures an attempt.

        The function takes (attempt, metric of the float model or None) and returns the journal
        record.

        Raises
        ------
        ConfigError
            If the start here, in a worker, has other digests than on the machine that made the job.
        """
        base = self.create_start()
        for name, digest in _start_digest(base).items():
            if digest != self.start_digest[name]:
                raise ConfigError(
                    f"a worker of the cluster has a different {name} than this machine; all "
                    "workers need the same files, the same versions and the same kind of processor"
                )
        runner = AttemptRunner(base, self.goal)
        return lambda item: runner.run_attempt(*item)[0]


class AttemptPrefetcher:
    """Computes attempt records on a Dask cluster before the search asks for them.

    Parameters
    ----------
    base, goal
        Start and requirement of the search.
    create_start
        Creates the start on each worker, as in `_AttemptJob`.
    cluster
        Address of the scheduler; None disables prefetching.
    """

    def __init__(
        self, base: Candidate, goal: Goal, create_start: StartFactory | None, cluster: str | None
    ) -> None:
        """Prepare the job for workers of `cluster`.

        Without `cluster` or `create_start` there is no job, and nothing is run ahead.
        """
        self._cluster = cluster
        self._job: _AttemptJob | None = None
        if create_start is not None and cluster is not None:
            self._job = _AttemptJob(create_start, goal, _start_digest(base))
        self._records: dict[Attempt, Record] = {}
        self._incoming: Generator[tuple[Attempt, Record], None, None] | None = None
        self._pending: set[Attempt] = set()

    def record(
        self, attempt: Attempt, likely_next: Iterable[Attempt], float_value: float | None
    ) -> Record | None:
        """Return the journal record of an attempt, waiting for the cluster; None without a cluster.

        If the attempt is neither complete nor pending, the pending ones are cancelled, and it is
        submitted with those of `likely_next`. Complete records are kept for later calls.
        `float_value` is the metric of the float model, or None to measure it.
        """
        if self._job is None:
            return None
        if attempt not in self._records and attempt not in self._pending:
            self.close()
            candidates = dict.fromkeys((attempt, *likely_next))
            submitted = [candidate for candidate in candidates if candidate not in self._records]
            self._pending = set(submitted)
            self._incoming = self._dispatch(self._job, submitted, float_value)
        while attempt not in self._records:
            assert self._incoming is not None
            completed, record = next(self._incoming)
            self._records[completed] = record
        return self._records[attempt]

    def _dispatch(
        self, job: _AttemptJob, attempts: Sequence[Attempt], float_value: float | None
    ) -> Generator[tuple[Attempt, Record], None, None]:
        """Run attempts on the cluster and yield (attempt, record) in the order of `attempts`."""
        items = ((attempt, float_value) for attempt in attempts)
        with contextlib.closing(map_jobs(job, items, cluster=self._cluster)) as records:
            yield from zip(attempts, records, strict=True)

    def close(self) -> None:
        """Cancel the pending attempts and forget them; complete records are kept."""
        if self._incoming is not None:
            self._incoming.close()
        self._incoming, self._pending = None, set()
