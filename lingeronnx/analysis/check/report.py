"""What a check found, as a value.

What is broken, what --fit would do, what the packer makes of it; and its text.
Knows no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from ...deprecation import keep_old_members
from ...flow.report import FloatNode, format_findings, format_float_nodes, format_rewrites
from ...flow.report.merges import MergeOption
from ...flow.report.program import PartReport, ProgramReport
from ...legalization import AppliedRewrite
from ...message_grouping import (
    SCREEN_LINES,
    count_screen_lines,
    format_violations,
    group_by_key,
    mask_quotes_and_numbers,
    merge_similar_lines,
    truncate_lines,
)
from ...ops import Violation
from ...targets import CallLatency, GraphCost, PackerArguments, Verdict, VerdictFinding, get_target

__all__ = ["Check", "WorkedAround"]


@dataclass(frozen=True)
class WorkedAround:
    """A fault of the executor that the quantizer works around in this model."""

    fault: str
    text: str
    nodes: Sequence[str]


@keep_old_members("0.3", formed="lowering_rewrites", on_host="host_nodes", share="chip_mac_share")
@dataclass(frozen=True)
class Check(Sequence[Violation]):
    """The violations of a model on a platform; a sequence of them.

    kind : "float" or "integer"
    fitted : the rewrites that --fit would do; remaining : the violations that would be left then
    host_part : float nodes before the first or after the last integer one: no violation, but not
    the chip's work faults : faults of the executor that are worked around
    choice : for a chip, the packer's arguments and what becomes of the graph under them; of a float
    model after --fit,
        with placeholder scales. formed : what is done to its integer graph then
    program : the parts in which a model runs that is not chip-ready, a float one before
    calibration. on_host : its
        float operators then.
    chip_mac_share : of the multiply-accumulates on the chip, 0 to 1. merges : what would make parts
    fewer time : how long a call takes on the chip
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

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """What becomes of the graph, or, of an integer graph in parts, of each of the chip's."""
        if self.choice is not None:
            return (self.choice.verdict,)
        return self.program.verdicts if self.kind == "integer" else ()

    @property
    def packs(self) -> bool | None:
        """Whether the packer takes the graph, or all of its parts; None for what is not packed."""
        return all(verdict.is_packable for verdict in self.verdicts) if self.verdicts else None

    @property
    def runs_right(self) -> bool | None:
        """Whether the chip then gives the simulator's integers; None for what is not packed."""
        return all(verdict.is_correct for verdict in self.verdicts) if self.verdicts else None

    @property
    def findings(self) -> Sequence[VerdictFinding]:
        """What speaks against packing, as warnings the writes past the plan, and that a call takes too long."""
        return (
            *(finding for verdict in self.verdicts for finding in verdict.findings),
            *self.time.findings,
        )

    @property
    def cost(self) -> GraphCost | None:
        """What the graph costs on the chip; None where it has no plan."""
        return None if self.choice is None else self.choice.verdict.cost

    @property
    def sound(self) -> bool:
        """Whether nothing is broken, what is packed packs and is right, and a call is as fast as it shall be."""
        ready = all(verdict.is_chip_ready for verdict in self.verdicts)
        return ready and not self.violations and not self.time.findings

    def __len__(self) -> int:
        return len(self.violations)

    @overload
    def __getitem__(self, index: int) -> Violation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Violation]: ...

    def __getitem__(self, index: int | slice) -> Violation | Sequence[Violation]:
        return self.violations[index]

    def __iter__(self) -> Iterator[Violation]:
        return iter(self.violations)

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON-ready values."""
        return {
            "platform": self.platform,
            "kind": self.kind,
            "violations": [vars(v) for v in self.violations],
            "fitted": [vars(f) for f in self.fitted],
            "remaining": [vars(v) for v in self.remaining],
            "formed": [vars(f) for f in self.lowering_rewrites],
            "host_part": [vars(n) for n in self.host_part],
            "faults": [{**vars(m), "nodes": list(m.nodes)} for m in self.faults],
            "notes": list(self.notes),
            "packs": self.packs,
            "runs_right": self.runs_right,
            "packer_args": None if self.choice is None else self.choice.command_line,
            "findings": [vars(f) for f in self.findings],
            "cost": None if self.cost is None else self.cost.to_dict(),
            "program": [part.to_dict() for part in self.program.parts],
            "runs": self.program.format_line(self.chip_mac_share) if self.program.parts else "",
            "crossings": self.program.host_chip_transfers,
            "on_host": [vars(n) for n in self.host_nodes],
            "merges": [merge.to_dict() for merge in self.merges],
            "time": self.time.to_dict(),
        }

    @property
    def verdict(self) -> str:
        """What decides, in one line."""
        if self.sound:
            return f"nothing breaks a limit of {self.platform}"
        said = []
        if self.time.findings:
            said.append("too slow")
        if against := [(f.rule, f.node) for f in self.findings if f.level not in ("plan", "time")]:
            said.append(
                f"{'wrong on the chip' if self.packs else 'the packer refuses it'}, "
                f"{_format_rule_count('rule', against)}"
            )
        if self.violations:
            mended = self.kind == "float" and not self.remaining
            broken = _format_rule_count("limit", [(v.rule, v.node) for v in self.violations])
            said.append(f"{broken}{f'; {_FIXED_BY_FIT}' if mended else ''}")
        if self.kind == "integer" and self.program.runs_correctly:
            said.append(f"each of its {len(self.program.chip)} chip parts packs and is right")
        return f"{self.platform}: {'; '.join(said)}"

    def lines(self, full: bool = False) -> list[str]:
        """Return the report as text.

        The verdict, what is broken, what --fit would do, what is worth knowing.
        What is alike is one line, and all of it takes a screen where that is possible; full : a
        line for every node.
        """
        if full:
            return self._format_lines(None)
        lines: list[str] = []
        for most in range(_MAX_LINES_PER_SECTION, 0, -1):
            lines = self._format_lines(most)
            if count_screen_lines(lines) <= SCREEN_LINES:
                break
        return lines

    def _format_lines(self, most: int | None) -> list[str]:
        """Return the report with at most so many lines of one sort; None: all of it."""
        full = most is None
        left = {(v.node, v.rule) for v in self.remaining}
        said = {(v.node, v.rule) for v in self.violations}
        there = [v for v in self.violations if self.kind == "integer" or (v.node, v.rule) in left]
        mended = [replace(v, remedy=_FIXED_BY_FIT) for v in self.violations if v not in there]
        lines = [
            self.verdict,
            *truncate_lines(_format_violations(there, full), most),
            *truncate_lines(_format_violations(mended, full), most),
        ]
        if self.violations and self.kind == "float":
            lines += truncate_lines(
                [f"--fit would: {line}" for line in format_rewrites(self.fitted, full)], most
            )
            more = _format_violations(
                [v for v in self.remaining if (v.node, v.rule) not in said], full
            )
            none = (
                "with --fit nothing would remain" if self.fitted else "--fit can change none of it"
            )
            lines += truncate_lines([f"would remain: {line}" for line in more], most) or (
                [none] if not self.remaining or not self.fitted else []
            )
        lines += truncate_lines(
            [f"host part: {line}" for line in format_float_nodes(self.host_part, full)], most
        )
        lines += truncate_lines(
            [f"worked around: {m.text} ({_format_first_names(m.nodes)})" for m in self.faults], most
        )
        lines += self._format_packing(most)
        lines += self._format_parts(most)
        lines += [f"time on {self.platform}: {line}" for line in self.time.lines()]
        notes = truncate_lines(
            [f"note: {note}" for note in (self.notes if full else merge_similar_lines(self.notes))],
            most,
        )
        return [
            *lines,
            *self._format_cost(
                None if full else SCREEN_LINES - count_screen_lines([*lines, *notes])
            ),
            *notes,
        ]

    def _format_packing(self, most: int | None) -> list[str]:
        """Return what the packer and the chip make of the graph."""
        if self.choice is None and self.verdicts:
            return truncate_lines(format_findings(self.findings, most is None), most)
        if self.choice is None:
            ahead = self.kind == "float" and get_target(self.platform).has_packer
            alone = ahead and not self.program.parts
            return ["cost: unknown, as float nodes stand between the integer ones"] if alone else []
        verdict, full = self.choice.verdict, most is None
        lines = truncate_lines(
            [f"after lowering: {line}" for line in format_rewrites(self.lowering_rewrites, full)],
            most,
        )
        lines += truncate_lines(format_findings(self.findings, full), most)
        right = (
            "it packs and is right"
            if verdict.is_correct
            else "it packs and is not right on the chip"
        )
        if verdict.has_overrun_warning:
            right += ", but writes past its plan (a warning)"
        when = ", before calibration" if self.kind == "float" else ""
        how = (
            f"packed with {_truncate(self.choice.command_line)}{when}: "
            f"{right if verdict.is_packable else 'it does not pack'}"
        )
        return [
            *lines,
            *([f"note: {verdict.assumption_summary}"] if verdict.assumption_summary else []),
            how,
        ]

    def _format_parts(self, most: int | None) -> list[str]:
        """Return in which parts a model runs, what is the host's then, and what would make them fewer."""
        program = self.program
        if not program.parts:
            return []
        where = (
            f"runs on {self.platform}" if self.kind == "integer" else "in parts, before calibration"
        )
        lines = [
            (
                f"{where}: {program.format_line(self.chip_mac_share)}, {program.host_chip_transfers} "
                "crossings"
            )
        ]
        lines += truncate_lines(
            [
                line
                for part in program.chip
                if self.kind == "integer"
                for line in _format_part(part)
            ],
            most,
        )
        lines += truncate_lines(
            [f"on the host: {line}" for line in format_float_nodes(self.host_nodes, most is None)],
            most,
        )
        return [*lines, *truncate_lines([f"fewer parts: {merge}" for merge in self.merges], most)]

    def _format_cost(self, room: int | None) -> list[str]:
        """Return what it costs on the chip.

        The heaviest layers where `room` lines hold some, else one line.
        """
        cost = self.cost
        if cost is None:
            return []
        for layers in range(
            len(cost.layers) if room is None else min(len(cost.layers), room), -1, -1
        ):
            lines = ["cost on the chip:", *cost.format_table(layers, latency=self.time.latency)]
            if (
                room is None
                or count_screen_lines(lines) <= room
                and layers >= min(len(cost.layers), _MIN_COST_ROWS)
            ):
                return lines
        return [f"cost on the chip: {cost.format_totals()}"]


