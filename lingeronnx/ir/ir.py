"""The only module that imports onnx_ir.

It loads and saves models, reads constants and attributes, and creates and replaces nodes.
Everything above works on `onnx_ir.Model` through the functions here; nothing here depends on
quantization or on a platform. Functions that change a graph change it in place; callers that still
need the original clone it first (`clone`). The file is long because it is the single boundary to
onnx_ir.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
import onnx

from ..common.errors import InternalError, ModelError
from ..common.files import temporary_folder
from . import onnx_file
from ._deferred_import import defer_imports
from .weight_values import check_weight_values

# onnx_ir needs sympy only for symbolic dimension arithmetic, and it takes half of the import time.
with defer_imports("sympy", "onnx_ir._symbolic_shapes"):
    import onnx_ir as oir
    from onnx_ir.passes import common

# Its log messages about files do not concern users.
logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)

#: Domain of composite float operators: model-local functions that onnxruntime inlines.
FUNCTION_DOMAIN = "lingeronnx"

#: Metadata key of the user's node that a node was created for. Exists in memory only.
_ORIGIN = "lingeronnx.origin"

#: Metadata key of the operator of that user's node.
_ORIGIN_OPERATOR = "lingeronnx.operator"

#: Operators that only passes create, in place of an operator of the user's.
_PASS_ONLY_OPS = frozenset({"BatchNormalization", "Curve", "Linear"})

#: Metadata key of the base name for constants that are created for a node.
_CONSTANT_BASE_NAME = "lingeronnx.shared"

#: Maximum size of one model file: protobuf's limit less a margin for everything but the tensors.
MAX_MODEL_BYTES = (1 << 31) - (1 << 24)

#: Opset of a model that does not declare one.
DEFAULT_OPSET = 13

#: The first IR version in which an initializer need not be listed among the graph inputs.
_MIN_IR_VERSION = 4

#: Minimum size of a constant that `detach_large_constants` removes from the protobuf model.
_MIN_DETACHED_BYTES = 1 << 14

#: Element types that ONNX and numpy store in the same way.
_NUMPY_DTYPES = frozenset(
    oir.DataType[type_name]
    for type_name in (
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

Model = oir.Model  # before or after lowering
Node = oir.Node
Value = oir.Value
Graph = oir.Graph  # the nodes of a model, of a function or of a branch
Function = oir.Function
Attr = oir.Attr
RefAttr = oir.RefAttr
AttributeType = oir.AttributeType
DataType = oir.DataType
TensorType = oir.TensorType
TensorProtocol = oir.TensorProtocol
Shape = oir.Shape
InlinePass = common.InlinePass
ShapeInferencePass = common.ShapeInferencePass

#: A dimension: a number, a name or symbol, or None if it is unknown.
Dim = int | str | oir.SymbolicDim | None
node = oir.node
tensor = oir.tensor
to_proto = oir.to_proto
serialize_node = oir.serde.serialize_node
serialize_function = oir.serde.serialize_function


def load(path: str | os.PathLike[str], label: str = "") -> Model:
    """Read the ONNX file at `path`, including its external data.

    Parameters
    ----------
    path
        The file.
    label
        Name of the model in error messages; default the path.

    Raises
    ------
    ModelError
        The file is missing, truncated or unreadable, its graph is malformed, external data are
        outside the folder of the model, or a weight is NaN or infinite.
    """
    return convert_user_model(onnx_file.read_model(path), label or str(path))


def convert_user_model(proto: onnx.ModelProto, label: str = "the model") -> Model:
    """Convert a protobuf model of the user to a graph in memory, and check its weights.

    `label` is its name in messages. Raises ModelError if the model is malformed, or a weight is NaN
    or infinite.
    """
    model = from_proto(proto, label)
    check_weight_values(proto, label)
    return model


class HasGraph(Protocol):
    """An object with a graph, such as the result of `quantize`."""

    @property
    def graph(self) -> Model:
        """The model as a graph in memory."""


#: Accepted forms of a model: a path, a protobuf model, a graph, or the result of `quantize`.
ModelLike = str | os.PathLike[str] | onnx.ModelProto | Model | HasGraph


def as_model(model: ModelLike) -> Model:
    """Return `model` as a graph in memory.

    A graph is returned unchanged, the result of `quantize` as its graph (not copied), a protobuf
    model is copied and converted, and a path is loaded.

    Raises
    ------
    ModelError
        As `load`, for a protobuf model with external data, and for objects of other types.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return load(model)
    if isinstance(model, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
        onnx_file.check_no_external_data(proto)
        return convert_user_model(proto)
    graph = getattr(model, "graph", None)
    if isinstance(graph, Model):
        return graph
    raise ModelError(
        f"a {type(model).__name__} is not a model; pass the path of an .onnx file or an "
        "onnx.ModelProto"
    )


def as_model_proto(model: ModelLike) -> onnx.ModelProto | None:
    """Return `model` as a protobuf model: a path is read, a protobuf model returned as it is.

    None for a graph in memory and all other objects. Raises ModelError if the file is missing or
    unreadable, or its external data are.
    """
    if isinstance(model, str | os.PathLike):
        return onnx_file.read_model(model)
    return model if isinstance(model, onnx.ModelProto) else None


def model_label(model: ModelLike) -> str:
    """Return the label of `model` for error messages: its path, or "the model"."""
    return str(model) if isinstance(model, str | os.PathLike) else "the model"


def as_owned_model(model: ModelLike) -> Model:
    """Return a graph that the caller may change: `model` cloned if it is a graph, else loaded.

    Raises ModelError if it cannot be loaded or is malformed, also if a weight is NaN or infinite.
    """
    graph = as_model(model)
    if isinstance(model, str | os.PathLike | onnx.ModelProto):
        return graph
    check_weight_values(to_proto(graph))
    return graph.clone()


def from_proto(proto: onnx.ModelProto, label: str = "the model") -> Model:
    """Convert a protobuf model to a graph in memory.

    Parameters
    ----------
    proto
        The model with its tensors in memory.
    label
        Name of the model in error messages.

    Raises
    ------
    ModelError
        The model is malformed.
    """
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
            f"cannot use {label}: the graph is malformed ({_first_line(error)}); export it again"
        ) from error
    _materialize_constants(model)
    assign_node_names(model)
    return model


