"""Normalize and fit the user's graph, and ensure that this changes no output.

A pass that fails, or that changes an output, is our mistake, not the user's. It is found by running
the graph after every pass that changed something. Then all other passes run again, and the report
says which pass is excluded and where it went wrong. With the environment variable
LINGERONNX_STRICT=1, as in our tests, it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...common.errors import InternalError, ModelError
from ...ir import float_ops, ir
from ...runtime.runners import FloatRunner
from ...targets import Target
from ..legalize import AppliedRewrite, legalize_graph
from ..normalize import (
    NORMALIZATION_PASSES,
    REQUIRED_PASSES,
    PassError,
    PassObserver,
    PassRun,
    format_skipped_pass,
    is_strict_mode,
    normalize,
    resolve_control_flow,
)
from ..normalize.expansion.expand import expand_nodes
from ..normalize.folding.shape_tracing import is_fully_shaped, trace_shapes
from .selectors import Selectors

if TYPE_CHECKING:
    from ..config import QuantConfig

__all__ = ["OutputChangedError", "RewriteResult", "Rewriter", "check_outputs_unchanged"]

_EXPAND, _FIT = "expand", "fit"
_MAX_RELATIVE_DIFFERENCE = 1e-3  # of an output's range: differences in float32 rounding


class OutputChangedError(InternalError):
    """A rewrite changed an output of the model."""


class _BrokenPass(Exception):
    """Raised by the function that is called after each pass if the pass changed an output."""

    def __init__(self, pass_name: str, reason: str) -> None:
        """Keep the name of the pass that changed an output, and the `reason` as message."""
        super().__init__(reason)
        self.pass_name, self.reason = pass_name, reason


class RewriteResult(NamedTuple):
    """A normalized and fitted copy of the user's graph, and the rewrites of fitting."""

    graph: ir.Model
    selectors: Selectors
    rewrites: list[AppliedRewrite]


