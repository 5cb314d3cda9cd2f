"""Checks of the file that the packer makes before it plans memory.

Names, node order, operators, attributes and scales.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx

from ...operators.integer_ops import (
    ADD,
    AVG_POOL2D,
    BATCH_NORM2D,
    BMM,
    CONCAT,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    DEQUANT,
    EXPAND,
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
    TILE,
)
from ...targets import Target
from ...targets.verdict import VerdictFinding
from ..packer_profile import (
    DEFAULT_PLATFORM_OPTION,
    PLATFORM_OPTIONS,
    PackerProfile,
    get_packer_profile,
)
from .frontend.steps import PackerFile
from .options import PackerOptions
from .packer_graph import PackerGraph, PackerStep, map_producers

__all__ = ["check_file", "check_net"]

_WEIGHT_ATTRIBUTES = ("data_bits", "parameter_bits", "o_bits", "scale_x", "scale_w", "scale_o")
_WINDOW_ATTRIBUTES = ("kernel_shape", "pads", "strides", "dilations", "group")

#: Operator -> attributes without which a file does not pack, on every chip.
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

#: Operators that need the attribute PackerProfile.rounding_attribute on every chip.
_ROUNDING_OPERATORS = (
    CONV1D.name,
    CONV2D.name,
    CONV_TRANSPOSE2D.name,
    LINEAR.name,
    LSTM.name,
    GRU.name,
)
#: Operators that need it only on chips where it is called platform_quant.
_ROUNDING_OPERATORS_VENUS = (BMM.name, ADD.name, SUB.name, MUL.name)
#: Operators through which a float graph input may reach its Quant.
_DATA_MOVEMENT_OPERATORS = (
    "Reshape",
    "Transpose",
    "Slice",
    "Gather",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
)
_RENAME_REMEDY = "give the tensor another name"


def _make_refusal(node: str, rule: str, value: object, remedy: str) -> VerdictFinding:
    """Make a finding of level "packs" (the packer refuses the graph) on node or option `node`."""
    return VerdictFinding("packs", node, rule, str(value), remedy)


def check_file(file: PackerFile, target: Target, options: PackerOptions) -> list[VerdictFinding]:
    """Check an integer graph as stored in its file, before the packer transforms it.

    Returns the findings of level "packs" on platform, names, node order, graph inputs, operators
    and attributes, in this order; empty if there are none.
    """
    graph, steps = file.graph, file.steps
    findings = [
        *_check_platform(steps, target, options),
        *_check_names(graph, steps),
        *_check_order(graph, steps),
        *_check_inputs(graph, steps),
    ]
    for step in steps:
        findings += _check_operator(step, target)
        findings += _check_attributes(step, target)
    return findings


def _check_platform(
    steps: Sequence[PackerStep], target: Target, options: PackerOptions
) -> Iterator[VerdictFinding]:
    """Yield a finding for each disagreement between option -p, the nodes' platform and `target`.

    -p must be a known chip, all lower or all upper case; all nodes must name one platform; and that
    platform (the packer's default if no node names one) must be that of -p and of `target`, with at
    most one finding for the last rule.
    """
    target_name = get_packer_profile(target).name
    node_platforms = sorted(
        {str(s.get("platform")) for s in steps if s.get("platform") is not None}
    )
    option = options.platform
    has_known_case = get_packer_profile(target).accepts_any_platform_case or option in (
        str(option).lower(),
        str(option).upper(),
    )
    if option is not None and (
        option.lower() not in (*PLATFORM_OPTIONS, target_name) or not has_known_case
    ):
        yield _make_refusal(
            "-p",
            "-p must be venus, arcs, venusa or mars, all lower case or all upper case",
            f"'{option}'",
            f"write -p {target_name}",
        )
    if len(node_platforms) > 1:
        yield _make_refusal(
            "graph",
            "all nodes must name the same platform",
            " and ".join(node_platforms),
            "quantize for one chip",
        )
    graph_platform = node_platforms[0] if node_platforms else DEFAULT_PLATFORM_OPTION
    for platform, source in ((option, "-p"), (target_name, "the check")):
        if platform is not None and platform.lower() != graph_platform.lower():
            yield _make_refusal(
                source,
                "the graph must be quantized for the chip it is packed for",
                f"{graph_platform} and {platform}",
                f"quantize for {target.name}",
            )
            return


def _check_names(graph: onnx.GraphProto, steps: Sequence[PackerStep]) -> Iterator[VerdictFinding]:
    """Yield a finding of level "packs" for each tensor or node name that the packer misreads.

    These are inputs of nodes that start with "Scale", names that matter after an "@" (where the
    packer truncates), and names that the packer generates for unnamed nodes.
    """
    input_names: set[str] = set()
    for step in steps:
        input_names.update(step.inputs)
    for name in sorted(name for name in input_names if name.startswith("Scale")):
        yield _make_refusal(
            name, 'input tensor names must not start with "Scale"', f"'{name}'", _RENAME_REMEDY
        )
    constants = {i.name for i in graph.initializer}
    graph_inputs = [value.name for value in graph.input if value.name not in constants]
    yield from _check_truncated_names(graph, steps, graph_inputs)
    yield from _check_node_names(graph)


def _check_truncated_names(
    graph: onnx.GraphProto, steps: Sequence[PackerStep], graph_inputs: Sequence[str]
) -> Iterator[VerdictFinding]:
    """Yield a finding for each tensor name whose truncation at the first "@" changes the graph.

    Graph inputs, integer graph outputs and inputs of a Dequant must have no "@" after the first
    character. Graph inputs and integer results must differ before the first "@"; `graph_inputs` are
    names without constants.
    """
    producers = map_producers(steps)
    results = [s.inputs[0] for s in steps if s.op == DEQUANT.name and s.inputs]
    for value in graph.output:
        if value.name in producers and producers[value.name].op != DEQUANT.name:
            results.append(value.name)
    for name in sorted({*graph_inputs, *results}):
        if name.find("@") > 0:
            yield _make_refusal(
                name,
                'graph input and output names must not contain "@" (the packer truncates there)',
                f"'{name}'",
                _RENAME_REMEDY,
            )
    integer_tensors = [n for n, s in producers.items() if s.op not in (QUANT.name, DEQUANT.name)]
    stems = Counter(name.split("@")[0] for name in (*integer_tensors, *graph_inputs))
    for stem, count in stems.items():
        if count > 1 and stem:
            yield _make_refusal(
                stem,
                'tensor names must be unique up to the first "@" (the packer truncates there)',
                f"{count} are '{stem}'",
                _RENAME_REMEDY,
            )


def _check_node_names(graph: onnx.GraphProto) -> Iterator[VerdictFinding]:
    """Yield a finding for each unnamed node whose generated name another node already has.

    The packer generates the operator type, "_" and the first output.
    """
    node_names = Counter(node.name for node in graph.node if node.name)
    for node in graph.node:
        generated_name = f"{node.op_type}_{node.output[0]}" if node.output else ""
        if not node.name and node_names[generated_name]:
            yield _make_refusal(
                generated_name,
                "no node may have the name that the packer generates for an unnamed node",
                f"'{generated_name}'",
                "name all nodes",
            )


def _check_order(graph: onnx.GraphProto, steps: Sequence[PackerStep]) -> Iterator[VerdictFinding]:
    """Yield a finding for each input of a step that is produced later or nowhere.

    Graph inputs, initializers and outputs of Constant nodes are always available.
    """
    available = {v.name for v in graph.input} | {i.name for i in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            available.update(node.output)
    for step in steps:
        for name in step.inputs:
            if name not in available:
                yield _make_refusal(
                    step.name,
                    "nodes must be in topological order",
                    f"it uses '{name}' before it is produced",
                    "sort the nodes",
                )
        available.update(step.outputs)


def _check_inputs(graph: onnx.GraphProto, steps: Sequence[PackerStep]) -> Iterator[VerdictFinding]:
    """Yield a finding for each unused graph input and each float graph input that no Quant reads.

    A float input is accepted if any data-movement operator (Reshape, Slice, ...) reads it. Inputs
    that are initializers are skipped.
    """
    constants = {i.name for i in graph.initializer}
    used_names: set[str] = set()
    names_through_moves: set[str] = set()
    for step in steps:
        used_names.update(step.inputs)
        if step.op in _DATA_MOVEMENT_OPERATORS:
            names_through_moves.update(step.inputs)
    quantized_names = {s.inputs[0] for s in steps if s.op == QUANT.name and s.inputs}
    for value in graph.input:
        if value.name in constants:
            continue
        if value.name not in used_names:
            yield _make_refusal(
                value.name, "every graph input must be used", "it has no consumer", "remove it"
            )
            continue
        if (
            value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
            and value.name not in quantized_names
            and value.name not in names_through_moves
        ):
            yield _make_refusal(
                value.name,
                "a graph input without a Quant must be int8",
                "float",
                "declare it int8, or add a Quant",
            )


def _check_operator(step: PackerStep, target: Target) -> Iterator[VerdictFinding]:
    """Yield findings of level "packs" if the packer lacks the operator or a special attribute.

    Also refused are Squeeze and Unsqueeze with axes as an input, a SoftmaxInt without the axis
    attribute that this chip's packer reads, and an iqCat without axis or input scales. Quant and
    Dequant are not checked.
    """
    if step.op in (QUANT.name, DEQUANT.name):
        return
    profile = get_packer_profile(target)
    if step.op not in profile.operators:
        yield _make_refusal(
            step.name,
            f"the packer for {target.name} must support the operator",
            step.op,
            "remove the node or replace it",
        )
    if step.op in ("Squeeze", "Unsqueeze") and len(step.inputs) > 1:
        yield _make_refusal(
            step.name,
            f"the axes of {step.op} must be an attribute",
            "an input",
            "write them as an attribute",
        )
    if step.op == CONCAT.name:
        yield from _check_concat_attributes(step)
    axis_attribute = profile.softmax_axis_attribute
    if step.op == SOFTMAX.name and step.get(axis_attribute) is None:
        yield _make_refusal(
            step.name,
            f"SoftmaxInt must have the attribute {axis_attribute}",
            "none",
            "write dim and axis",
        )


def _check_concat_attributes(step: PackerStep) -> Iterator[VerdictFinding]:
    """Yield one finding if an iqCat lacks `scale_x_0`, `scale_x_1`, ... or its axis.

    The axis is `dim` or `axis`; the finding lists all missing attributes.
    """
    scale_keys = [f"scale_x_{i}" for i in range(len(step.inputs))]
    missing = [key for key in scale_keys if step.get(key) is None]
    if step.get("dim") is None and step.get("axis") is None:
        missing.append("dim")
    if missing:
        yield _make_refusal(
            step.name,
            "iqCat must have dim and the scale of each input",
            f"{', '.join(missing)} missing",
            "add the attributes",
        )


def _check_attributes(step: PackerStep, target: Target) -> Iterator[VerdictFinding]:
    """Yield a finding on missing attributes of `step`, and one on an unsupported `o_bits`.

    Required are the attributes in `REQUIRED_ATTRIBUTES`, the chip's rounding attribute for
    operators that round, and `platform` of an iqSigmoid where that attribute is not
    `platform_quant`. `o_bits` may be 8, 16 or 32, for a Conv2dInt the profile's widths; absent is
    accepted.
    """
    profile = get_packer_profile(target)
    uses_platform_quant = profile.rounding_attribute == "platform_quant"
    required = list(REQUIRED_ATTRIBUTES.get(step.op, ()))
    extra_rounding_operators = _ROUNDING_OPERATORS_VENUS if uses_platform_quant else (REQUANT.name,)
    if step.op in (*_ROUNDING_OPERATORS, *extra_rounding_operators):
        required.append(profile.rounding_attribute)
    if step.op == SIGMOID.name and not uses_platform_quant:
        required.append("platform")
    optional = profile.optional_attributes.get(step.op, ())
    missing = [name for name in required if step.get(name) is None and name not in optional]
    if missing:
        yield _make_refusal(
            step.name,
            f"{step.op} must have the attributes that the packer reads",
            f"{', '.join(missing)} missing",
            "write the graph again with quantize or convert",
        )
    quant_mode = step.get("quant_mode")
    if quant_mode in profile.refused_quant_modes:
        yield _make_refusal(
            step.name,
            f"quant_mode must not be one of {profile.refused_quant_modes}",
            quant_mode,
            "remove the attribute",
        )
    widths = profile.conv_output_bits if step.op == CONV2D.name else (8, 16, 32)
    bits = step.get("o_bits")
    if (
        bits is not None
        and step.op in (*_ROUNDING_OPERATORS, GLU.name, BMM.name)
        and bits not in widths
    ):
        yield _make_refusal(step.name, f"o_bits must be one of {widths}", bits, "write 8")


def check_net(net: PackerGraph, target: Target) -> list[VerdictFinding]:
    """Check the graph that the packer has read for empty tensors, wrong widths and scales.

    Returns findings of level "packs". A graph without steps or without constants gives only that
    one finding.
    """
    if not net.steps:
        rule = "the graph must contain at least one node besides Quant and Dequant"
        return [_make_refusal("graph", rule, "none", "pack a larger graph")]
    if not any(_has_constant(net, step) for step in net.steps):
        rule = "the graph must have at least one constant"
        return [_make_refusal("graph", rule, "none", "pack a larger graph")]
    profile = get_packer_profile(target)
    findings = [*_check_outputs(net), *_check_group_names(net)]
    scales: dict[str, float | None] = {name: net.tensors[name].scale for name in net.inputs}
    for step in net.steps:
        findings += [*_check_empty_tensors(net, step), *_check_widths(net, step, profile)]
        if step.op != QUANT.name:
            findings += _check_scales(step, scales)
        _propagate_scale(step, scales)
    findings += _check_dequant_scales(net, scales)
    return findings


def _has_constant(net: PackerGraph, step: PackerStep) -> bool:
    """Whether a step has a constant that counts: one that is stored, or a shape."""
    if step.op in ("Reshape", TILE.name, EXPAND.name):
        return any(net.tensors[name].is_constant for name in step.inputs)
    return bool(net.get_constants(step))


def _check_outputs(net: PackerGraph) -> Iterator[VerdictFinding]:
    """Yield findings on graph outputs that the packer loses.

    It removes a Reshape whose only consumer is a Reshape, and a graph input is no output.
    """
    for name in dict.fromkeys(net.outputs):
        producer, consumers = net.find_producer(name), net.find_consumers(name)
        if producer is None:
            yield _make_refusal(
                name,
                "a graph input must not be a graph output",
                f"'{name}'",
                "copy it by a node",
            )
        elif len(consumers) == 1 and net.is_reshape(producer) and net.is_reshape(consumers[0]):
            yield _make_refusal(
                producer.name,
                "a graph output of a Reshape must not be read by one other Reshape alone",
                f"'{name}'",
                "let that Reshape read the tensor in front of both",
            )


def _check_group_names(net: PackerGraph) -> Iterator[VerdictFinding]:
    """Yield findings on names that the packer gives to the parts of grouped convolutions.

    It looks its names up before it makes them: a tensor that has one is refused, a constant is
    taken for the part, which is refused as well unless it has the shape of the part.
    """
    reserved = {name for step in net.steps for name in (*step.inputs, *step.outputs)}
    for step in net.steps:
        group = net.get_split_groups(step)
        for index, name in enumerate(step.inputs):
            for part_name in (f"{name}_{part}" for part in range(group)):
                if index == 0 and part_name in reserved:
                    yield _make_refusal(
                        step.name,
                        "the packer splits a grouped convolution, and the name of a part must be "
                        "free",
                        f"'{part_name}'",
                        "rename that tensor; of two grouped convolutions let one read a copy",
                    )
                if index > 0 and part_name in net.tensors:
                    yield _check_part_constant(net, step, name, part_name)
        if group:
            reserved.update(f"{step.inputs[0]}_{part}" for part in range(group))


def _check_part_constant(
    net: PackerGraph, step: PackerStep, name: str, part_name: str
) -> VerdictFinding:
    """Return the finding on a tensor `part_name` that is taken for a part of constant `name`."""
    shape = net.tensors[name].shape
    part_shape = (shape[0] // net.get_split_groups(step), *shape[1:])
    is_refused = net.tensors[part_name].shape != part_shape
    return VerdictFinding(
        "packs" if is_refused else "right",
        step.name,
        "no tensor may have the name that the packer gives to a part of a constant",
        f"'{part_name}'",
        "rename it",
    )


def _propagate_scale(step: PackerStep, scales: dict[str, float | None]) -> None:
    """Set the scale of each output of `step` in `scales`, in place.

    `scales` maps tensor names to scales, None if unknown. The output's scale is `scale_o`
    (`scale_x` of a Quant) if declared, otherwise that of the first input.
    """
    scale = step.get("scale_x" if step.op == QUANT.name else "scale_o")
    if scale is not None:
        scale = float(scale)
    elif step.inputs:
        scale = scales.get(step.inputs[0])
    for name in step.outputs:
        scales[name] = scale


def _check_dequant_scales(
    net: PackerGraph, scales: Mapping[str, float | None]
) -> Iterator[VerdictFinding]:
    """Yield a finding for each removed Dequant whose `scale_o` is not the scale of its input.

    Scales are compared with a relative tolerance of 1e-6; inputs of unknown scale in `scales` are
    skipped.
    """
    for node_name, tensor_name, dequant_scale in net.dequantized_outputs:
        scale = scales.get(tensor_name)
        if scale is not None and not math.isclose(dequant_scale, scale, rel_tol=1e-6):
            yield _make_refusal(
                node_name,
                "scale_o of a Dequant must be the scale of its input",
                f"{dequant_scale:g} and {scale:g}",
                "use one scale",
            )


def _check_empty_tensors(net: PackerGraph, step: PackerStep) -> Iterable[VerdictFinding]:
    """Yield a finding for each input or output of `step` whose shape has a dimension of 0.

    Names without a tensor in `net` are skipped.
    """
    for name in (*step.inputs, *step.outputs):
        shape = net.tensors[name].shape if name in net.tensors else ()
        if 0 in shape:
            yield _make_refusal(
                step.name,
                "tensors must not be empty",
                f"'{name}' of shape {list(shape)}",
                "remove the node",
            )


def _check_widths(
    net: PackerGraph, step: PackerStep, profile: PackerProfile
) -> Iterable[VerdictFinding]:
    """Yield a finding if a weight is not int8, and one if the input of an iqTanh has a wrong width.

    Only constant weights (input 1) of convolutions and LinearInt are checked; a LinearInt may have
    the wider ones of `profile`. An iqTanh needs 16 bits unless `profile` names another width.
    """
    if (
        step.op in (CONV1D.name, CONV2D.name, CONV_TRANSPOSE2D.name, LINEAR.name)
        and len(step.inputs) > 1
    ):
        weight = net.arrays.get(step.inputs[1])
        wide_weights = [f"int{bits}" for _, bits, _ in profile.wide_linear]
        widths = ["int8", *(wide_weights if step.op == LINEAR.name else [])]
        if weight is not None and weight.dtype.name not in widths:
            yield _make_refusal(
                step.name, "weights must be int8", weight.dtype.name, "store them as int8"
            )
    tanh_bits = profile.lut_input_bits.get(TANH.name, 16)
    if step.op == TANH.name and 8 * net.tensors[step.inputs[0]].width != tanh_bits:
        yield _make_refusal(
            step.name,
            f"the input of an iqTanh must have {tanh_bits} bits",
            f"{8 * net.tensors[step.inputs[0]].width}",
            "add a Requant",
        )


def _check_scales(step: PackerStep, scales: dict[str, float | None]) -> Iterable[VerdictFinding]:
    """Yield a finding for each input scale declared by `step` that differs from the tensor's scale.

    The relative tolerance is 1e-6. A tensor whose scale in `scales` is None gets the declared one,
    in place.
    """
    keys = ["scale_x", "scale_y"]
    if step.op == CONCAT.name:
        keys = [f"scale_x_{i}" for i in range(len(step.inputs))]
    for name, key in zip(step.inputs, keys, strict=False):
        declared, scale = step.get(key), scales.get(name)
        if declared is None:
            continue
        if scale is None and name in scales:
            scales[name] = float(declared)
        elif scale is not None and not math.isclose(declared, scale, rel_tol=1e-6):
            yield _make_refusal(
                step.name,
                f"{key} must be the scale of the input",
                f"{declared:g} and {scale:g}",
                "use one scale",
            )
