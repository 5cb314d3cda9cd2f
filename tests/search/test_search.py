"""The search for the cheapest quantization that meets a wish: laws of the ladder, the climb, and
the command.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx import api, cli
from lingeronnx.common.errors import ConfigError, ConstraintError, DataError
from lingeronnx.ir import ir
from lingeronnx.quantization import build_candidate, plan_model, prepare_model, refine_weights
from lingeronnx.quantization.scales import group_shared_scales
from lingeronnx.runtime.session import Session
from lingeronnx.search import Goal, search
from lingeronnx.search.cost import AttemptCost, measure_cost
from lingeronnx.search.ladder import (
    MAX_FLOAT_MAC_FRACTION,
    Attempt,
    iter_rungs,
    rank_layer_groups,
    rank_narrow_layers,
)
from lingeronnx.search.page import _Axis, _pareto_front, render_svg
from lingeronnx.search.run import _MAX_ATTEMPTS
from tests import nets
from tests.case_selection import limit_examples

MODELS = Path(__file__).resolve().parents[2] / "models"
DIGITS = MODELS / "digits_cnn.onnx"
NETS = ("depthwise", "residual", "concat", "branches")


def data(net, count=12, seed=3):
    """Return samples for the net's input x; by default too few for `effort="best"` to choose
    methods by.
    """
    shape = [1 if i == 0 else d for i, d in enumerate(ir.get_shape(net.graph.inputs[0]))]
    return np.random.default_rng(seed).standard_normal((count, *shape[1:])).astype(np.float32)


def three_layers():
    """Two convolutions and a fully connected layer, all small."""
    net = nets.Net(2, 5, 5, seed=8)
    a = net.node("Relu", net.conv("x", (3, 2, 3, 3), pads=[1] * 4))
    f = net.node("Flatten", net.node("Relu", net.conv(a, (4, 3, 3, 3))))
    return net.graph(net.linear(f, (36, 4), out="y"))


def base_of(net, **options):
    """Return what the options give for a net, as `search` begins with it."""
    prepared = prepare_model(net, data(net), None, {"effort": "fast", **options}, hold_out=False)
    planned = plan_model(prepared)
    return build_candidate(planned, refine_weights(planned))


# ---- the ladder ------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("name", NETS)
def test_groups_keep_what_shares_a_scale_together(name):
    """Law: every layer is in one group, and tensors that share a scale are in the same."""
    planned = base_of(getattr(nets, name)(), platform="generic").planned
    groups = rank_layer_groups(planned)
    tensors = [
        tensor for group in groups for layer in group.layers for tensor in layer.activation.tensors
    ]
    assert len(tensors) == len(set(tensors))
    home = {
        tensor: number
        for number, group in enumerate(groups)
        for layer in group.layers
        for tensor in layer.activation.tensors
    }
    for shared_scale in group_shared_scales(planned.partition, planned.prepared.target):
        assert len({home[tensor] for tensor in shared_scale.tensors if tensor in home}) <= 1
    assert sum(group.mac_fraction for group in groups) == pytest.approx(1)


@pytest.mark.parametrize("platform", ("generic", "venus"))
def test_a_rung_only_grows(platform):
    """Law: an attempt does all that the one before it does, and never less of a layer; float stays
    below its bound.
    """
    planned = base_of(
        nets.branches(), platform=platform, weight_bits=4 if platform == "generic" else 8
    ).planned
    target, before, dearest = planned.prepared.target, Attempt(), 0.0
    for rung in iter_rungs(planned, Attempt()):
        for attempt in rung:
            now = {name: widths for name, *widths in attempt.wide}
            then = {name: widths for name, *widths in before.wide}
            assert then.keys() <= now.keys()
            assert all(now[name][i] >= widths[i] for name, widths in then.items() for i in (0, 1))
            assert set(before.floats) <= set(attempt.floats)
            assert all(bits in target.bits for widths in now.values() for bits in widths)
            before = attempt
            dearest = max(dearest, len(attempt.wide))
    assert before.floats
    assert (dearest > 0) == (max(target.bits) > 8)


def test_attempts_are_options_of_quantize():
    """What an attempt says it is, typed as options, gives the same integers."""
    net, images = three_layers(), data(three_layers())
    base = base_of(net, platform="generic", weight_bits=4)
    result, outcome = search(base, Goal(min_sqnr=24.0))
    chosen = outcome.best.attempt
    assert chosen.wide
    again = api.quantize(
        net,
        images,
        platform="generic",
        weight_bits=4,
        effort=chosen.effort,
        overrides=chosen.overrides(outcome.target),
    )
    assert outcome.best.meets_goal
    first, second = (made.session().run(None, {"x": images}) for made in (result, again))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@limit_examples(100)
@given(
    st.dictionaries(
        st.sampled_from(["8x8", "16x16", "8x4", "float"]), st.integers(1, 10**6), min_size=1
    )
)
def test_work_is_the_mean_product_of_widths(macs):
    """Oracle: every multiply-accumulate counted by itself, in bits of data times bits of
    weights.
    """
    products = {"8x8": 64, "16x16": 256, "8x4": 32, "float": 1024}
    total = sum(products[width] * count for width, count in macs.items())
    assert AttemptCost(0, macs).work == pytest.approx(total / 64 / sum(macs.values()))


def test_cost_counts_every_constant():
    """Oracle: the bytes of the initializers as the file holds them."""
    base = base_of(nets.plain(), platform="generic")
    proto = ir.to_proto(base.lowered.graph)
    assert measure_cost(base).bytes == sum(
        len(tensor.raw_data) for tensor in proto.graph.initializer
    )
    assert set(measure_cost(base).macs) == {"8x8"}


# ---- the climb -------------------------------------------------------------------------------


def test_the_cheapest_that_meets_is_chosen():
    """Of a rung, the attempt just below the chosen one was made and does not meet the wish."""
    base = base_of(nets.branches(), platform="generic", weight_bits=4)
    result, outcome = search(base, Goal(min_sqnr=24.0))
    assert outcome.best.meets_goal
    assert outcome.best.cost is not None
    met = [trial for trial in outcome.trials if trial.meets_goal]
    assert min(trial.cost.work for trial in met) == outcome.best.cost.work
    assert result.report.search["met"]
    assert not any("goal not met" in line for line in result.report.warnings)
    worst = min(values["sqnr"] for values in result.report.outputs.values())
    assert worst >= 24.0
    assert len(outcome.trials) <= _MAX_ATTEMPTS


def test_a_chip_gets_outputs_in_32_bits():
    """The rung above more effort: with samples too few for `best`, raw integers of the last layer
    meet the wish.
    """
    net = nets.Net(2, 5, 5, seed=8)
    f = net.node("Flatten", net.node("Relu", net.conv("x", (3, 2, 3, 3))), out="f")
    model = net.graph(net.linear(f, (27, 4), out="z"))
    feed = nets.samples(model, 12)
    options = {"overrides": {"z": {"out_bits": 32}}}
    narrow, wide = (
        api.quantize(model, feed, **more).report.outputs["z"]["sqnr"] for more in ({}, options)
    )
    result = api.quantize(model, feed, min_sqnr=(narrow + wide) / 2)
    assert result.report.search["met"]
    assert result.report.search["options"][-1] == "--override Gemm_z=out_bits:32"
    assert [trial["what"] for trial in result.report.search["trials"]][:2] == [
        "as requested",
        "effort best",
    ]
    assert result.plan.tensors["z"].bits == 32
    assert result.report.chip_ready
    assert ("Dequant_z", "Dequant") in [
        (node.node, node.op_type) for node in result.report.host_part
    ]
    assert [o.dtype for o in result.chip.graph.outputs] == [ir.DataType.INT32]


def test_met_at_once_makes_one_attempt():
    base = base_of(nets.plain(), platform="venus")
    _, outcome = search(base, Goal(min_sqnr=-50.0))
    assert (len(outcome.trials), outcome.stop_reason, outcome.best.attempt) == (1, "met", Attempt())


def test_time_is_a_wish_beside_accuracy():
    """One cycle more than is needed is enough; one less is told, and nothing slower is tried."""
    base = base_of(nets.plain(), platform="arcs", clock=100.0)
    cycles = base.result.report.time.latency.total
    _, outcome = search(base, Goal(min_sqnr=-50.0, max_ms=(cycles + 1) / 1e5, clock=100.0))
    assert (outcome.stop_reason, outcome.best.limit_excess) == ("met", 0.0)
    assert "ms a call at 100 MHz at most" in outcome.goal.text
    result, outcome = search(base, Goal(min_sqnr=-50.0, max_ms=(cycles - 1) / 1e5, clock=100.0))
    assert "accurate enough, but a call takes" in outcome.stop_reason
    assert outcome.best.limit_excess == pytest.approx(cycles / (cycles - 1) - 1)
    assert "search goal not met" in result.report.warnings[0]


def test_flash_is_a_limit_beside_accuracy():
    """The package's constants as they are, and one byte less, which nothing more accurate takes."""
    base = base_of(nets.plain(), platform="arcs")
    flash = base.result.report.cost.weights
    _, outcome = search(base, Goal(min_sqnr=-50.0, max_flash=flash))
    assert (outcome.stop_reason, outcome.best.cost.flash) == ("met", flash)
    assert outcome.goal.text == (
        f"every output at -50 dB at least, {flash:,} bytes of flash for package constants at most"
    )
    _, outcome = search(base, Goal(min_sqnr=-50.0, max_flash=flash - 1))
    assert outcome.stop_reason == (
        f"accurate enough, but {flash:,} bytes of flash for package constants; use a smaller model"
    )


