"""On which versions of packer and executor a written file gives the same integers, and is safe.

Values only; `runtime.version_compatibility` computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from .verdict import RuleBasis, VerdictFinding

__all__ = ["PlanStatus", "VersionCompatibility", "VersionTable"]

#: Whether bytes are written past the memory plan of a version; "unmeasured" if that is not known.
PlanStatus = Literal["safe", "unsafe", "unmeasured"]


class VersionCompatibility(NamedTuple):
    """A written file, packed and run by one version of packer and executor.

    Attributes
    ----------
    platform
        Name of the target, such as "venus@3.0.10".
    version
        Name of the version.
    basis
        "measured", or "read" if the version is known from its source text only.
    packs
        Whether the packer accepts the file.
    has_equal_integers
        Whether the file packs, and all nodes compute the integers of the version that the file is
        for.
    plan
        Whether the memory plan is safe.
    findings
        The nodes that narrow the list of versions, with level "packs" (the packer refuses it),
        "right" (wrong integers), "other" (integers of another formula), "plan" (writes past the
        plan) or "unmeasured" (planned memory was not measured).
    """

    platform: str
    version: str
    basis: RuleBasis
    packs: bool
    has_equal_integers: bool
    plan: PlanStatus
    findings: tuple[VerdictFinding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-ready values."""
        return {**self._asdict(), "findings": [vars(finding) for finding in self.findings]}


class VersionTable(NamedTuple):
    """A written file on all known versions of a chip, oldest first; empty if it is not packed."""

    rows: tuple[VersionCompatibility, ...] = ()

    @property
    def equal_integers(self) -> tuple[str, ...]:
        """The versions on which the file gives the same integers, read ones included."""
        return tuple(row.version for row in self.rows if row.has_equal_integers)

    @property
    def safe_plans(self) -> tuple[str, ...]:
        """The versions on which the memory plan is known to be safe."""
        return tuple(row.version for row in self.rows if row.plan == "safe")

    @property
    def narrowing_nodes(self) -> tuple[str, ...]:
        """The nodes because of which a version is missing in one of the lists, each once."""
        nodes = [finding.node for row in self.rows for finding in row.findings]
        return tuple(dict.fromkeys(nodes))

    def to_dict(self) -> dict[str, Any]:
        """Return both lists, the nodes that narrow them, and all rows, as JSON-ready values."""
        return {
            "equal_integers": list(self.equal_integers),
            "safe_plans": list(self.safe_plans),
            "nodes": list(self.narrowing_nodes),
            "versions": [row.to_dict() for row in self.rows],
        }

    def format_summary(self, with_nodes: bool = True) -> str:
        """Format both lists, measured versions only, as one line; "" for an empty table.

        Parameters
        ----------
        with_nodes
            Append the first node that narrows the lists on a measured version, and the number of
            further ones.
        """
        if not self.rows:
            return ""
        measured = {row.version for row in self.rows if row.basis == "measured"}
        equal = [version for version in self.equal_integers if version in measured]
        text = (
            f"same integers on {', '.join(equal) or 'none'}; "
            f"safe plan on {', '.join(self.safe_plans) or 'none'}"
        )
        nodes = dict.fromkeys(
            finding.node
            for row in self.rows
            if row.version in measured
            for finding in row.findings
            if finding.level != "unmeasured"
        )
        if not nodes or not with_nodes:
            return text
        return f"{text}; narrowed by {next(iter(nodes))}" + (
            f" and {len(nodes) - 1} more nodes" if len(nodes) > 1 else ""
        )

    def format_lists(self) -> list[tuple[str, str]]:
        """Format each list as (label, text), with read and unmeasured versions; [] if empty."""
        if not self.rows:
            return []
        equal = self._format_versions(self.equal_integers)
        safe = self._format_versions(self.safe_plans)
        unmeasured = [row.version for row in self.rows if row.plan == "unmeasured"]
        if unmeasured:
            safe += f"; not measured: {', '.join(unmeasured)}"
        return [("same integers on", equal), ("safe plan on", safe)]

    def _format_versions(self, versions: Sequence[str]) -> str:
        """Format versions as "3.0.4, 3.0.8; read: 3.0.5"; "no measured version" if none is."""
        bases = {row.version: row.basis for row in self.rows}
        measured = [version for version in versions if bases[version] == "measured"]
        read = [version for version in versions if bases[version] == "read"]
        text = ", ".join(measured) or "no measured version"
        return f"{text}; read, not measured: {', '.join(read)}" if read else text

    def format_reasons(self) -> list[str]:
        """Format a line for each rule that narrows the lists: versions, first node, value, remedy.

        Only the first finding on a node of a version counts. Planned memory that was not measured
        has no line.
        """
        versions_by_rule: dict[tuple[str, str], list[str]] = {}
        findings_by_rule: dict[tuple[str, str], dict[str, VerdictFinding]] = {}
        for row in self.rows:
            nodes: set[str] = set()
            for finding in row.findings:
                if finding.level == "unmeasured" or finding.node in nodes:
                    continue
                nodes.add(finding.node)
                key = (finding.level, finding.rule)
                findings_by_rule.setdefault(key, {}).setdefault(finding.node, finding)
                versions = versions_by_rule.setdefault(key, [])
                if row.version not in versions:
                    versions.append(row.version)
        lines = []
        for key, findings in findings_by_rule.items():
            first = next(iter(findings.values()))
            verb = _VERBS[key[0], "read" if first.basis == "read" else "measured"]
            others = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            lines.append(f"{', '.join(versions_by_rule[key])} {verb} {first}{others}")
        return lines


#: Level and basis of a finding -> what a version does with the node.
_VERBS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("packs", "measured"): "refuses",
        ("packs", "read"): "probably refuses",
        ("right", "measured"): "computes wrong",
        ("right", "read"): "probably computes wrong",
        ("other", "measured"): "computes other integers in",
        ("other", "read"): "probably computes other integers in",
        ("plan", "measured"): "writes past its plan in",
        ("plan", "read"): "may write past its plan in",
    }
)
