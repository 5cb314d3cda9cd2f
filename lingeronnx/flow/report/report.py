"""What a quantization did, as a value: for the terminal, for JSON, for tests."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...graph import ir
from ...legalization import AppliedRewrite
from ...message_grouping import format_violations, group_by_key, mask_quotes_and_numbers
from ...number_format import difference_unit, format_decibels, format_value
from ...ops.macs import count_macs
from ...targets import CallLatency, GraphCost, Target, VerdictFinding
from ...targets.latency import CycleSavings
from ..assign.imported_scales import ImportedQParams
from .merges import MergeOption
from .output_parts import OutputPart
from .program import ProgramReport

__all__ = [
    "LEVEL_TEXTS",
    "FloatNode",
    "SuggestedOptions",
    "Report",
    "split_float_nodes",
    "format_packer_command",
    "format_rewrites",
    "format_findings",
    "format_float_nodes",
]

#: Level of a finding -> how it is called where it is shown.
LEVEL_TEXTS = MappingProxyType(
    {
        "packs": "the packer refuses",
        "right": "wrong on the chip",
        "plan": "warning, right but written past the plan",
        "time": "too slow",
    }
)


@dataclass(frozen=True)
class FloatNode:
    """A node that stays in float, why, and its multiply-accumulates for one sample."""

    node: str
    op_type: str
    why: str
    macs: int = 0


@dataclass(frozen=True)
class SuggestedOptions:
    """Options of `quantize` to add, as words of a shell, and what they give."""

    options: tuple[str, ...]
    effect: str


@dataclass(frozen=True)
class Report:
    """The outcome of `quantize`.

    chip_ready : no float operator stands between the first Quant and the last Dequant, and the
    packer takes the part
        between them, packed with packer_args, and the chip computes it right (False without a
        packer)
    findings : what the packer and the chip have against it, warnings included, and that a call
    takes too long cost : on the chip, where it has a plan. time : how long a call takes there.
    saved : its
        cycles before and after other forms of the same integers
    packer : the packer's call for the files that `QuantizedModel.write` writes by default; empty
    without a packer integer_macs : share of multiply-accumulates done in integers, 0 to 1; of those
    that can be counted unknown_macs : {operator that may have some, and nobody knows how many:
    number of its nodes} float_nodes : float operators between integer ones; host_part : those
    before the first or after the last outputs : per graph output, cosine and SQNR against the float
    model; measured_on : which data; doubts : {output: why
        its figures say little}
    warnings : what is wrong with the result: outputs far from the float model's, states that stand
    still names : tensors that have another name in the file, which the packer takes: {the user's:
    the file's} search : of a wish (max_drop, min_sqnr) that was made, the attempts and which of
    them it is taken : the scales that came with a model that was quantized already, or in another
    tool's plan, and what became of
        each. refused : {what such a plan speaks of: why its scale was not taken}
    next : what to try where it is not chip-ready, or loses much. full : whether the user wants to
    read everything program : the parts in which it runs, where float operators between integers cut
    the chip's work merges : what would let float operators between its parts be the chip's
    training : of a fine-tuned model, per block and epoch the loss and, where it was measured, the
    metric
    """

    platform: str
    mode: str
    layers: Mapping[str, int]
    chip_ready: bool
    is_chip: bool
    integer_macs: float
    float_nodes: Sequence[FloatNode]
    host_part: Sequence[FloatNode]
    fitted: Sequence[AppliedRewrite]
    packer: str
    packer_args: str
    notes: Sequence[str]
    findings: Sequence[VerdictFinding] = ()
    cost: GraphCost | None = None
    saved: CycleSavings | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    measured_on: str = "on the calibration data"
    warnings: Sequence[str] = ()
    accuracy: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None
    training: Sequence[Mapping[str, Any]] = ()
    taken: Sequence[ImportedQParams] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)
    parts: Sequence[OutputPart] = ()
    next: Sequence[SuggestedOptions] = ()
    full: bool = False
    program: ProgramReport = field(default_factory=ProgramReport)
    unknown_macs: Mapping[str, int] = field(default_factory=dict)
    merges: Sequence[MergeOption] = ()
    time: CallLatency = field(default_factory=CallLatency)

    @property
    def flash(self) -> int | None:
        """Bytes of the constants in the packages of all parts for the chip.

        None where they are not known.
        """
        costs = (
            [verdict.cost for verdict in self.program.verdicts]
            if self.program.parts
            else [self.cost]
        )
        known = [cost.weights for cost in costs if cost is not None]
        return sum(known) if known and len(known) == len(costs) else None

    @property
    def why_not(self) -> list[str]:
        """What keeps it from being chip-ready, findings of one rule as one line.

        Nothing where it is, or is no chip.
        """
        if self.chip_ready or not self.is_chip:
            return []
        if not self.layers:
            return ["no operator of the model can be quantized"]
        between = [
            f"in float between integers: {line}"
            for line in format_float_nodes(self.float_nodes, self.full)
        ]
        return between + format_findings(
            (f for f in self.findings if f.level not in ("plan", "time")), self.full
        )

    @property
    def runs_text(self) -> str:
        """How it runs in parts, as a line; empty where nothing is cut."""
        return self.program.format_line(self.integer_macs) if self.program.parts else ""

    @property
    def macs_text(self) -> str:
        """The share of integer MACs in words, with what is not known of it."""
        listed = ", ".join(
            operator if n == 1 else f"{operator} {n}" for operator, n in self.unknown_macs.items()
        )
        rest = (
            f" of those known; at least {sum(self.unknown_macs.values())} unknown: {listed}"
            if listed
            else ""
        )
        return f"{100 * self.integer_macs:.1f} %{rest}"

    def fidelity_text(self, name: str) -> str:
        """Return how far the output `name` is from the float model, in words, with what makes that say little."""
        seen, doubt = self.outputs[name], self.doubts.get(name)
        text = (
            f"{name}: cosine {seen['cosine']:.6f}, SQNR {format_decibels(seen['sqnr'])} "
            f"{self.measured_on}"
        )
        own = [part for part in self.parts if part.output == name]
        if own:
            worst = min(own, key=lambda part: part.sqnr if part.sqnr == part.sqnr else -math.inf)
            text += f"; {worst}: {format_decibels(worst.sqnr)}"
        return f"{text} ({doubt})" if doubt else text

    @property
    def accuracy_text(self) -> str:
        """What was measured on the user's data, in words; empty where nothing was."""
        a = self.accuracy
        if not a:
            return ""
        ends = f"({a['metric']}, {a['samples']} samples)"
        if a["float"] is None:
            return f"{format_value(a['integer'], a['unit'])} against the float model {ends}"
        levels = (
            f"float {format_value(a['float'], a['unit'])}, integer "
            f"{format_value(a['integer'], a['unit'])}"
        )
        return f"{levels}, drop {format_value(a['drop'], difference_unit(a['unit']))} {ends}"

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON-ready values."""
        return {
            "platform": self.platform,
            "mode": self.mode,
            "layers": dict(self.layers),
            "chip_ready": self.chip_ready,
            "integer_macs": round(self.integer_macs, 6),
            "unknown_macs": dict(self.unknown_macs),
            "float_nodes": [vars(n) for n in self.float_nodes],
            "host_part": [vars(n) for n in self.host_part],
            "fitted": [vars(f) for f in self.fitted],
            "packer": self.packer,
            "packer_args": self.packer_args,
            "program": [part.to_dict() for part in self.program.parts],
            "runs": self.runs_text,
            "merges": [merge.to_dict() for merge in self.merges],
            "notes": list(self.notes),
            "findings": [vars(f) for f in self.findings],
            "cost": None if self.cost is None else self.cost.to_dict(),
            "time": self.time.to_dict(),
            "cycles": None if self.saved is None else vars(self.saved),
            "names": dict(self.names),
            "outputs": {name: dict(values) for name, values in self.outputs.items()},
            "measured_on": self.measured_on,
            "doubts": dict(self.doubts),
            "parts": [vars(part) for part in self.parts],
            "warnings": list(self.warnings),
            "why_not": self.why_not,
            "next": [{"options": list(n.options), "gives": n.effect} for n in self.next],
            "accuracy": dict(self.accuracy) if self.accuracy is not None else None,
            "search": None if self.search is None else dict(self.search),
            "training": [dict(line) for line in self.training],
            "scales_taken": [taken.to_dict() for taken in self.taken],
            "scales_refused": dict(self.refused),
        }


def format_findings(findings: Iterable[VerdictFinding], full: bool = False) -> list[str]:
    """Return a line for each rule that findings speak of, with its level, the worst of them and their number.

    full : a line for each finding.
    """
    if full:
        return [f"{LEVEL_TEXTS[f.level]}: {f}" for f in findings]
    return [
        (
            f"{LEVEL_TEXTS[group[0].level]}: "
            f"{format_violations(group[0].rule, group[0].remedy, [(f.node, f.value) for f in group])}"
        )
        for group in group_by_key(findings, lambda f: (f.level, mask_quotes_and_numbers(f.rule)))
    ]


def format_float_nodes(nodes: Iterable[FloatNode], full: bool = False) -> list[str]:
    """Return a line for each reason why nodes stay in float, with their operators.

    Full : for each node.
    """
    lines = []
    for group in (
        [[n] for n in nodes]
        if full
        else group_by_key(nodes, lambda n: mask_quotes_and_numbers(n.why))
    ):
        kinds = ", ".join(
            f"{op} {n}" if n > 1 else op for op, n in Counter(n.op_type for n in group).items()
        )
        which = (
            f"{kinds} {group[0].node}" if len(group) == 1 else f"{kinds}, such as {group[0].node}"
        )
        work = sum(n.macs for n in group)
        which += f" ({work:,} MACs)" if work else ""
        lines.append(f"{which}: {group[0].why}" if group[0].why else which)
    return lines


def format_rewrites(fitted: Iterable[AppliedRewrite], full: bool = False) -> list[str]:
    """Return what is written otherwise, a line for the nodes for which the same is done.

    Full : for each of them.
    """
    groups = (
        [[each] for each in fitted]
        if full
        else group_by_key(
            fitted, lambda f: (mask_quotes_and_numbers(f.what), mask_quotes_and_numbers(f.cost))
        )
    )
    return [
        (
            f"{group[0].node}{f' and {len(group) - 1} more' if len(group) > 1 else ''}: "
            f"{group[0].what} ({group[0].cost})"
        )
        for group in groups
    ]


def format_packer_command(target: Target, arguments: str, path: Path) -> str:
    """Return the packer's call, with its `arguments`, for the file `path`.

    Nothing where there are none.
    """
    words, package = shlex.split(arguments), str(path.with_suffix(".pkg"))
    return target.vendor.format_packer_command(words, str(path), package) if arguments else ""


def split_float_nodes(
    model: ir.Model, floats: Mapping[str, str], integer_node_ids: Collection[int]
) -> tuple[list[FloatNode], list[FloatNode]]:
    """Split the float nodes into those with integer nodes both before and after them, and the host part.

    floats : {node: why it stays in float}. whole : the ids of the integer nodes.
    """
    nodes = list(model.graph)
    after_integer: set[int] = set()
    for node in nodes:
        before = [ir.producer(v) for v in node.inputs]
        if any(
            p is not None and (id(p) in integer_node_ids or id(p) in after_integer) for p in before
        ):
            after_integer.add(id(node))
    before_integer: set[int] = set()
    for node in reversed(nodes):
        readers = [use.node for v in node.outputs for use in v.uses()]
        if any(id(r) in integer_node_ids or id(r) in before_integer for r in readers):
            before_integer.add(id(node))
    fallbacks: list[FloatNode] = []
    host: list[FloatNode] = []
    for node in nodes:
        if id(node) in integer_node_ids:
            continue
        entry = FloatNode(
            str(node.name),
            ir.display_op_type(node),
            floats.get(str(node.name), ""),
            count_macs(node),
        )
        (fallbacks if id(node) in after_integer and id(node) in before_integer else host).append(
            entry
        )
    return fallbacks, host
