"""Find softmaxes whose logits exceed what the integer algorithm represents, by their results.

The algorithm converts its input to Q25 in 32 bits, so that logits saturate at a magnitude of 64.
Most rows are unaffected: a mask far below the others gets no probability anyway, and neither do
logits far behind a leading one. But two logits above 64 become equal, whatever their distance. So
the probabilities with and without the saturation are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from ...common.arithmetic import ratio_db
from ...ir import ir
from ...operators.normalization.lowering.softmax import MAX_LOGIT, Softmax
from ...runtime.runners import FloatRunner
from ..calibration.statistics import Stats
from ..partition import Partition

__all__ = ["find_saturated_softmaxes"]

_MIN_SQNR_DB = 20.0  # of the probabilities; their rounding to 8 bits alone has 30 to 50 dB
# Larger logits need steps of more than 16 in 8 bits, and scales that have no ratio to Q25.
_MAX_RANGE = 2048.0


class _Powers(NamedTuple):
    """Sums over all probabilities seen: of their squares, and of the squares of their errors."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, logits: np.ndarray, axis: int) -> _Powers:
        """Return these sums with the rows of `logits` along `axis` added."""
        if not logits.size:
            return self
        exact = _compute_softmax(logits, axis)
        error = _compute_softmax(np.clip(logits, -MAX_LOGIT, MAX_LOGIT), axis) - exact
        return _Powers(
            self.signal + float(np.sum(np.square(exact))),
            self.noise + float(np.sum(np.square(error))),
        )


def find_saturated_softmaxes(
    partition: Partition,
    stats: Stats,
    runner: FloatRunner,
    batches: Iterable[Mapping[str, np.ndarray]],
    masked: Collection[str] = (),
) -> dict[str, str]:
    """Return {node: reason} of integer softmaxes that lose their result if logits saturate.

    These are Softmax and LogSoftmax whose probabilities have an SQNR below 20 dB with logits
    clipped at a magnitude of 64, or whose logits exceed 2048. Nothing is run unless one exceeds 64.

    Parameters
    ----------
    partition
        Partition of the float graph.
    stats
        Statistics of the activations.
    runner
        Runner of the float graph; it computes the logits.
    batches
        Calibration samples, each batch by graph input.
    masked
        Logits with a constant mask, whose low values need not be represented.
    """
    magnitudes: dict[ir.Node, float] = {}
    for node, op in partition.integer_nodes:
        name = ir.input_name(node)
        if isinstance(op, Softmax) and name in stats:
            low = 0.0 if name in masked else stats[name].low
            magnitudes[node] = max(stats[name].high, -low)
    powers = {node: _Powers() for node, max_abs in magnitudes.items() if max_abs > MAX_LOGIT}
    if not powers:
        return {}
    names = {ir.input_name(node) for node in powers}
    for batch in batches:
        arrays = {name: array for name, array, _ in runner.run(batch, names)}
        for node, sums in powers.items():
            axis = ir.get_attr(node, "axis", -1)
            powers[node] = sums.add(arrays[ir.input_name(node)], axis)
    reasons = {}
    for node, (signal, noise) in powers.items():
        max_abs = magnitudes[node]
        if max_abs > _MAX_RANGE or ratio_db(signal, noise) < _MIN_SQNR_DB:
            reasons[str(node.name)] = (
                f"its logits reach a magnitude of {max_abs:.0f}, and those beyond {MAX_LOGIT:.0f} "
                "become equal in integers"
            )
    return reasons


def _compute_softmax(logits: np.ndarray, axis: int) -> np.ndarray:
    """Return the softmax of `logits` along `axis`, float64."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=axis, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=axis, keepdims=True))
