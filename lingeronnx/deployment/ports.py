"""What a program on the board has to know of a chip graph's inputs, outputs and states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import ConstraintError
from ..formats import DEQUANT, QUANT, find_integer_op
from ..graph import ir
from .simulation import SampleRun
from .value_tracing import trace_moved_value

__all__ = ["Port", "Ports", "StateFeedback", "make_ports"]


@dataclass(frozen=True)
class Port:
    """An input or output of the chip graph.

    name : in the file. tensor : the integer tensor behind it. shape : of one call, batch included.
    dtype : of what the device reads or writes. shift : integer = real value * 2^shift, None for
    what is no scaled integer.
    """

    name: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    shift: int | None

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """What a buffer takes."""
        return self.elements * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class StateFeedback:
    """An output that is fed back into an input from call to call, by their places among the chip's ports.

    shift : bits to the left from the output's integers to the input's.
    """

    output: int
    input: int
    shift: int


@dataclass(frozen=True)
class Ports:
    """All of a chip graph. on_host : {output.

    Input} of states that pass through the host's parts.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[StateFeedback, ...]
    host_states: Mapping[str, str]


def make_ports(
    whole: ir.Model, chip: ir.Model, run: SampleRun, state_pairs: Mapping[str, str]
) -> Ports:
    """Return the ports of `chip`, a part of `whole`, with the shapes of one `run`.

    All names are those of the file.
    state_pairs : {output: input} of `whole`; what the host only moves between them and the chip's
    ports is looked through. Raises ConstraintError for a scale that is no power of two.
    """
    values = {str(v.name): v for v in ir.iter_values(whole)}
    inputs = []
    for value in chip.graph.inputs:
        quants = [use.node for use in value.uses() if use.node.op_type == QUANT.name]
        tensor = ir.output_name(quants[0]) if quants else str(value.name)
        inputs.append(_make_port(str(value.name), tensor, run))
    outputs = []
    for value in chip.graph.outputs:
        node = ir.producer(
            values.get(str(value.name))
        )  # the chip's form may hold its integers by another name
        form = None if node is None else find_integer_op(node)
        behind = ir.input_name(node) if node is not None and form is DEQUANT else str(value.name)
        outputs.append(_make_port(str(value.name), behind, run))
    shapes = run.shapes
    ins = [str(trace_moved_value(values[port.name], shapes).name) for port in inputs]
    outs = [port.name for port in outputs]
    pairs, on_host = [], {}
    for output, target in state_pairs.items():
        source = output if output in outs else str(trace_moved_value(values[output], shapes).name)
        if source in outs and target in ins:
            one, two = outs.index(source), ins.index(target)
            pairs.append(
                StateFeedback(one, two, (inputs[two].shift or 0) - (outputs[one].shift or 0))
            )
        else:
            on_host[output] = target
    return Ports(tuple(inputs), tuple(outputs), tuple(pairs), on_host)


def _make_port(name: str, tensor: str, run: SampleRun) -> Port:
    array = run.integers[tensor] if tensor in run.integers else run.floats[tensor]
    scale = run.scales.get(tensor)
    shift = None
    if scale is not None:
        mantissa, exponent = math.frexp(scale)
        if mantissa != 0.5:
            raise ConstraintError(
                f"tensor '{tensor}' has scale {scale:g}, no power of two; a board cannot shift by "
                "it"
            )
        shift = exponent - 1
    return Port(name, tensor, array.shape, str(array.dtype), shift)
