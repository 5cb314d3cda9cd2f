"""A graph as quantizing left it is not called broken; one that was changed since is looked at."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import DataError
from lingeronnx.ir import ir
from lingeronnx.ir.digests import compute_output_digest
from lingeronnx.ir.name_mapping import format_node_label, get_module_name
from lingeronnx.runtime.provenance import (
    apply_fixed_inputs,
    is_made_from,
    load_fixed_inputs,
    load_source_digest,
)
from lingeronnx.runtime.session import Session
from tests import nets
from tests.case_selection import mark_rest_slow
from tests.nets import Net

BROKEN = {
    "wrong bias",
    "bias saturates",
    "channels swapped",
    "computes something else",
    "missing Relu",
    "wrong pads",
    "wrong strides",
    "wrong dilations",
    "wrong group",
}


def recurrent():
    """A GRU whose last state is read: errors of its steps add up."""
    net = Net(8, 6, seed=8)
    weight = [
        net.const((net.rng.standard_normal((1, 24, n)) * 0.5).astype(np.float32)) for n in (6, 8)
    ]
    turned = net.node("Transpose", "x", perm=[1, 0, 2])
    net.nodes.append(
        onnx.helper.make_node("GRU", [turned, *weight], ["", "h"], "gru", hidden_size=8)
    )
    return net.graph(
        net.linear(net.node("Squeeze", "h", net.const(np.int64([0]))), (8, 3), out="y")
    )


def attention():
    """Attention with channels of very different size, as transformers have them."""
    net = Net(12, 16, seed=4)
    big = np.ones(16, np.float32)
    big[3] = 12
    x = net.node("Mul", "x", net.const(big))
    parts = [
        net.node("MatMul", x, net.const(net.rng.standard_normal((16, 16)).astype(np.float32) / 8))
        for _ in "qkv"
    ]
    scores = net.node("MatMul", parts[0], net.node("Transpose", parts[1], perm=[0, 2, 1]))
    mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), parts[2])
    total = net.node("Add", mixed, net.node("Add", x, net.const(np.full(16, 5, np.float32))))
    return net.graph(net.node("ReduceMean", total, axes=[1], keepdims=0, out="y"))


NETS = (
    recurrent,
    attention,
    nets.residual,
    nets.depthwise,
    nets.concat,
    nets.asymmetric,
    nets.branches,
)


@pytest.mark.sweep
@pytest.mark.parametrize("platform", ["venus", "generic"])
@pytest.mark.parametrize("build", mark_rest_slow(3, NETS), ids=lambda build: build.__name__)
def test_what_was_just_made_is_never_called_broken(build, platform, tmp_path):
    """Neither in memory nor from the file, under names of its own, at 8 bits and at 4."""
    model = build()
    data, other = nets.samples(model, 48), nets.samples(model, 16, seed=5)
    ir.save(model, tmp_path / "f.onnx")
    for bits in (8, 4) if platform == "generic" else (8,):
        made = lo.quantize(model, data, platform=platform, bits=bits, weight_bits=bits)
        made.write(tmp_path / "q.onnx")
        for pair in ((model, made), (tmp_path / "f.onnx", tmp_path / "q.onnx")):
            found = lo.compare(*pair, other)
            assert not {f.kind for f in found.findings} & BROKEN


def test_sequences_whose_channels_have_factors_of_their_own():
    """[N, C, T]: the channels are axis 1 where equalization gave each a factor."""
    net = Net(4, 10, seed=6)
    weight = net.rng.standard_normal((12, 4, 3)) * np.exp(net.rng.uniform(-3, 3, (12, 1, 1)))
    a = net.node("Relu", net.node("Conv", "x", net.const(weight.astype(np.float32)), out="a"))
    b = net.const((net.rng.standard_normal((5, 12, 3)) / 6).astype(np.float32))
    model = net.graph(net.node("Conv", a, b, out="y"))
    data = nets.samples(model, 64)
    made = lo.quantize(model, data, platform="venus")
    found = lo.compare(model, made, data)
    row = found.join.rows["a"]
    assert len(row.stored_form.factor) == len(row.channels.max_abs) == 12
    assert not {f.kind for f in found.findings} & BROKEN


def test_it_is_known_what_a_graph_was_made_from(tmp_path):
    model, changed = nets.plain(), nets.plain()
    weight = next(iter(changed.graph.initializers.values()))
    array = ir.const_value(weight).copy()
    array.flat[0] += 1
    ir.set_initializer_value(weight, array)
    for platform in ("venus", "generic"):
        made = lo.quantize(model, nets.samples(model), platform=platform, effort="fast")
        for to in ("thinker", "linger") if platform == "venus" else ("thinker",):
            made.write(tmp_path / "q.onnx", to)
            graph = Session(tmp_path / "q.onnx").model
            assert is_made_from(graph, Session(model).model)
            assert not is_made_from(graph, Session(changed).model)
            node = next(node for node in graph.graph if "scale_o" in node.attributes)
            ir.set_attr(node, "scale_o", 2 * ir.get_attr(node, "scale_o"))
            assert load_source_digest(graph) == ""
    assert not is_made_from(None, model)
    assert not is_made_from(model, model)


def test_branches_count_and_what_they_read_of_the_graph_around():
    text = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[N, 3] x, bool c) => (float[N, 3] y) {{
        w = {}(x)
        y = If (c) <then_branch = one () => (float[N, 3] a) {{ a = {}(w) }},
                    else_branch = two () => (float[N, 3] b) {{ b = Neg(w) }}>
    }}"""
    graphs = [("Relu", "Abs"), ("Relu", "Abs"), ("Relu", "Exp"), ("Tanh", "Abs")]
    made = [
        compute_output_digest(ir.from_proto(onnx.parser.parse_model(text.format(*names))))
        for names in graphs
    ]
    assert made[0] == made[1] != ""
    assert len(set(made)) == 3


