"""Compare a standard graph with the simulator.

onnxruntime opens the graph with its default settings, including all its fusions. Outputs of single
samples are compared bit for bit; the output of a Dequant is compared by its integers, because
`1 / scale` in float32 is one unit off if the scale is not a power of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....common.errors import ModelError
from ....ir import ir
from ....ir.plan import Affine
from ....operators.integer_ops import DEQUANT, read_attributes
from ....runtime.data.inputs import InputSpec
from ....runtime.integer.runner import IntegerRunner
from ....runtime.runners.ort_errors import explain_ort_error
from ....runtime.runners.sessions import open_default_ort_session
from ....runtime.session import Session

if TYPE_CHECKING:
    from ....runtime.runners.sessions import OrtSession

__all__ = [
    "Feeds",
    "MatchCount",
    "compare_with_simulator",
    "open_as_user",
    "output_qparams",
    "outputs_match",
    "random_feeds",
]

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class MatchCount:
    """Number of samples that were compared, and of those with all outputs equal."""

    equal: int
    count: int


def open_as_user(model: ir.Model) -> OrtSession:
    """Open a standard graph in onnxruntime with default settings, as users do.

    Raises ModelError if onnxruntime rejects it.
    """
    return open_default_ort_session(ir.to_bytes(model), "the converted graph")


def random_feeds(
    model: ir.Model, like_calibration: bool, count: int
) -> list[dict[str, np.ndarray]] | None:
    """Generate random single samples for an integer graph.

    Parameters
    ----------
    model
        The integer graph.
    like_calibration
        Normal distribution, with the range of the input's integers at four standard deviations;
        otherwise uniform over 1.1 times the range, with half of the values at multiples of half a
        step, where the simulator and the standard round differently.
    count
        Number of samples.

    Returns
    -------
    list of dict or None
        Inputs by name of each sample; None if input dimensions are unknown.
    """
    runner, rng = IntegerRunner(model), np.random.default_rng(0)
    if any(_has_unknown_dimensions(spec) for spec in runner.inputs):
        return None
    feeds = []
    for _ in range(count):
        feed = {}
        for spec in runner.inputs:
            size = [int(n or 1) for n in spec.shape or ()]
            qparams = runner.input_qparams.get(spec.name) or Affine(32.0)
            if spec.dtype.kind == "f":
                values = _draw_values(rng, size, qparams, like_calibration)
                feed[spec.name] = values.astype(spec.dtype)
            else:
                feed[spec.name] = np.zeros(size, spec.dtype)
        feeds.append(feed)
    return feeds


def _has_unknown_dimensions(spec: InputSpec) -> bool:
    """Whether the input `spec` has unknown dimensions other than the batch, or an unknown rank."""
    if spec.shape is None:
        return True
    return any(size is None for axis, size in enumerate(spec.shape) if axis != spec.axis)


def _draw_values(
    rng: np.random.Generator, size: list[int], qparams: Affine, like_calibration: bool
) -> np.ndarray:
    """Return random values of shape `size` for a float input with the quantization `qparams`.

    With `like_calibration`, normal values with a standard deviation of a quarter of the range; else
    uniform ones up to 1.1 times the range, half of them multiples of half a step.
    """
    if like_calibration:
        return np.asarray(rng.standard_normal(size) * (qparams.high + 1) / 4 / qparams.scale)
    top = (qparams.high + 1) * 1.1
    steps = np.where(
        rng.random(size) < 0.5,
        np.rint(rng.uniform(-top, top, size) * 2) / 2,
        rng.uniform(-top, top, size),
    )
    return np.asarray(steps / qparams.scale)


def compare_with_simulator(
    model: ir.Model, session: OrtSession, feeds: Iterable[Feeds]
) -> MatchCount:
    """Count the samples whose outputs are equal in the simulator and in `session`.

    `session` runs the standard graph that was written for the integer graph `model`. Each of the
    `feeds` counts as one sample; outputs of Dequants are compared as integers, others bit for bit.
    ModelError if onnxruntime cannot run the graph.
    """
    simulator, names = Session(model), [value.name for value in session.get_outputs()]
    qparams = output_qparams(model)
    equal = count = 0
    for feed in feeds:
        expected = simulator.run(names, dict(feed))
        try:
            actual = session.run(names, dict(feed))
        except Exception as error:
            raise ModelError(
                f"onnxruntime with its default settings cannot run the converted graph: "
                f"{explain_ort_error(error)}; check the attributes and shapes of the integer graph"
            ) from error
        count += 1
        equal += all(
            outputs_match(a, b, qparams.get(name))
            for name, a, b in zip(names, expected, actual, strict=True)
        )
    return MatchCount(equal, count)


def output_qparams(model: ir.Model) -> dict[str, Affine]:
    """Return graph output of `model` -> scale and zero point of the Dequant that produces it.

    Other outputs are left out.
    """
    qparams = {}
    for value in model.graph.outputs:
        node = ir.producer(value)
        if node is not None and node.op_type in DEQUANT.names:
            attrs = read_attributes(DEQUANT, node)
            qparams[str(value.name)] = DEQUANT.input_qparams(attrs)[0]
    return qparams


def outputs_match(expected: np.ndarray, actual: np.ndarray, qparams: Affine | None) -> bool:
    """Whether two outputs are equal or, with `qparams`, represent the same integers.

    With `qparams` the values must also agree to a relative 1e-6. Without, they must be bit-exactly
    equal; NaNs are equal.
    """
    if expected.shape != actual.shape:
        return False
    if qparams is None or np.array_equal(expected, actual):
        equal_nan = expected.dtype.kind == "f"
        return bool(np.array_equal(expected, actual, equal_nan=equal_nan))
    expected_integers = np.rint(expected.astype(np.float64) * qparams.scale)
    actual_integers = np.rint(actual.astype(np.float64) * qparams.scale)
    if not np.array_equal(expected_integers, actual_integers):
        return False
    return bool(np.allclose(expected, actual, rtol=1e-6, atol=0))
