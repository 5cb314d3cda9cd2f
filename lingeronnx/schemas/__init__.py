"""The integer operators as ONNX schemas, so that ONNX's own checker and shape inference understand our graphs.

`register_schemas` makes every operator of `formats` known to ``onnx`` as domain `thinker`, version
1: attributes from the operator's own table, types of inputs and outputs, and the types and shapes
that follow from them.

    lo.register_schemas()
    onnx.checker.check_model(model)                           # names, attributes, number of inputs
    onnx.shape_inference.infer_shapes(model)                  # int8 types and shapes
    lo.check_model(model)                                     # all that, and types, for graphs of
    every generation

The format uses some operators of ONNX's own domain in ways that the standard does not allow
(`NONSTANDARD_USAGE`). `check_model` therefore looks at a copy in which integer nodes of those
operators stand in domain `thinker`, where a schema says what the format allows; the copy also has
today's names for operators and attributes. Nothing is taken out of the check.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, defs, helper, shape_inference

from ..errors import ModelError, suggest_nearest
from ..formats import (
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
from ..formats import shape_inference as rules
from ..formats.shape_inference import Signature
from ..graph import ir, onnx_file

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

#: Standard operators that the format uses beyond the standard -> how. Integer nodes of these are checked as thinker's.
NONSTANDARD_USAGE = {
    form.name: form.nonstandard_usage for form in INTEGER_OPS if form.nonstandard_usage
}

#: Operators that are exempt only where they have the attribute in question.
_NONSTANDARD_ATTRIBUTES = {
    form.name: form.nonstandard_attribute for form in INTEGER_OPS if form.nonstandard_attribute
}

_INTEGER_TYPES = ("int8", "int16", "int32")
_TYPES_BY_KIND = {
    "integer": _INTEGER_TYPES,
    "weight": ("int8", "int16"),
    "bias": ("int32", "int64"),
    "factors": ("uint8",),
    "index": ("int32", "int64"),
    "number": (*_INTEGER_TYPES, "int64"),
    "real": ("float",),
    "result": (*_INTEGER_TYPES, "float"),  # a layer without scale_o gives real numbers
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


#: What the packer wants to see on nodes, without any meaning for the numbers; not in the operators' tables.
_PACKER_ATTRIBUTES = tuple(
    Attr(name, "s", None)
    for name in ("platform", "platform_quant", "quant_mode", "castor_mode", "mode")
)
_WIDTH_ATTRIBUTES = tuple(
    Attr(name, "i", None)
    for name in ("data_bits", "parameter_bits", "o_bits", "y_bits", "zero_point")
)

#: A scale for each channel is called scale_w in a graph, as one scale is; a schema can give a name one type only.
_CHANNEL_SCALES = Attr("scales_w", "floats", None, "counts per unit, one for each output channel")


# ---- the operators -----------------------------------------------------------------------------------------------

#: An operator without a signature of its own: any inputs, any outputs, attributes checked as everywhere.
_ANY_SIGNATURE = Signature("x:any*", "any*")


def register_schemas() -> None:
    """Make the integer operators known to ``onnx`` in this process.

    A second call changes nothing.
    """
    import onnx.reference.op_run  # noqa: F401 - keeps a table of all names, made once; it takes none from two domains

    for form in get_known_integer_ops():
        if not defs.has(form.name, SCHEMA_DOMAIN):
            defs.register_schema(
                _make_standard_schema(form) if _uses_standard_schema(form) else _make_schema(form)
            )
            # onnx 1.19 waits for ever at the end of a process that leaves it a function of
            # Python's.
            atexit.register(deregister_schema, form)


def deregister_schema(form: Format) -> None:
    """Take an integer operator out of what is known to ``onnx``; nothing where it is not."""
    if defs.has(form.name, SCHEMA_DOMAIN):
        defs.deregister_schema(form.name, SCHEMA_VERSION, SCHEMA_DOMAIN)


def _uses_standard_schema(form: Format) -> bool:
    return not form.domain and form.signature is None


def _make_schema(form: Format) -> defs.OpSchema:
    told = form.signature or _ANY_SIGNATURE
    parts = [text.split(":") for text in told.inputs.split()]
    results = [["o", told.output]]
    schema = defs.OpSchema(
        form.name,
        SCHEMA_DOMAIN,
        SCHEMA_VERSION,
        _make_doc(form),
        inputs=[_make_parameter(name, kind) for name, kind in parts],
        outputs=[_make_parameter(name, kind) for name, kind in results],
        type_constraints=[
            _make_type_constraint(f"T_{name}", _TYPES_BY_KIND[kind.rstrip("?*")])
            for name, kind in parts + results
        ],
        attributes=[_make_attribute(a) for a in _collect_attributes(form)],
    )
    if told.infer is not None:
        schema.set_type_and_shape_inference_function(told.infer)
    return schema


def _make_standard_schema(form: Format) -> defs.OpSchema:
    """Return ONNX's own schema with integer types in place of the main input's, and our attributes added."""
    theirs = defs.get_schema(form.name, rules.STANDARD_OPSET, "")
    main = theirs.inputs[0].type_str
    constraints = [
        _make_type_constraint(c.type_param_str, _INTEGER_TYPES)
        if c.type_param_str == main
        else (c.type_param_str, list(c.allowed_type_strs), c.description)
        for c in theirs.type_constraints
    ]
    ours = [
        _make_attribute(a) for a in _collect_attributes(form) if a.name not in theirs.attributes
    ]
    schema = defs.OpSchema(
        form.name,
        SCHEMA_DOMAIN,
        SCHEMA_VERSION,
        _make_doc(form),
        inputs=list(theirs.inputs),
        outputs=list(theirs.outputs),
        type_constraints=constraints,
        attributes=[*theirs.attributes.values(), *ours],
    )
    schema.set_type_and_shape_inference_function(
        rules.infer_like_standard(form.name, rules.input_type)
    )
    return schema


def _make_doc(form: Format) -> str:
    return f"{(form.__doc__ or form.name).strip()} The formula is in docs/numerics.md."


def _make_parameter(name: str, kind: str) -> defs.OpSchema.FormalParameter:
    """Return a parameter with a type of its own: widths of inputs and outputs are independent."""
    make, base = defs.OpSchema.FormalParameter, f"T_{name}"
    if kind.endswith("*"):
        return make(name, base, param_option=_VARIADIC, is_homogeneous=False, min_arity=1)
    return make(name, base, param_option=_OPTIONAL) if kind.endswith("?") else make(name, base)


def _make_type_constraint(name: str, types: Sequence[str]) -> tuple[str, list[str], str]:
    return name, [f"tensor({t})" for t in types], ""


def _collect_attributes(form: Format) -> list[Attr]:
    """Return the operator's own attributes, then those every node may carry."""
    channels = () if form.channel_axis is None else (_CHANNEL_SCALES,)
    found = {
        a.name: a
        for a in (
            *_PACKER_ATTRIBUTES,
            *_WIDTH_ATTRIBUTES,
            *form.extra_attributes,
            *channels,
            *form.attributes,
        )
    }
    return list(found.values())


