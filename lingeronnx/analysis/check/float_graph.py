"""What of a float model breaks a platform's limits: judged normalised, before and after the rewrites of `fit`."""

from __future__ import annotations

from collections.abc import Sequence

from ...fit import Fitted, fit
from ...flow.factor_groups import partition_with_clips
from ...flow.report import FloatNode, float_nodes
from ...graph import ir
from ...ops import Violation, float_op
from ...ops.macs import macs
from ...targets import UNASKED, Target, TimeWish
from .forecast import forecast
from .report import Check, WorkedAround
from .violations import OTHER, violation

__all__ = ["check_float"]


def check_float(model: ir.Graph, target: Target, notes: Sequence[str] = (), wish: TimeWish = UNASKED) -> Check:
    """Return what breaks limits of `target` in the normalised float `model`, which is left as it is.

    wish : what is asked of time, which is told as of the graph with placeholder scales; `target` has its prices.
    """
    violations, host = _float_violations(model, target)
    fitted: list[Fitted] = []
    remaining, mended = violations, model
    if violations:
        mended = ir.clone(model)
        fitted = fit(mended, target)
        remaining, host = _float_violations(mended, target) if fitted else (violations, host)
    ahead = forecast(mended, target)
    pieces = ahead.program.verdicts if ahead.program.parts else [] if ahead.choice is None else [ahead.choice.verdict]
    met = []
    seen = [(str(node.name), target.vendor.met(node, target)) for node in model.graph]
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
        formed=ahead.formed,
        program=ahead.program,
        on_host=ahead.host,
        share=ahead.share,
        merges=ahead.merges,
        time=wish.told(target, pieces, host=bool(host or ahead.host)),
    )


def _float_violations(model: ir.Graph, target: Target) -> tuple[list[Violation], list[FloatNode]]:
    """Return the broken limits, and the other float nodes before or behind the integer part.

    A node there that multiplies nothing (a final Softmax) is the host's work as it should be, whatever the limits.
    """
    parts = partition_with_clips(model, target, {}, 8)
    fallbacks, host = float_nodes(model, parts.floats, parts.inside)
    between, outside = ({entry.node for entry in entries} for entries in (fallbacks, host))
    violations: list[Violation] = []
    broken: set[str] = set()
    for node in model.graph:
        name = str(node.name)
        op, _ = float_op(node, target)
        if name in outside and not macs(node):
            continue
        own = op.violations(node, target) if op is not None else []
        if not own and op is not None and not op.available(target):
            own = [violation(node, op.absence(node, target), "", OTHER)]
        if not own and name in between:
            why = parts.floats[name] or "a float operator"
            own = [violation(node, f"{why}: it stays in float between integer operators", "", OTHER)]
        violations += own
        broken |= {name} if own else set()
    return violations, [entry for entry in host if entry.node not in broken]
