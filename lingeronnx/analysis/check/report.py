"""Result of a check: violations, the effect of --fit, the packer's verdict, and their text.

This module knows no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from ...common.deprecation import keep_old_members
from ...common.notebook import format_summary, render_fact_table, render_fragment
from ...common.text import (
    SCREEN_LINES,
    count_screen_lines,
    format_violations,
    group_by_key,
    mask_quotes_and_numbers,
    merge_similar_lines,
    truncate_lines,
)
from ...operators.lowerings import Violation
from ...quantization.legalize import AppliedRewrite
from ...quantization.report import FloatNode, format_findings, format_float_nodes, format_rewrites
from ...quantization.report.merges import MergeOption
from ...quantization.report.program import PartReport, ProgramReport
from ...targets import CallLatency, GraphCost, PackerArguments, Verdict, VerdictFinding, get_target
from ...targets.verdict import combine_bases
from ...targets.version_compatibility import VersionTable

__all__ = ["Check", "MemoryUse", "WorkedAround"]


@dataclass(frozen=True)
class WorkedAround:
    """A fault of the executor that the quantizer works around in this model.

    Parameters
    ----------
    fault
        Key of the fault.
    text
        Description of the fault.
    nodes
        Nodes that trigger it.
    """

    fault: str
    text: str
    nodes: Sequence[str]


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of weights, and of both memories of a chip, with their limits."""

    weights: int
    shared: int
    psram: int
    shared_limit: int
    psram_limit: int


