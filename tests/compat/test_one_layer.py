"""AnalysisQuant: the example program, every file, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from tests.compat.test_two_models import net


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A float file and its data."""
    home = tmp_path_factory.mktemp("one")
    ir.save(net(), home / "net.onnx")
    return home, np.random.default_rng(1).standard_normal((24, 3, 8, 8)).astype(np.float32)


def test_analysis_quant(made, tmp_path) -> None:
    home, x = made
    labels = np.argmax(lo.Session(home / "net.onnx")(x), 1)
    calls = []

    def eval_function(model):
        """The share of samples on which a model says what the float model says; the test data are
        its own affair.
        """
        calls.append(model)
        return float(np.mean(np.argmax(model({"x": x}), 1) == labels))

    def program():
        return lo.compat.AnalysisQuant(
            str(home / "net.onnx"),
            eval_function=eval_function,
            data_loader=x,
            save_dir=tmp_path / "results",
            num_histogram_plots=0,
            ptq_config={"effort": "fast"},
        )

    found = program().analysis()
    text = (tmp_path / "results" / "analysis.txt").read_text()
    rows = [
        [cell.strip() for cell in line[1:-1].split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["rank", "layer", "type", "quant metric", "loss"]
    assert [row[1] for row in rows[1:]] == [row.name for row in found.ranking]
    metrics = [float(row[3]) for row in rows[1:]]
    assert metrics == sorted(metrics)
    assert found.exact == 1.0
    files = {path.name for path in (tmp_path / "results").iterdir()}
    assert {"analysis.txt", "analysis_checkpoint.jsonl"} <= files
    before = len(calls)
    assert program().analysis() == found  # all of it was done
    assert len(calls) == before
    lines = (
        (tmp_path / "results" / "analysis_checkpoint.jsonl").read_bytes().splitlines(keepends=True)
    )
    (tmp_path / "results" / "analysis_checkpoint.jsonl").write_bytes(
        b"".join(lines[:4]) + lines[4][:7]
    )
    assert program().analysis() == found  # killed while it wrote its fourth result
    assert before < len(calls) < 2 * before


@pytest.mark.slow
def test_histograms_of_the_best_and_the_worst(made, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    home, x = made
    lo.compat.AnalysisQuant(
        home / "net.onnx",
        eval_function=lambda model: float(model(x).sum()),
        data_loader=x,
        save_dir=tmp_path,
        num_histogram_plots=2,
        ptq_config={"effort": "fast"},
    ).analysis()
    drawn = {path.name for path in tmp_path.glob("*.pdf")}
    assert drawn == {
        f"{side}_{what}_hist_result.pdf" for side in ("best", "worst") for what in ("act", "weight")
    }
    assert all(path.read_bytes().startswith(b"%PDF") for path in tmp_path.glob("*.pdf"))


def test_a_stale_checkpoint_is_refused(made, tmp_path) -> None:
    home, x = made

    def run(data, **config):
        return lo.compat.AnalysisQuant(
            home / "net.onnx",
            eval_function=lambda model: 1.0,
            data_loader=data,
            save_dir=tmp_path,
            num_histogram_plots=0,
            ptq_config={"effort": "fast", **config},
        ).analysis()

    run(x)
    with pytest.raises(lo.ConfigError, match="contains results for"):
        run(x, platform="generic", mode="max-value")
    with pytest.raises(lo.ConfigError, match="contains results for"):
        run(2 * x)


def test_analysis_quant_says_what_it_does_not_take(made, tmp_path) -> None:
    home, x = made
    for name in ("model_filename", "params_filename"):
        with pytest.raises(
            lo.ConfigError, match=f"{name} = '__model__' belongs to a format of two files"
        ):
            lo.compat.AnalysisQuant(home, eval_function=len, **{name: "__model__"})
    with pytest.raises(lo.ConfigError, match="eval_function is missing"):
        lo.compat.AnalysisQuant(home)
    assert (
        lo.compat.AnalysisQuant(home, eval_function=len).model == home / "net.onnx"
    )  # the only one in the folder
    with pytest.raises(lo.ConfigError, match=r"contains 0 \.onnx files"):
        lo.compat.AnalysisQuant(tmp_path, eval_function=len)


def test_closures(made, tmp_path) -> None:
    """A lambda or a closure evaluates in this process; with workers one line says why it cannot."""
    home, x = made
    model, factor = home / "net.onnx", 2.0
    call = {"data_loader": x, "num_histogram_plots": 0, "save_dir": tmp_path}
    evaluate = lambda session: factor * float(np.abs(session(x)).mean())  # noqa: E731
    ranking = lo.compat.AnalysisQuant(model, eval_function=evaluate, **call).analysis().ranking
    assert ranking
    with pytest.raises(lo.ConfigError, match="cannot be passed to worker processes, since it is a"):
        lo.compat.AnalysisQuant(model, eval_function=evaluate, ptq_config={"workers": 2}, **call)
