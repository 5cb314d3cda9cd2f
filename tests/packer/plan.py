"""The memory planner: lives, blocks, places; three strategies, the one with the least shared memory
wins.
"""

import dataclasses

from tests.packer import int4
from tests.packer.graph import up
from tests.packer.placement import get_placements
from tests.packer.work_areas import STREAMED, WorkAreas, get_stored_bytes

IN_PLACE = ("Reshape", "Squeeze", "Unsqueeze")


@dataclasses.dataclass
class Item:
    """One thing to place: `size` bytes, alive from node `first` to node `last`."""

    name: str
    size: int
    first: int
    last: int
    place: str
    root: str | None = None
    order: int = 0
    step: bool = True


@dataclasses.dataclass
class Plan:
    """Bytes per place, offset of each item in its place, and the items by name."""

    shared: int
    psram: int
    offsets: dict
    items: dict
    constants: int
    work: dict


def lives(graph, place):
    """Return the Items of all computed tensors and graph inputs."""
    nodes, last = graph.nodes, {}
    for index, node in enumerate(nodes):
        for name in node.inputs:
            last[name] = index
    first = dict.fromkeys(graph.inputs, 0)
    first |= {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    names = [*graph.inputs, *(name for node in nodes for name in node.outputs if name)]
    names = [n for n in names if not graph.tensors[n].late] + [
        n for n in names if graph.tensors[n].late
    ]
    items = {}
    for name in names:
        end = len(nodes) - 1 if name in graph.outputs else last.get(name, first[name])
        start = first[name]
        if name in ("dma_buffer1", "dma_buffer2"):
            start, end = 0, len(nodes) - 1
        items[name] = Item(name, graph.tensors[name].size, start, end, place[name])
    for node in nodes:
        if node.op in IN_PLACE:
            source, target = items.get(node.inputs[0]), items[node.outputs[0]]
            if source is not None and source.place == target.place:
                target.root = source.root or source.name
    return items


def buffers(graph, settings, place):
    """Return the two prefetch buffers as Items."""
    if not settings.prefetch or settings.params == "share-mem":
        return []
    sizes, turn = [0, 0], 0
    for node in graph.nodes:
        wanted = [i for i, name in enumerate(node.inputs) if graph.const(name) is not None]
        if node.op in STREAMED and wanted:
            sizes[turn] = max(
                sizes[turn],
                sum(get_stored_bytes(graph, node, i, settings.platform) for i in wanted),
            )
            turn = 1 - turn
    end = len(graph.nodes) - 1
    return [
        Item(f"prefetch {i + 1}", size, 0, end, "share-mem") for i, size in enumerate(sizes) if size
    ]


def work_areas(graph, settings, place):
    """Return the work areas as Items, one per place."""
    work = WorkAreas(graph, settings.platform, place.get)
    sizes, used, by_node = {}, [], {}
    for index, node in enumerate(graph.nodes):
        size, where = work.size(node)
        by_node[node.name] = (size, where)
        if size > 0:
            sizes[where] = max(sizes.get(where, 0), size)
            used.append(index)
    return [
        Item(f"workspace {w}", up(size, 16), used[0], used[-1], w) for w, size in sizes.items()
    ], by_node


class Blocks:
    """The list of blocks of one place."""

    def __init__(self):
        self.sizes, self.held = [], []

    def best_fit(self, item, first, last):
        """Place by best fit over lives; return the block's index."""
        fits = [
            (size, i)
            for i, size in enumerate(self.sizes)
            if size >= item.size and all(last < a or b < first for a, b in self.held[i])
        ]
        index = min(fits)[1] if fits else self.new(item.size)
        self.held[index].append((first, last))
        return index

    def new(self, size):
        self.sizes.append(size)
        self.held.append([])
        return len(self.sizes) - 1

    def start(self, index):
        return sum(self.sizes[:index])


def rooted(items):
    """Return copies of the items without those made in place; a root lives as long as what is made
    from it.
    """
    lives = {item.name: item for item in items if item.root is None}
    for item in items:
        if item.root:
            root = lives[item.root]
            lives[item.root] = dataclasses.replace(
                root, first=min(root.first, item.first), last=max(root.last, item.last)
            )
    return list(lives.values())


def by_size(items, count):
    """Largest first; what is made in place takes a block too, and wastes it."""
    where, blocks = {}, {}
    lives = {item.name: item for item in rooted(items)}
    for item in sorted(items, key=lambda i: -i.size):
        life = lives[item.root or item.name]
        where[item.name] = blocks.setdefault(item.place, Blocks()).best_fit(
            item, life.first, life.last
        )
    return where, blocks


def by_breadth(items, count):
    """Place by place: node by node, most living bytes of that place first; the node's tensors
    largest first.
    """
    where, blocks, items = {}, {}, rooted(items)
    for place in {item.place for item in items}:
        here = [item for item in items if item.place == place]
        area = blocks.setdefault(place, Blocks())
        alive = [[i for i in here if i.first <= index <= i.last] for index in range(count)]
        for index in sorted(range(count), key=lambda n: -sum(i.size for i in alive[n])):
            left = [i for i in alive[index] if i.name not in where]
            for item in sorted(left, key=lambda i: -i.size):
                where[item.name] = area.best_fit(item, item.first, item.last)
    return where, blocks


def by_order(items, count):
    """Node by node as they run; freed blocks first."""
    where, blocks, free, items = {}, {}, {}, rooted(items)
    for index in range(count):
        for item in items:
            if item.last == index - 1:
                free.setdefault(item.place, []).append(where[item.name])
        for item in items:
            if item.first != index:
                continue
            area = blocks.setdefault(item.place, Blocks())
            fits = sorted(
                (area.sizes[b], b) for b in free.get(item.place, []) if area.sizes[b] >= item.size
            )
            if fits:
                free[item.place].remove(fits[0][1])
            where[item.name] = fits[0][1] if fits else area.new(item.size)
    return where, blocks


STRATEGIES = (by_size, by_breadth, by_order)


def plan(graph, settings, strategies=STRATEGIES):
    """Return the Plan of a prepared graph."""
    place = get_placements(graph, settings)
    tensors = lives(graph, place)
    areas, by_node = work_areas(graph, settings, place)
    items = [*tensors.values(), *areas, *buffers(graph, settings, place)]
    best = None
    for strategy in strategies:
        where, blocks = strategy(items, len(graph.nodes))
        totals = {p: sum(area.sizes) for p, area in blocks.items()}
        if best is None or totals.get("share-mem", 0) < best[0].get("share-mem", 0):
            offsets = {
                i.name: blocks[i.place].start(where[i.name]) for i in items if i.name in where
            }
            best = totals, offsets
    totals, offsets = best
    for item in items:
        if item.root:
            offsets[item.name] = offsets[item.root]
    used = {name for node in graph.nodes for name in node.inputs}
    sizes = {
        t.name: t.size for t in graph.tensors.values() if t.const is not None and t.name in used
    }
    sizes |= int4.get_int4_sizes(graph, settings.platform)
    return Plan(
        totals.get("share-mem", 0),
        totals.get("psram", 0),
        offsets,
        {i.name: i for i in items},
        sum(sizes.values()),
        by_node,
    )
