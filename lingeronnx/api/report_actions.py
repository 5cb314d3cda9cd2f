"""Actions that may raise the accuracy of a quantized model, tried one by one within a time budget.

An action is a set of options of `quantize`. It is tried by quantizing the float model again, with
the settings recorded in the quantized model plus the options, and compared by the worst output as
the report of `quantize` shows it, on samples held out. What was not tried says so.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..analysis.compare.comparison import Comparison
from ..analysis.compare.finding import LayerFinding
from ..analysis.compare.network import name_layers
from ..analysis.compare.option_trials import apply_option
from ..analysis.compare.scale_causes import MISMATCH_REMEDY
from ..analysis.compare.sources import IntegerSource
from ..common.errors import DataError, LingerOnnxError
from ..common.escaping import join_shell, quote_shell
from ..ir import ir
from ..quantization import QuantizedModel
from ..runtime.provenance import load_quantize_settings
from ..targets import DEFAULT, GraphCost, get_target
from .report_losses import rank_findings

__all__ = ["DEFAULT_BUDGET_MINUTES", "Action", "find_actions"]

#: Minutes for all trials of actions together.
DEFAULT_BUDGET_MINUTES = 1.0
#: Smallest gain of an action that is shown, in dB.
MIN_GAIN_DB = 0.5
_MAX_ACTIONS = 5
#: {effort: the efforts above it, each with its time relative to it}; roughly, for the budget alone.
_SLOWER_EFFORTS = {
    "fast": (("normal", 3.0), ("best", 12.0)),
    "normal": (("best", 4.0),),
    "best": (),
}
_WIDENED_LAYERS = 2  # layers with most error of their own that are tried with 16 bits


@dataclass(frozen=True)
class Action:
    """Options of `quantize` that may help, and what they gained when tried.

    Attributes
    ----------
    options
        Options as one text for a shell; empty for quantizing again as before.
    reason
        Why they may help.
    gain_db
        Difference of the worst output's SQNR in dB; None if they were not tried.
    costs
        What they cost, such as "+1.2 % time"; empty if nothing, or if they were not tried.
    untried_reason
        Why they were not tried; empty if they were.
    relative_time
        Expected time of a trial, relative to that of quantizing as before.
    tensor
        The tensor that they are about; empty if they are about the whole model.
    """

    options: str
    reason: str
    gain_db: float | None = None
    costs: tuple[str, ...] = ()
    untried_reason: str = ""
    relative_time: float = 1.0
    tensor: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return what the page shows as JSON-ready values."""
        fields = ("options", "reason", "gain_db", "untried_reason", "tensor")
        return {**{name: getattr(self, name) for name in fields}, "costs": list(self.costs)}


def find_actions(
    model: ir.ModelLike,
    quantized: QuantizedModel | ir.Model,
    comparison: Comparison,
    calib: object,
    quantize: Callable[..., QuantizedModel],
    evaluate: Callable[[QuantizedModel], float],
    *,
    budget: float = DEFAULT_BUDGET_MINUTES,
    **settings: Any,
) -> list[Action]:
    """List up to five actions, the largest proven gain first, then those that were not tried.

    Actions that were tried and gain less than `MIN_GAIN_DB` are left out.

    Parameters
    ----------
    model, quantized
        The float model, and its integer graph or the result of `quantize`, which is then not
        quantized again for comparison.
    comparison
        Comparison of both.
    calib
        Calibration data; None: nothing is tried.
    quantize
        The function `api.quantize`.
    evaluate
        Measures a quantized model as `comparison` did, and returns the lowest SQNR of an output in
        dB.
    budget
        Minutes for all trials. A trial that would probably take longer than what is left is not
        started; the first one shows how long they take.
    **settings
        Settings of `quantize` that the file does not record: state, calls.
    """
    graph = ir.as_model(quantized)
    recorded = _load_settings(graph, comparison)
    candidates = _remove_repeated(_list_candidates(comparison, recorded))
    reason = ""
    if calib is None:
        reason = "not tried: no calibration data"
    elif recorded is None:
        reason = "not tried: the file does not record how it was quantized"
    if reason:
        return [replace(action, untried_reason=reason) for action in candidates[:_MAX_ACTIONS]]

    def requantize(options: str) -> QuantizedModel:
        changed, words = dict(recorded or {}), shlex.split(options)
        for name, value in zip(words[::2], words[1::2], strict=True):
            changed = apply_option(changed, join_shell((name, value)))
        return quantize(model, calib, **changed, **settings)

    def measure_again(result: QuantizedModel) -> float:
        return evaluate(result) - min(comparison.outputs.values(), default=math.nan)

    baseline = quantized if isinstance(quantized, QuantizedModel) else None
    trial = _ActionTrial(requantize, measure_again, baseline)
    return _try_actions(candidates, trial, budget)


def _try_actions(candidates: Iterable[Action], trial: _ActionTrial, budget: float) -> list[Action]:
    """Try actions within `budget` minutes; return those that gain, then those not tried."""
    tried: list[tuple[float, Action]] = []
    untried: list[Action] = []
    end, longest_s = time.monotonic() + 60 * budget, 0.0
    for action in candidates:
        started = time.monotonic()
        if started + longest_s * action.relative_time > end:
            untried.append(replace(action, untried_reason="not tried within the time budget"))
            continue
        result = trial.run(action)
        if result is not None:
            tried.append(result)
            longest_s = max(longest_s, (time.monotonic() - started) / action.relative_time)
    ranked = sorted(tried, key=lambda entry: -entry[0])
    gains = [action for gain_db, action in ranked if gain_db >= MIN_GAIN_DB]
    return [*gains, *untried][:_MAX_ACTIONS]


