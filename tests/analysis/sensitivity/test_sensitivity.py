"""Trials against whole runs, rankings with known answers, runs that are killed, workers, the
command.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lingeronnx import api, cli
from lingeronnx.analysis.sensitivity.layers import list_rounded_operators, restored_by_options
from lingeronnx.analysis.sensitivity.sensitivity import JOURNAL_FILE, sensitivity
from lingeronnx.analysis.sensitivity.trial import RoundedSet
from lingeronnx.common.errors import ConfigError, DataError
from lingeronnx.ir import ir
from lingeronnx.quantization.config import merge_overrides
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.runners.segments import Segments
from tests import nets
from tests.analysis.sensitivity.helpers import data, engine_of, planned, small_net, union
from tests.each import check_each

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "models"
FILES = ("sensitive_ops.txt", "sensitive_ops.json", JOURNAL_FILE)


# ---- rankings --------------------------------------------------------------------------------


def run(net, **more):
    return sensitivity(net, data(net), **{"effort": "fast", **more})


def test_nodes_that_have_names_of_tensors():
    """A node may have the name of another node's output: the values are the same."""
    model = ir.to_proto(nets.residual())
    renamed = type(model).FromString(model.SerializeToString())
    nodes = renamed.graph.node
    names = {node.name: nodes[index - 1].output[0] for index, node in enumerate(nodes)}
    for node in nodes:
        node.name = names[node.name]
    want = {
        (row.kind, names.get(row.name, row.name)): row.values
        for row in run(ir.from_proto(model)).ranking
    }
    have = {(row.kind, row.name): row.values for row in run(ir.from_proto(renamed)).ranking}
    assert have == want


#: The output of a convolution of `nets.residual`, held in steps of 1 where 1/16 would do.
COARSE = {"platform": "generic", "overrides": {"t7": {"scale": 1.0}}}


@pytest.mark.sweep
@pytest.mark.parametrize("metric", ("L1", "mse", "KL", "Cosine", "SQNR"))
@pytest.mark.parametrize("all_but_one", (False, True))
def test_the_spoiled_layer_comes_first(metric, all_but_one):
    result = run(nets.residual(), metric=metric, all_but_one=all_but_one, **COARSE)
    if metric != "KL":  # which sees little but the grid of the last layer
        assert result.ranking[0].name == "Conv_t7"
        assert "Conv_t7" in result.best.operators
        assert result.gain(result.best) > 5  # dB
    values = [row.values[0] for row in result.ranking]
    falling = (metric in ("L1", "mse", "KL")) != all_but_one
    assert values == sorted(values, reverse=falling)


def test_reserve_is_the_other_way_round():
    found, back = (run(small_net(), reserve=reserve) for reserve in (False, True))
    assert back.ranking == found.ranking[::-1]
    assert back.advice == found.advice


def test_values_are_those_of_the_formulas():
    """The values of one trial, with numpy from two whole runs."""
    net = nets.residual()
    plan, operators, engine = engine_of(net)
    x = data(net)
    layer = next(layer for layer in operators if layer.weight.weights)
    a = engine.run_base(RoundedSet(), {"x": x}).tensors["y"].astype(np.float64)
    b = engine.run_base(layer.all_rounded, {"x": x}).tensors["y"].astype(np.float64)
    names = ("L1", "MSE", "Cosine", "SQNR")
    result = run(net, metric=names, batch=7)
    row = next(row for row in result.ranking if row.name == layer.name)
    want = (
        np.abs(a - b).mean(),
        np.square(a - b).mean(),
        (a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()),
        10 * math.log10((a * a).sum() / np.square(a - b).sum()),
    )
    np.testing.assert_allclose(row.values, want, rtol=1e-4)
    assert list(result.metrics) == list(names)
    assert result.samples == len(x)


def test_kinds_and_what():
    """Every operator once; three rows for one with weights under "all"; only the first input begins
    as integers.
    """
    rows = {
        what: run(small_net(), what=what).ranking
        for what in ("both", "weight", "activation", "all")
    }
    convs = {row.name for row in rows["weight"]}
    assert {row.kind for row in rows["weight"]} == {"weight"}
    assert {row.kind for row in rows["activation"]} == {"activation"}
    assert {(row.name, row.kind) for row in rows["both"]} == {
        (row.name, "both" if row.name in convs else "activation") for row in rows["activation"]
    }
    assert len(rows["all"]) == 3 * len(convs) + len(rows["activation"]) - len(convs)
    kinds = {row.name: row.op_type for row in rows["both"]}
    assert kinds["x"] == "Quant"
    assert set(kinds.values()) == {
        "Quant",
        "Conv",
        "Add",
        "GlobalAveragePool",
        "Gemm",
    }  # no Relu, no Flatten
    by_pair = {(row.name, row.kind): row.values for row in rows["all"]}
    for part in ("both", "weight", "activation"):
        assert all(by_pair[row.name, row.kind] == row.values for row in rows[part])


