"""Shares of multiply-accumulates by what computes them, against an independent count."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.operators.macs import count_macs_if_known
from lingeronnx.quantization.report import mac_shares
from tests.oracles.mac_count import count_model_macs

MODELS = Path(__file__).resolve().parents[3] / "models"
RNG = np.random.default_rng(0)


def weight(name, *shape):
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


def save_model(path, nodes, initializers, outputs):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8))
    infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    graph = helper.make_graph(nodes, "g", [x], infos, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)
    return path


def make_data_dependent_model(path):
    """Two layers and, behind NonZero, a product of unknown size and one of a known size."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["g"], name="first"),
        helper.make_node("MatMul", ["g", "w"], ["h"], name="second"),
        helper.make_node("NonZero", ["h"], ["positions"], name="nonzero"),
        helper.make_node("Cast", ["positions"], ["rows"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["rows"], ["columns"], name="transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["columns", "v"], ["y"], name="open"),
        helper.make_node("ReduceSum", ["y", "first"], ["sums"], name="sum", keepdims=1),
        helper.make_node("MatMul", ["sums", "u"], ["z"], name="closed"),
    ]
    initializers = [
        weight("w0", 8, 16),
        weight("w", 16, 16),
        weight("v", 2, 5),
        weight("u", 5, 7),
        numpy_helper.from_array(np.array([0]), "first"),
    ]
    outputs = [("y", TensorProto.FLOAT), ("z", TensorProto.FLOAT)]
    return save_model(path, nodes, initializers, outputs)


@pytest.mark.parametrize("platform", ("venus", "generic"))
def test_products_behind_nonzero(platform, tmp_path):
    """Products whose size depends on data are unknown, others behind it count as float."""
    path = make_data_dependent_model(tmp_path / "m.onnx")
    x = RNG.standard_normal((32, 8)).astype(np.float32)
    result = lo.quantize(path, {"x": x}, platform=platform, effort="fast")
    macs = result.report.macs
    counts = count_model_macs(path)
    assert counts == {"first": 128, "second": 256, "open": None, "closed": 35}
    assert (macs.host_float, macs.unknown) == (35, {"MatMul": 1})
    assert (macs.chip, macs.host_integer) == ((384, 0) if platform == "venus" else (0, 384))
    assert result.report.integer_macs == pytest.approx(384 / 419)
    assert json.loads(json.dumps(result.report.to_dict()))["macs"] == macs.to_dict()
    assert "host float 8.4 %, unknown 1 node" in result.report.macs_text


#: Models of the regression baseline that this repository contains.
BASELINE = ("digits_cnn", "digits_lstm", "digits_gru", "digits_attention")
#: A GRU that a chip does not compute as ONNX does is written out step by step, which adds products.
WRITTEN_OUT = {("digits_gru", "venus")}


@pytest.mark.parametrize("platform", ("generic", "venus"))
@pytest.mark.parametrize("name", BASELINE)
def test_baseline_models(name, platform):
    """The count of every node, whatever runs it, is that of the independent count.

    Products that rewrites add are stated apart.
    """
    path = MODELS / f"{name}.onnx"
    calib = str(MODELS / "digits_calib.npz")
    report = lo.quantize(path, calib, platform=platform, effort="fast").report
    counts = count_model_macs(path)
    assert None not in counts.values()
    on_host = {node.node for node in (*report.float_nodes, *report.host_part)}
    host_float = sum(count for node, count in counts.items() if node in on_host)
    if (name, platform) in WRITTEN_OUT:
        assert any("GRU" in rewrite.what for rewrite in report.fitted)
        assert report.macs.executed > report.macs.total
        assert f"; {report.macs.executed:,} run for {report.macs.total:,} of" in report.macs_text
    else:
        assert report.macs.executed == report.macs.total
        assert " run for " not in report.macs_text
    assert report.macs.total == sum(counts.values())
    assert report.macs.host_float == host_float
    assert report.macs.unknown == {}


def test_added_products_do_not_raise_the_chip_share(tmp_path):
    """A kernel of 1x1 with stride 2 runs as one of 2x2 and counts as that of the model."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="strided", strides=[2, 2]),
        helper.make_node("Erf", ["h"], ["e"], name="erf"),
        helper.make_node("Conv", ["e", "v"], ["y"], name="head"),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 4, 8, 8]), ("y", ["n", 2, 4, 4]))
    )
    weights = [weight("w", 8, 4, 1, 1), weight("v", 2, 8, 1, 1)]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, tmp_path / "m.onnx")
    data = RNG.standard_normal((8, 4, 8, 8)).astype(np.float32)
    report = lo.quantize(
        tmp_path / "m.onnx", {"x": data}, platform="venus", effort="fast", skip=["head"]
    ).report
    assert count_model_macs(tmp_path / "m.onnx") == {"strided": 512, "head": 256}
    assert (report.macs.chip, report.macs.host_float) == (512, 256)
    assert report.integer_macs == pytest.approx(512 / 768)
    assert report.macs.executed == 4 * 512 + 256


def test_a_known_axis_0_is_no_batch(tmp_path):
    """Rows that a Transpose moves to axis 0, as sequences or for a product, count."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0, 2]),
        helper.make_node("MatMul", ["t", "m"], ["p"], name="product"),
        helper.make_node("Transpose", ["p"], ["b"], name="back", perm=[1, 0, 2]),
        helper.make_node("GRU", ["b", "w", "r"], ["g"], name="gru", hidden_size=3),
        helper.make_node("ReduceMax", ["g"], ["y"], name="max", axes=[1], keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 5, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [weight("m", 4, 4), weight("w", 1, 9, 4), weight("r", 1, 9, 3)]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert count_model_macs(path) == {"product": 5 * 16, "gru": 5 * 9 * 7}
    read = onnx.shape_inference.infer_shapes(model)
    counts = {node.name: count_macs_if_known(node) for node in ir.from_proto(read).graph}
    assert counts == {"turn": 0, "product": 80, "back": 0, "gru": 315, "max": 0}


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        (0, [5, "N", 4], {"gru": 5 * 9 * 7}),
        (1, ["N", 5, 4], {"gru": 5 * 9 * 7}),
        (1, [1, "steps", 4], {}),
    ],
)
def test_open_axes_of_recurrent_layers(layout, shape, expected):
    """An open batch counts as one sample; with an open number of steps the products are unknown."""
    node = helper.make_node("GRU", ["x", "w", "r"], ["g"], name="gru", hidden_size=3, layout=layout)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    g = helper.make_tensor_value_info("g", TensorProto.FLOAT, None)
    weights = [weight("w", 1, 9, 4), weight("r", 1, 9, 3)]
    graph = helper.make_graph([node], "g", [x], [g], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert mac_shares.count_model_macs(ir.from_proto(model)) == expected


def test_branches(tmp_path):
    """Products in the branches of an If count if both have equally many, else they are unknown."""
    for width, unknown in ((4, {}), (5, {"If": 1})):
        branches = {}
        for name, size in (("then_branch", 4), ("else_branch", width)):
            info = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
            nodes = [
                helper.make_node("MatMul", ["h", f"m_{name}"], ["a"], name=f"{name}_product"),
                helper.make_node("ReduceSum", ["a"], ["b"], name=f"{name}_sum"),
            ]
            branches[name] = helper.make_graph(
                nodes, name, [], [info], [weight(f"m_{name}", 16, size)]
            )
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="layer"),
            helper.make_node("ReduceMax", ["h"], ["top"], name="top", keepdims=0),
            helper.make_node("Greater", ["top", "zero"], ["c"], name="greater"),
            helper.make_node("If", ["c"], ["y"], name="if", **branches),
        ]
        zero = numpy_helper.from_array(np.float32(0), "zero")
        path = tmp_path / f"{width}.onnx"
        save_model(path, nodes, [weight("w", 8, 16), zero], [("y", TensorProto.FLOAT)])
        x = RNG.standard_normal((32, 8)).astype(np.float32)
        macs = lo.quantize(path, {"x": x}, platform="generic", effort="fast").report.macs
        assert dict(macs.unknown) == unknown
        assert macs.host_float == (0 if unknown else 64)
