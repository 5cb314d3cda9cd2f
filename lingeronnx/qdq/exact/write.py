"""An integer graph in standard ONNX that gives its integers bit for bit, as far as it can be proved.

Each operator is written in the first of these ways that it has:

    plain      it moves or chooses: QuantizeLinear gets a number that stands for an integer exactly
    amount     the real operator, and half a step of its sum added to the result (`amounts`)
    table      a function of one number: Gather
    floor      a Quant: floor(x * scale + 1/2) as the simulator rounds it, then QuantizeLinear of a
    whole number function   a model-local function of operators on integers (`functions`), where
    they are wanted real       as `qdq.write`: not exact, and named
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel

from ...formats import DEQUANT, QUANT, Format
from ...formats.float_model import FloatNodeBuilder
from ...formats.layers import FloatLinear, WeightedIntegerOp
from ...graph import ir
from ...graph.attributes import get_number, get_scales
from ...plan import Affine
from ..qdq_writer import QdqGraph, QdqWriter
from .functions import DOMAIN, build_kernel_function
from .nodes import NotExactError
from .tie_offsets import (
    FLOAT32_EXACT_LIMIT,
    TieOffset,
    check_float32_sum,
    compute_operand_offsets,
    compute_tie_offset,
)

__all__ = ["ExactGraph", "write_exact"]

#: They move and choose integers, and round nothing.
_EXACT_KERNELS = (
    k.Clip,
    k.MaxPool,
    k.IndexSelect,
    k.Gather,
    k.Lookup,
    k.Split,
    k.Reshape,
    k.Transpose,
    k.Constant,
    k.Dequant,
)

_DOUBLE = int(ir.DataType.DOUBLE)


@dataclass(frozen=True)
class ExactGraph:
    """A graph with how its operators are written.

    standard : the graph. amounts : {tensor: what was added before its QuantizeLinear, to each
    operand where these are rounded}. functions : {tensor: what computes it}. approximate : {tensor:
    (operator, why it is not exact)}.
    """

    standard: QdqGraph
    tie_offsets: dict[str, tuple[float, ...]]
    function_of: dict[str, str]
    inexact: dict[str, tuple[str, str]]


def write_exact(model: ir.Model, functions: bool) -> ExactGraph:
    """Return the integer graph `model`, which is left as it is, in standard ONNX, exact where it can be.

    functions : whether operators that have no exact form in real numbers become functions of
    operators on integers. Raises ModelError where an operator has no counterpart at all.
    """
    writer = ExactWriter(ir.clone(model), with_functions=functions)
    standard = writer.run()
    for written in writer.functions.values():
        written.graph.opset_imports[""] = writer.opset
        standard.graph.functions[written.identifier()] = written
    if writer.functions:
        standard.graph.graph.opset_imports[DOMAIN] = 1
        standard.graph.ir_version = max(standard.graph.ir_version, 8)
    return ExactGraph(standard, writer.tie_offsets, writer.function_of, writer.inexact)


@dataclass
class ExactWriter(QdqWriter):
    """`qdq.write` with exact forms; see the module."""

    with_functions: bool = False
    tie_offsets: dict[str, tuple[float, ...]] = field(default_factory=dict)
    function_of: dict[str, str] = field(default_factory=dict)
    inexact: dict[str, tuple[str, str]] = field(default_factory=dict)
    functions: dict[str, ir.Function] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unsigned = True

    def write_node(
        self, op_format: Format, writer: FloatNodeBuilder, out: Sequence[Affine | None], bits: int
    ) -> list[ir.Value]:
        """Return the outputs of a node in the first exact form that it has, else their real values."""
        if op_format is DEQUANT:
            return op_format.build_float_nodes(writer)
        kernel = op_format.make_kernel(writer.info)
        if op_format is QUANT:
            return self._write_quant_floor(writer, kernel)
        if isinstance(kernel, _EXACT_KERNELS):
            return op_format.build_float_nodes(writer)
        where = str(writer.node.outputs[0].name)
        try:
            if isinstance(kernel, k.Table):
                return self._write_table(writer, kernel)
            return self._write_with_offset(op_format, writer, kernel, out[0], bits)
        except NotExactError as error:
            reason = str(error)
        if self.with_functions and not isinstance(kernel, FloatLinear):
            try:
                return self._write_function_call(op_format, writer, kernel)
            except NotExactError as error:
                reason = str(error)
        self.inexact[where] = (op_format.name, reason)
        return op_format.build_float_nodes(writer)

    # ---- with amounts --------------------------------------------------------------------------------------------

    def _write_with_offset(
        self,
        op_format: Format,
        writer: FloatNodeBuilder,
        kernel: Kernel,
        out: Affine | None,
        bits: int,
    ) -> list[ir.Value]:
        if isinstance(kernel, FloatLinear):
            check_float32_sum(
                kernel,
                [q.scale for _, q in self._operand_qparams(op_format, writer)],
                self._weight_scale(writer),
            )
            return op_format.build_float_nodes(writer)
        if out is None or out.zero_point:
            raise NotExactError("its output has a zero point")
        inputs = [q for _, q in self._operand_qparams(op_format, writer)]
        if any(q.zero_point for q in inputs):
            raise NotExactError("an input has a zero point")
        held = [q.scale for q in inputs]
        each = compute_operand_offsets(kernel, held, out.scale, bits)
        where = str(writer.node.outputs[0].name)
        if each is not None:
            added = [one.value for one in each]
            if any(added):
                self.tie_offsets[where] = tuple(added)
            rounds_each = isinstance(kernel, k.AddShift)
            operands = [
                self._write_operand(writer, index, value, out, rounds_each)
                for index, value in zip(op_format.kernel_inputs(writer.node), added, strict=True)
            ]
            for index, operand in zip(op_format.kernel_inputs(writer.node), operands, strict=True):
                writer.set_input_value(index, operand)
            return op_format.build_float_nodes(writer)
        shapes = [writer.info.input_shapes[index] for index in op_format.kernel_inputs(writer.node)]
        types = [
            np.dtype("int8" if q.bits <= 8 else "int16" if q.bits <= 16 else "int32")
            for q in inputs
        ]
        found = compute_tie_offset(
            kernel, held, shapes, types, self._weight_scale(writer), out.scale, bits
        )
        if found.value:
            self.tie_offsets[where] = (found.value,)
        if isinstance(kernel, k.Linear) and len(shapes[0]) != 2:
            return [self._write_row_product(op_format, writer, kernel, found)]
        (value,) = op_format.build_float_nodes(writer)
        return [self._add_half_step(writer, value, found.value) if found.value else value]

    def _write_row_product(
        self, op_format: Format, writer: FloatNodeBuilder, kernel: k.Linear, found: TieOffset
    ) -> ir.Value:
        """Return a product of rows less the negative of its bias and amount, as one number each where that is exact.

        onnxruntime makes a Gemm of a product and a sum (some releases cannot open what comes out),
        not of a difference.
        """
        assert isinstance(op_format, WeightedIntegerOp)
        unit = get_number(writer.attrs, "scale_x") * get_number(writer.attrs, "scale_w")
        x, weight = op_format.dequantize_inputs(writer, transposed=True)[:2]
        value = writer("MatMul", x, weight)
        bias = (
            np.zeros(len(kernel.weight)) if kernel.bias is None else np.asarray(kernel.bias) / unit
        )
        together = 2 * found.bound < FLOAT32_EXACT_LIMIT  # half steps, too, are integers of 24 bits
        value = writer(
            "Sub",
            value,
            writer.add_constant((-bias - found.value * together).astype(np.float32), "minus_bias"),
        )
        return (
            value
            if together or not found.value
            else self._add_half_step(writer, value, found.value)
        )

    def _weight_scale(self, writer: FloatNodeBuilder) -> float | None:
        """Return the one scale of a node's weight, None where there are several or it has no weight."""
        found = get_scales(writer.attrs, "scale_w") if "scale_w" in writer.attrs else None
        return None if isinstance(found, Sequence) else found

    def _add_half_step(self, writer: FloatNodeBuilder, value: ir.Value, half: float) -> ir.Value:
        return writer("Add", value, writer.add_constant(np.float32(half), "half_step"))

    def _write_operand(
        self, writer: FloatNodeBuilder, index: int, half: float, out: Affine, rounded: bool
    ) -> ir.Value:
        """Return operand `index` with its amount.

        `rounded`: brought to the integers of the output first.
        """
        value = writer.float_input(index)
        if not half:
            return value
        value = self._add_half_step(writer, value, half)
        if not rounded:
            return value
        parameters = [
            writer.step(str(value.name), out.scale),
            *writer.zero_point_inputs(ir.DataType.INT8),
        ]
        return writer("DequantizeLinear", writer("QuantizeLinear", value, *parameters), *parameters)

    def _write_quant_floor(self, writer: FloatNodeBuilder, kernel: Kernel) -> list[ir.Value]:
        """Return the real input, brought to the whole number that the simulator gives it.

        See `kernels.borders`.
        """
        x = writer.raw_input(0)
        assert isinstance(kernel, k.Quant)
        where = str(writer.node.outputs[0].name)
        if kernel.rule == "single":
            self.inexact[where] = (QUANT.name, "it rounds as the training side does")
            return [x]  # type: ignore[list-item]
        if kernel.rule == "luna" and kernel.scale < 1:
            self.inexact[where] = (
                QUANT.name,
                f"the executor computes a scale of {kernel.scale:g} wrongly",
            )
            return [x]  # type: ignore[list-item]
        single = kernel.rule == "luna"
        kind = np.float32 if single else np.float64
        scaled, half, back = (
            writer.add_constant(np.asarray(value, kind), what)
            for value, what in (
                (kernel.scale, "counts"),
                (0.5, "half"),
                (1.0 / kernel.scale, "unit"),
            )
        )
        wide = x if single else writer("Cast", x, to=_DOUBLE)
        whole = writer("Floor", writer("Add", writer("Mul", wide, scaled), half))
        value = writer("Mul", whole, back)
        return [value if single else writer("Cast", value, to=int(ir.DataType.FLOAT))]

    def _write_table(self, writer: FloatNodeBuilder, kernel: k.Table) -> list[ir.Value]:
        """Return the integers that a table gives."""
        place = writer("Cast", self._integer_input(writer, 0), to=int(ir.DataType.INT64))
        place = writer(
            "Add", place, writer.add_constant(np.int64(kernel.values.size // 2), "middle")
        )
        entries = writer(
            "Gather", writer.add_constant(np.reshape(kernel.values, -1), "entries"), place, axis=0
        )
        self.integer_values.add(entries)
        return [entries]

    # ---- functions -----------------------------------------------------------------------------------------------

    def _write_function_call(
        self, op_format: Format, writer: FloatNodeBuilder, kernel: Kernel
    ) -> list[ir.Value]:
        """Return a call of the kernel's function, on the integers of the inputs."""
        operands = op_format.kernel_inputs(writer.node)
        inputs = [self._integer_input(writer, index) for index in operands]
        types = [np.dtype(value.dtype.numpy()) for value in inputs]  # type: ignore[union-attr]
        shapes = [writer.info.input_shapes[index] for index in operands]
        name = f"{op_format.name}_{len(self.functions)}"
        written = build_kernel_function(kernel, name, shapes, types, self.opset)
        kept = getattr(kernel, "output_indices", range(len(written.outputs)))
        call = ir.node(
            name,
            inputs,
            {},
            domain=DOMAIN,
            num_outputs=len(written.outputs),
            name=f"{writer.node.name}_{name}",
        )
        ir.mark_origin(call, writer.node)
        for value, index in zip(call.outputs, kept, strict=True):
            value.name = self._name(f"{writer.node.outputs[index].name}_integers")
            self.function_of[str(writer.node.outputs[index].name)] = name
        writer.nodes.append(call)
        self.integer_values.update(call.outputs)
        self.functions[name] = written
        placed = dict(zip(kept, call.outputs, strict=True))
        return [placed.get(index, call.outputs[0]) for index in range(len(writer.node.outputs))]

    def _operand_qparams(
        self, op_format: Format, writer: FloatNodeBuilder
    ) -> list[tuple[int, Affine]]:
        """Return the operands of a node with how each is held."""
        found = []
        for index in op_format.kernel_inputs(writer.node):
            q = writer.input_qparams(index)
            if q is None:
                raise NotExactError(f"the scale of its input {index} is not known")
            found.append((index, q))
        return found

    def _integer_input(self, writer: FloatNodeBuilder, index: int) -> ir.Value:
        """Return the integers of operand `index`."""
        value = writer.node.inputs[index]
        held = None if value is None else self.held.get(value)
        integers = (
            value if index in writer.info.constants else None if held is None else held.integers
        )
        if integers is None or integers.dtype is None:
            raise NotExactError(f"its input {index} is held in real numbers")
        if np.dtype(integers.dtype.numpy()) not in (np.int8, np.int16, np.int32):
            raise NotExactError(f"its input {index} is {integers.dtype.name}")
        return integers
