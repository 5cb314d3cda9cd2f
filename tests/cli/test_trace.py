"""The command `trace`: what it writes, says and refuses."""

import json

from tests.analysis.test_timeline import check_format


def test_trace(here):
    """The file holds the rules of the format, and the same lines as the terminal."""
    here.run_ok(
        "quantize", "tiny.onnx", "--calib", "calib.npz", "--platform", "arcs", "--effort", "fast"
    )
    plain = "-p arcs -d False"  # constants come by DMA
    shown = here.run_ok(
        "trace", "tiny_quant.onnx", "-o", "t.json", "--clock", "300", "--packer-args", plain
    )
    body = json.loads((here.folder / "t.json").read_text())
    lanes = check_format(body)
    assert {"NPU", "DMA", "host"} == set(lanes)
    told = here.json(
        "trace", "tiny_quant.onnx", "-o", "u.json", "--clock", "300", "--packer-args", plain
    )
    assert told["slices"] == sum(event["ph"] != "M" for event in body["traceEvents"])
    assert f"({told['slices']} slices)" in shown
    end = max(end for _, end, _ in lanes["NPU"])
    assert abs(end - 1e3 * told["time"]["milliseconds"]["total"]) <= 1 / 1024
    assert (here.folder / "u.json").read_bytes() == (here.folder / "t.json").read_bytes()


def test_trace_mistakes(quant):
    """A chip without prices, a float model, a file that it would replace: one line, nothing
    written.
    """
    before = quant.files()
    for words, told in (
        (("tiny_quant.onnx", "-o", "t.json"), "no published timing data for venus"),
        (("tiny.onnx", "--platform", "arcs", "-o", "t.json"), "quantize it first"),
        (("tiny_quant.onnx", "-o", "tiny_quant.onnx"), "would be overwritten"),
        (("gone.onnx", "-o", "t.json"), "gone.onnx"),
        (("tiny_quant.onnx", "-o", "t.json", "--timing", "calib.npz"), "the timing file calib.npz"),
    ):
        failed = quant("trace", *words)
        assert (failed.exit_code, failed.stderr.count("\n")) == (1, 1), failed.output
        assert told in failed.stderr
    assert quant.files() == before
