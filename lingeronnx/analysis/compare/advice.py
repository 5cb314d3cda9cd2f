"""Findings about a quantized model, worst first, each with a measurement, its limit and options.

The findings come from the rows of a `TensorJoin`. A `LayerExaminer` examines layers whose own error
is larger than rounding explains. Order: first wrong data, because nothing computed from wrong data
can be judged; then layers that compute something else or cannot represent their values; then layers
that lose bits to a few large channels or values; last, minor problems. A layer whose error is
explained by its inputs is not reported, and tensors that share a scale are reported once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...common.errors import ConfigError
from ...ir import float_ops, ir
from ...quantization.prepare.selectors import select_tensors
from ...runtime.provenance import load_quantize_settings
from .channel_causes import (
    DEAD_CHANNEL,
    diagnose_large_values,
    diagnose_minor_issues,
    diagnose_uneven_weights,
)
from .finding import LayerFinding
from .input_causes import diagnose_inputs
from .input_layout import InputLayoutCheck
from .join import ComparedTensor, TensorJoin
from .layer_examiner import LayerExaminer
from .scale_causes import UNSPECIFIC_KINDS, diagnose_broken_layer, diagnose_scale, has_same_scale

__all__ = ["LayerFinding", "diagnose", "find_parent_rows", "format_options"]

#: Factor on the weight of a finding that follows one of the same kind upstream: rules of the chip
#: may bind their scales to each other.
_DOWNSTREAM_WEIGHT = 0.5


def diagnose(
    tensor_join: TensorJoin,
    feeds: Mapping[str, np.ndarray],
    layout_checks: Mapping[str, InputLayoutCheck] | None = None,
) -> list[LayerFinding]:
    """Diagnose the analysed (quantized) model: list likely problems, worst first.

    Tensors that share a scale and a problem become one finding. A problem that a finding upstream
    explains is not reported.

    Parameters
    ----------
    tensor_join
        The compared tensors.
    feeds
        A few samples, to examine layers with.
    layout_checks
        Layout checks by input.

    Returns
    -------
    list of LayerFinding
        Findings by order (0 is the most serious), then by weight, worst first.
    """
    diagnosis = _Diagnosis(tensor_join, feeds)
    for finding in diagnose_inputs(tensor_join, layout_checks or {}):
        diagnosis.findings[finding.layer] = finding
    diagnosis.diagnose_scales()
    diagnosis.diagnose_large_values()
    diagnosis.diagnose_broken_layers()
    diagnosis.diagnose_remaining()
    findings = _group_findings(diagnosis.findings, tensor_join.rows, diagnosis.parents)
    return sorted(findings, key=lambda finding: (finding.order, -finding.weight))


class _Diagnosis:
    """Findings about the rows of a join, collected in passes from upstream to downstream.

    Each pass goes through all rows. `findings` has at most one finding per tensor.
    """

    def __init__(self, tensor_join: TensorJoin, feeds: Mapping[str, np.ndarray]) -> None:
        """Create a diagnosis of the joined tensors without findings.

        `feeds` has the samples on which layers are examined.
        """
        self._join, self._rows = tensor_join, tensor_join.rows
        self.parents = find_parent_rows(tensor_join)
        self._copies = find_copies(tensor_join)
        self._examiner = LayerExaminer(tensor_join, feeds)
        self.findings: dict[str, LayerFinding] = {}

    def _is_explained_upstream(self, name: str, order: int) -> bool:
        """Whether a tensor that the layer of `name` reads has a finding of `order` or lower.

        0 is the most serious order, 3 the least. Only the nearest compared tensors upstream count.
        """
        findings = [self.findings.get(parent) for parent in self.parents[name]]
        return any(finding is not None and finding.order <= order for finding in findings)

    def diagnose_scales(self) -> None:
        """Add findings about scales that clip values or use too few integers to `findings`.

        Tensors that have a finding already are skipped. If the graph is exactly as quantization
        made it, records its settings and the user did not fix the scale, a rule of the chip chose a
        scale that is too small: the finding gets the minor order 3, or is replaced by one about
        large values if there is one.
        """
        has_settings = self._examiner.is_unmodified and _records_settings(self._join)
        fixed = _extend_to_shared_scale(_user_fixed_tensors(self._join), self._rows, self.parents)
        for name, row in self._rows.items():
            if name in self.findings:
                continue
            parent_rows = {parent: self._rows[parent] for parent in self.parents[name]}
            finding = diagnose_scale(row, parent_rows, self.findings, name in fixed)
            if finding is None:
                continue
            if finding.kind == "scale too small" and has_settings and name not in fixed:
                # neither the user nor a mistake chose the scale, but a rule that binds it to others
                minor = replace(finding, order=3)
                finding = diagnose_large_values(row, self._join) or minor
            self.findings[name] = finding

    def diagnose_large_values(self) -> None:
        """Add findings about tensors whose range is set by a few channels or values to `findings`.

        Tensors with a finding, or with a finding of order 0 or 1 directly upstream, are skipped.
        """
        for name, row in self._rows.items():
            if name in self.findings or self._is_explained_upstream(name, 1):
                continue
            finding = diagnose_large_values(row, self._join)
            if finding is not None:
                self.findings[name] = finding

    def diagnose_broken_layers(self) -> None:
        """Add findings about layers that compute something else than the float model's.

        These replace findings of order 2 and up. Left out are findings of unspecific kinds that few
        bits explain, and those about a layer that already has a finding of order 0 or 1.
        """
        for name, row in self._rows.items():
            if name in self.findings and self.findings[name].order < 2:
                continue
            finding = diagnose_broken_layer(
                row, self._examiner, self._is_explained_upstream(name, 1)
            )
            if finding is None:
                continue
            # few bits can explain an unspecific error, but not a missing Relu
            if finding.kind in UNSPECIFIC_KINDS and self._is_explained_by_few_bits(name, row):
                continue
            serious = [other.layer for other in self.findings.values() if other.order < 2]
            if finding.layer not in serious:
                self.findings[name] = finding

    def _is_explained_by_few_bits(self, name: str, row: ComparedTensor) -> bool:
        """Whether the tensor or one directly upstream has a finding, or its weights are uneven.

        Findings upstream count up to order 2.
        """
        if name in self.findings or self._is_explained_upstream(name, 2):
            return True
        return self._diagnose_uneven_weights(name, row) is not None

    def _diagnose_uneven_weights(self, name: str, row: ComparedTensor) -> LayerFinding | None:
        """Return a finding if a few large weights of tensor `name`'s layer leave few bits.

        None if they do not. `row` has the tensor's measures.
        """
        return diagnose_uneven_weights(row, self._join, self.parents[name], self.findings)

    def diagnose_remaining(self) -> None:
        """Add uneven weights, or else minor issues, of tensors that have no finding yet.

        Tensors with a finding of order 0 or 1 directly upstream are skipped. The error of a copy is
        that of the tensor that it copies.
        """
        for name, row in self._rows.items():
            if name in self.findings or self._is_explained_upstream(name, 1):
                continue
            is_explained = name in self._copies or self._is_explained_upstream(name, 2)
            finding = self._diagnose_uneven_weights(name, row) or diagnose_minor_issues(
                row, self._join, is_explained
            )
            if finding is not None:
                self.findings[name] = finding


def _records_settings(tensor_join: TensorJoin) -> bool:
    """Whether the analysed graph records its settings, and so which scales the user chose."""
    settings = _load_settings(tensor_join)
    return settings is not None and isinstance(settings.get("overrides", {}), dict)


def _load_settings(tensor_join: TensorJoin) -> Mapping[str, Any] | None:
    """Return the settings of `quantize` that the analysed graph records, by name.

    None if it records none, or the analysed model has no graph (a dump).
    """
    graph = tensor_join.other.graph
    return None if graph is None else load_quantize_settings(graph)


def _extend_to_shared_scale(
    names: Collection[str], rows: Mapping[str, ComparedTensor], parents: Mapping[str, Sequence[str]]
) -> set[str]:
    """Extend `names` to all tensors that share a scale with them through data movement.

    Follows operators that move data or keep scales, in both directions, as long as input and output
    are stored with the same scale. Returns a new set.

    Parameters
    ----------
    names
        Tensors to begin with.
    rows
        Compared tensors by name.
    parents
        Names of the tensors that a tensor's layer reads, by its name.
    """
    edges = []
    for name, row in rows.items():
        if row.kinds[0] in float_ops.SCALE_PRESERVING_OPS | float_ops.DATA_MOVEMENT_OPS:
            for parent in parents[name]:
                if has_same_scale(row, rows[parent]):
                    edges.append((name, parent))
    extended = set(names)
    previous_size = -1
    while len(extended) != previous_size:
        previous_size = len(extended)
        for edge in edges:
            if not extended.isdisjoint(edge):
                extended.update(edge)
    return extended


def _user_fixed_tensors(tensor_join: TensorJoin) -> frozenset[str]:
    """Return the tensors whose scale the user set by an override, as the analysed graph records it.

    Overrides are resolved in the float graph. Empty if no settings are recorded, there is no float
    graph, or an override does not match it.
    """
    settings = _load_settings(tensor_join)
    overrides = {} if settings is None else settings.get("overrides", {})
    model = tensor_join.base.graph
    if not isinstance(overrides, dict) or model is None:
        return frozenset()
    names: set[str] = set()
    try:
        for selector, override in overrides.items():
            if isinstance(override, dict) and "scale" in override:
                names.update(select_tensors(model, selector))
    except ConfigError:  # the graph was made from another model
        return frozenset()
    return frozenset(names)


def format_options(findings: Sequence[LayerFinding]) -> str:
    """Return the distinct options of all findings, in their order, as one shell command line."""
    options: dict[str, None] = {}
    for finding in findings:
        options.update(dict.fromkeys(finding.options))
    return " ".join(options)


# ---- graph order and grouping ---------------------------------------------------------------


def find_parent_rows(tensor_join: TensorJoin) -> dict[str, list[str]]:
    """Return {tensor: nearest upstream tensors} for every compared tensor (row) of the join.

    Tensors without a row are skipped and the search continues at the inputs of their nodes, on all
    paths. Constants do not count. The baseline's graph is searched, or the analysed model's if the
    baseline has none.
    """
    source = tensor_join.base if tensor_join.base.graph is not None else tensor_join.other

    def iter_nearest_rows(value: ir.Value) -> Iterator[str]:
        """Yield the row of `value`, or else the nearest rows upstream of it, on all paths."""
        row_name = tensor_join.find_row(str(value.name))
        if row_name is not None:
            yield row_name
            return
        node = value.producer()
        for node_input in () if node is None else node.inputs:
            if node_input is not None:
                yield from iter_nearest_rows(node_input)

    parents: dict[str, list[str]] = {}
    for name in tensor_join.rows:
        node = source.node(tensor_join.baseline_name(name))
        nearest: dict[str, None] = {}
        for value in () if node is None else node.inputs:
            if value is not None and value.const_value is None:
                nearest.update(dict.fromkeys(iter_nearest_rows(value)))
        parents[name] = [row_name for row_name in nearest if row_name != name]
    return parents


def find_copies(tensor_join: TensorJoin) -> dict[str, str]:
    """Return {tensor: earlier tensor} for rows that hold the values of an earlier row.

    Both only move all elements of one tensor of the baseline, which has no row itself: the error of
    that tensor shows at each of them, but was made once.
    """
    if tensor_join.base.graph is None:
        return {}
    first_by_source: dict[str, str] = {}
    copies: dict[str, str] = {}
    for name in tensor_join.rows:
        node = tensor_join.base.node(tensor_join.baseline_name(name))
        source = name
        while node is not None and node.op_type in float_ops.PERMUTATION_OPS:
            value = ir.require_input(node)
            source, node = str(value.name), value.producer()
            if tensor_join.find_row(source) is not None:
                break
        if tensor_join.find_row(source) is None:
            first = first_by_source.setdefault(source, name)
            if first != name:
                copies[name] = first
    return copies


_GROUPABLE_KINDS = frozenset(
    {
        "scale too large",
        "scale too small",
        "outlier channel",
        "uneven channels",
        "outlier activation",
        DEAD_CHANNEL,
    }
)


def _group_findings(
    by_layer: Mapping[str, LayerFinding],
    rows: Mapping[str, ComparedTensor],
    parents: Mapping[str, Sequence[str]],
) -> Iterator[LayerFinding]:
    """Yield one finding for each group of tensors that share a scale and a problem.

    It is the finding of the group's first Concat in graph order, or of its first tensor; the others
    are in `also`. It has the largest weight of the group, times _DOWNSTREAM_WEIGHT (a half) if a
    tensor directly upstream of the group has a finding of the same kind. `parents` maps a tensor to
    those that its layer reads.
    """
    position = {name: i for i, name in enumerate(rows)}
    for names in _group_layers(by_layer, rows, parents):
        group = sorted(names, key=position.__getitem__)
        concats = [name for name in group if rows[name].kinds[0] == "Concat"]
        lead = concats[0] if concats else group[0]
        kind = by_layer[lead].kind
        weight = max(by_layer[name].weight for name in group)
        upstream = set().union(*(parents[name] for name in group)) - set(group)
        if any(name in by_layer and by_layer[name].kind == kind for name in upstream):
            weight *= _DOWNSTREAM_WEIGHT
        also = tuple(name for name in group if name != lead)
        yield replace(by_layer[lead], weight=weight, also=also)


def _group_layers(
    by_layer: Mapping[str, LayerFinding],
    rows: Mapping[str, ComparedTensor],
    parents: Mapping[str, Sequence[str]],
) -> list[list[str]]:
    """Group the tensors with findings that share their scale and kind with a parent.

    Each tensor with a finding is in one group, perhaps alone; a tensor whose parents are in
    different groups joins these. `parents` maps a tensor to those that its layer reads.
    """
    heads: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for name in rows:
        if name not in by_layer:
            continue
        head = name
        for parent in parents[name]:
            if not _can_group(name, parent, by_layer, rows):
                continue
            root = heads[parent]
            if head == name or root == head:
                head = root
            else:  # two groups meet here
                groups[head] += groups.pop(root)
                heads.update(dict.fromkeys(groups[head], head))
        heads[name] = head
        groups.setdefault(head, []).append(name)
    return list(groups.values())


def _can_group(
    name: str,
    parent: str,
    by_layer: Mapping[str, LayerFinding],
    rows: Mapping[str, ComparedTensor],
) -> bool:
    """Whether a tensor and its parent (one that its layer reads) can be reported as one finding.

    Both need a finding of the same groupable kind and the same scale. Dead channels are grouped
    only behind operators that keep the scale. `name` must have a finding.
    """
    finding, parent_finding = by_layer[name], by_layer.get(parent)
    if finding.kind not in _GROUPABLE_KINDS:
        return False
    if finding.kind == DEAD_CHANNEL and rows[name].kinds[0] not in float_ops.SCALE_PRESERVING_OPS:
        return False  # the layer itself makes the channels
    if parent_finding is None or parent_finding.kind != finding.kind:
        return False
    return has_same_scale(rows[name], rows[parent])