def _make_attribute(attr: Attr) -> defs.OpSchema.Attribute:
    make = defs.OpSchema.Attribute
    if attr.is_required or attr.default is None:
        return make(attr.name, _ATTRIBUTE_TYPES[attr.kind], attr.unit, required=attr.is_required)
    return make(attr.name, helper.make_attribute(attr.name, attr.default), attr.unit)


# ---- the check ---------------------------------------------------------------------------------------------------


def check_model(model: ir.ModelLike) -> None:
    """Check an integer graph, from a file or in memory, by ONNX's checker and shape inference.

    See the module.
    Raises ModelError for an unknown operator, a missing, misspelt or wrongly typed attribute, a
    wrong number of inputs or outputs, and for a type or shape that contradicts another.
    """
    register_schemas()
    proto = ir.as_model_proto(model) or ir.to_proto(ir.as_model(model))
    onnx_file.check_no_external_data(proto)
    onnx_file.check_string_fields(proto)
    copy = to_checkable_model(proto)
    known = [form.name for form in get_known_integer_ops()]
    for node in copy.graph.node:
        if node.domain == SCHEMA_DOMAIN and node.op_type not in known:
            raise ModelError(
                f"{node.op_type} {node.name}: unknown "
                f"operator{suggest_nearest(node.op_type, known)}"
            )
    try:
        onnx.checker.check_model(copy, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError, ValueError) as error:
        raise ModelError(_format_checker_error(error)) from error


