"""`lingeronnx export` as its users meet it: real files in, exit code, output and files out."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner

from lingeronnx import Session, cli
from tests.torch.models import CNN_NODES, Cnn, seeded

ROOT = Path(__file__).resolve().parents[3]
MODELS = Path(__file__).parents[1] / "models.py"
SCRIPT = ("--exporter", "torchscript")  # the quick one

NET = """
from dataclasses import dataclass
import torch
from torch import nn
from layers import Scale

@dataclass
class Settings:
    width: int = 4

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, Settings().width)
        self.scale = Scale()
    def forward(self, x, ids):
        return {"y": self.scale(self.fc(x)), "z": ids * 2}
"""
LAYERS = """
from torch import nn
class Scale(nn.Module):
    def forward(self, x):
        return x * 3
"""


def run(*args):
    return CliRunner().invoke(cli.main, ["export", *map(str, args)])


def good(*args):
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("layers.py").write_text(LAYERS)
    return tmp_path


@pytest.mark.slow
def test_export(here):
    """What was written, in words and as JSON; a model file may import its neighbours and hold
    dataclasses.
    """
    result = good(
        "net.py:Net", "-o", "net.onnx", "--input-shape", "x=1,3", "--input-shape", "ids=1,2:int64"
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "net.onnx: 3 nodes, 16 parameters, opset 18, exporter dynamo"
    assert lines[1:5] == [
        "  input x [N, 3]",
        "  input ids [N, 2]",
        "  output y [N, 4]",
        "  output z [N, 2]",
    ]
    assert lines[5].startswith("same as torch in onnxruntime: differs by at most ")
    assert lines[5].endswith("(N 1; N 2; N 3)")
    assert [n.name for n in onnx.load("net.onnx").graph.node] == ["/fc/Gemm", "/scale/Mul", "/Mul"]
    assert sorted(path.name for path in here.iterdir() if path.suffix == ".onnx") == ["net.onnx"]


def test_json(here):
    args = (
        "net.py:Net",
        "-o",
        "net.onnx",
        "--input-shape",
        "x=1,3",
        "--input-shape",
        "ids=1,2:int64",
        *SCRIPT,
    )
    result = good(*args, "--json")
    found = json.loads(result.stdout)
    assert found["inputs"] == {"x": ["N", 3], "ids": ["N", 2]}
    assert found["outputs"] == {"y": ["N", 4], "z": ["N", 2]}
    assert (found["output"], found["opset"], found["exporter"]) == ("net.onnx", 18, "torchscript")
    assert 0 <= found["difference"] < 1e-5
    assert "net.onnx: 3 nodes" in result.stderr


def test_options(here):
    """Opset, no scopes, axes as lists and as names, names of outputs and inputs, a dump."""
    good(
        f"{MODELS}:Rnn",
        "-o",
        "r.onnx",
        "--input-shape",
        "sound=2,5,4",
        "--dynamic-axes",
        "sound=0:B,1:T",
        "--opset",
        "13",
        "--no-scopes",
        "--output-name",
        "logits",
        "--debug-dump",
        "dump",
    )
    model = onnx.load("r.onnx")
    dims = [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    assert (model.graph.input[0].name, dims, model.opset_import[0].version) == (
        "sound",
        ["B", "T", 4],
        13,
    )
    assert model.graph.output[0].name == "logits"
    assert "LSTM_0" in [n.name for n in model.graph.node]
    assert (here / "dump" / "0_traced.txt").is_file()
    good(
        f"{MODELS}:Rnn",
        "-o",
        "s.onnx",
        "--input-shape",
        "2,5,4",
        "--dynamic-axes",
        "x=0,1",
        *SCRIPT,
    )
    assert json.loads(
        good(
            f"{MODELS}:Rnn",
            "-o",
            "s.onnx",
            "--input-shape",
            "2,5,4",
            "--dynamic-axes",
            "none",
            *SCRIPT,
            "--json",
        ).stdout
    )["inputs"] == {"x": [2, 5, 4]}


@pytest.mark.parametrize("name", ("linear", "with_arguments", "module"))
def test_what_a_name_may_be(name, here):
    """A function that returns a module, one that brings the arguments, a module."""
    shape = () if name == "with_arguments" else ("--input-shape", "1,4")
    good(f"{MODELS}:{name}", "-o", "m.onnx", *shape, *SCRIPT)
    assert [n.name for n in onnx.load("m.onnx").graph.node] == ["/Gemm"]


def test_checkpoint(here):
    """Weights from a file, by the names of its module."""
    model = seeded(Cnn)
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, "best.pt")
    args = (
        f"{MODELS}:Cnn",
        "-o",
        "cnn.onnx",
        "--input-shape",
        "image=1,2,6,6",
        *SCRIPT,
        "--checkpoint",
        "best.pt",
    )
    good(*args)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load("cnn.onnx").graph.initializer}
    assert np.array_equal(held["fc.weight"], model.fc.weight.detach())
    torch.save({"fc.weight": torch.ones(3, 4)}, "best.pt")
    old = Path("cnn.onnx").read_bytes()
    result = run(*args)
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: the checkpoint does not match the model: it lacks stem.weight, stem.bias, "
    )
    assert Path("cnn.onnx").read_bytes() == old


def test_then_quantize(here):
    """The whole way on the command line: export, quantize for a chip, run; nodes keep the module's
    names.
    """
    good(f"{MODELS}:Cnn", "-o", "cnn.onnx", "--input-shape", "image=1,2,6,6", *SCRIPT)
    np.savez(
        "calib.npz",
        image=np.random.default_rng(0).standard_normal((32, 2, 6, 6)).astype(np.float32),
    )
    result = CliRunner().invoke(
        cli.main, ["quantize", "cnn.onnx", "--calib", "calib.npz", "--json"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["chip_ready"]
    assert found["integer_macs"] == 1
    assert found["outputs"]["output"]["cosine"] > 0.99
    integer = {
        n.name
        for n in onnx.load("cnn_quant.onnx").graph.node
        if n.op_type in ("Conv2dInt", "LinearInt")
    }
    assert integer <= {*CNN_NODES, *(f"{name}_mean" for name in CNN_NODES)}
    assert {"/stem/Conv", "/fc/Gemm"} <= integer
    assert Session("cnn_quant.onnx")(np.zeros((1, 2, 6, 6), np.float32)).shape == (1, 3)


@pytest.mark.parametrize(
    "model, args, message",
    (
        ("none.py:Net", (), "there is no file none.py"),
        ("net.py:Nett", (), "net.py has no 'Nett'; did you mean 'Net'?"),
        ("net", (), "'net' is not the name of a model; pass file.py:name or module:name"),
        ("no.such.module:x", (), "importing no.such.module failed (ModuleNotFoundError"),
        (f"{MODELS}:number", (), "is a int; pass a torch.nn.Module"),
        (
            f"{MODELS}:failing",
            (),
            "failing(), which is called without arguments, failed (RuntimeError: no weights here)",
        ),
        (f"{MODELS}:linear", (), "no inputs given; pass their shapes: --input-shape"),
        (f"{MODELS}:linear", ("--input-shape", "1,5"), "the model fails on the given inputs"),
        (f"{MODELS}:linear", ("--input-shape", "1,4:float23"), "unknown dtype 'float23'"),
        (f"{MODELS}:linear", ("--input-shape", "1,4:float16"), "input 'input' is float16"),
        (
            "net.py:Net",
            ("--input-shape", "x=1,3", "--input-shape", "id=1,2"),
            "no parameter 'id'; did you mean 'ids'?",
        ),
        (
            "net.py:Net",
            ("--input-shape", "x=1,3", "--input-shape", "x=1,2"),
            "duplicate input name: x, x",
        ),
        (
            "net.py:Net",
            ("--input-shape", "x=1,3", "--input-shape", "1,2"),
            "name every input or none",
        ),
        (
            f"{MODELS}:linear",
            ("--input-shape", "1,4", "--checkpoint", "x.pt"),
            "cannot read the checkpoint x.pt",
        ),
        (f"{MODELS}:linear", ("--input-shape", "1,4", "--opset", "5"), "does not support opset 5"),
    ),
)
def test_errors(model, args, message, here):
    """One line, exit code 1, nothing written."""
    result = run(model, "-o", "out.onnx", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("out.onnx").exists()


@pytest.mark.parametrize(
    "args",
    (
        ("--input-shape", "x=1,a"),
        ("--input-shape", "x=1,0"),
        ("--input-shape", "=1,3"),
        ("--dynamic-axes", "x"),
        ("--dynamic-axes", "x=a"),
        ("--dynamic-axes", "x=0:N,2"),
        ("--dynamic-axes", "x=0", "--dynamic-axes", "x=1"),
        ("--dynamic-axes", "none", "--dynamic-axes", "x=1"),
        ("--exporter", "other"),
    ),
)
def test_usage(args, here):
    result = run("net.py:Net", "-o", "out.onnx", *args)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr


def test_the_model_file_is_not_overwritten(here):
    result = run("net.py:Net", "-o", "net.py", "--input-shape", "x=1,3")
    assert result.exit_code == 1
    assert "net.py would be overwritten" in result.stderr
    assert Path("net.py").read_text() == NET


@pytest.mark.slow
def test_without_torch(here):
    """One line that says what to install; the package and its help work."""
    code = """
