"""What breaks a platform's limits: float graphs before and after --fit, integer graphs as they are."""

import dataclasses
import itertools
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.analysis.check import rules
from lingeronnx.analysis.check.integer_graph import check_integer
from lingeronnx.formats import FORMATS
from lingeronnx.graph import ir
from lingeronnx.ops import rule_text
from lingeronnx.targets import PLATFORMS
from lingeronnx.targets.luna import ARCS, VENUS
from lingeronnx.targets.luna.faults import Fault
from lingeronnx.targets.luna.finish.form import REMEDIED
from lingeronnx.targets.luna.met import _MEETS
from tests import nets

GOLDEN = Path(__file__).parents[1] / "golden" / "luna"


def small():
    """Conv, Relu, a strided 1x1 shortcut (which --fit mends), Add, average, Linear."""
    net = nets.Net(4, 8, 8, seed=3)
    a = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    b = net.conv(a, (8, 8, 3, 3), pads=[1] * 4, strides=[2, 2])
    c = net.conv(a, (8, 8, 1, 1), strides=[2, 2], out="short")
    s = net.node("Relu", net.node("Add", b, c))
    pooled = net.node("AveragePool", s, kernel_shape=[2, 2], strides=[2, 2])
    return net.graph(net.linear(net.node("Flatten", pooled), (32, 5), out="y"))


def quantized():
    """Return `small`'s integer graph for venus as protobuf."""
    x = np.random.default_rng(0).standard_normal((16, 4, 8, 8)).astype(np.float32)
    return ir.to_proto(lo.quantize(small(), x, effort="fast").graph)


@pytest.fixture(scope="module")
def integer():
    """The bytes of an integer graph."""
    return quantized().SerializeToString()


def test_float_graph_says_what_fit_would_do():
    found = lo.check(small())
    (violation,) = found
    assert (violation.node, violation.tensor, violation.value) == ("Conv_short", "short", "stride 2 > kernel 1")
    assert [f.node for f in found.fitted] == ["Conv_short"]
    assert found.remaining == []
    assert "with --fit nothing would remain" in found.lines()
    assert [m.fault for m in found.faults] == ["avgpool-scale"]


def test_float_graph_with_nothing_wrong():
    found = lo.check(nets.plain())
    assert len(found) == 0
    assert found.lines()[0] == "nothing breaks a limit of venus"
    assert len(lo.check(small(), platform="generic")) == 0


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_what_another_tool_quantized_is_judged_as_its_float_model(form):
    """The operators that hold integers are none of the model's: the verdict is that on the float model."""
    x = np.random.default_rng(0).standard_normal((16, 4, 8, 8)).astype(np.float32)
    held = lo.convert(lo.quantize(small(), x, platform="generic", effort="fast").graph, form).graph
    found, wanted = lo.check(held, platform="venus"), lo.check(small(), platform="venus")
    assert found.verdict == wanted.verdict
    assert [f.op_type for f in found.host_part] == [f.op_type for f in wanted.host_part]
    assert any("already (QuantizeLinear): judged is the float model" in note for note in found.notes)


def test_all_violations_of_a_node_and_islands():
    net = nets.Net(4, 20, 20, seed=3)
    a = net.conv("x", (8, 4, 6, 3), strides=[3, 1], pads=[0, 5, 0, 0], out="a")
    b = net.node("Relu", a, out="b")
    found = lo.check(net.graph(net.node("Softmax", net.conv(b, (4, 8, 3, 3), out="c"), out="y")), platform="venus")
    assert [v.node for v in found][:3] == ["Conv_a"] * 3
    assert {v.value for v in found if v.node == "Conv_a"} == {"6x3", "3", "pads [0, 5, 0, 0]"}


def test_a_float_island_is_a_violation():
    net = nets.Net(4, 8, 8, seed=3)
    a = net.conv("x", (4, 4, 3, 3), out="a")
    found = lo.check(
        net.graph(net.conv(net.node("Mod", a, net.const(np.float32(3)), out="b", fmod=1), (4, 4, 3, 3), out="y"))
    )
    reason = "Mod has no integer form: it stays in float between integer operators"
    assert [(v.node, v.rule) for v in found] == [("Mod_b", reason)]
    assert "--fit can change none of it" in found.lines()


def test_the_model_is_left_as_it_is():
    model = small()
    before = ir.to_proto(model).SerializeToString()
    lo.check(model)
    assert ir.to_proto(model).SerializeToString() == before


# ---- integer graphs --------------------------------------------------------------------------------------------------


def test_what_quantize_writes_is_clean(integer):
    assert list(lo.check(ir.from_proto(onnx.ModelProto.FromString(integer)))) == []


