"""Equalization across Concat, Slice and BatchNormalization: factors per class of channels."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.quantization.methods.channel_groups import find_channel_groups
from lingeronnx.quantization.methods.equalize import equalize_channels
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.partition import partition_graph
from lingeronnx.targets import get_target
from tests.passes.helpers import graph, outputs, positive, rand

X = rand(16, 3, 6, 6, seed=3)

#: Graphs whose branches have very different ranges: text, and gains of weights and factors.
BODIES = {
    "concat": "a = Conv(x, w) b = Conv(x, v) c = Relu(a) d = Relu(b) "
    "e = Concat<axis=1>(c, d) y = Conv(e, u)",
    "concat and pool": "a = Conv(x, w) b = Conv(x, v) e = Concat<axis=-3>(a, b) "
    "f = MaxPool<kernel_shape=[2,2], strides=[2,2]>(e) y = Conv(f, u)",
    "batch norm behind a concat": "a = Conv(x, w) b = Conv(x, v) c = Relu(a) d = Relu(b) "
    "e = Concat<axis=1>(c, d) f = BatchNormalization(e, gamma, beta, mean, var) g = Relu(f) "
    "y = Conv(g, u)",
    "slices": "e = Conv(x, wv) c = Slice(e, zero, four, one) d = Slice(e, four, eight, one) "
    "f = Relu(c) g = Relu(d) p = Conv(f, s) q = Conv(g, t) y = Add(p, q)",
    "a branch of the input": "a = Conv<pads=[1,1,1,1]>(x, w) c = Relu(a) e = Concat<axis=1>(c, x) y = Conv(e, r)",
}


def uneven(count, seed, spread=3.4):
    """Return factors between exp(-spread) and exp(spread), by default 1/30 and 30."""
    exponents = np.linspace(-spread, spread, count)
    return np.exp(exponents[np.random.default_rng(seed).permutation(count)])


def build(name, spread=3.4):
    w, v = rand(4, 3, 3, 3, seed=1), rand(4, 3, 3, 3, seed=2)
    scale = uneven(8, 7, spread).astype(np.float32)
    w, v = w * scale[:4, None, None, None], v * scale[4:, None, None, None]
    u = rand(5, 8, 1, 1, seed=4) / scale[:, None, None]
    arrays = {
        "w": w,
        "v": v,
        "u": u,
        "wv": np.concatenate([w, v]),
        "s": u[:, :4],
        "t": u[:, 4:],
        "r": np.concatenate([u[:, :4], rand(5, 3, 1, 1, seed=5)], 1),
        "gamma": positive(8) * scale,
        "beta": rand(8) * scale,
        "mean": rand(8, seed=6) * scale,
        "var": positive(8) * scale**2,
        "zero": np.array([0]),
        "one": np.array([1]),
        "four": np.array([4]),
        "eight": np.array([8]),
    }
    body = BODIES[name]
    used = {key: value for key, value in arrays.items() if f"{key}," in body or f"{key})" in body}
    model = graph(f"g (float[N,3,6,6] x) => (float[N,5,k,l] y) {{ {body} }}", **used)
    for step in (lambda: None, lambda: normalize(model)):
        step()
        trace_shapes(model, {"x": X[:1]})
    return model


@pytest.mark.parametrize("name", BODIES)
def test_channels_of_joined_tensors_are_equalized(name):
    model = build(name)
    partition = partition_graph(model, get_target("venus"), {})
    before = outputs(model, {"x": X})["y"]
    factors = equalize_channels(partition, [{"x": X}])
    after = outputs(partition.graph, {"x": X})["y"]
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4 * np.abs(before).max())
    assert factors
    assert not {"x", "y"} & {key for key, value in factors.items() if np.any(value != 1)}
    for group in find_channel_groups(partition):
        shared = [np.asarray(factors.get(tensor, np.ones(1))) for tensor in group.tensors]
        for tensor, values in zip(group.tensors, shared, strict=True):
            assert values.size in (1, len(group.classes[tensor]))


def test_the_classes_of_a_concat_are_those_of_its_inputs():
    partition = partition_graph(build("concat"), get_target("venus"), {})
    group = next(g for g in find_channel_groups(partition) if "e" in g.tensors)
    assert group.classes["e"].tolist() == [*group.classes["c"], *group.classes["d"]]
    assert len(set(group.classes["e"].tolist())) == 8
    assert group.is_free.all()


def test_the_channels_of_an_input_stay():
    """Those of the other branch have factors."""
    partition = partition_graph(build("a branch of the input"), get_target("venus"), {})
    group = next(g for g in find_channel_groups(partition) if "e" in g.tensors)
    assert not group.is_free[group.classes["x"]].any()
    assert group.is_free[group.classes["c"]].all()


@pytest.mark.parametrize("name", ["concat", "batch norm behind a concat", "slices"])
@pytest.mark.parametrize("platform", ["generic", "venus"])
def test_what_joins_uneven_branches_keeps_its_accuracy(name, platform):
    result = quantize(build(name), {"x": X}, platform=platform)
    assert result.report.integer_macs == 1
    assert result.report.outputs["y"]["sqnr"] > 25


@pytest.mark.parametrize(("spread", "is_equalized"), [(0.5, False), (3.4, True)])
def test_joined_branches_are_equalized_for_a_clear_gain_only(spread, is_equalized):
    """20 dB of predicted noise; ranges that differ by small factors are left as they are."""
    partition = partition_graph(build("concat", spread), get_target("venus"), {})
    assert bool(equalize_channels(partition, [{"x": X}])) is is_equalized
