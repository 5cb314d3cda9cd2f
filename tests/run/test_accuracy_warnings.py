"""Warnings about a measured accuracy: what they count, when they appear, and when they do not."""

from __future__ import annotations

import json
import pickle
import re

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.analysis.compare.join import TensorJoin
from lingeronnx.analysis.compare.sources import open_source_pair
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine
from lingeronnx.runtime.accuracy_warnings import (
    FunctionDifferences,
    OutputChecks,
    PredictionCounts,
    format_chance_warning,
)
from lingeronnx.runtime.metrics import TopK
from tests.nets import Net, plain


def one_hot(classes, count=10):
    return np.eye(count)[np.asarray(classes)]


def count_predictions(labels, model, baseline=None, classes=10, k=1):
    counts = PredictionCounts(k)
    labels, scores = np.asarray(labels), one_hot(model, classes)
    arguments = [labels, scores, TopK(k).add(labels, scores)]
    if baseline is not None:
        base_scores = one_hot(baseline, classes)
        arguments += [base_scores, TopK(k).add(labels, base_scores)]
    counts.add(*arguments)
    return counts


def spoil(labels, count, by=1):
    """Return `labels` with the first `count` of them replaced by other classes."""
    classes = np.array(labels)
    classes[:count] = (classes[:count] + by) % 10
    return classes


LABELS = np.arange(500) % 10


# ---- a loss ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "gained", "warns"),
    [
        (315, 0, True),  # 63 points
        (20, 0, True),  # 4 points, two errors are 1.79
        (10, 0, False),  # 2 points are the limit
        (40, 25, False),  # 3 points, two errors are 3.22
        (45, 25, True),  # 4 points, two errors are 3.35
        (0, 60, False),  # better than the float model
    ],
)
def test_a_loss_beyond_two_points_and_two_standard_errors(lost, gained, warns):
    baseline = spoil(LABELS, gained)
    model = np.array(LABELS)
    model[len(model) - lost :] = (model[len(model) - lost :] + 1) % 10
    counts = count_predictions(LABELS, model, baseline)
    assert (counts.lost, counts.gained) == (lost, gained)
    assert counts.drop_standard_error == pytest.approx(100 * (lost + gained) ** 0.5 / 500)
    warnings = counts.format_warnings(is_integer=True)
    assert any("falls by" in warning for warning in warnings) == warns
    if warns:
        assert f"falls by {(lost - gained) / 5:.2f} points" in warnings[0]
        assert "lingeronnx compare" in warnings[0]


def test_a_few_samples_do_not_make_a_loss():
    labels = np.arange(10)
    assert not count_predictions(labels, spoil(labels, 4), labels).format_warnings(is_integer=True)


def test_counts_of_parts_are_those_of_all_and_can_be_sent():
    model, baseline = spoil(LABELS, 77), spoil(LABELS, 99, by=2)
    complete = count_predictions(LABELS, model, baseline)
    parts = PredictionCounts(1)
    for start in range(0, 500, 60):
        part = slice(start, start + 60)
        counts = count_predictions(LABELS[part], model[part], baseline[part])
        parts.merge(pickle.loads(pickle.dumps(counts)))
    for name, value in vars(complete).items():
        assert np.array_equal(value, vars(parts)[name]), name


# ---- chance level ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correct", "samples", "classes", "warns"),
    [
        (0, 5, 10, True),
        (0, 2, 10, False),  # a model of 55 % is as bad in 20 % of the cases
        (50, 500, 10, True),
        (61, 500, 10, True),  # chance level and less than two standard errors
        (90, 500, 10, False),
        (5, 10, 2, False),
        (250, 500, 2, True),
        (300, 500, 2, False),
        (8, 10, 2, False),
        (30, 1000, 1000, False),
        (1, 1000, 1000, True),
    ],
)
def test_chance_level(correct, samples, classes, warns):
    warning = format_chance_warning(correct, samples, classes, 1, "the float model")
    assert bool(warning) == warns
    if warns:
        assert "labels or preprocessing are probably wrong" in warning
        assert f"{100 / classes:.2f} % with {classes} classes" in warning


def test_top_k_of_no_more_classes_says_nothing():
    assert "one value" in format_chance_warning(9, 9, 1, 1, "the float model")
    assert "5 values" in format_chance_warning(9, 9, 5, 5, "the float model")
    assert not format_chance_warning(9, 9, 6, 5, "the float model")


