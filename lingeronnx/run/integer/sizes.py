"""Infer shapes of integer graphs, also of incorrect ones, without running or checking them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from simulator.kernel import TensorSpec

from ...errors import ModelError
from ...formats import Format
from ...graph import ir
from ...graph.attributes import Attributes
from ...targets import GENERIC
from .bind import Binder
from .dialects import ArithmeticSide
from .runner import IntegerRunner

__all__ = ["infer_shapes"]


class _ShapeBinder(Binder):
    """Binds the nodes that it can, whatever their scales, for shapes of incorrect graphs."""

    def _bind_node(self, op_format: Format, node: ir.Node) -> None:
        """Bind a node as the base class does, and ignore nodes that fail."""
        with contextlib.suppress(ModelError, ValueError, KeyError, IndexError, TypeError):
            super()._bind_node(op_format, node)

    def _integer_format(self, node: ir.Node) -> Format | None:
        """Return the format as the base class does, but None if it raises ModelError."""
        with contextlib.suppress(ModelError):
            return super()._integer_format(node)
        return None

    def _check_scales(
        self, op_format: Format, node: ir.Node, attrs: Attributes, names: Sequence[str]
    ) -> None:
        """Accept any scales, since they do not affect shapes."""

    def _append_float_fallback(self) -> None:
        """Drop the pending float nodes."""
        self._pending = []


def infer_shapes(model: ir.Model) -> dict[ir.Value, tuple[int | None, ...]]:
    """Return the shapes of an integer graph's tensors for one sample, as far as they are known.

    Nothing is run and scales are not checked, so that incorrect graphs have shapes as well.
    """
    runner = IntegerRunner(model, target=GENERIC)
    specs = {}
    for spec in runner.inputs:
        if spec.shape and None not in spec.shape[1:]:
            shape = (spec.shape[0] or 1, *(int(size or 0) for size in spec.shape[1:]))
            specs[spec.name] = TensorSpec(shape, spec.dtype)
    binder = _ShapeBinder(
        model, ArithmeticSide(GENERIC), runner.consts, specs, not runner.runs_whole_batch
    )
    binder.run()
    shapes: dict[ir.Value, tuple[int | None, ...]] = {}
    for node in model.graph:
        for value in node.outputs:
            if value.name in binder.specs:
                shapes[value] = binder.specs[value.name].shape
    return shapes
