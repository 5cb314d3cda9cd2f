"""What is wrong with a quantized model, worst first.

Each finding with its measure, its limit and an option.
Reads the rows of a `TensorJoin`, and looks closer (`closer`) where a layer's own error is not that
of rounding. The order: the data first, for nothing behind wrong data can be judged; then layers
that compute something else or cannot hold their values; then those that lose bits to a few large
channels or values; last what costs little. A layer whose inputs explain its error is not named, and
tensors that share a scale are named once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...errors import ConfigError
from ...flow.prepare.selectors import select_tensors
from ...graph import ir, operators
from ...run.provenance import load_quantize_settings
from .channel_causes import diagnose_large_values, diagnose_minor_issues, diagnose_uneven_weights
from .finding import LayerFinding
from .input_causes import diagnose_inputs
from .input_layout import InputLayoutCheck
from .join import ComparedTensor, TensorJoin
from .layer_causes import UNSPECIFIC_KINDS, diagnose_broken_layer
from .layer_examiner import LayerExaminer
from .scale_causes import diagnose_scale, has_same_scale

__all__ = ["LayerFinding", "diagnose", "find_parent_rows", "format_options"]

# of its weight is left to a finding whose like stands right before it: the chip's rules may bind
# the two
_DOWNSTREAM_WEIGHT = 0.5


def diagnose(
    tensor_join: TensorJoin,
    feeds: Mapping[str, np.ndarray],
    layout_checks: Mapping[str, InputLayoutCheck] | None = None,
) -> list[LayerFinding]:
    """Return what is wrong with the analysed model, the worst first.

    feeds : a few samples, to look closer with. answers : by input, what the first layer says of it.
    """
    rows = tensor_join.rows
    before = find_parent_rows(tensor_join)
    by_layer: dict[str, LayerFinding] = {
        f.layer: f for f in diagnose_inputs(tensor_join, layout_checks or {})
    }

    def is_explained_upstream(name: str, order: int) -> bool:
        """Whether something of that order or a lower one is wrong with what a tensor is computed from."""
        return any(p in by_layer and by_layer[p].order <= order for p in before[name])

    closer = LayerExaminer(tensor_join, feeds)
    told, fixed = (
        closer.is_unmodified and _records_settings(tensor_join),
        _extend_to_shared_scale(_user_fixed_tensors(tensor_join), rows, before),
    )
    for name, row in rows.items():
        if name in by_layer:
            continue
        finding = diagnose_scale(row, {p: rows[p] for p in before[name]}, by_layer, name in fixed)
        if finding is not None and finding.kind == "scale too small" and told and name not in fixed:
            finding = diagnose_large_values(row, tensor_join) or replace(
                finding, order=3
            )  # what the rules bind it to has set it
        if finding is not None:
            by_layer[name] = finding
    for name, row in rows.items():
        if (
            name not in by_layer
            and not is_explained_upstream(name, 1)
            and (finding := diagnose_large_values(row, tensor_join)) is not None
        ):
            by_layer[name] = finding
    for name, row in rows.items():
        if name in by_layer and by_layer[name].order < 2:
            continue
        finding = diagnose_broken_layer(row, closer, is_explained_upstream(name, 1))
        vague = (
            finding is not None and finding.kind in UNSPECIFIC_KINDS
        )  # few bits explain that, but no Relu that is missing
        if vague and (
            name in by_layer
            or is_explained_upstream(name, 2)
            or diagnose_uneven_weights(row, tensor_join, before[name], by_layer)
        ):
            continue
        if finding is not None and all(
            finding.layer != other.layer for other in by_layer.values() if other.order < 2
        ):
            by_layer[name] = finding
    for name, row in rows.items():
        if name in by_layer or is_explained_upstream(name, 1):
            continue
        if (
            finding := diagnose_uneven_weights(row, tensor_join, before[name], by_layer)
            or diagnose_minor_issues(row, tensor_join, is_explained_upstream(name, 2))
        ) is not None:
            by_layer[name] = finding
    return sorted(_group_findings(by_layer, rows, before), key=lambda f: (f.order, -f.weight))


def _records_settings(tensor_join: TensorJoin) -> bool:
    """Whether what is analysed says whose scales it has.

    Calibration chose those that the user has not given.
    """
    given = (
        None if tensor_join.other.graph is None else load_quantize_settings(tensor_join.other.graph)
    )
    return given is not None and isinstance(given.get("overrides", {}), dict)


def _extend_to_shared_scale(
    names: Collection[str], rows: Mapping[str, ComparedTensor], before: Mapping[str, Sequence[str]]
) -> set[str]:
    """Return `names`, and the tensors whose scale is theirs because one is moved into the other, or joined to it."""
    moving = operators.SCALE_PRESERVING_OPS | operators.DATA_MOVEMENT_OPS
    pairs = [
        (name, p) for name, row in rows.items() if row.kinds[0] in moving for p in before[name]
    ]
    tied, found = (
        [pair for pair in pairs if has_same_scale(*(rows[name] for name in pair))],
        set(names),
    )
    while more := {name for pair in tied for name in pair if found & set(pair)} - found:
        found |= more
    return found


def _user_fixed_tensors(tensor_join: TensorJoin) -> frozenset[str]:
    """Return the tensors whose scale the user has given, as far as what is analysed says so."""
    given = (
        None if tensor_join.other.graph is None else load_quantize_settings(tensor_join.other.graph)
    )
    overrides = {} if given is None else given.get("overrides", {})
    model = tensor_join.base.graph
    if not isinstance(overrides, dict) or model is None:
        return frozenset()
    chosen = [
        selector for selector, own in overrides.items() if isinstance(own, dict) and "scale" in own
    ]
    try:
        return frozenset(name for selector in chosen for name in select_tensors(model, selector))
    except ConfigError:  # it was made from another model
        return frozenset()


def format_options(findings: Sequence[LayerFinding]) -> str:
    """Return the options of all findings as one line for a shell."""
    words = dict.fromkeys(option for finding in findings for option in finding.options)
    return " ".join(words)


# ---- who stands before whom ----------------------------------------------------------------------------------------


def find_parent_rows(tensor_join: TensorJoin) -> dict[str, list[str]]:
    """Return for every row the nearest rows that it is computed from."""
    source = tensor_join.base if tensor_join.base.graph is not None else tensor_join.other
    by_row: dict[str, list[str]] = {}

    def iter_nearest_rows(value: ir.Value) -> Iterator[str]:
        node = value.producer()
        if (row := tensor_join.row_of(str(value.name))) is not None:
            yield row
        elif node is not None:
            for read in node.inputs:
                if read is not None:
                    yield from iter_nearest_rows(read)

    for name in tensor_join.rows:
        node = source.node(tensor_join.baseline_name(name))
        reads = (
            []
            if node is None
            else [v for v in node.inputs if v is not None and v.const_value is None]
        )
        by_row[name] = list(
            dict.fromkeys(p for value in reads for p in iter_nearest_rows(value) if p != name)
        )
    return by_row


_GROUPABLE_KINDS = frozenset(
    {
        "scale too large",
        "scale too small",
        "outlier channel",
        "uneven channels",
        "outlier activation",
        "dead channel",
    }
)


def _group_findings(
    by_layer: Mapping[str, LayerFinding],
    rows: Mapping[str, ComparedTensor],
    parents: Mapping[str, Sequence[str]],
) -> Iterator[LayerFinding]:
    """Yield the findings, one for those that share a scale and a fault.

    A Concat, or the first of them.
    """
    heads: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    for name, finding in ((name, by_layer[name]) for name in rows if name in by_layer):
        head = name
        own = (
            finding.kind == "dead channel"
            and rows[name].kinds[0] not in operators.SCALE_PRESERVING_OPS
        )  # the layer's doing
        if finding.kind in _GROUPABLE_KINDS and not own:
            for parent in parents[name]:
                other = by_layer.get(parent)
                if (
                    other is not None
                    and other.kind == finding.kind
                    and has_same_scale(rows[name], rows[parent])
                ):
                    root = heads[parent]
                    if head != name and root != head:  # two groups meet here
                        members[head] += members.pop(root)
                        heads.update(dict.fromkeys(members[head], head))
                    else:
                        head = root
        heads[name] = head
        members.setdefault(head, []).append(name)
    place = {name: i for i, name in enumerate(rows)}
    for group in (sorted(names, key=place.__getitem__) for names in members.values()):
        concat = [name for name in group if rows[name].kinds[0] == "Concat"]
        lead = concat[0] if concat else group[0]
        behind = {p for name in group for p in parents[name]} - set(group)
        follows = any(p in by_layer and by_layer[p].kind == by_layer[lead].kind for p in behind)
        weight = max(by_layer[name].weight for name in group) * (
            _DOWNSTREAM_WEIGHT if follows else 1
        )
        yield replace(
            by_layer[lead], weight=weight, also=tuple(name for name in group if name != lead)
        )
