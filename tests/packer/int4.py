"""4-bit weights, written down from their own page: who packs, who is read right, where the next
constant is looked for.

A node says ``parameter_bits = 4``. Only what `packs_pairs` says has two weights in a byte; other
operators do not read the attribute, or are wrong, or do not pack.
"""

import math

from tests.packer.graph import Refused
from tests.packer.work_areas import STREAMED, padded


def has_int4_weights(node):
    return node.get("parameter_bits", 8) == 4


def packs_pairs(node, platform):
    """Whether the weights of a node lie two in a byte."""
    return (
        has_int4_weights(node)
        and platform != "venus"
        and node.op in ("Conv2dInt", "LinearInt", "Gather", "LayerNormInt")
    )


def table(node):
    """Return the index of the input that holds the weights."""
    return 0 if node.op == "Gather" else 1


def refuse(graph, platform):
    """Raise Refused for what does not pack with 4 bits."""
    readers = {}
    for node in graph.nodes:
        if not has_int4_weights(node):
            continue
        where = f"{node.op} {node.name}: parameter_bits 4"
        if platform == "venus" and node.op in ("Conv1dInt", "Conv2dInt"):
            raise Refused(f"{where}, int8 weights")
        if node.op == "Conv1dInt" and (platform == "arcs" or node.get("group", 1) == 1):
            raise Refused(f"{where}: a name or an index of the packer's own is missing")
        if packs_pairs(node, platform):
            values = graph.const(node.inputs[table(node)])
            if values is None:
                continue
            if values.size and (values.max() > 7 or values.min() < -8):
                raise Refused(f"{where}: a weight is not of -8..7")
            readers.setdefault(node.inputs[table(node)], []).append(node)
    for name, nodes in readers.items():
        if len(nodes) > 1 and nodes[0].op != "Conv2dInt":
            raise Refused(f"'{name}' has 4 bits and is packed for {len(nodes)} {nodes[0].op}")


def packed(graph, node, platform):
    """Return the bytes of the 4-bit weights of a node, two in each; the rows of a matrix are packed
    one by one.
    """
    shape = graph.tensors[node.inputs[table(node)]].shape
    if node.op == "Conv2dInt":
        return padded(graph, node, 1, platform) / 2
    return math.prod(shape) // shape[-1] * math.ceil(shape[-1] / 2)


def round_up_to_16(size):
    return math.ceil(size / 16)


def in_package(graph, node, index, platform):
    """Return the bytes of constant input `index` in the package."""
    if packs_pairs(node, platform) and index == table(node):
        return 16 * round_up_to_16(packed(graph, node, platform))
    return 16 * round_up_to_16(padded(graph, node, index, platform))


def get_int4_sizes(graph, platform):
    """Return {4-bit constant: its bytes in the package}."""
    nodes = [node for node in graph.nodes if packs_pairs(node, platform)]
    return {
        node.inputs[table(node)]: in_package(graph, node, table(node), platform) for node in nodes
    }


def faults(graph, settings):
    """Return what packs and comes out wrong."""
    found, platform = [], settings.platform
    for node in graph.nodes:
        if has_int4_weights(node):
            found += [
                f"{node.op} {node.name}: 4-bit weights, {text}"
                for text in find_node_faults(graph, node, settings)
            ]
    return found + other_widths(graph, platform) + find_misplaced_constants(graph, platform)


def find_node_faults(graph, node, settings):
    """Yield what is wrong of one node that says 4 bits."""
    platform = settings.platform
    if node.op in ("ConvTranspose2dInt", "Conv1dInt"):
        yield "wrong on every chip"
    if platform == "venus" and node.op in ("Gather", "LayerNormInt"):
        yield "wrong on venus"
    if node.op == "LinearInt" and platform == "venusA":
        yield "its kernel takes another path"
    if not packs_pairs(node, platform):
        return
    inputs = [graph.tensors[name] for name in node.inputs]
    last = inputs[table(node)].shape[-1]
    if node.op == "LinearInt" and (node.attrs["o_bits"] != 8 or last == 1):
        yield f"{node.attrs['o_bits']} bits from {last} elements"
    if node.op == "LayerNormInt" and last % 2:
        yield "the last element of an odd line is lost"
    if node.op == "Gather" and inputs[0].const is not None and (last % 2 or inputs[1].bytes != 8):
        yield f"rows of {last} by an index of {inputs[1].bytes} bytes"
    constants = [tensor for tensor in inputs if tensor.const is not None]
    if (
        node.op in STREAMED
        and len(constants) > 1
        and settings.prefetch
        and settings.params != "share-mem"
    ):
        yield "their first bytes are taken for the bias that is fetched with them"


def other_widths(graph, platform):
    """Return 4-bit weights that another node reads in another way."""
    found = []
    for node in graph.nodes:
        if packs_pairs(node, platform):
            name = node.inputs[table(node)]
            for other in graph.readers(name):
                if not has_int4_weights(other) or other.op != node.op:
                    found.append(f"'{name}' has 4 bits for {node.name} and not for {other.name}")
    return found


def find_misplaced_constants(graph, platform):
    """Return the constants behind 4-bit weights that are looked for where they do not lie."""
    lying, started = [], set()
    for node in graph.nodes:
        for index, name in enumerate(node.inputs):
            tensor = graph.tensors.get(name)
            shapes_only = node.op in (
                "Reshape",
                "Slice",
                "Squeeze",
                "Unsqueeze",
                "iqPad",
                "Tile",
                "Expand",
                "Resize",
            )
            if (
                tensor is None
                or tensor.const is None
                or shapes_only
                or (node.op == "Gather" and index)
            ):
                continue
            if name not in started:
                started.add(name)
                wanted = 16 * round_up_to_16(padded(graph, node, index, platform))
                if packs_pairs(node, platform) and index == table(node):
                    wanted /= 2
                lying.append((name, wanted, in_package(graph, node, index, platform)))
    for (name, wanted, there), (behind, _, _) in zip(lying, lying[1:], strict=False):
        if wanted != there:
            return [
                (
                    f"'{behind}' is looked for {wanted} bytes behind the start of '{name}', which has "
                    f"{there}"
                )
            ]
    return []
