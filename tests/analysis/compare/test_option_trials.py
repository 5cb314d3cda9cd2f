"""Options are tried before they are advised; rows of recurrent layers; names that can be read;
turned inputs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.analysis.compare import option_trials
from lingeronnx.analysis.compare.comparison import Comparison
from lingeronnx.analysis.compare.finding import LayerFinding
from lingeronnx.analysis.compare.input_layout import check_input_layout
from lingeronnx.analysis.compare.join import TensorJoin, join_tensors
from lingeronnx.analysis.compare.option_trials import (
    MIN_GAIN_DB,
    OptionTrialResult,
    _OptionTrial,
    rank_findings,
    try_options,
)
from lingeronnx.analysis.compare.sources import open_source
from lingeronnx.common.escaping import escape_invisible
from lingeronnx.ir import ir
from lingeronnx.quantization import prepare_model
from lingeronnx.runtime.provenance import load_quantize_settings
from tests.compat.test_two_models import net
from tests.each import check_each
from tests.nets import Net

WILD = {"x": np.random.default_rng(1).standard_normal((48, 3, 8, 8)).astype(np.float32)}


def finding(*options: str, **more: str) -> LayerFinding:
    words = {
        "layer": "second",
        "node": "n",
        "operator": "Conv",
        "kind": "k",
        "measured": "m",
        "limit": "l",
        **more,
    }
    return LayerFinding(**words, remedy="r", options=options, weight=1.0, order=2)


def join_models(model: ir.Model, quantized: lo.QuantizedModel) -> TensorJoin:
    """Join both models on the samples, without trials of options."""
    return join_tensors(open_source(model), open_source(quantized), WILD)


@pytest.fixture(scope="module")
def compared() -> Comparison:
    """A net with one channel far larger than the others, made without equalization."""
    model = net()
    return lo.compare(
        model, lo.quantize(model, WILD, platform="venus", effort="fast", calibrator="max"), WILD
    )


def test_what_is_advised_was_tried(compared) -> None:
    """No more than the best is advised, and it gives at least half a dB; the text tells what it
    gave.
    """
    trial_result = compared.option_results
    assert trial_result is not None
    assert trial_result.best_sqnr > trial_result.all_options_sqnr - MIN_GAIN_DB
    assert (
        not trial_result.best or trial_result.best_sqnr >= trial_result.baseline_sqnr + MIN_GAIN_DB
    )
    assert compared.options == " ".join(trial_result.best)
    assert (
        "tried on these data" in compared.format_advice()
        or f"No option gains {MIN_GAIN_DB:g} dB" in compared.format_advice()
    )


def test_a_harmful_option_is_left_out(compared) -> None:
    """With an option that spoils a tensor, all together are worse than the best alone."""
    harm = "--override second=scale:2^-3"
    trial_result = try_options(compared.join, [finding("--effort normal"), finding(harm)], WILD)
    assert trial_result.best == ("--effort normal",)
    assert trial_result.best_sqnr > trial_result.all_options_sqnr + MIN_GAIN_DB
    told = replace(
        compared, findings=[finding("--effort normal"), finding(harm)], option_results=trial_result
    ).format_advice()
    assert "The options that gain 0.5 dB each" in told
    assert told.rstrip().splitlines()[-2].strip() == "--effort normal"


def test_options_are_tried_behind_those_that_the_graph_was_made_with() -> None:
    """A wrong scale that the user gave stays unless the advice takes it back; what helps only
    without it is none.
    """
    model = net()
    wrong = {"second": {"scale": 2.0**9}}
    quantized = lo.quantize(model, WILD, platform="venus", overrides=wrong)
    assert load_quantize_settings(quantized.graph) == {"overrides": wrong}
    tensor_join = join_models(model, quantized)
    idle, right = "--effort normal", "--override second=scale:2^3"
    gave = try_options(tensor_join, [finding(idle), finding(right)], WILD)
    assert gave.best == (right,)
    again = lo.quantize(model, WILD, platform="venus", overrides={"second": {"scale": 2.0**3}})
    levels = [min(joined.outputs.values()) for joined in (tensor_join, join_models(model, again))]
    assert levels[1] - levels[0] > MIN_GAIN_DB
    assert abs((levels[1] - levels[0]) - (gave.best_sqnr - gave.baseline_sqnr)) < 3


def test_without_options_the_trial_is_the_graph() -> None:
    """Scales of calibration, of data three times as far as those compared, are what the trial
    counts with.
    """
    model, own = net(), {"first": {"scale": 2.0**3}}
    levels = []
    for data in ({"x": 3 * WILD["x"]}, WILD):
        quantized = lo.quantize(model, data, platform="venus", effort="fast", overrides=own)
        tensor_join = join_models(model, quantized)
        levels += tensor_join.outputs.values()
        gave = try_options(tensor_join, [finding("--override second=scale:2^-2")], WILD)
        assert gave.baseline_sqnr == pytest.approx(levels[-1], abs=0.5)
    assert levels[1] > levels[0] + 5


def test_trials_with_refined_weights_are_what_quantize_makes() -> None:
    """Calibrated and compared on the same data: bit for bit the same outputs, with the options and
    without.
    """
    model, wrong, right = net(), {"second": {"scale": 2.0**-3}}, {"second": {"scale": 2.0**-1}}
    levels = []
    for overrides in (wrong, right):
        tensor_join = join_models(
            model, lo.quantize(model, WILD, platform="venus", overrides=overrides)
        )
        levels += tensor_join.outputs.values()
        if overrides is wrong:
            trial = _OptionTrial(tensor_join.base, tensor_join.other, WILD).with_refined_weights
    assert [trial.value(()), trial.value(("--override second=scale:2^-1",))] == pytest.approx(
        levels, abs=1e-6
    )


def test_options_that_help_only_refined_weights_are_advised(compared, monkeypatch) -> None:
    """Where rounding alone tells no difference, wrong scales are tried as `quantize` makes them."""
    quantized = lo.quantize(net(), WILD, platform="venus", overrides={"second": {"scale": 2.0**-3}})
    tensor_join = join_models(net(), quantized)
    given = _OptionTrial.value
    monkeypatch.setattr(
        _OptionTrial,
        "value",
        lambda self, words: given(self, words) if self.refines_weights else 20.0,
    )
    right = replace(finding("--override second=scale:2^-1"), order=1)
    gave = try_options(tensor_join, [right], WILD)
    assert gave.refined
    assert gave.best == right.options
    assert gave.best_sqnr >= gave.baseline_sqnr + MIN_GAIN_DB
    assert not try_options(tensor_join, [replace(right, order=2)], WILD).best
    assert (
        "weights refined"
        in replace(compared, findings=[right], option_results=gave).format_advice()
    )


def test_options_that_help_nothing_are_not_advised(compared) -> None:
    harm = "--override second=scale:2^-3"
    trial_result = try_options(compared.join, [finding(harm)], WILD)
    assert trial_result.best == ()
    told = replace(compared, findings=[finding(harm)], option_results=trial_result)
    assert told.options == ""
    assert f"No option gains {MIN_GAIN_DB:g} dB" in told.format_advice()


def test_the_shape_is_that_of_all_data(compared) -> None:
    """48 samples come in batches of 16."""
    shapes = {row["mod_name"]: row["shape"] for row in compared.to_rows()}
    assert shapes["x"] == [48, 3, 8, 8]
    assert shapes["y"] == [48, 4]


def test_names_cannot_turn_the_writing_round() -> None:
    assert escape_invisible("a\u202eb\u200bc\x07") == "a\\u202eb\\u200bc\\x07"
    assert escape_invisible("/m/conv é 名") == "/m/conv é 名"


def test_texts_are_readable_at_80_columns(compared) -> None:
    """A name is never broken; what is to be pasted stays one line."""
    long = "/".join(["module"] * 20)
    lines = (
        replace(compared, findings=[finding("--o x", layer=long, measured="some words " * 20)])
        .format_advice()
        .splitlines()
    )
    assert all(len(line) <= 80 or long in line or "--" in line for line in lines)
    assert any(long in line for line in lines)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_have_a_row(kind) -> None:
    """Normalising gives their outputs another layout and name; the values are those of Y."""
    made = Net(5, 4, seed=2)  # [N, T, I]
    gates = {"LSTM": 4, "GRU": 3}[kind]
    weights = [
        made.const((0.4 * made.rng.standard_normal((1, gates * 6, n))).astype(np.float32))
        for n in (4, 6)
    ]
    x = made.node("Transpose", "x", perm=[1, 0, 2])
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    y = made.node(kind, x, *weights, hidden_size=6, out="whole", **more)
    flat = made.node("Squeeze", y, made.const(np.array([1], np.int64)))
    graph = made.graph(made.node("Relu", flat, out="y"))
    data = {"x": np.random.default_rng(0).standard_normal((8, 5, 4)).astype(np.float32)}
    (row,) = [
        row
        for row in lo.compare(graph, lo.quantize(graph, data, platform="generic"), data).rows
        if row.kinds[0] == kind
    ]
    assert row.arrived.sqnr > 20
    assert row.total_shape == (8, 5, 6)


def pictures(count: int = 64) -> np.ndarray:
    """Pictures whose channels differ and whose rows change faster than their columns."""
    rng = np.random.default_rng(3)
    smooth = rng.standard_normal((count, 3, 16, 2)).repeat(8, axis=3)
    gain, shift = (np.array(v).reshape(1, 3, 1, 1) for v in ([1.0, 0.4, 0.1], [0.0, 0.5, 1.0]))
    return (smooth * gain + shift).astype(np.float32)


def normed(data: np.ndarray | None) -> ir.Model:
    """Conv, and behind it a BatchNormalization that holds the moments of what it was trained
    with.
    """
    made = Net(3, 16, 16, seed=5)
    conv = made.conv("x", (8, 3, 3, 3), out="conv")
    if data is None:
        return made.graph(made.node("Relu", conv, out="y"))
    answers = lo.Session(made.graph(conv)).run(None, {"x": data})[0]
    held = np.ones(8), np.zeros(8), answers.mean((0, 2, 3)), answers.var((0, 2, 3))
    return made.graph(
        made.node(
            "BatchNormalization", conv, *(made.const(a.astype(np.float32)) for a in held), out="y"
        )
    )


def test_turned_pictures_are_found_by_what_the_first_layer_answers() -> None:
    right = pictures()
    base = open_source(normed(right))
    assert check_input_layout(base, "x", {"x": right}).kind == ""
    turned = np.ascontiguousarray(right.swapaxes(2, 3))
    assert check_input_layout(base, "x", {"x": turned}).kind == "input height and width swapped"
    assert (
        check_input_layout(base, "x", {"x": np.ascontiguousarray(right[:, ::-1])}).kind
        == "input channels swapped"
    )


def test_what_cannot_be_told_is_said() -> None:
    right = pictures()
    assert (
        "no BatchNormalization"
        in check_input_layout(open_source(normed(None)), "x", {"x": right}).undecided
    )
    assert (
        "from 8 samples"
        in check_input_layout(open_source(normed(right)), "x", {"x": right[:8]}).undecided
    )
    alike = (
        np.random.default_rng(0)
        .standard_normal((64, 1, 16, 16))
        .repeat(3, axis=1)
        .astype(np.float32)
    )
    assert (
        "cannot distinguish it from channels"
        in check_input_layout(open_source(normed(alike)), "x", {"x": alike}).undecided
    )


def test_what_gives_most_comes_first_of_what_was_tried() -> None:
    """Behind findings without an option: nothing behind wrong data or a broken layer can be
    judged.
    """
    data, one, other, more = finding(), finding("--a"), finding("--b"), finding("--b", layer="more")
    gave = OptionTrialResult(("--b",), 9.0, 9.0, 1.0, 1.0)
    assert rank_findings([one, other, more], gave) == [other, one, more]
    assert rank_findings([data, one, other, more], gave) == [data, other, one, more]
    assert rank_findings([one, data, other], gave) == [one, data, other]
    assert rank_findings([other, one], gave) == [other, one]
    for same in (None, replace(gave, best=())):
        assert rank_findings([one, other], same) == [one, other]
    assert rank_findings([], gave) == []


def test_a_gain_is_more_than_the_trial_is_off() -> None:
    """Planned anew without any option the outputs have 20 dB, the graph itself `graph`: so far are
    trials off.
    """

    def check(value: float, graph: float, sure: bool) -> None:
        assert OptionTrialResult(("--a",), value, value, 20.0, graph).is_certain == sure

    near = ((20.6, 20.0, True), (20.4, 20.0, False), (22.0, 23.0, False))
    check_each(check, (*near, (24.0, 17.0, True), (22.0, 17.0, False)))


def test_a_gain_that_the_trial_cannot_tell_is_not_advised(compared, monkeypatch) -> None:
    tensor_join = compared.join
    monkeypatch.setattr(_OptionTrial, "value", lambda self, words: 21.0 if words else 20.0)
    monkeypatch.setattr(_OptionTrial, "graph", 25.0)
    gave = try_options(tensor_join, [finding("--effort normal")], WILD)
    assert gave.best == ()
    text = replace(
        compared, findings=[finding("--effort normal")], option_results=gave
    ).format_advice()
    assert "No option is sure to gain 0.5 dB: with all options 21 dB, without 20 dB" in text
    assert "the graph has 25 dB" in " ".join(text.split())


def test_options_share_the_preparation(monkeypatch) -> None:
    """The float model is prepared once for trials of overrides and effort, again for a skip."""
    model = net()
    quantized = lo.quantize(model, WILD, platform="venus", effort="fast", calibrator="max")
    tensor_join = join_models(model, quantized)
    calls = []

    def prepare_counted(*args, **kwargs):
        calls.append(args[3])
        return prepare_model(*args, **kwargs)

    monkeypatch.setattr(option_trials, "prepare_model", prepare_counted)
    trial = _OptionTrial(tensor_join.base, tensor_join.other, WILD)
    override, effort, skip = "--override second=scale:2^-2", "--effort normal", "--skip second"
    shared = [trial.value(options) for options in ((), (override,), (effort,), (override, effort))]
    assert len(calls) == 1
    trial.value((skip,))
    assert len(calls) == 2
    monkeypatch.setattr(option_trials, "_PLANNING_SETTINGS", frozenset())
    alone = _OptionTrial(tensor_join.base, tensor_join.other, WILD)
    values = [alone.value(options) for options in ((), (override,), (effort,), (override, effort))]
    assert len(calls) == 6
    assert values == shared
    assert len(set(values)) > 2  # the options have an effect


@pytest.mark.parametrize("trials, singles", ((1, None), (2, 0), (4, 1), (5, 2), (12, 4), (99, 4)))
def test_large_models_have_fewer_trials(compared, monkeypatch, trials, singles) -> None:
    """`trials` plans of the whole model are allowed: without, with all, and with single options."""
    tensor_join = compared.join
    nodes = len(tensor_join.base.graph.graph)
    monkeypatch.setattr(option_trials, "_MAX_PLANNED_NODES", trials * nodes)
    options = [f"--override second=scale:2^-{power}" for power in range(6)]
    tried = []

    def record(self, chosen):
        tried.append(tuple(chosen))
        return 20.0

    monkeypatch.setattr(_OptionTrial, "value", record)
    monkeypatch.setattr(_OptionTrial, "graph", 20.0)
    monkeypatch.setattr(_OptionTrial, "graph_is_refined", False)
    result = try_options(tensor_join, [finding(option) for option in options], WILD)
    assert (result is None) == (singles is None)
    assert tried == (
        [] if singles is None else [(), tuple(options), *((o,) for o in options[:singles])]
    )