def test_a_wish_for_time_lets_time_decide():
    options = {"platform": "arcs", "effort": "fast"}
    quantized = api.quantize(
        nets.plain(), nets.samples(nets.plain()), min_sqnr=-50.0, max_ms=50, clock=100, **options
    )
    assert quantized.graph.metadata_props["lingeronnx.objective"] == "time"
    assert quantized.report.search["met"]
    other = nets.quantized(nets.plain(), **options)
    assert "lingeronnx.objective" not in other.graph.metadata_props


@pytest.mark.parametrize(
    "options, text",
    (
        (
            {"max_ms": 5.0, "clock": 100.0},
            "max_flash and max_ms alone search over weight bit widths; add weight_bits auto",
        ),
        ({"max_ms": 5.0, "min_sqnr": 1.0}, "add clock"),
        ({"max_ms": 0.0, "min_sqnr": 1.0, "clock": 100.0}, "above 0"),
        (
            {"max_ms": 5.0, "min_sqnr": 1.0, "clock": 100.0, "platform": "venus"},
            "no published timing data",
        ),
    ),
)
def test_wishes_for_time_that_cannot_be_measured(options, text):
    with pytest.raises(ConfigError, match=text):
        api.quantize(nets.plain(), nets.samples(nets.plain()), **{"platform": "arcs", **options})


