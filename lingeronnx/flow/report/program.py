"""Which parts an integer graph is run in, what each costs, and whether the packer and the chip take it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...formats import DEQUANT, QUANT
from ...graph import ir, operators
from ...graph.name_mapping import NameMapping
from ...ops.macs import count_macs
from ...run.program_parts import ProgramPart, split_into_parts
from ...targets import GraphCost, LayerCost, Target, Verdict, VerdictFinding

__all__ = ["PartReport", "ProgramReport", "build_program_report", "count_float_operations"]

_SHARED_PARAMS_ARG = "params:share-mem"  # constants in shared memory stay there from call to call


@dataclass(frozen=True)
class PartReport:
    """One part of a program.

    name : "chip1", "host1" ... nodes : how many. inputs, outputs : names of tensors, as in the
    file. macs : of a chip part, products of one sample. float_operations : of a host part, for one
    sample. runs : whether the packer takes a chip part and the chip computes it right; findings :
    what speaks against it. packer_args : the packer's arguments. packer : its call for the files
    that were written. shared, psram : bytes on the chip. refused, members : integer nodes that
    findings speak of, and all of the part, by the user's names. verdict : of a chip part.
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
        """Return it as JSON-ready values."""
        told = {
            key: value
            for key, value in vars(self).items()
            if key not in ("refused", "members", "verdict")
        }
        return {
            **told,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "findings": list(map(vars, self.findings)),
        }


@dataclass(frozen=True)
class ProgramReport:
    """Parts in the order in which they run."""

    parts: tuple[PartReport, ...] = ()

    @property
    def chip(self) -> tuple[PartReport, ...]:
        """The chip's parts."""
        return tuple(part for part in self.parts if part.chip)

    @property
    def host_parts(self) -> tuple[PartReport, ...]:
        """The host's parts."""
        return tuple(part for part in self.parts if not part.chip)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Those of the chip's parts."""
        return tuple(part.verdict for part in self.parts if part.verdict is not None)

    @property
    def runs_correctly(self) -> bool:
        """Whether there is something for the chip, and it takes all of it."""
        return bool(self.chip) and all(part.runs for part in self.chip)

    @property
    def host_chip_transfers(self) -> int:
        """How often a call goes from the host to the chip or back."""
        return sum(
            one.chip != two.chip for one, two in zip(self.parts, self.parts[1:], strict=False)
        )

    @property
    def shared(self) -> int:
        """Bytes of shared memory.

        Parts share a region as large as the largest, but for those that keep constants.
        """
        own = [part.shared for part in self.chip if _SHARED_PARAMS_ARG in part.packer_args]
        return sum(own) + max(
            (part.shared for part in self.chip if _SHARED_PARAMS_ARG not in part.packer_args),
            default=0,
        )

    @property
    def psram_bytes(self) -> int:
        """Bytes of psram, of all parts."""
        return sum(part.psram for part in self.chip)

    def format_line(self, share: float) -> str:
        """Return the parts as a line. share : of the multiply-accumulates in integers, 0 to 1."""
        chip, host = len(self.chip), len(self.host_parts)
        work = sum(part.float_operations for part in self.host_parts)
        done = f"{100 * (1 - share):.1f} %, {_format_count(work)} float operations per call"
        on_chip = f"{chip} chip part{'s' * (chip != 1)} ({100 * share:.1f} % of MACs)"
        refused = ", ".join(part.name for part in self.chip if not part.runs)
        against = f"; {refused} refused" if refused else ""
        return f"{on_chip}, {host} host part{'s' * (host != 1)} ({done}){against}"

    def with_packer_calls(self, calls: Sequence[str]) -> ProgramReport:
        """Return the same with the packer's call of each chip part."""
        left = iter(calls)
        return ProgramReport(
            tuple(replace(part, packer=next(left)) if part.chip else part for part in self.parts)
        )


def _format_count(count: int) -> str:
    for size, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def build_program_report(
    graph: ir.Model, target: Target, names: NameMapping
) -> tuple[ProgramReport, list[ProgramPart]]:
    """Return what becomes of the parts of `graph`, and these, as they are written.

    Names : those of its file.
    """
    parts = split_into_parts(target.with_safe_names(graph, names), target).parts
    nodes = {str(node.name): node for node in graph.graph}
    back = {other: name for name, other in names.nodes.items()}
    told = [
        _describe_chip_part(part, back)
        if part.chip
        else _describe_host_part(part, [nodes[back.get(name, name)] for name in part.nodes])
        for part in parts
    ]
    return ProgramReport(tuple(told)), list(parts)


def _describe_chip_part(part: ProgramPart, back: dict[str, str]) -> PartReport:
    choice = part.choice
    verdict = choice.verdict
    against = (
        () if verdict.is_chip_ready else tuple(f for f in verdict.findings if f.level != "plan")
    )
    cost = verdict.cost
    return PartReport(
        part.name,
        True,
        len(part.nodes),
        part.inputs,
        part.outputs,
        macs=0 if cost is None else sum(cost.macs.values()),
        runs=verdict.is_chip_ready,
        findings=against,
        packer_args=choice.command_line,
        shared=0 if cost is None else cost.shared,
        psram=0 if cost is None else cost.psram,
        refused=tuple(
            back.get(name, name) for name in (_blame_node(part, f, cost) for f in against)
        ),
        members=tuple(back.get(name, name) for name in part.nodes),
        verdict=verdict,
    )


def _blame_node(part: ProgramPart, finding: VerdictFinding, cost: GraphCost | None) -> str:
    """Return the node that a finding names.

    Where it names a memory, one that takes more than there is.
    Of several the one in the middle, of those with least work: two parts remain that are half as
    long, and a few rounds of that leave parts that tiles make small enough. Where no layer takes so
    much by itself, the one that takes most.
    """
    own = {
        str(node.name)
        for node in part.graph.graph
        if node.op_type not in (QUANT.name, DEQUANT.name)
    }
    told = own.intersection(part.nodes)  # and not what tiles are joined by
    layers = [] if cost is None else [layer for layer in cost.layers if layer.node in told]
    if finding.node in own or cost is None or not layers:
        return finding.node
    large = [layer for layer in layers if _layer_bytes(layer) > cost.shared_limit]
    least = min((layer.macs for layer in large), default=0)
    light = [layer for layer in large if layer.macs == least]
    return light[len(light) // 2].node if light else max(layers, key=_layer_bytes).node


def _layer_bytes(layer: LayerCost) -> int:
    """Return the bytes that the layer by itself takes."""
    return layer.work_area + layer.activations


def _describe_host_part(part: ProgramPart, nodes: Iterable[ir.Node]) -> PartReport:
    work = count_float_operations(nodes)
    return PartReport(
        part.name, False, len(part.nodes), part.inputs, part.outputs, float_operations=work
    )


def count_float_operations(nodes: Iterable[ir.Node]) -> int:
    """Return about how many float operations `nodes`, whose shapes are known, take for one sample.

    Two for each multiply-accumulate, and one for each number that another node writes; none where
    numbers only move.
    """
    return sum(2 * count_macs(node) or _count_written_elements(node) for node in nodes)


def _count_written_elements(node: ir.Node) -> int:
    if node.op_type == "Constant" or (
        not node.domain and node.op_type in operators.DATA_MOVEMENT_OPS
    ):
        return 0
    shapes = [ir.get_shape(value) for value in node.outputs]
    return sum(math.prod(int(d or 1) for d in shape) for shape in shapes if shape is not None)
