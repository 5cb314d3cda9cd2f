"""What a part for the chip is refused for, or is not worth, goes to the host; what is chip-ready stays as it is."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.graph import ir
from lingeronnx.run.parts import parts_of
from tests.nets import Net, samples

OPTIONS = {"platform": "venus", "effort": "fast"}


def islands(channels=(8, 8, 8)):
    """Convolutions with an Erf between each two; the sizes say how much work each has."""
    net, x, before = Net(8, 8, 8), "x", 8
    for number, count in enumerate(channels):
        out = "y" if number == len(channels) - 1 else None
        x = net.conv(x, (count, before, 3, 3), pads=[1] * 4, out=out)
        before = count
        if out is None:
            x = net.node("Erf", x)
    return net.graph("y")


def made(model, **settings):
    """Quantize on random samples."""
    return quantize(model, samples(model, 8), **{**OPTIONS, **settings})


def test_float_operators_in_the_middle_make_parts():
    result = made(islands())
    program = result.report.program
    assert [part.name for part in program.parts] == ["chip1", "host1", "chip2", "host2", "chip3"]
    assert program.runs
    assert not result.report.chip_ready
    assert (
        result.report.runs_text
        == "3 chip parts (100.0 % of MACs), 2 host parts (0.0 %, 1.02 k float operations per call)"
    )
    assert program.shared == max(part.shared for part in program.chip)
    assert program.psram == sum(part.psram for part in program.chip)


def test_one_part_is_what_it_was_before():
    one = made(islands(), parts=1)
    assert one.report.program.parts == ()
    assert [node.op_type for node in one.graph.graph].count("Conv2dInt") == 3


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_parts_than_wanted(most):
    result = made(islands((2, 8, 16)), max_parts=most)
    graph = result.graph
    assert len(parts_of(graph, result.platform).chip) == most
    kinds = [node.op_type for node in graph.graph]
    assert kinds.count("Conv2dInt") == most
    assert kinds.count("Conv") == 3 - most
    left = [*result.report.float_nodes, *result.report.host_part]
    whys = [node.why for node in left if node.op_type == "Conv"]
    assert whys == [f"the chip shall have {most} parts at most"] * (3 - most)
    assert result.report.chip_ready == (most == 1)


def test_a_tiny_island_goes_to_the_host():
    net = Net(8, 8, 8)
    a = net.node("Erf", net.conv("x", (8, 8, 3, 3), pads=[1] * 4))
    b = net.node("Erf", net.node("Add", a, net.const(np.full((1, 8, 1, 1), 0.3, np.float32))))
    result = made(net.graph(net.conv(b, (8, 8, 3, 3), pads=[1] * 4, out="y")), max_parts=9)
    assert len(result.report.program.chip) == 2
    add = next(node for node in result.report.float_nodes if node.op_type == "Add")
    assert "multiply-accumulates for" in add.why


def test_what_is_chip_ready_is_never_cut():
    net = Net(8, 8, 8)
    model = net.graph(net.conv("x", (8, 8, 3, 3), out="y"))
    plain, one = made(model), made(model, parts=1)
    assert plain.report.chip_ready
    assert plain.report.program.parts == ()
    assert ir.to_bytes(plain.graph) == ir.to_bytes(one.graph)


def test_parts_are_written_with_a_line_each(tmp_path):
    result = made(islands())
    done = result.write(tmp_path / "m.onnx")
    assert [path.name for path in done.parts] == ["m_chip1.onnx", "m_chip2.onnx", "m_chip3.onnx"]
    for path, part in zip(done.parts, done.report.program.chip, strict=True):
        assert path.is_file()
        assert str(path) in part.packer
    assert done.report.to_dict()["runs"] == result.report.runs_text


def test_a_wide_convolution_over_a_line_stands_upright():
    """Venus pads a line that several parts of a cut convolution read; as a column nothing is padded."""
    net = Net(64, 1, 64)
    weight = (0.05 * np.random.default_rng(1).standard_normal((256, 64, 1, 5))).astype(np.float32)
    model = net.graph(
        net.node("Conv", "x", net.const(weight), out="y"),
    )
    result = made(model)
    first = samples(model, 2)
    assert result.report.chip_ready, result.report.why_not
    with_line = made(model, platform="arcs")
    assert with_line.report.chip_ready, with_line.report.why_not
    for node in result.graph.graph:
        if node.op_type == "Conv2dInt":
            assert ir.attr(node, "kernel_shape") in ([5, 1], [1, 5])
    ours, theirs = result.session()(first), with_line.session()(first)
    assert np.abs(ours - theirs).max() <= 2 / 16
