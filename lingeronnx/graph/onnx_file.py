"""ONNX files as they lie on disk.

Reading, writing, external data, and the structure every graph must have.
Works on protobuf models, before and after they are an `ir.Graph`. A protobuf message cannot be
larger than 2 GiB: above a limit the tensors are written into a second file beside the model,
``<name>.onnx.<digest>.data``. Its name follows from its content, so that a model is never read with
the data of another one, whenever a write is cut short.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ..errors import ModelError, suggest_nearest
from ..files import describe_irregular_file, replace_file, resolve_write_target
from . import external_data
from .attributes import QUANTIZED_DOMAINS, check_attributes, node_label
from .expansion_limits import check_expansion_limits
from .write_verification import iter_nodes_recursive, verify_written_model

__all__ = [
    "check_no_external_data",
    "check_string_fields",
    "check_structure",
    "exceeds_size_limit",
    "iter_tensors",
    "move_to_external_data",
    "read_model",
    "write_model",
]

_MIN_EXTERNAL_BYTES = 1024  # bytes; smaller tensors stay in the model file
_EXTERNAL_ALIGNMENT_BYTES = 4096  # onnxruntime maps tensors that begin at a page


def read_model(path: str | os.PathLike[str]) -> ModelProto:
    """Return the model at `path` with its external data in memory.

    Raises ModelError for a missing, truncated or otherwise unreadable file, for missing external
    data and for external data outside the folder of the model.
    """
    where = Path(path)
    if "\0" in str(where):
        raise ModelError(
            f"cannot read the model {str(where)!r}; no file's name holds the character NUL"
        )
    if not where.is_file():
        what = describe_irregular_file(where)
        what = "does not exist" if what is None else f"is {what}"
        raise ModelError(
            f"cannot read the model {where}: it {what}; give the path of an .onnx file"
        )
    try:
        proto = onnx.load(str(where), load_external_data=False, format="protobuf")
    except Exception as error:
        raise ModelError(
            f"cannot read the model {where}: not a valid ONNX file ({_first_line(error)}); "
            "is it whole, or a Git LFS pointer?"
        ) from error
    if not proto.graph.node and not proto.graph.output:
        raise ModelError(
            f"cannot use the model {where}: its graph has no node; is it an ONNX file?"
        )
    external_data.load_external_data(iter_tensors(proto), where)
    return proto


def check_no_external_data(proto: ModelProto) -> None:
    """Raise ModelError where a model that somebody gives keeps data in a file, whose folder is not known."""
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in iter_tensors(proto)):
        raise ModelError(
            "the model keeps data in a file, and it does not say in which folder; give the model's "
            "path"
        )


def iter_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor stored in `proto`.

    Initializers and attributes, in subgraphs and functions too.
    """
    yield from _iter_graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _iter_node_tensors(function.node)


def _iter_graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from _iter_node_tensors(graph.node)


def _iter_node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for graph in _get_subgraphs(attribute):
                yield from _iter_graph_tensors(graph)


