"""Rounding by the error behind the next layer: the descent against plain loops, the metric against
two layers run.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx import api
from lingeronnx.ir import ir
from lingeronnx.quantization import RefinementOptions, plan_model, prepare_model, refine_weights
from lingeronnx.quantization.methods.block_reconstruction import (
    compute_block_metric,
    minimize_block_error,
)
from tests import nets
from tests.case_selection import limit_examples

SAMPLES = 10**9  # so many that moments are hardly drawn towards their diagonal


def objective(integers, weight, h, g):
    """Oracle: the trace of G D H D^T, element by element."""
    rows, size = range(len(weight)), range(len(weight[0]))
    off = [[float(integers[o][k]) - float(weight[o][k]) for k in size] for o in rows]
    return sum(
        g[o][p] * off[p][k] * h[k][j] * off[o][j]
        for o in rows
        for p in rows
        for k in size
        for j in size
    )


def problem(seed, rows, size):
    """Weights [1, rows, size] in counts, moments with the damping that the rounding gives them, and
    a metric.
    """
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((size + 1, size)), rng.standard_normal((rows + 1, rows))
    moments = a.T @ a
    damped = moments + 0.01 * np.trace(moments) / size * np.eye(size)
    return (
        rng.uniform(-1.4, 1.4, (1, rows, size)),
        moments[None],
        damped.tolist(),
        b.T @ b + 0.1 * np.eye(rows),
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5))
@limit_examples(40, derandomize=True)
def test_the_error_never_grows_and_no_single_integer_could_move(seed, rows, size):
    """Integers of the range; from any start, the descent ends no higher, and where no step by one
    gains.
    """
    weight, moments, h, metric = problem(seed, rows, size)
    start = np.random.default_rng(seed).integers(-2, 3, weight.shape).astype(float)
    found = minimize_block_error(start, weight, moments, metric, SAMPLES, -2, 2)
    assert np.isin(found, range(-2, 3)).all()
    least = objective(found[0], weight[0], h, metric)
    assert least <= objective(start[0], weight[0], h, metric) * (1 + 1e-6)
    for o, k, step in itertools.product(range(rows), range(size), (-1, 1)):
        other = found[0].copy()
        other[o, k] += step
        assert abs(other[o, k]) > 2 or objective(other, weight[0], h, metric) >= least * (1 - 1e-6)


@pytest.mark.parametrize("seed", [3, 4, 9])
def test_it_finds_the_best_of_all(seed):
    """Two by two weights of three levels, where rounding to nearest is not the best: what trying
    all 81 gives.
    """
    weight, moments, h, metric = problem(seed, 2, 2)
    nearest = np.clip(np.rint(weight), -1, 1)
    every = [np.array(v, float).reshape(2, 2) for v in itertools.product((-1, 0, 1), repeat=4)]
    best = min(every, key=lambda v: objective(v, weight[0], h, metric))
    assert not np.array_equal(nearest[0], best)
    assert np.array_equal(
        minimize_block_error(nearest, weight, moments, metric, SAMPLES, -1, 1)[0], best
    )


@pytest.mark.parametrize("seed", range(5))
def test_it_stays_at_the_best(seed):
    """Law: what trying all gives is where the descent ends at once."""
    weight, moments, h, metric = problem(seed, 2, 2)
    every = [np.array(v, float).reshape(1, 2, 2) for v in itertools.product((-1, 0, 1), repeat=4)]
    best = min(every, key=lambda v: objective(v[0], weight[0], h, metric))
    assert np.array_equal(minimize_block_error(best, weight, moments, metric, SAMPLES, -1, 1), best)


def test_groups_and_blocks_of_columns():
    """Over several blocks of columns and with a dead group: the integers that plain loops find."""
    rng = np.random.default_rng(7)
    rows, size = 3, 150
    x, v = (
        rng.standard_normal((400, size)) + 2 * rng.standard_normal((400, 1)),
        rng.standard_normal((5, 2 * rows)),
    )
    moments = np.stack([x.T @ x / 400, np.zeros((size, size))])
    weight = rng.uniform(-8, 7, (2, rows, size))
    start = np.clip(np.floor(weight + 0.5), -8, 7)
    found = minimize_block_error(start, weight, moments, v.T @ v, SAMPLES, -8, 7)
    h = moments[0] * (1 - size / (size + SAMPLES))
    h[range(size), range(size)] = np.diag(moments[0]) + 0.01 * np.diag(moments[0]).mean()
    g = v.T @ v
    want, moved, sweeps = start[0].copy(), True, 0
    columns, order = np.argsort(-np.diag(h)), np.argsort(-np.diag(g)[:rows])
    while moved and sweeps < 8:
        before, sweeps = want.copy(), sweeps + 1
        for k, o in itertools.product(columns, order):
            slope = g[o, :rows] @ (want - weight[0]) @ h[:, k]
            want[o, k] = np.clip(np.rint(want[o, k] - slope / (g[o, o] * h[k, k])), -8, 7)
        moved = not np.array_equal(want, before)
    assert np.array_equal(found[0], want)
    assert not np.array_equal(want, start[0])
    assert np.array_equal(found[1], start[1])


def linears(relu):
    """Two linear layers, with a Relu between or not."""
    net = nets.Net(6, seed=2)
    a = net.linear("x", (6, 4), out="a")
    return net.graph(net.linear(net.node("Relu", a) if relu else a, (4, 3), out="y"))


def layers(model):
    """The layers that are refined, by their outputs."""
    planned = plan_model(
        prepare_model(model, nets.samples(model, 32), None, {"platform": "generic"})
    )
    return {
        ir.output_name(n): n
        for n, _ in planned.partition.integer_nodes
        if n.op_type in ("Conv", "Linear")
    }


@pytest.mark.parametrize("relu", [False, True])
def test_the_metric_is_the_error_behind_the_next_layer(relu):
    """Oracle: for every two channels, what a unit error of both makes of the next layer's outputs
    where both pass.
    """
    found = layers(linears(relu))
    v = ir.const_value(found["y"].inputs[1]).astype(float).tolist()
    values = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    metric = compute_block_metric(found["a"], values)
    want = [[sum(row[o] * row[p] for row in v) for p in range(4)] for o in range(4)]
    if relu:
        share = [
            [sum(1 for z in values if z[o] > 0 and z[p] > 0) / 50 for p in range(4)]
            for o in range(4)
        ]
        want = [[want[o][p] * share[o][p] for p in range(4)] for o in range(4)]
    level = sum(want[o][o] for o in range(4)) / 4
    want = [[want[o][p] + level * (o == p) for p in range(4)] for o in range(4)]
    assert np.allclose(metric, want, rtol=1e-5)
    assert compute_block_metric(found["y"], values[:, :3]) is None  # nothing reads it


def test_a_grouped_reader_keeps_its_groups_apart():
    """Channels that go to different groups of the next convolution have nothing to do with each
    other.
    """
    net = nets.Net(2, 5, 5, seed=3)
    a = net.conv("x", (4, 2, 3, 3), out="a")
    found = layers(net.graph(net.conv(a, (6, 2, 2, 2), group=2, out="y")))
    metric = compute_block_metric(found["a"], np.ones((9, 4), np.float32))
    v = ir.const_value(found["y"].inputs[1]).astype(float)
    own = [
        sum(
            v[(0 if o < 2 else 3) + q, o % 2, i, j] ** 2
            for q in range(3)
            for i in (0, 1)
            for j in (0, 1)
        )
        for o in range(4)
    ]
    assert not metric[:2, 2:].any()
    assert metric[0, 1] == pytest.approx(sum((v[q, 0] * v[q, 1]).sum() for q in range(3)), rel=1e-5)
    assert np.allclose(np.diag(metric), np.array(own) + sum(own) / 4, rtol=1e-5)


def test_pooling_lets_channels_through():
    """Behind a global average and a Flatten the next layer reads channels as they were."""
    found = layers(nets.plain())
    assert compute_block_metric(list(found.values())[1], np.ones((9, 8), np.float32)).shape == (
        8,
        8,
    )


def test_what_more_than_a_layer_reads_has_no_metric():
    """A layer whose outputs go to two places, or into a sum, is left to its own rounding."""
    net = nets.Net(2, 5, 5, seed=4)
    a = net.conv("x", (2, 2, 1, 1), out="a")
    b = net.conv(a, (2, 2, 1, 1), out="b")
    net.node("Add", a, b, out="s")
    found = layers(net.graph("s"))
    assert [compute_block_metric(found[name], np.ones((9, 2), np.float32)) for name in "ab"] == [
        None,
        None,
    ]


def test_only_layers_in_front_of_a_layer_move():
    """The switch moves weights that one layer reads behind a Relu; a layer that nothing reads it
    leaves alone.
    """
    net = nets.Net(6, seed=2)
    alone = net.graph(net.linear("x", (6, 4), out="a"))
    for model, alike in ((alone, True), (linears(True), False)):
        planned = plan_model(
            prepare_model(model, nets.samples(model, 64), None, {"platform": "generic"})
        )
        weights = []
        for methods in (RefinementOptions(), RefinementOptions(block_reconstruction=True)):
            made = next(
                n for n in refine_weights(planned, methods).graph if ir.output_name(n) == "a"
            )
            weights.append(ir.const_value(made.inputs[1]))
        assert np.array_equal(*weights) == alike
        assert np.abs(weights[0] - weights[1]).max() < 0.1 * np.abs(weights[0]).max()


def test_best_effort_tries_it():
    """It has its line in the report, behind those of the other methods."""
    model = linears(True)
    made = api.quantize(model, nets.samples(model, 16), platform="generic", effort="best")
    lines = [note for note in made.report.notes if note.startswith("effort best: ")]
    assert (
        "after the next layer"
        in [note for note in lines if " on 16 held-out samples" in note or "changes" in note][-1]
    )
