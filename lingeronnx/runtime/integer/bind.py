"""Convert nodes of an integer graph to simulator steps, and infer types and scales.

Float nodes between integer ones become steps as well (`runners.FloatFallback`). Knows operators
only through `integer_ops`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simulator.kernel import SimulatorError, Step, TensorSpec

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes
from ...ir.plan import Affine
from ...operators.integer_ops import (
    Format,
    KernelInfo,
    find_nonzero_zero_point,
    is_quantized_domain,
    read_attributes,
    require_integer_op,
)
from ..runners import FallbackSessionCache, FloatFallback
from .dialects import ArithmeticSide

if TYPE_CHECKING:
    from simulator.kernel import Kernel

__all__ = ["Binder", "BoundGraph", "bind_kernel"]


class BoundGraph(NamedTuple):
    """Steps of a graph, the type of every tensor, and quantization parameters of integer tensors.

    held : quantization parameters by tensor. integer_names : {tensor that the graph does not have:
    the float tensor of the graph whose integers it contains}.
    """

    steps: Sequence[Step]
    specs: Mapping[str, TensorSpec]
    held: Mapping[str, Affine]
    integer_names: Mapping[str, str]


class Binder:
    """Converts nodes of an integer graph to simulator steps.

    Parameters
    ----------
    model
        The integer graph.
    side
        Whose arithmetic is computed: the executor's or the training library's.
    consts
        Constants by name.
    specs
        Types and shapes of the fed tensors.
    batched
        Whether axis 0 is the batch axis.
    keep
        Tensors inside of consecutive float nodes to output; None for all with a batch axis.
    fallback_sessions
        {digest: session} of float nodes, to share and to add to; None for no sharing.

    Attributes
    ----------
    specs, held, steps
        Results of `run`: types of all tensors, quantization parameters of integer ones, and steps.
    integer_names
        {integers of an output that a node writes as float: that output}; the graph has no such
        tensors.
    """

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
        """Store the arguments, and begin without steps; `specs` (tensor -> spec) is copied.

        `keep` are inner tensors of float nodes to output, None for all with a batch axis.
        """
        self._model, self._side, self._consts = model, side, consts
        self._batched, self._keep = batched, keep
        self._fallback_sessions = fallback_sessions
        self.specs = dict(specs)
        self.held: dict[str, Affine] = {}
        self.steps: list[Step] = []
        self.integer_names: dict[str, str] = {}
        self._used_names = {str(v.name) for v in ir.iter_values(model)}
        self._pending: list[ir.Node] = []

    def run(self, nodes: Sequence[ir.Node] | None = None) -> None:
        """Convert `nodes`, or all nodes; fill `steps`, `specs`, `held` and `integer_names`.

        Consecutive float nodes are collected into one step until an integer node depends on them.
        Nodes whose outputs all have specs already are skipped. Raises ModelError for nodes that are
        not supported.
        """
        for node in self._model.graph if nodes is None else nodes:
            if all(str(v.name) in self.specs for v in node.outputs if v.name):
                continue  # a Quant whose output is fed, already quantized
            if node.op_type == "Constant" and not node.domain:
                continue
            op_format = self._integer_format(node)
            if op_format is None:
                self._pending.append(node)
                continue
            if self._pending and self._depends_on_pending(node):
                self._append_float_fallback()
            self._bind_node(op_format, node)
        if self._pending:
            self._append_float_fallback()

    def _depends_on_pending(self, node: ir.Node) -> bool:
        """Whether `node` consumes an output of the float nodes that are not converted yet."""
        pending_outputs: set[str] = set()
        for pending in self._pending:
            pending_outputs.update(str(value.name) for value in pending.outputs)
        return any(value is not None and value.name in pending_outputs for value in node.inputs)

    def _integer_format(self, node: ir.Node) -> Format | None:
        """Return the format of a node that computes on integers, or None for a float node.

        A standard ONNX operator computes on integers if its first input is an integer tensor of
        less than 64 bits. Raises ModelError for an unknown operator of the quantized domains.
        """
        op_format = require_integer_op(node)
        if is_quantized_domain(node):
            return op_format
        if op_format is None or op_format.domain:
            return None
        source = str(node.inputs[0].name) if node.inputs and node.inputs[0] is not None else ""
        spec = self.specs.get(
            source, self._consts.get(source)
        )  # a Gather may read a constant table
        if spec is None or spec.dtype.kind != "i" or spec.dtype.itemsize >= 8:
            return None
        return op_format

    def _bind_node(self, op_format: Format, node: ir.Node) -> None:
        """Append the steps of an integer node, and record the qparams of its outputs.

        Constant inputs become steps. An output that the graph declares as float is written as
        integers under a new name and then dequantized. Raises ModelError for missing inputs, or
        scales that differ from the producers'.
        """
        attrs = read_attributes(op_format, node)
        names = [str(v.name) if v is not None else "" for v in node.inputs]
        consts = {i: self._consts[name] for i, name in enumerate(names) if name in self._consts}
        for index in op_format.kernel_inputs(node):
            if index in consts:
                self._append_constant(names[index], consts[index])
            elif names[index] not in self.specs:
                raise ModelError(
                    f"{node.op_type} {node.name}: no node computes its input '{names[index]}'; "
                    "the file is corrupt"
                )
        self._check_scales(op_format, node, attrs, names)
        self._check_zero_point_support(node, attrs)
        input_specs = [self.specs.get(name) for name in names]
        info = KernelInfo(
            node,
            attrs,
            consts,
            self._side.arithmetic(op_format, node),
            [() if spec is None else spec.shape for spec in input_specs],
            self._batched,
            [None if spec is None else spec.dtype for spec in input_specs],
        )
        kernel = bind_kernel(op_format, info)
        inputs = tuple(names[i] for i in op_format.kernel_inputs(node))
        float_outputs = {str(node.outputs[i].name) for i in op_format.float_outputs(info)}
        integer_names = {}
        for value in node.outputs:
            if value.name in float_outputs:
                integer_names[value.name] = ir.unique_name(f"{value.name}_q", self._used_names)
        outputs = [str(value.name) for value in node.outputs if value.name]
        self._append(Step(kernel, inputs, tuple(integer_names.get(name, name) for name in outputs)))
        input_qparams = [self.held.get(name) for name in names]
        output_qparams = op_format.all_output_qparams(info, input_qparams)
        for value, qparams in zip(node.outputs, output_qparams, strict=False):
            if not value.name or qparams is None:
                continue
            if value.name in float_outputs:
                self._append_dequant(value.name, integer_names[value.name], qparams.scale)
            else:
                bits = 8 * self.specs[value.name].dtype.itemsize
                self.held[value.name] = qparams.changed(bits=bits)

    def _check_zero_point_support(self, node: ir.Node, attrs: Attributes) -> None:
        """Raise ModelError if `attrs` has a nonzero zero point and the target supports only 0."""
        if self._side.target.zero_points:
            return
        key = find_nonzero_zero_point(attrs)
        if key is not None:
            raise ModelError(
                f"{node.op_type} {node.name}: {key} = {attrs[key]}; "
                f"{self._side.target.name} supports only zero point 0"
            )

    def _append_dequant(self, name: str, integer_name: str, scale: float) -> None:
        """Append a step that dequantizes `integer_name` to tensor `name`: integer / scale.

        Records that the graph has no tensor `integer_name`.
        """
        from simulator.kernels import Dequant

        self._append(Step(Dequant(scale), (integer_name,), (name,)))
        self.integer_names[integer_name] = name
        self._used_names.add(integer_name)

    def _check_scales(
        self, op_format: Format, node: ir.Node, attrs: Attributes, names: Sequence[str]
    ) -> None:
        """Raise ModelError unless `node` expects the scales and zero points of its producers.

        `names` are its inputs. Inputs without known parameters are not checked.
        """
        expected = op_format.input_qparams(attrs)
        for index, qparams in expected.items():
            actual = self.held.get(names[index]) if index < len(names) else None
            if actual is not None and actual.scale != qparams.scale:
                raise ModelError(
                    f"{node.op_type} {node.name}: reads '{names[index]}' at scale "
                    f"{qparams.scale:g}, its producer writes {actual.scale:g}; "
                    "repair the graph with fix-dequant"
                )
        for index, name in enumerate(names):
            if name not in self.held:
                continue
            zero_point = self.held[name].zero_point
            expected_zero_point = 0
            if index in expected:
                expected_zero_point = expected[index].zero_point
            elif op_format.supports_zero_points:
                expected_zero_point = zero_point
            if zero_point != expected_zero_point:
                raise ModelError(
                    f"{node.op_type} {node.name}: reads '{name}' with zero point "
                    f"{expected_zero_point}, its producer writes {zero_point}; "
                    "quantize the model again"
                )

    def _append_constant(self, name: str, array: np.ndarray) -> None:
        """Append a step that outputs `array` as tensor `name`, unless that exists already."""
        from simulator.kernels import Constant

        if name not in self.specs:
            self._append(Step(Constant(array), (), (name,)))

    def _append(self, step: Step) -> None:
        """Append a step, and infer the specs of its outputs.

        Raises ModelError if an input is not computed, or the kernel does not support its inputs.
        """
        for name in step.inputs:
            if name not in self.specs:
                raise ModelError(
                    f"the node that writes '{step.outputs[0]}': its input '{name}' is neither "
                    "computed nor a constant; a graph input with a default value is not a "
                    "constant, store it only as an initializer"
                )
        self.steps.append(step)
        try:
            results = step.kernel.infer(*(self.specs[name] for name in step.inputs))
        except SimulatorError as error:
            raise ModelError(
                f"the node that writes '{step.outputs[0]}': {error}; check the shapes and types in "
                "the file, or quantize the model again, with data of the size that it will see"
            ) from error
        if len(results) < len(step.outputs):
            raise ModelError(
                f"the node that writes '{step.outputs[0]}': it has {len(step.outputs)} outputs; "
                f"its operator has {len(results)}"
            )
        self.specs.update(zip(step.outputs, results, strict=False))

    def _append_float_fallback(self) -> None:
        """Append the collected float nodes as one step, and clear the collection.

        No step is appended if none of their outputs is used. Inner tensors in `keep` (with None,
        all) are outputs too, if they have a batch axis (axis 0 of size 1 or unknown).
        """
        inner = set()
        for node in self._pending:
            for value in node.outputs:
                has_batch_axis = (ir.get_shape(value) or (0,))[0] in (None, 1)
                if has_batch_axis:
                    inner.add(str(value.name))
        keep = inner if self._keep is None else inner & set(self._keep)
        fallback = FloatFallback(self._model, self._pending, keep, self._fallback_sessions)
        self._pending = []
        if fallback.outputs:
            self._append(Step(fallback, fallback.inputs, fallback.outputs))


def bind_kernel(op_format: Format, info: KernelInfo) -> Kernel:
    """Return the simulator kernel of the node in `info`, whose operator is `op_format`.

    Raises
    ------
    ModelError
        If the simulator does not support the node; the message names it.
    InternalError
        If the target has another kind of arithmetic for the operator.
    """
    info.expect_arithmetic(op_format.kind)
    try:
        return op_format.make_kernel(info)
    except ModelError:
        raise
    except (ArithmeticError, ValueError) as error:
        problem = str(error)
        if isinstance(error, ArithmeticError):
            problem = f"an attribute is 0 or too large ({error})"
        raise ModelError(
            f"{info.label}: {problem}; its scales, widths or zero points do not fit each other: "
            "quantize the model again, with data of the size that it will see, or set other scales "
            "with --override"
        ) from error
