"""Write an integer graph in standard ONNX that computes its integers bit-exactly where provable.

Each operator is written in the first of these forms that applies:

    plain      data movement or selection: the input of QuantizeLinear is exactly an integer
    offset     the float operator, with half a step of its sum added to the result (`tie_offsets`)
    table      an elementwise function: Gather
    floor      a Quant: floor(x * scale + 1/2) as the simulator rounds, then QuantizeLinear
    function   a model-local function of integer operators (`WRITERS`), if requested
    float      as `qdq_writer` does: not exact, and reported
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel

from ....common.errors import ModelError
from ....ir import ir
from ....ir.attributes import get_number, get_scales
from ....ir.plan import Affine
from ....operators.exact_nodes import IntegerNodes, NotExactError, Shapes
from ....operators.float_model import FloatNodeBuilder
from ....operators.integer_ops import DEQUANT, QUANT, Format, WeightedIntegerOp
from ....operators.linear.integer_op import FloatLinear
from ....runtime.integer.bind import bind_kernel
from ..qdq_writer import QdqGraph, QdqWriter
from .tie_offsets import (
    FLOAT32_EXACT_LIMIT,
    TieOffset,
    check_float32_sum,
    compute_operand_offsets,
    compute_tie_offset,
)
from .writers import WRITERS

__all__ = ["DOMAIN", "ExactGraph", "build_kernel_function", "write_exact"]

#: Kernels that move or select integers, and do not round.
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

#: Domain of the functions.
DOMAIN = "lingeronnx.integers"


@dataclass(frozen=True)
class ExactGraph:
    """A standard graph, and how its operators are written.

    Attributes
    ----------
    standard
        The graph.
    tie_offsets
        Tensor -> offset before its QuantizeLinear, or offsets of the operands if these are rounded.
    sum_bounds
        Tensor -> proven bound of the magnitude of its sums, in steps, for each of `tie_offsets`.
    function_of
        Tensor -> name of the function that computes it.
    inexact
        Tensor -> (operator, reason why it is not exact).
    """

    standard: QdqGraph
    tie_offsets: dict[str, tuple[float, ...]]
    sum_bounds: dict[str, int]
    function_of: dict[str, str]
    inexact: dict[str, tuple[str, str]]


def write_exact(model: ir.Model, functions: bool) -> ExactGraph:
    """Write an integer graph in standard ONNX, bit-exact where provable.

    Parameters
    ----------
    model
        Integer graph; not modified.
    functions
        Whether operators without an exact float form become functions of integer operators.

    Returns
    -------
    ExactGraph
        The graph, its tie offsets and functions by tensor, and the tensors that are not exact, with
        the reason.

    Raises
    ------
    ModelError
        If an operator has no counterpart in standard ONNX.
    """
    writer = ExactWriter(model.clone(), with_functions=functions)
    standard = writer.run()
    for function in writer.functions.values():
        function.graph.opset_imports[""] = writer.opset
        standard.graph.functions[function.identifier()] = function
    if writer.functions:
        standard.graph.graph.opset_imports[DOMAIN] = 1
        standard.graph.ir_version = max(standard.graph.ir_version, 8)
    return ExactGraph(
        standard, writer.tie_offsets, writer.sum_bounds, writer.function_of, writer.inexact
    )


@dataclass
class ExactWriter(QdqWriter):
    """Writes an integer graph in standard ONNX, in forms that are bit-exact where that is provable.

    It takes a copy of the graph, and records how each operator is written.
    """

    with_functions: bool = False
    tie_offsets: dict[str, tuple[float, ...]] = field(default_factory=dict)
    sum_bounds: dict[str, int] = field(default_factory=dict)
    function_of: dict[str, str] = field(default_factory=dict)
    inexact: dict[str, tuple[str, str]] = field(default_factory=dict)
    functions: dict[str, ir.Function] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Initialize the state of the writer.

        8-bit constants are stored as uint8 with zero point 128.
        """
        super().__post_init__()
        self.unsigned = True

    def _require_input_shapes(self, op_format: Format, writer: FloatNodeBuilder) -> None:
        """Raise ModelError if an integer operand of the node of `writer` has no known shape.

        Shapes in the file and inferred ones count; exact forms depend on them.
        """
        for index in op_format.kernel_inputs(writer.node):
            value = writer.node.inputs[index]
            if value is None or ir.get_shape(value) is not None or value in self.inferred_shapes:
                continue
            raise ModelError(
                f"{writer.info.label}: the shape of its input '{value.name}' is unknown; exact "
                "forms depend on it: store the shapes with onnx.shape_inference.infer_shapes "
                "after lingeronnx.register_schemas()"
            )

    def write_node(
        self, op_format: Format, writer: FloatNodeBuilder, out: Sequence[Affine | None], bits: int
    ) -> list[ir.Value]:
        """Append the first exact form of a node that applies to `writer`; return the outputs.

        `out` and `bits` are the quantization parameters and width of the outputs. Dequants, and
        kernels that only move or select integers, are exact in the usual float form. Others are
        tried as table or with an offset that rounds ties up, then as a function if
        `with_functions`. What remains takes the float form and is recorded in `inexact` with the
        last reason.
        """
        if op_format is DEQUANT:
            return op_format.build_float_nodes(writer)
        self._require_input_shapes(op_format, writer)
        kernel = bind_kernel(op_format, writer.info)
        if op_format is QUANT:
            return self._write_quant_floor(writer, kernel)
        if isinstance(kernel, _EXACT_KERNELS):
            return op_format.build_float_nodes(writer)
        tensor = str(writer.node.outputs[0].name)
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
        self.inexact[tensor] = (op_format.name, reason)
        return op_format.build_float_nodes(writer)

    # ---- offsets ---------------------------------------------------------------------------------

    def _write_with_offset(
        self,
        op_format: Format,
        writer: FloatNodeBuilder,
        kernel: Kernel,
        out: Affine | None,
        bits: int,
    ) -> list[ir.Value]:
        """Append the float operator with offsets that make its rounding exact; return its outputs.

        `out` and `bits` are the quantization parameters and the width of the output. Offsets other
        than 0 are recorded in `tie_offsets`. NotExactError if no offset makes it exact, or an input
        or the output has a zero point.
        """
        operand_indices = op_format.kernel_inputs(writer.node)
        if isinstance(kernel, FloatLinear):
            scales = [qparams.scale for qparams in self._operand_qparams(op_format, writer)]
            check_float32_sum(kernel, scales, self._weight_scale(writer))
            return op_format.build_float_nodes(writer)
        if out is None or out.zero_point:
            raise NotExactError("its output has a zero point")
        inputs = self._operand_qparams(op_format, writer)
        if any(qparams.zero_point for qparams in inputs):
            raise NotExactError("an input has a zero point")
        scales = [qparams.scale for qparams in inputs]
        operand_offsets = compute_operand_offsets(kernel, scales, out.scale, bits)
        if operand_offsets is not None:
            return self._write_with_operand_offsets(op_format, writer, kernel, out, operand_offsets)
        shapes = [writer.info.input_shapes[index] for index in operand_indices]
        types = [_integer_dtype(qparams.bits) for qparams in inputs]
        offset = compute_tie_offset(
            kernel, scales, shapes, types, self._weight_scale(writer), out.scale, bits
        )
        if offset.value:
            self._record_offsets(writer, (offset,))
        if isinstance(kernel, k.Linear) and len(shapes[0]) != 2:
            return [self._write_row_product(op_format, writer, kernel, offset)]
        (value,) = op_format.build_float_nodes(writer)
        return [self._add_half_step(writer, value, offset.value) if offset.value else value]

    def _record_offsets(self, writer: FloatNodeBuilder, offsets: Sequence[TieOffset]) -> None:
        """Record `offsets` by the name of the node's output, and the largest bound of its sums."""
        name = str(writer.node.outputs[0].name)
        self.tie_offsets[name] = tuple(offset.value for offset in offsets)
        self.sum_bounds[name] = max(offset.bound for offset in offsets)

    def _write_with_operand_offsets(
        self,
        op_format: Format,
        writer: FloatNodeBuilder,
        kernel: Kernel,
        out: Affine,
        offsets: Sequence[TieOffset],
    ) -> list[ir.Value]:
        """Write the float operator of a kernel that requantizes its operands separately.

        `offsets` has one offset per operand, added before the operator. Operands of an AddShift
        with an offset other than 0 are also rounded to the integers of `out` and dequantized.
        """
        values = tuple(offset.value for offset in offsets)
        if any(values):
            self._record_offsets(writer, offsets)
        operand_indices = op_format.kernel_inputs(writer.node)
        rounds_operands = isinstance(kernel, k.AddShift)
        operands = [
            self._write_operand(writer, index, value, out, rounds_operands)
            for index, value in zip(operand_indices, values, strict=True)
        ]
        for index, operand in zip(operand_indices, operands, strict=True):
            writer.set_input_value(index, operand)
        return op_format.build_float_nodes(writer)

    def _write_row_product(
        self, op_format: Format, writer: FloatNodeBuilder, kernel: k.Linear, offset: TieOffset
    ) -> ir.Value:
        """Append a MatMul and a Sub of the negated bias; return the result.

        The bias includes `offset` if that is exact, else an Add follows. onnxruntime fuses a
        product and a sum to a Gemm, which some releases cannot open, but not a product and a
        difference.
        """
        assert isinstance(op_format, WeightedIntegerOp)
        unit = get_number(writer.attrs, "scale_x") * get_number(writer.attrs, "scale_w")
        x, weight = op_format.dequantize_inputs(writer, transposed=True)[:2]
        product = writer("MatMul", x, weight)
        bias = np.zeros(len(kernel.weight))
        if kernel.bias is not None:
            bias = np.asarray(kernel.bias) / unit
        # half steps are integers of 24 bits, too
        includes_offset = 2 * offset.bound < FLOAT32_EXACT_LIMIT
        minus_bias = (-bias - offset.value * includes_offset).astype(np.float32)
        value = writer("Sub", product, writer.add_constant(minus_bias, "minus_bias"))
        if includes_offset or not offset.value:
            return value
        return self._add_half_step(writer, value, offset.value)

    def _weight_scale(self, writer: FloatNodeBuilder) -> float | None:
        """Return the only scale of the node's weight.

        None if it has several scales or no weight.
        """
        scales = get_scales(writer.attrs, "scale_w") if "scale_w" in writer.attrs else None
        return None if isinstance(scales, Sequence) else scales

    def _add_half_step(self, writer: FloatNodeBuilder, value: ir.Value, half: float) -> ir.Value:
        """Append an Add of the constant `half` to the float `value`; return its output."""
        return writer("Add", value, writer.add_constant(np.float32(half), "half_step"))

    def _write_operand(
        self, writer: FloatNodeBuilder, index: int, half: float, out: Affine, rounded: bool
    ) -> ir.Value:
        """Return float operand `index` plus its offset `half`, added by a new node unless it is 0.

        With `rounded` it is then quantized to the integers of the output `out`, and dequantized.
        """
        value = writer.float_input(index)
        if not half:
            return value
        value = self._add_half_step(writer, value, half)
        if not rounded:
            return value
        parameters = [
            writer.add_y_scale(str(value.name), out.scale),
            *writer.zero_point_inputs(ir.DataType.INT8),
        ]
        return writer("DequantizeLinear", writer("QuantizeLinear", value, *parameters), *parameters)

    def _write_quant_floor(self, writer: FloatNodeBuilder, kernel: Kernel) -> list[ir.Value]:
        """Append nodes that round the input of a Quant: floor(x * scale + 1/2) / scale.

        Returns [the rounded float values]. Quantization rules that have no such form return the
        input, and are recorded in `inexact`.
        """
        x = writer.raw_input(0)
        assert isinstance(kernel, k.Quant)
        reason = None
        if kernel.rule == "single":
            reason = "it rounds as the training library does"
        elif kernel.rule == "luna" and kernel.scale < 1:
            reason = f"the executor computes a scale of {kernel.scale:g} wrongly"
        if reason is not None:
            self.inexact[str(writer.node.outputs[0].name)] = (QUANT.name, reason)
            return [x]  # type: ignore[list-item]
        is_float32 = kernel.rule == "luna"
        dtype = np.float32 if is_float32 else np.float64
        scale, half, unit = (
            writer.add_constant(np.asarray(value, dtype), suffix)
            for value, suffix in (
                (kernel.scale, "counts"),
                (0.5, "half"),
                (1.0 / kernel.scale, "unit"),
            )
        )
        wide_x = x if is_float32 else writer("Cast", x, to=_DOUBLE)
        steps = writer("Floor", writer("Add", writer("Mul", wide_x, scale), half))
        value = writer("Mul", steps, unit)
        return [value if is_float32 else writer("Cast", value, to=int(ir.DataType.FLOAT))]

    def _write_table(self, writer: FloatNodeBuilder, kernel: k.Table) -> list[ir.Value]:
        """Append a lookup table as a Gather of integers to `writer`; return [the integer output].

        The index is the integer input plus half the number of entries. The output is added to
        `integer_values`. NotExactError if the input has no integers.
        """
        index = writer("Cast", self._integer_input(writer, 0), to=int(ir.DataType.INT64))
        middle = writer.add_constant(np.int64(kernel.values.size // 2), "middle")
        index = writer("Add", index, middle)
        entries = writer.add_constant(np.reshape(kernel.values, -1), "entries")
        outputs = writer("Gather", entries, index, axis=0)
        self.integer_values.add(outputs)
        return [outputs]

    # ---- functions -------------------------------------------------------------------------------

    def _write_function_call(
        self, op_format: Format, writer: FloatNodeBuilder, kernel: Kernel
    ) -> list[ir.Value]:
        """Append a call of a new function that computes the kernel from the integers of the inputs.

        The function is named after the format and a running number, and recorded in `functions` and
        `function_of`. Its outputs are integers. Returns one per output of the node; those that the
        kernel does not compute get the first output of the call. Raises NotExactError if an input
        has no integers or the kernel cannot be written.
        """
        operands = op_format.kernel_inputs(writer.node)
        inputs = [self._integer_input(writer, index) for index in operands]
        types = [np.dtype(value.dtype.numpy()) for value in inputs]  # type: ignore[union-attr]
        shapes = [writer.info.input_shapes[index] for index in operands]
        name = f"{op_format.name}_{len(self.functions)}"
        function = build_kernel_function(kernel, name, shapes, types, self.opset)
        output_indices = getattr(kernel, "output_indices", range(len(function.outputs)))
        call = ir.node(
            name,
            inputs,
            {},
            domain=DOMAIN,
            num_outputs=len(function.outputs),
            name=f"{writer.node.name}_{name}",
        )
        ir.mark_origin(call, writer.node)
        for value, index in zip(call.outputs, output_indices, strict=True):
            value.name = self._name(f"{writer.node.outputs[index].name}_integers")
            self.function_of[str(writer.node.outputs[index].name)] = name
        writer.nodes.append(call)
        self.integer_values.update(call.outputs)
        self.functions[name] = function
        by_index = dict(zip(output_indices, call.outputs, strict=True))
        return [by_index.get(index, call.outputs[0]) for index in range(len(writer.node.outputs))]

    def _operand_qparams(self, op_format: Format, writer: FloatNodeBuilder) -> list[Affine]:
        """Return scale, bits and zero point of the inputs that the kernel reads, in order.

        Raises NotExactError if those of one are unknown.
        """
        operands = []
        for index in op_format.kernel_inputs(writer.node):
            qparams = writer.input_qparams(index)
            if qparams is None:
                raise NotExactError(f"the scale of its input {index} is unknown")
            operands.append(qparams)
        return operands

    def _integer_input(self, writer: FloatNodeBuilder, index: int) -> ir.Value:
        """Return the int8, int16 or int32 tensor of input `index` of the node.

        This is a constant itself, or the integers that were written for a variable. Raises
        NotExactError if the input has only a float form, or integers of another type.
        """
        value = writer.node.inputs[index]
        integers = value
        if index not in writer.info.constants:
            held = None if value is None else self.held.get(value)
            integers = None if held is None else held.integers
        if integers is None or integers.dtype is None:
            raise NotExactError(f"its input {index} has no integers")
        if np.dtype(integers.dtype.numpy()) not in (np.int8, np.int16, np.int32):
            raise NotExactError(f"its input {index} is {integers.dtype.name}")
        return integers


def _integer_dtype(bits: int) -> np.dtype:
    """Return the narrowest of int8, int16 and int32 with at least `bits` bits."""
    if bits <= 8:
        return np.dtype("int8")
    return np.dtype("int16" if bits <= 16 else "int32")


def build_kernel_function(
    kernel: Kernel, name: str, shapes: Shapes, types: Sequence[np.dtype], opset: int
) -> ir.Function:
    """Build a function that computes the same integers as a kernel.

    Its inputs are named x0, x1, ..., its outputs y0, y1, ...

    Parameters
    ----------
    kernel
        Kernel of the simulator.
    name
        Name of the function.
    shapes
        Shapes of the inputs; the batch dimension is ignored if the kernel works sample by sample.
    types
        Types of the inputs.
    opset
        Opset of the function's nodes.

    Raises
    ------
    NotExactError
        If the kernel has no exact form in integer operators.
    """
    if type(kernel) not in WRITERS:
        raise NotExactError(f"{type(kernel).__name__} has no form in integer operators")
    builder = IntegerNodes()
    inputs = [ir.Value(name=f"x{index}") for index in range(len(types))]
    outputs = WRITERS[type(kernel)](builder, kernel, inputs, shapes, types)
    for index, value in enumerate(outputs):
        value.name = f"y{index}"
    body = ir.Graph(inputs, outputs, nodes=builder.nodes, opset_imports={"": opset}, name=name)
    return ir.Function(DOMAIN, name, graph=body, attributes=[])
