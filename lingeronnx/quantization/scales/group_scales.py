"""One scale per group of a row's weights: float scales and integer factors.

A row o of a matrix is split into runs of `size` neighboring weights. Group g has integers at the
scale ``S[o] / m[o, g]``, with integer factors m: so the products ``q * m`` of an entire row have
the scale S[o], and their sum is rounded once. With free scales the coarsest group has the factor
255, and the others are rounded to integers; powers of two have factors from 1 to 128. A group has
the scale with the least squared error of its own weights, or with the calibrator "max" the one that
represents its largest weight. The entropy of some tens of weights is meaningless, and so are their
percentiles.

Low-bit weights that are refined later move by many counts, beyond the range of the largest of some
tens of weights. So the scale of such a group represents its largest weight and up to a third more;
a scale that clips some, which is best for weights rounded to nearest, would leave refinement no
headroom. On held-out calibration data both rules are level, within 0.2 dB
(benchmarks/results/four-bit-weights.md). Powers of two have headroom.
"""

from __future__ import annotations

import numpy as np

from ...ir.plan import MAX_GROUP_FACTOR, Affine, make_grouped_qparams

__all__ = ["compute_group_qparams"]

# Candidates, relative to the scale that represents the largest weight of a group.
_SCALE_MULTIPLIERS = 4.0 ** (np.arange(49) / 48)
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
    """Choose a scale for every `size` weights of a matrix row, and return them as parameters.

    Scales are S / m, with a float S per row and an integer m per group.

    Parameters
    ----------
    values
        Matrix [O, I] with I > size; the last group of a row may be shorter. A row of zeros gets
        the smallest scale of the others, or 2^(bits-1) if all are zero.
    size
        Group size.
    bits
        Bit width.
    power_of_two
        Whether only powers of two are allowed.
    calibrator
        "max", or another one for the least squared error.
    weights_refined
        Whether the weights are refined later; only up to 4 bits does this change the candidate
        scales.
    """
    rows, inputs = values.shape
    group_count = -(-inputs // size)
    padded = np.zeros((rows, group_count * size))
    padded[:, :inputs] = values
    groups = padded.reshape(rows, group_count, size)
    top = (1 << (bits - 1)) - 1
    max_abs = np.abs(groups).max(axis=2)
    is_nonzero = max_abs > 0
    with np.errstate(divide="ignore"):
        full_range = np.where(is_nonzero, top / max_abs, np.inf)
    if power_of_two:  # saturating by half a step costs no more than rounding
        full_range[is_nonzero] = 2.0 ** np.floor(np.log2((top + 0.5) / max_abs[is_nonzero]))
    multipliers = _choose_multipliers(power_of_two, weights_refined and bits <= _LOW_BITS)
    multipliers = multipliers[: 1 if calibrator == "max" else None]
    candidates = np.where(is_nonzero, full_range, 1.0)[None] * multipliers[:, None, None]
    group_scales = _least_error_scales(groups, candidates, bits)
    row_scales = _accumulator_scales(
        np.where(is_nonzero, group_scales, np.inf), power_of_two, float(1 << (bits - 1))
    )
    with np.errstate(divide="ignore"):
        float_factors = np.where(
            is_nonzero, row_scales[:, None] / (full_range * multipliers[:, None, None]), 1.0
        )
    max_factor = _MAX_POWER_OF_TWO_FACTOR if power_of_two else MAX_GROUP_FACTOR
    candidate_factors = np.clip(np.rint(float_factors), 1, max_factor)
    best_scales = _least_error_scales(groups, row_scales[:, None] / candidate_factors, bits)
    factors = np.rint(row_scales[:, None] / best_scales).astype(np.int64)
    return make_grouped_qparams(row_scales, factors, size, bits)


def _choose_multipliers(power_of_two: bool, low_bits_refined: bool) -> np.ndarray:
    """Return the candidates of a group's scale, relative to the one of its full range.

    The first is 1. `low_bits_refined`: the weights have few bits and are refined later, so that
    scales only decrease; it does not count for powers of two.
    """
    if power_of_two:
        return _POWER_OF_TWO_MULTIPLIERS
    return _REFINED_SCALE_MULTIPLIERS if low_bits_refined else _SCALE_MULTIPLIERS


def _accumulator_scales(scales: np.ndarray, power_of_two: bool, default: float) -> np.ndarray:
    """Return the scale S [O] of each row, of which its groups' scales are integer fractions.

    Free scales: MAX_GROUP_FACTOR times the smallest of the groups, rounded to float32. Powers of
    two: the largest, at most 128 times the smallest. A row of zeros counts as having the smallest
    scale of all rows.

    Parameters
    ----------
    scales
        Scales [O, groups], infinite for a group of zeros.
    power_of_two
        Whether only powers of two are allowed.
    default
        Scale if all weights are zero; also an upper limit of the scale of a row of zeros.
    """
    lowest = scales.min(axis=1)
    is_nonzero = np.isfinite(lowest)
    lowest[~is_nonzero] = lowest[is_nonzero].min(initial=default) if is_nonzero.any() else default
    if not power_of_two:
        return np.asarray(MAX_GROUP_FACTOR * lowest, np.float32).astype(np.float64)
    highest = np.where(np.isfinite(scales), scales, 0.0).max(axis=1)
    limited = np.minimum(highest, _MAX_POWER_OF_TWO_FACTOR * lowest)
    bounds: np.ndarray = np.where(is_nonzero, limited, lowest)
    return bounds


def _least_error_scales(groups: np.ndarray, candidates: np.ndarray, bits: int) -> np.ndarray:
    """Return the candidate scale with the least squared error of each group, [O, groups].

    Of equally good ones it is the first.

    Parameters
    ----------
    groups
        Weights [O, groups, size].
    candidates
        Scales [candidates, O, groups].
    bits
        Width of the integers to which weights are rounded and clipped.
    """
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    best: np.ndarray = candidates[0].copy()
    min_error = np.full(candidates.shape[1:], np.inf)
    for scales in candidates:
        integers = np.clip(np.floor(groups * scales[..., None] + 0.5), low, high)
        error = np.square(integers / scales[..., None] - groups).sum(axis=2)
        is_better = error < min_error
        best[is_better], min_error[is_better] = scales[is_better], error[is_better]
    return best
