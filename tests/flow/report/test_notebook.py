"""What a quantized model shows of itself in a notebook."""

from dataclasses import replace
from xml.etree import ElementTree

import lingeronnx as lo
from lingeronnx.quantization.report.report import FloatNode
from tests.nets import plain, quantized, samples


def test_report_and_worst_layers():
    """The platform, the outputs, the five tensors farthest from the float model; names are
    escaped.
    """
    q = quantized(plain(), effort="fast")
    shown = q._repr_html_()
    worst = sorted(q.layers, key=q.layers.get)[:5]
    assert all(f">{name}</td>" in shown for name in worst)
    assert f"{min(q.layers.values()):.1f} dB" in shown
    assert "venus, q-value, chip-ready" in shown
    assert "100.0 %" in shown
    assert "output y" in shown


def test_names_are_escaped():
    from dataclasses import replace

    q = quantized(plain(), effort="fast")
    bad = replace(q, report=replace(q.report, warnings=["<script>alert(1)</script>"]))
    assert "<script>" not in bad._repr_html_()


def test_results_of_analysis_show_themselves():
    """Comparison, check and difference are tables and a static drawing; names are escaped."""
    model = plain()
    name = "<script>alert(1)</script>"
    fine = quantized(model, effort="fast")
    coarse = quantized(model, effort="fast", platform="generic", weight_bits=4)
    data = samples(model, 8)
    comparison = lo.compare(model, fine, data)
    shown = replace(comparison, warnings=[name])._repr_html_()
    assert shown.count("<path") == 2
    assert all(row.name in shown for row in comparison.worst)
    difference = lo.diff(fine, coarse, data, baseline=model)._repr_html_()
    assert difference.count("<path") == 2
    assert "worse" in difference
    checked = lo.check(fine.graph)._repr_html_()
    assert "shared memory" in checked
    for html in (shown, difference, checked):
        assert "<script" not in html
        assert "on" + "click" not in html
        ElementTree.fromstring(html)


def test_repr_is_one_screen():
    """Results of quantize and sessions, also of models with many float nodes and long names."""
    q = quantized(plain(), effort="fast")
    text = repr(q)
    assert text.splitlines()[0] == "QuantizedModel"
    assert "venus, q-value, chip-ready" in text
    assert "output y" in text
    many = [replace(node, node="n" * 300) for node in 40 * (FloatNode("", "Gemm", "skipped"),)]
    long = replace(q, report=replace(q.report, float_nodes=many, warnings=["w" * 300] * 60))
    assert len(repr(long).splitlines()) <= 26
    assert max(map(len, repr(long).splitlines())) <= 124
    session = repr(q.session())
    assert session.splitlines() == [
        "Session of an integer graph for venus",
        "  input x: tensor(float) [1, 3, 12, 12]",
        "  output y: tensor(float) [1, 5]",
    ]
