"""Integer graphs of one generation written as the other: names, attributes, container facts.

    thinker -> linger     Conv2dInt -> QConv2d, data_bits -> x_bits, ..., domain `linger`
    linger  -> thinker    back, with the attributes that the platform's packer wants

Numbers stay as they are but for layer normalisation, whose summand has five more fractional bits in generation 3.
What has no counterpart is an error that names every such node; what means something else afterwards is a note. Owns the
tables of differences; knows operators by name only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import ConfigError, ModelError
from .formats import RENAMED, Format, integer_format, is_quantized_domain
from .graph import ir
from .packer.names import written
from .platforms import Platform
from .platforms.arithmetic import Curve, Reading
from .run.generations import THIRD, generation
from .run.int_runner import row_of

__all__ = ["TARGETS", "Converted", "convert"]

#: What a graph can be converted to -> generation, IR version of the file.
TARGETS: Mapping[str, tuple[int, int]] = {"thinker": (1, 6), "linger": (3, 7)}

_FIRST = {third: first for first, third in THIRD.items()}
#: Further names of generation 3.
_FIRST |= {"QConvBN1d": "Conv1dInt", "QConvBN2d": "Conv2dInt", "QLayerNorm2d": "LayerNormInt", "QMatmul": "BmmInt",
           "QBatchNorm1d": "BatchNorm2dInt", "QGlobalAveragePool2d": "AvgPool2dInt"}  # fmt: skip
_SAME = ("Quant", "Dequant", "Gather")

#: Attributes for the packer alone.
_PACKER = ("platform", "platform_quant", "castor_mode", "mode", "quant_mode", "dropout")
_THIRD_NAMES = {"data_bits": "x_bits", "parameter_bits": "w_bits"}
_PAIRS = ("iqAdd", "iqMul", "BmmInt")
_CURVES = ("iqSigmoid", "iqTanh")
_LAYERS = ("LSTMInt", "GRUInt")

#: Attributes that generation 1 leaves out where they say 8.
_UNSAID: Mapping[str, tuple[str, ...]] = {
    "iqAdd": ("data_bits", "y_bits", "o_bits"),
    "iqMul": ("data_bits", "y_bits", "o_bits"),
    "iqCat": ("data_bits", "o_bits"),
    "BmmInt": ("y_bits",),
    "iqSigmoid": ("data_bits", "o_bits"),
    "iqTanh": ("data_bits", "o_bits"),
    "GluInt": ("data_bits", "o_bits"),
}

#: Fractional bits that the summand of a layer normalisation has more in generation 3.
_FINER = 5
_NORMAL = 2.0**15


@dataclass(frozen=True)
class Converted:
    """A converted graph; notes : what means something else now, one line each."""

    graph: ir.Graph
    notes: tuple[str, ...]

    def save(self, path: Any) -> None:
        """Write the graph to `path`, as a whole or not at all, with names that the packer takes."""
        ir.save(written(self.graph), path)


@dataclass
class _Work:
    """A conversion under way."""

    model: ir.Graph
    row: Platform
    obstacles: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lacks(self, node: ir.Node, why: str = "") -> None:
        self.obstacles.append(f"{node.op_type} {node.name}{f' ({why})' if why else ''}")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def convert(model: ir.Graph, to: str) -> Converted:
    """Return the integer graph `model`, which is left as it is, in the generation called `to`.

    to : "thinker" or "linger". Raises ConfigError for another word, ModelError for a float graph and where operators
    have no counterpart, all of them named.
    """
    if to not in TARGETS:
        more = "; a graph of QuantizeLinear and DequantizeLinear is not written yet" if to == "qdq" else ""
        raise ConfigError(f"cannot convert to '{to}': it is {' or '.join(TARGETS)}{more}")
    if not any(is_quantized_domain(node) for node in model.graph):
        raise ModelError("the graph has no integer operator: there is nothing to convert; quantize it first")
    number, version = TARGETS[to]
    if generation(model) == number:
        return Converted(ir.clone(model), (f"it is a graph of domain {to} already: nothing is converted",))
    row = row_of(model)
    if not row.training:
        raise ModelError(f"a graph for {row.name} has no counterpart in domain {to}, which knows the chips only")
    work = _Work(ir.clone(model), row)
    one: Callable[[_Work, Format, ir.Node], None] = _to_third if number == 3 else _to_first
    for node in list(work.model.graph):
        form = integer_format(node)
        if is_quantized_domain(node):
            if form is None:
                work.lacks(node, "unknown")
            else:
                one(work, form, node)
    if work.obstacles:
        raise ModelError(f"no counterpart in domain {to}: {', '.join(work.obstacles)}")
    _container(work, to, version)
    return Converted(work.model, tuple(work.notes))


def _container(work: _Work, to: str, version: int) -> None:
    model = work.model
    for domain in TARGETS:
        model.graph.opset_imports.pop(domain, None)
    model.graph.opset_imports[to] = 1
    model.ir_version = max(version, model.ir_version) if model.functions else version
    other = "training side's" if to == "linger" else "executor's"
    work.note(f"by default Session computes the {other} arithmetic for it (docs/generations.md)")
    opset = model.graph.opset_imports.get("", 0)
    if to == "thinker" and opset > 12:
        work.note(f"opset {opset} stays; the packer was made for graphs of opset 11 and 12")


def _given(node: ir.Node) -> dict[str, Any]:
    """Return the node's attributes by the names of generation 1, without the packer's."""
    found = {RENAMED.get(name, name): ir.attr(node, name) for name in node.attributes}
    return {name: value for name, value in found.items() if name not in _PACKER}


def _write(node: ir.Node, domain: str, op_type: str, attrs: Mapping[str, Any]) -> None:
    node.domain, node.op_type = domain, op_type
    node.attributes.clear()
    for name, value in attrs.items():
        ir.set_attr(node, name, value)


# ---- to generation 3 ---------------------------------------------------------------------------------------------


def _to_third(work: _Work, form: Format, node: ir.Node) -> None:
    attrs, name = _given(node), form.name
    if name == "Requant" and _widens_for_curves(node):
        return  # taken in by its readers
    if name not in THIRD and name not in _SAME:
        if form.domain:
            work.lacks(node)
        else:
            node.domain = ""
        return
    if name in _SAME:
        if name == "Quant":
            attrs = {**attrs, "data_bits": attrs.get("data_bits", 8), "platform": work.row.name, "zero_point": 0}
        _write(node, "linger", name, {_THIRD_NAMES.get(k, k) if name == "Gather" else k: v for k, v in attrs.items()})
        return
    if name not in _LAYERS:
        attrs.setdefault("data_bits", 8)
        attrs.setdefault("o_bits", 8 if attrs.get("scale_o") is not None or name in _CURVES else None)
    if name in _CURVES:
        _take_requant_in(work, node, attrs)
    elif (change := _CHANGES.get(name)) is not None and not change(work, node, attrs):
        return
    _third_details(name, node, attrs)
    attrs = {_THIRD_NAMES.get(key, key): value for key, value in attrs.items() if value is not None}
    _write(node, "linger", THIRD[name], {**attrs, "platform": work.row.name, "quant_mode": "floor_add"})


def _third_details(name: str, node: ir.Node, attrs: dict[str, Any]) -> None:
    if name in _PAIRS:
        attrs.setdefault("y_bits", 8)
    if name in ("iqCat", "SoftmaxInt"):
        dim = attrs.pop("dim", None)
        attrs["axis"] = attrs.get("axis", dim) if attrs.get("axis") is not None else dim
    if name == "iqCat":
        attrs.pop("data_bits")
        attrs.update({f"x_{i}_bits": attrs.get(f"x_{i}_bits", 8) for i in range(len(node.inputs))})
    if name == "AvgPool2dInt":
        attrs.setdefault("scale_o", attrs["scale_x"])
        attrs.update({"count_include_pad": 1, "divisor_override": -1})


def _widens_for_curves(node: ir.Node) -> bool:
    """Whether a Requant does nothing but what QSigmoid and QTanh do themselves: int8 to int16, 2^8 times as fine."""
    wide = ir.attr(node, "o_bits", 8) == 16 and ir.attr(node, "scale_o") == 256 * ir.attr(node, "scale_x")
    out = node.outputs[0]
    readers = [integer_format(use.node) for use in out.uses()]
    return wide and not out.is_graph_output() and all(form is not None and form.name in _CURVES for form in readers)


def _take_requant_in(work: _Work, node: ir.Node, attrs: dict[str, Any]) -> None:
    requant = ir.producer(node.inputs[0])
    if requant is None or requant.op_type != "Requant" or not _widens_for_curves(requant):
        attrs["data_bits"] = 16 if _reads_wide(work.row, node.op_type) else attrs["data_bits"]
        return
    attrs["scale_x"] = ir.attr(requant, "scale_x")
    work.note(f"Requant {requant.name} is part of {THIRD[node.op_type]} {node.name}")
    node.replace_input_with(0, requant.inputs[0])
    if not requant.outputs[0].uses():
        work.model.graph.remove(requant, safe=True)


def _reads_wide(row: Platform, name: str) -> bool:
    """Whether the row's table takes int16."""
    how = row.computes(name, Curve)
    return how is not None and how.reading is Reading.RIGHT_ONLY


