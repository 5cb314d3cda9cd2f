"""What the tests of whole ONNX files share: quantize a model from ONNX text, and look at what came
out.
"""

import numpy as np

import lingeronnx as lo
from tests.passes.helpers import proto, rand

__all__ = ["close", "images", "proto", "quantized", "rand", "save"]


def save(model, path):
    """Write the protobuf `model` to `path` and return the path as text."""
    path.write_bytes(model.SerializeToString())
    return str(path)


def images(*shape, count=8):
    """Return `count` seeded samples of `shape`."""
    return rand(count, *shape, seed=7)


def quantized(model, tmp_path, calib=None, *, platform="generic", **settings):
    """Quantize the protobuf `model` through a file, with little effort."""
    return lo.quantize(
        save(model, tmp_path / "model.onnx"), calib, platform=platform, effort="fast", **settings
    )


def close(result, cosine=0.99):
    """Whether every output of the quantized model points where the float model's points."""
    return all(
        np.isnan(o["cosine"]) or o["cosine"] > cosine for o in result.report.outputs.values()
    )
