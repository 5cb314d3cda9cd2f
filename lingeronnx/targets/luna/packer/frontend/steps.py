"""From a file's protobuf to the packer's view of it.

Quant and Dequant vanish, dead nodes go, shapes are inferred.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .....errors import ModelError
from .....formats import CONV2D, CONV_TRANSPOSE2D, DEQUANT, QUANT, find_integer_op_by_name
from .....formats.node_validation import find_invalid_attributes, min_input_count
from .... import Target
from ....verdict import VerdictFinding
from ...packer_profile import V3_ALIASES
from ..options import PackerOptions
from ..packer_graph import PackerGraph, PackerStep, PackerTensor
from .shapes import UnknownShapeError, infer_outputs

__all__ = ["parse_nodes", "read_packer_graph", "sort_topologically"]

#: Types of attributes that a node of the packer's has; a type, a sparse tensor or nothing is none.
_SUPPORTED_ATTRIBUTE_TYPES = [
    onnx.AttributeProto.AttributeType.Value(name)
    for name in ("INT", "FLOAT", "STRING", "TENSOR", "GRAPH", "INTS", "FLOATS", "STRINGS")
]


def parse_nodes(graph: onnx.GraphProto) -> list[PackerStep]:
    """Return the nodes as they stand in the file, absent inputs left out.

    Constant nodes are none.
    """
    steps = []
    for node in graph.node:
        if node.op_type == "Constant":
            continue
        attributes = {
            V3_ALIASES.get(a.name, a.name): _decode_attribute(helper.get_attribute_value(a))
            for a in node.attribute
            if a.type in _SUPPORTED_ATTRIBUTE_TYPES
        }
        name = node.name or f"{node.op_type}_{node.output[0] if node.output else ''}"
        operator, inputs = (
            V3_ALIASES.get(node.op_type, node.op_type),
            tuple(i for i in node.input if i),
        )
        steps.append(PackerStep(operator, name, inputs, tuple(node.output), attributes, name))
    return steps


def _decode_attribute(value: Any) -> Any:  # noqa: ANN401 - of any attribute
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return [_decode_attribute(each) for each in value] if isinstance(value, list | tuple) else value


def _find_malformed_nodes(steps: Sequence[PackerStep]) -> Iterator[VerdictFinding]:
    """Yield the nodes that lack an input, and attributes of another kind.

    Nothing else can be said of these.
    """
    for step in steps:
        form = find_integer_op_by_name(step.op)
        for name, shown, wanted in (
            [] if form is None else find_invalid_attributes(form, step.attributes)
        ):
            yield VerdictFinding(
                "packs",
                step.name,
                f"its attribute {name} is {wanted}",
                shown,
                "the file is damaged; write it again",
            )
        needed = 0 if form is None or not form.domain else min_input_count(form)
        if len(step.inputs) < needed or not step.outputs:
            yield VerdictFinding(
                "packs",
                step.name,
                f"a node has an output and the {needed} inputs that it needs",
                f"{len(step.inputs)} inputs and {len(step.outputs)} outputs",
                "the file is damaged; write it again",
            )


def _read_constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    arrays = {i.name: _array(i, i.name) for i in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.output:
            value = helper.get_attribute_value(node.attribute[0])
            is_tensor = isinstance(value, onnx.TensorProto)
            arrays[node.output[0]] = (
                _array(value, node.output[0]) if is_tensor else np.asarray(value)
            )
    return arrays


def _array(tensor: onnx.TensorProto, name: str) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor)
    except Exception as error:  # onnx raises several kinds
        raise ModelError(
            f"constant '{name}' has not the bytes of its type and sizes; the file is damaged"
        ) from error


def read_packer_graph(
    proto: onnx.ModelProto, target: Target, options: PackerOptions
) -> tuple[PackerGraph | None, list[VerdictFinding]]:
    """Return the packer's view, or None with what makes it impossible."""
    graph, arrays = proto.graph, _read_constants(proto.graph)
    steps = parse_nodes(graph)
    problems = list(_find_malformed_nodes(steps))
    if problems:
        return None, problems
    tensors: dict[str, PackerTensor] = {}
    for value in graph.input:
        if value.name not in arrays:
            tensors[value.name] = _make_input_tensor(value, options, problems)
    inputs = list(tensors)
    for name, array in arrays.items():
        tensors[name] = PackerTensor(name, tuple(array.shape), array.dtype.itemsize, True)
    kept, alias = _fold_quant_nodes(
        _fuse_activations(steps, {value.name for value in graph.output}), tensors, arrays, problems
    )
    outputs = list(dict.fromkeys(alias.get(value.name, value.name) for value in graph.output))
    results = [
        (s.name, alias[s.outputs[0]], float(s.get("scale_o")))
        for s in steps
        if s.op == DEQUANT.name and s.outputs[0] in alias and s.get("scale_o") is not None
    ]
    net = PackerGraph(kept, inputs, outputs, tensors, arrays, results)
    problems += _sort_reachable_steps(net)
    if problems:
        return None, problems
    problems += infer_tensors(net)
    return (None if problems else net), problems


