"""What of a float model breaks a platform's limits.

Judged normalised, before and after the rewrites of `legalize_graph`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...flow.factor_groups import partition_with_clip_fallback
from ...flow.report import FloatNode, split_float_nodes
from ...graph import ir
from ...legalization import AppliedRewrite, legalize_graph
from ...ops import Violation, find_lowering_rule
from ...ops.macs import count_macs
from ...targets import DEFAULT_LATENCY_OPTIONS, LatencyOptions, Target
from .forecast import forecast_deployment
from .report import Check, WorkedAround
from .violations import MOVE_NODE_REMEDY, make_violation

__all__ = ["check_float"]


def check_float(
    model: ir.Model,
    target: Target,
    notes: Sequence[str] = (),
    latency_options: LatencyOptions = DEFAULT_LATENCY_OPTIONS,
) -> Check:
    """Return what breaks limits of `target` in the normalised float `model`, which is left as it is.

    latency_options : what is asked of time, which is told as of the graph with placeholder scales;
    `target` has its prices.
    """
    violations, host = _float_violations(model, target)
    fitted: list[AppliedRewrite] = []
    remaining, mended = violations, model
    if violations:
        mended = ir.clone(model)
        fitted = legalize_graph(mended, target)
        remaining, host = _float_violations(mended, target) if fitted else (violations, host)
    ahead = forecast_deployment(mended, target)
    pieces = (
        ahead.program.verdicts
        if ahead.program.parts
        else []
        if ahead.choice is None
        else [ahead.choice.verdict]
    )
    met = []
    seen = [
        (str(node.name), target.vendor.find_triggered_faults(node, target)) for node in model.graph
    ]
    for fault in target.faults:
        nodes = [name for name, faults in seen if fault in faults]
        if nodes and not any(fault.text in v.rule for v in violations):
            met.append(WorkedAround(fault.key, fault.text, nodes))
    return Check(
        platform=target.name,
        kind="float",
        violations=violations,
        fitted=fitted,
        remaining=remaining,
        host_part=host,
        faults=met,
        notes=list(notes),
        choice=ahead.choice,
        lowering_rewrites=ahead.rewrites,
        program=ahead.program,
        host_nodes=ahead.host_nodes,
        chip_mac_share=ahead.chip_mac_share,
        merges=ahead.merges,
        time=latency_options.estimate_call(
            target, pieces, has_host_parts=bool(host or ahead.host_nodes)
        ),
    )


def _float_violations(model: ir.Model, target: Target) -> tuple[list[Violation], list[FloatNode]]:
    """Return the broken limits, and the other float nodes before or behind the integer part.

    A node there that multiplies nothing (a final Softmax) is the host's work as it should be,
    whatever the limits.
    """
    parts = partition_with_clip_fallback(model, target, {}, 8)
    fallbacks, host = split_float_nodes(model, parts.floats, parts.integer_node_ids)
    between, outside = ({entry.node for entry in entries} for entries in (fallbacks, host))
    violations: list[Violation] = []
    broken: set[str] = set()
    for node in model.graph:
        name = str(node.name)
        op, _ = find_lowering_rule(node, target)
        if name in outside and not count_macs(node):
            continue
        own = op.find_violations(node, target) if op is not None else []
        if not own and op is not None and not op.is_available(target):
            own = [make_violation(node, op.explain_unavailable(node, target), "", MOVE_NODE_REMEDY)]
        if not own and name in between:
            why = parts.floats[name] or "a float operator"
            own = [
                make_violation(
                    node,
                    f"{why}: it stays in float between integer operators",
                    "",
                    MOVE_NODE_REMEDY,
                )
            ]
        violations += own
        broken |= {name} if own else set()
    return violations, [entry for entry in host if entry.node not in broken]
