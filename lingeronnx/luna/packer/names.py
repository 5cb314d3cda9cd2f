"""Tensor and node names that the vendor's packer accepts, and safe replacements for the others.

The packer truncates a name at an "@", misreads a tensor whose name begins with "Scale", and treats
names that contain "workspace" or the name of a prefetch buffer as its own. A name with ":" or ","
cannot be written in its `-m` option. The executor dumps an integer tensor into a file named after
the first characters of the tensor's name, with "/" written as "_".

The packer splits a convolution with several groups and names the parts of its input, constants and
node X_0, X_1, ...; it takes a constant that has such a name for the part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from ...ir import ir
from ...ir.name_mapping import NameMapping
from ...operators.integer_ops import CONV1D, CONV2D

__all__ = ["build_safe_names", "count_split_groups", "is_safe"]

_UNSAFE_CHARACTERS = str.maketrans("@:,", "___")
_RESERVED_PREFIX = "Scale"
#: Names that the packer reserves -> their replacements.
_RESERVED_WORDS = {"workspace": "work_space", "dma_buffer1": "dma_buf1", "dma_buffer2": "dma_buf2"}
#: Number of leading characters of a name that the executor's dump files always contain.
_DUMP_NAME_LENGTH = 64
#: The search for tiles asks for the names of a graph again in each variant.
_MAX_CACHED_NAMES = 1 << 14


def is_safe(name: str) -> bool:
    """Whether the packer accepts the tensor or node name `name` unchanged."""
    return name == _sanitize_name(name)


@lru_cache(maxsize=_MAX_CACHED_NAMES)
def _sanitize_name(name: str) -> str:
    """Return `name` in a form that the packer accepts; it need not be unique.

    "@", ":", "," and unprintable characters become "_", reserved words are respelled, and a name
    that starts with "Scale" gets a lower-case first letter.
    """
    text = name.translate(_UNSAFE_CHARACTERS)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "_" for char in text)
    for word, replacement in _RESERVED_WORDS.items():
        text = text.replace(word, replacement)
    return text[0].lower() + text[1:] if text.startswith(_RESERVED_PREFIX) else text


def _get_dump_stem(name: str) -> str:
    """Return the part of a tensor's dump file name that identifies tensor `name`.

    It is the first 64 characters with "/" written as "_".
    """
    return name.replace("/", "_")[:_DUMP_NAME_LENGTH]


def build_safe_names(graph: ir.Model) -> NameMapping:
    """Build unique names for the tensors and nodes of `graph` whose names the packer misreads.

    Names that are safe already are kept, except for a tensor whose dump file another tensor would
    overwrite, or that the packer gives to a part of a grouped convolution. The result contains
    changed names only; `graph` is not changed.
    """
    part_names: set[str] = set()
    while True:
        tensor_names = _assign_tensor_names(graph, part_names)
        node_names = _assign_node_names(graph, part_names)
        missing = _list_part_names(graph, tensor_names, node_names) - part_names
        if not missing:
            break
        part_names |= missing
    return NameMapping(
        {name: safe_name for name, safe_name in tensor_names.items() if name != safe_name},
        {name: safe_name for name, safe_name in node_names.items() if name != safe_name},
    )


def count_split_groups(node: ir.Node) -> int:
    """Count the groups into which the packer splits the integer convolution `node`.

    0 for other nodes, one group and depthwise convolutions, which it does not split.
    """
    if node.op_type not in (CONV1D.name, CONV2D.name):
        return 0
    group = int(ir.get_attr(node, "group") or 1)
    if group == 1:
        return 0
    is_depthwise = group == (ir.get_shape(node.inputs[1]) or (0,))[0]
    return 0 if is_depthwise else group


def _list_part_names(
    graph: ir.Model, tensor_names: Mapping[str, str], node_names: Mapping[str, str]
) -> set[str]:
    """Return the names that the packer gives to parts of grouped convolutions.

    `tensor_names` and `node_names` map the graph's names to those in the packer's file.
    """
    part_names: set[str] = set()
    for node in graph.graph:
        group = count_split_groups(node)
        if not group:
            continue
        names = [tensor_names[str(value.name)] for value in node.inputs if value is not None]
        names.append(node_names[str(node.name)])
        part_names.update(f"{name}_{part}" for name in names for part in range(group))
    return part_names


def _assign_tensor_names(graph: ir.Model, part_names: Collection[str]) -> dict[str, str]:
    """Map each tensor name of `graph` to a unique safe one, which may be the same.

    None is in `part_names`. Safe names are assigned first, so that they stay, and graph inputs and
    outputs before others. Results of nodes that are not float also get distinct dump file names.
    """
    values = list(ir.iter_values(graph))
    io_names = [str(value.name) for value in (*graph.graph.inputs, *graph.graph.outputs)]
    computed = list(dict.fromkeys([*io_names, *(str(value.name) for value in values)]))
    dumped = {
        str(value.name)
        for value in values
        if ir.producer(value) and (value.dtype is None or value.dtype.name != "FLOAT")
    }
    used_names = set(computed)
    constants = [str(name) for name in graph.graph.initializers if name not in used_names]
    used_names |= {*constants, *ir.get_subgraph_tensor_names(graph)}
    dump_stems: set[str] = set()
    tensor_names: dict[str, str] = {}
    for name in sorted(computed, key=lambda name: not is_safe(name)):
        safe_name = _make_unique_name(
            name, used_names, dump_stems if name in dumped else (), part_names
        )
        tensor_names[name] = safe_name
        if name in dumped:
            dump_stems.add(_get_dump_stem(safe_name))
        used_names.add(safe_name)
    for name in constants:
        tensor_names[name] = _make_unique_name(name, used_names, (), part_names)
        used_names.add(tensor_names[name])
    return tensor_names


def _assign_node_names(graph: ir.Model, part_names: Collection[str]) -> dict[str, str]:
    """Map each node name of `graph` to a unique safe one, not in `part_names`; safe names stay."""
    original_names = [str(node.name) for node in graph.graph]
    node_names = {name: name for name in original_names if is_safe(name) and name not in part_names}
    for name in original_names:
        if name not in node_names:
            used_names = {*original_names, *node_names.values(), *part_names}
            node_names[name] = ir.unique_name(_sanitize_name(name), used_names)
    return node_names


def _make_unique_name(
    name: str, used_names: set[str], dump_stems: Collection[str], part_names: Collection[str]
) -> str:
    """Return a safe form of `name` that is not in `used_names` and whose dump stem is free.

    `name` itself may be in `used_names`, but not in `part_names`. If taken, a suffix _2, _3, ... is
    appended and the base shortened to 64 characters in all. The sets are not changed.
    """
    candidate = base = _sanitize_name(name)
    suffix_number = 1
    while (
        (candidate in used_names and candidate != name)
        or candidate in part_names
        or _get_dump_stem(candidate) in dump_stems
    ):
        suffix_number += 1
        suffix = f"_{suffix_number}"
        candidate = f"{base[: _DUMP_NAME_LENGTH - len(suffix)]}{suffix}"
    return candidate
