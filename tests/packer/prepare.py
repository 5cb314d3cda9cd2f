"""What the packer does to the graph before it plans memory: fusions, group splits, pre-pads,
cuts.
"""

import math

import numpy as np

from tests.packer import int4
from tests.packer.format_checks import scales
from tests.packer.graph import MOVES, Node, Refused, Tensor, live, up
from tests.packer.limits import Limits, first_slab
from tests.packer.shapes import infer

CONVS = ("Conv1dInt", "Conv2dInt", "ConvTranspose2dInt")
TAKE_IN = (
    "Conv2dInt",
    "ConvTranspose2dInt",
)  # a Relu behind them; one behind a Conv1dInt stays, as packed graphs show


def prepare(graph, settings):
    """Change `graph` in place into the form that is planned."""
    fold_quants(graph)
    for name in graph.outputs:
        if name in graph.inputs:
            raise Refused(f"graph input '{name}' is a graph output")
    if not graph.nodes:
        raise Refused("no node is left without Quant and Dequant")
    live(graph)
    infer(graph)
    scales(graph)
    fuse_activations(graph)
    drop_slices(graph)
    simplify_moves(graph)
    split_groups(graph)
    infer(graph)
    if settings.platform == "venus":
        pre_pad(graph)
        infer(graph)
    int4.refuse(graph, settings.platform)
    Limits(graph, settings).run()
    swap_axes(graph, settings.platform)
    cut_convolutions(graph, settings)
    cut_linears(graph, settings)
    live(graph)
    infer(graph)


def fold_quants(graph):
    """Take out each Quant on a graph input (also behind moves) and each Dequant of a graph output.

    The packer ends where a node would then read the input in two operands. Outputs of Dequants
    stand behind all others in its list.
    """
    names, given = list(graph.outputs), {}
    for node in list(graph.nodes):
        if node.op == "Quant":
            source = node.inputs[0]
            while (up_node := graph.writer(source)) is not None and up_node.op in MOVES:
                source = up_node.inputs[0]
            if source in graph.inputs:
                tensor = graph.tensors[source]
                tensor.bytes, tensor.scale = node.get("data_bits", 8) // 8, node.get("scale_x")
                graph.nodes.remove(node)
                graph.rename(node.outputs[0], node.inputs[0])
                for reader in graph.readers(node.inputs[0]):
                    if reader.inputs.count(node.inputs[0]) > 1:
                        raise Refused(
                            f"{reader.op} {reader.name}: reads the quantized '{source}' in two "
                            "operands"
                        )
        elif (
            node.op == "Dequant"
            and node.outputs[0] in graph.outputs
            and not graph.readers(node.outputs[0])
        ):
            graph.nodes.remove(node)
            graph.outputs.remove(node.outputs[0])
            given[node.outputs[0]] = node.inputs[0]
    graph.outputs += [given[name] for name in names if name in given]


def fuse_activations(graph):
    """A convolution that only one Relu reads takes it in and writes its output."""
    for node in list(graph.nodes):
        if node.op not in TAKE_IN or node.outputs[0] in graph.outputs:
            continue
        readers = graph.readers(node.outputs[0])
        if len(readers) == 1 and readers[0].op in ("Relu", "Prelu", "Clip"):
            graph.nodes.remove(readers[0])
            node.outputs = list(readers[0].outputs)


def drop_slices(graph):
    for node in list(graph.nodes):
        if (
            node.op == "Slice"
            and graph.tensors[node.inputs[0]].shape == graph.tensors[node.outputs[0]].shape
        ):
            _drop(graph, node)


def _drop(graph, node):
    graph.nodes.remove(node)
    writer = graph.writer(node.inputs[0])
    if node.outputs[0] not in graph.outputs:
        graph.rename(node.outputs[0], node.inputs[0])
    elif writer is not None:
        source = node.inputs[0]
        writer.outputs = [node.outputs[0] if name == source else name for name in writer.outputs]
        graph.rename(source, node.outputs[0])


