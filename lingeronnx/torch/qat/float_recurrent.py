"""ONNX's recurrent layers in float: LSTM, GRU, RNN of layout 0.

`passes` give the others that layout.
Inputs by name: x [T, N, I], w [D, G*H, I], r [D, G*H, H], b [D, 2*G*H], lengths [N], first states
[D, N, H], D directions and G gates. A sample of length L has outputs 0 from L on, and keeps its
state there; backwards it begins at its own end. Must not know: graphs, islands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from .float_ops import COMPUTE_OPERATORS as OPERATORS
from .float_ops import Attributes

__all__ = ["RECURRENT_OPERATORS"]

ActivationFunction = Callable[[Any], Any]

#: Activation, in small letters -> (the operator that it is, the numbers that it takes).
_ACTIVATIONS: Mapping[str, tuple[Callable[..., Any], Sequence[str]]] = {
    "affine": (lambda a, x: a.get("alpha", 1.0) * x + a.get("beta", 0.0), ("alpha", "beta")),
    "scaledtanh": (
        lambda a, x: a.get("alpha", 1.0) * torch.tanh(a.get("beta", 1.0) * x),
        ("alpha", "beta"),
    ),
    "hardsigmoid": (OPERATORS["HardSigmoid"], ("alpha", "beta")),
    **{
        name.lower(): (OPERATORS[name], ("alpha",))
        for name in ("Elu", "LeakyRelu", "ThresholdedRelu")
    },
    **{
        name.lower(): (OPERATORS[name], ())
        for name in ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
    },
}


def _get_activations(
    a: Attributes, default: Sequence[str], directions: int
) -> list[ActivationFunction]:
    """Return the activations of all directions.

    Their numbers are dealt out to those that take some, in order.
    """
    numbers = {name: list(a.get(f"activation_{name}") or []) for name in ("alpha", "beta")}
    curves: list[ActivationFunction] = []
    for name in a.get("activations") or [*default] * directions:
        if name.lower() not in _ACTIVATIONS:
            raise a.make_error(f"no such activation: {name}")
        function, takes = _ACTIVATIONS[name.lower()]
        curves.append(
            partial(function, {key: numbers[key].pop(0) for key in takes if numbers[key]})
        )
    return curves


def _run_layer(
    a: Attributes,
    x: Any,
    w: Any,
    r: Any,
    b: Any,
    lengths: Any,
    initial_states: Sequence[Any],
    *,
    gates: int,
    default: Sequence[str],
    step: Callable[..., Any],
    more: Any = None,
) -> tuple[Any, ...]:
    """Return (Y, last states ...).

    Step(sums of x [N, G*H], states, r, its bias, curves, peepholes) -> states.
    """
    if a.get("layout", 0):
        raise a.make_error("it is batch first")
    (times, samples, _), (directions, _, units) = x.shape, r.shape
    b = x.new_zeros(directions, 2 * gates * units) if b is None else b
    curves = _get_activations(a, default, directions)
    each = len(curves) // directions
    lengths = (
        torch.full((samples,), times, device=x.device)
        if lengths is None
        else lengths.to(torch.int64)
    )
    steps = torch.arange(times, device=x.device)[:, None]
    alive = steps < lengths  # [T, N]
    turned = torch.where(alive, lengths - 1 - steps, steps)[..., None]
    outputs, ends = [], []
    for d in range(directions):
        backwards = a.get("direction", "forward") == "reverse" or d == 1
        own = x.gather(0, turned.expand(x.shape)) if backwards else x
        bias_x, bias_h = b[d].chunk(2)
        sums = F.linear(own, w[d], bias_x)
        states = [x.new_zeros(samples, units) if s is None else s[d] for s in initial_states]
        peepholes = None if more is None else more[d].chunk(3)
        sequence = []
        for t in range(times):
            made = step(
                a, sums[t], states, r[d], bias_h, curves[d * each : (d + 1) * each], peepholes
            )
            here = alive[t][:, None]
            states = [torch.where(here, new, old) for new, old in zip(made, states, strict=True)]
            sequence.append(torch.where(here, made[0], 0.0))
        y = torch.stack(sequence) if sequence else x.new_zeros(0, samples, units)
        outputs.append(y.gather(0, turned.expand(y.shape)) if backwards else y)
        ends.append(states)
    y = torch.stack(outputs, 1)  # [T, D, N, H]
    return y, *(torch.stack(column) for column in zip(*ends, strict=True))


def _clip_gate_sums(a: Attributes, sums: Any) -> Any:
    """Return gate sums clipped where the node asks for it."""
    limit = a.get("clip", 0.0)
    return sums.clamp(-limit, limit) if limit > 0 else sums


def _lstm_step(
    a: Attributes, sums: Any, states: Any, r: Any, bias: Any, curves: Any, peepholes: Any
) -> Any:
    (h, c), (f, g, out) = states, curves
    i_sum, o_sum, f_sum, c_sum = (sums + F.linear(h, r, bias)).chunk(4, -1)
    if peepholes is not None:
        i_sum, f_sum = i_sum + peepholes[0] * c, f_sum + peepholes[2] * c
    i = f(_clip_gate_sums(a, i_sum))
    forget = 1.0 - i if a.get("input_forget", 0) else f(_clip_gate_sums(a, f_sum))
    c = forget * c + i * g(_clip_gate_sums(a, c_sum))
    if peepholes is not None:
        o_sum = o_sum + peepholes[1] * c
    return f(_clip_gate_sums(a, o_sum)) * out(c), c


def _gru_step(
    a: Attributes, sums: Any, states: Any, r: Any, bias: Any, curves: Any, peepholes: Any
) -> Any:
    (h,), (f, g), units = states, curves, r.shape[-1]
    own = F.linear(h, r[: 2 * units], bias[: 2 * units])
    z, reset = f(_clip_gate_sums(a, sums[:, : 2 * units] + own)).chunk(2, -1)
    inner, inner_bias = r[2 * units :], bias[2 * units :]
    if a.get("linear_before_reset", 0):
        memory = reset * F.linear(h, inner, inner_bias)
    else:
        memory = F.linear(reset * h, inner, inner_bias)
    new = g(_clip_gate_sums(a, sums[:, 2 * units :] + memory))
    return ((1.0 - z) * new + z * h,)


def _rnn_step(
    a: Attributes, sums: Any, states: Any, r: Any, bias: Any, curves: Any, peepholes: Any
) -> Any:
    return (curves[0](_clip_gate_sums(a, sums + F.linear(states[0], r, bias))),)


def _lstm(
    a: Attributes,
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    p: Any = None,
) -> Any:
    if lengths is None and p is None and len(x) and _UNSUPPORTED_BY_TORCH_LSTM.isdisjoint(a):
        return _run_torch_lstm(a, x, w, r, b, (h, c))
    return _run_layer(
        a,
        x,
        w,
        r,
        b,
        lengths,
        (h, c),
        gates=4,
        default=("Sigmoid", "Tanh", "Tanh"),
        step=_lstm_step,
        more=p,
    )


#: Attributes of which torch's own LSTM knows nothing.
_UNSUPPORTED_BY_TORCH_LSTM = frozenset(
    ("activations", "activation_alpha", "activation_beta", "clip", "input_forget", "layout")
)


def _run_torch_lstm(a: Attributes, x: Any, w: Any, r: Any, b: Any, starts: Sequence[Any]) -> Any:
    """Return what `_run_layer` does, by torch's own LSTM: all steps in one call."""
    directions, _, units = r.shape
    backwards = a.get("direction", "forward") == "reverse"
    turned = (
        torch.arange(4 * units, device=x.device).reshape(4, units)[[0, 2, 3, 1]].flatten()
    )  # i o f c -> i f c o
    b = x.new_zeros(directions, 8 * units) if b is None else b
    parameters = []
    for d in range(directions):
        parameters += [w[d][turned], r[d][turned], *(part[turned] for part in b[d].chunk(2))]
    states = tuple(x.new_zeros(directions, x.shape[1], units) if s is None else s for s in starts)
    rest = {
        "num_layers": 1,
        "dropout": 0.0,
        "train": False,
        "bidirectional": directions == 2,
        "batch_first": False,
    }
    y, h, c = torch.lstm(x.flip(0) if backwards else x, states, parameters, has_biases=True, **rest)
    y = y.unflatten(2, (directions, units)).transpose(1, 2)  # [T, D, N, H]
    return y.flip(0) if backwards else y, h, c


def _gru(
    a: Attributes, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    return _run_layer(
        a, x, w, r, b, lengths, (h,), gates=3, default=("Sigmoid", "Tanh"), step=_gru_step
    )


def _rnn(
    a: Attributes, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    return _run_layer(a, x, w, r, b, lengths, (h,), gates=1, default=("Tanh",), step=_rnn_step)


RECURRENT_OPERATORS: Mapping[str, Callable[..., Any]] = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}
