"""Cross-validate plans and refinement methods on calibration samples.

The samples are dealt into four folds. Weights are refined on three folds and measured on the
fourth, for each fold in turn, so that every sample contributes one error that its weights were not
fitted to. Two trials are compared sample by sample (`gains`).

A trial that can no longer win stops early. If it refines weights, at least two folds are measured
before that: the smallest change makes rounding produce other errors, so that a single fold
characterizes only its own weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...ir.plan import Plan
from ...runtime.data import Progress
from ...runtime.memory import bytes_per_sample, choose_batch_size, trim_memory
from ...runtime.runners import FloatRunner
from ...runtime.session import LoweredSession
from ..lower import lower
from ..methods.refine import RefinementOptions
from ..steps.planned_model import PlannedModel
from ..steps.refinement import refine_weights
from .evidence import Gain, compute_gain

__all__ = ["MIN_SAMPLES", "CrossValidatedPlan", "CrossValidation", "sum_squares"]

_PERIOD, _FOLDS = 16, 4  # of every 16 samples the first 4 belong to the first fold, and so on
_MIN_FOLDS = 2  # folds that weights are refined for before a trial may stop early
MIN_SAMPLES = _PERIOD  # minimum number of samples for cross-validation

_BATCH_SIZE = 64  # samples per batch

_Feed = Mapping[str, np.ndarray]


class CrossValidatedPlan(NamedTuple):
    """A plan whose weights were refined once per fold, without the samples of that fold.

    Attributes
    ----------
    planned
        The planned model.
    methods
        Options of the refinement.
    float_graphs
        Refined float graph of each fold.
    errors
        For each fold, summed squared errors of shape [outputs, n].
    """

    planned: PlannedModel
    methods: RefinementOptions
    float_graphs: Sequence[ir.Model]
    errors: Sequence[np.ndarray]


class CrossValidation:
    """Cross-validation of candidates for one model.

    Parameters
    ----------
    planned
        The model and its plan so far.
    feeds
        Calibration samples by input name.
    count
        Number of samples.
    measured_tensors
        Tensors of the user's model whose errors are measured.
    """

    def __init__(
        self,
        planned: PlannedModel,
        feeds: _Feed,
        count: int,
        measured_tensors: Sequence[str],
    ) -> None:
        """Split `feeds`, the inputs of `count` samples, into `_FOLDS` folds to fit and to measure.

        Inputs without a batch axis belong to all folds. `measured_tensors` are the tensors whose
        errors are compared; an eighth of the memory budget caches their float values.
        """
        prepared = planned.prepared
        self._prepared, self._measured_tensors = prepared, measured_tensors
        outputs = set(ir.get_output_names(prepared.original))
        self._source = prepared.source  # yields nothing but the outputs
        if not outputs.issuperset(measured_tensors):
            self._source = FloatRunner(prepared.original, measured_tensors)
        fold_of_sample = np.arange(count) % _PERIOD * _FOLDS // _PERIOD
        inputs = prepared.data.inputs

        def select(mask: np.ndarray) -> dict[str, np.ndarray]:
            """Return the feeds with the samples of the boolean `mask` only."""
            selected = {}
            for name, array in feeds.items():
                spec = inputs[name]
                axis = spec.axis if spec.count_samples(array) == count else None
                selected[name] = array if axis is None else array.compress(mask, axis)
            return selected

        self._folds = [
            (select(fold_of_sample != k), select(fold_of_sample == k)) for k in range(_FOLDS)
        ]
        self._counts = [int((fold_of_sample == k).sum()) for k in range(_FOLDS)]
        self._batch_size = choose_batch_size(
            bytes_per_sample(planned.graph), _BATCH_SIZE, prepared.conf.budget
        )
        self._power = np.zeros((_FOLDS, len(measured_tensors)))
        self._float_cache: dict[int, list[dict[str, np.ndarray]]] = {}
        self._free_cache_bytes = prepared.conf.budget // 8

    def evaluate_baseline(
        self, planned: PlannedModel, options: RefinementOptions, progress: Progress | None = None
    ) -> CrossValidatedPlan:
        """Refine and measure the first candidate on all folds, as the reference for others.

        The weights are refined on the samples outside of a fold and measured on those of the fold.
        The result has a refined graph and the errors of each fold.
        """
        results = [self._refine_and_measure(k, planned, options, progress) for k in range(_FOLDS)]
        return CrossValidatedPlan(
            planned,
            options,
            [float_graph for float_graph, _ in results],
            [errors for _, errors in results],
        )

    def evaluate_candidate(
        self,
        best: CrossValidatedPlan,
        planned: PlannedModel,
        options: RefinementOptions,
        z: float,
        progress: Progress | None = None,
    ) -> CrossValidatedPlan:
        """Refine and measure another candidate.

        As in `evaluate_baseline`, with the weights of `planned` refined by `options`. Stops after
        `_MIN_FOLDS` folds or later if even `z` standard errors more would be no gain; the result
        then has fewer folds.
        """
        float_graphs: list[ir.Model] = []
        errors: list[np.ndarray] = []
        for k in range(_FOLDS):
            if k >= _MIN_FOLDS:
                gain = self.gain_between(best.errors, errors)
                if gain.is_hopeless(z):
                    break
            float_graph, fold_errors = self._refine_and_measure(k, planned, options, progress)
            float_graphs.append(float_graph)
            errors.append(fold_errors)
        return CrossValidatedPlan(planned, options, float_graphs, errors)

    def evaluate_plan(
        self, best: CrossValidatedPlan, old: Sequence[np.ndarray], plan: Plan, z: float
    ) -> tuple[list[np.ndarray], Gain]:
        """Measure the refined weights of `best` under another plan; return its errors and the gain.

        Errors are per fold, [tensors, n]; there are fewer folds if it stops early.

        Parameters
        ----------
        old
            Errors of the plan that is compared with, per fold.
        z
            Stops after a fold if even so many standard errors more would be no gain.
        """
        planned = replace(best.planned, plan=plan)
        new_errors = [self._measure_errors(0, planned, best.float_graphs[0])]
        gain = self.gain_between(old, new_errors)
        for k in range(1, _FOLDS):
            if gain.is_hopeless(z):
                break
            new_errors.append(self._measure_errors(k, planned, best.float_graphs[k]))
            gain = self.gain_between(old, new_errors)
        return new_errors, gain

    def gain_between(self, old: Sequence[np.ndarray], new: Sequence[np.ndarray]) -> Gain:
        """Return the gain of the errors `new` over `old` on the folds that `new` has."""
        folds = len(new)
        power = self._power[:folds].sum(axis=0)
        return compute_gain(
            np.hstack(old[:folds]), np.hstack(new), power, sum(self._counts[:folds])
        )

    def _refine_and_measure(
        self, k: int, planned: PlannedModel, options: RefinementOptions, progress: Progress | None
    ) -> tuple[ir.Model, np.ndarray]:
        """Refine on all folds but `k`; return the float graph and its errors on fold `k`."""
        training_samples, _ = self._folds[k]
        float_graph = refine_weights(planned, options, training_samples, progress)
        return float_graph, self._measure_errors(k, planned, float_graph)

    def _measure_errors(self, k: int, planned: PlannedModel, float_graph: ir.Model) -> np.ndarray:
        """Return summed squared errors [tensors, n] of the measured tensors on fold `k`.

        `n` are the samples of the fold, or its batches if a tensor has no batch axis.
        """
        target = self._prepared.target
        graph = lower(planned.partition.with_graph(float_graph), planned.plan, target).graph
        session = LoweredSession(graph, target, self._prepared.opened)
        errors = []
        for batch, expected in zip(self._split_held_out(k), self._float_outputs(k), strict=True):
            actual = session.run_real(batch, self._measured_tensors)
            count = self._prepared.data.count_samples(batch)
            differences = [
                expected[name] - actual[name].astype(np.float64) for name in self._measured_tensors
            ]
            errors.append(sum_squares(differences, count))
        trim_memory()
        return np.hstack(errors)

    def _split_held_out(self, k: int) -> Sequence[dict[str, np.ndarray]]:
        """Split the samples of fold `k` into batches."""
        _, held_out = self._folds[k]
        return list(self._prepared.data.split_feeds(held_out, self._batch_size))

    def _float_outputs(self, k: int) -> Sequence[Mapping[str, np.ndarray]]:
        """Return the measured tensors of the float model for each batch of fold `k`.

        Caches them while they fit the memory budget, and records their power.
        """
        if k in self._float_cache:
            return self._float_cache[k]
        outputs = []
        for batch in self._split_held_out(k):
            tensors = self._source.run(batch, self._measured_tensors)
            outputs.append({name: array for name, array, _ in tensors})
        power = []
        for batch_outputs in outputs:
            arrays = [batch_outputs[name] for name in self._measured_tensors]
            power.append([np.square(array, dtype=np.float64).sum() for array in arrays])
        self._power[k] = np.sum(power, axis=0)
        size = sum(array.nbytes for arrays in outputs for array in arrays.values())
        if size <= self._free_cache_bytes:
            self._free_cache_bytes -= size
            self._float_cache[k] = outputs
        return outputs


def sum_squares(errors: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Sum the squares of each array, per sample where possible.

    Parameters
    ----------
    errors
        Differences of one tensor each, with `count` samples on axis 0.
    count
        Number of samples.

    Returns
    -------
    numpy.ndarray
        Shape [arrays, count], or [arrays, 1] if the first axis of any array is not the samples.
    """
    if any(not error.ndim or len(error) != count for error in errors):
        return np.array([[float(np.square(error).sum())] for error in errors])
    return np.stack([np.square(error).reshape(len(error), -1).sum(axis=1) for error in errors])
