"""A model with an input that is a setting: told once with --fix, and known wherever both models are
at hand.
"""

from __future__ import annotations

import json

from tests.cli.helpers import write_model

GAIN = """
<ir_version: 8, opset_import: ["": 13]>
gained (float[N, 2, 4, 4] x, float gain) => (float[N, 3] y) {
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w, b)
    p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(c)
    f = Flatten(p)
    g = Gemm<transB=1>(f, v, d)
    y = Mul(g, gain)
}
"""


def test_a_setting_is_told_once(here):
    write_model(here.folder / "gain.onnx", GAIN)
    words = ("--calib", "calib.npz", "--effort", "fast", "--fix", "gain=0.5")
    here.run_ok("quantize", "gain.onnx", *words, "--report", "page")
    assert (here.folder / "page" / "report.html").is_file()
    both = ("gain.onnx", "gain_quant.onnx", "--data", "calib.npz")
    here.run_ok("compare", *both, "-o", "compared")
    here.run_ok("badcase", *both, "-o", "worst.npz")
    found = here.json(
        "evaluate", "gain_quant.onnx", "--baseline", "gain.onnx", "--data", "calib.npz"
    )
    assert found["value"] > 20
    here.run_ok("sensitivity", "gain.onnx", *words, "-o", "ranked")
    assert json.loads((here.folder / "ranked" / "sensitive_ops.json").read_text())


def test_what_is_said_of_inputs_is_checked(here):
    """Wherever these options are."""
    write_model(here.folder / "gain.onnx", GAIN)
    words = ("gain.onnx", "--calib", "calib.npz", "-o")
    for command in ("quantize", "deploy", "sensitivity"):
        for option, value in (
            ("--fix", "gein=0.5"),
            ("--fix", "gain"),
            ("--batch-axis", "x=first"),
            ("--input-shape", "x=1,two"),
        ):
            result = here(command, *words, "out.onnx", option, value)
            assert result.exit_code == 1, result.output
            assert result.stderr.startswith(f"error: {option} "), result.stderr
            assert not (here.folder / "out.onnx").exists()
