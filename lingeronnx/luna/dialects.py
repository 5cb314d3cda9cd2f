"""Convert graphs from one dialect to the other: names, attributes and container metadata.

    thinker -> linger     Conv2dInt -> QConv2d, data_bits -> x_bits, ..., domain `linger`
    linger  -> thinker    the reverse, with the attributes that the platform's packer requires

Constants are unchanged, except the beta of layer normalization, which has five more fractional bits
in dialect v3. This module edits the graphs; the names and attributes of both dialects belong to
`integer_ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..common.errors import ModelError
from ..common.text import merge_similar_lines
from ..ir import ir
from ..ir.plan import Affine
from ..operators.integer_ops import (
    ATTRIBUTE_RENAMES,
    AVG_POOL2D,
    GRU,
    LAYER_NORM,
    LSTM,
    QUANT,
    REQUANT,
    SIGMOID,
    TANH,
    Format,
    find_integer_op,
    is_quantized_domain,
)
from ..operators.normalization.integer_op import (
    V3_NORMALIZED_FRACTION_BITS,
    get_normalized_fraction_bits,
)
from ..targets._target import Target
from ..targets.arithmetic import LayerNormArithmetic, LutArithmetic, TableInputRule

__all__ = ["convert_dialect"]

#: Domain -> (dialect version, IR version of the file).
_DOMAINS: Mapping[str, tuple[int, int]] = {"thinker": (1, 6), "linger": (3, 7)}

#: Attributes that only the packer reads.
_PACKER_ATTRIBUTES = ("platform", "platform_quant", "castor_mode", "mode", "quant_mode", "dropout")
_LUT_FORMATS, _RECURRENT_FORMATS = (SIGMOID, TANH), (LSTM, GRU)


@dataclass
class _Conversion:
    """State of a conversion: the model, operators without a counterpart, and notes for the user."""

    model: ir.Model
    target: Target
    obstacles: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def extra_beta_bits(self) -> int:
        """Additional fractional bits of a layer normalization's beta in dialect v3."""
        arithmetic = self.target.get_arithmetic(LAYER_NORM.name, LayerNormArithmetic)
        return V3_NORMALIZED_FRACTION_BITS - get_normalized_fraction_bits(arithmetic)

    def add_obstacle(self, node: ir.Node, reason: str = "") -> None:
        """Record that `node` cannot be converted, with `reason` if it is not empty.

        All obstacles are reported together at the end.
        """
        label = f"{node.op_type} {node.name}"
        self.obstacles.append(f"{label} ({reason})" if reason else label)

    def add_note(self, text: str) -> None:
        """Append `text` to the notes for the user unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)


def convert_dialect(graph: ir.Model, domain: str, target: Target) -> Sequence[str]:
    """Convert a graph of the other dialect to that of `domain`, in place.

    Float nodes are not changed.

    Parameters
    ----------
    graph : ir.Model
        Quantized graph; modified.
    domain : str
        Domain of the dialect to write: "thinker" (version 1, of the packer) or "linger" (version
        3, of the training library).
    target : Target
        Platform whose attributes the nodes get.

    Returns
    -------
    sequence of str
        Notes for the user about changed behavior.

    Raises
    ------
    ModelError
        If operators have no counterpart; the message lists all of them.
    """
    dialect, ir_version = _DOMAINS[domain]
    conversion = _Conversion(graph, target)
    convert_node: Callable[[_Conversion, Format, ir.Node], None] = (
        _convert_node_to_v3 if dialect == 3 else _convert_node_to_v1
    )
    for node in list(conversion.model.graph):
        if not is_quantized_domain(node):
            continue
        form = find_integer_op(node)
        if form is None:
            conversion.add_obstacle(node, "unknown operator")
        else:
            convert_node(conversion, form, node)
    if conversion.obstacles:
        obstacles = ", ".join(merge_similar_lines(conversion.obstacles))
        raise ModelError(f"no counterpart in domain {domain}: {obstacles}")
    _convert_container(conversion, domain, ir_version)
    return conversion.notes


def _convert_container(conversion: _Conversion, domain: str, ir_version: int) -> None:
    """Set opset import and IR version of the file for dialect `domain`, in place, and add notes.

    The IR version is not lowered in a model with functions. The notes say which arithmetic applies,
    and warn of an opset above 12 for the packer.
    """
    model = conversion.model
    for known_domain in _DOMAINS:
        model.graph.opset_imports.pop(known_domain, None)
    model.graph.opset_imports[domain] = 1
    model.ir_version = max(ir_version, model.ir_version) if model.functions else ir_version
    arithmetic = "training side's" if domain == "linger" else "executor's"
    conversion.add_note(
        f"by default, Session computes it with the {arithmetic} arithmetic "
        "(docs/explanation/generations.md)"
    )
    opset = model.graph.opset_imports.get("", 0)
    if domain == "thinker" and opset > 12:
        conversion.add_note(
            f"opset {opset} is unchanged; the packer was made for graphs of opset 11 and 12"
        )


def _get_v1_attributes(node: ir.Node) -> dict[str, Any]:
    """Return the attributes of `node` under their v1 names, without those only for the packer."""
    attributes = {
        ATTRIBUTE_RENAMES.get(name, name): ir.get_attr(node, name) for name in node.attributes
    }
    return {name: value for name, value in attributes.items() if name not in _PACKER_ATTRIBUTES}


def _rewrite_node(node: ir.Node, domain: str, op_type: str, attrs: Mapping[str, Any]) -> None:
    """Set domain, operator and attributes of `node`, in place; its old attributes are removed."""
    node.domain, node.op_type = domain, op_type
    node.attributes.clear()
    for name, value in attrs.items():
        ir.set_attr(node, name, value)


# ---- to dialect v3 ------------------------------------------------------------------------------


def _convert_node_to_v3(conversion: _Conversion, form: Format, node: ir.Node) -> None:
    """Convert a v1 node to its v3 operator and attributes, in place, or add an obstacle.

    A Requant that v3 tables absorb is left for them; an operator without a v3 form is an obstacle
    unless it is a standard ONNX operator, which moves to the default domain.
    """
    if form is REQUANT and _is_lut_widening(node):
        return  # its consumers absorb it
    if form.v3_name is None:
        if form.domain:
            conversion.add_obstacle(node)
        else:
            node.domain = ""
        return
    attrs = form.to_v3_attributes(_get_v1_attributes(node), len(node.inputs))
    if form in _LUT_FORMATS:
        _absorb_requant(conversion, form, node, attrs)
    elif form in _V3_CONVERTERS and not _V3_CONVERTERS[form](conversion, form, node, attrs):
        return
    v3_attrs = _rename_to_v3(form, attrs)
    if form.v3_name != form.name:
        v3_attrs |= {"platform": conversion.target.chip, "quant_mode": "floor_add"}
    elif form is QUANT:
        v3_attrs["platform"] = conversion.target.chip
    _rewrite_node(node, "linger", form.v3_name, v3_attrs)


def _rename_to_v3(form: Format, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return `attrs` under the v3 names of operator `form`, without values that are None."""
    return {
        form.v3_attribute_names.get(key, key): value
        for key, value in attrs.items()
        if value is not None
    }


