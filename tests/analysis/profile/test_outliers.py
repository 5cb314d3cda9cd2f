"""Tables of weights and outputs: against numpy on whole arrays, through files, Dumper and the
command line.
"""

from __future__ import annotations

import json
import math
import pickle
import re

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.analysis.profile.outliers import (
    OUTPUT_COLUMNS,
    WEIGHT_COLUMNS,
    OutputCollector,
    compute_outlier_rows,
    format_outlier_table,
)
from tests.case_selection import limit_examples
from tests.nets import Net, plain

HEAD_W = "Layer_name | Mean | Max | Multiple | Dynamic 0.99 | Versu"
HEAD_O = "Layer_name | Mean | Max | Multiple(Max/Mean) | Dynamic 0.99 | Versu(Max/Dynamic)"


def cells(text: str) -> list[list[str]]:
    """Read a grid back, and check its frame."""
    lines = text.splitlines()
    assert lines[0] == lines[2] == lines[-1]
    assert re.fullmatch(r"\+(-+\+){6}", lines[0])
    assert {len(line) for line in lines} == {len(lines[0])}
    assert [i for i, c in enumerate(lines[1]) if c == "|"] == [
        i for i, c in enumerate(lines[0]) if c == "+"
    ]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in (lines[1], *lines[3:-1])]


def expect(array: np.ndarray) -> tuple[float, ...]:
    size = np.abs(np.asarray(array, np.float64)).ravel()
    dynamic = np.quantile(size, 0.99)
    return size.mean(), size.max(), size.max() / size.mean(), dynamic, size.max() / dynamic


def test_weights_against_numpy(tmp_path) -> None:
    rng = np.random.default_rng(0)
    spiked = rng.standard_normal((4, 3, 3, 3))
    spiked[1, 2, 0, 0] = 400.0
    state = {
        "a.weight": rng.standard_normal((8, 5)),
        "b.weight": spiked,
        "a.num_batches_tracked": np.array(7),
    }
    rows = lo.compat.wb_analyse(state, log=tmp_path / "w.log")
    table = cells((tmp_path / "w.log").read_text())
    assert " | ".join(table[0]) == HEAD_W == " | ".join(WEIGHT_COLUMNS)
    assert [line[0] for line in table[1:]] == [
        "a.weight",
        "b.weight",
        "!!!",
        "a.num_batches_tracked",
    ]
    assert table[3] == ["!!!"] * 6
    for row, array in zip(rows, state.values(), strict=True):
        np.testing.assert_allclose(row.values(), expect(array), rtol=1e-12)
    for line, row in zip([table[1], table[2], table[4]], rows, strict=True):
        np.testing.assert_allclose([float(cell) for cell in line[1:]], row.values(), rtol=1e-5)


def test_zeros_are_no_outlier_and_nan_is_one() -> None:
    zeros, sparse, broken = compute_outlier_rows(
        {"z": np.zeros(3), "s": np.eye(1, 1000), "n": np.array([1.0, np.nan])}
    )
    assert (zeros.multiple, zeros.versu, zeros.is_outlier) == (1, 1, False)
    assert math.isinf(sparse.versu)
    assert sparse.is_outlier
    assert broken.is_outlier
    assert compute_outlier_rows({"empty": np.zeros((0, 3)), "text": np.array(["a"])}) == []
    assert "!!!" in format_outlier_table([broken], WEIGHT_COLUMNS)


