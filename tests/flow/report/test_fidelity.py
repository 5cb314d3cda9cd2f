"""The figures a report gives: on samples held back, over streams, with warnings where the integers
are no good.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.quantization import build_candidate, plan_model, prepare_model
from lingeronnx.quantization.report import fidelity
from lingeronnx.quantization.report.evaluation import format_clipped_values
from lingeronnx.runtime.data import Data, InputSpec
from tests.passes.helpers import graph

X = InputSpec("x", (None, 3), np.dtype(np.float32))


def _rows(count: int) -> np.ndarray:
    return np.repeat(np.arange(count, dtype=np.float32)[:, None], 3, axis=1)


@pytest.mark.parametrize("size", [1, 5, 32, 50, 1000])
@pytest.mark.parametrize("items", [1, 3])
def test_four_of_every_32_samples_are_held_back(size: int, items: int) -> None:
    rows = _rows(640)
    data = Data([{"x": part} for part in np.array_split(rows, items)], [X], hold_out=True)
    held = [i for i in range(640) if i >= 512 and i % 32 >= 28]
    seen = np.concatenate([feeds["x"] for feeds, _ in data.batches(size)])[:, 0]
    assert np.concatenate([feeds["x"] for feeds in data.held_out_batches()])[:, 0].tolist() == held
    assert seen.tolist() == [i for i in range(640) if i not in held]
    peeked = data.first(560)["x"][:, 0]
    assert peeked.tolist() == seen[:560].tolist()


def test_few_samples_are_all_calibrated_with() -> None:
    data = Data([{"x": _rows(540)}], [X], hold_out=True)
    assert sum(len(feeds["x"]) for feeds, _ in data.batches(7)) == 540
    assert data.held_out_batches() == []


def test_held_samples_of_a_generator_are_kept_when_it_is_read() -> None:
    data = Data(({"x": row[None]} for row in _rows(544)), [X], hold_out=True)
    assert sum(len(feeds["x"]) for feeds, _ in data.batches(8)) == 540
    assert [feeds["x"][0, 0] for feeds in data.held_out_batches()] == [540, 541, 542, 543]


def test_held_samples_do_not_keep_their_whole_files_in_memory() -> None:
    rows = _rows(640)
    data = Data([{"x": rows}], [X], hold_out=True)
    assert data.held_out_batches()
    assert not any(np.shares_memory(feeds["x"], rows) for feeds in data.held_out_batches())


def _model(
    nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], outputs: list[str], state: int
) -> ir.Model:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])]
    if state:
        inputs.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, ["N", state]))
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def _linear(rng: np.random.Generator) -> ir.Model:
    weights = {"w": rng.standard_normal((4, 4)).astype(np.float32)}
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")], weights, ["y"], 0)


def test_the_report_says_what_was_measured() -> None:
    rng = np.random.default_rng(0)
    model = _linear(rng)
    many, few = ({"x": rng.standard_normal((count, 4)).astype(np.float32)} for count in (640, 40))
    assert (
        lo.quantize(model, many, effort="fast").report.measured_on
        == "on 16 samples held back from calibration"
    )
    fitted = lo.quantize(model, few, effort="fast").report
    assert fitted.measured_on == "on the calibration data (optimistic)"


def _accumulator() -> ir.Model:
    """Return s' = s + x/2, y = s' and a state that counts far beyond what one step adds."""
    half = {"w": (np.eye(4) * 0.004).astype(np.float32), "v": np.eye(4, dtype=np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["step"], name="small"),
        helper.make_node("Add", ["s", "step"], ["out"], name="sum"),
        helper.make_node("MatMul", ["out", "v"], ["y"], name="read"),
    ]
    return _model(nodes, half, ["y", "out"], 4)


def test_streams_are_measured_with_their_own_states_and_stand_still_loudly() -> None:
    rng = np.random.default_rng(1)
    calls = [{"x": rng.uniform(0.2, 0.5, (1, 4)).astype(np.float32)} for _ in range(640)]
    report = lo.quantize(
        _accumulator(), calls, platform="venus", state={"out": "s"}, effort="fast"
    ).report
    assert report.measured_on == "on 64 calls held back from calibration"
    assert (
        report.outputs["out"]["sqnr"] < 15
    )  # a step of less than half a count is lost, call after call
    assert any("output '" in w and "dB from the float model" in w for w in report.warnings)
    assert any(
        w.startswith("state 'out' does not change in integers: 4 of its 4") for w in report.warnings
    )


def test_a_good_model_has_no_warning() -> None:
    rng = np.random.default_rng(2)
    report = lo.quantize(
        _linear(rng), {"x": rng.standard_normal((128, 4)).astype(np.float32)}
    ).report
    assert not report.warnings
    assert report.outputs["y"]["sqnr"] > 25


def test_the_layer_that_breaks_is_named() -> None:
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.standard_normal((4, 4)).astype(np.float32),
        "big": np.float32([1000, 0, 0, 0]),
        "pick": np.float32([[0], [1], [1], [1]]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Sigmoid", ["a"], ["b"], name="curve"),
        helper.make_node("Add", ["b", "big"], ["c"], name="spoils"),
        helper.make_node("MatMul", ["c", "pick"], ["y"], name="last"),
    ]
    x = {"x": rng.standard_normal((64, 4)).astype(np.float32)}
    report = lo.quantize(
        _model(nodes, weights, ["y"], 0), x, platform="generic", effort="fast"
    ).report
    assert report.warnings
    assert "it breaks at" in report.warnings[0]
    assert "spoils" in report.warnings[0] or "last" in report.warnings[0]


@pytest.mark.parametrize("operator", ["Add(s, mask)", "Where(allowed, s, mask)"])
def test_a_mask_does_not_hide_where_the_scores_break(
    operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum with -1e9 has a high SQNR; the Softmax after it is not to blame for the scores."""
    model = graph(
        f"""g (float[N,4] x, float[N,4] mask, bool[N,4] allowed) => (float[N,4] p) {{
        a = Relu(x) s = MatMul(a, w) m = {operator} p = Softmax(m) }}""",
        w=np.eye(4, dtype=np.float32),
    )
    text = _locate_break(model, {"a": 30.0, "s": 5.0, "m": 700.0, "p": 4.0}, "p", monkeypatch)
    assert text.startswith("; it breaks at MatMul")
    assert "('s': 5.0 dB, 30.0 dB before it)" in text


