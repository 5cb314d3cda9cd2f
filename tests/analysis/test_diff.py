"""`lo.diff`: what differs between two quantizations of one network, and which one is better."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx.analysis.diff_page import render_diff_page
from lingeronnx.cli import main
from lingeronnx.ir import ir
from tests import nets
from tests.nets import plain, samples
from tests.pages.browser import needs_browser, run_in_browser

_SETTINGS = {
    "venus": {"platform": "venus"},
    "again": {"platform": "venus"},
    "eight": {"platform": "generic"},
    "four": {"platform": "generic", "weight_bits": 4},
    "skipped": {"platform": "venus", "skip": ["type:Gemm"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with model.onnx, test.npz and a file for each of `_SETTINGS`."""
    folder = tmp_path_factory.mktemp("diff")
    model = plain()
    data = samples(model, 8)
    np.savez(folder / "test.npz", **data)
    ir.save(model, folder / "model.onnx")
    for name, settings in _SETTINGS.items():
        quantized = lo.quantize(folder / "model.onnx", data, effort="fast", **settings)
        quantized.save(folder / f"{name}.onnx")
    return folder


def run(*arguments):
    """Run the command line and return (exit code, output)."""
    result = CliRunner().invoke(main, ["diff", *map(str, arguments)])
    return result.exit_code, result.output


def test_equal_models(folder):
    """Two runs with the same settings differ in nothing, also in no value."""
    result = lo.diff(folder / "venus.onnx", folder / "again.onnx", folder / "test.npz")
    assert result.is_equal
    assert (result.settings, result.tensors, result.nodes) == ([], [], [])
    assert result.same_tensors > 8
    assert result.samples == 8
    assert [output.b_to_a_db for output in result.outputs] == [np.inf]
    assert "no differences" in result.lines()
    assert not result.find_regressions()


def test_other_widths(folder):
    """Scales and widths of the weights, settings, bytes; each number is that of the files."""
    result = lo.diff(folder / "eight.onnx", folder / "four.onnx")
    assert [(s.name, s.a, s.b) for s in result.settings] == [("weight_bits", None, 4)]
    assert all((t.bits_a, t.bits_b) == (8, 4) for t in result.tensors)
    scales = [
        {
            str(node.inputs[1].name): node.attributes["scale_w"].as_float()
            for node in ir.load(folder / f"{name}.onnx").graph
            if "scale_w" in node.attributes
        }
        for name in ("eight", "four")
    ]
    assert {t.name for t in result.tensors} == scales[0].keys()
    for tensor in result.tensors:
        assert tensor.scale_a == (scales[0][tensor.name],)
        assert tensor.scale_b == (scales[1][tensor.name],)
        assert tensor.octaves == pytest.approx(np.log2(tensor.scale_b[0] / tensor.scale_a[0]))
    weights = 8 * 3 * 9 + 8 * 8 * 9 + 8 * 5
    assert result.a.parameter_bytes - result.b.parameter_bytes == weights // 2
    assert not result.is_equal
    assert result.layers == []


def test_which_one_is_nearer_to_the_float_model(folder):
    """With a baseline the SQNR of both, as `compare` measures it, and the loss as a regression."""
    model, data = folder / "model.onnx", folder / "test.npz"
    result = lo.diff(folder / "eight.onnx", folder / "four.onnx", data, baseline=model)
    for key, name in (("a_db", "eight"), ("b_db", "four")):
        rows = lo.compare(model, folder / f"{name}.onnx", data).rows
        expected = {row.name: row.arrived.sqnr for row in rows}
        assert {layer.name: getattr(layer, key) for layer in result.layers} == expected
    (output,) = result.outputs
    assert output.gain_db == output.b_db - output.a_db < -5
    (line,) = result.find_regressions()
    assert line.startswith("output 'y' falls from ")
    assert not result.find_regressions(max_loss_db=60)
    back = lo.diff(folder / "four.onnx", folder / "eight.onnx", data, baseline=model)
    assert not back.find_regressions()


def test_nodes_and_readiness(folder):
    """A layer that left the chip is another operator; an unpackable graph is a regression."""
    result = lo.diff(folder / "venus.onnx", folder / "skipped.onnx")
    names = {node.name: (node.operator_a, node.operator_b) for node in result.nodes}
    assert ("LinearInt", "Linear") in names.values()
    assert result.a.chip_ready is True
    broken = ir.load(folder / "venus.onnx")
    node = next(node for node in broken.graph if node.op_type == "Conv2dInt")
    ir.set_attr(node, "dilations", [9, 9])
    result = lo.diff(folder / "venus.onnx", broken)
    assert result.b.chip_ready is False
    assert result.find_regressions()[0].startswith("no longer chip-ready on venus: ")


