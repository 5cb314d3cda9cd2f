"""Trials run on blocks of samples, or by a function of the user's; their results kept in a journal.

A block of samples is one piece of work: the float model runs once, its tensors are kept, and each
trial computes only what lies behind its change (`trial`). What a block gives is appended to a file
and adds up in the order of the blocks, so that the results are the same for any number of workers,
and for a run that was killed and went on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...flow import PlannedModel
from ...graph import ir
from ...plan.synthetic_calibration import SYNTHETIC_WARNING
from ...run.cluster import map_jobs
from ...run.data import Batch, Data, Progress
from ...run.metrics import call_user_function
from ...run.runners.segments import Segments
from ..compare.advice import diagnose
from ..compare.join import TensorJoin
from ..compare.sources import PlannedSource, open_source
from ..stats.output_measures import MeasureFactory
from ..stats.pair_measures import METRICS
from .journal import Journal, hash_parts
from .layer_histograms import write_histograms
from .layers import RoundedOperator
from .ranking import RankedTrial
from .trial import RoundableModel, RoundedSet, TrialEngine, TrialModel

__all__ = ["BlockTrials", "Function", "TrialRuns", "choose_block_size"]

_MAX_COMPARED_SAMPLES = 32  # samples that a plan is compared on
_MAX_BLOCK_BYTES = 256 * 2**20  # bytes of a block's tensors that are kept

#: What a user's evaluation function is.
Function = Callable[..., float]


def choose_block_size(planned: PlannedModel, segments: Segments) -> int:
    """Return how many samples' tensors, as the pieces show them, fit the memory set aside.

    At most the batch.
    """
    shown = {name for piece in segments.segments for name in piece.outputs}
    sizes = [ir.get_shape(v) for v in ir.iter_values(planned.graph) if v.name in shown]
    sample = sum(4 * math.prod(int(d or 1) for d in size[1:]) for size in sizes if size)
    return int(np.clip(_MAX_BLOCK_BYTES // max(sample, 1), 1, planned.config.batch))


@dataclass
class TrialValues:
    """What trials gave: the values of each, by metric."""

    values: list[list[float]]
    samples: int
    macs: int


class TrialRuns:
    """What all trials of one call have in common."""

    def __init__(
        self,
        planned: PlannedModel,
        given: RoundableModel,
        data: Data,
        names: Sequence[str],
        function: Function | None,
        place: tuple[int | None, str | None],
        progress: Progress | None,
    ) -> None:
        self.planned, self.names = planned, names
        self._given, self._data, self._function = given, data, function
        self._place, self._progress = place, progress
        segments = given.create_engine().segments
        self.macs = segments.macs
        #: Samples of a block.
        self.block = choose_block_size(planned, segments)
        self.key = hash_parts(given.model, planned.plan.content)
        self._labels_are_classes: bool | None = None

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know of the data and the plan."""
        notes = list(self._data.notes)
        notes += [f"WARNING: {SYNTHETIC_WARNING}"] if self.planned.plan.synthetic else []
        if self.planned.config.effort == "fast":
            notes.append(
                "effort fast leaves uneven channels as they are: try --effort normal before you "
                "skip a layer"
            )
        return notes

    @property
    def finding(self) -> str:
        """What `compare` finds first in the plan, computed in float, on one block.

        "" for nothing.
        """
        feeds, _ = next(self._data.batches(min(self.block, _MAX_COMPARED_SAMPLES)))
        try:
            join = TensorJoin(
                open_source(self.planned.original),
                PlannedSource(self.planned.graph, self.planned.plan),
            )
            join.add(feeds)
            found = diagnose(join, feeds)
        except DataError:  # nothing in common: the outputs have other names
            return ""
        told = [
            f"{f.kind}: {f.place}: {f.measured}{''.join('; ' + o for o in f.options)}"
            for f in found[:1]
        ]
        return "".join(told)

    def write_histograms(
        self,
        folder: Path,
        operators: Sequence[RoundedOperator],
        worst_first: Sequence[RankedTrial],
        number: int,
    ) -> None:
        """Draw the best and the worst layers, with the outputs that the first block has."""
        engine, by_name = self._given.create_engine(), {layer.name: layer for layer in operators}
        feeds, _ = next(self._data.batches(self.block))
        runs = [
            engine.run_base(RoundedSet(), part).tensors
            for _, _, part in engine.split_samples(feeds)
        ]
        outputs = {
            name: np.concatenate([run[name].reshape(-1) for run in runs])
            for name in self._given.tensors
            if name in runs[0]
        }
        write_histograms(
            folder,
            self.planned,
            [by_name[name] for name in dict.fromkeys(row.name for row in worst_first)],
            outputs,
            number,
        )

    def advice_metric(self) -> str:
        """Return the metric of the advice.

        Accuracy of some kind where there are labels, else SQNR.
        """
        own = [name for name in self.names if name not in METRICS]
        return own[0] if own else "top1" if self._labels_are_classes else "SQNR"

    def run_stage(
        self,
        journal: Journal,
        part: str,
        base: RoundedSet,
        settings: Sequence[RoundedSet],
        names: Sequence[str],
    ) -> TrialValues:
        """Run the trials `settings`, but for those whose results `journal` has."""
        if self._function is not None:
            return self._run_with_function(journal, part, base, settings)
        makers = MeasureFactory(names)
        total = [makers() for _ in settings]
        done = TrialValues([], 0, 0)

        def take(record: Mapping[str, Any]) -> None:
            for measures, state in zip(total, record["states"], strict=True):
                measures.merge(state)
            done.samples += record["samples"]
            done.macs += record["macs"]
            if self._progress is not None:
                self._progress(part, done.samples, None)

        digests: deque[str] = deque()
        job = BlockTrials(self._given, base, tuple(settings), tuple(names))
        for trial_result in map_jobs(
            job, self._iter_pending_blocks(journal, part, take, digests), *self._place
        ):
            record = {"part": part, "data": digests.popleft(), **trial_result}
            journal.add(record)
            take(record)
        done.values = [measures.values for measures in total]
        return done

    def _iter_pending_blocks(
        self,
        journal: Journal,
        part: str,
        take: Callable[[Mapping[str, Any]], None],
        digests: deque[str],
    ) -> Iterator[Batch]:
        """Yield the blocks without a result; those with one go to `take`."""
        old = journal.records(part)
        for batch in self._data.batches(self.block):
            feeds, labels = batch
            if self._labels_are_classes is None:
                self._labels_are_classes = (
                    labels is not None
                    and np.asarray(labels).dtype.kind in "iu"
                    and (np.asarray(labels).ndim == 1)
                )
            digest = hash_parts(
                *(x for n in sorted(feeds) for x in _array_bytes(feeds[n])), *_array_bytes(labels)
            )
            record = next(old, None)
            if record is None:
                digests.append(digest)
                yield batch
            elif record.get("data") == digest:
                with journal.guard_records():
                    take(record)
            else:
                raise journal.stale_error("other data")
        if next(old, None) is not None:
            raise journal.stale_error("more data")

    def _run_with_function(
        self, journal: Journal, part: str, base: RoundedSet, settings: Sequence[RoundedSet]
    ) -> TrialValues:
        with journal.guard_records():
            done = TrialValues([[float(record["value"])] for record in journal.records(part)], 0, 0)
        assert self._function is not None
        job = FunctionTrials(self._given, base, self._function)
        for value in map_jobs(job, settings[len(done.values) :], *self._place):
            journal.add({"part": part, "value": value})
            done.values.append([value])
            if self._progress is not None:
                self._progress(part, len(done.values), len(settings))
        return done


