"""Fake quantizers of recurrent layers: real gates and states as counts.

The integers in the forward pass are those of the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from simulator import kernels as k
from simulator.kernels.recurrent.layer import RecurrentKernel

from ...operators.recurrent import integer_op as recurrent
from .common import FakeQuantContext, FakeQuantizer, run_kernel, to_flat_int64, to_integers
from .lstm_gradient import LstmTrace, apply_lstm
from .rounding import get_multiplier, round_with_gradient, straight_through

__all__ = ["KERNELS"]


def _collect_states(
    kernel: RecurrentKernel, state_inputs: Sequence[Any], x: Any, context: FakeQuantContext
) -> dict[str, Any]:
    """Return lengths ("lengths", [N] or [1]) and states ("h", "c", [N, H] or [1, H]) of a layer.

    Only those that are given: by constants of the kernel, by parameters, or by `state_inputs`.
    States are counts.
    """
    tensors = {
        key: context.get_parameter(key, array, x) for key, array in kernel.constant_states.items()
    }
    for key in recurrent.OPTIONAL_INPUTS:
        if key in context.parameters:
            tensors[key] = context.parameters[key]
    tensors |= dict(zip(kernel.state_inputs, state_inputs, strict=True))
    return {
        key: tensor.reshape(-1) if key == "lengths" else tensor.reshape(-1, kernel.units)
        for key, tensor in tensors.items()
    }


def _bind_parameters(kernel: Any, parameters: Sequence[Any], context: FakeQuantContext) -> Any:
    """Return a copy of the kernel with these parameters and initial states, and all its outputs.

    Initial states of the context replace those of the kernel.

    Parameters
    ----------
    kernel
        Kernel of a recurrent layer.
    parameters
        Counts of weight_x, weight_h, bias_x and bias_h.
    context
        May have counts of the initial states "h" and "c".
    """
    state_dtypes = {"h": kernel.rescale_o.dtype, "c": np.dtype(np.int32)}
    fixed = {
        key: to_integers(context.parameters[key], dtype)
        for key, dtype in state_dtypes.items()
        if key in context.parameters
    }
    wx, wh, bx, bh = parameters
    return replace(
        kernel,
        weight_x=to_integers(wx, kernel.weight_x.dtype),
        weight_h=to_integers(wh, kernel.weight_h.dtype),
        bias_x=to_flat_int64(bx),
        bias_h=to_flat_int64(bh),
        constant_states={**kernel.constant_states, **fixed},
        output_indices=tuple(range(1 + len(kernel.final_state_specs(1)))),
    )


def _recurrent(kernel: Any, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Compute a layer with real gates and states as counts; its integers are the simulator's.

    `inputs` are the sequence and the optional initial states and lengths, as integers. The values
    are those of the exact kernel, the gradients those of the float layer (straight-through).
    """
    x, *state_inputs = inputs
    x = x.float()  # at most 16 bits
    fields = ("weight_x", "weight_h", "bias_x", "bias_h")
    parameters = [context.get_parameter(name, getattr(kernel, name), x) for name in fields]
    wx, wh, bx, bh = (parameter.float() for parameter in parameters)
    sum_bits, cell_bits = _get_fraction_bits(kernel)
    input_scale = get_multiplier(kernel.rescale_x) * 2.0**-sum_bits
    state_scale = get_multiplier(kernel.rescale_h) * 2.0**-sum_bits
    time_major_x = x.transpose(0, 1) if kernel.time_axis else x
    sums = F.linear(time_major_x, wx, bx) * input_scale  # [T, N, G*H]
    time_steps, batch_size = sums.shape[:2]
    states = _collect_states(kernel, state_inputs, x, context)
    h, cell = (
        states[key].float().expand(batch_size, -1)
        if key in states
        else x.new_zeros(batch_size, kernel.units)
        for key in ("h", "c")
    )
    alive = None
    if "lengths" in states:
        alive = torch.arange(time_steps, device=x.device)[:, None] < states["lengths"]
        alive = alive[..., None].expand(-1, batch_size, -1)
    arrays = [
        to_integers(tensor, dtype)
        for tensor, dtype in zip(inputs, context.input_dtypes, strict=True)
    ]
    exact = run_kernel(_bind_parameters(kernel, parameters, context), arrays, x)
    weights = _RecurrentWeights(wh, bh, state_scale, context.log2_scale, alive)
    run = _run_lstm if isinstance(kernel, k.Lstm) and time_steps else _run_stepwise
    y, h, cell = run(kernel, weights, sums, h, cell * 2.0**-cell_bits, exact[0])
    smooth = [
        y.transpose(0, 1) if kernel.time_axis else y,
        h.unsqueeze(kernel.time_axis),
        (cell * 2.0**cell_bits).unsqueeze(kernel.time_axis),
    ]
    return tuple(
        straight_through(smooth[index].to(exact[index].dtype), exact[index])
        for index in kernel.output_indices
    )