def _make_input_tensor(
    value: onnx.ValueInfoProto, options: PackerOptions, problems: list[VerdictFinding]
) -> PackerTensor:
    """Return a graph input as declared, symbols replaced by what -c says."""
    kind = value.type.tensor_type
    shape = []
    for dim in kind.shape.dim:
        size = (
            dim.dim_value
            if dim.HasField("dim_value")
            else options.symbol_sizes.get(dim.dim_param, 0)
        )
        if size < 1:
            problems.append(
                VerdictFinding(
                    "packs",
                    value.name,
                    "every dimension of a graph input is a number, or is given by -c",
                    f"'{dim.dim_param}'",
                    "write the size into the file",
                )
            )
        shape.append(max(size, 1))
    width = helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize if kind.elem_type else 1
    return PackerTensor(value.name, tuple(shape), width)


def _fuse_activations(steps: list[PackerStep], outputs: set[str]) -> list[PackerStep]:
    """Let a convolution of two axes whose only reader is a Relu, Prelu or Clip take it in.

    Behind a line it stays.
    """
    readers: dict[str, list[PackerStep]] = {}
    for step in steps:
        for name in step.inputs:
            readers.setdefault(name, []).append(step)
    gone: set[str] = set()
    fused = []
    for step in steps:
        if step.outputs and step.outputs[0] in gone:
            continue
        after = readers.get(step.outputs[0], []) if step.outputs else []
        if (
            step.op in (CONV2D.name, CONV_TRANSPOSE2D.name)
            and len(after) == 1
            and after[0].op in ("Relu", "Prelu", "Clip")
            and step.outputs[0] not in outputs
        ):
            gone.add(after[0].outputs[0])
            step = step.with_changes(outputs=after[0].outputs)
        fused.append(step)
    return fused


#: Float operators through which the packer follows a Quant to the graph input.
_TRANSPARENT_FLOAT_OPERATORS = (
    "Reshape",
    "Transpose",
    "Slice",
    "Gather",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
)


