"""What a part for the chip is refused for, or is not worth, goes to the host; what is chip-ready
stays as it is.
"""

import dataclasses

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS
from lingeronnx.quantization.report.program import PartReport, ProgramReport
from lingeronnx.runtime.program_parts import split_into_parts
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
    assert program.runs_correctly
    assert not result.report.chip_ready
    assert (
        result.report.runs_text
        == "3 chip parts (100.0 % of MACs), 2 host parts (0.0 %, 1.02 k float operations per call)"
    )
    assert program.shared == max(part.shared for part in program.chip)
    assert program.psram_bytes == sum(part.psram for part in program.chip)


def test_one_part_is_what_it_was_before():
    one = made(islands(), parts=1)
    assert one.report.program.parts == ()
    assert [node.op_type for node in one.graph.graph].count("Conv2dInt") == 3


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_parts_than_wanted(most):
    result = made(islands((2, 8, 16)), max_parts=most)
    graph = result.graph
    assert len(split_into_parts(graph, result.platform).chip) == most
    kinds = [node.op_type for node in graph.graph]
    assert kinds.count("Conv2dInt") == most
    assert kinds.count("Conv") == 3 - most
    left = [*result.report.float_nodes, *result.report.host_part]
    whys = [node.why for node in left if node.op_type == "Conv"]
    assert whys == [f"limited to {most} chip parts"] * (3 - most)
    assert result.report.chip_ready == (most == 1)


def test_a_tiny_island_goes_to_the_host():
    net = Net(8, 8, 8)
    a = net.node("Erf", net.conv("x", (8, 8, 3, 3), pads=[1] * 4))
    b = net.node("Erf", net.node("Add", a, net.const(np.full((1, 8, 1, 1), 0.3, np.float32))))
    result = made(net.graph(net.conv(b, (8, 8, 3, 3), pads=[1] * 4, out="y")), max_parts=9)
    assert len(result.report.program.chip) == 2
    add = next(node for node in result.report.float_nodes if node.op_type == "Add")
    assert "MACs for" in add.why


