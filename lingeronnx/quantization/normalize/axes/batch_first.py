"""Compute subgraphs in which the batch is not on axis 0 with the batch on axis 0.

torch's attention layers work on [T, N, E] and fold heads into the batch, [N*H, T, D]. A tensor of
such a subgraph is described by the factors of its axes (`factored_axes`); Transposes, Reshapes and
similar operators only change their order. Operators that compute are created again on a tensor with
the batch on axis 0, and every other factor, or the complete last axis, on an axis of its own:

    x @ W, Gemm, mean, Softmax and layer normalization along one axis, products and sums of two such
    tensors, elementwise operators

A subgraph starts at a Transpose that moves the batch, at a Reshape that folds windows of a sample
into the batch, [N*w, T, D], or at a graph input with the batch on another axis. It ends where the
batch is on axis 0 again, or at a graph output. Tensors that other operators read are not changed.
Needs traced shapes, in which only the batch is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....ir import float_ops, ir
from .._pass import PassResult, SkipReason
from .factored_axes import (
    BATCH_AXIS,
    BATCH_FACTOR,
    AxisFactor,
    FactoredAxes,
    FactoredView,
    PendingNode,
    flatten_axes,
    match_leading_axes,
    merge_adjacent_factors,
    regroup_factors,
    slice_layer_outputs,
    substitute_factors,
)

__all__ = ["move_batch_to_front"]

_MAX_RANK = 4  # axes are merged, if possible, to stay within this rank
_UNARY_OPS = float_ops.UNARY_ELEMENTWISE_OPS | float_ops.IDENTITY_OPS
_LAST_AXIS_OPS = ("Softmax", "LayerNormalization")
#: A part that is rewritten starts at one of these, or at an input with the batch on another axis.
_FIRST_OPS = frozenset(("Reshape", "Transpose"))


def move_batch_to_front(model: ir.Model) -> PassResult:
    """Rewrite the parts of `model` that compute with the batch on another axis than 0, in place.

    The new nodes compute the same with the batch on axis 0. Each tensor at the end of such a part
    counts as a change. A Transpose that still moves the batch away is skipped with a reason.
    """
    shapes = [ir.get_shape(value) or () for value in model.graph.inputs]
    is_batch_first = all(None not in shape[1:] for shape in shapes)
    if is_batch_first and _FIRST_OPS.isdisjoint(node.op_type for node in model.graph):
        return PassResult(0)
    changes = _BatchFirstRewriter(model).run()
    reasons = [_explain_unchanged(n) for n in model.graph if ir.is_standard_op(n, "Transpose")]
    return PassResult(changes, [reason for reason in reasons if reason is not None])


def _explain_unchanged(node: ir.Node) -> SkipReason | None:
    """Return the reason why the Transpose `node` still moves the batch away from axis 0.

    None if its input has not the batch (an unknown size) on axis 0, if it leaves the batch there,
    and if only recurrent layers read it.
    """
    perm = ir.get_attr(node, "perm")
    if not perm or perm[0] == 0:
        return None
    shape = ir.get_shape(node.inputs[0])
    if not shape or shape[0] is not None:
        return None
    consumers = sorted({use.node.op_type for use in node.outputs[0].uses()})
    if not consumers:
        return SkipReason(node, "it is an output of the graph")
    if float_ops.RECURRENT_OPS.issuperset(consumers):
        return None  # these read the time axis first
    return SkipReason(
        node,
        f"not all nodes downstream ({', '.join(consumers)}, ..) can be computed with the batch on "
        "axis 0",
    )


class _BatchFirstRewriter:
    """Rewrites nodes that have the batch on another axis than 0, in one traversal of the graph.

    Tensors inside such a part get a view: the description of how the tensor follows, by Reshape and
    Transpose, from a base tensor with the batch on axis 0, whose node is created only if it is
    needed.
    """

    def __init__(self, model: ir.Model) -> None:
        """Store `model`; no tensor is described by a view yet, and no new tensor is built.

        A view describes a tensor as a rearrangement of one with the batch on axis 0. New tensors
        are cached by base tensor and axes, so that each is built once. The batch dimension is
        called "N" until an input tells its symbol.
        """
        self.model = model
        self.views: dict[ir.Value, FactoredView] = {}
        self._count = 0
        self._viewed_nodes: list[ir.Node] = []
        # values and pending nodes are compared by identity; the keys keep them alive
        self._built_values: dict[tuple[ir.Value | PendingNode, FactoredAxes | None], ir.Value] = {}
        self._unnamed_values: set[ir.Value] = set()
        self._input_transposes: set[Any] = set()
        self._batch: Any = "N"

    def run(self) -> int:
        """Rewrite all subgraphs; return the number of tensors created at their ends.

        A subgraph ends where the batch is on axis 0 again, or at a graph output. Nodes in between
        only get a view, and are removed if nothing reads them any more.
        """
        changes = 0
        for value in self.model.graph.inputs:
            self._register_graph_input(value)
        for node in list(self.model.graph):
            views = self._infer_output_views(node) if not node.domain else []
            if views:
                self._viewed_nodes.append(node)
            for value, view in zip(node.outputs, views, strict=False):
                is_computed_output = value.is_graph_output() and isinstance(view.base, PendingNode)
                if view.axes[:1] == BATCH_AXIS or is_computed_output:
                    self._materialize_output(node, value, view)
                    changes += 1
                else:
                    self.views[value] = view
        if changes:
            self._remove_unread_nodes()
        return changes

    def _remove_unread_nodes(self) -> None:
        """Remove the traversed nodes whose outputs nothing reads any more, consumers first."""
        for node in reversed(self._viewed_nodes):
            if not any(value.uses() or value.is_graph_output() for value in node.outputs):
                self.model.graph.remove(node, safe=True)

    # ---- views of tensors ----

    def _make_factor(self, size: int) -> AxisFactor:
        """Return a new factor of `size`: a part of an axis, different from all other factors."""
        self._count += 1
        return AxisFactor(self._count, size)

    def _make_axis(self, size: int) -> tuple[AxisFactor, ...]:
        """Return an axis of `size` as a tuple: one new factor, or no factors for size 1."""
        return () if size == 1 else (self._make_factor(size),)

    def _make_input_view(self, value: ir.Value) -> FactoredView | None:
        """Return a view of `value`, whose batch is on axis 0, as itself, a new factor per axis.

        None unless axis 0 is the only axis of unknown size. Stores the symbol of that axis as the
        batch.
        """
        sizes = ir.get_shape(value)
        if not sizes or sizes[0] is not None or None in sizes[1:] or value.shape is None:
            return None
        self._batch = value.shape[0]
        axes = (*BATCH_AXIS, *(self._make_axis(int(size or 1)) for size in sizes[1:]))
        return FactoredView(value, axes, axes)

    def _register_graph_input(self, value: ir.Value) -> None:
        """Describe graph input `value` with its batch on another axis by a Transpose to axis 0.

        The Transpose is pending: its node is created only if needed. Nothing happens if the batch
        is on axis 0 already, if nothing reads the input, or unless exactly one size is unknown (the
        batch).
        """
        sizes, consumers = ir.get_shape(value), [use.node for use in value.uses()]
        if not sizes or value.shape is None or not consumers:
            return
        if sizes[0] is None or sizes.count(None) != 1:
            return
        batch_axis = sizes.index(None)
        self._batch = value.shape[batch_axis]
        axes = tuple((BATCH_FACTOR,) if size is None else self._make_axis(size) for size in sizes)
        order = list(range(len(axes)))
        order.insert(0, order.pop(batch_axis))
        source = (FactoredView(value, axes, axes), axes)
        transpose = PendingNode(consumers[0], "Transpose", (source,), {"perm": order})
        self._input_transposes.add(transpose)
        self.views[value] = FactoredView(transpose, tuple(axes[i] for i in order), axes)

    def _infer_output_views(self, node: ir.Node) -> list[FactoredView]:
        """Return the view of each output of `node` on one with the batch on axis 0.

        A Split has one view per output, another node one for its only output. Empty if no input of
        `node` is such a rearranged tensor, or if the operator cannot be rewritten.
        """
        if node.op_type == "Split":
            return self._infer_split_views(node)
        view = self._infer_view(node) if len(node.outputs) == 1 else None
        return [] if view is None else [view]

    def _infer_view(self, node: ir.Node) -> FactoredView | None:
        """Return the view of the only output of `node` on a tensor with the batch on axis 0.

        None if no input has a view and no rewritten part starts here, or if the rule of the
        operator does not support the node.
        """
        op_type = node.op_type
        if op_type in float_ops.AFFINE_OPS:
            return self._infer_binary_view(node)
        view = self._get_source_view(node)
        if view is None:
            return None
        if op_type in float_ops.RESHAPING_OPS:
            return regroup_factors(view, ir.get_shape(node.outputs[0]), self._make_factor)
        rules = {
            "Transpose": self._infer_transpose_view,
            "Gather": self._infer_gather_view,
            "MatMul": self._infer_matmul_view,
            "Gemm": self._infer_gemm_view,
            "ReduceMean": self._infer_mean_view,
        }
        return rules.get(op_type, self._infer_unary_view)(node, view)

    def _infer_unary_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        """Return the view of the output of `node`, a function of the tensor described by `view`.

        That is a unary elementwise operator, which runs on the base tensor, or a Softmax or
        LayerNormalization along the last axis. None for other operators and axes, and if another
        operand is computed.
        """
        operands = [value for value in node.inputs[1:] if value is not None]
        if any(ir.const_value(value) is None for value in operands):
            return None
        if node.op_type in _UNARY_OPS:
            inputs = ((view, view.base_axes), *node.inputs[1:])
            pending = PendingNode(node, node.op_type, inputs, _get_attributes(node))
            return replace(view, base=pending)
        is_last_axis = ir.get_attr(node, "axis", -1) in (-1, len(view.axes) - 1)
        if node.op_type in _LAST_AXIS_OPS and is_last_axis:
            return self._infer_last_axis_view(node, view)
        return None

    def _get_source_view(self, node: ir.Node) -> FactoredView | None:
        """Return the view of the first input of `node`, a new one if a rewritten part starts here.

        A view describes the input by a tensor with the batch on axis 0. A part starts at a Reshape
        that folds windows into the batch and at a Transpose that moves axis 0. None in other cases.
        """
        source = node.inputs[0] if node.inputs else None
        if source is None:
            return None
        if source in self.views:
            return self.views[source]
        starts_subgraph = node.op_type == "Reshape" and _folds_windows_into_batch(node)
        if node.op_type == "Transpose":
            perm = ir.get_attr(node, "perm")
            starts_subgraph = bool(perm) and perm[0] != 0
        return self._make_input_view(source) if starts_subgraph else None

    def _infer_transpose_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        """Return `view` with its axes permuted as by `node`, a Transpose: the view of its output.

        None without the attribute `perm`; also if the base is the transposed form of a graph input
        and the result has the batch on axis 0 again.
        """
        perm = ir.get_attr(node, "perm")
        if not perm:
            return None
        axes = tuple(view.axes[axis] for axis in perm)
        if view.base in self._input_transposes and axes[:1] == BATCH_AXIS:
            return None
        return replace(view, axes=axes)

    def _infer_gather_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        """Return the view of the output of a Gather by a constant scalar: one index of an axis.

        `view` describes the input by a tensor with the batch on axis 0. None if the index is
        computed or no scalar, or if the position cannot be cut out of that tensor.
        """
        index, axis = ir.const_value(node.inputs[1]), ir.get_attr(node, "axis", 0) % len(view.axes)
        if index is None or index.ndim:
            return None
        return self._slice_position(node, view, int(index), axis)

    def _infer_split_views(self, node: ir.Node) -> list[FactoredView]:
        """Return a view per output of a Split whose outputs have size 1 on the split axis.

        A view describes a tensor by one with the batch on axis 0. An empty list if the input has no
        view, if outputs have other sizes, or if a position cannot be cut out.
        """
        view = self.views.get(ir.require_input(node))
        if view is None:
            return []
        axis = ir.get_attr(node, "axis", 0) % len(view.axes)
        if math.prod(factor.size for factor in view.axes[axis]) != len(node.outputs):
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
        """Return the view of position `index` of axis `axis` of `view`, without that axis, or None.

        The axis must be a single factor, not the batch, that leads an axis of the base tensor. If
        it is the output features of a layer, the layer itself is reduced to them, so that a factor
        that follows can be folded into its weights; otherwise a pending Slice of the base is taken.
        """
        if len(view.axes[axis]) != 1:
            return None
        (factor,) = view.axes[axis]
        leading = [group[:1] for group in view.base_axes]
        if factor == BATCH_FACTOR or (factor,) not in leading:
            return None
        base_axis = leading.index((factor,))
        groups = list(view.base_axes)
        groups[base_axis] = groups[base_axis][1:]
        length = math.prod(inner.size for inner in groups[base_axis])
        start = index % factor.size * length
        part = None
        if base_axis == len(groups) - 1:
            part = slice_layer_outputs(view.base, start, groups[-1])
        if part is None:
            bounds = [np.array([n], np.int64) for n in (start, start + length, base_axis)]
            part = PendingNode(node, "Slice", ((view, view.base_axes), *bounds), {})
        return FactoredView(part, tuple(groups), view.axes[:axis] + view.axes[axis + 1 :])

    # ---- operators that compute ----

    def _separate_batch(self, view: FactoredView, count: int) -> FactoredAxes | None:
        """Return axes: the batch, then the other factors of `view`, then its last `count` axes.

        Each of the other factors becomes an axis; they become one axis if the rank would exceed
        `_MAX_RANK`. None if the batch is not a factor of the axes before the last `count`.
        """
        leading_count = len(view.axes) - count
        leading = flatten_axes(view.axes[:leading_count])
        if leading_count < 0 or BATCH_FACTOR not in leading:
            return None
        leading.remove(BATCH_FACTOR)
        axes: list[tuple[AxisFactor, ...]] = [(factor,) for factor in leading]
        if leading and 1 + len(leading) + count > _MAX_RANK:
            axes = [tuple(leading)]
        return (*BATCH_AXIS, *axes, *view.axes[leading_count:])

    def _infer_matmul_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        """Return the view of the output of a MatMul of `view` and a constant or another view.

        A view describes a tensor by one with the batch on axis 0. A constant must have two axes;
        two views need the same rank of at least 3 and the same leading axes. None in other cases.
        """
        weight = ir.const_value(node.inputs[1])
        if weight is not None:
            if weight.ndim != 2:
                return None
            return self._infer_linear_view(node, view, ir.require_input(node, 1), weight.shape[1])
        right_view = self.views.get(ir.require_input(node, 1))
        if right_view is None or len(right_view.axes) != len(view.axes) or len(view.axes) < 3:
            return None
        right_view = match_leading_axes(right_view, view.axes[:-2])
        return None if right_view is None else self._infer_product_view(node, view, right_view)

    def _infer_product_view(
        self, node: ir.Node, left: FactoredView, right: FactoredView
    ) -> FactoredView | None:
        """Return the view of the MatMul `node` of two viewed tensors with equal leading axes.

        The product will be computed with the batch on axis 0. None if the batch cannot be separated
        from the last two axes of an operand.
        """
        # the operands may be the same tensor, but rows and columns of the product are not
        columns = {factor: self._make_factor(factor.size) for factor in right.axes[-1]}
        right = substitute_factors(right, columns)
        left_axes, right_axes = self._separate_batch(left, 2), self._separate_batch(right, 2)
        if left_axes is None or right_axes is None or left_axes[:-2] != right_axes[:-2]:
            return None
        product = PendingNode(node, "MatMul", ((left, left_axes), (right, right_axes)), {})
        return FactoredView(
            product, (*left_axes[:-1], right_axes[-1]), (*left.axes[:-1], right.axes[-1])
        )

    def _infer_last_axis_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        """Return the view of the output of `node`, an operator along the last axis of `view`.

        The node will run on axis -1 with the batch moved to axis 0; None if the batch is not among
        the axes before the last.
        """
        target = self._separate_batch(view, 1)
        if target is None:
            return None
        attributes = {**_get_attributes(node), "axis": -1}
        pending = PendingNode(node, node.op_type, ((view, target), *node.inputs[1:]), attributes)
        return FactoredView(pending, target, view.axes)

    def _infer_linear_view(
        self, node: ir.Node, view: FactoredView, weight: ir.Value | np.ndarray, units: int
    ) -> FactoredView | None:
        """Return the view of `view` times `weight` [K, units], a MatMul with the batch on axis 0.

        None if the batch is not among the axes of `view` before the last.
        """
        target = self._separate_batch(view, 1)
        if target is None:
            return None
        last_axis = self._make_axis(units)
        return FactoredView(
            PendingNode(node, "MatMul", ((view, target), weight), {}),
            (*target[:-1], last_axis),
            (*view.axes[:-1], last_axis),
        )

    def _infer_gemm_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        """Return the view of the output of a Gemm of the viewed tensor, computed by MatMul and Add.

        None if the weight or bias is computed, if alpha or beta is not 1 or transA is set, or if
        the bias has not exactly one axis.
        """
        weight = ir.const_value(node.inputs[1])
        if weight is None or not _is_plain_gemm(node):
            return None
        bias_value = node.inputs[2] if len(node.inputs) > 2 else None
        bias = ir.const_value(bias_value)
        if bias_value is not None and bias is None:
            return None
        if ir.get_attr(node, "transB", 0):
            weight = weight.T
        product = self._infer_linear_view(node, view, np.ascontiguousarray(weight), weight.shape[1])
        if product is None or bias is None:
            return product
        if bias.ndim != 1:
            return None
        inputs = ((product, product.base_axes), bias_value)
        return replace(product, base=PendingNode(node, "Add", inputs, {}))

    def _infer_mean_view(self, node: ir.Node, view: FactoredView) -> FactoredView | None:
        """Return the view of the output of a ReduceMean of the viewed tensor along one axis.

        The mean is taken with the batch on axis 0. None for several axes, for an axis of several
        factors, and for the batch.
        """
        axes = ir.get_axes(node)
        if not axes or len(axes) != 1:
            return None
        axis = axes[0] % len(view.axes)
        if len(view.axes[axis]) != 1 or view.axes[axis] == (BATCH_FACTOR,):
            return None
        factors = [factor for factor in flatten_axes(view.axes) if factor != BATCH_FACTOR]
        target = (*BATCH_AXIS, *((factor,) for factor in factors))
        position = target.index(view.axes[axis])
        attributes: dict[str, Any] = {"keepdims": 0}
        operands: tuple[np.ndarray, ...] = ()
        if "axes" in node.attributes:
            attributes["axes"] = [position]
        else:
            operands = (np.array([position], np.int64),)
        mean = PendingNode(node, "ReduceMean", ((view, target), *operands), attributes)
        base_axes = target[:position] + target[position + 1 :]
        reduced_axis: FactoredAxes = ((),) if ir.get_attr(node, "keepdims", 1) else ()
        return FactoredView(
            mean, base_axes, view.axes[:axis] + reduced_axis + view.axes[axis + 1 :]
        )

    def _infer_binary_view(self, node: ir.Node) -> FactoredView | None:
        """Return the view of the output of an elementwise operator of two inputs.

        Both inputs may be viewed tensors (described by one with the batch on axis 0), or one of
        them and the other constant. None if neither has a view or the combination is not possible.
        """
        first = self.views.get(ir.require_input(node, 0))
        second = self.views.get(ir.require_input(node, 1))
        if first is not None and second is not None:
            return self._infer_elementwise_view(node, first, second)
        if first is not None:
            return self._infer_constant_view(node, first, 1)
        return None if second is None else self._infer_constant_view(node, second, 0)

    def _infer_elementwise_view(
        self, node: ir.Node, first: FactoredView, second: FactoredView
    ) -> FactoredView | None:
        """Return the view of the output of an elementwise operator on two viewed tensors.

        It has the axes of `first`, rearranged to the batch on axis 0 for the computation. None if
        the ranks differ, if the axes of `second` cannot be matched with those of `first`, or if
        `first` has no batch.
        """
        if len(first.axes) != len(second.axes):
            return None
        matched = match_leading_axes(second, first.axes)
        target = self._separate_batch(first, 0)
        if matched is None or target is None:
            return None
        pending = PendingNode(node, node.op_type, ((first, target), (matched, target)), {})
        return FactoredView(pending, target, first.axes)

    def _infer_constant_view(
        self, node: ir.Node, view: FactoredView, constant_index: int
    ) -> FactoredView | None:
        """Return the view of the output of an elementwise operator on `view` and a constant.

        `constant_index` is the constant's input index, 0 or 1. None if that input is computed or,
        after dropping a leading axis of size 1, has as many axes as `view`, or if the batch cannot
        be separated from the axes that the constant has.
        """
        constant = ir.require_input(node, constant_index)
        array = original = ir.const_value(constant)
        if array is None:
            return None
        if array.ndim == len(view.axes) and len(array) == 1:
            array = array[0]  # the same for all samples
        if array.ndim >= len(view.axes):
            return None
        target: FactoredAxes | None = view.base_axes
        if array.size != 1:
            target = self._separate_batch(view, array.ndim)
        if target is not None and array.size != 1 and len(target) > _MAX_RANK:
            array, target = _merge_trailing_axes(array, target)
        if target is None or array.ndim >= len(target):
            return None
        operand = constant if array is original else np.ascontiguousarray(array)
        inputs = ((view, target), operand) if constant_index == 1 else (operand, (view, target))
        return FactoredView(PendingNode(node, node.op_type, inputs, {}), target, view.axes)

    # ---- creating nodes ----

    def _materialize_output(self, node: ir.Node, value: ir.Value, view: FactoredView) -> None:
        """Create the tensor that `view` describes before `node`; consumers of `value` read it.

        `value` is the output of `node` that it replaces. The new tensor takes over its name; if it
        already has a name of its own, a graph output gets an Identity of it.
        """
        new_value = self._materialize_view(view, view.axes, node)
        if value.is_graph_output() and new_value not in self._unnamed_values:
            new_value = self._add_node("Identity", [new_value], {}, view.axes, node, node)
        value.replace_all_uses_with(new_value, replace_graph_outputs=True)
        if new_value in self._unnamed_values:  # it is the same tensor and takes over the name
            self._unnamed_values.remove(new_value)
            name, value.name = value.name, ir.unique_tensor_name(self.model, f"{value.name}_before")
            new_value.name = name

    def _materialize_view(
        self, view: FactoredView, target: FactoredAxes, position: ir.Node
    ) -> ir.Value:
        """Return the tensor that `view` describes, with its axes rearranged to `target`.

        Nodes of the base tensor, Reshape and Transpose are inserted before `position` as far as
        they are missing; a tensor built earlier is returned again.
        """
        value = self._materialize_base(view.base, view.base_axes, position)
        key = (view.base, target)
        if key not in self._built_values:
            self._built_values[key] = self._emit_permutation(
                value, view.base_axes, target, position
            )
        return self._built_values[key]

    def _materialize_base(
        self, base: ir.Value | PendingNode, axes: FactoredAxes, position: ir.Node
    ) -> ir.Value:
        """Return `base` if it is a tensor; if it is a node yet to be created, create it once.

        That node, and what its inputs need, is inserted before `position`; its output has the sizes
        of `axes`.
        """
        if not isinstance(base, PendingNode):
            return base
        key = (base, None)
        if key not in self._built_values:
            inputs = [self._materialize_input(base, i, position) for i in range(len(base.inputs))]
            self._built_values[key] = self._add_node(
                base.op_type, inputs, base.attributes, axes, base.node, position
            )
        return self._built_values[key]

    def _materialize_input(
        self, pending: PendingNode, index: int, position: ir.Node
    ) -> ir.Value | None:
        """Return input `index` of the node to be created, `pending`, as a tensor or None.

        An input (view, axes) is rearranged to these axes by nodes before `position`, an array
        becomes an initializer, and a tensor or None (an omitted input) is returned unchanged.
        """
        source = pending.inputs[index]
        if isinstance(source, tuple):
            return self._materialize_view(*source, position)
        if isinstance(source, np.ndarray):
            return self._add_constant(source, pending.node)
        return source

    def _emit_permutation(
        self, value: ir.Value, source: FactoredAxes, target: FactoredAxes, position: ir.Node
    ) -> ir.Value:
        """Return `value` rearranged from axes `source` to `target`, by nodes before `position`.

        Emits Reshape, Transpose, Reshape if the order of the factors differs, else one Reshape; no
        node if the axes are equal.
        """
        source_factors, target_factors = flatten_axes(source), flatten_axes(target)
        if source_factors != target_factors:
            runs = merge_adjacent_factors(source_factors, target_factors)
            order = sorted(range(len(runs)), key=lambda i: target_factors.index(runs[i][0]))
            value = self._emit_reshape(value, source, tuple(runs), position)
            source = tuple(runs[i] for i in order)
            value = self._add_node(
                "Transpose", [value], {"perm": order}, source, position, position
            )
        return self._emit_reshape(value, source, target, position)

    def _emit_reshape(
        self, value: ir.Value, source: FactoredAxes, target: FactoredAxes, position: ir.Node
    ) -> ir.Value:
        """Return `value` reshaped from axes `source` to `target` by a Reshape before `position`.

        Returns `value` itself if the axes are equal. The batch axis is 0 (copied) in the target
        shape if it stays axis 0, else -1.
        """
        if source == target:
            return value
        sizes = [-1 if BATCH_FACTOR in axis else _axis_size(axis) for axis in target]
        if target[0] == source[0] == (BATCH_FACTOR,):
            sizes[0] = 0
        shape = self._add_constant(np.array(sizes, np.int64), position)
        return self._add_node("Reshape", [value, shape], {}, target, position, position)

    def _add_constant(self, array: np.ndarray, origin: ir.Node) -> ir.Value:
        """Add `array` as an initializer named after the first output of `origin`.

        Return its value.
        """
        return ir.add_initializer(
            self.model, ir.unique_tensor_name(self.model, f"{origin.outputs[0].name}_const"), array
        )

    def _add_node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any],
        axes: FactoredAxes,
        origin: ir.Node,
        position: ir.Node,
    ) -> ir.Value:
        """Insert a node named after `origin` before the node `position`; return its output.

        The output has the element type of `origin` and the shape of `axes`; an axis that contains
        the batch and other factors has an unknown size.
        """
        name = ir.unique_tensor_name(self.model, f"{origin.outputs[0].name}_front")
        self._count += 1
        node = ir.make_node(
            op_type, inputs, attributes, origin=origin, suffix=f"front{self._count}", output=name
        )
        dims: list[ir.Dim] = []
        for axis in axes:
            if axis == (BATCH_FACTOR,):
                dims.append(self._batch)
            else:
                dims.append(None if BATCH_FACTOR in axis else _axis_size(axis))
        node.outputs[0].type = origin.outputs[0].type
        node.outputs[0].shape = ir.Shape(dims)
        self.model.graph.insert_before(position, node)
        self._unnamed_values.add(node.outputs[0])
        return node.outputs[0]


def _folds_windows_into_batch(node: ir.Node) -> bool:
    """Whether a Reshape folds parts of a sample into the batch axis, as window attention does.

    False if its input has a folded batch already, or if the result has fewer than three axes.
    """
    result = node.outputs[0]
    if not ir.has_folded_batch(result) or ir.has_folded_batch(ir.require_input(node)):
        return False
    return len(ir.get_shape(result) or ()) > 2


def _axis_size(axis: Sequence[AxisFactor]) -> int:
    """Return the size of an axis, the product of the sizes of its factors; 1 without factors."""
    return math.prod(factor.size for factor in axis)


def _is_plain_gemm(node: ir.Node) -> bool:
    """Whether a Gemm has alpha = beta = 1 and does not transpose its first operand."""
    if ir.get_attr(node, "transA", 0):
        return False
    return bool(ir.get_attr(node, "alpha", 1.0) == ir.get_attr(node, "beta", 1.0) == 1.0)


def _merge_trailing_axes(
    array: np.ndarray, target: FactoredAxes
) -> tuple[np.ndarray, FactoredAxes]:
    """Merge the last ``array.ndim`` axes of `target` to one; return (array, axes).

    `array`, an elementwise operand, is broadcast to the sizes of these axes and flattened to match.
    """
    trailing = target[-array.ndim :]
    sizes = [_axis_size(axis) for axis in trailing]
    merged_axis = tuple(flatten_axes(trailing))
    return np.broadcast_to(array, sizes).reshape(-1), (*target[: -len(trailing)], merged_axis)


def _get_attributes(node: ir.Node) -> dict[str, Any]:
    """Return the attributes of `node` as a dict of name to Python value."""
    return {name: ir.get_attr(node, name) for name in node.attributes}
