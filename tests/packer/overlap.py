"""Work areas that are planned too small: what lies behind them and is overwritten."""

import math

from tests.packer.graph import up
from tests.packer.plan import STREAMED


def needed(graph, node, platform, settings, place):
    """Return the bytes a node really writes into its work area (0: no more than planned)."""
    x, y = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
    if node.op == "LayerNormInt":
        width = math.prod(graph.tensors[node.inputs[1]].shape)
        if platform == "venus":
            return 8 * width
        return 8 * width + 8 if settings.params == "share-mem" else 27 * width + 8
    if node.op == "LSTMInt" and platform == "venus":
        return 40 * node.attrs["hidden_size"]
    if node.op == "LinearInt" and platform == "venusA" and place(y.name) != "share-mem":
        columns, outputs = x.shape[-1], y.shape[-1]
        rows = x.elements // columns
        return rows * (max(columns, outputs) + outputs) if rows > 1 else 0
    if node.op == "AvgPool2dInt" and platform != "venus" and list(node.attrs["kernel_shape"]) == list(x.shape[2:]):
        area = math.prod(x.shape[2:])
        return area + 4 * x.shape[1] if area & (area - 1) == 0 else 0
    if node.op == "GluInt":
        return 7 * x.elements
    if node.op == "SoftmaxInt" and platform == "venusA":
        return 22 * x.elements
    return 0


def clobbered(graph, memory, settings):
    """Return what is overwritten behind work areas, and what is written past the plan."""
    found = []
    area = first_area(graph, memory)
    end = {"share-mem": up(memory.shared, 64), "psram": up(memory.psram, 64)}

    def place(name):
        item = memory.items.get(name)
        return item.place if item else settings.params

    for index, node in enumerate(graph.nodes):
        need = needed(graph, node, settings.platform, settings, place)
        if need and area is not None and need > area.size:
            start = memory.offsets[area.name] + area.size
            stop = memory.offsets[area.name] + need
            found += report(graph, memory, settings, node, index, (area.place, start, stop), end)
        if node.op == "LSTMInt" and settings.platform == "venusA" and len(node.outputs) > 1 and node.outputs[1]:
            hidden = memory.items[node.outputs[1]]
            start = memory.offsets[hidden.name]
            region = (hidden.place, start + hidden.size, start + 4 * node.attrs["hidden_size"])
            found += report(graph, memory, settings, node, index, region, end)
    return found


def first_area(graph, memory):
    """Return the Item of the work area that all nodes use: that of the first node that needs one."""
    for node in graph.nodes:
        size, where = memory.work[node.name]
        if size:
            return memory.items[f"workspace {where}"]
    return None


def report(graph, memory, settings, node, index, region, end):
    where, start, stop = region
    found = []
    for item in memory.items.values():
        if item.place != where or item.name not in memory.offsets:
            continue
        a = memory.offsets[item.name]
        at_sums = node.op == "AvgPool2dInt" and a == stop - 4 * graph.tensors[node.inputs[0]].shape[1]
        if item.name == node.outputs[0] and at_sums:  # the output replaces the sums one by one: harmless
            continue
        if a < stop and start < a + item.size and alive(graph, item, node, index):
            found.append(f"{node.op} {node.name}: writes past its work area, over '{item.name}'")
    if stop > end[where]:
        found.append(f"{node.op} {node.name}: writes {stop - end[where]} bytes past the planned memory")
    return found


def alive(graph, item, node, index):
    """Whether `item` holds something that is still read after node `index` overwrote it.

    LinearInt and SoftmaxInt have read their input by then; SoftmaxInt writes its output last. The first output of any
    node may be lost where nobody reads it.
    """
    if item.name.startswith("workspace "):
        return False
    if item.name.startswith("prefetch "):
        return int(item.name.split()[1]) - 1 in turns(graph, index)
    if item.name == node.outputs[0] and item.name not in graph.outputs and not graph.readers(item.name):
        return False
    read = item.name in node.inputs and item.last == index
    if read and node.op in ("LinearInt", "SoftmaxInt"):
        return False
    if node.op == "SoftmaxInt" and item.name in node.outputs:
        return False
    return item.first <= index <= item.last


def turns(graph, index):
    """Return the prefetch buffers that node `index` and the next streamed node read."""
    order = [
        i
        for i, node in enumerate(graph.nodes)
        if node.op in STREAMED and any(graph.const(name) is not None for name in node.inputs)
    ]
    later = [k for k, i in enumerate(order) if i > index][:1]
    return {k % 2 for k in [*later, *(k for k, i in enumerate(order) if i == index)]}
