"""The `quantize` call: runs the steps of the flow, and a search if there is a goal.

    prepare -> best candidate (`quantization.pipeline`) -> trials on held-out samples -> result
    prepare -> best candidate -> search, if there is a goal

This module owns the order of these stages. It does not depend on commands or torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..common.errors import ConfigError
from ..ir import ir
from ..ir.plan import Plan
from ..operators.invalid_models import explain_invalid_models
from ..quantization import (
    Candidate,
    PreparedModel,
    QuantizedModel,
    RequantizedWeights,
    RunLog,
    find_best_candidate,
    measure_on_held_out,
    place_required_host_nodes,
    prepare_model,
    run_trial,
)
from ..quantization.prepare.settings import resolve_config
from ..quantization.settings import AUTO_WEIGHT_BITS, QuantSettings
from ..runtime.data import Progress, resolve_source_path
from ..targets import Target, get_target
from ..targets.objective import TIME

if TYPE_CHECKING:
    from ..interchange.qdq.encodings import Encodings
    from ..quantization.config import QuantConfig
    from ..search import Goal

__all__ = ["quantize"]

#: Trials that are not run before a search, which tries the same itself.
_SEARCHED_TRIALS = ("granularity", "outliers")


@explain_invalid_models
@np.errstate(all="ignore")  # values that are not finite are reported where they matter
def quantize(
    model: ir.ModelLike,
    calib: object = None,
    *,
    platform: str | Target | None = None,
    mode: str | None = None,
    skip: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, object]] | None = None,
    config: QuantConfig | str | os.PathLike[str] | None = None,
    plan: Plan | Encodings | str | os.PathLike[str] | None = None,
    eval_data: object = None,
    metric: str | None = None,
    max_drop: float | None = None,
    min_sqnr: float | None = None,
    max_ms: float | None = None,
    max_flash: int | None = None,
    budget: float | None = None,
    log: str | os.PathLike[str] | None = None,
    resume: bool = False,
    cluster: str | None = None,
    progress: Progress | None = None,
    **settings: Unpack[QuantSettings],
) -> QuantizedModel:
    """Quantize a float ONNX model.

    Parameters
    ----------
    model
        A path, or a model in memory, which is not modified.
    calib
        Calibration data: a path, a dict of arrays, an iterable of feeds or a function; see
        `runtime.data.Data`. None calibrates on random inputs, for a first impression; the report,
        the plan and the graph record this.
    platform
        Name of a platform, or a `Target`; default venus.
    mode
        "q-value": scales are powers of two. "max-value": scales may be any number.
    skip
        Selectors of nodes that remain float: a node, a tensor, a glob, "type:Conv", "NAME.." or
        "..NAME".
    overrides
        Selector -> settings of the selected nodes or tensors, such as {"bits": 16}.
    config
        A `QuantConfig` or the path of a YAML file; arguments take precedence.
    plan
        Scales to use instead of calibrating, or the path of a file with a plan. Or the encodings of
        another tool, as `read_plan` reads them from its file: these scales are approximated as well
        as the platform allows (see `report.taken` and `report.refused`), and missing scales are
        calibrated.
    eval_data
        Data on which the accuracy of the float and the integer model is measured.
    metric
        Metric of the accuracy, as in `evaluate`.
    max_drop
        Largest allowed drop of the metric on `eval_data` against the float model, in points for a
        metric in percent. Searches for the cheapest quantization within it; `report.search` lists
        the attempts. See `lingeronnx.search`.
    min_sqnr
        Smallest allowed SQNR of every output in dB; searches like `max_drop`, without eval data.
    max_ms
        Longest allowed call on the chip in ms, at `clock` MHz. Forms of the same integers are then
        chosen by time, unless `objective` is set.
    max_flash
        Largest allowed size of the constants in the package, in bytes. With max_drop or min_sqnr,
        max_ms and max_flash are additional limits. Alone, with weight_bits = "auto", they search
        for the most accurate mix of bit widths within the limits.
    budget
        Minutes after which no further attempt is started.
    log, resume
        File for the attempts, and whether to continue with the attempts in it.
    cluster
        Address of a Dask scheduler, whose workers run the attempts in parallel, with the same
        result. They read model and data from the same paths.
    progress
        Called with (description, completed samples, total samples or None).
    settings
        Further fields of `QuantConfig`, such as bits or effort. A model that another tool has
        quantized is quantized with its scales and again from its weights alone, and the better
        result is returned; requantize = True or False selects one of the two. With weight_bits =
        "auto" and max_drop or min_sqnr, each layer gets as few bits as the target accuracy allows;
        with max_ms or max_flash alone, as many as the limits allow. With state = {output: input},
        an item of `calib` is one call of a model whose states are fed back, or with calls = N or
        "all" several (see `runtime.streaming.iter_calls`).

    Returns
    -------
    QuantizedModel
        The integer graph, its plan and a report; `save` or `write` writes the files.

    Raises
    ------
    ModelError, DataError, ConfigError
        If the model, data or settings are invalid.
    ConstraintError
        With require_chip, if the result is not chip-ready.
    """
    arguments = {
        "platform": platform,
        "mode": mode,
        "skip": skip or None,
        "overrides": overrides or None,
    }
    options = {**arguments, **settings}
    goal: Goal | None = None
    if any(limit is not None for limit in (max_drop, min_sqnr, max_ms, max_flash)):
        from ..search import Goal  # loads the evaluation, which only a search needs

        goal = Goal(
            max_drop,
            min_sqnr,
            eval_data if min_sqnr is None else None,
            model,
            metric,
            settings.get("batch"),
            settings.get("limit"),
            max_ms=max_ms,
            max_flash=max_flash,
        )
        _validate_goal(goal, plan, config, options)
    if cluster is not None and goal is None:
        raise ConfigError(
            "a cluster runs the attempts of a search; pass max_drop, min_sqnr, max_flash or max_ms"
        )
    if max_ms is not None:
        settings["objective"] = options["objective"] = settings.get("objective") or TIME
    if goal is not None:
        options |= _min_weight_bits(config, options)
    run_log = RunLog(progress)
    scales, encodings = _load_scales(plan)
    prepared = _prepare(model, calib, config, options, run_log, encodings)
    if goal is not None:
        _check_scales_are_free(prepared)
        goal = replace(goal, clock=prepared.conf.clock)
        goal.validate_time_limit(prepared.target)
    skipped = () if goal is None else _SEARCHED_TRIALS
    best = find_best_candidate(prepared, run_log, scales, skipped)

    def requantize(samples: Mapping[str, np.ndarray] | None) -> Candidate:
        """Return the best candidate for the float model, calibrated with `samples`.

        With None, `calib` is used, as it was read.
        """
        data = prepared.data.source if samples is None else samples
        unquantized = _prepare(model, data, config, {**options, "requantize": True}, run_log)
        return find_best_candidate(unquantized, run_log)

    if goal is None:
        if plan is None:
            best = run_trial(RequantizedWeights(requantize), best, run_log)
            best = measure_on_held_out(
                best, lambda changed: find_best_candidate(changed, run_log), run_log
            )
        with run_log.step("finish"):
            result = best.checked_model
    else:
        from ..search import search  # loads the analysis, which only a search needs

        sources: dict[str, Any] = {
            "data": resolve_source_path(goal.data),
            "model": resolve_source_path(goal.model),
        }
        goal = replace(goal, **sources)
        with run_log.step("search"):
            result, _ = search(
                best,
                goal,
                minutes=budget,
                log=log,
                resume=resume,
                progress=progress,
                create_start=_SearchStart(
                    resolve_source_path(model), resolve_source_path(calib), config, options
                ),
                cluster=cluster,
            )
    if eval_data is not None:
        from ..quantization import measure_accuracy  # loads the evaluation

        with run_log.step("evaluate"):
            result = measure_accuracy(
                result,
                eval_data,
                model,
                budget=prepared.conf.budget,
                metric=metric,
                batch=settings.get("batch"),
                limit=settings.get("limit"),
                progress=progress,
            )
    result = replace(result, steps=tuple(run_log.steps))
    return result if goal is None else _add_sample_size_note(result, goal)


def _prepare(
    model: ir.ModelLike,
    calib: object,
    config: QuantConfig | str | os.PathLike[str] | None,
    options: Mapping[str, Any],
    run_log: RunLog,
    encodings: Encodings | None = None,
) -> PreparedModel:
    """Prepare a model with its data, with the nodes on the host that need no measurement.

    The arguments are those of `prepare_model`.
    """
    with run_log.step("prepare") as step:
        prepared = prepare_model(model, calib, config, options, encodings=encodings)
        prepared = place_required_host_nodes(prepared)
        parts = prepared.parts
        step.changes.append(
            f"{len(parts.ops)} nodes in integers, {len(parts.floats)} in float; "
            f"{len(prepared.fitted)} rewrites for {prepared.target.name}"
        )
    return prepared


def _load_scales(
    plan: Plan | Encodings | str | os.PathLike[str] | None,
) -> tuple[Plan | None, Encodings | None]:
    """Return `plan`, or the file that it names, as a plan or as encodings of another tool.

    Raises ConfigError if it is neither of them, or the file cannot be read.
    """
    if plan is None or isinstance(plan, Plan):
        return plan, None
    from ..interchange.qdq.encodings import Encodings, read_plan

    if isinstance(plan, str | os.PathLike):
        plan = read_plan(plan)
    if isinstance(plan, Encodings):
        return None, plan
    if isinstance(plan, Plan):
        return plan, None
    raise ConfigError(
        f"plan is of type {type(plan).__name__}; pass a Plan, the result of lingeronnx.read_plan, "
        "or the path of a file"
    )


def _check_scales_are_free(prepared: PreparedModel) -> None:
    """Raise ConfigError if a search cannot choose scales: without data, or with imported scales.

    Random calibration inputs count as no data.
    """
    if prepared.read is not None:
        raise ConfigError(
            "a search chooses scales, but this quantized model already has them; pass requantize "
            "(--requantize)"
        )
    if prepared.synthetic:
        raise ConfigError("a search needs calibration data; pass --calib DATA")


def _add_sample_size_note(result: QuantizedModel, goal: Goal) -> QuantizedModel:
    """Return `result` with a note in the report if the search used too few labelled samples.

    Unchanged without an accuracy in the report.
    """
    report = result.report
    if report.accuracy is None:
        return result
    warning = goal.format_sample_size_warning(report.accuracy["samples"])
    if not warning:
        return result
    return result.with_report(replace(report, notes=(*report.notes, warning)))


@dataclass(frozen=True)
class _SearchStart:
    """Creates the first candidate of a search; each worker of a cluster calls it."""

    model: Any
    calib: object
    config: QuantConfig | str | os.PathLike[str] | None
    settings: Mapping[str, Any]

    def __call__(self) -> Candidate:
        """Return the best candidate with the options of the user."""
        run_log = RunLog()
        prepared = _prepare(self.model, self.calib, self.config, self.settings, run_log)
        return find_best_candidate(prepared, run_log, skipped_trials=_SEARCHED_TRIALS)


def _min_weight_bits(
    config: QuantConfig | str | os.PathLike[str] | None, settings: Mapping[str, Any]
) -> dict[str, int]:
    """Return {"weight_bits": lowest width of the target}, where a search over widths begins.

    {} unless the setting weight_bits is "auto".
    """
    conf = resolve_config(config, settings)
    if conf.weight_bits != AUTO_WEIGHT_BITS:
        return {}
    return {"weight_bits": min(get_target(conf.platform).all_weight_bits)}


def _validate_goal(
    goal: Goal,
    plan: Plan | Encodings | str | os.PathLike[str] | None,
    config: QuantConfig | str | os.PathLike[str] | None,
    settings: Mapping[str, Any],
) -> None:
    """Raise ConfigError if the goal is invalid, or conflicts with the plan or the settings."""
    if plan is not None:
        raise ConfigError("a search chooses scales, but the plan fixes them; drop one of the two")
    goal.check()
    if goal.is_limits_only and resolve_config(config, settings).weight_bits != AUTO_WEIGHT_BITS:
        raise ConfigError(
            "max_flash and max_ms alone search over weight bit widths; add weight_bits auto "
            "(--weight-bits auto), or pass max_drop or min_sqnr; to only report a call that takes "
            "too long, use budget_ms"
        )