def _materialize_constants(model: Model) -> None:
    """Convert the initializers and tensor attributes of `model` to arrays, in place.

    Functions and subgraphs are included. A constant backed by a protobuf message would copy its
    data at every access.
    """
    scopes: list[Any] = [model.graph, *model.functions.values()]
    for scope in scopes:
        _materialize_initializers(getattr(scope, "initializers", {}))
        for node in scope.all_nodes():
            for name, attribute in node.attributes.items():
                if attribute.type == AttributeType.TENSOR and not attribute.is_ref():
                    node.attributes[name] = _materialize_attribute(attribute)
                for body in get_subgraphs(attribute):
                    _materialize_initializers(body.initializers)


def _materialize_initializers(initializers: Mapping[str, Value]) -> None:
    """Convert the constants of `initializers` to arrays, in place."""
    for value in initializers.values():
        value.const_value = _materialize_tensor(value.const_value)


def _materialize_tensor(tensor: Any) -> Any:  # noqa: ANN401 - a tensor or None, as passed in
    """Return `tensor` backed by an array if numpy has its element type, else unchanged.

    Unchanged too if it is None or not backed by a protobuf message. Raises ModelError if its data
    are in the field of another type.
    """
    if not isinstance(tensor, oir.serde.TensorProtoTensor) or tensor.dtype not in _NUMPY_DTYPES:
        return tensor
    try:
        array = tensor.numpy()
    except (AssertionError, ValueError, TypeError) as error:
        raise ModelError(
            f"constant '{tensor.name}' stores its values in the field of another type; the file is "
            "malformed"
        ) from error
    return oir.Tensor(array, name=tensor.name, doc_string=tensor.doc_string)


def _materialize_attribute(attribute: Attr) -> Attr:
    """Return a copy of `attribute` whose tensor is backed by an array.

    Returns `attribute` itself if its tensor has no `raw_data` (it would be serialized to different
    bytes) or an element type that numpy lacks.
    """
    tensor = attribute.value
    if not isinstance(tensor, oir.serde.TensorProtoTensor) or not tensor.raw.HasField("raw_data"):
        return attribute
    array = _materialize_tensor(tensor)
    if array is tensor:
        return attribute
    return oir.AttrTensor(attribute.name, array, doc_string=attribute.doc_string)


