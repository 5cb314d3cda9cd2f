"""The form of a file: names, order, operators, attributes, scales.

What the packer refuses before it plans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx

from ....formats import (
    ADD,
    AVG_POOL2D,
    BATCH_NORM2D,
    BMM,
    CONCAT,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    DEQUANT,
    GLU,
    GRU,
    LAYER_NORM,
    LINEAR,
    LSTM,
    MUL,
    PAD,
    QUANT,
    REQUANT,
    SIGMOID,
    SOFTMAX,
    SUB,
    TANH,
)
from ... import Target
from ...verdict import VerdictFinding
from ..packer_profile import DEFAULT_PLATFORM_OPTION, PLATFORM_OPTIONS, get_packer_profile
from .options import PackerOptions
from .packer_graph import PackerGraph, PackerStep

__all__ = ["check_file", "check_net"]

_WEIGHT_ATTRIBUTES = ("data_bits", "parameter_bits", "o_bits", "scale_x", "scale_w", "scale_o")
_WINDOW_ATTRIBUTES = ("kernel_shape", "pads", "strides", "dilations", "group")

#: The attributes without which a file does not pack, on every chip.
REQUIRED_ATTRIBUTES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        QUANT.name: ("scale_x", "data_bits"),
        DEQUANT.name: ("scale_o",),
        REQUANT.name: ("scale_x", "scale_o", "data_bits", "o_bits"),
        CONV1D.name: (*_WEIGHT_ATTRIBUTES, *_WINDOW_ATTRIBUTES),
        CONV2D.name: (*_WEIGHT_ATTRIBUTES, *_WINDOW_ATTRIBUTES),
        CONV_TRANSPOSE2D.name: (*_WEIGHT_ATTRIBUTES, *_WINDOW_ATTRIBUTES),
        LINEAR.name: _WEIGHT_ATTRIBUTES,
        AVG_POOL2D.name: ("ceil_mode", "kernel_shape", "pads", "strides", "scale_x", "scale_o"),
        "MaxPool": ("kernel_shape", "pads", "strides"),
        BATCH_NORM2D.name: ("scale_x", "scale_w", "scale_o"),
        LAYER_NORM.name: ("scale_x", "scale_w", "scale_o"),
        GLU.name: ("dim", "o_bits", "scale_x", "scale_o"),
        SOFTMAX.name: ("scale_x", "scale_o"),
        CONCAT.name: ("scale_o",),
        BMM.name: ("scale_x", "scale_o"),
        LSTM.name: (
            "batch_first",
            "hidden_size",
            "input_size",
            "scale_x",
            "scale_iw",
            "scale_hw",
            "scale_o",
            "scale_h",
        ),
        ADD.name: ("scale_x", "scale_y", "scale_o"),
        SUB.name: ("scale_x", "scale_y", "scale_o"),
        MUL.name: ("scale_x",),
        SIGMOID.name: ("scale_x", "scale_o"),
        TANH.name: ("scale_x", "scale_o", "platform_quant"),
        PAD.name: ("mode",),
        "Transpose": ("perm",),
        "Split": ("axis", "dims"),
    }
)

#: Operators that must say how they round: by Packing.rounding on every chip, or on those where it is platform_quant.
_ROUNDING_OPERATORS = (
    CONV1D.name,
    CONV2D.name,
    CONV_TRANSPOSE2D.name,
    LINEAR.name,
    LSTM.name,
    GRU.name,
)
_ROUNDING_OPERATORS_VENUS = (BMM.name, ADD.name, SUB.name, MUL.name)
_RENAME_REMEDY = "give the tensor another name"


def _make_refusal(node: str, rule: str, value: object, remedy: str) -> VerdictFinding:
    return VerdictFinding("packs", node, rule, str(value), remedy)


def check_file(
    graph: onnx.GraphProto, steps: Sequence[PackerStep], target: Target, options: PackerOptions
) -> list[VerdictFinding]:
    """Return what the packer refuses of a file as it stands."""
    refused = [
        *_check_platform(steps, target, options),
        *_check_names(graph, steps),
        *_check_order(graph, steps),
        *_check_inputs(graph, steps),
    ]
    for step in steps:
        refused += _check_operator(step, target)
        refused += _check_attributes(step, target)
    return refused


def _check_platform(
    steps: Sequence[PackerStep], target: Target, options: PackerOptions
) -> Iterator[VerdictFinding]:
    names = sorted({str(s.get("platform")) for s in steps if s.get("platform") is not None})
    asked = options.platform
    if asked is not None and (
        asked.lower() not in (*PLATFORM_OPTIONS, get_packer_profile(target).name)
        or asked not in (asked.lower(), asked.upper())
    ):
        yield _make_refusal(
            "-p",
            "-p is venus, arcs, venusa or mars, all lower or all upper case",
            f"'{asked}'",
            f"write -p {get_packer_profile(target).name}",
        )
    if len(names) > 1:
        yield _make_refusal(
            "graph", "all nodes name one platform", " and ".join(names), "quantize for one chip"
        )
    graph = names[0] if names else DEFAULT_PLATFORM_OPTION
    for other, where in ((asked, "-p"), (get_packer_profile(target).name, "the check")):
        if other is not None and other.lower() != graph.lower():
            yield _make_refusal(
                where,
                "the graph is made for the chip that it is packed for",
                f"{graph} and {other}",
                f"quantize for {target.name}",
            )
            return


def _check_names(graph: onnx.GraphProto, steps: Sequence[PackerStep]) -> Iterator[VerdictFinding]:
    for name in sorted({n for s in steps for n in s.inputs if n.startswith("Scale")}):
        yield _make_refusal(
            name,
            "no tensor that is read has a name that begins with Scale",
            f"'{name}'",
            _RENAME_REMEDY,
        )
    constants = {i.name for i in graph.initializer}
    writers = {n: s for s in steps for n in s.outputs}
    kept = [v.name for v in graph.input if v.name not in constants]
    last = [s.inputs[0] for s in steps if s.op == DEQUANT.name and s.inputs]
    last += [
        v.name for v in graph.output if v.name in writers and writers[v.name].op != DEQUANT.name
    ]
    for name in sorted({n for n in (*kept, *last) if n.find("@") > 0}):
        yield _make_refusal(
            name,
            "no graph input or output has @ in its name, where the packer cuts it",
            f"'{name}'",
            _RENAME_REMEDY,
        )
    inner = [n for n, s in writers.items() if s.op not in (QUANT.name, DEQUANT.name)] + kept
    for short, count in Counter(n.split("@")[0] for n in inner).items():
        if count > 1 and short:
            yield _make_refusal(
                short,
                "names differ before their @, where the packer cuts them",
                f"{count} are '{short}'",
                _RENAME_REMEDY,
            )
    # Unnamed nodes are called by operator and output.
    name_counts = Counter(n.name for n in graph.node if n.name)
    for node in graph.node:
        label = f"{node.op_type}_{node.output[0]}" if node.output else ""
        if not node.name and name_counts[label]:
            yield _make_refusal(
                label,
                "no node has the name that the packer makes up for one without",
                f"'{label}'",
                "name all nodes",
            )


def _check_order(graph: onnx.GraphProto, steps: Sequence[PackerStep]) -> Iterator[VerdictFinding]:
    known = {v.name for v in graph.input} | {i.name for i in graph.initializer}
    known |= {n for node in graph.node if node.op_type == "Constant" for n in node.output}
    for step in steps:
        for name in step.inputs:
            if name not in known:
                yield _make_refusal(
                    step.name,
                    "nodes stand in the order of use",
                    f"it reads '{name}' before it is written",
                    "sort the nodes",
                )
        known |= set(step.outputs)


def _check_inputs(graph: onnx.GraphProto, steps: Sequence[PackerStep]) -> Iterator[VerdictFinding]:
    constants = {i.name for i in graph.initializer}
    used = {n for s in steps for n in s.inputs}
    quants = {s.inputs[0] for s in steps if s.op == QUANT.name and s.inputs}
    for value in graph.input:
        if value.name in constants:
            continue
        if value.name not in used:
            yield _make_refusal(
                value.name, "every graph input is read", "nobody reads it", "take it out"
            )
        kind = value.type.tensor_type.elem_type
        through = any(
            s.op in ("Reshape", "Transpose", "Slice", "Gather", "Squeeze", "Unsqueeze", "Flatten")
            for s in steps
            if value.name in s.inputs
        )
        if (
            kind == onnx.TensorProto.FLOAT
            and value.name not in quants
            and not through
            and value.name in used
        ):
            yield _make_refusal(
                value.name,
                "a graph input without Quant is int8",
                "float",
                "declare it int8, or add a Quant",
            )


def _check_operator(step: PackerStep, target: Target) -> Iterator[VerdictFinding]:
    if step.op in (QUANT.name, DEQUANT.name):
        return
    if step.op not in get_packer_profile(target).operators:
        yield _make_refusal(
            step.name,
            f"the packer has this operator for {target.name}",
            step.op,
            "leave it out or replace it",
        )
    if step.op in ("Squeeze", "Unsqueeze") and len(step.inputs) > 1:
        yield _make_refusal(
            step.name,
            f"{step.op} has its axes as an attribute",
            "an input",
            "write them as an attribute",
        )
    if step.op == CONCAT.name:
        missing = [
            f"scale_x_{i}" for i in range(len(step.inputs)) if step.get(f"scale_x_{i}") is None
        ]
        if step.get("dim") is None and step.get("axis") is None:
            missing.append("dim")
        if missing:
            yield _make_refusal(
                step.name,
                "iqCat has dim and the scale of each input",
                f"{', '.join(missing)} missing",
                "add it",
            )
    if (
        step.op == SOFTMAX.name
        and step.get(get_packer_profile(target).softmax_axis_attribute) is None
    ):
        yield _make_refusal(
            step.name,
            f"SoftmaxInt has the attribute {get_packer_profile(target).softmax_axis_attribute}",
            "none",
            "write dim and axis",
        )


def _check_attributes(step: PackerStep, target: Target) -> Iterator[VerdictFinding]:
    wanted = list(REQUIRED_ATTRIBUTES.get(step.op, ()))
    first = get_packer_profile(target).rounding_attribute == "platform_quant"
    if (
        step.op in _ROUNDING_OPERATORS
        or first
        and step.op in _ROUNDING_OPERATORS_VENUS
        or not first
        and step.op == REQUANT.name
    ):
        wanted.append(get_packer_profile(target).rounding_attribute)
    if step.op == SIGMOID.name and not first:
        wanted.append("platform")
    missing = [name for name in wanted if step.get(name) is None]
    if missing:
        yield _make_refusal(
            step.name,
            f"{step.op} has the attributes that the packer reads",
            f"{', '.join(missing)} missing",
            "write the graph again with quantize or convert",
        )
    widths = get_packer_profile(target).conv_output_bits if step.op == CONV2D.name else (8, 16, 32)
    bits = step.get("o_bits")
    if (
        bits is not None
        and step.op in (*_ROUNDING_OPERATORS, GLU.name, BMM.name)
        and bits not in widths
    ):
        yield _make_refusal(step.name, f"o_bits is one of {widths}", bits, "write 8")


def check_net(net: PackerGraph, target: Target) -> list[VerdictFinding]:
    """Return what the packer refuses of the graph that it has read.

    Nothing left, widths, scales.
    """
    if not net.steps:
        return [
            _make_refusal(
                "graph",
                "a node is left when Quant and Dequant are taken out",
                "none",
                "pack a larger graph",
            )
        ]
    if not any(net.get_constants(step) for step in net.steps):
        return [
            _make_refusal(
                "graph", "a graph has at least one constant", "none", "pack a larger graph"
            )
        ]
    refused: list[VerdictFinding] = []
    scales: dict[str, float | None] = {name: net.tensors[name].scale for name in net.inputs}
    for step in net.steps:
        refused += [*_check_empty_tensors(net, step), *_check_widths(net, step)]
        if step.op != QUANT.name:
            refused += _check_scales(step, scales)
        source = scales.get(step.inputs[0]) if step.inputs else None
        scale = step.get("scale_x" if step.op == QUANT.name else "scale_o")
        for name in step.outputs:
            scales[name] = float(scale) if scale is not None else source
    for label, name, result in net.dequantized_outputs:
        known = scales.get(name)
        if known is not None and not math.isclose(result, known, rel_tol=1e-6):
            refused.append(
                _make_refusal(
                    label,
                    "scale_o of a Dequant is the scale of its input",
                    f"{result:g} and {known:g}",
                    "use one scale",
                )
            )
    return refused


def _check_empty_tensors(net: PackerGraph, step: PackerStep) -> Iterable[VerdictFinding]:
    for name in (*step.inputs, *step.outputs):
        shape = net.tensors[name].shape if name in net.tensors else ()
        if 0 in shape:
            yield _make_refusal(
                step.name,
                "tensors have elements",
                f"'{name}' of shape {list(shape)}",
                "leave the node out",
            )


def _check_widths(net: PackerGraph, step: PackerStep) -> Iterable[VerdictFinding]:
    if (
        step.op in (CONV1D.name, CONV2D.name, CONV_TRANSPOSE2D.name, LINEAR.name)
        and len(step.inputs) > 1
    ):
        weight = net.arrays.get(step.inputs[1])
        if weight is not None and weight.dtype.name != "int8":
            yield _make_refusal(
                step.name, "weights are int8", weight.dtype.name, "store them as int8"
            )
    if step.op == TANH.name and net.tensors[step.inputs[0]].width != 2:
        yield _make_refusal(
            step.name,
            "iqTanh reads 16 bits",
            f"{8 * net.tensors[step.inputs[0]].width}",
            "add a Requant",
        )


def _check_scales(step: PackerStep, scales: dict[str, float | None]) -> Iterable[VerdictFinding]:
    keys = (
        ["scale_x", "scale_y"]
        if step.op != CONCAT.name
        else [f"scale_x_{i}" for i in range(len(step.inputs))]
    )
    for name, key in zip(step.inputs, keys, strict=False):
        stated, known = step.get(key), scales.get(name)
        if stated is None:
            continue
        if known is None and name in scales:
            scales[name] = float(stated)
        elif known is not None and not math.isclose(stated, known, rel_tol=1e-6):
            yield _make_refusal(
                step.name,
                f"{key} is the scale of the input",
                f"{stated:g} and {known:g}",
                "use one scale",
            )
