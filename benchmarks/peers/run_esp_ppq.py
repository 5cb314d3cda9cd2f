"""esp-ppq: MODEL CALIB.npz OUT.onnx SETTING (PLATFORM, calibration or "default"), in its own environment.

The model goes through onnxsim first, as `espdl_quantize_onnx` does it. The quantized graph is written as QuantizeLinear
and DequantizeLinear by its exporter for onnxruntime.
"""

import sys
from pathlib import Path

import esp_ppq.lib as ppq
import numpy as np
import onnx
import torch
from esp_ppq.api import quantize_onnx_model
from esp_ppq.api.setting import QuantizationSettingFactory
from esp_ppq.core import TargetPlatform
from onnxsim import simplify


def main():
    """Quantize one model."""
    model, calib, out, setting = sys.argv[1:]
    name, algorithm = setting.split(",")
    platform = TargetPlatform[name]
    chip = name.startswith("ESPDL")
    (array,) = dict(np.load(calib)).values()
    loaded = onnx.load(model)
    for value in (*loaded.graph.input, *loaded.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    simple, _ = simplify(loaded)
    fixed = str(Path(out).with_suffix(".simple.onnx"))
    onnx.save(simple, fixed)
    chosen = QuantizationSettingFactory.espdl_setting() if chip else QuantizationSettingFactory.default_setting()
    if algorithm != "default":
        chosen.quantize_activation_setting.calib_algorithm = algorithm
    data = [torch.tensor(array[i : i + 1]) for i in range(len(array))]
    graph = quantize_onnx_model(
        fixed, data, len(data), list(data[0].shape), platform, setting=chosen, device="cpu",
        collate_fn=lambda x: x,
    )  # fmt: skip
    ppq.Exporter(platform=TargetPlatform.ONNXRUNTIME).export(out, graph.copy())


main()