def test_a_layer_that_was_changed_since_is_found(tmp_path):
    model = nets.plain()
    data = nets.samples(model, 48)
    made = lo.quantize(model, data, platform="venus", effort="fast")
    graph = made.graph.clone()
    conv = next(node for node in graph.graph if node.op_type == "Conv2dInt")
    bias = ir.const_value(conv.inputs[2]).copy()
    bias[1] += 4000
    ir.set_constant_input(graph, conv, 2, bias, "spoiled")
    kinds = {f.kind for f in lo.compare(model, graph, data).findings}
    assert kinds & BROKEN


def test_modules_are_named_as_the_framework_names_them(tmp_path):
    def node(name, **metadata):
        made = ir.make_node("Relu", [], output="y", name=name)
        made.metadata_props.update(metadata)
        return made

    scopes = {"pkg.torch.onnx.name_scopes": "['', 'layer1', 'layer1.conv', 'conv2d']"}
    assert get_module_name(node("node_Conv_3", **scopes)) == "layer1.conv"
    assert (
        get_module_name(node("node_add", **{"pkg.torch.onnx.name_scopes": "['', 'add']"}))
        == "node_add"
    )
    assert get_module_name(node("/layer1/0/conv/Conv")) == "layer1.0.conv"
    assert get_module_name(node("/Add")) == "/Add"
    assert get_module_name(node("plain")) == "plain"
    assert get_module_name(node("odd", **{"pkg.torch.onnx.name_scopes": "no list ("})) == "odd"
    assert format_node_label("node_Conv_3", "layer1.conv") == "node_Conv_3 (layer1.conv)"
    assert format_node_label("/layer1/conv/Conv", "layer1.conv") == "/layer1/conv/Conv"


def test_tables_and_texts_name_nodes_and_modules(tmp_path):
    model = nets.plain()
    for number, node in enumerate(model.graph):
        node.name = f"/block{number}/op/{node.op_type}"
    data = nets.samples(model, 24)
    made = lo.quantize(model, data, platform="venus", effort="fast")
    graph = made.graph.clone()
    conv = next(node for node in graph.graph if node.op_type == "Conv2dInt")
    ir.set_constant_input(graph, conv, 2, ir.const_value(conv.inputs[2]) + 4000, "spoiled")
    lo.compare(model, graph, data, tmp_path)
    table = (tmp_path / "compare_per_layer_out.csv").read_text()
    assert table.splitlines()[0].endswith(",node,module,KL_softmax")
    assert ",/block0/op/Conv,block0.op," in table
    assert "block0.op: Conv '" in (tmp_path / "abnormal_layer_advisor.txt").read_text()


FIXED = """
<ir_version: 8, opset_import: ["": 13]>
g (float[N, 8] x, float gain) => (float[N, 4] y) <float[8, 4] w> {
    a = MatMul(x, w)
    y = Mul(a, gain)
}"""


def check_data_with_the_setting(pair, data, folder):
    """Data that have the setting, as those for the float model do, give the same; another value is
    an error.
    """
    full = [{"x": data["x"], "gain": np.float32(0.5)}]
    assert lo.compare(*pair, full).join.samples == 32
    same = lo.evaluate(pair[1], data, baseline=pair[0]).value
    assert lo.evaluate(pair[1], full, baseline=pair[0]).value == same
    assert lo.find_bad_case(*pair, full, metric="SQNR").samples == 32
    assert len(lo.simulate(pair[1], full).arrays["y"]) == 32
    lo.deploy(pair[1], folder / "board", full, samples=1)
    with pytest.raises(DataError, match="'gain' is fixed at 0.5"):
        lo.compare(*pair, [{"x": data["x"], "gain": np.float32(0.7)}])


def test_a_setting_that_was_fixed_is_fixed_in_the_float_model_beside(tmp_path):
    """Nothing has to be said again where both models are at hand; data have no array for it."""
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(FIXED)
    proto.graph.initializer.append(
        onnx.numpy_helper.from_array(rng.standard_normal((8, 4)).astype(np.float32), "w")
    )
    onnx.save(proto, tmp_path / "f.onnx")
    data = {"x": rng.standard_normal((32, 8)).astype(np.float32)}
    made = lo.quantize(tmp_path / "f.onnx", data, platform="venus", fix={"gain": 0.5})
    made.write(tmp_path / "q.onnx")
    pair = tmp_path / "f.onnx", tmp_path / "q.onnx"
    assert load_fixed_inputs(Session(pair[1]).model) == {"gain": [0.5]}
    found = lo.compare(*pair, data)
    assert found.findings == [] or not {f.kind for f in found.findings} & BROKEN
    assert min(row.arrived.sqnr for row in found.join.rows.values()) > 30
    assert is_made_from(Session(pair[1]).model, found.join.base.graph)
    assert lo.evaluate(pair[1], data, baseline=pair[0]).value > 30
    assert lo.find_bad_case(*pair, data, metric="SQNR").samples == 32
    check_data_with_the_setting(pair, data, tmp_path)
    lo.report(*pair, data, tmp_path / "page")
    open_ = Session(pair[0]).model
    assert apply_fixed_inputs(open_, open_) is open_
    assert [v.name for v in apply_fixed_inputs(open_, Session(pair[1]).model).graph.inputs] == ["x"]
