"""What can be compared: one face for models, plans, integer graphs and dumps."""

from __future__ import annotations

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.analysis.compare.real_values import RealValues
from lingeronnx.analysis.compare.sources import (
    DumpSource,
    FloatSource,
    IntegerSource,
    PlannedSource,
    open_source,
)
from lingeronnx.common.errors import ConfigError, DataError
from tests import nets
from tests.artefacts import quantized


@pytest.fixture(scope="module")
def made():
    model = nets.plain()
    return model, quantized(model, "venus"), nets.samples(model, 4)


def test_each_kind_finds_its_source(made, tmp_path):
    model, quantized, x = made
    assert isinstance(open_source(model), FloatSource)
    assert isinstance(open_source(quantized), IntegerSource)
    assert isinstance(open_source(quantized.session()), IntegerSource)
    lo.simulate(quantized.session(), x, dump=tmp_path / "d")
    assert isinstance(open_source(tmp_path / "d"), DumpSource)
    planned = PlannedSource(quantized.float_graph, quantized.plan)
    assert open_source(planned) is planned
    with pytest.raises(ConfigError, match="a int cannot be compared"):
        open_source(1)


def _build_attention(*names):
    """Build attention; its factor 0.25 is folded into the layer of the query.

    `names` are two tensors, those of the first and of the second layer.
    """
    net = nets.Net(8, 16)
    for name in (*names, "v"):
        weight = net.rng.standard_normal((16, 16)).astype(np.float32) / 4
        product = net.node("MatMul", "x", net.const(weight))
        net.node("Add", product, net.const(weight[0]), out=name)
    product = net.node("MatMul", "q", net.node("Transpose", "k", perm=[0, 2, 1]))
    scaled = net.node("Mul", product, net.const(np.float32(0.25)))
    scores = net.node("Softmax", scaled, axis=-1)
    return net.graph(net.node("MatMul", scores, "v", out="y"))


@pytest.mark.parametrize("platform", ("venus", "generic"))
def test_folded_factors_are_divided_out(platform):
    model = _build_attention("q", "k")
    x = nets.samples(model, 8)
    integer_model = lo.quantize(model, x, platform=platform)
    assert "q_scaled" in integer_model.plan.tensors
    rows = {row.name: row for row in lo.compare(model, integer_model, x).rows}
    assert min(rows["q"].arrived.sqnr, rows["q"].local.sqnr) > 25


def test_swapped_query_and_key_are_both_named():
    """The layer of the query has a row too, although it stores the query times a factor."""
    model = _build_attention("q", "k")
    x = nets.samples(model, 8)
    integer_model = lo.quantize(_build_attention("k", "q"), x, platform="venus")
    comparison = lo.compare(model, integer_model, x)
    assert {finding.layer for finding in comparison.findings[:2]} == {"q", "k"}


def test_a_folder_that_is_no_dump(tmp_path):
    with pytest.raises(DataError, match="is not a dump with a readable index.json"):
        open_source(tmp_path)


def test_a_dump_is_read_sample_by_sample_and_ends(made):
    dump = DumpSource({"a": (np.arange(3.0), None)})
    first, second = (next(iter(dump.run({"x": np.zeros((n, 1))})))[1] for n in (2, 1))
    assert (first.tolist(), second.tolist()) == ([0.0, 1.0], [2.0])
    with pytest.raises(DataError, match="the dump has only 3 samples of 'a'"):
        list(dump.run({"x": np.zeros((1, 1))}))


def test_integers_forced_to_what_they_are_stay_so(made):
    """Law: a graph whose every layer reads what it reads anyway computes the same integers."""
    _, quantized, feeds = made
    integers = IntegerSource(quantized.session())
    ran = {name: (array, held) for name, array, held in integers.run(feeds)}
    real = {
        name: array if held is None else held.real(array) for name, (array, held) in ran.items()
    }
    for name, array, _ in integers.run_isolated(feeds, real):
        assert np.array_equal(array, ran[name][0]), name


def test_real_values_are_those_of_the_source(made):
    """The two ways to the user's values of a session's tensor are one."""
    _, quantized, feeds = made
    session = quantized.session()
    integers, values = IntegerSource(session), RealValues(session)
    by_user = {
        name: held.real(array) for name, array, held in integers.run(feeds) if held is not None
    }
    compared = 0
    for name, array, held in session.tensors(feeds):
        user = integers.user_names.get(name)
        if held is not None and user in by_user:
            assert np.array_equal(values(name, array, held), by_user[user])
            compared += 1
    assert compared > 3
