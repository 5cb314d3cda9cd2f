"""The demo on the digits that ship with the package, and the warm-up that compiles the simulator's kernels.

Knows files and small models only; what is printed is the command line's business.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import api
from ..files import making
from ..graph import ir
from ..targets import DEFAULT, GENERIC

__all__ = ["Demo", "demo", "warmup"]

_DIGITS = Path(__file__).resolve().parent
_SHOWN = 6  # digits to show
_WARMUP_SEED = 0


@dataclass(frozen=True)
class Demo:
    """What the demo did.

    images : the first held-out digits, float32 [N, 8, 8] in 0 to 1. classes : what the integer graph says of them.
    """

    model: Path
    data: Path
    output: Path
    result: api.QuantizedModel
    evaluation: api.Evaluation
    images: np.ndarray
    classes: np.ndarray
    seconds: float


def demo(folder: Path = Path("build"), progress: api.Progress | None = None) -> Demo:
    """Quantize the digits model for the default chip, measure it on digits it never saw, write the graph into `folder`.

    Raises ConfigError where `folder` cannot be made.
    """
    model, calib, test = (_DIGITS / n for n in ("digits_cnn.onnx", "digits_calib.npz", "digits_test.npz"))
    start = time.perf_counter()
    result = api.quantize(model, str(calib), platform=DEFAULT, progress=progress)
    session = result.session()
    evaluation = api.evaluate(session, str(test), metric="top1", baseline=model, progress=progress)
    shown = api.simulate(session, str(test), taps=["input"], limit=_SHOWN)
    output = folder / f"{model.stem}_quant.onnx"
    with making(folder):
        result.save(output)
    classes = shown.arrays["logits"].argmax(axis=1)
    seconds = time.perf_counter() - start
    return Demo(
        model=model,
        data=test,
        output=output,
        result=result,
        evaluation=evaluation,
        images=shown.arrays["input"][:, 0],
        classes=classes,
        seconds=seconds,
    )


#: The kernels a user is likely to meet: plain and depthwise convolution, pooling, additions, products, joins, layers.
_EVERY_KERNEL = """
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


def warmup(progress: api.Progress | None = None) -> tuple[float, str | None]:
    """Compile the simulator's usual kernels into the cache; return the seconds it took and the cache's folder."""
    import onnx

    from simulator._store import cache_folder

    start = time.perf_counter()
    proto = onnx.parser.parse_model(_EVERY_KERNEL)
    rng = np.random.default_rng(_WARMUP_SEED)
    shapes = {"w1": (4, 4, 3, 3), "w2": (4, 1, 3, 3), "w3": (4, 4, 1, 1), "b1": (4,), "w4": (10, 32), "b4": (10,)}
    for name, shape in shapes.items():
        array = (rng.standard_normal(shape) / 4).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = ir.from_proto(proto, "the warm-up model")
    samples = rng.standard_normal((64, 4, 8, 8)).astype(np.float32)
    for target, mode in ((DEFAULT, "q-value"), (GENERIC, "max-value")):
        session = api.quantize(model, samples, platform=target, mode=mode, progress=progress).session()
        api.simulate(session, samples, taps=["all"], progress=progress)
    return time.perf_counter() - start, cache_folder()
