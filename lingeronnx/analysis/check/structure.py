"""The structure of a model and of its integer form, in five parts, with suspicious places.

    1  patterns that a pass could fuse or simplify, and why it did not
    2  how often each layer and each weight is used: 1 is usual, 0 unused, more shared
    3  each operator's output: data types in and out, channel axis, observer of its scale, range on
       the data
    4  each weight: data type, channel axis, observer of its scale
    5  suspicions (`suspicions`), each with a measurement, its limit and a remedy

The structure is that of a float model under its plan (`describe_model`), or of an integer graph
according to its attributes (`describe_integer_graph`). Nothing is run. This module knows graphs and
plans; limits of the packer and the chip belong to `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.deprecation import keep_old_members
from ...common.text import format_table
from ...ir import ir
from ...ir.plan import Affine, Plan
from ...operators.integer_ops import BATCH_NORM2D, DEQUANT, QUANT, REQUANT, find_integer_op
from ...operators.lowerings import Violation
from ...quantization import QuantizedModel
from ...quantization.lower import extract_plan
from ...quantization.scales import ScalePolicy
from .suspicions import LIMIT_KIND, Suspicion, find_graph_suspicions, find_model_suspicions

__all__ = ["RESULT_FILE", "Structure", "count_uses", "describe_integer_graph", "describe_model"]

#: Name of the file with the structure.
RESULT_FILE = "model_check_result.txt"

_UNFUSED_COLUMNS = ("name", "type", "why it stays")
_USE_COLUMNS = ("name", "type", "used")
_OUTPUT_COLUMNS = (
    "name",
    "type",
    "input dtype",
    "output dtype",
    "channel axis",
    "observer",
    "scale",
    "min",
    "max",
)
_WEIGHT_COLUMNS = ("name", "type", "weight dtype", "channel axis", "observer", "scale")
_SUSPICION_COLUMNS = ("name", "kind", "measured", "limit", "remedy")


@keep_old_members("0.3", used="use_counts")
@dataclass(frozen=True)
class Structure:
    """The five parts of a model's structure; rows are tuples of texts."""

    unfused: Sequence[tuple[str, ...]]
    use_counts: Sequence[tuple[str, ...]]
    outputs: Sequence[tuple[str, ...]]
    weights: Sequence[tuple[str, ...]]
    suspicions: Sequence[Suspicion]

    def text(self) -> str:
        """Return all five parts as the text of `model_check_result.txt`, numbered tables.

        A part without rows is "none".
        """
        suspicions = [(s.layer, s.kind, s.measured, s.limit, s.remedy) for s in self.suspicions]
        sections = (
            ("Fusable patterns left unfused", _UNFUSED_COLUMNS, self.unfused),
            (
                "Layers and weights: how often each is used (1 is usual, 0 unused, more shared)",
                _USE_COLUMNS,
                self.use_counts,
            ),
            ("Outputs: how each operator's output is stored", _OUTPUT_COLUMNS, self.outputs),
            ("Weights: how each is stored", _WEIGHT_COLUMNS, self.weights),
            ("What looks wrong", _SUSPICION_COLUMNS, suspicions),
        )
        texts = []
        for number, (title, head, rows) in enumerate(sections, 1):
            table = format_table(head, rows) if rows else "none\n"
            texts.append(f"{number}. {title}\n{table}")
        return "\n".join(texts)

    def lines(self) -> list[str]:
        """Return a line for each suspicion and for each use count that is not 1.

        Suspicions that are violated limits are left out, because `check` reports them.
        """
        lines = [str(s) for s in self.suspicions if s.kind != LIMIT_KIND]
        for name, kind, count in self.use_counts:
            if count != "1":
                lines.append(f"{kind} {name}: used {count} times")
        return lines

    def to_dict(self) -> dict[str, object]:
        """Return the five parts as JSON-ready values: a list of {column: text} for each part."""

        def to_dicts(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[dict[str, str]]:
            """Return each row as a dict with the column names `head` as keys."""
            return [dict(zip(head, row, strict=True)) for row in rows]

        return {
            "unfused": to_dicts(_UNFUSED_COLUMNS, self.unfused),
            "used": to_dicts(_USE_COLUMNS, self.use_counts),
            "outputs": to_dicts(_OUTPUT_COLUMNS, self.outputs),
            "weights": to_dicts(_WEIGHT_COLUMNS, self.weights),
            "looks_wrong": [vars(s) for s in self.suspicions],
        }


# ---- part 2: use counts ---------------------------------------------------------------------


def count_uses(model: ir.Model) -> list[tuple[str, str, str]]:
    """Return (name, type, count) of the inputs, weights and layers of a model, in this order.

    For inputs and weights the uses by live nodes count; a layer has 1 if a graph output depends on
    it, else 0. Counts are texts.
    """
    rows: list[tuple[str, str, str]] = []
    live_ids = _live_node_ids(model)
    for value in model.graph.inputs:
        if value.const_value is None:
            rows.append((str(value.name), "input", str(_count_live_consumers(value, live_ids))))
    for name, value in model.graph.initializers.items():
        if _is_weight(ir.const_value(value)):
            rows.append((str(name), "weight", str(_count_live_consumers(value, live_ids))))
    for node in model.graph:
        if node.op_type != "Constant" or node.domain:
            rows.append((str(node.name), node.op_type, str(int(id(node) in live_ids))))
    return rows


def _is_weight(array: np.ndarray | None) -> bool:
    """Whether a constant is a weight: signed integers or floats below 8 bytes, with an axis.

    Scalars, int64, float64 and None are none.
    """
    if array is None or not array.ndim:
        return False
    return array.dtype.kind in "fi" and array.dtype.itemsize < 8


def _live_node_ids(model: ir.Model) -> set[int]:
    """Return the `id()` of each node on which a graph output depends.

    Nodes in subgraphs are not listed, but the producers of the tensors that they read are.
    """
    live_ids: set[int] = set()
    pending = [ir.producer(value) for value in model.graph.outputs]
    while pending:
        node = pending.pop()
        if node is None or id(node) in live_ids:
            continue
        live_ids.add(id(node))
        pending += [ir.producer(value) for value in node.inputs]
        for attribute in node.attributes.values():
            for subgraph in ir.get_subgraphs(attribute):
                for inner in subgraph.all_nodes():
                    pending += [ir.producer(value) for value in inner.inputs]
    return live_ids


def _count_live_consumers(value: ir.Value, live_ids: set[int]) -> int:
    """Count the uses of a value by nodes whose `id()` is in `live_ids`, or in subgraphs."""
    return sum(
        id(use.node) in live_ids or use.node.graph is not value.graph for use in value.uses()
    )


# ---- parts 3 and 4: stored tensors ----------------------------------------------------------


def _dtype_name(qparams: Affine | None) -> str:
    """Return the data type of a stored tensor: "int8" for 8 bits, "float32" without parameters."""
    return "float32" if qparams is None else f"int{qparams.bits}"


def _format_scale(qparams: Affine | None) -> str:
    """Format a scale in integer steps per unit; of several per channel, their range "LOW to HIGH".

    "-" without parameters, i.e. for a float tensor.
    """
    if qparams is None:
        return "-"
    if qparams.single:
        return qparams.text
    return f"{qparams.scales.min():g} to {qparams.scales.max():g}"


def _make_observer_lookup(policy: ScalePolicy | None) -> Callable[[str, Affine | None], str]:
    """Make a function (tensor name, its parameters) -> text that says how the scale was chosen.

    The text is "-" without parameters, "the plan's" without a policy, "fixed" for a scale that the
    user gave, else the calibrator, with its percentile.
    """

    def describe(name: str, qparams: Affine | None) -> str:
        """Describe how the scale of tensor `name` was chosen; "-" without parameters (float).

        "the plan's" without a policy, "fixed" for a scale that the user gave, else the calibrator.
        """
        if qparams is None:
            return "-"
        if policy is None:
            return "the plan's"
        setting = policy.policy_for_tensors([name], qparams.bits)
        if setting.scale is not None:
            return "fixed"
        if setting.calibrator == "percentile":
            return f"percentile {setting.percentile:g}"
        return setting.calibrator

    return describe


@dataclass(frozen=True)
class _StoredTensors:
    """How the tensors of a graph are stored.

    Parameters
    ----------
    plan
        The plan.
    observer
        Describes how the scale of a tensor was chosen, from its name and parameters.
    user_names
        Name in the plan by tensor of the graph.
    ranges
        Range on the data by name in the plan.
    is_float
        Whether a node reads or writes a tensor as float values.
    """

    plan: Plan
    observer: Callable[[str, Affine | None], str]
    user_names: Mapping[str, str]
    ranges: Mapping[str, tuple[float, float]]
    is_float: Callable[[ir.Node, ir.Value], bool]

    def user_name(self, value: ir.Value) -> str:
        """Return the name in the plan of the tensor that a value of the graph represents."""
        return self.user_names.get(str(value.name), str(value.name))

    def qparams_at(self, node: ir.Node, value: ir.Value | None) -> Affine | None:
        """Return the quantization parameters of a tensor as `node` reads or writes it.

        None if it is float there, for an absent value, and for a tensor that the plan lacks.
        """
        if value is None or self.is_float(node, value):
            return None
        return self.plan.tensors.get(self.user_name(value))


def _output_and_weight_rows(
    graph: ir.Model, stored: _StoredTensors
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the rows of the tables of outputs (part 3) and of weights (part 4), in graph order.

    Constant nodes are skipped.
    """
    outputs: list[tuple[str, ...]] = []
    weights: list[tuple[str, ...]] = []
    for node in graph.graph:
        if node.op_type != "Constant" or node.domain:
            outputs += _iter_output_rows(node, stored)
            weights += _iter_weight_rows(node, stored)
    return outputs, weights


def _iter_output_rows(node: ir.Node, stored: _StoredTensors) -> Iterator[tuple[str, ...]]:
    """Yield a row of text cells for each named output of a node.

    The cells are node, operator, type of the first input that is not constant, type, channel axis,
    observer (how the scale was chosen), scale, and the lowest and highest calibrated value ("-" if
    not calibrated). `stored` is how tensors are stored and named.
    """
    data = next((v for v in node.inputs if v is not None and ir.const_value(v) is None), None)
    for value in node.outputs:
        if not value.name:
            continue
        name, q = stored.user_name(value), stored.qparams_at(node, value)
        low, high = "-", "-"
        if name in stored.ranges:
            low, high = (f"{bound:g}" for bound in stored.ranges[name])
        yield (
            str(node.name),
            node.op_type,
            _dtype_name(stored.qparams_at(node, data)),
            _dtype_name(q),
            _format_channel_axis(q),
            stored.observer(name, q),
            _format_scale(q),
            low,
            high,
        )


def _iter_weight_rows(node: ir.Node, stored: _StoredTensors) -> Iterator[tuple[str, ...]]:
    """Yield a row of text cells for each constant input of a node that the plan quantizes.

    The cells are node, operator, type, channel axis, observer and scale.
    """
    for value in node.inputs:
        if value is None or ir.const_value(value) is None:
            continue
        q = stored.plan.tensors.get(stored.user_name(value))
        if q is None:
            continue
        yield (
            str(node.name),
            node.op_type,
            _dtype_name(q),
            _format_channel_axis(q),
            stored.observer(str(value.name), q),
            _format_scale(q),
        )


def _format_channel_axis(qparams: Affine | None) -> str:
    """Return the axis of scales per channel as text; "-" for one scale and for float."""
    return "-" if qparams is None or qparams.axis is None else str(qparams.axis)


# ---- float models and integer graphs --------------------------------------------------------


def describe_model(
    result: QuantizedModel, original: ir.Model | None = None, violations: Sequence[Violation] = ()
) -> Structure:
    """Describe the structure of a quantized float model.

    Parameters
    ----------
    result
        The quantized model.
    original
        The user's graph, for part 2; None for the normalized one.
    violations
        Violated limits.
    """
    unfused = [(reason.name, reason.kind, reason.explanation) for reason in result.reasons]
    floats = result.plan.floats
    stored = _StoredTensors(
        result.plan,
        _make_observer_lookup(result.basis.policy),
        {},
        result.ranges,
        lambda node, _: str(node.name) in floats,
    )
    outputs, weights = _output_and_weight_rows(result.float_graph, stored)
    return Structure(
        unfused,
        count_uses(result.float_graph if original is None else original),
        outputs,
        weights,
        find_model_suspicions(result, violations),
    )


def describe_integer_graph(
    graph: ir.Model, user_names: Mapping[str, str], violations: Sequence[Violation] = ()
) -> Structure:
    """Describe the structure of an integer graph.

    Parameters
    ----------
    graph
        The integer graph.
    user_names
        Float tensor by the integer tensor that represents it.
    violations
        Violated limits.
    """
    floats = set(user_names.values()) - user_names.keys()
    stored = _StoredTensors(
        extract_plan(graph),
        lambda _, q: "-" if q is None else "the file's",
        user_names,
        {},
        lambda _, value: str(value.name) in floats,
    )
    outputs, weights = _output_and_weight_rows(graph, stored)
    return Structure(
        _find_fusable_pairs(graph),
        count_uses(graph),
        outputs,
        weights,
        find_graph_suspicions(graph, violations),
    )


def _find_fusable_pairs(graph: ir.Model) -> list[tuple[str, ...]]:
    """Return (node, type, reason) of integer nodes that could be merged with the one upstream.

    These are a Quant behind a Dequant, a Requant behind a Requant, and a BatchNorm that alone reads
    an operator with channels.
    """
    pairs: list[tuple[str, ...]] = []
    for node in graph.graph:
        producer = ir.producer(node.inputs[0]) if node.inputs else None
        if producer is not None:
            reason = _explain_fusable(node, producer)
            if reason:
                pairs.append((str(node.name), node.op_type, reason))
    return pairs


def _explain_fusable(node: ir.Node, producer: ir.Node) -> str:
    """Explain how a node could be merged with the producer of its first input, or return "".

    These are a Quant behind a Dequant, a Requant behind a Requant, and a BatchNorm that alone
    reads an operator with channels.
    """
    op, producer_op = find_integer_op(node), find_integer_op(producer)
    if op is None or producer_op is None:
        return ""
    if op is QUANT and producer_op is DEQUANT:
        return f"it quantizes the output of the Dequant {producer.name}: use one Requant"
    if op is producer_op is REQUANT:
        return f"it follows the Requant {producer.name}: use one Requant"
    is_only_consumer = ir.sole_consumer(ir.require_input(node)) is node
    if op is BATCH_NORM2D and producer_op.channel_axis is not None and is_only_consumer:
        return f"it is the only consumer of {producer.name}: fold it into the weights"
    return ""
