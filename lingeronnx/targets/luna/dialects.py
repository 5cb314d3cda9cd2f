"""Graphs of one dialect written as the other: names, attributes, container facts.

    thinker -> linger     Conv2dInt -> QConv2d, data_bits -> x_bits, ..., domain `linger`
    linger  -> thinker    back, with the attributes that the platform's packer wants

Numbers stay as they are but for layer normalisation, whose summand has five more fractional bits in
dialect v3. Owns the edits of graphs; names and attributes of both dialects are the formats'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import ModelError
from ...formats import (
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
from ...formats.normalization import NORMALIZED_FRACTION_BITS, V3_NORMALIZED_FRACTION_BITS
from ...graph import ir
from ...message_grouping import merge_similar_lines
from ...plan import Affine
from .._target import Target
from ..arithmetic import LutArithmetic, TableInputRule

__all__ = ["convert_dialect"]

#: Domain -> dialect, IR version of the file.
_DOMAINS: Mapping[str, tuple[int, int]] = {"thinker": (1, 6), "linger": (3, 7)}

#: Attributes for the packer alone.
_PACKER_ATTRIBUTES = ("platform", "platform_quant", "castor_mode", "mode", "quant_mode", "dropout")
_LUT_FORMATS, _RECURRENT_FORMATS = (SIGMOID, TANH), (LSTM, GRU)

#: Fractional bits that the summand of a layer normalisation has more in dialect v3.
_EXTRA_BETA_FRACTION_BITS = V3_NORMALIZED_FRACTION_BITS - NORMALIZED_FRACTION_BITS


@dataclass
class _Conversion:
    """A conversion under way."""

    model: ir.Model
    target: Target
    obstacles: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_obstacle(self, node: ir.Node, why: str = "") -> None:
        self.obstacles.append(f"{node.op_type} {node.name}{f' ({why})' if why else ''}")

    def add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def convert_dialect(graph: ir.Model, domain: str, target: Target) -> Sequence[str]:
    """Write `graph`, of the other dialect, as one of domain `domain`, in place; return notes.

    Raises ModelError where operators have no counterpart, all of them named.
    """
    number, version = _DOMAINS[domain]
    work = _Conversion(graph, target)
    one: Callable[[_Conversion, Format, ir.Node], None] = (
        _convert_node_to_v3 if number == 3 else _convert_node_to_v1
    )
    for node in list(work.model.graph):
        form = find_integer_op(node)
        if is_quantized_domain(node):
            if form is None:
                work.add_obstacle(node, "unknown")
            else:
                one(work, form, node)
    if work.obstacles:
        raise ModelError(
            f"no counterpart in domain {domain}: {', '.join(merge_similar_lines(work.obstacles))}"
        )
    _convert_container(work, domain, version)
    return work.notes


def _convert_container(work: _Conversion, to: str, version: int) -> None:
    model = work.model
    for domain in _DOMAINS:
        model.graph.opset_imports.pop(domain, None)
    model.graph.opset_imports[to] = 1
    model.ir_version = max(version, model.ir_version) if model.functions else version
    other = "training side's" if to == "linger" else "executor's"
    work.add_note(
        f"by default Session computes the {other} arithmetic for it (docs/generations.md)"
    )
    opset = model.graph.opset_imports.get("", 0)
    if to == "thinker" and opset > 12:
        work.add_note(f"opset {opset} stays; the packer was made for graphs of opset 11 and 12")


def _get_v1_attributes(node: ir.Node) -> dict[str, Any]:
    """Return the node's attributes by the names of dialect v1, without the packer's."""
    attributes = {
        ATTRIBUTE_RENAMES.get(name, name): ir.get_attr(node, name) for name in node.attributes
    }
    return {name: value for name, value in attributes.items() if name not in _PACKER_ATTRIBUTES}


def _rewrite_node(node: ir.Node, domain: str, op_type: str, attrs: Mapping[str, Any]) -> None:
    node.domain, node.op_type = domain, op_type
    node.attributes.clear()
    for name, value in attrs.items():
        ir.set_attr(node, name, value)


# ---- to dialect v3 ---------------------------------------------------------------------------------------------


def _convert_node_to_v3(work: _Conversion, form: Format, node: ir.Node) -> None:
    if form is REQUANT and _is_lut_widening(node):
        return  # taken in by its readers
    if form.v3_name is None:
        if form.domain:
            work.add_obstacle(node)
        else:
            node.domain = ""
        return
    attrs = form.to_v3_attributes(_get_v1_attributes(node), len(node.inputs))
    if form in _LUT_FORMATS:
        _absorb_requant(work, form, node, attrs)
    elif (change := _V3_CONVERTERS.get(form)) is not None and not change(work, form, node, attrs):
        return
    attrs = {
        form.v3_attribute_names.get(key, key): value
        for key, value in attrs.items()
        if value is not None
    }
    if form.v3_name != form.name:
        attrs |= {"platform": work.target.name, "quant_mode": "floor_add"}
    elif form is QUANT:
        attrs["platform"] = work.target.name
    _rewrite_node(node, "linger", form.v3_name, attrs)


def _is_lut_widening(node: ir.Node) -> bool:
    """Whether a Requant does nothing but what QSigmoid and QTanh do themselves.

    Int8 to int16, 2^8 times as fine.
    """
    wide = ir.get_attr(node, "o_bits", 8) == 16 and ir.get_attr(
        node, "scale_o"
    ) == 256 * ir.get_attr(node, "scale_x")
    out = node.outputs[0]
    readers = [find_integer_op(use.node) for use in out.uses()]
    return wide and not out.is_graph_output() and all(form in _LUT_FORMATS for form in readers)


def _absorb_requant(work: _Conversion, form: Format, node: ir.Node, attrs: dict[str, Any]) -> None:
    requant = ir.producer(node.inputs[0])
    if requant is None or requant.op_type != REQUANT.name or not _is_lut_widening(requant):
        attrs["data_bits"] = 16 if _needs_int16_input(work.target, form) else attrs["data_bits"]
        return
    attrs["scale_x"] = ir.get_attr(requant, "scale_x")
    work.add_note(f"Requant {requant.name} is part of {form.v3_name} {node.name}")
    node.replace_input_with(0, requant.inputs[0])
    if not requant.outputs[0].uses():
        work.model.graph.remove(requant, safe=True)


def _needs_int16_input(target: Target, form: Format) -> bool:
    """Whether the row's table takes int16."""
    how = target.get_arithmetic(form.name, LutArithmetic)
    return how is not None and how.reading is TableInputRule.RIGHT_ONLY


