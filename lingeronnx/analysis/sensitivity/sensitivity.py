"""Which operators lose accuracy when they are quantized: one at a time, in float runs of the plan.

Each trial rounds the weights, the output, or both of one operator to the plan's grid and leaves the rest in float; with
`all_but_one` everything is rounded but that. The trials are ranked by what becomes of the graph's output. Then the
worst few are left out together, of everything rounded, which predicts what the options that do so give back.

A block of samples is one piece of work: the float model runs once, its tensors are kept, and each trial computes only
what lies behind its change (`trial`). What a block gives is appended to a file and adds up in the order of the blocks,
so that the results are the same for any number of workers, and for a run that was killed and went on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from ...errors import ConfigError, DataError, nearest
from ...flow import Planned, need_data, need_scales, plan_for, prepare
from ...graph import ir
from ...plan import Plan
from ...run.data import Data, Progress
from ...run.streaming import unrolled
from ..stats.output_measures import canonical, worse_first
from .journal import Journal, hashed
from .layer_histograms import check_matplotlib
from .layers import RoundedOperator, given_back, layers, option, rounding
from .ranking import Advice, Ranked, Sensitivity
from .trial import RoundedSet
from .trial_runs import TrialRuns

__all__ = ["JOURNAL", "evaluation_data", "sensitivity"]

JOURNAL = "sensitivity.jsonl"
KINDS = ("both", "weight", "activation", "all")

_MEMORY = 256 * 2**20  # bytes of a block's tensors that are kept
_FIRST = (1, 2, 3, 5, 8)  # how many of the worst are left out together

Function = Callable[..., float]


# ---- the whole -----------------------------------------------------------------------------------------------------


def sensitivity(
    model: str | os.PathLike[str] | ir.Graph,
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
    function: Function | None = None,
    plan: Plan | None = None,
    resume: bool = False,
    plots: int = 0,
    journal: str = JOURNAL,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Sensitivity:
    """Rank the operators of a float model by what their quantization costs.

    calib, settings : those of `quantize`, for the plan whose grids are rounded to; a float model needs them. eval_data
        : what is measured on, default calib. `batch` is the most samples of a block, `limit` holds for both.
    plan : one made elsewhere, whose grids are rounded to; nothing is calibrated then.
    folder : for the results as they come, in its file `journal`, and for the files; see `write`. resume : go on with
        what is there.
    metric : one or several of L1, MSE, KL, Cosine, SQNR (of the output against the float model's), top1, top5,
        ``module:function`` of (outputs, labels); see `measures`. The first ranks. order : "ascending" or "descending",
        which of its values is the most sensitive first; default what the metric says, a function's least.
    what : "both", "weight", "activation", or "all" three. all_but_one : round everything but the operator. reserve :
        least sensitive last becomes first: those to take back to 8 bits.
    output : the graph output that is looked at, default the first. function : in place of a metric, a function of
        something that is called as a `Session`; its data are its own affair, and larger is better.
    plots : draw histograms of so many layers, the best and the worst, into `folder`; see `histograms`.
    workers, cluster : as `cluster.spread`; each worker computes with one thread.
    Raises ModelError, DataError, ConfigError, also where `folder` holds results of something else.
    """
    names = _names(what, order, function, metric)
    if plots:
        check_matplotlib()
        if folder is None:
            raise ConfigError("plots are files: give a folder")
    if isinstance(calib if eval_data is None else eval_data, Iterator):
        raise DataError("the data are read more than once: pass a list or a function instead of a generator")
    if calib is None and eval_data is None and function is None:
        raise ConfigError(f"{_NEED}; with a plan, --eval DATA will do")
    planned = _planned(
        ir.load(model) if isinstance(model, str | os.PathLike) else model, calib, plan, settings, progress
    )
    every = layers(planned)
    outputs = [str(v.name) for v in planned.original.graph.outputs]
    looked_at = outputs if function is not None else [_output(output, outputs)]
    trials = [OperatorTrial(layer, kind, setting) for layer in every for kind, setting in layer.kinds(what).items()]
    if not trials:
        raise ConfigError(f"what = {what}: no operator of the model has that; choose another")
    run = TrialRuns(
        planned,
        rounding(planned, every, looked_at),
        evaluation_data(planned, calib, eval_data),
        names,
        function,
        (workers, cluster),
        progress,
    )
    header = {"model": hashed(ir.to_bytes(planned.original)), "plan (calibration data, settings)": run.key,
              "metric": names, "what": what, "all_but_one": all_but_one, "output": looked_at,
              "samples of a block": run.block, "limit": planned.conf.limit,
              "function": None if function is None else f"{function.__module__}.{function.__qualname__}"}  # fmt: skip
    with Journal(None if folder is None else Path(folder) / journal, header, resume) as results:
        found = _found(run, results, every, trials, all_but_one, order)
    if plots and folder is not None:
        run.draw(Path(folder), every, found.ranking, plots)
    if reserve:
        found = replace(found, ranking=found.ranking[::-1])
    if folder is not None:
        found.write(folder)
    return found


_NEED = "the sensitivity of operators depends on scales from calibration data: give --calib DATA"


def _planned(
    model: ir.Graph, calib: object, plan: Plan | None, settings: dict[str, Any], progress: Progress | None
) -> Planned:
    """Return `model` under the plan whose grids are rounded to; ConfigError where data for its scales are missing."""
    need_data(_NEED, model, calib, plan)
    prepared = prepare(model, calib, settings.pop("config", None), settings, hold=False)
    planned = plan_for(prepared, plan, progress)
    if plan is None:
        need_scales(_NEED, model, planned.plan)
    return planned


@dataclass(frozen=True)
class OperatorTrial:
    layer: RoundedOperator
    kind: str
    setting: RoundedSet


def _found(
    run: TrialRuns,
    journal: Journal,
    every: Sequence[RoundedOperator],
    trials: Sequence[OperatorTrial],
    all_but_one: bool,
    order: str | None,
) -> Sensitivity:
    """Run the trials, rank them, and try what the advice would be."""
    names, target = run.names, run.planned.target
    whole = reduce(or_, (layer.whole for layer in every))
    given = [whole - trial.setting if all_but_one else trial.setting for trial in trials]
    ranked = run.stage(journal, "ranking", whole if all_but_one else RoundedSet(), given, names)
    keys = [worse_first(names[0], values[0], order) * (-1 if all_but_one else 1) for values in ranked.values]
    places = sorted(range(len(trials)), key=keys.__getitem__)
    ranking = [
        Ranked(trials[i].layer.name, trials[i].kind, trials[i].layer.op_type, tuple(ranked.values[i])) for i in places
    ]
    by, tried = run.accuracy(), _tried(run.planned, every, [trials[i].layer for i in places])
    left = [whole - given_back(run.planned, taken, every) for taken in tried]
    advised = run.stage(journal, "advice", whole, [RoundedSet(), whole, *left], [by])
    exact, quantized, *others = (values[0] for values in advised.values)
    advice = [
        Advice(tuple(layer.name for layer in taken), tuple(option(layer, target) for layer in taken), value)
        for taken, value in zip(tried, others, strict=True)
    ]
    every_run = ranked.samples * run.macs * (len(trials) + 1 + len(tried))
    return Sensitivity(
        ranking,
        names,
        by,
        exact,
        quantized,
        advice,
        ranked.samples,
        ranked.macs + advised.macs,
        every_run,
        target.packs,
        tuple(run.notes),
    )


def _names(what: str, order: str | None, function: Function | None, metric: str | Sequence[str]) -> list[str]:
    """Return the metrics by their proper names, after checking the words a caller chooses."""
    for name, value, known in (("what", what, KINDS), ("order", order, ("ascending", "descending", None))):
        if value not in known:
            words = [str(word) for word in known if word is not None]
            raise ConfigError(f"{name} = '{value}'{nearest(str(value), words)}; it is one of {', '.join(words)}")
    if function is not None:
        if metric != "L1":
            raise ConfigError("metric and function: give one of the two")
        return ["value"]
    return [canonical(name) for name in ([metric] if isinstance(metric, str) else metric)]


def _output(name: str | None, outputs: Sequence[str]) -> str:
    if name is not None and name not in outputs:
        raise ConfigError(f"the model has no output '{name}'{nearest(name, outputs)}; outputs are {', '.join(outputs)}")
    return outputs[0] if name is None else name


def _tried(
    planned: Planned, every: Sequence[RoundedOperator], worst: Sequence[RoundedOperator]
) -> list[list[RoundedOperator]]:
    """Return the worst 1, 2, 3 ... operators that an option can leave out, and that give something back then."""
    target = planned.target
    able = [x for x in dict.fromkeys(worst) if option(x, target) and given_back(planned, [x], every) != RoundedSet()]
    return [able[:number] for number in _FIRST if number <= len(able)]


def evaluation_data(planned: Planned, calib: object, eval_data: object) -> Data:
    """Return what is measured on: of a model that is fed its own states, calls with the float model's states."""
    source = calib if eval_data is None else eval_data
    if source is None:
        return planned.data
    specs, conf = list(planned.data.inputs.values()), planned.conf
    fixed = dict(planned.data.fixed)
    if conf.state:
        source, fixed = unrolled(planned.original, source, conf.state, fixed).items, {}
    return Data(source, specs, limit=conf.limit, what="evaluation data", fixed=fixed)
