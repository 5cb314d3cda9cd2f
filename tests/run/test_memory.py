"""Passes over the data in pieces: within the memory that is given, and with the same result as in
one piece.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.luna import VENUS
from lingeronnx.quantization.methods.equalize import equalize_channels
from lingeronnx.quantization.methods.receptive_fields import compute_covariances
from lingeronnx.quantization.partition import partition_graph
from lingeronnx.runtime.data import Data
from lingeronnx.runtime.memory import bytes_per_sample, choose_batch_size
from lingeronnx.runtime.runners import FloatRunner, float_runner, get_input_specs
from tests import nets
from tests.case_selection import limit_examples, mark_rest_slow


@limit_examples(100)
@given(st.integers(0, 1 << 30), st.integers(1, 256), st.integers(1, 1 << 32))
def test_a_piece_keeps_to_its_share(one, most, budget):
    """At least one sample, at most what was asked for, else an eighth of the budget."""
    found = choose_batch_size(one, most, budget)
    assert 1 <= found <= most
    assert found == 1 or 8 * found * one <= budget


def test_bytes_of_a_sample():
    net = nets.Net(3, 8, 8)
    model = nets.prepared(net.graph(net.node("Relu", net.conv("x", (5, 3, 1, 1)), out="y")))
    assert bytes_per_sample(model) == 4 * (3 + 5 + 5) * 64


@pytest.mark.parametrize(
    "build", mark_rest_slow(1, (nets.depthwise, nets.residual)), ids=lambda build: build.__name__
)
def test_no_run_takes_more_samples_than_fit(build, monkeypatch):
    """Law: whatever the number of samples, no run of the float model computes more than a piece at
    a time.
    """
    model, most = build(), 0
    whole = FloatRunner.run

    def run(self, feed, names=None):
        nonlocal most
        most = max(most, *(len(array) for array in feed.values()))
        return whole(self, feed, names)

    monkeypatch.setattr(FloatRunner, "run", run)
    one = bytes_per_sample(nets.prepared(model))
    feed = nets.samples(model, 48)
    quantize(build(), feed, memory=5 * 8 * one / 1e9)
    assert 0 < most <= 5
    quantize(build(), feed, memory=1.0)
    assert most > 5


def test_the_split_does_not_matter():
    """The same plan and the same integers, but for float32 rounding in onnxruntime, which no scale
    sees here.
    """
    feed = nets.samples(nets.residual(), 24)
    less, more = (
        quantize(nets.residual(), feed, memory=size, effort="fast") for size in (1e-4, 1.0)
    )
    assert less.plan == more.plan
    left, right = (model.graph.graph.initializers for model in (less, more))
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(ir.const_value(value), ir.const_value(right[name]))


@pytest.mark.parametrize("build", (nets.depthwise, nets.residual), ids=lambda build: build.__name__)
def test_stages_give_what_one_session_gives(build, monkeypatch):
    """Law: a model that is cut because one sample has many bytes gives the same tensors, all of
    them or the last.
    """
    model = nets.prepared(build())
    feed = nets.samples(model, 3)
    want = list(FloatRunner(model).run(feed))
    monkeypatch.setattr(float_runner, "MAX_STAGE_BYTES", 4000)
    runner = FloatRunner(model)
    assert len(runner.groups) > 2
    have = list(runner.run(feed))
    assert [name for name, _, _ in have] == [name for name, _, _ in want]
    for (name, array, _), (_, other, _) in zip(want, have, strict=True):
        np.testing.assert_array_equal(other, array, err_msg=name)
    ((_, last, _),) = runner.run(feed, [want[-1][0]])
    np.testing.assert_array_equal(last, want[-1][1])


def test_channels_are_seen_alike_in_pieces():
    model = nets.prepared(nets.residual())
    feed = nets.samples(model, 12)
    parts = partition_graph(model, VENUS, {})
    pieces = list(Data(feed, get_input_specs(model)).split_feeds(feed, 5))
    assert [len(part["x"]) for part in pieces] == [5, 5, 2]
    whole = equalize_channels(parts.with_graph(model.clone()), [feed])
    split = equalize_channels(parts.with_graph(model.clone()), pieces)
    assert whole.keys() == split.keys() != set()
    for name, factor in whole.items():
        np.testing.assert_allclose(split[name], factor, rtol=1e-4)


@limit_examples(20)
@given(
    st.integers(1, 5000),
    st.integers(1, 3),
    st.integers(1, 6),
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 9),
)
def test_moments_in_chunks(rows, groups, fields, wide, parts, seed):
    """Law: the covariance of the integers of each group, of any rows and parts; -128 and -32768
    among them.
    """
    kind = np.dtype(np.int16 if wide else np.int8)
    least = np.iinfo(kind).min
    x = np.random.default_rng(seed).integers(least, -least, (rows, groups, fields)).astype(kind)
    x[: rows // 2] = least
    want = [
        np.cov(x[:, g].astype(np.float64), rowvar=False, bias=True).reshape(fields, fields)
        for g in range(groups)
    ]
    np.testing.assert_allclose(
        compute_covariances(
            chunk.transpose(1, 2, 0) for chunk in np.array_split(x, min(parts, rows))
        ),
        want,
        rtol=1e-9,
        atol=1e-7 * least**2,
    )


def test_moments_of_bytes_are_exact():
    """Sums in float32 lose nothing: many rows of the largest products."""
    x = np.full((4099, 1, 2), -128, np.int8)
    x[0] = 127
    wide = x[:, 0].astype(object)
    total, squares = wide.sum(axis=0), sum(row * row for row in wide)
    want = float(squares[0]) / 4099 - (float(total[0]) / 4099) ** 2
    assert compute_covariances([x.transpose(1, 2, 0)])[0, 0, 0] == want


def test_no_memory_at_all_is_refused():
    with pytest.raises(ConfigError, match="memory"):
        quantize(nets.plain(), nets.samples(nets.plain()), memory=0)
