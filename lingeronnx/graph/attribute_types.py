"""Of which types the attributes of nodes are: those that ONNX gives its own operators, numbers and texts for ours.

It is looked at once, when a file is read; whoever reads an attribute afterwards relies on it. Nothing here knows what
an operator computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache

import onnx
from onnx import AttributeProto, ModelProto, NodeProto

from ..errors import ModelError
from .readback import with_inner

__all__ = ["QUANTIZED", "check_attributes", "place"]

#: Domains of quantized graphs; old generations do not import theirs.
QUANTIZED = ("thinker", "linger")

_STANDARD = ("", "ai.onnx")

#: What operators of quantized graphs have: numbers, lists of them, and texts.
_PLAIN = (
    AttributeProto.INT,
    AttributeProto.FLOAT,
    AttributeProto.STRING,
    AttributeProto.INTS,
    AttributeProto.FLOATS,
)

#: What any node of a quantized graph may say of itself, those of standard operators too.
_TEXTS = {name: int(AttributeProto.STRING) for name in ("platform", "platform_quant", "quant_mode", "castor_mode")}


def check_attributes(proto: ModelProto) -> None:
    """Raise ModelError for an attribute of another type than its operator has, and for an operator without an input."""
    version = next((entry.version for entry in proto.opset_import if entry.domain in _STANDARD), None)
    for node in with_inner(proto.graph.node):
        if node.domain in QUANTIZED:
            _check_ours(node)
        elif node.domain in _STANDARD:
            types, least = (_TEXTS, 0) if version is None else _schema(node.op_type, version)
            _check_types(node, types)
            if least and not node.input:
                raise ModelError(f"{place(node)}: it has no input; the file is damaged")


def place(node: NodeProto) -> str:
    """Return how errors name a node."""
    name = node.name or (node.output[0] if node.output else "without a name")
    return f"{node.op_type} {name}"


def _check_ours(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type not in _PLAIN:
            raise ModelError(
                f"{place(node)}: its attribute '{attribute.name}' is of type {_type(attribute.type)}; it must be a "
                "number, a list of numbers or a text; the file is damaged"
            )
    _check_types(node, _TEXTS)


def _check_types(node: NodeProto, types: Mapping[str, int]) -> None:
    for attribute in node.attribute:
        wanted = types.get(attribute.name, attribute.type)
        if wanted != attribute.type:
            raise ModelError(
                f"{place(node)}: its attribute '{attribute.name}' is of another type than {_type(wanted)}; "
                "the file is damaged"
            )


def _type(number: int) -> str:
    known = AttributeProto.AttributeType.values()
    return AttributeProto.AttributeType.Name(number) if number in known else str(number)


@cache
def _schema(kind: str, version: int) -> tuple[Mapping[str, int], int]:
    """Return the types of the attributes of a standard operator, and how many inputs it needs.

    A node may have an attribute of another opset: it is read all the same, so it is of the type that it has there.
    """
    schemas = sorted(_history().get(kind, ()), key=lambda schema: schema.since_version)
    types = dict(_TEXTS)
    try:
        schemas.append(own := onnx.defs.get_schema(kind, version, ""))
    except onnx.defs.SchemaError:
        return types, 0
    for schema in schemas:
        types.update({name: spec.type.value for name, spec in schema.attributes.items()})  # type: ignore[attr-defined]
    return types, int(own.min_input)


@cache
def _history() -> Mapping[str, list[onnx.defs.OpSchema]]:
    """Return the schemas of all opsets by standard operator."""
    found = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].append(schema)
    return found