def _fold_quant_nodes(
    steps: list[PackerStep],
    tensors: dict[str, PackerTensor],
    arrays: Mapping[str, np.ndarray],
    problems: list[VerdictFinding],
) -> tuple[list[PackerStep], dict[str, str]]:
    """Take out Quant and Dequant: return the other steps and what names stand for now.

    Inputs become integers.
    """
    alias: dict[str, str] = {}
    kept: list[PackerStep] = []
    folded: set[str] = set()  # what Quants that vanish stand for
    makers = {name: step for step in steps for name in step.outputs}
    read_names = {name for step in steps for name in step.inputs}
    for step in steps:
        source = tuple(alias.get(n, n) for n in step.inputs)
        if step.op not in (QUANT.name, DEQUANT.name) or not source or not step.outputs:
            problems += [
                _make_duplicate_input_finding(step, n)
                for n in dict.fromkeys(source)
                if n in folded and source.count(n) > 1
            ]
            kept.append(step.with_changes(inputs=source))
            continue
        root = source[0]
        while root in makers and makers[root].op in _TRANSPARENT_FLOAT_OPERATORS:
            root = alias.get(makers[root].inputs[0], makers[root].inputs[0])
        if (
            step.op == QUANT.name
            and root in makers
            or step.op == DEQUANT.name
            and step.outputs[0] in read_names
        ):
            kept.append(
                step.with_changes(inputs=source)
            )  # between the integers they stay, as nodes in float
            continue
        alias[step.outputs[0]] = source[0]
        if step.op == QUANT.name:
            folded.add(source[0])
            scale = step.get("scale_x")
            if root in tensors and not tensors[root].is_constant and scale is not None:
                old = tensors[root]
                if old.scale is not None and old.scale != scale:
                    problems.append(
                        VerdictFinding(
                            "packs",
                            step.name,
                            "all Quant of one graph input have one scale",
                            f"{old.scale:g} and {scale:g}",
                            "use one scale",
                        )
                    )
                tensors[root] = PackerTensor(
                    root, old.shape, int(step.get("data_bits", 8)) // 8 or 1, scale=float(scale)
                )
    return kept, alias


def _make_duplicate_input_finding(step: PackerStep, name: str) -> VerdictFinding:
    rule, value = "no node reads a quantized graph input in two of its operands", f"'{name}'"
    return VerdictFinding(
        "packs", step.name, rule, value, "let a node in between copy it for one operand"
    )


def _sort_reachable_steps(net: PackerGraph) -> list[VerdictFinding]:
    """Keep the steps that outputs depend on, depth first from the first output, inputs left to right."""
    makers = {name: step for step in net.steps for name in step.outputs}
    missing = [n for n in net.outputs if n not in makers and n not in net.tensors]
    net.steps = sort_topologically(net.steps, net.outputs)
    read_names = {n for step in net.steps for n in step.inputs}
    missing += [n for n in read_names if n not in makers and n not in net.tensors]
    return [
        VerdictFinding(
            "packs",
            n,
            "every tensor that is read is written by a node, or is a graph input or a constant",
            f"'{n}'",
            "correct the graph",
        )
        for n in missing
    ]


def sort_topologically(steps: list[PackerStep], outputs: list[str]) -> list[PackerStep]:
    """Return the steps depth first from the outputs, inputs left to right.

    Dead ones are left out.
    """
    makers = {name: step for step in steps for name in step.outputs}
    order: list[PackerStep] = []
    visited: set[int] = set()
    for output in outputs:
        stack = [(makers[output], False)] if output in makers else []
        while stack:
            step, done = stack.pop()
            if done:
                order.append(step)
            elif id(step) not in visited:
                visited.add(id(step))
                stack.append((step, True))
                stack += [
                    (makers[n], False)
                    for n in reversed(step.inputs)
                    if n in makers and id(makers[n]) not in visited
                ]
    return order


def infer_tensors(net: PackerGraph) -> list[VerdictFinding]:
    """Fill in the tensors that steps write; return what does not fit."""
    for step in net.steps:
        try:
            outputs = infer_outputs(step, [net.tensors[n] for n in step.inputs], net.arrays)
        except UnknownShapeError as error:
            return [
                VerdictFinding(
                    "packs",
                    step.name,
                    "the shapes of a node's inputs fit",
                    str(error),
                    "correct the graph",
                )
            ]
        except (IndexError, KeyError, TypeError, ValueError, ArithmeticError):
            return [
                VerdictFinding(
                    "packs",
                    step.name,
                    "the shapes of a node's inputs fit its attributes",
                    "they do not",
                    "correct the graph",
                )
            ]
        for tensor in outputs:
            net.tensors[tensor.name] = tensor
    return []
