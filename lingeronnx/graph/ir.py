"""The one importer of onnx_ir.

Load and save models, read constants and attributes, make and replace nodes.
Everything above works on `onnx_ir.Model` through what stands here; nothing here knows quantization
or a platform. Functions that change a graph change it in place; callers that need the old one clone
first (`clone`). One file although it is long: that onnx_ir is met here alone is what it is for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx

from ..errors import InternalError, ModelError
from ..files import temporary_folder
from . import onnx_file
from ._deferred_import import defer_imports

with defer_imports(
    "sympy", "onnx_ir._symbolic_shapes"
):  # for sums of unknown sizes alone, and half of the time to import
    import onnx_ir as oir
    from onnx_ir.passes import common

logging.getLogger("onnx_ir").setLevel(
    logging.CRITICAL
)  # its remarks on files are no user's business

#: Domain of composite float operators: model-local functions that onnxruntime inlines.
FUNCTION_DOMAIN = "lingeronnx"

#: Where a node keeps the name of the user's node that it was made for; it lives in memory only.
_ORIGIN = "lingeronnx.origin"

#: Where a node keeps the operator of the user's node that it was made for.
_ORIGIN_OPERATOR = "lingeronnx.operator"

#: Forms that only passes write, for one operator of the user's.
_PASS_ONLY_OPS = frozenset({"BatchNormalization", "Curve", "Linear"})

#: Where a node keeps the name that constants made for it are called after, likewise.
_CONSTANT_BASE_NAME = "lingeronnx.shared"

#: Bytes of one model file, protobuf's own limit less a margin for what surrounds the tensors.
MAX_MODEL_BYTES = (1 << 31) - (1 << 24)

#: Opset of a model that does not say its own.
DEFAULT_OPSET = 13

#: The first IR version in which an initializer need not be listed among the graph inputs.
_MIN_IR_VERSION = 4

#: Bytes from which on a constant is kept apart from the protobuf form of its model (`detach_large_constants`).
_MIN_DETACHED_BYTES = 1 << 14

#: Element types that onnx and numpy hold alike.
_NUMPY_DTYPES = frozenset(
    oir.DataType[kind]
    for kind in (
        "BOOL",
        "DOUBLE",
        "FLOAT",
        "FLOAT16",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
    )
)

Model = oir.Model  # the design's word: a model before or after lowering
Node = oir.Node
Value = oir.Value
Graph = oir.Graph  # the nodes of a model, of a function or of a branch
Function = oir.Function
Attr = oir.Attr
RefAttr = oir.RefAttr
AttributeType = oir.AttributeType
DataType = oir.DataType
TensorType = oir.TensorType
Tensor = oir.TensorProtocol
Shape = oir.Shape

#: A dimension: a number, a name or symbol, None where nothing is known.
Dim = int | str | oir.SymbolicDim | None
node = oir.node
tensor = oir.tensor


def load(path: str | os.PathLike[str]) -> Model:
    """Read the ONNX file at `path`, external data included.

    Raises ModelError for a missing, truncated or otherwise unreadable file, for a graph that is not
    sound and for external data outside the folder of the model.
    """
    return from_proto(onnx_file.read_model(path), str(path))


class HasGraph(Protocol):
    """What has a graph, as what `quantize` returns has."""

    @property
    def graph(self) -> Model:
        """The graph."""


#: What is taken where a model is asked for: a path, a protobuf model, a graph, or what `quantize` returned.
ModelLike = str | os.PathLike[str] | onnx.ModelProto | Model | HasGraph


def as_model(model: ModelLike) -> Model:
    """Return the graph in memory as it is, that of a protobuf model, or the one in a file.

    ModelError as by `load`.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return load(model)
    if not isinstance(model, onnx.ModelProto):
        if isinstance(held := getattr(model, "graph", None), Model):
            return held
        raise ModelError(
            f"a {type(model).__name__} is no model; give the path of an .onnx file or an "
            "onnx.ModelProto"
        )
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    onnx_file.check_no_external_data(proto)
    return from_proto(proto)


