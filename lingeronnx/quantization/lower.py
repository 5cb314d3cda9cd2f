"""Lowering: turn a normalized float graph and a plan into the integer graph, and read a plan back.

The attributes of the integer graph (`thinker` format) contain every scale: `extract_plan` reads the
plan from them. `lower` returns which float tensor each integer tensor represents;
`map_to_float_names` reads it from a file. Names have no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..common.errors import ConfigError, ModelError
from ..ir import ir
from ..ir.attributes import AttributeValue, get_number
from ..ir.plan import Affine, Plan, Transform
from ..ir.plan.synthetic_calibration import is_synthetic
from ..operators.integer_ops import (
    REQUANT,
    Format,
    find_integer_op,
    is_quantized_domain,
    read_attributes,
)
from ..operators.lowering_context import LoweringContext, LoweringResult
from ..runtime.provenance import load_quantize_settings, map_to_float_names
from ..targets import DEFAULT, Target
from .partition import Partition

__all__ = ["check_zero_points", "extract_plan", "lower"]


def lower(partition: Partition, plan: Plan, target: Target) -> LoweringResult:
    """Return the integer graph of the normalized float graph of `partition` under `plan`.

    Does not modify the float graph.

    Raises
    ------
    ModelError
        If the plan lacks a tensor.
    ConfigError
        If an operator does not support a zero point of the plan.
    """
    check_zero_points(plan, partition, target)
    return LoweringContext(partition.graph, plan, target, partition.ops).run()


def check_zero_points(plan: Plan, partition: Partition, target: Target) -> None:
    """Raise ConfigError if `plan` has a zero point that is not supported for its tensor.

    Supported are activations of up to 8 bits whose operators allow one; weights and others must
    have 0.
    """
    shifted = {name: qparams for name, qparams in plan.tensors.items() if qparams.shifted}
    if not shifted:
        return
    symmetric, activations = partition.symmetric_tensors(target), set(partition.activations)
    for name, qparams in shifted.items():
        subject = symmetric.get(name)
        if name not in activations:
            subject = "a weight"
        elif qparams.bits > 8:
            subject = f"a {qparams.bits}-bit tensor"
        if subject is not None:
            raise ConfigError(
                f"the plan has zero point {int(qparams.zero_points.max())} for '{name}'; {subject} "
                "supports 0 only"
            )


def extract_plan(graph: ir.Model) -> Plan:
    """Read the plan back from the attributes of an integer graph.

    The mode is q-value if all scales are powers of two, else max-value; nodes outside the integer
    operators are float nodes, with the reason "float in the file". Platform and settings come from
    the metadata; DEFAULT's name without any.
    """
    tensors = _read_qparams(graph)
    is_power_of_two = all(qparams.power_of_two for qparams in tensors.values())
    float_nodes = [str(node.name) for node in graph.graph if find_integer_op(node) is None]
    return Plan(
        platform=graph.metadata_props.get("lingeronnx.platform", DEFAULT.name),
        mode="q-value" if is_power_of_two else "max-value",
        tensors=tensors,
        transforms=_read_transforms(graph),
        floats=dict.fromkeys(float_nodes, "float in the file"),
        synthetic=is_synthetic(graph),
        settings=load_quantize_settings(graph),
    )


def _read_qparams(graph: ir.Model) -> dict[str, Affine]:
    """Read the parameters of all tensors and weights, by the names of the float graph.

    The output of a Requant is not in the result, but its parameters pass on to the nodes that read
    it. Nodes outside the quantized domains count if their data input has parameters.
    """
    float_names = map_to_float_names(graph)
    tensors: dict[str, Affine] = {}
    integer_tensors: dict[str, Affine] = {}  # by the names of the integer graph
    for node in graph.graph:
        op_format = find_integer_op(node)
        data = node.inputs[0] if node.inputs else None
        data_qparams = None if data is None else integer_tensors.get(str(data.name))
        if op_format is None or not (is_quantized_domain(node) or data_qparams is not None):
            continue
        attrs = read_attributes(op_format, node)
        output_qparams = op_format.output_qparams(attrs, [data_qparams])
        if output_qparams is not None:
            default_bits = 8 if data_qparams is None else data_qparams.bits
            name = ir.output_name(node)
            qparams = output_qparams.changed(bits=op_format.bits(attrs) or default_bits)
            integer_tensors[name] = qparams
            if op_format is not REQUANT:
                tensors[float_names.get(name, name)] = qparams
        tensors.update(_read_constant_qparams(node, op_format, attrs))
    return tensors


def _read_constant_qparams(
    node: ir.Node, op_format: Format, attrs: Mapping[str, AttributeValue]
) -> dict[str, Affine]:
    """Read the parameters of the weights and constant operands of a node, by initializer name.

    A constant second operand has the scale `scale_y` and the width of its dtype.
    """
    constants = {}
    for key, index in op_format.weight_scales.items():
        if key in attrs and index < len(node.inputs) and node.inputs[index] is not None:
            constants[ir.input_name(node, index)] = op_format.weight_qparams(attrs, node, key)
    if "scale_y" in attrs and len(node.inputs) > 1:
        operand = ir.const_value(node.inputs[1])
        if operand is not None:
            bits = 8 * operand.dtype.itemsize
            constants[ir.input_name(node, 1)] = Affine(get_number(attrs, "scale_y"), bits)
    return constants


def _read_transforms(graph: ir.Model) -> dict[str, Transform]:
    """Read {tensor: transform} of the plan from the metadata; ModelError if it is malformed."""
    stored = ir.read_json_metadata(graph, "lingeronnx.transforms")
    try:
        return {name: Transform(tuple(_parse_factors(entry))) for name, entry in stored.items()}
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            "the metadata 'lingeronnx.transforms' are malformed; quantize again"
        ) from error


def _parse_factors(entry: list[Any]) -> list[float]:
    """Return the factors of a transform; older files store a list of them and an offset of 0."""
    return entry[0] if isinstance(entry[0], list) else entry
