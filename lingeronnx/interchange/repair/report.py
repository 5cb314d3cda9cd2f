"""Findings and edits of a repair, as values, text and JSON; independent of any graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .graph_view import GraphView

__all__ = ["Edit", "RepairFinding", "RepairReport", "RepairStep", "format_scale"]


@dataclass(frozen=True)
class RepairFinding:
    """A problem of a graph, or a remark on it.

    Attributes
    ----------
    repair : str
        Name of the repair step that reported it.
    text : str
        Description in one line; it continues the node's label.
    node, tensor : str
        Labels of the location, or empty.
    before, after : object
        Actual and correct scale or element type name, if the problem is about one.
    level : str
        "wrong" (repaired), "fatal" (cannot be repaired) or "note" (left unchanged).
    edits : sequence of Edit
        The edits that fix it. An edit that fixes several problems belongs to the first of them.
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
        """Return the fields of the finding as JSON-compatible values by name, without its edits."""
        return _fields_to_json(
            self, ("repair", "text", "node", "tensor", "before", "after", "level")
        )


@dataclass(frozen=True)
class Edit:
    """A change of the graph.

    Attributes
    ----------
    repair : str
        Name of the repair step that plans it.
    action : str
        One of insert, remove, rescale, rewire, rename, retype, sort and drop.
    text : str
        Description in one line; it continues the action.
    node, tensor : str
        Labels of the location, or empty.
    before, after : object
        Scale or element type name before and after the edit, if it changes one.
    apply : callable
        Applies the edit to the model of the view that was inspected.
    rank : int
        Position among the edits of one repair step.
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
        """Return the descriptive fields of the edit as JSON-compatible values, by name.

        The function that applies it and its rank are left out.
        """
        return _fields_to_json(
            self, ("repair", "action", "text", "node", "tensor", "before", "after")
        )


@dataclass(frozen=True)
class RepairStep:
    """A repair of one kind of damage.

    `find` returns the findings in a view, each with the edits that fix it, and modifies nothing.
    """

    name: str
    find: Callable[[GraphView], list[RepairFinding]]


@dataclass
class RepairReport:
    """All findings and edits of a graph, in the order of the repair steps."""

    findings: list[RepairFinding] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)

    @property
    def fatal(self) -> list[RepairFinding]:
        """The findings of level "fatal", which cannot be repaired."""
        return [finding for finding in self.findings if finding.level == "fatal"]

    @property
    def wrong(self) -> list[RepairFinding]:
        """The findings of level "wrong", which are repaired."""
        return [finding for finding in self.findings if finding.level == "wrong"]

    @property
    def notes(self) -> list[RepairFinding]:
        """The findings of level "note", which are left unchanged."""
        return [finding for finding in self.findings if finding.level == "note"]

    def lines(self, planned: bool = False) -> list[str]:
        """Return the report as text lines: problems, irreparable ones, edits, notes.

        Edits are listed only if all problems can be repaired; `planned` says that they are only
        planned (a dry run). The first line is "no problems found" if there are none.
        """
        lines: list[str] = []
        wrong, fatal = self.wrong, self.fatal
        if not wrong and not fatal:
            lines.append("no problems found")
        if wrong:
            lines.append(f"found {_format_count(len(wrong), 'problem')}:")
            lines += _format_findings(wrong)
        if fatal:
            lines.append(f"{_format_count(len(fatal), 'problem')} cannot be repaired:")
            lines += _format_findings(fatal)
        if self.edits and not fatal:
            state = "planned" if planned else "applied"
            lines.append(f"{_format_count(len(self.edits), 'edit')} {state}:")
            lines += _format_edits(self.edits)
        return lines + [f"note: {_format_location_text(note)}" for note in self.notes]

    def to_dict(self) -> dict[str, object]:
        """Return {"findings": [...], "edits": [...]} as JSON-compatible values."""
        return {
            "findings": [finding.to_dict() for finding in self.findings],
            "edits": [edit.to_dict() for edit in self.edits],
        }


def _format_count(count: int, noun: str) -> str:
    """Return `count` with `noun`, in the plural unless it is 1, such as "2 problems"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _format_location_text(finding: RepairFinding) -> str:
    """Return the text of `finding`, after the label of its node if it has one."""
    return f"{finding.node} {finding.text}" if finding.node else finding.text


def _format_findings(findings: Sequence[RepairFinding]) -> list[str]:
    """Return one indented line per finding: repair step, label of the node, and text."""
    return [f"  {finding.repair:<11} {_format_location_text(finding)}" for finding in findings]


def _format_edits(edits: Sequence[Edit]) -> list[str]:
    """Return one indented line per edit: its action and text, for a new Dequant with its scale."""
    lines = []
    for edit in edits:
        has_scale = edit.action == "insert" and edit.after is not None
        scale = f", scale_o {format_scale(edit.after)}" if has_scale else ""
        lines.append(f"  {edit.action:<8} {edit.text}{scale}")
    return lines


def _fields_to_json(value: object, names: Sequence[str]) -> dict[str, object]:
    """Return name -> value for the fields `names` of `value`; infinities and NaN as strings."""
    fields: dict[str, object] = {}
    for name in names:
        field_value = getattr(value, name)
        is_non_finite = isinstance(field_value, float) and not math.isfinite(field_value)
        fields[name] = str(field_value) if is_non_finite else field_value
    return fields


def format_scale(value: object) -> str:
    """Format a scale for reading: "2^N" if it is a power of two, else 6 digits.

    "none" if it is no number.
    """
    if not isinstance(value, int | float):
        return "none"
    mantissa, exponent = math.frexp(value) if math.isfinite(value) else (0.0, 0)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{value:.6g}"