def _third_layer(work: _Work, node: ir.Node, attrs: dict[str, Any]) -> bool:
    op_name = "LSTMInt" if node.op_type.startswith("LSTM") else "GRUInt"
    between = next((i for i, v in enumerate(node.inputs) if i and (a := ir.const(v)) is not None and a.ndim == 2), 1)
    if between > 1 and node.inputs[1] is not None:
        work.lacks(node, "lengths")
        return False
    if attrs.get("scale_o") is None:
        work.lacks(node, "its output is real")
        return False
    shape = ir.shape(node.inputs[0])
    if "batch_first" in work.row.node_attributes.get(op_name, {}) and not attrs.get("batch_first", 0):
        if shape is None or len(shape) != 3 or shape[0] not in (None, 1):
            work.lacks(node, "which axis is time is not known")
            return False
        attrs["batch_first"] = 1
        work.note(f"{op_name} {node.name}: batch_first is 1, as the training side reads its axes; the packer wants 0")
    if not attrs.pop("linear_before_reset", 1):
        work.lacks(node, "its reset gate acts before the product")
        return False
    if between > 1:  # the place of the lengths goes
        kept = [node.inputs[0], *list(node.inputs)[2:]]
        for index, value in enumerate(kept):
            node.replace_input_with(index, value)
        node.resize_inputs(len(kept))
    given = max(between - 2, 0)
    attrs["has_hidden"] = int(given > 0)
    if op_name == "LSTMInt":
        attrs.update({"has_cell": int(given > 1), "scale_c": 2.0**15})
    return True