def test_initializers_and_constants_of_an_onnx_file(tmp_path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 13]>
        m (float[N, 2] x) => (float[N, 2] y) <float[2] w = {1.0, -3.0}> {
            c = Constant<value = float[2] {0.5, 0.25}>()
            t = Mul(x, w)
            y = Add(t, c)
        }""")
    onnx.save(model, tmp_path / "m.onnx")
    rows = lo.compat.wb_analyse(tmp_path / "m.onnx", log=None)
    assert {row.name: (row.mean, row.max_abs) for row in rows} == {
        "w": (2.0, 3.0),
        "c": (0.375, 0.5),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@limit_examples(40)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 9),
    st.integers(1, 1500),
    st.integers(1, 8),
    st.floats(1, 12),
)
def test_outputs_over_batches_are_those_of_the_whole(seed, rows, columns, cut, spread) -> None:
    """Law: mean, Max and Multiple to rounding; Dynamic exactly up to 4096 elements, else to Max /
    4096.
    """
    rng = np.random.default_rng(seed)
    array = (
        rng.standard_normal((rows, columns)) * np.exp(spread * rng.standard_normal(columns))
    ).astype(np.float32)
    collector = OutputCollector()
    for part in np.array_split(array, min(cut, rows)):
        collector.add("t", part, None)
    (row,) = collector.rows()
    mean, largest, _, dynamic, _ = expect(array)
    assert row.mean == pytest.approx(mean, rel=1e-9)
    assert row.max_abs == largest
    if array.size <= 4096:
        assert row.quantile_99 == pytest.approx(dynamic, rel=1e-12)
    else:
        near = np.sort(np.abs(array.astype(np.float64)).ravel())
        place = int(0.99 * (array.size - 1))
        assert (
            near[place - 1] - largest / 4096 <= row.quantile_99 <= near[place + 2] + largest / 4096
        )


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    """A float file with an outlier, data, and the model quantized."""
    folder = tmp_path_factory.mktemp("nets")
    graph = plain()
    from lingeronnx.ir import ir

    ir.save(graph, folder / "net.onnx")
    x = np.random.default_rng(1).standard_normal((20, 3, 12, 12)).astype(np.float32)
    np.savez(folder / "data.npz", x=x)
    return folder, x, lo.quantize(folder / "net.onnx", x, platform="venus", effort="fast")


def test_dumper_over_calls(nets, tmp_path) -> None:
    folder, x, _ = nets
    session = lo.Session(folder / "net.onnx")
    with lo.compat.Dumper() as d:
        d.analyse_layer_output(session, match_pattern="root.")
        session(x[:7])
        session({"x": x[7:]})
        d.save_out_analyse_log(save_log_path=tmp_path / "Analyse_layer_output.log")
    session(100 * x)  # no longer watched
    table = cells((tmp_path / "Analyse_layer_output.log").read_text())
    assert " | ".join(table[0]) == HEAD_O == " | ".join(OUTPUT_COLUMNS)
    lines = {line[0]: line[1:] for line in table[1:] if line[0] != "!!!"}
    nodes = {f"root.{node.name}": str(node.outputs[0].name) for node in session.model.graph}
    assert list(lines) == list(nodes)
    for name, array, _ in session.taps({"x": x}):
        for layer in (node for node, output in nodes.items() if output == name):
            np.testing.assert_allclose([float(c) for c in lines[layer]], expect(array), rtol=2e-3)
            assert [float(c) for c in lines[layer]][:2] == pytest.approx(
                expect(array)[:2], rel=1e-5
            )


def test_dumper_on_the_integers(nets, tmp_path) -> None:
    _, x, quantized = nets
    with lo.compat.Dumper() as d:
        d.analyse_layer_output(quantized, match_pattern="Gemm")
        got = quantized(x)
        (row,) = d.save_out_analyse_log(save_log_path=tmp_path / "o.log")
    np.testing.assert_array_equal(got, quantized.session()(x))
    ((name, array, scale),) = quantized.session().taps(
        {"x": x}, [_output(quantized, row.name.removeprefix("root."))]
    )
    np.testing.assert_allclose(row.values(), expect(array / scale), rtol=1e-12)


def _output(quantized, node):
    return next(str(n.outputs[0].name) for n in quantized.graph.graph if n.name == node)


def test_dumper_says_what_is_wrong(nets, tmp_path) -> None:
    folder, x, _ = nets
    session = lo.Session(folder / "net.onnx")
    with lo.compat.Dumper() as d:
        with pytest.raises(lo.ConfigError, match="no layer has a name that matches 'nowhere'"):
            d.analyse_layer_output(session, match_pattern="nowhere")
        with pytest.raises(lo.ConfigError, match="not a regular expression"):
            d.analyse_layer_output(session, match_pattern="(")
        with pytest.raises(lo.ConfigError, match="cannot record a int"):
            d.analyse_layer_output(7)
        d.analyse_layer_output(session)
        with pytest.raises(lo.DataError, match="no calls recorded"):
            d.save_out_analyse_log(tmp_path / "o.log")
    assert not (tmp_path / "o.log").exists()


def test_a_bare_array_for_two_inputs() -> None:
    net = Net(4)
    net.inputs.append(onnx.helper.make_tensor_value_info("z", 1, ["N", 4]))
    session = lo.Session(net.graph(net.node("Add", "x", "z", out="y")))
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(session({"x": x, "z": x}), 2 * x)
    with pytest.raises(lo.DataError, match="the model has 2 inputs"):
        session(x)


# ---- checkpoints -----------------------------------------------------------------------------


def test_checkpoints(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    torch.save({"epoch": 3, "state_dict": net.state_dict()}, tmp_path / "c.pt")
    rows = lo.compat.wb_analyse(tmp_path / "c.pt", log=tmp_path / "w.log")
    assert [row.name for row in rows] == list(net.state_dict())
    for row, tensor in zip(rows, net.state_dict().values(), strict=True):
        if tensor.any():
            np.testing.assert_allclose(row.values(), expect(tensor.numpy()), rtol=1e-12)
    assert (
        lo.compat.wb_analyse(net.state_dict(), log=None)
        == rows
        == lo.compat.wb_analyse(net, log=None)
    )
    half = lo.compat.wb_analyse({"w": torch.tensor([1.0, -2.0], dtype=torch.bfloat16)}, log=None)
    assert half[0].max_abs == 2


class _Bomb:
    def __reduce__(self):
        return (open, ("exploded", "w"))


def test_no_code_in_a_checkpoint_runs(tmp_path, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bomb.pt").write_bytes(pickle.dumps({"w": _Bomb()}))
    with pytest.raises(lo.ModelError, match="cannot read the checkpoint bomb.pt"):
        lo.compat.wb_analyse("bomb.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["bomb.pt"]


def test_dumper_on_a_torch_module(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    with lo.compat.Dumper() as d:
        d.analyse_layer_output(net, match_pattern="root.")
        for part in x.split(20):
            net(part)
        first, second = d.save_out_analyse_log(tmp_path / "o.log")
    net(100 * x)
    assert (first.name, second.name) == ("root.0", "root.1")
    np.testing.assert_allclose(first.values(), expect(net[0](x).detach().numpy()), rtol=1e-6)
    with lo.compat.Dumper() as d, pytest.raises(lo.ConfigError, match="no submodule"):
        d.analyse_layer_output(net, match_pattern="conv")


# ---- commands --------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(cli.main, [str(arg) for arg in args])


def test_analyze_weights(nets, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("analyze", "weights", nets[0] / "net.onnx", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    table = cells((tmp_path / "wb_analyse.log").read_text())
    assert [row["name"] for row in rows] == [line[0] for line in table[1:] if line[0] != "!!!"]
    missing = run("analyze", "weights", "none.pt")
    assert (missing.exit_code, missing.output.count("\n")) == (1, 1)


def test_analyze_outputs(nets, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, x, _ = nets
    session = lo.Session(folder / "net.onnx")
    result = run(
        "analyze",
        "outputs",
        folder / "net.onnx",
        "--data",
        folder / "data.npz",
        "--match",
        "Conv",
        "--json",
        "--batch",
        3,
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["name"] for row in rows] == [
        str(n.name) for n in session.model.graph if n.op_type == "Conv"
    ]
    first = session.run(
        [str(next(n for n in session.model.graph if n.op_type == "Conv").outputs[0].name)], {"x": x}
    )
    assert rows[0]["mean"] == pytest.approx(np.abs(first[0]).mean(), rel=1e-6)
    assert " | ".join(cells((tmp_path / "Analyse_layer_output.log").read_text())[0]) == HEAD_O
    wrong = run(
        "analyze",
        "outputs",
        folder / "net.onnx",
        "--data",
        folder / "data.npz",
        "--match",
        "Lstm",
        "-o",
        "l",
    )
    assert wrong.exit_code == 1
    assert not (tmp_path / "l").exists()
