"""Work spread over processes and over a Dask cluster: the same results to the last bit, whoever
dies on the way.
"""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lingeronnx import api, cli
from lingeronnx.common.errors import ConfigError, DataError
from lingeronnx.ir import ir
from lingeronnx.luna import VENUS
from lingeronnx.runtime.cluster import map_jobs
from lingeronnx.runtime.evaluation import evaluate
from lingeronnx.runtime.session import Session
from tests.nets import residual


@dataclass(frozen=True)
class Squares:
    """Squares numbers; notes in `folder` which processes unpacked and started it, and dies once, on
    the number `fatal`.

    A negative number is an error of the user's.
    """

    folder: Path
    fatal: int = -1

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._note("unpacked")

    def _note(self, what):
        with (self.folder / f"{what}-{os.getpid()}").open("a") as file:
            file.write("x")

    def start(self):
        self._note("started")
        return self._square

    def _square(self, number):
        if number == self.fatal and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number < 0:
            raise DataError(f"{number} is negative")
        return number * number


def counts(folder, what):
    return [len(path.read_text()) for path in folder.glob(f"{what}-*")]


def test_order_and_once_per_worker(tmp_path):
    """Results come in the items' order, and a worker gets the job once, however many items it works
    on.
    """
    assert list(map_jobs(Squares(tmp_path), range(20), workers=2)) == [n * n for n in range(20)]
    assert counts(tmp_path, "started") in ([1, 1], [1])
    assert counts(tmp_path, "unpacked") in ([1, 1], [1])
    assert f"started-{os.getpid()}" not in os.listdir(tmp_path)


@pytest.mark.slow
def test_items_are_taken_when_needed(tmp_path):
    """Law: no more than two items for each worker are out at a time, so that data need not fit the
    memory.
    """
    out, most = 0, 0

    def items():
        nonlocal out, most
        for number in range(30):
            out += 1
            most = max(most, out)
            yield number

    for _ in map_jobs(Squares(tmp_path), items(), workers=1):
        out -= 1
    assert most <= 3


@pytest.mark.slow
def test_errors_come_through(tmp_path):
    with pytest.raises(DataError, match="^-3 is negative$"):
        list(map_jobs(Squares(tmp_path), [1, -3, 2], workers=1))
    with pytest.raises(DataError, match="^-3 is negative$"):
        list(map_jobs(Squares(tmp_path), [1, -3, 2]))


def test_a_killed_process_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="a worker process ended before its work was done"):
        list(map_jobs(Squares(tmp_path, fatal=3), range(9), workers=2))


@pytest.mark.parametrize(
    "given, said",
    [
        ({"workers": 0}, "workers = 0; at least 1"),
        ({"workers": 2, "cluster": "tcp://127.0.0.1:1"}, "pass only one of the two"),
    ],
)
def test_refused(tmp_path, given, said):
    with pytest.raises(ConfigError, match=said):
        list(map_jobs(Squares(tmp_path), [1], **given))


def test_what_cannot_be_sent(tmp_path):
    job = Squares(tmp_path)
    object.__setattr__(job, "folder", lambda: 0)
    with pytest.raises(ConfigError, match="cannot pickle the job"):
        list(map_jobs(job, [1], workers=1))


# ---- evaluate ----------------------------------------------------------------------------------------------------


def two():
    """Return a float net, its integer graph, data with labels in 5 items of odd sizes."""
    rng = np.random.default_rng(5)
    net = residual()
    x = rng.standard_normal((41, 4, 12, 12)).astype(np.float32)
    result = api.quantize(net, x[:16], effort="fast")
    labels = rng.integers(0, 4, len(x))
    data = [({"x": x[i : i + 9]}, labels[i : i + 9]) for i in range(0, len(x), 9)]
    return net, result.graph, data


@pytest.mark.slow
def test_evaluate_is_the_same_to_the_last_bit(tmp_path):
    """Law: processes change no bit of a metric, with labels and without, for float and integer
    models.
    """
    net, graph, data = two()
    (tmp_path / "own.py").write_text(
        "def share(outputs, labels):\n    return float((outputs[:, 0] * labels).mean())\n"
    )
    for metric in ("sqnr", f"{tmp_path}/own.py:share"):
        alone = evaluate(graph, data, metric=metric, baseline=net, batch=4)
        assert evaluate(graph, data, metric=metric, baseline=net, batch=4, workers=2) == alone
        assert alone.samples == 41


