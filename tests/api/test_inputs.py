"""Inputs that are not one array of samples: settings, fixed ones, states with samples on other
axes, old files.
"""

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

from lingeronnx.api import check, compare, quantize, report
from lingeronnx.cli import main
from lingeronnx.common.errors import ConfigError, DataError, ModelError
from lingeronnx.common.escaping import escape_html
from lingeronnx.ir import ir
from lingeronnx.ir.batch_axes import infer_batch_axes, set_batch_axes
from lingeronnx.ir.fixed_inputs import fix_inputs
from lingeronnx.runtime.data import Data, InputSpec
from lingeronnx.runtime.session import Session
from tests import nets

F32 = np.dtype(np.float32)


def shaped(**inputs):
    """Return a model with inputs of the shapes given, each of which is squared."""
    nodes = [
        helper.make_node("Mul", [name, name], [f"{name}_out"], name=f"square_{name}")
        for name in inputs
    ]
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(f"{name}_out", 1, None) for name in inputs]
    graph = helper.make_graph(nodes, "inputs", values, results)
    return ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    )


AXES = {
    "all on axis 0": ({"x": ["N", 3], "h": ["N", 4]}, {}),
    "named": ({"x": ["batch", 3], "h": [2, "batch", 4]}, {"h": 1}),
    "named on the last axis": ({"x": ["batch", 3], "h": [4, 2, "batch"]}, {"h": 2}),
    "another name is another size": ({"x": ["batch", 3], "h": [2, "time", 4]}, {"h": None}),
    "made for one sample": ({"x": [1, 3], "h": [2, 1, 4], "c": [2, 3, 1, 1, 4]}, {"h": 1, "c": 2}),
    "no room for samples": ({"x": [1, 3], "h": [2, 4]}, {"h": None}),
    "a fixed batch": ({"x": [4, 3], "h": [4, 5]}, {}),
    "one input, sizes fixed": ({"x": [2, 1, 3]}, {}),
    "a single number": ({"x": ["N", 3], "rate": []}, {"rate": None}),
}


@pytest.mark.parametrize("name", AXES)
def test_axes(name):
    """The axis that counts the samples follows from the names and sizes of the file."""
    shapes, want = AXES[name]
    assert infer_batch_axes(shaped(**shapes)) == want


def test_told_axes():
    """What the user says wins, and leaves what is found for the other inputs."""
    model = shaped(x=[1, 3], h=[2, 1, 4], c=[1, 1, 5])
    set_batch_axes(model, {"c": 1})
    assert infer_batch_axes(model) == {"h": 1, "c": 1}
    set_batch_axes(model, {"h": None, "c": 0})
    assert infer_batch_axes(model) == {"h": None}
    with pytest.raises(ConfigError, match="the model has no such input; did you mean 'h'"):
        set_batch_axes(model, {"hh": 1})
    with pytest.raises(ConfigError, match="batch axis 3 of 'h': the input has 3 axes; give 0 to 2"):
        set_batch_axes(model, {"h": 3})


def test_input_without_samples():
    """It is fed as it is with every batch; items that differ in it are not joined."""
    inputs = [InputSpec("x", (None, 3), F32), InputSpec("rate", (), np.dtype(np.int64), None)]
    data = Data([{"x": np.ones((5, 3), F32), "rate": np.array(16000)}], inputs)
    parts = [feeds for feeds, _ in data.batches(2)]
    assert [(len(p["x"]), int(p["rate"])) for p in parts] == [(2, 16000), (2, 16000), (1, 16000)]
    spec = inputs[1]
    assert spec.kind(np.array(16000)) != spec.kind(np.array(8000))
    assert (spec.count_samples(np.array(1)), spec.accepts_any_batch, spec.is_single_sample) == (
        1,
        False,
        False,
    )


