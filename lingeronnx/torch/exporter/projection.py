"""LSTM with a projected state in a form that can be exported.

Torch's exporters write ``nn.LSTM(proj_size=...)`` incorrectly.

    gates = W x_t + R r_(t-1) + b        h_t = o * tanh(c_t)        r_t = P h_t

W [4C, I], R [4C, P], P [P, C]: C cells, P elements of the projected state, gates in torch's order
i, f, g, o. There is no nonlinearity between P and R, so ``R r = (R P) h``: the layer is an LSTM of
C units with recurrent weights R P, whose outputs are projected in one product. This is the same
function in two standard operators, both of which chips support. Besides the products with x it
takes 4*C*C + C*P multiplications per step, the original layer 4*C*P + C*P.

A given initial projected state becomes additional inputs of the first step, [x, r] with [W, R],
which are zero in later steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...common.errors import ModelError

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
    """Weights of one direction of a layer: W [4C, I], R [4C, P], b [4C] or None, P [P, C]."""

    of_input: Tensor
    of_state: Tensor
    bias: Tensor | None
    projection: Tensor


def is_exporting() -> bool:
    """Whether one of torch's exporters is tracing at the moment."""
    return bool(torch.compiler.is_exporting() or torch.jit.is_tracing())


def run_direction(
    x: Tensor,
    hx: tuple[Tensor | None, Tensor | None],
    weights: DirectionWeights,
    forward: bool = True,
) -> tuple[Tensor, States]:
    """Run one direction of a layer.

    Parameters
    ----------
    x : [N, T, I]
    hx
        Initial projected state [N, P] and cell [N, C]; None for zeros.
    weights
        Weights of the direction.
    forward
        False runs from the last step to the first.

    Returns
    -------
    y : [N, T, P]
        Element t is computed at step t.
    states
        Last projected state [N, P] and cell [N, C].
    """
    h, c = hx
    unit_count = weights.projection.shape[1]
    x, input_weights = (x if forward else x.flip(1)), weights.of_input
    if h is not None:
        x = torch.cat([x, nn.functional.pad(h[:, None], (0, 0, 0, x.shape[1] - 1))], dim=2)
        input_weights = torch.cat([input_weights, weights.of_state], dim=1)
    zero_state = x.new_zeros(x.shape[0], unit_count)
    zero_bias = x.new_zeros(4 * unit_count)
    flat_weights = [
        input_weights,
        weights.of_state @ weights.projection,
        zero_bias if weights.bias is None else weights.bias,
        zero_bias,
    ]
    start = [zero_state[None], (zero_state if c is None else c)[None]]
    y, _, last = torch._VF.lstm(
        x,
        start,
        flat_weights,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=False,
        bidirectional=False,
        batch_first=True,
    )
    y = (y if forward else y.flip(1)) @ weights.projection.t()
    return y, (y[:, -1 if forward else 0], last[0])


# ---- nn.LSTM ------------------------------------------------------------------------------------


def get_layer_weights(lstm: nn.LSTM, flat: Sequence[Tensor]) -> list[list[DirectionWeights]]:
    """Return the weights of an LSTM with projection by layer and direction.

    Both biases are added; without biases the bias is None.

    Parameters
    ----------
    lstm
        The layer, for its options.
    flat
        The weights in torch's flat order.
    """
    tensor_count = 5 if lstm.bias else 3
    directions = []
    for start in range(0, len(flat), tensor_count):
        w, r, *biases, p = flat[start : start + tensor_count]
        bias = biases[0] + biases[1] if biases else None
        directions.append(DirectionWeights(w, r, bias, p))
    step = 2 if lstm.bidirectional else 1
    return [directions[start : start + step] for start in range(0, len(directions), step)]


def run_projected_lstm(
    lstm: nn.LSTM, flat: Sequence[Tensor], x: Tensor, hx: States | None
) -> tuple[Tensor, States]:
    """Run an LSTM with proj_size in evaluation mode; return (outputs, (states, cells)).

    Results and their layout are those of the layer's own forward, computed in a form that can be
    exported: an LSTM without projection, then one product.

    Parameters
    ----------
    lstm
        The layer.
    flat
        The weights to use, in torch's flat order.
    x, hx
        Arguments of the forward of `lstm`.

    Raises
    ------
    ModelError
        If `x` is a PackedSequence.
    """
    if isinstance(x, PackedSequence):
        raise ModelError(
            "an LSTM with proj_size is exported for padded sequences only; pass a tensor"
        )
    is_unbatched = x.dim() == 2
    if is_unbatched:
        x = x[None]
    elif not lstm.batch_first:
        x = x.transpose(0, 1)
    if hx is not None and is_unbatched:
        hx = (hx[0][:, None], hx[1][:, None])
    last_states: list[States] = []
    for directions in get_layer_weights(lstm, flat):
        outputs = []
        for index, weights in enumerate(directions):
            start: tuple[Tensor | None, Tensor | None] = (None, None)
            if hx is not None:
                start = (hx[0][len(last_states)], hx[1][len(last_states)])
            y, states = run_direction(x, start, weights, forward=index == 0)
            last_states.append(states)
            outputs.append(y)
        x = torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]
    h, c = (torch.stack(list(states)) for states in zip(*last_states, strict=True))
    if is_unbatched:
        return x[0], (h[:, 0], c[:, 0])
    return (x if lstm.batch_first else x.transpose(0, 1)), (h, c)


@contextlib.contextmanager
def traceable_lstms(model: nn.Module) -> Iterator[None]:
    """Make each ``nn.LSTM`` with proj_size in `model` exportable within a context.

    While an exporter traces, it runs as an LSTM without projection and a product; other calls are
    not affected. The modules are restored afterwards.
    """
    lstms = [module for module in model.modules() if type(module) is nn.LSTM and module.proj_size]

    def make_forward(lstm: nn.LSTM) -> Any:
        """Return a replacement for the `forward` of `lstm` that an exporter can trace.

        Outside of an export it calls the original.
        """
        original_forward = lstm.forward

        def forward(input: Tensor, hx: States | None = None) -> Any:
            """Run the LSTM with its original forward or, in an export, in a traceable form."""
            if not is_exporting():
                return original_forward(input, hx)
            flat_weights = [getattr(lstm, name) for name in lstm._flat_weights_names]
            return run_projected_lstm(lstm, flat_weights, input, hx)

        return forward

    for lstm in lstms:
        lstm.forward = make_forward(lstm)
    try:
        yield
    finally:
        for lstm in lstms:
            del lstm.__dict__["forward"]