def as_model_proto(model: ModelLike) -> onnx.ModelProto | None:
    """Return the protobuf model that was given, or that a file holds, as it is.

    None of a graph in memory.
    """
    if isinstance(model, str | os.PathLike):
        return onnx_file.read_model(model)
    return model if isinstance(model, onnx.ModelProto) else None


def model_label(model: ModelLike) -> str:
    """Return what errors call a model: its path, or "the model" where it has none."""
    return str(model) if isinstance(model, str | os.PathLike) else "the model"


def as_owned_model(model: ModelLike) -> Model:
    """Return the graph as `as_model` does, to be changed: one that the caller holds is copied."""
    graph = as_model(model)
    return graph if isinstance(model, str | os.PathLike | onnx.ModelProto) else clone(graph)


def from_proto(proto: onnx.ModelProto, label: str = "the model") -> Model:
    """Turn a protobuf model into the in-memory form; `label` names it in errors (ModelError)."""
    try:
        onnx_file.check_structure(proto)
        model = oir.from_proto(proto)
        _normalize_domain_name(model)
        _clear_negative_dims(model)
        model.ir_version = max(model.ir_version or 0, _MIN_IR_VERSION)
        model.graph.sort()
    except ModelError as error:
        raise ModelError(f"cannot use {label}: {error}") from error
    except Exception as error:
        raise ModelError(
            f"cannot use {label}: the graph is damaged ({_first_line(error)}); export it again"
        ) from error
    _materialize_constants(model)
    assign_node_names(model)
    return model


def _materialize_constants(model: Model) -> None:
    """Let constants be arrays.

    Of a protobuf message, data are a new copy whenever somebody looks at them.
    """
    scopes: list[Any] = [model.graph, *model.functions.values()]
    for scope in scopes:
        for value in getattr(scope, "initializers", {}).values():
            value.const_value = _materialize_tensor(value.const_value)
        for node in iter_nodes_recursive(scope):
            for name, attribute in node.attributes.items():
                if attribute.type == AttributeType.TENSOR and not attribute.is_ref():
                    node.attributes[name] = _materialize_attribute(attribute)
                for body in get_subgraphs(attribute):
                    for value in body.initializers.values():
                        value.const_value = _materialize_tensor(value.const_value)


def _materialize_tensor(tensor: Any) -> Any:  # noqa: ANN401 - a tensor or None, as it is given
    """Return a tensor as one that holds an array, where numpy has its type; any other as it is."""
    if not isinstance(tensor, oir.serde.TensorProtoTensor) or tensor.dtype not in _NUMPY_DTYPES:
        return tensor
    try:
        array = tensor.numpy()
    except (AssertionError, ValueError, TypeError) as error:
        raise ModelError(
            f"constant '{tensor.name}' keeps its values in the field of another type; the file is "
            "damaged"
        ) from error
    return oir.Tensor(array, name=tensor.name, doc_string=tensor.doc_string)


def _materialize_attribute(attribute: Attr) -> Attr:
    """Return an attribute whose tensor holds an array.

    As it is where that would be written in other bytes.
    """
    tensor = attribute.value
    raw = isinstance(tensor, oir.serde.TensorProtoTensor) and tensor.raw.HasField("raw_data")
    array = _materialize_tensor(tensor) if raw else tensor
    return (
        attribute
        if array is tensor
        else oir.AttrTensor(attribute.name, array, doc_string=attribute.doc_string)
    )


def _clear_negative_dims(model: Model) -> None:
    """Leave the sizes open that the file writes as -1: some exporters know no other word for it."""
    scopes: list[Graph | Function] = [model.graph, *model.functions.values()]
    values: list[Value] = []
    for scope in scopes:
        values.extend(scope.inputs)
        for node in iter_nodes_recursive(scope):
            values.extend(node.outputs)
            values.extend(value for graph in _iter_subgraphs(node) for value in graph.inputs)
    for value in values:
        if value.shape is not None and any(
            isinstance(size, int) and size < 0 for size in value.shape
        ):
            value.shape = make_shape(
                [None if isinstance(s, int) and s < 0 else s for s in value.shape]
            )


def _iter_subgraphs(node: Node) -> Iterator[Graph]:
    """Yield the graphs that a node holds."""
    for attribute in node.attributes.values():
        yield from get_subgraphs(attribute)


