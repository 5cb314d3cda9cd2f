"""The structure of a model as it will be held in integers, in five parts, and what of it looks wrong.

    1  patterns that a pass would fuse or simplify, and why it did not
    2  how often each layer and each weight is used: 1 is usual, 0 unused, more shared
    3  each operator's output: types in and out, channel axis, how its scale was chosen, range on
    the data 4  each weight: type, channel axis, how its scale was chosen
    5  what looks wrong (`suspicions`), each with its measure, its limit and a remedy

Of a float model under its plan (`describe_model`), or of an integer graph as its attributes say
(`describe_integer_graph`). Looks, runs nothing. Knows graphs and plans; the packer's and the chip's
limits are `check`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...flow import QuantizedModel
from ...flow.assign import ScalePolicy
from ...flow.lower import extract_plan
from ...formats import BATCH_NORM2D, DEQUANT, QUANT, REQUANT, find_integer_op
from ...graph import ir
from ...ops import Violation
from ...plan import Affine, Plan
from ..text import format_table
from .suspicions import LIMIT_KIND, Suspicion, find_graph_suspicions, find_model_suspicions

__all__ = ["RESULT_FILE", "Structure", "count_uses", "describe_integer_graph", "describe_model"]

#: The file that the check writes.
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


@dataclass(frozen=True)
class Structure:
    """The five parts; rows are tuples of texts."""

    unfused: Sequence[tuple[str, ...]]
    use_counts: Sequence[tuple[str, ...]]
    outputs: Sequence[tuple[str, ...]]
    weights: Sequence[tuple[str, ...]]
    suspicions: Sequence[Suspicion]

    def text(self) -> str:
        """Return all five parts, as `model_check_result.txt` has them."""
        wrong = [(s.layer, s.kind, s.measured, s.limit, s.remedy) for s in self.suspicions]
        parts = (
            ("Fusable patterns left unfused", _UNFUSED_COLUMNS, self.unfused),
            (
                "Layers and weights: how often each is used (1 is usual, 0 unused, more shared)",
                _USE_COLUMNS,
                self.use_counts,
            ),
            ("Outputs: how each operator's output is held", _OUTPUT_COLUMNS, self.outputs),
            ("Weights: how each is held", _WEIGHT_COLUMNS, self.weights),
            ("What looks wrong", _SUSPICION_COLUMNS, wrong),
        )
        return "\n".join(
            f"{number}. {title}\n{format_table(head, rows) if rows else 'none' + chr(10)}"
            for number, (title, head, rows) in enumerate(parts, 1)
        )

    def lines(self) -> list[str]:
        """Return what looks wrong but for broken limits, a line each.

        And what is used more than once or not at all.
        """
        odd = [
            f"{kind} {name}: used {times} times"
            for name, kind, times in self.use_counts
            if times != "1"
        ]
        return [*(str(s) for s in self.suspicions if s.kind != LIMIT_KIND), *odd]

    def to_dict(self) -> dict[str, object]:
        """Return the structure as JSON-ready values."""

        def rows(head: Sequence[str], part: Sequence[tuple[str, ...]]) -> list[dict[str, str]]:
            return [dict(zip(head, row, strict=True)) for row in part]

        return {
            "unfused": rows(_UNFUSED_COLUMNS, self.unfused),
            "used": rows(_USE_COLUMNS, self.use_counts),
            "outputs": rows(_OUTPUT_COLUMNS, self.outputs),
            "weights": rows(_WEIGHT_COLUMNS, self.weights),
            "looks_wrong": [vars(s) for s in self.suspicions],
        }


# ---- 2: who is used how often --------------------------------------------------------------------------------------


def count_uses(model: ir.Model) -> list[tuple[str, str, str]]:
    """Return (name, type, times) of the inputs, weights and layers of the user's own `model`.

    A weight counts its readers, a layer is used where a graph output depends on it.
    """
    rows: list[tuple[str, str, str]] = []
    alive = _live_node_ids(model)
    for value in model.graph.inputs:
        if value.const_value is None:
            rows.append((str(value.name), "input", str(_count_live_readers(value, alive))))
    for name, value in model.graph.initializers.items():
        array = ir.const_value(value)
        if (
            array is not None
            and array.ndim
            and array.dtype.kind in "fi"
            and array.dtype.itemsize < 8
        ):
            rows.append((str(name), "weight", str(_count_live_readers(value, alive))))
    layers = (node for node in model.graph if node.op_type != "Constant" or node.domain)
    rows += [(str(node.name), node.op_type, str(int(id(node) in alive))) for node in layers]
    return rows


def _live_node_ids(model: ir.Model) -> set[int]:
    """Return the ids of the nodes on which a graph output depends."""
    alive: set[int] = set()
    waiting = [ir.producer(value) for value in model.graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in alive:
            alive.add(id(node))
            waiting += [ir.producer(value) for value in node.inputs]
            waiting += [
                ir.producer(v)
                for a in node.attributes.values()
                for g in ir.get_subgraphs(a)
                for inner in ir.iter_nodes_recursive(g)
                for v in inner.inputs
            ]
    return alive


def _count_live_readers(value: ir.Value, alive: set[int]) -> int:
    """Return how many nodes read a value, those in bodies of control flow too, that nothing else makes idle."""
    return sum(
        1 for use in value.uses() if id(use.node) in alive or use.node.graph is not value.graph
    )


# ---- 3, 4: how each tensor is held ---------------------------------------------------------------------------------


def _dtype_name(qparams: Affine | None) -> str:
    return "float32" if qparams is None else f"int{qparams.bits}"


def _format_scale(qparams: Affine | None) -> str:
    """Return a scale, counts per real unit, as people read it."""
    if qparams is None:
        return "-"
    return (
        qparams.text if qparams.single else f"{qparams.scales.min():g} to {qparams.scales.max():g}"
    )


def _make_observer_lookup(policy: ScalePolicy | None) -> Callable[[str, Affine | None], str]:
    """Return what says how the scale of a tensor was chosen."""

    def describe(name: str, qparams: Affine | None) -> str:
        if qparams is None:
            return "-"
        if policy is None:
            return "the plan's"
        setting = policy.policy_for_tensors([name], qparams.bits)
        if setting.scale is not None:
            return "fixed"
        return (
            f"{setting.calibrator} {setting.percentile:g}"
            if setting.calibrator == "percentile"
            else setting.calibrator
        )

    return describe


def _output_and_weight_rows(
    graph: ir.Model,
    plan: Plan,
    observer: Callable[[str, Affine | None], str],
    users: Mapping[str, str],
    ranges: Mapping[str, tuple[float, float]],
    in_float: Callable[[ir.Node, ir.Value], bool],
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return parts 3 and 4.

    users : {tensor of the graph: the plan's name for it}. in_float : whether a node has a tensor,
    read or written, as real values.
    """
    outputs: list[tuple[str, ...]] = []
    weights: list[tuple[str, ...]] = []

    def qparams_of(value: ir.Value | None) -> Affine | None:
        return (
            None if value is None else plan.tensors.get(users.get(str(value.name), str(value.name)))
        )

    for node in graph.graph:
        if node.op_type == "Constant" and not node.domain:
            continue
        name = str(node.name)
        read = next((v for v in node.inputs if v is not None and ir.const_value(v) is None), None)
        for value in node.outputs:
            if value.name:
                user, q = (
                    users.get(str(value.name), str(value.name)),
                    None if in_float(node, value) else qparams_of(value),
                )
                low, high = (f"{edge:g}" for edge in ranges[user]) if user in ranges else ("-", "-")
                outputs.append(
                    (
                        name,
                        node.op_type,
                        _dtype_name(
                            None if read is None or in_float(node, read) else qparams_of(read)
                        ),
                        _dtype_name(q),
                        _format_channel_axis(q),
                        observer(user, q),
                        _format_scale(q),
                        low,
                        high,
                    )
                )
        for source in node.inputs:
            if (
                source is not None
                and ir.const_value(source) is not None
                and (q := qparams_of(source)) is not None
            ):
                weights.append(
                    (
                        name,
                        node.op_type,
                        _dtype_name(q),
                        _format_channel_axis(q),
                        observer(str(source.name), q),
                        _format_scale(q),
                    )
                )
    return outputs, weights


