"""What of an integer graph breaks a platform's limits.

The constraints of `ops`, and `rules` of its own.
Judged as it is: scales, attributes, widths and the executor's faults. Loads no files, prints
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import ModelError
from ...flow.report import split_float_nodes
from ...formats import (
    ATTRIBUTE_RENAMES,
    DEQUANT,
    QUANT,
    REQUANT,
    Format,
    find_integer_op,
    is_quantized_domain,
    read_attributes,
)
from ...graph import ir
from ...ops import Violation, format_limit_rule, get_rule_for_integer_op
from ...plan import Affine
from ...run.integer.sizes import infer_shapes
from ...targets import Target
from .report import Check
from .rules import RULES, IntegerNode
from .violations import MOVE_NODE_REMEDY, make_violation

__all__ = ["check_integer"]


def check_integer(model: ir.Model, target: Target) -> Check:
    """Return what breaks limits of `target` in the integer graph `model`, which is left as it is."""
    model = ir.clone(model)
    for value, size in infer_shapes(model).items():
        value.shape = ir.make_shape(size)
    violations: list[Violation] = []
    known: dict[str, Affine] = {}
    integers = {
        str(v.name)
        for v in model.graph.inputs
        if v.dtype is not None and v.dtype.name in _INTEGER_TYPES
    }
    fallbacks = _float_nodes_between_integers(model, integers)
    for node in model.graph:
        name = ir.input_name(node) if node.inputs and node.inputs[0] is not None else ""
        form = find_integer_op(node)
        if form is None or not (is_quantized_domain(node) or name in integers):
            violations += _check_non_integer_node(node, target, integers, fallbacks)
            continue
        missing = [
            make_violation(
                node, f"attribute {key} is there", "it is missing", "quantize or export again"
            )
            for key in _missing_attributes(node, form, target)
        ]
        violations += missing
        lowering = get_rule_for_integer_op(form)
        leaves = (
            lowering is not None
            and lowering.allows_wide_output
            and "scale_o" not in node.attributes
        )
        if form is not DEQUANT and not leaves:
            integers.update(str(v.name) for v in node.outputs)
        try:
            integer_node = IntegerNode(node, form, read_attributes(form, node), known)
        except ModelError as error:
            if not missing:
                violations.append(
                    make_violation(
                        node, "attributes have values that make sense", str(error), "export again"
                    )
                )
            continue
        for judge in RULES:
            measured = judge(integer_node, target)
            if measured is not None:
                text, remedy = format_limit_rule(judge, target)
                violations.append(make_violation(node, text, str(measured), remedy))
        violations += _violated_limits(integer_node, target)
        if integer_node.output_qparams is not None:
            known.update({str(v.name): integer_node.output_qparams for v in node.outputs if v.name})
    if "platform" in target.node_attributes.get("", {}) and not any(
        "platform" in node.attributes for node in model.graph
    ):
        violations.append(
            make_violation(
                model.graph.node(0),
                f"some node names the chip, platform = {target.name}",
                "none does",
                "export for this platform",
            )
        )
    return Check(target.name, "integer", violations)


_INTEGER_TYPES = ("INT8", "INT16", "INT32", "UINT8")


def _violated_limits(integer_node: IntegerNode, target: Target) -> list[Violation]:
    """Return the limits of the operator that the integer node breaks.

    None where it is not all there.
    """
    lowering = get_rule_for_integer_op(integer_node.form)
    judged = (
        lowering is not None
        and target.can_run(integer_node.form.name)
        and integer_node.form.can_check_limits(integer_node.node)
    )
    return (
        lowering.find_violations(integer_node.node, target)
        if lowering is not None and judged
        else []
    )


def _missing_attributes(node: ir.Node, op_format: Format, target: Target) -> Iterator[str]:
    stated = {**node.attributes}
    known = {ATTRIBUTE_RENAMES.get(name, name) for name in stated}
    for spec in op_format.attributes:
        if spec.is_required and spec.name not in known:
            yield spec.name
    wanted = target.node_attributes.get("", {})
    modes = "quant_mode" in wanted  # which replaces platform_quant, on what has weights
    if is_quantized_domain(node) and (
        op_format not in (QUANT, DEQUANT, REQUANT) or modes and op_format is REQUANT
    ):
        lowering = get_rule_for_integer_op(op_format)
        weights = lowering is not None and lowering.scale_constraints.factor_behavior == "absorbed"
        key = "quant_mode" if modes else "platform_quant"
        if key in wanted and key not in stated and (not modes or weights or op_format is REQUANT):
            yield f"{key} ({wanted[key]})"


def _check_non_integer_node(
    node: ir.Node, target: Target, integers: set[str], fallbacks: set[str]
) -> list[Violation]:
    """Return what is wrong with a node that is no integer operator."""
    if is_quantized_domain(node):
        integers.update(str(v.name) for v in node.outputs)
        return [
            make_violation(
                node,
                f"it is an integer operator that {target.name} has",
                f"unknown operator {node.op_type}",
                "use operators the platform has",
            )
        ]
    integer_inputs = [v for v in node.inputs if v is not None and v.name in integers]
    if node.op_type == "Cast":  # of what the user feeds, as the index of an embedding
        integer_inputs = [v for v in integer_inputs if v.producer() is not None]
    read = [str(v.name) for v in integer_inputs]
    if read and node.op_type != "Constant":
        return [
            make_violation(
                node,
                "a float operator reads real numbers",
                f"it reads the integers '{read[0]}'",
                "repair the graph with fix-dequant",
            )
        ]
    if str(node.name) in fallbacks:
        return [
            make_violation(
                node,
                "no float operator stands between the first Quant and the last Dequant",
                f"{node.op_type} does",
                MOVE_NODE_REMEDY,
            )
        ]
    return []


def _float_nodes_between_integers(model: ir.Model, integers: set[str]) -> set[str]:
    """Return the float nodes with integer nodes both before and behind them."""
    whole = {id(node) for node in model.graph if is_quantized_domain(node)}
    return {entry.node for entry in split_float_nodes(model, {}, whole)[0]}
