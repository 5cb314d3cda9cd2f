"""The command `check`: what it prints, writes and refuses."""

import json

import pytest
from click.testing import CliRunner

from lingeronnx import cli
from lingeronnx.ir import ir
from tests.analysis.check.helpers import quantized, small


@pytest.fixture(scope="module")
def integer():
    """The bytes of an integer graph."""
    return quantized().SerializeToString()


def run(*args):
    return CliRunner().invoke(cli.main, ["check", *map(str, args)])


def test_command(tmp_path, integer):
    ir.save(small(), tmp_path / "small.onnx")
    (tmp_path / "good.onnx").write_bytes(integer)
    bad = run(tmp_path / "small.onnx", "-o", tmp_path / "out")
    assert bad.exit_code == 1
    verdict, first = bad.stdout.splitlines()[:2]
    assert (
        verdict
        == "venus: 1 limit is violated at 1 node; fixed by --fit (on by default in quantize)"
    )
    assert first.startswith("Conv Conv_short -> short: the stride must not exceed the kernel size")
    assert (
        (tmp_path / "out" / "check.txt")
        .read_text()
        .startswith(bad.stdout.partition("cost on the chip")[0])
    )
    body = json.loads((tmp_path / "out" / "check.json").read_text())
    assert body["violations"][0]["node"] == "Conv_short"
    assert body["remaining"] == []
    shown = run(tmp_path / "small.onnx", "--json")
    assert (shown.exit_code, json.loads(shown.stdout), shown.stderr) == (1, body, bad.stdout)
    good = run(tmp_path / "good.onnx")
    first, packed, time, same, safe, cost, head, *layers = good.stdout.splitlines()
    assert same.startswith("same integers on 3.0.4, ")
    assert safe.startswith("safe plan on 3.0.4, ")
    assert (good.exit_code, first) == (0, "no limit of venus is exceeded")
    assert packed == "packed with -p venus -d False: it packs and is correct by measured rules"
    assert time.startswith("time on venus: no published timing data for venus")
    assert cost == "cost on the chip:"
    assert head.split()[:3] == ["layer", "operator", "MACs"]
    assert [line.split()[1] for line in layers if "Int " in line] == ["Conv2dInt"] * 3 + [
        "AvgPool2dInt",
        "LinearInt",
    ]
    assert any(line.split()[:1] == ["total"] for line in layers)
    moved = run(tmp_path / "good.onnx", "--packer-args", "-p venus -r 100")
    assert moved.exit_code == 1
    assert (
        "the packer refuses: shared memory: the memory plan must fit in 100 bytes" in moved.stdout
    )
    assert "packed with -p venus -r 100: it does not pack" in moved.stdout.splitlines()


def test_command_mistakes(tmp_path):
    gone = run(tmp_path / "gone.onnx")
    assert (gone.exit_code, gone.stderr.count("\n")) == (1, 1)
    ir.save(small(), tmp_path / "small.onnx")
    assert "unknown platform 'venu'" in run(tmp_path / "small.onnx", "--platform", "venu").stderr
    (tmp_path / "file").write_text("")
    assert "cannot make the folder" in run(tmp_path / "small.onnx", "-o", tmp_path / "file").stderr
