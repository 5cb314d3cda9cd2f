"""Read and write ONNX files with external data, and check the structure of a model.

Works on protobuf models, before and after they are an `ir.Model`. A protobuf message cannot be
larger than 2 GiB: above a limit the tensors are written to a second file next to the model,
``<name>.onnx.<digest>.data``. The name is derived from the content, so a model is never read with
the data of another one, even if a write is interrupted.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from ..common.errors import ModelError, suggest_nearest
from ..common.files import describe_irregular_file, replace_file, resolve_write_target
from ..common.hashing import hash_concatenation
from . import external_data
from .attributes import (
    QUANTIZED_DOMAINS,
    check_attributes,
    iter_nodes_recursive,
    iter_subgraphs,
    node_label,
)
from .expansion_limits import check_expansion_limits
from .write_verification import verify_written_model

__all__ = [
    "MAX_MODEL_BYTES",
    "check_no_external_data",
    "check_string_fields",
    "check_structure",
    "exceeds_size_limit",
    "iter_tensors",
    "move_to_external_data",
    "read_model",
    "write_model",
]

#: Maximum size of one model file: protobuf's limit less a margin for everything but the tensors.
MAX_MODEL_BYTES = (1 << 31) - (1 << 24)

_MIN_EXTERNAL_BYTES = 1024  # smaller tensors stay in the model file
_EXTERNAL_ALIGNMENT_BYTES = 4096  # onnxruntime memory-maps tensors that begin at a page


def read_model(path: str | os.PathLike[str]) -> ModelProto:
    """Return the model at `path` with its external data in memory.

    Raises
    ------
    ModelError
        The file is missing, not a regular file, truncated or unreadable, has neither nodes nor
        outputs, or its external data are missing or outside the folder of the model.
    """
    model_path = Path(path)
    if "\0" in str(model_path):
        raise ModelError(
            f"cannot read the model {str(model_path)!r}: a file name cannot contain a NUL character"
        )
    if not model_path.is_file():
        file_kind = describe_irregular_file(model_path)
        problem = "does not exist" if file_kind is None else f"is {file_kind}"
        raise ModelError(
            f"cannot read the model {model_path}: it {problem}; give the path of an .onnx file"
        )
    try:
        proto = onnx.load(str(model_path), load_external_data=False, format="protobuf")
    except Exception as error:
        raise ModelError(
            f"cannot read the model {model_path}: not a valid ONNX file ({_first_line(error)}); "
            "check that it is complete and not a Git LFS pointer"
        ) from error
    if not proto.graph.node and not proto.graph.output:
        raise ModelError(
            f"cannot use the model {model_path}: its graph has no node; is it an ONNX file?"
        )
    external_data.load_external_data(iter_tensors(proto), model_path)
    return proto


def check_no_external_data(proto: ModelProto) -> None:
    """Raise ModelError if `proto` refers to external data, whose folder is not known."""
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in iter_tensors(proto)):
        raise ModelError(
            "the model refers to external data in an unknown folder; pass the path of the model "
            "instead"
        )


def iter_tensors(scope: ModelProto | GraphProto | FunctionProto) -> Iterator[TensorProto]:
    """Yield all initializers and tensor attributes of `scope`, subgraphs and functions included."""
    if isinstance(scope, ModelProto):
        for part in (scope.graph, *scope.functions):
            yield from iter_tensors(part)
        return
    if isinstance(scope, GraphProto):
        yield from scope.initializer
    for node in scope.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for graph in iter_subgraphs(node):
            yield from iter_tensors(graph)


# ---- writing -------------------------------------------------------------------------------------


def exceeds_size_limit(proto: ModelProto, limit: int) -> bool:
    """Whether the raw tensor data of `proto`, or its serialized size, exceed `limit` bytes."""
    stored = sum(len(tensor.raw_data) for tensor in iter_tensors(proto))
    return stored > limit or proto.ByteSize() > limit


def write_model(
    proto: ModelProto, path: str | os.PathLike[str], limit: int, check_operators: bool = True
) -> None:
    """Write `proto` to `path` atomically, with external data if it is larger than `limit`.

    The file is read back before it replaces an existing one.

    Parameters
    ----------
    proto
        The model. If it is larger than `limit`, its tensors are moved to the external file.
    path
        The file to write.
    limit
        Maximum size of the model file in bytes.
    check_operators
        Whether standard operators must match the opset. A file of another tool may violate that.

    Raises
    ------
    ModelError
        The written file could not be loaded.
    """
    target = resolve_write_target(path)
    if exceeds_size_limit(proto, limit):
        data_file = target.with_name(f"{target.name}.{_external_data_digest(proto)}.data")
        _write_with_external_data(proto, target, data_file, check_operators)
    else:
        data_file = target
        content = proto.SerializeToString(deterministic=True)
        with replace_file(target) as temporary:
            temporary.write_bytes(content)
            verify_written_model(temporary, target, check_structure, check_operators)
    _remove_stale_data_files(target, data_file)


def _write_with_external_data(
    proto: ModelProto, target: Path, data_file: Path, check_operators: bool
) -> None:
    """Write the tensors to `data_file`, whose name is unique to its content, then the model.

    `proto` is changed: its large tensors become references. The written model is verified before it
    replaces `target`; after an error a data file that did not exist before is removed. Raises
    ModelError if the written model could not be loaded.
    """
    is_new = not data_file.exists()
    try:
        with replace_file(target) as temporary:
            with replace_file(data_file) as store:
                move_to_external_data(proto, store, data_file.name)
            temporary.write_bytes(proto.SerializeToString(deterministic=True))
            verify_written_model(temporary, target, check_structure, check_operators)
    except BaseException:
        if is_new:
            data_file.unlink(missing_ok=True)
        raise


def _external_data_digest(proto: ModelProto) -> str:
    """Return 16 hexadecimal digits that identify the tensor data of `proto` that a data file gets.

    These are raw data of at least _MIN_EXTERNAL_BYTES. For the name of the file.
    """
    moved = (
        tensor.raw_data
        for tensor in iter_tensors(proto)
        if len(tensor.raw_data) >= _MIN_EXTERNAL_BYTES
    )
    return hash_concatenation(moved, digest_bytes=8)


def _remove_stale_data_files(target: Path, current: Path) -> None:
    """Remove external data files of earlier versions of `target`, except `current`.

    These are files named "<target>.<16 hexadecimal digits>.data" in its folder. Errors are ignored:
    the files only take space.
    """
    pattern = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    with contextlib.suppress(OSError):
        for file in target.parent.iterdir():
            if pattern.fullmatch(file.name) and file.name != current.name:
                file.unlink()


def move_to_external_data(proto: ModelProto, store: Path, location: str) -> None:
    """Move the large tensors of `proto` to the file `store`, referred to as `location`.

    Changes `proto` in place. Tensors with less than _MIN_EXTERNAL_BYTES of raw data stay; the
    others begin at multiples of _EXTERNAL_ALIGNMENT_BYTES. An existing `store` is overwritten.
    """
    with store.open("wb") as file:
        for tensor in iter_tensors(proto):
            if len(tensor.raw_data) < _MIN_EXTERNAL_BYTES:
                continue
            file.write(b"\0" * (-file.tell() % _EXTERNAL_ALIGNMENT_BYTES))
            entries = {"location": location, "offset": file.tell(), "length": len(tensor.raw_data)}
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.extend(
                onnx.StringStringEntryProto(key=key, value=str(value))
                for key, value in entries.items()
            )


# ---- structure -----------------------------------------------------------------------------------


#: Attribute types that are messages -> the field that stores the message.
_MESSAGE_FIELDS = {onnx.AttributeProto.TENSOR: "t", onnx.AttributeProto.GRAPH: "g"}

#: Bits per element of types whose elements are packed into bytes.
_PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


def check_structure(proto: ModelProto) -> None:
    """Raise ModelError if the graph of `proto` is malformed.

    Checked are text fields, opsets, tensors, names and their definitions, cycles, attributes, types
    of graph inputs and outputs, and the size after expansion. A graph needs an output, none twice,
    and no sparse initializer. Operator semantics are not checked.
    """
    check_string_fields(proto)
    _check_opsets(proto)
    if not proto.graph.output:
        raise ModelError("the graph has no output; mark at least one tensor as a graph output")
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise ModelError(f"initializer '{name}' is sparse; store it as a dense tensor")
    for tensor in iter_tensors(proto):
        _check_tensor(tensor)
    _check_graph(proto.graph, set())
    for function in proto.functions:
        computed_names = {name for node in function.node for name in node.output}
        _check_nodes(function.node, {*function.input, *computed_names})
    check_attributes(proto)
    _check_graph_io(proto.graph)
    check_expansion_limits(proto)
    names = [value.name for value in proto.graph.output]
    if duplicate := _find_duplicate(names):
        raise ModelError(f"tensor '{duplicate}' is listed twice as a graph output; list it once")


def check_string_fields(message: Any) -> None:  # noqa: ANN401 - any message: protobuf has no types
    """Raise ModelError if a string field of `message`, or of a message in it, is not text.

    protobuf returns invalid UTF-8 as bytes. Messages of type TensorProto are not searched.
    """
    for field, content in message.ListFields():
        if field.type == field.TYPE_STRING:
            texts = [content] if isinstance(content, str | bytes) else content
            if not all(isinstance(text, str) for text in texts):
                raise ModelError(
                    f"the field '{field.name}' is not valid UTF-8 text; the file is malformed"
                )
        elif field.type == field.TYPE_MESSAGE and field.message_type.name != "TensorProto":
            for entry in content if isinstance(content, Sequence) else [content]:
                check_string_fields(entry)


def _check_opsets(proto: ModelProto) -> None:
    """Raise ModelError if the domain of a node is neither imported nor that of a local function.

    Nodes of the quantized domains are exempt, and all nodes are if the model imports such a domain
    but not ONNX's. Functions are only checked for their own imports.
    """
    for function in proto.functions:
        _collect_opsets(function.opset_import, f"function '{function.name}'")
    versions = _collect_opsets(proto.opset_import, "the model")
    if "" not in versions and not versions.keys().isdisjoint(QUANTIZED_DOMAINS):
        return
    local_functions = {(function.domain, function.name) for function in proto.functions}
    for node in iter_nodes_recursive(proto.graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain in versions or domain in QUANTIZED_DOMAINS:
            continue
        if (node.domain, node.op_type) in local_functions:
            continue
        raise ModelError(
            f"{node_label(node)}: the model imports no opset for "
            f"{_format_domain(domain)}{suggest_nearest(domain, versions)}; "
            "the file is malformed, export it again"
        )


def _format_domain(domain: str) -> str:
    """Return "domain '<domain>'", or "the standard domain" for ""."""
    return f"domain '{domain}'" if domain else "the standard domain"


def _collect_opsets(imports: Iterable[onnx.OperatorSetIdProto], owner: str) -> dict[str, int]:
    """Return {domain: opset version} of `imports`, with "" for "ai.onnx".

    Raises ModelError if a domain has two versions, the standard one is not from 1 to that of the
    installed onnx, or a quantized one is not 1; `owner` names the importing model or function in
    the message.
    """
    versions: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"{owner} uses opset {versions[domain]} and opset {entry.version} of "
                f"{_format_domain(domain)}; the file is malformed, export it again"
            )
    newest = onnx.defs.onnx_opset_version()
    if "" in versions and not 0 < versions[""] <= newest:
        raise ModelError(
            f"{owner} uses opset {versions['']}; the installed onnx supports 1 to {newest}: "
            "upgrade onnx or export with an older opset"
        )
    for domain in QUANTIZED_DOMAINS:
        if versions.get(domain, 1) != 1:
            raise ModelError(
                f"{owner} uses version {versions[domain]} of domain '{domain}'; this lingeronnx "
                "supports version 1: upgrade it, or quantize the float model again"
            )
    return versions


def _check_graph_io(graph: GraphProto) -> None:
    """Raise ModelError if a graph input has no element type or a graph output is a map.

    Classifier exports end in ZipMap, whose output is a map.
    """
    for value in graph.input:
        if not value.type.HasField("tensor_type"):
            continue
        if value.type.tensor_type.elem_type == TensorProto.UNDEFINED:
            raise ModelError(
                f"graph input '{value.name}' has no element type; the file is malformed, export it "
                "again"
            )
    for value in graph.output:
        is_map_sequence = value.type.sequence_type.elem_type.HasField("map_type")
        if value.type.HasField("map_type") or is_map_sequence:
            raise ModelError(
                f"output '{value.name}' is a map from keys to numbers, which no platform supports; "
                f"{_suggest_model_end(graph, value.name)}, and look up the keys in your application"
            )


def _suggest_model_end(graph: GraphProto, output_name: str) -> str:
    """Suggest how to remove the graph output `output_name`: a clause for the end of a message.

    It proposes the first input of the output's node as the new end, or "remove it" without such a
    node.
    """
    for node in graph.node:
        if output_name in node.output and node.input:
            return f"end the model at '{node.input[0]}', the input of {node.op_type}"
    return "remove it"


def _check_tensor(tensor: TensorProto) -> None:
    """Raise ModelError if `tensor` has an unsupported type, or data that do not fit its shape.

    Unsupported are unknown types and those of 6 bits; sizes must not be negative.
    """
    type_name = "?"
    if tensor.data_type in TensorProto.DataType.values():
        type_name = TensorProto.DataType.Name(tensor.data_type)
    if type_name in ("?", "UNDEFINED"):
        raise ModelError(
            f"initializer '{tensor.name}' has unknown element type {tensor.data_type}; the file is "
            "malformed"
        )
    if type_name.startswith("FLOAT6"):
        raise ModelError(
            f"initializer '{tensor.name}' has the unsupported type {type_name}; store it as FLOAT"
        )
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(
            f"initializer '{tensor.name}' has shape {list(tensor.dims)}; a size cannot be negative"
        )
    stored, expected, unit = _measure_tensor_data(tensor, type_name)
    if stored != expected:
        raise ModelError(
            f"initializer '{tensor.name}' of shape {list(tensor.dims)} holds {stored} {unit}, not "
            f"{expected}; the file is malformed, export it again"
        )


def _measure_tensor_data(tensor: TensorProto, type_name: str) -> tuple[int, int, str]:
    """Return the stored and the expected amount of data of `tensor`, and the unit of both.

    The unit is "bytes" for raw and external data, else "values". External data without a length
    count as 0 bytes.
    """
    element_count = math.prod(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL:
        lengths = [int(entry.value) for entry in tensor.external_data if entry.key == "length"]
        stored_bytes = sum(lengths)
    elif type_name == "STRING":
        return len(tensor.string_data), element_count, "values"
    elif tensor.raw_data:
        stored_bytes = len(tensor.raw_data)
    else:
        return _count_typed_values(tensor, type_name), element_count, "values"
    bits = _PACKED_BITS.get(type_name)
    if bits is None:
        bits = 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return stored_bytes, -(-element_count * bits // 8), "bytes"


def _count_typed_values(tensor: TensorProto, type_name: str) -> int:
    """Count the elements in the typed data fields of `tensor`, whose element type is `type_name`.

    A complex element takes two values. Types below 8 bits are packed: if there are any data, all
    elements of the shape count as present.
    """
    if type_name in ("COMPLEX64", "COMPLEX128"):
        return (len(tensor.float_data) + len(tensor.double_data)) // 2
    if type_name in _PACKED_BITS:
        return math.prod(tensor.dims) if tensor.int32_data else 0
    fields = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data")
    return sum(len(getattr(tensor, field)) for field in fields)


def _check_graph(graph: GraphProto, outer_names: set[str]) -> None:
    """Raise ModelError unless `graph` is acyclic and each name has exactly one definition.

    Each input of a node and each graph output must be defined in `graph` or in `outer_names`, the
    tensors of enclosing graphs. Subgraphs are checked too. An input may also be an initializer (its
    default).
    """
    input_names = [value.name for value in graph.input]
    initializer_names = [tensor.name for tensor in graph.initializer]
    if "" in input_names:
        raise ModelError("a graph input has no name; the file is malformed")
    if "" in initializer_names:
        raise ModelError("an initializer has no name; the file is malformed")
    if duplicate := _find_duplicate(input_names) or _find_duplicate(initializer_names):
        raise ModelError(
            f"tensor '{duplicate}' is defined twice; names must be unique, export the model again"
        )
    source_names = {*input_names, *initializer_names}
    producers = _collect_producers(graph, source_names)
    defined_names = outer_names | source_names | producers.keys()
    _check_nodes(graph.node, defined_names)
    for value in graph.output:
        if value.name not in defined_names:
            raise ModelError(
                f"graph output '{value.name}' is not computed by any node; the file is malformed"
            )
    _check_cycle(graph, producers)


def _collect_producers(graph: GraphProto, source_names: set[str]) -> dict[str, NodeProto]:
    """Map each computed tensor to its node; raise ModelError if a name is defined twice.

    `source_names` are the graph inputs and initializers, which no node may write.
    """
    producers: dict[str, NodeProto] = {}
    for node in graph.node:
        for name in filter(None, node.output):
            if name not in producers and name not in source_names:
                producers[name] = node
                continue
            first = "a graph input or initializer"
            if name in producers:
                first = node_label(producers[name])
            raise ModelError(
                f"{node_label(node)}: tensor '{name}' is written by {first} too; names must be "
                "unique"
            )
    return producers


def _check_nodes(nodes: Iterable[NodeProto], defined_names: set[str]) -> None:
    """Raise ModelError if a node reads an undefined tensor or has a malformed attribute.

    Subgraphs are checked too; the body of a Loop needs two inputs and an output. `defined_names`
    are the tensors that the nodes may read, those that they compute included.
    """
    for node in nodes:
        for name in filter(None, node.input):
            if name not in defined_names:
                raise ModelError(
                    f"{node_label(node)}: its input '{name}' is not computed by any node; the file "
                    "is malformed"
                )
        for attribute in node.attribute:
            _check_attribute_content(node, attribute)
        for subgraph in iter_subgraphs(node):
            if node.op_type == "Loop" and (len(subgraph.input) < 2 or not subgraph.output):
                raise ModelError(
                    f"{node_label(node)}: its body has {len(subgraph.input)} inputs and "
                    f"{len(subgraph.output)} outputs; it needs the inputs iteration and "
                    "condition, and the output condition"
                )
            _check_graph(subgraph, defined_names)


def _check_attribute_content(node: NodeProto, attribute: onnx.AttributeProto) -> None:
    """Raise ModelError if `attribute` has no type, or is a tensor or graph without content.

    A reference to an attribute of the enclosing function needs no content.
    """
    if attribute.type == onnx.AttributeProto.UNDEFINED:
        raise ModelError(
            f"{node_label(node)}: its attribute '{attribute.name}' has no type; the file is "
            "malformed"
        )
    field = _MESSAGE_FIELDS.get(attribute.type)
    if field and not attribute.ref_attr_name and not attribute.HasField(field):
        raise ModelError(
            f"{node_label(node)}: its attribute '{attribute.name}' is empty; the file is malformed"
        )


def _check_cycle(graph: GraphProto, producers: dict[str, NodeProto]) -> None:
    """Raise ModelError if `graph` has a cycle (Kahn's algorithm).

    `producers` maps each computed tensor to its node. Tensors read only inside subgraphs do not
    count.
    """
    consumers: dict[str, list[int]] = {}
    open_inputs: dict[int, int] = {}
    for index, node in enumerate(graph.node):
        computed_inputs = producers.keys() & node.input
        open_inputs[index] = len(computed_inputs)
        for name in computed_inputs:
            consumers.setdefault(name, []).append(index)
    ready = [index for index, count in open_inputs.items() if count == 0]
    while ready:
        index = ready.pop()
        del open_inputs[index]
        for name in graph.node[index].output:
            for consumer in consumers.get(name, ()):
                open_inputs[consumer] -= 1
                if open_inputs[consumer] == 0:
                    ready.append(consumer)
    if open_inputs:
        raise ModelError(
            f"{node_label(graph.node[min(open_inputs)])}: it depends on its own output; a graph "
            "cannot have a cycle"
        )


def _find_duplicate(names: list[str]) -> str | None:
    """Return the first element of `names` that occurs a second time, or None."""
    visited: set[str] = set()
    for name in names:
        if name in visited:
            return name
        visited.add(name)
    return None


def _first_line(error: Exception) -> str:
    """Return the first line of the message of `error`, at most 200 characters.

    Without a message, the name of its class.
    """
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
