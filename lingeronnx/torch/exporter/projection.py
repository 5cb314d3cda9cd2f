"""LSTM with a projected state, in the form that exports.

Torch's exporters write ``nn.LSTM(proj_size=...)`` wrongly.
    gates = W x_t + R r_(t-1) + b        h_t = o * tanh(c_t)        r_t = P h_t

W [4C, I], R [4C, P], P [P, C]: C cells, P values of projected state, gates in torch's order i, f,
g, o. Nothing bends the state between P and R, so ``R r = (R P) h``: the layer is an LSTM of C units
with recurrent weights R P, whose outputs are projected all at once. That is the same function, in
two standard operators, and chips have both. It takes 4*C*C + C*P products a step, besides those
with x, where the layer itself takes 4*C*P + C*P.

A projected state that is given enters as further inputs of the first step, [x, r] with [W, R]; they
are zero behind it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...errors import ModelError

__all__ = [
    "DirectionWeights",
    "get_layer_weights",
    "is_exporting",
    "run_direction",
    "run_projected_lstm",
    "traceable_lstms",
]

States = tuple[Tensor, Tensor]


class DirectionWeights(NamedTuple):
    """What one direction of one layer has: W [4C, I], R [4C, P], b [4C] or None, P [P, C]."""

    of_input: Tensor
    of_state: Tensor
    bias: Tensor | None
    projection: Tensor


def is_exporting() -> bool:
    """Whether one of torch's exporters follows the run."""
    return bool(torch.compiler.is_exporting() or torch.jit.is_tracing())


def run_direction(
    x: Tensor,
    hx: tuple[Tensor | None, Tensor | None],
    parts: DirectionWeights,
    forward: bool = True,
) -> tuple[Tensor, States]:
    """Run one direction of one layer.

    x : [N, T, I]. hx : the projected state [N, P] and the cell [N, C] to begin with, None for
    zeros. forward : False walks from the last step to the first one.
    Returns y [N, T, P], y[:, t] made at step t, and the last state [N, P] and cell [N, C].
    """
    h, c = hx
    units = parts.projection.shape[1]
    x, wide = (x if forward else x.flip(1)), parts.of_input
    if h is not None:
        x = torch.cat([x, nn.functional.pad(h[:, None], (0, 0, 0, x.shape[1] - 1))], dim=2)
        wide = torch.cat([wide, parts.of_state], dim=1)
    none = x.new_zeros(x.shape[0], units)
    bias = x.new_zeros(4 * units)
    flat = [
        wide,
        parts.of_state @ parts.projection,
        bias if parts.bias is None else parts.bias,
        bias,
    ]
    start = [none[None], (none if c is None else c)[None]]
    y, _, last = torch._VF.lstm(
        x,
        start,
        flat,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=False,
        bidirectional=False,
        batch_first=True,
    )
    y = (y if forward else y.flip(1)) @ parts.projection.t()
    return y, (y[:, -1 if forward else 0], last[0])


# ---- nn.LSTM -----------------------------------------------------------------------------------------------------


def get_layer_weights(lstm: nn.LSTM, flat: Sequence[Tensor]) -> list[list[DirectionWeights]]:
    """Return the weights of `lstm`, in torch's flat order, by layer and direction.

    Two biases are added up.
    """
    each = 5 if lstm.bias else 3
    found = []
    for start in range(0, len(flat), each):
        w, r, *bias, p = flat[start : start + each]
        found.append(DirectionWeights(w, r, bias[0] + bias[1] if bias else None, p))
    sides = 2 if lstm.bidirectional else 1
    return [found[i : i + sides] for i in range(0, len(found), sides)]


def run_projected_lstm(
    lstm: nn.LSTM, flat: Sequence[Tensor], x: Tensor, hx: States | None
) -> tuple[Tensor, States]:
    """Run `lstm`, whose proj_size is not 0, in evaluation mode with the weights `flat`.

    As its own forward does.
    """
    if isinstance(x, PackedSequence):
        raise ModelError(
            "an LSTM with proj_size is exported for padded sequences only; give it a tensor"
        )
    single = x.dim() == 2
    x = x[None] if single else x if lstm.batch_first else x.transpose(0, 1)
    if hx is not None and single:
        hx = (hx[0][:, None], hx[1][:, None])
    ends: list[States] = []
    for sides in get_layer_weights(lstm, flat):
        ys = []
        for number, parts in enumerate(sides):
            start = (None, None) if hx is None else (hx[0][len(ends)], hx[1][len(ends)])
            y, end = run_direction(x, start, parts, forward=number == 0)
            ends.append(end)
            ys.append(y)
        x = torch.cat(ys, dim=2) if len(ys) > 1 else ys[0]
    h, c = (torch.stack(list(states)) for states in zip(*ends, strict=True))
    if single:
        return x[0], (h[:, 0], c[:, 0])
    return (x if lstm.batch_first else x.transpose(0, 1)), (h, c)


@contextlib.contextmanager
def traceable_lstms(model: nn.Module) -> Iterator[None]:
    """Let each ``nn.LSTM`` with proj_size in `model` be traced as `run_projected_lstm`.

    Other runs stay torch's own.
    """
    found = [module for module in model.modules() if type(module) is nn.LSTM and module.proj_size]

    def forward_of(lstm: nn.LSTM) -> Any:
        own = lstm.forward

        def forward(input: Tensor, hx: States | None = None) -> Any:
            if not is_exporting():
                return own(input, hx)
            return run_projected_lstm(
                lstm, [getattr(lstm, name) for name in lstm._flat_weights_names], input, hx
            )

        return forward

    for module in found:
        module.forward = forward_of(module)
    try:
        yield
    finally:
        for module in found:
            del module.__dict__["forward"]
