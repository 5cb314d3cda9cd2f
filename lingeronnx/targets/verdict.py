"""Verdict of a packer on an integer graph: findings, cost, and the chosen arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..common.deprecation import keep_old_members
from ..common.errors import ConfigError
from ..common.escaping import join_shell
from .latency import Latency

__all__ = [
    "ClaimBasis",
    "PackerArguments",
    "GraphCost",
    "PlannedBuffer",
    "RuleBasis",
    "VerdictFinding",
    "LayerCost",
    "Verdict",
    "combine_bases",
    "require_latency",
]

#: What stands behind a rule: runs of the vendor's packer and executor, or their sources alone.
#: What the claim that a graph is chip-ready stands on; empty without such a claim.
ClaimBasis = Literal["", "computed", "assumed"]
RuleBasis = Literal["measured", "read"]


@dataclass(frozen=True)
class VerdictFinding:
    """A broken rule, which is formatted as one sentence.

    level : "packs" if the packer refuses the graph, "right" if the chip computes wrong results or
    none, "plan" if the results are correct but bytes past the memory plan are written, "time" if a
    call takes too long, "unmeasured" for an assumption of a correct verdict.
    node : the node that it is about, or "graph" or an option.
    basis : "measured" if the rule was measured on the vendor's packer or executor, "read" if it
    only follows from reading their sources.
    """

    level: str
    node: str
    rule: str
    value: str
    remedy: str
    basis: RuleBasis = "measured"

    def __str__(self) -> str:
        """Format the finding as one line "node: rule; here value; remedy"."""
        return f"{self.node}: {self.rule}; here {self.value}; {self.remedy}"


_TABLE_HEADER = (
    "layer",
    "operator",
    "MACs",
    "width",
    "weights",
    "activations",
    "work area",
    "DMA",
    "cycles",
)


@dataclass(frozen=True)
class LayerCost:
    """Cost of one node of the planned graph; all sizes in bytes.

    node : the node of the user's graph that it comes from.
    width : bits of activations by bits of weights, such as "8x8".
    weights : stored constants, bias included.
    activations : bytes read and written.
    work_area : planned for the node.
    dma : constants fetched, and tensors in PSRAM read and written.
    """

    node: str
    op_type: str
    macs: int
    width: str
    weights: int
    activations: int
    work_area: int
    dma: int


@dataclass(frozen=True)
class PlannedBuffer:
    """A tensor, work area ("area") or DMA buffer ("buffer") in the plan of the shared memory.

    offset, bytes : where it is, in bytes.
    first, last : indices of the first and the last layer at which it is in use.
    """

    name: str
    kind: str
    offset: int
    bytes: int
    first: int
    last: int


@keep_old_members("0.3", text="format_totals", table="format_table")
@dataclass(frozen=True)
class GraphCost:
    """Cost of a graph; sizes in bytes.

    macs : multiply-accumulates of one sample by operand width.
    shared, psram : peak of the memory plan, constants included.
    shared_limit, psram_limit : memory of the chip.
    largest : the largest tensors in shared memory, {name: bytes}.
    buffers : everything in the plan of the shared memory.
    """

    layers: Sequence[LayerCost]
    macs: Mapping[str, int]
    weights: int
    activations: int
    dma: int
    shared: int
    shared_limit: int
    psram: int
    psram_limit: int
    largest: Mapping[str, int]
    buffers: Sequence[PlannedBuffer] = ()

    def format_totals(self) -> str:
        """Format MACs by width, weights, memory with its limits, and DMA bytes as one line."""
        macs = ", ".join(f"{count:,} MACs {width}" for width, count in self.macs.items())
        memory = f"shared memory {self.shared:,} of {self.shared_limit:,} bytes"
        psram = f"psram {self.psram:,} of {self.psram_limit:,}"
        return (
            f"{macs or 'no MACs'}; weights {self.weights:,} bytes; {memory}, {psram}; "
            f"{self.dma:,} bytes over DMA"
        )

    def format_table(
        self, max_rows: int = 24, with_totals: bool = True, latency: Latency | None = None
    ) -> list[str]:
        """Format a header, one line per layer in execution order, and the total.

        Parameters
        ----------
        max_rows
            Maximum number of layers; those with most cycles are kept, or with most MACs and
            activations if the latency is not known.
        with_totals
            Append the memory peaks, and the number of omitted layers if any are.
        latency
            Latency of the same graph, if it is known; without it there is no column of cycles.
        """
        cycles = [0.0] * len(self.layers)
        if latency is not None:
            cycles = [layer.total_cycles for layer in latency.layers]
        sort_keys = [
            (-layer_cycles, -layer.macs, -layer.activations)
            for layer_cycles, layer in zip(cycles, self.layers, strict=True)
        ]
        shown = sorted(range(len(sort_keys)), key=sort_keys.__getitem__)[:max_rows]
        rows = [
            _TABLE_HEADER,
            *(_format_layer_row(self.layers[index], cycles[index]) for index in sorted(shown)),
            *self._format_total_rows(sum(cycles)),
        ]
        if latency is None:
            rows = [row[:-1] for row in rows]
        lines = _align_rows(rows)
        if not with_totals:
            return lines
        omitted_count = len(self.layers) - len(shown)
        if omitted_count:
            lines.append(f"  ({omitted_count} smaller layers omitted; use --json for all)")
        largest = ", ".join(f"{name} {size:,}" for name, size in list(self.largest.items())[:3])
        lines.append(
            f"  peak of shared memory {self.shared:,} of {self.shared_limit:,} bytes (largest: "
            f"{largest})"
        )
        lines.append(
            f"  peak of psram {self.psram:,} of {self.psram_limit:,} bytes, constants included"
        )
        return lines

    def _format_total_rows(self, total_cycles: float) -> list[tuple[str, ...]]:
        """Return the totals as table rows, one per operand width; one row if there are no MACs.

        Sizes and `total_cycles` are in the first row only.
        """
        totals = (self.weights, self.activations, self.dma, total_cycles)
        sizes = [f"{total:,.0f}" for total in totals]
        rows: list[tuple[str, ...]] = []
        for width, count in self.macs.items() or [("", 0)]:
            weights, activations, dma, cycles = sizes if not rows else [""] * 4
            rows.append(("total", "", f"{count:,}", width, weights, activations, "", dma, cycles))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values, each layer as a dictionary."""
        return {
            **vars(self),
            "layers": [asdict(layer) for layer in self.layers],
            "macs": dict(self.macs),
            "largest": dict(self.largest),
            "buffers": [asdict(buffer) for buffer in self.buffers],
        }


