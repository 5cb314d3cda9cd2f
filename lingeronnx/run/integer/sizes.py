"""Sizes of the tensors of integer graphs, of wrong ones too.

Nothing is run, and no scale is looked at.
"""

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
    """Binds what it can, whatever the scales.

    For the sizes of tensors in graphs that may be wrong.
    """

    def _bind_node(self, op_format: Format, node: ir.Node) -> None:
        with contextlib.suppress(ModelError, ValueError, KeyError, IndexError, TypeError):
            super()._bind_node(op_format, node)

    def _integer_format(self, node: ir.Node) -> Format | None:
        with contextlib.suppress(ModelError):
            return super()._integer_format(node)
        return None

    def _check_scales(
        self, op_format: Format, node: ir.Node, attrs: Attributes, names: Sequence[str]
    ) -> None:
        pass

    def _append_float_fallback(self) -> None:
        self._pending = []


def infer_shapes(model: ir.Model) -> dict[ir.Value, tuple[int | None, ...]]:
    """Return the shapes of the integer `model`'s tensors for one sample, as far as they follow from its inputs'.

    Nothing is run and no scale is looked at, so that a graph with mistakes has sizes too.
    """
    runner = IntegerRunner(model, target=GENERIC)
    specs = {
        s.name: TensorSpec((s.shape[0] or 1, *(int(d or 0) for d in s.shape[1:])), s.dtype)
        for s in runner.inputs
        if s.shape and None not in s.shape[1:]
    }
    binder = _ShapeBinder(
        model, ArithmeticSide(GENERIC), runner.consts, specs, not runner.runs_whole_batch
    )
    binder.run()
    return {
        v: binder.specs[v.name].shape
        for node in model.graph
        for v in node.outputs
        if v.name in binder.specs
    }
