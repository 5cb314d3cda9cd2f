"""Infer shapes of integer graphs, also of incorrect ones, without running or checking them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from simulator.kernel import TensorSpec

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes
from ...operators.integer_ops import Format
from ...targets import GENERIC
from .bind import Binder
from .dialects import ArithmeticSide
from .runner import IntegerRunner

__all__ = ["infer_shapes"]


class _ShapeBinder(Binder):
    """Binds the nodes that it can, whatever their scales, for shapes of incorrect graphs."""

    def _bind_node(self, op_format: Format, node: ir.Node) -> None:
        """Convert an integer node to steps and record its shapes; a node that fails is ignored."""
        with contextlib.suppress(ModelError, ValueError, KeyError, IndexError, TypeError):
            super()._bind_node(op_format, node)

    def _integer_format(self, node: ir.Node) -> Format | None:
        """Return the format of a node that computes on integers.

        None for a float node and for an operator that is not known.
        """
        with contextlib.suppress(ModelError):
            return super()._integer_format(node)
        return None

    def _check_scales(
        self, op_format: Format, node: ir.Node, attrs: Attributes, names: Sequence[str]
    ) -> None:
        """Do nothing: accept any scales and zero points, since they do not affect shapes."""

    def _append_float_fallback(self) -> None:
        """Drop the collected float nodes without running them; their outputs have no shape."""
        self._pending = []


def infer_shapes(model: ir.Model) -> dict[ir.Value, tuple[int | None, ...]]:
    """Return tensor -> shape for one sample, as far as the shapes of an integer graph are known.

    Nothing is run and scales are not checked, so that incorrect graphs have shapes as well. Graph
    inputs and outputs of float nodes are missing.
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
