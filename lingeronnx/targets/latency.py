"""How long a graph takes on a chip, as values: per layer, in all, and what has no price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Latency", "LayerTime", "UnpricedWork"]


@dataclass(frozen=True)
class UnpricedWork:
    """Work whose cycles nobody has published.

    name : the layer. what : what is done. bytes : how many are moved. bound : cycles that it takes at most, where they
    are known.
    """

    name: str
    what: str
    bytes: int
    bound: float | None = None


@dataclass(frozen=True)
class LayerTime:
    """One layer as the chip runs it, after the packer's fusions.

    cycles : of the NPU, of what has a price. low, high : the range; high counts unpriced work at its bound, and the
    NPU's reading as slow as its copies were measured. start, wait : when it begins, and how long it then waits for its
    constants. dma : cycles of the transfer of these. moved : cycles of copies of its data from and to external memory,
    which it waits for. priced : whether all of it has a price. node : of the graph that it comes from.
    overhead : of `cycles`, what passes before the first element of a call; calls : how many it makes. fetch : when the
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
    def total(self) -> float:
        """Cycles from its turn to its end."""
        return self.wait + self.moved + self.cycles


@dataclass(frozen=True)
class Latency:
    """One run of a graph, in cycles.

    layers : in the order in which they run. unpriced : what is in no figure but in `high`, at its bound.
    """

    platform: str
    layers: Sequence[LayerTime]
    unpriced: Sequence[UnpricedWork]

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
        """Cycles of the whole run, of all that has a price: the NPU, copies, and waits for constants."""
        return self.luna + self.moved + self.waits

    @property
    def low(self) -> float:
        """The lower end of the range of `total`."""
        return sum(layer.low for layer in self.layers) + self.moved + self.waits

    @property
    def high(self) -> float:
        """The upper end of the range of `total`; work without a bound is not in it."""
        return sum(layer.high for layer in self.layers) + self.moved + self.waits

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
