"""Generate the C99 of a host part with emx-onnx-cgen: float operators on arrays, constant weights.

emx-onnx-cgen writes one function that declares an array for every tensor and calls one function per
node. Arrays that it declares on the stack are moved into memory of the caller, planned by
lifetimes; its global symbols become static. A line in an unknown form is an error, so that nothing
is passed on unchecked.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import numpy as np
import onnx
from onnx.inliner import inline_local_functions

from ...common.errors import ConfigError, ConstraintError
from .arena import BufferLifetime, plan_arena
from .blocked_sums import block_long_sums
from .generated_names import replace_names
from .ml_operators import replace_ml_operators

__all__ = [
    "GENERATOR",
    "HostSource",
    "INSTALL_HINT",
    "explain_missing_generator",
    "fix_sample_shapes",
    "generate_host_source",
]

#: The generator, and the only release whose output this module can parse.
GENERATOR, GENERATOR_VERSION = "emx-onnx-cgen", "1.4.0"
#: Bytes of weights from which the README reports a host part as large.
LARGE_WEIGHT_BYTES = 100_000
INSTALL_HINT = "pip install 'lingeronnx[c]'"

_DECLARATION = re.compile(r"(?P<type>\w+) (?P<name>\w+)(?P<dims>(?:\[\d+\])+);")
_CALL = re.compile(r"node\d+_\w+\((?P<args>[\w, ]*)\);")
_PARAMETER = re.compile(
    r"(?P<const>const )?(?P<type>\w+) (?P<name>\w+)(?P<dims>(?:\[(?:restrict )?\d+\])+)"
)
#: A variable with static storage; functions have a parenthesis.
_STATIC_VARIABLE = re.compile(r"^[ \t]*static [^(\n=;]*(?=[=;])", re.MULTILINE)
_CONSTANT_ARRAY = re.compile(
    r"\s*static const (?:EMX_UNUSED )?(?P<type>\w+) (?P<name>\w+)(?P<dims>(?:\[\d+\])*)\s*$"
)
_UNUSED_ATTRIBUTE = "#define EMX_UNUSED __attribute__((unused))"
_USED_ATTRIBUTE = (
    "#define EMX_UNUSED __attribute__((used)) /* stored, even if its values become literals */"
)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_LOADER = re.compile(r"_Bool \w+_load\(const char \*path\) \{.*?\n\}\n+", re.DOTALL)
_BYTES = {"float": 4, "double": 8, "bool": 1, "_Bool": 1} | {
    f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_FORBIDDEN = ("malloc", "free(", "<stdio.h>", "<stdlib.h>")


@dataclass(frozen=True)
class HostSource:
    """C source of one host part.

    text : content of the file. declaration : of its only global function, whose parameters are flat
    pointers to inputs, outputs and scratch memory. scratch_bytes : size of the scratch memory,
    which holds the tensors between nodes. weight_bytes : size of its constant arrays.
    """

    text: str
    declaration: str
    scratch_bytes: int
    weight_bytes: int

    @property
    def is_large(self) -> bool:
        """Whether it has 100,000 bytes of weights or more: the bottleneck of a small core."""
        return self.weight_bytes >= LARGE_WEIGHT_BYTES


def explain_missing_generator() -> str | None:
    """Return a message if the required release of emx-onnx-cgen is not installed, else None."""
    requirement = f"host parts in C need {GENERATOR} {GENERATOR_VERSION}"
    try:
        installed = version(GENERATOR)
    except PackageNotFoundError:
        return f"{requirement}: {INSTALL_HINT}"
    if installed != GENERATOR_VERSION:
        return f"{requirement}, not {installed}: {INSTALL_HINT}"
    return None


def generate_host_source(
    model: onnx.ModelProto,
    name: str,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> HostSource:
    """Generate the C of a float model for one sample.

    Parameters
    ----------
    model
        The float model.
    name
        Name of the C function.
    inputs, outputs
        Arrays of one sample, for shapes and types, in the order of the graph's.

    Raises
    ------
    ConfigError
        If the generator is not installed.
    ConstraintError
        If the generator does not support the model, a text in it is not a plain word
        (`replace_names`), or the generated C has an unknown form.
    """
    if (reason := explain_missing_generator()) is not None:
        raise ConfigError(reason)
    static_model = fix_sample_shapes(model, inputs, outputs)
    try:
        text = _run_generator(static_model, name)
    except ConstraintError:
        raise
    except Exception as error:  # the generator raises various types
        raise ConstraintError(
            f"{GENERATOR} cannot write {name} as C: {_find_unsupported_node(static_model, name)}; "
            "remove it from the model or express it with other operators"
        ) from error
    return _rewrite_source(block_long_sums(text), name)


def _run_generator(model: onnx.ModelProto, name: str) -> str:
    """Return the C that emx-onnx-cgen generates for a model, with the function NAME_nodes.

    Names and texts of the model are replaced first; only `name` reaches the generator. Raises
    whatever the generator raises, or ConstraintError.
    """
    from emx_onnx_cgen.compiler import Compiler, CompilerOptions  # type: ignore[import-untyped]

    options = CompilerOptions(
        model_name=f"{name}_nodes",
        large_temp_threshold_bytes=0,
        large_weight_threshold=0,
        restrict_arrays=False,
    )
    return str(Compiler(options).compile(replace_names(model)))


def _find_unsupported_node(model: onnx.ModelProto, name: str) -> str:
    """Return text on the first node that the generator rejects by itself, with a likely reason.

    If it accepts each node alone, the text says that they are rejected together.
    """
    graph = model.graph
    values = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    constant_nodes = {node.output[0]: node for node in graph.node if node.op_type == "Constant"}
    for node in graph.node:
        node_model = _extract_node(model, node, values, constant_nodes)
        try:
            _run_generator(node_model, name)
        except Exception:  # the generator raises various types
            reason = "not with these attributes and types"
            if not all(_has_static_shape(values.get(tensor)) for tensor in node.output):
                reason = "the shape of its output depends on values"
            return f"{node.op_type} {node.name or node.output[0]} ({reason})"
    return f"its {len(graph.node)} nodes together, although each is supported"


def _has_static_shape(value: onnx.ValueInfoProto | None) -> bool:
    """Whether the type of a tensor is known with a number for every dimension.

    False for None. True for a tensor without a shape.
    """
    if value is None:
        return False
    return all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)


def _extract_node(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    values: Mapping[str, onnx.ValueInfoProto],
    constant_nodes: Mapping[str, onnx.NodeProto],
) -> onnx.ModelProto:
    """Return a model of one node with its constants.

    `values` and `constant_nodes` have the types of the model's tensors and its Constant nodes, by
    name of the tensor.
    """
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    graph = onnx.GraphProto(name="single_node")
    for name in dict.fromkeys(node.input):
        if name in constant_nodes:
            graph.node.append(constant_nodes[name])
        if name in initializers:
            graph.initializer.append(initializers[name])
        elif name in values:
            graph.input.append(values[name])
    graph.node.append(node)
    for name in node.output:
        if name:
            graph.output.append(values.get(name, onnx.ValueInfoProto(name=name)))
    return onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )


def _drop_empty_resize_inputs(graph: onnx.GraphProto) -> None:
    """Remove unused inputs of all Resize nodes, in place: empty tensors, and regions never read.

    Constants that are no longer read are removed too. Opset 11 requires these inputs, but the
    generator cannot handle them. Regions are read only with the coordinates of tf_crop_and_resize.
    """
    empty = {tensor.name for tensor in graph.initializer if 0 in tensor.dims}
    for node in graph.node:
        if node.op_type == "Resize":
            _clear_unused_resize_inputs(node, empty)
    consumed = set(itertools.chain.from_iterable(node.input for node in graph.node))
    for tensor in list(graph.initializer):
        if tensor.name in empty - consumed:
            graph.initializer.remove(tensor)


def _clear_unused_resize_inputs(node: onnx.NodeProto, empty: Collection[str]) -> None:
    """Clear inputs of a Resize that are in `empty`, and regions that it does not read, in place.

    `empty` has the names of constants without elements. Regions (input 1) are read with
    tf_crop_and_resize only.
    """
    uses_regions = any(attribute.s == b"tf_crop_and_resize" for attribute in node.attribute)
    for index, name in enumerate(node.input):
        if name in empty or (index == 1 and not uses_regions):
            node.input[index] = ""


def fix_sample_shapes(
    model: onnx.ModelProto, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> onnx.ModelProto:
    """Copy `model` with the shapes and types of one sample, with functions inlined.

    Operators of ai.onnx.ml that have a standard form get it (`replace_ml_operators`). Shapes of
    other tensors are inferred again; names, texts and metadata of the model are dropped.
    """
    if model.functions:
        static_model = inline_local_functions(model)
    else:
        static_model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = static_model.graph
    del graph.value_info[:], static_model.metadata_props[:]
    graph.name, graph.doc_string, static_model.doc_string = "", "", ""
    _drop_empty_resize_inputs(graph)
    replace_ml_operators(static_model)
    for values, arrays in ((graph.input, inputs), (graph.output, outputs)):
        for value, array in zip(values, arrays, strict=True):
            elem_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            typed = onnx.helper.make_tensor_value_info(value.name, elem_type, array.shape)
            value.CopyFrom(typed)
    return onnx.shape_inference.infer_shapes(static_model)


class _Parameter(NamedTuple):
    """A parameter of the generated function."""

    is_const: bool
    c_type: str
    name: str
    dims: list[int]

    def format_flat(self) -> str:
        """Return the C declaration of the parameter as a pointer to elements, "const float *x"."""
        return f"{'const ' if self.is_const else ''}{self.c_type} *{self.name}"

    def format_cast(self) -> str:
        """Return the C expression of the flat pointer cast to a pointer to rows.

        That is the type that the generated function takes.
        """
        const = "const " if self.is_const else ""
        row_pointer = _format_pointer(f"{const}{self.c_type}", "", self.dims)
        return f"({row_pointer})({const}void *){self.name}"


def _rewrite_source(text: str, name: str) -> HostSource:
    """Make global symbols static, and move the arrays of the model's function to scratch memory.

    Parameters
    ----------
    text
        C that the generator wrote.
    name
        Name of the model's function, which gets a last parameter for the scratch memory.

    Raises
    ------
    ConstraintError
        If the text has an unknown form, or uses something that a board may lack.
    """
    text = re.sub(r"^extern const .*;\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^const EMX_UNUSED ", "static const EMX_UNUSED ", text, flags=re.MULTILINE)
    text = _keep_constants(text, name)
    text, loader_count = _LOADER.subn("", text)
    head, separator, function = text.partition(f"void {name}_nodes(")
    if loader_count != 1 or not separator or "\nvoid " in head:
        raise ConstraintError(f"{GENERATOR} wrote {name} in an unknown form")
    if forbidden := [word for word in _FORBIDDEN if word in text]:
        raise ConstraintError(
            f"{GENERATOR} wrote {name} with {forbidden[0]}, which a board may not have"
        )
    signature, _, body = function.partition(") {\n")
    parameters = _parse_parameters(signature, name)
    lines = [line.strip() for line in body.rsplit("}", 1)[0].splitlines() if line.strip()]
    arrays, calls = _parse_body(lines, name)
    offsets, scratch_bytes = plan_arena(_get_lifetimes(arrays, calls))
    scratch_parameter = f"{', ' if signature else ''}unsigned char *scratch__"
    output = [f"static void {name}_nodes({signature}{scratch_parameter}) {{"]
    for array, (c_type, dims) in arrays.items():
        if array in offsets:
            cast = _format_pointer(c_type, "", dims)
            output.append(
                f"    {_format_pointer(c_type, array, dims)} = ({cast})(void *)(scratch__ + "
                f"{offsets[array]});"
            )
    output += ["    (void)scratch__;", *(f"    {call}" for call in calls), "}", ""]
    flat_parameters = [*(parameter.format_flat() for parameter in parameters), "void *scratch__"]
    arguments = ", ".join(parameter.format_cast() for parameter in parameters)
    declaration = f"void {name}({', '.join(flat_parameters)})"
    output += [
        f"{declaration};",
        "",
        f"{declaration} {{",
        f"    {name}_nodes({arguments}, (unsigned char *)scratch__);",
        "}",
        "",
    ]
    weight_bytes = _count_constant_bytes(head, name)
    return HostSource(head + "\n".join(output), declaration, scratch_bytes, weight_bytes)


def _keep_constants(text: str, name: str) -> str:
    """Make compilers store every constant array, so that its bytes do not depend on optimization.

    Otherwise an array of a few elements is stored or becomes literals, as the compiler chooses.

    Raises
    ------
    ConstraintError
        If the text defines the attribute of constants in another way.
    """
    text = re.sub(
        r"^([ \t]+static const )(?!EMX_UNUSED )", r"\1EMX_UNUSED ", text, flags=re.MULTILINE
    )
    if "EMX_UNUSED" in text and _UNUSED_ATTRIBUTE not in text:
        raise ConstraintError(f"{GENERATOR} wrote {name} with an unknown attribute of constants")
    return text.replace(_UNUSED_ATTRIBUTE, _USED_ATTRIBUTE)


def _count_constant_bytes(head: str, name: str) -> int:
    """Return the bytes of all constant arrays.

    Parameters
    ----------
    head
        C with the constants and the operators' functions.
    name
        Name of the model, for messages.

    Raises
    ------
    ConstraintError
        If there are writable variables, or constants of an unknown type.
    """
    constant_bytes = 0
    for match in _STATIC_VARIABLE.finditer(_COMMENT.sub("", head)):
        array = _CONSTANT_ARRAY.match(match[0])
        if array is None or array["type"] not in _BYTES:
            raise ConstraintError(
                f"{GENERATOR} wrote {name} with an unknown form of variable: {match[0].strip()}"
            )
        constant_bytes += math.prod(_parse_dims(array["dims"])) * _BYTES[array["type"]]
    return constant_bytes


def _parse_parameters(signature: str, name: str) -> list[_Parameter]:
    """Parse the C parameter list of the generated function.

    Raises ConstraintError for an unknown form; `name` names the function in the message.
    """
    return [_parse_parameter(item.strip(), name) for item in signature.split(",") if item.strip()]


def _parse_parameter(text: str, name: str) -> _Parameter:
    """Parse one C parameter, or raise ConstraintError if its form is unknown."""
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise ConstraintError(f"{GENERATOR} wrote {name} with an unknown form of parameter: {text}")
    dims = _parse_dims(match["dims"])
    return _Parameter(bool(match["const"]), match["type"], match["name"], dims)


def _parse_dims(dims: str) -> list[int]:
    """Return the numbers in C array brackets: [2, 3] for "[2][3]"."""
    return [int(size) for size in re.findall(r"\d+", dims)]


def _format_pointer(c_type: str, name: str, dims: Sequence[int]) -> str:
    """Return the C declaration of a pointer `name` to the rows of an array of shape `dims`.

    That is "c_type *name" for one dimension, else "c_type (*name)[...]".
    """
    row = "".join(f"[{size}]" for size in dims[1:])
    return f"{c_type} (*{name}){row}" if row else f"{c_type} *{name}"


def _parse_body(
    lines: Sequence[str], name: str
) -> tuple[dict[str, tuple[str, list[int]]], list[str]]:
    """Split the lines of the model's function into the arrays that it declares and its calls.

    Parameters
    ----------
    lines
        Lines of C without indentation.
    name
        Name of the model, for messages.

    Returns
    -------
    arrays : dict
        (C type, dimensions) by name.
    calls : list of str
        Calls of the operators' functions, in order.

    Raises
    ------
    ConstraintError
        If a line is of another form.
    """
    arrays, calls = {}, []
    for line in lines:
        if match := _DECLARATION.fullmatch(line):
            arrays[match["name"]] = (match["type"], _parse_dims(match["dims"]))
        elif _CALL.fullmatch(line):
            calls.append(line)
        else:
            raise ConstraintError(f"{GENERATOR} wrote {name} with an unknown form of line: {line}")
    return arrays, calls


def _get_lifetimes(
    arrays: dict[str, tuple[str, list[int]]], calls: Sequence[str]
) -> dict[str, BufferLifetime]:
    """Return the size and lifetime of each array: the first and last call that has it as argument.

    Calls are counted from 0. `arrays` has (C type, dimensions) by name; arrays without a call are
    left out.
    """
    lifetimes: dict[str, BufferLifetime] = {}
    for step, call in enumerate(calls):
        for argument in re.findall(r"\w+", call.partition("(")[2]):
            if argument in arrays:
                c_type, dims = arrays[argument]
                first = lifetimes[argument].first if argument in lifetimes else step
                size = _BYTES[c_type] * int(np.prod(dims))
                lifetimes[argument] = BufferLifetime(size, first, step)
    return lifetimes
