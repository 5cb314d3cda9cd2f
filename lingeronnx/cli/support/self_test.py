"""Self test: compares the compiled kernels on this machine with the reference operators.

Two small models with random weights are quantized for two targets, so that the kernels of layers,
pooling, activations, normalization and data movement are compiled for this processor. The reference
operators use only NumPy and Python integers. A difference means that compiled code computes
incorrect results, so that no result of this installation is reliable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import api
from ...ir import ir
from ...operators.references import reference_ops
from ...targets import DEFAULT, GENERIC, Target
from .warmup import make_random_model

__all__ = ["KernelDifference", "SelfTestResult", "run_self_test"]

_SAMPLES = 4
_SEED = 1

#: Model with activations, softmax, layer normalization and matrix products; the model of the
#: warm-up has convolutions and pooling.
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
    """A tensor with differences: `integers` of its `of` integers differ."""

    target: str
    tensor: str
    integers: int
    of: int

    def __str__(self) -> str:
        """Format as "TARGET: I of N integers of 'TENSOR' differ from the plain classes"."""
        return (
            f"{self.target}: {self.integers} of {self.of} integers of '{self.tensor}' differ "
            "from the plain classes"
        )


@dataclass(frozen=True)
class SelfTestResult:
    """Numbers of compared models, tensors and integers, and the differences, which must be none."""

    nets: int
    tensors: int
    integers: int
    differences: tuple[KernelDifference, ...]


def run_self_test(progress: Callable[[str, int, int | None], None] | None = None) -> SelfTestResult:
    """Run the models on the simulator and the reference operators, and compare all integer tensors.

    Parameters
    ----------
    progress
        Called with (description, completed runs, total runs).
    """
    activations = make_random_model(
        _ACTIVATION_MODEL, _ACTIVATION_MODEL_SHAPES, "the self test's curves"
    )
    models = [(make_random_model(), (4, 8, 8)), (activations, (4, 16))]
    rng = np.random.default_rng(_SEED)
    sizes, differences, run_count = [], [], 0
    for model, sample_shape in models:
        samples = rng.standard_normal((_SAMPLES, *sample_shape)).astype(np.float32)
        for target, mode in ((DEFAULT, "q-value"), (GENERIC, "max-value")):
            for name, actual, expected in _iter_tensor_pairs(model, samples, target, mode):
                sizes.append(actual.size)
                count = _count_differences(actual, expected)
                if count:
                    differences.append(KernelDifference(target.name, name, count, actual.size))
            run_count += 1
            if progress is not None:
                progress("self test", run_count, 2 * len(models))
    return SelfTestResult(2 * len(models), len(sizes), sum(sizes), tuple(differences))


def _count_differences(actual: np.ndarray, expected: np.ndarray) -> int:
    """Return the number of elements that differ; all of `actual` if the shapes differ."""
    return int((actual != expected).sum()) if actual.shape == expected.shape else actual.size


def _iter_tensor_pairs(
    model: ir.Model, samples: np.ndarray, target: Target, mode: str
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (tensor, integers of the simulator, integers of the reference) for each sample.

    `model` is quantized for `target` in `mode` with `samples`, which then run one by one, since the
    graph may have batch 1. Float tensors are left out.
    """
    from onnx.reference import ReferenceEvaluator

    result = api.quantize(model, samples, platform=target, mode=mode)
    session, proto = result.session(), ir.to_proto(result.graph)
    (input_name,) = (graph_input.name for graph_input in proto.graph.input)
    evaluator = ReferenceEvaluator(proto, new_ops=[*reference_ops(target)])
    for sample in samples:
        feed = {input_name: sample[None]}
        expected: Any = evaluator.run(None, feed, intermediate=True)
        for name, array, scale in session.taps(feed):
            if scale is not None and name in expected:
                yield name, np.asarray(array), np.asarray(expected[name])
