"""One page on a quantization: what it says is what the results say, in every way that it is
written.
"""

import json
import re
from dataclasses import replace

import numpy as np
import onnx_ir
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx.analysis.compare.comparison import Comparison
from lingeronnx.analysis.compare.option_trials import apply_option
from lingeronnx.api.report_overview import QuantizeCommand
from lingeronnx.cli import main
from lingeronnx.common.escaping import escape_html as shown
from lingeronnx.common.pages.document import to_json_value
from lingeronnx.ir import onnx_file
from lingeronnx.runtime.provenance import load_quantize_settings
from tests.flow.test_json_schemas import check as check_schema
from tests.nets import Net, concat, plain, quantized, samples
from tests.pages.test_document import data, self_contained


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with a model, an integer graph with a scale 16 times too large, and data."""
    home = tmp_path_factory.mktemp("report")
    model = concat()
    bad = quantized(model, overrides={"t4": {"scale": 128.0}}, effort="fast")
    lo.ir.ir.save(model, home / "m.onnx")
    bad.save(home / "q.onnx")
    np.savez(home / "d.npz", **samples(model, 32, seed=2))
    return home, bad


def run(*words):
    """Call the command line."""
    return CliRunner().invoke(main, [str(word) for word in words])


def test_it_says_what_the_results_say(files, tmp_path):
    """Data of the page, of report.json and of the results are one; the advice stands first; options
    can be copied.
    """
    home, bad = files
    lo.report(home / "m.onnx", bad, home / "d.npz", tmp_path, again="lingeronnx quantize m.onnx")
    text, body = (
        (tmp_path / "report.html").read_text(),
        json.loads((tmp_path / "report.json").read_text()),
    )
    assert self_contained(text)
    assert check_schema(body, "page") == []
    assert list(body) == ["overview", "network", "compare", "check", "schedule", "quantize"]
    assert (
        data(text, "quantize")
        == body["quantize"]
        == json.loads(json.dumps(to_json_value(bad.report.to_dict())))
    )
    assert (
        data(text, "check")
        == body["check"]
        == json.loads(json.dumps(to_json_value(lo.check(bad.graph).to_dict())))
    )
    found = lo.compare(home / "m.onnx", bad, home / "d.npz")
    assert body["compare"]["findings"] == [finding.to_dict() for finding in found.findings]
    assert body["compare"]["outputs"] == pytest.approx(found.outputs, rel=1e-5)
    actions = body["overview"]["actions"]
    assert {step["untried_reason"] for step in actions} == {"not tried: no calibration data"}
    assert found.findings[0].options[0] in [step["options"] for step in actions]
    assert [text.index(f'id="{key}"') for key in body] == sorted(
        text.index(f'id="{key}"') for key in body
    )
    pasted = [*actions, *(hint for hint in body["overview"]["hints"] if hint["options"])]
    assert text.split('id="network"')[0].count('class="copy"') == len(pasted) > 0


def test_actions_are_tried_and_the_gain_is_what_quantizing_with_them_gives(files, tmp_path):
    """The first action repairs the scale; its gain is the difference of two reports of quantize."""
    home, bad = files
    lo.report(home / "m.onnx", bad, home / "d.npz", tmp_path, calib=home / "d.npz", budget=5)
    overview = json.loads((tmp_path / "report.json").read_text())["overview"]
    assert [tile["label"] for tile in overview["tiles"]][1:] == [
        "runs on venus",
        "time per call",
        "flash + RAM",
    ]
    best = overview["actions"][0]
    assert best["gain_db"] > 3
    assert best["gain_db"] == max(action["gain_db"] for action in overview["actions"])
    again = lo.quantize(
        home / "m.onnx", home / "d.npz", **apply_option(recorded(bad), best["options"])
    )
    gain = worst(again) - worst(bad)
    assert gain == pytest.approx(best["gain_db"])


def test_calibration_data_that_cannot_be_read_are_an_error(files, tmp_path):
    """They are read only for the trials, whose failures are otherwise no more than untried."""
    home, _ = files
    words = ("report", home / "m.onnx", home / "q.onnx", "--data", home / "d.npz")
    result = run(*words, "-o", tmp_path / "out", "--calib", home / "gone.npz")
    assert (result.exit_code, "gone.npz" in result.output) == (1, True), result.output
    assert not (tmp_path / "out").exists()


def test_a_file_that_differs_from_the_model_is_quantized_again(files, tmp_path):
    """The transposed layer is the first loss; the first action has no options and a gain."""
    home, _ = files
    data = dict(np.load(home / "d.npz"))
    result = lo.quantize(home / "m.onnx", data, effort="fast")
    node = [n for n in result.graph.graph if n.op_type == "Conv2dInt"][1]
    weights = node.inputs[1].const_value.numpy()
    node.inputs[1].const_value = onnx_ir.tensor(np.ascontiguousarray(weights.swapaxes(2, 3)))
    result.save(home / "damaged.onnx")
    pages = tmp_path / "page"
    lo.report(home / "m.onnx", home / "damaged.onnx", data, pages, calib=data, budget=5)
    overview = json.loads((pages / "report.json").read_text())["overview"]
    loss, action = overview["losses"][0], overview["actions"][0]
    assert (loss["cause"], action["options"]) == ("weights transposed", "")
    assert loss["share_percent"] > 50
    assert loss["tensor"] == action["tensor"]
    assert action["gain_db"] > 3
    command = "<code>lingeronnx quantize m.onnx --calib DATA -o damaged.onnx</code>"
    page = (pages / "report.html").read_text()
    assert command in page
    assert "was changed after quantizing" in page
    assert "limit: the float" not in page


@pytest.mark.parametrize(("platform", "expected"), [("venus", False), ("generic", True)])
def test_bits_are_proposed_where_the_platform_has_them(tmp_path, platform, expected):
    """No option stands twice."""
    model = plain()
    result = quantized(model, platform=platform, effort="fast")
    lo.report(model, result, samples(model, 8), tmp_path)
    actions = json.loads((tmp_path / "report.json").read_text())["overview"]["actions"]
    assert any("bits:16" in action["options"] for action in actions) == expected
    assert len({action["options"] for action in actions}) == len(actions)


def test_trials_quantize_for_the_platform_and_mode_of_the_graph(tmp_path, monkeypatch):
    model = plain()
    settings = {"platform": "generic", "mode": "max-value", "effort": "fast"}
    result = quantized(model, **settings)
    calls = []
    monkeypatch.setattr(
        "lingeronnx.api.report_page.quantize",
        lambda *args, **used: calls.append(used) or result,
    )
    data = samples(model, 8)
    lo.report(model, result, data, tmp_path, calib=data)
    assert calls
    assert all({**settings, **used} == used for used in calls)


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ("q m.onnx --effort fast", "--effort normal", "q m.onnx --effort normal"),
        ("q --effort=fast m.onnx", "--effort best", "q m.onnx --effort best"),
        ("q --effort 'a b' 'm n.onnx'", "--effort best", "q 'm n.onnx' --effort best"),
        ("q --verbose m.onnx", "--verbose", "q m.onnx --verbose"),
        (
            "q --override $'a\\'\\t=bits:8' m.onnx",
            "--override b=bits:16",
            "q --override $'a\\'\\t=bits:8' m.onnx --override b=bits:16",
        ),
        ("", "--effort best", "--effort best"),
    ],
)
def test_an_option_replaces_the_one_of_the_same_name(command, options, expected):
    assert QuantizeCommand(command).add(options) == expected


def test_options_of_several_findings_are_tried_together(files, tmp_path, monkeypatch):
    """They are one action."""
    home, bad = files
    together = "--override t4=bits:16 --effort normal"
    calls = []
    monkeypatch.setattr(Comparison, "options", together)
    monkeypatch.setattr(
        "lingeronnx.api.report_actions.rank_findings",
        lambda comparison: [(replace(comparison.findings[0], options=(together,)), 1.0)],
    )
    monkeypatch.setattr(
        "lingeronnx.api.report_page.quantize", lambda *args, **used: calls.append(used) or bad
    )
    data = dict(np.load(home / "d.npz"))
    lo.report(home / "m.onnx", bad, data, tmp_path, calib=data)
    assert calls[0]["effort"] == "normal"
    assert int(calls[0]["overrides"]["t4"]["bits"]) == 16


def worst(result):
    """Return the lowest SQNR of an output in dB."""
    return min(figures["sqnr"] for figures in result.report.outputs.values())


def recorded(result):
    """Return the settings that the graph of a result records."""
    return load_quantize_settings(result.graph)


def test_without_time_nothing_is_tried_but_the_first(files, tmp_path):
    """The first trial shows how long they take; the others do not begin."""
    home, bad = files
    lo.report(home / "m.onnx", bad, home / "d.npz", tmp_path, calib=home / "d.npz", budget=1e-9)
    actions = json.loads((tmp_path / "report.json").read_text())["overview"]["actions"]
    assert sum(action["gain_db"] is not None for action in actions) <= 1
    assert "not tried within the time budget" in {action["untried_reason"] for action in actions}


def test_each_file_is_opened_once(files, tmp_path, monkeypatch):
    """For its own look, for check and for compare; the page still names both files, and judges the
    file itself.
    """
    home, _ = files
    opened, read = [], onnx_file.read_model
    monkeypatch.setattr(
        onnx_file, "read_model", lambda path: opened.append(path.name) or read(path)
    )
    lo.report(home / "m.onnx", home / "q.onnx", home / "d.npz", tmp_path, limit=8)
    assert sorted(opened) == ["m.onnx", "q.onnx"]
    body = json.loads((tmp_path / "report.json").read_text())
    assert body["compare"]["names"] == ["m.onnx", "q.onnx"]
    monkeypatch.undo()
    assert body["check"] == json.loads(
        json.dumps(to_json_value(lo.check(home / "q.onnx").to_dict()))
    )


def test_the_command(files, tmp_path):
    """Real files in, two files out; what sensitivity left is shown; nothing is known of what
    quantize said.
    """
    home, _ = files
    (tmp_path / "s").mkdir()
    lo.sensitivity(home / "m.onnx", home / "d.npz", folder=tmp_path / "s", limit=8)
    done = run(
        "report",
        home / "m.onnx",
        home / "q.onnx",
        "--data",
        home / "d.npz",
        "--limit",
        8,
        "-o",
        tmp_path / "r",
        "--sensitivity",
        tmp_path / "s",
        "--json",
    )
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"report.html", "report.json"}
    assert [name.rpartition("/")[2] for name in json.loads(done.stdout)["written"]] == [
        "report.html",
        "report.json",
    ]
    body = json.loads((tmp_path / "r/report.json").read_text())
    assert list(body) == ["overview", "network", "compare", "check", "schedule", "sensitivity"]
    assert body["sensitivity"] == json.loads((tmp_path / "s/sensitive_ops.json").read_text())


def test_quantize_writes_it_too(files, tmp_path):
    home, _ = files
    words = [
        "quantize",
        home / "m.onnx",
        "-o",
        tmp_path / "q.onnx",
        "--effort",
        "fast",
        "--report",
        tmp_path / "r",
    ]
    done = run(*words, "--calib", home / "d.npz", "--json")
    assert done.exit_code == 0, done.output
    told, body = json.loads(done.stdout), json.loads((tmp_path / "r/report.json").read_text())
    assert body["quantize"] == {key: told[key] for key in body["quantize"]}
    assert "-g " + str(tmp_path / "q.onnx") in (tmp_path / "r/report.html").read_text()
    wrong = run(*words)
    assert wrong.exit_code == 2
    assert "pass --eval DATA or --calib DATA" in wrong.stderr


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("m.onnx", "m.onnx", "-o", "out"), "report needs a quantized model"),
        (("m.onnx", "q.onnx", "-o", "d.npz"), "give a folder"),
        (("m.onnx", "q.onnx", "-o", "out", "--sensitivity", "."), "cannot read the ranking"),
        (("m.onnx", "none.onnx", "-o", "out"), "none.onnx"),
    ],
)
def test_what_is_wrong_is_one_line(files, monkeypatch, words, said):
    home, _ = files
    monkeypatch.chdir(home)
    done = run("report", *words, "--data", "d.npz", "--limit", 4)
    assert done.exit_code == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (home / "out").exists()


def test_names_stay_names(tmp_path):
    """A tensor whose name would end the script, and turns the writing round."""
    from tests.nets import Net

    net = Net(3, 6, 6, seed=3)
    made = net.conv("x", (4, 3, 3, 3), out="</script><b>|\u202e\"'&")
    model = net.graph(net.node("Relu", made, out="y"))
    lo.report(model, quantized(model), samples(model, 4), tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "</script><b>" not in text
    assert "\u202e" not in text
    assert len(re.findall("</script>", text)) == len(re.findall("<script", text))


def test_of_a_graph_in_parts_it_says_what_quantize_prints(tmp_path, monkeypatch):
    """The line, the host's operators and the advice; the headline does not speak against the
    packer's lines.
    """
    monkeypatch.chdir(tmp_path)
    net = Net(4, 8, 8, seed=3)
    soft = net.node("Softmax", net.conv("x", (8, 4, 3, 3), pads=[1] * 4), axis=3)
    model = net.graph(net.conv(soft, (4, 8, 3, 3), pads=[1] * 4, out="y"))
    lo.ir.ir.save(model, "m.onnx")
    np.savez("d.npz", **samples(model, 8))
    words = [
        "quantize",
        "m.onnx",
        "--calib",
        "d.npz",
        "-o",
        "q.onnx",
        "--platform",
        "venus",
        "--effort",
        "fast",
    ]
    made = json.loads(run(*words, "--report", "r", "--json").stdout)
    assert len(made["chip_parts"]) == 2
    assert made["merges"]
    run("report", "m.onnx", "q.onnx", "--data", "d.npz", "-o", "alone")
    for folder in ("r", "alone"):
        text = (tmp_path / folder / "report.html").read_text()
        body = json.loads((tmp_path / folder / "report.json").read_text())
        assert check_schema(body, "page") == []
        assert body["check"]["runs"] == made["runs"]
        assert body["check"]["merges"] == made["merges"]
        assert {entry["node"] for entry in body["check"]["on_host"]} == {
            n["node"] for n in made["float_nodes"]
        }
        hints = [hint["text"] for hint in body["overview"]["hints"]]
        fewer = [line for line in hints if line.startswith("fewer parts: ")]
        assert len(fewer) == len(made["merges"])
        assert all(f"<b>check</b>: {shown(line)}" in text for line in fewer)
        assert "each of its 2 chip parts packs and is correct (by measured rules)" in text
        assert "the packer refuses" not in text
    by_quantize = (tmp_path / "r/report.html").read_text()
    assert f"<dt>runs on venus</dt><dd>{shown(made['runs'])}</dd>" in by_quantize
    assert by_quantize.index("Pack each part with") < by_quantize.index(
        shown(made["program"][-1]["packer"])
    )
