"""Gradient of an LSTM layer whose states are given by the simulator, with few operations per step.

Since all states are known, the gates of all steps are computed at once, and only the cell is
computed step by step, without autograd:

    s = a + scale (W_h h[t-1] + b_h)     a: sums of the inputs; rows of W_h by gate: i, f, g, o
    c[t] = f c[t-1] + i g                i, f, o = sigmoid(s), g = tanh(s)
    h[t] = round(unit o tanh(c[t]))      counts; unit is the count of 1.0

The backward pass uses the same formulas, with a straight-through gradient of the rounding where
nothing is clipped, as in `rounding`. Steps after the end of a sample pass the state on. This module
knows no kernels or formats.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

__all__ = ["LstmTrace", "apply_lstm"]


class LstmTrace(NamedTuple):
    """The data of a layer that are not learned.

    Attributes
    ----------
    states
        float32 [T, N, H], the exact new states as counts; 0 after the end of a sample.
    alive
        bool [T, N, 1], whether a sample has the step; None if all samples have all steps.
    state_sum_scale
        Scale of the state sums relative to the gate sums.
    unit
        Count of the state 1.0.
    max_count
        The counts of states are from -max_count to max_count - 1.
    """

    states: Any
    alive: Any
    state_sum_scale: float
    unit: float
    max_count: int


def apply_lstm(
    trace: LstmTrace, a: Any, h: Any, c: Any, wh: Any, bh: Any, log2_scale: Any = None
) -> tuple[Any, Any, Any]:
    """Return the states of an LSTM layer with gradients.

    Parameters
    ----------
    trace
        The exact states.
    a : float32 [T, N, 4H]
        Sums of the inputs, in the unit of the gates.
    h, c : [N, H]
        Initial state as counts, and initial real cell.
    wh, bh : [4H, H], [4H]
        Weights and bias of the state, as counts.
    log2_scale
        log2 of the scale of y as a tensor, if its gradient is needed.

    Returns
    -------
    y : [T, N, H]
        The exact states.
    h, c : [N, H]
        Last state as counts, and last real cell.
    """
    results: tuple[Any, Any, Any] = _StraightThrough.apply(a, h, c, wh, bh, log2_scale, trace)
    return results


class _StraightThrough(torch.autograd.Function):
    """`apply_lstm`, with the gradient in the module docstring."""

    @staticmethod
    def forward(
        ctx: Any, a: Any, h: Any, c: Any, wh: Any, bh: Any, log2_scale: Any, trace: LstmTrace
    ) -> tuple[Any, Any, Any]:
        """Return the exact states of an LSTM layer, as in `trace`, and its last state and cell.

        The gates of all steps are computed at once in float from these states and the input sums
        `a`, the cells step by step from `c`; all that `backward` needs is saved. `h`, `c` are the
        initial state and cell, `wh`, `bh` weights and bias of the state. The results are copies.
        """
        states, alive = trace.states, trace.alive
        # Before its first step a sample keeps h.
        held_states = states if alive is None else torch.where(alive, states, h)
        previous_states = torch.cat([h[None], held_states[:-1]])
        gates = a + F.linear(previous_states, wh, bh) * trace.state_sum_scale
        i, f, g, o = gates.chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        factors, terms = f, i * g
        if alive is not None:
            factors, terms = torch.where(alive, f, 1.0), torch.where(alive, terms, 0.0)
        cells = torch.empty_like(factors)
        cell = c
        for t in range(len(cells)):
            cell = torch.addcmul(terms[t], factors[t], cell, out=cells[t])
        tanh_cells = torch.tanh(cells)
        real = o * tanh_cells * trace.unit
        inside = (real >= -trace.max_count - 0.5) & (real <= trace.max_count - 0.5)
        inside = inside if alive is None else inside & alive
        ctx.trace, ctx.has_log2_scale = trace, log2_scale is not None
        previous_cells = torch.cat([c[None], cells[:-1]])
        saved = [previous_states, previous_cells, i, factors, g, o, tanh_cells, inside, wh, bh]
        ctx.save_for_backward(*saved)
        final = states[-1] if alive is None else _get_final_states(states, alive, h)
        return states.clone(), final.clone(), cell.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Backpropagate through time with the float gates that `forward` saved.

        The gradient of a state's rounding is 1 where the state is inside its range, else 0; steps
        beyond the length of a sample pass gradients on unchanged. The results are the gradients of
        the arguments of `forward`; that of `log2_scale` is None if it is not needed.
        """
        grad, dh, dc = grads
        previous_states, previous_cells, i, f, g, o, tanh_cells, inside, wh, _ = ctx.saved_tensors
        trace, alive = ctx.trace, ctx.trace.alive
        slope = inside * trace.unit
        cell_slope = slope * o * (1 - tanh_cells * tanh_cells)
        o_slope = slope * tanh_cells * o * (1 - o)
        gate_slopes = torch.stack(
            [g * i * (1 - i), previous_cells * f * (1 - f), i * (1 - g * g)], 2
        )  # [T, N, 3, H]
        waits = None if alive is None else ~alive
        if alive is not None:
            grad, gate_slopes = grad * alive, gate_slopes * alive[:, :, None]
        times, samples, units = grad.shape
        weight = wh * trace.state_sum_scale
        gate_grads = grad.new_empty(times, samples, 4, units)
        state_grads = torch.empty_like(grad)
        for t in reversed(range(times)):
            dh = torch.add(grad[t], dh, out=state_grads[t])
            dc = torch.addcmul(dc, dh, cell_slope[t])
            torch.mul(dc[:, None], gate_slopes[t], out=gate_grads[t, :, :3])
            torch.mul(dh, o_slope[t], out=gate_grads[t, :, 3])
            dc = dc * f[t]
            previous_dh = torch.mm(gate_grads[t].view(samples, 4 * units), weight)
            dh = previous_dh if waits is None else previous_dh + dh * waits[t]
        flat_grads = gate_grads.view(-1, 4 * units)
        weight_grad = flat_grads.T @ previous_states.reshape(-1, units) * trace.state_sum_scale
        log2_scale_grad = None
        if ctx.has_log2_scale and ctx.needs_input_grad[5]:
            state_grads = state_grads if alive is None else state_grads * alive
            value = torch.where(inside, o * tanh_cells * trace.unit, 0.0)
            log2_scale_grad = math.log(2.0) * (state_grads * (value - trace.states)).sum()
        return (
            gate_grads.view(times, samples, -1),
            dh,
            dc,
            weight_grad,
            flat_grads.sum(0) * trace.state_sum_scale,
            log2_scale_grad,
            None,
        )


def _get_final_states(states: Any, alive: Any, h: Any) -> Any:
    """Return the state [N, H] after the last step of each sample; `h` for one without steps."""
    final = h
    for is_alive, state in zip(alive, states, strict=True):
        final = torch.where(is_alive, state, final)
    return final
