"""The report on a quantization, as a value: for the terminal, for JSON and for tests."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...common.notebook import format_summary, render_fact_table, render_fragment
from ...common.text import (
    difference_unit,
    format_decibels,
    format_value,
    format_violations,
    group_by_key,
    mask_quotes_and_numbers,
)
from ...ir import ir
from ...operators.macs import count_macs
from ...runtime.version_compatibility import VersionedPart
from ...targets import CallLatency, GraphCost, Target, VerdictFinding
from ...targets.latency import CycleSavings
from ...targets.version_compatibility import VersionTable
from ..legalize import AppliedRewrite
from ..partition import consumers_of, producers_of
from .mac_shares import MacShares
from .merges import MergeOption
from .output_parts import OutputPart
from .program import ProgramReport

if TYPE_CHECKING:
    from ...runtime.evaluation import Evaluation
    from ..scales.imported_scales import ImportedQParams

__all__ = [
    "LEVEL_TEXTS",
    "format_level",
    "FloatNode",
    "SuggestedOptions",
    "Report",
    "split_float_nodes",
    "format_packer_command",
    "format_rewrites",
    "format_findings",
    "format_float_nodes",
]

#: Description of each level of findings; `format_level` also says what a finding stands on.
LEVEL_TEXTS = MappingProxyType(
    {
        "packs": "the packer refuses",
        "right": "wrong on the chip",
        "plan": "warning: writes beyond its memory plan, where nothing is stored",
        "time": "too slow",
    }
)


_MAX_FACT_NODES = 5  # float nodes among the main facts

#: Descriptions of findings of rules that were read and not measured.
_READ_LEVEL_TEXTS = MappingProxyType(
    {
        "packs": "the packer probably refuses (read, not measured)",
        "right": "probably wrong on the chip (read, not measured)",
        "plan": "warning: may write beyond its memory plan (read, not measured)",
    }
)


def format_level(finding: VerdictFinding) -> str:
    """Describe the level of a finding, as certain as the rule behind it."""
    if finding.basis == "read" and finding.level in _READ_LEVEL_TEXTS:
        return _READ_LEVEL_TEXTS[finding.level]
    return LEVEL_TEXTS[finding.level]


@dataclass(frozen=True)
class FloatNode:
    """A node that stays in float, the reason, and its multiply-accumulates for one sample."""

    node: str
    op_type: str
    why: str
    macs: int = 0


@dataclass(frozen=True)
class SuggestedOptions:
    """Options of `quantize` to add, as words of a shell, and their effect."""

    options: tuple[str, ...]
    effect: str


@dataclass(frozen=True)
class Report:
    """Result of `quantize`.

    Attributes
    ----------
    platform, mode
        Target and kind of scales.
    layers
        Number of nodes by integer operator.
    chip_ready
        Whether no float operator is between the first Quant and the last Dequant, the packer
        accepts the part between them with `packer_args`, and the chip computes it correctly. False
        without a packer.
    chip_ready_basis
        What `chip_ready`, or that the parts of a program run, stands on: "computed" from rules that
        were measured on the vendor's packer and executor, or "assumed" if facts that were not
        measured are needed. Empty if nothing is claimed.
    is_chip
        Whether the platform has a packer.
    integer_macs
        Fraction of the multiply-accumulates in integers, 0 to 1, of those that can be counted.
    macs
        Multiply-accumulates by what computes them: chip, host in integers, host in float.
    unknown_macs
        {operator: number of nodes whose multiply-accumulates cannot be counted}.
    float_nodes, host_part
        Float operators between integer ones, and those before the first or after the last.
    fitted
        Rewrites that fit the graph to the platform.
    packer, packer_args
        Packer command for the files that `QuantizedModel.write` writes by default, and its
        arguments; empty without a packer.
    notes, warnings
        Remarks, and problems of the result such as outputs far from the float model's.
    findings
        Objections of packer and chip, including warnings and a call that takes too long.
    cost
        Cost on the chip, if it has a plan.
    time
        Latency of a call on the chip.
    saved
        Cycles before and after rewrites that keep the integers.
    names
        {name of a tensor: its name in the file}, where the packer requires another name.
    outputs, measured_on, doubts
        Cosine and SQNR of each output against the float model, a description of the data, and
        {output: reason why its figures are not reliable}.
    accuracy
        Accuracy on evaluation data, if measured.
    search
        Attempts of a search (max_drop, min_sqnr), and the chosen one.
    training
        Of a fine-tuned model, the loss and, if measured, the metric for each block and epoch.
    taken, refused
        Scales imported from a quantized model or another tool's plan, and {entry of such a plan:
        reason why it was rejected}.
    parts
        Agreement of each tensor that an output concatenates.
    next
        Suggested options if the model is not chip-ready or loses accuracy.
    full
        Whether the user wants all details.
    program
        Parts of the program, if float operators split the chip's work.
    merges
        Options to run float operators between chip parts on a chip.
    versions
        Versions of packer and executor on which the file gives the same integers, and those on
        which its memory plan is safe; empty for a file that the chip does not run.
    packed_parts
        The parts that the chip runs, with their packer arguments; not written to files.
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
    macs: MacShares = field(default_factory=MacShares)
    time: CallLatency = field(default_factory=CallLatency)
    chip_ready_basis: str = ""
    versions: VersionTable = field(default_factory=VersionTable)
    packed_parts: Sequence[VersionedPart] = field(default=(), repr=False, compare=False)

    def with_accuracy(self, evaluation: Evaluation) -> Report:
        """Return a copy with a measured accuracy; its warnings come first, each once."""
        warnings = tuple(dict.fromkeys((*evaluation.warnings, *self.warnings)))
        return replace(self, accuracy=evaluation.accuracy, warnings=warnings)

    @property
    def chip_ready_text(self) -> str:
        """Whether the graph is chip-ready, and what that stands on if it was not measured."""
        if not self.is_chip:
            return f"no: {self.platform} is no chip"
        if not self.chip_ready:
            return "no"
        texts = {"computed": "yes", "assumed": "assumed, not measured: see the note"}
        return texts.get(self.chip_ready_basis, "not judged")

    @property
    def flash(self) -> int | None:
        """Bytes of the constants in the packages of all chip parts.

        None if a part has no cost, or there is none.
        """
        if self.program.parts:
            costs = [verdict.cost for verdict in self.program.verdicts]
        else:
            costs = [self.cost]
        known = [cost.weights for cost in costs if cost is not None]
        return sum(known) if known and len(known) == len(costs) else None

    @property
    def why_not(self) -> list[str]:
        """Reasons why the model is not chip-ready, one line per rule.

        Empty if it is, or if the platform is not a chip.
        """
        if self.chip_ready or not self.is_chip:
            return []
        if not self.layers:
            return ["no operator of the model can be quantized"]
        reasons = [
            f"in float between integers: {line}"
            for line in format_float_nodes(self.float_nodes, self.full)
        ]
        findings = (finding for finding in self.findings if finding.level not in ("plan", "time"))
        return reasons + format_findings(findings, self.full)

    @property
    def runs_text(self) -> str:
        """The parts of the program as one line; empty if it is not split."""
        if not self.program.parts:
            return ""
        line = self.program.format_line(self.integer_macs)
        if self.chip_ready_basis != "assumed":
            return line
        return f"{line}; assumed, not measured: see the note"

    @property
    def macs_text(self) -> str:
        """The fraction of integer MACs, "P %"; with operators that cannot be counted, also these.

        Then it is "P % of those known; at least N unknown: OPERATOR COUNT, ...". The shares of chip
        and host follow unless all MACs are of one kind, and the MACs that run if rewrites change
        their number.
        """
        text = f"{100 * self.integer_macs:.1f} %"
        shares = f"; {self.macs}" if self.macs.is_mixed else ""
        if self.macs.executed != self.macs.total:
            shares += f"; {self.macs.executed:,} run for {self.macs.total:,} of the model"
        if not self.unknown_macs:
            return text + shares
        operators = ", ".join(
            operator if count == 1 else f"{operator} {count}"
            for operator, count in self.unknown_macs.items()
        )
        unknown = sum(self.unknown_macs.values())
        return f"{text} of those known; at least {unknown} unknown: {operators}{shares}"

    def fidelity_text(self, name: str) -> str:
        """Format the distance of output `name` from the float model.

        With its worst part if it consists of several, and the reason for doubt if there is one.
        """
        figures, doubt = self.outputs[name], self.doubts.get(name)
        text = (
            f"{name}: cosine {figures['cosine']:.6f}, SQNR {format_decibels(figures['sqnr'])} "
            f"{self.measured_on}"
        )
        parts = [part for part in self.parts if part.output == name]
        if parts:
            worst = min(parts, key=lambda part: -math.inf if math.isnan(part.sqnr) else part.sqnr)
            text += f"; {worst}: {format_decibels(worst.sqnr)}"
        return f"{text} ({doubt})" if doubt else text

    @property
    def accuracy_text(self) -> str:
        """The accuracy on evaluation data as text; empty if it was not measured.

        Without a float accuracy it is the integer model's agreement with the float model.
        """
        accuracy = self.accuracy
        if not accuracy:
            return ""
        unit = accuracy["unit"]
        integer = format_value(accuracy["integer"], unit)
        source = f"({accuracy['metric']}, {accuracy['samples']} samples)"
        if accuracy["float"] is None:
            return f"{integer} against the float model {source}"
        drop = format_value(accuracy["drop"], difference_unit(unit))
        levels = f"float {format_value(accuracy['float'], unit)}, integer {integer}"
        return f"{levels}, drop {drop} {source}"

    def list_facts(self) -> list[tuple[str, str]]:
        """List (label, text) of the main facts: platform, MACs, outputs, floats, warnings."""
        chip = ""
        if self.is_chip:
            chip = ", chip-ready" if self.chip_ready else ", not chip-ready"
        facts = [
            ("platform", f"{self.platform}, {self.mode}{chip}"),
            ("integer MACs", self.macs_text),
        ]
        for name, measures in self.outputs.items():
            fidelity = f"{measures['sqnr']:.1f} dB, cosine {measures['cosine']:.5f}"
            doubt = f" ({self.doubts[name]})" if name in self.doubts else ""
            facts.append((f"output {name}", f"{fidelity} {self.measured_on}{doubt}"))
        if self.accuracy is not None:
            facts.append(("accuracy", self.accuracy_text))
        for node in self.float_nodes[:_MAX_FACT_NODES]:
            facts.append(("in float", f"{node.op_type} {node.node}: {node.why}"))
        return facts + [("warning", warning) for warning in self.warnings]

    def __repr__(self) -> str:
        """Return the main facts as text of one screen."""
        return format_summary("Report", self.list_facts())

    def _repr_html_(self) -> str:
        """Render the main facts for a notebook."""
        return render_fragment("Report", render_fact_table("", self.list_facts()))

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON-ready values."""
        return {
            "platform": self.platform,
            "mode": self.mode,
            "layers": dict(self.layers),
            "chip_ready": self.chip_ready,
            "chip_ready_basis": self.chip_ready_basis,
            "integer_macs": round(self.integer_macs, 6),
            "unknown_macs": dict(self.unknown_macs),
            "macs": self.macs.to_dict(),
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
            "scales_taken": [conversion.to_dict() for conversion in self.taken],
            "scales_refused": dict(self.refused),
            "versions": self.versions.to_dict(),
        }


def format_findings(findings: Iterable[VerdictFinding], full: bool = False) -> list[str]:
    """Format findings, one line per level and rule with the worst case and the number of cases.

    Rules that differ only in quoted names and numbers count as one. With `full`, one line per
    finding.
    """
    if full:
        return [f"{format_level(finding)}: {finding}" for finding in findings]
    groups = group_by_key(
        findings, lambda finding: (format_level(finding), mask_quotes_and_numbers(finding.rule))
    )
    lines = []
    for group in groups:
        first = group[0]
        cases = [(finding.node, finding.value) for finding in group]
        violations = format_violations(first.rule, first.remedy, cases)
        lines.append(f"{format_level(first)}: {violations}")
    return lines


def format_float_nodes(nodes: Iterable[FloatNode], full: bool = False) -> list[str]:
    """Format float nodes, one line per reason with the operators.

    Reasons that differ only in quoted names and numbers count as one. With `full`, one line per
    node.
    """
    if full:
        groups = [[node] for node in nodes]
    else:
        groups = group_by_key(nodes, lambda node: mask_quotes_and_numbers(node.why))
    return [_format_float_group(group) for group in groups]


def _format_float_group(nodes: Sequence[FloatNode]) -> str:
    """Format float nodes with the same reason as one line.

    It has the operators with their counts, the first node, the MACs if any, and the reason.
    """
    counts = Counter(node.op_type for node in nodes)
    operators = ", ".join(
        f"{operator} {count}" if count > 1 else operator for operator, count in counts.items()
    )
    first = nodes[0]
    line = f"{operators} {first.node}" if len(nodes) == 1 else f"{operators}, such as {first.node}"
    macs = sum(node.macs for node in nodes)
    if macs:
        line += f" ({macs:,} MACs)"
    return f"{line}: {first.why}" if first.why else line


def format_rewrites(fitted: Iterable[AppliedRewrite], full: bool = False) -> list[str]:
    """Format applied rewrites, one line per kind, named by the first node and the number of others.

    Descriptions that differ only in quoted names and numbers are one kind; with `full`, one line
    per node.
    """
    if full:
        groups = [[rewrite] for rewrite in fitted]
    else:
        groups = group_by_key(
            fitted,
            lambda rewrite: (
                mask_quotes_and_numbers(rewrite.what),
                mask_quotes_and_numbers(rewrite.cost_text),
            ),
        )
    lines = []
    for group in groups:
        first = group[0]
        others = f" and {len(group) - 1} more" if len(group) > 1 else ""
        lines.append(f"{first.node}{others}: {first.what} ({first.cost_text})")
    return lines


def format_packer_command(target: Target, arguments: str, path: Path) -> str:
    """Format the packer command with `arguments` for the file `path`; "" without arguments.

    The package has the same name with the suffix .pkg.
    """
    if not arguments:
        return ""
    package = str(path.with_suffix(".pkg"))
    return target.vendor.format_packer_command(shlex.split(arguments), str(path), package)


def split_float_nodes(
    model: ir.Model, floats: Mapping[str, str], integer_node_ids: Collection[int]
) -> tuple[list[FloatNode], list[FloatNode]]:
    """Split the float nodes into those between integer nodes, and the host part.

    Parameters
    ----------
    model
        Float graph.
    floats
        {node: reason why it stays in float}.
    integer_node_ids
        Ids of the integer nodes.

    Returns
    -------
    between : list of FloatNode
        Nodes with integer nodes both upstream and downstream.
    host_part : list of FloatNode
        All other float nodes.
    """
    nodes = list(model.graph)
    after_integer = set(integer_node_ids)
    for node in nodes:
        if any(id(producer) in after_integer for producer in producers_of(node)):
            after_integer.add(id(node))
    before_integer = set(integer_node_ids)
    for node in reversed(nodes):
        if any(id(consumer) in before_integer for consumer in consumers_of(node)):
            before_integer.add(id(node))
    between: list[FloatNode] = []
    host_part: list[FloatNode] = []
    for node in nodes:
        if id(node) in integer_node_ids:
            continue
        name = str(node.name)
        entry = FloatNode(name, ir.display_op_type(node), floats.get(name, ""), count_macs(node))
        is_between = id(node) in after_integer and id(node) in before_integer
        (between if is_between else host_part).append(entry)
    return between, host_part
