"""AIMET-ONNX: MODEL CALIB.npz OUT.onnx SETTING (the quantization scheme), in its own environment.

Batch normalization is folded first, as its guide says. Written as QuantizeLinear and DequantizeLinear.
"""

import sys

import numpy as np
import onnx
from aimet_onnx.batch_norm_fold import fold_all_batch_norms_to_weight
from aimet_onnx.quantsim import QuantizationSimModel


def main():
    """Quantize one model."""
    model, calib, out, setting = sys.argv[1:]
    arrays = dict(np.load(calib))
    count = len(next(iter(arrays.values())))
    loaded = onnx.load(model)
    fold_all_batch_norms_to_weight(loaded)
    sim = QuantizationSimModel(loaded, quant_scheme=setting)
    sim.compute_encodings([{name: array[i : i + 1] for name, array in arrays.items()} for i in range(count)])
    onnx.save(sim.to_onnx_qdq(), out)


main()
