"""Digests that identify equal computations in two graphs, regardless of tensor and node names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..common.hashing import hash_framed_parts
from . import ir

__all__ = ["compute_output_digest", "compute_value_digests", "have_same_structure"]


def compute_value_digests(model: ir.Model, include_subgraphs: bool = False) -> dict[str, bytes]:
    """Compute a digest of the computation of each tensor.

    It covers operators, attributes, constants and the names of graph inputs, but no other names.
    Tensors downstream of a tensor without a digest have none either.

    Parameters
    ----------
    model
        The graph.
    include_subgraphs
        Whether to include nodes with subgraphs and all nodes downstream. Names inside subgraphs
        then affect the digest.

    Returns
    -------
    dict of str to bytes
        Tensor name -> digest, for graph inputs and node outputs; constants have no entry.
    """
    digests = {
        str(v.name): hash_framed_parts((b"input", str(v.name).encode())) for v in model.graph.inputs
    }
    for node in model.graph:
        if ir.has_subgraphs(node) and not include_subgraphs:
            continue
        node_digest = _node_digest(node, digests)
        if node_digest is None:
            continue
        for index, value in enumerate(node.outputs):
            if value.name:
                digests[str(value.name)] = hash_framed_parts((node_digest, str(index).encode()))
    return digests


def _node_digest(node: ir.Node, digests: dict[str, bytes]) -> bytes | None:
    """Return a digest of `node` and all that it reads; None if an input has no digest.

    Attributes count in the order of their names, names of nodes and tensors do not. `digests` maps
    tensor names to digests. Tensors read inside subgraphs count too; those without a digest, such
    as inner ones, all count the same.
    """
    attributes = sorted(ir.serialize_node(node).attribute, key=lambda attribute: attribute.name)
    input_digests: list[bytes] = []
    for value in node.inputs:
        input_digest = _input_digest(value, digests)
        if input_digest is None:
            return None
        input_digests.append(input_digest)
    if ir.has_subgraphs(node):
        for value in _iter_subgraph_inputs(node):
            input_digests.append(_input_digest(value, digests) or b"inner")
    return hash_framed_parts(
        (
            node.domain.encode(),
            node.op_type.encode(),
            *(attribute.SerializeToString(deterministic=True) for attribute in attributes),
            b"reads",
            *input_digests,
        )
    )


def compute_output_digest(model: ir.Model) -> str:
    """Return a hexadecimal digest of how the graph outputs are computed, in their order.

    It includes nodes with subgraphs. "" if an output has no digest.
    """
    digests = compute_value_digests(model, include_subgraphs=True)
    output_digests: list[bytes] = []
    for value in model.graph.outputs:
        digest = digests.get(str(value.name))
        if digest is None:
            return ""
        output_digests.append(digest)
    return hash_framed_parts(output_digests).hex()


def have_same_structure(first: ir.Model, second: ir.Model) -> bool:
    """Whether two graphs are the same, names included, except for the elements of constants.

    int64 constants, which hold shapes and indices, must have equal elements too.
    """
    return _describe_structure(first) == _describe_structure(second)


def _describe_structure(model: ir.Model) -> tuple[list[bytes], list[tuple[object, ...]]]:
    """Return the serialized nodes of `model`, and (name, type, shape, elements) of its tensors.

    These are graph inputs and constants; only those of type int64 have elements.
    """
    nodes = [ir.serialize_node(node).SerializeToString(deterministic=True) for node in model.graph]
    tensors: list[tuple[object, ...]] = [
        (value.name, value.type, ir.get_shape(value), None) for value in model.graph.inputs
    ]
    for name, value in sorted(model.graph.initializers.items()):
        array = ir.require_const_value(value)
        elements = array.tobytes() if array.dtype == np.int64 else None
        tensors.append((name, array.dtype, array.shape, elements))
    return nodes, tensors


def _iter_subgraph_inputs(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the inputs of all nodes in the subgraphs of `node`, nested ones included.

    Absent inputs are skipped.
    """
    for attribute in node.attributes.values():
        for body in ir.get_subgraphs(attribute):
            for inner in body.all_nodes():
                yield from (value for value in inner.inputs if value is not None)


def _input_digest(value: ir.Value | None, digests: dict[str, bytes]) -> bytes | None:
    """Return the digest of `value`, an input of a node.

    None if it is computed and not in `digests`. Constants are hashed by type, shape and elements;
    an absent input has a digest of its own.
    """
    if value is None:
        return b"absent"
    array = ir.const_value(value)
    if array is None:
        return digests.get(str(value.name))
    return hash_framed_parts(
        (array.dtype.str.encode(), repr(array.shape).encode(), array.tobytes())
    )
