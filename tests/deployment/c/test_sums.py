"""Normalisation over whole maps in steps: the same function, and nearer to it in single precision."""

import numpy as np
import onnx
import pytest

from lingeronnx.deployment.c.sums import with_short_sums
from lingeronnx.graph import ir
from lingeronnx.run.runners import FloatRunner
from tests.passes.helpers import proto, rand

SHAPES = {"line": (2, 4096), "map": (3, 40, 25), "prime": (2, 4099), "volume": (2, 8, 9, 10)}


def normalised(shape, opset):
    sizes = ",".join(map(str, shape))
    text = f"g (float[1,{sizes}] x) => (float[1,{sizes}] y) {{ y = InstanceNormalization<epsilon = 0.001>(x, s, b) }}"
    return proto(text, opset=opset, s=rand(shape[0]), b=rand(shape[0]))


def told(model):
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def added_up(x):
    """The sum of the last axis in single precision, one number after the other."""
    return np.add.accumulate(x, axis=-1, dtype=np.float32)[..., -1:]


@pytest.mark.parametrize("opset", (13, 18))
@pytest.mark.parametrize("name", SHAPES)
def test_the_same_function(name, opset):
    model = normalised(SHAPES[name], opset)
    x = np.random.default_rng(1).standard_normal((1, *SHAPES[name])).astype(np.float32) + 3
    want = next(a for n, a, _ in FloatRunner(ir.from_proto(model)).run({"x": x}) if n == "y")
    assert with_short_sums(model)
    onnx.checker.check_model(told(model), full_check=True)
    assert {node.op_type for node in model.graph.node}.isdisjoint({"InstanceNormalization"})
    found = next(a for n, a, _ in FloatRunner(ir.from_proto(model)).run({"x": x}) if n == "y")
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.ptp(want))


def test_sums_of_sums_are_nearer():
    """Why it is done: plain Python's sum of what lies far from zero, and the two steps of the module."""
    x = np.random.default_rng(2).standard_normal((16, 64, 64)).astype(np.float32) + 30
    true = x.astype(np.float64).mean(axis=(1, 2))
    plain = np.abs(added_up(x.reshape(16, 4096))[:, 0] / 4096 - true).max()
    steps = np.abs(added_up((added_up(x) / 64)[..., 0])[:, 0] / 64 - true).max()
    assert steps < plain / 2


def test_what_is_short_or_unknown_stays():
    short = normalised((3, 8, 8), 13)
    assert not with_short_sums(short)
    unknown = proto(
        "g (float[N,2,M] x) => (float[N,2,M] y) { y = InstanceNormalization(x, s, b) }", s=rand(2), b=rand(2)
    )
    assert not with_short_sums(unknown)
