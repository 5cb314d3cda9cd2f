"""Try the options of findings before they are advised, and select the ones that help together.

The float model is planned again with the options on top of the graph's own settings, on the
available samples. If a tensor's scale does not depend on the options, the graph's scale is used,
because calibration chose it on other data. The plan is computed in float, so the result is the
error of rounding alone. The further refinement by `quantize` is omitted, with and without the
options; if nothing helps this way, options for wrong scales are tried with refined weights too. A
graph without recorded settings is used as it is. An option is advised if it gains at least
`MIN_GAIN_DB`, and all advised options together gain more than the difference between the trial
without options and the graph. Each trial plans the whole model, so that large models have fewer.
Nothing is tried for a dump, which has no float model, and for very large models.
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

from ...common.deprecation import keep_old_members
from ...common.errors import LingerOnnxError
from ...ir import ir
from ...operators.macs import count_macs
from ...quantization import (
    PlannedModel,
    PreparedModel,
    apply_external_plan,
    plan_model,
    prepare_model,
    refine_weights,
)
from ...quantization.config import parse_override
from ...quantization.lower import lower
from ...quantization.prepare.settings import resolve_config
from ...quantization.recipe import get_equalizing_effort, refines_weights
from ...quantization.steps.scale_sources import plan_without_range_transforms
from ...runtime.provenance import load_quantize_settings
from ...runtime.session import Session
from ..stats.pair_measures import PairMeasures
from .finding import LayerFinding
from .join import TensorJoin
from .sources import FloatSource, IntegerSource, PlannedSource, TensorSource

__all__ = [
    "MIN_GAIN_DB",
    "OptionTrialResult",
    "apply_option",
    "rank_findings",
    "try_options",
]

#: Gain in dB that is required of an advised option.
MIN_GAIN_DB = 0.5

#: Settings that preparation does not read.
_PLANNING_SETTINGS = frozenset({"effort", "overrides"})

_MAX_SINGLE_OPTIONS = 4  # options to try one by one
_MAX_MACS = 2_000_000_000  # multiply-accumulates per sample of a model for which options are tried
_MAX_PLANNED_NODES = 4_000  # of all trials together; some milliseconds each


@keep_old_members(
    "0.3",
    value="best_sqnr",
    every="all_options_sqnr",
    now="baseline_sqnr",
    graph="graph_sqnr",
)
@dataclass(frozen=True)
class OptionTrialResult:
    """Effect of options on the worst output's SQNR, in dB.

    Parameters
    ----------
    best
        Options to use; empty if none helps.
    best_sqnr
        SQNR with the options that gained most.
    all_options_sqnr
        SQNR with all options.
    baseline_sqnr
        SQNR without options, planned in the same way, or of the graph if it has no recorded
        settings.
    graph_sqnr
        SQNR of the graph.
    refined
        Whether weights were refined as `quantize` does; otherwise the error is that of rounding
        alone.
    """

    best: tuple[str, ...]
    best_sqnr: float
    all_options_sqnr: float
    baseline_sqnr: float
    graph_sqnr: float
    refined: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether the gain is at least MIN_GAIN_DB (0.5 dB) and the error of the trial itself.

        That error is the difference between the SQNR of the trial without options and of the graph.
        """
        trial_error = abs(self.baseline_sqnr - self.graph_sqnr)
        return self.best_sqnr - self.baseline_sqnr >= max(MIN_GAIN_DB, trial_error)

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON-ready values.

        "value" is the SQNR with the `best` options, "every" with all options, "now" without options
        and "graph" that of the graph, in dB.
        """
        return {
            "best": self.best,
            "value": self.best_sqnr,
            "every": self.all_options_sqnr,
            "now": self.baseline_sqnr,
            "graph": self.graph_sqnr,
            "refined": self.refined,
        }


def try_options(
    tensor_join: TensorJoin, findings: Sequence[LayerFinding], feeds: Mapping[str, np.ndarray]
) -> OptionTrialResult | None:
    """Try the options of the findings and select the best combination.

    If no option is certain to help, those of findings of order 0 and 1 are tried with refined
    weights, if the graph has such.

    Parameters
    ----------
    tensor_join
        The compared models.
    findings
        Findings with options.
    feeds
        Samples that scales are calibrated with and outputs are compared on.

    Returns
    -------
    OptionTrialResult or None
        None if there are no options, the models are not a float model and an integer graph, the
        model is too large, or planning or running it fails. The result's `best` is empty if no
        option is certain to help.
    """
    options = _distinct_options(findings)
    base, other = tensor_join.base, tensor_join.other
    if not options or not tensor_join.outputs:
        return None
    if not isinstance(base, FloatSource) or not isinstance(other, IntegerSource):
        return None
    limit = _limit_single_options(len(base.graph.graph))
    if limit is None or sum(count_macs(node) for node in base.graph.graph) > _MAX_MACS:
        return None
    trial = _OptionTrial(base, other, feeds)
    result = _find_best_options(trial, options[:limit], options)
    if result is None or result.best or not trial.graph_is_refined:
        return result
    serious_findings = [finding for finding in findings if finding.order < 2]
    scale_options = _distinct_options(serious_findings)[:limit]
    if not scale_options:
        return result
    return _find_best_options(trial.with_refined_weights, scale_options, options) or result


def _limit_single_options(nodes: int) -> int | None:
    """Return the number of options to try one by one in a model of `nodes` nodes.

    None if not even the trials without and with all options are affordable. n options take at
    most n + (n - 1) + ... + 1 further trials.
    """
    for count in range(_MAX_SINGLE_OPTIONS, -1, -1):
        if (2 + count * (count + 1) // 2) * nodes <= _MAX_PLANNED_NODES:
            return count
    return None


def _distinct_options(findings: Sequence[LayerFinding]) -> tuple[str, ...]:
    """Return the options of findings without duplicates, in order."""
    options: dict[str, None] = {}
    for finding in findings:
        options.update(dict.fromkeys(finding.options))
    return tuple(options)


def rank_findings(
    findings: Sequence[LayerFinding], result: OptionTrialResult | None
) -> list[LayerFinding]:
    """Move the finding with the most effective option before all others with options.

    It moves up at most to the nearest finding without options (such as one about the data). Returns
    a new list, in the same order if `result` is None or has no best option.
    """
    if result is None or not result.best or not findings:
        return list(findings)
    lead = next((i for i, finding in enumerate(findings) if result.best[0] in finding.options), 0)
    target = next((i for i in range(lead, 0, -1) if not findings[i - 1].options), 0)
    ranked = list(findings)
    ranked[target:target] = [ranked.pop(lead)]
    return ranked


def _find_best_options(
    trial: _OptionTrial, single_options: Sequence[str], options: Sequence[str]
) -> OptionTrialResult | None:
    """Measure the effect of options on the worst output's SQNR, and select the best ones.

    Those of `single_options` are selected greedily one by one; all `options` are taken instead if
    these gain MIN_GAIN_DB more; none if the gain is not certain. Without recorded settings the
    baseline is the graph itself. Returns None if planning or running the model without or with all
    options fails.
    """
    baseline_sqnr = trial.graph if trial.recorded_settings is None else trial.value(())
    all_options_sqnr = None if baseline_sqnr is None else trial.value(options)
    if baseline_sqnr is None or all_options_sqnr is None:
        return None
    best, best_sqnr = _select_greedily(trial, single_options, baseline_sqnr)
    if all_options_sqnr - best_sqnr >= MIN_GAIN_DB:
        best, best_sqnr = tuple(options), all_options_sqnr
    result = OptionTrialResult(
        best, best_sqnr, all_options_sqnr, baseline_sqnr, trial.graph, trial.refines_weights
    )
    return result if result.is_certain else replace(result, best=())


def _select_greedily(
    trial: _OptionTrial, options: Sequence[str], value: float
) -> tuple[tuple[str, ...], float]:
    """Select options greedily, largest gain first, while each gains at least MIN_GAIN_DB.

    `value` is the SQNR in dB without options. Options whose trial fails are skipped. Returns the
    selected options and the SQNR in dB with all of them.
    """
    best: tuple[str, ...] = ()
    while len(best) < len(options):
        values: dict[str, float] = {}
        for option in options:
            option_value = None if option in best else trial.value((*best, option))
            if option_value is not None:
                values[option] = option_value
        best_option = max(values, key=values.__getitem__, default="")
        # the gain of an exact output is NaN (inf - inf), which is no gain
        if not best_option or not values[best_option] - value >= MIN_GAIN_DB:
            break
        best, value = (*best, best_option), values[best_option]
    return best, value


class _OptionTrial:
    """Plans the float model with options and measures its outputs.

    Attributes
    ----------
    recorded_settings : dict or None
        Settings of `quantize` recorded in the graph.
    refines_weights : bool
        Whether weights are refined as `quantize` does.
    """

    def __init__(
        self, base: FloatSource, other: IntegerSource, feeds: Mapping[str, np.ndarray]
    ) -> None:
        """Run the float model on `feeds`, and read the analysed graph's plan and settings.

        Trials round weights without refining them until `refines_weights` is set.
        """
        self._base, self._other, self._feeds = base, other, dict(feeds)
        self._values: dict[tuple[tuple[str, ...], bool], float | None] = {}
        self._plan = other.plan
        outputs = ir.get_output_names(base.graph)
        self._expected = {name: array for name, array, _ in base.session.tensors(feeds, outputs)}
        self.recorded_settings = load_quantize_settings(other.graph)
        self.refines_weights = False
        self._equalized = any(
            len(set(transform.factor)) > 1 for transform in self._plan.transforms.values()
        )

    def value(self, options: Sequence[str]) -> float | None:
        """Plan the model with options, run it, and return the worst output's SQNR in dB.

        None if planning or running fails. Results are cached by options and `refines_weights`.
        """
        key = tuple(options), self.refines_weights
        if key not in self._values:
            try:
                source = self._build_source(self._plan_with_options(options))
                self._values[key] = self._measure_worst_sqnr(source)
            except LingerOnnxError:
                self._values[key] = None
        return self._values[key]

    @cached_property
    def graph(self) -> float:
        """The worst output's SQNR in dB of the analysed graph itself; infinite without outputs."""
        sqnr_db = self._measure_worst_sqnr(self._other)
        return math.inf if sqnr_db is None else sqnr_db

    def _measure_worst_sqnr(self, source: TensorSource) -> float | None:
        """Run the samples and return the lowest SQNR in dB of the outputs against the float ones.

        None if the source has none of the float model's outputs.
        """
        worst_db, has_outputs = math.inf, False
        for name, array, form in source.run(self._feeds):
            if name not in self._expected:
                continue
            pair = PairMeasures()
            actual = array if form is None else form.real(array)
            pair.add(self._expected[name].reshape(-1), actual.reshape(-1))
            worst_db, has_outputs = min(worst_db, pair.sqnr), True
        return worst_db if has_outputs else None

    @property
    def graph_is_refined(self) -> bool:
        """Whether the settings recorded in the analysed graph include refinement of weights.

        False if the graph records no settings.
        """
        if self.recorded_settings is None:
            return False
        return refines_weights(self.recorded_settings)

    @property
    def with_refined_weights(self) -> _OptionTrial:
        """A shallow copy of the trial that refines weights and runs the simulator."""
        trial = copy(self)
        trial.refines_weights = True
        return trial

    def _build_source(self, planned: PlannedModel) -> TensorSource:
        """Create the source that runs a planned model.

        It is computed in float with fake quantization, or, with `refines_weights`, by the simulator
        from the lowered graph with refined weights.
        """
        if not self.refines_weights:
            return PlannedSource(planned.graph, planned.plan)
        lowered = lower(
            planned.partition.with_graph(refine_weights(planned)),
            planned.plan,
            planned.prepared.target,
        )
        return IntegerSource(Session(lowered.graph))

    def _plan_with_options(self, options: Sequence[str]) -> PlannedModel:
        """Plan the model with options; tensors they leave alone keep the analysed graph's scales.

        A tensor is left alone if its planned scale equals that of the plan without options. All
        scales are new if options change the transforms, if the graph's transforms are of other
        tensors, or if the graph records no settings.
        """
        if not options:
            planned = self._base_planned
        else:
            planned = self._plan_samples(self._prepare_with_options(options))
        prepared, plan = planned.prepared, planned.plan
        graph_tensors, graph_transforms = self._plan.tensors, self._plan.transforms
        if self.recorded_settings is None:
            return planned
        if plan.transforms != self._base_planned.plan.transforms:
            return planned
        if plan.transforms.keys() != graph_transforms.keys():
            return planned  # channels are stored differently, which changes all scales
        tensors = {}
        for name, q in plan.tensors.items():
            is_unchanged = name in graph_tensors and q == self._base_planned.plan.tensors.get(name)
            tensors[name] = graph_tensors[name] if is_unchanged else q
        plan = replace(plan, tensors=tensors, transforms=graph_transforms)
        return apply_external_plan(prepared, plan)

    def _plan_samples(self, prepared: PreparedModel) -> PlannedModel:
        """Plan a prepared model from the samples.

        Range transforms (equalization) are left out if the analysed graph is refined but not
        equalized: `quantize` had rejected them.
        """
        if self.graph_is_refined and not self._equalized:
            return plan_without_range_transforms(prepared)
        return plan_model(prepared)

    @cached_property
    def _base_planned(self) -> PlannedModel:
        """The model planned from the samples with the graph's own settings, without options."""
        return self._plan_samples(self._base_prepared)

    @cached_property
    def _base_prepared(self) -> PreparedModel:
        """The float model prepared with the graph's own settings, without options.

        All samples are used for calibration; none is held out.
        """
        return prepare_model(
            self._base.graph, self._feeds, None, self._settings(()), hold_out=False
        )

    def _prepare_with_options(self, options: Sequence[str]) -> PreparedModel:
        """Prepare the float model for planning, with the graph's settings changed by `options`.

        The graph is prepared again only for options that change it, such as "--skip".
        """
        settings, base_settings = self._settings(options), self._settings(())
        conf, base_conf = resolve_config(None, settings), resolve_config(None, base_settings)
        changes = {name: value for name, value in conf if value != getattr(base_conf, name)}
        prepared = self._base_prepared
        if changes.keys() <= _PLANNING_SETTINGS and prepared.read is None:
            return prepared.with_settings(changes)
        return prepare_model(self._base.graph, self._feeds, None, settings, hold_out=False)

    def _settings(self, options: Sequence[str]) -> dict[str, Any]:
        """Return the settings of `prepare_model`: the graph's own, changed by options.

        Without recorded settings they are platform, mode and an effort ("normal" for an equalized
        graph, else "fast"). `options` are texts of the command line, such as "--override
        SELECTOR=...".
        """
        settings: dict[str, Any] = {"platform": self._plan.platform, "mode": self._plan.mode}
        if self.recorded_settings is None:
            settings["effort"] = get_equalizing_effort(self._equalized)
        else:
            settings |= self.recorded_settings
        for option in options:
            settings = apply_option(settings, option)
        return settings


def apply_option(settings: Mapping[str, Any], option: str) -> dict[str, Any]:
    """Return a copy of settings of `quantize`, changed by one option of the command line.

    `option` is a text such as "--override SELECTOR=KEY:VALUE", "--skip SELECTOR" or "--effort
    best".
    """
    changed = dict(settings)
    overrides = changed.get("overrides") or {}
    changed["overrides"] = {name: dict(values) for name, values in overrides.items()}
    name, value = shlex.split(option)
    if name == "--override":
        selector, override = parse_override(value)
        changed["overrides"].setdefault(selector, {}).update(override)
    elif name == "--skip":
        changed["skip"] = (*(changed.get("skip") or ()), value)
    else:
        changed[name.removeprefix("--").replace("-", "_")] = value
    return changed