def simplify_moves(graph):
    for node in graph.nodes:
        if node.op == "Transpose":
            shape = graph.tensors[node.inputs[0]].shape
            kept = [axis for axis in node.attrs["perm"] if shape[axis] != 1]
            if kept == sorted(kept):
                target = np.array(graph.tensors[node.outputs[0]].shape)
                name = f"{node.outputs[0]} shape"
                graph.tensors[name] = Tensor(name, target.shape, 8, None, target)
                node.op, node.inputs = "Reshape", [node.inputs[0], name]
    for node in list(graph.nodes):
        readers = graph.readers(node.outputs[0])
        if node.op == "Reshape" and [r.op for r in readers] == ["Reshape"]:
            if node.outputs[0] in graph.outputs:
                raise Refused(f"graph output '{node.outputs[0]}' is merged into a second Reshape")
            target = np.array(graph.tensors[readers[0].outputs[0]].shape)
            graph.tensors[readers[0].inputs[1]] = Tensor(
                readers[0].inputs[1], target.shape, 8, None, target
            )
            graph.nodes.remove(node)
            readers[0].inputs[0] = node.inputs[0]


def _constant(graph, name, array):
    graph.tensors[name] = Tensor(name, array.shape, array.itemsize, None, array, inserted=True)
    return name


def _computed(graph, name, late=False):
    graph.tensors[name] = Tensor(name, inserted=True, late=late)
    return name


def split_groups(graph):
    """A group count of neither 1 nor the outputs: Split, one convolution each, iqCat."""
    nodes, taken = [], set()
    for node in graph.nodes:
        taken |= {*node.inputs, *node.outputs}
    for node in graph.nodes:
        group = node.get("group", 1)
        weight = graph.tensors[node.inputs[1]] if node.op in ("Conv1dInt", "Conv2dInt") else None
        if weight is None or group in (1, weight.shape[0]):
            nodes.append(node)
            continue
        channels, outputs = weight.shape[1], weight.shape[0] // group
        taken_names(graph, node, group, taken)
        parts = [_computed(graph, f"{node.name} split {i}") for i in range(group)]
        nodes.append(
            Node(
                "Split",
                f"{node.name} split",
                [node.inputs[0]],
                parts,
                {"axis": 1, "dims": [channels] * group},
            )
        )
        results = []
        for i, part in enumerate(parts):
            rows = slice(i * outputs, (i + 1) * outputs)
            constants = [
                _constant(graph, f"{name} group {i} {node.name}", graph.const(name)[rows])
                for name in node.inputs[1:]
            ]
            results.append(_computed(graph, f"{node.name} group {i}"))
            nodes.append(
                Node(
                    node.op,
                    results[-1],
                    [part, *constants],
                    [results[-1]],
                    node.attrs | {"group": 1},
                )
            )
        nodes.append(_join(node, results, 1))
    graph.nodes = nodes


