"""What was found in a graph and what was done about it, as values, text and JSON.

Knows no graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .graph_view import GraphView

__all__ = ["Edit", "RepairFinding", "RepairReport", "RepairStep", "format_scale"]


@dataclass(frozen=True)
class RepairFinding:
    """Something that is wrong, or worth knowing.

    repair : the name of the repair that looked for it
    node, tensor : the place, empty where there is none
    text : one line; before, after : scales, or element types by name, where they are what it is
    about level : "wrong" is repaired, "fatal" cannot be, "note" is left as it is
    edits : how it is repaired. An edit that mends several things stands at the first of them
    """

    repair: str
    text: str
    node: str = ""
    tensor: str = ""
    before: object = None
    after: object = None
    level: str = "wrong"
    edits: Sequence[Edit] = ()

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values, without its edits."""
        return _fields_to_json(
            self, ("repair", "text", "node", "tensor", "before", "after", "level")
        )


@dataclass(frozen=True)
class Edit:
    """A change of the graph.

    What is done (insert, remove, rescale, rewire, rename, retype, sort, drop) and where.
    apply : does it to the model that was looked at. rank : its place among the edits of one repair
    """

    repair: str
    action: str
    text: str
    node: str = ""
    tensor: str = ""
    before: object = None
    after: object = None
    apply: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    rank: int = field(default=0, repr=False, compare=False)

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values."""
        return _fields_to_json(
            self, ("repair", "action", "text", "node", "tensor", "before", "after")
        )


@dataclass(frozen=True)
class RepairStep:
    """A kind of damage: `find` looks for it in a view, changes nothing, and says with each finding how it is mended."""

    name: str
    find: Callable[[GraphView], list[RepairFinding]]


@dataclass
class RepairReport:
    """All findings and edits of a graph, in the order of the repairs."""

    findings: list[RepairFinding] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)

    @property
    def fatal(self) -> list[RepairFinding]:
        """Return the findings that cannot be repaired."""
        return [f for f in self.findings if f.level == "fatal"]

    @property
    def wrong(self) -> list[RepairFinding]:
        """Return the findings that are repaired."""
        return [f for f in self.findings if f.level == "wrong"]

    @property
    def notes(self) -> list[RepairFinding]:
        """Return the findings that are left as they are."""
        return [f for f in self.findings if f.level == "note"]

    def lines(self, planned: bool = False) -> list[str]:
        """Return the report as text; `planned`: the edits are what would be done."""
        text: list[str] = []
        wrong, fatal = self.wrong, self.fatal
        if not wrong and not fatal:
            text.append("nothing is wrong with it")
        if wrong:
            text += [f"found: {_format_count(len(wrong), 'thing')} wrong", *_format_findings(wrong)]
        if fatal:
            text += [
                f"cannot be repaired: {_format_count(len(fatal), 'thing')}",
                *_format_findings(fatal),
            ]
        if self.edits and not fatal:
            verb = "would be done" if planned else "done"
            text.append(f"{verb}: {_format_count(len(self.edits), 'edit')}")
            text += [
                f"  {edit.action:<8} {edit.text}{_format_edit_scale(edit)}" for edit in self.edits
            ]
        return text + [f"note: {f.node + ' ' if f.node else ''}{f.text}" for f in self.notes]

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON-ready values."""
        return {
            "findings": [f.to_dict() for f in self.findings],
            "edits": [e.to_dict() for e in self.edits],
        }


def _format_count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _format_findings(findings: Sequence[RepairFinding]) -> list[str]:
    return [f"  {f.repair:<11} {f.node + ' ' if f.node else ''}{f.text}" for f in findings]


def _format_edit_scale(edit: Edit) -> str:
    return (
        f", scale_o {format_scale(edit.after)}"
        if edit.action == "insert" and edit.after is not None
        else ""
    )


def _fields_to_json(value: object, names: Sequence[str]) -> dict[str, object]:
    """Return some fields by name; JSON knows no infinities."""
    fields = {name: getattr(value, name) for name in names}
    return {
        k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()
    }


def format_scale(value: object) -> str:
    """Return a scale as people read it."""
    if not isinstance(value, int | float):
        return "none"
    mantissa, exponent = math.frexp(value) if math.isfinite(value) else (0.0, 0)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{value:.6g}"
