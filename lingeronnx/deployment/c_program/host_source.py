"""A host part as C99, by emx-onnx-cgen: float operators on arrays, weights `static const`.

emx-onnx-cgen writes one function that declares an array for every tensor and calls one function per
node. What it declares on the stack is put into memory that the caller gives, planned by lifetimes;
what it makes global becomes static. A line that is not of a form known here is an error: nothing is
passed on unseen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import onnx
from onnx.inliner import inline_local_functions

from ...errors import ConfigError, ConstraintError
from .arena import BufferLifetime, plan_arena
from .blocked_sums import block_long_sums

__all__ = [
    "GENERATOR",
    "HostSource",
    "INSTALL_HINT",
    "explain_missing_generator",
    "fix_sample_shapes",
    "generate_host_source",
]

#: The generator, and the one release whose output is understood here.
GENERATOR, GENERATOR_VERSION = "emx-onnx-cgen", "1.4.0"
#: Bytes of weights from which on a host part is named as large.
LARGE_WEIGHT_BYTES = 100_000
INSTALL_HINT = "pip install 'lingeronnx[c]'"

_DECLARED = re.compile(r"(?P<type>\w+) (?P<name>\w+)(?P<dims>(?:\[\d+\])+);")
_CALL = re.compile(r"node\d+_\w+\((?P<args>[\w, ]*)\);")
_PARAMETER = re.compile(
    r"(?P<const>const )?(?P<type>\w+) (?P<name>\w+)(?P<dims>(?:\[(?:restrict )?\d+\])+)"
)
_LOADER = re.compile(r"_Bool \w+_load\(const char \*path\) \{.*?\n\}\n+", re.DOTALL)
_BYTES = {"float": 4, "double": 8, "bool": 1, "_Bool": 1} | {
    f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_FORBIDDEN = ("malloc", "free(", "<stdio.h>", "<stdlib.h>")


@dataclass(frozen=True)
class HostSource:
    """C of one host part.

    text : of the file. declaration : of its one global function, with flat pointers to inputs,
    outputs and scratch. scratch_bytes : bytes that the caller gives for what lies between them.
    weights : bytes of its constants.
    """

    text: str
    declaration: str
    scratch_bytes: int
    weight_bytes: int

    @property
    def is_large(self) -> bool:
        """Whether its weights make it the bottleneck of a small core."""
        return self.weight_bytes >= LARGE_WEIGHT_BYTES


def explain_missing_generator() -> str | None:
    """Return None where the generator is installed as it must be, else why not, as one line."""
    try:
        found = version(GENERATOR)
    except PackageNotFoundError:
        return f"host parts in C need {GENERATOR} {GENERATOR_VERSION}: {INSTALL_HINT}"
    return (
        None
        if found == GENERATOR_VERSION
        else f"host parts in C need {GENERATOR} {GENERATOR_VERSION}, not {found}: {INSTALL_HINT}"
    )


def generate_host_source(
    model: onnx.ModelProto,
    name: str,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> HostSource:
    """Return the C of `model` for one sample, as a function called `name`.

    inputs, outputs : arrays of the model's, for shapes and types. Raises ConfigError without the
    generator, and ConstraintError for what it does not take.
    """
    if (why := explain_missing_generator()) is not None:
        raise ConfigError(why)
    whole = fix_sample_shapes(model, inputs, outputs)
    try:
        text = _run_generator(whole, name)
    except Exception as error:  # a foreign generator's, whatever it is
        raise ConstraintError(
            f"{GENERATOR} cannot write {name} as C: {_find_unsupported_node(whole, name)}; take it "
            "out of the model, "
            "or write it in "
            "other operators"
        ) from error
    weights = sum(onnx.numpy_helper.to_array(c).nbytes for c in whole.graph.initializer)
    return _rewrite_source(block_long_sums(text), name, weights)


def _run_generator(whole: onnx.ModelProto, name: str) -> str:
    from emx_onnx_cgen.compiler import Compiler, CompilerOptions  # type: ignore[import-untyped]

    options = CompilerOptions(
        model_name=f"{name}_nodes",
        large_temp_threshold_bytes=0,
        large_weight_threshold=0,
        restrict_arrays=False,
    )
    return str(Compiler(options).compile(whole))


def _find_unsupported_node(whole: onnx.ModelProto, name: str) -> str:
    """Return which node the generator does not take by itself, the first one, and why, as far as that is known."""
    graph = whole.graph
    known = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    held = {tensor.name: tensor for tensor in graph.initializer}
    constants = {node.output[0]: node for node in graph.node if node.op_type == "Constant"}
    for node in graph.node:
        read = [tensor for tensor in node.input if tensor]
        alone = onnx.helper.make_model(
            onnx.helper.make_graph(
                [
                    *(constants[tensor] for tensor in dict.fromkeys(read) if tensor in constants),
                    node,
                ],
                "alone",
                [
                    known[tensor]
                    for tensor in dict.fromkeys(read)
                    if tensor in known and tensor not in held
                ],
                [
                    known.get(tensor, onnx.ValueInfoProto(name=tensor))
                    for tensor in node.output
                    if tensor
                ],
                [held[tensor] for tensor in dict.fromkeys(read) if tensor in held],
            ),
            opset_imports=whole.opset_import,
            ir_version=whole.ir_version,
        )
        try:
            _run_generator(alone, name)
        except Exception:  # a foreign generator's, whatever it is
            sizes = [
                known[tensor].type.tensor_type.shape.dim if tensor in known else None
                for tensor in node.output
            ]
            open_ = any(
                dims is None or not all(dim.HasField("dim_value") for dim in dims) for dims in sizes
            )
            why = (
                "the sizes of what it writes depend on values"
                if open_
                else "not with these attributes and types"
            )
            return f"{node.op_type} {node.name or node.output[0]} ({why})"
    return f"its {len(graph.node)} nodes, not one of them, together"


def _drop_empty_resize_inputs(graph: onnx.GraphProto) -> None:
    """Leave out inputs of Resize that say nothing, which opset 11 asks for and the generator measures: roi, no scales.

    The regions are read with coordinates of tf_crop_and_resize only, as the operator's page says.
    """
    hollow = {tensor.name for tensor in graph.initializer if 0 in tensor.dims}
    for node in graph.node:
        if node.op_type == "Resize":
            crops = any(one.s == b"tf_crop_and_resize" for one in node.attribute)
            node.input[:] = [
                "" if name in hollow or (place == 1 and not crops) else name
                for place, name in enumerate(node.input)
            ]
    read = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name in hollow - read]:
        graph.initializer.remove(tensor)


def fix_sample_shapes(
    model: onnx.ModelProto, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> onnx.ModelProto:
    """Return `model` with the sizes of one sample everywhere, and functions written out."""
    made = (
        inline_local_functions(model)
        if model.functions
        else onnx.ModelProto.FromString(model.SerializeToString())
    )
    graph = made.graph
    del graph.value_info[:], made.metadata_props[:]
    graph.name, graph.doc_string, made.doc_string = "", "", ""
    _drop_empty_resize_inputs(graph)
    for values, arrays in ((graph.input, inputs), (graph.output, outputs)):
        for value, array in zip(values, arrays, strict=True):
            value.CopyFrom(
                onnx.helper.make_tensor_value_info(
                    value.name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
            )
    return onnx.shape_inference.infer_shapes(made)


def _rewrite_source(text: str, name: str, weights: int) -> HostSource:
    """Make what is global static and put the arrays of the model's function into memory that is given."""
    text = re.sub(r"^extern const .*;\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^const EMX_UNUSED ", "static const EMX_UNUSED ", text, flags=re.MULTILINE)
    text, loaders = _LOADER.subn("", text)
    head, mark, body = text.partition(f"void {name}_nodes(")
    if loaders != 1 or not mark or "\nvoid " in head:
        raise ConstraintError(f"{GENERATOR} wrote {name} in a form that is not known here")
    if bad := [word for word in _FORBIDDEN if word in text]:
        raise ConstraintError(f"{GENERATOR} wrote {name} with {bad[0]}, which a board may not have")
    signature, _, inner = body.partition(") {\n")
    parameters = [_parse_parameter(piece, name) for piece in _split(signature)]
    lines = [line.strip() for line in inner.rsplit("}", 1)[0].splitlines() if line.strip()]
    arrays, calls = _parse_body(lines, name)
    uses = _get_lifetimes(arrays, calls)
    offsets, scratch = plan_arena(uses)
    made = [
        (
            "static void "
            f"{name}_nodes({signature}{', ' if signature else ''}unsigned char *scratch__) {{"
        )
    ]
    for array, (kind, dims) in arrays.items():
        if array in offsets:
            cast = _format_pointer(kind, "", dims)
            made.append(
                f"    {_format_pointer(kind, array, dims)} = ({cast})(void *)(scratch__ + "
                f"{offsets[array]});"
            )
    made += ["    (void)scratch__;", *(f"    {call}" for call in calls), "}", ""]
    flat = ", ".join(
        [*(f"{'const ' if c else ''}{k} *{n}" for c, k, n, _ in parameters), "void *scratch__"]
    )
    cast = ", ".join(
        f"({_format_pointer(('const ' if c else '') + k, '', d)}){'(const void *)' if c else '(void *)'}{n}"
        for c, k, n, d in parameters
    )
    declaration = f"void {name}({flat})"
    made += [
        f"{declaration};",
        "",
        f"{declaration} {{",
        f"    {name}_nodes({cast}, (unsigned char *)scratch__);",
        "}",
        "",
    ]
    return HostSource(head + "\n".join(made), declaration, scratch, weights)