def _normalize_domain_name(model: Model) -> None:
    """Call the standard domain "", which may also be spelt "ai.onnx"."""
    scopes: list[Graph | Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        if "ai.onnx" in scope.opset_imports:
            scope.opset_imports.setdefault("", scope.opset_imports.pop("ai.onnx"))
        for node in iter_nodes_recursive(scope):
            if node.domain == "ai.onnx":
                node.domain = ""


def assign_node_names(model: Model) -> None:
    """Give every node a unique name: selectors and reports speak of nodes by name.

    Nodes that were made for others (`origin_name`) give way to the user's own.
    """
    taken: set[str] = set()
    for node in sorted(model.graph, key=lambda node: _ORIGIN in node.meta):
        base = node.name or f"{node.op_type}_{node.outputs[0].name if node.outputs else len(taken)}"
        node.name = unique_name(base, taken)
        taken.add(node.name)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def to_proto(model: Model) -> onnx.ModelProto:
    """Return the protobuf form of `model`."""
    return oir.to_proto(model)


def detach_large_constants(model: Model) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the protobuf form of `model` without its large constants, and these by name.

    In the protobuf form these say that their data lie in a file, which there is not.
    """
    apart: dict[str, np.ndarray] = {}
    large = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if (
            tensor is None
            or tensor.nbytes < _MIN_DETACHED_BYTES
            or tensor.dtype not in _NUMPY_DTYPES
            or not value.uses()
        ):
            continue
        if value.is_graph_input() or value.is_graph_output():
            continue
        apart[name], large[name] = np.asarray(tensor.numpy(), order="C"), tensor
    try:
        for name, tensor in large.items():
            model.graph.initializers[name].const_value = oir.ExternalTensor(
                "apart",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=oir.Shape(tensor.shape.numpy()),
                name=name,
            )
        return oir.to_proto(model), apart
    finally:
        for name, tensor in large.items():
            model.graph.initializers[name].const_value = tensor


def reattach_constants(
    proto: onnx.ModelProto, constants: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """Return what `detach_large_constants` has taken apart as one message."""
    message = onnx.ModelProto()
    message.CopyFrom(proto)
    for tensor in message.graph.initializer:
        if tensor.name in constants:
            tensor.CopyFrom(onnx.numpy_helper.from_array(constants[tensor.name], tensor.name))
    return message


def to_bytes(model: Model) -> bytes:
    """Return `model` as one piece to send elsewhere.

    ModelError above the two gigabytes that protobuf takes.
    """
    try:
        return to_proto(model).SerializeToString()
    except ValueError as error:
        raise ModelError(
            "the model has more than 2 GB: it cannot be sent to another process; leave workers and "
            "cluster out"
        ) from error


def from_bytes(content: bytes) -> Model:
    """Return the model that `to_bytes` wrote."""
    return from_proto(onnx.ModelProto.FromString(content))


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write `model` to `path`, as a whole or not at all; the bytes depend on the model alone.

    Above `MAX_MODEL_BYTES` bytes the weights go into a second file beside it,
    ``<name>.onnx.<digest>.data``.
    """
    onnx_file.write_model(to_proto(model), path, MAX_MODEL_BYTES)


@contextlib.contextmanager
def session_source(proto: onnx.ModelProto) -> Iterator[bytes | str]:
    """Yield what a session can be opened from.

    The serialized `proto`, or above `MAX_MODEL_BYTES` the path of a file.
    A large `proto` is used up: its tensors move to the file, which is gone afterwards.
    """
    if not onnx_file.exceeds_size_limit(proto, MAX_MODEL_BYTES):
        yield proto.SerializeToString()
        return
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        onnx_file.write_model(proto, path, MAX_MODEL_BYTES)
        yield str(path)


def node_proto(node: Node) -> onnx.NodeProto:
    """Return the protobuf form of one node."""
    return oir.serde.serialize_node(node)


def function_proto(function: Function) -> onnx.FunctionProto:
    """Return the protobuf form of a model-local function."""
    return oir.to_proto(function)


def clone(model: Model) -> Model:
    """Return an independent copy; constant data are shared, they are never changed in place."""
    return model.clone() if hasattr(model, "clone") else oir.from_proto(oir.to_proto(model))


# ---- reading -------------------------------------------------------------------------------------------------------


def find_constant(value: Value | None) -> np.ndarray | None:
    """Return the constant that `value` is: an initializer, or what a Constant node holds.

    None where it is computed.
    """
    maker = producer(value)
    if (
        maker is not None
        and maker.op_type == "Constant"
        and not maker.domain
        and "value" in maker.attributes
    ):
        return np.asarray(get_attr(maker, "value"))
    return const_value(value)


def const_value(value: Value | None) -> np.ndarray | None:
    """Return the constant held by `value` (an initializer that is not a graph input), or None.

    Raises ModelError where its bytes are not those of its type and sizes.
    """
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    try:
        return value.const_value.numpy()
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"constant '{value.name}' has not the bytes of its type and sizes; the file is "
            "damaged, write it again"
        ) from error


