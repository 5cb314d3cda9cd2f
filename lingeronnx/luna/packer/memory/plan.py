"""The packer's memory plan: memory, lifetime and offset of every tensor.

A tensor has a memory and a lifetime, from its first to its last step, both included. For each
memory a list of blocks is laid end to end, and a tensor takes the start of the smallest block that
is large enough and free during its lifetime. Three allocation orders are tried, and the plan with
the least shared memory wins. The output of an in-place step (a reshape with input and output in the
same memory) has the address of the tensor that it aliases, its root, which lives as long.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, overload

from ....common.arithmetic import round_up
from ....targets import Target
from ..options import PSRAM, SHARE, PackerOptions
from .graph_facts import GraphFacts, PrefetchPlan

__all__ = [
    "Allocation",
    "MemoryPlan",
    "get_shared_memory_limit",
    "plan_memory",
    "resolve_placements",
    "sum_live_bytes",
]


class Allocation(NamedTuple):
    """Memory, offset, size in bytes and lifetime (first and last step) of a tensor or buffer.

    kind : "tensor", "area" for a work area, or "buffer" for a DMA buffer.
    """

    memory: str
    offset: int
    size: int
    first_step: int
    last_step: int
    kind: str = "tensor"


@dataclass(frozen=True)
class MemoryPlan:
    """A memory plan.

    allocations : allocation of each tensor, work area and DMA buffer by name.
    shared, psram_bytes : bytes planned in each memory, without the constants.
    work_areas : bytes of the work area planned for each node.
    constant_bytes : bytes of all constants as stored in `constant_memory`.
    prefetched_bytes : bytes that the DMA prefetches in one run.
    limit_bytes : limit of the shared memory.
    required_bytes : bytes of shared memory, including constants stored there.
    stored_bytes : stored bytes of each constant.
    prefetch_buffers : DMA buffer of each node whose constants are prefetched.
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
        """Whether the bytes of shared memory, constants there included, are within the limit."""
        return self.required_bytes <= self.limit_bytes

    @property
    def external_bytes(self) -> int:
        """The planned bytes of external memory.

        Constants count unless they are in shared memory.
        """
        return self.psram_bytes + (0 if self.constant_memory == SHARE else self.constant_bytes)

    def compute_live_bytes(self, step_count: int) -> list[int]:
        """Return the bytes of shared memory in use at each of the `step_count` steps.

        Counted are tensors, work areas and DMA buffers; resident constants are not, and tensors
        made in place count again.
        """
        lifetimes = [
            (allocation.size, allocation.first_step, allocation.last_step)
            for allocation in self.allocations.values()
            if allocation.memory == SHARE
        ]
        return sum_live_bytes(step_count, lifetimes)


@dataclass(slots=True)
class _PlanItem:
    """A tensor or buffer to be placed; `root` is the tensor that it aliases, if any."""

    name: str
    size: int
    first_step: int
    last_step: int
    memory: str
    root: str | None = None
    kind: str = "tensor"


def resolve_placements(facts: GraphFacts, options: PackerOptions) -> dict[str, str]:
    """Return name -> memory (SHARE or PSRAM) of every activation and stored constant of a graph.

    An activation has the memory that `options` name for it, otherwise PSRAM if it has more bytes
    than --threshold4. Flash counts as shared memory. Constants are in `options.constant_memory`.
    """
    max_shared_bytes, sizes = options.thresholds[3], facts.activation_bytes
    placements = {name: PSRAM if size > max_shared_bytes else SHARE for name, size in sizes.items()}
    for name, memory in options.placements.items():
        if name in placements:
            placements[name] = PSRAM if memory == PSRAM else SHARE
    placements.update(dict.fromkeys(facts.stored_sizes, options.constant_memory))
    return placements


@overload
def plan_memory(facts: GraphFacts, options: PackerOptions) -> MemoryPlan: ...


@overload
def plan_memory(facts: GraphFacts, options: PackerOptions, max_bytes: int) -> MemoryPlan | None: ...