def _find_node(graph, operator):
    return next(node for node in graph.graph if node.op_type == operator)


def test_other_weights_are_a_difference(folder):
    """Equal operators and scales do not make equal models: one weight differs by one step."""
    changed = ir.load(folder / "venus.onnx")
    weight = _find_node(changed, "Conv2dInt").inputs[1]
    values = ir.const_value(weight).copy()
    values.flat[0] += 1 if values.flat[0] < 0 else -1
    weight.const_value = ir.tensor(values)
    result = lo.diff(folder / "venus.onnx", changed)
    (node,) = result.changed_nodes
    assert (node.name, node.attributes) == (_find_node(changed, "Conv2dInt").name, ())
    assert node.constants == (weight.name,)
    assert not result.is_equal
    assert "no differences" not in result.lines()
    assert any(weight.name in line for line in result.lines())
    assert result.to_dict()["equal"] is False
    assert weight.name in render_diff_page(result)


def test_other_attributes_and_connections_are_differences(folder):
    changed = ir.load(folder / "venus.onnx")
    pool = _find_node(changed, "MaxPool")
    ir.set_attr(pool, "kernel_shape", [1, 1])
    result = lo.diff(folder / "venus.onnx", changed)
    assert [node.attributes for node in result.changed_nodes] == [("kernel_shape",)]
    assert not result.is_equal
    rewired = ir.load(folder / "venus.onnx")
    pool = _find_node(rewired, "MaxPool")
    pool.replace_input_with(0, _find_node(rewired, "Relu").inputs[0])
    result = lo.diff(folder / "venus.onnx", rewired)
    assert (result.nodes, result.changed_nodes, result.is_equal) == ([], [], False)
    assert "the nodes are connected otherwise, or inputs have other names" in result.lines()
    assert "connected otherwise" in render_diff_page(result)


def _parse_model(text):
    """Return a model of opset 13 from its text, with a weight w [4, 4]."""
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> g {text}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return ir.from_proto(model)


def test_fixed_inputs_are_settings():
    """Two values of an input that was fixed: the setting, and the constant that it became."""
    model = _parse_model(
        "(float[N,4] x, float[1] f) => (float[N,4] y) {t = MatMul(x, w) y = Mul(t, f)}"
    )
    data = {"x": np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)}
    a, b = (
        lo.quantize(model, data, platform="generic", effort="fast", fix={"f": value}).graph
        for value in (1.0, 2.0)
    )
    (setting,) = lo.diff(a, b).settings
    assert (setting.name, setting.a, setting.b) == ("fix f", [1.0], [2.0])


def test_names_that_a_file_replaces_are_no_difference(tmp_path):
    """The packer's file has other names than that of generic; both mean the same tensors."""
    net = nets.Net(4)
    model = net.graph(net.linear("x", (4, 4), out="y:0"))
    for platform in ("venus", "generic"):
        quantized = lo.quantize(model, samples(model, 8), platform=platform, effort="fast")
        quantized.save(tmp_path / f"{platform}.onnx")
    result = lo.diff(tmp_path / "venus.onnx", tmp_path / "generic.onnx")
    assert (result.tensors, result.nodes) == ([], [])
    assert result.same_tensors == 3


def test_standard_operators_of_the_host_are_no_integer_nodes():
    """ArgMax has the name of an integer operator; on floats, and in a float model, it is none."""
    model = _parse_model(
        "(float[N,4] x) => (int64[N,1] y) {t = MatMul(x, w) s = Softmax(t) y = ArgMax<axis=1>(s)}"
    )
    integer = lo.quantize(model, samples(model, 8), platform="venus", effort="fast").graph
    result = lo.diff(model, integer)
    in_domain = [node for node in integer.graph if node.domain == "thinker"]
    assert (result.a.integer_nodes, result.b.integer_nodes) == (0, len(in_domain))


def test_the_command(folder):
    """Text, JSON, and the exit code for a pull request."""
    code, text = run(folder / "eight.onnx", folder / "four.onnx")
    assert code == 0
    assert "weight_bits" in text
    assert "octaves" in text
    values = ("--data", folder / "test.npz", "--baseline", folder / "model.onnx")
    code, text = run(folder / "eight.onnx", folder / "four.onnx", *values, "--json")
    body = json.loads(text[text.index("{") :])
    assert code == 0
    assert body["a"]["name"] == "eight.onnx"
    assert body["outputs"][0]["gain_db"] < -5
    assert len(body["regressions"]) == 1
    worse = (folder / "eight.onnx", folder / "four.onnx", *values, "--fail-if-worse")
    assert run(*worse)[0] == 1
    assert run(*worse, "--max-loss", "60")[0] == 0
    assert run(folder / "four.onnx", folder / "eight.onnx", *values, "--fail-if-worse")[0] == 0


