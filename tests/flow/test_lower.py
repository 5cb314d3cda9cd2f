"""Lowering: names, borders, attributes, batch, reproducible bytes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine, Plan
from lingeronnx.luna import VENUS
from lingeronnx.quantization.lower import extract_plan, lower
from lingeronnx.quantization.partition import Partition
from lingeronnx.runtime.provenance import map_to_float_names
from lingeronnx.runtime.session import Session
from lingeronnx.targets import GENERIC
from tests import artefacts, nets
from tests.case_selection import mark_rest_slow
from tests.packer.format_checks import needed

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parents[1] / "golden" / "luna"
ROWS = {"venus": VENUS, "generic": GENERIC}


def nodes(graph, op_type):
    return [node for node in graph.graph if node.op_type == op_type]


def inserted(result):
    """Return the tensors and constants of integer nodes that stand on the way to a float node's
    output.
    """
    own = {node.name for node in result.float_graph.graph}
    between = [
        node
        for node in result.graph.graph
        if node.name not in own and node.op_type not in ("Quant", "Dequant", "Requant")
    ]
    return {str(v.name) for node in between for v in (*node.inputs, *node.outputs)}


# ---- law 3: the graph's attributes are the plan ----------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    "settings",
    ({}, {"platform": "generic"}, {"platform": "generic", "mode": "max-value"}),
    ids=("venus", "q", "max"),
)
@pytest.mark.parametrize("net", mark_rest_slow(3, nets.NETS), ids=lambda net: net.__name__)
def test_plan_round_trip(net, settings):
    """Law: the plan read back from the integer graph has the scales it was made with."""
    result = nets.quantized(net(), **settings)
    back = extract_plan(ir.from_proto(ir.to_proto(result.graph)))
    assert back.platform == result.plan.platform
    assert back.mode == result.plan.mode
    assert back.transforms == result.plan.transforms
    missing = result.plan.tensors.keys() - back.tensors.keys()
    inside = {
        v.name
        for node in result.float_graph.graph
        if node.name in result.plan.floats
        for v in node.outputs
    }
    assert missing <= inside  # only what exists in float alone
    for name, q in result.plan.tensors.items():
        if name in back.tensors:
            assert back.tensors[name].bits == q.bits
            assert np.float32(back.tensors[name].scale) == np.float32(q.scale), name
    assert back.tensors.keys() <= result.plan.tensors.keys() | inserted(result)


def test_plan_survives_json():
    """A plan written and read back is the same plan and makes the same file."""
    result = nets.quantized(nets.shortcut())
    again = Plan.from_json(result.plan.to_json())
    assert again == result.plan
    first, second = (
        lower(Partition.build(result.float_graph, plan.floats, VENUS), plan, VENUS).graph
        for plan in (result.plan, again)
    )
    assert ir.to_proto(first).SerializeToString() == ir.to_proto(second).SerializeToString()


# ---- law 1: names ----------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("net", nets.NETS, ids=lambda net: net.__name__)
def test_names(net):
    """Law: inputs, outputs and surviving tensors keep their names; at a border the integer one is
    ``name_q``.
    """
    model = net()
    result = nets.quantized(model, effort="fast")
    given, results = (
        [str(v.name) for v in side] for side in (model.graph.inputs, model.graph.outputs)
    )
    assert [str(v.name) for v in result.graph.graph.inputs] == given
    assert [str(v.name) for v in result.graph.graph.outputs] == results
    known, floats = (
        {str(v.name) for v in ir.iter_values(result.float_graph)},
        map_to_float_names(result.graph),
    )
    for value in ir.iter_values(result.graph):
        assert floats.get(str(value.name), value.name) in known | inserted(result)
    for node in nodes(result.graph, "Quant"):
        assert node.outputs[0].name == f"{node.inputs[0].name}_q"
    for node in nodes(result.graph, "Dequant"):
        assert node.inputs[0].name == f"{node.outputs[0].name}_q"
    assert len({node.name for node in result.graph.graph}) == len(result.graph.graph)


def test_one_quant_and_dequant_per_tensor():
    """A tensor read by integer and float operators has one border, however many readers."""
    net = nets.Net(3, 8, 8)
    a = net.conv("x", (4, 3, 3, 3), out="a")
    for i in range(2):
        net.node("Sin", a, out=f"s{i}")
        net.conv("x", (2, 3, 3, 3), out=f"c{i}")
        net.conv(a, (2, 4, 3, 3), out=f"d{i}")
    graph = nets.quantized(net.graph("s0", "s1", "c0", "c1", "d0", "d1"), effort="fast").graph
    assert [str(n.outputs[0].name) for n in nodes(graph, "Quant")] == ["x_q"]
    assert sorted(str(n.outputs[0].name) for n in nodes(graph, "Dequant")) == [
        "a",
        "c0",
        "c1",
        "d0",
        "d1",
    ]


def test_outputs_in_any_order():
    """Graph outputs in another order than the nodes: each is compared with its own float twin in
    the report.
    """
    net = nets.Net(3, 8, 8, seed=7)
    net.conv(net.conv("x", (4, 3, 3, 3), out="first"), (2, 4, 3, 3), out="second")
    report = nets.quantized(net.graph("second", "first"), effort="fast").report
    assert list(report.outputs) == ["second", "first"]
    assert all(found["sqnr"] > 20 for found in report.outputs.values())


def test_domains_and_opset():
    """Own operators are in ``thinker``, standard ones in the standard domain of opset 12."""
    graph = nets.quantized(nets.branches(), effort="fast").graph
    assert graph.opset_imports == {"": 12, "thinker": 1}
    for node in graph.graph:
        standard = node.op_type in ("Relu", "MaxPool", "Transpose", "Reshape", "Flatten")
        assert node.domain == ("" if standard else "thinker")
    assert graph.metadata_props["lingeronnx.platform"] == "venus"


# ---- attributes ------------------------------------------------------------------------------------------------------


def golden_attributes():
    """Return {op type: the attribute names that its measured graphs have in common}."""
    found = {}
    for file in sorted(GOLDEN.glob("*.onnx")):
        for node in onnx.load(file).graph.node:
            names = {a.name for a in node.attribute}
            found[node.op_type] = found.get(node.op_type, names) & names
    return found


def test_attributes_are_the_measured_ones():
    """Every operator is written with all the attributes of graphs that the packer was seen to
    take.
    """
    golden = golden_attributes()
    golden["iqMul"] -= {"mode"}  # iqAdd's; the vendor's own exports have it there only
    seen = set()
    for net in nets.NETS:
        for node in ir.to_proto(nets.quantized(net(), effort="fast").graph).graph.node:
            names = {a.name for a in node.attribute}
            if node.domain == "thinker":
                required = {*needed(node.op_type, "venus", len(node.input)), "platform_quant"}
                assert names >= golden[node.op_type] | required, node.op_type
                assert names <= golden[node.op_type] | required | {
                    "data_bits",
                    "parameter_bits",
                    "o_bits",
                }, node.op_type
            seen.add(node.op_type)
    assert seen >= {
        "Quant",
        "Dequant",
        "Conv2dInt",
        "LinearInt",
        "iqAdd",
        "iqMul",
        "iqCat",
        "AvgPool2dInt",
        "MaxPool",
    }


def test_bias_is_int32_at_the_product_of_scales():
    """Bias integers are round half up of bias * scale_x * scale_w."""
    result = nets.quantized(nets.plain(), effort="fast")
    floats, pairs = (
        {str(n.outputs[0].name): n for n in result.float_graph.graph},
        map_to_float_names(result.graph),
    )
    for node in (*nodes(result.graph, "Conv2dInt"), *nodes(result.graph, "LinearInt")):
        if node.outputs[0].name in inserted(result):
            continue
        bias = ir.const_value(node.inputs[2])
        real = ir.const_value(
            floats[pairs.get(ir.output_name(node), ir.output_name(node))].inputs[2]
        ).astype(np.float64)
        scale = ir.get_attr(node, "scale_x") * ir.get_attr(node, "scale_w")
        assert bias.dtype == np.int32
        np.testing.assert_array_equal(bias, np.floor(real * scale + 0.5))


def test_huge_bias_saturates():
    """A bias beyond int32 is cut, not wrapped."""
    net = nets.Net(1, 4, 4)
    bias = np.array([1e9, -1e9], np.float32)
    net.node(
        "Conv", "x", net.const(np.full((2, 1, 1, 1), 1e-3, np.float32)), net.const(bias), out="c"
    )
    model = nets.prepared(net.graph("c"))
    plan = Plan(
        "venus", "q-value", tensors={"x": Affine(64.0), "k0": Affine(2.0**16), "c": Affine(0.125)}
    )
    (conv,) = nodes(
        lower(Partition.build(model, plan.floats, VENUS), plan, VENUS).graph, "Conv2dInt"
    )
    np.testing.assert_array_equal(ir.const_value(conv.inputs[2]), [2**31 - 1, -(2**31)])


# ---- batch -----------------------------------------------------------------------------------------------------------


def test_batch():
    """A chip's graph has batch 1 in every shape, generic keeps the axis open; a Session takes any
    batch of both.
    """
    for platform in ROWS:
        graph = nets.quantized(nets.branches(), platform=platform, effort="fast").graph
        firsts = {ir.get_shape(v)[0] for v in ir.iter_values(graph) if ir.get_shape(v)}
        assert firsts == ({1} if platform == "venus" else {None})
        x = nets.samples(nets.branches(), 5)
        assert [len(a) for a in Session(graph).run(None, x)] == [5, 5]
        targets = [ir.const_value(n.inputs[1]) for n in nodes(graph, "Reshape")]
        assert all(t[0] == (1 if platform == "venus" else -1) for t in targets)


# ---- other scales, wrong plans ---------------------------------------------------------------------------------------


def two_convs():
    net = nets.Net(3, 8, 8, seed=4)
    net.conv(net.conv("x", (4, 3, 3, 3), out="c"), (4, 4, 3, 3), out="y")
    return net.graph("y")


def test_a_plan_without_a_tensor():
    """A plan made for another model: the error names the tensor."""
    result = nets.quantized(two_convs(), effort="fast")
    less = result.plan.with_tensors({k: v for k, v in result.plan.tensors.items() if k != "c"})
    with pytest.raises(
        ModelError, match="the plan has no scale for tensor 'c'; it was made for another model"
    ):
        lower(Partition.build(result.float_graph, less.floats, VENUS), less, VENUS)


def test_the_float_graph_is_left_alone():
    """Lowering twice gives the same; the float graph has not changed."""
    result = nets.quantized(nets.depthwise(), effort="fast")
    before = ir.to_proto(result.float_graph).SerializeToString()
    first, second = (
        ir.to_proto(
            lower(
                Partition.build(result.float_graph, result.plan.floats, VENUS), result.plan, VENUS
            ).graph
        )
        for _ in range(2)
    )
    assert first.SerializeToString() == second.SerializeToString()
    assert ir.to_proto(result.float_graph).SerializeToString() == before


# ---- law 5: reproducible ---------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from tests import nets
nets.quantized(nets.shortcut()).save(sys.argv[1])
"""


@pytest.mark.slow
def test_two_processes_give_the_same_bytes(tmp_path):
    """Law: same model, same data, same configuration, same bytes, whatever the hash seed of the
    process.
    """
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "there.onnx")],
        check=True,
        cwd=ROOT,
        env=environment,
    )
    nets.quantized(nets.shortcut()).save(tmp_path / "here.onnx")
    assert (tmp_path / "here.onnx").read_bytes() == (tmp_path / "there.onnx").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("batch", (1, 5, 24))
def test_calibration_batch_does_not_matter(batch):
    """Law: the batch size of the calibration changes nothing."""
    plans = [
        artefacts.quantized(nets.depthwise(), "venus", batch=size).plan for size in (batch, 32)
    ]
    assert plans[0].tensors == plans[1].tensors
    assert plans[0].transforms == plans[1].transforms