class _RecurrentWeights(NamedTuple):
    """The data of a layer for its state.

    Attributes
    ----------
    weight_h, bias_h
        Counts [G*H, H] and [G*H].
    state_sum_scale
        Scale from sums of counts to the unit of the gates.
    log2_scale
        log2 of the output scale as a tensor, or None.
    alive
        bool [T, N, 1], whether a sample has the step; None if all samples have all steps.
    """

    weight_h: Any
    bias_h: Any
    state_sum_scale: float
    log2_scale: Any
    alive: Any


def _run_lstm(
    kernel: Any, weights: _RecurrentWeights, sums: Any, h: Any, cell: Any, exact: Any
) -> tuple[Any, Any, Any]:
    """Return y [T, N, H] and the last state and cell of an LSTM, with the simulator's states.

    `sums` [T, N, 4H] are the gates' sums of the inputs, `exact` the simulator's y, from which the
    gradients are computed. A reverse layer runs on flipped sequences.
    """
    states = (exact.transpose(0, 1) if kernel.time_axis else exact).float()
    alive = weights.alive
    if not kernel.is_forward:
        sums, states = sums.flip(0), states.flip(0)
        alive = None if alive is None else alive.flip(0)
    unit = 2.0 ** k.Lstm.fraction_bits[kernel.arithmetic][1] * get_multiplier(kernel.rescale_o)
    trace = LstmTrace(
        states.contiguous(), alive, weights.state_sum_scale, unit, 1 << (kernel.rescale_o.bits - 1)
    )
    y, h, cell = apply_lstm(
        trace, sums, h, cell, weights.weight_h, weights.bias_h, weights.log2_scale
    )
    return y if kernel.is_forward else y.flip(0), h, cell


def _run_stepwise(
    kernel: Any, weights: _RecurrentWeights, sums: Any, h: Any, cell: Any, exact: Any
) -> tuple[Any, Any, Any]:
    """Run a recurrent layer step by step with autograd; return (y [T, N, H], last state, `cell`).

    `sums` are the input sums of each step, `h` is the initial state. The states are computed here,
    not taken from `exact`. Samples keep their state after their end, and their y is 0.
    """
    states = []
    times = range(len(sums)) if kernel.is_forward else range(len(sums) - 1, -1, -1)
    for t in times:
        new_h = _STEP_FUNCTIONS[type(kernel)](kernel, sums[t], h, weights)
        if weights.alive is None:
            h = new_h
            states.append(h)
        else:
            h = torch.where(weights.alive[t], new_h, h)
            states.append(torch.where(weights.alive[t], new_h, 0.0))
    if not states:
        return sums.new_zeros(0, *h.shape), h, cell
    return torch.stack(states if kernel.is_forward else states[::-1]), h, cell


def _get_fraction_bits(kernel: RecurrentKernel) -> tuple[int, int]:
    """Return the fractional bits of the gate sums, and of a cell that is an input or output.

    The latter is 0 for layers without a cell.
    """
    if isinstance(kernel, k.Lstm):
        return k.Lstm.fraction_bits[kernel.arithmetic][0], 7 if kernel.arithmetic == "q11" else 15
    return kernel.sum_fraction_bits if isinstance(kernel, k.Gru) else 11, 0


