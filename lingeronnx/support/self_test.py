"""A self test: the compiled kernels of this machine against the plain classes of `reference`, integer by integer.

Two small nets with random weights go through `quantize` for two targets, so that sums, pools,
curves, rows and moves are each compiled once with this processor's instructions. The plain classes
are NumPy and Python integers only. A difference means that compiled code computes something else
here: no result of this installation is to be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import api
from ..graph import ir
from ..reference import reference_ops
from ..targets import DEFAULT, GENERIC, Target
from .warmup import make_random_model

__all__ = ["KernelDifference", "SelfTestResult", "run_self_test"]

_SAMPLES = 4
_SEED = 1

#: Curves, softmax, a layer norm and matrices; the net of the warm-up has sums and pools.
_ACTIVATION_MODEL = """
<ir_version: 8, opset_import: ["": 17]>
curves (float[N, 4, 16] input) => (float[N, 4, 4] output) {
    a = MatMul(input, w1)
    s = Sigmoid(a)
    t = Tanh(a)
    m = Mul(s, t)
    n = LayerNormalization<axis=-1>(m, g, h)
    k = Transpose<perm=[0, 2, 1]>(n)
    p = MatMul(n, k)
    output = Softmax<axis=-1>(p)
}
"""
_ACTIVATION_MODEL_SHAPES = {"w1": (16, 16), "g": (16,), "h": (16,)}


@dataclass(frozen=True)
class KernelDifference:
    """A tensor that came out otherwise: how many of its integers."""

    target: str
    tensor: str
    integers: int
    of: int

    def __str__(self) -> str:
        return (
            f"{self.target}: {self.integers} of {self.of} integers of '{self.tensor}' differ "
            "from the plain classes"
        )


@dataclass(frozen=True)
class SelfTestResult:
    """What was compared: nets, tensors, integers; and what differs, which must be nothing."""

    nets: int
    tensors: int
    integers: int
    differences: tuple[KernelDifference, ...]


def run_self_test(progress: Callable[[str, int, int | None], None] | None = None) -> SelfTestResult:
    """Run the nets on the simulator and on the plain classes.

    Compare each integer tensor that both make.
    """
    curves = make_random_model(
        _ACTIVATION_MODEL, _ACTIVATION_MODEL_SHAPES, "the self test's curves"
    )
    nets = [(make_random_model(), (4, 8, 8)), (curves, (4, 16))]
    rng = np.random.default_rng(_SEED)
    counts, different, done = [], [], 0
    for model, sample in nets:
        samples = rng.standard_normal((_SAMPLES, *sample)).astype(np.float32)
        for target, mode in ((DEFAULT, "q-value"), (GENERIC, "max-value")):
            for name, ours, plain in _iter_tensor_pairs(model, samples, target, mode):
                counts.append(ours.size)
                if wrong := int((ours != plain).sum()) if ours.shape == plain.shape else ours.size:
                    different.append(KernelDifference(target.name, name, wrong, ours.size))
            done += 1
            if progress is not None:
                progress("self test", done, 2 * len(nets))
    return SelfTestResult(2 * len(nets), len(counts), sum(counts), tuple(different))


def _iter_tensor_pairs(
    model: ir.Model, samples: np.ndarray, target: Target, mode: str
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (tensor, simulator's integers, plain classes') of one net, sample by sample.

    A graph may have batch 1.
    """
    from onnx.reference import ReferenceEvaluator

    result = api.quantize(model, samples, platform=target, mode=mode)
    session, proto = result.session(), ir.to_proto(result.graph)
    (fed,) = (each.name for each in proto.graph.input)
    plain = ReferenceEvaluator(proto, new_ops=[*reference_ops(target)])
    for sample in samples:
        made: Any = plain.run(None, {fed: sample[None]}, intermediate=True)
        for name, array, scale in session.taps({fed: sample[None]}):
            if scale is not None and name in made:
                yield name, np.asarray(array), np.asarray(made[name])
