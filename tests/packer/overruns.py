"""What a node writes behind its work area or its output, and what it destroys there."""

import dataclasses
import math

from tests.packer.graph import up
from tests.packer.work_areas import STREAMED, get_stored_bytes, row_parts


@dataclasses.dataclass
class OutOfAreaWrite:
    """Bytes [start, stop) of `place` that a node writes; what is named in `spared` has been read
    before, or is written later; of a tensor in `safe` only bytes [first, end) have or are.
    """

    place: str
    start: int
    stop: int
    spared: tuple = ()
    safe: dict = dataclasses.field(default_factory=dict)

    def hits(self, item, offset, size):
        """Whether it destroys one of the `size` bytes that an Item at `offset` uses."""
        start, stop = max(self.start, offset), min(self.stop, offset + size)
        first, end = self.safe.get(item.name, (offset, offset))
        return start < stop and not first <= start < stop <= end


class OutOfAreaWrites:
    """The bytes that each node writes beyond what was planned for it; all nodes have one work area,
    the first.
    """

    def __init__(self, graph, memory, settings):
        self.graph, self.memory, self.settings = graph, memory, settings
        self.platform, self.area = settings.platform, first_area(graph, memory)

    def of(self, index):
        """Return the Writes of node `index`."""
        node = self.graph.nodes[index]
        rule = getattr(self, f"_{node.op}", None)
        if rule is None:
            return []
        tensors = (self.graph.tensors[name] for name in (node.inputs[0], node.outputs[0]))
        return list(rule(node, index, *tensors))

    def scratch(self, start, stop, *spared):
        """Return the Write of bytes [start, stop) counted from the start of the work area."""
        begin = self.memory.offsets[self.area.name]
        return OutOfAreaWrite(self.area.place, begin + start, begin + stop, spared)

    def far(self, name):
        item = self.memory.items.get(name)
        return (item.place if item else self.settings.params) != "share-mem"

    def _LayerNormInt(self, node, index, x, y):
        """venus: two rows of scratch. Else: a row of scratch, copies of factor and offset, a copy
        of the row.

        The copy of the row is found from the offset's address, 16 bytes for each element behind it,
        wherever the offset lies: constants in shared memory are not copied, and the row then goes
        into what lies behind them. Row by row: the last row of the output comes last, and not on
        venus, the first row of the input has been read (13 rows of layernorm_two_axes).
        """
        width = self.graph.tensors[node.inputs[1]].elements
        first, last = (self.memory.offsets.get(t.name, 0) for t in (x, y))
        last += y.elements - width
        safe = {y.name: (last, last + up(width, 64))}
        kept = x.name in self.graph.outputs or self.memory.items[x.name].last > index
        if self.platform != "venus" and not kept:
            safe[x.name] = first, first + (width if x.elements > width else up(width, 64))
        for write in self.norm(node, index, x, y, width):
            write.safe = safe
            yield write

    def norm(self, node, index, x, y, width):
        """Yield the writes of a LayerNormInt."""
        if self.platform == "venus":
            yield self.scratch(0, 8 * width)
            start = self.memory.offsets[y.name]
            if len(x.shape) == 2:  # two rows, whatever there is
                yield OutOfAreaWrite(
                    self.memory.items[y.name].place, start, start + 2 * width, (y.name,)
                )
            return
        own = buffers_of(self.graph, index)[:1]
        yield self.scratch(0, 8 * width + 8, *own)
        if self.settings.params != "share-mem":
            yield self.scratch(8 * width + 8, 13 * width + 8)
            yield self.scratch(25 * width + 8, 27 * width + 8, *own)

    def _LSTMInt(self, node, index, x, y):
        hidden = node.attrs["hidden_size"]
        if self.platform == "venus":
            yield self.scratch(0, 40 * hidden)
        if self.platform == "venusA" and len(node.outputs) > 1 and node.outputs[1]:
            state = self.memory.items[node.outputs[1]]
            start = self.memory.offsets[state.name]
            yield OutOfAreaWrite(state.place, start + state.size, start + 4 * hidden)

    def _LinearInt(self, node, index, x, y):
        """venusA: rows in (or rows out, if larger), rows out behind; the rows of one part are read
        at once.
        """
        if self.platform != "venusA" or not self.far(y.name):
            return
        columns, outputs = x.shape[-1], y.shape[-1]
        rows = x.elements // columns
        if rows == 1:
            return
        write = self.scratch(0, rows * (max(columns, outputs) + outputs))
        start = self.memory.offsets.get(x.name, 0)
        first = math.ceil(rows / row_parts(rows, columns)) * columns
        kept = x.name in self.graph.outputs or self.memory.items[x.name].last > index
        if not kept and min(write.stop, start + x.elements) <= start + first:
            write.spared = (x.name,)
        yield write

    def _AvgPool2dInt(self, node, index, x, y):
        """The mean over the map, a power of 2: ones and sums side by side, where the larger of them
        was planned.
        """
        area, channels = math.prod(x.shape[2:]), x.shape[1]
        if (
            self.platform == "venus"
            or list(node.attrs["kernel_shape"]) != list(x.shape[2:])
            or area & (area - 1)
        ):
            return
        write = self.scratch(0, area + 4 * channels)
        if (
            self.memory.offsets[y.name] == write.stop - 4 * channels
        ):  # each sum is replaced by its mean
            write.spared = (y.name,)
        yield write

    def _iqMul(self, node, index, x, y):
        """A factor for each channel: the product starts as many bytes into the area as there are
        channels; a map of 1x1 has no area, and its output stands for it.
        """
        factor = node.inputs[1]
        if len(x.shape) != 4 or self.graph.tensors[factor].shape[2:] != (1, 1):
            return
        channels = x.shape[1]
        if math.prod(x.shape[2:]) > 1:
            yield self.scratch(channels, channels + x.elements, factor)
        else:
            start = self.memory.offsets[y.name]
            yield OutOfAreaWrite(
                self.memory.items[y.name].place,
                start + channels,
                start + 2 * channels,
                (y.name, factor),
            )

    def _GluInt(self, node, index, x, y):
        yield self.scratch(0, 7 * x.elements)

    def _SoftmaxInt(self, node, index, x, y):
        """venusA: what was planned, and far behind it; what lay between (8 to 16 bytes an element)
        came out whole.

        All elements are read at once and the output is written last: both were right in the far
        part (softmax_ax1_r2), an input that nobody reads later.
        """
        if self.platform == "venusA":
            kept = x.name in self.graph.outputs or self.memory.items[x.name].last > index
            read = () if kept else (x.name,)
            yield self.scratch(16 * x.elements, 22 * x.elements, y.name, *read)


