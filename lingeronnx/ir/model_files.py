"""Convert models from and to files, protobuf messages and bytes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import onnx

from ..common.errors import ModelError
from ..common.files import temporary_folder
from . import onnx_file
from ._onnx_ir import (
    Attr,
    AttributeType,
    Function,
    Graph,
    Model,
    Shape,
    Value,
    oir,
    serialize_function,
    serialize_node,
    to_proto,
)
from .graph_names import assign_node_names
from .graph_queries import get_subgraphs, iter_subgraphs
from .weight_values import check_weight_values

__all__ = [
    "HasGraph",
    "ModelLike",
    "as_model",
    "as_model_proto",
    "as_owned_model",
    "compute_digest",
    "convert_user_model",
    "detach_large_constants",
    "from_bytes",
    "from_proto",
    "load",
    "model_label",
    "reattach_constants",
    "save",
    "session_source",
    "to_bytes",
]

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
        _normalize_spellings(model)
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
        initializers = [*getattr(scope, "initializers", {}).values()]
        for node in scope.all_nodes():
            for name, attribute in node.attributes.items():
                if attribute.type == AttributeType.TENSOR and not attribute.is_ref():
                    node.attributes[name] = _materialize_attribute(attribute)
                for body in get_subgraphs(attribute):
                    initializers += body.initializers.values()
        for value in initializers:
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


def _normalize_spellings(model: Model) -> None:
    """Replace other spellings in `model` by those of the standard, in place.

    The domain "ai.onnx" becomes "" (if both are imported, the version of "" stays), and negative
    dimensions, which some exporters write for a dynamic size, become unknown ones. Functions and
    subgraphs are included.
    """
    scopes: list[Graph | Function] = [model.graph, *model.functions.values()]
    values: list[Value] = []
    for scope in scopes:
        if "ai.onnx" in scope.opset_imports:
            scope.opset_imports.setdefault("", scope.opset_imports.pop("ai.onnx"))
        values.extend(scope.inputs)
        for node in scope.all_nodes():
            if node.domain == "ai.onnx":
                node.domain = ""
            values.extend(node.outputs)
            for subgraph in iter_subgraphs(node):
                values.extend(subgraph.inputs)
    for value in values:
        dims = list(value.shape or ())
        if any(isinstance(dim, int) and dim < 0 for dim in dims):
            value.shape = Shape(None if isinstance(dim, int) and dim < 0 else dim for dim in dims)


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
                shape=Shape(tensor.shape.numpy()),
                name=name,
            )
        return to_proto(model), arrays
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
        body: bytes = to_proto(model).SerializeToString()
    except ValueError as error:
        raise ModelError(
            "the model is larger than 2 GB and cannot be sent to another process; run without "
            "workers and cluster"
        ) from error
    return body


def from_bytes(content: bytes) -> Model:
    """Return the model that `to_bytes` serialized."""
    return from_proto(onnx.ModelProto.FromString(content))


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write `model` to `path` atomically; the bytes depend only on the model.

    If the model is larger than `onnx_file.MAX_MODEL_BYTES`, the weights are written to a second
    file next to it, ``<name>.onnx.<digest>.data``. Raises ModelError, and leaves an existing file
    unchanged, if the written file could not be loaded.
    """
    onnx_file.write_model(to_proto(model), path, onnx_file.MAX_MODEL_BYTES)


@contextlib.contextmanager
def session_source(proto: onnx.ModelProto) -> Iterator[bytes | str]:
    """Yield the argument that opens an inference session on `proto`.

    This is the serialized model, or the path of a temporary file if the model is larger than
    `onnx_file.MAX_MODEL_BYTES`. In that case the tensors of `proto` are moved to the file and
    deleted with it.
    """
    if not onnx_file.exceeds_size_limit(proto, onnx_file.MAX_MODEL_BYTES):
        yield proto.SerializeToString()
        return
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        onnx_file.write_model(proto, path, onnx_file.MAX_MODEL_BYTES)
        yield str(path)


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
