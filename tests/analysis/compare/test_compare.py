"""`compare`: its files and their columns, its values against numpy, and what the page needs."""

import csv
import json
import re
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import api
from lingeronnx.analysis.compare.comparison import COLUMNS, CSV_ONLY_COLUMNS
from lingeronnx.cli import main
from tests.artefacts import quantized
from tests.nets import Net, concat, plain, samples

#: As people know these tables: the order is theirs.
KNOWN = [
    "mod_name",
    "base_op_type",
    "analy_op_type",
    "shape",
    "quant_dtype",
    "qscale",
    "Cosine",
    "MSE",
    "L1",
    "KL",
    "SQNR",
    "Atol",
    "Rtol",
    "base_model_min",
    "analy_model_min",
    "base_model_max",
    "analy_model_max",
    "base_model_mean",
    "analy_model_mean",
    "base_model_var",
    "analy_model_var",
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Return (folder, comparison, model, quantized, data) of a small net."""
    folder = tmp_path_factory.mktemp("compare")
    model = plain()
    q, data = quantized(model, "venus"), samples(model, 24, seed=9)
    labels = lo.Session(model).run(None, data)[0].argmax(axis=1)
    labels[:6] = (labels[:6] + 1) % 5
    comparison = lo.compare(model, q, [(data, labels)], folder / "out", batch=7)
    return folder / "out", comparison, model, q, data


def test_files_and_columns(compared):
    folder, _, _, q, _ = compared
    names = {
        "compare_per_layer_out.txt",
        "compare_per_layer_out.csv",
        "abnormal_layer_advisor.txt",
        "profiler.html",
    }
    assert {path.name for path in folder.iterdir()} == names
    text = (folder / "compare_per_layer_out.txt").read_text().splitlines()
    assert text[0].split() == KNOWN
    with (folder / "compare_per_layer_out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["", *KNOWN, *CSV_ONLY_COLUMNS] == [*COLUMNS, *CSV_ONLY_COLUMNS]
    assert {f"local_{name}" for name in ("Cosine", "SQNR", "KL")} | {"saturation"} <= set(
        CSV_ONLY_COLUMNS
    )
    assert (
        [row[""] for row in rows]
        == [str(i) for i in range(len(rows))]
        == [line.split()[0] for line in text[1:]]
    )
    conv = next(row for row in rows if row["mod_name"] == "t0")
    assert (conv["base_op_type"], conv["analy_op_type"], conv["quant_dtype"]) == (
        "Conv",
        "Conv2dInt",
        "int8",
    )
    assert float(conv["qscale"]) == q.plan.tensors["t0"].scale


def test_values_are_numpys(compared):
    """Every column of the csv, from whole arrays of both models."""
    folder, found, model, q, data = compared
    names = [row.name for row in found.rows]
    floats = dict(zip(names, lo.Session(model).run(names, data), strict=True))
    held = q.session().floats
    ours = {
        held.get(name, name): (array, scale)
        for name, array, scale in q.session().taps(data)
        if scale is not None
    }
    with (folder / "compare_per_layer_out.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            x, (array, scale) = floats[row["mod_name"]].astype(np.float64), ours[row["mod_name"]]
            factor = np.array(
                q.plan.transforms[row["mod_name"]].factor
                if row["mod_name"] in q.plan.transforms
                else [1.0]
            )
            y = array / scale / factor.reshape(-1, *[1] * (x.ndim - 2))
            want = {
                "Cosine": (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()),
                "MSE": ((x - y) ** 2).mean(),
                "L1": np.abs(x - y).mean(),
                "SQNR": 10 * np.log10((x * x).sum() / ((x - y) ** 2).sum()),
                "Atol": np.abs(x - y).max(),
                "base_model_mean": x.mean(),
                "analy_model_var": y.var(),
                "base_model_max": x.max(),
                "analy_model_min": y.min(),
                "saturation": ((array == 127) | (array == -128)).mean(),
            }
            for name, value in want.items():
                assert float(row[name]) == pytest.approx(value, rel=1e-5, abs=1e-9), (
                    row["mod_name"],
                    name,
                )


def test_a_sound_model_has_no_finding(compared):
    folder, found, *_ = compared
    assert not found.findings
    assert found.options == ""
    assert "No issues found." in (folder / "abnormal_layer_advisor.txt").read_text()
    assert found.accuracy is not None
    assert found.accuracy[0] == 75.0
    assert len(found.worst) == 5


def test_the_page_needs_nothing_else(compared):
    """No address but SVG's name; all rows, their histograms and the graph are in it; no text can
    end the script.
    """
    folder, found, *_ = compared
    page = (folder / "profiler.html").read_text()
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe)|\bsrc=|@import|url\(", page)
    body = json.loads(page.split('id="data-compare">')[1].split("</script>")[0])
    assert [row["name"] for row in body["rows"]] == [row.name for row in found.rows]
    assert all(
        len(row["hx"]) == 64 and sum(row["hx"]) == row_.arrived.count
        for row, row_ in zip(body["rows"], found.rows, strict=True)
    )
    number = {row["name"]: row["i"] for row in body["rows"]}
    assert body["rows"][number["t2"]]["parents"] == [number["t1"]]
    assert body["accuracy"] == list(found.accuracy)


def test_names_cannot_break_the_page(tmp_path):
    net = Net(3, 6, 6, seed=3)
    made = net.conv("x", (4, 3, 3, 3), out="</script><b>\"'&")
    model = net.graph(net.node("Relu", made, out="y"))
    page = (
        lo.compare(model, quantized(model, "venus"), samples(model, 4), tmp_path)
        and (tmp_path / "profiler.html").read_text()
    )
    assert "</script><b>" not in page
    body = json.loads(page.split('id="data-compare">')[1].split("</script>")[0])
    assert body["rows"][1]["name"] == "</script><b>\"'&"


@pytest.mark.slow
def test_five_hundred_layers(tmp_path):
    """A net of 500 tensors: a page of a megabyte and a half at most, every layer with its
    neighbours.
    """
    net = Net(4, 4, 4, seed=4)
    x = "x"
    for _ in range(250):
        x = net.node("Relu", net.conv(x, (4, 4, 1, 1), gain=1.1))
    model = net.graph(x)
    data = samples(model, 2)
    comparison = lo.compare(model, lo.Session(model), data, tmp_path)
    page = (tmp_path / "profiler.html").read_text()
    assert len(comparison.rows) == 501
    assert len(page) < 1.5e6


def test_command(compared, tmp_path):
    """Real files in, one JSON object out; a wrong folder is told in one line."""
    _, _, model, q, data = compared
    lo.ir.ir.save(model, tmp_path / "model.onnx")
    q.save(tmp_path / "q.onnx")
    np.savez(tmp_path / "data.npz", **data)
    words = [
        "compare",
        str(tmp_path / "model.onnx"),
        str(tmp_path / "q.onnx"),
        "--data",
        str(tmp_path / "data.npz"),
    ]
    result = CliRunner().invoke(main, [*words, "-o", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert body["samples"] == 24
    assert body["layers"][0]["mod_name"] == "x"
    shown = CliRunner().invoke(main, [*words, "-o", str(tmp_path / "out"), "--limit", "3"])
    assert "3 samples" in shown.stdout
    assert "layers with the largest loss" in shown.stdout
    wrong = CliRunner().invoke(main, [*words, "-o", str(tmp_path / "q.onnx")])
    assert wrong.exit_code == 1
    assert len(wrong.stderr.splitlines()) == 1
    assert "give a folder" in wrong.stderr


def test_scales_that_are_wrong_are_named_with_the_option(tmp_path):
    """A fixed scale 16 times too large: the concat's, whose inputs share it; the option brings the
    accuracy back.
    """
    model = concat()
    bad = quantized(model, "venus", effort="fast", overrides={"t4": {"scale": 128.0}})
    comparison = lo.compare(model, bad, samples(model, 32, seed=2), tmp_path)
    first = comparison.findings[0]
    assert (first.layer, first.kind) == ("t4", "scale too large")
    _, setting = shlex.split(first.options[0])
    selector, scale = re.fullmatch(r"(\S+)=scale:2\^(-?\d+)", setting).groups()
    mended = quantized(
        model, "venus", effort="fast", overrides={selector: {"scale": 2.0 ** int(scale)}}
    )
    assert not lo.compare(model, mended, samples(model, 32, seed=2)).findings
    assert first.options[0] in (tmp_path / "abnormal_layer_advisor.txt").read_text()


@pytest.mark.slow
def test_workers_change_no_bit(compared, tmp_path):
    """Two processes write the same files; what follows one another is not spread."""
    folder, _, model, q, data = compared
    labels = lo.Session(model).run(None, data)[0].argmax(axis=1)
    labels[:6] = (labels[:6] + 1) % 5
    lo.compare(model, q, [(data, labels)], tmp_path, batch=7, workers=2)
    for name in ("compare_per_layer_out.csv", "abnormal_layer_advisor.txt", "profiler.html"):
        assert (tmp_path / name).read_text() == (folder / name).read_text()
    with pytest.raises(lo.ConfigError, match="omit workers and cluster"):
        lo.compare(model, q, data, state={"y": "x"}, workers=2)


def test_models_with_other_inputs_are_named_so():
    """The data fit one of them only; badcase and evaluate compare two models as well."""
    small, large = Net(2, 6, 6), Net(2, 8, 8)
    a, b = (net.graph(net.conv("x", (3, 2, 3, 3), out="y")) for net in (small, large))
    message = r"input 'x' has shape \[N, 2, 6, 6\] in one model and \[N, 2, 8, 8\] in the other"
    data = samples(a, 4)
    for run in (lo.compare, api.find_bad_case, lo.diff):
        with pytest.raises(lo.DataError, match=message):
            run(a, b, data)
    with pytest.raises(lo.DataError, match=r"\[N, 2, 8, 8\] in one model and \[N, 2, 6, 6\]"):
        lo.evaluate(a, data, baseline=b)
