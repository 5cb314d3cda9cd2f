"""What runs when in a call: parts and layers of a graph over time, their cycles and memory.

The data of a page section with charts. Times are cycles; those of host parts are not known. This
module knows the result of a check, but no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from ...common.pages import PageSection, components
from ...common.text import format_bytes
from ...quantization.report.program import PartReport
from ...targets import GraphCost, Verdict
from ...targets.latency import Latency
from ..timeline import LANES, Slice, list_layer_slices
from .report import Check

__all__ = ["render_schedule_section"]

#: What a slice of a lane is, by the beginning of its name; else it computes.
_KINDS = (
    ("wait for constants", "wait"),
    ("copies from and to psram", "copy"),
    ("constants of", "fetch"),
    ("starts of", "start"),
)


def render_schedule_section(check: Check) -> PageSection | None:
    """Render timeline and cycles of a call and the memory plan of each chip part as a section.

    None if the chip runs nothing that packs.
    """
    plans = _list_plans(check)
    timeline = _make_timeline(check)
    if not plans and timeline is None:
        return None
    blocks = []
    if timeline is not None:
        blocks.append(components.heading("Timeline of a call"))
        if timeline["total"] is None:
            blocks.append(components.paragraph(f"order only: {check.time.unknown_reason}", "dim"))
        blocks.append(components.chart_host("timeline", "timeline"))
    latency = check.time.latency
    if latency is not None:
        blocks.append(components.heading("Cycles of the most expensive layers"))
        blocks.append(components.chart_host("layer-cycles", "cycles"))
    for index, plan in enumerate(plans):
        title = "Shared memory over the layers"
        if len(plans) > 1:
            title += f": {plan['part']}"
        blocks.append(components.heading(title))
        blocks.append(components.chart_host(f"memory-plan-{index}", f"memory-plan-{index}"))
        if plan["resident"]:
            text = (
                f"and {format_bytes(plan['resident'])} of constants, which stay there between calls"
            )
            blocks.append(components.paragraph(text, "dim"))
    return PageSection(
        "schedule",
        "What runs when",
        "\n".join(blocks),
        {
            "timeline": timeline,
            "cycles": [] if latency is None else [vars(layer) for layer in latency.layers],
            "plans": plans,
        },
        script=(files(__package__) / "schedule.js").read_text(encoding="utf-8"),
        charts=("bars", "memory", "timeline"),
    )


def _list_plans(check: Check) -> list[dict[str, Any]]:
    """Return the memory plan of each chip part: its name, layers, and buffers over the layers."""
    names = [part.name for part in check.program.chip if part.verdict is not None]
    plans = []
    for index, verdict in enumerate(check.verdicts):
        cost: GraphCost | None = verdict.cost
        if cost is None or not cost.buffers:
            continue
        plans.append(
            {
                "part": names[index] if index < len(names) else "chip",
                "limit": cost.shared_limit,
                "resident": _count_resident_bytes(cost),
                "layers": [layer.node for layer in cost.layers],
                "buffers": [vars(buffer) for buffer in cost.buffers],
            }
        )
    return plans


def _count_resident_bytes(cost: GraphCost) -> int:
    """Return the bytes of shared memory beyond the plan: constants that stay there."""
    planned = max(buffer.offset + buffer.bytes for buffer in cost.buffers)
    return max(cost.shared - planned, 0)


def _make_timeline(check: Check) -> dict[str, Any] | None:
    """Return the data of the chart `timeline`; None for one part whose time is not known.

    "parts" have a start and a length in cycles, which are None if the time is not known, as then is
    "total". "slices" are the work in the lanes.
    """
    is_known = check.time.latency is not None
    parts: list[dict[str, Any]] = []
    slices: list[dict[str, Any]] = []
    start = 0.0
    for name, verdict, detail in _list_parts(check):
        latency = None if verdict is None else verdict.latency
        length = 0.0 if latency is None else latency.total
        parts.append(
            {
                "name": name,
                "chip": verdict is not None,
                "start": start if is_known else None,
                "length": length if is_known else None,
                "detail": detail,
            }
        )
        if is_known and latency is not None:
            slices += _list_slices(latency, start)
        start += length
    if not is_known and len(parts) < 2:
        return None
    return {
        "lanes": list(LANES),
        "parts": parts,
        "slices": slices,
        "total": start if is_known else None,
        "clock_mhz": check.time.clock_mhz,
    }


def _list_parts(check: Check) -> list[tuple[str, Verdict | None, str]]:
    """Return (name, verdict, detail) of each part in execution order; None for host parts."""
    if check.program.parts:
        return [(part.name, part.verdict, _describe_part(part)) for part in check.program.parts]
    return [("chip", verdict, "the whole graph") for verdict in check.verdicts]


def _describe_part(part: PartReport) -> str:
    """Return the number of a part's nodes, and its work, as a line of text."""
    if part.chip:
        return f"{part.nodes} nodes, {part.macs:,} MACs"
    return f"{part.nodes} nodes, {part.float_operations:,} float operations; time not known"


def _list_slices(latency: Latency, start: float) -> Sequence[dict[str, Any]]:
    """Return the work of a chip part that starts at the cycle `start`, without host markers."""
    return [
        {
            "lane": LANES.index(work.lane),
            "name": work.name,
            "kind": _classify(work),
            "start": round(start + work.start),
            "length": round(work.length),
        }
        for work in list_layer_slices(latency)
        if work.lane != "host"
    ]


def _classify(work: Slice) -> str:
    """Return the kind of work of a slice: "wait", "copy", "fetch", "start" or "compute"."""
    return next((kind for prefix, kind in _KINDS if work.name.startswith(prefix)), "compute")
