"""Weights of a float model at scales that another tool chose, and what of its file could not be taken.

The weights are real numbers still: they are rounded here, and refined as ever. A scale per channel
becomes the coarsest one where the platform has one per weight, and a power of two, the better one
of the two around it for these numbers, where it shifts. A scale that fits other numbers than the
weight has (it may have been made before or after batch normalization was folded in) is refused: the
weight then gets one of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...graph import ir
from ...plan import Affine, PerAxis
from ...plan.config import QuantConfig
from ...plan.power_of_two import floor_power_of_two
from ...qdq.import_model import ImportedQuantization
from ...targets import Target
from ..partition import Partition
from .imported_scales import ImportedQParams, candidate_weight_qparams, iter_quantized_weights

__all__ = [
    "ImportedWeights",
    "collect_rejections",
    "format_plan_import",
    "import_external_weight_scales",
    "update_applied_qparams",
]

_MAX_SQNR_LOSS_DB = (
    12.0  # dB, two bits, below the scale of the largest number: then it was made for other numbers
)
_MAX_NAMES = 5  # that a note lists


@dataclass
class ImportedWeights:
    """How weights are held at another tool's scales.

    imported : what became of each scale. refused : {weight: why its scale is not taken}. used : the
    weights, by the names that the file has for them, whose scales were looked at.
    """

    held: dict[str, Affine] = field(default_factory=dict)
    imported: list[ImportedQParams] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    matched_names: set[str] = field(default_factory=set)


def import_external_weight_scales(
    imported: ImportedQuantization, partition: Partition, target: Target, config: QuantConfig
) -> ImportedWeights:
    """Return how the weights are held that `imported` has scales for."""
    borrowed = ImportedWeights()
    for node, op, name, values in iter_quantized_weights(partition):
        grids = candidate_weight_qparams(imported, node, name, values)
        if not grids:
            continue
        own = [grid for grid, _ in imported.layers.get(ir.origin_name(node), ())]
        borrowed.matched_names |= {
            old
            for old, grid in imported.weights.items()
            if old == name or any(grid is one for one in own)
        }
        fitting = [
            (q, grid)
            for grid in grids
            if (
                q := _convert_weight_qparams(
                    grid, values, op.integer_op.channel_axis, target, config
                )
            )
        ]
        if not fitting:
            borrowed.rejected[name] = _format_rejection(grids[0], values, target)
            continue
        q, grid = max(fitting, key=lambda pair: _rounding_sqnr_db(values, pair[0]))
        top = ((1 << (q.bits - 1)) - 1) / max(float(np.abs(values).max()), 1e-30)
        plain, got = (
            _rounding_sqnr_db(
                values, Affine(_fit_scale_to_mode(top, values, q.bits, config), q.bits)
            ),
            _rounding_sqnr_db(values, q),
        )
        if got < plain - _MAX_SQNR_LOSS_DB:
            borrowed.rejected[name] = (
                f"its scale was made for other numbers: {got:.1f} dB, where that of the largest "
                f"gives {plain:.1f}"
            )
            continue
        same = q.scales.size == grid.scales.size and np.allclose(q.scales, grid.scales, rtol=1e-6)
        borrowed.held[name] = q
        borrowed.imported.append(
            ImportedQParams(
                name, float(grid.scales.min()), 0, grid.bits, q, None, None if same else got
            )
        )
    return borrowed


def _format_rejection(grid: Affine, values: np.ndarray, target: Target) -> str:
    if grid.bits > max(target.bits):
        return f"{grid.bits} bits; {target.name} computes in {' or '.join(map(str, target.bits))}"
    return (
        f"{grid.scales.size} scales do not fit the shape {list(values.shape)} that the weight "
        "has here"
    )


def _convert_weight_qparams(
    grid: Affine, values: np.ndarray, axis: int | None, target: Target, config: QuantConfig
) -> Affine | None:
    """Return how `values` are held at the scales of `grid`, None where the platform does not have its form."""
    bits = min((width for width in target.bits if width >= grid.bits), default=0)
    many = not grid.single
    if not bits or (many and (axis is None or values.shape[axis] != grid.scales.size)):
        return None
    scales = _symmetric_scales(grid)
    if many and config.weight_scales != "tensor":
        rows = np.moveaxis(values, axis or 0, 0)
        scales_held = tuple(
            _fit_scale_to_mode(scale, part, bits, config)
            for scale, part in zip(scales, rows, strict=True)
        )
        return Affine(scales_held, bits, PerAxis(axis or 0))
    return Affine(_fit_scale_to_mode(min(scales), values, bits, config), bits)


def _symmetric_scales(grid: Affine) -> list[float]:
    """Return the scales of a grid around 0 that holds the same range.

    Weights have no zero points here.
    """
    middle, top = grid.low + (1 << (grid.bits - 1)), (1 << (grid.bits - 1)) - 1
    return [
        scale if zero == middle else scale * top / max(zero - grid.low, grid.high - zero)
        for scale, zero in zip(grid.scales.flat, grid.zero_points.flat, strict=True)
    ]


def _fit_scale_to_mode(scale: float, values: np.ndarray, bits: int, config: QuantConfig) -> float:
    """Return `scale`, or the power of two around it that is the better one for `values`."""
    lower = floor_power_of_two(scale, imported=True)
    if config.mode != "q-value" or math.isclose(lower, scale, rel_tol=1e-5):
        return float(np.float32(scale)) if config.mode != "q-value" else lower
    return max((lower, 2 * lower), key=lambda tried: _rounding_sqnr_db(values, Affine(tried, bits)))


def _rounding_sqnr_db(values: np.ndarray, qparams: Affine) -> float:
    """Return the SQNR in dB of `values` rounded to integers."""
    noise = float(((qparams.on_grid(values) - values) ** 2).sum())
    power = float((values**2).sum())
    return math.inf if noise == 0 else -math.inf if power == 0 else 10 * math.log10(power / noise)


def update_applied_qparams(
    imported: Sequence[ImportedQParams], tensors: Mapping[str, Affine]
) -> list[ImportedQParams]:
    """Return `imported` as the finished plan holds them.

    Rules of the platform may have moved scales since.
    """
    followed = []
    for one in imported:
        new = tensors.get(one.tensor, one.held)
        moved = math.log2(float(one.held.scales.min() / new.scales.min()))
        followed.append(
            replace(
                one, held=new, bits_lost=None if one.bits_lost is None else one.bits_lost + moved
            )
        )
    return followed


def collect_rejections(
    read: ImportedQuantization, taken: Sequence[ImportedQParams], weights: ImportedWeights
) -> dict[str, str]:
    """Return {tensor: why} of all that a file speaks of and nothing was taken from."""
    have = {one.tensor for one in taken}
    inside = "it has no integers of its own here: part of another layer, or in float"
    lost = {name: inside for name in read.activations if name not in have}
    lost |= {
        name: inside
        for name in read.weights
        if name not in weights.matched_names and name not in have
    }
    return {**read.rejected, **lost, **weights.rejected}


def format_plan_import(
    tool: str,
    imported: Sequence[ImportedQParams],
    rejected: Mapping[str, str],
    missing: Sequence[str],
    synthetic: bool,
    full: bool,
) -> list[str]:
    """Return what a user should read of it: sums with names, or with `full` tensor by tensor."""
    kept, other = [one for one in imported if one.kept], [one for one in imported if not one.kept]
    lines = [
        f"{tool}: {len(kept)} of {len(imported) + len(rejected)} scales are taken over as they are"
    ]
    rounded = [one.tensor for one in other if one.held.power_of_two]
    changed = [one.tensor for one in other if not one.held.power_of_two]
    for names, what in (
        (rounded, "rounded to powers of two"),
        (changed, "held in the platform's form"),
    ):
        if names:
            lines.append(f"{what}: {_format_names(names)}")
    for why in dict.fromkeys(rejected.values()):
        lines.append(
            "refused: "
            f"{_format_names([name for name, reason in rejected.items() if reason == why])}: {why}"
        )
    if missing:
        how = (
            "calibrated on synthetic inputs, give real data with --calib"
            if synthetic
            else "calibrated"
        )
        lines.append(f"without a scale there, {how}: {_format_names(missing)}")
    return [*lines, *(str(one) for one in other if full)]


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(f"'{name}'" for name in names[:_MAX_NAMES]) + more
