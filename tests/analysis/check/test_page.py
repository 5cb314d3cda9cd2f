"""The page of `check`: the verdict, memory, every layer, and the arguments with their button."""

import json

from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx.analysis.check.page import render_check_page
from lingeronnx.cli import main
from lingeronnx.common.pages.document import to_json_value
from tests.nets import plain as net
from tests.nets import quantized
from tests.pages.test_document import data, self_contained


def test_it_has_the_verdict_the_costs_and_the_arguments():
    report = lo.check(quantized(net()).graph)
    text = render_check_page(report, "m<b>.onnx")
    assert self_contained(text)
    assert data(text, "check") == json.loads(json.dumps(to_json_value(report.to_dict())))
    assert "m&lt;b&gt;.onnx" in text
    assert report.verdict in text
    assert text.count("<meter") == 2
    assert text.count('<tr role="row">') == 1 + len(report.cost.layers)
    assert f"<code>{report.choice.command_line}</code>" in text


def test_a_float_model_that_breaks_limits(tmp_path):
    """The command writes it beside check.txt, where something is wrong as well."""
    graph = net()
    lo.ir.ir.save(graph, tmp_path / "m.onnx")
    words = [
        "check",
        str(tmp_path / "m.onnx"),
        "--platform",
        "venus",
        "-o",
        str(tmp_path / "out"),
        "--json",
    ]
    result = CliRunner().invoke(main, words)
    text = (tmp_path / "out/check.html").read_text()
    body = data(text, "check")
    assert body == {
        key: value for key, value in json.loads(result.stdout).items() if key != "model"
    }
