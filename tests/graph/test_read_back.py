"""Every file is read back before it takes its name: what could not be loaded never replaces what
can.
"""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import lingeronnx as lo
from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir, onnx_file
from lingeronnx.runtime.session import Session

RNG = np.random.default_rng(5)
X = RNG.standard_normal((16, 4)).astype(np.float32)

#: Operators of other domains between two layers, or at the end -> a model's body.
FOREIGN = {
    "Gelu between": ("b = com.microsoft.Gelu(a) y = MatMul(b, v)", ("com.microsoft",)),
    "Gelu at the end": ("b = MatMul(a, v) y = com.microsoft.Gelu(b)", ("com.microsoft",)),
    "Gelu in front": (
        "b = com.microsoft.Gelu(x) c = MatMul(b, v) y = Add(c, a)",
        ("com.microsoft",),
    ),
    "scaled features": (
        "b = ai.onnx.ml.Scaler<offset=[0.5], scale=[2.0]>(a) y = MatMul(b, v)",
        ("ai.onnx.ml",),
    ),
    "both": (
        (
            "b = ai.onnx.ml.Scaler<offset=[0.5], scale=[2.0]>(a) c = com.microsoft.Gelu(b) y = "
            "MatMul(c, v)"
        ),
        ("ai.onnx.ml", "com.microsoft"),
    ),
}


def model(body, opset=17):
    text = f"""<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1, "ai.onnx.ml": 3]>
    g (float[N, 4] x) => (float[N, 4] y) {{ a = MatMul(x, w) {body} }}"""
    made = onnx.parser.parse_model(text)
    for name in "wv":
        made.graph.initializer.append(
            numpy_helper.from_array(RNG.standard_normal((4, 4)).astype(np.float32), name)
        )
    return ir.from_proto(made)


@pytest.mark.parametrize("form", ["thinker", "qdq", "qoperator"])
@pytest.mark.parametrize("name", FOREIGN)
def test_imports_of_float_nodes_are_kept(name, form, tmp_path):
    """What is written can be loaded, imports the domains of its float nodes and no more, and
    computes the same.
    """
    body, domains = FOREIGN[name]
    skip = ["type:Gelu"] if "Gelu" in body else []
    made = lo.quantize(model(body), {"x": X}, platform="generic", effort="fast", skip=skip)
    made.save(tmp_path / "q.onnx", form)
    proto = onnx.load(tmp_path / "q.onnx")
    used = {node.domain for node in proto.graph.node} - {"", "thinker", "lingeronnx"}
    assert (
        used
        == set(domains)
        == {o.domain for o in proto.opset_import} - {"", "thinker", "lingeronnx"}
    )
    (have,) = Session(tmp_path / "q.onnx").run(None, {"x": X})
    (want,) = made.session().run(None, {"x": X})
    if form == "thinker":
        assert np.array_equal(have, want)
    else:
        ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
        assert np.square(have - want).mean() < 1e-3 * np.square(want).mean()


def test_the_parts_of_a_board_can_be_loaded(tmp_path):
    made = lo.quantize(
        model(FOREIGN["Gelu at the end"][0]),
        {"x": X},
        platform="venus",
        effort="fast",
        skip=["type:Gelu"],
    )
    lo.deploy(made, tmp_path / "board", {"x": X})
    tail = tmp_path / "board" / "model_quant_host_tail.onnx"
    assert "com.microsoft" in {o.domain for o in onnx.load(tail).opset_import}
    ort.InferenceSession(tail, providers=["CPUExecutionProvider"])


# ---- what cannot be loaded is not written --------------------------------------------------------


def proto(*nodes, opset=17, constants=(), inputs=("x",)):
    given = [helper.make_tensor_value_info(name, 1, [1, 4]) for name in inputs]
    graph = helper.make_graph(
        list(nodes), "g", given, [helper.make_tensor_value_info("y", 1, None)], list(constants)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


_AXES = numpy_helper.from_array(np.array([0]), "axes")

BAD = {
    "a domain that is not imported": (
        proto(helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")),
        "imports no opset for domain 'com.microsoft'",
    ),
    "an input that is computed nowhere": (
        proto(helper.make_node("Relu", ["z"], ["y"])),
        "'z' is not computed by any node",
    ),
    "an operator of a later opset": (
        proto(helper.make_node("Gelu", ["x"], ["y"]), opset=17),
        "has no such operator",
    ),
    "an input of a later opset": (
        proto(helper.make_node("Unsqueeze", ["x", "axes"], ["y"]), opset=12, constants=[_AXES]),
        "2 inputs and 1 outputs are too many",
    ),
    "an attribute of an earlier opset": (
        proto(helper.make_node("ReduceSum", ["x"], ["y"], axes=[0]), opset=13),
        "opset 13 has no attribute axes",
    ),
    "a missing attribute": (
        proto(helper.make_node("Concat", ["x"], ["y"])),
        "opset 17 requires the attribute axis",
    ),
    "a domain within a branch": (
        proto(
            helper.make_node("Equal", ["x", "x"], ["e"]),
            helper.make_node(
                "If",
                ["e"],
                ["y"],
                **{
                    f"{name}_branch": helper.make_graph(
                        [helper.make_node("Gelu", ["x"], ["b"], domain="com.microsoft")],
                        name,
                        [],
                        [helper.make_tensor_value_info("b", 1, None)],
                    )
                    for name in ("then", "else")
                },
            ),
        ),
        "imports no opset for domain 'com.microsoft'",
    ),
}


@pytest.mark.parametrize("limit", [1 << 30, 16])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_never_replaces_a_good_one(name, limit, tmp_path):
    """Nothing is left of it, beside it either, and the old file is as it was."""
    bad, words = BAD[name]
    path = tmp_path / "model.onnx"
    good = proto(helper.make_node("Relu", ["x"], ["y"]))
    onnx_file.write_model(good, path, 1 << 30)
    before = path.read_bytes()
    with pytest.raises(
        ModelError, match="model.onnx is not written, because it could not be loaded"
    ) as raised:
        onnx_file.write_model(bad, path, limit)
    assert words in str(raised.value)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == before


def test_data_beside_the_model_are_looked_at(tmp_path):
    weight = numpy_helper.from_array(np.ones((4, 512), np.float32), "w")
    large = proto(helper.make_node("MatMul", ["x", "w"], ["y"]), constants=[weight])
    onnx_file.write_model(large, tmp_path / "m.onnx", 64)
    assert len(list(tmp_path.iterdir())) == 2
    assert ir.load(tmp_path / "m.onnx").graph.initializers["w"].const_value.shape == (4, 512)


def test_a_damaged_branch_is_told_when_it_is_read(tmp_path):
    (tmp_path / "m.onnx").write_bytes(BAD["a domain within a branch"][0].SerializeToString())
    with pytest.raises(ModelError, match="imports no opset for domain 'com.microsoft'"):
        ir.load(tmp_path / "m.onnx")
