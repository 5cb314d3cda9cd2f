"""KL_softmax: the divergence of outputs as probabilities, as users of torch write it."""

import math

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.analysis.stats.pair_measures import PairMeasures
from lingeronnx.common.errors import DataError
from lingeronnx.runtime.metrics import SoftmaxDivergence
from tests.nets import Net


def expected_mean(x, y):
    """Return the mean of p log(p / q) over all elements, written as the formula."""
    p, q = (np.exp(a.astype(np.float64)) for a in (x, y))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    return float((p * np.log(p / q)).mean())


@pytest.mark.parametrize("shape", ((6, 5), (4, 3, 70), (3, 4, 5, 6), (1, 1000, 200)))
def test_the_formula(shape):
    """For any rank from 2 on, in batches, and the same as torch's call where it is installed."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3, shape).astype(np.float32)
    y = x + rng.normal(0, 0.5, shape).astype(np.float32)
    pair, metric = PairMeasures(), SoftmaxDivergence()
    for start in range(0, shape[0], 2):
        pair.add(x[start : start + 2], y[start : start + 2])
        metric.add(x[start : start + 2], y[start : start + 2])
    expected = expected_mean(x, y)
    assert pair.kl_softmax == pytest.approx(expected, rel=1e-9)
    assert metric.value == pytest.approx(expected, rel=1e-9)
    assert PairMeasures.from_state(pair.state(False)).kl_softmax == pair.kl_softmax
    torch = pytest.importorskip("torch")
    import torch.nn.functional as F  # noqa: N812 - as users write it

    a, b = torch.from_numpy(x), torch.from_numpy(y)
    with pytest.warns(UserWarning, match="reduction: 'mean'"):
        theirs = F.kl_div(F.log_softmax(b, 1), F.softmax(a, 1), reduction="mean")
    assert pair.kl_softmax == pytest.approx(float(theirs), rel=1e-3)


def test_the_ends():
    """Equal tensors, large logits, rank 1, and values that are not finite."""
    x = np.array([[1e4, -1e4, 0.0]], np.float32)
    pair = PairMeasures()
    pair.add(x, x)
    assert pair.kl_softmax == 0
    line = PairMeasures()
    line.add(x[0], x[0])
    assert math.isnan(line.kl_softmax)
    pair.add(x, np.array([[np.inf, 0, 0]], np.float32))
    assert math.isnan(pair.kl_softmax)
    with pytest.raises(DataError, match="kl_softmax needs outputs with classes on axis 1"):
        SoftmaxDivergence().add(x[0], x[0])


def test_it_is_a_metric_of_the_calls(tmp_path):
    """Of `evaluate`, `find_bad_case` and `sensitivity`, and the last column of `compare`."""
    net = Net(6, 1, 1)
    flat = net.node("Flatten", "x")
    model = tmp_path / "net.onnx"
    onnx.save(net.proto(net.linear(flat, (6, 4), out="y")), model)
    data = {"x": np.random.default_rng(1).standard_normal((8, 6, 1, 1)).astype(np.float32)}
    quantized = lo.quantize(model, data, platform="generic", effort="fast")
    x, y = (lo.Session(m).run(None, data)[0] for m in (model, quantized.graph))
    expected = expected_mean(x, y)
    result = lo.evaluate(quantized, data, baseline=model, metric="kl_softmax")
    assert result.value == pytest.approx(expected, rel=1e-6)
    row = lo.compare(model, quantized, data).rows[-1]
    assert row.arrived.to_dict()["KL_softmax"] == pytest.approx(expected, rel=1e-6)
    worst = lo.find_bad_case(model, quantized, data, metric="kl_softmax")
    values = [expected_mean(a[None], b[None]) for a, b in zip(x, y, strict=True)]
    assert worst.index == int(np.argmax(values))
    ranking = lo.sensitivity(model, data, platform="generic", metric="kl_softmax").ranking
    assert ranking[0].values[0] > 0