@pytest.mark.sweep
@pytest.mark.parametrize("model", ("digits_lstm", "digits_gru", "digits_attention"))
def test_other_kinds_of_nets(model):
    result = sensitivity(
        MODELS / f"{model}.onnx",
        MODELS / "digits_calib.npz",
        limit=8,
        what="all",
        metric="SQNR",
        effort="fast",
    )
    assert all(math.isfinite(value) or value > 0 for row in result.ranking for value in row.values)
    assert result.macs < 0.9 * result.whole
    assert result.advised_by == "top1"


@pytest.mark.slow
def test_the_options_work():
    """What stands at the end can be pasted, and what is predicted comes: a chip skips, elsewhere 16
    bits are given.
    """
    net = nets.residual()

    def sqnr(**more):
        return api.quantize(net, data(net), effort="fast", **more).report.outputs["y"]["sqnr"]

    chip, other = (run(net, metric="SQNR", **more) for more in ({}, COARSE))
    skip, override = (shlex.split(" ".join(found.advice[0].options)) for found in (chip, other))
    kinds = {row.name: row.op_type for row in chip.ranking}
    assert (skip[0], kinds[skip[1]]) == ("--skip", "Gemm")
    assert abs(sqnr(skip=skip[1:]) - sqnr() - chip.gain(chip.advice[0])) < 4  # dB
    assert override == ["--override", "Conv_t7=bits:16,weight_bits:16"]
    wide = sqnr(platform="generic", overrides=merge_overrides(override[1:]))
    assert abs(wide - sqnr(**COARSE) - other.gain(other.advice[0])) < 4  # dB


def test_what_gives_nothing_back_is_no_advice():
    """Oracle: of an operator that is skipped, what the plan of `quantize --skip` still holds in
    integers stays rounded.

    An average in the middle of a chip's net hands its output to the next layer, which rounds it as
    before.
    """
    net = nets.residual()
    plan = planned(net)
    operators = list_rounded_operators(plan)
    whole = union(operators)
    for layer in (layer for layer in operators if layer.selector):
        rest = planned(net, skip=(layer.selector,))
        found = restored_by_options(plan, [layer], operators)
        assert found.tensors == {name for name in whole.tensors if name not in rest.plan.tensors}
        assert found.weights == {
            str(n.name) for n, _ in plan.partition.integer_nodes if n.name in whole.weights
        } - {str(n.name) for n, _ in rest.partition.integer_nodes}
        assert (found == RoundedSet()) == (layer.op_type in ("GlobalAveragePool", "Add"))
    advised = {name for advice in run(net, metric="SQNR").advice for name in advice.operators}
    assert advised <= {layer.name for layer in operators if layer.op_type in ("Conv", "Gemm")}
    assert (
        restored_by_options(planned(net, platform="generic"), operators[:1], operators)
        == operators[0].all_rounded
    )


# ---- metrics of the user's -------------------------------------------------------------------


