"""The user's graph normalised and fitted, and the law that this changes nothing.

What breaks it is left out.
A pass that fails, or after which an output is another one, is our mistake, not the user's. It is
found by running the graph after every pass that changed something; then all passes but that one run
again, and the report says which one is missing and where it went wrong. With the environment
variable LINGERONNX_STRICT=1, as in our tests, it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...errors import InternalError, ModelError
from ...graph import ir, operators
from ...legalization import AppliedRewrite, legalize_graph
from ...passes import (
    REQUIRED_PASSES,
    PassError,
    PassObserver,
    PassRun,
    format_skipped_pass,
    is_strict_mode,
    normalize,
    resolve_control_flow,
)
from ...passes.folding.shape_tracing import is_fully_shaped, trace_shapes
from ...plan.config import QuantConfig
from ...run.runners import FloatRunner
from ...targets import Target
from .selectors import Selectors

__all__ = ["OutputChangedError", "RewriteResult", "Rewriter", "check_outputs_unchanged"]

_FIT = "fit"
_MAX_RELATIVE_DIFFERENCE = 1e-3  # of an output's range: what float32 rounds differently


class OutputChangedError(InternalError):
    """A rewrite changed what the model computes."""


class _BrokenPass(Exception):
    """What a watch raises behind the pass that broke the law."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(why)
        self.step, self.why = step, why


class RewriteResult(NamedTuple):
    """A normalised and fitted copy of the user's graph, and what fitting did."""

    graph: ir.Model
    selectors: Selectors
    rewrites: list[AppliedRewrite]


