"""CrossValidation: what a plan and methods of refinement give on calibration samples that the weights did not see.

The samples are dealt into four parts. Weights are refined on three parts and measured on the
fourth, each part in its turn (cross-validation), so that every sample says once how far a trial is
from the float model. Two trials are compared sample by sample (`gains`).

A trial that is hopeless so far is not measured to its end. Where weights are refined anew this is
judged by two parts at least: rounding answers the least change with another error, so that one part
tells of its own weights only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...graph import ir
from ...plan import Plan
from ...run.data import Progress
from ...run.memory import bytes_per_sample, choose_batch_size, trim_memory
from ...run.runners import FloatRunner
from ...run.session import open_lowered_session
from ..lower import lower
from ..methods.refine import RefinementOptions
from ..planning.planned_model import PlannedModel
from ..planning.refinement import refine_weights
from ..prepare.preparation import PreparedModel
from ..report.candidate import Candidate
from ..report.fidelity import Fidelity
from .gains import Gain, compute_gain

__all__ = ["MIN_SAMPLES", "CrossValidatedPlan", "CrossValidation", "count_samples", "sum_squares"]

_PERIOD, _FOLDS = 16, 4  # of every 16 samples the first 4 are the first part, and so on
_MIN_FOLDS = 2  # parts that weights are refined for before a trial may end
MIN_SAMPLES = _PERIOD  # samples that can be dealt

_BATCH_SIZE = 64  # samples that are run at a time

_Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CrossValidatedPlan:
    """A plan with its weights refined by `methods`, once for each part of the samples that was set aside.

    float_graphs : the refined float graphs. errors : of each part, [outputs, n] summed squares.
    """

    planned: PlannedModel
    methods: RefinementOptions
    float_graphs: Sequence[ir.Model]
    errors: Sequence[np.ndarray]


class CrossValidation:
    """Tries candidates for one model on its calibration samples `feeds`, `count` of them.

    wanted : the tensors of the user's model that are measured.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        planned: PlannedModel,
        feeds: _Feed,
        count: int,
        wanted: Sequence[str],
    ) -> None:
        self._prepared, self._wanted = prepared, wanted
        outputs = {
            str(value.name) for value in prepared.original.graph.outputs
        }  # that is all `source` yields
        self._source = (
            prepared.source if outputs >= {*wanted} else FloatRunner(prepared.original, wanted)
        )
        part = np.arange(count) % _PERIOD * _FOLDS // _PERIOD
        inputs = prepared.data.inputs

        def dealt(of: np.ndarray) -> dict[str, np.ndarray]:
            axes = {
                n: inputs[n].axis if inputs[n].count_samples(a) == count else None
                for n, a in feeds.items()
            }
            return {n: a if axes[n] is None else a.compress(of, axes[n]) for n, a in feeds.items()}

        self._parts = [(dealt(part != k), dealt(part == k)) for k in range(_FOLDS)]
        self._counts = [int((part == k).sum()) for k in range(_FOLDS)]
        self._step = choose_batch_size(
            bytes_per_sample(planned.graph), _BATCH_SIZE, self._prepared.conf.budget
        )
        self._power = np.zeros((_FOLDS, len(wanted)))
        self._floats: dict[int, list[dict[str, np.ndarray]]] = {}
        self._room = (
            self._prepared.conf.budget // 8
        )  # bytes that the float model's outputs may still take

    def evaluate_baseline(
        self, planned: PlannedModel, options: RefinementOptions, progress: Progress | None = None
    ) -> CrossValidatedPlan:
        """Return the first candidate, which others are compared with."""
        trained = [self._refine_and_measure(k, planned, options, progress) for k in range(_FOLDS)]
        return CrossValidatedPlan(
            planned, options, [exact for exact, _ in trained], [errors for _, errors in trained]
        )

    def evaluate_candidate(
        self,
        best: CrossValidatedPlan,
        planned: PlannedModel,
        options: RefinementOptions,
        errors: float,
        progress: Progress | None = None,
    ) -> tuple[CrossValidatedPlan, Gain]:
        """Return another candidate and its gain over `best`.

        It has fewer parts where that is hopeless by the first.
        """
        trained = [
            self._refine_and_measure(k, planned, options, progress) for k in range(_MIN_FOLDS)
        ]
        gain = self.gain_between(best.errors, [error for _, error in trained])
        for k in range(_MIN_FOLDS, _FOLDS):
            if gain.is_hopeless(errors):
                break
            trained.append(self._refine_and_measure(k, planned, options, progress))
            gain = self.gain_between(best.errors, [error for _, error in trained])
        return CrossValidatedPlan(
            planned, options, [exact for exact, _ in trained], [error for _, error in trained]
        ), gain

    def evaluate_plan(
        self, best: CrossValidatedPlan, old: Sequence[np.ndarray], plan: Plan, errors: float
    ) -> tuple[list[np.ndarray], Gain]:
        """Return the errors of `best` with its weights as they are under another plan, and the gain over `old`."""
        planned = replace(best.planned, plan=plan)
        new_errors = [self._measure_errors(0, planned, best.float_graphs[0])]
        gain = self.gain_between(old, new_errors)
        for k in range(1, _FOLDS):
            if gain.is_hopeless(errors):
                break
            new_errors.append(self._measure_errors(k, planned, best.float_graphs[k]))
            gain = self.gain_between(old, new_errors)
        return new_errors, gain

    def gain_between(self, old: Sequence[np.ndarray], new: Sequence[np.ndarray]) -> Gain:
        """Return the gain of `new` over `old` in the parts that `new` has."""
        parts = len(new)
        power = self._power[:parts].sum(axis=0)
        return compute_gain(
            np.hstack(old[:parts]), np.hstack(new), power, sum(self._counts[:parts])
        )

    def _refine_and_measure(
        self, k: int, planned: PlannedModel, options: RefinementOptions, progress: Progress | None
    ) -> tuple[ir.Model, np.ndarray]:
        """Refine on all parts but one; return the graph, and its errors on that one."""
        exact = refine_weights(planned, options, self._parts[k][0], progress)
        return exact, self._measure_errors(k, planned, exact)

    def _measure_errors(self, k: int, planned: PlannedModel, float_graph: ir.Model) -> np.ndarray:
        """Return the summed squared errors of the tensors, [tensors, n], on part `k`.

        n are its samples; of a tensor without samples on its first axis, the pieces that are run at
        a time.
        """
        target = self._prepared.target
        graph = lower(planned.partition.with_graph(float_graph), planned.plan, target).graph
        session = open_lowered_session(graph, target, self._prepared.opened)
        takes = {spec.name for spec in session.inputs}
        errors = []
        for part, wants in zip(self._pieces(k), self._float_outputs(k), strict=True):
            have = session.tensors({n: a for n, a in part.items() if n in takes}, self._wanted)
            values = {name: a if q is None else q.real(a) for name, a, q in have}
            count = max(self._prepared.data.inputs[n].count_samples(a) for n, a in part.items())
            errors.append(
                sum_squares(
                    [wants[name] - values[name].astype(np.float64) for name in self._wanted], count
                )
            )
        trim_memory()
        return np.hstack(errors)

    def is_chip_ready(self, planned: PlannedModel) -> bool:
        """Whether the plan, with the weights as they are, leaves a chip its part."""
        lowered = lower(planned.partition, planned.plan, planned.target)
        return Candidate(
            self._prepared, planned, planned.graph, lowered, Fidelity({}, "", ())
        ).result.report.chip_ready

    def _pieces(self, k: int) -> Sequence[dict[str, np.ndarray]]:
        return list(self._prepared.data.split_feeds(self._parts[k][1], self._step))

    def _float_outputs(self, k: int) -> Sequence[Mapping[str, np.ndarray]]:
        """Return what the float model gives on the pieces of part `k`, kept where there is room."""
        if k not in self._floats:
            wants = [
                {name: array for name, array, _ in self._source.run(part, self._wanted)}
                for part in self._pieces(k)
            ]
            power = [
                [np.square(want[n], dtype=np.float64).sum() for n in self._wanted] for want in wants
            ]
            self._power[k] = np.sum(power, axis=0)
            size = sum(array.nbytes for want in wants for array in want.values())
            if size > self._room:
                return wants
            self._room -= size
            self._floats[k] = wants
        return self._floats[k]


def count_samples(planned: PlannedModel, feeds: _Feed) -> int:
    """Return how many samples the `feeds` of a planned model hold."""
    return max(
        (planned.data.inputs[name].count_samples(array) for name, array in feeds.items()), default=0
    )


def sum_squares(errors: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Return the summed squares of each array, [arrays, n].

    N is `count`, or 1 where an array has other first axes.
    """
    single = [
        np.square(e).reshape(len(e), -1).sum(axis=1) if e.ndim and len(e) == count else None
        for e in errors
    ]
    if any(array is None for array in single):
        return np.array([[float(np.square(e).sum())] for e in errors])
    return np.stack([array for array in single if array is not None])
