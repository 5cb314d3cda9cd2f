"""A recurrent layer between two reversals walks the other way; chips then need no reversal."""

import re

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.axes.cancel_transposes import cancel_transposes
from lingeronnx.quantization.normalize.entry.lift_constants import remove_dead_nodes
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.normalize.layers.recurrent import convert_recurrent_layers
from lingeronnx.quantization.normalize.layers.reversed_sequence import fold_sequence_reversal
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, feeds, graph, ops, rand

T, WIDTH, H = 5, 4, 3
TURNED = {
    "last": np.array([-1]),
    "end": np.array([-(2**63)]),
    "axis": np.array([1]),
    "back": np.array([-1]),
    "one": np.array([1]),
}


def layer(body, result, kind="LSTM", direction="forward", **arrays):
    """Return a graph as `convert_recurrent_layers` leaves it; in `body` {L} is the layer, {R} a
    reversal of what
    follows it.
    """
    gates = 4 if kind == "LSTM" else 3
    weights = {
        "w": rand(1, gates * H, WIDTH),
        "r": rand(1, gates * H, H, seed=1),
        "b": rand(1, 2 * gates * H, seed=2),
    }
    body = re.sub(r"\{R\}\((\w+)\)", r"Slice(\1, last, end, axis, back)", body)
    body = body.replace("{L}", f'{kind}<direction="{direction}", hidden_size={H}>')
    made = graph(
        f"g (float[N,{T},{WIDTH}] x) => ({result}) {{ {body} }}", **weights, **TURNED, **arrays
    )
    trace_shapes(made, {"x": feeds(made)["x"][:1]})
    assert convert_recurrent_layers(made).changes == 1
    cancel_transposes(made)
    remove_dead_nodes(made)
    return made


SEQUENCE = (
    "t = {R}(x) u = Transpose<perm=[1,0,2]>(t) y4, h = {L}(u, w, r, b) y3 = Squeeze(y4, one) "
)
WHOLE = SEQUENCE + "v = Transpose<perm=[1,0,2]>(y3) "


def direction_of(model):
    return [ir.get_attr(node, "direction") for node in model.graph if node.domain]


@pytest.mark.parametrize("direction, other", (("forward", "reverse"), ("reverse", "forward")))
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_between_two_reversals(kind, direction, other):
    """Neither reversal is read any more, whichever way the layer walked."""
    model = layer(WHOLE + "y = {R}(v)", f"float[N,{T},{H}] y", kind, direction)
    check_pass_fires(model, fold_sequence_reversal, 1, ["Slice", kind], atol=1e-6, trace=False)
    assert direction_of(model) == [other]


def test_last_state_too():
    """What takes one step of the sequence takes the same step, counted from the other end."""
    model = layer(
        WHOLE + "z = {R}(v) y = Abs(z) s = Abs(h)", f"float[N,{T},{H}] y, float[1,N,{H}] s"
    )
    check_pass_fires(
        model,
        fold_sequence_reversal,
        1,
        ["Slice", "LSTM", "Slice", "Transpose", "Abs", "Abs"],
        atol=1e-6,
        trace=False,
    )


@pytest.mark.parametrize(
    "body, result",
    (
        (WHOLE + "y = Abs(v)", f"float[N,{T},{H}] y"),  # read as it is
        (WHOLE + "y = {R}(v) q = Abs(v)", f"float[N,{T},{H}] y, float[N,{T},{H}] q"),
        (
            WHOLE + "y = {R}(v) q = {R}(v)",
            f"float[N,{T},{H}] y, float[N,{T},{H}] q",
        ),  # two outputs of one tensor
        (
            WHOLE.replace("{R}(x)", "Abs(x)") + "y = {R}(v)",
            f"float[N,{T},{H}] y",
        ),  # reversed behind it alone
        (
            WHOLE.replace("{R}(x)", "Slice(x, first, end, axis, two)") + "y = {R}(v)",
            f"float[N,3,{H}] y",
        ),  # every other
        (
            WHOLE.replace("{R}(x)", "Slice(x, last, end, of_width, back)") + "y = {R}(v)",
            f"float[N,{T},{H}] y",
        ),
    ),
)
def test_refuses(body, result):
    arrays = {"first": np.array([-1]), "two": np.array([-2]), "of_width": np.array([2])}
    check_pass_leaves_alone(layer(body, result, **arrays), fold_sequence_reversal, trace=False)


def test_lengths_are_left_alone():
    """Of a shorter sequence the reversal takes the padding first."""
    body = WHOLE.replace("r, b)", "r, b, lengths)") + "y = {R}(v)"
    made = layer(body, f"float[N,{T},{H}] y", lengths=np.array([3], np.int32))
    assert ops(made) == ["Slice", "LSTM_l", "Slice"]
    assert fold_sequence_reversal(made).changes == 0
