"""Models without data: `quantize` alone runs, says so wherever the result is read later, and nobody
else runs.
"""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import api
from lingeronnx.analysis.sensitivity.sensitivity import sensitivity
from lingeronnx.cli import main
from lingeronnx.common.errors import ConfigError
from lingeronnx.compat import AnalysisQuant
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Plan
from lingeronnx.ir.plan.synthetic_calibration import CALIBRATION_KEY, SYNTHETIC_WARNING
from lingeronnx.quantization.prepare import generate_synthetic_inputs
from lingeronnx.runtime.data import InputSpec
from lingeronnx.runtime.session import Session
from tests import nets

NET = nets.plain()
DATA = nets.samples(NET)


@pytest.fixture(scope="module")
def look():
    """Return what `quantize` makes without data."""
    return lo.quantize(NET, effort="fast")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with the float model, its data, and what the command makes of it without
    data.
    """
    folder = tmp_path_factory.mktemp("look")
    ir.save(NET, folder / "net.onnx")
    np.savez(folder / "data.npz", **DATA)
    run("quantize", folder / "net.onnx", "--effort", "fast", "--save-plan", folder / "plan.json")
    return folder


def run(*words, code=0):
    """Run a command and return its output as one line."""
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        (([None, 4], [None, 3]), 16),
        (([None, 4], [1, 3]), 1),
        (([None, 4], [5, 3]), 5),
        (([None, 1 << 23], [None, 3]), 2),
    ],
)
def test_all_inputs_have_as_many_samples(sizes, count):
    """As many as the file states for one of them, and few where one is large."""
    dtypes = [
        np.dtype(np.int8 if 1 << 23 in shape else np.float32) for shape in sizes
    ]  # zeros are made sooner
    specs = [InputSpec(*each) for each in zip("ab", map(tuple, sizes), dtypes, strict=True)]
    assert {len(array) for array in generate_synthetic_inputs(specs, 0).values()} == {count}


# ---- said wherever it is read ----------------------------------------------------------------------------------------


def test_report_plan_and_file_say_it(look, files):
    assert look.report.warnings[0] == SYNTHETIC_WARNING
    assert look.report.to_dict()["warnings"][0] == SYNTHETIC_WARNING
    assert look.report.measured_on == "on synthetic inputs"
    assert look.samples == {}
    assert Plan.from_json(look.plan.to_json()) == look.plan
    assert json.loads((files / "plan.json").read_text())["synthetic"] is True
    assert ir.load(files / "net_quant.onnx").metadata_props[CALIBRATION_KEY] == "synthetic"


def test_with_data_nothing_is_said():
    made = lo.quantize(NET, DATA, effort="fast")
    assert SYNTHETIC_WARNING not in made.report.warnings
    assert "synthetic" not in made.plan.to_json()
    assert CALIBRATION_KEY not in made.graph.metadata_props


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    [
        ("check", "net_quant.onnx"),
        ("evaluate", "net_quant.onnx", "--data", "data.npz", "--baseline", "net.onnx"),
        ("simulate", "net_quant.onnx", "--input", "data.npz", "-o", "out.npz"),
        ("convert", "net_quant.onnx", "--to", "linger", "-o", "linger.onnx"),
        ("convert", "net_quant.onnx", "--to", "qdq", "-o", "qdq.onnx"),
        ("convert", "net_quant.onnx", "--to", "qoperator", "-o", "qoperator.onnx"),
        ("deploy", "net_quant.onnx", "-o", "board"),
        (
            "quantize",
            "net.onnx",
            "--calib",
            "data.npz",
            "--plan",
            "plan.json",
            "-o",
            "planned.onnx",
        ),
    ],
)
def test_who_reads_it_later_is_warned(files, monkeypatch, words):
    monkeypatch.chdir(files)
    assert SYNTHETIC_WARNING in run(*words)
    found = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert SYNTHETIC_WARNING in json.dumps(found)


def test_what_is_made_of_it_says_it_too(files, monkeypatch):
    """Converted, deployed, planned anew: the metadata go along, and so does the warning, from there
    on as well.
    """
    monkeypatch.chdir(files)
    for form in ("linger", "qdq", "qoperator"):
        run("convert", "net_quant.onnx", "--to", form, "-o", f"{form}.onnx")
        assert ir.load(f"{form}.onnx").metadata_props[CALIBRATION_KEY] == "synthetic"
    run("deploy", "net_quant.onnx", "-o", "board")
    assert ir.load("board/net_quant.onnx").metadata_props[CALIBRATION_KEY] == "synthetic"
    assert ir.load("board/net_quant_chip.onnx").metadata_props[CALIBRATION_KEY] == "synthetic"
    assert SYNTHETIC_WARNING in (files / "board/README.md").read_text()
    assert any(
        SYNTHETIC_WARNING in note
        for note in json.loads((files / "board/manifest.json").read_text())["notes"]
    )
    again = lo.quantize("qdq.onnx", DATA)
    assert again.report.warnings[0] == SYNTHETIC_WARNING
    assert lo.convert("linger.onnx", "thinker").graph.metadata_props[CALIBRATION_KEY] == "synthetic"


def test_weights_refined_on_random_inputs_are_told():
    """A plan's own scales are taken without data; weights that are refined for them are not the
    user's.
    """
    plan = lo.quantize(NET, DATA, effort="fast").plan
    assert SYNTHETIC_WARNING not in lo.quantize(NET, plan=plan, effort="fast").report.warnings
    assert lo.quantize(NET, plan=plan).report.warnings[0] == SYNTHETIC_WARNING


# ---- refused ---------------------------------------------------------------------------------------------------------


def test_deploy_without_data_is_refused(files, tmp_path):
    said = run("deploy", files / "net.onnx", "-o", tmp_path / "board", code=1)
    assert "deploy needs data to calibrate a float model; pass --calib DATA or --input DATA" in said
    said = run(
        "quantize",
        files / "net.onnx",
        "-o",
        tmp_path / "q.onnx",
        "--deploy",
        tmp_path / "board",
        code=1,
    )
    assert "--deploy needs calibration data; pass --calib DATA" in said
    assert list(tmp_path.iterdir()) == []


def test_deploy_calibrates_on_its_input_and_says_so(files, tmp_path):
    data = files / "data.npz"
    said = run(
        "deploy", files / "net.onnx", "--input", data, "--effort", "fast", "-o", tmp_path / "a"
    )
    assert "calibrated on the samples of --input" in said
    assert "calibrated on the samples of --input" in (tmp_path / "a/README.md").read_text()
    run("deploy", files / "net.onnx", "--calib", data, "--effort", "fast", "-o", tmp_path / "b")
    one, other = ((tmp_path / name / "net_quant.onnx").read_bytes() for name in "ab")
    assert one == other
    with pytest.raises(ConfigError, match="pass --calib DATA"):  # it can be read once only
        api.deploy(NET, tmp_path / "c", data=iter([(DATA, None)]))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "call",
    [
        lambda folder: sensitivity(NET),
        lambda folder: sensitivity(NET, None, DATA),
        lambda folder: sensitivity(NET, plan=lo.quantize(NET, DATA, effort="fast").plan),
        lambda folder: sensitivity(NET, function=lambda session: 1.0),
        lambda folder: AnalysisQuant(
            save(folder), eval_function=lambda session: 1.0, save_dir=folder / "a"
        ).analysis(),
        lambda folder: lo.compat.quantize_static(save(folder), folder / "q.onnx"),
        lambda folder: api.structure(NET),
        lambda folder: lo.compat.check_qat_model(NET, None),
        lambda folder: lo.quantize(NET, min_sqnr=20.0),
        lambda folder: lo.quantize(NET, eval_data=(DATA, np.zeros(24, int)), max_drop=1.0),
        lambda folder: lo.finetune(NET, None),
        lambda folder: lo.convert(halves(), "thinker"),
        lambda folder: api.deploy(halves(), folder / "board"),
        lambda folder: sensitivity(halves(), None, DATA),
        lambda folder: lo.compat.quantize_static(ir.to_proto(halves()), folder / "q.onnx"),
    ],
)
def test_nobody_else_runs_without_data(call, tmp_path):
    with pytest.raises(
        ConfigError, match="--calib|--train|calibration_data_reader|--eval|data_loader"
    ) as raised:
        call(tmp_path)
    assert "\n" not in str(raised.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"net.onnx"}


def save(folder):
    ir.save(NET, folder / "net.onnx")
    return folder / "net.onnx"


def halves():
    """Return a model that is quantized already, whose first convolution alone has scales."""
    model = lo.convert(lo.quantize(NET, DATA, effort="fast", platform="generic").graph, "qdq").graph
    net = nets.Net(1, 1, 1)
    last = model.graph.outputs[0]
    weight = ir.add_initializer(
        model, "late", (net.rng.standard_normal((4, ir.get_shape(last)[1]))).astype(np.float32)
    )
    node = ir.make_node("Gemm", [last, weight], {"transB": 1}, name="late_fc", output="late_y")
    model.graph.append(node)
    node.outputs[0].shape, node.outputs[0].type = ir.Shape(["N", 4]), last.type
    model.graph.outputs[:] = [node.outputs[0]]
    return model


def test_check_leaves_out_what_data_tell(files, tmp_path):
    """Scales of no data are no finding: a line says what is left out."""
    said = run("check", files / "net.onnx", "-o", tmp_path / "a")
    assert "model_check_result.txt with scales and ranges is only written with --calib DATA" in said
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "check.txt",
        "check.json",
        "check.html",
    }
    run("check", files / "net.onnx", "--calib", files / "data.npz", "-o", tmp_path / "b")
    assert (tmp_path / "b/model_check_result.txt").is_file()


def test_a_model_with_all_its_scales_needs_no_data(tmp_path):
    made = lo.quantize(NET, DATA, effort="fast")
    qdq = lo.convert(made.graph, "qdq").graph
    assert SYNTHETIC_WARNING not in lo.quantize(qdq).report.warnings
    assert api.deploy(qdq, tmp_path / "board", data=DATA).files
    assert lo.convert(qdq, "thinker").graph.graph
    assert SYNTHETIC_WARNING in lo.quantize(halves(), platform="generic").report.warnings


def test_evaluation_of_the_right_model_warns_of_nothing():
    made = lo.quantize(NET, DATA, effort="fast")
    assert api.evaluate(Session(made.graph), DATA, baseline=NET).warnings == []
