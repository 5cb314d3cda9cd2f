"""The command as its users meet it: whole outputs, exit codes, files."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from tests import nets

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "dequant"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the command on a copy of a case, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def invoke(case, *options):
        shutil.copy(FOLDER / f"{case}.onnx", tmp_path / "legacy.onnx")
        return CliRunner().invoke(cli.main, ["fix-dequant", "legacy.onnx", *options])

    return invoke


def test_repair(run):
    """Every finding, every edit, and where the result is."""
    result = run("wrong_scale_neighbour")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "found 1 problem:",
        "  dequants    Dequant Dequant_Dequant_308_309 has scale_o 2^5, but '308' has scale 2^3",
        "1 edit applied:",
        "  rescale  Dequant Dequant_Dequant_308_309: scale_o 2^5 -> 2^3",
        "written: legacy_fix.onnx",
    ]
    onnx.load("legacy_fix.onnx")


def test_dry_run(run):
    """The same findings, the edits as a plan, no file."""
    result = run("missing_at_output", "--dry-run")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "found 1 problem:",
        (
            "  dequants    graph output 'output' returns int8 (scale 2^4), but graph outputs are "
            "real numbers: a Dequant is missing"
        ),
        "2 edits planned:",
        "  rename   integer tensor 'output' to 'output_q'",
        "  insert   Dequant Dequant_output: 'output_q' -> 'output', scale_o 2^4",
    ]
    assert [path.name for path in Path().iterdir()] == ["legacy.onnx"]


def test_nothing_wrong(run):
    """A right graph is copied, and that is said."""
    result = run("wrong_scale_neighbour.right", "-o", "out.onnx")
    assert result.output.splitlines() == [
        "no problems found",
        "written: out.onnx, byte for byte the input",
    ]
    assert Path("out.onnx").read_bytes() == Path("legacy.onnx").read_bytes()


def test_refused(run):
    """What cannot be repaired is told with everything else; exit code 1, no file."""
    result = run("dangling_ambiguous")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[2:] == [
        "2 problems cannot be repaired:",
        (
            "  lost edges  Relu Relu_3Relu_304 reads undefined tensor '421'; '302', '303' match "
            "equally well"
        ),
        (
            "  lost edges  iqCat iqCat_4iqCat_305 reads undefined tensor '433'; '302', '303' match "
            "equally well"
        ),
    ]
    assert result.stderr == (
        "error: cannot repair legacy.onnx: Relu Relu_3Relu_304: reads undefined tensor '421'; "
        "'302', '303' match equally well (and 1 more that cannot be repaired)\n"
    )
    assert not Path("legacy_fix.onnx").exists()


def test_check(run):
    """The run's outputs, or the node that fails and exit code 1."""
    result = run("shared_dequant_feeds_int", "--check")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[-4] == "check: the model runs; outputs for random inputs:"
    assert lines[-3].startswith("  'output'  [1, 10]       float32  ")
    assert lines[-1] == "written: legacy_fix.onnx"
    result = run("custom_float_op", "--check", "--json")
    assert result.exit_code == 1
    assert "YoloDecode" in json.loads(result.stdout)["check"]["error"]


def test_branches_run(run):
    """An If whose branches read integers from around them runs."""
    assert run("if_subgraph", "--check").exit_code == 0


def test_json(run):
    """One object on stdout; the text goes to stderr."""
    result = run("wrong_scale_neighbour", "--json", "--check")
    body = json.loads(result.stdout)
    assert (body["repaired"], body["changed"], body["written"]) == (True, True, "legacy_fix.onnx")
    (finding,) = body["findings"]
    assert (finding["node"], finding["tensor"]) == ("Dequant Dequant_Dequant_308_309", "308")
    assert (finding["before"], finding["after"]) == (32.0, 8.0)
    (edit,) = body["edits"]
    assert (edit["action"], edit["before"], edit["after"]) == ("rescale", 32.0, 8.0)
    assert body["check"]["outputs"][0]["shape"] == [1, 10]
    assert result.stderr.startswith("found 1 problem:\n")
    body = json.loads(run("dangling_ambiguous", "--json").stdout)
    assert not body["repaired"]
    assert [f["level"] for f in body["findings"]].count("fatal") == 2


@pytest.mark.parametrize("output", ("legacy.onnx", "./legacy.onnx", ".", "nowhere/out.onnx"))
def test_where_not_to_write(run, output):
    """Not over the input, not into nowhere; told before any work."""
    result = run("missing_at_output", "-o", output)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_call(tmp_path):
    """The same from Python."""
    path = tmp_path / "legacy.onnx"
    shutil.copy(FOLDER / "missing_at_output.onnx", path)
    fixed = lo.fix_dequant(path, check=True)
    assert fixed.changed
    assert fixed.trial_run.error is None
    assert fixed.save() == tmp_path / "legacy_fix.onnx"
    assert not lo.fix_dequant(fixed.save()).changed
    shutil.copy(FOLDER / "dangling_ambiguous.onnx", path)
    with pytest.raises(lo.RepairError) as caught:
        lo.fix_dequant(str(path))
    assert len(caught.value.report.fatal) == 2


def test_zero_points_are_not_repaired(tmp_path):
    """A sound graph with zero points stays as it is; where something would be mended, it is refused
    in one line.
    """
    settings = {
        "platform": "generic",
        "mode": "max-value",
        "activations": "asymmetric",
        "effort": "fast",
    }
    sound, broken = tmp_path / "sound.onnx", tmp_path / "broken.onnx"
    nets.quantized(nets.plain(), **settings).save(sound)
    result = CliRunner().invoke(cli.main, ["fix-dequant", str(sound), "--check"])
    assert result.exit_code == 0
    assert "no problems found" in result.output
    model = onnx.load(sound)
    scale = next(
        a
        for n in model.graph.node
        if n.op_type == "Dequant"
        for a in n.attribute
        if a.name == "scale_o"
    )
    scale.f *= 2
    onnx.save(model, broken)
    result = CliRunner().invoke(cli.main, ["fix-dequant", str(broken)])
    assert result.exit_code == 1
    assert "only graphs whose zero points are 0 can be repaired" in result.output
    assert not (tmp_path / "broken_fix.onnx").exists()
