"""Report on the parts of an integer graph: their cost, and whether packer and chip accept them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...common.deprecation import keep_old_members
from ...ir import ir
from ...ir.name_mapping import NameMapping
from ...operators.integer_ops import find_integer_op
from ...runtime.program_parts import ProgramPart, split_into_parts
from ...targets import GraphCost, LayerCost, Target, Verdict, VerdictFinding
from ..partition import count_float_operations

__all__ = ["PartReport", "ProgramReport", "build_program_report"]

_SHARED_PARAMS_ARG = "params:share-mem"  # constants stay in shared memory between calls


@dataclass(frozen=True)
class PartReport:
    """Report on one part of a program.

    Attributes
    ----------
    name
        "chip1", "host1" and so on.
    chip
        Whether the part runs on the chip.
    nodes
        Number of nodes.
    inputs, outputs
        Names of tensors as in the file.
    macs
        Multiply-accumulates of a chip part for one sample.
    float_operations
        Float operations of a host part for one sample.
    runs
        Whether the packer accepts a chip part and the chip computes it correctly.
    findings
        Findings against it.
    packer_args
        Arguments for the packer.
    packer
        Packer command for the files that were written.
    shared, psram
        Bytes of both memories of the chip.
    refused, members
        Integer nodes that findings refer to, and all nodes of the part, by the user's names.
    verdict
        Verdict on a chip part.
    """

    name: str
    chip: bool
    nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    macs: int = 0
    float_operations: int = 0
    runs: bool = True
    findings: tuple[VerdictFinding, ...] = ()
    packer_args: str = ""
    packer: str = ""
    shared: int = 0
    psram: int = 0
    refused: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    verdict: Verdict | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values, without `refused`, `members` and `verdict`."""
        internal = ("refused", "members", "verdict")
        values = {key: value for key, value in vars(self).items() if key not in internal}
        return {
            **values,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "findings": list(map(vars, self.findings)),
        }