def _format_channel_axis(qparams: Affine | None) -> str:
    return "-" if qparams is None or qparams.axis is None else str(qparams.axis)


# ---- the two kinds of models ---------------------------------------------------------------------------------------


def describe_model(
    result: QuantizedModel, original: ir.Model | None = None, violations: Sequence[Violation] = ()
) -> Structure:
    """Return the structure of a float model that was quantized.

    original : the user's own graph, for part 2; None takes the normalised one. violations : limits
    that are broken.
    """
    unfused = [(reason.name, reason.kind, reason.explanation) for reason in result.reasons]
    floats, observer = result.plan.floats, _make_observer_lookup(result.basis.policy)
    outputs, weights = _output_and_weight_rows(
        result.float_graph,
        result.plan,
        observer,
        {},
        result.ranges,
        lambda node, _: str(node.name) in floats,
    )
    structure = find_model_suspicions(result, violations)
    return Structure(
        unfused,
        count_uses(result.float_graph if original is None else original),
        outputs,
        weights,
        structure,
    )


def describe_integer_graph(
    graph: ir.Model, users: Mapping[str, str], violations: Sequence[Violation] = ()
) -> Structure:
    """Return the structure of an integer graph.

    Users : {integer tensor: the float tensor that it holds}.
    """
    plan = extract_plan(graph)
    floats = set(users.values()) - users.keys()
    outputs, weights = _output_and_weight_rows(
        graph,
        plan,
        lambda _, q: "-" if q is None else "the file's",
        users,
        {},
        lambda _, value: str(value.name) in floats,
    )
    return Structure(
        _find_fusable_pairs(graph),
        count_uses(graph),
        outputs,
        weights,
        find_graph_suspicions(graph, violations),
    )


def _find_fusable_pairs(graph: ir.Model) -> list[tuple[str, ...]]:
    """Return the operators of an integer graph that could be one with that before them."""
    pairs: list[tuple[str, ...]] = []
    for node in graph.graph:
        before = ir.producer(node.inputs[0]) if node.inputs else None
        if before is None:
            continue
        op, other = find_integer_op(node), find_integer_op(before)
        if op is None or other is None:
            continue
        if op is QUANT and other is DEQUANT:
            pairs.append(
                (
                    str(node.name),
                    node.op_type,
                    f"it quantizes what {before.name} dequantizes: one Requant",
                )
            )
        elif op is other is REQUANT:
            pairs.append(
                (str(node.name), node.op_type, f"it follows the Requant {before.name}: one will do")
            )
        elif (
            op is BATCH_NORM2D
            and other.channel_axis is not None
            and ir.sole_consumer(ir.require_input(node)) is node
        ):
            pairs.append(
                (
                    str(node.name),
                    node.op_type,
                    f"{before.name} alone is read: fold it into its weights",
                )
            )
    return pairs
