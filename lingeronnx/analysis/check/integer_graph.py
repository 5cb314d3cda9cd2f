"""Violations of a platform's limits by an integer graph: those of lowering, and own `rules`.

The graph is judged as it is: scales, attributes, widths and the executor's faults. This module
neither loads files nor prints.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...common.errors import ModelError
from ...ir import ir
from ...ir.plan import Affine
from ...operators.integer_ops import (
    ATTRIBUTE_RENAMES,
    DEQUANT,
    REQUANT,
    Format,
    find_integer_op,
    is_quantized_domain,
    read_attributes,
)
from ...operators.lowerings import Violation, format_limit_rule, get_rule_for_integer_op
from ...quantization.report import split_float_nodes
from ...runtime.integer.sizes import infer_shapes
from ...targets import Target
from .report import Check
from .rules import MOVE_NODE_REMEDY, RULES, IntegerNode, make_violation

__all__ = ["check_integer"]


def check_integer(model: ir.Model, target: Target) -> Check:
    """Check an integer graph, which is not modified, against the limits of `target`.

    A platform whose nodes must carry the attribute `platform` gets one more violation, at the first
    node, if no node has it.
    """
    model = model.clone()
    for value, shape in infer_shapes(model).items():
        value.shape = ir.Shape(shape)
    checker = _GraphChecker(model, target)
    for node in model.graph:
        checker.check_node(node)
    violations = checker.violations
    needs_platform = "platform" in target.node_attributes.get("", {})
    if needs_platform and not any("platform" in node.attributes for node in model.graph):
        violations.append(
            make_violation(
                model.graph.node(0),
                f"a node names the chip, platform = {target.name}",
                "no node does",
                "export for this platform",
            )
        )
    return Check(target.name, "integer", violations)


class _GraphChecker:
    """Checks the nodes of an integer graph in graph order.

    Attributes
    ----------
    violations : list of Violation
        Violations so far.
    """

    def __init__(self, model: ir.Model, target: Target) -> None:
        """Note which graph inputs contain integers, and the float nodes between integer ones.

        Violations are collected later, by `check_node` for each node in graph order.
        """
        self._target = target
        self.violations: list[Violation] = []
        self._qparams: dict[str, Affine] = {}  # by tensor, as its producer writes it
        self._integers: set[str] = set()  # tensors that contain integers
        for value in model.graph.inputs:
            if value.dtype is not None and value.dtype.name in _INTEGER_TYPES:
                self._integers.add(str(value.name))
        self._fallbacks = _float_nodes_between_integers(model)

    def check_node(self, node: ir.Node) -> None:
        """Check a node, given those before it; add its violations, and note its output tensors.

        A node that is not an integer operator is checked only for reading integers as float values
        and for standing between integer nodes. Otherwise checked are missing attributes, invalid
        values (reported only if none is missing), the rules and the limits of the platform; the
        last two are skipped if the attributes cannot be read.
        """
        form = find_integer_op(node)
        if form is None or not self._is_integer_node(node):
            self.violations += _check_non_integer_node(
                node, self._target, self._integers, self._fallbacks
            )
            return
        missing = list(_missing_attributes(node, form, self._target))
        for key in missing:
            rule = f"attribute {key} is present"
            self.violations.append(
                make_violation(node, rule, "it is missing", "quantize or export again")
            )
        if form is not DEQUANT and not _has_float_output(node, form):
            self._integers.update(str(value.name) for value in node.outputs)
        try:
            attributes = read_attributes(form, node)
            integer_node = IntegerNode(node, form, attributes, self._qparams)
        except ModelError as error:
            if not missing:
                rule = "attributes have valid values"
                self.violations.append(make_violation(node, rule, str(error), "export again"))
            return
        self._check_rules(integer_node)
        self.violations += _violated_limits(integer_node, self._target)
        output_qparams = integer_node.output_qparams
        if output_qparams is not None:
            for value in node.outputs:
                if value.name:
                    self._qparams[str(value.name)] = output_qparams

    def _is_integer_node(self, node: ir.Node) -> bool:
        """Whether a node is of the quantized domain, or its first input contains integers.

        Only outputs of the nodes checked so far are known.
        """
        if is_quantized_domain(node):
            return True
        first = node.inputs[0] if node.inputs else None
        return first is not None and ir.input_name(node) in self._integers

    def _check_rules(self, integer_node: IntegerNode) -> None:
        """Append a violation for each rule for integer graphs that the node violates."""
        for rule in RULES:
            value = rule(integer_node, self._target)
            if value is not None:
                text, remedy = format_limit_rule(rule, self._target)
                self.violations.append(make_violation(integer_node.node, text, str(value), remedy))


def _has_float_output(node: ir.Node, form: Format) -> bool:
    """Whether an integer operator `form` writes the output of `node` as float values.

    It does if it allows wide outputs and the node has no attribute scale_o.
    """
    lowering = get_rule_for_integer_op(form)
    if lowering is None or not lowering.allows_wide_output:
        return False
    return "scale_o" not in node.attributes


_INTEGER_TYPES = ("INT8", "INT16", "INT32", "UINT8")


def _violated_limits(integer_node: IntegerNode, target: Target) -> list[Violation]:
    """List the limits of the target that an integer node violates; none if they cannot be checked.

    They cannot if the target does not run the operator, or the node lacks what they need.
    """
    lowering = get_rule_for_integer_op(integer_node.form)
    if lowering is None or not target.can_run(integer_node.form.name):
        return []
    if not integer_node.form.can_check_limits(integer_node.node):
        return []
    return lowering.find_violations(integer_node.node, target)


def _missing_attributes(node: ir.Node, op_format: Format, target: Target) -> Iterator[str]:
    """Yield the names of attributes that an integer node lacks: required ones, then the chip's.

    The chip's is `quant_mode` (layers with weights, and Requant) where the chip has it, else
    `platform_quant` (all but Quant, Dequant and Requant); it is yielded as "name (value)". Former
    names of attributes count as present.
    """
    attributes = set(node.attributes)
    current_names = {ATTRIBUTE_RENAMES.get(name, name) for name in attributes}
    for spec in op_format.attributes:
        if spec.is_required and spec.name not in current_names:
            yield spec.name
    chip_attributes = target.node_attributes.get("", {})
    has_quant_mode = "quant_mode" in chip_attributes
    key = "quant_mode" if has_quant_mode else "platform_quant"
    if key in attributes or key not in chip_attributes or not is_quantized_domain(node):
        return
    if has_quant_mode:  # replaces platform_quant, on layers with weights and on Requant
        is_required = op_format is REQUANT or _has_weights(op_format)
    else:
        is_required = op_format is not REQUANT and not op_format.converts_to_or_from_float
    if is_required:
        yield f"{key} ({chip_attributes[key]})"


def _has_weights(op_format: Format) -> bool:
    """Whether an integer operator is a layer with weights that absorb factors of channels.

    False for an operator without lowering rule.
    """
    lowering = get_rule_for_integer_op(op_format)
    return lowering is not None and lowering.scale_constraints.factor_behavior == "absorbed"


def _check_non_integer_node(
    node: ir.Node, target: Target, integers: set[str], fallbacks: set[str]
) -> list[Violation]:
    """Return the violation of a node that is no known integer operator, as a list of at most one.

    An unknown operator of the quantized domain is one, and its outputs are added to `integers`, the
    tensors that contain integers. So is a standard operator that reads one of `integers` (but for a
    Constant, and a Cast of a graph input), or whose name is in `fallbacks`, the float nodes between
    integer nodes.
    """
    if is_quantized_domain(node):
        integers.update(str(v.name) for v in node.outputs)
        return [
            make_violation(
                node,
                f"it is an integer operator that {target.name} has",
                f"unknown operator {node.op_type}",
                "use operators that the platform has",
            )
        ]
    integer_inputs = _integer_inputs(node, integers)
    if integer_inputs and node.op_type != "Constant":
        return [
            make_violation(
                node,
                "a float operator reads real numbers",
                f"it reads the integers '{integer_inputs[0]}'",
                "repair the graph with fix-dequant",
            )
        ]
    if str(node.name) in fallbacks:
        return [
            make_violation(
                node,
                "no float operator is between the first Quant and the last Dequant",
                f"{node.op_type} is",
                MOVE_NODE_REMEDY,
            )
        ]
    return []


def _integer_inputs(node: ir.Node, integers: set[str]) -> list[str]:
    """Return the names of a node's inputs that are in `integers`, tensors that contain integers.

    Inputs of a Cast without a producer are left out: it may read integer graph inputs.
    """
    names = []
    for value in node.inputs:
        if value is None or value.name not in integers:
            continue
        if node.op_type == "Cast" and value.producer() is None:  # such as the index of an embedding
            continue
        names.append(str(value.name))
    return names


def _float_nodes_between_integers(model: ir.Model) -> set[str]:
    """Return the names of float nodes with integer nodes both upstream and downstream.

    Integer nodes are those of the quantized domain.
    """
    quantized_ids = {id(node) for node in model.graph if is_quantized_domain(node)}
    return {entry.node for entry in split_float_nodes(model, {}, quantized_ids)[0]}