def to_checkable_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that ONNX can check.

    Today's names, and integer nodes of `NONSTANDARD_USAGE` operators in domain `thinker`.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    integers = {v.name for v in copy.graph.input if _is_integer(v.type.tensor_type.elem_type)}
    integers |= {t.name for t in copy.graph.initializer if _is_integer(t.data_type)}
    declared = {
        v.name: v.type.tensor_type.elem_type for v in (*copy.graph.value_info, *copy.graph.output)
    }
    for node in copy.graph.node:
        reads = bool(node.input) and node.input[0] in integers
        form = find_integer_op_by_name(node.op_type)
        alias = form is not None and node.op_type in form.names[1:]
        alias = alias and (
            reads or form is not None and form.name != node.op_type
        )  # or ONNX's Gather
        named = form is not None and (form.domain == SCHEMA_DOMAIN or alias)
        if (
            node.domain in (SCHEMA_DOMAIN, "linger")
            or named
            or (reads and _is_nonstandard_usage(node))
        ):
            _canonicalize_node(node, form)
            if form in (LSTM, GRU):
                _declare_float_states(node, declared)
        if (node.domain == SCHEMA_DOMAIN and form is not DEQUANT) or (
            not node.domain and form is not None and reads
        ):
            integers.update(node.output)
    if not any(entry.domain == SCHEMA_DOMAIN for entry in copy.opset_import):
        copy.opset_import.append(helper.make_opsetid(SCHEMA_DOMAIN, SCHEMA_VERSION))
    return copy


def _declare_float_states(node: onnx.NodeProto, declared: Mapping[str, int]) -> None:
    """Tell the inference that the last states are real where the graph says so.

    The vendor's exports do.
    """
    if any(declared.get(name) == TensorProto.FLOAT for name in node.output[1:]):
        node.attribute.append(helper.make_attribute("state_type", int(TensorProto.FLOAT)))


def _is_integer(elem: int) -> bool:
    return elem in (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32)


def _is_nonstandard_usage(node: onnx.NodeProto) -> bool:
    if node.domain or node.op_type not in NONSTANDARD_USAGE:
        return False
    return node.op_type not in _NONSTANDARD_ATTRIBUTES or any(
        a.name == _NONSTANDARD_ATTRIBUTES[node.op_type] for a in node.attribute
    )


def _canonicalize_node(node: onnx.NodeProto, form: Format | None) -> None:
    """Put a node into domain `thinker` under today's names.

    A number where a list belongs becomes a list of one.
    A list scale_w becomes scales_w, beside its first number as scale_w.
    """
    node.domain, node.op_type = SCHEMA_DOMAIN, node.op_type if form is None else form.name
    lists = {a.name for a in form.attributes if a.kind == "ints"} if form is not None else set()
    channels = form is not None and form.channel_axis is not None
    for attribute in list(node.attribute):
        if (
            channels
            and attribute.name == "scale_w"
            and attribute.type == onnx.AttributeProto.FLOATS
            and attribute.floats
        ):
            node.attribute.append(helper.make_attribute("scales_w", list(attribute.floats)))
            attribute.CopyFrom(helper.make_attribute("scale_w", attribute.floats[0]))
        attribute.name = ATTRIBUTE_RENAMES.get(attribute.name, attribute.name)
        if attribute.name in lists and attribute.type == onnx.AttributeProto.INT:
            value = [attribute.i]
            attribute.CopyFrom(helper.make_attribute(attribute.name, value))


def _format_checker_error(error: Exception) -> str:
    """Return what ONNX's checker says, without where it stood when it said so."""
    told = str(error).partition("==> Context:")
    node = re.search(r"Name: (.+?) OpType: (\S+)", told[2])
    place = f" ({node[2]} {node[1]})" if node else ""
    return " ".join(told[0].split()) + place