def plan_memory(
    facts: GraphFacts, options: PackerOptions, max_bytes: int | None = None
) -> MemoryPlan | None:
    """Plan the memory of a transformed graph as the packer does, with the best of three orders.

    Parameters
    ----------
    max_bytes
        Give up early if the plan needs this many bytes of shared memory or more. The sum of the
        tensors that are live at once is a lower bound, which is often decisive before planning.

    Returns
    -------
    MemoryPlan or None
        The plan, which may exceed the chip's limit; None if `max_bytes` is given and the plan needs
        that much.

    Raises
    ------
    ValueError
        If the graph is empty.
    """
    constant_bytes = sum(facts.stored_bytes.values())
    resident_bytes = constant_bytes if options.constant_memory == SHARE else 0
    if max_bytes is not None and resident_bytes >= max_bytes:
        return None
    placements, step_count = resolve_placements(facts, options), len(facts.net.steps)
    work_areas, work_area_items = _collect_work_areas(facts, placements)
    prefetch = facts.prefetch
    if not options.prefetch or options.constant_memory == SHARE:
        prefetch = PrefetchPlan({}, {}, 0)
    buffers = [
        _PlanItem(name, size, 0, step_count - 1, SHARE, kind="buffer")
        for name, size in prefetch.buffer_bytes.items()
    ]
    items = [*_collect_tensors(facts, placements), *work_area_items, *buffers]
    if not items:
        raise ValueError("an empty graph has no plan")
    lower_bound = _get_peak_live_bytes(step_count, items)
    if max_bytes is not None and lower_bound + resident_bytes >= max_bytes:
        return None
    max_shared_bytes = math.inf if max_bytes is None else max_bytes - resident_bytes
    layouts = _layout_items(step_count, items, lower_bound, max_shared_bytes)
    if layouts is None:
        return None
    shared_bytes = sum(layouts[SHARE].block_sizes)
    return MemoryPlan(
        allocations=_make_allocations(items, layouts),
        shared=shared_bytes,
        psram_bytes=sum(layouts[PSRAM].block_sizes) if PSRAM in layouts else 0,
        work_areas=work_areas,
        constant_bytes=constant_bytes,
        constant_memory=options.constant_memory,
        prefetched_bytes=prefetch.prefetched_bytes,
        limit_bytes=get_shared_memory_limit(facts.target, options),
        required_bytes=shared_bytes + resident_bytes,
        stored_bytes=facts.stored_bytes,
        prefetch_buffers=prefetch.buffer_by_node,
    )


def get_shared_memory_limit(target: Target, options: PackerOptions) -> int:
    """Return the bytes of shared memory that a plan may use.

    These are the chip's, or the size given by option -r if that is smaller.
    """
    assert target.shared_memory is not None
    if options.shared_memory_limit is None:
        return target.shared_memory
    return min(target.shared_memory, options.shared_memory_limit)


def _get_peak_live_bytes(step_count: int, items: Sequence[_PlanItem]) -> int:
    """Return the maximum bytes of shared memory live at one step, a lower bound of any plan.

    Tensors made in place are not counted.
    """
    lifetimes = [
        (item.size, item.first_step, item.last_step)
        for item in items
        if item.memory == SHARE and item.root is None
    ]
    return max(sum_live_bytes(step_count, lifetimes), default=0)