@pytest.mark.parametrize(("kernel", "parts"), [(1, 2), (3, 1)])
def test_what_is_not_worth_a_crossing_stays_where_it_is_more_than_a_tenth_of_the_work(
    kernel, parts
):
    """A depthwise layer with two products for each number: beside 1x1 a fourth of the work, beside
    3x3 hardly any.
    """
    net = Net(8, 8, 8)
    a = net.node("Erf", net.conv("x", (8, 8, kernel, kernel), pads=[kernel // 2] * 4))
    result = made(net.graph(net.conv(a, (8, 1, 2, 2), group=8, out="y")), max_parts=9)
    assert len(result.report.program.chip or [1]) == parts
    assert (result.report.integer_macs == 1.0) == (parts == 2)
    assert result.report.integer_macs > 0.9


@pytest.mark.parametrize(("outputs", "parts"), [(12, 2), (32, 1)])
def test_what_left_before_is_no_reason_to_leave(outputs, parts):
    """The user keeps 11 or 25 % of the work in float. Just below nine tenths nothing more leaves,
    far below it does.
    """
    net = Net(8, 8, 8)
    a = net.node("Erf", net.conv("x", (8, 8, 3, 3), pads=[1] * 4))
    b = net.node("Erf", net.conv(a, (8, 1, 2, 2), group=8))
    graph = net.graph(net.conv(b, (outputs, 8, 1, 1), out="y"))
    last = next(str(node.name) for node in graph.graph if node.outputs[0].name == "y")
    result = made(graph, max_parts=9, skip=[last])
    assert len(result.report.program.chip or [1]) == parts


@pytest.mark.parametrize("said", [{"out_bits": 32}, {"scale": 64.0}])
@pytest.mark.parametrize("chip", ["venus", "arcs"])
def test_an_override_of_a_layer_that_moves_has_no_effect_and_is_told(chip, said):
    """The chip's part of the file is the one without it; where the layer stays, the override
    holds.
    """
    net = Net(8, 8, 8)
    a = net.node("Erf", net.conv("x", (8, 8, 3, 3), pads=[1] * 4))
    flat = net.node("Flatten", net.node("Erf", net.conv(a, (8, 8, 3, 3), pads=[1] * 4)))
    model = net.graph(net.linear(flat, (512, 4), out="y"))
    plain, told = (
        made(model, platform=chip, max_parts=9, **more) for more in ({}, {"overrides": {"y": said}})
    )
    assert [node.why for node in told.report.host_part if node.macs] == [
        "only 2,048 MACs for 516 transferred elements"
    ]
    (note,) = [note for note in told.report.notes if note.startswith("override 'y'")]
    assert note.endswith(f"{next(iter(said))} {next(iter(said.values()))} is ignored")
    assert not any(note.startswith("override") for note in plain.report.notes)
    assert dict(told.plan.tensors) == dict(plain.plan.tensors)
    stays = made(model, platform=chip, overrides={"y": said})
    assert not any(note.startswith("override") for note in stays.report.notes)


def test_what_is_chip_ready_is_never_cut():
    net = Net(8, 8, 8)
    model = net.graph(net.conv("x", (8, 8, 3, 3), out="y"))
    plain, one = made(model), made(model, parts=1)
    assert plain.report.chip_ready
    assert plain.report.program.parts == ()
    assert ir.to_bytes(plain.graph) == ir.to_bytes(one.graph)


def test_what_an_end_on_the_host_makes_chip_ready_is_not_cut(monkeypatch):
    """Behind a float operator a sum that 8 bits cannot hold: by evidence alone the host computes
    all of the end.
    """
    monkeypatch.setattr(
        "lingeronnx.quantization.trials.chip_parts.plan_model", None
    )  # planned no more often than without parts
    net = Net(8, 8, 8)
    a = net.node("Exp", net.node("Erf", net.conv("x", (8, 8, 3, 3), pads=[1] * 4)))
    model = net.graph(
        net.node("Add", a, net.const(np.full((1, 8, 1, 1), 100, np.float32)), out="y")
    )
    plain, cut = (
        quantize(model, samples(model, 32), platform="venus", **more)
        for more in ({}, {"max_parts": 9})
    )
    assert plain.report.chip_ready
    assert ir.to_bytes(plain.graph) == ir.to_bytes(cut.graph)


def test_a_model_of_which_nothing_would_be_left_stays_and_is_refused():
    net = Net(4, 20, 20)
    small = dataclasses.replace(ARCS, shared_memory=3100)
    report = made(
        net.graph(net.conv("x", (800, 4, 3, 3), out="y")), platform=small, max_parts=9
    ).report
    assert [(part.name, part.runs) for part in report.program.parts] == [("chip1", False)]
    assert "the memory plan must fit" in report.why_not[0]


def test_parts_are_written_with_a_line_each(tmp_path):
    result = made(islands())
    done = result.write(tmp_path / "m.onnx")
    assert [path.name for path in done.chip_parts] == [
        "m_chip1.onnx",
        "m_chip2.onnx",
        "m_chip3.onnx",
    ]
    for path, part in zip(done.chip_parts, done.report.program.chip, strict=True):
        assert path.is_file()
        assert str(path) in part.packer
    assert done.report.to_dict()["runs"] == result.report.runs_text


def test_a_wide_convolution_over_a_line_stands_upright():
    """Venus pads a line that several parts of a cut convolution read; as a column nothing is
    padded.
    """
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
            assert ir.get_attr(node, "kernel_shape") in ([5, 1], [1, 5])
    ours, theirs = result.session()(first), with_line.session()(first)
    assert np.abs(ours - theirs).max() <= 2 / 16


def test_a_tiny_island_goes_to_the_host_and_numbers_are_counted_by_the_files_names():
    """Names that the packer does not take are others in the file; the numbers handed over are still
    counted.
    """
    net = Net(8, 8, 8)
    a = net.node("Erf", net.conv("x", (8, 8, 3, 3), pads=[1] * 4), out="in:0")
    b = net.node("Add", a, net.const(np.full((1, 8, 1, 1), 0.3, np.float32)), out="sum:0")
    c = net.node("Erf", b, out="out:0")
    model = net.graph(net.conv(c, (8, 8, 3, 3), pads=[1] * 4, out="y"))
    assert len(made(model).report.program.chip) == 3  # without the option no layer moves
    result = made(model, max_parts=9)
    assert result.report.names
    assert len(result.report.program.chip) == 2
    assert "transferred elements" in next(
        n.why for n in result.report.float_nodes if n.op_type == "Add"
    )


def wide_layer():
    """A convolution, and a layer whose weight is larger than a small memory."""
    net = Net(4, 20, 20)
    a = net.conv("x", (80, 4, 1, 1))
    flat = net.node("Flatten", a)
    return net.graph(net.linear(flat, (32000, 2), out="y"))


def test_a_layer_that_needs_too_much_memory_goes_alone():
    """The layer that takes most of the memory leaves, and not all of its part; without parts
    nothing does.
    """
    small = dataclasses.replace(ARCS, shared_memory=31000)
    one = made(wide_layer(), platform=small, parts=1)
    assert not one.report.chip_ready
    assert not any(node.op_type == "Conv" for node in one.report.host_part)
    result = made(wide_layer(), platform=small, max_parts=9)
    assert result.report.chip_ready or result.report.program.runs_correctly
    assert any(
        "the memory plan must fit" in node.why
        for node in [*result.report.host_part, *result.report.float_nodes]
    )
    assert 0 < result.report.integer_macs < 1


def test_of_many_layers_that_are_too_large_one_in_the_middle_leaves_first():
    """It has no multiply-accumulates, and the parts before and behind it are half as long."""
    small = dataclasses.replace(ARCS, shared_memory=31000)
    net, x = Net(4, 4000), "x"
    for _ in range(4):
        x = net.node("Sigmoid", net.conv(x, (4, 4, 3), pads=[1, 1]))
    model = net.graph(net.conv(x, (4, 4, 3), pads=[1, 1], out="y"))
    (part,) = made(model, platform=small).report.program.chip
    curves = [name for name in part.members if name.startswith("Sigmoid")]
    large = [
        layer for layer in part.verdict.cost.layers if layer.work_area + layer.activations > 31000
    ]
    assert len(curves) == 4
    assert len(large) == 9  # each of them by itself
    assert part.refused == (curves[2],)


def test_a_part_of_little_work_goes_to_the_host_where_that_is_nearer():
    """A last layer behind an operator of the host; nothing is tried without effort."""
    net = Net(16, 12, 12, seed=4)
    a = net.conv(net.conv("x", (32, 16, 3, 3), pads=[1] * 4), (32, 32, 3, 3), pads=[1] * 4)
    mean = net.node("Flatten", net.node("GlobalAveragePool", net.node("Erf", a)))
    model = net.graph(net.linear(net.node("Erf", mean), (32, 8), out="y"))
    fast = made(model, max_parts=9)
    full = quantize(model, samples(model, 32), platform="venus", max_parts=9)
    assert [node.op_type for node in fast.report.host_part if node.macs] == []
    (last,) = [node for node in full.report.host_part if node.macs]
    assert "measured to be better in float" in last.why
    assert full.report.outputs["y"]["sqnr"] > fast.report.outputs["y"]["sqnr"]


def test_what_would_merge_parts_is_told(tmp_path):
    """Another chip that runs the operator, or another activation in its place."""
    net = Net(8, 8, 8)
    a = net.node(
        "PRelu",
        net.conv("x", (8, 8, 3, 3), pads=[1] * 4),
        net.const(np.full((8, 8, 8), -1.5, np.float32)),
    )
    b = net.node("Softmax", net.conv(a, (8, 8, 3, 3), pads=[1] * 4), axis=3)
    c = net.node("Softsign", net.conv(b, (8, 8, 3, 3), pads=[1] * 4))
    result = made(net.graph(net.conv(c, (8, 8, 3, 3), pads=[1] * 4, out="y")))
    told = {merge.operator: merge for merge in result.report.merges}
    assert "arcs" in told["Softmax"].chips
    assert "Tanh" in told["Softsign"].instead
    assert [merge["operator"] for merge in result.report.to_dict()["merges"]] == list(told)
    assert "supported on" in str(told["Softmax"])


def test_shared_memory_and_psram_are_planned_over_all_parts():
    """Parts share the largest region; one that keeps its constants there has one of its own; psram
    is the sum.
    """
    parts = [
        PartReport("chip1", True, 1, (), (), shared=100, psram=1000),
        PartReport("host1", False, 1, (), ()),
        PartReport(
            "chip2",
            True,
            1,
            (),
            (),
            shared=300,
            psram=20,
            packer_args="-p arcs -m params:share-mem",
        ),
        PartReport("chip3", True, 1, (), (), shared=250, psram=3),
        PartReport(
            "chip4", True, 1, (), (), shared=50, psram=0, packer_args="-p arcs -m params:share-mem"
        ),
    ]
    program = ProgramReport(tuple(parts))
    assert program.shared == 300 + 50 + 250
    assert program.psram_bytes == 1023
    assert program.host_chip_transfers == 2


def test_a_refused_part_names_the_option_that_moves_layers():
    """The option is told where it is not given yet; with it there is a program."""
    small = dataclasses.replace(ARCS, shared_memory=31000)
    model = wide_layer()
    plain, moved = made(model, platform=small), made(model, platform=small, max_parts=16)
    assert plain.report.next[0].options == ("--max-parts 16",)
    assert plain.report.next[0].effect.startswith("chip1 rejected")
    assert moved.report.chip_ready or moved.report.program.runs_correctly
    assert not any("--max-parts" in option for step in moved.report.next for option in step.options)
