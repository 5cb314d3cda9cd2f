"""How long a graph takes on a chip, as values: per layer, in all, and what has no price."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

__all__ = ["CycleSavings", "Latency", "LayerLatency", "UnmodeledWork", "concatenate_latencies"]


@dataclass(frozen=True)
class UnmodeledWork:
    """Work whose cycles nobody has published.

    name : the layer. what : what is done. bytes : how many are moved. bound : cycles that it takes
    at most, where they are known.
    """

    name: str
    what: str
    bytes: int
    bound: float | None = None


@dataclass(frozen=True)
class LayerLatency:
    """One layer as the chip runs it, after the packer's fusions.

    cycles : of the NPU, of what has a price. low, high : the range; high counts unpriced work at
    its bound, and the NPU's reading as slow as its copies were measured. start, wait : when it
    begins, and how long it then waits for its constants. dma : cycles of the transfer of these.
    moved : cycles of copies of its data from and to external memory, which it waits for. priced :
    whether all of it has a price. node : of the graph that it comes from. overhead : of `cycles`,
    what passes before the first element of a call; calls : how many it makes. fetch : when the
    transfer of its constants begins.
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
        """Cycles from its turn to its end."""
        return self.wait + self.moved + self.cycles


@dataclass(frozen=True)
class Latency:
    """One run of a graph, in cycles.

    layers : in the order in which they run. unpriced : what is in no figure but in `high`, at its
    bound.
    """

    platform: str
    layers: Sequence[LayerLatency]
    unpriced: Sequence[UnmodeledWork]

    @property
    def luna(self) -> float:
        """Cycles of the NPU, of all that has a price."""
        return sum(layer.cycles for layer in self.layers)

    @property
    def overhead(self) -> float:
        """Of `luna`, the cycles before the first element of a call."""
        return sum(layer.overhead for layer in self.layers)

    @property
    def calls(self) -> int:
        """How many kernels are called."""
        return sum(layer.calls for layer in self.layers)

    @property
    def waits(self) -> float:
        """Cycles in which the NPU waits for constants."""
        return sum(layer.wait for layer in self.layers)

    @property
    def moved(self) -> float:
        """Cycles of copies of data from and to external memory."""
        return sum(layer.moved for layer in self.layers)

    @property
    def total(self) -> float:
        """Cycles of the whole run, of all that has a price.

        The NPU, copies, and waits for constants.
        """
        return self.luna + self.moved + self.waits

    @property
    def low(self) -> float:
        """The lower end of the range of `total`."""
        return sum(layer.low for layer in self.layers) + self.moved + self.waits

    @property
    def high(self) -> float:
        """The upper end of the range of `total`; work without a bound is not in it."""
        return sum(layer.high for layer in self.layers) + self.moved + self.waits

    def with_node_names(self, nodes: Mapping[str, str]) -> Latency:
        """Return the same with other names of nodes, {name: other}, where they have some."""
        layers = tuple(
            replace(layer, node=nodes.get(layer.node, layer.node)) for layer in self.layers
        )
        return replace(self, layers=layers)

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values."""
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
    """Return the runs of several graphs, at least one, one after the other."""
    layers: list[LayerLatency] = []
    before = 0.0
    for run in runs:
        layers += [
            replace(layer, start=layer.start + before, fetch=layer.fetch + before)
            for layer in run.layers
        ]
        before += run.total
    return Latency(
        runs[0].platform, tuple(layers), tuple(work for run in runs for work in run.unpriced)
    )


@dataclass(frozen=True)
class CycleSavings:
    """What other forms of a graph, and other arguments, save: cycles of one run before and after.

    Both at the upper end of the range, unpriced work at its bound. platform : the chip. assumed :
    by the prices of another one, since nobody has published this one's.
    """

    before: int
    after: int
    platform: str
    assumed: bool = False

    @property
    def summary(self) -> str:
        """It in words."""
        how = "another chip's prices assumed" if self.assumed else "upper ends"
        return f"before / after {self.before:,} / {self.after:,} (same integers; {how})"

    def write_metadata(self, metadata: MutableMapping[str, str]) -> None:
        """Write it into the metadata of the graph that takes `after` cycles."""
        metadata[_METADATA_KEY] = json.dumps(
            {"before": self.before, "after": self.after, "assumed": self.assumed}
        )

    @classmethod
    def read_metadata(cls, metadata: Mapping[str, str], platform: str) -> CycleSavings | None:
        """Return what `write_metadata` wrote.

        None where nothing stands there, or something else.
        """
        try:
            found = json.loads(metadata.get(_METADATA_KEY, "null"))
            return cls(int(found["before"]), int(found["after"]), platform, bool(found["assumed"]))
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def sum_parts(cls, parts: Iterable[CycleSavings]) -> CycleSavings | None:
        """Return the sum over parts that run one after the other; None without any."""
        found = list(parts)
        if not found:
            return None
        before, after = sum(part.before for part in found), sum(part.after for part in found)
        return cls(before, after, found[0].platform, found[0].assumed)


#: The metadata key.
_METADATA_KEY = "lingeronnx.cycles"