import sys
sys.modules["torch"] = None
import lingeronnx as lo
from lingeronnx.cli import main
for call in (
    lambda: main(["export", "--help"]),
    lambda: main(["export", "net.py:Net", "-o", "n.onnx"]),
    lambda: lo.export(None),
    lambda: lo.torch.init(None),
):
    try:
        call()
    except SystemExit as exit:
        print("status", exit.code, file=sys.stderr)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    message = "this needs PyTorch, which is not installed: pip install 'lingeronnx[torch]'"
    assert done.stderr.splitlines() == [
        "status 0",
        f"error: {message}",
        "status 1",
        f"ConfigError: {message}",
        f"ConfigError: {message}",
    ]
    assert done.stdout.startswith("Usage: ")


@pytest.mark.slow
def test_without_onnxscript(here):
    """The other half of the extra is told by its name."""
    code = (
        "import sys; sys.modules['onnxscript'] = None; import torch, lingeronnx as lo; "
        "lo.export(torch.nn.ReLU())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "ConfigError: the export needs onnxscript, which is not installed: pip install "
        "'lingeronnx[torch]'"
    )


def test_help_is_light():
    """--help imports neither torch nor onnx."""
    code = (
        "import sys; from lingeronnx.cli import main\ntry: main(['export', '--help'])\nexcept "
        "SystemExit: pass\n"
        "print([m for m in ('torch', 'onnx', 'onnxruntime', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "lingeronnx export net.py:model -o model.onnx" in done.stdout
