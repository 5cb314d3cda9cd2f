"""`lingeronnx completion`: scripts for three shells, and what they complete."""

import shutil
import subprocess

import onnx
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from lingeronnx.cli import main
from lingeronnx.ir import ir
from tests.nets import plain


def complete(words, incomplete):
    """Return what a shell offers for `incomplete` after the `words` of a command line."""
    shell = ShellComplete(main, {}, "lingeronnx", "_LINGERONNX_COMPLETE")
    return [item.value for item in shell.get_completions(words, incomplete)]


@pytest.mark.parametrize("shell", ("bash", "zsh", "fish"))
def test_the_script(shell):
    """It calls lingeronnx, and the shell accepts it where it is installed."""
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_LINGERONNX_COMPLETE={shell}_complete" in result.output
    if program := shutil.which(shell):
        flag = "--no-execute" if shell == "fish" else "-n"
        subprocess.run([program, flag], input=result.output, text=True, check=True)
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


def test_commands_options_and_names(tmp_path):
    """Commands, options, choices, and after --skip and --override the nodes of the model."""
    path = tmp_path / "net.onnx"
    ir.save(plain(), path)
    names = [node.name for node in onnx.load(path).graph.node]
    assert complete([], "qu") == ["quantize"]
    assert "--effort" in complete(["quantize", str(path)], "--ef")
    assert complete(["quantize", str(path), "--effort"], "f") == ["fast"]
    for option in ("--skip", "--override"):
        words = ["quantize", str(path), option]
        assert complete(words, "") == [*names, *complete(words, "type:")]
        assert complete(words, names[0][:6]) == [n for n in names if n.startswith(names[0][:6])]
    assert complete(["quantize", str(path), "--skip"], "type:G") == [
        "type:Gemm",
        "type:GlobalAveragePool",
    ]
    path.write_bytes(b"damaged")
    assert complete(["quantize", str(path), "--skip"], "") == []
    assert complete(["quantize", "missing.onnx", "--skip"], "") == []