def test_the_model_without_a_baseline_is_the_subject():
    counts = count_predictions(LABELS, spoil(LABELS, 500))
    (of_integers,) = counts.format_warnings(is_integer=True)
    assert of_integers.startswith("the integer model has top1 = 0.00 %")
    assert "--baseline" in of_integers
    (of_floats,) = counts.format_warnings(is_integer=False)
    assert of_floats.startswith("the model has top1 = 0.00 %")
    assert "--baseline" not in of_floats


# ---- one class -------------------------------------------------------------------------------------


def find_one_class(labels, model, baseline=None):
    warnings = count_predictions(labels, model, baseline).format_warnings(is_integer=True)
    return [warning for warning in warnings if "predict" in warning]


def test_one_class_for_nearly_all_samples():
    model = np.full(500, 3)
    model[:20] = 4
    (warning,) = find_one_class(LABELS, model, LABELS)
    assert warning.startswith("the model predicts class 3 for 480 of 500 samples, of which 50 ")
    assert "lingeronnx compare" in warning
    model[:30] = 4  # 94 %
    assert not find_one_class(LABELS, model, LABELS)
    (warning,) = find_one_class(LABELS, np.full(500, 0), np.full(500, 0))
    assert warning.startswith("both models predict class 0")
    assert "preprocessing" in warning


def test_one_class_if_the_labels_are_so_too():
    labels = np.full(500, 3)
    labels[:40] = 1  # 8 %
    assert not find_one_class(labels, np.full(500, 3), labels)
    labels[:80] = 1
    assert find_one_class(labels, np.full(500, 3), labels)
    assert not find_one_class(np.array([3, 3, 1]), np.full(3, 3))  # too few samples


# ---- outputs ---------------------------------------------------------------------------------------

QPARAMS = Affine(32.0)  # -4 to 3.97


def check_output(reference, integers):
    checks = OutputChecks("y")
    for part in np.array_split(np.arange(len(reference)), 3):
        checks.add(QPARAMS.real(integers[part]), reference[part], integers[part], QPARAMS)
    return pickle.loads(pickle.dumps(checks)).format_warnings()


def test_constant_output():
    reference = np.random.default_rng(0).normal(size=(40, 4))
    (warning,) = check_output(reference, np.zeros((40, 4), np.int8))
    assert warning.startswith("output 'y' is the same for all 40 samples")
    moving = np.zeros((40, 4), np.int8)
    moving[39, 3] = 1
    assert not check_output(reference, moving)
    assert not check_output(np.full((40, 4), 0.3), np.zeros((40, 4), np.int8))
    assert not check_output(reference[:1], np.zeros((1, 4), np.int8))
    nearly = 3.0 + 0.01 * reference  # within a step of the integers
    assert not check_output(nearly, np.full((40, 4), 96, np.int8))


def test_constant_across_batches_only():
    """A batch whose samples are equal, and another one with other values."""
    checks = OutputChecks("y")
    for value in (1.0, 2.0):
        checks.add(np.full((3, 2), value), np.arange(6.0).reshape(3, 2))
    assert not checks.format_warnings()


def test_saturated_output():
    reference = np.random.default_rng(0).normal(size=(60, 4)) * 6
    integers = np.clip(np.round(reference * 32), -128, 127).astype(np.int8)
    (warning,) = check_output(reference, integers)
    assert "saturated" in warning
    assert "-4 and 3.969" in warning
    assert "--calibrator max" in warning
    sound = reference / 6
    assert not check_output(sound, np.clip(np.round(sound * 32), -128, 127).astype(np.int8))


def test_an_output_at_its_limit_in_float_as_well():
    """Zeros of a Relu that are the smallest integer, and probabilities next to the largest one."""
    qparams = Affine(128.0, zero_point=-128)
    reference = np.maximum(np.random.default_rng(0).normal(size=(60, 4)), 0) % 1
    reference[:30, 0] = 1.99
    checks = OutputChecks("y")
    integers = np.clip(np.round(reference * 128) - 128, -128, 127).astype(np.int8)
    checks.add(qparams.real(integers), reference, integers, qparams)
    assert (integers == -128).mean() > 0.3
    assert (integers == 127).mean() > 0.1
    assert not checks.format_warnings()


def test_outputs_that_cannot_be_compared():
    checks = OutputChecks("y")
    checks.add(np.array([b"a"]), np.array([b"a"]))
    checks.add(np.zeros((2, 3)), np.zeros((2, 4)))
    assert not checks.format_warnings()