@keep_old_members(
    "0.3",
    host="host_parts",
    runs="runs_correctly",
    crossings="host_chip_transfers",
    psram="psram_bytes",
    text="format_line",
)
@dataclass(frozen=True)
class ProgramReport:
    """Reports on the parts of a program, in the order in which they run."""

    parts: tuple[PartReport, ...] = ()

    @property
    def chip(self) -> tuple[PartReport, ...]:
        """The chip parts."""
        return tuple(part for part in self.parts if part.chip)

    @property
    def host_parts(self) -> tuple[PartReport, ...]:
        """The host parts."""
        return tuple(part for part in self.parts if not part.chip)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on the chip parts."""
        return tuple(part.verdict for part in self.parts if part.verdict is not None)

    @property
    def runs_correctly(self) -> bool:
        """Whether there is a chip part, and packer and chip accept all of them."""
        return bool(self.chip) and all(part.runs for part in self.chip)

    @property
    def host_chip_transfers(self) -> int:
        """Number of changes between host and chip from one part to the next, in one call."""
        return sum(
            part.chip != successor.chip for part, successor in itertools.pairwise(self.parts)
        )

    @property
    def shared(self) -> int:
        """Bytes of shared memory.

        Parts that keep constants there have a region of their own; the others share one that is as
        large as the largest of them.
        """
        resident = [part.shared for part in self.chip if _SHARED_PARAMS_ARG in part.packer_args]
        reused = [part.shared for part in self.chip if _SHARED_PARAMS_ARG not in part.packer_args]
        return sum(resident) + max(reused, default=0)

    @property
    def psram_bytes(self) -> int:
        """Bytes of PSRAM of all parts."""
        return sum(part.psram for part in self.chip)

    def format_line(self, share: float) -> str:
        """Format the numbers of chip and host parts, their MACs and rejected parts as one line.

        Parameters
        ----------
        share
            Fraction of the multiply-accumulates in integers, 0 to 1.
        """
        chip, host = len(self.chip), len(self.host_parts)
        float_operations = sum(part.float_operations for part in self.host_parts)
        on_chip = f"{chip} chip part{'s' * (chip != 1)} ({100 * share:.1f} % of MACs)"
        on_host = (
            f"{host} host part{'s' * (host != 1)} ({100 * (1 - share):.1f} %, "
            f"{_format_count(float_operations)} float operations per call)"
        )
        rejected = ", ".join(part.name for part in self.chip if not part.runs)
        rejected_text = f"; {rejected} rejected" if rejected else ""
        return f"{on_chip}, {on_host}{rejected_text}"

    def with_packer_calls(self, calls: Sequence[str]) -> ProgramReport:
        """Return a copy with the packer commands `calls` of the chip parts, in their order."""
        remaining = iter(calls)
        parts = [
            replace(part, packer=next(remaining)) if part.chip else part for part in self.parts
        ]
        return ProgramReport(tuple(parts))


def _format_count(count: int) -> str:
    """Format a count with three significant digits and a unit prefix (k, M, G) from 1,000 on.

    Smaller counts have no prefix and no space.
    """
    for factor, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if count >= factor:
            return f"{count / factor:.3g}{unit}"
    return str(count)


def build_program_report(
    graph: ir.Model, target: Target, names: NameMapping
) -> tuple[ProgramReport, list[ProgramPart]]:
    """Split `graph` into parts and evaluate each.

    Parameters
    ----------
    graph
        The integer graph.
    target
        The chip.
    names
        Names of nodes and tensors in the file.

    Returns
    -------
    report : ProgramReport
        Report on the parts.
    parts : list of ProgramPart
        The parts as they are written.
    """
    parts = split_into_parts(target.with_safe_names(graph, names), target).parts
    nodes = {str(node.name): node for node in graph.graph}
    user_names = {file_name: name for name, file_name in names.nodes.items()}
    reports = []
    for part in parts:
        if part.chip:
            reports.append(_describe_chip_part(part, user_names))
        else:
            host_nodes = [nodes[user_names.get(name, name)] for name in part.nodes]
            reports.append(_describe_host_part(part, host_nodes))
    return ProgramReport(tuple(reports)), list(parts)


def _describe_chip_part(part: ProgramPart, user_names: dict[str, str]) -> PartReport:
    """Report on a chip part; one that is chip-ready has no findings, and none are of level "plan".

    Parameters
    ----------
    part
        The part.
    user_names
        {node name in the file: user's name}, where they differ.
    """
    verdict, cost = part.choice.verdict, part.choice.verdict.cost
    findings: tuple[VerdictFinding, ...] = ()
    if not verdict.is_chip_ready:
        findings = tuple(finding for finding in verdict.findings if finding.level != "plan")
    blamed_nodes = [_blame_node(part, finding, cost) for finding in findings]
    return PartReport(
        part.name,
        True,
        len(part.nodes),
        part.inputs,
        part.outputs,
        macs=0 if cost is None else sum(cost.macs.values()),
        runs=verdict.is_chip_ready,
        findings=findings,
        packer_args=part.choice.command_line,
        shared=0 if cost is None else cost.shared,
        psram=0 if cost is None else cost.psram,
        refused=tuple(user_names.get(name, name) for name in blamed_nodes),
        members=tuple(user_names.get(name, name) for name in part.nodes),
        verdict=verdict,
    )


def _converts_to_or_from_float(node: ir.Node) -> bool:
    """Whether an integer `node` is a Quant or Dequant."""
    form = find_integer_op(node)
    return form is not None and form.converts_to_or_from_float


def _blame_node(part: ProgramPart, finding: VerdictFinding, cost: GraphCost | None) -> str:
    """Return the node that a finding refers to.

    If the finding names a memory, this is a layer that needs more of it than there is. Of several,
    those with the least work are considered, and of these the middle one: this leaves two parts of
    half the length, so that after a few rounds tiling makes the parts small enough. If no layer
    needs too much by itself, it is the one that needs the most.
    """
    node_names = {
        str(node.name) for node in part.graph.graph if not _converts_to_or_from_float(node)
    }
    if finding.node in node_names or cost is None:
        return finding.node
    movable = node_names.intersection(part.nodes)  # without nodes that join tiles
    layers = [layer for layer in cost.layers if layer.node in movable]
    if not layers:
        return finding.node
    too_large = [layer for layer in layers if _layer_bytes(layer) > cost.shared_limit]
    if not too_large:
        return max(layers, key=_layer_bytes).node
    min_macs = min(layer.macs for layer in too_large)
    lightest = [layer for layer in too_large if layer.macs == min_macs]
    return lightest[len(lightest) // 2].node


def _layer_bytes(layer: LayerCost) -> int:
    """Return the bytes of shared memory that the layer needs by itself."""
    return layer.work_area + layer.activations


def _describe_host_part(part: ProgramPart, nodes: Iterable[ir.Node]) -> PartReport:
    """Report on a host part; its work are the float operations of `nodes`."""
    float_operations = count_float_operations(nodes)
    return PartReport(
        part.name,
        False,
        len(part.nodes),
        part.inputs,
        part.outputs,
        float_operations=float_operations,
    )
