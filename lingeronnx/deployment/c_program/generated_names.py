"""Replace every name and text of a model by generated ones, before another program writes its C.

emx-onnx-cgen writes names of tensors, nodes and graphs, attributes, doc strings and metadata into
comments and identifiers without escaping them. The copy is built from its structure alone: a text
that is not copied here cannot reach the C. Texts that have a meaning, such as the mode of a Resize,
must be plain words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from ...common.errors import ConstraintError
from ...ir.attributes import iter_nodes_recursive

__all__ = ["replace_names"]

#: Operator types, and texts in attributes and tensors: "half_pixel", "bij,bjk->bik".
_OPERATOR = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PLAIN_TEXT = re.compile(rb"[A-Za-z0-9_.,> -]*")
_DOMAINS = frozenset(
    {"", "com.microsoft", *(schema.domain for schema in onnx.defs.get_all_schemas())}
)
#: Fields of a tensor that hold values; the others are names and texts.
_TENSOR_TEXTS = ("name", "doc_string", "metadata_props", "external_data", "segment")
#: Fields of an attribute that hold numbers and plain words.
_ATTRIBUTE_VALUES, _ATTRIBUTE_LISTS = ("f", "i", "s"), ("floats", "ints", "strings")


def replace_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without functions, with generated names and without texts.

    Graph inputs become input0, input1, ..., outputs output0, ..., other tensors t0, ..., nodes n0,
    ... and dimensions d0, ...

    Raises
    ------
    ConstraintError
        If an operator or attribute is not of ONNX, or a text (string attribute or constant) has
        characters other than letters, digits and _.,->.
    """
    copier = _Copier()
    for prefix, values in (("input", model.graph.input), ("output", model.graph.output)):
        for index, value in enumerate(values):
            copier.tensor_names.setdefault(value.name, f"{prefix}{index}")
    graph = copier.copy_graph(model.graph)
    domains = {node.domain for node in iter_nodes_recursive(graph.node)} | {""}
    opsets = [
        onnx.helper.make_opsetid("" if opset.domain == "ai.onnx" else opset.domain, opset.version)
        for opset in model.opset_import
        if opset.domain in domains | {"ai.onnx"}
    ]
    return onnx.ModelProto(ir_version=model.ir_version, graph=graph, opset_import=opsets)


