"""The packer's memory plan: places, lives, offsets.

Every tensor has a place and a life (first to last node, both included); for each place a list of
blocks is laid end to end, and a tensor takes the start of the smallest block that is large enough
and free all its life. Three orders are tried; the plan with the least shared memory wins. What a
node makes in place (a reshape, both sides in one place) has the address of what it is made from,
its root, which lives as long.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, overload

from .....formats import CONV1D, CONV2D, CONV_TRANSPOSE2D, GRU, LAYER_NORM, LINEAR, LSTM
from .... import Target
from ...packer_profile import get_packer_profile
from ..options import PSRAM, SHARE, PackerOptions
from ..packer_graph import PackerGraph
from ..window import round_up
from .constants import StoredSize, compute_stored_sizes
from .work_areas import PlacedStep, get_work_area

__all__ = [
    "Allocation",
    "IN_PLACE_OPERATORS",
    "MemoryPlan",
    "RESERVED_BUFFER_NAMES",
    "get_shared_memory_limit",
    "plan_memory",
    "sum_live_bytes",
]

#: Nodes that fetch their constants ahead.
PREFETCHING_OPERATORS = (
    CONV1D.name,
    CONV2D.name,
    CONV_TRANSPOSE2D.name,
    LINEAR.name,
    LSTM.name,
    GRU.name,
    LAYER_NORM.name,
)
#: Names that the packer takes for its own buffers'.
RESERVED_BUFFER_NAMES = ("dma_buffer1", "dma_buffer2")
#: What needs no bytes of its own where both sides have one place.
IN_PLACE_OPERATORS = ("Reshape", "Squeeze", "Unsqueeze")


class Allocation(NamedTuple):
    """Where a tensor lies: its place, the offset there, its bytes, the first and last node of its life.

    kind : "tensor", "area" for work, or "buffer" of the DMA.
    """

    place: str
    offset: int
    size: int
    first: int
    last_step: int
    kind: str = "tensor"


@dataclass(frozen=True)
class MemoryPlan:
    """A plan.

    allocations : {tensor, work area or buffer: where it lies}. shared, psram : bytes planned there,
    constants not counted work_areas : {node: bytes of work area that it was planned}. constants :
    bytes of all, as stored, in the place constant_memory; stored : {constant: its bytes}. buffers :
    {node: the DMA's buffer for its constants} prefetched_bytes : bytes that the DMA fetches ahead
    in one run. need : shared bytes with the constants that lie there, to be compared with the
    limit.
    """

    allocations: Mapping[str, Allocation]
    shared: int
    psram_bytes: int
    work_areas: Mapping[str, int]
    constant_bytes: int
    constant_memory: str
    prefetched_bytes: int
    limit_bytes: int
    required_bytes: int
    stored_bytes: Mapping[str, int] = field(default_factory=dict)
    prefetch_buffers: Mapping[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether it is within the limit of the shared memory."""
        return self.required_bytes <= self.limit_bytes

    @property
    def external_bytes(self) -> int:
        """The bytes of external memory, with the constants unless they lie in shared memory."""
        return self.psram_bytes + (0 if self.constant_memory == SHARE else self.constant_bytes)

    def compute_live_bytes(self, nodes: int) -> list[int]:
        """Return the bytes of shared memory in use at each of the `nodes` of the graph."""
        return sum_live_bytes(
            nodes,
            [(s.size, s.first, s.last_step) for s in self.allocations.values() if s.place == SHARE],
        )


@dataclass(slots=True)
class _PlanItem:
    """A tensor to be placed."""

    name: str
    size: int
    first: int
    last: int
    place: str
    root: str | None = None  # the tensor in whose place it is made
    kind: str = "tensor"


def resolve_placements(net: PackerGraph, options: PackerOptions) -> dict[str, str]:
    """Return the place of every tensor of a run and of every constant."""
    places = {}
    for tensor in net.iterate_tensors():
        moved = PSRAM if tensor.size_bytes > options.thresholds[3] else SHARE
        asked = options.placements.get(tensor.name, moved)
        places[tensor.name] = (
            PSRAM if asked == PSRAM else SHARE
        )  # flash is planned as shared memory
    for step in net.steps:
        for constant in net.get_constants(step):
            places[constant.name] = options.constant_memory
    return places


@overload
def plan_memory(net: PackerGraph, target: Target, options: PackerOptions) -> MemoryPlan: ...


@overload
def plan_memory(
    net: PackerGraph, target: Target, options: PackerOptions, max_bytes: int
) -> MemoryPlan | None: ...


def plan_memory(
    net: PackerGraph, target: Target, options: PackerOptions, max_bytes: int | None = None
) -> MemoryPlan | None:
    """Return the plan of a prepared graph.

    With `max_bytes` None where it needs that many bytes or more.
    What lives at once needs a block each, which often says so before there is a plan.
    """
    stored = compute_stored_sizes(net, target)
    total = sum(one.written_bytes for one in stored.values())
    held = total if options.constant_memory == SHARE else 0
    if max_bytes is not None and held >= max_bytes:
        return None
    places = resolve_placements(net, options)
    items = _collect_tensors(net, places)
    areas, blocks = _collect_work_areas(net, target, places)
    buffers, users, fetched = _collect_prefetch_buffers(net, stored, options)
    items += blocks + buffers
    if not items:
        raise ValueError("an empty graph has no plan")
    least = _get_peak_live_bytes(net, items)
    if max_bytes is not None and least + held >= max_bytes:
        return None
    owners = _get_root_items(items)
    best = _layout_by_size(items, owners)
    for strategy in (_layout_by_live_bytes, _layout_in_execution_order):
        if best.bytes_in(SHARE) <= least:
            break
        other = strategy(len(net.steps), list(owners.values()))
        best = min(best, other, key=lambda layout: layout.bytes_in(SHARE))
    shared, psram = best.bytes_in(SHARE), best.bytes_in(PSRAM)
    if max_bytes is not None and shared + held >= max_bytes:
        return None
    spots = best.get_allocations(items)
    limit = get_shared_memory_limit(target, options)
    return MemoryPlan(
        allocations=spots,
        shared=shared,
        psram_bytes=psram,
        work_areas=areas,
        constant_bytes=total,
        constant_memory=options.constant_memory,
        prefetched_bytes=fetched,
        limit_bytes=limit,
        required_bytes=shared + held,
        stored_bytes={name: one.written_bytes for name, one in stored.items()},
        prefetch_buffers=users,
    )


def get_shared_memory_limit(target: Target, options: PackerOptions) -> int:
    """Return the bytes of shared memory that a plan may need."""
    assert target.shared_memory is not None
    return (
        target.shared_memory
        if options.shared_memory_limit is None
        else min(target.shared_memory, options.shared_memory_limit)
    )


def _get_peak_live_bytes(net: PackerGraph, items: Sequence[_PlanItem]) -> int:
    """Return the most bytes of shared memory that live at once, what is made in place not counted."""
    alive = [
        (item.size, item.first, item.last)
        for item in items
        if item.place == SHARE and item.root is None
    ]
    return max(sum_live_bytes(len(net.steps), alive), default=0)


def sum_live_bytes(nodes: int, alive: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return at each node the sum of all (bytes, first node, last node) that live there."""
    change = [0] * (nodes + 1)
    for size, first, last in alive:
        change[first] += size
        change[last + 1] -= size
    return list(itertools.accumulate(change[:-1]))


def _collect_tensors(net: PackerGraph, places: Mapping[str, str]) -> list[_PlanItem]:
    """Return the tensors of a run in the packer's order.

    Graph inputs, outputs by node, cut parts at the end.
    """
    last = len(net.steps) - 1
    until = {n: i for i, step in enumerate(net.steps) for n in step.inputs}
    items: list[_PlanItem] = []
    late: list[_PlanItem] = []
    roots: dict[str, str] = {}
    for name in net.inputs:
        items.append(
            _PlanItem(name, net.tensors[name].planned_bytes, 0, until.get(name, 0), places[name])
        )
    for index, step in enumerate(net.steps):
        for name in step.outputs:
            end = last if name in net.outputs else until.get(name, index)
            item = _PlanItem(name, net.tensors[name].planned_bytes, index, end, places[name])
            if step.op in IN_PLACE_OPERATORS and places.get(step.inputs[0]) == places[name]:
                source = step.inputs[0]
                if not net.tensors[source].is_constant:
                    item.root = roots[name] = roots.get(source, source)
            (late if step.created_as == "part" else items).append(item)
    for item in items:
        if (
            item.name in RESERVED_BUFFER_NAMES
        ):  # taken for a buffer of the DMA, which lives for the whole run
            item.first, item.last = 0, last
    return items + late


def _collect_work_areas(
    net: PackerGraph, target: Target, places: Mapping[str, str]
) -> tuple[dict[str, int], list[_PlanItem]]:
    """Return the bytes of every node, and one block for each place."""
    per_node: dict[str, int] = {}
    wanted: dict[str, int] = {}
    ends = [len(net.steps), -1]
    for index, step in enumerate(net.steps):
        place, size = get_work_area(
            PlacedStep.of(net, step, places), get_packer_profile(target).work_area_table
        )
        if size > 0:
            per_node[step.name] = size
            wanted[place] = max(wanted.get(place, 0), size)
            ends = [min(ends[0], index), index]
    blocks = [
        _PlanItem(f"#workspace-{place}", round_up(size, 16), ends[0], ends[1], place, kind="area")
        for place, size in wanted.items()
    ]
    return per_node, blocks


def _collect_prefetch_buffers(
    net: PackerGraph, stored: Mapping[str, StoredSize], options: PackerOptions
) -> tuple[list[_PlanItem], dict[str, str], int]:
    """Return the two buffers of the DMA, who uses which, and the bytes fetched in a run."""
    if not options.prefetch or options.constant_memory == SHARE:
        return [], {}, 0
    largest: dict[str, int] = {}
    users: dict[str, str] = {}
    total = 0
    for step in net.steps:
        own = [stored[t.name] for t in net.get_constants(step)]
        size = sum(one.fetched_bytes for one in own)
        if step.op in PREFETCHING_OPERATORS and size:
            label = f"#dma-buffer{len(users) % 2 + 1}"
            users[step.name] = label
            largest[label] = max(largest.get(label, 0), size)
            total += sum(one.written_bytes for one in own)
    last = len(net.steps) - 1
    return (
        [_PlanItem(label, size, 0, last, SHARE, kind="buffer") for label, size in largest.items()],
        users,
        total,
    )


# ---- the three orders --------------------------------------------------------------------------------------------


class _BlockPool:
    """The blocks of one place."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.lives: list[list[tuple[int, int]]] = []
        self._by_size: list[tuple[int, int]] = []  # (size, index)

    def allocate(self, size: int, first: int, last: int) -> int:
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


class _BlockLayout:
    """The blocks of every place, and the block of every item that has one."""

    def __init__(self) -> None:
        self.blocks: dict[str, _BlockPool] = {}
        self.chosen: dict[str, int] = {}

    def at(self, place: str) -> _BlockPool:
        return self.blocks.setdefault(place, _BlockPool())

    def allocate(self, item: _PlanItem, life: _PlanItem) -> None:
        """Give an item the best block that is free all its life."""
        self.chosen[item.name] = self.at(item.place).allocate(item.size, life.first, life.last)

    def bytes_in(self, place: str) -> int:
        return sum(self.blocks[place].sizes) if place in self.blocks else 0

    def get_allocations(self, items: Sequence[_PlanItem]) -> dict[str, Allocation]:
        """Return where all items lie; what is made in place has the address of its root."""
        offsets = {place: layout.offsets() for place, layout in self.blocks.items()}
        return {
            item.name: Allocation(
                item.place,
                offsets[item.place][self.chosen[item.root or item.name]],
                item.size,
                item.first,
                item.last,
                item.kind,
            )
            for item in items
        }


def _get_root_items(items: Sequence[_PlanItem]) -> dict[str, _PlanItem]:
    """Return the items that are made in no other's place, each alive as long as what is made in its own."""
    owners = {item.name: item for item in items if item.root is None}
    for item in items:
        if item.root is not None:
            root = owners[item.root]
            owners[root.name] = replace(
                root, first=min(root.first, item.first), last=max(root.last, item.last)
            )
    return owners


def _layout_by_size(items: Sequence[_PlanItem], owners: Mapping[str, _PlanItem]) -> _BlockLayout:
    """The largest first; what is made in place takes a block for its root's life, and does not use it."""
    layout = _BlockLayout()
    for item in sorted(items, key=lambda item: -item.size):
        layout.allocate(item, owners[item.root or item.name])
    return layout


def _layout_by_live_bytes(nodes: int, owners: Sequence[_PlanItem]) -> _BlockLayout:
    """The node with the most living bytes first, and of a node the largest first."""
    alive: list[list[_PlanItem]] = [[] for _ in range(nodes)]
    for item in sorted(owners, key=lambda item: -item.size):
        for here in alive[item.first : item.last + 1]:
            here.append(item)
    layout = _BlockLayout()
    for index in sorted(range(nodes), key=lambda i: -sum(item.size for item in alive[i])):
        for item in alive[index]:
            if item.name not in layout.chosen:
                layout.allocate(item, item)
    return layout


def _layout_in_execution_order(nodes: int, owners: Sequence[_PlanItem]) -> _BlockLayout:
    """Node by node as they run; of the blocks that were freed the smallest that is large enough."""
    layout = _BlockLayout()
    free: dict[str, list[tuple[int, int]]] = {}
    begin: dict[int, list[_PlanItem]] = {}
    end: dict[int, list[_PlanItem]] = {}
    for item in owners:
        begin.setdefault(item.first, []).append(item)
        end.setdefault(item.last, []).append(item)
    for index in range(nodes):
        for item in end.get(index - 1, ()):
            block = layout.chosen[item.name]
            free.setdefault(item.place, []).append((layout.at(item.place).sizes[block], block))
        for item in begin.get(index, ()):
            stock = free.setdefault(item.place, [])
            fitting = min((entry for entry in stock if entry[0] >= item.size), default=None)
            if fitting is not None:
                stock.remove(fitting)
            layout.chosen[item.name] = (
                layout.at(item.place).add(item.size) if fitting is None else fitting[1]
            )
    return layout