def _clear_negative_dims(model: Model) -> None:
    """Replace negative dimensions by unknown ones, in place, in subgraphs and functions too.

    Some exporters write -1 for a dynamic size.
    """
    scopes: list[Graph | Function] = [model.graph, *model.functions.values()]
    values: list[Value] = []
    for scope in scopes:
        values.extend(scope.inputs)
        for node in scope.all_nodes():
            values.extend(node.outputs)
            for subgraph in _iter_subgraphs(node):
                values.extend(subgraph.inputs)
    for value in values:
        if value.shape is None:
            continue
        if any(_is_negative_dim(dim) for dim in value.shape):
            value.shape = oir.Shape([None if _is_negative_dim(d) else d for d in value.shape])


def _is_negative_dim(dim: Dim) -> bool:
    """Whether `dim` is a number below 0; False for names and unknown dimensions."""
    return isinstance(dim, int) and dim < 0


def _iter_subgraphs(node: Node) -> Iterator[Graph]:
    """Yield the graphs in the attributes of `node`, not those nested in them."""
    for attribute in node.attributes.values():
        yield from get_subgraphs(attribute)


def _normalize_domain_name(model: Model) -> None:
    """Rename the domain "ai.onnx" to "", the other spelling of the standard domain, in place.

    If both are imported, the version of "" stays. Functions and subgraphs are included.
    """
    scopes: list[Graph | Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        if "ai.onnx" in scope.opset_imports:
            scope.opset_imports.setdefault("", scope.opset_imports.pop("ai.onnx"))
        for node in scope.all_nodes():
            if node.domain == "ai.onnx":
                node.domain = ""


def assign_node_names(model: Model) -> None:
    """Give every node of the main graph a unique name, in place.

    An unnamed node becomes "<operator>_<its first output>". Of nodes that share a name, the first
    of the user's keeps it; the others, and nodes created for another (`origin_name`), get a number.
    """
    used_names: set[str] = set()
    for node in sorted(model.graph, key=lambda node: _ORIGIN in node.meta):
        suffix = node.outputs[0].name if node.outputs else len(used_names)
        node.name = unique_name(node.name or f"{node.op_type}_{suffix}", used_names)
        used_names.add(node.name)


def _first_line(error: Exception) -> str:
    """Return the first line of the message of `error`, at most 200 characters.

    Without a message, the name of its class.
    """
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def detach_large_constants(model: Model) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Convert `model` to a protobuf model without its large constants.

    Large are used initializers of at least _MIN_DETACHED_BYTES with an element type of numpy that
    are neither graph inputs nor outputs. Does not modify `model`.

    Returns
    -------
    proto : onnx.ModelProto
        The model. Detached initializers refer to an external file that does not exist.
    arrays : dict of str to numpy.ndarray
        The detached constants by name, for `reattach_constants`.
    """
    arrays: dict[str, np.ndarray] = {}
    tensors = {}
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
        arrays[name], tensors[name] = np.asarray(tensor.numpy(), order="C"), tensor
    try:
        for name, tensor in tensors.items():
            model.graph.initializers[name].const_value = oir.ExternalTensor(
                "apart",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=oir.Shape(tensor.shape.numpy()),
                name=name,
            )
        return oir.to_proto(model), arrays
    finally:
        for name, tensor in tensors.items():
            model.graph.initializers[name].const_value = tensor


def reattach_constants(
    proto: onnx.ModelProto, constants: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """Return a copy of `proto` with the constants that `detach_large_constants` removed."""
    message = onnx.ModelProto()
    message.CopyFrom(proto)
    for tensor in message.graph.initializer:
        if tensor.name in constants:
            tensor.CopyFrom(onnx.numpy_helper.from_array(constants[tensor.name], tensor.name))
    return message


def to_bytes(model: Model) -> bytes:
    """Serialize `model` to bytes, for another process.

    Raises
    ------
    ModelError
        The model is larger than protobuf's limit of 2 GB.
    """
    try:
        return to_proto(model).SerializeToString()
    except ValueError as error:
        raise ModelError(
            "the model is larger than 2 GB and cannot be sent to another process; run without "
            "workers and cluster"
        ) from error


def from_bytes(content: bytes) -> Model:
    """Return the model that `to_bytes` serialized."""
    return from_proto(onnx.ModelProto.FromString(content))


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write `model` to `path` atomically; the bytes depend only on the model.

    If the model is larger than `MAX_MODEL_BYTES`, the weights are written to a second file next to
    it, ``<name>.onnx.<digest>.data``. Raises ModelError, and leaves an existing file unchanged, if
    the written file could not be loaded.
    """
    onnx_file.write_model(to_proto(model), path, MAX_MODEL_BYTES)


@contextlib.contextmanager
def session_source(proto: onnx.ModelProto) -> Iterator[bytes | str]:
    """Yield the argument that opens an inference session on `proto`.

    This is the serialized model, or the path of a temporary file if the model is larger than
    `MAX_MODEL_BYTES`. In that case the tensors of `proto` are moved to the file and deleted with
    it.
    """
    if not onnx_file.exceeds_size_limit(proto, MAX_MODEL_BYTES):
        yield proto.SerializeToString()
        return
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        onnx_file.write_model(proto, path, MAX_MODEL_BYTES)
        yield str(path)


# ---- reading -------------------------------------------------------------------------------------


def find_constant(value: Value | None) -> np.ndarray | None:
    """Return the array of an initializer or of a Constant node with attribute `value`, else None.

    None also for a graph input with a default value, and for Constant nodes with other attributes.
    Raises ModelError if the data do not match type and shape.
    """
    node = producer(value)
    if (
        node is not None
        and node.op_type == "Constant"
        and not node.domain
        and "value" in node.attributes
    ):
        return np.asarray(get_attr(node, "value"))
    return const_value(value)


def const_value(value: Value | None) -> np.ndarray | None:
    """Return the array of an initializer that is not a graph input, or None.

    Raises
    ------
    ModelError
        The size of the data does not match the element type and shape.
    """
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    try:
        return value.const_value.numpy()
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"constant '{value.name}': the size of its data does not match its type and shape; the "
            "file is malformed, write it again"
        ) from error


