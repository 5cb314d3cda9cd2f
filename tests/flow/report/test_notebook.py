"""What a quantized model shows of itself in a notebook."""

from tests.nets import plain, quantized


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
