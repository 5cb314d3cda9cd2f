"""Differences of two models, such as two quantizations of one network: `diff`.

Compared are the settings, the scale and width of each tensor, the operators of the nodes with their
attributes and constants, sizes and the cost on the chip. With data the tensors are compared as
well: B against A, and with a float baseline both against that. Tensors are matched by the user's
names (`extract_plan`).
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np

from ..common.errors import LingerOnnxError
from ..common.escaping import escape_invisible
from ..common.json_values import to_json_value
from ..common.notebook import (
    format_summary,
    render_depth_chart,
    render_fact_table,
    render_fragment,
)
from ..common.text import format_bytes, format_decibels, format_table
from ..ir import ir
from ..ir.digests import compute_output_digest
from ..ir.name_mapping import restore_user_names
from ..ir.plan import Affine
from ..operators.chip_part import find_chip_nodes
from ..quantization import QuantizedModel
from ..quantization.lower import extract_plan
from ..runtime.data import Progress
from ..runtime.integer.runner import detect_target
from ..runtime.provenance import load_fixed_inputs, load_quantize_settings
from ..runtime.session import Session, is_integer_graph
from ..runtime.streaming import CallCount
from .check.check import check
from .compare.compare import Comparison, compare

__all__ = [
    "ChangedNode",
    "DiffModel",
    "ModelDiff",
    "ModelFacts",
    "NodeDifference",
    "SettingDifference",
    "SqnrDifference",
    "QparamsDifference",
    "diff",
    "format_chip_ready",
    "format_scale",
]

DiffModel = str | os.PathLike[str] | ir.Model | Session | QuantizedModel

#: Loss of an output's SQNR in dB, and increase of the cycles, that count as worse.
DEFAULT_MAX_LOSS_DB = 0.5
_MAX_CYCLE_FACTOR = 1.05
_MAX_ROWS = 20  # of a table on the screen
_NEGLIGIBLE_DB = 0.05


@dataclass(frozen=True)
class ModelFacts:
    """Facts about one of the two models.

    Attributes
    ----------
    name
        Name of the file, or "A" or "B" for a model in memory.
    kind
        "integer" or "float".
    platform
        Name of the platform; "" for a float model.
    operators
        Number of nodes by operator.
    integer_nodes
        Number of nodes with an integer operator.
    parameter_bytes
        Bytes of the constants; weights of 4 bits take half a byte.
    macs, shared_bytes, cycles
        Multiply-accumulates, shared memory and cycles of a call on the chip; None if unknown.
    chip_ready
        Whether the packer accepts the graph and the chip computes its integers; None for a float
        model and a platform without a packer.
    problems
        Violated limits and findings that make it not chip-ready, one line each.
    """

    name: str
    kind: str
    platform: str
    operators: Mapping[str, int]
    integer_nodes: int
    parameter_bytes: int
    macs: int | None = None
    shared_bytes: int | None = None
    cycles: float | None = None
    chip_ready: bool | None = None
    problems: Sequence[str] = ()

    @property
    def node_count(self) -> int:
        """Number of all nodes."""
        return sum(self.operators.values())


@dataclass(frozen=True)
class SettingDifference:
    """A setting of `quantize` with different values; None for the default value."""

    name: str
    a: object
    b: object


@dataclass(frozen=True)
class QparamsDifference:
    """A tensor or weight with different quantization parameters; None if only one model has it.

    Scales are counts per unit, with one scale per channel or group the lowest and the highest.
    """

    name: str
    scale_a: tuple[float, ...] | None
    scale_b: tuple[float, ...] | None
    bits_a: int | None
    bits_b: int | None
    zero_points_differ: bool = False

    @property
    def octaves(self) -> float | None:
        """log2(scale of B / scale of A), of the lowest scales; 1 is half the step.

        None if a model has none.
        """
        if self.scale_a is None or self.scale_b is None:
            return None
        return math.log2(self.scale_b[0] / self.scale_a[0])


@dataclass(frozen=True)
class NodeDifference:
    """A node with another operator, or that only one model has (None in the other)."""

    name: str
    operator_a: str | None
    operator_b: str | None


@dataclass(frozen=True)
class ChangedNode:
    """A node with the same operator in both models, but other attributes or constants.

    `attributes` are names of attributes, `constants` those of the constant inputs.
    """

    name: str
    attributes: tuple[str, ...]
    constants: tuple[str, ...]


@dataclass(frozen=True)
class SqnrDifference:
    """Agreement of a tensor in dB: B with A, and both with the baseline, or None without one."""

    name: str
    b_to_a_db: float
    a_db: float | None = None
    b_db: float | None = None

    @property
    def gain_db(self) -> float | None:
        """By how much B is closer to the baseline than A; None without a baseline."""
        if self.a_db is None or self.b_db is None or self.a_db == self.b_db:
            return None if self.a_db is None else 0.0
        return self.b_db - self.a_db


@dataclass(frozen=True)
class ModelDiff:
    """Differences of two models.

    Attributes
    ----------
    a, b
        Facts about both models.
    settings, tensors, nodes
        What differs; tensors and nodes in the order of A, then those of B alone.
    changed_nodes
        Nodes that differ in attributes or constants only, scales included, in the order of A.
    computes_the_same
        Whether all outputs are computed by the same operators with the same attributes and
        constants from inputs of the same names.
    same_tensors
        Number of quantized tensors with equal parameters.
    outputs, layers
        SQNR of the outputs, and of all tensors that both models have; empty without data.
    samples
        Number of samples that were compared.
    """

    a: ModelFacts
    b: ModelFacts
    settings: Sequence[SettingDifference] = ()
    tensors: Sequence[QparamsDifference] = ()
    nodes: Sequence[NodeDifference] = ()
    changed_nodes: Sequence[ChangedNode] = ()
    computes_the_same: bool = True
    same_tensors: int = 0
    outputs: Sequence[SqnrDifference] = ()
    layers: Sequence[SqnrDifference] = ()
    samples: int = 0
    notes: Sequence[str] = field(default=())

    def __repr__(self) -> str:
        """Return the facts that differ and what is worse as text of one screen."""
        return format_summary(f"{self.b.name} against {self.a.name}", self._list_facts())

    def _list_facts(self) -> list[tuple[str, str]]:
        """List (label, text) of the facts that differ and of what is worse."""
        facts = [(row[0], f"{row[1]} -> {row[2]}") for row in _list_facts(self.a, self.b)]
        return facts + [("worse", text) for text in self.find_regressions()]

    def _repr_html_(self) -> str:
        """Render the facts that differ and the SQNR over the layers for a notebook."""
        parts = [render_fact_table("", self._list_facts())]
        if self.has_baseline:
            lines = {
                self.a.name: [_or_nan(layer.a_db) for layer in self.layers],
                self.b.name: [_or_nan(layer.b_db) for layer in self.layers],
            }
        else:
            lines = {"B against A": [layer.b_to_a_db for layer in self.layers]}
        if self.layers:
            parts.append(render_depth_chart("SQNR over the layers", lines))
        return render_fragment(f"{self.b.name} against {self.a.name}", *parts)

    @property
    def has_baseline(self) -> bool:
        """Whether both models were also compared with a float model."""
        return any(layer.a_db is not None for layer in self.layers)

    @property
    def is_equal(self) -> bool:
        """Whether settings, scales, nodes and computations are equal, and with data all values."""
        has_differences = self.settings or self.tensors or self.nodes or self.changed_nodes
        values_differ = any(_is_difference(layer.b_to_a_db) for layer in self.layers)
        return self.computes_the_same and not (has_differences or values_differ)

    @property
    def other_difference(self) -> str:
        """A line on a difference of the computations that no list names; "" without one."""
        lists = (self.settings, self.tensors, self.nodes, self.changed_nodes)
        if self.computes_the_same or any(lists):
            return ""
        return "the nodes are connected otherwise, or inputs have other names"

    def find_regressions(self, max_loss_db: float = DEFAULT_MAX_LOSS_DB) -> list[str]:
        """List the measures in which B is worse than A, one line each: for a check of a change.

        That is: no longer chip-ready, an output whose SQNR against the baseline falls by more than
        `max_loss_db`, and cycles that rise by more than 5%.
        """
        regressions = []
        if self.a.chip_ready and self.b.chip_ready is False:
            reason = self.b.problems[0] if self.b.problems else "see lingeronnx check"
            regressions.append(f"no longer chip-ready on {self.b.platform}: {reason}")
        for output in self.outputs:
            gain_db = output.gain_db
            if gain_db is not None and gain_db < -max_loss_db:
                assert output.a_db is not None
                assert output.b_db is not None
                regressions.append(
                    f"output '{output.name}' falls from {format_decibels(output.a_db)} to "
                    f"{format_decibels(output.b_db)} (limit {max_loss_db:g} dB)"
                )
        if self.a.cycles and self.b.cycles and self.b.cycles > _MAX_CYCLE_FACTOR * self.a.cycles:
            regressions.append(f"cycles rise from {self.a.cycles:.0f} to {self.b.cycles:.0f}")
        return regressions

    def to_dict(self) -> dict[str, object]:
        """Return all differences as JSON-ready values, with `equal` and `regressions`.

        Infinite decibels become None.
        """
        tensors = [{**vars(tensor), "octaves": tensor.octaves} for tensor in self.tensors]
        body = {
            "equal": self.is_equal,
            "regressions": self.find_regressions(),
            "a": {**vars(self.a), "nodes": self.a.node_count},
            "b": {**vars(self.b), "nodes": self.b.node_count},
            "settings": self.settings,
            "tensors": tensors,
            "same_tensors": self.same_tensors,
            "nodes": self.nodes,
            "changed_nodes": self.changed_nodes,
            "computes_the_same": self.computes_the_same,
            "outputs": [_sqnr_to_dict(output) for output in self.outputs],
            "layers": [_sqnr_to_dict(layer) for layer in self.layers],
            "samples": self.samples,
            "notes": self.notes,
        }
        result: dict[str, object] = to_json_value(body)
        return result

    def lines(self, max_rows: int | None = _MAX_ROWS) -> list[str]:
        """Return the differences as text; tables have at most `max_rows` rows, None for all."""
        lines = _format_facts(self.a, self.b)
        if self.settings:
            rows = [(s.name, _format_cell(s.a), _format_cell(s.b)) for s in self.settings]
            lines += ["", "settings", *_format_rows(("setting", "A", "B"), rows, max_rows)]
        if self.tensors:
            lines += ["", f"scales and widths ({self.same_tensors} tensors have equal ones)"]
            lines += _format_tensors(self.tensors, max_rows)
        if self.nodes:
            rows = [
                (node.name, node.operator_a or "-", node.operator_b or "-") for node in self.nodes
            ]
            lines += ["", "nodes", *_format_rows(("node", "A", "B"), rows, max_rows)]
        if self.changed_nodes:
            rows = [
                (node.name, ", ".join(node.attributes) or "-", ", ".join(node.constants) or "-")
                for node in self.changed_nodes
            ]
            head = ("node with other", "attributes", "constants")
            lines += ["", *_format_rows(head, rows, max_rows)]
        if self.other_difference:
            lines += ["", self.other_difference]
        if self.layers:
            lines += _format_sqnr(self, max_rows)
        if self.is_equal:
            lines += ["", "no differences"]
        lines += [f"note: {note}" for note in self.notes]
        return [escape_invisible(line) for line in lines]


def _sqnr_to_dict(sqnr: SqnrDifference) -> dict[str, object]:
    """Return the fields of `sqnr` and its gain."""
    return {**vars(sqnr), "gain_db": sqnr.gain_db}


def diff(
    model_a: DiffModel,
    model_b: DiffModel,
    data: object = None,
    *,
    baseline: object = None,
    state: Mapping[str, str] | None = None,
    calls: CallCount | None = None,
    batch: int | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> ModelDiff:
    """Compare two models, such as two quantizations of one network.

    Parameters
    ----------
    model_a, model_b
        Integer graphs or float models: paths, graphs, sessions or results of `quantize`.
    data
        Inputs that both are run on; None compares no values.
    baseline
        A float model that both are compared with, or a tuple of one for A and one for B; needs
        `data`.
    state, calls, batch, limit, progress
        As in `compare`.

    Raises
    ------
    DataError
        If the data do not fit, or the models have no tensor in common.
    ModelError
        If a model cannot be read.
    """
    graph_a, graph_b = _get_graph(model_a), _get_graph(model_b)
    notes: list[str] = []
    facts_a = _collect_facts(graph_a, _get_name(model_a, "A"), notes)
    facts_b = _collect_facts(graph_b, _get_name(model_b, "B"), notes)
    graph_a, graph_b = restore_user_names(graph_a), restore_user_names(graph_b)
    tensors, same_count = _compare_qparams(_get_qparams(graph_a), _get_qparams(graph_b))
    outputs: list[SqnrDifference] = []
    layers: list[SqnrDifference] = []
    samples = 0
    if data is not None:
        run = {"state": state, "calls": calls, "batch": batch, "limit": limit, "progress": progress}
        between = compare(graph_a, graph_b, data, **run)  # type: ignore[arg-type]
        to_baseline: tuple[Comparison | None, ...] = (None, None)
        if baseline is not None:
            baselines = baseline if isinstance(baseline, tuple) else (baseline, baseline)
            to_baseline = tuple(
                compare(float_model, graph, data, **run)  # type: ignore[arg-type]
                for float_model, graph in zip(baselines, (graph_a, graph_b), strict=True)
            )
        samples = between.join.samples
        layers = _collect_sqnr(_get_layer_sqnr, between, *to_baseline)
        outputs = _collect_sqnr(_get_output_sqnr, between, *to_baseline)
    return ModelDiff(
        facts_a,
        facts_b,
        settings=_compare_settings(graph_a, graph_b),
        tensors=tensors,
        nodes=_compare_nodes(graph_a, graph_b),
        changed_nodes=list(_iter_changed_nodes(graph_a, graph_b)),
        computes_the_same=compute_output_digest(graph_a) == compute_output_digest(graph_b),
        same_tensors=same_count,
        outputs=outputs,
        layers=layers,
        samples=samples,
        notes=list(dict.fromkeys(notes)),
    )


def _get_graph(model: DiffModel) -> ir.Model:
    """Return the graph of a path, graph, session or quantized model."""
    if isinstance(model, QuantizedModel):
        return model.graph
    return model.model if isinstance(model, Session) else ir.as_model(model)


def _get_name(model: DiffModel, default: str) -> str:
    """Return the file name of a path, else `default`."""
    return Path(model).name if isinstance(model, str | os.PathLike) else default


# ---- facts --------------------------------------------------------------------------------------


def _collect_facts(graph: ir.Model, name: str, notes: list[str]) -> ModelFacts:
    """Collect the facts about `graph`; why some are unknown is appended to `notes`."""
    is_integer = is_integer_graph(graph)
    platform = detect_target(graph).name if is_integer else ""
    facts = {
        "name": name,
        "kind": "integer" if is_integer else "float",
        "platform": platform,
        "operators": dict(sorted(Counter(node.op_type for node in graph.graph).items())),
        "integer_nodes": len(find_chip_nodes(graph)) if is_integer else 0,
        "parameter_bytes": _count_parameter_bytes(graph),
    }
    if not is_integer:
        return ModelFacts(**facts)  # type: ignore[arg-type]
    try:
        checked = check(graph)
    except LingerOnnxError as error:
        notes.append(f"{name}: {error}")
        return ModelFacts(**facts)  # type: ignore[arg-type]
    cost, latency = checked.cost, checked.time.latency
    if latency is None and checked.time.unknown_reason:
        notes.append(checked.time.unknown_reason)
    findings = [f"{finding.rule}" for finding in checked.findings if finding.level != "plan"]
    return ModelFacts(
        **facts,  # type: ignore[arg-type]
        macs=None if cost is None else sum(cost.macs.values()),
        shared_bytes=None if cost is None else cost.shared,
        cycles=None if latency is None else latency.total,
        chip_ready=checked.sound if checked.verdicts else None,
        problems=[*map(str, checked.violations), *findings],
    )


def _count_parameter_bytes(graph: ir.Model) -> int:
    """Return the bytes of all constants of `graph`, at the width that they are stored in."""
    bits_by_weight = {}
    for node in graph.graph:
        bits = ir.get_attr(node, "parameter_bits", None)
        if isinstance(bits, int) and len(node.inputs) > 1 and node.inputs[1] is not None:
            bits_by_weight[str(node.inputs[1].name)] = bits
    total_bits = 0
    for name, value in graph.graph.initializers.items():
        array = ir.const_value(value)
        if array is not None:
            is_integer = array.dtype.kind == "i" and array.dtype.itemsize == 1
            bits = bits_by_weight.get(name, 8) if is_integer else 8 * array.dtype.itemsize
            total_bits += array.size * bits
    return -(-total_bits // 8)


# ---- differences --------------------------------------------------------------------------------


def _get_qparams(graph: ir.Model) -> Mapping[str, Affine]:
    """Return the parameters of the quantized tensors of `graph`; none of a float model."""
    return extract_plan(graph).tensors if is_integer_graph(graph) else {}


def _compare_settings(graph_a: ir.Model, graph_b: ir.Model) -> list[SettingDifference]:
    """Return the recorded settings of `quantize` that differ, fixed inputs included, by name."""
    a, b = (dict(load_quantize_settings(graph) or {}) for graph in (graph_a, graph_b))
    for settings, graph in ((a, graph_a), (b, graph_b)):
        if is_integer_graph(graph):
            settings["platform"] = detect_target(graph).name
        fixed = load_fixed_inputs(graph)
        settings |= {f"fix {name}": values for name, values in fixed.items()}
    return [
        SettingDifference(name, a.get(name), b.get(name))
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def _compare_qparams(
    a: Mapping[str, Affine], b: Mapping[str, Affine]
) -> tuple[list[QparamsDifference], int]:
    """Return the tensors whose parameters differ, and the number of those with equal ones."""
    differences, same_count = [], 0
    for name in dict.fromkeys([*a, *b]):
        first, second = a.get(name), b.get(name)
        if first is not None and second is not None and _are_equal(first, second):
            same_count += 1
            continue
        zero_points_differ = (
            first is not None
            and second is not None
            and not np.array_equal(np.unique(first.zero_points), np.unique(second.zero_points))
        )
        differences.append(
            QparamsDifference(
                name,
                _get_scale_range(first),
                _get_scale_range(second),
                None if first is None else first.bits,
                None if second is None else second.bits,
                zero_points_differ,
            )
        )
    return differences, same_count


def _are_equal(a: Affine, b: Affine) -> bool:
    """Whether two tensors have equal scales, widths and zero points."""
    return (
        a.bits == b.bits
        and a.granularity == b.granularity
        and np.array_equal(a.scales, b.scales)
        and np.array_equal(a.zero_points, b.zero_points)
    )


def _get_scale_range(qparams: Affine | None) -> tuple[float, ...] | None:
    """Return (scale,), or (lowest, highest) of several; None without parameters."""
    if qparams is None:
        return None
    low, high = float(np.min(qparams.scales)), float(np.max(qparams.scales))
    return (low,) if low == high else (low, high)


def _compare_nodes(graph_a: ir.Model, graph_b: ir.Model) -> list[NodeDifference]:
    """Return the nodes, by name, that only one graph has or whose operators differ."""
    a, b = ({str(n.name): n.op_type for n in graph.graph} for graph in (graph_a, graph_b))
    return [
        NodeDifference(name, a.get(name), b.get(name))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def _iter_changed_nodes(graph_a: ir.Model, graph_b: ir.Model) -> Iterator[ChangedNode]:
    """Yield the nodes, by name, whose operators are equal but attributes or constants are not.

    The platform that integer nodes name does not count.
    """
    nodes_b = {str(node.name): node for node in graph_b.graph}
    for node in graph_a.graph:
        other = nodes_b.get(str(node.name))
        if other is None or node.op_type != other.op_type:
            continue
        a, b = (
            {
                attribute.name: attribute.SerializeToString(deterministic=True)
                for attribute in ir.serialize_node(each).attribute
                if attribute.name != "platform_quant"  # a setting
            }
            for each in (node, other)
        )
        attributes = tuple(sorted(key for key in {*a, *b} if a.get(key) != b.get(key)))
        constants = tuple(_iter_changed_constants(node, other))
        if attributes or constants:
            yield ChangedNode(str(node.name), attributes, constants)


def _iter_changed_constants(node: ir.Node, other: ir.Node) -> Iterator[str]:
    """Yield the names of the constant inputs whose type, shape or values differ.

    An input that is constant in one of the nodes only differs too.
    """
    for values in zip_longest(node.inputs, other.inputs):
        constants = [
            (str(value.name), array)
            for value in values
            if value is not None and (array := ir.const_value(value)) is not None
        ]
        contents = {(array.dtype, array.shape, array.tobytes()) for _, array in constants}
        if constants and (len(constants) == 1 or len(contents) == 2):
            yield constants[0][0]


def _get_layer_sqnr(comparison: Comparison) -> Mapping[str, float]:
    """Return {tensor: SQNR in dB} of all compared tensors."""
    return {row.name: row.arrived.sqnr for row in comparison.rows}


def _get_output_sqnr(comparison: Comparison) -> Mapping[str, float]:
    """Return {output: SQNR in dB}."""
    return comparison.outputs


def _collect_sqnr(
    get_sqnr: object,
    between: Comparison,
    a: Comparison | None,
    b: Comparison | None,
) -> list[SqnrDifference]:
    """Return the agreement of each tensor of `between`, B with A, and of both with the baseline."""
    assert callable(get_sqnr)
    a_db = {} if a is None else get_sqnr(a)
    b_db = {} if b is None else get_sqnr(b)
    return [
        SqnrDifference(name, sqnr_db, a_db.get(name), b_db.get(name))
        for name, sqnr_db in get_sqnr(between).items()
    ]


# ---- text ---------------------------------------------------------------------------------------


def _is_difference(sqnr_db: float) -> bool:
    """Whether an SQNR is that of tensors that differ: neither infinite nor NaN."""
    return not (sqnr_db == math.inf or math.isnan(sqnr_db))


def _or_nan(value: float | None) -> float:
    """Return `value`, NaN for None."""
    return math.nan if value is None else value


def _format_facts(a: ModelFacts, b: ModelFacts) -> list[str]:
    """Format the facts about both models as a table."""
    return format_table(("", "A", "B"), _list_facts(a, b)).splitlines()


def _list_facts(a: ModelFacts, b: ModelFacts) -> list[tuple[str, str, str]]:
    """Return (label, text of A, text of B) of the facts that at least one model has."""
    rows: list[tuple[str, str, str]] = [
        ("model", a.name, b.name),
        ("platform", a.platform or "(float)", b.platform or "(float)"),
        ("nodes", str(a.node_count), str(b.node_count)),
        ("integer nodes", str(a.integer_nodes), str(b.integer_nodes)),
        ("parameters", format_bytes(a.parameter_bytes), format_bytes(b.parameter_bytes)),
        ("MACs", _format_count(a.macs, str), _format_count(b.macs, str)),
        (
            "shared memory",
            _format_count(a.shared_bytes, format_bytes),
            _format_count(b.shared_bytes, format_bytes),
        ),
        (
            "cycles",
            _format_count(a.cycles, "{:.0f}".format),
            _format_count(b.cycles, "{:.0f}".format),
        ),
        ("chip-ready", format_chip_ready(a.chip_ready), format_chip_ready(b.chip_ready)),
    ]
    return [row for row in rows if row[1:] != ("-", "-")]


def _format_count(value: float | None, format_value: object) -> str:
    """Format a number by a function, or "-" for None."""
    assert callable(format_value)
    return "-" if value is None else str(format_value(value))


def format_chip_ready(chip_ready: bool | None) -> str:
    """Format a verdict as yes or no, "-" for None."""
    if chip_ready is None:
        return "-"
    return "yes" if chip_ready else "no"


def _format_cell(value: object) -> str:
    """Format the value of a setting; None is the default."""
    return "(default)" if value is None else str(value)


def _format_rows(
    head: Sequence[str], rows: Sequence[Sequence[str]], max_rows: int | None
) -> list[str]:
    """Format a table of at most `max_rows` rows, with a line for the others."""
    shown = rows if max_rows is None else rows[:max_rows]
    lines = format_table(head, shown).splitlines()
    if len(shown) < len(rows):
        lines.append(f"... and {len(rows) - len(shown)} more; --json has all")
    return lines


def _format_tensors(tensors: Sequence[QparamsDifference], max_rows: int | None) -> list[str]:
    """Format the tensors whose parameters differ, the largest change of a scale first."""

    def sort_key(tensor: QparamsDifference) -> float:
        """Return minus the size of the change; tensors of one model come last."""
        return 0.0 if tensor.octaves is None else -abs(tensor.octaves) - 1e-9

    rows = []
    for tensor in sorted(tensors, key=sort_key):
        octaves = tensor.octaves
        rows.append(
            (
                tensor.name,
                format_scale(tensor.scale_a),
                format_scale(tensor.scale_b),
                "-" if octaves is None else f"{octaves:+.3g}",
                "-" if tensor.bits_a is None else str(tensor.bits_a),
                "-" if tensor.bits_b is None else str(tensor.bits_b),
            )
        )
    head = ("tensor", "scale A", "scale B", "octaves", "bits A", "bits B")
    return _format_rows(head, rows, max_rows)


def format_scale(scale: tuple[float, ...] | None) -> str:
    """Format a scale, or the lowest and the highest of several; "-" for None."""
    return "-" if scale is None else " to ".join(f"{value:.6g}" for value in scale)


def _format_sqnr(result: ModelDiff, max_rows: int | None) -> list[str]:
    """Format the SQNR of the outputs, and of the tensors in the order of the graph."""
    has_baseline = result.has_baseline
    head = ["tensor", "B to A"]
    if has_baseline:
        head += ["A to float", "B to float", "gain"]
    layers = [
        layer
        for layer in result.layers
        if _is_difference(layer.b_to_a_db) or abs(layer.gain_db or 0.0) > _NEGLIGIBLE_DB
    ]
    lines = ["", f"SQNR of the outputs on {result.samples} samples"]
    if result.outputs:
        lines += _format_rows(head, [_sqnr_row(s, has_baseline) for s in result.outputs], None)
    else:
        lines.append("no float output to compare")
    if layers:
        lines += ["", "SQNR of the tensors that differ"]
        lines += _format_rows(head, [_sqnr_row(s, has_baseline) for s in layers], max_rows)
    return lines


def _sqnr_row(sqnr: SqnrDifference, has_baseline: bool) -> tuple[str, ...]:
    """Return the cells of a table for one tensor."""
    values = [sqnr.b_to_a_db]
    cells = [format_decibels(value) for value in values]
    if has_baseline:
        others = (sqnr.a_db, sqnr.b_db, sqnr.gain_db)
        cells += ["-" if value is None else format_decibels(value) for value in others]
    return (sqnr.name, *cells)
