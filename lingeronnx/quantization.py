"""Quantizing: the stages of the flow one after the other, what is tried besides, and the search for a wish.

    prepare -> plan_for -> refined -> compared -> trials -> the result, or a search that begins with
    it

Owns: the order of these. Must not know: commands, torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from .errors import ConfigError
from .flow import (
    Candidate,
    PreparedModel,
    QuantizedModel,
    build_candidate,
    choose_import_or_requantize,
    drop_harmful_stages,
    measure_accuracy,
    offload_rejected_layers,
    place_required_host_nodes,
    plan_model,
    prepare_model,
    refine_weights,
    try_best_effort,
    try_finer_granularity,
    try_finer_noisy_scales,
    try_host_offload,
)
from .flow.assign import describe_ineffective_overrides
from .flow.prepare.settings import resolve_config
from .graph import ir
from .plan import Plan
from .plan.config import AUTO_WEIGHT_BITS, QuantConfig
from .plan.settings import QuantSettings
from .qdq.encodings import Encodings
from .run.data import Progress, resolve_source_path
from .search import Goal, search
from .targets import Target, get_target
from .targets.objective import TIME

__all__ = ["quantize"]


@np.errstate(all="ignore")  # what is not finite is told in words, where it decides something
def quantize(
    model: ir.ModelLike,
    calib: object = None,
    *,
    platform: str | Target | None = None,
    mode: str | None = None,
    skip: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    config: QuantConfig | str | os.PathLike[str] | None = None,
    plan: Plan | Encodings | None = None,
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
        A path, or a model in memory, which is left as it is.
    calib
        Calibration data: a path, a dict of arrays, an iterable of feeds or a function; see
        `run.data.Data`. None runs on random inputs, for a look: the report, the plan and the graph
        say so, and what is made of these later.
    platform
        A platform's name, or a `Target` of your own; default venus.
    mode
        "q-value": scales are powers of two. "max-value": scales may be any number.
    skip
        Selectors of what stays in float: a node, a tensor, a glob, "type:Conv", "NAME.." or
        "..NAME".
    overrides
        Selector -> other settings for what it names, such as {"bits": 16}.
    config
        A `QuantConfig` or the path of a YAML file; settings given here win over it.
    plan
        Scales to use; then nothing is calibrated. Or what `read_plan` found in another tool's file:
        its scales are held as near as the platform comes, `report.taken` and `report.refused` say
        how, and what it has no scale for is calibrated.
    eval_data
        Data on which the accuracy is measured, float against integer.
    metric
        How it is measured, as by `evaluate`.
    max_drop
        Find the cheapest quantization whose metric on `eval_data` is lower than the float model's
        by so much at most; in points where it is in percent. The attempts are `report.search`. See
        `lingeronnx.search`.
    min_sqnr
        The same for a number of dB that every output has at least, without eval data.
    max_ms
        A call on the chip takes so many milliseconds at most, at `clock` MHz. Then time decides
        between forms of the same integers, unless `objective` says otherwise.
    max_flash
        The constants take so many bytes of the package at most. Beside max_drop or min_sqnr these
        two are limits. Without, and with weight_bits = "auto", they ask for the most accurate mix
        of widths that keeps them.
    budget
        Minutes after which no further attempt is begun.
    log, resume
        A file for the attempts, and whether to go on with those that it holds.
    cluster
        The address of a Dask scheduler: its workers make the attempts side by side, with the same
        result. They read model and data from the same paths.
    progress
        Called with (what is being done, samples done, samples in all or None).
    settings
        Further fields of `QuantConfig`, such as bits or effort. A model that another tool has
        quantized is quantized twice, its scales kept and its weights alone, and the better is
        taken; requantize = True or False says which of the two it shall be. weight_bits = "auto"
        with max_drop or min_sqnr: as few bits in each layer as the wish allows. With max_ms or
        max_flash alone: as many as fit. With state = {output: input}, an item of `calib` is one
        call of a model that is fed its own states.

    Returns
    -------
    QuantizedModel
        The integer graph, its plan and a report; `save` or `write` writes the files.

    Raises
    ------
    ModelError, DataError, ConfigError
        For a model, data or settings that cannot be used.
    ConstraintError
        With require_chip, where the result is not chip-ready.
    """
    given = {
        "platform": platform,
        "mode": mode,
        "skip": tuple(skip) or None,
        "overrides": overrides or None,
    }
    chosen = {**given, **settings}
    sizes: dict[str, Any] = {key: settings.get(key) for key in ("batch", "limit")}
    data = eval_data if min_sqnr is None else None
    wish = Goal(
        max_drop, min_sqnr, data, model, metric, max_ms=max_ms, max_flash=max_flash, **sizes
    )
    goal = _validate_goal(wish, plan, config, chosen)
    if cluster is not None and goal is None:
        raise ConfigError(
            "a cluster makes attempts of a search: give max_drop, min_sqnr, max_flash or max_ms"
        )
    if max_ms is not None:
        settings["objective"] = chosen["objective"] = settings.get("objective") or TIME
    start = plan if isinstance(plan, Encodings) else None
    chosen |= _min_weight_bits(config, chosen) if goal is not None else {}
    prepared = place_required_host_nodes(
        prepare_model(model, calib, config, chosen, encodings=start)
    )
    if goal is not None and prepared.synthetic and prepared.read is None:
        raise ConfigError("a wish chooses by what calibration data show: give --calib DATA")
    if goal is not None and prepared.read is not None:
        raise ConfigError(
            "a wish chooses scales; this quantized model brings its own: add requantize"
        )
    if goal is not None:
        goal = replace(goal, clock=prepared.conf.clock)
        goal.validate_time_limit(prepared.target)
    best = _find_best_candidate(prepared, plan, goal is not None, progress)

    def requantize(samples: Mapping[str, np.ndarray] | None) -> Candidate:
        data = calib if samples is None else samples
        again = prepare_model(model, data, config, {**given, **settings, "requantize": True})
        return _find_best_candidate(place_required_host_nodes(again), None, False, progress)

    if goal is None and plan is None:
        best = choose_import_or_requantize(best, requantize)
    if goal is None:
        result = best.checked_model
    else:
        begin = _SearchStart(resolve_source_path(model), resolve_source_path(calib), config, chosen)
        found: dict[str, Any] = {
            key: resolve_source_path(getattr(goal, key)) for key in ("data", "model")
        }
        goal = replace(goal, **found)
        more: dict[str, Any] = {"progress": progress, "create_start": begin, "cluster": cluster}
        result, _ = search(best, goal, minutes=budget, log=log, resume=resume, **more)
    if eval_data is not None:
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
    return result if goal is None else _add_sample_size_note(result, goal)


