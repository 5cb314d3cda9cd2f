"""Stretches of a graph in which the batch leaves axis 0 are computed with the batch in front.

torch's attention layers work on [T, N, E] and fold heads into the batch, [N*H, T, D]. A tensor of
such a stretch is told by its `atoms`; Transposes, Reshapes and the like only tell them in another
order. What computes is made again on a tensor that has the batch in front and every other atom, or
the last axis as a whole, on an axis of its own:

    x @ W, Gemm, mean, softmax and layer norm along one axis, products and sums of two such tensors,
    element by element

A stretch begins at a Transpose that moves the batch away, at a Reshape that puts windows of a
sample beside samples, [N*w, T, D], or at a graph input that has the batch elsewhere. It ends where
the batch is in front again, or at a graph output. What is read by other operators stays as it was.
Needs traced shapes, in which only the batch is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...graph import ir, operators
from .._pass import PassResult, SkipReason
from .factored_axes import (
    BATCH_AXIS,
    BATCH_FACTOR,
    AxisFactor,
    FactoredAxes,
    FactoredView,
    PendingNode,
    match_leading_axes,
    merge_adjacent_factors,
    regroup_factors,
    slice_layer_outputs,
    substitute_factors,
)

__all__ = ["move_batch_to_front"]

_MAX_RANK = 4  # axes, where more can be joined
_UNARY_OPS = operators.UNARY_ELEMENTWISE_OPS | operators.IDENTITY_OPS
_LAST_AXIS_OPS = ("Softmax", "LayerNormalization")


def move_batch_to_front(model: ir.Model) -> PassResult:
    """Rewrite the stretches of `model`, counted by the tensors at their ends that were made anew."""
    changed = _BatchFirstRewriter(model).run()
    return PassResult(
        changed,
        [reason for node in model.graph if (reason := _explain_unchanged(node)) is not None],
    )


def _explain_unchanged(node: ir.Node) -> SkipReason | None:
    """Return why the Transpose `node` still moves the batch away from axis 0.

    None for any other node.
    """
    perm = ir.get_attr(node, "perm") if node.op_type == "Transpose" and not node.domain else None
    sizes = ir.get_shape(node.inputs[0]) if perm else None
    if not perm or perm[0] == 0 or not sizes or sizes[0] is not None:
        return None
    readers = sorted({use.node.op_type for use in node.outputs[0].uses()})
    if readers and operators.RECURRENT_OPS.issuperset(readers):
        return None  # these read time first
    what = (
        f"not all that it is computed into ({', '.join(readers)}, ..)"
        if readers
        else "an output of the graph"
    )
    return SkipReason(
        node, f"{what} can be computed with the batch in front" if readers else f"it is {what}"
    )


class _BatchFirstRewriter:
    """One walk through the graph, in its order."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.views: dict[ir.Value, FactoredView] = {}
        self._count = 0
        self._viewed_nodes: list[ir.Node] = []
        self._built_values: dict[
            tuple[ir.Value | PendingNode, FactoredAxes | None], ir.Value
        ] = {}  # keys by identity, and kept alive
        self._unnamed_values: set[ir.Value] = set()
        self._input_transposes: set[Any] = set()
        self._batch: Any = "N"

    def run(self) -> int:
        """Tell every node; make anew what ends a stretch, and take out what nobody reads any more."""
        changed = 0
        for value in self.model.graph.inputs:
            self._register_graph_input(value)
        for node in list(self.model.graph):
            views = self._infer_output_views(node) if not node.domain else []
            if views:
                self._viewed_nodes.append(node)
            for value, view in zip(node.outputs, views, strict=False):
                if view.axes[:1] == BATCH_AXIS or (
                    value.is_graph_output() and isinstance(view.base, PendingNode)
                ):
                    changed += self._materialize_output(node, value, view)
                else:
                    self.views[value] = view
        if changed:
            for node in reversed(self._viewed_nodes):
                if not any(v.uses() or v.is_graph_output() for v in node.outputs):
                    self.model.graph.remove(node, safe=True)
        return changed

    # ---- telling ----

    def _make_factor(self, size: int) -> AxisFactor:
        self._count += 1
        return AxisFactor(self._count, size)

    def _make_axis(self, size: int) -> tuple[AxisFactor, ...]:
        return () if size == 1 else (self._make_factor(size),)

    def _make_input_view(self, value: ir.Value) -> FactoredView | None:
        """Return the view of a tensor that has the batch in front and nothing else unknown."""
        sizes = ir.get_shape(value)
        if not sizes or sizes[0] is not None or None in sizes[1:] or value.shape is None:
            return None
        self._batch = value.shape[0]
        axes = (*BATCH_AXIS, *(self._make_axis(int(size or 1)) for size in sizes[1:]))
        return FactoredView(value, axes, axes)

    def _register_graph_input(self, value: ir.Value) -> None:
        """Tell a graph input whose batch is on another axis than 0."""
        sizes, readers = ir.get_shape(value), [use.node for use in value.uses()]
        if (
            not sizes
            or sizes[0] is None
            or sizes.count(None) != 1
            or value.shape is None
            or not readers
        ):
            return
        place = sizes.index(None)
        self._batch = value.shape[place]
        axes = tuple((BATCH_FACTOR,) if size is None else self._make_axis(size) for size in sizes)
        order = [place, *(i for i in range(len(axes)) if i != place)]
        transpose = PendingNode(
            readers[0], "Transpose", ((FactoredView(value, axes, axes), axes),), {"perm": order}
        )
        self._input_transposes.add(transpose)
        self.views[value] = FactoredView(transpose, tuple(axes[i] for i in order), axes)

    def _infer_output_views(self, node: ir.Node) -> list[FactoredView]:
        """Return the views of the node's outputs.

        None where it is in no stretch, or cannot be told.
        """
        if node.op_type == "Split":
            return self._infer_split_views(node)
        view = self._infer_view(node) if len(node.outputs) == 1 else None
        return [] if view is None else [view]

    def _infer_view(self, node: ir.Node) -> FactoredView | None:
        """Return the view of the node's only output, as above."""
        source = node.inputs[0] if node.inputs else None
        view = self.views.get(source) if source is not None else None
        kind = node.op_type
        if kind == "Transpose":
            perm = ir.get_attr(node, "perm") or ()
            if view is None and source is not None and perm and perm[0] != 0:
                view = self._make_input_view(source)
            if view is None or not perm:
                return None
            axes = tuple(view.axes[p] for p in perm)
            return (
                None
                if view.base in self._input_transposes and axes[:1] == BATCH_AXIS
                else replace(view, axes=axes)
            )
        if kind in operators.AFFINE_OPS:
            return self._infer_binary_view(node)
        if (
            view is None
            and kind == "Reshape"
            and source is not None
            and _folds_windows_into_batch(node)
        ):
            view = self._make_input_view(source)
        if view is None:
            return None
        if kind in operators.RESHAPING_OPS:
            return regroup_factors(view, ir.get_shape(node.outputs[0]), self._make_factor)
        if kind == "Gather":
            return self._infer_gather_view(node, view)
        if kind == "MatMul":
            return self._infer_matmul_view(node, view)
        if kind == "Gemm":
            return self._infer_gemm_view(node, view)
        if kind == "ReduceMean":
            return self._infer_mean_view(node, view)
        constant = all(
            value is None or ir.const_value(value) is not None for value in node.inputs[1:]
        )
        if kind in _UNARY_OPS and constant:
            return replace(
                view,
                base=PendingNode(
                    node, kind, ((view, view.held), *node.inputs[1:]), _get_attributes(node)
                ),
            )
        if (
            kind in _LAST_AXIS_OPS
            and constant
            and ir.get_attr(node, "axis", -1) in (-1, len(view.axes) - 1)
        ):
            return self._infer_last_axis_view(node, view)
        return None

    def _infer_gather_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        """Gather of one position of an axis."""
        index, axis = ir.const_value(node.inputs[1]), ir.get_attr(node, "axis", 0) % len(view.axes)
        return (
            None
            if index is None or index.ndim
            else self._slice_position(node, view, int(index), axis)
        )

    def _infer_split_views(self, node: ir.Node) -> list[FactoredView]:
        """Split into the positions of an axis, which stays."""
        view = self.views.get(ir.require_input(node))
        axis = None if view is None else ir.get_attr(node, "axis", 0) % len(view.axes)
        if (
            view is None
            or axis is None
            or math.prod(a.size for a in view.axes[axis]) != len(node.outputs)
        ):
            return []
        parts = []
        for index in range(len(node.outputs)):
            part = self._slice_position(node, view, index, axis)
            if part is None:
                return []
            parts.append(replace(part, axes=(*part.axes[:axis], (), *part.axes[axis:])))
        return parts

    def _slice_position(
        self, node: ir.Node, view: FactoredView, index: int, axis: int
    ) -> FactoredView | None:
        """Take a position of an axis that is the first part of an axis of what is held.

        A Slice of that.
        Of a layer's outputs: the layer that makes these alone, so that a factor behind it can go
        into its weights.
        """
        if len(view.axes[axis]) != 1:
            return None
        (atom,) = view.axes[axis]
        place = next((i for i, group in enumerate(view.held) if group[:1] == (atom,)), None)
        if place is None or atom == BATCH_FACTOR:
            return None
        rest = math.prod(a.size for a in view.held[place][1:])
        start = index % atom.size * rest
        bounds = [np.array([n], np.int64) for n in (start, start + rest, place)]
        groups = tuple(group[1:] if i == place else group for i, group in enumerate(view.held))
        part = (
            slice_layer_outputs(view.base, start, groups[-1]) if place == len(groups) - 1 else None
        )
        if part is None:
            part = PendingNode(node, "Slice", ((view, view.held), *bounds), {})
        return FactoredView(part, groups, view.axes[:axis] + view.axes[axis + 1 :])

    # ---- what computes ----

    def _separate_batch(self, view: FactoredView, count: int) -> FactoredAxes | None:
        """Return axes with the batch in front, then the other atoms, the last `count` axes as they are.

        The other atoms are apart, or on one axis where there would be more than chips take.
        """
        behind = len(view.axes) - count
        first = [a for axis in view.axes[:behind] for a in axis]
        if behind < 0 or BATCH_FACTOR not in first:
            return None
        first.remove(BATCH_FACTOR)
        crowded = first and 1 + len(first) + count > _MAX_RANK
        return (
            *BATCH_AXIS,
            *([tuple(first)] if crowded else ((a,) for a in first)),
            *view.axes[behind:],
        )

    def _infer_matmul_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        weight = ir.const_value(node.inputs[1])
        if weight is not None:
            return (
                self._infer_linear_view(node, view, ir.require_input(node, 1), weight.shape[1])
                if weight.ndim == 2
                else None
            )
        other = self.views.get(ir.require_input(node, 1))
        if other is None or len(other.axes) != len(view.axes) or len(view.axes) < 3:
            return None
        other = match_leading_axes(other, view.axes[:-2])
        if other is None:
            return None
        other = substitute_factors(
            other, {a: self._make_factor(a.size) for a in other.axes[-1]}
        )  # of itself: columns are not rows
        one, two = self._separate_batch(view, 2), self._separate_batch(other, 2)
        if one is None or two is None or one[:-2] != two[:-2]:
            return None
        product = PendingNode(node, "MatMul", ((view, one), (other, two)), {})
        return FactoredView(product, (*one[:-1], two[-1]), (*view.axes[:-1], other.axes[-1]))

    def _infer_last_axis_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        target = self._separate_batch(view, 1)
        if target is None:
            return None
        along = PendingNode(
            node,
            node.op_type,
            ((view, target), *node.inputs[1:]),
            {**_get_attributes(node), "axis": -1},
        )
        return FactoredView(along, target, view.axes)

    def _infer_linear_view(
        self, node: ir.Node, view: FactoredView, weight: ir.Value | np.ndarray, units: int
    ) -> FactoredView | None:
        target = self._separate_batch(view, 1)
        if target is None:
            return None
        last = (self._make_axis(units),)
        return FactoredView(
            PendingNode(node, "MatMul", ((view, target), weight), {}),
            (*target[:-1], *last),
            (*view.axes[:-1], *last),
        )

    def _infer_gemm_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        weight = ir.const_value(node.inputs[1])
        plain = all(
            ir.get_attr(node, name, 1.0) == 1.0 for name in ("alpha", "beta")
        ) and not ir.get_attr(node, "transA", 0)
        bias = (
            ir.const_value(node.inputs[2])
            if len(node.inputs) > 2 and node.inputs[2] is not None
            else None
        )
        if (
            weight is None
            or not plain
            or (bias is None) != (len(node.inputs) < 3 or node.inputs[2] is None)
        ):
            return None
        turned = weight.T if ir.get_attr(node, "transB", 0) else weight
        product = self._infer_linear_view(node, view, np.ascontiguousarray(turned), turned.shape[1])
        if product is None or bias is None or bias.ndim != 1:
            return product if bias is None else None
        return replace(
            product, base=PendingNode(node, "Add", ((product, product.held), node.inputs[2]), {})
        )

    def _infer_mean_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        array = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = ir.get_attr(node, "axes") if array is None else array.reshape(-1).tolist()
        if (
            not axes
            or len(axes) != 1
            or len(view.axes[axes[0]]) != 1
            or view.axes[axes[0]] == (BATCH_FACTOR,)
        ):
            return None
        axis, keep = axes[0] % len(view.axes), bool(ir.get_attr(node, "keepdims", 1))
        (atom,) = view.axes[axis]
        target = (*BATCH_AXIS, *((a,) for group in view.axes for a in group if a != BATCH_FACTOR))
        place = target.index((atom,))
        attributes = {"keepdims": 0, **({"axes": [place]} if array is None else {})}
        more = () if array is None else (np.array([place], np.int64),)
        kept = target[:place] + target[place + 1 :]
        mean = PendingNode(node, "ReduceMean", ((view, target), *more), attributes)
        return FactoredView(
            mean, kept, view.axes[:axis] + (((),) if keep else ()) + view.axes[axis + 1 :]
        )

    def _infer_binary_view(self, node: ir.Node) -> FactoredView | None:
        views = [self.views.get(ir.require_input(node, i)) for i in (0, 1)]
        one, two = views
        if one is not None and two is not None:
            if [len(view.axes) for view in (one, two)] != [len(one.axes)] * 2:
                return None
            other = match_leading_axes(two, one.axes)
            target = self._separate_batch(one, 0)
            if other is None or target is None:
                return None
            return FactoredView(
                PendingNode(node, node.op_type, ((one, target), (other, target)), {}),
                target,
                one.axes,
            )
        view = one or two
        constant = ir.require_input(node, 1 if one is not None else 0)
        array = ir.const_value(constant)
        if view is None or array is None:
            return None
        whole = array
        if array.ndim == len(view.axes) and len(array) == 1:
            array = array[0]  # along the axis of samples
        if array.ndim >= len(view.axes):
            return None
        target = view.held if array.size == 1 else self._separate_batch(view, array.ndim)
        if (
            target is not None and array.size > 1 and len(target) > _MAX_RANK
        ):  # all that it may differ along is one axis
            behind = target[-array.ndim :]
            array = np.broadcast_to(
                array, [math.prod(a.size for a in axis) for axis in behind]
            ).reshape(-1)
            target = (
                *target[: len(target) - len(behind)],
                tuple(a for axis in behind for a in axis),
            )
        if target is None or array.ndim >= len(target):
            return None
        operand = constant if array is whole else np.ascontiguousarray(array)
        pair = ((view, target), operand) if one is not None else (operand, (view, target))
        return FactoredView(PendingNode(node, node.op_type, pair, {}), target, view.axes)

    # ---- making ----

    def _materialize_output(self, node: ir.Node, value: ir.Value, view: FactoredView) -> int:
        """Let the readers of `value` read what is made anew; return 1."""
        new = self._materialize_view(view, view.axes, node)
        if value.is_graph_output() and new not in self._unnamed_values:
            new = self._add_node("Identity", [new], {}, view.axes, node, node)
        ir.replace_all_uses(value, new)
        if (
            new in self._unnamed_values
        ):  # what is made anew is the tensor that was there, and has its name
            self._unnamed_values.remove(new)
            name, value.name = value.name, ir.unique_tensor_name(self.model, f"{value.name}_before")
            new.name = name
        return 1

    def _materialize_view(self, view: FactoredView, target: FactoredAxes, at: ir.Node) -> ir.Value:
        """Return what `view` holds with the axes `target`."""
        value = self._materialize_base(view.base, view.held, at)
        key = (view.base, target)
        if key not in self._built_values:
            self._built_values[key] = self._emit_permutation(value, view.held, target, at)
        return self._built_values[key]

    def _materialize_base(
        self, of: ir.Value | PendingNode, held: FactoredAxes, at: ir.Node
    ) -> ir.Value:
        if not isinstance(of, PendingNode):
            return of
        key = (of, None)
        if key not in self._built_values:
            inputs = [self._materialize_input(of, i, at) for i in range(len(of.inputs))]
            self._built_values[key] = self._add_node(
                of.op_type, inputs, of.attributes, held, of.node, at
            )
        return self._built_values[key]

    def _materialize_input(self, made: PendingNode, index: int, at: ir.Node) -> ir.Value | None:
        source = made.inputs[index]
        if isinstance(source, tuple):
            return self._materialize_view(*source, at)
        if isinstance(source, np.ndarray):
            return self._add_constant(source, made.node)
        return source

    def _emit_permutation(
        self, value: ir.Value, held: FactoredAxes, target: FactoredAxes, at: ir.Node
    ) -> ir.Value:
        """Return `value`, whose axes are `held`, with the axes `target`.

        A Reshape, a Transpose, a Reshape at most.
        """
        have, want = ([a for group in groups for a in group] for groups in (held, target))
        if have != want:
            runs = merge_adjacent_factors(have, want)
            order = sorted(range(len(runs)), key=lambda i: want.index(runs[i][0]))
            value = self._emit_reshape(value, held, tuple(runs), at)
            held = tuple(runs[i] for i in order)
            value = self._add_node("Transpose", [value], {"perm": order}, held, at, at)
        return self._emit_reshape(value, held, target, at)

    def _emit_reshape(
        self, value: ir.Value, held: FactoredAxes, target: FactoredAxes, at: ir.Node
    ) -> ir.Value:
        if held == target:
            return value
        sizes = [
            -1 if BATCH_FACTOR in group else math.prod(a.size for a in group) for group in target
        ]
        sizes[0] = 0 if target[0] == held[0] == (BATCH_FACTOR,) else sizes[0]
        return self._add_node(
            "Reshape",
            [value, self._add_constant(np.array(sizes, np.int64), at)],
            {},
            target,
            at,
            at,
        )

    def _add_constant(self, array: np.ndarray, of: ir.Node) -> ir.Value:
        return ir.add_initializer(
            self.model, ir.unique_tensor_name(self.model, f"{of.outputs[0].name}_const"), array
        )

    def _add_node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any],
        axes: FactoredAxes,
        of: ir.Node,
        at: ir.Node,
    ) -> ir.Value:
        """Add a node in front of `at`, made after `of`; return its output."""
        name = ir.unique_tensor_name(self.model, f"{of.outputs[0].name}_front")
        self._count += 1
        node = ir.make_node(
            op_type, inputs, attributes, origin=of, suffix=f"front{self._count}", output=name
        )
        node.outputs[0].type = of.outputs[0].type
        sizes = [math.prod(a.size for a in group) for group in axes]
        node.outputs[0].shape = ir.make_shape(
            [
                (self._batch if group == (BATCH_FACTOR,) else None)
                if BATCH_FACTOR in group
                else size
                for group, size in zip(axes, sizes, strict=True)
            ]
        )
        self.model.graph.insert_before(at, node)
        self._unnamed_values.add(node.outputs[0])
        return node.outputs[0]


def _folds_windows_into_batch(node: ir.Node) -> bool:
    """Whether a Reshape puts parts of a sample beside samples, with two axes behind them or more."""
    result = node.outputs[0]
    return (
        ir.has_folded_batch(result)
        and not ir.has_folded_batch(ir.require_input(node))
        and len(ir.get_shape(result) or ()) > 2
    )


def _get_attributes(node: ir.Node) -> dict[str, Any]:
    return {name: ir.get_attr(node, name) for name in node.attributes}
