"""A scale for each group of a row's weights.

Float scales, then whole factors of what the row's products count in.
A row o of a matrix is cut into runs of `size` neighbours. Group g holds integers at the scale
``S[o] / m[o, g]``, with whole factors m: so the products ``q * m`` of a whole row are counted at
S[o], and its sum is rounded once. With scales of any number the coarsest group has the factor 255,
and the others are rounded to a whole one; powers of two have factors from 1 to 128. A group has the
scale with the least squared error of its own weights, by the calibrator "max" the one that holds
its largest weight; the entropy of some tens of weights says nothing, nor do their percentiles.

Weights of few bits that are refined later on move by many counts, beyond what the largest weight of
some tens needs. So the scale of such a group holds its largest weight, and a third more at most;
one that cuts some off, which is best for weights rounded to nearest, would leave refinement no
room. On calibration data that were held back the two rules are level, within 0.2 dB
(docs/four-bits.md). Powers of two have room.
"""

from __future__ import annotations

import numpy as np

from ...plan import MAX_GROUP_FACTOR, Affine, make_grouped_qparams

__all__ = ["compute_group_qparams"]

_SCALE_MULTIPLIERS = 4.0 ** (
    np.arange(49) / 48
)  # times the scale that holds a group's largest weight
_REFINED_SCALE_MULTIPLIERS = np.linspace(1.0, 0.75, 25)
_LOW_BITS = 4
_POWER_OF_TWO_MULTIPLIERS = 2.0 ** np.arange(5)
_MAX_POWER_OF_TWO_FACTOR = 128


def compute_group_qparams(
    values: np.ndarray,
    size: int,
    bits: int,
    *,
    power_of_two: bool,
    calibrator: str,
    weights_refined: bool = False,
) -> Affine:
    """Return how a matrix `values` [O, I] is held in groups of `size`; I > size.

    power_of_two : only powers of two. refined : whether the weights are refined later on. A row of
    zeros gets the smallest scale of the others, 2^(bits-1) where all are zero.
    """
    rows, inputs = values.shape
    groups = -(-inputs // size)
    cut = np.zeros((rows, groups * size))
    cut[:, :inputs] = values
    cut = cut.reshape(rows, groups, size)
    top = (1 << (bits - 1)) - 1
    peak = np.abs(cut).max(axis=2)
    live = peak > 0
    with np.errstate(divide="ignore"):
        whole = np.where(live, top / peak, np.inf)
    if power_of_two:  # half a step beyond the largest integer is no more than any rounding costs
        whole[live] = 2.0 ** np.floor(np.log2((top + 0.5) / peak[live]))
    steps = (
        _POWER_OF_TWO_MULTIPLIERS
        if power_of_two
        else _REFINED_SCALE_MULTIPLIERS
        if weights_refined and bits <= _LOW_BITS
        else _SCALE_MULTIPLIERS
    )
    steps = steps[: 1 if calibrator == "max" else None]
    free = _least_error_scales(cut, np.where(live, whole, 1.0)[None] * steps[:, None, None], bits)
    row = _accumulator_scales(np.where(live, free, np.inf), power_of_two, float(1 << (bits - 1)))
    with np.errstate(divide="ignore"):
        wanted = np.where(live, row[:, None] / (whole * steps[:, None, None]), 1.0)
    factors = np.clip(
        np.rint(wanted), 1, _MAX_POWER_OF_TWO_FACTOR if power_of_two else MAX_GROUP_FACTOR
    )
    found = row[:, None] / _least_error_scales(cut, row[:, None] / factors, bits)
    return make_grouped_qparams(row, np.rint(found).astype(np.int64), size, bits)


def _accumulator_scales(scales: np.ndarray, power: bool, unknown: float) -> np.ndarray:
    """Return S [O] for the scales [O, groups] that groups would have, infinite where all of a group is zero."""
    least = scales.min(axis=1)
    some = np.isfinite(least)
    least[~some] = least[some].min(initial=unknown) if some.any() else unknown
    if not power:
        return np.asarray(MAX_GROUP_FACTOR * least, np.float32).astype(np.float64)
    most = np.where(np.isfinite(scales), scales, 0.0).max(axis=1)
    return np.where(some, np.minimum(most, _MAX_POWER_OF_TWO_FACTOR * least), least)


def _least_error_scales(cut: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """Return of `scales` [tried, O, groups] the one for each group of `cut` [O, groups, size] with the least error."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    best, least = scales[0].copy(), np.full(scales.shape[1:], np.inf)
    for tried in scales:
        held = np.clip(np.floor(cut * tried[..., None] + 0.5), low, high) / tried[..., None]
        error = np.square(held - cut).sum(axis=2)
        better = error < least
        best[better], least[better] = tried[better], error[better]
    return best