def _add_sample_size_note(result: QuantizedModel, goal: Goal) -> QuantizedModel:
    """Return `result` with a note where it was chosen by too few samples with labels."""
    report = result.report
    doubt = (
        ""
        if report.accuracy is None
        else goal.format_sample_size_warning(report.accuracy["samples"])
    )
    return (
        replace(result, report=replace(report, notes=(*report.notes, doubt))) if doubt else result
    )


@dataclass(frozen=True)
class _SearchStart:
    """What a search begins with, as a worker of a cluster makes it for itself."""

    model: Any
    calib: object
    config: QuantConfig | str | os.PathLike[str] | None
    settings: Mapping[str, Any]

    def __call__(self) -> Candidate:
        """Return what the user's options give."""
        prepared = prepare_model(self.model, self.calib, self.config, self.settings)
        return _find_best_candidate(place_required_host_nodes(prepared), None, True, None)


def _min_weight_bits(
    config: QuantConfig | str | os.PathLike[str] | None, settings: Mapping[str, Any]
) -> dict[str, int]:
    """Return the width of weights from which a search for widths begins.

    Nothing where the user has named one.
    """
    conf = resolve_config(config, settings)
    return (
        {"weight_bits": min(get_target(conf.platform).all_weight_bits)}
        if conf.weight_bits == AUTO_WEIGHT_BITS
        else {}
    )


def _offload_and_retry(best: Candidate, progress: Progress | None) -> Candidate:
    """Return `best` with what no part for the chip can do on the host.

    What moved is a model to choose methods for.
    """
    moved = offload_rejected_layers(best, progress)
    if moved is not best:
        moved = try_best_effort(moved, progress) if moved.prepared.conf.effort == "best" else moved
        moved = drop_harmful_stages(moved, progress)
    idle = describe_ineffective_overrides(moved.prepared)
    return moved.with_notes(idle) if idle else moved


def _find_best_candidate(
    prepared: PreparedModel, plan: Plan | Encodings | None, goal: bool, progress: Progress | None
) -> Candidate:
    """Return the best quantization that is found without a wish.

    Goal : whether one begins with it.
    """
    planned = plan_model(prepared, None if isinstance(plan, Encodings) else plan, progress)
    best = build_candidate(prepared, planned, refine_weights(planned, progress=progress), progress)
    best = best if plan is not None else try_host_offload(best, progress)
    if prepared.conf.effort == "best":
        best = try_best_effort(best, progress)
    elif plan is None:
        best = try_finer_noisy_scales(best, progress)
    finer = try_finer_granularity(best, progress) if not goal else None
    best = drop_harmful_stages(best, progress) if finer is None else finer
    return best if plan is not None else _offload_and_retry(best, progress)


def _validate_goal(
    wish: Goal,
    plan: Plan | Encodings | None,
    config: QuantConfig | str | os.PathLike[str] | None,
    settings: Mapping[str, Any],
) -> Goal | None:
    """Return what is wished, checked before any work; None for nothing."""
    if wish.is_empty:
        return None
    if plan is not None:
        raise ConfigError("a wish chooses scales, which the plan has fixed; drop one of the two")
    wish.check()
    if wish.is_limits_only and resolve_config(config, settings).weight_bits != AUTO_WEIGHT_BITS:
        raise ConfigError(
            "max_flash and max_ms alone choose widths of weights: add weight_bits auto "
            "(--weight-bits auto), or give "
            "max_drop or min_sqnr; budget_ms makes a finding of what takes too long"
        )
    return wish
