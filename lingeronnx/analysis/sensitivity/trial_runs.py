"""Runs of trials on blocks of samples, or with a user's function; results are stored in a journal.

The float model runs once per block of samples, its tensors are stored, and each trial computes only
the part downstream of its change (`trial`). The result of each block is appended to a file, and
results are summed in the order of the blocks, so that they are the same for any number of workers
and for a run that was killed and resumed.
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

from ...common.errors import DataError
from ...common.hashing import hash_concatenation
from ...ir import ir
from ...ir.plan.synthetic_calibration import SYNTHETIC_WARNING
from ...quantization import PlannedModel
from ...runtime.cluster import map_jobs
from ...runtime.data import Batch, Data, Progress
from ...runtime.metrics import call_user_function
from ...runtime.runners.segments import Segments
from ..compare.advice import diagnose
from ..compare.join import TensorJoin
from ..compare.sources import PlannedSource, open_source
from ..stats.output_measures import MeasureFactory
from ..stats.pair_measures import METRICS
from .journal import Journal
from .layer_histograms import write_histograms
from .layers import RoundedOperator
from .ranking import RankedTrial
from .trial import RoundableModel, RoundedSet, TrialEngine, TrialModel

__all__ = ["BlockTrials", "Function", "TrialRuns", "choose_block_size"]

_MAX_COMPARED_SAMPLES = 32  # samples used to compare a plan with the float model
_MAX_BLOCK_BYTES = 256 * 2**20  # bytes of a block's stored tensors

#: A user's evaluation function, which is called with a model.
Function = Callable[..., float]


def choose_block_size(planned: PlannedModel, segments: Segments) -> int:
    """Choose the number of samples of a block, from 1 to the batch size of the configuration.

    As many as fit into _MAX_BLOCK_BYTES with all tensors between `segments`, counted as float32.
    """
    stored: set[str] = set()
    for segment in segments.segments:
        stored.update(segment.outputs)
    sample_bytes = 0
    for value in ir.iter_values(planned.graph):
        shape = ir.get_shape(value) if value.name in stored else None
        if shape:
            sample_bytes += 4 * math.prod(int(length or 1) for length in shape[1:])
    return int(np.clip(_MAX_BLOCK_BYTES // max(sample_bytes, 1), 1, planned.prepared.conf.batch))


@dataclass
class TrialValues:
    """Results of trials: values by trial and metric, and numbers of samples and MACs."""

    values: list[list[float]]
    samples: int
    macs: int


class TrialRuns:
    """Runs the trials of one call of `sensitivity`.

    Parameters
    ----------
    planned
        The planned model.
    roundable
        The model with everything that trials may round.
    data
        Evaluation data.
    metric_names
        Metrics of the ranking.
    function
        A user's function instead of the metrics, or None.
    execution
        Number of workers and cluster, as `map_jobs` takes them.
    progress
        Progress callback.

    Attributes
    ----------
    macs : int
        Multiply-accumulates of the complete model for one sample.
    block_size : int
        Samples of a block.
    key : str
        Digest of the model and the plan.
    """

    def __init__(
        self,
        planned: PlannedModel,
        roundable: RoundableModel,
        data: Data,
        metric_names: Sequence[str],
        function: Function | None,
        execution: tuple[int | None, str | None],
        progress: Progress | None,
    ) -> None:
        """Choose the size of blocks, and compute the digest `key` of model and plan.

        Nothing is run. `execution` is (number of processes, address of a Dask cluster), each None
        for this process; `metric_names` are those of the ranking. `function` replaces the metrics,
        unless it is None.
        """
        self.planned, self._metric_names = planned, metric_names
        self._roundable, self._data, self._function = roundable, data, function
        self._execution, self._progress = execution, progress
        segments = roundable.create_engine().segments
        self.macs = segments.macs
        self.block_size = choose_block_size(planned, segments)
        self.key = hash_concatenation([roundable.model, planned.plan.content])
        self._labels_are_classes: bool | None = None

    @property
    def notes(self) -> Sequence[str]:
        """Remarks for the user, as lines of text.

        They are those on the data, a warning about synthetic calibration data, and one if the
        effort does not equalize channels.
        """
        notes = list(self._data.notes)
        notes += [f"WARNING: {SYNTHETIC_WARNING}"] if self.planned.plan.synthetic else []
        if not self.planned.prepared.recipe.equalizes_channels:
            notes.append(
                f"effort {self.planned.prepared.conf.effort} does not equalize channels: "
                "try --effort normal before you skip a layer"
            )
        return notes

    @property
    def finding(self) -> str:
        """The first finding of `compare` about the plan, run in float on one block of the data.

        It is one line of kind, place, measured value and options; "" if there is none, or if model
        and plan have no tensors in common.
        """
        feeds, _ = next(self._data.batches(min(self.block_size, _MAX_COMPARED_SAMPLES)))
        try:
            base = open_source(self.planned.prepared.original)
            join = TensorJoin(base, PlannedSource(self.planned.graph, self.planned.plan))
            join.add(feeds)
            findings = diagnose(join, feeds)
        except DataError:  # no tensors in common, because the outputs have other names
            return ""
        if not findings:
            return ""
        first = findings[0]
        options = "".join(f"; {option}" for option in first.options)
        return f"{first.kind}: {first.place}: {first.measured}{options}"

    def write_histograms(
        self,
        folder: Path,
        operators: Sequence[RoundedOperator],
        worst_first: Sequence[RankedTrial],
        count: int,
    ) -> None:
        """Draw histograms of the `count` best and worst layers into PDF files in `folder`.

        The values are weights, and outputs of the float model on one block of the data.
        `worst_first` ranks the operators, most sensitive first.
        """
        engine = self._roundable.create_engine()
        feeds, _ = next(self._data.batches(self.block_size))
        runs = [
            engine.run_base(RoundedSet(), samples).tensors
            for _, _, samples in engine.split_samples(feeds)
        ]
        outputs = {}
        for name in self._roundable.tensors:
            if name in runs[0]:
                outputs[name] = np.concatenate([run[name].reshape(-1) for run in runs])
        by_name = {operator.name: operator for operator in operators}
        ranked_names = dict.fromkeys(trial.name for trial in worst_first)
        ranked = [by_name[name] for name in ranked_names]
        write_histograms(folder, self.planned, ranked, outputs, count)

    def advice_metric(self) -> str:
        """Return the name of the metric that advice is measured by.

        It is the first metric of the ranking that needs labels or is a user's function, else top1
        if the first block's labels are class indices, else SQNR. The labels are known only after
        the first stage has run.
        """
        for name in self._metric_names:
            if name not in METRICS:
                return name
        return "top1" if self._labels_are_classes else "SQNR"

    def run_stage(
        self,
        journal: Journal,
        part: str,
        base: RoundedSet,
        settings: Sequence[RoundedSet],
        metric_names: Sequence[str],
    ) -> TrialValues:
        """Run trials, except for blocks whose results are in the journal; return values by trial.

        New results are added to the journal. With a user's function, each trial is one result.

        Parameters
        ----------
        journal
            Journal of the results.
        part
            Name of the stage, for records and progress.
        base
            Rounding of the base runs.
        settings
            Rounding of each trial.
        metric_names
            Metrics to measure; ignored with a user's function.
        """
        if self._function is not None:
            return self._run_with_function(journal, part, base, settings)
        create_measures = MeasureFactory(metric_names)
        measures_by_trial = [create_measures() for _ in settings]
        result = TrialValues([], 0, 0)

        def merge_record(record: Mapping[str, Any]) -> None:
            """Add the measures, samples and MACs of one block's record, and report progress."""
            for measures, state in zip(measures_by_trial, record["states"], strict=True):
                measures.merge(state)
            result.samples += record["samples"]
            result.macs += record["macs"]
            if self._progress is not None:
                self._progress(part, result.samples, None)

        digests: deque[str] = deque()
        job = BlockTrials(self._roundable, base, tuple(settings), tuple(metric_names))
        blocks = self._iter_pending_blocks(journal, part, merge_record, digests)
        for block_result in map_jobs(job, blocks, *self._execution):
            record = {"part": part, "data": digests.popleft(), **block_result}
            journal.add(record)
            merge_record(record)
        result.values = [measures.values for measures in measures_by_trial]
        return result

    def _iter_pending_blocks(
        self,
        journal: Journal,
        part: str,
        merge_record: Callable[[Mapping[str, Any]], None],
        digests: deque[str],
    ) -> Iterator[Batch]:
        """Yield the blocks of data without a stored result, and append their digests to `digests`.

        Stored results of the other blocks are passed to `merge_record`.

        Raises
        ------
        ConfigError
            If a stored result is of other data, or there are more results than blocks.
        """
        stored_records = journal.records(part)
        for batch in self._data.batches(self.block_size):
            feeds, labels = batch
            if self._labels_are_classes is None:
                self._labels_are_classes = _are_classes(labels)
            digest = _batch_digest(feeds, labels)
            record = next(stored_records, None)
            if record is None:
                digests.append(digest)
                yield batch
            elif record.get("data") == digest:
                with journal.guard_records():
                    merge_record(record)
            else:
                raise journal.stale_error("other data")
        if next(stored_records, None) is not None:
            raise journal.stale_error("more data")

    def _run_with_function(
        self, journal: Journal, part: str, base: RoundedSet, settings: Sequence[RoundedSet]
    ) -> TrialValues:
        """Evaluate the user's function for each trial without a stored result; return all values.

        Trials are in order: as many results as the journal has records of `part` are taken from it;
        the others are computed and added to it. Samples and MACs of the result are 0.
        """
        with journal.guard_records():
            values = [[float(record["value"])] for record in journal.records(part)]
        assert self._function is not None
        job = FunctionTrials(self._roundable, base, self._function)
        for value in map_jobs(job, settings[len(values) :], *self._execution):
            journal.add({"part": part, "value": value})
            values.append([value])
            if self._progress is not None:
                self._progress(part, len(values), len(settings))
        return TrialValues(values, 0, 0)


