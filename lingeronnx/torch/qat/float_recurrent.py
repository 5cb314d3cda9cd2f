"""ONNX's recurrent layers in float: LSTM, GRU and RNN of layout 0 (passes convert layout 1).

Inputs by name: x [T, N, I], w [D, G*H, I], r [D, G*H, H], b [D, 2*G*H], lengths [N], initial states
[D, N, H], for D directions and G gates. The outputs of a sample of length L are 0 from step L on,
and its state is kept there; the reverse direction starts at the end of each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from .float_ops import COMPUTE_OPERATORS as OPERATORS
from .float_ops import Attributes

__all__ = ["RECURRENT_OPERATORS"]

ActivationFunction = Callable[[Any], Any]

#: Activation in lower case -> operator, and names of its numeric attributes.
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
    """Return the activation functions of a recurrent node, for all `directions` in order.

    `default` names those of one direction, for a node without the attribute `activations`. The
    values of activation_alpha and activation_beta go in order to the activations that have such
    parameters. Raises ModelError for an unknown activation.
    """
    values = {name: list(a.get(f"activation_{name}") or []) for name in ("alpha", "beta")}
    activations: list[ActivationFunction] = []
    for name in a.get("activations") or [*default] * directions:
        if name.lower() not in _ACTIVATIONS:
            raise a.make_error(f"its activation is {name}")
        function, attributes = _ACTIVATIONS[name.lower()]
        settings = {key: values[key].pop(0) for key in attributes if values[key]}
        activations.append(partial(function, settings))
    return activations


class _Layer(NamedTuple):
    """One direction of a layer.

    Attributes
    ----------
    r, bias
        Weights [G*H, H] and bias [G*H] of the state.
    activations
        Activations of the direction.
    peepholes
        Peephole weights of the gates i, o, f, or None.
    """

    r: Any
    bias: Any
    activations: Sequence[ActivationFunction]
    peepholes: Any


def _run_layer(
    a: Attributes,
    x: Any,
    w: Any,
    r: Any,
    b: Any,
    lengths: Any,
    initial_states: Sequence[Any],
    *,
    gate_count: int,
    default: Sequence[str],
    step: Callable[..., Any],
    peepholes: Any = None,
) -> tuple[Any, ...]:
    """Run all directions of a recurrent layer step by step.

    Parameters
    ----------
    x, w, r, b, lengths, initial_states, peepholes
        Inputs of the node, None for omitted ones.
    gate_count, default
        Number of gates, and the default activations.
    step
        Function of (attributes, input sums [N, G*H], states, `_Layer`) that returns new states.

    Returns
    -------
    tuple
        Y [T, D, N, H], and the last states [D, N, H].

    Raises
    ------
    ModelError
        The attribute `layout` is 1, or an activation is not supported.
    """
    if a.get("layout", 0):
        raise a.make_error("it has the batch first")
    (times, samples, _), (directions, _, units) = x.shape, r.shape
    b = x.new_zeros(directions, 2 * gate_count * units) if b is None else b
    activations = _get_activations(a, default, directions)
    activation_count = len(activations) // directions
    if lengths is None:
        lengths = torch.full((samples,), times, device=x.device)
    lengths = lengths.to(torch.int64)
    steps = torch.arange(times, device=x.device)[:, None]
    alive = steps < lengths  # [T, N]
    reversed_steps = torch.where(alive, lengths - 1 - steps, steps)[..., None]
    outputs, last_states = [], []
    for direction in range(directions):
        is_reverse = a.get("direction", "forward") == "reverse" or direction == 1
        ordered_x = x.gather(0, reversed_steps.expand(x.shape)) if is_reverse else x
        bias_x, bias_h = b[direction].chunk(2)
        first = direction * activation_count
        layer = _Layer(
            r[direction],
            bias_h,
            activations[first : first + activation_count],
            None if peepholes is None else peepholes[direction].chunk(3),
        )
        states = [
            x.new_zeros(samples, units) if state is None else state[direction]
            for state in initial_states
        ]
        sums = F.linear(ordered_x, w[direction], bias_x)
        y, states = _run_steps(a, sums, states, layer, alive, step)
        outputs.append(y.gather(0, reversed_steps.expand(y.shape)) if is_reverse else y)
        last_states.append(states)
    stacked_states = [torch.stack(states) for states in zip(*last_states, strict=True)]
    return torch.stack(outputs, 1), *stacked_states


def _run_steps(
    a: Attributes,
    sums: Any,
    states: list[Any],
    layer: _Layer,
    alive: Any,
    step: Callable[..., Any],
) -> tuple[Any, list[Any]]:
    """Run the steps of one direction of a recurrent layer.

    Returns the outputs [T, N, H] and the list of last states. After its last step a sample keeps
    its states.

    Parameters
    ----------
    sums : [T, N, G*H]
        Sums of the inputs.
    states
        Initial states [N, H]; the first one is the output.
    alive : bool [T, N]
        Whether a sample has the step; the output of others is 0.
    step
        Function of (attributes, sums of a step, states, layer) that returns new states.
    """
    outputs = []
    for t in range(len(sums)):
        new_states = step(a, sums[t], states, layer)
        is_alive = alive[t][:, None]
        states = [
            torch.where(is_alive, new, old) for new, old in zip(new_states, states, strict=True)
        ]
        outputs.append(torch.where(is_alive, new_states[0], 0.0))
    if not outputs:
        return sums.new_zeros(0, *states[0].shape), states
    return torch.stack(outputs), states


def _clip_gate_sums(a: Attributes, sums: Any) -> Any:
    """Return `sums` clamped to +- the attribute `clip`, or unchanged if it is absent or zero."""
    limit = a.get("clip", 0.0)
    return sums.clamp(-limit, limit) if limit > 0 else sums


def _lstm_step(a: Attributes, sums: Any, states: Any, layer: _Layer) -> Any:
    """Compute a step of an LSTM; return the new (state, cell), both [N, H].

    `sums` [N, 4H] are the gates' sums of the inputs, in the order i, o, f, c; `states` are (state,
    cell). The peephole weights of `layer` are in the order i, o, f. With the attribute input_forget
    the forget gate is 1 - i.
    """
    (h, c), (f, g, output_activation) = states, layer.activations
    i_sum, o_sum, f_sum, c_sum = (sums + F.linear(h, layer.r, layer.bias)).chunk(4, -1)
    if layer.peepholes is not None:
        i_sum, f_sum = i_sum + layer.peepholes[0] * c, f_sum + layer.peepholes[2] * c
    i = f(_clip_gate_sums(a, i_sum))
    forget = 1.0 - i if a.get("input_forget", 0) else f(_clip_gate_sums(a, f_sum))
    c = forget * c + i * g(_clip_gate_sums(a, c_sum))
    if layer.peepholes is not None:
        o_sum = o_sum + layer.peepholes[1] * c
    return f(_clip_gate_sums(a, o_sum)) * output_activation(c), c


def _gru_step(a: Attributes, sums: Any, states: Any, layer: _Layer) -> Any:
    """Compute a step of a GRU; return a tuple of the new state [N, H].

    `sums` [N, 3H] are the sums of the inputs, by gate z, r, h; `states` is (state,). With the
    attribute linear_before_reset the reset gate multiplies the state's sums instead of the state.
    """
    (h,), (f, g), units = states, layer.activations, layer.r.shape[-1]
    gate_sums = F.linear(h, layer.r[: 2 * units], layer.bias[: 2 * units])
    z, reset = f(_clip_gate_sums(a, sums[:, : 2 * units] + gate_sums)).chunk(2, -1)
    weight, bias = layer.r[2 * units :], layer.bias[2 * units :]
    if a.get("linear_before_reset", 0):
        state_sums = reset * F.linear(h, weight, bias)
    else:
        state_sums = F.linear(reset * h, weight, bias)
    candidate = g(_clip_gate_sums(a, sums[:, 2 * units :] + state_sums))
    return ((1.0 - z) * candidate + z * h,)


def _rnn_step(a: Attributes, sums: Any, states: Any, layer: _Layer) -> Any:
    """Compute a step of a simple recurrent layer; return a tuple of the new state [N, H].

    `sums` [N, H] are the sums of the inputs of the step, `states` is (state,).
    """
    state_sums = F.linear(states[0], layer.r, layer.bias)
    return (layer.activations[0](_clip_gate_sums(a, sums + state_sums)),)


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
    """Run an LSTM node; return (Y [T, D, N, H], last state [D, N, H], last cell [D, N, H]).

    The arguments after the attributes are the operator's inputs, None for absent ones, with gates
    in ONNX's order i, o, f, c. Torch's own LSTM is used if there are steps, but no lengths,
    peepholes `p`, special activations, clip or input_forget. Raises ModelError for layout 1.
    """
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
        gate_count=4,
        default=("Sigmoid", "Tanh", "Tanh"),
        step=_lstm_step,
        peepholes=p,
    )


#: Attributes that torch's own LSTM does not support.
_UNSUPPORTED_BY_TORCH_LSTM = frozenset(
    ("activations", "activation_alpha", "activation_beta", "clip", "input_forget", "layout")
)


def _run_torch_lstm(
    a: Attributes, x: Any, w: Any, r: Any, b: Any, initial_states: Sequence[Any]
) -> Any:
    """Run an LSTM in one call of torch's own LSTM; return (Y [T, D, N, H], last state, last cell).

    The weights have ONNX's order of gates (i, o, f, c) and are reordered for torch (i, f, c, o). A
    missing bias or state (None) is zero; one direction in reverse runs on the flipped sequence.
    """
    directions, _, units = r.shape
    is_reverse = a.get("direction", "forward") == "reverse"
    # Gates of ONNX, i o f c, in the order of torch, i f c o.
    gates = torch.arange(4 * units, device=x.device).reshape(4, units)
    order = gates[[0, 2, 3, 1]].flatten()
    b = x.new_zeros(directions, 8 * units) if b is None else b
    parameters = []
    for direction in range(directions):
        bias_x, bias_h = b[direction].chunk(2)
        parameters += [w[direction][order], r[direction][order], bias_x[order], bias_h[order]]
    states = tuple(
        x.new_zeros(directions, x.shape[1], units) if state is None else state
        for state in initial_states
    )
    y, h, c = torch.lstm(
        x.flip(0) if is_reverse else x,
        states,
        parameters,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=False,
        bidirectional=directions == 2,
        batch_first=False,
    )
    y = y.unflatten(2, (directions, units)).transpose(1, 2)  # [T, D, N, H]
    return y.flip(0) if is_reverse else y, h, c


def _gru(
    a: Attributes, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    """Run a GRU node; return (Y [T, D, N, H], last state [D, N, H]).

    The arguments after the attributes are the operator's inputs, None for absent ones, with gates
    in ONNX's order z, r, h. Raises ModelError for layout 1 or an unknown activation.
    """
    return _run_layer(
        a, x, w, r, b, lengths, (h,), gate_count=3, default=("Sigmoid", "Tanh"), step=_gru_step
    )


def _rnn(
    a: Attributes, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    """Run a simple recurrent node (RNN); return (Y [T, D, N, H], last state [D, N, H]).

    The arguments after the attributes are the operator's inputs, None for absent ones. Raises
    ModelError for layout 1 or an unknown activation.
    """
    return _run_layer(a, x, w, r, b, lengths, (h,), gate_count=1, default=("Tanh",), step=_rnn_step)


RECURRENT_OPERATORS: Mapping[str, Callable[..., Any]] = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}