def test_own_metric_and_order(tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\ndef right(outputs, labels):\n    return float((outputs.argmax(1) == "
        "labels).mean())\n"
        "def wrong(outputs, labels):\n    return 1 - right(outputs, labels)\n"
    )
    net = nets.residual()
    x = data(net, 64)
    (y,) = (a for n, a, _ in FloatRunner(net, ["y"]).run({"x": x}))
    given = [({"x": x}, y.argmax(1))]
    right = sensitivity(
        net, x, given, metric=[f"{tmp_path}/own.py:right", "top1"], effort="fast", **COARSE
    )
    assert right.ranking[0].name == "Conv_t7"
    for row in right.ranking:
        assert row.values[1] == pytest.approx(100 * row.values[0])
    wrong = sensitivity(
        net,
        x,
        given,
        metric=f"{tmp_path}/own.py:wrong",
        order="descending",
        effort="fast",
        **COARSE,
    )
    assert wrong.ranking[0].name == "Conv_t7"
    assert right.exact == 1.0
    assert right.advised_by.endswith("own.py:right")
    with pytest.raises(DataError, match="top1 needs labels: the data have no 'labels' array"):
        run(net, metric="top1")


def test_a_float_model_that_is_no_better_than_chance_is_a_warning():
    net = nets.residual()
    x = data(net, 64)
    (y,) = (a for n, a, _ in FloatRunner(net, ["y"]).run({"x": x}))
    labels, classes = y.argmax(1), y.shape[1]
    for shift in (0, 1):
        given = [({"x": x}, (labels + shift) % classes)]
        result = sensitivity(net, x, given, metric="top1", effort="fast", **COARSE)
        assert result.exact == (0.0 if shift else 100.0)
        chance = [note for note in result.notes if "no more than by chance" in note]
        assert len(chance) == shift
        assert all(note.startswith("WARNING: the float model has top1 = 0.00 %") for note in chance)


def minus_error(model):
    """Return a number that is the larger the closer the model is to itself in float: a user's
    evaluation.
    """
    x = data(nets.residual(), 16, seed=9)
    (want,) = (a for n, a, _ in FloatRunner(nets.residual(), ["y"]).run({"x": x}))
    assert model.inputs[0].name == "x"
    assert np.array_equal(model(x), model.run(["y"], {"x": x})[0])
    return -float(np.abs(model(x) - want).mean())


@pytest.mark.slow
def test_function_of_the_users():
    result = run(nets.residual(), function=minus_error, **COARSE)
    assert result.ranking[0].name == "Conv_t7"
    assert list(result.metrics) == ["value"]
    assert -1e-5 < result.exact <= 0
    assert result.quantized < result.ranking[-1].values[0]
    assert run(nets.residual(), function=minus_error, workers=2, **COARSE) == result


def fails(model):
    raise RuntimeError("no test data")


def test_refused():
    def check(more, message):
        with pytest.raises(ConfigError, match=message):
            run(small_net(), **more)

    cases = [
        ({"metric": "sqnrr"}, "unknown metric 'sqnrr'; did you mean 'sqnr'"),
        ({"what": "weights"}, "what = 'weights'; did you mean 'weight'"),
        ({"order": "up"}, "order = 'up'"),
        ({"output": "z"}, "no output 'z'"),
        ({"function": fails}, r"the evaluation function failed \(RuntimeError: no test data\)"),
        ({"function": fails, "metric": "KL"}, "pass one of the two"),
        ({"function": lambda model: 1.0, "workers": 2}, "cannot pickle the job"),
    ]
    check_each(check, cases)


def test_a_generator_is_read_once():
    net = small_net()
    for sources in ([iter([data(net)])], [data(net), iter([data(net)])]):
        with pytest.raises(DataError, match="read several times: pass a list or a function"):
            sensitivity(net, *sources, effort="fast")
    assert sensitivity(net, iter([data(net)]), [data(net)], effort="fast").samples == 24


# ---- killed runs, workers --------------------------------------------------------------------


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.mark.slow
def test_killed_anywhere_and_resumed(tmp_path):
    """Law: cut off at any byte, the run goes on and ends with the same files, and computes only
    what is missing.
    """
    net = small_net()
    more = {"metric": ["SQNR", "KL"], "batch": 4}
    whole = tmp_path / "whole"
    whole.mkdir()
    result = run(net, folder=whole, **more)
    want = contents(whole)
    lines = want[JOURNAL_FILE].splitlines(keepends=True)
    rng = np.random.default_rng(4)
    for cut in (
        0,
        5,
        len(lines[0]),
        len(want[JOURNAL_FILE]),
        *rng.integers(0, len(want[JOURNAL_FILE]), 6),
    ):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir(exist_ok=True)
        (folder / JOURNAL_FILE).write_bytes(want[JOURNAL_FILE][:cut])
        assert run(net, folder=folder, resume=True, **more) == result
        assert contents(folder) == want


def test_what_is_there_is_not_computed_again(tmp_path, monkeypatch):
    net = small_net()
    run(net, folder=tmp_path, batch=4)
    monkeypatch.setattr(Segments, "run", lambda *_: pytest.fail("a piece is run"))
    run(net, folder=tmp_path, batch=4, resume=True)
    with pytest.raises(pytest.fail.Exception):
        run(net, folder=tmp_path, batch=4)


def test_results_of_something_else(tmp_path):
    net = small_net()
    run(net, folder=tmp_path, metric="L1", batch=8)
    same = {"folder": tmp_path, "resume": True, "metric": "L1", "batch": 8}
    for more, said in (
        ({"metric": "KL"}, r'results for metric = \["L1"\], not \["KL"\]; omit --resume'),
        ({"what": "all"}, 'results for what = "both", not "all"'),
        ({"all_but_one": True}, "results for all_but_one = false, not true"),
        (
            {"calibrator": "max", "bits": 8, "mode": "q-value", "effort": "normal"},
            r"another plan \(calibration",
        ),
        ({"batch": 4}, "results for samples of a block = 8, not 4"),
    ):
        with pytest.raises(ConfigError, match=said):
            run(net, **{**same, **more})
    with pytest.raises(ConfigError, match="results for another model"):
        sensitivity(nets.plain(), data(nets.plain()), effort="fast", **same)
    for other, said in ((data(net, seed=5), "other data"), (data(net, 16), "more data")):
        with pytest.raises(ConfigError, match=f"results for {said}"):
            sensitivity(net, data(net), other, effort="fast", **same)
    (tmp_path / JOURNAL_FILE).write_text("no journal\n")
    with pytest.raises(ConfigError, match="is damaged; omit --resume"):
        run(net, **same)
    assert run(net, **{**same, "resume": False}).samples == 24


# a cluster of processes, below, and a function of the user's, above, say the same
@pytest.mark.deep
def test_workers_write_the_same_files(tmp_path):
    net = nets.residual()
    for name, more in (("one", {}), ("two", {"workers": 2})):
        (tmp_path / name).mkdir()
        run(net, folder=tmp_path / name, batch=4, metric=["SQNR", "KL"], what="all", **more)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.slow
def test_cluster_writes_the_same_files(tmp_path):
    distributed = pytest.importorskip("distributed")
    net = nets.residual()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    run(net, folder=tmp_path / "one", batch=2)
    with distributed.LocalCluster(
        n_workers=2, processes=True, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as cluster:
        killed = []

        def kill_one(part, done, total):
            if part == "ranking" and done >= 4 and not killed:
                killed.append(next(iter(cluster.workers.values())).pid)
                os.kill(killed[0], signal.SIGKILL)

        run(
            net,
            folder=tmp_path / "two",
            batch=2,
            cluster=cluster.scheduler_address,
            progress=kill_one,
        )
    assert killed
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


# ---- the command -----------------------------------------------------------------------------


def test_command(tmp_path):
    line = [
        "sensitivity",
        MODELS / "digits_cnn.onnx",
        "--calib",
        MODELS / "digits_calib.npz",
        "--eval",
        MODELS / "digits_test.npz",
        "--limit",
        16,
        "--effort",
        "fast",
        "-o",
        tmp_path / "out",
    ]
    result = CliRunner().invoke(
        cli.main, [str(word) for word in (*line, "--json", "--metric", "SQNR", "--metric", "L1")]
    )
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    listed = json.loads((tmp_path / "out/sensitive_ops.json").read_text())
    assert body["sensitive_ops"] == listed
    assert [type(item) for item in listed[0]] == [str, str, str, float, float]
    text = (tmp_path / "out/sensitive_ops.txt").read_text()
    assert text.split()[:5] == ["op_name", "sensitive_type", "op_type", "SQNR", "L1"]
    assert "with everything rounded" in text
    assert body["macs"] < body["macs_of_whole_runs"]
    refused = CliRunner().invoke(cli.main, [str(word) for word in (*line, "--resume")])
    assert refused.exit_code == 1
    assert refused.stderr.splitlines()[-1].startswith(
        f"error: {tmp_path}/out/{JOURNAL_FILE} contains results for metric"
    )


@pytest.mark.slow
def test_a_real_kill(tmp_path):
    """The process is killed with -9 while it works; --resume goes on and ends with the files of a
    whole run.
    """
    line = [
        "sensitivity",
        str(MODELS / "digits_cnn.onnx"),
        "--calib",
        str(MODELS / "digits_calib.npz"),
        "--effort",
        "fast",
        "--batch",
        "1",
        "--limit",
        "32",
        "--what",
        "all",
    ]
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    assert CliRunner().invoke(cli.main, [*line, "-o", str(tmp_path / "whole")]).exit_code == 0
    command = [sys.executable, "-m", "lingeronnx", *line, "-o", str(tmp_path / "killed")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    path = tmp_path / "killed" / JOURNAL_FILE
    while process.poll() is None and not (path.exists() and path.stat().st_size > 20000):
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed/sensitive_ops.txt").exists()
    assert (
        CliRunner().invoke(cli.main, [*line, "--resume", "-o", str(tmp_path / "killed")]).exit_code
        == 0
    )
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_notes():
    net = small_net()
    assert run(net).notes == (
        "effort fast does not equalize channels: try --effort normal before you skip a layer",
    )
    normal = sensitivity(net, data(net), what="weight")
    assert normal.notes == ()
    look = api.quantize(net, effort="fast").plan
    assert (
        "calibrated on synthetic inputs"
        in sensitivity(net, data(net), plan=look, what="weight").notes[0]
    )
