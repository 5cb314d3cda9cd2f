"""Profiles: the table against numpy, TensorBoard's file against the format's definition, files that
are read again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.analysis.profile.profile import COLUMNS, list_operator_tensors, source_location
from lingeronnx.ir import ir
from tests.analysis.profile.test_events import read_events

ROOT = Path(__file__).parents[3]
HEAD = "Index | Op Name | Mod Name | Attr | Dtype | Scale | Min | Max | Mean | Var | Shape"


def table(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if not line.startswith("+")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


def test_every_row_against_numpy(made) -> None:
    home, x, _ = made
    session = lo.Session(home / "net.onnx")
    real = {name: array for name, array, _ in session.taps({"x": x})}
    real |= {
        name: ir.const_value(value) for name, value in session.model.graph.initializers.items()
    }
    rows = table((home / "p" / "statistic.txt").read_text())
    assert " | ".join(rows[0]) == HEAD == " | ".join(COLUMNS)
    operators = list(dict.fromkeys(row["Mod Name"] for row in rows))
    assert [row["Index"] for row in rows] == [str(operators.index(row["Mod Name"])) for row in rows]
    want = []
    for node in session.model.graph:
        kinds = {"Conv": ["input", "weight", "bias"], "Gemm": ["input", "weight", "bias"]}.get(
            node.op_type, ["input"]
        )
        want += [
            (node.op_type, node.name, kind, str(v.name))
            for kind, v in zip(kinds, node.inputs, strict=False)
        ]
        want += [(node.op_type, node.name, "output", str(node.outputs[0].name))]
    assert [(row["Op Name"], row["Mod Name"], row["Attr"]) for row in rows] == [
        line[:3] for line in want
    ]
    for row, (_, _, attr, name) in zip(rows, want, strict=True):
        array = real[name].astype(np.float64)
        found = [float(row[key]) for key in ("Min", "Max", "Mean", "Var")]
        np.testing.assert_allclose(
            found, [array.min(), array.max(), array.mean(), array.var()], rtol=1e-5, atol=1e-9
        )
        assert (row["Dtype"], row["Scale"]) == ("float32", "-")
        shape = array.shape if attr in ("weight", "bias") else (7, *array.shape[1:])
        assert json.loads(row["Shape"]) == list(shape)


def test_integers_count_as_the_users_values(made) -> None:
    home, x, _ = made
    session = lo.Session(home / "quant.onnx")
    profile = lo.profile(home / "quant.onnx", x)
    conv = next(n for n in session.model.graph if n.op_type == "Conv2dInt")
    rows = {row["attr"]: row for row in profile.to_dict(prefixes=[str(conv.name)])}
    ((_, array, scale),) = session.taps({"x": x}, [str(conv.outputs[0].name)])
    factor = 1.0
    moved = json.loads(session.model.metadata_props.get("lingeronnx.transforms", "{}"))
    user = session.floats.get(str(conv.outputs[0].name), str(conv.outputs[0].name))
    if user in moved:
        factor = np.array(moved[user]).reshape(1, -1, 1, 1)
    assert rows["output"]["max"] == pytest.approx((array / scale / factor).max(), rel=1e-6)
    assert (rows["output"]["dtype"], rows["output"]["scale"]) == ("int8", scale)
    weight, bias = (ir.const_value(conv.inputs[i]) for i in (1, 2))
    scale_x, scale_w = ir.get_attr(conv, "scale_x"), ir.get_attr(conv, "scale_w")
    assert rows["weight"]["max"] == pytest.approx(weight.max() / scale_w)
    assert rows["bias"]["max"] == pytest.approx(bias.max() / scale_w / scale_x)
    assert rows["bias"]["dtype"] == "int32"


def test_filters(made) -> None:
    _, _, profile = made
    assert {e.op for e in profile.select(types=["Conv"])} == {"Conv"}
    first = profile.entries[0].module
    assert {e.module for e in profile.select(prefixes=[first])} == {first}
    with pytest.raises(
        lo.ConfigError, match="no operator matches prefixes .* types of the model: Conv"
    ):
        profile.select(types=["Lstm"])


# ---- where it comes from ---------------------------------------------------------------------


def node_with(**told):
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 13]>
        m (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }""")
    for key, value in told.items():
        if key == "doc":
            proto.graph.node[0].doc_string = value
        else:
            proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=value)
    return ir.from_proto(proto).graph.node(0)


def test_the_place_in_the_source() -> None:
    dynamo = (
        'File "/home/me/net.py", line 7, in forward\n    return self.r(x)\n  File '
        '"/env/torch/nn/modules/a.py", '
        "line 143, in forward\n    return F.relu(input)"
    )
    script = (
        "/env/torch/nn/functional.py(5): relu\n/home/me/net.py(7): "
        "forward\n/home/me/main.py(90): <module>\n"
    )
    assert source_location(node_with(meta=dynamo)) == "/home/me/net.py:7 in forward"
    assert source_location(node_with(doc=script)) == "/home/me/net.py:7 in forward"
    assert source_location(node_with(doc="made by hand")) == ""