def _locate_break(
    model: ir.Model, sqnr_db: dict[str, float], output: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return the description of the break for tensors of the levels `sqnr_db`."""
    monkeypatch.setattr(fidelity, "measure_tensor_sqnr", lambda *_: sqnr_db)
    data = SimpleNamespace(first=lambda count: {})
    prepared = SimpleNamespace(data=data, comparison_batch_size=1, calls=None)
    return fidelity.locate_break(prepared, model, model, None, output)  # type: ignore[arg-type]


def test_the_break_is_where_most_of_the_noise_arises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fall from 60 to 23 dB is 0.5 % of noise; one from 15 to 8 dB is 13 % of 16 %."""
    model = graph(
        """g (float[N,4] x) => (float[N,4] y) {
        a = Relu(x) b = Sigmoid(a) c = Tanh(b) y = Sigmoid(c) }"""
    )
    sqnr_db = {"a": 23.0, "b": 15.0, "c": 8.0, "y": 8.0}
    text = _locate_break(model, sqnr_db, "y", monkeypatch)
    assert text.startswith("; it breaks at Tanh")
    assert text.endswith("('c': 8.0 dB, 15.0 dB before it)")


def test_noise_that_a_sum_or_clip_removes_is_no_break(monkeypatch: pytest.MonkeyPatch) -> None:
    model = graph(
        """g (float[N,4] x) => (float[N,4] y) {
        a = Relu(x) b = Sigmoid(a) c = Add(a, b) y = Tanh(c) }"""
    )
    sqnr_db = {"a": 30.0, "b": 0.0, "c": 25.0, "y": 10.0}
    text = _locate_break(model, sqnr_db, "y", monkeypatch)
    assert "at Tanh" in text


def test_a_break_on_the_way_to_another_output_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = graph(
        """g (float[N,4] x) => (float[N,4] y, float[N,4] z) {
        a = Relu(x) y = Tanh(a) z = Sigmoid(a) }"""
    )
    sqnr_db = {"a": 30.0, "y": 12.0, "z": 3.0}
    assert "at Tanh" in _locate_break(model, sqnr_db, "y", monkeypatch)
    assert "at Sigmoid" in _locate_break(model, sqnr_db, "z", monkeypatch)


def test_no_layer_breaks_where_many_add_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    model = graph(
        """g (float[N,4] x) => (float[N,4] y) {
        a = Relu(x) b = Sigmoid(a) c = Tanh(b) y = Sigmoid(c) }"""
    )
    sqnr_db = {"a": 15.5, "b": 13.0, "c": 11.0, "y": 10.0}
    text = _locate_break(model, sqnr_db, "y", monkeypatch)
    assert text.startswith("; the error comes from many layers and rises most at Tanh")


def test_no_layer_breaks_where_each_adds_what_a_clip_removes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = graph(
        """g (float[N,4] x) => (float[N,4] y) {
        a = Sigmoid(x) b = Relu(a) c = Tanh(b) d = Relu(c) e = Sigmoid(d) y = Relu(e) }"""
    )
    sqnr_db = {"a": 3.0, "b": 20.0, "c": 3.0, "d": 18.0, "e": 3.0, "y": 10.0}
    text = _locate_break(model, sqnr_db, "y", monkeypatch)
    assert text.startswith("; the error comes from many layers and rises most at Sigmoid")


def test_values_beyond_the_calibrated_range_are_counted() -> None:
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, (64, 4)).round(3).astype(np.float32)
    result = lo.quantize(_linear(rng), {"x": x})
    assert format_clipped_values(result, {"x": x}, 10**9) == []
    lines = format_clipped_values(result, {"x": 3 * x}, 10**9)
    assert any("of 'x' exceed the calibrated range, -" in line for line in lines)


