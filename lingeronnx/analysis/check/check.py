"""What of a model breaks a platform's limits, and how it is built, of whatever file or graph it is given."""

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
from ...formats.node_validation import check_nodes
from ...graph import ir
from ...graph.name_mapping import restore_user_names
from ...ops import Violation
from ...plan.config import QuantConfig
from ...run.float_names import map_to_float_names
from ...run.integer.runner import detect_target
from ...run.session import is_integer_graph
from ...targets import LatencyOptions, Target, get_target
from .float_graph import check_float
from .packer_file import check_packed, is_packable
from .report import Check
from .structure import Structure, describe_integer_graph, describe_model

__all__ = ["check", "structure"]


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
    """Return every limit of a platform that a model breaks.

    A float model is judged as `quantize` would rewrite it. Of an integer graph, the result also
    says what the chip's packer and executor make of it: `.packs`, `.runs_right`, `.findings`.

    Parameters
    ----------
    model
        A path or a model in memory, float or integer; a protobuf model is judged as the file that
        it was read from.
    platform
        Default: the one an integer graph was made for, else venus.
    calib
        Data that give the sizes of inputs, where the file leaves them open.
    packer_args
        The packer's arguments, as words or as a line; default those that are chosen for the graph.
    clock, budget_ms, timing
        The chip's clock in MHz, the milliseconds that a call may take, a file of `profile_board`
        with its prices.
    input_shape, fix
        {input: its sizes}, where a float model's file leaves some open; {input: the value that it
        always has}.

    Raises
    ------
    ModelError, ConfigError
        For what cannot be judged at all.
    """
    wish = LatencyOptions(clock, budget_ms, timing)
    file, proto = ir.as_model_proto(model), None
    if file is not None:
        proto = file if is_packable(file) else None
    elif is_integer_graph(graph := ir.as_model(model)):
        row = detect_target(graph) if platform is None else get_target(platform)
        proto = ir.to_proto(row.with_safe_names(graph))
    if proto is not None:
        if input_shape:
            raise ConfigError(
                "input shapes are told of a float model; an integer graph has its sizes"
            )
        if fix:
            raise ConfigError("inputs are fixed in a float model; quantize it with --fix")
        return check_packed(
            proto, None if platform is None else get_target(platform), packer_args, wish
        )
    if packer_args is not None:
        raise ConfigError("packer arguments belong to an integer graph; quantize the model first")
    if file is not None:
        graph, file = (
            ir.from_proto(file, ir.model_label(model)),
            None,
        )  # the graph holds its constants now
    row = wish.apply_to(get_target(platform or QuantConfig().platform))
    graph, notes = normalize_model(graph, row, calib, input_shape or {}, fix or {})
    return check_float(graph, row, notes, wish)


@np.errstate(all="ignore")  # as in `quantize`
def structure(
    model: ir.ModelLike,
    *,
    platform: str | Target | None = None,
    calib: object = None,
    violations: Sequence[Violation] = (),
) -> Structure:
    """Return the five parts of `model_check_result.txt`.

    How a model is built and held, and what looks wrong.
    A float model is planned as `quantize` would, on `calib`, without refining weights; ConfigError
    without. model : what `quantize` returned is judged as it is. violations : what `check` found,
    to be listed with the rest.
    """
    if isinstance(model, QuantizedModel):
        return describe_model(model, None, violations)
    loaded = restore_user_names(ir.as_model(model))
    if is_integer_graph(loaded):
        check_nodes(loaded)
        return describe_integer_graph(loaded, map_to_float_names(loaded), violations)
    what = "how a float model would be held is told from calibration data: give --calib DATA"
    require_data(what, loaded, calib)
    prepared = prepare_model(model, calib, None, {"platform": platform})
    planned = plan_model(prepared)
    require_calibrated_scales(what, loaded, planned.plan)
    return describe_model(
        build_quantized_model(prepared, planned, planned.graph), loaded, violations
    )
