"""joined-affine: factors that differ between the operands of a Concat are applied before it."""

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.axes.affine_before_concat import move_affine_before_concat

from .helpers import check_pass_fires, check_pass_leaves_alone, graph, positive, rand

JOIN = "a = Abs(x) b = Neg(x) c = Concat <axis=1> (a, b)"
LAST = "a = Abs(x) b = Neg(x) c = Concat <axis=-1> (a, b)"
#: Body -> (number of moved nodes, operators that are left).
MOVED = {
    "a product": (f"{JOIN} y = Mul(c, uneven)", 1, ["Mul", "Mul", "Concat"]),
    "a quotient": (f"{JOIN} y = Div(c, uneven)", 1, ["Div", "Div", "Concat"]),
    "an addition behind": (
        f"{JOIN} p = Mul(c, uneven) y = Add(p, shift)",
        2,
        ["Mul", "Mul", "Add", "Add", "Concat"],
    ),
    "one shift for all": (
        f"{JOIN} p = Mul(c, uneven) q = Sub(p, one) y = Relu(q)",
        2,
        ["Mul", "Mul", "Sub", "Sub", "Concat", "Relu"],
    ),
    "the last axis": (f"{LAST} y = Mul(c, columns)", 1, ["Mul", "Mul", "Concat"]),
    "a batch normalization": (
        f"{JOIN} y = BatchNormalization(c, gamma, beta, mean, var)",
        1,
        ["BatchNormalization", "BatchNormalization", "Concat"],
    ),
}
LEFT_ALONE = {
    "even factors": f"{JOIN} y = Mul(c, even)",
    "one factor": f"{JOIN} y = Mul(c, one)",
    "an addition alone": f"{JOIN} y = Add(c, shift)",
    "another consumer": f"{JOIN} p = Mul(c, uneven) y = Add(p, c)",
    "factors of another axis": f"{JOIN} y = Mul(c, columns3)",
    "a constant that is divided": f"{JOIN} y = Div(uneven, c)",
    "a product that is larger": f"{JOIN} y = Mul(c, higher)",
    "a batch normalization over another axis": (
        f"{LAST} y = BatchNormalization(c, gamma3, beta3, mean3, var3)"
    ),
    "one operand": "c = Concat <axis=1> (x) y = Mul(c, uneven3)",
    "a zero operand": f"{JOIN} y = Mul(c, zeros)",
}


def make_graph(body):
    """Return the graph of `body` with x [N, 3, 4]."""
    uneven = np.concatenate([positive(3, 1), 100 * positive(3, 1)])
    return graph(
        f"g (float[N,3,4] x) => (float y) {{ {body} }}",
        uneven=uneven,
        uneven3=uneven[1:4],
        higher=uneven.reshape(1, 1, 6, 1),
        columns=np.concatenate([positive(4), -50 * positive(4)]),
        columns3=np.float32([1, 100, 1, 1]),
        even=positive(6, 1),
        zeros=np.concatenate([np.zeros((3, 1), np.float32), positive(3, 1)]),
        shift=rand(6, 1),
        one=np.float32([[1]]),
        gamma=uneven[:, 0],
        beta=rand(6),
        mean=rand(6, seed=1),
        var=positive(6),
        gamma3=uneven[1:4, 0],
        beta3=rand(3),
        mean3=rand(3, seed=1),
        var3=positive(3),
    )


@pytest.mark.parametrize("name", MOVED)
def test_affine_functions_move_before_the_concat(name):
    """They are applied to each operand, with the same result."""
    body, count, left = MOVED[name]
    check_pass_fires(
        make_graph(body), move_affine_before_concat, count, ["Abs", "Neg", *left], atol=1e-4
    )


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_nodes_stay(name):
    """Even factors gain nothing, and other constants do not belong to one operand each."""
    check_pass_leaves_alone(make_graph(LEFT_ALONE[name]), move_affine_before_concat)


def test_the_smaller_operand_keeps_its_integers():
    """A branch of range 1 beside one of range 1,000: with one scale it would have no integers."""
    factors = np.concatenate([np.ones(4), np.full(4, 1e-3)]).astype(np.float32)
    model = graph(
        """g (float[N,6,4] x) => (float[N,6,3] y) {
            r = Relu(x) big = Mul(r, thousand) c = Concat <axis=-1> (x, big)
            p = Mul(c, factors) y = MatMul(p, w) }""",
        thousand=np.float32(1e3),
        factors=factors,
        w=rand(8, 3),
    )
    result = lo.quantize(ir.to_proto(model), {"x": rand(64, 6, 4)}, platform="generic")
    assert result.report.outputs["y"]["sqnr"] > 30
