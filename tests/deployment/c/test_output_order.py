"""Outputs of a part with and without Dequants: the program, the stand-in and the checks take the
packer's order.
"""

import shutil

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.deployment.c_program import host_source
from lingeronnx.deployment.c_program.host_proof import prove_program
from lingeronnx.deployment.c_program.program import ChipPart
from lingeronnx.ir import ir
from tests import nets
from tests.packer import judge

from . import programs

CHIPS = ("venus", "arcs", "venusA")


def make_mixed_outputs():
    """Two chip parts: the first gives integers to the second, and a float to the host."""
    net = nets.Net(3, 8, 8, seed=11)
    a = net.node("Relu", net.conv("x", (6, 3, 3, 3), pads=[1] * 4))
    e = net.node("Sin", net.node("Mul", a, net.const(np.float32(0.7))))
    kept = net.conv(a, (4, 6, 3, 3), pads=[1] * 4)
    late = net.conv(e, (4, 6, 3, 3), pads=[1] * 4)
    flat = net.node("Flatten", net.node("Relu", net.node("Add", late, kept)))
    return net.graph(net.node("Softmax", net.linear(flat, (256, 5)), axis=1, out="y"))


def deploy(folder, chip):
    model = make_mixed_outputs()
    data = nets.samples(model, 24)
    return programs.deploy_case(folder, model, data, "mixed", samples=2, platform=chip, max_parts=4)


@pytest.mark.skipif(
    host_source.explain_missing_generator() is not None, reason="emx-onnx-cgen is not installed"
)
@pytest.mark.parametrize("chip", CHIPS)
def test_a_part_with_both_kinds_of_outputs(tmp_path, chip):
    """Those without a Dequant come first, as in the rows output_order, whatever the order of the
    nodes; the second judge says the same.
    """
    case = deploy(tmp_path / "board", chip)
    first = case.program.unique_chip_parts[0]
    assert list(first.dequantized) == sorted(first.dequantized)
    assert set(first.dequantized) == {True, False}
    for part in case.program.unique_chip_parts:
        verdict = judge(ir.to_proto(part.graph), chip, list(part.choice.argv))
        assert verdict.outputs == [port.tensor for port in part.outputs]
        assert part.list_executor_outputs() == list(range(len(part.outputs)))
    if shutil.which("cc") is None:
        return
    proof = prove_program(case.program, case.parts, case.folder, case.calls, case.feeds)
    assert not proof.failed, proof


@pytest.mark.skipif(
    host_source.explain_missing_generator() is not None, reason="emx-onnx-cgen is not installed"
)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.parametrize("has_names", (True, False))
def test_a_package_in_another_order(tmp_path, monkeypatch, has_names):
    """Ports are looked up by name; only where a package has no names the order decides."""
    case = deploy(tmp_path / "board", "arcs")
    packer_order = ChipPart.list_executor_outputs
    monkeypatch.setattr(ChipPart, "list_executor_outputs", lambda part: packer_order(part)[::-1])
    assert any(len(part.outputs) > 1 for part in case.program.unique_chip_parts)
    if not has_names:
        monkeypatch.setenv("STANDIN_FAIL", "names")
    proof = prove_program(case.program, case.parts, case.folder, case.calls, case.feeds)
    assert bool(proof.failed) is not has_names, proof


@pytest.mark.parametrize("chip", CHIPS)
def test_check_names_the_outputs(chip):
    """As the executor gives them: the integers, not the floats behind Dequants."""
    net = nets.Net(4, 6, 6, seed=1)
    a = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    model = net.graph(
        net.conv(a, (4, 8, 1, 1), out="first"), net.conv(a, (2, 8, 1, 1), out="second")
    )
    result = lo.quantize(model, nets.samples(model, 4), platform=chip, effort="fast")
    check = lo.check(result.graph, platform=chip)
    assert list(check.outputs) == ["first_q", "second_q"]
    assert check.to_dict()["outputs"] == ["first_q", "second_q"]