class _Copier:
    """Copies parts of a model; equal names get equal generated names.

    tensor_names : generated name of each tensor.
    """

    def __init__(self) -> None:
        """Start without generated names; numbers of nodes and graphs begin at 0."""
        self.tensor_names: dict[str, str] = {"": ""}
        self._dim_names: dict[str, str] = {}
        self._node_count = 0
        self._graph_count = 0

    def copy_graph(self, graph: GraphProto) -> GraphProto:
        """Copy a graph with generated names for itself, its nodes, tensors and dimensions.

        Documentation and other texts are left out. Raises ConstraintError for an operator,
        attribute or text that must not reach generated C.
        """
        copy = GraphProto(name=f"graph{self._graph_count}")
        self._graph_count += 1
        copy.input.extend(map(self._copy_value, graph.input))
        copy.output.extend(map(self._copy_value, graph.output))
        copy.initializer.extend(map(self._copy_tensor, graph.initializer))
        for sparse in graph.sparse_initializer:
            copy.sparse_initializer.add(
                values=self._copy_tensor(sparse.values),
                indices=self._copy_tensor(sparse.indices),
                dims=sparse.dims,
            )
        copy.node.extend(map(self._copy_node, graph.node))
        copy.value_info.extend(map(self._copy_value, graph.value_info))
        return copy

    def _get_tensor_name(self, name: str) -> str:
        """Return the generated name of a tensor, which is made at first use.

        "", the name of an omitted input, stays.
        """
        return self.tensor_names.setdefault(name, f"t{len(self.tensor_names)}")

    def _copy_value(self, value: ValueInfoProto) -> ValueInfoProto:
        """Copy the generated name and the type of a tensor.

        Types other than tensors are left out.
        """
        copy = ValueInfoProto(name=self._get_tensor_name(value.name))
        if value.type.HasField("tensor_type"):
            tensor_type = copy.type.tensor_type
            tensor_type.elem_type = value.type.tensor_type.elem_type
            if value.type.tensor_type.HasField("shape"):
                tensor_type.shape.SetInParent()
                for dim in value.type.tensor_type.shape.dim:
                    tensor_type.shape.dim.append(self._copy_dim(dim))
        return copy

    def _copy_dim(self, dim: Any) -> Any:  # noqa: ANN401 - protobuf has no type for it
        """Copy a dimension: its number, or a generated name if it has a name, or neither."""
        copy = type(dim)()
        if dim.HasField("dim_value"):
            copy.dim_value = dim.dim_value
        elif dim.dim_param:
            copy.dim_param = self._dim_names.setdefault(dim.dim_param, f"d{len(self._dim_names)}")
        return copy

    def _copy_tensor(self, tensor: TensorProto) -> TensorProto:
        """Copy a constant with its generated name (if it has a name), without other texts.

        Raises ConstraintError for strings that are not plain words.
        """
        _check_plain(tensor.string_data, "a constant")
        copy = TensorProto()
        copy.CopyFrom(tensor)
        for field in _TENSOR_TEXTS:
            copy.ClearField(field)
        if tensor.name:
            copy.name = self._get_tensor_name(tensor.name)
        return copy

    def _copy_node(self, node: NodeProto) -> NodeProto:
        """Copy a node with generated names; ConstraintError for an operator that is not of ONNX."""
        if _OPERATOR.fullmatch(node.op_type) is None or node.domain not in _DOMAINS:
            raise ConstraintError(
                f"node '{node.name}': {node.domain}.{node.op_type} is not an operator of ONNX"
            )
        copy = NodeProto(op_type=node.op_type, domain=node.domain, name=f"n{self._node_count}")
        self._node_count += 1
        copy.input.extend(map(self._get_tensor_name, node.input))
        copy.output.extend(map(self._get_tensor_name, node.output))
        for attribute in node.attribute:
            copy.attribute.append(self._copy_attribute(attribute, node))
        return copy

    def _copy_attribute(self, attribute: AttributeProto, node: NodeProto) -> AttributeProto:
        """Copy an attribute of a node: numbers, plain words, constants and subgraphs.

        Raises ConstraintError for an unknown attribute, or a text that is not a plain word.
        """
        description = f"attribute '{attribute.name}' of {node.op_type} '{node.name}'"
        if not _is_attribute(node, attribute.name):
            raise ConstraintError(f"{description} is unknown; remove it")
        _check_plain([attribute.s, *attribute.strings], description)
        copy = AttributeProto(name=attribute.name, type=attribute.type)
        for field in _ATTRIBUTE_VALUES:
            if attribute.HasField(field):
                setattr(copy, field, getattr(attribute, field))
        for field in _ATTRIBUTE_LISTS:
            getattr(copy, field).extend(getattr(attribute, field))
        if attribute.HasField("t"):
            copy.t.CopyFrom(self._copy_tensor(attribute.t))
        copy.tensors.extend(map(self._copy_tensor, attribute.tensors))
        if attribute.HasField("g"):
            copy.g.CopyFrom(self.copy_graph(attribute.g))
        copy.graphs.extend(map(self.copy_graph, attribute.graphs))
        return copy


def _is_attribute(node: NodeProto, name: str) -> bool:
    """Whether an operator has the attribute `name` in any version of ONNX.

    An operator that onnx does not define may have any attribute with a plain name.
    """
    if (node.op_type, node.domain) not in _collect_attributes():
        return _OPERATOR.fullmatch(name) is not None
    return name in _collect_attributes()[node.op_type, node.domain]


@functools.cache
def _collect_attributes() -> dict[tuple[str, str], set[str]]:
    """Collect {(operator type, domain): attribute names in all versions} of ONNX's operators."""
    attributes: dict[tuple[str, str], set[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        attributes.setdefault((schema.name, schema.domain), set()).update(schema.attributes)
    return attributes


def _check_plain(texts: Iterable[bytes], description: str) -> None:
    """Raise ConstraintError if a text has other characters than letters, digits and _.,->.

    Such a text could not stand in a comment. `description` names its place in the message.
    """
    for text in texts:
        if _PLAIN_TEXT.fullmatch(text) is None:
            raise ConstraintError(
                f"{description} is the text {text[:40]!r}; host parts in C take letters, digits "
                "and _.,-> only"
            )