def test_values_that_symmetric_integers_represent_are_not_clipped() -> None:
    """A tensor calibrated to [0, 1] has the scale of [-1, 1] unless it has a zero point."""
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 1, (64, 4)).round(3).astype(np.float32)
    for activations, is_clipped in (("symmetric", False), ("asymmetric", True)):
        result = lo.quantize(_linear(rng), {"x": x}, platform="generic", activations=activations)
        lines = format_clipped_values(result, {"x": -x}, 10**9)
        assert any("of 'x' exceed" in line for line in lines) == is_clipped


def test_what_a_softmax_reads_is_measured_beside_the_output() -> None:
    """Oracle: the scores in numpy, and those that a session over all samples gives."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(4, 5)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"]),
    ]
    net = _model(nodes, {"w": weight}, ["y"], 0)
    x = rng.normal(size=(48, 4)).astype(np.float32)
    prepared = prepare_model(net, {"x": x}, None, {"platform": "generic"}, hold_out=False)
    planned = plan_model(prepared)
    made = build_candidate(planned, planned.graph)
    (have,) = made.checked_model.session().run(["z"], {"x": x})
    each = np.square(x.astype(np.float64) @ weight - have).sum(axis=1)
    power = np.square(x.astype(np.float64) @ weight).sum()
    assert made.fidelity.measured_errors[0] == pytest.approx(each, rel=1e-3)
    assert made.fidelity.measured_power == pytest.approx([power], rel=1e-4)
    assert made.fidelity.min_measured_sqnr_db == pytest.approx(
        10 * np.log10(power / each.sum()), abs=1e-3
    )
    assert made.fidelity.errors.shape == made.fidelity.measured_errors.shape
    assert made.fidelity.power[0] < power  # shares, of one each