# ---- metrics of users ------------------------------------------------------------------------------


def compare_functions(before, after, batches, count=32, noise=0.0):
    differences = FunctionDifferences()
    rng = np.random.default_rng(0)
    for _ in range(batches):
        shift = rng.normal() * noise
        differences.add([(after + shift) * count, count], [before * count, count])
    return differences.format_warnings("mine.py:score")


def test_a_users_metric():
    (warning,) = compare_functions(0.9, 0.27, 1)
    assert warning.startswith("mine.py:score falls from 0.9 in float to 0.27 on 32 samples")
    assert not compare_functions(0.9, 0.85, 1)  # one batch: no standard error
    assert compare_functions(0.9, 0.85, 10, noise=0.01)
    assert not compare_functions(0.9, 0.85, 10, noise=0.3)
    assert not compare_functions(0.9, 0.95, 10)
    (warning,) = compare_functions(0.05, 0.6, 1)
    assert "a loss if smaller values are better" in warning
    assert "not a number" in compare_functions(0.9, np.nan, 2)[0]
    assert not compare_functions(0.0, 0.0, 2)


# ---- evaluate, quantize and compare ----------------------------------------------------------------


def make_scores_net():
    """Scores of ten classes that are ten inputs."""
    net = Net(10)
    return net.graph(net.node("Gemm", "x", net.const(np.eye(10, dtype=np.float32)), out="y"))


class Narrow:
    """Scores of ten classes whose calibration data are forty times too small."""

    def __init__(self, folder):
        self.model, self.data = folder / "scores.onnx", folder / "test.npz"
        ir.save(make_scores_net(), self.model)
        x = np.random.default_rng(0).normal(size=(200, 10)).astype(np.float32)
        np.savez(self.data, x=x, labels=x.argmax(1))
        self.result = lo.quantize(
            self.model, {"x": x / 40}, effort="fast", eval_data=self.data, metric="top1"
        )


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return Narrow(tmp_path_factory.mktemp("narrow"))


def test_quantize_warns_of_a_loss_and_of_saturated_outputs(narrow):
    report = narrow.result.report
    accuracy = report.accuracy
    assert accuracy["drop"] > 2 * accuracy["drop_standard_error"] > 0
    loss, saturated, magnitude = report.warnings
    assert f"top1 falls by {accuracy['drop']:.2f} points, from 100.00 % in float" in loss
    assert "output 'y' is saturated" in saturated
    assert re.match(
        r"input 'x': the data are (38|39|40)\S* times as large as at calibration", magnitude
    )
    assert list(report.warnings) == report.to_dict()["warnings"]
    assert loss.split(",")[0] in narrow.result._repr_html_()


def test_compare_and_the_report_page_warn_as_well(narrow, tmp_path):
    comparison = lo.compare(narrow.model, narrow.result, narrow.data, tmp_path / "compared")
    assert [warning.split()[0] for warning in comparison.warnings] == ["top1", "output"]
    assert comparison.to_dict()["warnings"] == comparison.warnings
    advisor = (tmp_path / "compared" / "abnormal_layer_advisor.txt").read_text("utf-8")
    assert "WARNING: top1 falls by" in advisor
    body = (tmp_path / "compared" / "profiler.html").read_text("utf-8")
    assert "top1 falls by" in body.split('id="data-compare">')[1]
    lo.report(narrow.model, narrow.result, narrow.data, tmp_path / "page")
    sections = json.loads((tmp_path / "page" / "report.json").read_text("utf-8"))
    hints = [hint["text"] for hint in sections["overview"]["hints"]]
    assert sum("falls by" in text for text in hints) == 1  # quantize and compare say the same
    page = (tmp_path / "page" / "report.html").read_text("utf-8")
    assert "top1 falls by" in page.split("<script")[0]


def test_the_join_of_parts_warns_as_that_of_all(narrow):
    data = dict(np.load(narrow.data))
    source = [({"x": data["x"][:120]}, data["labels"][:120])]
    sources = open_source_pair(narrow.model, narrow.result)
    complete = TensorJoin(*sources)
    complete.add(*source[0])
    parts = TensorJoin(*sources)
    for start in range(0, 120, 40):
        part = TensorJoin(*sources)
        part.add({"x": data["x"][start : start + 40]}, data["labels"][start : start + 40])
        parts.merge(part.partial_result)
    assert parts.accuracy == complete.accuracy
    assert parts.warnings == complete.warnings
    assert len(parts.warnings) == 2


