"""Which of the findings' options help together: each is tried before it is advised.

The float model is planned anew with the options behind those that the graph was made with, on the
samples at hand. Where that leaves a tensor as it is without the options, its scale is the one that
the graph has: calibration chose it, on other data. The plan is computed in float: what rounding
alone leaves of the outputs. What `quantize` refines beyond that is left out, with and without the
options; where nothing helps so, options for wrong scales are tried with refined weights, too. A
graph that does not say what it was made with is taken as it is. Each option that is advised is
worth `MIN_GAIN_DB`, and all together more than what the trial without options is off from the
graph. Nothing is tried for a dump, which has no float model, and for models of very many
multiply-accumulates.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import LingerOnnxError
from ...flow import (
    PlannedModel,
    PreparedModel,
    apply_external_plan,
    plan_model,
    prepare_model,
    refine_weights,
)
from ...flow.lower import lower
from ...flow.planning.scale_sources import plan_without_range_transforms
from ...ops.macs import count_macs
from ...plan import Plan
from ...plan.config import parse_override
from ...run.provenance import load_quantize_settings
from ...run.session import Session
from ..stats.pair_measures import PairMeasures
from .finding import LayerFinding
from .join import TensorJoin
from .sources import FloatSource, IntegerSource, PlannedSource, TensorSource

__all__ = ["MIN_GAIN_DB", "OptionTrialResult", "rank_findings", "try_options"]

#: What options must give to be advised, in dB.
MIN_GAIN_DB = 0.5

_MAX_SINGLE_OPTIONS = 4  # options that are tried one by one
_MAX_MACS = 2_000_000_000  # multiply-accumulates of a sample beyond which nothing is tried


@dataclass(frozen=True)
class OptionTrialResult:
    """What options gave.

    best : those to take, none where nothing helps. value : the worst output's SQNR in dB with those
    that gave most; every : with all of them; now : without any, planned in the same way, or of a
    graph that does not say what it was made with. graph : of the graph itself. refined : whether
    weights were refined as `quantize` does; else it is rounding alone.
    """

    best: tuple[str, ...]
    value: float
    every: float
    now: float
    graph: float
    refined: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether they give `MIN_GAIN_DB`, and more than the trial is off where nothing was changed."""
        return self.value - self.now >= max(MIN_GAIN_DB, abs(self.now - self.graph))


def try_options(
    tensor_join: TensorJoin, findings: Sequence[LayerFinding], feeds: Mapping[str, np.ndarray]
) -> OptionTrialResult | None:
    """Return which options of the findings are best together.

    None where there are none, or nothing can be tried.
    feeds : the samples that scales come from, and that the outputs are compared on.
    """
    words = tuple(dict.fromkeys(option for finding in findings for option in finding.options))
    base, other = tensor_join.base, tensor_join.other
    if (
        not words
        or not isinstance(base, FloatSource)
        or not isinstance(other, IntegerSource)
        or not tensor_join.outputs
    ):
        return None
    if sum(count_macs(node) for node in base.graph.graph) > _MAX_MACS:
        return None
    trial = _OptionTrial(base, other, feeds)
    found = _find_best_options(trial, words[:_MAX_SINGLE_OPTIONS], words)
    wrong = tuple(dict.fromkeys(option for f in findings if f.order < 2 for option in f.options))[
        :_MAX_SINGLE_OPTIONS
    ]
    if found is not None and not found.best and wrong and trial.graph_is_refined:
        return _find_best_options(trial.with_refined_weights, wrong, words) or found
    return found


def rank_findings(
    findings: Sequence[LayerFinding], found: OptionTrialResult | None
) -> list[LayerFinding]:
    """Return the findings with the first whose option gives most before those whose options give less.

    Behind what has no option, such as data that are not those of calibration, it stays.
    """
    best = found.best[:1] if found is not None else ()
    lead = next(
        (place for place, finding in enumerate(findings) if {*best} & {*finding.options}), 0
    )
    to = next((place for place in range(lead, 0, -1) if not findings[place - 1].options), 0)
    return (
        [*findings[:to], findings[lead], *findings[to:lead], *findings[lead + 1 :]]
        if findings
        else []
    )


def _find_best_options(
    trial: _OptionTrial, single: Sequence[str], words: Sequence[str]
) -> OptionTrialResult | None:
    """Return what the options `words` give, those of `single` one by one.

    None where nothing can be tried.
    """
    now = trial.graph if trial.recorded_settings is None else trial.value(())
    every = None if now is None else trial.value(words)
    if now is None or every is None:
        return None
    best, value = _select_greedily(trial, single, now)
    if every - value >= MIN_GAIN_DB:
        best, value = tuple(words), every
    found = OptionTrialResult(best, value, every, now, trial.graph, trial.refines_weights)
    return found if found.is_certain else replace(found, best=())


