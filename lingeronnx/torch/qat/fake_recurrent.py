"""Fake quantizers of recurrent layers: real gates and a state in counts.

The integers are the simulator's.
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

from ...formats import recurrent
from .fake_common import FakeQuantContext, FakeQuantizer, run_kernel, to_flat_int64, to_integers
from .lstm_gradient import LstmTrace, apply_lstm
from .rounding import get_multiplier, round_with_gradient, straight_through

__all__ = ["RECURRENT"]


def _collect_states(
    kernel: RecurrentKernel, more: Sequence[Any], x: Any, at: FakeQuantContext
) -> dict[str, Any]:
    """Return the lengths [N] or [1] and the states and cells [N, H] or [1, H], in counts, that there are."""
    found = {key: at.held(key, array, x) for key, array in kernel.fixed.items()}
    found |= {key: at.parameters[key] for key in recurrent.OPTIONAL_INPUTS if key in at.parameters}
    found |= dict(zip(kernel.given, more, strict=True))
    return {
        key: v.reshape(-1) if key == "lengths" else v.reshape(-1, kernel.units)
        for key, v in found.items()
    }


def _bind_parameters(kernel: Any, parts: Sequence[Any], at: FakeQuantContext) -> Any:
    """Return the kernel with the parameters, and the states that are, in place of its own, and with all its outputs."""
    kinds = {"h": kernel.rescale_o.dtype, "c": np.dtype(np.int32)}
    fixed = {
        key: to_integers(at.parameters[key], kind)
        for key, kind in kinds.items()
        if key in at.parameters
    }
    wx, wh, bx, bh = parts
    return replace(
        kernel,
        weight_x=to_integers(wx, kernel.weight_x.dtype),
        weight_h=to_integers(wh, kernel.weight_h.dtype),
        bias_x=to_flat_int64(bx),
        bias_h=to_flat_int64(bh),
        fixed={**kernel.fixed, **fixed},
        kept=tuple(range(1 + len(kernel.final_state_specs(1)))),
    )


def _recurrent(kernel: Any, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    """Walk through time with real gates and a state in counts; the integers are the simulator's."""
    x, *more = inputs
    x = x.float()  # at most 16 bits
    fields = ("weight_x", "weight_h", "bias_x", "bias_h")
    parts = [at.held(name, getattr(kernel, name), x) for name in fields]
    wx, wh, bx, bh = (part.float() for part in parts)
    in_sums, in_cell = _get_fraction_bits(kernel)
    of_x, of_h = (
        get_multiplier(rule) * 2.0**-in_sums for rule in (kernel.rescale_x, kernel.rescale_h)
    )
    sums = F.linear(x.transpose(0, 1) if kernel.time_axis else x, wx, bx) * of_x  # [T, N, G*H]
    length, count = sums.shape[:2]
    known = _collect_states(kernel, more, x, at)
    h, cell = (
        known[key].float().expand(count, -1) if key in known else x.new_zeros(count, kernel.units)
        for key in ("h", "c")
    )
    alive = None
    if "lengths" in known:  # beyond its end a sample waits
        alive = (torch.arange(length, device=x.device)[:, None] < known["lengths"])[
            ..., None
        ].expand(-1, count, -1)
    arrays = [to_integers(v, kind) for v, kind in zip(inputs, at.input_dtypes, strict=True)]
    exact = run_kernel(_bind_parameters(kernel, parts, at), arrays, x)
    walk = _run_lstm if isinstance(kernel, k.Lstm) and length else _run_stepwise
    y, h, cell = walk(
        kernel,
        _RecurrentWeights(wh, bh, of_h, at.log2_scale, alive),
        sums,
        h,
        cell * 2.0**-in_cell,
        exact[0],
    )
    smooth = [
        y.transpose(0, 1) if kernel.time_axis else y,
        *(s.unsqueeze(kernel.time_axis) for s in (h, cell * 2.0**in_cell)),
    ]
    return tuple(straight_through(smooth[i].to(exact[i].dtype), exact[i]) for i in kernel.kept)


class _RecurrentWeights(NamedTuple):
    """The states' side of a layer.

    Weight [G*H, H], bias [G*H], its sums' ratio, the probe, alive [T, N, 1] or None.
    """

    weight_h: Any
    bias_h: Any
    state_sum_scale: float
    log2_scale: Any
    alive: Any