def _finer(work: _Work, node: ir.Node, attrs: dict[str, Any]) -> bool:
    beta = ir.const(node.inputs[2]) if len(node.inputs) > 2 else None
    if beta is None:
        work.lacks(node, "it has no summand")
        return False
    finer = beta.astype(np.int64) << _FINER
    if np.abs(finer).max(initial=0) >= 1 << 31:
        work.lacks(node, "its summand does not fit 32 bits with five bits more")
        return False
    ir.set_constant(work.model, node, 2, finer.astype(np.int32), "q15")
    attrs["scale_y_normal"] = _NORMAL
    work.note(f"LayerNormInt {node.name}: normalised numbers have 15 fractional bits, not 10: last bits differ")
    return True


#: What becomes of the numbers and inputs of some; false where there is no counterpart.
_CHANGES = {"LSTMInt": _third_layer, "GRUInt": _third_layer, "LayerNormInt": _finer}


# ---- to generation 1 ---------------------------------------------------------------------------------------------


def _to_first(work: _Work, form: Format, node: ir.Node) -> None:
    name, row, attrs = _FIRST.get(node.op_type, form.name), work.row, _given(node)
    why = _obstacle(name, node, attrs, row)
    if not form.domain and name not in _SAME:
        node.domain = ""
        return
    if why is not None or (name not in THIRD and name not in _SAME):
        work.lacks(node, why or "")
        return
    if (mode := ir.attr(node, "quant_mode", "floor_add")) != "floor_add":
        work.note(f"{node.op_type} {node.name}: quant_mode {mode}; the executor rounds half up all the same")
    attrs.pop("zero_point", None)
    attrs = {key: value for key, value in attrs.items()
             if value != 8 or key not in _UNSAID.get(name, ()) and not key.startswith("x_")}  # fmt: skip
    if name == "AvgPool2dInt":
        attrs = {key: value for key, value in attrs.items() if key not in ("count_include_pad", "divisor_override")}
        if node.op_type == "QGlobalAveragePool2d":
            attrs["kernel_shape"] = list((ir.shape(node.inputs[0]) or ())[2:])
            attrs.update({"strides": [1, 1], "pads": [0] * 4, "ceil_mode": 0})
        if attrs.get("scale_o", attrs["scale_x"]) != attrs["scale_x"]:
            work.note(f"{node.op_type} {node.name}: average pooling changes the scale, which the executor mishandles")
    elif name in ("iqCat", "SoftmaxInt"):
        attrs["dim"] = attrs["axis"]
        if name == "iqCat":
            del attrs["axis"]
    elif name in _LAYERS:
        _first_layer(work, name, node, attrs)
    elif name == "LayerNormInt":
        _coarser(work, node, attrs)
    elif name in _CURVES:
        _put_requant_before(work, name, node, attrs)
    packer = {**row.node_attributes.get("", {}), **row.node_attributes.get(name, {})}
    _write(node, "thinker", name, {**attrs, **packer})