def _is_lut_widening(node: ir.Node) -> bool:
    """Whether Requant `node` only widens to int16 at 2^8 times the scale, as v3 LUTs do themselves.

    All its consumers must be iqSigmoid or iqTanh, and its output no graph output.
    """
    if ir.get_attr(node, "o_bits", 8) != 16:
        return False
    if ir.get_attr(node, "scale_o") != 256 * ir.get_attr(node, "scale_x"):
        return False
    output = node.outputs[0]
    consumer_formats = [find_integer_op(use.node) for use in output.uses()]
    return not output.is_graph_output() and all(form in _LUT_FORMATS for form in consumer_formats)


def _absorb_requant(
    conversion: _Conversion, form: Format, node: ir.Node, attrs: dict[str, Any]
) -> None:
    """Make a v3 table operator read the input of a widening Requant directly, in place.

    `attrs` gets the Requant's `scale_x`, and an unused Requant is removed. Without such a Requant,
    `attrs` gets `data_bits` 16 if the target's table takes int16.
    """
    requant = ir.producer(node.inputs[0])
    if requant is None or requant.op_type != REQUANT.name or not _is_lut_widening(requant):
        if _needs_int16_input(conversion.target, form):
            attrs["data_bits"] = 16
        return
    attrs["scale_x"] = ir.get_attr(requant, "scale_x")
    conversion.add_note(f"Requant {requant.name} is part of {form.v3_name} {node.name}")
    node.replace_input_with(0, requant.inputs[0])
    if not requant.outputs[0].uses():
        conversion.model.graph.remove(requant, safe=True)


def _needs_int16_input(target: Target, form: Format) -> bool:
    """Whether the target's table for operator `form` takes int16.

    False if the target lacks it.
    """
    arithmetic = target.get_arithmetic(form.name, LutArithmetic)
    return arithmetic is not None and arithmetic.input_rule is TableInputRule.RIGHT_SHIFT_ONLY


