"""Quantize the weights of a float model with scales that another tool chose.

The weights are still float values: they are rounded here, and refined as usual. A scale per channel
becomes the coarsest one if the platform has one per weight, and on platforms that shift the better
of the two nearest powers of two. A scale that does not match the values of the weight (it may have
been chosen before or after batch normalization was folded) is rejected: the weight is then
calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ...common.arithmetic import ratio_db
from ...interchange.qdq.import_model import ImportedQuantization
from ...ir import ir
from ...ir.plan import Affine, PerAxis
from ...ir.plan.power_of_two import floor_power_of_two
from ...targets import Target
from ..partition import Partition
from .imported_scales import (
    ImportedQParams,
    calibration_hint,
    candidate_weight_qparams,
    format_names,
    iter_quantized_weights,
)

if TYPE_CHECKING:
    from ..config import QuantConfig

__all__ = [
    "ImportedWeights",
    "collect_rejections",
    "format_plan_import",
    "import_external_weight_scales",
    "update_applied_qparams",
]

_MAX_SQNR_LOSS_DB = 12.0  # two bits worse than the max-abs scale: a scale for other values
_MAX_NAMES = 5  # tensor names in a note


@dataclass
class ImportedWeights:
    """Weights quantized with another tool's scales.

    Attributes
    ----------
    qparams
        Parameters by weight.
    imported
        Conversions of the scales.
    rejected
        {weight: reason why its scale is not used}.
    matched_names
        Names in the file whose scales belong to a weight.
    """

    qparams: dict[str, Affine] = field(default_factory=dict)
    imported: list[ImportedQParams] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    matched_names: set[str] = field(default_factory=set)


def import_external_weight_scales(
    imported: ImportedQuantization, partition: Partition, target: Target, config: QuantConfig
) -> ImportedWeights:
    """Convert the imported scales of all quantized weights, rejecting those that do not match.

    The result has the parameters by weight, the conversions, the reason of each rejection, and the
    names in the file that were matched. Weights without an imported scale are in none of these.
    """
    result = ImportedWeights()
    for node, op, name, values in iter_quantized_weights(partition):
        grids = candidate_weight_qparams(imported, node, name, values)
        if not grids:
            continue
        layer_grids = {id(grid) for grid, _ in imported.layers.get(ir.origin_name(node), ())}
        for file_name, grid in imported.weights.items():
            if file_name == name or id(grid) in layer_grids:
                result.matched_names.add(file_name)
        conversion = _convert_best(grids, name, values, op.integer_op.channel_axis, target, config)
        if isinstance(conversion, str):
            result.rejected[name] = conversion
        else:
            result.qparams[name] = conversion.qparams
            result.imported.append(conversion)
    return result


def _convert_best(
    grids: Sequence[Affine],
    name: str,
    values: np.ndarray,
    axis: int | None,
    target: Target,
    config: QuantConfig,
) -> ImportedQParams | str:
    """Convert those of `grids` (imported parameters) with the highest SQNR on a weight's `values`.

    Returns the reason (text) instead if none can be converted, or if the best is more than 12 dB
    below a per-tensor scale from the largest magnitude. `sqnr` of the result is in dB; None if the
    scales stay the same (within a relative 1e-6). `axis` is the operator's channel axis, None
    without scales per channel.
    """
    candidates = []
    for grid in grids:
        converted = _convert_weight_qparams(grid, values, axis, target, config)
        if converted is not None:
            candidates.append((converted, grid))
    if not candidates:
        return _format_rejection(grids[0], values, target)
    qparams, grid = max(candidates, key=lambda pair: _rounding_sqnr_db(values, pair[0]))
    bits = qparams.bits
    max_abs_scale = ((1 << (bits - 1)) - 1) / max(float(np.abs(values).max()), 1e-30)
    reference = Affine(_fit_scale_to_mode(max_abs_scale, values, bits, config), bits)
    reference_db = _rounding_sqnr_db(values, reference)
    sqnr_db = _rounding_sqnr_db(values, qparams)
    if sqnr_db < reference_db - _MAX_SQNR_LOSS_DB:
        return (
            f"its scale does not match these weights: {sqnr_db:.1f} dB, a max-abs scale gives "
            f"{reference_db:.1f} dB"
        )
    is_unchanged = qparams.scales.size == grid.scales.size and np.allclose(
        qparams.scales, grid.scales, rtol=1e-6
    )
    sqnr = None if is_unchanged else sqnr_db
    return ImportedQParams(name, float(grid.scales.min()), 0, grid.bits, qparams, None, sqnr)


def _format_rejection(grid: Affine, values: np.ndarray, target: Target) -> str:
    """Return the reason why no imported parameters fit a weight, by the first, `grid`.

    It is too many bits for the platform, else a number of scales that does not match the shape of
    `values`.
    """
    if grid.bits > max(target.bits):
        supported = " or ".join(map(str, target.bits))
        return f"{grid.bits} bits; {target.name} supports {supported}"
    return f"{grid.scales.size} scales do not match the weight's shape {list(values.shape)}"


def _convert_weight_qparams(
    grid: Affine, values: np.ndarray, axis: int | None, target: Target, config: QuantConfig
) -> Affine | None:
    """Return parameters of a weight at the scales of `grid`, or None if that is impossible.

    The width is the platform's smallest one that is no smaller; None if there is none. Several
    scales stay one per channel of `axis`, or become the smallest if the settings want one per
    tensor; None if their number is not that of the channels. Zero points are removed.
    """
    bits = min((width for width in target.bits if width >= grid.bits), default=0)
    if not bits:
        return None
    scales = _symmetric_scales(grid)
    if grid.single:
        return Affine(_fit_scale_to_mode(min(scales), values, bits, config), bits)
    if axis is None or values.shape[axis] != grid.scales.size:
        return None
    if config.weight_scales == "tensor":
        return Affine(_fit_scale_to_mode(min(scales), values, bits, config), bits)
    channels = np.moveaxis(values, axis, 0)
    channel_scales = tuple(
        _fit_scale_to_mode(scale, channel, bits, config)
        for scale, channel in zip(scales, channels, strict=True)
    )
    return Affine(channel_scales, bits, PerAxis(axis))


def _symmetric_scales(grid: Affine) -> list[float]:
    """Return, for each scale of `grid`, that of a symmetric range that covers the same values.

    A scale changes only if its zero point is not the center of the integers.
    """
    center, top = grid.low + (1 << (grid.bits - 1)), (1 << (grid.bits - 1)) - 1
    scales = []
    for scale, zero in zip(grid.scales.flat, grid.zero_points.flat, strict=True):
        if zero != center:
            scale = scale * top / max(zero - grid.low, grid.high - zero)
        scales.append(scale)
    return scales


def _fit_scale_to_mode(scale: float, values: np.ndarray, bits: int, config: QuantConfig) -> float:
    """Return `scale` rounded to float32, or in mode "q-value" the better of two powers of two.

    These are the neighbors of `scale`; better means a higher SQNR of `values` rounded at `bits`. A
    scale that is a power of two up to a relative 1e-5 becomes that one.
    """
    if config.mode != "q-value":
        return float(np.float32(scale))
    lower = floor_power_of_two(scale, imported=True)
    if math.isclose(lower, scale, rel_tol=1e-5):
        return lower
    return max(
        (lower, 2 * lower),
        key=lambda candidate: _rounding_sqnr_db(values, Affine(candidate, bits)),
    )


def _rounding_sqnr_db(values: np.ndarray, qparams: Affine) -> float:
    """Return the SQNR in dB of `values` rounded and clipped to the integers of `qparams`.

    inf if nothing is lost, -inf if all values are 0 but their integers are not.
    """
    noise = float(((qparams.on_grid(values) - values) ** 2).sum())
    return ratio_db(float((values**2).sum()), noise)


def update_applied_qparams(
    imported: Sequence[ImportedQParams], tensors: Mapping[str, Affine]
) -> list[ImportedQParams]:
    """Return the conversions with the parameters that the final plan has in `tensors`, by name.

    Legalization may have lowered scales: `bits_lost` of an activation grows by log2 of the ratio.
    Conversions of other tensors stay as they are.
    """
    updated = []
    for conversion in imported:
        qparams = tensors.get(conversion.tensor, conversion.qparams)
        bits_lost = conversion.bits_lost
        if bits_lost is not None:
            ratio = conversion.qparams.scales.min() / qparams.scales.min()
            bits_lost += math.log2(float(ratio))
        updated.append(replace(conversion, qparams=qparams, bits_lost=bits_lost))
    return updated


def collect_rejections(
    read: ImportedQuantization, imported: Sequence[ImportedQParams], weights: ImportedWeights
) -> dict[str, str]:
    """Return {tensor or weight: reason} of all entries of a scale file that were not used.

    Parameters
    ----------
    read
        Contents of the file, with entries that were rejected when it was read.
    imported
        Conversions of the scales that were used.
    weights
        Conversion of the weights; its reasons take precedence.
    """
    used = {conversion.tensor for conversion in imported}
    reason = "not a separate integer tensor here: folded into another layer, or kept in float"
    unused_activations = [name for name in read.activations if name not in used]
    unused_weights = [
        name for name in read.weights if name not in weights.matched_names and name not in used
    ]
    unused = dict.fromkeys([*unused_activations, *unused_weights], reason)
    return {**read.rejected, **unused, **weights.rejected}


def _format_changes(changed: Sequence[ImportedQParams]) -> list[str]:
    """Return notes on changed scales: rounded to powers of two, and otherwise converted.

    At most one note each, left out without names. At most 5 names are listed.
    """
    rounded = [entry.tensor for entry in changed if entry.qparams.power_of_two]
    converted = [entry.tensor for entry in changed if not entry.qparams.power_of_two]
    notes = []
    if rounded:
        notes.append(f"rounded to powers of two: {format_names(rounded, _MAX_NAMES)}")
    if converted:
        notes.append(f"converted to the platform's format: {format_names(converted, _MAX_NAMES)}")
    return notes


def format_plan_import(
    tool: str,
    imported: Sequence[ImportedQParams],
    rejected: Mapping[str, str],
    missing: Sequence[str],
    synthetic: bool,
    full: bool,
) -> list[str]:
    """Return notes for the report on the conversion of another tool's scales.

    They tell how many were kept, changed, rejected (by reason) and missing.

    Parameters
    ----------
    tool
        Name of the tool.
    imported
        Conversions of the scales.
    rejected
        {entry: reason} of scales that were not used.
    missing
        Tensors without an imported scale.
    synthetic
        Whether the missing ones were calibrated on synthetic inputs.
    full
        Whether each change also gets a note of its own.
    """
    changed = [conversion for conversion in imported if not conversion.kept]
    kept_count = len(imported) - len(changed)
    notes = [f"{tool}: {kept_count} of {len(imported) + len(rejected)} scales imported unchanged"]
    notes += _format_changes(changed)
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in rejected.items():
        names_by_reason.setdefault(reason, []).append(name)
    for reason, names in names_by_reason.items():
        notes.append(f"rejected: {format_names(names, _MAX_NAMES)}: {reason}")
    if missing:
        missing_names = format_names(missing, _MAX_NAMES)
        notes.append(f"no imported scale for {missing_names}: {calibration_hint(synthetic)}")
    if full:
        notes += [str(conversion) for conversion in changed]
    return notes
