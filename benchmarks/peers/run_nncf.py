"""NNCF: MODEL CALIB.npz OUT.onnx SETTING (bias or control), in its own environment.

bias: `quantize` for CPUs with the slower, full correction of biases. control:
`quantize_with_accuracy_control`, which puts layers back to float until the metric falls by 0.01 at
most. The metric is the share of samples whose largest output is that of the float model; of a model
without classes, one less the error's share of the output's energy. It is taken on the samples of
calibration, as there are no others.
"""

import sys

import nncf
import numpy as np
import onnx
import onnxruntime


def outputs(model, samples):
    """Return the first output of each sample."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.concatenate([session.run(None, sample)[0] for sample in samples])


def main():
    """Quantize one model."""
    path, calib, out, setting = sys.argv[1:]
    arrays = dict(np.load(calib))
    count = len(next(iter(arrays.values())))
    samples = [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(count)]
    model = onnx.load(path)
    floats = outputs(model, samples)
    classes = floats.shape[-1] < 100

    def metric(candidate, data):
        found = outputs(candidate, list(data))
        wanted = floats[: len(found)]
        if classes:
            return float((found.argmax(-1) == wanted.argmax(-1)).mean()), None
        return 1 - float(((found - wanted) ** 2).sum() / (wanted**2).sum()), None

    data = nncf.Dataset(samples)
    if setting == "control":
        done = nncf.quantize_with_accuracy_control(
            model, data, nncf.Dataset(samples), metric, max_drop=0.01, subset_size=count
        )
    else:
        device = nncf.TargetDevice.CPU
        done = nncf.quantize(
            model, data, target_device=device, subset_size=count, fast_bias_correction=False
        )
    onnx.save(done, out)


main()