def taken_names(graph, node, group, taken):
    """The names of a split: those of the input's parts must be free; a tensor that bears one of a
    constant's part is used in its place.
    """
    source, *constants = node.inputs
    parts = {f"{source}_{i}" for i in range(group)}
    if parts & taken:
        raise Refused(f"{node.op} {node.name}: {min(parts & taken)} exists already")
    taken |= parts
    for name in constants:
        rows, *others = graph.tensors[name].shape
        for part in (f"{name}_{i}" for i in range(group)):
            if part not in graph.tensors:
                continue
            if graph.tensors[part].shape != (rows // group, *others):
                raise Refused(f"{node.op} {node.name}: {part} exists, of another shape")
            graph.notes.append(f"{node.op} {node.name}: {part} is taken for a part of {name}")


def _join(node, parts, axis):
    scale = node.get("scale_o")
    return Node(
        "iqCat",
        f"{node.name} join",
        list(parts),
        list(node.outputs),
        {"dim": axis, "scale_o": scale} | {f"scale_x_{i}": scale for i in range(len(parts))},
    )


def pre_pad(graph):
    """venus: a small convolution's pads of one axis move into an iqPad that all readers of its
    producer then get.

    The packer compares channels with the kernel's rows and rows with its columns. Whatever else
    reads an output of the same producer reads the padded tensor too, with the remaining pads of
    this convolution.
    """
    for node in list(graph.nodes):
        if node.op != "Conv2dInt":
            continue
        shape, weight = graph.tensors[node.inputs[0]].shape, graph.tensors[node.inputs[1]].shape
        top, left, bottom, right = node.attrs["pads"]
        rows, columns = shape[1] < weight[2], shape[2] < weight[3]
        pads = (top * rows, left * columns, bottom * rows, right * columns)
        if not any(pads):
            continue
        producer = graph.writer(node.inputs[0])
        if producer is None:
            break
        padded = _computed(graph, f"{node.inputs[0]} padded by {node.name}")
        both = np.array([0, 0, *pads[:2], 0, 0, *pads[2:]])
        readers = [reader for name in producer.outputs for reader in graph.readers(name)]
        new = Node(
            "iqPad",
            padded,
            [node.inputs[0], _constant(graph, f"{padded} pads", both)],
            [padded],
            {},
        )
        graph.nodes.insert(graph.nodes.index(node), new)
        for reader in readers:
            reader.inputs = [padded if name in producer.outputs else name for name in reader.inputs]
            if "pads" in reader.attrs:
                left_over = [a - b for a, b in zip((top, left, bottom, right), pads, strict=True)]
                reader.attrs = reader.attrs | {"pads": left_over}
        infer(graph)


def swap_axes(graph, platform):
    """Mark the nodes whose slab fits only with rows and columns exchanged."""
    for node in graph.nodes:
        if node.op in ("Conv2dInt", "AvgPool2dInt", "MaxPool"):
            node.swapped = first_slab(graph, node, platform) == "swapped"


def cut_convolutions(graph, settings):
    platform = settings.platform
    m = 4 if platform == "venusA" else 2
    base, limit = {"venus": (min, 32768), "arcs": (max, 8192), "venusA": (max, 32768)}[platform]
    most = base(limit, settings.threshold(1))
    out_limit = max(32768 if platform == "arcs" else 65536, settings.threshold(2))
    for node in list(graph.nodes):
        if node.op != "Conv2dInt" or node.get("group", 1) != 1:
            continue
        n, c, kh, kw = graph.tensors[node.inputs[1]].shape
        one = up(c, 8) * kh * kw
        if up(n, m) * one <= most and _output_bytes(graph, node, platform) <= out_limit:
            continue
        mx = most // one // m * m
        count = math.ceil(n / mx)
        part = up(n // count, m)
        while (part + m) * one <= most:
            part += m
        _cut(graph, node, part, 1)


def _output_bytes(graph, node, platform):
    y = graph.tensors[node.outputs[0]]
    c, h, w = graph.tensors[node.inputs[0]].shape[1:]
    sw = node.attrs["strides"][1]
    wide = up(c, 8) * up(w, (4 if platform == "arcs" else 8) * sw) * h
    return 0 if wide > (16384 if platform == "arcs" else 65536) else y.elements * y.bytes


def cut_linears(graph, settings):
    platform = settings.platform
    least = {"venus": 0, "arcs": 16384, "venusA": 65536}[platform]
    most, m = max(least, settings.threshold(3)), 8 if platform == "venusA" else 4
    for node in list(graph.nodes):
        if node.op == "LinearInt" and graph.const(node.inputs[1]) is not None:
            outputs, width = graph.tensors[node.inputs[1]].shape[:2]
            if up(width, 8) * up(outputs, m) <= most:
                continue
            count = 2
            while up(width, 8) * up(math.ceil(outputs / count), m) > most and count < outputs:
                count += 1
            _cut(
                graph,
                node,
                up(math.ceil(outputs / count), m),
                len(graph.tensors[node.inputs[0]].shape) - 1,
            )


def _cut(graph, node, part, axis):
    """Replace `node` by parts of `part` outputs each and an iqCat."""
    outputs, place = graph.tensors[node.inputs[1]].shape[0], graph.nodes.index(node)
    results, nodes = [], []
    for i, start in enumerate(range(0, outputs, part)):
        constants = [
            _constant(
                graph, f"{name} part {i} {node.name}", graph.const(name)[start : start + part]
            )
            for name in node.inputs[1:]
        ]
        results.append(_computed(graph, f"{node.name} part {i}", late=True))
        nodes.append(
            Node(
                node.op, results[-1], [node.inputs[0], *constants], [results[-1]], dict(node.attrs)
            )
        )
    graph.nodes[place : place + 1] = [*nodes, _join(node, results, axis)]
