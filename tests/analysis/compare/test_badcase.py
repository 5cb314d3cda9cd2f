"""The worst sample: the same as by hand, whatever the batches; saved, it goes on as data."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from lingeronnx import api, cli
from lingeronnx.analysis.compare.badcase import find_bad_case
from lingeronnx.common.errors import ConfigError, DataError
from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session
from tests.each import check_each
from tests.nets import residual


@pytest.fixture(scope="module")
def both():
    """Return a float net, its integer graph and samples, of which some are far larger than what
    calibration saw.
    """
    rng = np.random.default_rng(6)
    net = residual()
    x = rng.standard_normal((40, 4, 12, 12)).astype(np.float32)
    graph = api.quantize(net, x[:20], effort="fast").graph
    x[23] *= 6
    x[31] *= 3
    return net, graph, x


def by_hand(both):
    """Return {metric: its value for every sample}, in plain numpy."""
    net, graph, x = both
    a, b = (Session(m).run(["y"], {"x": x})[0].astype(np.float64) for m in (net, graph))
    off = a - b
    return {
        "L1": np.abs(off).mean(1),
        "MSE": np.square(off).mean(1),
        "Atol": np.abs(off).max(1),
        "Cosine": (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1)),
        "SQNR": 10 * np.log10((a * a).sum(1) / np.square(off).sum(1)),
    }


@pytest.mark.sweep
@pytest.mark.parametrize("metric", ("L1", "mse", "cosine", "SQNR", "Atol"))
@pytest.mark.parametrize("batch", (1, 7, 64))
def test_worst_by_hand(both, metric, batch):
    net, graph, x = both
    name = {"mse": "MSE", "cosine": "Cosine"}.get(metric, metric)
    values = by_hand(both)[name]
    order = np.argsort(values if name in ("Cosine", "SQNR") else -values, kind="stable")
    bad_case = find_bad_case(net, graph, x, metric=metric, batch=batch)
    assert bad_case.metric == name
    assert [index for index, _ in bad_case.worst] == order[:10].tolist()
    assert bad_case.value == pytest.approx(values[order[0]], rel=1e-5)
    assert bad_case.mean == pytest.approx(values.mean(), rel=1e-5)
    assert np.array_equal(bad_case.feeds["x"], x[order[0] : order[0] + 1])
    assert bad_case.samples == 40


def test_own_function_and_steps(both, tmp_path):
    net, graph, x = both
    (tmp_path / "own.py").write_text("def first(a, b):\n    return float(a[0, 0] - b[0, 0])\n")
    a, b = (Session(m).run(["y"], {"x": x})[0] for m in (net, graph))
    values = (a - b)[:, 0]
    own = f"{tmp_path}/own.py:first"
    assert find_bad_case(net, graph, x, metric=own, order="ascending").index == int(values.argmin())
    assert find_bad_case(net, graph, x, metric=own, order="descending").index == int(
        values.argmax()
    )
    by_call = find_bad_case(
        net, graph, x, metric=lambda p, q: float(p[0, 0] - q[0, 0]), order="ascending"
    )
    assert by_call.index == int(values.argmin())
    early = find_bad_case(net, graph, x, metric="L1", batch=5, steps=4)
    assert early.samples == 20
    assert early.index == int(by_hand(both)["L1"][:20].argmax())


def test_equal_models(both):
    """The first sample stands for all where nothing differs, and what is infinitely good is not the
    worst.
    """
    net, _, x = both
    bad_case = find_bad_case(net, net, x[:3], metric="SQNR")
    assert (bad_case.index, bad_case.value) == (0, math.inf)


def test_a_plan_in_float(both):
    net, _, x = both
    result = api.quantize(net, x[:20], effort="fast")
    assert find_bad_case(net, result, x).index == find_bad_case(net, result.graph, x).index


def fails(a, b):
    raise RuntimeError("no")


def test_refused(both):
    net, graph, x = both

    def check(more, message):
        with pytest.raises(ConfigError, match=message):
            find_bad_case(net, graph, x[:2], **more)

    cases = [
        ({"metric": "sqnrr"}, "unknown metric 'sqnrr'; did you mean 'sqnr'"),
        ({"metric": "L1", "order": "ascending"}, "order: L1 has a known order"),
        ({"metric": fails}, "a user-defined metric has no known order"),
        (
            {"metric": fails, "order": "ascending"},
            r"the metric function failed \(RuntimeError: no\)",
        ),
        ({"output": "z"}, "the model has no output 'z'"),
    ]
    check_each(check, cases)
    with pytest.raises(DataError, match="at least one step"):
        find_bad_case(net, graph, x[:2], steps=0)


def test_command(both, tmp_path):
    net, graph, x = both
    ir.save(net, tmp_path / "net.onnx")
    ir.save(graph, tmp_path / "quant.onnx")
    np.savez(tmp_path / "data.npz", x=x, labels=np.arange(40))
    line = ["badcase", "net.onnx", "quant.onnx", "--data", "data.npz", "--json", "-o"]
    line = [f"{tmp_path}/{word}" if word.endswith((".onnx", ".npz")) else word for word in line]
    result = CliRunner().invoke(cli.main, [*line, f"{tmp_path}/bad.npz"])
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    want = int(by_hand(both)["L1"].argmax())
    assert (body["index"], body["metric"], body["samples"]) == (want, "L1", 40)
    with np.load(tmp_path / "bad.npz") as saved:
        assert np.array_equal(saved["x"], x[want : want + 1])
        assert saved["labels"].tolist() == [want]
    compared = [
        "compare",
        line[1],
        line[2],
        "--data",
        f"{tmp_path}/bad.npz",
        "-o",
        f"{tmp_path}/compared",
    ]
    assert CliRunner().invoke(cli.main, compared).exit_code == 0
    refused = CliRunner().invoke(cli.main, [*line, f"{tmp_path}/bad.txt"])
    assert refused.exit_code == 1
    assert "use a name that ends with .npz" in refused.stderr