def sum_live_bytes(step_count: int, lifetimes: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return, for each of `step_count` steps, the sum of the sizes that are live there.

    `lifetimes` are (bytes, first step, last step), both steps included.
    """
    changes = [0] * (step_count + 1)
    for size, first_step, last_step in lifetimes:
        changes[first_step] += size
        changes[last_step + 1] -= size
    return list(itertools.accumulate(changes[:-1]))


def _collect_tensors(facts: GraphFacts, placements: Mapping[str, str]) -> list[_PlanItem]:
    """Collect the activations of a graph in the packer's order, with their memories.

    An output made in place has the `root` of its input, if both are in one memory.
    """
    items: list[_PlanItem] = []
    roots: dict[str, str] = {}
    for name, size, first_step, last_step, source in facts.activations:
        item = _PlanItem(name, size, first_step, last_step, placements[name])
        items.append(item)
        if source and placements.get(source) == item.memory:
            item.root = roots[name] = roots.get(source, source)
    return items


def _collect_work_areas(
    facts: GraphFacts, placements: Mapping[str, str]
) -> tuple[dict[str, int], list[_PlanItem]]:
    """Return step name -> bytes of its work area (if any), and one block to be placed per memory.

    A block is as large as the largest work area in that memory, rounded up to 16; all blocks live
    from the first to the last step with a work area.
    """
    bytes_by_node: dict[str, int] = {}
    block_bytes: dict[str, int] = {}
    work_areas = facts.get_work_areas(placements)
    for index, memory, size in work_areas:
        bytes_by_node[facts.net.steps[index].name] = size
        block_bytes[memory] = max(block_bytes.get(memory, 0), size)
    blocks = [
        _PlanItem(
            f"#workspace-{memory}",
            round_up(size, 16),
            work_areas[0][0],
            work_areas[-1][0],
            memory,
            kind="area",
        )
        for memory, size in block_bytes.items()
    ]
    return bytes_by_node, blocks


# ---- the three allocation orders -----------------------------------------------------------------


class _BlockPool:
    """Blocks of one memory, laid end to end, each with the steps at which it is in use."""

    def __init__(self) -> None:
        """Make a pool without blocks."""
        self.sizes: list[int] = []
        self.total_bytes = 0
        self._by_size: list[tuple[int, int]] = []  # (size, index), sorted
        self._used_steps: list[int] = []  # bit i for step i, in the order of `_by_size`

    def allocate(self, size: int, first_step: int, last_step: int) -> int:
        """Reserve the smallest free block of at least `size` bytes, or a new one; return its index.

        A block is free if it is not in use at any step from `first_step` to `last_step`, both
        included.
        """
        steps = (1 << (last_step + 1)) - (1 << first_step)
        used_steps = self._used_steps
        for position in range(bisect.bisect_left(self._by_size, (size, 0)), len(used_steps)):
            if not used_steps[position] & steps:
                used_steps[position] |= steps
                return self._by_size[position][1]
        index = len(self.sizes)
        position = bisect.bisect_left(self._by_size, (size, index))
        self._by_size.insert(position, (size, index))
        used_steps.insert(position, steps)
        self.sizes.append(size)
        self.total_bytes += size
        return index


class _Layout(NamedTuple):
    """The sizes of a memory's blocks, and the index of the block of each item that has one."""

    block_sizes: list[int]
    block_indices: dict[str, int]


#: Arguments: number of steps, all items of one memory, its root items by name, and a limit. Returns
#: None as soon as the blocks have that many bytes.
_Strategy = Callable[[int, Sequence[_PlanItem], Mapping[str, _PlanItem], float], "_Layout | None"]


def _layout_items(
    step_count: int, items: Sequence[_PlanItem], lower_bound: int, max_shared_bytes: float
) -> dict[str, _Layout] | None:
    """Lay out all items in the order that needs the least shared memory; of equal ones the first.

    The memories are independent of each other, so that only shared memory is laid out in several
    orders, each until it is known not to be the best.

    Parameters
    ----------
    lower_bound
        Bytes of shared memory with which no order can do with less.
    max_shared_bytes
        Bytes of shared memory that are too many.

    Returns
    -------
    dict of str to _Layout or None
        Layout of each memory in use and of shared memory; None if all orders need
        `max_shared_bytes`.
    """
    roots = _get_root_items(items)
    items_by_memory: dict[str, list[_PlanItem]] = {SHARE: []}
    for item in items:
        items_by_memory.setdefault(item.memory, []).append(item)
    roots_by_memory: dict[str, dict[str, _PlanItem]] = {memory: {} for memory in items_by_memory}
    for name, root in roots.items():
        roots_by_memory[root.memory][name] = root
    best: tuple[_Strategy, _Layout] | None = None
    best_bytes = max_shared_bytes
    for strategy in (_layout_by_size, _layout_by_live_bytes, _layout_in_execution_order):
        layout = strategy(step_count, items_by_memory[SHARE], roots_by_memory[SHARE], best_bytes)
        if layout is not None:
            best, best_bytes = (strategy, layout), sum(layout.block_sizes)
        if best_bytes <= lower_bound:
            break
    if best is None:
        return None
    best_strategy, shared_layout = best
    layouts = {SHARE: shared_layout}
    for memory, memory_items in items_by_memory.items():
        if memory != SHARE:
            layout = best_strategy(step_count, memory_items, roots_by_memory[memory], math.inf)
            assert layout is not None
            layouts[memory] = layout
    return layouts


def _make_allocations(
    items: Sequence[_PlanItem], layouts: Mapping[str, _Layout]
) -> dict[str, Allocation]:
    """Return item name -> allocation with the offset of its block.

    An item made in place has the offset of its root.
    """
    offsets = {
        memory: list(itertools.accumulate(layout.block_sizes, initial=0))
        for memory, layout in layouts.items()
    }
    return {
        item.name: Allocation(
            item.memory,
            offsets[item.memory][layouts[item.memory].block_indices[item.root or item.name]],
            item.size,
            item.first_step,
            item.last_step,
            item.kind,
        )
        for item in items
    }


def _get_root_items(items: Sequence[_PlanItem]) -> dict[str, _PlanItem]:
    """Return name -> item for the items that are not made in place.

    Each is a copy whose lifetime covers those of the items made in place of it.
    """
    roots = {item.name: item for item in items if item.root is None}
    for item in items:
        if item.root is not None:
            root = roots[item.root]
            roots[root.name] = replace(
                root,
                first_step=min(root.first_step, item.first_step),
                last_step=max(root.last_step, item.last_step),
            )
    return roots


def _layout_by_size(
    step_count: int,
    items: Sequence[_PlanItem],
    roots: Mapping[str, _PlanItem],
    max_bytes: float,
) -> _Layout | None:
    """Allocate `items` by decreasing size, each during the lifetime of its root in `roots`.

    An item made in place reserves a block as well, as in the packer, although it does not use it.
    """
    lifetimes = ((item, roots[item.root or item.name]) for item in sorted(items, key=_by_size))
    return _allocate_in_order(lifetimes, max_bytes)


def _layout_by_live_bytes(
    step_count: int,
    items: Sequence[_PlanItem],
    roots: Mapping[str, _PlanItem],
    max_bytes: float,
) -> _Layout | None:
    """Allocate `roots` step by step, the step with the most live bytes first.

    Within a step, larger items come first.
    """
    lifetimes = [(root.size, root.first_step, root.last_step) for root in roots.values()]
    live_bytes = sum_live_bytes(step_count, lifetimes)
    ranks = [0] * step_count
    steps = sorted(range(step_count), key=live_bytes.__getitem__, reverse=True)
    for rank, step_index in enumerate(steps):
        ranks[step_index] = rank
    ordered = sorted(roots.values(), key=_by_size)
    ordered.sort(key=lambda root: min(ranks[root.first_step : root.last_step + 1]))
    return _allocate_in_order(((root, root) for root in ordered), max_bytes)


def _by_size(item: _PlanItem) -> int:
    """Return the key that sorts large items first."""
    return -item.size


def _allocate_in_order(
    lifetimes: Iterable[tuple[_PlanItem, _PlanItem]], max_bytes: float
) -> _Layout | None:
    """Allocate a block for the first item of each pair during the lifetime of the second.

    None as soon as the blocks have `max_bytes`.
    """
    pool = _BlockPool()
    block_indices: dict[str, int] = {}
    for item, lifetime in lifetimes:
        block_indices[item.name] = pool.allocate(item.size, lifetime.first_step, lifetime.last_step)
        if pool.total_bytes >= max_bytes:
            return None
    return _Layout(pool.sizes, block_indices)


def _layout_in_execution_order(
    step_count: int,
    items: Sequence[_PlanItem],
    roots: Mapping[str, _PlanItem],
    max_bytes: float,
) -> _Layout | None:
    """Allocate `roots` in execution order, each in the smallest freed block that is large enough.

    A block is freed after the last step of its item; if none is large enough, a new one is added.
    """
    sizes: list[int] = []
    total_bytes = 0
    block_indices: dict[str, int] = {}
    free_blocks: list[tuple[int, int]] = []  # (size, index), sorted
    starting: dict[int, list[_PlanItem]] = {}
    ending: dict[int, list[_PlanItem]] = {}
    for root in roots.values():
        starting.setdefault(root.first_step, []).append(root)
        ending.setdefault(root.last_step, []).append(root)
    for step_index in range(step_count):
        for root in ending.get(step_index - 1, ()):
            block = block_indices[root.name]
            bisect.insort(free_blocks, (sizes[block], block))
        for root in starting.get(step_index, ()):
            position = bisect.bisect_left(free_blocks, (root.size, 0))
            if position == len(free_blocks):
                block_indices[root.name] = len(sizes)
                sizes.append(root.size)
                total_bytes += root.size
            else:
                block_indices[root.name] = free_blocks.pop(position)[1]
        if total_bytes >= max_bytes:
            return None
    return _Layout(sizes, block_indices)