def with_setting(kind="Mul"):
    """Return a model of x [N, 2, 6, 6] and an int64 number `rate`, which scales or, with "If",
    chooses.
    """
    net = nets.Net(2, 6, 6)
    net.inputs.append(helper.make_tensor_value_info("rate", onnx.TensorProto.INT64, []))
    y = net.conv("x", (3, 2, 3, 3))
    if kind == "If":
        branches = [
            helper.make_graph(
                [helper.make_node(op, [y], [f"{op}_y"])],
                op,
                [],
                [helper.make_tensor_value_info(f"{op}_y", 1, None)],
            )
            for op in ("Relu", "Neg")
        ]
        chosen = net.node("Equal", "rate", net.const(np.array(16000)))
        net.node("If", chosen, out="y", then_branch=branches[0], else_branch=branches[1])
    else:
        net.node("Mul", y, net.node("Cast", "rate", to=1), out="y")
    return net.graph("y")


def test_setting_runs():
    """A model with a single number among its inputs is quantized, and the number is fed."""
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((8, 2, 6, 6)).astype(np.float32), "rate": np.array(3)}
    model = with_setting()
    (want,) = Session(model).run(None, feed)
    (have,) = quantize(model, [feed], platform="generic").session().run(None, feed)
    assert have.shape == want.shape
    assert np.square(want - have).sum() < 1e-2 * np.square(want).sum()


def test_fixed_input():
    """--fix folds it in: the graph has it no more, and data may hold it with that value only."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 2, 6, 6)).astype(np.float32)
    feed = {"x": x, "rate": np.array(16000)}
    result = quantize(with_setting("If"), [feed], platform="generic", fix={"rate": "16000"})
    assert [i.name for i in result.session().get_inputs()] == ["x"]
    (have,) = result.session().run(None, {"x": x})
    assert (have >= 0).all()  # the branch with the Relu
    assert result.report.outputs["y"]["sqnr"] > 20
    with pytest.raises(DataError, match="input 'rate' is fixed at 16000; the data have 8000"):
        quantize(
            with_setting("If"),
            [{"x": x, "rate": np.array(8000)}],
            platform="generic",
            fix={"rate": 16000},
        )


def test_comparisons_name_fixed_inputs(tmp_path):
    """The data lack the input, so nobody can see otherwise which value was compared."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 2, 6, 6)).astype(np.float32)
    model = with_setting("If")
    quantized = quantize(model, {"x": x}, platform="venus", effort="fast", fix={"rate": 8000})
    comparison = compare(model, quantized, {"x": x}, tmp_path / "compare")
    line = "input 'rate' is fixed at 8000"
    assert comparison.to_dict()["fixed_inputs"] == {"rate": [8000]}
    assert line in repr(comparison)
    assert line in comparison.format_advice()
    report(model, quantized, {"x": x}, tmp_path / "report")
    for page in ("compare/profiler.html", "report/report.html"):
        assert escape_html(line) in (tmp_path / page).read_text()
    ir.save(model, tmp_path / "net.onnx")
    quantized.save(tmp_path / "quant.onnx")
    np.savez(tmp_path / "x.npz", x=x)
    words = [str(tmp_path / name) for name in ("net.onnx", "quant.onnx")]
    options = ["--data", str(tmp_path / "x.npz"), "-o", str(tmp_path / "again")]
    assert line in CliRunner().invoke(main, ["compare", *words, *options]).output


def test_choice_by_an_input():
    """A condition on a setting names the input and the option."""
    x = np.zeros((1, 2, 6, 6), np.float32)
    with pytest.raises(
        ModelError,
        match=r"If .*: its condition depends on input 'rate'; fix that input: --fix rate=",
    ):
        quantize(with_setting("If"), [{"x": x, "rate": np.array(16000)}])


def test_a_setting_without_data_has_the_number_that_the_model_tells():
    """The line holds it, and so do synthetic inputs; a number that is multiplied is 1, else all
    would be 0.
    """
    with pytest.raises(ModelError, match="--fix rate=16000$"):
        quantize(with_setting("If"), platform="generic")
    report = quantize(with_setting("Mul"), platform="generic").report
    assert any("--fix rate=1 " in note for note in report.notes)
    assert 20 < report.outputs["y"]["sqnr"] < 100