def _array_bytes(array: object) -> tuple[bytes, ...]:
    if array is None:
        return ()
    array = np.ascontiguousarray(array)
    return str((array.dtype, array.shape)).encode(), array.tobytes()


@dataclass(frozen=True)
class BlockTrials:
    """BlockTrials on blocks of samples, measured against the float model and on labels."""

    rounding: RoundableModel
    base: RoundedSet
    settings: tuple[RoundedSet, ...]
    metrics: tuple[str, ...]

    def start(self) -> Callable[[Batch], dict[str, Any]]:
        """Return what runs all trials on one block."""
        return partial(self._run_block, self.rounding.create_engine(), MeasureFactory(self.metrics))

    def _run_block(
        self, engine: TrialEngine, makers: MeasureFactory, batch: Batch
    ) -> dict[str, Any]:
        feeds, labels = batch
        (output,) = self.rounding.outputs
        total, count, engine.macs = [makers() for _ in self.settings], 0, 0
        for start, stop, part in engine.split_samples(feeds):
            exact = engine.run_base(RoundedSet(), part)
            base = exact if self.base == RoundedSet() else engine.run_base(self.base, part)
            own = labels if labels is None or not engine.runs_single_samples else labels[start:stop]
            for measures, setting in zip(total, self.settings, strict=True):
                free = setting == RoundedSet()
                array = (
                    exact.tensors[output] if free else engine.outputs(setting, base, part)[output]
                )
                measures.add(exact.tensors[output], own, array)
            count += stop - start
        return {
            "samples": count,
            "macs": engine.macs,
            "states": [measures.state for measures in total],
        }


@dataclass(frozen=True)
class FunctionTrials:
    """A function of the user's, of one trial after another."""

    rounding: RoundableModel
    base: RoundedSet
    function: Function

    def start(self) -> Callable[[RoundedSet], float]:
        """Return what calls it for one trial."""
        trials = TrialModel(self.rounding.create_engine(), self.base)
        return lambda setting: call_user_function(
            "the evaluation function", self.function, trials.with_setting(setting)
        )
