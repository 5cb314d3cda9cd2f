"""Nodes of an integer graph as simulator steps, types and scales inferred on the way.

Float nodes between integer ones become steps too (`runners.FloatFallback`). Knows operators only
through `formats`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.kernel import SimulatorError, Step, TensorSpec

from ...errors import ModelError
from ...formats import (
    Format,
    KernelInfo,
    find_nonzero_zero_point,
    is_quantized_domain,
    read_attributes,
    require_integer_op,
)
from ...graph import ir
from ...graph.attributes import Attributes
from ...plan import Affine
from ..runners import FallbackSessionCache, FloatFallback
from .dialects import ArithmeticSide

if TYPE_CHECKING:
    from simulator.kernel import Kernel

__all__ = ["Binder", "BoundGraph", "bind_kernel"]


@dataclass(frozen=True)
class BoundGraph:
    """The steps of a graph, and of every tensor its type, of the integer ones how they are held.

    integer_names : {tensor that the graph does not have: the float tensor of the graph whose
    integers it holds}
    """

    steps: Sequence[Step]
    specs: Mapping[str, TensorSpec]
    held: Mapping[str, Affine]
    integer_names: Mapping[str, str]


class Binder:
    """Turns the nodes of an integer graph into simulator steps, inferring types on the way."""

    def __init__(
        self,
        model: ir.Model,
        side: ArithmeticSide,
        consts: Mapping[str, Any],
        specs: Mapping[str, TensorSpec],
        batched: bool,
        keep: Collection[str] | None = (),
        fallback_sessions: FallbackSessionCache | None = None,
    ) -> None:
        self._model, self._side, self._consts, self._batched, self._keep = (
            model,
            side,
            consts,
            batched,
            keep,
        )
        self._opened = fallback_sessions
        self.specs = dict(specs)
        self.held: dict[str, Affine] = {}
        self.steps: list[Step] = []
        #: Tensors that the graph does not have: the integers behind an output that a node writes in float.
        self.integer_names: dict[str, str] = {}
        self._taken = {str(v.name) for v in ir.iter_values(model)}
        self._pending: list[ir.Node] = []

    def run(self, nodes: Sequence[ir.Node] | None = None) -> None:
        """Fill `steps`, `specs` of every tensor and `held` of the integer ones, for some nodes or all."""
        for node in self._model.graph if nodes is None else nodes:
            if all(str(v.name) in self.specs for v in node.outputs if v.name):
                continue  # a Quant whose output is fed, already quantized
            if node.op_type == "Constant" and not node.domain:
                continue
            form = self._integer_format(node)
            if form is None:
                self._pending.append(node)
                continue
            waiting = {str(v.name) for n in self._pending for v in n.outputs}
            if any(v is not None and v.name in waiting for v in node.inputs):
                self._append_float_fallback()
            self._bind_node(form, node)
        self._append_float_fallback()

    def _integer_format(self, node: ir.Node) -> Format | None:
        form = require_integer_op(node)
        if is_quantized_domain(node):
            return form
        if form is None or form.domain:
            return None
        source = str(node.inputs[0].name) if node.inputs and node.inputs[0] is not None else ""
        known = self.specs.get(
            source, self._consts.get(source)
        )  # a Gather may read a constant table
        return (
            form
            if known is not None and known.dtype.kind == "i" and known.dtype.itemsize < 8
            else None
        )

    def _bind_node(self, op_format: Format, node: ir.Node) -> None:
        attrs = read_attributes(op_format, node)
        names = [str(v.name) if v is not None else "" for v in node.inputs]
        consts = {i: self._consts[name] for i, name in enumerate(names) if name in self._consts}
        for index in op_format.kernel_inputs(node):
            if index in consts:
                self._append_constant(names[index], consts[index])
            elif names[index] not in self.specs:
                raise ModelError(
                    f"{node.op_type} {node.name}: its input '{names[index]}' is computed nowhere; "
                    "the file is damaged"
                )
        self._check_scales(op_format, node, attrs, names)
        if (
            not self._side.target.zero_points
            and (key := find_nonzero_zero_point(attrs)) is not None
        ):
            raise ModelError(
                f"{node.op_type} {node.name}: {key} = {attrs[key]}; "
                f"on {self._side.target.name} the integer 0 stands for 0"
            )
        bound = KernelInfo(
            node,
            attrs,
            consts,
            self._side.arithmetic(op_format, node),
            [self.specs[name].shape if name in self.specs else () for name in names],
            self._batched,
            [self.specs[name].dtype if name in self.specs else None for name in names],
        )
        fn = bind_kernel(op_format, bound)
        inputs = tuple(names[i] for i in op_format.kernel_inputs(node))
        reals = {str(node.outputs[i].name) for i in op_format.float_outputs(bound)}
        outputs = tuple(str(v.name) for v in node.outputs if v.name)
        inside = {
            name: ir.unique_name(f"{name}_q", self._taken) for name in outputs if name in reals
        }
        self._append(Step(fn, inputs, tuple(inside.get(name, name) for name in outputs)))
        written = op_format.all_output_qparams(bound, [self.held.get(name) for name in names])
        for value, q in zip(node.outputs, written, strict=False):
            if value.name in reals and q is not None:
                self._append_dequant(value.name, inside[value.name], q.scale)
            elif value.name and q is not None:
                self.held[value.name] = q.changed(bits=8 * self.specs[value.name].dtype.itemsize)

    def _append_dequant(self, name: str, held: str, scale: float) -> None:
        """Dequantize the integers `held` of tensor `name`."""
        from simulator.kernels import Dequant

        self._append(Step(Dequant(scale), (held,), (name,)))
        self.integer_names[held] = name
        self._taken.add(held)

    def _check_scales(
        self, op_format: Format, node: ir.Node, attrs: Attributes, names: Sequence[str]
    ) -> None:
        read = op_format.input_qparams(attrs)
        for index, q in read.items():
            own = self.held.get(names[index]) if index < len(names) else None
            if own is not None and own.scale != q.scale:
                raise ModelError(
                    f"{node.op_type} {node.name}: reads '{names[index]}' at scale {q.scale:g}, its "
                    "producer writes "
                    f"{own.scale:g}; repair the graph with fix-dequant"
                )
        for index, name in enumerate(names):
            if name not in self.held:
                continue
            zero = self.held[name].zero_point
            taken = (
                read[index].zero_point
                if index in read
                else zero
                if op_format.supports_zero_points
                else 0
            )
            if zero != taken:
                raise ModelError(
                    f"{node.op_type} {node.name}: reads '{name}' with zero point {taken}, its "
                    f"producer writes {zero}; "
                    "quantize the model again"
                )

    def _append_constant(self, name: str, array: np.ndarray) -> None:
        from simulator.kernels import Constant

        if name not in self.specs:
            self._append(Step(Constant(array), (), (name,)))

    def _append(self, call: Step) -> None:
        if lost := next((name for name in call.inputs if name not in self.specs), ""):
            raise ModelError(
                f"the node that writes '{call.outputs[0]}': its input '{lost}' is neither computed "
                "nor a constant; a "
                "graph input with a default value is none, store it as a constant alone"
            )
        self.steps.append(call)
        try:
            results = call.kernel.infer(*(self.specs[name] for name in call.inputs))
        except SimulatorError as error:
            raise ModelError(f"the node that writes '{call.outputs[0]}': {error}") from error
        if len(results) < len(call.outputs):
            raise ModelError(
                f"the node that writes '{call.outputs[0]}': it has {len(call.outputs)} outputs; "
                "its operator gives "
                f"{len(results)}"
            )
        self.specs.update(zip(call.outputs, results, strict=False))

    def _append_float_fallback(self) -> None:
        if self._pending:
            results = [v for node in self._pending for v in node.outputs]
            inner = {
                str(v.name) for v in results if (ir.get_shape(v) or (0,))[0] in (None, 1)
            }  # those with a batch axis
            keep = inner if self._keep is None else inner & set(self._keep)
            fallback = FloatFallback(self._model, self._pending, keep, self._opened)
            self._pending = []
            if fallback.outputs:  # else nobody reads what they compute
                self._append(Step(fallback, fallback.inputs, fallback.outputs))


def bind_kernel(op_format: Format, bound: KernelInfo) -> Kernel:
    """Return the kernel of a bound node.

    What the simulator refuses becomes a ModelError naming the node.
    Raises InternalError for a platform's row that has an arithmetic of another kind for the
    operator.
    """
    bound.expect_arithmetic(op_format.kind)
    try:
        return op_format.make_kernel(bound)
    except ModelError:
        raise
    except ValueError as error:
        raise ModelError(f"{bound.label}: {error}") from error