def test_what_cannot_be_met_says_so():
    """The best that is fit for a chip comes back, with a warning and what would be needed."""
    net = nets.Net(2, 4, 4)
    flat = net.node("Flatten", net.node("Relu", net.conv("x", (2, 2, 3, 3))))
    base = base_of(net.graph(net.linear(flat, (8, 3), out="y")), platform="venus")
    result, outcome = search(base, Goal(min_sqnr=200.0))
    assert not outcome.best.meets_goal
    assert result.report.chip_ready
    assert "search goal not met" in result.report.warnings[0]
    assert "venus computes in 8 bits only" in outcome.stop_reason
    nearest = min(
        trial.measurement.shortfall for trial in outcome.trials if trial.measurement is not None
    )
    assert f"{nearest:.3g} short of the goal" in outcome.stop_reason
    for trial in outcome.trials:
        total = sum(trial.cost.macs.values())
        assert trial.cost.macs.get("float", 0) <= MAX_FLOAT_MAC_FRACTION * total


def test_a_search_that_goes_on_makes_nothing_twice(tmp_path):
    """Stopped by its budget after one attempt, then resumed: the same trials and the same integers
    as in one go.
    """
    base, goal, log = (
        base_of(three_layers(), platform="generic", weight_bits=4),
        Goal(min_sqnr=20.0),
        tmp_path / "log",
    )
    whole, in_one_go = search(base, goal)
    _, cut = search(base, goal, minutes=0, log=log)
    assert len(cut.trials) == 1
    assert "time budget of 0 minutes" in cut.stop_reason
    result, outcome = search(base, goal, log=log, resume=True)
    assert [t.attempt for t in outcome.trials] == [t.attempt for t in in_one_go.trials]
    again, last = search(base, goal, minutes=0, log=log, resume=True)  # everything is in the log
    assert [t.attempt for t in last.trials] == [t.attempt for t in in_one_go.trials]
    for other in (result, again):
        assert ir.to_bytes(other.graph) == ir.to_bytes(whole.graph)
    with pytest.raises(ConfigError, match="omit --resume"):
        search(base, Goal(min_sqnr=23.0), log=log, resume=True)