def test_check_takes_fixed_inputs(tmp_path):
    """Without the number the branches are open; an integer graph has its numbers."""
    path = str(tmp_path / "net.onnx")
    ir.save(with_setting("If"), path)
    words = ["check", path, "--platform", "generic"]
    assert "--fix rate=16000" in CliRunner().invoke(main, words).output
    assert CliRunner().invoke(main, [*words, "--fix", "rate=16000"]).exit_code == 0
    quantize(path, platform="venus", fix={"rate": 16000}).save(path)
    with pytest.raises(ConfigError, match="quantize the model with --fix"):
        check(path, fix={"rate": 16000})


@pytest.mark.parametrize(
    "values, message",
    [
        ({"rte": 1}, "the model has no such input; did you mean 'rate'"),
        ({"rate": 0.5}, "the input is int64; give a value of that type"),
        ({"rate": "fast"}, "write a number, or a list of numbers"),
        ({"rate": "1,2"}, "2 values for the 1 elements"),
        ({"x": 1}, "the shape of this input is not known"),
    ],
)
def test_wrong_values(values, message):
    with pytest.raises(ConfigError, match=message):
        fix_inputs(with_setting(), values)


def test_nothing_left():
    with pytest.raises(ConfigError, match="no input remains"):
        fix_inputs(shaped(x=[2, 3]), {"x": 1})


@pytest.mark.parametrize("effort", ["fast", "normal"])
@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_one_tensor_read_twice(op, effort):
    """An operator that reads one tensor twice, in the middle of a network."""
    net = nets.Net(2, 6, 6)
    c = net.conv("x", (3, 2, 3, 3))
    net.conv(net.node(op, c, c), (3, 3, 1, 1), out="y")
    x = np.random.default_rng(0).standard_normal((16, 2, 6, 6)).astype(np.float32)
    assert quantize(net.graph("y"), {"x": x}, effort=effort).report.outputs["y"]["sqnr"] > 15


def test_files_of_2018():
    """IR version 3 lists initializers among the inputs, and knows no other constants."""
    proto = ir.to_proto(nets.plain())
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        proto.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    x = np.random.default_rng(0).standard_normal((16, 3, 12, 12)).astype(np.float32)
    old = quantize(ir.from_proto(proto), {"x": x}, effort="fast")
    new = quantize(nets.plain(), {"x": x}, effort="fast")
    assert [i.name for i in old.session().get_inputs()] == ["x"]
    np.testing.assert_array_equal(old.session()(x), new.session()(x))
    with pytest.raises(DataError, match="the model takes"):
        quantize(ir.from_proto(proto), {"x": x[:, :2]})


def test_states_of_one_sample_models():
    """States with their samples on axis 1, in a file for one sample: calibrated over calls,
    streamed call by call.
    """
    net = nets.Net(4, batch=1)
    net.inputs.append(helper.make_tensor_value_info("h", 1, [2, 1, 4]))
    first, second = (net.node("Gather", "h", net.const(np.array(i)), axis=0) for i in (0, 1))
    new = net.node("Tanh", net.node("Add", net.linear("x", (4, 4)), net.node("Add", first, second)))
    rows = [net.node("Unsqueeze", v, net.const(np.array([0]))) for v in (new, first)]
    net.node("Concat", *rows, out="h_out", axis=0)
    net.linear(new, (4, 3), out="y")
    model = net.graph("y", "h_out")
    rng = np.random.default_rng(0)
    calls = [{"x": rng.standard_normal((1, 4)).astype(np.float32)} for _ in range(40)]
    result = quantize(model, calls, platform="generic", state={"h_out": "h"})
    assert any("fed back over 40 calls" in note for note in result.report.notes)
    want, have = Session(model).stream({"h_out": "h"}), result.session().stream({"h_out": "h"})
    pairs = [(want.run(["y"], c)[0], have.run(["y"], c)[0]) for c in calls]
    error = sum(np.square(a - b).sum() for a, b in pairs) / sum(
        np.square(a).sum() for a, _ in pairs
    )
    assert error < 0.05
