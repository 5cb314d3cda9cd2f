"""Find the versions of packer and executor on which a chip's graph gives the same integers.

A version gives them if its packer accepts the graph, no rule says that a node is computed wrong,
and the kernel of every node has the same parameters as that of the version which the graph is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import onnx

from simulator.kernel import Kernel, TensorSpec, have_equal_parameters

from ..common.errors import LingerOnnxError
from ..ir import ir
from ..operators.integer_ops import find_integer_op
from ..targets import PackerArguments, Target, Verdict, VerdictFinding, get_versions
from ..targets.version_compatibility import PlanStatus, VersionCompatibility, VersionTable
from .integer.bind import BoundGraph
from .integer.runner import IntegerRunner

__all__ = ["VersionedPart", "compare_versions", "group_equal_versions"]


class VersionedPart(NamedTuple):
    """A part of a model that a chip runs.

    choice : the packer's arguments, with the verdict of the version that `graph` is for.
    """

    graph: ir.Model
    choice: PackerArguments


class _PartComparison:
    """Compares versions on one part; kernels of the version that it is for are bound once."""

    def __init__(self, part: VersionedPart, base: Target) -> None:
        """Compare with version `base`, for which `part` was written."""
        self._graph, self._choice, self._base = part.graph, part.choice, base

    @cached_property
    def _proto(self) -> onnx.ModelProto:
        """The file of the part."""
        return ir.to_proto(self._graph)

    @cached_property
    def _bound(self) -> BoundGraph:
        """The steps on the version that the part is for, with the types of all tensors."""
        runner = IntegerRunner(self._graph, target=self._base)
        shapes = {str(value.name): ir.get_shape(value) or () for value in self._graph.graph.inputs}
        specs = {
            spec.name: TensorSpec(tuple(int(dim or 1) for dim in shapes[spec.name]), spec.dtype)
            for spec in runner.inputs
        }
        return runner.bind(specs)

    @cached_property
    def _kernels(self) -> Mapping[str, Kernel]:
        """The kernels on the version that the part is for, by the name of their first output."""
        return _get_kernels(self._bound)

    def _bind_on(self, version: Target, nodes: Sequence[ir.Node]) -> Mapping[str, Kernel]:
        """Return the kernels of `nodes` on another version, by the name of their first output.

        Raises
        ------
        ModelError
            If the simulator does not support one of them on that version.
        """
        outputs: set[str] = set()
        for node in nodes:
            outputs.update(str(value.name) for value in node.outputs)
        specs = {name: spec for name, spec in self._bound.specs.items() if name not in outputs}
        return _get_kernels(IntegerRunner(self._graph, target=version).bind(specs, nodes))

    def evaluate(self, version: Target) -> Verdict:
        """Return the verdict of a version on the part, packed with its arguments."""
        if version is self._base:
            return self._choice.verdict
        return version.evaluate_packing(self._proto, self._choice.argv).verdict

    def find_other_integers(self, version: Target) -> list[VerdictFinding]:
        """Return a finding of level "other" for each node whose kernel differs on `version`.

        Kernels are compared only if the arithmetic of an operator of the graph differs.
        """
        changed = [
            node
            for node in self._graph.graph
            if (form := find_integer_op(node)) is not None
            and self._base.find_arithmetic(form.name) != version.find_arithmetic(form.name)
        ]
        if not changed:
            return []
        try:
            kernels = self._bind_on(version, changed)
        except LingerOnnxError as error:
            return [self._make_finding(changed[0], version, str(error))]
        findings = []
        for node in changed:
            name = str(node.outputs[0].name)
            if name not in self._kernels or name not in kernels:
                continue
            if not have_equal_parameters(self._kernels[name], kernels[name]):
                value = f"that of {version.executor}"
                findings.append(self._make_finding(node, version, value))
        return findings

    def _make_finding(self, node: ir.Node, version: Target, value: str) -> VerdictFinding:
        """Make the finding that a node computes other integers on `version`."""
        return VerdictFinding(
            "other",
            str(node.name),
            f"{node.op_type} has another formula than in {self._base.executor}",
            value,
            f"quantize for {version.name} if the board has it",
            "read" if "" in version.unmeasured else "measured",
        )


def compare_versions(parts: Sequence[VersionedPart], target: Target) -> VersionTable:
    """Compare the versions of the chip of `target` on the parts of a model that it runs.

    The table is empty if there are no parts, or the chip has one version only.
    """
    versions = get_versions(target)
    if not parts or len(versions) < 2:
        return VersionTable()
    comparisons = [_PartComparison(part, target) for part in parts]
    rows = []
    for equal_versions in group_equal_versions(versions):
        first = equal_versions[0]
        verdicts = [comparison.evaluate(first) for comparison in comparisons]
        findings: list[VerdictFinding] = []
        for comparison in comparisons:
            findings += comparison.find_other_integers(first)
        rows += [_make_row(version, verdicts, findings) for version in equal_versions]
    order = {version.name: index for index, version in enumerate(versions)}
    return VersionTable(tuple(sorted(rows, key=lambda row: order[row.platform])))


def group_equal_versions(versions: Iterable[Target]) -> list[list[Target]]:
    """Group versions that differ in nothing but their name and what of them was measured."""
    groups: list[tuple[Target, list[Target]]] = []
    for version in versions:
        comparable = replace(version, name="", executor="", unmeasured={})
        members = next((members for other, members in groups if other == comparable), None)
        if members is None:
            groups.append((comparable, [version]))
        else:
            members.append(version)
    return [members for _, members in groups]


def _make_row(
    version: Target, verdicts: Sequence[Verdict], others: Sequence[VerdictFinding]
) -> VersionCompatibility:
    """Combine the verdicts on all parts and the nodes with other integers to one row."""
    is_read = "" in version.unmeasured
    plan_findings = [finding for verdict in verdicts for finding in verdict.plan_findings]
    levels = {finding.level for finding in plan_findings}
    is_packable = all(verdict.is_packable for verdict in verdicts)
    plan: PlanStatus = "safe"
    if not is_packable or levels - {"unmeasured"}:
        plan = "unsafe"
    elif is_read or levels:
        plan = "unmeasured"
    narrowing = [
        finding
        for verdict in verdicts
        for finding in verdict.findings
        if finding.level in ("packs", "right", "plan")
    ]
    narrowing += others
    narrowing += [finding for finding in plan_findings if finding.level == "unmeasured"]
    return VersionCompatibility(
        platform=version.name,
        version=version.executor,
        basis="read" if is_read else "measured",
        packs=is_packable,
        has_equal_integers=not others and all(verdict.is_chip_ready for verdict in verdicts),
        plan=plan,
        findings=tuple(dict.fromkeys(narrowing)),
    )


def _get_kernels(bound: BoundGraph) -> Mapping[str, Kernel]:
    """Return the kernel of each step by the name of its first output."""
    return {step.outputs[0]: step.kernel for step in bound.steps}