def _convert_recurrent_to_v3(
    work: _Conversion, form: Format, node: ir.Node, attrs: dict[str, Any]
) -> bool:
    between = next(
        (
            i
            for i, v in enumerate(node.inputs)
            if i and (a := ir.const_value(v)) is not None and a.ndim == 2
        ),
        1,
    )
    if between > 1 and node.inputs[1] is not None:
        work.add_obstacle(node, "lengths")
        return False
    if attrs.get("scale_o") is None:
        work.add_obstacle(node, "its output is real")
        return False
    shape = ir.get_shape(node.inputs[0])
    if "batch_first" in work.target.node_attributes.get(form.name, {}) and not attrs.get(
        "batch_first", 0
    ):
        if shape is None or len(shape) != 3 or shape[0] not in (None, 1):
            work.add_obstacle(node, "which axis is time is not known")
            return False
        attrs["batch_first"] = 1
        work.add_note(
            f"{form.name} {node.name}: batch_first is 1, as the training side reads its axes; the "
            "packer wants 0"
        )
    if not attrs.pop("linear_before_reset", 1):
        work.add_obstacle(node, "its reset gate acts before the product")
        return False
    if between > 1:  # the place of the lengths goes
        kept = [node.inputs[0], *list(node.inputs)[2:]]
        for index, value in enumerate(kept):
            node.replace_input_with(index, value)
        node.resize_inputs(len(kept))
    states = max(between - 2, 0)
    attrs["has_hidden"] = int(states > 0)
    if form is LSTM:
        attrs.update({"has_cell": int(states > 1), "scale_c": 2.0**15})
    return True


def _refine_beta(work: _Conversion, form: Format, node: ir.Node, attrs: dict[str, Any]) -> bool:
    beta = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
    if beta is None:
        work.add_obstacle(node, "it has no summand")
        return False
    finer = beta.astype(np.int64) << _EXTRA_BETA_FRACTION_BITS
    if np.abs(finer).max(initial=0) >= 1 << 31:
        work.add_obstacle(node, "its summand does not fit 32 bits with five bits more")
        return False
    ir.set_constant_input(work.model, node, 2, finer.astype(np.int32), "q15")
    work.add_note(
        f"{form.name} {node.name}: normalised numbers have 15 fractional bits, not 10: last bits "
        "differ"
    )
    return True