def _load_settings(graph: ir.Model, comparison: Comparison) -> dict[str, Any] | None:
    """Return the settings of `quantize` that made a graph, with its platform and mode.

    None if the graph does not record them.
    """
    recorded = load_quantize_settings(graph)
    source = comparison.join.other
    if recorded is None or not isinstance(source, IntegerSource):
        return recorded
    return {"platform": source.plan.platform, "mode": source.plan.mode, **recorded}


def _remove_repeated(actions: Iterable[Action]) -> list[Action]:
    """Return the first action with each text of options, in order."""
    first: dict[str, Action] = {}
    for action in actions:
        first.setdefault(action.options, action)
    return list(first.values())


def _list_candidates(
    comparison: Comparison, recorded: Mapping[str, object] | None
) -> Iterator[Action]:
    """Yield actions, the most specific first: options of findings, 16 bits, more effort.

    16 bits are proposed only for a platform that has them.
    """
    settings = recorded or {}
    target = get_target(str(settings.get("platform", DEFAULT)))
    yield from _list_finding_actions(comparison)
    places = name_layers(comparison)
    for row in comparison.worst[:_WIDENED_LAYERS] if 16 in target.bits else ():
        if row.stored_form is not None and row.stored_form.q.bits <= 8:
            option = f"--override {quote_shell(f'{row.name}=bits:16')}"
            reason = f"a layer with much error: {places[row.name]}"
            yield Action(option, reason, tensor=row.name)
    if settings.get("weight_scales", "tensor") == "tensor" and "channel" in target.weight_scales:
        yield Action("--weight-scales channel", "a scale for each output channel")
    for other, relative_time in _SLOWER_EFFORTS[str(settings.get("effort", "normal"))]:
        yield Action(
            f"--effort {other}", "with more methods, which take longer", relative_time=relative_time
        )


def _list_finding_actions(comparison: Comparison) -> Iterator[Action]:
    """Yield the options of findings, and quantizing again if the file differs from the model."""
    places = name_layers(comparison)

    def describe(finding: LayerFinding) -> str:
        place = places.get(finding.layer, f"{finding.operator} {finding.layer}")
        return f"{finding.kind}: {place}"

    damaged = next((f for f in comparison.findings if f.remedy == MISMATCH_REMEDY), None)
    if damaged is not None:
        reason = f"quantize the float model again, as this file does not match it: {damaged.kind}"
        yield Action("", reason, tensor=damaged.layer)
    for finding, _ in rank_findings(comparison):
        for option in finding.options:
            yield Action(option, describe(finding), tensor=finding.layer)
    if len(comparison.findings) > 1 and comparison.options:
        yield Action(comparison.options, "the options of all findings that help together")


class _ActionTrial:
    """Quantizes a model with further options, and compares the worst output and the cost."""

    def __init__(
        self,
        requantize: Callable[[str], QuantizedModel],
        measure_again: Callable[[QuantizedModel], float],
        baseline: QuantizedModel | None,
    ) -> None:
        """Store the functions that quantize with options and measure the gain without any.

        `baseline` is the result without options, if it is known.
        """
        self._requantize, self._measure_again = requantize, measure_again
        self._baseline = baseline

    def run(self, action: Action) -> tuple[float, Action] | None:
        """Return the gain in dB, and the action with it and its costs.

        None if the options cannot be applied, such as a width that the target lacks, or if the gain
        is not defined. Raises DataError if the calibration data do not fit the model.
        """
        try:
            if self._baseline is None:
                self._baseline = self._requantize("")
        except DataError:
            raise
        except LingerOnnxError:
            return None
        try:
            if not action.options:
                return self._describe(action, self._measure_again(self._baseline), ())
            result = self._requantize(action.options)
        except LingerOnnxError:
            return None
        gain_db = _worst_sqnr_db(result) - _worst_sqnr_db(self._baseline)
        return self._describe(action, gain_db, _compare_costs(self._baseline, result))

    def _describe(
        self, action: Action, gain_db: float, costs: tuple[str, ...]
    ) -> tuple[float, Action] | None:
        """Return the gain, and the action with it and its costs; None if it is not finite."""
        if not math.isfinite(gain_db):
            return None
        return gain_db, replace(action, gain_db=gain_db, costs=costs)


def _worst_sqnr_db(result: QuantizedModel) -> float:
    """Return the lowest SQNR of an output in dB, as the report of `quantize` shows it.

    Infinite without float outputs.
    """
    return min((figures["sqnr"] for figures in result.report.outputs.values()), default=math.inf)


def _compare_costs(before: QuantizedModel, after: QuantizedModel) -> tuple[str, ...]:
    """Return what `after` costs more or less than `before`, as texts: time, weights, chip-ready."""
    texts = []
    old, new = before.report.time.latency, after.report.time.latency
    if old is not None and new is not None and old.total:
        texts += _format_change(old.total, new.total, "time")
    texts += _format_change(_weight_bytes(before), _weight_bytes(after), "weights")
    if before.report.chip_ready and not after.report.chip_ready:
        texts.append("no longer chip-ready")
    return tuple(texts)


def _weight_bytes(result: QuantizedModel) -> float:
    """Return the bytes of weights on the chip, 0 if they are not known."""
    cost: GraphCost | None = result.report.cost
    return 0.0 if cost is None else float(cost.weights)


def _format_change(before: float, after: float, name: str) -> list[str]:
    """Return ["+1.2 % NAME"] for a change of at least 0.1 %, else []."""
    change = 100 * (after / before - 1) if before else 0.0
    return [f"{change:+.1f} % {name}"] if abs(change) >= 0.1 else []
