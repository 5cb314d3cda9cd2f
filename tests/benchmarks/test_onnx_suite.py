"""A sample of onnx's own test suite: quantized or one line, never an exception. All of it: the
benchmark's scan.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

from lingeronnx.luna import VENUS
from lingeronnx.targets import GENERIC

_FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "scan_onnx_suite.py"
_SAMPLE = (
    "test_add",
    "test_averagepool_2d_default",
    "test_basic_conv_with_padding",
    "test_concat_3d_axis_1",
    "test_hannwindow",
    "test_layer_normalization_3d_axis2_epsilon",
    "test_maxpool_2d_default",
    "test_nonzero_example",
    "test_relu",
    "test_resize_upsample_scales_linear",
    "test_sequence_insert_at_back",
    "test_string_concat",
    "test_transpose_default",
    "test_upsample_nearest",
)


def scanner():
    """Return the benchmark as a module."""
    spec = importlib.util.spec_from_file_location("scan_onnx_suite", _FILE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_no_model_of_the_sample_ends_in_an_exception():
    scan = scanner()
    models = [model for model in scan.node_models() if model.name in _SAMPLE]
    assert {model.name for model in models} == set(_SAMPLE)
    for model in models:
        for row in (VENUS, GENERIC):
            found = scan.quantize_for_target(model, row)
            assert found.kind != "failed", f"{row.name} {model.name}: {found.said}"
            assert (
                found.kind == "quantized"
                or found.kind == "refused"
                or not scan.should_be_integer(model, row)
            ), model.name