def require_const_value(value: Value | None) -> np.ndarray:
    """Return the array of the initializer `value`; raise InternalError if it is no constant.

    A graph input with a default value is no constant.
    """
    array = const_value(value)
    if array is None:
        raise InternalError(f"{_value_label(value)} is not a constant")
    return array


def _value_label(value: Value | None) -> str:
    """Return the name of `value` for messages, or "an absent input" for None."""
    return str(value.name) if value is not None else "an absent input"


def get_attr(node: Node, name: str, default: Any = None) -> Any:  # noqa: ANN401 - any attribute
    """Return attribute `name` as a Python value, or `default` if the node does not have it.

    That is an int, float, str, list, or for a tensor an array. Raises ModelError if the data of a
    tensor do not match its type and shape.
    """
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    value = attribute.value
    if attribute.type == oir.AttributeType.TENSOR:
        try:
            return value.numpy()
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"{node.op_type} {node.name}: the tensor in attribute '{name}' is malformed; "
                "export the model again"
            ) from error
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def get_opset(model: Model) -> int:
    """Return the standard opset version of `model`, or `DEFAULT_OPSET` if it declares none."""
    return model.opset_imports.get("") or DEFAULT_OPSET


def base_op_type(node: Node) -> str:
    """Return the operator of `node`; in `FUNCTION_DOMAIN` only the part before the first "_"."""
    return node.op_type.partition("_")[0] if node.domain == FUNCTION_DOMAIN else str(node.op_type)


