"""What a target with a packer says of an integer graph, as values.

Findings, cost, verdict, choice of arguments.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ConfigError
from .latency import Latency

__all__ = [
    "PackerArguments",
    "GraphCost",
    "VerdictFinding",
    "LayerCost",
    "Verdict",
    "require_latency",
]


@dataclass(frozen=True)
class VerdictFinding:
    """What speaks against a graph, as a sentence.

    level : "packs" where the packer refuses, "right" where the chip would give other integers or
    none, "plan" where
        it gives the right ones and writes past the memory planned for them, "time" where it takes
        too long.
    """

    level: str
    node: str
    rule: str
    value: str
    remedy: str

    def __str__(self) -> str:
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
    """One node of the planned graph, called by the node that it comes from; all sizes in bytes.

    width : bits of data by bits of weights. weights : as stored, bias included. activations : read
    and written. work_area : planned for it. dma : constants fetched, and tensors in PSRAM read and
    written.
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
class GraphCost:
    """All of a graph; sizes in bytes.

    macs : {width: multiply-accumulates of one sample}. shared, psram : the most that is planned at
    once, constants included; the limits are the chip's. largest : the tensors that fill shared
    memory, {name: bytes}.
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

    def format_totals(self) -> str:
        """Return the totals as a line."""
        macs = (
            ", ".join(f"{count:,} MACs {width}" for width, count in self.macs.items()) or "no MACs"
        )
        memory = f"shared memory {self.shared:,} of {self.shared_limit:,} bytes"
        outside = f"psram {self.psram:,} of {self.psram_limit:,}"
        return (
            f"{macs}; weights {self.weights:,} bytes; {memory}, {outside}; {self.dma:,} bytes "
            "over DMA"
        )

    def format_table(
        self, max_rows: int = 24, with_totals: bool = True, latency: Latency | None = None
    ) -> list[str]:
        """Return one line per layer: the `max_rows` heaviest, or all `with_totals`.

        latency : of the same graph, where it is known; the heaviest are those that take longest
        then.
        """
        cycles = (
            [0.0] * len(self.layers)
            if latency is None
            else [layer.total_cycles for layer in latency.layers]
        )
        weight = [
            (-c, -layer.macs, -layer.activations)
            for c, layer in zip(cycles, self.layers, strict=True)
        ]
        kept = sorted(range(len(weight)), key=weight.__getitem__)[:max_rows]
        rows: list[tuple[str, ...]] = [_TABLE_HEADER]
        for index in sorted(kept):
            layer = self.layers[index]
            sizes = (layer.weights, layer.activations, layer.work_area, layer.dma, cycles[index])
            rows.append(
                (
                    layer.node,
                    layer.op_type,
                    f"{layer.macs:,}",
                    layer.width,
                    *(f"{n:,.0f}" for n in sizes),
                )
            )
        left = len(self.layers) - len(kept)
        total = (self.weights, self.activations, self.dma, sum(cycles))
        for width, count in self.macs.items() or [("", 0)]:
            texts = [f"{n:,.0f}" for n in total] if width == next(iter(self.macs), "") else [""] * 4
            rows.append(("total", "", f"{count:,}", width, texts[0], texts[1], "", *texts[2:]))
        rows = rows if latency is not None else [row[:-1] for row in rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  "
            + "  ".join(
                t.ljust(w) if i in (0, 1, 3) else t.rjust(w)
                for i, (t, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        if left and with_totals:
            lines.append(f"  ({left} lighter nodes are left out; --json has all)")
        if not with_totals:
            return lines
        fullest = ", ".join(f"{name} {size:,}" for name, size in list(self.largest.items())[:3])
        lines.append(
            f"  peak of shared memory {self.shared:,} of {self.shared_limit:,} bytes (largest: "
            f"{fullest})"
        )
        return [
            *lines,
            f"  peak of psram {self.psram:,} of {self.psram_limit:,} bytes, constants included",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            **vars(self),
            "layers": [asdict(layer) for layer in self.layers],
            "macs": dict(self.macs),
            "largest": dict(self.largest),
        }


@dataclass(frozen=True)
class Verdict:
    """What becomes of a graph under the packer's arguments.

    is_packable : the packer takes it. runs_right : the chip gives the integers of the simulator.
    findings : what speaks against it, and as a warning of level "plan" what is right and writes
    past its plan. beliefs : what a verdict of right hangs on and nobody measured.
    """

    is_packable: bool
    is_correct: bool
    findings: tuple[VerdictFinding, ...]
    assumptions: tuple[VerdictFinding, ...] = ()

    @property
    def is_chip_ready(self) -> bool:
        """Whether it packs and is right; a write past the plan is a warning."""
        return self.is_packable and self.is_correct

    @property
    def has_overrun_warning(self) -> bool:
        """Whether it is right and writes past its plan, which may do harm on a chip."""
        return self.is_chip_ready and any(f.level == "plan" for f in self.findings)

    @property
    def assumption_summary(self) -> str:
        """What a verdict of right hangs on and nobody measured, as a line; empty where all was."""
        nodes = ", ".join(f"{f.node} ({f.value})" for f in self.assumptions[:3])
        more = f" and {len(self.assumptions) - 3} more" if len(self.assumptions) > 3 else ""
        return (
            f"right as far as is known, but not measured: {self.assumptions[0].rule}: {nodes}{more}"
            if nodes
            else ""
        )

    @property
    def cost(self) -> GraphCost | None:
        """What the graph costs on the chip; None where that is not known."""
        return None

    @property
    def latency(self) -> Latency | None:
        """How long the graph takes on the chip; None where that is not known."""
        return None


def require_latency(verdict: Verdict) -> Latency:
    """Return how long a graph takes that has this verdict; ConfigError where it does not pack."""
    if verdict.latency is None:
        finding = next((f for f in verdict.findings if f.level == "packs"), None)
        raise ConfigError(
            f"no time can be told of a graph that does not pack; mend this first: {finding}"
        )
    return verdict.latency


@dataclass(frozen=True)
class PackerArguments:
    """Arguments and what becomes of the graph under them.

    argv : the packer's arguments, without files. verdict : that of the graph packed with them.
    """

    argv: tuple[str, ...]
    verdict: Verdict

    @property
    def command_line(self) -> str:
        """The words, quoted for a shell."""
        return shlex.join(self.argv)
