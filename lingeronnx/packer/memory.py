"""The packer's memory plan: places, lives, offsets.

Every tensor has a place and a life (first to last node, both included); for each place a list of blocks is laid end to
end, and a tensor takes the start of the smallest block that is large enough and free all its life. Three orders are
tried; the plan with the least shared memory wins.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from ..formats import CONV1D, CONV2D, CONV_TRANSPOSE2D, GRU, LAYER_NORM, LINEAR, LSTM
from ..platforms import Platform
from .areas import Node, area
from .net import Net
from .options import PSRAM, SHARE, Options
from .stored import stored_constants
from .window import rounded

__all__ = ["BUFFERS", "Memory", "Spot", "plan_memory", "room"]

#: Nodes that fetch their constants ahead.
PREFETCHED = (CONV1D.name, CONV2D.name, CONV_TRANSPOSE2D.name, LINEAR.name, LSTM.name, GRU.name, LAYER_NORM.name)
#: Names that the packer takes for its own buffers'.
BUFFERS = ("dma_buffer1", "dma_buffer2")
_IN_PLACE = ("Reshape", "Squeeze", "Unsqueeze")


class Spot(NamedTuple):
    """Where a tensor lies: its place, the offset there, its bytes, the first and last node of its life.

    kind : "tensor", "area" for work, or "buffer" of the DMA.
    """

    place: str
    offset: int
    size: int
    first: int
    last: int
    kind: str = "tensor"


@dataclass(frozen=True)
class Memory:
    """A plan.

    spots : {tensor, work area or buffer: where it lies}. shared, psram : bytes planned there, constants not counted
    areas : {node: bytes of work area that it was planned}. constants : bytes of all, as stored, in the place
    constants_in; stored : {constant: its bytes}. buffers : {node: the DMA's buffer for its constants}
    prefetched : bytes that the DMA fetches ahead in one run. need : shared bytes with the constants that lie there, to
    be compared with the limit.
    """

    spots: Mapping[str, Spot]
    shared: int
    psram: int
    areas: Mapping[str, int]
    constants: int
    constants_in: str
    prefetched: int
    limit: int
    need: int
    stored: Mapping[str, int] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether it is within the limit of the shared memory."""
        return self.need <= self.limit


@dataclass
class _Item:
    """A tensor to be placed."""

    name: str
    size: int
    first: int
    last: int
    place: str
    root: str | None = None  # made in place: of whom
    kind: str = "tensor"


def places_of(net: Net, options: Options) -> dict[str, str]:
    """Return the place of every tensor of a run and of every constant."""
    places = {}
    for tensor in net.values():
        moved = PSRAM if tensor.bytes > options.thresholds[3] else SHARE
        asked = options.places.get(tensor.name, moved)
        places[tensor.name] = PSRAM if asked == PSRAM else SHARE  # flash is planned as shared memory
    for step in net.steps:
        for constant in net.constants(step):
            places[constant.name] = options.parameters
    return places


@overload
def plan_memory(net: Net, row: Platform, options: Options) -> Memory: ...


@overload
def plan_memory(net: Net, row: Platform, options: Options, below: int) -> Memory | None: ...


def plan_memory(net: Net, row: Platform, options: Options, below: int | None = None) -> Memory | None:
    """Return the plan of a prepared graph; with `below` None where it needs that many bytes or more.

    What lives at once needs a block each, which often says so before there is a plan.
    """
    assert row.packing is not None
    stored = stored_constants(net, row)
    total = sum(stored.values())
    held = total if options.parameters == SHARE else 0
    if below is not None and held >= below:
        return None
    places = places_of(net, options)
    items = _tensors(net, places)
    areas, blocks = _areas(net, row, places)
    buffers, users, fetched = _buffers(net, stored, options)
    items += blocks + buffers
    if not items:
        raise ValueError("an empty graph has no plan")
    least = _least(net, items)
    if below is not None and least + held >= below:
        return None
    spots, shared, psram = _by_size(net, items)
    for strategy in (_by_breadth, _by_order):
        if shared > least and (other := strategy(net, items))[1] < shared:
            spots, shared, psram = other
    if below is not None and shared + held >= below:
        return None
    limit = room(row, options)
    return Memory(spots, shared, psram, areas, total, options.parameters, fetched, limit, shared + held, stored, users)


def room(row: Platform, options: Options) -> int:
    """Return the bytes of shared memory that a plan may need."""
    assert row.shared_memory is not None
    return row.shared_memory if options.limit is None else min(row.shared_memory, options.limit)


def _least(net: Net, items: Sequence[_Item]) -> int:
    """Return the most bytes of shared memory that live at once, what is made in place not counted."""
    change = [0] * (len(net.steps) + 1)
    for item in items:
        if item.place == SHARE and item.root is None:
            change[item.first] += item.size
            change[item.last + 1] -= item.size
    return max(itertools.accumulate(change))


def _tensors(net: Net, places: Mapping[str, str]) -> list[_Item]:
    """Return the tensors of a run in the packer's order: graph inputs, outputs by node, cut parts at the end."""
    last = len(net.steps) - 1
    until = {n: i for i, step in enumerate(net.steps) for n in step.inputs}
    items: list[_Item] = []
    late: list[_Item] = []
    for name in net.inputs:
        items.append(_Item(name, net.tensors[name].planned, 0, until.get(name, 0), places[name]))
    for index, step in enumerate(net.steps):
        for name in step.outputs:
            end = last if name in net.outputs else until.get(name, index)
            item = _Item(name, net.tensors[name].planned, index, end, places[name])
            if step.op in _IN_PLACE and places.get(step.inputs[0]) == places[name]:
                item.root = step.inputs[0] if not net.tensors[step.inputs[0]].constant else None
            (late if step.made == "part" else items).append(item)
    for item in items:
        if item.name in BUFFERS:  # taken for a buffer of the DMA, which lives for the whole run
            item.first, item.last = 0, last
    return items + late


def _areas(net: Net, row: Platform, places: Mapping[str, str]) -> tuple[dict[str, int], list[_Item]]:
    """Return the bytes of every node, and one block for each place."""
    assert row.packing is not None
    per_node: dict[str, int] = {}
    wanted: dict[str, int] = {}
    ends = [len(net.steps), -1]
    for index, step in enumerate(net.steps):
        place, size = area(Node.of(net, step, places), row.packing.areas)
        if size > 0:
            per_node[step.name] = size
            wanted[place] = max(wanted.get(place, 0), size)
            ends = [min(ends[0], index), index]
    blocks = [
        _Item(f"#workspace-{place}", rounded(size, 16), ends[0], ends[1], place, kind="area")
        for place, size in wanted.items()
    ]
    return per_node, blocks


def _buffers(net: Net, stored: Mapping[str, int], options: Options) -> tuple[list[_Item], dict[str, str], int]:
    """Return the two buffers of the DMA, who uses which, and the bytes fetched in a run."""
    if not options.prefetch or options.parameters == SHARE:
        return [], {}, 0
    largest: dict[str, int] = {}
    users: dict[str, str] = {}
    total = 0
    for step in net.steps:
        size = sum(stored[t.name] for t in net.constants(step))
        if step.op in PREFETCHED and size:
            label = f"#dma-buffer{len(users) % 2 + 1}"
            users[step.name] = label
            largest[label] = max(largest.get(label, 0), size)
            total += size
    last = len(net.steps) - 1
    return [_Item(label, size, 0, last, SHARE, kind="buffer") for label, size in largest.items()], users, total


# ---- the three orders --------------------------------------------------------------------------------------------


class _Blocks:
    """The blocks of one place."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.lives: list[list[tuple[int, int]]] = []
        self._by_size: list[tuple[int, int]] = []  # (size, index)

    def put(self, size: int, first: int, last: int) -> int:
        """Return the index of the smallest block free from first to last, or of a new one."""
        for at in range(bisect.bisect_left(self._by_size, (size, 0)), len(self._by_size)):
            index = self._by_size[at][1]
            for a, b in self.lives[index]:
                if a <= last and first <= b:
                    break
            else:
                break
        else:
            index = self.add(size)
        self.lives[index].append((first, last))
        return index

    def add(self, size: int) -> int:
        """Return the index of a new block."""
        bisect.insort(self._by_size, (size, len(self.sizes)))
        self.sizes.append(size)
        self.lives.append([])
        return len(self.sizes) - 1

    def offsets(self) -> list[int]:
        """Return where the blocks start."""
        return list(itertools.accumulate(self.sizes, initial=0))


def _spots(net: Net, items: Sequence[_Item], order: Sequence[_Item]) -> tuple[dict[str, Spot], int, int]:
    """Place the items in this order, best fit."""
    blocks: dict[str, _Blocks] = {}
    chosen = {}
    for item in order:
        chosen[item.name] = blocks.setdefault(item.place, _Blocks()).put(item.size, item.first, item.last)
    return _finish(items, chosen, blocks)


def _finish(
    items: Sequence[_Item], chosen: Mapping[str, int], blocks: Mapping[str, _Blocks]
) -> tuple[dict[str, Spot], int, int]:
    offsets = {place: found.offsets() for place, found in blocks.items()}
    spots = {}
    for item in items:
        offset = offsets[item.place][chosen[item.name]]
        spots[item.name] = Spot(item.place, offset, item.size, item.first, item.last, item.kind)
    return spots, *(sum(blocks[p].sizes) if p in blocks else 0 for p in (SHARE, PSRAM))  # type: ignore[return-value]


def _joined(items: Sequence[_Item]) -> list[_Item]:
    """Return the items with the lives of tensors made in place joined to those of their roots."""
    found = {item.name: _Item(**vars(item)) for item in items}
    for item in items:
        root = found.get(item.root or "")
        if root is None:
            continue
        while root.root in found:
            root = found[str(root.root)]
        root.last = max(root.last, item.last)
    return list(found.values())


def _by_size(net: Net, items: Sequence[_Item]) -> tuple[dict[str, Spot], int, int]:
    joined = _joined(items)
    spots, shared, psram = _spots(net, joined, sorted(joined, key=lambda item: -item.size))
    return _rooted(joined, spots), shared, psram


def _rooted(items: Sequence[_Item], spots: dict[str, Spot]) -> dict[str, Spot]:
    """Give tensors made in place the address of their root."""
    for item in items:
        if item.root in spots:
            root, own = spots[str(item.root)], spots[item.name]
            spots[item.name] = Spot(root.place, root.offset, own.size, own.first, own.last)
    return spots


def _by_breadth(net: Net, items: Sequence[_Item]) -> tuple[dict[str, Spot], int, int]:
    alive: list[list[_Item]] = [[] for _ in net.steps]
    for item in items:
        for here in alive[item.first : item.last + 1]:
            here.append(item)
    nodes = sorted(range(len(net.steps)), key=lambda i: -sum(item.size for item in alive[i]))
    met: dict[int, _Item] = {}
    for index in nodes:
        met |= {id(item): item for item in sorted(alive[index], key=lambda item: -item.size) if id(item) not in met}
    met |= {id(item): item for item in items if id(item) not in met}
    return _spots(net, items, list(met.values()))


def _by_order(net: Net, items: Sequence[_Item]) -> tuple[dict[str, Spot], int, int]:
    joined = sorted(_joined(items), key=lambda item: item.kind != "area")
    blocks: dict[str, _Blocks] = {}
    chosen: dict[str, int] = {}
    free: dict[str, list[tuple[int, int]]] = {}
    own = [item for item in joined if item.root is None]
    begin: dict[int, list[_Item]] = {}
    end: dict[int, list[_Item]] = {}
    for item in own:
        begin.setdefault(item.first, []).append(item)
        end.setdefault(item.last, []).append(item)
    for index in range(len(net.steps)):
        for item in end.get(index - 1, ()):
            free.setdefault(item.place, []).append((blocks[item.place].sizes[chosen[item.name]], chosen[item.name]))
        for item in begin.get(index, ()):
            stock = free.setdefault(item.place, [])
            fitting = min((entry for entry in stock if entry[0] >= item.size), default=None)
            here = blocks.setdefault(item.place, _Blocks())
            if fitting is not None:
                stock.remove(fitting)
                chosen[item.name] = fitting[1]
            else:
                chosen[item.name] = here.add(item.size)
    for item in joined:
        if item.root is not None:
            chosen[item.name] = chosen[item.root]
    spots, shared, psram = _finish(joined, chosen, blocks)
    return spots, shared, psram