def read_json_metadata(model: Model, key: str) -> dict[str, Any]:
    """Return the metadata `key` of `model` as a JSON object, empty if there is no such key.

    Raises ModelError if the value is not a JSON object.
    """
    try:
        content = json.loads(model.metadata_props.get(key, "{}"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ModelError(
            f"metadata '{key}' is not a JSON object; the file is malformed, export it again"
        )
    return content


def get_axes(node: Node, index: int = 1) -> list[int] | None:
    """Return the axes of `node`: attribute `axes`, or if that is absent, constant input `index`.

    Newer opsets have them as input. None if both are absent or the input is computed at run time.
    """
    axes = get_attr(node, "axes")
    if axes is None and len(node.inputs) > index:
        array = const_value(node.inputs[index])
        axes = None if array is None else [int(axis) for axis in array.reshape(-1)]
    return axes


def formal_input_name(node: Node, index: int) -> str:
    """Return the name of input `index` in the newest ONNX schema, such as "B".

    An index beyond the last formal input gets the name of the last. "" for an unknown operator or
    one without inputs.
    """
    try:
        formal = onnx.defs.get_schema(node.op_type, node.domain).inputs
    except onnx.defs.SchemaError:
        return ""
    return str(formal[min(index, len(formal) - 1)].name) if formal else ""


def compute_digest(model: Model) -> str:
    """Return the SHA-256 digest of a model, in hexadecimal.

    It covers nodes (with their names), functions, and names, types and shapes of constants and
    graph inputs and outputs, and the data of constants.
    """
    hasher = hashlib.sha256()
    for value in (*model.graph.inputs, *model.graph.outputs):
        hasher.update(f"{value.name} {value.type} {value.shape}\n".encode())
    for node in model.graph:
        hasher.update(serialize_node(node).SerializeToString(deterministic=True))
    for function in model.functions.values():
        hasher.update(serialize_function(function).SerializeToString(deterministic=True))
    for name, value in model.graph.initializers.items():
        hasher.update(f"{name} {value.type} {value.shape}\n".encode())
        if value.const_value is not None:
            hasher.update(value.const_value.tobytes())
    return hasher.hexdigest()


def is_standard_op(node: Node | None, *op_types: str) -> TypeGuard[Node]:
    """Whether `node` is not None, and is one of the operators `op_types` of the standard domain."""
    return node is not None and not node.domain and node.op_type in op_types


def is_float32(value: Value | None) -> bool:
    """Whether `value` is not None, and its element type is known to be float32."""
    return value is not None and value.dtype == DataType.FLOAT


class ConstantOperand(NamedTuple):
    """Operands of a binary operator, one of which is constant."""

    source: Value
    array: np.ndarray
    is_first: bool  # the constant is operand 0


def match_constant_operand(node: Node) -> ConstantOperand | None:
    """Return the operands of a node with two inputs if exactly one is an initializer.

    None for any other number of inputs, if both or neither are constant, and if the other one is
    absent.
    """
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    first_array, second_array = const_value(first), const_value(second)
    if first is not None and first_array is None and second_array is not None:
        return ConstantOperand(first, second_array, False)
    if second is not None and second_array is None and first_array is not None:
        return ConstantOperand(second, first_array, True)
    return None


def has_subgraphs(node: Node) -> bool:
    """Whether an attribute of `node` is a graph or a list of graphs."""
    return any(
        a.type in (AttributeType.GRAPH, AttributeType.GRAPHS) for a in node.attributes.values()
    )


def get_subgraphs(attribute: Attr) -> list[Graph]:
    """Return the subgraphs stored in `attribute`, not those nested in them; [] for other types."""
    if attribute.type == AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == AttributeType.GRAPHS else []


def import_opsets(opsets: dict[str, int], nodes: Iterable[Node], model: Model) -> None:
    """Add the opset imports of `model` that `nodes` and their subgraphs need to `opsets`, in place.

    `opsets` maps a domain to its version. Domains that it already has keep their version; domains
    that `model` does not import are left out.
    """
    domains = set()
    for node in nodes:
        domains.add(node.domain)
        for subgraph in _iter_subgraphs(node):
            domains.update(inner.domain for inner in subgraph.all_nodes())
    for domain in domains & model.graph.opset_imports.keys():
        opsets.setdefault(domain, model.graph.opset_imports[domain])


def require_input(node: Node, index: int = 0) -> Value:
    """Return input `index` of `node`, which must be present, else raise InternalError."""
    value = node.inputs[index]
    if value is None:
        raise InternalError(f"{node.op_type} {node.name} has no input {index}")
    return value


def input_name(node: Node, index: int = 0) -> str:
    """Return the name of input `index` of `node`; InternalError if that input is absent."""
    return str(require_input(node, index).name)


def output_name(node: Node) -> str:
    """Return the name of the first output of `node`."""
    return str(node.outputs[0].name)


def get_shape(value: Value | None) -> tuple[int | None, ...] | None:
    """Return the shape of `value` with None for unknown dimensions; None if the rank is unknown.

    A symbolic dimension such as "N" is unknown. None also if `value` is None.
    """
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def get_sample_dims(value: Value | None) -> list[int]:
    """Return the sizes of the axes of `value` after axis 0, 1 for unknown ones.

    [] for an unknown rank.
    """
    return [dim or 1 for dim in (get_shape(value) or ())[1:]]


def require_shape(value: Value | None) -> tuple[int | None, ...]:
    """Return the shape of `value` with None for unknown dimensions.

    InternalError for an unknown rank. After shape inference, every rank is known.
    """
    shape = get_shape(value)
    if shape is None:
        raise InternalError(f"{_value_label(value)} has no shape")
    return shape


def mark_folded_batch(value: Value, folded: bool) -> None:
    """Record in `value` whether its axis 0 is the batch multiplied by other axes (`folded`).

    Such an axis grows with the batch, but holds several rows of each sample.
    """
    value.meta["lingeronnx.folded_batch"] = folded


def has_folded_batch(value: Value) -> bool:
    """Whether axis 0 of `value` was recorded as the batch multiplied by other axes.

    False by default.
    """
    return bool(value.meta.get("lingeronnx.folded_batch", False))


def mark_origin(node: Node, old: Node) -> None:
    """Record in `node` the name and operator of the user's node for which `old` exists.

    If `old` was itself created for another node, that one is recorded, else `old`.
    """
    node.meta[_ORIGIN] = origin_name(old)
    node.meta[_ORIGIN_OPERATOR] = old.meta.get(_ORIGIN_OPERATOR, base_op_type(old))


def origin_name(node: Node) -> str:
    """Return the name of the user's node that `node` was created for, or the node's own name."""
    return str(node.meta.get(_ORIGIN, node.name))


def mark_fused(node: Node, old: Sequence[Node]) -> None:
    """Record that `node` replaces all nodes of `old`: it shows their operators to users.

    They are joined by ", ", each once. `display_op_type` uses them only if the operator of `node`
    is one that only passes create.
    """
    op_types = dict.fromkeys(display_op_type(old_node) for old_node in old)
    node.meta[_ORIGIN_OPERATOR] = ", ".join(op_types)


def display_op_type(node: Node) -> str:
    """Return the operator of `node` as users know it.

    For an operator that only passes create, this is the operator of the model it was created from.
    """
    op_type = base_op_type(node)
    if op_type in _PASS_ONLY_OPS:
        return str(node.meta.get(_ORIGIN_OPERATOR, op_type))
    return op_type


def set_constant_base_name(node: Node, name: str) -> None:
    """Set the base name of constants created for `node`; nodes of one name share them."""
    node.meta[_CONSTANT_BASE_NAME] = name


def constant_base_name(node: Node) -> str:
    """Return the base name of constants that are created for `node`.

    This is the name that was set for them (nodes of one base name share constants), or the name of
    the node's first output.
    """
    return str(node.meta.get(_CONSTANT_BASE_NAME, node.outputs[0].name))


def has_constant_base_name(node: Node) -> bool:
    """Whether a base name was set for constants of `node`, which it shares with others."""
    return _CONSTANT_BASE_NAME in node.meta


def producer(value: Value | None) -> Node | None:
    """Return the node that computes `value`, or None for graph inputs and constants."""
    return None if value is None else value.producer()


def require_producer(value: Value | None) -> Node:
    """Return the node that computes `value`; raise InternalError for graph inputs and constants."""
    node = producer(value)
    if node is None:
        raise InternalError(f"{_value_label(value)} has no producer")
    return node


def sole_consumer(value: Value) -> Node | None:
    """Return the only node that reads `value`, if it reads it once, or None.

    Also None if `value` is a graph output, which the caller of the model reads. Uses inside
    subgraphs count.
    """
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def is_exclusive_initializer(value: Value) -> bool:
    """Whether `value` is an initializer read once by a single node and can be removed with it.

    False for the default value of a graph input.
    """
    return (
        value.is_initializer() and not value.is_graph_input() and sole_consumer(value) is not None
    )


def iter_values(model: Model) -> Iterator[Value]:
    """Yield the computed tensors in graph order: graph inputs, then the outputs of each node."""
    for value in model.graph.inputs:
        if value.const_value is None:
            yield value
    for node in model.graph:
        for value in node.outputs:
            if value.name:
                yield value


# ---- changing ------------------------------------------------------------------------------------


def unique_tensor_name(model: Model, base: str) -> str:
    """Return `base`, with a number if a tensor of the main graph of `model` has that name.

    The name is not reserved.
    """
    return unique_name(base, get_tensor_names(model))


def get_tensor_names(model: Model) -> set[str]:
    """Return the names of all tensors of the main graph of `model`, constants included."""
    return {str(value.name) for value in iter_values(model)} | set(model.graph.initializers)


def unique_name(base: str, used_names: Collection[str]) -> str:
    """Return `base`, or if it is in `used_names` the first unused of `base`_2, `base`_3, ..."""
    name, count = base, 1
    while name in used_names:
        count += 1
        name = f"{base}_{count}"
    return name


def reserve_name(base: str, used_names: set[str]) -> str:
    """Return `base`, or the first unused of `base`_2, `base`_3, ..., and add it to `used_names`."""
    name = unique_name(base, used_names)
    used_names.add(name)
    return name


def add_initializer(model: Model, name: str, array: np.ndarray) -> Value:
    """Add the constant `array` to `model` under the unused name `name` and return its value."""
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
    """Replace the data of the initializer `value` by `array`, of the same shape and type."""
    value.const_value = oir.tensor(np.asarray(array, order="C"), name=value.name)


def convert_input_to_initializer(model: Model, value: Value, array: np.ndarray) -> None:
    """Convert the graph input `value` to an initializer with the data `array`, in place.

    Its shape and element type become those of `array`.
    """
    model.graph.inputs.remove(value)
    value.const_value = oir.tensor(np.asarray(array, order="C"), name=value.name)
    value.shape, value.type = oir.Shape(array.shape), oir.TensorType(value.const_value.dtype)
    model.graph.register_initializer(value)


def set_constant_input(
    model: Model, node: Node, index: int, array: np.ndarray, suffix: str
) -> Value:
    """Replace input `index` of `node` by a new initializer with `array`, and return its value.

    An initializer that only `node` reads is removed, and the new one takes its name. One that is
    shared or a graph output stays unchanged, and the new one is named `<name>_<suffix>` (after the
    first output of `node` if there was no input), with a number if that is taken.
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


def _to_attribute(name: str, value: object) -> Any:  # noqa: ANN401 - onnx_ir exports no union type
    """Convert a list of numbers to an attribute, and return any other value unchanged for onnx_ir.

    onnx_ir would first test every number for being a tensor or a graph, which takes longer than
    everything else about a node.
    """
    if isinstance(value, list | tuple) and value:
        if all(isinstance(element, int) for element in value):
            return oir.AttrInt64s(name, value)
        if all(isinstance(element, float) for element in value):
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
    """Create a node with one output.

    Parameters
    ----------
    op_type, inputs, attributes, domain
        As in ONNX. An attribute is a Python value.
    output
        Name of the output.
    name
        Name of the node. Ignored if `origin` is given.
    origin
        The node that the new one is created for, recorded by `mark_origin`. The new node is called
        `<origin>_<suffix>`, or like `origin` if `suffix` is empty.
    suffix
        Suffix of the name of `origin`.
    like
        Tensor whose shape and type the output takes.
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
    """Replace `old_nodes` by `new_nodes` in the main graph of `model`.

    The output of the last new node takes over the name and the consumers of the first output of the
    last old one.
    """
    removed = list(old_nodes)
    old_output = removed[-1].outputs[0]
    new_output = new_nodes[-1].outputs[0]
    name = old_output.name
    oir.convenience.replace_nodes_and_values(
        model.graph, removed[-1], removed, list(new_nodes), [old_output], [new_output]
    )
    new_output.name = name


def remove_unused(model: Model) -> None:
    """Remove nodes, initializers and functions whose results are not used, in place.

    Nodes and initializers that only subgraphs of removed nodes read are removed too.
    """
    nodes = [node for node in model.graph if has_subgraphs(node)]
    common.RemoveUnusedNodesPass()(model)
    while removed := [node for node in nodes if node.graph is None]:
        _clear_subgraph_inputs(removed)
        nodes = [node for node in nodes if node.graph is not None]
        common.RemoveUnusedNodesPass()(model)
    if model.functions:
        common.RemoveUnusedFunctionsPass()(model)


def _clear_subgraph_inputs(removed_nodes: Iterable[Node]) -> None:
    """Set the inputs of all nodes in the subgraphs of removed nodes to None, in place.

    onnx_ir would otherwise still count them as consumers of outer tensors.
    """
    for node in removed_nodes:
        for subgraph in _iter_subgraphs(node):
            for inner in subgraph.all_nodes():
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)


def lift_constants(model: Model) -> bool:
    """Convert the Constant nodes of `model` to initializers, in place.

    Return whether there were any.
    """
    lift = common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)
    return lift(model).modified