def _obstacle(name: str, node: ir.Node, attrs: Mapping[str, Any], row: Platform) -> str | None:
    """Return why generation 1 has no such node, or None."""
    shapes = [ir.shape(value) for value in node.inputs[:2]]
    rank = None if not shapes or shapes[0] is None else len(shapes[0])
    if node.op_type in ("QAvgPool1d", "QConvTranspose1d"):
        return "of lines"
    if node.op_type == "QMatmul" and [len(s or ()) for s in shapes] != [3, 3]:
        return "its factors do not both have three axes"
    if node.op_type == "QBatchNorm1d" and rank != 4:
        return "its input does not have four axes"
    if node.op_type == "QGlobalAveragePool2d" and (rank != 4 or None in (shapes[0] or ())[2:]):
        return "the size of its map is not known"
    if name == "AvgPool2dInt" and any(attrs.get("pads") or [0]) and not attrs.get("count_include_pad", 1):
        return "its padding does not count"
    if name == "AvgPool2dInt" and int(attrs.get("divisor_override", -1)) > 0:
        return f"it divides by {attrs['divisor_override']}"
    if name == "GluInt" and int(attrs.get("dim", -1)) not in (-1, (rank or 0) - 1):
        return "it does not gate the last axis"
    if name in _CURVES and attrs.get("scale_o", 128.0) != 128.0:
        return f"scale_o = {attrs['scale_o']:g}, not 128"
    states = ("scale_o", "scale_h") if name in _LAYERS else ()
    if states and len({attrs.get(key) for key in states}) > 1:
        return f"scale_o = {attrs.get('scale_o')}, scale_h = {attrs.get('scale_h')}"
    return None


def _first_layer(work: _Work, name: str, node: ir.Node, attrs: dict[str, Any]) -> None:
    states = [attrs.pop(key, 0) for key in ("has_hidden", "has_cell")]
    if any(states):  # in front of the states generation 1 has the lengths
        inputs = [node.inputs[0], None, *list(node.inputs)[1:]]
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            node.replace_input_with(index, value)
    attrs.pop("scale_c", None)
    attrs["dropout"] = 0.0
    if name == "GRUInt":
        attrs["linear_before_reset"] = 1


def _coarser(work: _Work, node: ir.Node, attrs: dict[str, Any]) -> None:
    attrs.pop("scale_y_normal", None)
    work.note(f"{node.op_type} {node.name}: normalised numbers have 10 fractional bits, not 15: last bits differ")
    beta = ir.const(node.inputs[2]) if len(node.inputs) > 2 else None
    if beta is None:
        return
    coarse = (beta.astype(np.int64) + (1 << (_FINER - 1))) >> _FINER
    if np.any(coarse << _FINER != beta):
        work.note(f"{node.op_type} {node.name}: the last five bits of its summand are rounded away")
    ir.set_constant(work.model, node, 2, coarse.astype(np.int32), "q10")


def _put_requant_before(work: _Work, name: str, node: ir.Node, attrs: dict[str, Any]) -> None:
    """Widen an int8 input where the row's table takes int16."""
    if not _reads_wide(work.row, name) or ir.attr(node, "x_bits", 8) > 8:
        return
    source = ir.source(node)
    known = next((use.node for use in source.uses() if use.node.op_type == "Requant"
                  and _widens_for_curves(use.node)), None)  # fmt: skip
    scale = float(attrs["scale_x"])
    if known is None:
        output = ir.fresh_name(work.model, f"{source.name}_q16")
        known = ir.make_node("Requant", [source], {}, name=f"{node.name}_wide", output=output, domain="thinker")
        known.outputs[0].shape, known.outputs[0].type = source.shape, ir.tensor_type(np.dtype(np.int16))
        packer = work.row.node_attributes.get("", {})
        _write(known, "thinker", "Requant", {"data_bits": 8, "o_bits": 16, "scale_x": scale, "scale_o": scale * 256,
                                             **packer})  # fmt: skip
        work.model.graph.insert_before(node, known)
        work.note(f"{name} {node.name} reads int16: Requant {known.name} is put before it")
    node.replace_input_with(0, known.outputs[0])
    attrs["scale_x"] = scale * 256
