"""Attempts made side by side on a cluster: the same search to the last bit, and no more in it than
one alone makes.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx import api, cli
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.quantization import Candidate
from lingeronnx.search import Goal, search
from lingeronnx.search.run import _bisection_indices, _galloping_indices
from tests import nets
from tests.case_selection import limit_examples
from tests.search.test_search import base_of


@limit_examples(100)
@given(st.integers(1, 40), st.integers(0, 40))
def test_what_is_made_ahead_is_what_a_climb_asks_for(count, enough):
    """Law: a climb on places 0 to count - 1, met from `enough` on, asks for no place that was not
    given out.
    """
    low, high, step, doubling = -1, -1, 0, list(_galloping_indices(count))
    while low < count - 1:
        place = min(step, count - 1)
        assert place == doubling.pop(0)
        if place >= enough:
            high = place
            break
        low, step = place, 2 * place + 1
    if high < 0:
        assert enough >= count
        return
    foretold = None
    while high - low > 1:
        middle = (low + high) // 2
        assert foretold is None or middle in foretold
        foretold = list(_bisection_indices(low, high))
        assert middle not in foretold
        assert all(low < place < high for place in foretold)
        low, high = (low, middle) if middle >= enough else (middle, high)
    assert high == min(enough, count - 1)


def told(result):
    """Return what a search found, without how long it took."""
    search_report = result.report.search
    return {
        **search_report,
        "trials": [{**trial, "seconds": 0} for trial in search_report["trials"]],
    }


def journal(path):
    return [
        {key: value for key, value in json.loads(line).items() if key != "seconds"}
        for line in path.read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def cluster():
    """Return a cluster of two processes."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, processes=True, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as made:
        yield made


@pytest.mark.parametrize(
    "wish",
    (
        pytest.param(
            {"max_flash": 2600, "weight_bits": "auto", "platform": "arcs"}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"min_sqnr": 40, "platform": "generic"}, marks=pytest.mark.deep
        ),  # efforts, and a rung climbed
    ),
)
def test_a_cluster_finds_the_same(tmp_path, cluster, wish):
    """Law: attempts, figures, journal and graph are those of a search alone, also where a worker
    dies.
    """
    x = np.random.default_rng(3).standard_normal((8, 4, 12, 12)).astype(np.float32)
    options = {"effort": "fast", **wish}
    alone = api.quantize(nets.residual(), x, log=tmp_path / "alone.jsonl", **options)
    assert len(alone.report.search["trials"]) > 2
    killed = []

    def kill_one(part, done, total):
        if part == "attempt 2" and not killed:
            killed.append(next(iter(cluster.workers.values())))
            os.kill(killed[0].pid, signal.SIGKILL)

    place = {"cluster": cluster.scheduler_address, "progress": kill_one}
    together = api.quantize(nets.residual(), x, log=tmp_path / "together.jsonl", **options, **place)
    assert told(together) == told(alone)
    assert ir.to_bytes(together.graph) == ir.to_bytes(alone.graph)
    assert journal(tmp_path / "together.jsonl") == journal(tmp_path / "alone.jsonl")
    assert killed


@dataclass(frozen=True)
class Another:
    """Begins a search with another net than the one that it is called with."""

    def __call__(self) -> Candidate:
        return base_of(nets.depthwise(), platform="generic")


@pytest.mark.slow
def test_a_worker_that_begins_with_something_else_is_refused(cluster):
    base, goal = base_of(nets.residual(), platform="generic"), Goal(min_sqnr=60)
    with pytest.raises(
        ConfigError, match="a worker of the cluster has a different model than this machine"
    ):
        search(base, goal, create_start=Another(), cluster=cluster.scheduler_address)


def test_a_cluster_needs_a_wish(tmp_path):
    with pytest.raises(
        ConfigError, match="a cluster runs the attempts of a search; pass max_drop, min_sqnr"
    ):
        api.quantize(
            nets.residual(), np.zeros((2, 4, 12, 12), np.float32), cluster="tcp://127.0.0.1:1"
        )
    ir.save(nets.residual(), tmp_path / "net.onnx")
    refused = CliRunner().invoke(
        cli.main, ["quantize", str(tmp_path / "net.onnx"), "--cluster", "tcp://127.0.0.1:1"]
    )
    assert refused.exit_code == 2
    assert "--cluster needs --max-drop POINTS" in refused.stderr
