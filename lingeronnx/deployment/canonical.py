"""Rename the tensors of a program part canonically, to recognize parts that differ in names only.

Such parts share one package or one C function. The steps of an unrolled recurrent layer are an
example: they share weights and scales, and have other inputs and outputs. Tensors are numbered in
the order in which they appear: inputs, outputs, then node by node.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import onnx

from ..ir import ir
from ..runtime.program_parts import ProgramPart

__all__ = ["CanonicalPart", "canonicalize_part", "find_equal_parts"]


class CanonicalPart:
    """A serialized part with canonical tensor names, and its original names in that order."""

    def __init__(self, content: bytes, names: Sequence[str]) -> None:
        """Store the serialized part, and its original tensor names in the order of t0, t1, ..."""
        self.content, self.names = content, tuple(names)


def canonicalize_part(part: ProgramPart) -> CanonicalPart | None:
    """Rename the part's tensors to t0, t1, ... so that equal parts have equal content.

    The order is inputs, outputs, then operands node by node; names and texts of nodes are dropped.
    None if the part has subgraphs, or an input with a dimension that is neither a number nor a
    symbol.
    """
    model = ir.to_proto(part.graph)
    graph = model.graph
    if not all(_has_known_shape(value) for value in graph.input):
        return None
    attributes = itertools.chain.from_iterable(node.attribute for node in graph.node)
    if any(attribute.HasField("g") or attribute.graphs for attribute in attributes):
        return None
    order = _list_tensors(part, graph)
    names = {name: f"t{index}" for index, name in enumerate(order)}
    canonical = onnx.ModelProto(opset_import=model.opset_import, functions=model.functions)
    for node in graph.node:
        copy = canonical.graph.node.add()
        copy.CopyFrom(node)
        copy.name, copy.doc_string = "", ""
        del copy.metadata_props[:]
        copy.input[:] = [names.get(name, "") for name in node.input]
        copy.output[:] = [names.get(name, "") for name in node.output]
    constants = {constant.name: constant for constant in graph.initializer}
    for name in order:
        if name in constants:
            array = onnx.numpy_helper.to_array(constants[name])
            canonical.graph.initializer.append(onnx.numpy_helper.from_array(array, names[name]))
    for value in graph.input:
        canonical.graph.input.add(name=names[value.name]).type.CopyFrom(value.type)
    for value in graph.output:
        canonical.graph.output.add(name=names[value.name]).type.CopyFrom(value.type)
    content = bytes([part.chip]) + canonical.SerializeToString(deterministic=True)
    return CanonicalPart(content, order)


def _list_tensors(part: ProgramPart, graph: onnx.GraphProto) -> list[str]:
    """List all tensors of a part once: its inputs, its outputs, then operands node by node.

    Of a node, inputs come before outputs; absent ones are skipped.
    """
    order = dict.fromkeys([*part.inputs, *part.outputs])
    for node in graph.node:
        order.update(dict.fromkeys(name for name in (*node.input, *node.output) if name))
    return list(order)


def _has_known_shape(value: onnx.ValueInfoProto) -> bool:
    """Whether every dimension is a number or a symbol, which has one value in a graph.

    False for an unknown rank.
    """
    tensor_type = value.type.tensor_type
    return tensor_type.HasField("shape") and all(
        dim.HasField("dim_value") or dim.dim_param for dim in tensor_type.shape.dim
    )


def find_equal_parts(parts: Sequence[ProgramPart]) -> dict[str, tuple[str, Mapping[str, str]]]:
    """Find for each part the first part that is equal to it but for names; possibly itself.

    A part that cannot be canonicalized is equal to itself only, with an empty mapping.

    Returns
    -------
    dict of str to tuple
        Name of the part -> (name of the first equal part, {tensor: that part's tensor}).
    """
    first_by_content: dict[bytes, tuple[str, CanonicalPart]] = {}
    equal_parts: dict[str, tuple[str, Mapping[str, str]]] = {}
    for part in parts:
        canonical = canonicalize_part(part)
        if canonical is None:
            equal_parts[part.name] = (part.name, {})
            continue
        name, first = first_by_content.setdefault(canonical.content, (part.name, canonical))
        equal_parts[part.name] = (name, dict(zip(canonical.names, first.names, strict=True)))
    return equal_parts
