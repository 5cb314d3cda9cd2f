"""onnxruntime's quantize_static.

MODEL CALIB.npz OUT.onnx SETTING (METHOD,tensor or channel), where it is installed.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process


class Reader:
    """Yields the samples one by one, as quantize_static asks for them."""

    def __init__(self, path):
        arrays = dict(np.load(path))
        count = len(next(iter(arrays.values())))
        self.items = iter(
            [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(count)]
        )

    def get_next(self):
        """Return the next sample, None at the end."""
        return next(self.items, None)


def main():
    """Quantize one model."""
    model, calib, out, setting = sys.argv[1:]
    method, weights = setting.split(",")
    with tempfile.TemporaryDirectory() as folder:
        plain = str(Path(folder) / "prepared.onnx")
        quant_pre_process(model, plain)
        quantize_static(
            plain,
            out,
            Reader(calib),
            per_channel=weights == "channel",
            calibrate_method=CalibrationMethod[method],
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


main()