def attr(op_type, name, value, which=0):
    """Return a change that sets (None: deletes) an attribute."""

    def change(proto):
        node = [n for n in proto.graph.node if n.op_type == op_type][which]
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept + ([] if value is None else [onnx.helper.make_attribute(name, value)]))

    return change


def rename(op_type, new, domain="thinker"):
    def change(proto):
        node = next(n for n in proto.graph.node if n.op_type == op_type)
        node.op_type, node.domain = new, domain

    return change


def int16_bias(proto):
    node = next(n for n in proto.graph.node if n.op_type == "LinearInt")
    old = next(t for t in proto.graph.initializer if t.name == node.input[2])
    old.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(old).astype(np.int16), old.name))


def two_samples(proto):
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    for value in proto.graph.value_info:
        value.type.tensor_type.shape.dim[0].dim_value = 2


def float_between(proto):
    """A Dequant, an Erf and a Quant in the middle."""
    index, node = next((i, n) for i, n in enumerate(proto.graph.node) if n.op_type == "Relu")
    made = [
        onnx.helper.make_node("Dequant", [node.input[0]], ["d"], "dq", domain="thinker", scale_o=16.0),
        onnx.helper.make_node("Erf", ["d"], ["e"], "erf"),
        onnx.helper.make_node("Quant", ["e"], ["q"], "qu", domain="thinker", scale_x=16.0),
    ]
    node.input[0] = "q"
    nodes = [*proto.graph.node[:index], *made, *proto.graph.node[index:]]
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)


CHANGES = {
    "powers_of_two": (attr("Quant", "scale_x", 12.0), "scale_x = 12"),
    "agreement": (attr("LinearInt", "scale_x", 2.0**-3), "read at 0.125"),
    "right_shift": (attr("LinearInt", "scale_o", 2.0**20), "scale_o = 2^20, at most"),
    "average_scale": (attr("AvgPool2dInt", "scale_o", 2.0**-3), "scale_o = 0.125"),
    "byte_results": (attr("Conv2dInt", "o_bits", 16), "o_bits = 16"),
    "bias_type": (int16_bias, "int16"),
    "single_sample": (two_samples, "batch 2"),
    "runs_right": (rename("Relu", "Clip", ""), "Clip does not load"),
    "chip_name": (attr("Conv2dInt", "platform", "arcs"), "arcs"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_integer_rules(integer, name):
    """Each rule finds the graph that breaks it, with its text, value and remedy."""
    change, value = CHANGES[name]
    proto = onnx.ModelProto.FromString(integer)
    change(proto)
    rule, remedy = rule_text(getattr(rules, name), VENUS)
    found = [v for v in lo.check(ir.from_proto(proto), platform="venus") if v.rule == rule]
    assert found
    assert value in found[0].value
    assert found[0].remedy == remedy


OTHERS = [
    (attr("Conv2dInt", "scale_w", None), "attribute scale_w is there; here it is missing"),
    (attr("Conv2dInt", "platform_quant", None), "attribute platform_quant (luna_quant) is there"),
    (rename("iqAdd", "iqMystery"), "unknown operator iqMystery"),
    (rename("Relu", "Erf", ""), "a float operator reads real numbers; here it reads the integers"),
    (attr("Conv2dInt", "kernel_shape", [7, 3]), "kernel sides are at most 5"),
    (attr("Quant", "scale_x", -1.0), "attributes have values that make sense"),
    (float_between, "no float operator stands between the first Quant and the last Dequant; here Erf does"),
]


@pytest.mark.parametrize("change, text", OTHERS)
def test_integer_graphs(integer, change, text):
    proto = onnx.ModelProto.FromString(integer)
    change(proto)
    assert any(text in line for line in lo.check(ir.from_proto(proto)).lines())


def test_sizes_are_found_without_value_info(integer):
    """The packer's limits need the sizes of tensors, which vendor graphs do not state."""
    proto = onnx.ModelProto.FromString(integer)
    del proto.graph.value_info[:]
    for dim, size in zip(proto.graph.input[0].type.tensor_type.shape.dim, (1, 4, 8000, 8000), strict=True):
        dim.dim_value = size
    attr("AvgPool2dInt", "kernel_shape", [2, 2])(proto)
    found = lo.check(ir.from_proto(proto))
    assert any("bytes" in v.value for v in [*found, *found.findings])


def test_every_rule_can_be_read():
    for target in [target for target in PLATFORMS if target.packs]:
        for rule in rules.RULES:
            text, remedy = rule_text(rule, target)
            assert text
            assert remedy
            assert not {"{", "|"} & set(text + remedy)


def one(op_type, platform, **attributes):
    """Return an integer graph of one node between a Quant and a Dequant."""
    quants = [
        onnx.helper.make_node(
            "Quant",
            [f"x{i}"],
            [f"q{i}"],
            f"quant{i}",
            domain="thinker",
            data_bits=bits,
            scale_x=scale,
            platform=platform,
        )
        for i, (scale, bits) in enumerate(attributes.pop("inputs"))
    ]
    node = onnx.helper.make_node(
        op_type,
        [f"q{i}" for i in range(len(quants))],
        ["y_q"],
        "node",
        domain="thinker",
        platform_quant="luna_quant",
        quant_mode="floor_add",
        platform=platform,
        **attributes,
    )
    last = onnx.helper.make_node(
        "Dequant", ["y_q"], ["y"], "dequant", domain="thinker", scale_o=attributes.get("scale_o", 128.0)
    )
    given = [onnx.helper.make_tensor_value_info(f"x{i}", 1, [1, 4]) for i in range(len(quants))]
    graph = onnx.helper.make_graph(
        [*quants, node, last], "g", given, [onnx.helper.make_tensor_value_info("y", 1, [1, 4])]
    )
    opsets = [onnx.helper.make_opsetid("", 12), onnx.helper.make_opsetid("thinker", 1)]
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=6))


