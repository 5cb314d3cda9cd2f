"""`check` and `structure` take files and graphs, float and integer alike, and refuse what they
cannot judge.
"""

import dataclasses

import pytest

from lingeronnx.analysis.check.check import check, structure
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.quantization.report.program import ProgramReport
from lingeronnx.targets import VerdictFinding
from tests.artefacts import quantized
from tests.deployment.c.programs import make_two_chip_parts
from tests.nets import concat, samples


@pytest.fixture(scope="module")
def made():
    """Return (float graph, what quantize made of it for venus)."""
    model = concat()
    return model, quantized(model, "venus", effort="fast")


def test_a_file_and_its_graph_are_judged_alike(made, tmp_path):
    """Law: check(path) == check(graph), of a float model and of an integer graph."""
    model, result = made
    ir.save(model, tmp_path / "m.onnx")
    result.save(tmp_path / "q.onnx")
    for graph, name, kind in ((model, "m.onnx", "float"), (result.graph, "q.onnx", "integer")):
        report = check(tmp_path / name, platform="venus")
        assert report.kind == kind
        assert report.to_dict() == check(graph, platform="venus").to_dict()


def test_the_platform_is_the_graph_s_own(made):
    """An integer graph is judged as what it was made for; a float one as for the default chip."""
    model, result = made
    assert check(model).platform == "venus"
    assert check(quantized(model, "arcs", effort="fast").graph).platform == "arcs"
    assert check(result.graph, platform="arcs").platform == "arcs"


def test_packer_arguments_of_a_float_model_are_refused(made):
    with pytest.raises(ConfigError, match="belong to an integer graph"):
        check(made[0], packer_args="-p venus")


def test_structure_of_a_float_model_needs_data(made):
    model, result = made
    with pytest.raises(ConfigError, match="pass --calib DATA"):
        structure(model)
    planned, built = structure(model, calib=samples(model, 16)), structure(result)
    assert [row[0] for row in planned.weights] == [row[0] for row in built.weights] != []


def test_a_graph_in_parts(tmp_path):
    """Each part is judged as it is packed; what stands between them is told, and what would merge
    them.
    """
    net = make_two_chip_parts()
    result = quantized(net, "venus", samples(net, 16), effort="fast")
    result.write(tmp_path / "net.onnx")
    report = check(tmp_path / "net.onnx")
    assert (report.packs, report.runs_right, report.sound) == (
        True,
        True,
        False,
    )  # it is not chip-ready
    assert [part.name for part in report.program.parts] == ["chip1", "host1", "chip2", "host2"]
    assert (
        report.verdict
        == "venus: 1 limit is violated at 1 node; each of its 2 chip parts packs and is correct (by measured rules)"
    )
    lines = report.lines()
    assert (
        f"runs on venus: {result.report.program.format_line(result.report.integer_macs)}, 3 "
        "crossings"
    ) in lines
    for number in (1, 2):
        part = check(tmp_path / f"net_chip{number}.onnx")
        assert part.sound
        assert (
            f"chip{number}: packed with {part.choice.command_line}: it packs and is correct by measured rules"
            in lines
        )
        assert f"  {part.cost.format_totals()}" in lines
    assert any(line.startswith("fewer parts: Softmax") and "arcs" in line for line in lines)
    assert not any("the packer refuses" in line for line in lines)
    assert report.to_dict()["runs"] in lines[2]
    # Packed under arguments of the user's it is one graph, which the packer does not take.
    assert not check(tmp_path / "net.onnx", packer_args="-d False").packs


def test_a_graph_in_parts_one_of_which_does_not_run(tmp_path):
    net = make_two_chip_parts()
    quantized(net, "venus", samples(net, 16), effort="fast").write(tmp_path / "net.onnx")
    found = check(tmp_path / "net.onnx")
    first, *others = found.program.parts
    finding = VerdictFinding("packs", "conv", "a rule", "a value", "a remedy")
    verdict = dataclasses.replace(first.verdict, is_packable=False, findings=(finding,))
    parts = (dataclasses.replace(first, runs=False, verdict=verdict), *others)
    found = dataclasses.replace(found, program=ProgramReport(parts))
    assert (found.packs, found.sound) == (False, False)
    assert (
        found.verdict == "venus: the packer refuses it, 1 rule is violated at 1 node; "
        "1 limit is violated at 1 node"
    )
    assert f"chip1: packed with {first.packer_args}: it does not run on the chip" in found.lines()
    assert any("a rule; here a value; a remedy" in line for line in found.lines())
