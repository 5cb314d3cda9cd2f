"""The verdict, the arguments and the cost on graphs of our own; the measured rows are judged in
test_rows.
"""

import collections
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.luna.arguments.selection import select_fastest_arguments
from lingeronnx.luna.evaluation import (
    NodeLimitChecker,
    evaluate_graph,
    evaluate_known_graph,
    evaluate_plan,
    prepare_graph,
)
from lingeronnx.luna.packer import correctness_checks
from lingeronnx.luna.packer.frontend import steps as frontend
from lingeronnx.luna.packer.frontend.steps import parse_nodes
from lingeronnx.luna.packer.memory import graph_facts
from lingeronnx.luna.packer.memory.plan import plan_memory
from lingeronnx.luna.packer.options import PSRAM, SHARE, parse_packer_arguments
from lingeronnx.luna.packer.packer_graph import PackerGraph, PackerStep, PackerTensor
from lingeronnx.luna.packer_profile import get_packer_profile
from lingeronnx.targets import get_target, get_versions
from tests import nets
from tests.packability import stress
from tests.packer import judge as oracle
from tests.targets.luna.packer.integer_nets import IntNet

MODEL = Path(__file__).resolve().parents[4] / "models" / "digits_cnn.onnx"
CHIPS = ("venus", "arcs", "venusA")


@pytest.fixture(scope="module", params=CHIPS)
def packed(request, tmp_path_factory):
    """Return (protobuf of the digits' net as it is written, row)."""
    path = tmp_path_factory.mktemp("packed") / "net.onnx"
    lo.quantize(MODEL, platform=request.param, effort="fast").save(path)
    return onnx.load(path), get_target(request.param)


