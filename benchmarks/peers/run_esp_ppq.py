"""esp-ppq: MODEL CALIB.npz OUT.onnx SETTING (PLATFORM, calibration or "default"[, method]), in its own environment.

The model goes through onnxsim first, as `espdl_quantize_onnx` does it. The quantized graph is
written as QuantizeLinear and DequantizeLinear by its exporter for onnxruntime. Methods:

    tqt     scales and weights are trained (TQT), with the steps, learning rate and blocks that it
    takes by default auto    its own search, AutoQuant, in its fast mode, over its calibration
    methods, equalization, bias correction and
            TQT; candidates are judged by the outputs' error on a half of the samples that they were
            not made with
"""

import sys
from pathlib import Path

import esp_ppq.lib as ppq
import numpy as np
import onnx
import onnxruntime
import torch
from esp_ppq.api import quantize_onnx_model
from esp_ppq.api.setting import QuantizationSettingFactory
from esp_ppq.core import TargetPlatform
from esp_ppq.executor import TorchExecutor
from onnxsim import simplify

BATCH = 32  # samples of a step, where something is trained
AUTO = {"ESPDL_INT8": "esp32p4", "ESPDL_S3_INT8": "esp32s3"}


def settings(name, algorithm, method):
    """Return the settings of a platform with the calibration and the method that were asked for."""
    chip = name.startswith("ESPDL")
    chosen = (
        QuantizationSettingFactory.espdl_setting()
        if chip
        else QuantizationSettingFactory.default_setting()
    )
    if algorithm != "default":
        chosen.quantize_activation_setting.calib_algorithm = algorithm
    chosen.tqt_optimization = method == "tqt"
    return chosen


def simplified(model, out):
    """Write the model with a batch of 1 behind onnxsim; return its path."""
    loaded = onnx.load(model)
    for value in (*loaded.graph.input, *loaded.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    simple, _ = simplify(loaded)
    fixed = str(Path(out).with_suffix(".simple.onnx"))
    onnx.save(simple, fixed)
    return fixed


def batches(array, size):
    """Return whole batches of `size` samples."""
    return [torch.tensor(array[i : i + size]) for i in range(0, len(array) - size + 1, size)]


def export(graph, out):
    """Write a quantized graph."""
    ppq.Exporter(platform=TargetPlatform.ONNXRUNTIME).export(out, graph.copy())


def searched(fixed, array, out, target):
    """Let AutoQuant search; the best candidate is written."""
    from esp_ppq.autoquant import AutoQuantSearchSetting, espdl_auto_quantize_onnx

    calib, held = batches(array[::2], 1), batches(array[1::2], 1)
    chosen = AutoQuantSearchSetting(
        search_mode="fast",
        score_direction="minimize",
        candidate_filter=None,
        run_dir=str(Path(out).parent / "search"),
    )
    chosen.strategy_space["blockwise_reconstruction"] = [False]
    chosen.param_space["tqt"]["steps"] = [500]
    chosen.top_strategy = 3
    session = onnxruntime.InferenceSession(fixed)
    floats = [session.run(None, {session.get_inputs()[0].name: x.numpy()})[0] for x in held]
    best = float("inf")

    def judged(graph):
        nonlocal best
        executor = TorchExecutor(graph, device="cpu")
        found = [executor.forward(x)[0].detach().numpy() for x in held]
        error = sum(float(((y - z) ** 2).sum()) for y, z in zip(found, floats, strict=True))
        if error < best:
            best = error
            export(graph, out)
        return error, {}

    espdl_auto_quantize_onnx(
        fixed,
        str(Path(out).with_suffix(".espdl")),
        calib,
        len(calib),
        list(array.shape[1:]),
        judged,
        target,
        collate_fn=lambda x: x,
        setting=chosen,
    )


def main():
    """Quantize one model."""
    model, calib, out, setting = sys.argv[1:]
    name, algorithm, *methods = setting.split(",")
    method = methods[0] if methods else ""
    (array,) = dict(np.load(calib)).values()
    fixed = simplified(model, out)
    if method == "auto":
        searched(fixed, array, out, AUTO[name])
        return
    data = batches(array, BATCH if method == "tqt" else 1)
    graph = quantize_onnx_model(
        fixed,
        data,
        len(data),
        [1, *array.shape[1:]],
        TargetPlatform[name],
        setting=settings(name, algorithm, method),
        device="cpu",
        collate_fn=lambda x: x,
    )
    export(graph, out)


main()
