"""A part that is taken out of a Concat is read from where it was joined."""

import numpy as np
import pytest

from lingeronnx.quantization.normalize.axes.bypass_concat import bypass_concat

from .helpers import check_pass_fires, check_pass_leaves_alone, graph

ROWS = "a0 = Unsqueeze(a, one) b0 = Unsqueeze(b, one) c = Concat <axis=1> (a0, b0)"
WIDE = "c = Concat <axis=-1> (a, b, a)"
STACK = ["Abs", "Neg", "Unsqueeze", "Unsqueeze", "Concat"]
#: What is taken -> (the body, how many nodes go, the operators that are left).
TAKEN = {
    "the last row": (f"{ROWS} p = Slice(c, less, far, one) y = Squeeze(p, one)", 2, STACK),
    "the first row": (f"{ROWS} p = Slice(c, zero, one, one) y = Squeeze(p, one)", 2, STACK),
    "a row": (f"{ROWS} p = Gather <axis=1> (c, last) y = Abs(p)", 1, [*STACK, "Abs"]),
    "a wide part": (
        f"{WIDE} p = Slice(c, three, six, one) y = Abs(p)",
        1,
        ["Abs", "Neg", "Concat", "Abs"],
    ),
}
STAYING = {
    "two parts": f"{WIDE} y = Slice(c, zero, six, one)",
    "a piece": f"{WIDE} y = Slice(c, one, three, one)",
    "backwards": f"{ROWS} y = Slice(c, last1, back, one, less)",
    "another axis": f"{ROWS} p = Slice(c, zero, one, two) y = Squeeze(p, two)",
    "a column": f"{WIDE} y = Gather <axis=1> (c, last)",
    "an input under the name of an output": "u = Unsqueeze(x, one) y = Squeeze(u, one)",
}


def net(body):
    """Return the graph of `body`, which reads a and b [N, 3]."""
    numbers = {
        "zero": 0,
        "one": 1,
        "two": 2,
        "three": 3,
        "six": 6,
        "less": -1,
        "far": 1 << 40,
        "back": -3,
        "last1": 1,
    }
    held = {key: np.array([number]) for key, number in numbers.items()}
    text = f"g (float[N,3] x) => (float y) {{ a = Abs(x) b = Neg(x) {body} }}"
    return graph(text, last=np.array(-1), **held)


@pytest.mark.parametrize("name", TAKEN)
def test_a_part_that_is_taken(name):
    """It is read from where it was joined. The Concat stays till the end, where what nobody reads
    goes.
    """
    body, count, left = TAKEN[name]
    check_pass_fires(net(body), bypass_concat, count, left, atol=0)


@pytest.mark.parametrize("name", STAYING)
def test_what_is_no_whole_part(name):
    """It stays."""
    check_pass_leaves_alone(net(STAYING[name]), bypass_concat)
