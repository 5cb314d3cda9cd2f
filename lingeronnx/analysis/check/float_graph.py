"""Violations of a platform's limits by a float model, before and after the rewrites of --fit."""

from __future__ import annotations

from collections.abc import Sequence

from ...flow.factor_groups import partition_with_clip_fallback
from ...flow.report import FloatNode, split_float_nodes
from ...graph import ir
from ...legalization import AppliedRewrite, legalize_graph
from ...ops import Violation, find_lowering_rule
from ...ops.macs import count_macs
from ...targets import DEFAULT_LATENCY_OPTIONS, LatencyOptions, Target, Verdict
from .forecast import forecast_deployment
from .report import Check, WorkedAround
from .rules import MOVE_NODE_REMEDY, make_violation

__all__ = ["check_float"]


def check_float(
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
        fitted_model = ir.clone(model)
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
    """List the executor's faults that nodes trigger, except those that a violation already names.

    A violation names a fault if its rule contains the fault's text. Each entry has the names of all
    nodes that trigger the fault; faults that no node triggers have none.
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
    reason.
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
        if not node_violations and name in fallback_names:
            reason = partition.floats[name] or "a float operator"
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
