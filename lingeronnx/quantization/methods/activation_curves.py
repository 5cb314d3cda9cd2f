"""Sample activation functions over the range of an integer tensor, to compare means after them.

With a layer's outputs x, those of the integers x', and the function f that is their only consumer,
the bias that makes the means after f equal is, to first order,

    sum (f(x') - f(x)) / sum |f'(x)|

A SiLU passes negative values by a slope near 0. Errors of these hardly matter, but usually differ
from those of positive values: outputs of deep layers shrink towards their mean, from both sides.
Where they are most of the values, a bias that removes the mean error before the SiLU makes the
positive values too small.

Noise carries values into and out of the flat parts, so that these do count for something. In place
of f, with a largest slope of 1, stands 0.3 x + 0.7 f(x).

f is sampled at 65,536 points from the smallest to the largest integer, which include all integers
of 8 and 16 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...ir.plan import Affine
from ...operators.activation_tables.lowering.lookup_table import (
    evaluate_float_node,
    is_unary_function,
)

__all__ = ["ActivationCurve", "sample_activation"]

_POINTS = 1 << 16
_MAX_BITS = 16
# A function whose slope exceeds this is decided by few elements, as an exponential is.
_MAX_SLOPE = 2.0
_MAX_FALL = 0.25  # decrease of an activation function, as a fraction of its increase
_MIN_SLOPE_RANGE = 0.01  # a function whose slope varies by less is affine
# What values in flat parts count. On venus, dB on data not used for calibration, with means before
# the activation, 0.3 and 0: YOLOv8 (SiLU) 25.4, 32.2, 32.5; text detection (HardSwish) 9.5, 13.5,
# 13.6; text recognition (HardSwish) 10.8, 10.2, 6.9.
_FLAT_SLOPE = 0.3

#: Functions that are treated by thresholds or slopes.
_PIECEWISE_LINEAR = frozenset({"Relu", "LeakyRelu"})


class ActivationCurve(NamedTuple):
    """An activation function, sampled over the range of an integer tensor.

    Attributes
    ----------
    values
        float32 [65536]: the function, divided by its largest slope, times 0.7, plus 0.3 x.
    slopes
        float32 [65536]: absolute values of the derivative, from 0.3 to 1 where f increases.
    qparams
        Parameters of the integer tensor.
    """

    values: np.ndarray
    slopes: np.ndarray
    qparams: Affine

    def sum_values(self, values: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of the function and of its slopes, float64 [channels] each.

        Parameters
        ----------
        values
            Float values [positions, channels].
        mask
            The values that count, bool [positions, channels].
        """
        q = self.qparams
        index = self._index(values * np.float32(q.scale) + np.float32(q.zero_point))
        total = np.einsum("nc,nc->c", self.values[index], mask, dtype=np.float64)
        return total, np.einsum("nc,nc->c", self.slopes[index], mask, dtype=np.float64)

    def sum_integers(self, integers: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the sum of the function of `integers` [positions, channels] where `mask` is 1.

        The result is float64 [channels].
        """
        index = self._index(integers.astype(np.float32))
        return np.asarray(np.einsum("nc,nc->c", self.values[index], mask, dtype=np.float64))

    def _index(self, counts: np.ndarray) -> np.ndarray:
        """Return the index of the sample nearest to each of `counts`, in integer steps."""
        low, high = self.qparams.low, self.qparams.high
        scaled = (np.clip(counts, low, high) - np.float32(low)) * np.float32(
            (_POINTS - 1) / (high - low)
        )
        return np.asarray(np.rint(scaled).astype(np.int32))


def sample_activation(
    model: ir.Model, layer: ir.Node, qparams: Affine | None
) -> ActivationCurve | None:
    """Sample the activation function that is the only consumer of the output of `layer`.

    `qparams` are the parameters of the output. Returns None if there is no such function, if it is
    treated otherwise (Relu, LeakyRelu), if the output has more than 16 bits or stays in float, or
    if the function is affine, too steep or not nearly increasing.
    """
    consumer = ir.sole_consumer(layer.outputs[0])
    if consumer is None or qparams is None or qparams.bits > _MAX_BITS:
        return None
    if consumer.op_type in _PIECEWISE_LINEAR or not is_unary_function(consumer):
        return None
    counts = np.linspace(qparams.low, qparams.high, _POINTS)
    x = (counts - qparams.zero_point) / qparams.scale
    values = evaluate_float_node(model, consumer, x)
    if not np.isfinite(values).all():
        return None
    slopes = np.gradient(values, x)
    rise, fall = np.maximum(slopes, 0).sum(), -np.minimum(slopes, 0).sum()
    max_slope = slopes.max()
    if max_slope > _MAX_SLOPE or np.ptp(slopes) < _MIN_SLOPE_RANGE or fall > _MAX_FALL * rise:
        return None
    values = _FLAT_SLOPE * x + (1 - _FLAT_SLOPE) * values / max_slope
    slopes = _FLAT_SLOPE + (1 - _FLAT_SLOPE) * slopes / max_slope
    return ActivationCurve(values.astype(np.float32), np.abs(slopes).astype(np.float32), qparams)