def test_sums_of_parts(tmp_path):
    """Law: what batches give, merged in order, is what one measure has that saw them one after
    another.
    """
    from lingeronnx.runtime.metrics import resolve_metric

    (tmp_path / "own.py").write_text(
        "def f(outputs, labels):\n    return float(outputs.sum() + labels.sum())\n"
    )
    rng = np.random.default_rng(2)
    for name in ("sqnr", "top1", "top5", f"{tmp_path}/own.py:f"):
        make = resolve_metric(name)[0]
        whole, merged = make(), make()
        for _ in range(4):
            scores = rng.standard_normal((7, 9))
            first = rng.integers(0, 9, 7) if whole.needs_labels else rng.standard_normal((7, 9))
            part = make()
            part.add(first, scores)
            whole.add(first, scores)
            merged.merge(json.loads(json.dumps(part.sums)))
        assert merged.value == whole.value
        assert merged.sums == whole.sums


def test_a_session_travels():
    """A session opened elsewhere computes the same, on the same platform; one of your own cannot be
    named there.
    """
    import pickle
    from dataclasses import replace

    net, graph, _ = two()
    x = np.random.default_rng(1).standard_normal((3, 4, 12, 12)).astype(np.float32)
    for session in (Session(net), Session(graph), Session(graph, platform="arcs")):
        other = pickle.loads(pickle.dumps(session))
        assert np.array_equal(other.run(None, {"x": x})[0], session.run(None, {"x": x})[0])
        assert [str(v.name) for v in ir.iter_values(other.model)] == [
            str(v.name) for v in ir.iter_values(session.model)
        ]
    own = replace(VENUS, name="own")
    with pytest.raises(ConfigError, match="custom platform own and cannot be sent"):
        pickle.dumps(Session(graph, platform=own))


@pytest.mark.slow
def test_evaluate_command(tmp_path):
    net, _, data = two()
    ir.save(net, tmp_path / "net.onnx")
    arrays = {
        "x": np.concatenate([f["x"] for f, _ in data]),
        "labels": np.concatenate([n for _, n in data]),
    }
    np.savez(tmp_path / "data.npz", **arrays)
    line = [
        "evaluate",
        f"{tmp_path}/net.onnx",
        "--data",
        f"{tmp_path}/data.npz",
        "--batch",
        "10",
        "--json",
    ]
    alone, two_workers = (
        CliRunner().invoke(cli.main, [*line, *more]) for more in ((), ("--workers", "2"))
    )
    assert two_workers.exit_code == 0, two_workers.output
    assert json.loads(two_workers.stdout) == json.loads(alone.stdout)
    refused = CliRunner().invoke(
        cli.main, [*line, "--workers", "2", "--cluster", "tcp://127.0.0.1:1"]
    )
    assert (refused.exit_code, refused.stderr) == (
        1,
        "error: workers and cluster: pass only one of the two\n",
    )


# ---- Dask --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a cluster of two processes."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, processes=True, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as made:
        yield made.scheduler_address


@pytest.mark.slow
def test_cluster_order_and_once_per_worker(tmp_path, cluster):
    assert list(map_jobs(Squares(tmp_path), range(20), cluster=cluster)) == [
        n * n for n in range(20)
    ]
    assert set(counts(tmp_path, "started")) == {1}
    assert set(counts(tmp_path, "unpacked")) == {1}
    with pytest.raises(DataError, match="^-3 is negative$"):
        list(map_jobs(Squares(tmp_path), [1, -3, 2], cluster=cluster))


@pytest.mark.slow
def test_a_worker_of_the_cluster_is_killed(tmp_path, cluster, caplog):
    """Law: the items of a worker that dies are worked on by another; nothing is lost or comes
    twice; it is named.
    """
    assert list(map_jobs(Squares(tmp_path, fatal=7), range(20), cluster=cluster)) == [
        n * n for n in range(20)
    ]
    assert (tmp_path / "died").exists()
    told = [
        record.getMessage()
        for record in caplog.records
        if record.name == "lingeronnx.runtime.cluster"
    ]
    assert len(told) == 1
    assert re.fullmatch(
        r"lost cluster worker tcp://\S+; reassigning its work to the remaining \d", told[0]
    )


@pytest.mark.slow
def test_evaluate_on_a_cluster(cluster):
    net, graph, data = two()
    alone = evaluate(graph, data, metric="sqnr", baseline=net, batch=4)
    assert evaluate(graph, data, metric="sqnr", baseline=net, batch=4, cluster=cluster) == alone


@pytest.mark.slow
def test_no_cluster_there(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    from lingeronnx.runtime import cluster as module

    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(ConfigError, match="no Dask scheduler answered at tcp://127.0.0.1:1 within"):
        list(map_jobs(Squares(tmp_path), [1], cluster="tcp://127.0.0.1:1"))