def _select_greedily(
    trial: _OptionTrial, words: Sequence[str], value: float
) -> tuple[tuple[str, ...], float]:
    """Select options of `words` greedily, the largest gain first, while the gain is at least `MIN_GAIN_DB`.

    Returns the selected options and the value that they give together.
    """
    best: tuple[str, ...] = ()
    while left := [word for word in words if word not in best]:
        found = {word: trial.value((*best, word)) for word in left}
        known = {word: more for word, more in found.items() if more is not None}
        word = max(known, key=known.__getitem__, default="")
        if (
            not word or not known[word] - value >= MIN_GAIN_DB
        ):  # what is exact already (inf - inf) needs none
            break
        best, value = (*best, word), known[word]
    return best, value


class _OptionTrial:
    """Plans the float model with options, and measures the outputs."""

    def __init__(
        self, base: FloatSource, other: IntegerSource, feeds: Mapping[str, np.ndarray]
    ) -> None:
        self._base, self._other, self._feeds = base, other, dict(feeds)
        self._known: dict[tuple[tuple[str, ...], bool], float | None] = {}
        self._names = [str(value.name) for value in base.graph.graph.outputs]
        self._plan = other.plan
        self._want = {name: array for name, array, _ in base.session.tensors(feeds, self._names)}
        self.recorded_settings = load_quantize_settings(other.graph)
        self.refines_weights = False
        self._equalized = any(
            len(set(moved.factor)) > 1 for moved in self._plan.transforms.values()
        )

    def value(self, words: Sequence[str]) -> float | None:
        """Return the SQNR in dB of the worst output under options.

        None where they cannot be planned.
        """
        key = tuple(words), self.refines_weights
        if key not in self._known:
            try:
                self._known[key] = self._measure_worst_sqnr(
                    self._build_source(self._plan_with_options(words))
                )
            except LingerOnnxError:
                self._known[key] = None
        return self._known[key]

    @cached_property
    def graph(self) -> float:
        """The same of the graph itself."""
        level = self._measure_worst_sqnr(self._other)
        return math.inf if level is None else level

    def _measure_worst_sqnr(self, made: TensorSource) -> float | None:
        have = {
            name: (array, form) for name, array, form in made.run(self._feeds) if name in self._want
        }
        found = math.inf
        for name, (array, form) in have.items():
            pair = PairMeasures()
            pair.add(
                self._want[name].reshape(-1),
                (array if form is None else form.real(array)).reshape(-1),
            )
            found = min(found, pair.sqnr)
        return found if have else None

    @property
    def graph_is_refined(self) -> bool:
        """Whether the graph says that it was made with weights refined."""
        return self.recorded_settings is not None and self.recorded_settings.get("effort") != "fast"

    @property
    def with_refined_weights(self) -> _OptionTrial:
        """The same, where weights are refined and the outputs are the simulator's."""
        trial = copy(self)
        trial.refines_weights = True
        return trial

    def _build_source(self, planned: PlannedModel) -> TensorSource:
        if not self.refines_weights:
            return PlannedSource(planned.graph, planned.plan)
        lowered = lower(
            planned.partition.with_graph(refine_weights(planned)), planned.plan, planned.target
        )
        return IntegerSource(Session(lowered.graph))

    def _plan_with_options(self, words: Sequence[str]) -> PlannedModel:
        """Return the plan under options, with the graph's own scales where these change none."""
        prepared = self._prepare_with_options(words)
        planned = self._plan_samples(prepared)
        plan, kept, moved = planned.plan, self._plan.tensors, self._plan.transforms
        if (
            self.recorded_settings is None
            or plan.transforms != self._base_plan.transforms
            or plan.transforms.keys() != moved.keys()
        ):
            return planned  # channels are stored otherwise: all scales anew
        same = {
            n for n, q in plan.tensors.items() if n in kept and q == self._base_plan.tensors.get(n)
        }
        tensors = {n: kept[n] if n in same else q for n, q in plan.tensors.items()}
        return apply_external_plan(prepared, replace(plan, tensors=tensors, transforms=moved))

    def _plan_samples(self, prepared: PreparedModel) -> PlannedModel:
        """Return the plan of the samples.

        Ranges are not moved where `quantize` has found that this loses.
        """
        return (
            plan_without_range_transforms(prepared)
            if self.graph_is_refined and not self._equalized
            else plan_model(prepared)
        )

    @cached_property
    def _base_plan(self) -> Plan:
        """The plan without options, of the samples."""
        return self._plan_samples(self._prepare_with_options(())).plan

    def _prepare_with_options(self, words: Sequence[str]) -> PreparedModel:
        return prepare_model(
            self._base.graph, self._feeds, None, self._settings(words), hold_out=False
        )

    def _settings(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the settings of `prepare_model` that options stand for."""
        settings: dict[str, Any] = {"platform": self._plan.platform, "mode": self._plan.mode}
        settings |= (
            {"effort": "normal" if self._equalized else "fast"}
            if self.recorded_settings is None
            else self.recorded_settings
        )
        settings["overrides"] = {
            name: dict(own) for name, own in settings.get("overrides", {}).items()
        }
        for word in words:
            option, value = shlex.split(word)
            if option == "--override":
                selector, chosen = parse_override(value)
                settings["overrides"].setdefault(selector, {}).update(chosen)
            else:
                settings[option.removeprefix("--").replace("-", "_")] = value
        return settings