def infer_types(model: Model) -> None:
    """Set the element type that onnx infers on tensors of the main graph that have none, in place.

    Shapes are not changed. If onnx fails to infer, nothing is.
    """
    untyped = {str(value.name): value for value in iter_values(model) if value.dtype is None}
    if not untyped:
        return
    try:
        graph = onnx.shape_inference.infer_shapes(detach_large_constants(model)[0]).graph
    except Exception:  # no types can be inferred for a graph that onnx cannot read
        return
    for info in (*graph.value_info, *graph.output):
        elem_type = info.type.tensor_type.elem_type
        if info.name in untyped and elem_type:
            untyped[info.name].type = oir.TensorType(oir.DataType(elem_type))


def bypass_node(model: Model, node: Node, replacement: Value) -> None:
    """Remove `node`, which has one output, from `model` and let its consumers read `replacement`.

    If the output is a graph output, `replacement` replaces it and takes over its name; so it must
    not be a graph input, another graph output or an initializer then.
    """
    out = node.outputs[0]
    if out.is_graph_output():
        name = out.name
        out.replace_all_uses_with(replacement, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        replacement.name = name
        return
    out.replace_all_uses_with(replacement)
    model.graph.remove(node, safe=True)


def can_bypass_node(node: Node, replacement: Value) -> bool:
    """Whether `node` may be removed, with its consumers reading `replacement`, by names.

    False only if the output of `node` is a graph output and `replacement` is a graph input, a graph
    output or an initializer: both names are needed then.
    """
    pinned = (
        replacement.is_graph_input()
        or replacement.is_graph_output()
        or replacement.is_initializer()
    )
    return not (node.outputs[0].is_graph_output() and pinned)


def absorb_consumer(model: Model, node: Node, consumer: Node) -> None:
    """Remove `consumer`, whose computation its producer `node` takes over.

    The first output of `node` gets the consumers and name of the first output of `consumer`, and
    its type and shape if they are known.
    """
    out, result = consumer.outputs[0], node.outputs[0]
    name, value_type, shape = out.name, out.type, out.shape
    out.replace_all_uses_with(result, replace_graph_outputs=True)
    model.graph.remove(consumer, safe=True)
    result.name, result.type, result.shape = name, value_type or result.type, shape or result.shape


def rename_initializer(model: Model, value: Value, name: str) -> None:
    """Rename the initializer `value` to the unused name `name`."""
    array = const_value(value)
    assert array is not None
    replacement = add_initializer(model, name, array)
    for user, index in list(value.uses()):
        user.replace_input_with(index, replacement)
    del model.graph.initializers[str(value.name)]


def rename(model: Model, tensors: Mapping[str, str], nodes: Mapping[str, str]) -> None:
    """Rename tensors, including constants, and nodes of the main graph.

    No new name may be an old one too. Constant data may be shared with another graph, so a renamed
    constant gets a new tensor object.

    Parameters
    ----------
    model
        Changed in place.
    tensors, nodes
        Old name -> new name.
    """
    graph = model.graph
    for value in list(graph.initializers.values()):
        new_name = tensors.get(str(value.name))
        if new_name is not None and value.const_value is not None:
            value.const_value = oir.tensor(value.const_value.numpy(), name=new_name)
    order = {id(value): index for index, value in enumerate(graph.initializers.values())}
    all_values = (*graph.inputs, *graph.initializers.values(), *_iter_outputs(graph))
    unique_values = {id(value): value for value in all_values}
    for value in unique_values.values():
        value.name = tensors.get(str(value.name), value.name)
    constants = sorted(graph.initializers.values(), key=lambda value: order[id(value)])
    graph.initializers.clear()
    graph.initializers.update({str(value.name): value for value in constants})
    for node in graph:
        node.name = nodes.get(str(node.name), node.name)


def _iter_outputs(graph: oir.Graph) -> Iterator[Value]:
    """Yield the named outputs of the nodes of `graph`, in graph order, without subgraphs."""
    for node in graph:
        yield from (value for value in node.outputs if value.name)


def get_subgraph_tensor_names(model: Model) -> set[str]:
    """Return the names of all tensors in nested subgraphs, which outer tensors may not have.

    Subgraphs in lists of graphs are not searched.
    """
    names: set[str] = set()
    stack = _get_bodies(model.graph)
    while stack:
        body = stack.pop()
        values = (*body.inputs, *body.initializers.values(), *_iter_outputs(body))
        names.update(str(value.name) for value in values)
        stack += _get_bodies(body)
    return names


def _get_bodies(graph: Graph) -> list[Graph]:
    """Return the subgraphs stored in single-graph attributes of the nodes of `graph`."""
    attributes = [attribute for node in graph for attribute in node.attributes.values()]
    return [a.as_graph() for a in attributes if a.type == AttributeType.GRAPH]


def set_attr(node: Node, name: str, value: Any) -> None:  # noqa: ANN401 - as in get_attr
    """Set attribute `name` of `node` to a Python value; an array becomes a tensor."""
    value = oir.Tensor(value) if isinstance(value, np.ndarray) else value
    node.attributes[name] = oir.convenience.convert_attribute(name, value)