@pytest.mark.parametrize(
    "model, platform, values",
    [
        (one("iqSigmoid", "venus", inputs=[(2048.0, 16)], scale_x=2048.0, scale_o=128.0), "venus", []),
        (one("iqSigmoid", "venus", inputs=[(256.0, 16)], scale_x=256.0, scale_o=128.0), "venus", ["scale_x = 256"]),
        (
            one("iqSigmoid", "venusA", inputs=[(16.0, 8)], scale_x=16.0, scale_o=128.0),
            "venusA",
            [Fault.LUT_CONSTANT.text],
        ),
        (one("iqDiv", "arcs", inputs=[(16.0, 32)] * 2, scale_x=16.0, scale_y=16.0, scale_o=4.0), "arcs", []),
        (
            one("iqDiv", "arcs", inputs=[(16.0, 32), (2.0, 32)], scale_x=16.0, scale_y=2.0, scale_o=4.0),
            "arcs",
            ["a shift of -1"],
        ),
        (
            one("iqDiv", "venusA", inputs=[(16.0, 32)] * 2, scale_x=16.0, scale_y=16.0, scale_o=4.0),
            "venusA",
            ["a shift of 2"],
        ),
    ],
)
def test_faults_that_scales_bring_about(model, platform, values):
    texts = [rule_text(r, target)[0] for r in (rules.curve_scale, rules.division_scale) for target in PLATFORMS]
    assert [v.value for v in lo.check(model, platform=platform) if v.rule in texts] == values


def test_the_faults_known_here_are_some_rows():
    known = {fault for target in PLATFORMS for fault in target.faults}
    assert set(Fault) == known
    limits = {
        Fault.AVGPOOL_AREA,
        Fault.DEPTHWISE_MULTIPLIER,
        Fault.BATCH,
    }  # told by a constraint, or kept by every graph written
    assert known <= {*_MEETS, *limits, *REMEDIED}, "say in luna/met.py which nodes meet the new fault"


# ---- the command -----------------------------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(cli.main, ["check", *map(str, args)])


def test_command(tmp_path, integer):
    ir.save(small(), tmp_path / "small.onnx")
    (tmp_path / "good.onnx").write_bytes(integer)
    bad = run(tmp_path / "small.onnx", "-o", tmp_path / "out")
    assert bad.exit_code == 1
    verdict, first = bad.stdout.splitlines()[:2]
    assert verdict == "venus: 1 limit is broken at 1 node; --fit, the default of quantize, mends it"
    assert first.startswith("Conv Conv_short -> short: a stride is not larger than the kernel")
    assert (tmp_path / "out" / "check.txt").read_text() == bad.stdout
    body = json.loads((tmp_path / "out" / "check.json").read_text())
    assert body["violations"][0]["node"] == "Conv_short"
    assert body["remaining"] == []
    shown = run(tmp_path / "small.onnx", "--json")
    assert (shown.exit_code, json.loads(shown.stdout), shown.stderr) == (1, body, bad.stdout)
    good = run(tmp_path / "good.onnx")
    first, packed, cost, head, *layers = good.stdout.splitlines()
    assert (good.exit_code, first) == (0, "nothing breaks a limit of venus")
    assert packed == "packed with -p venus -d False: it packs and is right"
    assert cost == "cost on the chip:"
    assert head.split()[:3] == ["layer", "operator", "MACs"]
    assert [line.split()[1] for line in layers if "Int " in line] == ["Conv2dInt"] * 3 + ["AvgPool2dInt", "LinearInt"]
    assert any(line.split()[:1] == ["total"] for line in layers)
    moved = run(tmp_path / "good.onnx", "--packer-args", "-p venus -r 100")
    assert moved.exit_code == 1
    assert "the packer refuses: shared memory: at most 100 bytes are needed" in moved.stdout
    assert "packed with -p venus -r 100: it does not pack" in moved.stdout.splitlines()