def _are_classes(labels: object) -> bool:
    """Whether labels are class indices: integers with one axis [N]; False for None."""
    if labels is None:
        return False
    array = np.asarray(labels)
    return array.dtype.kind in "iu" and array.ndim == 1


def _batch_digest(feeds: Mapping[str, np.ndarray], labels: object) -> str:
    """Return a digest of a batch: types, shapes and elements of all inputs, by name, and labels."""
    parts: list[bytes] = []
    for name in sorted(feeds):
        parts += _array_bytes(feeds[name])
    return hash_concatenation([*parts, *_array_bytes(labels)])


def _array_bytes(array: object) -> tuple[bytes, ...]:
    """Return (text of type and shape, elements) of an array as bytes; () for None."""
    if array is None:
        return ()
    array = np.ascontiguousarray(array)
    return str((array.dtype, array.shape)).encode(), array.tobytes()


@dataclass(frozen=True)
class BlockTrials:
    """Job that runs trials on blocks of samples, measured against the float model and labels."""

    rounding: RoundableModel
    base: RoundedSet
    settings: tuple[RoundedSet, ...]
    metrics: tuple[str, ...]

    def start(self) -> Callable[[Batch], dict[str, Any]]:
        """Create the engine, and return the function that runs all trials on a block of samples."""
        return partial(self._run_block, self.rounding.create_engine(), MeasureFactory(self.metrics))

    def _run_block(
        self, engine: TrialEngine, create_measures: MeasureFactory, batch: Batch
    ) -> dict[str, Any]:
        """Run all trials on a block and return a record: {"samples", "macs", "states"}.

        "states" are the measures of each trial, which compare its output with that of the model
        without rounding and with the labels.
        """
        feeds, labels = batch
        (output,) = self.rounding.outputs
        measures_by_trial = [create_measures() for _ in self.settings]
        sample_count, engine.macs = 0, 0
        for start, stop, samples in engine.split_samples(feeds):
            exact = engine.run_base(RoundedSet(), samples)
            base = exact if self.base == RoundedSet() else engine.run_base(self.base, samples)
            sample_labels = labels
            if labels is not None and engine.runs_single_samples:
                sample_labels = labels[start:stop]
            for measures, setting in zip(measures_by_trial, self.settings, strict=True):
                array = exact.tensors[output]
                if setting != RoundedSet():
                    array = engine.outputs(setting, base, samples)[output]
                measures.add(exact.tensors[output], sample_labels, array)
            sample_count += stop - start
        return {
            "samples": sample_count,
            "macs": engine.macs,
            "states": [measures.state for measures in measures_by_trial],
        }


@dataclass(frozen=True)
class FunctionTrials:
    """Job that evaluates a user's function for one trial after another."""

    rounding: RoundableModel
    base: RoundedSet
    function: Function

    def start(self) -> Callable[[RoundedSet], float]:
        """Return a function of a `RoundedSet` that gives the value of the user's function.

        The user's function is called with the model that is rounded that way. Base runs are cached
        between calls.
        """
        trials = TrialModel(self.rounding.create_engine(), self.base)
        return lambda setting: call_user_function(
            "the evaluation function", self.function, trials.with_setting(setting)
        )
