"""The five parts of model_check_result.txt, each suspicion on both sides of its limit, and the
commands with them.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import helper

import lingeronnx as lo
from lingeronnx import api, cli
from lingeronnx.analysis.check.suspicions import Suspicion
from lingeronnx.ir import ir
from tests.nets import Net


def data(net: Net, count: int = 32) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((count, *net.shape)).astype(np.float32)


def found(graph, x, platform="venus", **settings) -> dict[str, Suspicion]:
    """Return {kind: first suspicion} of a model quantized on `x`."""
    result = lo.quantize(graph, x, platform=platform, effort="fast", **settings)
    kinds: dict[str, Suspicion] = {}
    for suspicion in api.structure(result).suspicions:
        kinds.setdefault(suspicion.kind, suspicion)
    return kinds


def layer(weight, bias=None, shape=(2, 6, 6), **attributes) -> Net:
    """One Conv, called Conv_y, with the weight given."""
    net = Net(*shape)
    names = [
        net.const(np.asarray(array, np.float32)) for array in (weight, bias) if array is not None
    ]
    net.node("Conv", "x", *names, out="y", **attributes)
    return net


def even(*size) -> np.ndarray:
    """Return a weight without outliers."""
    return np.random.default_rng(2).uniform(-1, 1, size)


def test_a_sound_layer_looks_right() -> None:
    net = layer(even(4, 2, 3, 3), np.ones(4))
    assert found(net.graph("y"), data(net)) == {}


def test_output_at_8_bits_where_more_is_to_be_had() -> None:
    net = Net(6)
    net.linear("x", (6, 3), out="y")
    graph, x = net.graph("y"), data(net)
    suspicion = found(graph, x, "generic")["output at 8 bits"]
    assert suspicion.layer == "Gemm_y"
    option, text = suspicion.remedy.split(" ", 1)
    assert option == "--override"
    tensor, setting = text.split("=")
    key, bits = setting.split(":")
    assert "output at 8 bits" not in found(
        graph, x, "generic", overrides={tensor: {key: int(bits)}}
    )
    assert "output at 8 bits" not in found(graph, x, "venus")  # which has 8 bits only


@pytest.mark.slow
def test_a_bias_that_saturates() -> None:
    net = layer(1e-4 * even(2, 2, 1, 1), [1e6, 0.0])
    suspicion = found(net.graph("y"), 1e-2 * data(net), "generic")["bias saturates"]
    assert suspicion.layer == "Conv_y"
    assert suspicion.measured.startswith("1 of 2 values")


def test_a_scale_that_the_chip_cuts() -> None:
    """Two nearly equal channels are subtracted: the difference wants a finer scale than their
    products have.
    """
    net = layer([[[[1.0]], [[-1.0]]]])
    x = 100 + 0.01 * data(net)
    x[:4] = -x[:4]
    suspicion = found(net.graph("y"), x)["scale cut"]
    assert suspicion.layer == "y"
    assert "shifts right only" in suspicion.limit
    assert "scale cut" not in found(net.graph("y"), x, "generic", mode="max-value")


@pytest.mark.parametrize("size, lost", [(0.0, 0), (1e-5, 1)])
def test_dead_channels(size, lost) -> None:
    weight = even(4, 2, 3, 3)
    weight[2] *= size
    net = layer(weight)
    suspicion = found(net.graph("y"), data(net))["dead channels"]
    assert (
        suspicion.measured
        == f"1 of 4 output channels have only zero weights (2), {lost} of them by rounding"
    )


def test_outlier_ranges() -> None:
    weight = even(8, 8, 3, 3)
    weight[1, 1, 1, 1] = 50
    net = layer(weight, shape=(8, 6, 6))
    suspicion = found(net.graph("y"), data(net))["outlier range"]
    dynamic = np.quantile(np.abs(weight), 0.99)
    assert (
        suspicion.measured
        == f"largest value 50, {50 / dynamic:.3g} times the 0.99 quantile {dynamic:.4g}"
    )
    net = layer(even(4, 2, 3, 3))
    x = data(net)
    x[0, 0, 0, 0] = 300
    suspicion = found(net.graph("y"), x)["outlier range"]
    assert suspicion.layer == "x"
    assert suspicion.remedy == "--override x=calibrator:percentile"


def concat(gain: float) -> Net:
    net = Net(2, 6, 6)
    parts = [
        net.node("Conv", "x", net.const((size * even(2, 2, 1, 1)).astype(np.float32)))
        for size in (1.0, gain)
    ]
    net.node("Concat", *parts, out="y", axis=1)
    return net


@pytest.mark.parametrize(
    "platform", ["venus", "arcs"]
)  # one requantizes the inputs, the other ties them
def test_inputs_of_a_concat_that_do_not_go_together(platform) -> None:
    net = concat(0.02)
    suspicion = found(net.graph("y"), data(net), platform)["scales at a concat"]
    assert suspicion.layer == "Concat_y"
    assert "'t1' alone would fit scale" in suspicion.measured
    assert "scales at a concat" not in found(concat(0.9).graph("y"), data(net), platform)


def test_an_integer_graph_is_looked_at_as_its_file_says() -> None:
    weight = even(4, 2, 3, 3)
    weight[3] = 0
    net = layer(weight, np.ones(4))
    graph = lo.quantize(net.graph("y"), data(net), effort="fast").graph
    built = api.structure(graph)
    (dead,) = built.suspicions
    assert (dead.layer, dead.kind) == ("Conv_y", "dead channels")
    (conv,) = (row for row in built.outputs if row[0] == "Conv_y")
    assert conv[1:6] == ("Conv2dInt", "int8", "int8", "-", "the file's")
    (kept,) = built.weights
    assert kept[:3] == ("Conv_y", "Conv2dInt", "int8")


def test_an_output_without_dequant() -> None:
    net = layer(even(4, 2, 3, 3))
    proto = ir.to_proto(lo.quantize(net.graph("y"), data(net), effort="fast").graph)
    (last,) = (node for node in proto.graph.node if node.op_type == "Dequant")
    proto.graph.node.remove(last)
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info(last.input[0], 3, None))
    (suspicion,) = (
        s for s in api.structure(ir.from_proto(proto)).suspicions if s.kind == "no Dequant"
    )
    assert suspicion.layer == last.input[0]


def twice() -> Net:
    """A weight that two layers share, an input and a layer that nothing needs, a batch norm that
    cannot be folded.
    """
    net = Net(2, 6, 6)
    net.inputs.append(helper.make_tensor_value_info("idle", 1, ["N", 2]))
    weight = net.const(even(2, 2, 1, 1).astype(np.float32))
    a = net.node("Conv", "x", weight)
    b = net.node("BatchNormalization", a, *(net.const(np.ones(2, np.float32)) for _ in range(4)))
    net.node("Relu", "idle", out="lost")
    net.node("Add", net.node("Conv", b, weight), a, out="y")
    return net


def test_what_is_left_unfused_and_used_twice() -> None:
    net = twice()
    feeds = {"x": data(net), "idle": np.zeros((32, 2), np.float32)}
    graph = net.graph("y")
    built = api.structure(graph, calib=feeds)
    ((name, kind, why),) = built.unfused
    assert (name, kind) == ("BatchNormalization_t1", "BatchNormalization")
    assert why == "the output of Conv_t0 is used elsewhere too"
    used = {row[0]: row[2] for row in built.use_counts}
    assert (used["k0"], used["idle"], used["Relu_lost"], used["x"], used["Conv_t0"]) == (
        "2",
        "0",
        "0",
        "1",
        "1",
    )
    assert "weight k0: used 2 times" in built.lines()


def test_rows_say_how_each_tensor_is_held() -> None:
    net = layer(even(4, 2, 3, 3), np.ones(4))
    overrides = {"x": {"scale": 2.0**4}, "y": {"calibrator": "percentile", "percentile": 99.9}}
    result = lo.quantize(net.graph("y"), data(net), effort="fast", overrides=overrides)
    built = api.structure(result)
    ((name, kind, *said),) = built.outputs
    low, high = result.ranges["y"]
    scale = result.plan.tensors["y"]
    assert (name, kind) == ("Conv_y", "Conv")
    assert said == [
        "int8",
        "int8",
        "-",
        "percentile 99.9",
        f"2^{scale.exponent}",
        f"{low:g}",
        f"{high:g}",
    ]
    channels = lo.quantize(
        net.graph("y"), data(net), platform="generic", mode="max-value", weight_scales="channel"
    )
    (weight,) = api.structure(channels).weights
    assert weight[2:5] == ("int8", "0", "mse")


# ---- commands --------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(cli.main, [str(arg) for arg in args])


def test_the_commands(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    weight = even(4, 2, 3, 3)
    weight[3] = 0
    net = layer(weight, strides=[4, 4])
    ir.save(net.graph("y"), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", x=data(net))
    result = run("check", "m.onnx", "--calib", "c.npz", "-o", "out")
    assert result.exit_code == 1, result.output  # the stride is over its kernel
    text = (tmp_path / "out" / "model_check_result.txt").read_text()
    titles = [line for line in text.splitlines() if line[:3] in ("1. ", "2. ", "3. ", "4. ", "5. ")]
    assert len(titles) == 5
    fifth = text.split(titles[4])[1]
    assert "Conv_y" in fifth
    assert "dead channels" in fifth
    assert "stride 4 > kernel 3" in fifth
    body = json.loads((tmp_path / "out" / "model_check_result.json").read_text())
    assert {row["kind"] for row in body["looks_wrong"]} == {"dead channels", "limit"}
    assert "looks wrong: Conv_y: dead channels" in result.stdout
    loud = run("quantize", "m.onnx", "--calib", "c.npz", "--effort", "fast", "--verbose", "--json")
    assert loud.exit_code == 0, loud.output
    assert any(
        note.startswith("looks wrong: Conv_y: dead channels")
        for note in json.loads(loud.stdout)["notes"]
    )
    quiet = run("quantize", "m.onnx", "--calib", "c.npz", "--effort", "fast", "--json")
    assert not any("looks wrong" in note for note in json.loads(quiet.stdout)["notes"])


# ---- the familiar face -----------------------------------------------------------------------


def test_check_qat_model(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    weight = even(4, 2, 3, 3)
    weight[3] = 0
    net = layer(weight)
    ir.save(net.graph("y"), tmp_path / "m.onnx")
    lo.compat.check_qat_model("m.onnx", data(net))
    assert "Conv_y: dead channels" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    report = lo.compat.check_qat_model("m.onnx", {"x": data(net)}, save_results=True)
    assert (tmp_path / "model_check_result.txt").read_text() == report.text()
    quantized = lo.quantize("m.onnx", data(net), effort="fast")
    capsys.readouterr()
    lo.compat.check_qat_model(quantized, data(net), True, tmp_path / "out")
    assert "dead channels" in (tmp_path / "out" / "model_check_result.txt").read_text()
    assert "dead channels" in capsys.readouterr().out
    lo.compat.check_qat_model(quantized.graph, (data(net),))
    assert "dead channels" in capsys.readouterr().out


@pytest.mark.slow
def test_check_qat_model_on_a_torch_module(capsys) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(2, 4, 3)
    net = torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.Dropout()).train()
    with torch.no_grad():
        conv.weight[2] = 0
    report = lo.compat.check_qat_model(net, torch.randn(8, 2, 6, 6))
    assert [(s.layer, s.kind) for s in report.suspicions] == [("/0/Conv", "dead channels")]
    assert "/0/Conv: dead channels" in capsys.readouterr().out
    assert net.training


def floats_between() -> ir.Model:
    """Conv, a Resize that no chip has (cubic), Conv, and a Sin at the end."""
    net = Net(2, 6, 6, seed=1)
    first = net.conv("x", (3, 2, 3, 3), pads=[1] * 4, out="first")
    scales = net.const(np.array([1, 1, 2, 2], np.float32))
    big = net.node("Resize", first, "", scales, out="big", mode="cubic")
    return net.graph(net.node("Sin", net.conv(big, (2, 3, 1, 1), out="second"), out="y"))


def test_what_stays_in_float_is_told_as_float() -> None:
    """A float operator has float types, whatever reads it; between integers it looks wrong, at the
    end it does not.
    """
    graph = floats_between()
    x = np.random.default_rng(0).standard_normal((8, 2, 6, 6)).astype(np.float32)
    result = lo.quantize(graph, x, platform="venus", effort="fast", parts=None)
    for structure in (api.structure(result), api.structure(result.graph)):
        types = {row[1]: row[2:4] for row in structure.outputs}
        assert types["Resize"] == ("float32", "float32")
        assert types["Sin"] == ("float32", "float32")
    told = [s for s in api.structure(result).suspicions if s.kind == "in float"]
    assert [s.layer for s in told] == ["Resize_big"]
    assert "Resize stays in float between integers: " in told[0].measured
