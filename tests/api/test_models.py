"""The models that ship: what their page claims of them, and that they stay as good in integers."""

import hashlib
import importlib.util
import re
from pathlib import Path

import onnx
import pytest

import lingeronnx as lo
from tests.case_selection import mark_rest_slow

MODELS = Path(__file__).resolve().parents[2] / "models"
PAGE = (MODELS / "README.md").read_text()
SEQUENCES = ("digits_lstm", "digits_gru", "digits_attention")


def test_every_file_is_on_the_page():
    """Each with the start of its hash, and small."""
    claimed = dict(re.findall(r"^\| `(\S+)` \|.*\| `([0-9a-f]{12})` \|", PAGE, re.MULTILINE))
    found = {path.name: path for path in MODELS.iterdir() if path.suffix in (".onnx", ".npz")}
    assert claimed.keys() == found.keys()
    for name, path in found.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(claimed[name]), name
        assert path.stat().st_size < 300_000


@pytest.mark.parametrize("name", mark_rest_slow(1, SEQUENCES))
def test_sequence_models(name):
    """Float accuracy as claimed; all products in integers; at most a point lost."""
    path = MODELS / f"{name}.onnx"
    onnx.checker.check_model(onnx.load(path), full_check=True)
    result = lo.quantize(path, str(MODELS / "digits_calib.npz"), platform="generic")
    assert result.report.integer_macs == 1
    assert not result.report.float_nodes
    found = lo.evaluate(
        result.session(), str(MODELS / "digits_test.npz"), metric="top1", baseline=path
    )
    claimed = re.search(rf"`{name}.onnx`.*\| ([\d.]+) % \|$", PAGE, re.MULTILINE)
    assert found.baseline == pytest.approx(float(claimed.group(1)))
    assert found.value > found.baseline - 1


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["venus", "generic"])
def test_the_detector_finds_what_it_found(platform):
    """Float as claimed; in integers 95 % of its detections at least, no layer but the expectation
    on the host.
    """
    spec = importlib.util.spec_from_file_location("drawn_shapes", MODELS / "drawn_shapes.py")
    shapes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shapes)
    path = MODELS / "shapes_detector.onnx"
    pictures, truth = shapes.draw(50, 2)
    want = shapes.detections(lo.Session(path).run(None, {"pictures": pictures})[0])
    hits, drawn = shapes.found_again(truth, want)
    assert hits > 0.92 * drawn
    result = lo.quantize(path, f"{MODELS / 'drawn_shapes.py'}:calib", platform=platform, limit=24)
    assert result.report.warnings == []
    assert result.report.integer_macs > 0.999
    assert result.report.chip_ready == (platform == "venus")
    assert {node.op_type for node in result.report.host_part if node.macs} == {"Conv"}
    have = shapes.detections(result.session().run(None, {"pictures": pictures})[0])
    kept, detected = shapes.found_again(want, have)
    assert kept > 0.95 * detected
    assert abs(sum(map(len, have)) - detected) < 0.03 * detected
