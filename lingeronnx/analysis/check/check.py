"""Check a model against a platform's limits, and describe its structure, from any file or graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import ConfigError
from ...flow import (
    QuantizedModel,
    build_quantized_model,
    normalize_model,
    plan_model,
    prepare_model,
    require_calibrated_scales,
    require_data,
)
from ...flow.config import QuantConfig
from ...formats.node_validation import check_nodes
from ...graph import ir
from ...graph.name_mapping import restore_user_names
from ...ops import Violation
from ...run.integer.runner import detect_target
from ...run.provenance import map_to_float_names
from ...run.session import is_integer_graph
from ...targets import LatencyOptions, Target, get_target
from .float_graph import check_float
from .packer_file import check_packed, is_packable
from .report import Check
from .structure import Structure, describe_integer_graph, describe_model

__all__ = ["check", "structure"]


@np.errstate(all="ignore")  # as in `quantize`
def check(
    model: ir.ModelLike,
    *,
    platform: str | Target | None = None,
    calib: object = None,
    packer_args: str | Sequence[str] | None = None,
    clock: float | None = None,
    budget_ms: float | None = None,
    timing: str | os.PathLike[str] | None = None,
    input_shape: Mapping[str, Sequence[int]] | None = None,
    fix: Mapping[str, str | float | Sequence[float]] | None = None,
) -> Check:
    """Check a model against the limits of a platform.

    A float model is judged as `quantize` would rewrite it. For an integer graph, the result also
    tells whether the chip's packer accepts it and its executor computes it correctly: `.packs`,
    `.runs_right`, `.findings`. The model is not modified and no file is written.

    Parameters
    ----------
    model
        A path or a model in memory, float or integer; a protobuf model is judged as the file that
        it was read from.
    platform
        Default: the one that an integer graph was quantized for, else venus.
    calib
        Data that determine the shapes of inputs, if the file leaves them open.
    packer_args
        Arguments of the packer, as a list or one line; default those chosen for the graph.
    clock, budget_ms, timing
        Clock of the chip in MHz, longest allowed call in milliseconds, and a file of kernel costs
        from `profile_board`.
    input_shape, fix
        Shapes of a float model's inputs that the file leaves open, and constant values of inputs,
        by input.

    Returns
    -------
    Check
        The violations, the effect of --fit, and the verdict of the packer.

    Raises
    ------
    ModelError, ConfigError
        If the model cannot be judged at all.
    """
    latency_options = LatencyOptions(clock, budget_ms, timing)
    file, proto = ir.as_model_proto(model), None
    if file is not None:
        proto = file if is_packable(file) else None
    elif is_integer_graph(graph := ir.as_model(model)):
        target = detect_target(graph) if platform is None else get_target(platform)
        proto = ir.to_proto(target.with_safe_names(graph))
    if proto is not None:
        if input_shape:
            raise ConfigError("input_shape is for float models; an integer graph has its shapes")
        if fix:
            raise ConfigError("fix is for float models; quantize the model with --fix")
        chip = None if platform is None else get_target(platform)
        return check_packed(proto, chip, packer_args, latency_options)
    if packer_args is not None:
        raise ConfigError("packer arguments belong to an integer graph; quantize the model first")
    if file is not None:
        graph = ir.convert_user_model(file, ir.model_label(model))
        file = None  # the graph contains its constants now
    target = latency_options.apply_to(get_target(platform or QuantConfig().platform))
    graph, notes = normalize_model(graph, target, calib, input_shape or {}, fix or {})
    return check_float(graph, target, notes, latency_options)


@np.errstate(all="ignore")  # as in `quantize`
def structure(
    model: ir.ModelLike,
    *,
    platform: str | Target | None = None,
    calib: object = None,
    violations: Sequence[Violation] = (),
) -> Structure:
    """Describe the structure of a model: the five parts of `model_check_result.txt`.

    A float model is planned as `quantize` would, without refining weights, and part 2 counts the
    uses in the user's graph.

    Parameters
    ----------
    model
        A float model, an integer graph, or a result of `quantize`, which is described as it is.
    platform
        Platform for a float model.
    calib
        Calibration data for a float model; ignored for the others, as is `platform`.
    violations
        Violations found by `check`, to be listed with the other suspicions.

    Raises
    ------
    ConfigError
        If a float model is given without calibration data, or if they do not determine its scales.
    """
    if isinstance(model, QuantizedModel):
        return describe_model(model, None, violations)
    graph = restore_user_names(ir.as_model(model))
    if is_integer_graph(graph):
        check_nodes(graph)
        return describe_integer_graph(graph, map_to_float_names(graph), violations)
    message = "the structure of a float model needs calibration data: pass --calib DATA"
    require_data(message, graph, calib)
    prepared = prepare_model(model, calib, None, {"platform": platform})
    planned = plan_model(prepared)
    require_calibrated_scales(message, graph, planned.plan)
    result = build_quantized_model(prepared, planned, planned.graph)
    return describe_model(result, graph, violations)
