"""Rank operators by the accuracy lost when each is quantized alone, with the rest in float.

Each trial rounds the weights, the output, or both of one operator to the plan's grid and leaves the
rest in float; with `all_but_one` everything else is rounded instead. The trials are ranked by their
effect on the graph's output. Then the worst few are exempt together from a completely rounded
model, which predicts the gain of the corresponding options.

Samples are processed in blocks: the float model runs once per block, its tensors are stored, and
each trial computes only the part downstream of its change (`trial`). The result of each block is
appended to a file, and results are summed in the order of the blocks, so that they are the same for
any number of workers and for a run that was killed and resumed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from types import CodeType
from typing import Any

from ...common.errors import ConfigError, DataError, suggest_nearest
from ...common.files import created_folder
from ...common.hashing import hash_concatenation
from ...ir import ir
from ...ir.plan import Plan
from ...quantization import (
    PlannedModel,
    plan_model,
    prepare_model,
    require_calibrated_scales,
    require_data,
)
from ...quantization.prepare.recurrent_states import suggest_missing_input_fix
from ...runtime.accuracy_warnings import format_chance_warning
from ...runtime.data import Data, Progress
from ...runtime.streaming import unroll_calls
from ..stats.output_measures import (
    metric_unit,
    normalize_metric_name,
    resolve_output,
    worst_first_key,
)
from .journal import CLI_HINTS, Journal, ResumeHints
from .layer_histograms import check_matplotlib
from .layers import (
    RoundedOperator,
    apply_options,
    build_roundable_model,
    format_option,
    list_rounded_operators,
    restored_by_options,
    weight_bits_by_operator,
)
from .ranking import RankedTrial, Sensitivity, SkipAdvice
from .trial import RoundedSet
from .trial_runs import TrialRuns

__all__ = ["JOURNAL_FILE", "load_evaluation_data", "sensitivity"]

JOURNAL_FILE = "sensitivity.jsonl"
TRIAL_KINDS = ("both", "weight", "activation", "all")

_ADVICE_SIZES = (1, 2, 3, 5, 8)  # numbers of worst operators to exempt together
_MAX_FLOAT_MAC_FRACTION = 0.25  # fraction of the multiply-accumulates that advice may put in float
_MIN_GAIN_BY_UNIT = {"dB": 0.5, "%": 0.25}  # gain required of advice

Function = Callable[..., float]


def sensitivity(
    model: ir.ModelLike,
    calib: object = None,
    eval_data: object = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    metric: str | Sequence[str] = "L1",
    what: str = "both",
    all_but_one: bool = False,
    reserve: bool = False,
    order: str | None = None,
    output: str | None = None,
    min_gain: float | None = None,
    max_float_macs: float = _MAX_FLOAT_MAC_FRACTION,
    function: Function | None = None,
    plan: Plan | None = None,
    resume: bool = False,
    plots: int = 0,
    journal: str = JOURNAL_FILE,
    ways: ResumeHints = CLI_HINTS,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Sensitivity:
    """Rank the operators of a float model by the accuracy lost when they are quantized.

    Parameters
    ----------
    model
        The float model.
    calib, **settings
        Calibration data and settings of `quantize`, for the plan whose grids are rounded to. A
        float model needs calibration data.
    eval_data
        Data to measure on; default `calib`. `batch` limits the samples of a block, and `limit`
        applies to both kinds of data.
    folder
        Folder for the journal and the files of `Sensitivity.write`, created if necessary.
    metric
        One or several of L1, MSE, KL, Cosine, SQNR (of the output against the float model's), top1,
        top5, ``module:function`` of (outputs, labels). The first one ranks.
    what
        What is rounded: "both", "weight", "activation", or "all" three one by one.
    all_but_one
        Whether to round everything except the operator.
    reserve
        Whether to reverse the ranking: least sensitive first, as candidates for 8 bits.
    order
        Which values of the metric are the most sensitive, "ascending" or "descending"; default
        given by the metric, ascending for a function.
    output
        The graph output to measure; default the first one.
    min_gain
        Gain required of advice, in the unit of its metric; default 0.5 dB, 0.25 points of accuracy,
        and any gain for a function.
    max_float_macs
        Largest fraction of the multiply-accumulates that advice may put in float.
    function
        A function that replaces the metric. It is called with a model that runs like a `Session`,
        and uses its own data; larger values are better.
    plan
        An existing plan whose grids are rounded to; nothing is calibrated then.
    resume
        Whether to reuse the results in the journal.
    plots
        Number of best and of worst layers to draw histograms for, in `folder`.
    journal
        Name of the journal in `folder`.
    ways
        How the user restarts and resumes, for messages.
    workers, cluster
        Number of processes, and address of a Dask cluster, that compute the blocks; each worker
        computes with one thread. The result is the same.
    progress
        Progress callback.

    Raises
    ------
    ModelError, DataError, ConfigError
        If the model, the data or the arguments are wrong, or if `folder` contains results for
        something else.
    """
    metrics = _resolve_metrics(what, order, function, metric)
    _validate_arguments(calib, eval_data, function, plots, folder)
    target = nullcontext(None) if folder is None else created_folder(folder)
    with target as files:
        graph = ir.as_model(model)
        planned = _plan_for_sensitivity(graph, calib, plan, settings, progress)
        request = SensitivityRequest(
            metrics,
            what,
            all_but_one,
            order,
            function,
            _resolve_outputs(planned, output, function),
            min_gain=min_gain,
            max_float_macs=max_float_macs,
        )
        operators = list_rounded_operators(planned)
        trials = _list_trials(operators, what)
        data = load_evaluation_data(planned, calib, eval_data)
        roundable = build_roundable_model(planned, operators, request.outputs)
        runs = TrialRuns(planned, roundable, data, metrics, function, (workers, cluster), progress)
        journal_path = None if files is None else files / journal
        with Journal(journal_path, _journal_header(runs, request), resume, ways) as results:
            result = _run_and_rank(runs, results, operators, trials, request)
        if plots and files is not None:
            runs.write_histograms(files, operators, result.ranking, plots)
        if reserve:
            result = replace(result, ranking=result.ranking[::-1])
        if files is not None:
            result.write(files)
    return result


@dataclass(frozen=True)
class SensitivityRequest:
    """Validated arguments of `sensitivity`.

    Parameters
    ----------
    metrics
        Normalized names of the metrics.
    trial_kind
        The argument `what`.
    all_but_one, order, function
        As in `sensitivity`.
    outputs
        The measured graph outputs.
    min_gain
        Gain required of advice, or None for the default of its metric.
    max_float_macs
        Largest fraction of the multiply-accumulates that advice may put in float.
    """

    metrics: Sequence[str]
    trial_kind: str
    all_but_one: bool
    order: str | None
    function: Function | None
    outputs: Sequence[str]
    min_gain: float | None = None
    max_float_macs: float = _MAX_FLOAT_MAC_FRACTION

    def min_gain_for(self, metric: str) -> float:
        """Return the gain required of advice that is measured by `metric`, in its unit.

        It is the user's `min_gain` if given, else 0.5 dB, 0.25 percentage points, or 0 for other
        units.
        """
        if self.min_gain is not None:
            return self.min_gain
        return _MIN_GAIN_BY_UNIT.get(metric_unit(metric), 0.0)


def _validate_arguments(
    calib: object,
    eval_data: object,
    function: Function | None,
    plots: int,
    folder: str | os.PathLike[str] | None,
) -> None:
    """Raise ConfigError or DataError for invalid arguments before any work.

    Plots need matplotlib and a folder, the measured data (`eval_data`, else `calib`) must not be an
    iterator, and data are required unless there is a function.
    """
    if plots:
        check_matplotlib()
        if folder is None:
            raise ConfigError("plots are written to files: pass a folder")
    if isinstance(calib if eval_data is None else eval_data, Iterator):
        raise DataError(
            "the data are read several times: pass a list or a function instead of a generator"
        )
    if calib is None and eval_data is None and function is None:
        raise ConfigError(f"{_DATA_REQUIRED}; with a plan, --eval DATA is enough")


def _journal_header(runs: TrialRuns, request: SensitivityRequest) -> dict[str, object]:
    """Return all that the results depend on, JSON-ready: digests of model, plan and function.

    Also metrics, outputs, block size and so on. A journal may be resumed only if its header equals
    this. The keys are shown in messages.
    """
    planned, function = runs.planned, request.function
    function_name, function_digest = None, None
    if function is not None:
        function_name = _function_name(function)
        function_digest = hash_concatenation([_function_code_bytes(function)])
    return {
        "model": hash_concatenation([ir.to_bytes(planned.prepared.original)]),
        "plan (calibration data, settings)": runs.key,
        "metric": list(request.metrics),
        "what": request.trial_kind,
        "all_but_one": request.all_but_one,
        "output": list(request.outputs),
        "samples of a block": runs.block_size,
        "limit": planned.prepared.conf.limit,
        "function": function_name,
        "code of the function": function_digest,
    }


def _function_name(function: Function) -> str:
    """Return "module.qualified name" of a function, or of the type of another callable object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _function_code_bytes(function: Function) -> bytes:
    """Return bytes that depend on a function's own code and the functions defined inside it.

    A partial or wrapper counts as the function inside, a callable object as its `__call__`. Empty
    for compiled functions.
    """
    wrapped = getattr(function, "func", function)  # of a partial
    wrapped = getattr(wrapped, "__wrapped__", wrapped)
    python_function = wrapped if hasattr(wrapped, "__code__") else type(wrapped).__call__
    code = getattr(python_function, "__code__", None)
    return b"" if code is None else _code_bytes(code)


def _code_bytes(code: CodeType) -> bytes:
    """Return bytecode, constants (recursively those of nested functions) and names as bytes."""
    names = repr((code.co_names, code.co_varnames)).encode()
    return b"\0".join([code.co_code, *map(_constant_bytes, code.co_consts), names])


def _constant_bytes(value: object) -> bytes:
    """Convert a constant of a function's code to bytes that are the same in every process.

    Elements of a frozenset are sorted, because their order differs; a nested code object counts by
    its own bytecode and constants.
    """
    if isinstance(value, frozenset):  # iterates in a different order in every process
        return b"\0".join(sorted(map(_constant_bytes, value)))
    return _code_bytes(value) if isinstance(value, CodeType) else repr(value).encode()


_DATA_REQUIRED = (
    "the sensitivity of operators depends on scales from calibration data: pass --calib DATA"
)


def _plan_for_sensitivity(
    model: ir.Model,
    calib: object,
    plan: Plan | None,
    settings: dict[str, Any],
    progress: Progress | None,
) -> PlannedModel:
    """Plan the float model from calibration data `calib`, or apply `plan`; no samples are held out.

    `settings` are those of `quantize`; "config" is removed from them in place.

    Raises
    ------
    ConfigError
        If data for the scales are missing.
    """
    require_data(_DATA_REQUIRED, model, calib, plan)
    prepared = prepare_model(model, calib, settings.pop("config", None), settings, hold_out=False)
    planned = plan_model(prepared, plan, progress)
    if plan is None:
        require_calibrated_scales(_DATA_REQUIRED, model, planned.plan)
    return planned


@dataclass(frozen=True)
class OperatorTrial:
    """A trial of one operator.

    Parameters
    ----------
    operator
        The operator.
    kind
        What is rounded: "weight", "activation" or "both".
    setting
        The rounded tensors and weights.
    """

    operator: RoundedOperator
    kind: str
    setting: RoundedSet


def _list_trials(operators: Sequence[RoundedOperator], what: str) -> list[OperatorTrial]:
    """List the trials of all operators, in order: one per operator and selected kind.

    The kind is "weight", "activation" or "both"; "all" selects each of these.

    Raises
    ------
    ConfigError
        If there are none.
    """
    trials = []
    for operator in operators:
        for kind, setting in operator.trial_sets(what).items():
            trials.append(OperatorTrial(operator, kind, setting))
    if not trials:
        raise ConfigError(f"what = {what}: no operator of the model has that; choose another")
    return trials


def _run_and_rank(
    runs: TrialRuns,
    journal: Journal,
    operators: Sequence[RoundedOperator],
    trials: Sequence[OperatorTrial],
    request: SensitivityRequest,
) -> Sensitivity:
    """Run and rank the trials, then measure the effect of advice for the worst operators.

    A trial rounds its operator alone, or all but it with `all_but_one`. Advice is measured with
    everything rounded but for the selected operators. If no advice is good enough, the result has
    the first finding of `compare` instead. Results of both stages are read from and added to
    `journal`; no other file is written.
    """
    all_rounded = reduce(or_, (operator.all_rounded for operator in operators))
    base, settings = RoundedSet(), [trial.setting for trial in trials]
    if request.all_but_one:
        base, settings = all_rounded, [all_rounded - setting for setting in settings]
    results = runs.run_stage(journal, "ranking", base, settings, request.metrics)
    order = _rank_trials(results.values, request)
    ranking = []
    for i in order:
        operator = trials[i].operator
        values = tuple(results.values[i])
        ranking.append(RankedTrial(operator.name, trials[i].kind, operator.op_type, values))
    worst = [trials[i].operator for i in order]
    candidates = _advice_candidates(runs.planned, operators, worst, request.max_float_macs)
    advised_by = runs.advice_metric()
    settings = [RoundedSet(), all_rounded]
    settings += [apply_options(runs.planned, selected, operators) for selected in candidates]
    advice_results = runs.run_stage(journal, "advice", all_rounded, settings, [advised_by])
    exact, quantized, *advice_values = (values[0] for values in advice_results.values)
    advice = []
    for selected, value in zip(candidates, advice_values, strict=True):
        names = tuple(operator.name for operator in selected)
        options = tuple(
            format_option(operator, runs.planned.prepared.target) for operator in selected
        )
        advice.append(SkipAdvice(names, options, value))
    result = Sensitivity(
        ranking=ranking,
        metrics=request.metrics,
        advised_by=advised_by,
        exact=exact,
        quantized=quantized,
        advice=advice,
        samples=results.samples,
        macs=results.macs + advice_results.macs,
        whole=results.samples * runs.macs * (len(trials) + 1 + len(candidates)),
        for_chip=runs.planned.prepared.target.has_packer,
        notes=(
            *runs.notes,
            *_format_chance_note(runs, request, advised_by, exact, results.samples),
        ),
        min_gain=request.min_gain_for(advised_by),
        weight_bits=weight_bits_by_operator(runs.planned),
    )
    return result if result.best is not None else replace(result, finding=runs.finding)


def _format_chance_note(
    runs: TrialRuns, request: SensitivityRequest, metric: str, value: float, samples: int
) -> list[str]:
    """Return a warning if the float model's accuracy is not better than chance, else nothing.

    `metric` is the metric of advice, `value` that of the float model on `samples` samples.
    """
    k = {"top1": 1, "top5": 5}.get(metric)
    shapes = {str(v.name): ir.get_shape(v) for v in runs.planned.prepared.original.graph.outputs}
    shape = shapes.get(request.outputs[0]) if request.outputs else None
    if k is None or not shape or not all(isinstance(length, int) for length in shape[1:]):
        return []
    class_count = math.prod(int(length or 0) for length in shape[1:])
    correct = round(value * samples / 100)
    warning = format_chance_warning(correct, samples, class_count, k, "the float model")
    return [f"WARNING: {warning}"] if warning else []


def _rank_trials(values: Sequence[Sequence[float]], request: SensitivityRequest) -> list[int]:
    """Return the indices of trials, most sensitive first by the first metric.

    `values` has a list of metric values for each trial. With `all_but_one` the order is reversed:
    leaving out the most sensitive operator gives the best value.
    """
    sign = -1 if request.all_but_one else 1
    keys = [
        worst_first_key(request.metrics[0], trial_values[0], request.order) * sign
        for trial_values in values
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _resolve_metrics(
    what: str, order: str | None, function: Function | None, metric: str | Sequence[str]
) -> list[str]:
    """Check `what` and `order`, and return the normalized names of the metrics.

    With a function the only name is "value".

    Raises
    ------
    ConfigError
        If a choice is unknown, or both a function and a metric are given.
    """
    _require_choice("what", what, TRIAL_KINDS)
    if order is not None:
        _require_choice("order", order, ("ascending", "descending"))
    if function is not None:
        if metric != "L1":
            raise ConfigError("metric and function exclude each other: pass one of the two")
        return ["value"]
    names = [metric] if isinstance(metric, str) else metric
    return [normalize_metric_name(name) for name in names]


def _require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise ConfigError if the argument `name` is not one of `choices`."""
    if value not in choices:
        raise ConfigError(
            f"{name} = '{value}'{suggest_nearest(str(value), choices)}; it is one of "
            f"{', '.join(choices)}"
        )


def _resolve_outputs(
    planned: PlannedModel, name: str | None, function: Function | None
) -> list[str]:
    """Return the graph outputs to measure: [`name`], by default [first], or all for a function.

    Raises ConfigError if there is no such output.
    """
    outputs = ir.get_output_names(planned.prepared.original)
    return outputs if function is not None else [resolve_output(name, outputs)]


def _advice_candidates(
    planned: PlannedModel,
    operators: Sequence[RoundedOperator],
    worst: Sequence[RoundedOperator],
    max_float_macs: float,
) -> list[list[RoundedOperator]]:
    """Return groups of the worst operators that an option can exempt from rounding.

    `worst` has the most sensitive first. Groups have 1, 2, 3, 5 and 8 operators, as far as there
    are so many; larger groups contain the smaller ones. Operators without an option, or whose
    exemption restores nothing, are skipped. On an 8-bit platform exempt operators run in float;
    those that would exceed the fraction `max_float_macs` of all multiply-accumulates together are
    skipped too.
    """
    target = planned.prepared.target
    remaining_macs = math.inf
    if max(target.bits) <= 8:
        remaining_macs = max_float_macs * sum(layer.macs for layer in operators)
    candidates: list[RoundedOperator] = []
    for layer in dict.fromkeys(worst):
        if not format_option(layer, target) or layer.macs > remaining_macs:
            continue
        if restored_by_options(planned, [layer], operators) == RoundedSet():
            continue
        candidates.append(layer)
        remaining_macs -= layer.macs
    return [candidates[:size] for size in _ADVICE_SIZES if size <= len(candidates)]


def load_evaluation_data(planned: PlannedModel, calib: object, eval_data: object) -> Data:
    """Return `eval_data` as data, or `calib` if it is None, or those of the plan if both are.

    With the setting `state`, each item is a call with the states that the float model computes.
    """
    source = calib if eval_data is None else eval_data
    if source is None:
        return planned.prepared.data
    specs, config = list(planned.prepared.data.inputs.values()), planned.prepared.conf
    fixed = dict(planned.prepared.data.fixed)
    if config.state:
        calls = unroll_calls(
            planned.prepared.original,
            source,
            config.state,
            fixed,
            limit=config.limit,
            calls_per_item=config.calls,
            advice=lambda missing: suggest_missing_input_fix(planned.prepared.original, missing),
        )
        source, fixed = calls.items, {}
    return Data(
        source, specs, limit=config.limit, label="evaluation data", fixed=fixed, record=True
    )
