"""Which operators lose accuracy when they are quantized: one at a time, the others in float.

Each trial rounds the weights, the output, or both of one operator to the plan's grid and leaves the
rest in float; with `all_but_one` everything is rounded but that. The trials are ranked by what
becomes of the graph's output. Then the worst few are left out together, of everything rounded,
which predicts what the options that do so give back.

A block of samples is one piece of work: the float model runs once, its tensors are kept, and each
trial computes only what lies behind its change (`trial`). What a block gives is appended to a file
and adds up in the order of the blocks, so that the results are the same for any number of workers,
and for a run that was killed and went on.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from types import CodeType
from typing import Any

from ...errors import ConfigError, DataError, suggest_nearest
from ...flow import PlannedModel, plan_model, prepare_model, require_calibrated_scales, require_data
from ...graph import ir
from ...plan import Plan
from ...run.data import Data, Progress
from ...run.streaming import unroll_calls
from ..stats.output_measures import (
    metric_unit,
    normalize_metric_name,
    resolve_output,
    worst_first_key,
)
from .journal import CLI_HINTS, Journal, ResumeHints, hash_parts
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

_MEMORY = 256 * 2**20  # bytes of a block's tensors that are kept
_ADVICE_SIZES = (1, 2, 3, 5, 8)  # how many of the worst are left out together
_MAX_FLOAT_MAC_SHARE = 0.25  # of the multiply-accumulates that an advice may leave in float
_MIN_GAIN_BY_UNIT = {"dB": 0.5, "%": 0.25}  # that an advice must give back

Function = Callable[..., float]


# ---- the whole -----------------------------------------------------------------------------------------------------


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
    max_float_macs: float = _MAX_FLOAT_MAC_SHARE,
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
    """Rank the operators of a float model by what their quantization costs.

    calib, settings : those of `quantize`, for the plan whose grids are rounded to; a float model
    needs them. eval_data
        : what is measured on, default calib. `batch` is the most samples of a block, `limit` holds for both.
    plan : one made elsewhere, whose grids are rounded to; nothing is calibrated then.
    folder : for the results as they come, in its file `journal`, and for the files; see `write`.
    resume : go on with
        what is there; ways : how its user does that, for messages.
    metric : one or several of L1, MSE, KL, Cosine, SQNR (of the output against the float model's),
    top1, top5,
        ``module:function`` of (outputs, labels); see `measures`. The first ranks. order :
        "ascending" or "descending", which of its values is the most sensitive first; default what
        the metric says, a function's least.
    what : "both", "weight", "activation", or "all" three. all_but_one : round everything but the
    operator. reserve :
        least sensitive last becomes first: those to take back to 8 bits.
    min_gain : what an advice must give back, in the unit of its metric; default 0.5 dB, 0.25 points
    of accuracy, and
        anything for a function. max_float_macs : the largest share of multiply-accumulates that it
        may leave in float.
    output : the graph output that is looked at, default the first. function : in place of a metric,
    a function of
        something that is called as a `Session`; its data are its own affair, and larger is better.
    plots : draw histograms of so many layers, the best and the worst, into `folder`; see
    `histograms`. workers, cluster
        : as `cluster.spread`; each worker computes with one thread.
    Raises ModelError, DataError, ConfigError, also where `folder` holds results of something else.
    """
    metrics = _resolve_metrics(what, order, function, metric)
    _validate_arguments(calib, eval_data, function, plots, folder)
    loaded = ir.as_model(model)
    planned = _plan_for_sensitivity(loaded, calib, plan, settings, progress)
    outputs = _resolve_outputs(planned, output, function)
    question = SensitivityRequest(
        metrics,
        what,
        all_but_one,
        order,
        function,
        outputs,
        min_gain=min_gain,
        max_float_macs=max_float_macs,
    )
    operators = list_rounded_operators(planned)
    trials = _list_trials(operators, what)
    data = load_evaluation_data(planned, calib, eval_data)
    grids = build_roundable_model(planned, operators, question.outputs)
    runs = TrialRuns(planned, grids, data, metrics, function, (workers, cluster), progress)
    with Journal(
        None if folder is None else Path(folder) / journal,
        _journal_header(runs, question),
        resume,
        ways,
    ) as results:
        ranked = _run_and_rank(runs, results, operators, trials, question)
    if plots and folder is not None:
        runs.write_histograms(Path(folder), operators, ranked.ranking, plots)
    ranked = replace(ranked, ranking=ranked.ranking[::-1]) if reserve else ranked
    if folder is not None:
        ranked.write(folder)
    return ranked


@dataclass(frozen=True)
class SensitivityRequest:
    """What is asked of the operators: `sensitivity`'s arguments, checked.

    metrics : by their proper names. outputs : the graph outputs that are looked at. least, share :
    what an advice must give, and may leave in float.
    """

    metrics: Sequence[str]
    trial_kind: str
    all_but_one: bool
    order: str | None
    function: Function | None
    outputs: Sequence[str]
    min_gain: float | None = None
    max_float_macs: float = _MAX_FLOAT_MAC_SHARE

    def min_gain_for(self, metric: str) -> float:
        """Return the gain that an advice must have by `metric`."""
        return (
            _MIN_GAIN_BY_UNIT.get(metric_unit(metric), 0.0)
            if self.min_gain is None
            else self.min_gain
        )


def _validate_arguments(
    calib: object,
    eval_data: object,
    function: Function | None,
    plots: int,
    folder: str | os.PathLike[str] | None,
) -> None:
    """Raise ConfigError or DataError for what cannot be worked with, before any work."""
    if plots:
        check_matplotlib()
        if folder is None:
            raise ConfigError("plots are files: give a folder")
    if isinstance(calib if eval_data is None else eval_data, Iterator):
        raise DataError(
            "the data are read more than once: pass a list or a function instead of a generator"
        )
    if calib is None and eval_data is None and function is None:
        raise ConfigError(f"{_DATA_REQUIRED}; with a plan, --eval DATA will do")


def _journal_header(runs: TrialRuns, question: SensitivityRequest) -> dict[str, object]:
    """Return what the results depend on; a journal of something else is refused by these words."""
    planned, function = runs.planned, question.function
    return {
        "model": hash_parts(ir.to_bytes(planned.original)),
        "plan (calibration data, settings)": runs.key,
        "metric": list(question.metrics),
        "what": question.trial_kind,
        "all_but_one": question.all_but_one,
        "output": list(question.outputs),
        "samples of a block": runs.block,
        "limit": planned.config.limit,
        "function": None if function is None else _function_name(function),
        "code of the function": None
        if function is None
        else hash_parts(_function_code_bytes(function)),
    }


def _function_name(function: Function) -> str:
    """Return what a function, or an object that is called, goes by."""
    known = function if hasattr(function, "__qualname__") else type(function)
    return f"{known.__module__}.{known.__qualname__}"


def _function_code_bytes(function: Function) -> bytes:
    """Return what a function does, as far as its own code and what is defined in it say.

    Nothing of compiled ones.
    """
    called = getattr(function, "func", function)  # of a partial
    called = getattr(called, "__wrapped__", called)
    code = getattr(
        called if hasattr(called, "__code__") else type(called).__call__, "__code__", None
    )
    return b"" if code is None else _code_bytes(code)


def _code_bytes(code: CodeType) -> bytes:
    names = repr((code.co_names, code.co_varnames)).encode()
    return b"\0".join([code.co_code, *map(_constant_bytes, code.co_consts), names])


def _constant_bytes(value: object) -> bytes:
    if isinstance(value, frozenset):  # its order is another one in every process
        return b"\0".join(sorted(map(_constant_bytes, value)))
    return _code_bytes(value) if isinstance(value, CodeType) else repr(value).encode()


_DATA_REQUIRED = (
    "the sensitivity of operators depends on scales from calibration data: give --calib DATA"
)


def _plan_for_sensitivity(
    model: ir.Model,
    calib: object,
    plan: Plan | None,
    settings: dict[str, Any],
    progress: Progress | None,
) -> PlannedModel:
    """Return `model` under the plan whose grids are rounded to.

    ConfigError where data for its scales are missing.
    """
    require_data(_DATA_REQUIRED, model, calib, plan)
    prepared = prepare_model(model, calib, settings.pop("config", None), settings, hold_out=False)
    planned = plan_model(prepared, plan, progress)
    if plan is None:
        require_calibrated_scales(_DATA_REQUIRED, model, planned.plan)
    return planned


@dataclass(frozen=True)
class OperatorTrial:
    """One operator, and what of it is rounded: `kind` in a word, `setting` by name."""

    operator: RoundedOperator
    kind: str
    setting: RoundedSet


def _list_trials(operators: Sequence[RoundedOperator], what: str) -> list[OperatorTrial]:
    """Return the trials of all operators; ConfigError where there are none."""
    trials = [
        OperatorTrial(operator, kind, setting)
        for operator in operators
        for kind, setting in operator.trial_sets(what).items()
    ]
    if not trials:
        raise ConfigError(f"what = {what}: no operator of the model has that; choose another")
    return trials


def _run_and_rank(
    runs: TrialRuns,
    journal: Journal,
    operators: Sequence[RoundedOperator],
    trials: Sequence[OperatorTrial],
    question: SensitivityRequest,
) -> Sensitivity:
    """Run the trials, rank them, and try what the advice would be."""
    target, but_one = runs.planned.target, question.all_but_one
    whole = reduce(or_, (operator.all_rounded for operator in operators))
    settings = [whole - trial.setting if but_one else trial.setting for trial in trials]
    ranked = runs.run_stage(
        journal, "ranking", whole if but_one else RoundedSet(), settings, question.metrics
    )
    keys = [
        worst_first_key(question.metrics[0], row[0], question.order) * (-1 if but_one else 1)
        for row in ranked.values
    ]
    order = sorted(range(len(trials)), key=keys.__getitem__)
    ranking = [
        RankedTrial(
            trials[i].operator.name,
            trials[i].kind,
            trials[i].operator.op_type,
            tuple(ranked.values[i]),
        )
        for i in order
    ]
    worst = [trials[i].operator for i in order]
    advised_by, tried = (
        runs.advice_metric(),
        _advice_candidates(runs.planned, operators, worst, question.max_float_macs),
    )
    left = [apply_options(runs.planned, taken, operators) for taken in tried]
    advised = runs.run_stage(journal, "advice", whole, [RoundedSet(), whole, *left], [advised_by])
    exact, quantized, *others = (row[0] for row in advised.values)
    advice = [
        SkipAdvice(
            tuple(operator.name for operator in taken),
            tuple(format_option(o, target) for o in taken),
            value,
        )
        for taken, value in zip(tried, others, strict=True)
    ]
    found = Sensitivity(
        ranking=ranking,
        metrics=question.metrics,
        advised_by=advised_by,
        exact=exact,
        quantized=quantized,
        advice=advice,
        samples=ranked.samples,
        macs=ranked.macs + advised.macs,
        whole=ranked.samples * runs.macs * (len(trials) + 1 + len(tried)),
        for_chip=target.has_packer,
        notes=tuple(runs.notes),
        min_gain=question.min_gain_for(advised_by),
        weight_bits=weight_bits_by_operator(runs.planned),
    )
    return found if found.best is not None else replace(found, finding=runs.finding)


def _resolve_metrics(
    what: str, order: str | None, function: Function | None, metric: str | Sequence[str]
) -> list[str]:
    """Return the metrics by their proper names, after checking the words a caller chooses."""
    for name, value, known in (
        ("what", what, TRIAL_KINDS),
        ("order", order, ("ascending", "descending", None)),
    ):
        if value not in known:
            words = [str(word) for word in known if word is not None]
            raise ConfigError(
                f"{name} = '{value}'{suggest_nearest(str(value), words)}; it is one of "
                f"{', '.join(words)}"
            )
    if function is not None:
        if metric != "L1":
            raise ConfigError("metric and function: give one of the two")
        return ["value"]
    return [
        normalize_metric_name(name) for name in ([metric] if isinstance(metric, str) else metric)
    ]


def _resolve_outputs(
    planned: PlannedModel, name: str | None, function: Function | None
) -> list[str]:
    """Return the graph outputs that are looked at: `name`, default the first.

    All for a function of the user's.
    """
    outputs = [str(value.name) for value in planned.original.graph.outputs]
    return outputs if function is not None else [resolve_output(name, outputs)]


def _advice_candidates(
    planned: PlannedModel,
    operators: Sequence[RoundedOperator],
    worst: Sequence[RoundedOperator],
    share: float,
) -> list[list[RoundedOperator]]:
    """Return the worst 1, 2, 3 ...

    Operators that an option can leave out, and that give something back then.
    share : of the multiply-accumulates that they may take into float, where they are left in float.
    """
    target = planned.target
    left = share * sum(layer.macs for layer in operators) if max(target.bits) <= 8 else math.inf
    able: list[RoundedOperator] = []
    for layer in dict.fromkeys(worst):
        gives = (
            format_option(layer, target)
            and restored_by_options(planned, [layer], operators) != RoundedSet()
        )
        if gives and layer.macs <= left:
            able.append(layer)
            left -= layer.macs
    return [able[:number] for number in _ADVICE_SIZES if number <= len(able)]


def load_evaluation_data(planned: PlannedModel, calib: object, eval_data: object) -> Data:
    """Return what is measured on.

    Of a model that is fed its own states, calls with the float model's states.
    """
    source = calib if eval_data is None else eval_data
    if source is None:
        return planned.data
    specs, conf = list(planned.data.inputs.values()), planned.config
    fixed = dict(planned.data.fixed)
    if conf.state:
        source, fixed = (
            unroll_calls(planned.original, source, conf.state, fixed, limit=conf.limit).items,
            {},
        )
    return Data(source, specs, limit=conf.limit, what="evaluation data", fixed=fixed)
