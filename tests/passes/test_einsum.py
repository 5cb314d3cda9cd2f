"""einsum: one product in the terms of other operators, with numpy's einsum as the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.normalize.layers.einsum import decompose_einsum
from tests.case_selection import limit_examples
from tests.passes.helpers import changes, graph, ops, outputs, rand, reasons

SIZES = dict(zip("nabcdefg", (2, 3, 4, 5, 2, 3, 1, 2), strict=True))


def product(equation, constant=None, sizes=SIZES):
    """Return the graph of an Einsum, and what it is fed; `constant` is the place of a factor that
    is an initializer.
    """
    terms, _, result = equation.partition("->")
    shapes = [tuple(sizes[c] for c in term) for term in terms.split(",")]
    arrays = {
        name: rand(*shape, seed=index)
        for index, (name, shape) in enumerate(zip("xw", shapes, strict=False))
    }
    held = {} if constant is None else {"xw"[constant]: arrays["xw"[constant]]}
    inputs = ", ".join(
        f"float[{','.join(['N', *map(str, array.shape[1:])])}] {name}"
        for name, array in arrays.items()
        if name not in held
    )
    out = f"float[{','.join(f'd{i}' for i in range(len(result)))}] y"
    model = graph(
        f'g ({inputs}) => ({out}) {{ y = Einsum<equation = "{equation}">(x, w) }}', **held
    )
    feed = {name: array for name, array in arrays.items() if name not in held}
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    return model, feed, arrays


def check(equation, constant=None):
    model, feed, arrays = product(equation, constant)
    assert changes(decompose_einsum, model) == 1
    doubles = [array.astype(np.float64) for array in arrays.values()]
    want, terms = np.einsum(equation, *doubles), np.einsum(equation, *map(np.abs, doubles))
    error = np.abs(outputs(model, feed)["y"] - want)
    assert (error <= 1e-6 * terms).all()  # single precision, in any order of its terms
    assert changes(decompose_einsum, model) == 0
    return ops(model)


@pytest.mark.parametrize(
    ("equation", "constant", "made"),
    [
        ("na,ab->nb", 1, ["MatMul"]),
        ("nba,ac->nbc", 1, ["MatMul"]),
        ("ab,ncbd->ncad", 0, ["Transpose", "MatMul", "Transpose"]),
        ("nab,nbc->nac", None, ["MatMul"]),
        ("nabc,ndbc->nad", None, ["Reshape", "Transpose", "Reshape", "MatMul"]),
        ("nabc,nabc->nabc", None, ["Mul"]),
        ("nab,na->nab", None, ["Reshape", "Mul"]),
    ],
)
def test_what_it_becomes(equation, constant, made):
    """No more nodes than the product needs."""
    assert check(equation, constant) == made


@pytest.mark.parametrize(
    ("equation", "constant"),
    [
        ("nacd,nbcd->nacb", None),
        ("nacbd,aed->ncbe", 1),
        ("nabc,ace->nabe", 1),
        ("nabc,ac->nab", 1),
        ("na,a->n", 1),
        ("na,na->n", None),
        ("na,nb->nab", None),
        ("nab,nb->na", None),
        ("nab,b->nba", 1),
    ],
)
def test_products_of_models(equation, constant):
    """Attention, graph convolutions, per-channel matrices, outer and inner products."""
    check(equation, constant)


@limit_examples(80)
@given(data=st.data())
def test_any_product(data):
    """Letters shared, summed and of one factor, in any order behind the batch; a constant has no
    batch.
    """
    held = data.draw(st.booleans())
    kinds = {c: data.draw(st.sampled_from(("shared", "summed", "left", "right"))) for c in "abcdef"}
    mine = {
        side: [c for c, kind in kinds.items() if kind in ("shared", "summed", side)]
        for side in ("left", "right")
    }
    left, right = ("".join(data.draw(st.permutations(mine[side]))) for side in ("left", "right"))
    result = "".join(
        data.draw(st.permutations(["n", *(c for c, kind in kinds.items() if kind != "summed")]))
    )
    if held and not right:
        return
    equation = f"n{left},{'' if held else 'n'}{right}->{result}"
    check(equation, 1 if held else None)


@pytest.mark.parametrize(
    ("equation", "constant", "why"),
    [
        ("nab,nb->nb", None, "one factor is summed by itself"),
        ("nab,ncb->ac", None, "the first axis of a factor is not the batch of the result"),
        ("nab,anc->nbc", None, "the first axis of a factor is not the batch of the result"),
        (
            "naa,nb->nab",
            None,
            "it does not have two factors with a distinct letter per axis and a result with axes",
        ),
        (
            "na,na->",
            None,
            "it does not have two factors with a distinct letter per axis and a result with axes",
        ),
        ("na,nb->nab", 1, "a constant differs between samples"),
    ],
)
def test_what_is_no_product_stays(equation, constant, why):
    model, _, _ = product(equation, constant)
    assert reasons(decompose_einsum, model)[0].endswith(f": {why}")


def test_one_position_that_meets_more_stays():
    """Einsum broadcasts such an axis; the product of matrices does not where it is summed."""
    model = graph(
        "g (float[N,1,4] x, float[N,3,4] w) => (float[N,a,b] y) { y = Einsum<equation = "
        '"nac,nac->nac">(x, w) }'
    )
    trace_shapes(model, {"x": rand(1, 1, 4), "w": rand(1, 3, 4)})
    assert reasons(decompose_einsum, model)[0].endswith(
        "an axis of size one is combined with a longer one"
    )