#: What becomes of the numbers and inputs of some; false where there is no counterpart.
_V3_CONVERTERS = {
    LSTM: _convert_recurrent_to_v3,
    GRU: _convert_recurrent_to_v3,
    LAYER_NORM: _refine_beta,
}


# ---- to dialect v1 ---------------------------------------------------------------------------------------------


def _convert_node_to_v1(work: _Conversion, form: Format, node: ir.Node) -> None:
    attributes, target, first = _get_v1_attributes(node), work.target, form.first
    if not form.domain and form.v3_name is None:
        node.domain = ""
        return
    why = form.explain_v1_obstacle(attributes, node)
    if why is not None or first.v3_name is None:
        work.add_obstacle(node, why or "")
        return
    if (mode := ir.get_attr(node, "quant_mode", "floor_add")) != "floor_add":
        work.add_note(
            f"{node.op_type} {node.name}: quant_mode {mode}; the executor rounds half up all the "
            "same"
        )
    attrs = form.to_v1_attributes(attributes, node)
    if first is AVG_POOL2D and attrs.get("scale_o", attrs["scale_x"]) != attrs["scale_x"]:
        work.add_note(
            f"{node.op_type} {node.name}: average pooling changes the scale, which the executor "
            "mishandles"
        )
    elif form in _RECURRENT_FORMATS and any(
        attributes.get(key, 0) for key in ("has_hidden", "has_cell")
    ):
        _insert_lengths_input(node)
    elif form is LAYER_NORM:
        _coarsen_beta(work, node)
    elif form in _LUT_FORMATS:
        _insert_requant(work, form, node, attrs)
    packer = {**target.node_attributes.get("", {}), **target.node_attributes.get(first.name, {})}
    _rewrite_node(node, "thinker", first.name, {**attrs, **packer})


def _insert_lengths_input(node: ir.Node) -> None:
    """In front of the states dialect v1 has the lengths."""
    inputs = [node.inputs[0], None, *list(node.inputs)[1:]]
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def _coarsen_beta(work: _Conversion, node: ir.Node) -> None:
    work.add_note(
        f"{node.op_type} {node.name}: normalised numbers have 10 fractional bits, not 15: last "
        "bits differ"
    )
    beta = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
    if beta is None:
        return
    coarse = (
        beta.astype(np.int64) + (1 << (_EXTRA_BETA_FRACTION_BITS - 1))
    ) >> _EXTRA_BETA_FRACTION_BITS
    if np.any(coarse << _EXTRA_BETA_FRACTION_BITS != beta):
        work.add_note(
            f"{node.op_type} {node.name}: the last five bits of its summand are rounded away"
        )
    ir.set_constant_input(work.model, node, 2, coarse.astype(np.int32), "q10")


def _insert_requant(work: _Conversion, form: Format, node: ir.Node, attrs: dict[str, Any]) -> None:
    """Widen an int8 input where the row's table takes int16."""
    if not _needs_int16_input(work.target, form) or ir.get_attr(node, "x_bits", 8) > 8:
        return
    source = ir.require_input(node)
    known = next(
        (
            use.node
            for use in source.uses()
            if use.node.op_type == REQUANT.name and _is_lut_widening(use.node)
        ),
        None,
    )
    scale = float(attrs["scale_x"])
    if known is None:
        output = ir.unique_tensor_name(work.model, f"{source.name}_q16")
        known = ir.make_node(
            REQUANT.name, [source], {}, name=f"{node.name}_wide", output=output, domain="thinker"
        )
        known.outputs[0].shape, known.outputs[0].type = (
            source.shape,
            ir.make_tensor_type(np.dtype(np.int16)),
        )
        packer = work.target.node_attributes.get("", {})
        told = REQUANT.scales(Affine(scale), Affine(scale * 256, 16))
        _rewrite_node(known, "thinker", REQUANT.name, {**told, **packer})
        work.model.graph.insert_before(node, known)
        work.add_note(f"{form.name} {node.name} reads int16: Requant {known.name} is put before it")
    node.replace_input_with(0, known.outputs[0])
    attrs["scale_x"] = scale * 256