@keep_old_members("0.3", formed="lowering_rewrites", on_host="host_nodes", share="chip_mac_share")
@dataclass(frozen=True)
class Check(Sequence[Violation]):
    """Result of a check; a sequence of the violations of a model on a platform.

    Parameters
    ----------
    platform
        Name of the platform.
    kind
        "float" or "integer".
    violations
        The violated limits.
    fitted
        Rewrites that --fit would apply.
    remaining
        Violations that would remain with --fit.
    host_part
        Float nodes before the first or after the last integer node. They are no violations, but do
        not run on the chip.
    faults
        Faults of the executor that are worked around.
    notes
        Remarks.
    choice
        For a chip: the packer's arguments and the verdict on the graph under them. For a float
        model: after --fit, with placeholder scales.
    lowering_rewrites
        Rewrites of the integer graph after lowering.
    program
        The parts that a model is split into if it is not chip-ready; for a float model before
        calibration.
    host_nodes
        Float operators between and around these parts.
    chip_mac_share
        Fraction of the multiply-accumulates on the chip, 0 to 1.
    merges
        Changes that would reduce the number of parts.
    time
        Latency of a call on the chip.
    versions
        Of an integer graph that the chip runs, the versions of packer and executor on which it
        gives the same integers, and those on which its memory plan is safe.
    """

    platform: str
    kind: str
    violations: Sequence[Violation]
    fitted: Sequence[AppliedRewrite] = ()
    remaining: Sequence[Violation] = ()
    host_part: Sequence[FloatNode] = ()
    faults: Sequence[WorkedAround] = ()
    notes: Sequence[str] = field(default_factory=list)
    choice: PackerArguments | None = None
    lowering_rewrites: Sequence[AppliedRewrite] = ()
    program: ProgramReport = field(default_factory=ProgramReport)
    host_nodes: Sequence[FloatNode] = ()
    chip_mac_share: float = 1.0
    merges: Sequence[MergeOption] = ()
    time: CallLatency = field(default_factory=CallLatency)
    versions: VersionTable = field(default_factory=VersionTable)

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """The packer's verdict on the graph, or one per chip part of an integer graph."""
        if self.choice is not None:
            return (self.choice.verdict,)
        return self.program.verdicts if self.kind == "integer" else ()

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs as the executor gives them, of all parts of an integer graph.

        The outputs of a part without a Dequant come first, then the inputs of its Dequants. Empty
        if nothing is packed.
        """
        return [name for verdict in self.verdicts for name in verdict.outputs]

    @property
    def packs(self) -> bool | None:
        """Whether the packer accepts the graph, or all of its parts; None if nothing is packed."""
        return all(verdict.is_packable for verdict in self.verdicts) if self.verdicts else None

    @property
    def runs_right(self) -> bool | None:
        """Whether no rule says that the executor computes other integers than the simulator.

        None if nothing is packed. True does not say that this was measured; `basis` says so.
        """
        return all(verdict.is_correct for verdict in self.verdicts) if self.verdicts else None

    @property
    def basis(self) -> str:
        """The evidence for correct results on the chip, combined over all parts of the graph.

        "computed" by measured rules or "assumed"; "" if correctness is not claimed.
        """
        return combine_bases(self.verdicts)

    @property
    def is_wrong_by_reading(self) -> bool:
        """Whether results are wrong, and only rules that were read, not measured, say so."""
        wrong = [verdict for verdict in self.verdicts if not verdict.is_correct]
        return bool(wrong) and all(verdict.is_wrong_by_reading for verdict in wrong)

    @property
    def findings(self) -> Sequence[VerdictFinding]:
        """Findings of the packer's verdicts, then those of the latency budget."""
        findings: list[VerdictFinding] = []
        for verdict in self.verdicts:
            findings += verdict.findings
        return (*findings, *self.time.findings)

    def __repr__(self) -> str:
        """Return the verdict, the violations and the memory as text of one screen."""
        return format_summary(f"Check of the {self.kind} model on {self.platform}", self._facts())

    def _repr_html_(self) -> str:
        """Render the verdict, the violations and the memory for a notebook."""
        title = f"{self.kind} model on {self.platform}"
        return render_fragment(title, render_fact_table("", self._facts()))

    def _facts(self) -> list[tuple[str, str]]:
        """List (label, text) of the verdict, the violations and the memory."""
        facts = [("runs on the chip", "yes" if self.sound else "no")]
        facts += [(violation.rule, str(violation)) for violation in self.violations]
        if self.cost is not None:
            cost = self.cost
            facts += [
                ("shared memory", f"{cost.shared:,} of {cost.shared_limit:,} bytes"),
                ("psram", f"{cost.psram:,} of {cost.psram_limit:,} bytes"),
            ]
        return facts + [("note", note) for note in self.notes]

    @property
    def cost(self) -> GraphCost | None:
        """The cost of the graph on the chip as one part.

        None if it is not packed as one part, or has no plan.
        """
        return None if self.choice is None else self.choice.verdict.cost

    @property
    def memory(self) -> MemoryUse | None:
        """The memory that the graph needs on the chip, also in parts; None if it has no plan."""
        costs = [verdict.cost for verdict in self.verdicts if verdict.cost is not None]
        if not costs:
            return None
        weights = sum(cost.weights for cost in costs)
        limits = (costs[0].shared_limit, costs[0].psram_limit)
        if self.cost is not None:
            return MemoryUse(weights, self.cost.shared, self.cost.psram, *limits)
        return MemoryUse(weights, self.program.shared, self.program.psram_bytes, *limits)

    @property
    def sound(self) -> bool:
        """Whether no limit is violated, all verdicts are chip-ready, and the budget is kept.

        A verdict is chip-ready if the graph packs and its results are correct. Without verdicts,
        only the limits and the latency budget count.
        """
        ready = all(verdict.is_chip_ready for verdict in self.verdicts)
        return ready and not self.violations and not self.time.findings

    def __len__(self) -> int:
        """Return the number of violations."""
        return len(self.violations)

    @overload
    def __getitem__(self, index: int) -> Violation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Violation]: ...

    def __getitem__(self, index: int | slice) -> Violation | Sequence[Violation]:
        """Return the violation at an index, or those of a slice."""
        return self.violations[index]

    def __iter__(self) -> Iterator[Violation]:
        """Iterate over the violations."""
        return iter(self.violations)

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON-ready values: all fields, and answers that follow from them.

        Such as "packs" and "runs_right", the findings, the cost, the parts and the time of a call.
        """
        return {
            "platform": self.platform,
            "kind": self.kind,
            "violations": _to_dicts(self.violations),
            "fitted": _to_dicts(self.fitted),
            "remaining": _to_dicts(self.remaining),
            "formed": _to_dicts(self.lowering_rewrites),
            "host_part": _to_dicts(self.host_part),
            "faults": [{**vars(fault), "nodes": list(fault.nodes)} for fault in self.faults],
            "notes": list(self.notes),
            "packs": self.packs,
            "runs_right": self.runs_right,
            "basis": self.basis,
            "packer_args": None if self.choice is None else self.choice.command_line,
            "findings": _to_dicts(self.findings),
            "outputs": list(self.outputs),
            "cost": None if self.cost is None else self.cost.to_dict(),
            "program": [part.to_dict() for part in self.program.parts],
            "runs": self.program.format_line(self.chip_mac_share) if self.program.parts else "",
            "crossings": self.program.host_chip_transfers,
            "on_host": _to_dicts(self.host_nodes),
            "merges": [merge.to_dict() for merge in self.merges],
            "time": self.time.to_dict(),
            "versions": self.versions.to_dict(),
        }

    @property
    def verdict(self) -> str:
        """The result in one line: that no limit is exceeded if it is `sound`, else the reasons.

        Reasons are the time, packing, and the number of violated limits. For an integer graph in
        parts that all pack and are correct the line adds that, and whether it is assumed or
        measured.
        """
        if self.sound:
            return f"no limit of {self.platform} is exceeded"
        reasons = []
        if self.time.findings:
            reasons.append("too slow")
        reasons += self._format_packing_verdict()
        if self.violations:
            limits = [(violation.rule, violation.node) for violation in self.violations]
            reasons.append(_format_rule_count("limit", limits))
            if self.kind == "float" and not self.remaining:
                reasons.append(_FIXED_BY_FIT)
        if self.kind == "integer" and self.program.runs_correctly:
            count = len(self.program.chip)
            basis = "assumed" if self.basis == "assumed" else "by measured rules"
            reasons.append(f"each of its {count} chip parts packs and is correct ({basis})")
        return f"{self.platform}: {'; '.join(reasons)}"

    def _format_packing_verdict(self) -> list[str]:
        """Return a list of one line if rules of the packer or the chip are violated, else [].

        The line says whether the packer refuses the graph or the results are (probably) wrong, and
        has the number of rules. Findings on the memory plan and on the time do not count.
        """
        rules = [
            (finding.rule, finding.node)
            for finding in self.findings
            if finding.level not in ("plan", "time")
        ]
        if not rules:
            return []
        outcome = "wrong on the chip" if self.packs else "the packer refuses it"
        if self.packs and self.is_wrong_by_reading:
            outcome = "probably wrong on the chip"
        return [f"{outcome}, {_format_rule_count('rule', rules)}"]

    def lines(self, full: bool = False) -> list[str]:
        """Return the report as lines of text.

        The lines are the verdict, the violations, the effect of --fit, and notes. Similar lines are
        merged, and sections are truncated to the most lines with which the report fits on a screen,
        but at least one each; with `full` there is a line for every node.
        """
        if full:
            return self._format_lines(None)
        lines: list[str] = []
        for max_lines in range(_MAX_LINES_PER_SECTION, 0, -1):
            lines = self._format_lines(max_lines)
            if count_screen_lines(lines) <= SCREEN_LINES:
                break
        return lines

    def _format_lines(self, max_lines: int | None) -> list[str]:
        """Return the report with at most `max_lines` lines per section; None: all of it.

        The table of costs gets the lines that are free on the screen; None shows all layers.
        """
        full = max_lines is None
        lines = [self.verdict, *self._format_violations(max_lines)]
        if self.violations and self.kind == "float":
            lines += self._format_fit(max_lines)
        lines += self._format_host_part_and_faults(max_lines)
        lines += self._format_packing(max_lines)
        lines += self._format_parts(max_lines)
        lines += [f"time on {self.platform}: {line}" for line in self.time.lines()]
        lines += self._format_versions(max_lines)
        notes = list(self.notes) if full else merge_similar_lines(self.notes)
        note_lines = truncate_lines([f"note: {note}" for note in notes], max_lines)
        free_lines = None if full else SCREEN_LINES - count_screen_lines([*lines, *note_lines])
        return [*lines, *self._format_cost(free_lines), *note_lines]

    def _format_host_part_and_faults(self, max_lines: int | None) -> list[str]:
        """Format the nodes of the host part, then the faults that are worked around.

        At most `max_lines` lines each; None: all.
        """
        host_nodes = format_float_nodes(self.host_part, max_lines is None)
        fault_lines = [
            f"worked around: {fault.text} ({_format_first_names(fault.nodes)})"
            for fault in self.faults
        ]
        return [
            *truncate_lines([f"host part: {line}" for line in host_nodes], max_lines),
            *truncate_lines(fault_lines, max_lines),
        ]

    def remarks(self) -> list[str]:
        """Return what is neither a problem nor a figure as lines: host nodes, rewrites, notes."""
        rewrites = format_rewrites(self.lowering_rewrites, True)
        return [
            *self._format_host_part_and_faults(None),
            *(f"after lowering: {rewrite}" for rewrite in rewrites),
            *self._format_parts(None),
            *(f"note: {note}" for note in self.notes),
        ]

    def _format_violations(self, max_lines: int | None) -> list[str]:
        """Format the violations that remain with --fit, then those that it fixes.

        In an integer graph all of them remain. At most `max_lines` lines each; None: all.
        """
        remaining_keys = {(violation.node, violation.rule) for violation in self.remaining}
        remaining, fixed = [], []
        for violation in self.violations:
            if self.kind == "integer" or (violation.node, violation.rule) in remaining_keys:
                remaining.append(violation)
            else:
                fixed.append(replace(violation, remedy=_FIXED_BY_FIT))
        full = max_lines is None
        return [
            *truncate_lines(_format_violations(remaining, full), max_lines),
            *truncate_lines(_format_violations(fixed, full), max_lines),
        ]

    def _format_fit(self, max_lines: int | None) -> list[str]:
        """Format the rewrites that --fit would apply, and new violations that would result.

        Without new violations, a last line says if --fit changes nothing, or if nothing would
        remain.
        """
        full = max_lines is None
        rewrites = [f"--fit would: {line}" for line in format_rewrites(self.fitted, full)]
        lines = truncate_lines(rewrites, max_lines)
        reported = {(violation.node, violation.rule) for violation in self.violations}
        new = [v for v in self.remaining if (v.node, v.rule) not in reported]
        if new:
            new_lines = [f"would remain: {line}" for line in _format_violations(new, full)]
            return lines + truncate_lines(new_lines, max_lines)
        if not self.fitted:
            lines.append("--fit cannot fix any of it")
        elif not self.remaining:
            lines.append("with --fit nothing would remain")
        return lines

    def _format_packing(self, max_lines: int | None) -> list[str]:
        """Format the outcome of packing as lines: rewrites, findings, assumptions, arguments.

        Without a choice of arguments it is only the findings of the verdicts, or a line that the
        cost is unknown (a forecast for a chip with a packer and without parts), or nothing.
        """
        full = max_lines is None
        if self.choice is None:
            if self.verdicts:
                return truncate_lines(format_findings(self.findings, full), max_lines)
            is_forecast = self.kind == "float" and get_target(self.platform).has_packer
            if is_forecast and not self.program.parts:
                return ["cost: unknown, because float nodes are between the integer ones"]
            return []
        rewrites = [f"after lowering: {r}" for r in format_rewrites(self.lowering_rewrites, full)]
        lines = truncate_lines(rewrites, max_lines)
        lines += truncate_lines(format_findings(self.findings, full), max_lines)
        verdict = self.choice.verdict
        if verdict.assumption_summary:
            lines.append(f"note: {verdict.assumption_summary}")
        arguments = _truncate(self.choice.command_line)
        moment = ", before calibration" if self.kind == "float" else ""
        lines.append(f"packed with {arguments}{moment}: {verdict.format_outcome()}")
        return lines

    def _format_parts(self, max_lines: int | None) -> list[str]:
        """Format the parts of a model, the nodes on the host, and changes that reduce the parts.

        Empty without parts. Lines on the packing of each chip part are for integer graphs only. At
        most `max_lines` lines of each kind; None: all, and the nodes on the host are not merged.
        """
        program = self.program
        if not program.parts:
            return []
        head = "in parts, before calibration"
        chip_lines: list[str] = []
        if self.kind == "integer":
            head = f"runs on {self.platform}"
            for part in program.chip:
                chip_lines += _format_part(part)
        summary = program.format_line(self.chip_mac_share)
        host_nodes = format_float_nodes(self.host_nodes, max_lines is None)
        host_lines = [f"on the host: {line}" for line in host_nodes]
        merge_lines = [f"fewer parts: {merge}" for merge in self.merges]
        return [
            f"{head}: {summary}, {program.host_chip_transfers} crossings",
            *truncate_lines(chip_lines, max_lines),
            *truncate_lines(host_lines, max_lines),
            *truncate_lines(merge_lines, max_lines),
        ]

    def _format_versions(self, max_lines: int | None) -> list[str]:
        """Format versions with equal integers, with a safe plan, and what narrows them as lines.

        At most `max_lines` lines on what narrows them; None: all.
        """
        lines = [f"{label} {text}" for label, text in self.versions.format_lists()]
        reasons = [f"version {reason}" for reason in self.versions.format_reasons()]
        return [*lines, *truncate_lines(reasons, max_lines)]

    def _format_cost(self, free_lines: int | None) -> list[str]:
        """Return the cost on the chip as lines, which fit in `free_lines`, or one line with totals.

        With None, a table of all layers. Else a table of as many layers as fit, the most expensive
        ones; the totals if fewer than _MIN_COST_ROWS (or all, if there are fewer) fit. Empty if the
        cost is unknown.
        """
        cost = self.cost
        if cost is None:
            return []
        layer_count = len(cost.layers)
        if free_lines is None:
            table = cost.format_table(layer_count, latency=self.time.latency)
            return ["cost on the chip:", *table]
        min_rows = min(layer_count, _MIN_COST_ROWS)
        for row_count in range(min(layer_count, free_lines), min_rows - 1, -1):
            table = cost.format_table(row_count, latency=self.time.latency)
            lines = ["cost on the chip:", *table]
            if count_screen_lines(lines) <= free_lines:
                return lines
        return [f"cost on the chip: {cost.format_totals()}"]


_MAX_LINES_PER_SECTION = 6  # in a short report
_FIXED_BY_FIT = "fixed by --fit (on by default in quantize)"
_MIN_COST_ROWS = 3  # layers in a table of costs


def _to_dicts(items: Sequence[object]) -> list[dict[str, object]]:
    """Return the attributes of each object as a dict; nested objects are not converted."""
    return [vars(item) for item in items]


def _format_part(part: PartReport) -> list[str]:
    """Return the lines on a chip part: packer arguments and verdict.

    Indented lines follow on assumptions and on the cost, if there are any.
    """
    outcome = "it does not run on the chip"
    if part.runs and part.verdict is not None:
        outcome = part.verdict.format_outcome()
    lines = [f"{part.name}: packed with {_truncate(part.packer_args)}: {outcome}"]
    if part.verdict is not None and part.verdict.assumption_summary:
        lines.append(f"  note: {part.verdict.assumption_summary}")
    cost = None if part.verdict is None else part.verdict.cost
    if cost:
        lines.append(f"  {cost.format_totals()}")
    return lines


def _format_rule_count(noun: str, violated: Sequence[tuple[str, str]]) -> str:
    """Format the numbers of distinct rules and of nodes in (rule, node) pairs of violations.

    Rules that differ only in quoted names and numbers are one. `noun` is "limit" or "rule".
    """
    rule_count = len({mask_quotes_and_numbers(rule) for rule, _ in violated})
    node_count = len({node for _, node in violated})
    subject = f"{rule_count} {noun}s are" if rule_count > 1 else f"{rule_count} {noun} is"
    return f"{subject} violated at {node_count} node{'s' if node_count > 1 else ''}"


def _format_violations(violations: Sequence[Violation], full: bool) -> list[str]:
    """Format a line for each violated rule of an operator; with `full`, for each violation.

    Rules that differ only in quoted names and numbers are one rule.
    """
    groups = group_by_key(violations, lambda v: (v.op_type, mask_quotes_and_numbers(v.rule)))
    lines: list[str] = []
    for group in groups:
        if full or len(group) == 1:
            lines += [str(violation) for violation in group]
            continue
        first = group[0]
        occurrences = [(violation.node, violation.value) for violation in group]
        text = format_violations(first.rule, first.remedy, occurrences)
        lines.append(f"{first.op_type}: {text}")
    return lines


def _truncate(line: str, max_length: int = 160) -> str:
    """Return a line of at most `max_length` characters, or its begin with a reference to --json."""
    if len(line) <= max_length:
        return line
    return f"{line[:max_length]}... ({len(line)} characters; complete with --json)"


def _format_first_names(names: Sequence[str], max_count: int = 3) -> str:
    """Join the first `max_count` names by ", ", followed by " and N more" if there are others."""
    text = ", ".join(names[:max_count])
    return text + (f" and {len(names) - max_count} more" if len(names) > max_count else "")
