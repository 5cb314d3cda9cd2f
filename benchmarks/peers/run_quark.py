"""AMD Quark: MODEL CALIB.npz OUT.onnx SETTING (the name of one of its configurations), in its own environment."""

import sys

import numpy as np
import quark.onnx
from quark.onnx import ModelQuantizer


class Reader:
    """Yields the samples one by one, as the quantizer asks for them."""

    def __init__(self, path):
        self.arrays = dict(np.load(path))
        self.rewind()

    def rewind(self):
        """Begin again."""
        count = len(next(iter(self.arrays.values())))
        self.items = iter(
            [{name: array[i : i + 1] for name, array in self.arrays.items()} for i in range(count)]
        )

    def get_next(self):
        """Return the next sample, None at the end."""
        return next(self.items, None)


def main():
    """Quantize one model."""
    model, calib, out, setting = sys.argv[1:]
    ModelQuantizer(getattr(quark.onnx, f"{setting}_QCONFIG")).quantize_model(
        model, out, Reader(calib)
    )


if __name__ == "__main__":
    main()