@dataclass(eq=False)
class Rewriter:
    """Rewrites the user's graph for a target.

    Attributes
    ----------
    original
        The user's graph.
    source
        Its runner; without it (None) outputs are not compared.
    feed
        One sample.
    target, config
        The target and the settings.
    excluded_passes
        {pass: reason} of passes that are not run.
    expanded
        Names of the user's nodes that are replaced by compositions or function bodies.
    """

    original: ir.Model
    source: FloatRunner | None
    feed: Mapping[str, np.ndarray]
    target: Target
    config: QuantConfig
    excluded_passes: dict[str, str] = field(default_factory=dict)
    expanded: frozenset[str] = frozenset()

    def run(self, observer: PassObserver | None = None) -> RewriteResult:
        """Rewrite the graph with all passes except those that are excluded and those that fail.

        `observer` is called after each pass. A failing pass is added to `excluded_passes`, and all
        starts again from the original; required passes, and all in strict mode, raise PassError
        instead.
        """
        while True:
            graph = self.original.clone()
            selectors = Selectors(self.original, graph)
            try:
                return RewriteResult(graph, selectors, self._rewrite(graph, selectors, observer))
            except PassError as error:
                if (
                    is_strict_mode()
                    or error.step in REQUIRED_PASSES
                    or error.step in self.excluded_passes
                ):
                    raise
                self.excluded_passes[error.step] = f"it failed: {error.__cause__ or error}"

    def exclude_breaking_pass(self, cause: Exception) -> None:
        """Add the first pass that changes an output to `excluded_passes`, or raise `cause`.

        `cause` is raised if no pass does, in strict mode, and for a pass that is required or
        excluded already. The passes are run again on the sample inputs.
        """
        if is_strict_mode():
            raise cause
        source = self.source
        assert source is not None
        try:
            graph = self.original.clone()
            observer = self._make_output_observer(source)
            self._rewrite(graph, Selectors(self.original, graph), observer)
        except _BrokenPass as broken:
            if broken.pass_name in REQUIRED_PASSES or broken.pass_name in self.excluded_passes:
                raise cause from None
            self.excluded_passes[broken.pass_name] = broken.reason
        else:
            raise cause

    def notes(self) -> list[str]:
        """Return one note, with the reason, for each excluded pass."""
        return [
            format_skipped_pass(pass_name, reason)
            for pass_name, reason in self.excluded_passes.items()
        ]

    def _rewrite(
        self, graph: ir.Model, selectors: Selectors, observer: PassObserver | None
    ) -> list[AppliedRewrite]:
        """Normalize and fit `graph` in place; return the rewrites of fitting.

        Fitting to the target is left out if the settings or the excluded passes say so; an error of
        it becomes PassError. `observer` is called after each pass.
        """
        resolve_control_flow(graph, self.feed, observer, self.excluded_passes)
        if self.expanded and _EXPAND not in self.excluded_passes:
            expanded = expand_nodes(graph, self.expanded)
            if observer is not None:
                observer(PassRun(_EXPAND, len(expanded)), graph)
            resolve_control_flow(graph, self.feed, observer, self.excluded_passes)
        unsupported_passes = {
            step.name
            for step in NORMALIZATION_PASSES
            if step.suits is not None and not step.suits(self.target)
        }
        normalize(graph, observer, unsupported_passes.union(self.excluded_passes))
        if not is_fully_shaped(graph):
            trace_shapes(graph, self.feed)
        if not self.config.fit or _FIT in self.excluded_passes:
            return []
        try:
            rewrites = legalize_graph(graph, self.target, selectors.resolve_skips(self.config.skip))
        except (AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
            raise PassError(_FIT, f"fitting failed: {error}") from error
        if observer is not None:
            observer(PassRun(_FIT, len(rewrites)), graph)
        return rewrites

    def _make_output_observer(self, source: FloatRunner) -> Callable[[PassRun, ir.Model], None]:
        """Return a function that, called after each pass, raises an error if it changed an output.

        It compares the graph after a pass with changes to `source`, on the sample inputs; the error
        names the pass.
        """
        names = ir.get_output_names(self.original)
        before = self.original.clone()

        def observe(pass_run: PassRun, graph: ir.Model) -> None:
            """Raise `_BrokenPass` if a pass that changed the graph also changed its outputs.

            That includes a graph that cannot be run any more.
            """
            nonlocal before
            if not pass_run.changes:
                return
            try:
                check_outputs_unchanged(source, FloatRunner(graph, names), names, self.feed)
            except (OutputChangedError, ModelError) as error:
                location = self._first_changed_node(before, graph)
                raise _BrokenPass(pass_run.name, f"{error}{location}") from error
            before = graph.clone()

        return observe

    def _first_changed_node(self, before: ir.Model, after: ir.Model) -> str:
        """Return ", first at node NAME" for the first node with different outputs, or "".

        Compared are the tensors of the same name and shape in both graphs, on the sample inputs.
        "", too, if a graph cannot be run.
        """
        try:
            actual = {name: array for name, array, _ in FloatRunner(after).run(self.feed)}
            expected = {name: array for name, array, _ in FloatRunner(before).run(self.feed)}
        except ModelError:
            return ""
        for node in after.graph:
            for value in node.outputs:
                name = str(value.name)
                if name not in expected or name not in actual:
                    continue
                if expected[name].shape != actual[name].shape:
                    continue
                difference = _relative_difference(expected[name], actual[name])
                if difference > _MAX_RELATIVE_DIFFERENCE:
                    return f", first at node {node.name}"
        return ""


def _relative_difference(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest |expected - actual| relative to the largest |expected|.

    Only where `expected` is finite. Infinite if `actual` is NaN there.
    """
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    is_finite = np.isfinite(expected)
    scale = max(float(np.abs(expected[is_finite]).max(initial=0.0)), 1e-30)
    differences = np.abs(expected[is_finite] - actual[is_finite])
    difference = float(differences.max(initial=0.0)) / scale
    return np.inf if np.isnan(difference) else difference


def check_deterministic(
    model: ir.Model, source: FloatRunner, feed: Mapping[str, np.ndarray]
) -> None:
    """Raise ModelError if an output differs between two runs of `source` on the same inputs.

    The runs are only made if `model` has random operators.
    """
    if not any(node.op_type in float_ops.RANDOM_OPS for node in model.graph.all_nodes()):
        return
    names = ir.get_output_names(model)
    first_run = {name: array for name, array, _ in source.run(feed, names)}
    second_run = {name: array for name, array, _ in source.run(feed, names)}
    for name, array in first_run.items():
        if not np.array_equal(array, second_run[name], equal_nan=array.dtype.kind == "f"):
            raise ModelError(
                f"output '{name}' differs between runs on the same inputs; remove random operators "
                "from the model"
            )


def check_outputs_unchanged(
    original: FloatRunner,
    changed: FloatRunner,
    names: Sequence[str],
    feed: Mapping[str, np.ndarray],
) -> None:
    """Raise OutputChangedError if an output in `names` differs between two graphs on `feed`.

    Raises
    ------
    OutputChangedError
        If they differ by more than 1e-3 of an output's largest magnitude, in shape, or in where
        they are NaN or infinite. Outputs that are not numbers or bools are not compared.
    """
    outputs = {name: array for name, array, _ in original.run(feed, names)}
    for name, actual, _ in changed.run(feed, names):
        expected = outputs[name]
        if expected.shape != actual.shape:
            raise OutputChangedError(
                f"normalization changed the shape of output '{name}': {expected.shape}, "
                f"{actual.shape}"
            )
        if expected.dtype.kind not in "fiub":
            continue
        is_nonfinite = ~np.isfinite(expected)
        equal_nan = expected.dtype.kind == "f"
        if not np.array_equal(expected[is_nonfinite], actual[is_nonfinite], equal_nan=equal_nan):
            raise OutputChangedError(
                f"normalization changed where output '{name}' is NaN or infinite"
            )
        difference = _relative_difference(expected, actual)
        if difference > _MAX_RELATIVE_DIFFERENCE:
            raise OutputChangedError(
                f"normalization changed output '{name}' by {difference:.2g} of its range"
            )
