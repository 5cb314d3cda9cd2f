"""ONNX schemas of the integer operators, for ONNX's checker and shape inference.

`register_schemas` registers every operator of `integer_ops` with ``onnx`` in domain `thinker`,
version 1: attributes from the operator's own table, types of inputs and outputs, and the inference
of types and shapes.

    lo.register_schemas()
    onnx.checker.check_model(model)              # names, attributes, number of inputs
    onnx.shape_inference.infer_shapes(model)     # int8 types and shapes
    lo.check_model(model)                        # all of that, and types, for every generation

The format uses some operators of ONNX's own domain in ways that the standard does not allow
(`NONSTANDARD_USAGE`). `check_model` therefore checks a copy in which integer nodes of those
operators are in domain `thinker`, where a schema states the rules of the format; the copy also has
the current names of operators and attributes. Nothing is exempt from the check.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, defs, helper, shape_inference

from ..common.errors import ModelError, suggest_nearest
from ..ir import ir, onnx_file
from . import shape_inference as rules
from .integer_ops import (
    ATTRIBUTE_RENAMES,
    DEQUANT,
    GRU,
    INTEGER_OPS,
    LSTM,
    Attr,
    Format,
    find_integer_op_by_name,
    get_known_integer_ops,
)
from .shape_inference import Signature

__all__ = [
    "NONSTANDARD_USAGE",
    "SCHEMA_DOMAIN",
    "SCHEMA_VERSION",
    "check_model",
    "deregister_schema",
    "register_schemas",
    "to_checkable_model",
]

SCHEMA_DOMAIN, SCHEMA_VERSION = "thinker", 1

#: Standard operators that the format uses in nonstandard ways -> description. Integer nodes of
#: these operators are checked by the schemas of domain thinker.
NONSTANDARD_USAGE = {
    form.name: form.nonstandard_usage for form in INTEGER_OPS if form.nonstandard_usage
}

#: Operators whose usage is nonstandard only if they have this attribute.
_NONSTANDARD_ATTRIBUTES = {
    form.name: form.nonstandard_attribute for form in INTEGER_OPS if form.nonstandard_attribute
}

_INTEGER_TYPES = ("int8", "int16", "int32")
_TYPES_BY_KIND = {
    "integer": _INTEGER_TYPES,
    "bias": ("int32", "int64"),
    "factors": ("uint8",),
    "index": ("int32", "int64"),
    "number": (*_INTEGER_TYPES, "int64"),
    "real": ("float",),
    "result": (*_INTEGER_TYPES, "float"),  # a layer without scale_o has float results
    "any": (*_INTEGER_TYPES, "int64", "uint8", "bool", "float"),
}
_ATTRIBUTE_TYPES = {
    "i": defs.OpSchema.AttrType.INT,
    "f": defs.OpSchema.AttrType.FLOAT,
    "s": defs.OpSchema.AttrType.STRING,
    "ints": defs.OpSchema.AttrType.INTS,
    "floats": defs.OpSchema.AttrType.FLOATS,
}
_OPTIONAL, _VARIADIC = (
    defs.OpSchema.FormalParameterOption.Optional,
    defs.OpSchema.FormalParameterOption.Variadic,
)


#: Attributes that the packer requires and that do not affect results. They are not in the tables
#: of the operators.
_PACKER_ATTRIBUTES = tuple(
    Attr(name, "s", None)
    for name in ("platform", "platform_quant", "quant_mode", "castor_mode", "mode")
)
_WIDTH_ATTRIBUTES = tuple(
    Attr(name, "i", None)
    for name in ("data_bits", "parameter_bits", "o_bits", "y_bits", "zero_point")
)

#: Graphs call both a single scale and one per channel scale_w; a schema allows one type per name.
_CHANNEL_SCALES = Attr("scales_w", "floats", None, "counts per unit, one for each output channel")


# ---- schemas -------------------------------------------------------------------------------------

#: Signature of operators without their own: any inputs and outputs; attributes are checked.
_ANY_SIGNATURE = Signature("x:any*", "any*")


def register_schemas() -> None:
    """Register the schemas of the integer operators with ``onnx`` in this process.

    Those that are registered already are left as they are. All are removed when the process ends.
    """
    # It builds a table of all operator names when it is imported, and a name must not be in two
    # domains then.
    import onnx.reference.op_run  # noqa: F401

    for form in get_known_integer_ops():
        if defs.has(form.name, SCHEMA_DOMAIN):
            continue
        make_schema = _make_standard_schema if _uses_standard_schema(form) else _make_schema
        defs.register_schema(make_schema(form))
        # onnx 1.19 hangs at the end of a process if a schema still refers to a Python function.
        atexit.register(deregister_schema, form)


def deregister_schema(form: Format) -> None:
    """Remove the schema of the integer operator `form` from ``onnx`` if it is registered."""
    if defs.has(form.name, SCHEMA_DOMAIN):
        defs.deregister_schema(form.name, SCHEMA_VERSION, SCHEMA_DOMAIN)


def _uses_standard_schema(form: Format) -> bool:
    """Whether the operator `form` is one of standard ONNX, without domain and signature of its own.

    Its schema is then derived from that of ONNX.
    """
    return not form.domain and form.signature is None


def _make_schema(form: Format) -> defs.OpSchema:
    """Make an ONNX schema, in domain thinker, of the operator `form` from its signature.

    It includes the signature's shape inference. An operator without a signature takes any operands.
    """
    signature = form.signature or _ANY_SIGNATURE
    inputs = [text.split(":") for text in signature.inputs.split()]
    outputs = [["o", signature.output]]
    schema = defs.OpSchema(
        form.name,
        SCHEMA_DOMAIN,
        SCHEMA_VERSION,
        _make_doc(form),
        inputs=[_make_parameter(name, kind) for name, kind in inputs],
        outputs=[_make_parameter(name, kind) for name, kind in outputs],
        type_constraints=[
            _make_type_constraint(f"T_{name}", _get_types(form, kind.rstrip("?*")))
            for name, kind in inputs + outputs
        ],
        attributes=[_make_attribute(attr) for attr in _collect_attributes(form)],
    )
    if signature.infer is not None:
        schema.set_type_and_shape_inference_function(signature.infer)
    return schema


def _get_types(form: Format, kind: str) -> tuple[str, ...]:
    """Return the types of an input or output of `kind` of the operator `form`."""
    return form.weight_dtypes if kind == "weight" else _TYPES_BY_KIND[kind]


def _make_standard_schema(form: Format) -> defs.OpSchema:
    """Copy ONNX's schema of the operator `form` to domain thinker, with integer types.

    The type of its first input becomes int8, int16 or int32, the other types are kept. Attributes
    of the integer operator are added to the standard ones, and shapes are inferred as by the
    standard.
    """
    standard = defs.get_schema(form.name, rules.STANDARD_OPSET, "")
    main_type = standard.inputs[0].type_str
    constraints = [
        _make_type_constraint(constraint.type_param_str, _INTEGER_TYPES)
        if constraint.type_param_str == main_type
        else (constraint.type_param_str, list(constraint.allowed_type_strs), constraint.description)
        for constraint in standard.type_constraints
    ]
    added_attributes = [
        _make_attribute(attr)
        for attr in _collect_attributes(form)
        if attr.name not in standard.attributes
    ]
    schema = defs.OpSchema(
        form.name,
        SCHEMA_DOMAIN,
        SCHEMA_VERSION,
        _make_doc(form),
        inputs=list(standard.inputs),
        outputs=list(standard.outputs),
        type_constraints=constraints,
        attributes=[*standard.attributes.values(), *added_attributes],
    )
    schema.set_type_and_shape_inference_function(
        rules.infer_like_standard(form.name, rules.input_type)
    )
    return schema


def _make_doc(form: Format) -> str:
    """Return the documentation of the schema of `form`: its docstring and where the formula is.

    The operator's name takes the place of a missing docstring.
    """
    return f"{(form.__doc__ or form.name).strip()} The formula is in docs/reference/numerics.md."


def _make_parameter(name: str, kind: str) -> defs.OpSchema.FormalParameter:
    """Make the schema's input or output `name`, with a type variable of its own.

    Each has its own because the widths of inputs and outputs are independent. A `kind` that ends in
    "*" is variadic (at least one), in "?" optional.
    """
    make_parameter, type_name = defs.OpSchema.FormalParameter, f"T_{name}"
    if kind.endswith("*"):
        return make_parameter(
            name, type_name, param_option=_VARIADIC, is_homogeneous=False, min_arity=1
        )
    return (
        make_parameter(name, type_name, param_option=_OPTIONAL)
        if kind.endswith("?")
        else make_parameter(name, type_name)
    )


def _make_type_constraint(name: str, types: Sequence[str]) -> tuple[str, list[str], str]:
    """Return the constraint of type variable `name` to tensors of the element types `types`.

    It is a tuple (name, ["tensor(int8)", ...], "") as a schema takes it.
    """
    return name, [f"tensor({t})" for t in types], ""


def _collect_attributes(form: Format) -> list[Attr]:
    """Return the attributes that nodes of `form` may have: those of every node and its own.

    One of its own replaces an equally named general one. An operator with a channel axis also has
    that of scales per channel, `scales_w`.
    """
    channel_scales = () if form.channel_axis is None else (_CHANNEL_SCALES,)
    attributes = (
        *_PACKER_ATTRIBUTES,
        *_WIDTH_ATTRIBUTES,
        *form.extra_attributes,
        *channel_scales,
        *form.attributes,
    )
    return list({attr.name: attr for attr in attributes}.values())


def _make_attribute(attr: Attr) -> defs.OpSchema.Attribute:
    """Return the schema entry of `attr`, with its unit as description.

    It has a default if `attr` is optional and has one, else only a type.
    """
    make_attribute = defs.OpSchema.Attribute
    if attr.is_required or attr.default is None:
        return make_attribute(
            attr.name, _ATTRIBUTE_TYPES[attr.kind], attr.unit, required=attr.is_required
        )
    return make_attribute(attr.name, helper.make_attribute(attr.name, attr.default), attr.unit)


# ---- check ---------------------------------------------------------------------------------------


def check_model(model: ir.ModelLike) -> None:
    """Check an integer graph with ONNX's checker and shape inference, by schemas of its operators.

    Parameters
    ----------
    model
        Path, ONNX model or IR model; it is not modified.

    Raises
    ------
    ModelError
        For an unknown operator, a missing, misspelled or wrongly typed attribute, a wrong number of
        inputs or outputs, and types or shapes that contradict each other.
    """
    register_schemas()
    proto = ir.as_model_proto(model) or ir.to_proto(ir.as_model(model))
    onnx_file.check_no_external_data(proto)
    onnx_file.check_string_fields(proto)
    copy = to_checkable_model(proto)
    known_operators = [form.name for form in get_known_integer_ops()]
    for node in copy.graph.node:
        if node.domain == SCHEMA_DOMAIN and node.op_type not in known_operators:
            raise ModelError(
                f"{node.op_type} {node.name}: unknown "
                f"operator{suggest_nearest(node.op_type, known_operators)}"
            )
    try:
        onnx.checker.check_model(copy, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError, ValueError) as error:
        raise ModelError(_format_checker_error(error)) from error


def to_checkable_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of an integer graph that ONNX can check with the schemas of domain thinker.

    Integer nodes, also those of standard operators that are used in a nonstandard way, are moved to
    that domain and get current names of operators and attributes.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    integers = _find_integer_inputs(copy.graph)
    declared_types = {
        v.name: v.type.tensor_type.elem_type for v in (*copy.graph.value_info, *copy.graph.output)
    }
    for node in copy.graph.node:
        reads_integers = bool(node.input) and node.input[0] in integers
        form = find_integer_op_by_name(node.op_type)
        if _needs_schema(node, form, reads_integers):
            _canonicalize_node(node, form)
            if form in (LSTM, GRU):
                _declare_float_states(node, declared_types)
        if node.domain == SCHEMA_DOMAIN:
            writes_integers = form is not DEQUANT
        else:
            writes_integers = not node.domain and form is not None and reads_integers
        if writes_integers:
            integers.update(node.output)
    if not any(entry.domain == SCHEMA_DOMAIN for entry in copy.opset_import):
        copy.opset_import.append(helper.make_opsetid(SCHEMA_DOMAIN, SCHEMA_VERSION))
    return copy


def _find_integer_inputs(graph: onnx.GraphProto) -> set[str]:
    """Return the names of inputs and initializers of `graph` that are int8, int16 or int32."""
    types = {v.name: v.type.tensor_type.elem_type for v in graph.input}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name for name, elem_type in types.items() if _is_integer(elem_type)}


def _needs_schema(node: onnx.NodeProto, form: Format | None, reads_integers: bool) -> bool:
    """Whether `node` is to be checked by a schema of domain thinker instead of standard ONNX.

    These are nodes of domain thinker or linger, nodes whose operator `form` belongs to domain
    thinker, nodes with a former name of an operator, and standard operators that read integers
    (`reads_integers`) in a way that the standard does not allow.
    """
    if node.domain in (SCHEMA_DOMAIN, "linger"):
        return True
    if reads_integers and _is_nonstandard_usage(node):
        return True
    if form is None:
        return False
    if form.domain == SCHEMA_DOMAIN:
        return True
    # A former name of the operator, unless it is that of a standard one such as Gather.
    is_former_name = node.op_type in form.names[1:]
    return is_former_name and (reads_integers or form.name != node.op_type)


def _declare_float_states(node: onnx.NodeProto, declared_types: Mapping[str, int]) -> None:
    """Add the attribute `state_type` to the recurrent `node`, in place, if its states are float.

    That is so if an output after the first is float in `declared_types` (name -> ONNX type), as in
    the vendor's exports; shape inference reads the attribute.
    """
    if any(declared_types.get(name) == TensorProto.FLOAT for name in node.output[1:]):
        node.attribute.append(helper.make_attribute("state_type", int(TensorProto.FLOAT)))


def _is_integer(elem: int) -> bool:
    """Whether the ONNX element type `elem` is int8, int16 or int32; int64 is not."""
    return elem in (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32)


def _is_nonstandard_usage(node: onnx.NodeProto) -> bool:
    """Whether the standard operator `node` is used in a way that ONNX does not define.

    That depends only on the operator, or for some on the presence of a certain attribute; nodes of
    other domains are never meant. Whether it reads integers is checked by the caller.
    """
    if node.domain or node.op_type not in NONSTANDARD_USAGE:
        return False
    return node.op_type not in _NONSTANDARD_ATTRIBUTES or any(
        a.name == _NONSTANDARD_ATTRIBUTES[node.op_type] for a in node.attribute
    )


def _canonicalize_node(node: onnx.NodeProto, form: Format | None) -> None:
    """Move `node` to domain thinker and give it current names, in place.

    `form` is its operator, if it is known. A scalar attribute that should be a list becomes a list
    of one element. A list scale_w becomes scales_w, with its first element as scale_w.
    """
    node.domain, node.op_type = SCHEMA_DOMAIN, node.op_type if form is None else form.name
    list_attributes, has_channel_axis = set[str](), False
    if form is not None:
        list_attributes = {attr.name for attr in form.attributes if attr.kind == "ints"}
        has_channel_axis = form.channel_axis is not None
    for attribute in list(node.attribute):
        is_list = attribute.type == onnx.AttributeProto.FLOATS and len(attribute.floats) > 0
        if has_channel_axis and attribute.name == "scale_w" and is_list:
            node.attribute.append(helper.make_attribute("scales_w", list(attribute.floats)))
            attribute.CopyFrom(helper.make_attribute("scale_w", attribute.floats[0]))
        attribute.name = ATTRIBUTE_RENAMES.get(attribute.name, attribute.name)
        if attribute.name in list_attributes and attribute.type == onnx.AttributeProto.INT:
            value = [attribute.i]
            attribute.CopyFrom(helper.make_attribute(attribute.name, value))


def _format_checker_error(error: Exception) -> str:
    """Return the message of ONNX's checker in one line, with operator and name of the node.

    The rest of its context is left out.
    """
    message, _, context = str(error).partition("==> Context:")
    node = re.search(r"Name: (.+?) OpType: (\S+)", context)
    location = f" ({node[2]} {node[1]})" if node else ""
    return " ".join(message.split()) + location