def test_an_attempt_whose_line_is_damaged_is_made_again(tmp_path):
    base, goal, log = (
        base_of(three_layers(), platform="generic", weight_bits=4),
        Goal(min_sqnr=1.0),
        tmp_path / "log",
    )
    _, whole = search(base, goal, log=log)
    head, line = log.read_text().splitlines()
    for damage in (
        {"macs": {"8x8": {}}},
        {"macs": {"8x8": -1}},
        {"bytes": 10**400},
        {"ready": None},
        {"value": "1"},
    ):
        log.write_text("\n".join((head, json.dumps({**json.loads(line), **damage}), "")))
        _, again = search(base, goal, log=log, resume=True)
        assert [(t.measurement, t.cost) for t in again.trials] == [
            (t.measurement, t.cost) for t in whole.trials
        ], damage
        assert len(log.read_text().splitlines()) == 3, damage
    log.write_text(
        "\n".join(
            (head, json.dumps({k: v for k, v in json.loads(line).items() if k != "float"}), "")
        )
    )
    search(base, goal, log=log, resume=True)
    assert len(log.read_text().splitlines()) == 2  # no labels: nobody asks for it


def test_ctrl_c_returns_the_best_so_far(monkeypatch):
    """An interrupt in the third attempt ends the search with the better of the first two."""
    import lingeronnx.search.attempts as attempts

    calls, true = [], attempts.build_refined_candidate

    def interrupt(planned, progress):
        calls.append(planned)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return true(planned, progress)

    base = base_of(three_layers(), platform="generic", weight_bits=4)
    monkeypatch.setattr(attempts, "build_refined_candidate", interrupt)
    result, outcome = search(base, Goal(min_sqnr=90.0))
    assert len(outcome.trials) == 2
    assert outcome.stop_reason.startswith("interrupted")
    assert outcome.best is min(outcome.trials, key=lambda trial: trial.rank)
    assert result.report.search["options"] == outcome.best.attempt.to_cli_options(outcome.target)


def test_a_function_of_the_users_is_a_metric(tmp_path, monkeypatch):
    """The drop is counted in the function's own unit, larger being better."""
    text = "def share(outputs, labels):\n    return float((outputs.argmax(1) == labels).mean())\n"
    (tmp_path / "own.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    net = three_layers()
    images = data(net, 60)
    labels = Session(net)(images).argmax(1)
    labels[::9] = 0  # the float model is wrong there, too
    np.savez("test.npz", x=images, labels=labels)
    search_report = api.quantize(
        net,
        data(net),
        platform="generic",
        weight_bits=4,
        effort="fast",
        eval_data="test.npz",
        metric="own.py:share",
        max_drop=0.001,
        limit=50,
    ).report.search
    assert search_report["met"]
    assert 0 <= search_report["trials"][-1]["value"] <= 1
    assert search_report["float"] is not None
    assert search_report["wanted"] == pytest.approx(search_report["float"] - 0.001)


@pytest.mark.parametrize(
    "goal, text",
    (
        ({}, "pass exactly one"),
        ({"max_drop": 1.0, "min_sqnr": 30.0}, "pass exactly one"),
        ({"max_drop": 1.0}, "needs eval data"),
        ({"max_drop": -1.0, "data": "x.npz"}, "0 or more"),
        ({"max_drop": 1.0, "data": "x.npz", "metric": "sqnr"}, "compares two models"),
    ),
)
def test_wishes_that_cannot_be_measured(goal, text):
    with pytest.raises(ConfigError, match=text):
        Goal(**goal).check()


def test_more_rejects():
    net, images = nets.plain(), data(nets.plain())
    with pytest.raises(DataError, match="not a generator"):
        api.quantize(net, images, eval_data=iter([]), max_drop=1.0)
    with pytest.raises(ConfigError, match="the plan fixes them"):
        api.quantize(net, images, plan=base_of(net).planned.plan, min_sqnr=30.0)
    skipped = [str(node.name) for node in net.graph][1]
    with pytest.raises(ConstraintError, match="not chip-ready"):
        api.quantize(net, images, min_sqnr=90.0, require_chip=True, skip=(skipped,), effort="fast")


# ---- page and command ------------------------------------------------------------------------


@limit_examples(100)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_the_front_is_paretos(points):
    """Oracle: a point is on the front where no other has at most its work and at least its value,
    and is not it.
    """
    made = [{"work": float(work), "value": float(value)} for work, value in points]
    front = {(t["work"], t["value"]) for t in _pareto_front(made)}
    assert front == {
        (a, b)
        for a, b in map(tuple, points)
        if not any(c <= a and d >= b and (c, d) != (a, b) for c, d in points)
    }


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.booleans())
@limit_examples(20)
def test_the_picture_is_sound_svg(value, wanted, met):
    """Whatever the numbers, every mark lies inside of the picture."""
    trial = {"what": "<a> & b", "value": value, "work": 1.0, "met": met, "chosen": True}
    drawn = render_svg({"trials": [trial], "unit": "dB", "wanted": wanted, "float": None})
    root = ET.fromstring(drawn)
    (mark,) = root.iter("{http://www.w3.org/2000/svg}circle")
    assert 0 <= float(mark.get("cx")) <= 720
    assert 0 <= float(mark.get("cy")) <= 400


