"""Warm-up: compiles the usual kernels into the cache by running a small model."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from ... import api
from ...ir import ir
from ...targets import DEFAULT, GENERIC

__all__ = ["compile_kernels", "make_random_model"]

_WARMUP_SEED = 0

#: Model with the most frequent kernels: convolutions, pooling, sums, products, concatenation, Gemm.
_WARMUP_MODEL = """
<ir_version: 8, opset_import: ["": 13]>
warmup (float[N, 4, 8, 8] input) => (float[N, 10] output) {
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(input, w1, b1)
    r = Relu(c)
    d = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=4>(r, w2, b1)
    lo = Constant<value_float=0.0>()
    hi = Constant<value_float=6.0>()
    k = Clip(d, lo, hi)
    p = Conv<kernel_shape=[1, 1]>(k, w3, b1)
    a = Add(p, r)
    m = Mul(a, d)
    j = Concat<axis=1>(m, a)
    x = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(j)
    t = Transpose<perm=[0, 1, 3, 2]>(x)
    v = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(t)
    f = Flatten(v)
    output = Gemm<transB=1>(f, w4, b4)
}
"""


#: Shapes of its weights by name.
_WARMUP_WEIGHT_SHAPES = {
    "w1": (4, 4, 3, 3),
    "w2": (4, 1, 3, 3),
    "w3": (4, 4, 1, 1),
    "b1": (4,),
    "w4": (10, 32),
    "b4": (10,),
}


def make_random_model(
    text: str = _WARMUP_MODEL,
    weights: Mapping[str, tuple[int, ...]] = _WARMUP_WEIGHT_SHAPES,
    name: str = "the warm-up model",
) -> ir.Model:
    """Parse a model in the text format of ONNX and add random weights.

    Parameters
    ----------
    text
        Model in text format; default: the warm-up model, with input [N, 4, 8, 8].
    weights
        Shapes of the float32 weights by name.
    name
        Name of the model in messages.
    """
    import onnx

    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(_WARMUP_SEED)
    for weight_name, shape in weights.items():
        array = (rng.standard_normal(shape) / 4).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, weight_name))
    return ir.from_proto(proto, name)


def compile_kernels(progress: api.Progress | None = None) -> tuple[float, str | None]:
    """Compile the usual kernels of the simulator into the cache, by quantizing and running a model.

    It runs on the default chip and on the generic platform.

    Returns
    -------
    seconds : float
        Duration.
    cache : str or None
        Folder of the cache, or None if there is no cache.
    """
    from simulator._disk_cache import cache_folder

    start = time.perf_counter()
    model = make_random_model()
    samples = np.random.default_rng(_WARMUP_SEED).standard_normal((64, 4, 8, 8)).astype(np.float32)
    for target, mode in ((DEFAULT, "q-value"), (GENERIC, "max-value")):
        session = api.quantize(
            model, samples, platform=target, mode=mode, progress=progress
        ).session()
        api.simulate(session, samples, taps=["all"], progress=progress)
    return time.perf_counter() - start, cache_folder()
