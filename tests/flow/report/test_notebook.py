"""What a quantized model shows of itself in a notebook."""

import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest

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


def test_accuracy_without_labels_has_no_float_figure():
    """The SQNR is that of the integer model against the float one."""
    model = plain()
    q = quantized(model, effort="fast", eval_data=samples(model, 8), metric="sqnr")
    assert q.report.accuracy["float"] is None
    expected = f"{q.report.accuracy['integer']:.2f} dB against the float model (sqnr, 8 samples)"
    assert expected in repr(q.report)
    assert expected in q.report._repr_html_()


def test_names_are_escaped():
    from dataclasses import replace

    q = quantized(plain(), effort="fast")
    bad = q.with_report(replace(q.report, warnings=["<script>alert(1)</script>"]))
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


def test_plan_report_and_session_show_themselves():
    """The plan also counts its tensors by range; every one is in one bar. Names are escaped."""
    q = quantized(plain(), effort="fast")
    name = "<script>alert(1)</script>"
    plan = replace(q.plan, floats={name: "skipped"})
    shown = plan._repr_html_()
    bars = re.findall(r">(\d+)</text>", shown)
    assert sum(map(int, bars)) == len(plan.tensors)
    assert "8 bits" in shown
    empty = replace(plan, tensors={})._repr_html_()
    report = replace(q.report, warnings=[name])._repr_html_()
    session = q.session()._repr_html_()
    assert ">input x</td>" in session
    assert ">Conv2dInt</td>" in session
    for html in (shown, empty, report, session):
        assert "<script" not in html
        ElementTree.fromstring(html)


class _Handle:
    """Keeps what a notebook is asked to show again."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, bar: object) -> None:
        self.shown.append(bar._repr_html_())


class _Events:
    """The events of a shell, of which the end of a cell is one."""

    def __init__(self) -> None:
        self.callbacks: list[object] = []

    def register(self, event: str, callback: object) -> None:
        assert event == "post_run_cell"
        self.callbacks.append(callback)

    def unregister(self, event: str, callback: object) -> None:
        assert event == "post_run_cell"
        self.callbacks.remove(callback)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_progress_bar_is_redrawn_below_a_cell(monkeypatch, has_kernel):
    """It is displayed once and then updated; without a kernel, as at a prompt, nothing is shown."""
    handle = _Handle()
    displayed = []

    def display(bar, display_id):
        assert display_id is True
        displayed.append(bar._repr_html_())
        return handle

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    shell = SimpleNamespace(events=_Events())
    if has_kernel:
        shell.kernel = object()
    ipython.get_ipython, module.display = lambda: shell, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    bar = lo.ProgressBar()
    bar("<b>", 0, 4)
    for count in range(1, 4):
        bar("<b>", count, 4)
    bar("<b>", 4, 4)
    model = plain()
    lo.simulate(quantized(model, effort="fast").session(), samples(model, 3), progress=bar)
    assert len(displayed) == len(shell.events.callbacks) == has_kernel
    if not has_kernel:
        return
    assert displayed == [
        '<div><progress aria-label="progress" value="0" max="4"></progress> &lt;b&gt;</div>'
    ]
    assert 'value="4" max="4"' in handle.shown[-2]
    assert "simulating 3 samples" in handle.shown[-1]
    assert len(handle.shown) <= 5
    (finish,) = shell.events.callbacks
    finish(None)
    assert not shell.events.callbacks
    assert re.search(r'value="1" max="1"></progress> finished after \d+ s', handle.shown[-1])
    for html in (*displayed, *handle.shown):
        ElementTree.fromstring(html)
    bar("simulating", 0, None)  # in the next cell
    assert displayed[1] == '<div><progress aria-label="progress"></progress> simulating</div>'


def test_progress_bar_without_ipython(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    bar = lo.ProgressBar()
    bar("measuring", 3, 10)
    assert repr(bar) == "measuring 3 of 10"


def test_repr_is_one_screen():
    """Results of quantize and sessions, also of models with many float nodes and long names."""
    q = quantized(plain(), effort="fast")
    text = repr(q)
    assert text.splitlines()[0] == "QuantizedModel"
    assert "venus, q-value, chip-ready" in text
    assert "output y" in text
    many = [replace(node, node="n" * 300) for node in 40 * (FloatNode("", "Gemm", "skipped"),)]
    long = q.with_report(replace(q.report, float_nodes=many, warnings=["w" * 300] * 60))
    assert len(repr(long).splitlines()) <= 26
    assert max(map(len, repr(long).splitlines())) <= 124
    session = repr(q.session())
    assert session.splitlines() == [
        "Session of an integer graph for venus",
        "  input x   tensor(float) [1, 3, 12, 12]",
        "  output y  tensor(float) [1, 5]",
    ]
    assert repr(long.report).splitlines()[1:] == repr(long).splitlines()[1:]
    check = lo.check(q.graph)
    comparison = lo.compare(plain(), q, samples(plain(), 4))
    for shown in (q.plan, check, comparison, lo.diff(q, q)):
        assert 1 < len(repr(shown).splitlines()) <= 26
    assert repr(q.plan).splitlines()[1].split()[:3] == ["platform", "venus,", "q-value,"]