@limit_examples(60)
@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round(low, span):
    """Multiples of 1, 2, 2.5 or 5 times a power of ten inside of the axis, two to six of them."""
    axis = _Axis([low, low + span], 0, 100)
    ticks = axis.ticks
    assert 2 <= len(ticks) <= 6
    step = ticks[1] - ticks[0]
    assert all(axis.low - step / 1e3 <= tick <= axis.high + step / 1e3 for tick in ticks)
    assert np.allclose(np.diff(ticks), step)
    assert round(step / 10.0 ** np.floor(np.log10(step * (1 + 1e-6))), 3) in (1, 2, 2.5, 5)


def test_the_command(tmp_path):
    """The wish on the command line: the table, the files beside the graph, JSON, and going on."""
    net, files = three_layers(), [tmp_path / name for name in ("net.onnx", "calib.npz", "d.onnx")]
    ir.save(net, files[0])
    np.savez(files[1], x=data(net))
    model, calib, out = map(str, files)
    words = [
        "quantize",
        model,
        "-o",
        out,
        "--calib",
        calib,
        "--platform",
        "generic",
        "--weight-bits",
        "4",
        "--effort",
        "fast",
        "--min-sqnr",
        "20",
        "--json",
    ]
    result = CliRunner().invoke(cli.main, words)
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)["search"]
    assert body["met"]
    assert body["goal"] == "every output at 20 dB at least"
    assert "Attempts: every output at 20 dB at least" in result.stderr
    page = (tmp_path / "d_search.html").read_text()
    assert (tmp_path / "d_search.svg").read_text().removeprefix("<svg ") in page
    assert page.count('class="copy"') == sum(
        bool(trial["options"]) for trial in [*body["trials"], body]
    )
    assert json.loads(page.split('id="data-search">')[1].split("</script>")[0]) == body
    assert len(re.findall("<circle", page)) == len(body["trials"]) == page.count("<tr ") - 1
    lines = (tmp_path / "d_search.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len(body["trials"])
    again = CliRunner().invoke(cli.main, [*words, "--resume"])
    assert again.exit_code == 0
    assert (tmp_path / "d_search.jsonl").read_text().splitlines() == lines


@pytest.mark.parametrize(
    "options, text",
    (
        (["--budget", "5"], "--budget needs --max-drop"),
        (["--resume"], "--resume needs --max-drop"),
        (["--max-ms", "5", "--clock", "300"], "add weight_bits auto"),
        (["--max-flash", "5000"], "add weight_bits auto"),
        (["--max-flash", "0", "--weight-bits", "auto"], "above 0"),
        (["--max-flash", "5k"], "not a valid integer"),
        (
            ["--max-ms", "5", "--weight-bits", "auto", "--platform", "arcs"],
            "add clock (--clock MHZ)",
        ),
        (["--max-drop", "1"], "needs eval data"),
        (
            ["--max-drop", "1", "--min-sqnr", "30", "--eval", str(MODELS / "digits_test.npz")],
            "pass exactly one",
        ),
        (["--min-sqnr", "30", "--resume"], "omit --resume"),
    ),
)
def test_the_command_refuses(tmp_path, options, text):
    """One line, and nothing written; a log of something else is left as it is."""
    (tmp_path / "d_search.jsonl").write_text('{"goal": "another"}\n')
    words = [
        "quantize",
        str(DIGITS),
        "-o",
        str(tmp_path / "d.onnx"),
        "--calib",
        str(MODELS / "digits_calib.npz"),
    ]
    result = CliRunner().invoke(cli.main, [*words, "--effort", "fast", *options])
    assert result.exit_code in (1, 2)
    assert text in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["d_search.jsonl"]
    assert (tmp_path / "d_search.jsonl").read_text() == '{"goal": "another"}\n'


@pytest.mark.slow
def test_the_last_layer_goes_to_float_after_it_was_wide():
    """The rungs in float come behind those with wide outputs: a layer that goes to float has no
    width any more.
    """
    net = ir.from_proto(
        onnx.load(Path(__file__).resolve().parents[1] / "qdq" / "files" / "planned_by_peers.onnx")
    )
    _, outcome = search(base_of(net, platform="generic"), Goal(min_sqnr=300))
    assert any(
        trial.attempt.raw and set(trial.attempt.raw) <= set(trial.attempt.floats)
        for trial in outcome.trials
    )


# ---- widths of weights -----------------------------------------------------------------------


@pytest.mark.parametrize("platform", ("arcs", "generic"))
def test_weights_come_back_one_layer_at_a_time(platform):
    """Law: each layer with narrow weights is named once, and the rung ends where all have 8
    bits.
    """
    planned = base_of(nets.shortcut(), platform=platform, weight_bits=4).planned
    narrow = rank_narrow_layers(planned)
    names = [layer.selector for layer in narrow]
    gains = [layer.gain / layer.extra_bytes for layer in narrow]
    assert gains == sorted(gains, reverse=True)
    assert len(names) == len(set(names)) == 3
    alone = next(rung for rung in iter_rungs(planned, Attempt()) if rung[0].wide)
    assert [len(attempt.wide) for attempt in alone] == [1, 2, 3]
    assert {widths for _, *widths in map(tuple, alone[-1].wide) for widths in [tuple(widths)]} == {
        (8, 8)
    }


def test_narrow_weights_cost_half():
    """Oracle: the bytes of the int8 constants of the layers that say 4 bits, by half."""
    bases = [base_of(nets.shortcut(), platform="arcs", weight_bits=bits) for bits in (8, 4)]
    whole, few = (measure_cost(base).bytes for base in bases)
    graph = bases[1].lowered.graph
    sizes = [
        node.inputs[1].const_value.nbytes
        for node in graph.graph
        if ir.get_attr(node, "parameter_bits") == 4
    ]
    assert whole - few == sum(size // 2 for size in sizes) > 0


def test_auto_gives_the_wish_the_fewest_bits():
    """A wish that 4 bits meet everywhere, and one that needs more in some layers."""
    net, images = three_layers(), data(three_layers())
    counts = []
    for wish in (5.0, 24.0):
        quantized = api.quantize(
            net, images, platform="arcs", effort="best", weight_bits="auto", min_sqnr=wish
        )
        nodes = [node for node in quantized.graph.graph if "parameter_bits" in node.attributes]
        counts.append(sum(ir.get_attr(node, "parameter_bits") == 4 for node in nodes))
        assert quantized.report.search["met"]
        assert quantized.report.chip_ready
    assert counts[0] > counts[1]


@pytest.mark.parametrize(
    ("wish", "count", "few"), [(50.0, 18, True), (50.0, 20, False), (100.0, 10, False)]
)
def test_a_wish_that_so_few_labels_cannot_tell_is_doubted(wish, count, few):
    """Nine samples that may be lost are too few, ten are not."""
    net = nets.plain()
    feed = data(net, count)
    labels = np.zeros(count, np.int64)
    quantized = api.quantize(
        net,
        data(net),
        platform="venus",
        effort="fast",
        max_drop=wish,
        eval_data=[({"x": feed}, labels)],
    )
    doubts = [note for note in quantized.report.notes if "so few that chance decides" in note]
    assert [f"of {count} samples" in note for note in doubts] == [True] * few


def test_auto_needs_a_wish():
    """And a platform's own narrowest width is where it begins."""
    with pytest.raises(ConfigError, match="weight_bits auto: a requirement selects the widths"):
        api.quantize(nets.plain(), data(nets.plain()), platform="arcs", weight_bits="auto")
    quantized = api.quantize(
        nets.plain(),
        data(nets.plain()),
        platform="venus",
        effort="fast",
        weight_bits="auto",
        min_sqnr=1.0,
    )
    assert quantized.report.search["met"]