def _quantize_state(kernel: Any, value: Any, fraction_bits: int, log2_scale: Any) -> Any:
    """Quantize real states, which the kernel computes with `fraction_bits`, to counts of y.

    Clips to the range of y; `log2_scale` is the learned scale of y, or None.
    """
    half_range = 1 << (kernel.rescale_o.bits - 1)
    counts = value * (2.0**fraction_bits * get_multiplier(kernel.rescale_o))
    return round_with_gradient(counts, -half_range, half_range - 1, log2_scale)


def _gru_step(kernel: Any, a: Any, h: Any, weights: _RecurrentWeights) -> Any:
    """Return the new counts [N, H] of a step of a GRU; gates: r, z, n.

    `a` [N, 3H] are the input sums as real values, `h` [N, H] the counts of the state.
    """
    units, scale = kernel.units, 2.0**31 * get_multiplier(kernel.rescale_o)
    wh, bh, sum_scale = weights.weight_h, weights.bias_h, weights.state_sum_scale
    gate_sums = F.linear(h, wh[: 2 * units], bh[: 2 * units]) * sum_scale
    r, z = torch.sigmoid(a[:, : 2 * units] + gate_sums).chunk(2, -1)
    weight, bias = wh[2 * units :], bh[2 * units :]
    if kernel.reset_after:
        state_sums = r * F.linear(h, weight, bias)
    else:
        state_sums = F.linear(r * h, weight, bias)
    n = torch.tanh(a[:, 2 * units :] + state_sums * sum_scale)
    return _quantize_state(kernel, n + z * (h / scale - n), 31, weights.log2_scale)


def _executor_gru_step(kernel: Any, a: Any, h: Any, weights: _RecurrentWeights) -> Any:
    """Return the new counts [N, H] of a step of the executor's GRU; gates: r, z, n.

    `a` [N, 3H] are the input sums as real values, `h` [N, H] the counts of the state. The state
    sums of r and z are left out unless the kernel uses them.
    """
    scale = 2.0**14 * get_multiplier(kernel.rescale_o)
    state_sums = F.linear(h, weights.weight_h, weights.bias_h) * weights.state_sum_scale
    r, z, n = a.chunk(3, -1)
    state_r, state_z, state_n = state_sums.chunk(3, -1)
    if kernel.uses_state_sums:
        r, z = r + state_r, z + state_z
    r, z = torch.sigmoid(r), torch.sigmoid(z)
    n = torch.tanh(n + r * state_n)
    return _quantize_state(kernel, z * h / scale / 2 + (1 - z) * n, 14, weights.log2_scale)


def _candidate_gru_step(kernel: Any, a: Any, h: Any, weights: _RecurrentWeights) -> Any:
    """Return the new counts [N, H] of a GRU step in which z weighs the candidate; gates: r, z, n.

    `a` [N, 3H] are the input sums as real values, `h` [N, H] the counts of the state.
    """
    state = h / (2.0**15 * get_multiplier(kernel.rescale_o))
    state_sums = F.linear(h, weights.weight_h, weights.bias_h) * weights.state_sum_scale
    r, z, n = a.chunk(3, -1)
    state_r, state_z, state_n = state_sums.chunk(3, -1)
    r, z = torch.sigmoid(r + state_r), torch.sigmoid(z + state_z)
    n = torch.tanh(n + r * state_n)
    return _quantize_state(kernel, state + z * (n - state), 15, weights.log2_scale)


_STEP_FUNCTIONS = {
    k.CandidateGru: _candidate_gru_step,
    k.ExecutorGru: _executor_gru_step,
    k.Gru: _gru_step,
}


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.CandidateGru: _recurrent,
    k.ExecutorGru: _recurrent,
    k.Gru: _recurrent,
    k.Lstm: _recurrent,
}