def _get_subgraphs(attribute: onnx.AttributeProto) -> list[GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


# ---- writing -------------------------------------------------------------------------------------------------------


def exceeds_size_limit(proto: ModelProto, limit: int) -> bool:
    """Whether `proto` is too large for one message of `limit` bytes."""
    stored = sum(len(tensor.raw_data) for tensor in iter_tensors(proto))
    return stored > limit or proto.ByteSize() > limit


def write_model(
    proto: ModelProto, path: str | os.PathLike[str], limit: int, check_operators: bool = True
) -> None:
    """Write `proto` to `path`, as a whole or not at all.

    Above `limit` bytes with external data beside it.
    It is read back before it takes its name: ModelError where it could not be loaded. operators :
    whether its standard operators must then be those of its opset, which those of a file from
    elsewhere may not be. `proto` is used up where it is large: its tensors move to the file.
    """
    where = resolve_write_target(path)
    if exceeds_size_limit(proto, limit):
        beside = where.with_name(f"{where.name}.{_external_data_digest(proto)}.data")
        _write_with_external_data(proto, where, beside, check_operators)
    else:
        beside = where
        data = proto.SerializeToString(deterministic=True)
        with replace_file(where) as temporary:
            temporary.write_bytes(data)
            verify_written_model(temporary, where, check_structure, check_operators)
    _remove_stale_data_files(where, beside)


def _write_with_external_data(
    proto: ModelProto, where: Path, beside: Path, operators: bool
) -> None:
    """Write the data to `beside`, a name no other content has, and then the model that refers to it to `where`."""
    new = not beside.exists()
    try:
        with replace_file(where) as temporary:
            with replace_file(beside) as store:
                move_to_external_data(proto, store, beside.name)
            temporary.write_bytes(proto.SerializeToString(deterministic=True))
            verify_written_model(temporary, where, check_structure, operators)
    except BaseException:
        if new:
            beside.unlink(missing_ok=True)
        raise


def _external_data_digest(proto: ModelProto) -> str:
    """Return 16 hexadecimal digits that say what `move_to_external_data` will move."""
    hasher = hashlib.blake2b(digest_size=8)
    for tensor in iter_tensors(proto):
        if len(tensor.raw_data) >= _MIN_EXTERNAL_BYTES:
            hasher.update(tensor.raw_data)
    return hasher.hexdigest()


def _remove_stale_data_files(where: Path, kept: Path) -> None:
    """Remove what earlier models of the name `where` kept their data in.

    What cannot be removed is only in the way.
    """
    name = re.compile(re.escape(where.name) + r"\.[0-9a-f]{16}\.data")
    with contextlib.suppress(OSError):
        for other in where.parent.iterdir():
            if name.fullmatch(other.name) and other.name != kept.name:
                other.unlink()


def move_to_external_data(proto: ModelProto, store: Path, location: str) -> None:
    """Move the large tensors of `proto` into the file `store`, which the model will know as `location`."""
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


# ---- structure -----------------------------------------------------------------------------------------------------


#: Kinds of attributes that are messages -> the field that holds one.
_MESSAGE_FIELDS = {onnx.AttributeProto.TENSOR: "t", onnx.AttributeProto.GRAPH: "g"}


def check_structure(proto: ModelProto) -> None:
    """Raise ModelError where `proto` is no sound graph; what operators mean is not looked at."""
    check_string_fields(proto)
    _check_opsets(proto)
    if not proto.graph.output:
        raise ModelError("the graph has no output; nothing would be computed")
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise ModelError(f"initializer '{name}' is sparse; store it as a dense tensor")
    for tensor in iter_tensors(proto):
        _check_tensor(tensor)
    _check_graph(proto.graph, set())
    for function in proto.functions:
        _check_nodes(
            function.node,
            {*function.input, *(name for node in function.node for name in node.output)},
        )
    check_attributes(proto)
    _check_graph_io(proto.graph)
    check_expansion_limits(proto)
    names = [value.name for value in proto.graph.output]
    if double := _find_duplicate(names):
        raise ModelError(f"tensor '{double}' is listed twice as a graph output; list it once")


def check_string_fields(message: Any) -> None:  # noqa: ANN401 - any message: protobuf has no types
    """Raise ModelError where a name is no text: protobuf hands damaged UTF-8 over as bytes."""
    for field, content in message.ListFields():
        many = (
            content
            if isinstance(content, Sequence) and not isinstance(content, str | bytes)
            else [content]
        )
        if field.type == field.TYPE_STRING and not all(isinstance(text, str) for text in many):
            raise ModelError(
                f"the field '{field.name}' holds something that is no text; the file is damaged"
            )
        if field.type == field.TYPE_MESSAGE:
            for part in many if field.message_type.name != "TensorProto" else ():
                check_string_fields(part)


def _check_opsets(proto: ModelProto) -> None:
    for function in proto.functions:
        _collect_opsets(function.opset_import, f"function '{function.name}'")
    versions = _collect_opsets(proto.opset_import, "the model")
    version = versions.get("")
    local = {(f.domain, f.name) for f in proto.functions}
    for node in iter_nodes_recursive(proto.graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (
            domain in versions
            or domain in QUANTIZED_DOMAINS
            or (node.domain, node.op_type) in local
        ):
            continue
        if version is None and any(known in versions for known in QUANTIZED_DOMAINS):
            continue
        raise ModelError(
            f"{node_label(node)}: the model imports no opset for "
            f"{_format_domain(domain)}{suggest_nearest(domain, versions)}; "
            "the file is damaged, export it again"
        )


def _format_domain(domain: str) -> str:
    return f"domain '{domain}'" if domain else "the standard domain"


def _collect_opsets(imports: Iterable[onnx.OperatorSetIdProto], whose: str) -> dict[str, int]:
    """Return the opset of each domain.

    ModelError for two of one domain, and for a standard one that is not known.
    """
    versions: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"{whose} uses opset {versions[domain]} and opset {entry.version} of "
                f"{_format_domain(domain)}; the file is damaged, export it again"
            )
    newest = onnx.defs.onnx_opset_version()
    if "" in versions and not 0 < versions[""] <= newest:
        raise ModelError(
            f"{whose} uses opset {versions['']}; the installed onnx knows 1 to {newest}: upgrade "
            "onnx or "
            "export with an older opset"
        )
    for domain in QUANTIZED_DOMAINS:
        if versions.get(domain, 1) != 1:
            raise ModelError(
                f"{whose} is of version {versions[domain]} of domain '{domain}'; this lingeronnx "
                "reads 1: "
                "upgrade it, or quantize the float model again"
            )
    return versions


def _check_graph_io(graph: GraphProto) -> None:
    """A graph input that says what it is says of which elements.

    An output is no map of keys, as ZipMap makes them.
    """
    for value in graph.input:
        if (
            value.type.HasField("tensor_type")
            and value.type.tensor_type.elem_type == TensorProto.UNDEFINED
        ):
            raise ModelError(
                f"graph input '{value.name}' has no element type; the file is damaged, export it "
                "again"
            )

    for value in graph.output:
        if value.type.HasField("map_type") or value.type.sequence_type.elem_type.HasField(
            "map_type"
        ):
            maker = next((node for node in graph.node if value.name in node.output), None)
            end = (
                f"end the model at '{maker.input[0]}', which {maker.op_type} reads"
                if maker and maker.input
                else ""
            )
            raise ModelError(
                f"output '{value.name}' is a map from keys to numbers, which no platform computes; "
                f"{end or 'leave it out'}, and look the keys up in your program"
            )


def _check_tensor(tensor: TensorProto) -> None:
    """The data must have the size that the shape says."""
    kind = (
        TensorProto.DataType.Name(tensor.data_type)
        if tensor.data_type in TensorProto.DataType.values()
        else "?"
    )
    if kind in ("?", "UNDEFINED"):
        raise ModelError(
            f"initializer '{tensor.name}' has unknown element type {tensor.data_type}; the file is "
            "damaged"
        )
    if kind.startswith("FLOAT6"):
        raise ModelError(
            f"initializer '{tensor.name}' is of type {kind}, which is not read; store it as FLOAT"
        )
    count = math.prod(tensor.dims)
    if any(d < 0 for d in tensor.dims):
        raise ModelError(
            f"initializer '{tensor.name}' has shape {list(tensor.dims)}; a size cannot be negative"
        )
    unit = "bytes"
    if tensor.data_location == TensorProto.EXTERNAL:
        lengths = [int(entry.value) for entry in tensor.external_data if entry.key == "length"]
        size, want = sum(lengths), _expected_bytes(tensor.data_type, count)
    elif kind == "STRING":
        size, want, unit = len(tensor.string_data), count, "values"
    elif tensor.raw_data:
        size, want = len(tensor.raw_data), _expected_bytes(tensor.data_type, count)
    else:
        size, want, unit = _count_typed_values(tensor, kind), count, "values"
    if size != want:
        raise ModelError(
            f"initializer '{tensor.name}' of shape {list(tensor.dims)} holds {size} {unit}, not "
            f"{want}; the file is "
            "damaged, export it again"
        )


def _expected_bytes(kind: int, count: int) -> int:
    name = TensorProto.DataType.Name(kind)
    bits = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}.get(name)
    if bits is None:
        bits = 8 * onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize
    return -(-count * bits // 8)


def _count_typed_values(tensor: TensorProto, kind: str) -> int:
    """Return the number of values in the typed field of `tensor`."""
    if kind in ("COMPLEX64", "COMPLEX128"):
        return (len(tensor.float_data) + len(tensor.double_data)) // 2
    if kind in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2"):
        return math.prod(tensor.dims) if tensor.int32_data else 0
    fields = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data")
    return sum(len(getattr(tensor, field)) for field in fields)


def _check_graph(graph: GraphProto, outer: set[str]) -> None:
    """Every tensor has one producer, every name that is read exists, nothing depends on itself."""
    inputs = [value.name for value in graph.input]
    if "" in inputs:
        raise ModelError("a graph input has no name; the file is damaged")
    stored = {tensor.name for tensor in graph.initializer}
    if "" in stored:
        raise ModelError("an initializer has no name; the file is damaged")
    if double := _find_duplicate(inputs) or _find_duplicate(
        [tensor.name for tensor in graph.initializer]
    ):
        raise ModelError(
            f"tensor '{double}' is defined twice; names must be unique, export the model again"
        )
    producers: dict[str, NodeProto] = {}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in producers or name in stored or name in inputs:
                other = (
                    node_label(producers[name])
                    if name in producers
                    else "a graph input or initializer"
                )
                raise ModelError(
                    f"{node_label(node)}: tensor '{name}' is written by {other} too; names must be "
                    "unique"
                )
            producers[name] = node
    known = outer | set(inputs) | stored | set(producers)
    _check_nodes(graph.node, known)
    for value in graph.output:
        if value.name not in known:
            raise ModelError(
                f"graph output '{value.name}' is computed nowhere; the file is damaged"
            )
    _check_cycle(graph, producers)


def _check_nodes(nodes: Iterable[NodeProto], known: set[str]) -> None:
    """What nodes read is among the names `known`, and their attributes hold what they say."""
    for node in nodes:
        for name in filter(None, node.input):
            if name not in known:
                raise ModelError(
                    f"{node_label(node)}: its input '{name}' is computed nowhere; the file is "
                    "damaged"
                )
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.UNDEFINED:
                raise ModelError(
                    f"{node_label(node)}: its attribute '{attribute.name}' has no type; the file "
                    "is damaged"
                )
            if (
                (field := _MESSAGE_FIELDS.get(attribute.type))
                and not attribute.ref_attr_name
                and not attribute.HasField(field)
            ):
                raise ModelError(
                    f"{node_label(node)}: its attribute '{attribute.name}' is empty; the file is "
                    "damaged"
                )
            for inner in _get_subgraphs(attribute):
                if node.op_type == "Loop" and (len(inner.input) < 2 or not inner.output):
                    raise ModelError(
                        f"{node_label(node)}: its body takes {len(inner.input)} inputs and gives "
                        f"{len(inner.output)} "
                        "outputs; it takes the turn and the condition, and gives the condition"
                    )
                _check_graph(inner, known)


def _check_cycle(graph: GraphProto, producers: dict[str, NodeProto]) -> None:
    """Take out nodes whose inputs are ready until none is left."""
    waiting: dict[int, int] = {}
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(graph.node):
        needed = {name for name in node.input if name in producers}
        waiting[index] = len(needed)
        for name in needed:
            readers.setdefault(name, []).append(index)
    ready = [index for index, count in waiting.items() if count == 0]
    while ready:
        index = ready.pop()
        del waiting[index]
        for name in filter(None, graph.node[index].output):
            for reader in readers.get(name, ()):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    ready.append(reader)
    if waiting:
        raise ModelError(
            f"{node_label(graph.node[min(waiting)])}: it depends on its own output; a graph has no "
            "cycle"
        )


def _find_duplicate(names: list[str]) -> str | None:
    met_names: set[str] = set()
    return next((name for name in names if name in met_names or met_names.add(name)), None)  # type: ignore[func-returns-value]


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
