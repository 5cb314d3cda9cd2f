"""The page of `sensitivity`: of the two files that a run leaves, with the options that it
advises.
"""

import json

import pytest

import lingeronnx as lo
from lingeronnx.analysis.sensitivity.page import (
    load_sensitivity_section,
    parse_advised_options,
    render_sensitivity_section,
)
from tests.analysis.sensitivity.test_ranking import ranking
from tests.pages.test_document import data, self_contained


def test_of_a_run(tmp_path):
    ranking().write(tmp_path)
    text = (tmp_path / "sensitive_ops.html").read_text()
    assert self_contained(text)
    assert data(text, "sensitivity") == json.loads((tmp_path / "sensitive_ops.json").read_text())
    part, words = load_sensitivity_section(tmp_path)
    assert words == "--skip x --skip x" == parse_advised_options(ranking().text())
    assert f"<code>{words}</code>" in part.html
    assert part.html in text


def test_where_nothing_is_advised():
    assert parse_advised_options(ranking(quantized=40.0).text()) == ""


@pytest.mark.parametrize(
    ("text", "rows"), [("", "[]"), ("op_name\n", "{"), ("op_name\n", "3"), ("\xff", "[]")]
)
def test_what_no_run_left_is_refused(tmp_path, text, rows):
    (tmp_path / "sensitive_ops.txt").write_bytes(text.encode("latin-1"))
    (tmp_path / "sensitive_ops.json").write_text(rows)
    with pytest.raises(lo.ConfigError, match="does not contain the files of sensitivity"):
        load_sensitivity_section(tmp_path)


def test_widths_of_weights_are_a_column():
    ranked = ranking(weight_bits={"conv": 4})
    html = render_sensitivity_section(ranked.text(), ranked.to_list()).html
    assert html.count('data-label="weight_bits"') == len(ranked.ranking)
    assert '<td role="cell" data-label="weight_bits">4</td>' in html