def require_const_value(value: Value | None) -> np.ndarray:
    """Return what `const_value` returns for a tensor that is known to be a constant (InternalError otherwise)."""
    array = const_value(value)
    if array is None:
        raise InternalError(
            f"{value.name if value is not None else 'an absent input'} is no constant"
        )
    return array


def get_attr(node: Node, name: str, default: Any = None) -> Any:  # noqa: ANN401 - the caller knows the operator
    """Return attribute `name` as a Python value (int, float, str, list), or `default`."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    value = attribute.value
    if attribute.type == oir.AttributeType.TENSOR:
        try:
            return value.numpy()
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"{node.op_type} {node.name}: the tensor in its attribute '{name}' is damaged; "
                "export the model again"
            ) from error
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def get_opset(model: Model) -> int:
    """Return the version of the standard operators that `model` uses, `DEFAULT_OPSET` where it says none."""
    return model.opset_imports.get("") or DEFAULT_OPSET


def base_op_type(node: Node) -> str:
    """Return what `node` computes.

    Its operator, of a function of ours without what tells bodies of a kind apart.
    """
    return node.op_type.partition("_")[0] if node.domain == FUNCTION_DOMAIN else str(node.op_type)


def read_json_metadata(model: Model, key: str) -> dict[str, Any]:
    """Return the metadata `key` of `model`, a JSON object; an empty one where it has none.

    ModelError for others.
    """
    try:
        found = json.loads(model.metadata_props.get(key, "{}"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ModelError(
            f"the metadata '{key}' are no JSON object; the file is damaged, export it again"
        )
    return found


def get_axes(node: Node, index: int = 1) -> list[int] | None:
    """Return the axes of a node, an attribute or from opset 13 on its input `index`.

    None when absent or computed.
    """
    stored = get_attr(node, "axes")
    if stored is None and len(node.inputs) > index:
        array = const_value(node.inputs[index])
        stored = None if array is None else [int(axis) for axis in array.reshape(-1)]
    return stored


def formal_input_name(node: Node, index: int) -> str:
    """Return what onnx's schema calls input `index` of a standard operator, such as "B".

    "" where it has none.
    """
    try:
        formal = onnx.defs.get_schema(node.op_type, node.domain).inputs
    except onnx.defs.SchemaError:
        return ""
    return str(formal[min(index, len(formal) - 1)].name) if formal else ""


def compute_digest(model: Model) -> str:
    """Return a digest of what `model` computes: its nodes, constants, inputs and outputs."""
    hasher = hashlib.sha256()
    for value in (*model.graph.inputs, *model.graph.outputs):
        hasher.update(f"{value.name} {value.type} {value.shape}\n".encode())
    for node in model.graph:
        hasher.update(node_proto(node).SerializeToString(deterministic=True))
    for function in model.functions.values():
        hasher.update(function_proto(function).SerializeToString(deterministic=True))
    for name, value in model.graph.initializers.items():
        hasher.update(f"{name} {value.type} {value.shape}\n".encode())
        if value.const_value is not None:
            hasher.update(value.const_value.tobytes())
    return hasher.hexdigest()


def has_subgraphs(node: Node) -> bool:
    """Whether `node` has subgraphs."""
    return any(
        a.type in (AttributeType.GRAPH, AttributeType.GRAPHS) for a in node.attributes.values()
    )


def get_subgraphs(attribute: Attr) -> list[Graph]:
    """Return the graphs that an attribute holds."""
    if attribute.type == AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == AttributeType.GRAPHS else []


def iter_nodes_recursive(scope: Graph | Function) -> Iterator[Node]:
    """Yield the nodes of a graph or function, those of subgraphs too."""
    return iter(oir.traversal.RecursiveGraphIterator(scope))


def import_opsets(opsets: dict[str, int], nodes: Iterable[Node], model: Model) -> None:
    """Add to `opsets` what `model` imports of the other domains that `nodes`, with their subgraphs, are of."""
    used = set()
    for node in nodes:
        used.add(node.domain)
        for attribute in node.attributes.values():
            used.update(
                inner.domain
                for graph in get_subgraphs(attribute)
                for inner in iter_nodes_recursive(graph)
            )
    for domain in used & model.graph.opset_imports.keys():
        opsets.setdefault(domain, model.graph.opset_imports[domain])


def require_input(node: Node, index: int = 0) -> Value:
    """Return input `index` of `node`, which must be present (InternalError otherwise)."""
    value = node.inputs[index]
    if value is None:
        raise InternalError(f"{node.op_type} {node.name} has no input {index}")
    return value


def input_name(node: Node, index: int = 0) -> str:
    """Return the name of input `index` of `node`, which must be present."""
    return str(require_input(node, index).name)


def output_name(node: Node) -> str:
    """Return the name of the first output of `node`."""
    return str(node.outputs[0].name)


def get_shape(value: Value | None) -> tuple[int | None, ...] | None:
    """Return the shape with None for every dimension that is not a number.

    None where the rank is unknown.
    """
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def require_shape(value: Value | None) -> tuple[int | None, ...]:
    """Return `get_shape` of a tensor behind shape inference, where every rank is known (InternalError otherwise)."""
    sizes = get_shape(value)
    if sizes is None:
        raise InternalError(
            f"{value.name if value is not None else 'an absent input'} has no shape"
        )
    return sizes


def mark_folded_batch(value: Value, folded: bool) -> None:
    """Note whether axis 0 of `value` holds several rows of each sample.

    It grows with the batch, but is not it.
    """
    value.meta["lingeronnx.folded_batch"] = folded


def has_folded_batch(value: Value) -> bool:
    """Return what `mark_folded_batch` noted."""
    return bool(value.meta.get("lingeronnx.folded_batch", False))


def mark_origin(node: Node, old: Node) -> None:
    """Note that `node` is made for `old`, or in its place."""
    node.meta[_ORIGIN] = origin_name(old)
    node.meta[_ORIGIN_OPERATOR] = old.meta.get(_ORIGIN_OPERATOR, base_op_type(old))


def origin_name(node: Node) -> str:
    """Return the name of the user's node that `node` was made for.

    Its own where it is the user's.
    """
    return str(node.meta.get(_ORIGIN, node.name))


def mark_fused(node: Node, old: Sequence[Node]) -> None:
    """Note that `node` stands for all of `old`."""
    node.meta[_ORIGIN_OPERATOR] = ", ".join(dict.fromkeys(display_op_type(each) for each in old))


def display_op_type(node: Node) -> str:
    """Return what users call the operator of `node`.

    What they wrote where it stands in its place in another form.
    """
    return (
        str(node.meta.get(_ORIGIN_OPERATOR, base_op_type(node)))
        if base_op_type(node) in _PASS_ONLY_OPS
        else base_op_type(node)
    )


def set_constant_base_name(node: Node, name: str) -> None:
    """Note what constants that are made for `node` are called after, which nodes like it have in common."""
    node.meta[_CONSTANT_BASE_NAME] = name


def constant_base_name(node: Node) -> str:
    """Return what constants made for `node` are called after.

    What `set_constant_base_name` noted, else its first output.
    """
    return str(node.meta.get(_CONSTANT_BASE_NAME, node.outputs[0].name))


def has_constant_base_name(node: Node) -> bool:
    """Whether `set_constant_base_name` noted what `node` has in common with others."""
    return _CONSTANT_BASE_NAME in node.meta


def producer(value: Value | None) -> Node | None:
    """Return the node that computes `value`.

    None for graph inputs, initializers and absent inputs.
    """
    return None if value is None else value.producer()


def require_producer(value: Value | None) -> Node:
    """Return the node that computes `value`, which is known to be computed (InternalError otherwise)."""
    node = producer(value)
    if node is None:
        raise InternalError(
            f"{value.name if value is not None else 'an absent input'} is computed by no node"
        )
    return node


def sole_consumer(value: Value) -> Node | None:
    """Return the node that alone reads `value` (once), or None.

    A graph output is read by the outside as well.
    """
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def is_exclusive_initializer(value: Value) -> bool:
    """Whether `value` is an initializer that one node alone reads (once), no default of an input.

    It may go with it.
    """
    return (
        value.is_initializer() and not value.is_graph_input() and sole_consumer(value) is not None
    )


def iter_values(model: Model) -> Iterator[Value]:
    """Yield the tensors a run computes, in graph order: graph inputs, then every node's outputs."""
    for value in model.graph.inputs:
        if value.const_value is None:
            yield value
    for node in model.graph:
        for value in node.outputs:
            if value.name:
                yield value