@pytest.mark.slow
def test_stack_column_of_torchs_own_export(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    from lingeronnx.torch.exporter.exporters import suppress_output

    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    with suppress_output():
        torch.onnx.export(
            net,
            (torch.zeros(1, 4),),
            tmp_path / "n.onnx",
            dynamo=True,
            verbose=False,
            external_data=False,
        )
    profile = lo.profile(tmp_path / "n.onnx", np.zeros((1, 4), np.float32))
    stacks = {row["Op Name"]: row["Stack"] for row in table(profile.text(with_stack=True))}
    assert stacks.keys() == {"Gemm", "Relu"}
    assert all(".py:" in stack for stack in stacks.values())


# ---- the familiar face and the command -------------------------------------------------------


def test_model_profiler(made, tmp_path) -> None:
    home, x, _ = made
    session = lo.Session(home / "net.onnx")
    with lo.compat.ModelProfiler(session, tmp_path / "p") as p:
        session(x[:20])
        session(x[20:])
    p.get_info_manager.table(types=["Conv"])
    rows = table((tmp_path / "p" / "statistic.txt").read_text())
    assert {row["Op Name"] for row in rows} == {"Conv"}
    p.get_info_manager.table(out_dir=tmp_path / "q", with_stack=True)
    assert table((tmp_path / "q" / "statistic.txt").read_text())[0]["Stack"] == "unknown"
    p.get_info_manager.tensorboard(types=["Gemm"], force_per_channel=True)
    tags = {
        e.summary.value[0].tag
        for e in read_events(next((tmp_path / "p" / "tensorboard").iterdir()))[1:]
    }
    gemm = next(
        e for e in list_operator_tensors(session.model) if e.op == "Gemm" and e.attr == "output"
    )
    assert {f"{gemm.module}/output/{gemm.tensor}/{c}" for c in range(5)} < tags
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        "profile.npz",
        "statistic.txt",
        "tensorboard",
        "tensors",
    ]
    with lo.compat.ModelProfiler(session, tmp_path / "r") as idle:
        pass
    with pytest.raises(lo.ConfigError, match="no data recorded; run the model first"):
        idle.get_info_manager.table()


@pytest.mark.slow
def test_model_profiler_on_a_torch_module(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    with lo.compat.ModelProfiler(net, tmp_path / "p") as p:
        net(x[:4])
        net(x[4:])
    p.get_info_manager.table()
    rows = table((tmp_path / "p" / "statistic.txt").read_text())
    (relu,) = (row for row in rows if row["Op Name"] == "Relu" and row["Attr"] == "output")
    assert float(relu["Max"]) == pytest.approx(net(x).max().item(), rel=1e-5)


def test_the_command(made, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = made[0]
    call = [
        "profile",
        home / "quant.onnx",
        "--data",
        home / "data.npz",
        "-o",
        "out",
        "--type",
        "Conv2dInt",
        "--stack",
        "--tensorboard",
        "--keep",
        "--json",
    ]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "of another.txt").touch()
    result = CliRunner().invoke(cli.main, [str(word) for word in call])
    assert result.exit_code == 0, result.output
    files = "profile.html, profile.npz, statistic.txt, tensorboard, tensors"
    assert f"; {files}\n" in result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert {row["op"] for row in rows} == {"Conv2dInt"}
    assert len(rows) == len(table((tmp_path / "out" / "statistic.txt").read_text()))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "of another.txt",
        "profile.html",
        "profile.npz",
        "statistic.txt",
        "tensorboard",
        "tensors",
    ]
    wrong = CliRunner().invoke(cli.main, [str(word) for word in [*call[:4], "-o", "no/where"]])
    assert (wrong.exit_code, wrong.output.count("\n")) == (1, 1)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path) -> None:
    """Law: the peak with 2,048 samples is that with 64, to a tenth; each run has a process of its
    own.
    """
    digits = ROOT / "models" / "digits_cnn.onnx"
    code = (
        "import resource, sys, numpy as np, lingeronnx as lo\n"
        "def data():\n"
        "    rng = np.random.default_rng(0)\n"
        "    for _ in range(int(sys.argv[2]) // 64):\n"
        "        yield rng.standard_normal((64, 1, 8, 8)).astype(np.float32)\n"
        "lo.profile(sys.argv[1], data, 'out', tensorboard=True)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-c", code, str(digits), str(count)],
                cwd=tmp_path,
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            ).stdout
        )
        for count in (64, 2048)
    ]
    assert peaks[1] <= 1.1 * peaks[0]