def _split(signature: str) -> list[str]:
    return [piece.strip() for piece in signature.split(",") if piece.strip()]


def _parse_parameter(piece: str, name: str) -> tuple[bool, str, str, list[int]]:
    match = _PARAMETER.fullmatch(piece)
    if match is None:
        raise ConstraintError(
            f"{GENERATOR} wrote {name} with a parameter that is not known here: {piece}"
        )
    return bool(match["const"]), match["type"], match["name"], _sizes(match["dims"])


def _sizes(dims: str) -> list[int]:
    return [int(size) for size in re.findall(r"\d+", dims)]


def _format_pointer(kind: str, name: str, dims: Sequence[int]) -> str:
    inner = "".join(f"[{size}]" for size in dims[1:])
    return f"{kind} (*{name}){inner}" if inner else f"{kind} *{name}"


def _parse_body(
    lines: Sequence[str], name: str
) -> tuple[dict[str, tuple[str, list[int]]], list[str]]:
    """Split the lines of the model's function into the arrays that it declares and its calls."""
    arrays, calls = {}, []
    for line in lines:
        if match := _DECLARED.fullmatch(line):
            arrays[match["name"]] = (match["type"], _sizes(match["dims"]))
        elif _CALL.fullmatch(line):
            calls.append(line)
        else:
            raise ConstraintError(
                f"{GENERATOR} wrote {name} with a line that is not known here: {line}"
            )
    return arrays, calls


def _get_lifetimes(
    arrays: dict[str, tuple[str, list[int]]], calls: Sequence[str]
) -> dict[str, BufferLifetime]:
    uses: dict[str, BufferLifetime] = {}
    for step, call in enumerate(calls):
        for word in re.findall(r"\w+", call.partition("(")[2]):
            if word in arrays:
                kind, dims = arrays[word]
                first = uses[word].first if word in uses else step
                uses[word] = BufferLifetime(_BYTES[kind] * int(np.prod(dims)), first, step)
    return uses
