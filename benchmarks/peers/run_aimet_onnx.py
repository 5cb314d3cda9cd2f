"""AIMET-ONNX: MODEL CALIB.npz OUT.onnx SETTING (the quantization scheme[, method]), in its own environment.

Batch normalization is folded first, as its guide says. Written as QuantizeLinear and
DequantizeLinear. Methods, with what they take by default: seq_mse (weights' ranges, layer after
layer), adaround (rounding, 10,000 steps a layer, or adaround:N of them).
The word int4 gives weights 4 bits, with one scale each, as its default configuration has it.
"""

import sys

import numpy as np
import onnx
from aimet_onnx import apply_adaround, apply_seq_mse
from aimet_onnx.batch_norm_fold import fold_all_batch_norms_to_weight
from aimet_onnx.quantsim import QuantizationSimModel

BATCH = 32  # samples of a step, where the model takes several


def main():
    """Quantize one model."""
    model, calib, out, setting = sys.argv[1:]
    scheme, *methods = setting.split(",")
    arrays = dict(np.load(calib))
    count = len(next(iter(arrays.values())))
    loaded = onnx.load(model)
    fold_all_batch_norms_to_weight(loaded)
    sim = QuantizationSimModel(
        loaded, quant_scheme=scheme, param_type="int4" if "int4" in methods else "int8"
    )
    one = loaded.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    size = 1 if one else BATCH
    batches = [
        {name: array[i : i + size] for name, array in arrays.items()}
        for i in range(0, count - size + 1, size)
    ]
    if "seq_mse" in methods:
        apply_seq_mse(sim, batches)
    for method in methods:
        if method.startswith("adaround"):
            steps = method.partition(":")[2]
            apply_adaround(sim, batches, **({"num_iterations": int(steps)} if steps else {}))
    sim.compute_encodings(
        [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(count)]
    )
    onnx.save(sim.to_onnx_qdq(), out)


main()
