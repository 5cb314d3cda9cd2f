"""Estimated latency of a graph on a chip, per layer and in total, and work without a known cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from ..common.deprecation import keep_old_members

__all__ = ["CycleSavings", "Latency", "LayerLatency", "UnmodeledWork", "concatenate_latencies"]


@dataclass(frozen=True)
class UnmodeledWork:
    """Work of a layer whose cycles have not been published.

    name : the layer.
    what : description of the work.
    bytes : number of bytes that are moved.
    bound : upper bound of the cycles, if it is known.
    """

    name: str
    what: str
    bytes: int
    bound: float | None = None


@keep_old_members("0.3", total="total_cycles")
@dataclass(frozen=True)
class LayerLatency:
    """Latency of one layer as the chip runs it, after the packer's fusions; all times in cycles.

    cycles : of the NPU, for work with a known cost.
    low, high : bounds; `high` includes unmodeled work at its bound, and NPU reads as slow as its
    copies were measured to be.
    start, wait : start of the layer, and time that it then waits for its constants.
    dma : DMA transfer of the constants.
    moved : copies of activations from and to external memory, which the layer waits for.
    priced : whether all of its work has a known cost.
    node : the node of the graph that it comes from.
    overhead : the part of `cycles` before the first element of a kernel call.
    calls : number of kernel calls.
    fetch : start of the DMA transfer.
    """

    name: str
    operator: str
    cycles: float
    low: float
    high: float
    start: float = 0.0
    wait: float = 0.0
    dma: float = 0.0
    moved: float = 0.0
    priced: bool = True
    node: str = ""
    overhead: float = 0.0
    calls: int = 0
    fetch: float = 0.0

    @property
    def total_cycles(self) -> float:
        """The cycles from start to end of the layer: wait for constants, copies, and kernels."""
        return self.wait + self.moved + self.cycles


@keep_old_members("0.3", renamed="with_node_names")
@dataclass(frozen=True)
class Latency:
    """Latency of one run of a graph, in cycles.

    layers : in execution order.
    unpriced : work that is not included in any figure except `high`, at its bound.
    """

    platform: str
    layers: Sequence[LayerLatency]
    unpriced: Sequence[UnmodeledWork]

    @property
    def luna(self) -> float:
        """The cycles of the NPU over all layers, for work with a known cost."""
        return sum(layer.cycles for layer in self.layers)

    @property
    def overhead(self) -> float:
        """The part of the NPU's cycles that passes before the first element of each kernel call."""
        return sum(layer.overhead for layer in self.layers)

    @property
    def calls(self) -> int:
        """The number of kernel calls over all layers."""
        return sum(layer.calls for layer in self.layers)

    @property
    def waits(self) -> float:
        """The cycles in which the NPU waits for constants that the DMA fetches."""
        return sum(layer.wait for layer in self.layers)

    @property
    def moved(self) -> float:
        """The cycles of copies of activations from and to external memory."""
        return sum(layer.moved for layer in self.layers)

    @property
    def total(self) -> float:
        """The cycles of the run: NPU, copies of activations, and waits for constants.

        Work without a known cost is not included.
        """
        return self.luna + self.moved + self.waits

    @property
    def low(self) -> float:
        """The lower bound of `total`, in cycles."""
        return sum(layer.low for layer in self.layers) + self.moved + self.waits

    @property
    def high(self) -> float:
        """The upper bound of `total`, in cycles.

        It includes work without a cost model where that has a bound.
        """
        return sum(layer.high for layer in self.layers) + self.moved + self.waits

    def with_node_names(self, nodes: Mapping[str, str]) -> Latency:
        """Return a copy in which the layers' nodes are renamed by {name: new name}.

        Other nodes keep their names.
        """
        layers = tuple(
            replace(layer, node=nodes.get(layer.node, layer.node)) for layer in self.layers
        )
        return replace(self, layers=layers)

    def to_dict(self) -> dict[str, object]:
        """Return totals, layers and work without a known cost as JSON values.

        Times are in cycles.
        """
        sums = {
            name: getattr(self, name)
            for name in ("luna", "overhead", "calls", "moved", "waits", "total", "low", "high")
        }
        return {
            "platform": self.platform,
            **sums,
            "layers": [vars(layer) for layer in self.layers],
            "unpriced": [vars(work) for work in self.unpriced],
        }


def concatenate_latencies(runs: Sequence[Latency]) -> Latency:
    """Return the latency of runs of one platform, each starting when the previous one ends.

    Start and fetch times of layers are shifted by the totals of the runs before. `runs` must not be
    empty; the platform is that of the first.
    """
    layers: list[LayerLatency] = []
    unpriced: list[UnmodeledWork] = []
    offset = 0.0
    for run in runs:
        layers += [
            replace(layer, start=layer.start + offset, fetch=layer.fetch + offset)
            for layer in run.layers
        ]
        unpriced += run.unpriced
        offset += run.total
    return Latency(runs[0].platform, tuple(layers), tuple(unpriced))


@dataclass(frozen=True)
class CycleSavings:
    """Cycles of one run before and after a graph was rewritten and its arguments were chosen again.

    Both are upper bounds, with unmodeled work at its bound.
    platform : the chip.
    assumed : whether the kernel costs of another chip were used, because its own are unknown.
    checked_samples : samples on which both graphs gave the same integers; 0 if not compared.
    """

    before: int
    after: int
    platform: str
    assumed: bool = False
    checked_samples: int = 0

    @property
    def summary(self) -> str:
        """The cycles before and after as one line of text.

        It adds "same integers" if samples were compared, and says whether kernel costs of another
        chip were assumed or the cycles are upper bounds.
        """
        basis = "another chip's kernel costs assumed" if self.assumed else "upper bounds"
        integers = "same integers; " if self.checked_samples else ""
        return f"before / after {self.before:,} / {self.after:,} ({integers}{basis})"

    def write_metadata(self, metadata: MutableMapping[str, str]) -> None:
        """Write `before`, `after` and `assumed` as JSON into `metadata`, in place.

        It is the metadata of the graph that takes `after` cycles.
        """
        metadata[_METADATA_KEY] = json.dumps(
            {"before": self.before, "after": self.after, "assumed": self.assumed}
        )

    @classmethod
    def read_metadata(cls, metadata: Mapping[str, str], platform: str) -> CycleSavings | None:
        """Read the savings that `write_metadata` wrote, for `platform`; None if absent or invalid.

        `checked_samples` is not stored and becomes 0.
        """
        try:
            body = json.loads(metadata.get(_METADATA_KEY, "null"))
            return cls(int(body["before"]), int(body["after"]), platform, bool(body["assumed"]))
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def sum_parts(cls, parts: Iterable[CycleSavings]) -> CycleSavings | None:
        """Return the summed savings of parts that run one after the other; None without parts.

        Platform and `assumed` are those of the first part; `checked_samples` is 0.
        """
        savings = list(parts)
        if not savings:
            return None
        before, after = sum(part.before for part in savings), sum(part.after for part in savings)
        return cls(before, after, savings[0].platform, savings[0].assumed)


#: The metadata key of `CycleSavings`.
_METADATA_KEY = "lingeronnx.cycles"