def find_overwritten(graph, memory, settings):
    """Return what is overwritten behind work areas, and what is written past the plan."""
    found, writes = [], OutOfAreaWrites(graph, memory, settings)
    for index, node in enumerate(graph.nodes):
        made = writes.of(index)
        for name in dict.fromkeys(
            name for write in made for name in find_destroyed(graph, memory, index, write)
        ):
            found.append(f"{node.op} {node.name}: writes past its work area, over '{name}'")
        found += [
            f"{node.op} {node.name}: {text}" for text in describe_writes_past_plan(memory, made)
        ]
    return found


def first_area(graph, memory):
    """Return the Item of the work area that all nodes use: that of the first node that needs
    one.
    """
    for node in graph.nodes:
        size, where = memory.work[node.name]
        if size:
            return memory.items[f"workspace {where}"]
    return None


def find_destroyed(graph, memory, index, write):
    """Yield the names of what one Write of node `index` destroys."""
    for item in memory.items.values():
        if (
            item.place != write.place
            or item.name not in memory.offsets
            or item.name in write.spared
        ):
            continue
        tensor = graph.tensors.get(item.name)  # what it is padded with may be overwritten
        size = item.size if tensor is None else min(item.size, tensor.elements * tensor.bytes)
        hit = write.hits(item, memory.offsets[item.name], size)
        if hit and alive(graph, item, graph.nodes[index], index):
            yield item.name


def describe_writes_past_plan(memory, writes):
    """Yield what is said of Writes behind the plan; in PSRAM the executor's own objects follow."""
    ends = {"share-mem": up(memory.shared, 64), "psram": up(memory.psram, 64)}
    beyond = {
        place: max((w.stop - end for w in writes if w.place == place), default=0)
        for place, end in ends.items()
    }
    if beyond["share-mem"] > 0:
        yield f"writes {beyond['share-mem']} bytes past the planned memory"
    if beyond["psram"] > 0:
        yield f"writes {beyond['psram']} bytes over the executor's own objects behind PSRAM's plan"


def alive(graph, item, node, index):
    """Whether `item` holds something that is still read after node `index` overwrote it.

    The node's own input and output are in use: that they have been read, or are written last, is
    said by the Write. The first output of a node may be lost where nobody reads it.
    """
    if item.name.startswith("workspace "):
        return False
    if item.name.startswith("prefetch "):
        return item.name in buffers_of(graph, index)
    if (
        item.name == node.outputs[0]
        and item.name not in graph.outputs
        and not graph.readers(item.name)
    ):
        return False
    return item.first <= index <= item.last


def buffers_of(graph, index):
    """Return the prefetch buffers in use at node `index`: its own if it is streamed, that of the
    next streamed node.
    """
    order = [
        i
        for i, node in enumerate(graph.nodes)
        if node.op in STREAMED and any(graph.const(name) is not None for name in node.inputs)
    ]
    own = [k for k, i in enumerate(order) if i == index]
    later = [k for k, i in enumerate(order) if i > index][:1]
    return [f"prefetch {k % 2 + 1}" for k in [*own, *later]]


def destroyed_constants(graph, settings):
    """Return what LayerNormInt destroys where constants lie in shared memory: its row goes behind
    its offset.
    """
    if settings.platform == "venus" or settings.params != "share-mem":
        return []
    found, spots, end = [], {}, 0
    for node in graph.nodes:  # constants lie in the order of their first use
        for index, name in enumerate(node.inputs):
            tensor = graph.tensors.get(name)
            if tensor is not None and tensor.const is not None and name not in spots:
                size = get_stored_bytes(graph, node, index, settings.platform)
                spots[name] = end, end + min(size, max(tensor.elements * tensor.bytes, size - 15))
                end += size
    for node in graph.nodes:
        if node.op == "LayerNormInt" and len(node.inputs) > 2:
            width, start = graph.tensors[node.inputs[1]].elements, spots[node.inputs[2]][0]
            for name, (first, stop) in spots.items():
                if first < start + 18 * width and start + 16 * width < stop:
                    found.append(
                        f"LayerNormInt {node.name}: its row is copied into constant '{name}' for "
                        "good"
                    )
    return found
