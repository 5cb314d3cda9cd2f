"""Inputs, outputs and states of a chip graph, as a program on the board needs them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..common.errors import ConstraintError
from ..ir import ir
from ..operators.integer_ops import DEQUANT, QUANT, find_integer_op
from .simulation import SampleRun
from .value_tracing import trace_moved_value

__all__ = ["Port", "Ports", "StateFeedback", "format_shape", "make_ports"]


@dataclass(frozen=True)
class Port:
    """An input or output of the chip graph.

    name : in the chip's file. tensor : the integer tensor of the port. shape : of one call,
    including the batch axis. dtype : of the values that the device reads or writes. shift : integer
    = real value * 2^shift, or None if the port is not a scaled integer. package_name : as the
    executor gives it; the packer removes Quants and Dequants, an output's name with the latter.
    """

    name: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    shift: int | None
    package_name: str

    @property
    def elements(self) -> int:
        """Number of elements of the port's array in one call."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes of a buffer for one array of this shape and type."""
        return self.elements * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class StateFeedback:
    """An output that is fed back into an input for the next call, by their indices in `Ports`.

    shift : bits to shift the output's integers left to get the input's integers.
    """

    output: int
    input: int
    shift: int


@dataclass(frozen=True)
class Ports:
    """All ports of a chip graph.

    host_states : {output: input} of states that pass through host parts.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[StateFeedback, ...]
    host_states: Mapping[str, str]


def make_ports(
    full_graph: ir.Model, chip_graph: ir.Model, run: SampleRun, state_pairs: Mapping[str, str]
) -> Ports:
    """Return the ports of the chip part of a graph, with the shapes of one run.

    Parameters
    ----------
    full_graph, chip_graph
        The complete graph and its chip part, with the names of the chip's file.
    run
        Tensors of one sample.
    state_pairs
        {output: input} of states of `full_graph`. Standard nodes between them and the chip's ports
        that keep all elements in the same order, such as Reshape, are looked through.

    Raises
    ------
    ConstraintError
        If a scale is not a power of two.
    """
    values = {str(v.name): v for v in ir.iter_values(full_graph)}
    inputs = []
    for value in chip_graph.graph.inputs:
        quants = [use.node for use in value.uses() if use.node.op_type == QUANT.name]
        tensor = ir.output_name(quants[0]) if quants else str(value.name)
        inputs.append(_make_port(str(value.name), tensor, run, str(value.name)))
    outputs = []
    for value in chip_graph.graph.outputs:
        # The chip part may have another name for the integers, so the full graph is searched.
        node = ir.producer(values.get(str(value.name)))
        is_dequantized = node is not None and find_integer_op(node) is DEQUANT
        tensor = ir.input_name(node) if node is not None and is_dequantized else str(value.name)
        outputs.append(_make_port(str(value.name), tensor, run, _get_package_name(value)))
    sources = [str(trace_moved_value(values[port.name], run.shapes).name) for port in inputs]
    output_names = [port.name for port in outputs]
    states, host_states = [], {}
    for output, fed_input in state_pairs.items():
        source = output
        if output not in output_names:
            source = str(trace_moved_value(values[output], run.shapes).name)
        if source in output_names and fed_input in sources:
            output_index, input_index = output_names.index(source), sources.index(fed_input)
            shift = (inputs[input_index].shift or 0) - (outputs[output_index].shift or 0)
            states.append(StateFeedback(output_index, input_index, shift))
        else:
            host_states[output] = fed_input
    return Ports(tuple(inputs), tuple(outputs), tuple(states), host_states)


def _get_package_name(output: ir.Value) -> str:
    """Return the name of a graph output in the package: that of the tensor before a Dequant."""
    node = ir.producer(output)
    is_dequant = node is not None and find_integer_op(node) is DEQUANT
    return ir.input_name(node) if node is not None and is_dequant else str(output.name)


def _make_port(name: str, tensor: str, run: SampleRun, package_name: str) -> Port:
    """Create the port `name` of an input or output of the chip from its tensor in `run`.

    Shape and type are those of the tensor's array. The shift is log2 of the scale, None if the
    tensor has no scale.

    Raises
    ------
    ConstraintError
        If the scale is not a power of two.
    """
    array = run.integers[tensor] if tensor in run.integers else run.floats[tensor]
    scale = run.scales.get(tensor)
    shift = None
    if scale is not None:
        mantissa, exponent = math.frexp(scale)
        if mantissa != 0.5:
            raise ConstraintError(
                f"tensor '{tensor}' has scale {scale:g}, which is not a power of two; a board "
                "cannot apply it by a shift"
            )
        shift = exponent - 1
    return Port(name, tensor, array.shape, str(array.dtype), shift, package_name)


def format_shape(shape: Sequence[int]) -> str:
    """Format a shape as 1x3x8x8; a scalar's as 1."""
    return "x".join(map(str, shape)) or "1"