def test_each_with_its_own_baseline(folder):
    """A pull request may change the float model: each quantization is compared with its own."""
    model, data = folder / "model.onnx", folder / "test.npz"
    other = ir.load(model)
    weight = next(node for node in other.graph if node.op_type == "Gemm").inputs[1]
    ir.set_initializer_value(weight, -ir.const_value(weight))
    ir.save(other, folder / "other.onnx")
    feeds = dict(np.load(data))
    quantized = lo.quantize(folder / "other.onnx", feeds, platform="generic", effort="fast")
    quantized.save(folder / "other_eight.onnx")
    baselines = ("--baseline", model, "--baseline", folder / "other.onnx")
    arguments = (folder / "eight.onnx", folder / "other_eight.onnx", "--data", data)
    assert run(*arguments, *baselines, "--fail-if-worse", "--max-loss", "6")[0] == 0
    assert run(*arguments, "--baseline", model, "--fail-if-worse", "--max-loss", "6")[0] == 1
    assert run(*arguments, *baselines, "--baseline", model)[0] == 2


def test_the_example_for_pull_requests(folder, monkeypatch):
    """The lines of examples/ci/pull_request.yml, on files of these names: it fails the worse."""
    yaml = pytest.importorskip("yaml")
    path = Path(__file__).parents[2] / "examples" / "ci" / "pull_request.yml"
    job = yaml.safe_load(path.read_text(encoding="utf-8"))
    names = {**job["env"], "CALIB": "test.npz", "PLATFORM": "generic"}
    for side in ("old", "new"):
        (folder / side).mkdir()
        for name in ("model.onnx", "test.npz"):
            shutil.copy(folder / name, folder / side / name)
    monkeypatch.chdir(folder)
    steps = [step["run"] for step in job["jobs"]["compare"]["steps"] if "run" in step][1:]
    for text in filter(None, "\n".join(steps).splitlines()):
        for name, value in names.items():
            text = text.replace(f"${name}", value)  # noqa: PLW2901 - as a shell does
        words = text.partition(" > ")[0].replace(" --require-chip", "").split()[1:]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
    worse = [word.replace("new.onnx", "four.onnx") for word in words]
    assert CliRunner().invoke(main, worse).exit_code == 1


@pytest.mark.parametrize(
    "arguments, message",
    (
        (("--baseline", "model.onnx"), "--baseline needs --data DATA"),
        (("--max-loss", "1"), "--max-loss needs --fail-if-worse"),
    ),
)
def test_options_that_belong_together(folder, arguments, message):
    """One line says what is missing."""
    code, text = run(folder / "eight.onnx", folder / "four.onnx", *arguments)
    assert code == 2
    assert message in text


def test_the_page_has_the_differences(folder, tmp_path):
    """Facts side by side, the tensors, and all values as data; names cannot inject elements."""
    page = tmp_path / "diff.html"
    arguments = (folder / "eight.onnx", folder / "four.onnx", "--data", folder / "test.npz")
    code, _ = run(*arguments, "--baseline", folder / "model.onnx", "--html", page)
    assert code == 0
    text = page.read_text("utf-8")
    data = json.loads(text.split('id="data-diff">')[1].split("</script>")[0])
    assert data["has_baseline"]
    table = text.split('<table role="table" aria-label="SQNR of the tensors"')[1].split("</table>")[
        0
    ]
    assert len(data["layers"]) == table.count("<tr") - 1
    assert "Worse than before" in text
    for title in ("Side by side", "Layer by layer", "Scales and widths", "Settings and nodes"):
        assert f">{title}</h2>" in text


def test_the_page_of_a_model_against_itself(folder):
    """Nothing differs: only the facts are shown."""
    page = render_diff_page(lo.diff(folder / "venus.onnx", folder / "again.onnx"))
    assert "no differences" in page
    assert "Scales and widths" not in page


@pytest.mark.slow
@needs_browser
def test_the_page_draws_both_models(folder, tmp_path):
    """Two lines over the layers, within the width of the window."""
    difference = lo.diff(
        folder / "eight.onnx",
        folder / "four.onnx",
        folder / "test.npz",
        baseline=folder / "model.onnx",
    )
    script = """return {lines: document.querySelectorAll("#diff-depth path").length,
      wide: document.documentElement.scrollWidth};"""
    seen = run_in_browser(render_diff_page(difference), script, tmp_path)
    assert seen["lines"] == 2
    assert seen["wide"] <= 1280
