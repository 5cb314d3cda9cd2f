"""The gradient of an LSTM layer around the states that the simulator gave.

Few operations a step, none of autograd's.
Since all states are known, the gates of all steps are computed at once, and only the cell is walked
through time:

    s = a + of_h (W_h h[t-1] + b_h)          a: the inputs' sums; rows of W_h gate by gate: i, f, g,
    o c[t] = f c[t-1] + i g                    i, f, o = sigmoid(s), g = tanh(s)
    h[t] = rounded(unit o tanh(c[t]))        in counts, unit the count of 1.0

Backwards the same formulas, with the gradient straight through the rounding where nothing was cut
off, as in `rounding`. Steps at which a sample waits hand the state on. Must not know: kernels,
formats.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

__all__ = ["LstmTrace", "apply_lstm"]


class LstmTrace(NamedTuple):
    """What a walk through time holds beside what is learned.

    states : float32 [T, N, H], the exact new states in counts; 0 where a sample waits. alive : bool
    [T, N, 1], whether a sample has the step; None where all have all. of_h : gates' unit of a sum
    of states. unit : counts of the state
    1.0. top : the states' counts are from -top to top - 1.
    """

    states: Any
    alive: Any
    state_sum_scale: float
    unit: float
    max_count: int


def apply_lstm(
    walk: LstmTrace, a: Any, h: Any, c: Any, wh: Any, bh: Any, probe: Any = None
) -> tuple[Any, Any, Any]:
    """Return y [T, N, H], whose values are the exact states, the last state [N, H] in counts and the last real cell.

    a : the inputs' sums in the gates' unit, float32 [T, N, 4H]. h, c : what the walk begins with
    [N, H]: counts, and the real cell. wh [4H, H], bh [4H] : counts. probe : log2 of the scale of y,
    where its gradient is wanted.
    """
    made: tuple[Any, Any, Any] = _StraightThrough.apply(a, h, c, wh, bh, probe, walk)
    return made


class _StraightThrough(torch.autograd.Function):
    """`apply_lstm` with the gradient of this file's first lines."""

    @staticmethod
    def forward(
        ctx: Any, a: Any, h: Any, c: Any, wh: Any, bh: Any, probe: Any, walk: LstmTrace
    ) -> tuple[Any, Any, Any]:
        states, alive = walk.states, walk.alive
        held = (
            states if alive is None else torch.where(alive, states, h)
        )  # who waits for the first step keeps h
        before = torch.cat([h[None], held[:-1]])
        i, f, g, o = (a + F.linear(before, wh, bh) * walk.state_sum_scale).chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        kept, added = (
            (f, i * g)
            if alive is None
            else (torch.where(alive, f, 1.0), torch.where(alive, i * g, 0.0))
        )
        cells = torch.empty_like(kept)
        last = c
        for t in range(len(cells)):
            last = torch.addcmul(added[t], kept[t], last, out=cells[t])
        curve = torch.tanh(cells)
        real = o * curve * walk.unit
        inside = (real >= -walk.max_count - 0.5) & (real <= walk.max_count - 0.5)
        inside = inside if alive is None else inside & alive
        ctx.walk, ctx.probed = walk, probe is not None
        kept_for_later = [
            before,
            torch.cat([c[None], cells[:-1]]),
            i,
            kept,
            g,
            o,
            curve,
            inside,
            wh,
            bh,
        ]
        ctx.save_for_backward(*kept_for_later)
        final = states[-1] if alive is None else _get_final_states(states, alive, h)
        return states.clone(), final.clone(), last.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad, dh, dc = grads
        before, cells, i, f, g, o, curve, inside, wh, bh = ctx.saved_tensors
        walk, alive = ctx.walk, ctx.walk.alive
        through = inside * walk.unit
        to_cell, to_o = through * o * (1 - curve * curve), through * curve * o * (1 - o)
        of_cell = torch.stack(
            [g * i * (1 - i), cells * f * (1 - f), i * (1 - g * g)], 2
        )  # [T, N, 3, H]
        waits = None if alive is None else ~alive
        if alive is not None:
            grad, of_cell = grad * alive, of_cell * alive[:, :, None]
        times, samples, units = grad.shape
        weight = wh * walk.state_sum_scale
        gates, felt = grad.new_empty(times, samples, 4, units), torch.empty_like(grad)
        for t in reversed(range(times)):
            dh = torch.add(grad[t], dh, out=felt[t])
            dc = torch.addcmul(dc, dh, to_cell[t])
            torch.mul(dc[:, None], of_cell[t], out=gates[t, :, :3])
            torch.mul(dh, to_o[t], out=gates[t, :, 3])
            dc = dc * f[t]
            following = torch.mm(gates[t].view(samples, 4 * units), weight)
            dh = following if waits is None else following + dh * waits[t]
        flat = gates.view(-1, 4 * units)
        own = flat.T @ before.reshape(-1, units) * walk.state_sum_scale
        of_probe = None
        if ctx.probed and ctx.needs_input_grad[5]:
            felt = felt if alive is None else felt * alive
            value = torch.where(inside, o * curve * walk.unit, 0.0)
            of_probe = math.log(2.0) * (felt * (value - walk.states)).sum()
        return (
            gates.view(times, samples, -1),
            dh,
            dc,
            own,
            flat.sum(0) * walk.state_sum_scale,
            of_probe,
            None,
        )


def _get_final_states(states: Any, alive: Any, h: Any) -> Any:
    """Return the state [N, H] of each sample's last step, `h` of one without a step."""
    final = h
    for here, state in zip(alive, states, strict=True):
        final = torch.where(here, state, final)
    return final