def test_a_float_model_is_priced_before_calibration():
    """The same packing, memory and cost as the integer graph has afterwards."""
    model = small()
    ahead = lo.check(model, platform="arcs")
    made = nets.quantized(model, platform="arcs", effort="fast").report
    assert (ahead.packs, ahead.runs_right) == (True, True)
    assert ahead.choice.line == made.packer_args
    assert ahead.cost == made.cost
    assert "packed with -p arcs -d False, before calibration: it packs and is right" in ahead.lines()


@pytest.mark.parametrize("target", [target for target in PLATFORMS if target.packs], ids=lambda target: target.name)
def test_what_is_foretold_of_the_digits_comes_true(target):
    """ReLU6, which saturation makes, packs; of the average, which has a scale of its own, no fault is told."""
    path = Path(__file__).resolve().parents[2] / "models" / "digits_cnn.onnx"
    ahead, made = lo.check(path, platform=target), lo.quantize(path, platform=target, effort="fast").report
    assert (ahead.packs, ahead.runs_right) == (True, True)
    assert (ahead.choice.line, ahead.cost) == (made.packer_args, made.cost)
    assert "clip" in {met.fault for met in ahead.faults}
    assert not {met.fault for met in ahead.faults} & {Fault.AVGPOOL_SCALE.key, Fault.AVGPOOL_GLOBAL.key}


def test_a_float_model_that_does_not_fit_says_which_layers_and_what_helps():
    net = nets.Net(8, 20, 20, seed=3)
    flat = net.node("Flatten", net.conv("x", (80, 8, 1, 1)))
    target = dataclasses.replace(ARCS, shared_memory=31000)
    found = lo.check(net.graph(net.linear(flat, (32000, 2), out="y")), platform=target)
    (finding,) = found.findings
    assert not found.sound
    assert finding.rule == "at most 31000 bytes are needed"
    assert re.search(r"\d+ bytes; \d+ at \S+ \(\S+ \d+", finding.value)
    assert "venus (655360 bytes)" in finding.remedy
    assert "packed with -p arcs -d False, before calibration: it does not pack" in found.lines()


def test_no_price_across_float_nodes():
    net = nets.Net(4, 8, 8, seed=3)
    a = net.node("Mod", net.conv("x", (4, 4, 3, 3)), net.const(np.float32(3)), fmod=1)
    found = lo.check(net.graph(net.conv(a, (4, 4, 3, 3), out="y")))
    assert found.cost is None
    assert "cost: unknown, as float nodes stand between the integer ones" in found.lines()


def test_command_mistakes(tmp_path):
    gone = run(tmp_path / "gone.onnx")
    assert (gone.exit_code, gone.stderr.count("\n")) == (1, 1)
    ir.save(small(), tmp_path / "small.onnx")
    assert "unknown platform 'venu'" in run(tmp_path / "small.onnx", "--platform", "venu").stderr
    (tmp_path / "file").write_text("")
    assert "cannot make the folder" in run(tmp_path / "small.onnx", "-o", tmp_path / "file").stderr


# ---- measured faults -------------------------------------------------------------------------------------------------


def test_every_measured_fault_is_reported():
    """Law: a graph whose vector was found wrong on the executor is never called clean."""
    cases = json.loads((GOLDEN / "index.json").read_text())["cases"]
    faulty = [case for case in cases if case.get("executor_fault")]
    assert faulty
    for case in faulty:
        assert len(lo.check(GOLDEN / f"{case['name']}.onnx", platform=case["platform"])), case["name"]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_half_a_node_is_judged(form):
    """A node that lacks inputs or sizes, or has a number where a list belongs, is no crash of the check."""
    scalars = {"f": 1.0, "i": 1, "s": ""}
    needed = {a.name: scalars.get(a.kind, [1, 1]) for a in form.attributes if a.required}
    numbers = {a.name: 3 for a in form.attributes if a.kind == "ints"}
    for attrs, shape, count in itertools.product(
        (needed, {**needed, **numbers}), (None, [], [1], [1, 4], [1, 2, 6, 6], ["N", "C", "H", "W"]), range(4)
    ):
        values = [helper.make_tensor_value_info(f"x{i}", TensorProto.INT8, shape) for i in range(count)]
        node = helper.make_node(form.name, [v.name for v in values], ["y"], name="n", domain=form.domain, **attrs)
        graph = helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name="y")])
        opsets = [helper.make_opsetid("", 12), helper.make_opsetid("thinker", 1)]
        model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=7))
        for target in PLATFORMS:
            assert check_integer(model, target).kind == "integer"
