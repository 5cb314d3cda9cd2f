"""Check a model against a platform's limits, and describe its structure, from any file or graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from ...common.errors import ConfigError
from ...ir import ir
from ...ir.name_mapping import restore_user_names
from ...operators.invalid_models import explain_invalid_models
from ...operators.lowerings import Violation, find_lowering_rule
from ...operators.macs import count_macs
from ...operators.node_validation import check_nodes
from ...quantization import (
    QuantizedModel,
    build_quantized_model,
    normalize_model,
    plan_model,
    prepare_model,
    require_calibrated_scales,
    require_data,
)
from ...quantization.config import QuantConfig
from ...quantization.factor_groups import partition_with_clip_fallback
from ...quantization.legalize import AppliedRewrite, legalize_graph
from ...quantization.partition import FLOAT_SUM_REASON
from ...quantization.report import FloatNode, split_float_nodes
from ...runtime.integer.runner import detect_target
from ...runtime.provenance import map_to_float_names
from ...runtime.session import is_integer_graph
from ...targets import (
    DEFAULT_LATENCY_OPTIONS,
    LatencyOptions,
    Target,
    Verdict,
    get_target,
    require_measured,
)
from .forecast import forecast_deployment
from .packer_file import check_packed, is_packable
from .report import Check, WorkedAround
from .rules import MOVE_NODE_REMEDY, make_violation
from .structure import Structure, describe_integer_graph, describe_model

__all__ = ["check", "check_float_model", "structure"]


@explain_invalid_models
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
    allow_unmeasured: bool = False,
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
    allow_unmeasured
        Allow versions of the executor and operators that are known from reading only.

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
        return check_packed(proto, chip, packer_args, latency_options, allow_unmeasured)
    if packer_args is not None:
        raise ConfigError("packer arguments belong to an integer graph; quantize the model first")
    if file is not None:
        graph = ir.convert_user_model(file, ir.model_label(model))
        file = None  # the graph contains its constants now
    target = latency_options.apply_to(get_target(platform or QuantConfig().platform))
    unmeasured = require_measured(target, allow_unmeasured=allow_unmeasured)
    graph, notes = normalize_model(graph, target, calib, input_shape or {}, fix or {})
    notes = [*(f"WARNING: {line}" for line in unmeasured), *notes]
    return check_float_model(graph, target, notes, latency_options)


@explain_invalid_models
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
    prepared = prepare_model(model, calib, None, {"platform": platform, "allow_unmeasured": True})
    planned = plan_model(prepared)
    require_calibrated_scales(message, graph, planned.plan)
    result = build_quantized_model(planned, planned.graph)
    return describe_model(result, graph, violations)


def check_float_model(
    model: ir.Model,
    target: Target,
    notes: Sequence[str] = (),
    latency_options: LatencyOptions = DEFAULT_LATENCY_OPTIONS,
) -> Check:
    """Check the normalized float `model`, which is not modified, against the limits of `target`.

    The rewrites of --fit are tried on a copy, only if there are violations. Notes on packing, parts
    and latency come from a forecast of the rewritten model.

    Parameters
    ----------
    model
        The normalized model.
    target
        The platform, with its kernel costs.
    notes
        Notes for the result.
    latency_options
        Clock and latency budget. The latency is that of the graph with placeholder scales.
    """
    violations, host_nodes = _float_violations(model, target)
    fitted: list[AppliedRewrite] = []
    remaining, fitted_model = violations, model
    if violations:
        fitted_model = model.clone()
        fitted = legalize_graph(fitted_model, target)
        if fitted:
            remaining, host_nodes = _float_violations(fitted_model, target)
    forecast = forecast_deployment(fitted_model, target)
    verdicts: Sequence[Verdict] = ()
    if forecast.program.parts:
        verdicts = forecast.program.verdicts
    elif forecast.choice is not None:
        verdicts = (forecast.choice.verdict,)
    has_host_parts = bool(host_nodes or forecast.host_nodes)
    return Check(
        platform=target.name,
        kind="float",
        violations=violations,
        fitted=fitted,
        remaining=remaining,
        host_part=host_nodes,
        faults=_find_worked_around_faults(model, target, violations),
        notes=list(notes),
        choice=forecast.choice,
        lowering_rewrites=forecast.rewrites,
        program=forecast.program,
        host_nodes=forecast.host_nodes,
        chip_mac_share=forecast.chip_mac_share,
        merges=forecast.merges,
        time=latency_options.estimate_call(target, verdicts, has_host_parts=has_host_parts),
    )


def _find_worked_around_faults(
    model: ir.Model, target: Target, violations: Sequence[Violation]
) -> list[WorkedAround]:
    """List the faults of the executor of `target` that nodes of `model` trigger.

    Faults that a violation already names, by their text in its rule, are left out. Each entry has
    the names of all nodes that trigger the fault; faults that no node triggers have none.
    """
    faults_by_node = [
        (str(node.name), target.vendor.find_triggered_faults(node, target)) for node in model.graph
    ]
    worked_around = []
    for fault in target.faults:
        nodes = [name for name, faults in faults_by_node if fault in faults]
        is_violation = any(fault.text in violation.rule for violation in violations)
        if nodes and not is_violation:
            worked_around.append(WorkedAround(fault.key, fault.text, nodes))
    return worked_around


def _float_violations(model: ir.Model, target: Target) -> tuple[list[Violation], list[FloatNode]]:
    """Return the violated limits, and the float nodes before or after the integer part.

    The latter, host nodes, are computed by the host: limits of those without multiply-accumulates
    (a final Softmax) are not checked. A host node that has some and violates a limit is listed
    under the violations only. A float node between integer nodes is a violation, whatever the
    reason, except for a sum that is there only because its readers are.
    """
    partition = partition_with_clip_fallback(model, target, {}, 8)
    fallbacks, host = split_float_nodes(model, partition.floats, partition.integer_node_ids)
    fallback_names = {entry.node for entry in fallbacks}
    host_names = {entry.node for entry in host}
    violations: list[Violation] = []
    violating: set[str] = set()
    for node in model.graph:
        name = str(node.name)
        if name in host_names and not count_macs(node):
            continue
        node_violations = _node_violations(node, target)
        reason = partition.floats.get(name) or "a float operator"
        if not node_violations and name in fallback_names and reason != FLOAT_SUM_REASON:
            rule = f"{reason}: it stays in float between integer operators"
            node_violations = [make_violation(node, rule, "", MOVE_NODE_REMEDY)]
        if node_violations:
            violations += node_violations
            violating.add(name)
    return violations, [entry for entry in host if entry.node not in violating]


def _node_violations(node: ir.Node, target: Target) -> list[Violation]:
    """List the limits of the target that a node's operator violates.

    If there are none but the target does not have the operator, that is the only violation. Empty
    for a node that no lowering rule (how a float operator becomes integer) matches.
    """
    op, _ = find_lowering_rule(node, target)
    if op is None:
        return []
    violations = op.find_violations(node, target)
    if violations or op.is_available(target):
        return violations
    return [make_violation(node, op.explain_unavailable(node, target), "", MOVE_NODE_REMEDY)]