def changed(proto, change):
    """Return a copy of `proto` after `change`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    change(copy.graph)
    return copy


def test_what_is_written_packs_and_is_right(packed):
    """With the arguments that are chosen, and the limits of the plan hold."""
    choice = select_fastest_arguments(*packed)
    assert choice.verdict.is_chip_ready
    assert not choice.verdict.findings
    assert choice.argv[:4] == ("-p", get_packer_profile(packed[1]).name, "-d", "False")
    memory = choice.verdict.memory_plan
    assert 0 < memory.shared <= memory.limit_bytes
    for name, spot in memory.allocations.items():  # no two that are alive together overlap
        for other, place in memory.allocations.items():
            together = (
                spot.memory == place.memory
                and spot.first_step <= place.last_step
                and place.first_step <= spot.last_step
            )
            if name < other and together and spot.offset != place.offset:
                assert (
                    spot.offset + spot.size <= place.offset
                    or place.offset + place.size <= spot.offset
                )


@pytest.mark.parametrize("args", ("", "--dma_prefetch False", "--threshold4 1"))
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", (1, 4, 8))
def test_the_plan_is_the_oracle_s(seed, chip, args):
    """Everything starts where the other planner of the tests has it; averages reshape in place."""
    model = stress(seed)
    result = lo.quantize(model, nets.samples(model, 4), platform=chip, effort="fast")
    proto = ir.to_proto(result.graph if result.chip is None else result.chip)
    words = ["-d", "False", "-p", chip.lower(), *args.split()]
    other = oracle(proto, chip, words)
    assert other.packs
    spots = evaluate_graph(proto, get_target(chip), words).memory_plan.allocations
    named = {
        name.replace("#dma-buffer", "prefetch ").replace("#workspace-", "workspace "): s
        for name, s in spots.items()
    }
    assert {name: spot.offset for name, spot in named.items()} == other.offsets


def test_cost_adds_up(packed):
    """The totals are those of the layers; the multiply-accumulates those of the float net and no
    fewer.
    """
    cost = select_fastest_arguments(*packed).verdict.cost
    assert sum(cost.macs.values()) == sum(layer.macs for layer in cost.layers) > 0
    assert cost.weights == sum(layer.weights for layer in cost.layers)
    assert cost.to_dict()["shared"] == cost.shared


def _at(graph):
    graph.input[0].name = "in@put"
    for node in graph.node:
        node.input[:] = ["in@put" if n == graph.node[0].input[0] else n for n in node.input]


def _reversed(graph):
    nodes = list(graph.node)[::-1]
    del graph.node[:]
    graph.node.extend(nodes)


def _without(name):
    def change(graph):
        node = next(n for n in graph.node if n.op_type == "Conv2dInt")
        for attribute in [a for a in node.attribute if a.name == name]:
            node.attribute.remove(attribute)

    return change


@pytest.mark.parametrize("change", (_at, _reversed, _without("o_bits"), _without("scale_w")))
def test_what_the_packer_refuses(packed, change):
    """Each in one sentence with a remedy."""
    proto, row = packed
    found = evaluate_graph(changed(proto, change), row, ["-p", get_packer_profile(row).name])
    assert not found.is_packable
    assert not found.is_correct
    assert all(f.rule and f.value and f.remedy for f in found.findings)


def test_arguments_that_are_refused(packed):
    """A place that does not exist, another chip, and too little memory; an option that does not
    exist is ours.
    """
    proto, row = packed
    assert not evaluate_graph(proto, row, "-m a:nowhere").is_packable
    assert not evaluate_graph(proto, row, ["-p", "mars"]).is_packable
    assert not evaluate_graph(proto, row, "-r 1000").is_packable
    with pytest.raises(ConfigError, match="unknown packer argument '--nonsense'"):
        evaluate_graph(proto, row, "--nonsense 1")
    with pytest.raises(ConfigError, match="has no packer"):
        evaluate_graph(proto, get_target("generic"))


def test_parse():
    """Words and a line are the same; a place may be in any case."""
    line = "tpacker -g net.onnx -p venus -m t1:PSRAM,params:share-mem --threshold4 7"
    line += " --dma_prefetch False -r 9 -c N=2:1:1"
    found = parse_packer_arguments(line)
    assert found.placements == {"t1": PSRAM}
    assert (
        found.constant_memory,
        found.thresholds[3],
        found.prefetch,
        found.shared_memory_limit,
    ) == (
        SHARE,
        7,
        False,
        9,
    )
    assert found.symbol_sizes == {"N": 2}
    assert parse_packer_arguments(["-p", "venus"]) == parse_packer_arguments("-p venus")


def test_check_of_a_file(packed, tmp_path):
    """`check` says the same, with arguments and without."""
    ir_path = tmp_path / "net.onnx"
    onnx.save(packed[0], ir_path)
    assert lo.check(ir_path).sound
    assert not lo.check(ir_path, packer_args=["-r", "1000"]).packs
    assert lo.check(ir.load(ir_path)).runs_right


@pytest.mark.parametrize(
    "line", ("", "-m params:share-mem", "--threshold4 1", "--dma_prefetch False")
)
def test_a_plan_below_a_number_of_bytes(packed, line):
    """It is the plan that is made without it where that needs fewer bytes, and none where it needs
    as many.
    """
    proto, row = packed
    options = parse_packer_arguments(line)
    facts = prepare_graph(proto, row, options).facts
    plan = plan_memory(facts, options)
    assert plan_memory(facts, options, plan.required_bytes + 1) == plan
    for below in (plan.required_bytes, plan.required_bytes - 1, plan.required_bytes // 2, 0):
        assert plan_memory(facts, options, below) is None


def test_plans_of_one_graph_share_its_facts(packed, monkeypatch):
    """Of many plans and verdicts, each fact is computed once: the sizes of constants, what does not
    depend on memories, and the work area of a step for each placement of its tensors.
    """
    proto, row = packed
    counts = collections.Counter()

    def count(name, function):
        """Return `function` with its calls counted under `name`."""

        def count_call(*args):
            counts[name] += 1
            return function(*args)

        return count_call

    for module, name in (
        (graph_facts, "compute_stored_sizes"),
        (graph_facts, "get_work_area"),
        (correctness_checks, "_check_operator"),
    ):
        monkeypatch.setattr(module, name, count(name, getattr(module, name)))
    options = parse_packer_arguments("")
    prepared = prepare_graph(proto, row, options)
    steps = prepared.net.steps
    verdict = evaluate_plan(prepared, row, options)
    first = dict(counts)
    assert first["compute_stored_sizes"] == 1
    assert 0 < first["get_work_area"] <= len(steps)
    assert first["_check_operator"] == len(steps)
    for _ in range(3):
        assert evaluate_plan(prepared, row, options) == verdict
    assert counts == first
    moved = steps[0].outputs[0]
    evaluate_plan(prepared, row, replace(options, placements={moved: PSRAM}))
    users = sum(moved in (*step.inputs, *step.outputs) for step in steps)
    assert counts["get_work_area"] - first["get_work_area"] <= users < len(steps)
    assert {**counts, "get_work_area": 0} == {**first, "get_work_area": 0}


def sliced(steps):
    """Return a net that is one Slice of a tensor [1, 8, 8] with these constant steps."""
    arrays = {
        name: np.array(values, np.int64)
        for name, values in (("s", [0]), ("e", [8]), ("a", [1]), ("t", steps))
    }
    tensors = {name: PackerTensor(name, array.shape, 8, True) for name, array in arrays.items()}
    tensors |= {"x": PackerTensor("x", (1, 8, 8)), "y": PackerTensor("y", (1, 8 // steps[0], 8))}
    step = PackerStep("Slice", f"cut{steps}", ("x", *arrays), ("y",), origin=f"cut{steps}")
    return PackerGraph([step], ["x"], ["y"], tensors, arrays)


def test_limits_are_asked_once_for_nodes_that_are_alike(monkeypatch):
    """Shapes, attributes and constants tell them apart, names do not; what is broken is told of
    each node.
    """
    limits = NodeLimitChecker(get_target("venus"))
    asked = []
    ask = NodeLimitChecker._evaluate_limits
    monkeypatch.setattr(
        NodeLimitChecker,
        "_evaluate_limits",
        lambda self, node: asked.append(node.name) or ask(self, node),
    )
    seen = []
    for steps in ([2], [1], [2], [4], [1]):
        net = sliced(steps)
        net.steps[0] = net.steps[0].with_changes(origin=f"node{len(seen)}")
        seen.append([(f.node, f.value) for f in limits.find_violations(net, net.steps[0])])
    assert seen == [[("node0", "step 2")], [], [("node2", "step 2")], [("node3", "step 4")], []]
    assert asked == ["cut[2]", "cut[1]", "cut[4]"]


def test_limits_are_asked_once_for_other_weights_of_the_same_layer(packed, monkeypatch):
    """No limit depends on the values of weights; other shapes are asked about again."""
    proto, target = packed
    asked = []
    monkeypatch.setattr(
        NodeLimitChecker, "_evaluate_limits", lambda self, node: asked.append(node.name) or []
    )
    options = parse_packer_arguments(f"-p {get_packer_profile(target).name}")
    limits = NodeLimitChecker(target)
    prepare_graph(proto, target, options, limits)
    assert asked
    asked.clear()

    def negate_weights(graph):
        for tensor in graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype == np.int8:
                tensor.CopyFrom(onnx.numpy_helper.from_array(~array, tensor.name))

    prepare_graph(changed(proto, negate_weights), target, options, limits)
    assert not asked


@pytest.mark.parametrize("op", ("MaxPool", "AvgPool2dInt"))
@pytest.mark.parametrize("chip", ("arcs", "venusA"))
@pytest.mark.parametrize("stride", (1, 2))
def test_pools_whose_axes_are_swapped(op, chip, stride):
    """Measured right with stride 1; with a larger one it never was, and both judges take what
    convolutions showed.
    """
    channels, width = (8, 1000) if chip == "arcs" else (64, 360)
    net = IntNet(chip, (1, channels, 4, width))
    sides = {"kernel_shape": [3, 3], "strides": [stride] * 2, "pads": [0] * 4, "ceil_mode": 0}
    scales = (
        {} if op == "MaxPool" else {"scale_x": 16.0, "scale_o": 16.0, "data_bits": 8, "o_bits": 8}
    )
    out = (1, channels, (4 - 3) // stride + 1, (width - 3) // stride + 1)
    model = net.model(net.batch_norm(net.node(op, ["xq"], "p", out, 16.0, **sides, **scales), "y"))
    rules = {
        finding.rule.partition(",")[0]
        for finding in evaluate_graph(model, get_target(chip)).findings
    }
    swapped = "with a stride above 1" in rules
    told = oracle(model, chip, ["-p", chip.lower(), "-d", "False"]).problems
    assert swapped == any("rows and columns are exchanged" in text for text in told) == (stride > 1)


def test_a_graph_is_read_once_for_all_versions(packed, monkeypatch):
    """Versions share the file, and their verdicts are those of a file read for each."""
    read = []
    parse = frontend.parse_nodes
    monkeypatch.setattr(frontend, "parse_nodes", lambda graph: read.append(graph) or parse(graph))
    proto = changed(packed[0], lambda graph: setattr(graph, "name", "read once"))
    argv = select_fastest_arguments(proto, packed[1]).argv
    for version in get_versions(packed[1]):
        verdict = evaluate_known_graph(proto, version, argv)
        assert len(read) == 1
        with monkeypatch.context() as patch:
            patch.setattr(frontend, "parse_nodes", parse)
            assert verdict == evaluate_graph(proto, version, argv)


def test_attributes_of_a_step():
    """Texts are texts, in lists too; what is no number, text, list, tensor or graph is left out."""
    node = onnx.helper.make_node(
        "Relu", ["x"], ["y"], texts=["a", "é"], text="b", sizes=[1, 2], scale=0.5
    )
    node.attribute.append(
        onnx.helper.make_attribute("kind", onnx.helper.make_tensor_type_proto(1, [1]))
    )
    node.attribute.add(name="nothing")
    (step,) = parse_nodes(onnx.helper.make_graph([node], "g", [], []))
    assert dict(step.attributes) == {
        "texts": ["a", "é"],
        "text": "b",
        "sizes": [1, 2],
        "scale": 0.5,
    }
    ir.make_node(step.op, [], step.attributes, output="y")


@pytest.mark.parametrize(("rows", "packs"), [(1, True), (3, False)])
def test_a_reshape_keeps_the_number_of_elements(rows, packs):
    """Several rows are not seen as one, as where a tensor between parts has frames in the place of
    a batch.
    """
    net = IntNet("arcs", (rows, 32))
    shape = net.const(np.array([1, 32, 1, 1], np.int64))
    image = net.node("Reshape", ["xq", shape], "image", (1, 32, 1, 1), 16.0)
    said = evaluate_graph(net.model(net.conv(image, 8, 1, "y")), get_target("arcs"), ["-p", "arcs"])
    assert said.is_packable == packs
    assert packs or said.findings[0].value == (
        f"the input has {32 * rows} elements, the target shape 32"
    )


def test_a_window_fits_the_axes_of_its_map():
    """A window that nothing can be said of is refused, and not taken for one without a fault."""
    net = IntNet("arcs", (6, 8))
    sides = {"kernel_shape": [2, 2], "strides": [1, 1], "pads": [0] * 4, "ceil_mode": 0}
    pooled = net.node("MaxPool", ["xq"], "p", (6, 8), 16.0, **sides)
    said = evaluate_graph(net.model(net.linear(pooled, 4, "y")), get_target("arcs"), ["-p", "arcs"])
    assert not said.is_packable
    assert [finding.value for finding in said.findings] == ["a 2-D window, an input of rank 2"]


def test_tensors_without_an_element_are_refused():
    """A graph that computes nothing has no time either."""
    net = IntNet("arcs", (1, 6, 8))
    bounds = [net.const(np.array([number], np.int64)) for number in (0, 0, 1)]
    none = net.node("Slice", ["xq", *bounds], "none", (1, 0, 8), 16.0)
    said = evaluate_graph(net.model(net.linear(none, 4, "y")), get_target("arcs"), ["-p", "arcs"])
    assert not said.is_packable
    assert "'none' of shape [1, 0, 8]" in [finding.value for finding in said.findings]
