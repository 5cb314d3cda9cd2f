"""What benchmarks/peers.py does to another tool's file before it is measured, and what it says of
failures.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="the benchmarks are not installed with the package"
)

PAIR = "{0}_q = QuantizeLinear ({0}, s, z)  {0}_d = DequantizeLinear ({0}_q, s, z)"
HEAD = (
    '<ir_version: 9, opset_import: ["" : 17]> g (float[N, 3] x) => (float[N, 3] y) <float s = '
    "{0.25}, int8 z = {0}>"
)


@pytest.fixture(scope="module")
def peers():
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("peers_benchmark", FOLDER / "peers.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.parametrize(
    "body, softmax",
    (
        (
            "a = Neg (x)  b = Softmax (a)  y = Identity (b)",
            False,
        ),  # no Softmax at the end: the output itself
        ("a = Neg (x)  y = Softmax (a)", True),
        (f"a = Neg (x)  {PAIR.format('a')}  y = Softmax (a_d)", True),
        (
            (
                f"a = Neg (x)  {PAIR.format('a')}  c = Softmax (a_d)  d = QuantizeLinear (c, s, z)"
                "  y = DequantizeLinear (d, s, z)"
            ),
            True,
        ),
    ),
)
def test_the_tensor_before_the_softmax(peers, tmp_path, body, softmax):
    """It carries the wished name, also where the file uses that for something else, and has the
    tool's rounding.
    """
    model = onnx.parser.parse_model(f"{HEAD} {{ {body} }}")
    onnx.save(model, tmp_path / "m.onnx")
    peers.before_softmax(tmp_path / "m.onnx", "a", tmp_path / "cut.onnx")
    x = np.array([[0.3, -1.0, 2.2]], np.float32)
    (got,) = ort.InferenceSession(tmp_path / "cut.onnx").run(["a"], {"x": x})
    if not softmax:
        want = np.exp(-x) / np.exp(-x).sum()
    else:
        want = np.rint(-x * 4) / 4 if "a_d" in body else -x
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_tables_keep_the_families_apart(peers):
    lines = [
        {"case": "kws", "title": "A", "power": True, "sqnr": 20.04},
        {"case": "ad", "title": "A", "power": True, "why": "not done after 9 s"},
        {"case": "kws", "title": "B", "power": False, "sqnr": 30.0, "top1": 90.0},
    ]
    assert peers.format_table(lines, True).splitlines() == [
        "| quantizer | kws | ad |",
        "|---|---|---|",
        "| A | 20.0 dB | - (not done after 9 s) |",
    ]
    assert peers.format_table(lines, False).splitlines()[-1] == "| B | 90.00 %, 30.0 dB |"


def test_an_environment_that_cannot_be_made_is_told(peers, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "MAX_MEMORY_BYTES", 1 << 60)
    with pytest.raises(OSError, match="GiB free"):
        peers.environment("onnxruntime", tmp_path / "home", sys.executable)
    monkeypatch.setattr(peers, "MAX_MEMORY_BYTES", 0)
    with pytest.raises((OSError, subprocess.CalledProcessError)):
        peers.environment("onnxruntime", tmp_path / "home", str(tmp_path / "no-python"))


def test_every_peer_has_a_pinned_list_and_a_script(peers):
    for peer in peers.PACKAGES:
        pinned = (peers.HERE / f"{peer}.txt").read_text().split()
        assert pinned
        assert all("==" in line for line in pinned)
        assert (peers.HERE / f"run_{peer}.py").exists()
    assert {way.peer for way in peers.METHODS} == {"ours", *peers.PACKAGES}