def _convert_recurrent_to_v3(
    conversion: _Conversion, form: Format, node: ir.Node, attrs: dict[str, Any]
) -> bool:
    """Convert inputs and attributes of an LSTM or GRU to v3, in place; False if that is impossible.

    Obstacles, which are recorded, are sequence lengths, a float output, an unknown time axis and a
    reset gate applied before the product. The input of lengths is removed, and `attrs` are changed.
    """
    weight_index = _find_first_weight_index(node)
    if weight_index > 1 and node.inputs[1] is not None:
        conversion.add_obstacle(node, "it has sequence lengths")
        return False
    if attrs.get("scale_o") is None:
        conversion.add_obstacle(node, "its output is float")
        return False
    if not _set_batch_first(conversion, form, node, attrs):
        return False
    if not attrs.pop("linear_before_reset", 1):
        conversion.add_obstacle(node, "its reset gate is applied before the product")
        return False
    if weight_index > 1:  # dialect v3 has no input of lengths
        inputs = [node.inputs[0], *list(node.inputs)[2:]]
        for index, value in enumerate(inputs):
            node.replace_input_with(index, value)
        node.resize_inputs(len(inputs))
    state_count = max(weight_index - 2, 0)
    attrs["has_hidden"] = int(state_count > 0)
    if form is LSTM:
        attrs.update({"has_cell": int(state_count > 1), "scale_c": 2.0**15})
    return True


def _find_first_weight_index(node: ir.Node) -> int:
    """Return the index, at least 1, of the first input that is a constant matrix.

    1 if there is none.
    """
    for index, value in enumerate(node.inputs):
        constant = ir.const_value(value)
        if index and constant is not None and constant.ndim == 2:
            return index
    return 1


def _set_batch_first(
    conversion: _Conversion, form: Format, node: ir.Node, attrs: dict[str, Any]
) -> bool:
    """Set `batch_first` in `attrs` to 1, as the training side reads [1, T, I].

    Returns True, or False with an obstacle if the input's layout is unknown. Only for targets that
    give the node this attribute; adds a note if it changes.
    """
    if "batch_first" not in conversion.target.node_attributes.get(form.name, {}):
        return True
    if attrs.get("batch_first", 0):
        return True
    shape = ir.get_shape(node.inputs[0])
    if shape is None or len(shape) != 3 or shape[0] not in (None, 1):
        conversion.add_obstacle(node, "its time axis is unknown")
        return False
    attrs["batch_first"] = 1
    conversion.add_note(
        f"{form.name} {node.name}: batch_first is 1, as the training side orders the axes; the "
        "packer requires 0"
    )
    return True


def _refine_beta(
    conversion: _Conversion, form: Format, node: ir.Node, attrs: dict[str, Any]
) -> bool:
    """Give the beta (input 2) of a LayerNormInt 15 fractional bits instead of 10, in place.

    Returns True and adds a note if the target has 10; False with an obstacle if beta is missing,
    not constant or does not fit in 32 bits then.
    """
    beta = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
    if beta is None:
        conversion.add_obstacle(node, "it has no beta")
        return False
    if not conversion.extra_beta_bits:
        return True
    v3_beta = beta.astype(np.int64) << conversion.extra_beta_bits
    if np.abs(v3_beta).max(initial=0) >= 1 << 31:
        conversion.add_obstacle(node, "its beta does not fit in 32 bits with five more bits")
        return False
    ir.set_constant_input(conversion.model, node, 2, v3_beta.astype(np.int32), "q15")
    conversion.add_note(
        f"{form.name} {node.name}: normalized values have 15 fractional bits, not 10: the last "
        "bits differ"
    )
    return True


#: Converters of formats whose constants or inputs change; they return False if impossible.
_V3_CONVERTERS = {
    LSTM: _convert_recurrent_to_v3,
    GRU: _convert_recurrent_to_v3,
    LAYER_NORM: _refine_beta,
}


# ---- to dialect v1 ------------------------------------------------------------------------------


def _convert_node_to_v1(conversion: _Conversion, form: Format, node: ir.Node) -> None:
    """Convert a v3 node to its v1 operator with the packer's attributes, or add an obstacle.

    In place. Recurrent layers get an input of lengths, LayerNormInt a coarser beta and tables a
    Requant. A standard ONNX operator only moves to the default domain.
    """
    if form.v3_name is None and not form.domain:
        node.domain = ""
        return
    attributes, v1_format = _get_v1_attributes(node), form.first
    reason = form.explain_v1_obstacle(attributes, node)
    if reason is not None or v1_format.v3_name is None:
        conversion.add_obstacle(node, reason or "")
        return
    attrs = form.to_v1_attributes(attributes, node)
    _note_executor_differences(conversion, v1_format, node, attrs)
    if form in _RECURRENT_FORMATS:
        _insert_lengths_input(node, attributes)
    elif form is LAYER_NORM:
        _coarsen_beta(conversion, node)
    elif form in _LUT_FORMATS:
        _insert_requant(conversion, form, node, attrs)
    node_attributes = conversion.target.node_attributes
    packer_attributes = {**node_attributes.get("", {}), **node_attributes.get(v1_format.name, {})}
    _rewrite_node(node, "thinker", v1_format.name, {**attrs, **packer_attributes})


