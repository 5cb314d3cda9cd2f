"""The tuple of passes as a whole."""

import numpy as np
import onnx
import pytest

from lingeronnx.common.errors import InternalError
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize import NORMALIZATION_PASSES, Pass, normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from tests.passes.helpers import (
    feeds,
    graph,
    interface,
    ops,
    outputs,
    positive,
    rand,
    run_all_tensors,
)

TEXT = """g (float[N,3,8,8] image) => (float[N,5] score) {
    p = Pad(image, pads) c1 = Conv<strides = [2, 2]>(p, w1)
    n1 = BatchNormalization(c1, g, b, m, v) r1 = Relu(n1) l1 = Clip(r1, , six)
    c2 = Conv<auto_pad = "SAME_UPPER">(l1, w2) k = Constant<value_float: float = 2.0>() h = Mul(k, c2) i = Identity(h)
    a = Add(i, l1) pool = ReduceMean<axes = [2, 3], keepdims = 0>(a) d = Dropout(pool)
    s = Shape(d) zero = Constant<value_int: int = 0>() n = Gather<axis = 0>(s, zero)
    ax = Constant<value_ints = [0]>() u = Unsqueeze(n, ax) rest = Constant<value_ints = [-1]>()
    t = Concat<axis = 0>(u, rest) flat = Reshape(d, t)
    wt = Transpose<perm = [1, 0]>(w3) mm = MatMul(flat, wt) score = Add(w4, mm)
}"""
ARRAYS = {
    "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1]),
    "w1": rand(4, 3, 3, 3),
    "g": rand(4, seed=1),
    "b": rand(4, seed=2),
    "m": rand(4, seed=3),
    "v": positive(4),
    "six": np.float32(6),
    "w2": rand(4, 4, 3, 3),
    "w3": rand(5, 4),
    "w4": rand(5),
}


def build():
    return graph(TEXT, **ARRAYS)


def traced():
    model = build()
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    return model


def run():
    model = traced()
    return model, normalize(model), feeds(model)


def test_everything_at_once():
    """A net as exporters write it ends in seven operators, the same function, the same names."""
    model, changes, feed = run()
    assert ops(model) == ["Conv", "Clip", "Conv", "Add", "AveragePool", "Flatten", "Linear"]
    assert interface(model) == interface(build())
    np.testing.assert_allclose(
        outputs(model, feed)["score"], outputs(build(), feed)["score"], rtol=0, atol=1e-4
    )
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    expected = {
        "prepare",
        "fold-constants",
        "drop-identity",
        "constant-reshape",
        "explicit-pads",
        "linear",
        "fold-batch-norm",
        "fold-affine",
        "clip",
        "average-pool",
    }
    assert (
        expected - {"constant-reshape"}
        <= {name for name, count in changes.items() if count}
        <= expected
    )
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    assert not any(normalize(model).values())


def test_surviving_tensors_keep_name_and_meaning():
    """Law 1: what is left under a name of the user's is the user's tensor."""
    model, _, feed = run()
    before, after = run_all_tensors(build(), feed), run_all_tensors(model, feed)
    common = before.keys() & after.keys()
    assert common >= {"image", "l1", "h", "a", "score"}
    for name in common:
        np.testing.assert_allclose(after[name], before[name], rtol=0, atol=1e-4)


def test_result_is_reproducible():
    """Law 5: the same model gives the same bytes."""
    first, second = (ir.to_proto(run()[0]).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_a_failing_pass_is_named(monkeypatch):
    """A bug in a pass is ours: the error names it and what ran before."""

    def fail(model):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(
        "lingeronnx.quantization.normalize.NORMALIZATION_PASSES",
        (*NORMALIZATION_PASSES[:2], Pass("broken", fail)),
    )
    with pytest.raises(
        InternalError, match="pass broken failed after passes check-control, prepare: oh"
    ):
        normalize(traced())
