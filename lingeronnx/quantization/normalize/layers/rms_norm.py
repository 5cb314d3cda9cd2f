"""Write a normalization by the root mean square as a layer normalization.

    y = x / sqrt(mean(x^2) + eps) * gamma + beta

The layer normalization of x and -x side by side has the mean 0 and the mean square of x as
variance; the first half of its result is y. Platforms have a layer normalization, and no
square root.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from ....ir.builder import SubgraphBuilder

__all__ = ["append_rms_norm"]

#: Replaces an epsilon of 0, which gives NaN for a row of zeros.
_MIN_EPSILON = 1e-30


def append_rms_norm(
    builder: SubgraphBuilder,
    source: ir.Value,
    gamma: np.ndarray,
    beta: np.ndarray,
    epsilon: float,
    operator: tuple[str, str] = ("LayerNormalization", ""),
) -> ir.Value:
    """Append the normalization of the last axis of `source` by its root mean square.

    Parameters
    ----------
    builder
        Collects the new nodes.
    source
        The tensor, with at least two axes.
    gamma, beta
        Factor and offset of each element of the last axis, float32.
    epsilon
        Summand of the mean square.
    operator
        Name and domain of the layer normalization.

    Returns
    -------
    ir.Value
        The normalized tensor, of the shape of `source`.
    """
    shape, count = list(source.shape or ()), gamma.size
    minus_one = builder.constant(np.array(-1, np.float32), "minus_one")
    negative = builder("Mul", [source, minus_one], shape, "negative")
    doubled = [*shape[:-1], 2 * count]
    both = builder("Concat", [source, negative], doubled, "both", {"axis": -1})
    parameters = [
        builder.constant(np.concatenate([array, array]).astype(np.float32), suffix)
        for suffix, array in (("gamma", gamma), ("beta", beta))
    ]
    attributes = {"axis": -1, "epsilon": max(epsilon, _MIN_EPSILON)}
    normalized = builder(
        operator[0], [both, *parameters], doubled, "normalized", attributes, operator[1]
    )
    return builder.slice_axis(normalized, len(shape) - 1, 0, count, "half")
