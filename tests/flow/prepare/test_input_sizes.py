"""Sizes that a file leaves open and a user tells: as if they stood in the file, with the axis of
samples open.
"""

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.parser import parse_model

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.ir import ir

WEIGHT = np.random.default_rng(3).standard_normal((4, 3, 3, 3)).astype(np.float32)


def run(args):
    return CliRunner().invoke(cli.main, args)


def _file(tmp_path, sizes, name="open.onnx"):
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[{sizes}] x) => (float[N, 4, P, Q] y) {{ c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Relu (c) }}"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "w"))
    path = tmp_path / name
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("sizes", ["N, 3, H, W", "N, 3, 6, W", "1, 3, H, W"])
def test_told_sizes_give_the_graph_of_a_file_that_holds_them(tmp_path, sizes):
    stated = _file(tmp_path, sizes.replace("H", "6").replace("W", "8"), "stated.onnx")
    told = lo.quantize(_file(tmp_path, sizes), input_shape={"x": (1, 3, 6, 8)}, platform="arcs")
    wanted = lo.quantize(stated, platform="arcs")
    assert list(ir.to_proto(told.graph).graph.node) == list(ir.to_proto(wanted.graph).graph.node)
    assert lo.Session(told.graph).get_inputs()[0].shape[1:] == [3, 6, 8]


def test_the_axis_of_samples_stays_open(tmp_path):
    graph = lo.quantize(_file(tmp_path, "N, 3, H, W"), input_shape={"x": (1, 3, 6, 8)}).graph
    assert len(lo.Session(graph).run(None, {"x": np.zeros((5, 3, 6, 8), np.float32)})[0]) == 5


def test_calibration_data_of_other_sizes_are_refused(tmp_path):
    data = {"x": np.zeros((4, 3, 5, 5), np.float32)}
    with pytest.raises(lo.LingerOnnxError, match="x"):
        lo.quantize(_file(tmp_path, "N, 3, H, W"), data, input_shape={"x": (1, 3, 6, 8)})


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"z": (1, 3, 6, 8)}, "--input-shape z: the model has no such input"),
        ({"x": (1, 4, 6, 8)}, r"--input-shape x=1,4,6,8: the model declares \?,3,\?,\?"),
        ({"x": (3, 6, 8)}, "--input-shape x=3,6,8: the model declares"),
        ({"x": (1, 3, 0, 8)}, "a positive size"),
    ],
)
def test_what_the_file_does_not_have_is_refused(tmp_path, told, said):
    path = _file(tmp_path, "N, 3, H, W")
    for call in (lo.quantize, lo.check):
        with pytest.raises(lo.ConfigError, match=said):
            call(path, input_shape=told)


def test_the_commands_take_them_and_say_so(tmp_path):
    path = _file(tmp_path, "N, 3, H, W")
    failed = run(["check", str(path)])
    assert failed.exit_code == 1
    assert "or the shape with --input-shape x=1,3,?,?" in failed.output
    for command in (["check"], ["quantize", "-o", str(tmp_path / "o.onnx")]):
        assert run([*command, str(path), "--input-shape", "x=1,3,6,8"]).exit_code == 0
    wrong = run(["check", str(path), "--input-shape", "x=1,3,six,8"])
    assert "--input-shape x=1,3,six,8: dimensions are integers" in wrong.output


def test_an_integer_graph_has_its_sizes(tmp_path):
    path = tmp_path / "q.onnx"
    lo.quantize(_file(tmp_path, "N, 3, 6, 8")).save(path)
    with pytest.raises(lo.ConfigError, match="an integer graph has its shapes"):
        lo.check(path, input_shape={"x": (1, 3, 6, 8)})


def _stream(tmp_path, x, h):
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[{x}] x, float[{h}] h) => (float[P, Q] y, float[R, S, T] n)
        <int64[1] one = {{1}}, int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[2] pair = {{0, 1}}> {{
            c = MatMul (x, w)
            a = Slice (h, zero, one, zero)
            s = Squeeze (a, zero)
            y = Add (c, s)
            u = Unsqueeze (y, zero)
            b = Slice (h, one, two, zero)
            n = Concat <axis = 0> (u, b)
        }}"""
    )
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(WEIGHT[:2, :, 0, 0].reshape(3, 2), "w")
    )
    path = tmp_path / "stream.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("x", "h", "told"),
    [
        ("batch, L", "2, batch, 2", {"x": (1, 3)}),
        ("N, 3", "2, ?, S", {"x": (1, 3), "h": (2, 1, 2)}),
        ("?, ?", "2, ?, 2", {"x": (1, 3), "h": (2, 1, 2)}),
    ],
)
def test_samples_of_a_state_stay_open_beside_those_of_an_input(tmp_path, x, h, told):
    graph = lo.quantize(_stream(tmp_path, x, h), input_shape=told).graph
    feed = {"x": np.ones((5, 3), np.float32), "h": np.zeros((2, 5, 2), np.float32)}
    assert [a.shape for a in lo.Session(graph).run(None, feed)] == [(5, 2), (2, 5, 2)]


def test_all_open_inputs_are_told_at_once(tmp_path):
    said = (
        "input 'x', 'h'; pass calibration data with --calib, or the shape with --input-shape x=1,? "
        "--input-shape h=2,1,?$"
    )
    with pytest.raises(lo.ConfigError, match=said.replace("?", r"\?")):
        lo.check(_stream(tmp_path, "?, ?", "2, ?, S"))
