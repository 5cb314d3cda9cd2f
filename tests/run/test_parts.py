"""The parts of an integer graph, run one after the other, compute what the whole graph does, to the
last bit.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna.arguments import selection
from lingeronnx.luna.result_cache import ResultCache
from lingeronnx.operators.chip_part import extract_chip_part
from lingeronnx.runtime.program_parts import split_into_parts
from lingeronnx.runtime.runners import open_ort_session
from lingeronnx.runtime.session import Session
from tests.nets import Net, quantized, samples
from tests.packability import SHARED, quantize_net, shared_feeds

CHIPS = ("venus", "arcs", "venusA")


def computed(parts, feeds, platform):
    """Return every tensor that is handed over when the parts run in their order."""
    have = dict(feeds)
    for part in parts.parts:
        given = {name: have[name] for name in part.inputs}  # a KeyError where the order is wrong
        if part.chip:
            found = Session(part.graph, platform=platform).run(None, given)
        else:
            found = open_ort_session(ir.to_proto(part.graph), part.name, threads=1).run(None, given)
        have.update(zip(part.outputs, found, strict=True))
    return have


def same(result, feeds):
    """Cut a result, run it both ways, and return the parts."""
    parts, session = split_into_parts(result.graph, result.platform), result.session()
    names = [value.name for value in session.get_outputs()]
    have = computed(parts, feeds, result.platform)
    for name, array in zip(names, session.run(None, feeds), strict=True):
        assert np.array_equal(array, have[name]), name
    return parts


def middle():
    """Two convolutions with an Erf between them, which no chip has; the first is read again behind
    it.
    """
    net = Net(3, 8, 8)
    a = net.conv("x", (4, 3, 3, 3), pads=[1] * 4)
    b = net.node("Erf", a)
    c = net.node("Add", net.conv(b, (4, 4, 3, 3), pads=[1] * 4), net.conv(a, (4, 4, 1, 1)))
    return net.graph(net.conv(c, (2, 4, 1, 1), out="y"))


def shared_by_both():
    """An Erf that feeds the chip, the host and an output; a constant that both sides read."""
    net = Net(3, 8, 8)
    two = net.const(np.full((1, 1, 1, 1), 2, np.float32))
    a = net.node("Mul", net.conv("x", (4, 3, 3, 3), pads=[1] * 4), two)
    b = net.node("Erf", a, out="e")
    c = net.node("Mul", net.node("Erf", b), two)
    return net.graph(net.conv(c, (2, 4, 1, 1), out="y"), net.conv(b, (2, 4, 1, 1), out="z"), "e")


def with_branch():
    """An If in the middle whose branches read what the chip wrote before."""
    net = Net(3, 8, 8)
    a, b = net.conv("x", (4, 3, 3, 3), pads=[1] * 4), net.conv("x", (4, 3, 1, 1))
    bodies = [
        helper.make_graph(
            [helper.make_node(kind, [a, b], [kind])],
            kind,
            [],
            [helper.make_tensor_value_info(kind, 1, None)],
        )
        for kind in ("Add", "Mul")
    ]
    total = net.node("ReduceSum", a, keepdims=0)
    condition = net.node("Greater", total, net.const(np.float32(0)))
    chosen = net.node("If", condition, then_branch=bodies[0], else_branch=bodies[1])
    return net.graph(net.conv(net.node("Erf", chosen), (2, 4, 1, 1), out="y"))


@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize("build", [middle, shared_by_both])
def test_parts_compute_what_the_whole_does(build, platform):
    model = build()
    result = quantized(model, platform=platform, parts=1, effort="fast")
    parts = same(result, {"x": samples(model, 1)["x"]})
    assert len(parts.chip) == 2
    assert parts.host_parts
    assert [p.name for p in parts.parts if p.chip] == ["chip1", "chip2"]


def test_a_branch_that_reads_what_a_part_before_wrote_leaves_the_next_part_alone():
    """The body of an If between two chip parts reads a tensor of the first; none of that is in the
    second.
    """
    result = quantized(middle(), platform="venus", parts=1, effort="fast")
    model = ir.to_proto(result.graph)
    place, erf = next((i, n) for i, n in enumerate(model.graph.node) if n.op_type == "Erf")
    body = helper.make_graph(
        [erf], "body", [], [helper.make_tensor_value_info(erf.output[0], 1, [1, 4, 8, 8])]
    )
    model.graph.node[place].CopyFrom(
        helper.make_node("If", ["always"], erf.output, erf.name, then_branch=body, else_branch=body)
    )
    model.graph.initializer.append(helper.make_tensor("always", TensorProto.BOOL, [], [True]))
    before, after = (
        split_into_parts(graph, result.platform).chip
        for graph in (result.graph, ir.from_proto(model))
    )
    assert [part.inputs for part in after] == [part.inputs for part in before]
    assert [part.nodes for part in after] == [part.nodes for part in before]
    assert [[n.op_type for n in p.graph.graph] for p in after] == [
        [n.op_type for n in p.graph.graph] for p in before
    ]


def test_integers_go_from_chip_to_chip_as_they_are():
    result = quantized(middle(), platform="venus", parts=1, effort="fast")
    first, second = split_into_parts(result.graph, result.platform).chip
    handed = set(first.outputs) & set(second.inputs)
    assert handed
    kinds = {str(v.name): v.dtype.name for v in second.graph.graph.inputs}
    assert {kinds[name] for name in handed} == {"INT8"}


def test_what_a_quant_writes_stays_in_the_part():
    """Two chip parts read what the host made; each has its Quant, and hands its integers to
    nobody.
    """
    net = Net(3, 8, 8)
    a = net.node("Erf", net.conv("x", (4, 3, 3, 3), pads=[1] * 4), out="a")
    b = net.node("Erf", net.conv(a, (4, 4, 1, 1)))
    c = net.node("Concat", net.conv(b, (2, 4, 1, 1)), a, axis=1)
    result = quantized(
        net.graph(net.conv(c, (2, 6, 1, 1), out="y")), platform="venus", parts=1, effort="fast"
    )
    parts = split_into_parts(result.graph, result.platform)
    assert [("a" in part.inputs) for part in parts.chip] == [False, True, True]
    for part in parts.chip:
        assert not {
            str(v.name) for n in part.graph.graph if n.op_type == "Quant" for v in n.outputs
        } & {*part.outputs}


def test_every_node_runs_in_the_part_that_says_so_and_names_stay():
    result = quantized(shared_by_both(), platform="arcs", parts=1, effort="fast")
    parts = split_into_parts(result.graph, result.platform)
    whole = {str(v.name) for v in ir.iter_values(result.graph)}
    for part in parts.parts:
        assert {*part.inputs, *part.outputs} <= whole
    computed_by = [name for part in parts.parts for name in part.nodes]
    assert set(computed_by) == {
        str(node.name) for node in result.graph.graph if node.op_type != "Constant"
    }


@pytest.mark.parametrize("platform", CHIPS)
def test_a_chip_ready_graph_is_one_part_with_head_and_tail(platform):
    net = Net(3, 8, 8)
    out = net.node(
        "Softmax",
        net.node("Flatten", net.conv(net.node("Erf", "x"), (4, 3, 3, 3))),
        axis=1,
        out="y",
    )
    model = net.graph(out)
    result = quantized(model, platform=platform, parts=1, effort="fast")
    assert result.report.chip_ready
    parts = same(result, {"x": samples(model, 1)["x"]})
    (chip,) = parts.chip
    assert ir.to_bytes(chip.graph) == ir.to_bytes(extract_chip_part(result.graph, result.platform))
    assert [part.name for part in parts.parts][:2] == ["host1", "chip1"]


def test_a_graph_that_is_all_the_chips_is_its_own_part():
    net = Net(3, 8, 8)
    result = quantized(
        net.graph(net.conv("x", (4, 3, 3, 3), out="y")), platform="venus", effort="fast"
    )
    (part,) = split_into_parts(result.graph, result.platform).parts
    assert part.chip
    assert part.graph is result.graph


def test_a_graph_without_integers_is_one_host_part():
    net = Net(3, 8, 8)
    result = quantized(net.graph(net.node("Erf", "x", out="y")), platform="venus", effort="fast")
    parts = split_into_parts(result.graph, result.platform)
    assert [part.name for part in parts.parts] == ["host1"]


def test_a_graph_with_control_flow_in_the_middle():
    model = with_branch()
    result = quantized(model, platform="venus", parts=1, effort="fast")
    parts = same(result, {"x": samples(model, 1)["x"]})
    assert parts.chip
    assert parts.host_parts


@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize("name", ["fsdd_attention", "fsdd_dscnn", "mlperf_tiny_resnet8"])
def test_shared_models(name, platform):
    if not (SHARED / "models" / f"{name}.onnx").is_file():
        pytest.skip("the shared models are not there")
    result = quantize_net(f"shared/{name}", platform)
    feeds = {key: array[:1] for key, array in shared_feeds(name).items()}
    parts = same(result, feeds)
    if result.report.chip_ready:
        assert len(parts.chip) == 1


def test_types_of_indices_stay():
    """An index that the host casts goes to the chip as it is, or the whole lookup stays on the
    host.
    """
    net = Net(5)
    table = net.const(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32))
    index = net.node("Cast", net.node("Abs", "x"), to=TensorProto.INT64)
    result = quantized(
        net.graph(
            net.linear(
                net.node("ReduceMean", net.node("Gather", table, index), axes=[1], keepdims=0),
                (8, 4),
                out="y",
            )
        ),
        platform="venus",
    )
    same(result, {"x": np.array([[1, 3, -2, 1, 0]], np.float32)})


@pytest.mark.parametrize("platform", CHIPS)
def test_numbers_of_the_models_own_stay_with_the_host(platform):
    """A Reshape of int32 that no node of the chip wrote, such as bytes or indices, is no chip part
    of its own.
    """
    net = Net(12)
    net.inputs[0].type.tensor_type.elem_type = TensorProto.INT32
    shape = net.const(np.array([-1, 3, 2, 2]))
    x = net.node("Cast", net.node("Reshape", "x", shape), to=TensorProto.FLOAT)
    model = net.graph(net.conv(net.node("Sin", x), (4, 3, 1, 1), out="y"))
    feeds = {"x": np.random.default_rng(0).integers(-3, 4, (6, 12)).astype(np.int32)}
    parts = same(quantize(model, feeds, platform=platform, effort="fast"), {"x": feeds["x"][:1]})
    assert [part.name for part in parts.parts] == ["host1", "chip1"]


@pytest.mark.parametrize("platform", ["venus", "arcs"])
def test_arguments_are_chosen_once_for_each_part(platform, monkeypatch):
    """The choice that sharing the memory of all takes is the one that parts tell, and no one is
    made again.
    """
    asked = []
    chosen = selection._select_fastest
    monkeypatch.setattr(
        selection,
        "_select_fastest",
        lambda proto, *rest: asked.append(proto) or chosen(proto, *rest),
    )
    monkeypatch.setattr(selection, "_CACHE", ResultCache())
    model = middle()
    result = quantize(model, samples(model, 4), platform=platform, effort="fast")
    assert result.report  # asks for the arguments of each part
    first = len(asked)
    assert first > 0
    parts = split_into_parts(result.platform.with_safe_names(result.graph), result.platform)
    told = [part.choice for part in parts.chip]
    assert len(asked) == first  # the report asked for the same
    assert len(told) > 1
    monkeypatch.setattr(selection, "_CACHE", ResultCache())
    for part, one in zip(parts.chip, told, strict=True):
        again = result.platform.evaluate_packing(part.graph)
        assert (again.argv, again.verdict.findings) == (one.argv, one.verdict.findings)
        assert part.choice_for_arguments(one.argv).verdict.cost == one.verdict.cost
        assert part.choice is one