_MAX_LINES_PER_SECTION = 6  # lines of one sort in a short report
_FIXED_BY_FIT = "--fit, the default of quantize, mends it"
_MIN_COST_ROWS = 3  # layers that a table of costs has at least


def _format_part(part: PartReport) -> list[str]:
    """Return what the packer and the chip make of a part."""
    right = "it packs and is right" if part.runs else "it does not run on the chip"
    cost = part.verdict.cost if part.verdict is not None else None
    return [
        f"{part.name}: packed with {_truncate(part.packer_args)}: {right}",
        *([f"  {cost.format_totals()}"] if cost else []),
    ]


def _format_rule_count(what: str, broken: Sequence[tuple[str, str]]) -> str:
    """Return how many rules are broken at how many nodes."""
    rules, nodes = (
        len({mask_quotes_and_numbers(rule) for rule, _ in broken}),
        len({node for _, node in broken}),
    )
    return (
        f"{rules} {what}{'s are' if rules > 1 else ' is'} broken at {nodes} "
        f"node{'s' if nodes > 1 else ''}"
    )


def _format_violations(violations: Sequence[Violation], full: bool) -> list[str]:
    """Return a line for each rule that is broken; full : for each violation."""
    groups = group_by_key(violations, lambda v: (v.op_type, mask_quotes_and_numbers(v.rule)))
    return [
        line
        for group in groups
        for line in (
            map(str, group)
            if full or len(group) == 1
            else [
                (
                    f"{group[0].op_type}: "
                    f"{format_violations(group[0].rule, group[0].remedy, [(v.node, v.value) for v in group])}"
                )
            ]
        )
    ]


def _truncate(line: str, most: int = 160) -> str:
    return (
        line
        if len(line) <= most
        else f"{line[:most]}... ({len(line)} characters, whole with --json)"
    )


def _format_first_names(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