# ---- changing ------------------------------------------------------------------------------------------------------


def unique_tensor_name(model: Model, base: str) -> str:
    """Return `base`, or `base` with a number when some tensor has that name already."""
    return unique_name(base, get_tensor_names(model))


def get_tensor_names(model: Model) -> set[str]:
    """Return the names of all tensors of `model`, constants included."""
    return {str(value.name) for value in iter_values(model)} | set(model.graph.initializers)


def unique_name(base: str, taken: Collection[str]) -> str:
    """Return `base`, or `base` with a number when it is in `taken`."""
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def reserve_name(base: str, taken: set[str]) -> str:
    """Return `base`, with a number where it is in `taken`, to which it is added."""
    name = unique_name(base, taken)
    taken.add(name)
    return name


def add_initializer(model: Model, name: str, array: np.ndarray) -> Value:
    """Register the constant `array` under `name` (which must be free) and return its value."""
    tensor = oir.tensor(np.asarray(array, order="C"), name=name)
    value = oir.Value(
        name=name,
        shape=oir.Shape(array.shape),
        type=oir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    model.graph.register_initializer(value)
    return value


def set_initializer_value(value: Value, array: np.ndarray) -> None:
    """Let the initializer `value` hold `array`, of its shape and type, for all that read it."""
    value.const_value = oir.tensor(np.asarray(array, order="C"), name=value.name)


def convert_input_to_initializer(model: Model, value: Value, array: np.ndarray) -> None:
    """Make the graph input `value` an initializer that holds `array`."""
    model.graph.inputs.remove(value)
    value.const_value = oir.tensor(np.asarray(array, order="C"), name=value.name)
    value.shape, value.type = oir.Shape(array.shape), oir.TensorType(value.const_value.dtype)
    model.graph.register_initializer(value)


def set_constant_input(
    model: Model, node: Node, index: int, array: np.ndarray, suffix: str
) -> Value:
    """Make input `index` of `node` the constant `array`.

    The initializer keeps its name where `node` is its only reader; a shared one, or one that is a
    graph output, stays as it is and the node gets a new one named `<name>_<suffix>`.
    """
    old = node.inputs[index]
    if old is not None and is_exclusive_initializer(old):
        name = str(old.name)
        node.replace_input_with(index, None)
        del model.graph.initializers[name]
    else:
        base = old.name if old is not None and old.name else f"{node.outputs[0].name}"
        name = unique_tensor_name(model, f"{base}_{suffix}")
    value = add_initializer(model, name, array)
    node.replace_input_with(index, value)
    return value


def _to_attribute(name: str, value: object) -> Any:  # noqa: ANN401 - the union is onnx_ir's, which does not export it
    """Return a list of numbers as an attribute; of any other value onnx_ir itself finds the kind.

    It first asks of each number whether that is a tensor or a graph, which takes longer than all
    else about a node.
    """
    if isinstance(value, list | tuple) and value:
        if all(isinstance(number, int) for number in value):
            return oir.AttrInt64s(name, value)
        if all(isinstance(number, float) for number in value):
            return oir.AttrFloat32s(name, value)
    return value


def make_node(
    op_type: str,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    output: str,
    name: str = "",
    origin: Node | None = None,
    suffix: str = "",
    domain: str = "",
    like: Value | None = None,
) -> Node:
    """Return a node with one output called `output`, whose shape and type are those of `like` when given.

    Its name is `name`, or where it is made for the node `origin`, which is noted, that node's or
    `<of>_<what>`.
    """
    if origin is not None:
        name = f"{origin.name}_{suffix}" if suffix else str(origin.name)
    result = oir.Value(name=output)
    if like is not None:
        result.shape, result.type = like.shape, like.type
    converted = {key: _to_attribute(key, value) for key, value in (attributes or {}).items()}
    node = oir.node(op_type, inputs, converted, domain=domain, outputs=[result], name=name)
    if origin is not None:
        mark_origin(node, origin)
    return node


def replace_nodes(model: Model, old_nodes: Iterable[Node], new_nodes: Sequence[Node]) -> None:
    """Put `new_nodes` where `old_nodes` was.

    The last new node's output takes the name and the readers of the last old one's.
    """
    gone = list(old_nodes)
    last = gone[-1].outputs[0]
    result = new_nodes[-1].outputs[0]
    name = last.name
    oir.convenience.replace_nodes_and_values(
        model.graph, gone[-1], gone, list(new_nodes), [last], [result]
    )
    result.name = name


def replace_all_uses(old: Value, new: Value) -> None:
    """Let the readers of `old` read `new`.

    Where `old` is a graph output, `new` is one in its place.
    """
    oir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def remove_unused(model: Model) -> None:
    """Take out nodes, initializers and functions that nobody needs."""
    holding = [node for node in model.graph if has_subgraphs(node)]
    common.RemoveUnusedNodesPass()(model)
    while gone := [node for node in holding if node.graph is None]:
        _clear_subgraph_inputs(gone)
        holding = [node for node in holding if node.graph is not None]
        common.RemoveUnusedNodesPass()(model)
    if model.functions:
        common.RemoveUnusedFunctionsPass()(model)


def _clear_subgraph_inputs(gone: Iterable[Node]) -> None:
    """Let subgraphs of nodes that are gone read nothing.

    Onnx_ir counts them among the users of what they read.
    """
    for body in (
        body
        for node in gone
        for attribute in node.attributes.values()
        for body in get_subgraphs(attribute)
    ):
        for inner in iter_nodes_recursive(body):
            for place in range(len(inner.inputs)):
                inner.replace_input_with(place, None)


def inline_functions(model: Model) -> None:
    """Put the bodies of all model-local functions where they are called.

    Raises what onnx_ir raises.
    """
    common.InlinePass()(model)


def lift_constants(model: Model) -> bool:
    """Make initializers of the Constant nodes; return whether there was one."""
    return common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(
        model
    ).modified


def infer_types(model: Model) -> None:
    """Write the types that onnx infers into the values of the main graph that have none.

    Shapes stay as they are.
    """
    missing = {str(value.name): value for value in iter_values(model) if value.dtype is None}
    if not missing:
        return
    try:
        graph = onnx.shape_inference.infer_shapes(detach_large_constants(model)[0]).graph
    except Exception:  # a graph that it cannot read says nothing of types
        return
    for info in (*graph.value_info, *graph.output):
        kind = info.type.tensor_type.elem_type
        if info.name in missing and kind:
            missing[info.name].type = oir.TensorType(oir.DataType(kind))


def infer_shapes(model: Model) -> None:
    """Write onnx's shapes and types into the values of `model`."""
    common.ShapeInferencePass()(model)


def bypass_node(model: Model, node: Node, replacement: Value) -> None:
    """Take out `node` (one output), whose readers read `replacement` from then on.

    Where the node's output is a graph output, that name is kept by renaming `replacement`, if
    `replacement` is not a graph input or output itself; otherwise the node must stay and False is
    returned by `can_bypass_node`.
    """
    out = node.outputs[0]
    if out.is_graph_output():
        name = out.name
        replace_all_uses(out, replacement)
        model.graph.remove(node, safe=True)
        replacement.name = name
        return
    oir.convenience.replace_all_uses_with(out, replacement)
    model.graph.remove(node, safe=True)


def can_bypass_node(node: Node, replacement: Value) -> bool:
    """Whether `bypass_node` may take out `node`.

    False where it would have to rename a graph input or output.
    """
    pinned = (
        replacement.is_graph_input()
        or replacement.is_graph_output()
        or replacement.is_initializer()
    )
    return not (node.outputs[0].is_graph_output() and pinned)


def absorb_consumer(model: Model, node: Node, consumer: Node) -> None:
    """Take out `consumer`, whose work `node` (its producer) does from now on.

    `node`'s output takes `consumer`'s name.
    """
    out, result = consumer.outputs[0], node.outputs[0]
    name, kind, size = out.name, out.type, out.shape
    replace_all_uses(out, result)
    model.graph.remove(consumer, safe=True)
    result.name, result.type, result.shape = name, kind or result.type, size or result.shape


def rename_initializer(model: Model, value: Value, name: str) -> None:
    """Give the initializer `value` the free name `name`."""
    array = const_value(value)
    assert array is not None
    replacement = add_initializer(model, name, array)
    for user, index in list(value.uses()):
        user.replace_input_with(index, replacement)
    del model.graph.initializers[str(value.name)]


def rename(model: Model, tensors: Mapping[str, str], nodes: Mapping[str, str]) -> None:
    """Rename tensors, constants among them, and nodes of the main graph.

    No new name may be an old one too.
    Constant data may be shared with another graph: a renamed constant gets a tensor of its own.
    """
    graph = model.graph
    for value in list(graph.initializers.values()):
        new = tensors.get(str(value.name))
        if new is not None and value.const_value is not None:
            value.const_value = oir.tensor(value.const_value.numpy(), name=new)
    order = {id(value): place for place, value in enumerate(graph.initializers.values())}
    for value in {
        id(v): v for v in (*graph.inputs, *graph.initializers.values(), *_iter_outputs(graph))
    }.values():
        value.name = tensors.get(str(value.name), value.name)
    constants = sorted(graph.initializers.values(), key=lambda value: order[id(value)])
    graph.initializers.clear()
    graph.initializers.update({str(value.name): value for value in constants})
    for node in graph:
        node.name = nodes.get(str(node.name), node.name)


def _iter_outputs(graph: oir.Graph) -> Iterator[Value]:
    for node in graph:
        yield from (value for value in node.outputs if value.name)


def get_subgraph_tensor_names(model: Model) -> set[str]:
    """Return the names of the tensors in the bodies of control flow, which may not be those of outer tensors."""
    bodies = [
        a.as_graph()
        for node in model.graph
        for a in node.attributes.values()
        if a.type.name == "GRAPH"
    ]
    inner: set[str] = set()
    while bodies:
        body = bodies.pop()
        inner |= {
            str(v.name) for v in (*body.inputs, *body.initializers.values(), *_iter_outputs(body))
        }
        bodies += [
            a.as_graph()
            for node in body
            for a in node.attributes.values()
            if a.type.name == "GRAPH"
        ]
    return inner


def set_attr(node: Node, name: str, value: Any) -> None:  # noqa: ANN401 - as there
    """Set attribute `name` of `node` to a Python value."""
    value = oir.Tensor(value) if isinstance(value, np.ndarray) else value
    node.attributes[name] = oir.convenience.convert_attribute(name, value)


def make_shape(dims: Sequence[Dim]) -> oir.Shape:
    """Return an onnx_ir shape of `dims` (numbers, names or symbolic dimensions)."""
    return oir.Shape(dims)


def make_tensor_type(dtype: np.dtype) -> oir.TensorType:
    """Return the onnx_ir type of arrays of `dtype`."""
    return oir.TensorType(oir.DataType.from_numpy(dtype))
