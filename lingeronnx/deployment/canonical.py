"""A part under names of its own kind.

Two parts that differ in nothing but names are one package, or one C function.
Such are the steps of an unrolled recurrent layer: they share weights and scales, and read and write
other tensors. Tensors are called in the order in which they appear: inputs, outputs, then node by
node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from ..graph import ir
from ..run.program_parts import ProgramPart

__all__ = ["CanonicalPart", "canonicalize_part", "find_equal_parts"]


class CanonicalPart:
    """A part's bytes under canonical names, and its own names in the same order."""

    def __init__(self, content: bytes, names: Sequence[str]) -> None:
        self.content, self.names = content, tuple(names)


def canonicalize_part(part: ProgramPart) -> CanonicalPart | None:
    """Return the canonical form.

    None for a part with subgraphs, or with inputs whose sizes are not told.
    """
    model = ir.to_proto(part.graph)
    graph = model.graph
    if not all(_has_known_sizes(value) for value in graph.input):
        return None
    if any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute):
        return None
    order = dict.fromkeys(
        [
            *part.inputs,
            *part.outputs,
            *(name for node in graph.node for name in (*node.input, *node.output) if name),
        ]
    )
    names = {name: f"t{number}" for number, name in enumerate(order)}
    made = onnx.ModelProto(opset_import=model.opset_import, functions=model.functions)
    for node in graph.node:
        copy = made.graph.node.add()
        copy.CopyFrom(node)
        copy.name, copy.doc_string = "", ""
        del copy.metadata_props[:]
        copy.input[:] = [names[name] if name else "" for name in node.input]
        copy.output[:] = [names[name] if name else "" for name in node.output]
    constants = {c.name: c for c in graph.initializer}
    for name in order:
        if name in constants:
            array = onnx.numpy_helper.to_array(constants[name])
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, names[name]))
    for ours, theirs in ((made.graph.input, graph.input), (made.graph.output, graph.output)):
        for value in theirs:
            ours.add(name=names[value.name]).type.CopyFrom(value.type)
    return CanonicalPart(
        bytes([part.chip]) + made.SerializeToString(deterministic=True), list(order)
    )


def _has_known_sizes(value: onnx.ValueInfoProto) -> bool:
    """Whether each size of a tensor is a number, or has a name, which is the same number in all of a graph."""
    kind = value.type.tensor_type
    return kind.HasField("shape") and all(
        dim.HasField("dim_value") or dim.dim_param for dim in kind.shape.dim
    )


def find_equal_parts(parts: Sequence[ProgramPart]) -> dict[str, tuple[str, Mapping[str, str]]]:
    """Return for each part, by name, the first one that is equal to it, and {its own tensor.

    That one's}.
    """
    known: dict[bytes, tuple[str, CanonicalPart]] = {}
    found: dict[str, tuple[str, Mapping[str, str]]] = {}
    for part in parts:
        form = canonicalize_part(part)
        if form is None:
            found[part.name] = (part.name, {})
            continue
        name, first = known.setdefault(form.content, (part.name, form))
        found[part.name] = (name, dict(zip(form.names, first.names, strict=True)))
    return found