def _run_lstm(
    kernel: Any, own: _RecurrentWeights, sums: Any, h: Any, cell: Any, exact: Any
) -> tuple[Any, Any, Any]:
    """Return y [T, N, H], the last state and cell of an LSTM, around the states that the simulator gave."""
    states = (exact.transpose(0, 1) if kernel.time_axis else exact).float()
    alive = own.alive
    if not kernel.is_forward:
        sums, states, alive = sums.flip(0), states.flip(0), None if alive is None else alive.flip(0)
    unit = 2.0 ** k.Lstm.fraction_bits[kernel.arithmetic][1] * get_multiplier(kernel.rescale_o)
    walk = LstmTrace(
        states.contiguous(), alive, own.state_sum_scale, unit, 1 << (kernel.rescale_o.bits - 1)
    )
    y, h, cell = apply_lstm(walk, sums, h, cell, own.weight_h, own.bias_h, own.log2_scale)
    return y if kernel.is_forward else y.flip(0), h, cell


def _run_stepwise(
    kernel: Any, own: _RecurrentWeights, sums: Any, h: Any, cell: Any, exact: Any
) -> tuple[Any, Any, Any]:
    """Return the same of any kind, step by step with autograd.

    Its states are its own, not `exact`.
    """
    states = []
    times = range(len(sums)) if kernel.is_forward else range(len(sums) - 1, -1, -1)
    for t in times:
        new = _STEP_FUNCTIONS[type(kernel)](
            kernel,
            sums[t],
            h,
            wh=own.weight_h,
            bh=own.bias_h,
            of_h=own.state_sum_scale,
            probe=own.log2_scale,
        )
        if own.alive is None:
            h = new
            states.append(h)
        else:
            h = torch.where(own.alive[t], new, h)
            states.append(torch.where(own.alive[t], new, 0.0))
    y = (
        torch.stack(states if kernel.is_forward else states[::-1])
        if states
        else sums.new_zeros(0, *h.shape)
    )
    return y, h, cell


def _get_fraction_bits(kernel: RecurrentKernel) -> tuple[int, int]:
    """Return the fractional bits of the gate sums and of a cell as a tensor."""
    if isinstance(kernel, k.Lstm):
        return k.Lstm.fraction_bits[kernel.arithmetic][0], 7 if kernel.arithmetic == "q11" else 15
    return 27 if isinstance(kernel, k.Gru) else 11, 0


def _quantize_state(kernel: Any, value: Any, fraction: int, probe: Any) -> Any:
    """Return the real `value` as the kernel's state, in counts."""
    top = 1 << (kernel.rescale_o.bits - 1)
    return round_with_gradient(
        value * (2.0**fraction * get_multiplier(kernel.rescale_o)), -top, top - 1, probe
    )


def _gru_step(kernel: Any, a: Any, h: Any, wh: Any, bh: Any, of_h: float, probe: Any) -> Any:
    units, scale = kernel.units, 2.0**31 * get_multiplier(kernel.rescale_o)
    r, z = torch.sigmoid(
        a[:, : 2 * units] + F.linear(h, wh[: 2 * units], bh[: 2 * units]) * of_h
    ).chunk(2, -1)
    inner, bias = wh[2 * units :], bh[2 * units :]
    own = r * F.linear(h, inner, bias) if kernel.reset_after else F.linear(r * h, inner, bias)
    n = torch.tanh(a[:, 2 * units :] + own * of_h)
    return _quantize_state(kernel, n + z * (h / scale - n), 31, probe)


def _executor_gru_step(
    kernel: Any, a: Any, h: Any, wh: Any, bh: Any, of_h: float, probe: Any
) -> Any:
    scale = 2.0**14 * get_multiplier(kernel.rescale_o)
    own = F.linear(h, wh, bh) * of_h
    (r, z, n), (own_r, own_z, own_n) = a.chunk(3, -1), own.chunk(3, -1)
    r, z = (
        torch.sigmoid(v + w if kernel.uses_state_sums else v) for v, w in ((r, own_r), (z, own_z))
    )
    n = torch.tanh(n + r * own_n)
    return _quantize_state(kernel, z * h / scale / 2 + (1 - z) * n, 14, probe)


_STEP_FUNCTIONS = {k.Gru: _gru_step, k.ExecutorGru: _executor_gru_step}


#: Kernel -> its fake quantizer.
RECURRENT: Mapping[type, FakeQuantizer] = {
    k.ExecutorGru: _recurrent,
    k.Gru: _recurrent,
    k.Lstm: _recurrent,
}