def test_commands_print_warnings_and_succeed(narrow, tmp_path):
    graph = tmp_path / "narrow.onnx"
    narrow.result.save(graph)
    data = ["--data", str(narrow.data)]
    for command in (
        ["evaluate", str(graph), "--baseline", str(narrow.model), *data],
        ["compare", str(narrow.model), str(graph), "-o", str(tmp_path / "out"), *data],
    ):
        result = CliRunner().invoke(cli.main, [*command, "--json"])
        assert result.exit_code == 0, result.output
        assert "WARNING: top1 falls by" in result.stderr
        assert json.loads(result.stdout)["warnings"][0].startswith("top1 falls by")


def test_quantize_command_prints_warnings(narrow, tmp_path):
    np.savez(tmp_path / "calib.npz", x=np.load(narrow.data)["x"] / 40)
    command = ["quantize", narrow.model, "--calib", tmp_path / "calib.npz", "--eval", narrow.data]
    command += ["--effort", "fast", "-o", tmp_path / "q.onnx"]
    result = CliRunner().invoke(cli.main, list(map(str, command)))
    assert result.exit_code == 0, result.output
    assert "WARNING: top1 falls by" in result.stdout


def test_evaluate_warns_of_wrong_labels_and_of_inputs():
    x = one_hot(LABELS).astype(np.float32)
    model = make_scores_net()
    good = lo.evaluate(model, [({"x": x}, LABELS)], baseline=model)
    assert (good.value, good.warnings) == (100.0, [])
    shifted = lo.evaluate(model, [({"x": x}, (LABELS + 1) % 10)], baseline=model)
    assert shifted.baseline == 0.0
    (warning,) = shifted.warnings
    assert "the float model has top1 = 0.00 %" in warning
    assert "labels or preprocessing are probably wrong" in warning
    dark = lo.evaluate(model, [({"x": 0 * x}, LABELS)])
    assert [warning.split()[:3] for warning in dark.warnings] == [
        ["the", "model", "has"],
        ["the", "model", "predicts"],
    ]


def test_evaluate_warns_of_a_low_sqnr(narrow):
    x = np.load(narrow.data)["x"]
    result = lo.evaluate(narrow.result.session(), {"x": x}, baseline=narrow.model)
    assert result.metric == "sqnr"
    sqnr, saturated, magnitude = result.warnings
    assert "limit: 15 dB" in sqnr
    assert "saturated" in saturated
    assert "times as large as at calibration" in magnitude


def test_evaluate_takes_a_users_function(narrow, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def score(outputs, labels):\n    return (outputs.argmax(1) == labels).mean()\n"
    )
    metric = f"{tmp_path / 'mine.py'}:score"
    session = narrow.result.session()
    result = lo.evaluate(session, narrow.data, metric=metric, baseline=narrow.model, batch=20)
    fall, saturated, _ = result.warnings
    assert "score falls from 1 in float to 0." in fall
    assert "saturated" in saturated


def test_a_sound_model_has_no_warning(narrow):
    x = np.load(narrow.data)["x"]
    result = lo.quantize(
        narrow.model, {"x": x}, effort="fast", eval_data=narrow.data, metric="top1"
    )
    assert not result.report.warnings
    assert not lo.compare(narrow.model, result, narrow.data).warnings


def test_pixels_for_a_model_calibrated_on_fractions():
    """Pixels of 0..255 give one warning of `evaluate` and one note of `simulate`; fractions none."""
    model = plain()
    fractions = {"x": np.random.default_rng(0).random((8, 3, 12, 12), np.float32)}
    quantized = lo.quantize(model, fractions, platform="generic", effort="fast").graph
    text = (
        "input 'x': the data are 255 times as large as at calibration .*; are they pixels of "
        "0..255 that are not normalized"
    )
    pixels = {"x": 255 * fractions["x"]}
    found = lo.evaluate(quantized, pixels, baseline=model).warnings
    assert re.match(text, found[-1])
    assert re.match(text, lo.simulate(quantized, pixels).notes[-1])
    assert not any("calibration" in note for note in lo.simulate(quantized, fractions).notes)
    signed = {"x": -20 * fractions["x"]}
    (note,) = lo.simulate(quantized, signed).notes
    assert "20 times as large" in note
    assert "pixels" not in note
    assert lo.simulate(model, pixels).notes == []
