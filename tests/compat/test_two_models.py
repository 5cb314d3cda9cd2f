"""The example programs of the tools that people come from, on our API: every file and column they
expect.
"""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from tests.case_selection import mark_rest_slow
from tests.nets import Net

COLUMNS = [
    "",
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


def net(wild: float = 30.0):
    """Conv, Relu, Conv, average, Linear; one channel of the second Conv is far larger than the
    others.
    """
    made = Net(3, 8, 8, seed=4)
    a = made.node("Relu", made.conv("x", (6, 3, 3, 3), pads=[1] * 4, out="first"))
    weight = made.rng.standard_normal((6, 6, 3, 3)) * 0.2
    weight[2] *= wild
    b = made.node("Conv", a, made.const(weight.astype(np.float32)), out="second")
    flat = made.node("Flatten", made.node("GlobalAveragePool", b))
    return made.graph(made.linear(flat, (6, 4), out="y"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A float file, its data, and what `quantize` makes of it."""
    home = tmp_path_factory.mktemp("compat")
    ir.save(net(), home / "net.onnx")
    x = np.random.default_rng(1).standard_normal((24, 3, 8, 8)).astype(np.float32)
    return home, x, lo.quantize(home / "net.onnx", x, platform="venus", effort="fast")


def table(path) -> tuple[list[str], list[list[str]]]:
    """Read a table of columns that are two blanks apart at least."""
    lines = path.read_text().splitlines()
    return lines[0].split(), [line.split() for line in lines[1:] if line.strip()]


# ---- two models compared -----------------------------------------------------------------------------------------


def reports(folder) -> None:
    """Check the files that compare_per_layer writes."""
    with (folder / "compare_per_layer_out.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head[: len(COLUMNS)] == COLUMNS
    named, cells = table(folder / "compare_per_layer_out.txt")
    assert named == COLUMNS[1:]  # the first has no name
    assert [row[1] for row in cells] == [row[1] for row in rows]
    assert (folder / "abnormal_layer_advisor.txt").read_text().strip()
    assert "<html" in (folder / "profiler.html").read_text()


@pytest.mark.parametrize("kind", mark_rest_slow(1, ["quantized", "fake_quant"]))
def test_quant_analysis(made, tmp_path, kind) -> None:
    home, x, quantized = made
    qa = lo.compat.QuantAnalysis(home / "net.onnx", quantized, kind, out_dir=tmp_path)
    qa.auto_find_bad_case([x[:20], x[20:]])
    qa.save_bad_case()
    with np.load(tmp_path / "badcase.npz") as kept:
        bad = kept["x"]
    real = lo.Session(home / "net.onnx")(x)
    if kind == "quantized":
        off = np.abs(real - quantized(x)).mean(axis=1)
        np.testing.assert_array_equal(bad[0], x[np.argmax(off)])
    qa.run()
    found = qa.compare_per_layer()
    reports(tmp_path)
    assert {"first", "second", "y"} <= {row.name for row in found.rows}
    rows = qa.sensitivity(metric="L1")
    assert {kind for _, kind, _, _ in rows} == {"weight", "activation", "both"}
    assert [row[3] for row in rows] == sorted((row[3] for row in rows), reverse=True)
    assert qa.sensitivity(metric="L1", reserve=True) == rows[::-1]
    head, _ = table(tmp_path / "sensitive_ops.txt")
    assert head == ["op_name", "sensitive_type", "op_type", "L1"]
    assert json.loads((tmp_path / "sensitive_ops.json").read_text()) == rows[::-1]
    cosine = qa.sensitivity(metric=["Cosine", "SQNR"])
    assert [row[3] for row in cosine] == sorted(row[3] for row in cosine)
    qa.clean()
    assert {"badcase.npz", "compare_per_layer_out.csv", "sensitive_ops.txt"} <= {
        p.name for p in tmp_path.iterdir()
    }
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".jsonl", ".onnx")]


def test_bad_cases(made, tmp_path) -> None:
    home, x, quantized = made
    qa = lo.compat.QuantAnalysis(home / "net.onnx", quantized, "quantized", out_dir=tmp_path)
    with pytest.raises(lo.ConfigError, match="no bad case yet"):
        qa.run()
    with pytest.raises(lo.ConfigError, match="no comparison yet"):
        qa.compare_per_layer()
    with pytest.raises(lo.DataError, match="cannot read the bad case"):
        qa.load_bad_case()
    qa.auto_find_bad_case(x, metric="SQNR")
    qa.save_bad_case()
    again = lo.compat.QuantAnalysis(home / "net.onnx", quantized, "quantized", out_dir=tmp_path)
    again.load_bad_case()
    again.run()
    again.compare_per_layer()
    with pytest.raises(lo.ConfigError, match="custom_metric_order_seq"):
        qa.auto_find_bad_case(x, custom_metric_func=lambda a, b: 0.0)
    total = {
        "custom_metric_func": lambda a, b: float(a.sum()),
        "custom_metric_order_seq": "descending",
    }
    first = qa.auto_find_bad_case(x, **total)
    real = lo.Session(home / "net.onnx")(x).sum(axis=1)
    np.testing.assert_array_equal(first["x"][0], x[np.argmax(real)])
    few = qa.auto_find_bad_case([x[i : i + 4] for i in range(0, 24, 4)], num_steps=2)
    off = np.abs(lo.Session(home / "net.onnx")(x[:8]) - quantized(x[:8])).mean(axis=1)
    np.testing.assert_array_equal(few["x"][0], x[np.argmax(off)])


def test_a_bad_case_of_torch(made, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    home, x, quantized = made
    torch.save({"x": torch.from_numpy(x[:1])}, tmp_path / "badcase.pt")
    qa = lo.compat.QuantAnalysis(home / "net.onnx", quantized, "quantized", out_dir=tmp_path)
    qa.load_bad_case()
    qa.run()
    assert qa.compare_per_layer().join.samples == 1
    qa.sensitivity()
    rows = torch.load(tmp_path / "sensitive_ops.pt", weights_only=True)
    assert rows == json.loads((tmp_path / "sensitive_ops.json").read_text())


def test_profiles_in_place_of_a_run(made, tmp_path) -> None:
    home, x, quantized = made
    session = lo.Session(home / "net.onnx")
    for model, name in ((session, "float"), (quantized, "integer")):
        with lo.compat.ModelProfiler(model, tmp_path / name):
            model(x[:8])
            model(x[8:20])
    kept = lo.compat.QuantAnalysis(session, quantized, "quantized", out_dir=tmp_path / "a")
    kept.set_model_profiler_dir(tmp_path / "float", tmp_path / "integer")
    from_files = kept.compare_per_layer()
    reports(tmp_path / "a")
    ran = lo.compat.QuantAnalysis(session, quantized, "quantized", out_dir=tmp_path / "b")
    ran.set_bad_case({"x": x[:20]})
    ran.run()
    computed = ran.compare_per_layer()
    assert [row.name for row in from_files.rows] == [row.name for row in computed.rows]
    for ours, theirs in zip(from_files.rows, computed.rows, strict=True):
        for key in ("cosine", "mse", "l1", "kl", "sqnr", "atol"):
            assert getattr(ours.arrived, key) == pytest.approx(
                getattr(theirs.arrived, key), rel=1e-4, abs=1e-9
            ), key
    with pytest.raises(lo.ConfigError, match="not of a plan in float"):
        lo.compat.QuantAnalysis(session, quantized, "fake_quant", tmp_path).set_model_profiler_dir(
            "a", "b"
        )


@pytest.mark.slow
def test_a_torch_baseline_is_exported(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    )
    x = np.random.default_rng(0).standard_normal((16, 3, 6, 6)).astype(np.float32)
    lo.export(module.eval(), (torch.from_numpy(x),), tmp_path / "m.onnx", input_names=["x"])
    quantized = lo.quantize(tmp_path / "m.onnx", x, effort="fast")
    qa = lo.compat.QuantAnalysis(module, quantized, "quantized", out_dir=tmp_path)
    qa.set_bad_case(torch.from_numpy(x[:2]))
    qa.run()
    assert {"/0/Conv_output_0"} <= {row.name for row in qa.compare_per_layer().rows}
    assert (tmp_path / "baseline.onnx").exists()
    qa.clean()
    assert not (tmp_path / "baseline.onnx").exists()


def test_a_better_plan_as_baseline(made, tmp_path) -> None:
    home, x, quantized = made
    better = lo.quantize(
        home / "net.onnx", x, platform="venus", effort="fast", skip=("Conv_second",)
    )
    qa = lo.compat.QuantAnalysis(better, quantized, "quantized", out_dir=tmp_path)
    qa.set_bad_case(x[:4])
    qa.run()
    qa.compare_per_layer()
    reports(tmp_path)


@pytest.mark.parametrize(
    "kind, message", [("qat", "_type = 'qat'"), ("fake_quant", "pass a result of quantize")]
)
def test_quant_analysis_says_what_it_does_not_take(made, kind, message) -> None:
    with pytest.raises(lo.ConfigError, match=message):
        lo.compat.QuantAnalysis(made[0] / "net.onnx", made[0] / "net.onnx", kind)


def test_the_place_in_the_source(tmp_path):
    """`ModelProfiler` of a torch module with `with_stack`: the line of each operator's call."""
    torch = pytest.importorskip("torch")
    import torch.nn.functional as F  # noqa: N812 - as users write it

    class Enlarged(torch.nn.Module):
        """A layer, a function of torch, and an operator."""

        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 3, 3)

        def forward(self, x):
            x = self.conv(x)
            x = F.interpolate(x, scale_factor=2.0)
            return torch.relu(x)

    net = Enlarged().eval()
    line = Enlarged.forward.__code__.co_firstlineno
    with lo.compat.ModelProfiler(net, tmp_path) as p:
        net(torch.zeros(1, 2, 5, 5))
    table = p.get_info_manager.table(with_stack=True).read_text()
    assert "unknown" not in table
    for operator, offset in (("Resize", 2), ("Relu", 3)):
        row = next(row for row in table.splitlines() if f"| {operator} " in row)
        assert f"test_two_models.py:{line + offset} in forward" in row
    with pytest.raises(ConfigError, match=r"types: interpolate is a function.*Conv, Relu, Resize"):
        p.get_info_manager.table(types=(F.interpolate,))
    assert "Resize" in p.get_info_manager.table(types=("Resize",)).read_text()