class Rewriter:
    """Rewrites `original`, which `source` runs, for `row`; `feed` is one sample.

    Without `source` nothing is compared.
    excluded_passes : {pass: why} of the passes that are left out by now.
    """

    def __init__(
        self,
        original: ir.Model,
        source: FloatRunner | None,
        feed: Mapping[str, np.ndarray],
        target: Target,
        config: QuantConfig,
    ) -> None:
        self._original, self._source, self._feed, self._target, self._conf = (
            original,
            source,
            feed,
            target,
            config,
        )
        self.excluded_passes: dict[str, str] = {}

    def run(self, watch: PassObserver | None = None) -> RewriteResult:
        """Return the graph rewritten by all passes but those that are left out, and those that fail."""
        while True:
            graph = ir.clone(self._original)
            selectors = Selectors(self._original, graph)
            try:
                return RewriteResult(graph, selectors, self._rewrite(graph, selectors, watch))
            except PassError as error:
                if (
                    is_strict_mode()
                    or error.step in REQUIRED_PASSES
                    or error.step in self.excluded_passes
                ):
                    raise
                self.excluded_passes[error.step] = f"it failed: {error.__cause__ or error}"

    def exclude_breaking_pass(self, cause: Exception) -> None:
        """Find the pass after which an output is another one, and leave it out.

        Raise `cause` where there is none.
        """
        if is_strict_mode():
            raise cause
        source = self._source
        assert source is not None
        try:
            graph = ir.clone(self._original)
            self._rewrite(graph, Selectors(self._original, graph), self._make_output_watch(source))
        except _BrokenPass as wrong:
            if wrong.step in REQUIRED_PASSES or wrong.step in self.excluded_passes:
                raise cause from None
            self.excluded_passes[wrong.step] = wrong.why
        else:
            raise cause

    def notes(self) -> list[str]:
        """Return one line for each pass that is left out."""
        return [format_skipped_pass(step, why) for step, why in self.excluded_passes.items()]

    def _rewrite(
        self, graph: ir.Model, selectors: Selectors, watch: PassObserver | None
    ) -> list[AppliedRewrite]:
        resolve_control_flow(graph, self._feed, watch, self.excluded_passes)
        normalize(graph, watch, self.excluded_passes)
        if not is_fully_shaped(graph):
            trace_shapes(graph, self._feed)
        if not self._conf.fit or _FIT in self.excluded_passes:
            return []
        try:
            fitted = legalize_graph(graph, self._target, selectors.resolve_skips(self._conf.skip))
        except (AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
            raise PassError(_FIT, f"fitting failed: {error}") from error
        if watch is not None:
            watch(PassRun(_FIT, len(fitted)), graph)
        return fitted

    def _make_output_watch(self, source: FloatRunner) -> Callable[[PassRun, ir.Model], None]:
        """Return a watch that raises behind the first pass that changes an output, and says where."""
        names = [str(v.name) for v in self._original.graph.outputs]
        before = ir.clone(self._original)

        def watch(step: PassRun, graph: ir.Model) -> None:
            nonlocal before
            if not step.changes:
                return
            try:
                check_outputs_unchanged(source, FloatRunner(graph, names), names, self._feed)
            except (OutputChangedError, ModelError) as error:
                raise _BrokenPass(
                    step.name, f"{error}{self._first_changed_node(before, graph)}"
                ) from error
            before = ir.clone(graph)

        return watch

    def _first_changed_node(self, before: ir.Model, after: ir.Model) -> str:
        """Return which node's output is the first that `after` computes in another way.

        Nothing where none is.
        """
        try:
            have = {name: array for name, array, _ in FloatRunner(after).run(self._feed)}
            want = {name: array for name, array, _ in FloatRunner(before).run(self._feed)}
        except ModelError:
            return ""
        for node in after.graph:
            for name in (str(v.name) for v in node.outputs):
                both = name in want and name in have and want[name].shape == have[name].shape
                if both and _relative_difference(want[name], have[name]) > _MAX_RELATIVE_DIFFERENCE:
                    return f", first at node {node.name}"
        return ""


def _relative_difference(want: np.ndarray, have: np.ndarray) -> float:
    """Return the largest difference, in parts of the range of `want`, where that is finite."""
    want, have = want.astype(np.float64), have.astype(np.float64)
    sound = np.isfinite(want)
    scale = max(float(np.abs(want[sound]).max(initial=0.0)), 1e-30)
    off = float(np.abs(want[sound] - have[sound]).max(initial=0.0)) / scale
    return off if off == off else np.inf


def check_deterministic(
    model: ir.Model, source: FloatRunner, feed: Mapping[str, np.ndarray]
) -> None:
    """Raise ModelError where an output of `model`, which `source` runs, is another one for the same inputs."""
    if not any(
        node.op_type in operators.RANDOM_OPS for node in ir.iter_nodes_recursive(model.graph)
    ):
        return
    names = [str(v.name) for v in model.graph.outputs]
    first, second = ({n: array for n, array, _ in source.run(feed, names)} for _ in range(2))
    for name, array in first.items():
        if not np.array_equal(array, second[name], equal_nan=array.dtype.kind == "f"):
            raise ModelError(
                f"output '{name}' is another one in every run, for the same inputs; take what "
                "draws random numbers "
                "out of the model"
            )


def check_outputs_unchanged(
    original: FloatRunner,
    changed: FloatRunner,
    names: Sequence[str],
    feed: Mapping[str, np.ndarray],
) -> None:
    """Compare the outputs `names` of both graphs.

    `OutputChangedError` when they differ by more than float32 rounding.
    Values that are infinite or no number in the user's graph have to be so in the changed one.
    """
    before = {name: array for name, array, _ in original.run(feed, names)}
    for name, have, _ in changed.run(feed, names):
        want = before[name]
        if want.shape != have.shape:
            raise OutputChangedError(
                f"normalisation changed the shape of output '{name}': {want.shape}, {have.shape}"
            )
        if want.dtype.kind not in "fiub":
            continue
        strange = ~np.isfinite(want)
        if not np.array_equal(want[strange], have[strange], equal_nan=want.dtype.kind == "f"):
            raise OutputChangedError(
                f"normalisation changed where output '{name}' is NaN or infinite"
            )
        if (off := _relative_difference(want, have)) > _MAX_RELATIVE_DIFFERENCE:
            raise OutputChangedError(
                f"normalisation changed output '{name}' by {off:.2g} of its range"
            )