def _format_layer_row(layer: LayerCost, cycles: float) -> tuple[str, ...]:
    """Return the table cells of a layer: node, operator, MACs, width, sizes in bytes, cycles."""
    sizes = (layer.weights, layer.activations, layer.work_area, layer.dma, cycles)
    return (
        layer.node,
        layer.op_type,
        f"{layer.macs:,}",
        layer.width,
        *(f"{size:,.0f}" for size in sizes),
    )


def _align_rows(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format each row as an indented line with columns of equal width.

    Columns 0, 1 and 3 (layer, operator, width) are left-aligned, others right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            is_text = index in (0, 1, 3)  # layer, operator, width
            cells.append(cell.ljust(width) if is_text else cell.rjust(width))
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


@keep_old_members(
    "0.3",
    packs="is_packable",
    runs_right="is_correct",
    beliefs="assumptions",
    chip_ready="is_chip_ready",
    warned="has_overrun_warning",
    believed="assumption_summary",
    time="latency",
)
@dataclass(frozen=True)
class Verdict:
    """Verdict on a graph packed with certain arguments.

    is_packable : whether the packer accepts it.
    is_correct : whether no rule says that the executor computes other integers than the simulator.
    findings : broken rules; level "plan" is a warning of writes past the memory plan.
    assumptions : unmeasured facts that a correct verdict depends on.
    plan_findings : those findings that are about the memory plan, and, with level "unmeasured", the
    operators whose planned memory was not measured in this version of the packer.
    """

    is_packable: bool
    is_correct: bool
    findings: tuple[VerdictFinding, ...]
    assumptions: tuple[VerdictFinding, ...] = ()
    plan_findings: tuple[VerdictFinding, ...] = ()

    @property
    def is_chip_ready(self) -> bool:
        """Whether the graph packs and is computed correctly.

        Writes past the memory plan (findings of level "plan") do not prevent it.
        """
        return self.is_packable and self.is_correct

    @property
    def basis(self) -> ClaimBasis:
        """What the claim that a graph is chip-ready stands on; empty if it is not.

        "computed" from rules that were all measured on the vendor's packer and executor; "assumed"
        if it depends on facts that were not (`assumptions`).
        """
        if not self.is_chip_ready:
            return ""
        return "assumed" if self.assumptions else "computed"

    def format_outcome(self) -> str:
        """Describe in one clause whether the graph packs and is correct, and how sure that is.

        Wrong results that follow only from rules that were read are "probably"; a write past the
        plan is added as a warning.
        """
        if not self.is_packable:
            return "it does not pack"
        outcomes = {
            "computed": "it packs and is correct by measured rules",
            "assumed": "it packs; that it is correct is assumed, not measured",
            "": "it packs, but the executor computes other integers",
        }
        outcome = outcomes[self.basis]
        if not self.basis and self.is_wrong_by_reading:
            outcome = "it packs, but the executor probably computes other integers"
        if self.has_overrun_warning:
            outcome += ", but writes outside its plan (a warning)"
        return outcome

    @property
    def is_wrong_by_reading(self) -> bool:
        """Whether only rules that were read in sources, never measured, say that results are wrong.

        False if no finding says so.
        """
        bases = {finding.basis for finding in self.findings if finding.level == "right"}
        return bases == {"read"}

    @property
    def has_overrun_warning(self) -> bool:
        """Whether the graph is chip-ready but writes past its plan, which may do harm on a chip."""
        return self.is_chip_ready and any(f.level == "plan" for f in self.findings)

    @property
    def assumption_summary(self) -> str:
        """The unmeasured facts that the verdict depends on, as one line; "" without any.

        It has the rule of the first one and at most three nodes with values; the others are
        counted.
        """
        if not self.assumptions:
            return ""
        nodes = ", ".join(f"{finding.node} ({finding.value})" for finding in self.assumptions[:3])
        more = f" and {len(self.assumptions) - 3} more" if len(self.assumptions) > 3 else ""
        return (
            "assumed to be correct, not measured on the vendor's executor: "
            f"{self.assumptions[0].rule}: {nodes}{more}"
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs in the executor's order; () in this base class."""
        return ()

    @property
    def cost(self) -> GraphCost | None:
        """The cost of the graph on the chip; None in this base class, which does not know it."""
        return None

    @property
    def latency(self) -> Latency | None:
        """The estimated latency on the chip; None in this base class, which does not know it."""
        return None


def combine_bases(verdicts: Iterable[Verdict]) -> ClaimBasis:
    """Return the basis of the claim that all graphs are chip-ready: the weakest of `verdicts`.

    "" if one of them is not chip-ready or there are none, "assumed" if one depends on unmeasured
    facts, else "computed".
    """
    bases = {verdict.basis for verdict in verdicts}
    if not bases or "" in bases:
        return ""
    return "assumed" if "assumed" in bases else "computed"


def require_latency(verdict: Verdict) -> Latency:
    """Return the latency of `verdict`.

    Raises
    ------
    ConfigError
        If it has none, because the graph does not pack; with the first finding that prevents it.
    """
    if verdict.latency is None:
        finding = next((f for f in verdict.findings if f.level == "packs"), None)
        raise ConfigError(
            f"cannot estimate latency: the graph does not pack; fix this first: {finding}"
        )
    return verdict.latency


@keep_old_members("0.3", words="argv", line="command_line")
@dataclass(frozen=True)
class PackerArguments:
    """The packer's arguments and the verdict on the graph packed with them.

    argv : command-line arguments without file names.
    """

    argv: tuple[str, ...]
    verdict: Verdict

    @property
    def command_line(self) -> str:
        """The arguments as one line, quoted for a shell, without program and file names."""
        return join_shell(self.argv)