def _note_executor_differences(
    conversion: _Conversion, v1_format: Format, node: ir.Node, attrs: dict[str, Any]
) -> None:
    """Add notes on a rounding mode and a pooling scale that the executor does not follow.

    These are a `quant_mode` other than floor_add, and a changed scale of AvgPool2dInt.
    """
    mode = ir.get_attr(node, "quant_mode", "floor_add")
    if mode != "floor_add":
        conversion.add_note(
            f"{node.op_type} {node.name}: quant_mode is {mode}, but the executor rounds half up"
        )
    if v1_format is AVG_POOL2D and attrs.get("scale_o", attrs["scale_x"]) != attrs["scale_x"]:
        conversion.add_note(
            f"{node.op_type} {node.name}: average pooling changes the scale, which the executor "
            "computes incorrectly"
        )


def _insert_lengths_input(node: ir.Node, attributes: Mapping[str, Any]) -> None:
    """Insert an absent input of sequence lengths at index 1 of a recurrent node, in place.

    Dialect v1 has it before the states. Does nothing unless `has_hidden` or `has_cell` is set.
    """
    if not attributes.get("has_hidden", 0) and not attributes.get("has_cell", 0):
        return
    inputs = [node.inputs[0], None, *list(node.inputs)[1:]]
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def _coarsen_beta(conversion: _Conversion, node: ir.Node) -> None:
    """Round the beta (input 2) of a LayerNormInt from 15 to 10 fractional bits, half up, in place.

    Adds a note, and another if bits are lost; a beta that is missing or not constant stays. Nothing
    changes if the target has 15 fractional bits.
    """
    if not conversion.extra_beta_bits:
        return
    conversion.add_note(
        f"{node.op_type} {node.name}: normalized values have 10 fractional bits, not 15: the last "
        "bits differ"
    )
    beta = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
    if beta is None:
        return
    half = 1 << (conversion.extra_beta_bits - 1)
    v1_beta = (beta.astype(np.int64) + half) >> conversion.extra_beta_bits
    if np.any(v1_beta << conversion.extra_beta_bits != beta):
        conversion.add_note(
            f"{node.op_type} {node.name}: the last five bits of its beta are rounded away"
        )
    ir.set_constant_input(conversion.model, node, 2, v1_beta.astype(np.int32), "q10")


def _insert_requant(
    conversion: _Conversion, form: Format, node: ir.Node, attrs: dict[str, Any]
) -> None:
    """Let a table operator read its int8 input through a Requant to int16, in place.

    Only if the target's table takes int16 and `x_bits` is at most 8. An existing widening Requant
    is shared; `attrs["scale_x"]` becomes 256 times as large.
    """
    if not _needs_int16_input(conversion.target, form) or ir.get_attr(node, "x_bits", 8) > 8:
        return
    source = ir.require_input(node)
    scale = float(attrs["scale_x"])
    requant = _find_lut_widening(source)
    if requant is None:
        requant = _make_lut_widening(conversion, node, source, scale)
        conversion.model.graph.insert_before(node, requant)
        conversion.add_note(
            f"{form.name} {node.name} reads int16: Requant {requant.name} is inserted before it"
        )
    node.replace_input_with(0, requant.outputs[0])
    attrs["scale_x"] = scale * 256


def _find_lut_widening(value: ir.Value) -> ir.Node | None:
    """Return the Requant that already widens `value` to int16 for tables, or None."""
    for use in value.uses():
        if use.node.op_type == REQUANT.name and _is_lut_widening(use.node):
            return use.node
    return None


def _make_lut_widening(
    conversion: _Conversion, node: ir.Node, source: ir.Value, scale: float
) -> ir.Node:
    """Make a Requant of `source`, of `scale`, to int16 at 256 times `scale`; it is not inserted."""
    output = ir.unique_tensor_name(conversion.model, f"{source.name}_q16")
    requant = ir.make_node(
        REQUANT.name, [source], {}, name=f"{node.name}_wide", output=output, domain="thinker"
    )
    requant.outputs[0].shape = source.shape
    requant.outputs[0].type = ir.TensorType(ir.DataType.INT16)
    attrs = REQUANT.make_qparams_attributes(Affine(scale), Affine(scale * 256, 16))
    packer_attributes = conversion.target.node_attributes.get("", {})
    _rewrite_node(requant, "thinker", REQUANT.name, {**attrs, **packer_attributes})
    return requant
