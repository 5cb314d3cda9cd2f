"""Convert the scales of a quantized model to the platform, and measure the cost of each change.

unchanged
    The platform supports the scale.
wider
    A zero point that an adjacent operator does not support becomes 0, with the same scale and 16
    bits, where the platform has these: they hold the same real values.
symmetric
    Any other zero point that is not supported is removed: ``scale = top / max(|low|, |high|)`` of
    the range.
power of two
    The next lower power of two, which represents the full range, or the next higher one if that
    clips less than a fifteenth. With calibration data, the one with the smaller mean squared error.
weights
    Unchanged if their values lie on the platform's grid, else requantized.

The cost of a changed activation scale is in bits of resolution, ``log2(old / new)``; that of a
requantized weight is its SQNR.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...common.arithmetic import ratio_db
from ...interchange.qdq.import_model import ImportedQuantization
from ...ir import ir
from ...ir.plan import Affine, PerAxis, PerGroup, make_grouped_qparams
from ...ir.plan.power_of_two import floor_power_of_two
from ...operators.integer_ops import Format
from ...operators.lowerings import Op, get_weight_values
from ...targets import Target
from ..calibration.statistics import Stats, TensorStats
from ..partition import Partition
from ..settings import parse_group_size
from .shared_scales import SharedScaleGroup

if TYPE_CHECKING:
    from ..config import QuantConfig

__all__ = [
    "WIDE_BITS",
    "ImportedQParams",
    "calibration_hint",
    "candidate_weight_qparams",
    "format_model_import",
    "format_names",
    "convert_imported_activation_qparams",
    "import_weight_qparams",
    "iter_quantized_weights",
    "measure_weight_conversion",
]

#: Width of activations that the imported file keeps in float, or whose zero point is not supported.
WIDE_BITS = 16

_MAX_CLIPPED_SHARE = 1 / 15  # fraction of a range that may be clipped for twice the resolution
_GRID_TOLERANCE = 1e-2  # maximum distance of a value from the grid in integer steps


@dataclass(frozen=True)
class ImportedQParams:
    """An imported scale and its conversion.

    Attributes
    ----------
    tensor
        Name of the tensor.
    scale, zero_point, bits
        As imported; the coarsest scale of a weight.
    qparams
        Parameters on the platform.
    bits_lost
        Bits of resolution lost by an activation; None for a weight.
    sqnr
        SQNR of a requantized weight in dB; None if its integers are unchanged.
    """

    tensor: str
    scale: float
    zero_point: int
    bits: int
    qparams: Affine
    bits_lost: float | None = None
    sqnr: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the conversion of the imported scale to the platform changed nothing.

        For an activation: no resolution lost, and the same zero point or more bits; for a weight:
        its integers are unchanged (`sqnr` is None).
        """
        if self.bits_lost is None:
            return self.sqnr is None
        is_same_grid = self.qparams.zero_point == self.zero_point or self.is_widened
        return self.bits_lost == 0 and is_same_grid

    @property
    def is_widened(self) -> bool:
        """Whether the platform has more bits instead of the imported zero point."""
        return bool(self.zero_point) and self.qparams.bits > self.bits

    def __str__(self) -> str:
        """Return "'tensor': scale A changed to B: cost" for a changed scale.

        The cost is in bits of resolution for an activation, else the SQNR in dB. A removed zero
        point is named, and of several new scales the smallest.
        """
        new_scale = float(self.qparams.scales.min())
        if self.bits_lost is not None:
            cost = f"{self.bits_lost:.2f} bits of resolution"
        else:
            cost = f"SQNR {self.sqnr:.1f} dB"
        zero_point = ""
        if self.zero_point and not self.qparams.shifted:
            zero_point = f" (zero point {self.zero_point})"
        change = f"scale {self.scale:.6g}{zero_point} changed to {new_scale:.6g}"
        return f"'{self.tensor}': {change}: {cost}"

    def to_dict(self) -> dict[str, object]:
        """Return the conversion as JSON-ready values: tensor, imported and used parameters, cost.

        "held_scale", "held_bits" and "held_zero_point" are those in use on the platform.
        """
        qparams = self.qparams
        return {
            "tensor": self.tensor,
            "scale": self.scale,
            "zero_point": self.zero_point,
            "bits": self.bits,
            "held_scale": qparams.scales.tolist(),
            "held_bits": qparams.bits,
            "held_zero_point": int(qparams.zero_points.flat[0]),
            "bits_lost": self.bits_lost,
            "sqnr": self.sqnr,
            "kept": self.kept,
        }


def convert_imported_activation_qparams(
    imported: ImportedQuantization,
    shared_groups: Sequence[SharedScaleGroup],
    target: Target,
    config: QuantConfig,
    stats: Stats,
    factors: Mapping[str, np.ndarray],
    can_widen: bool = False,
) -> tuple[dict[str, Affine], list[ImportedQParams]]:
    """Convert the imported scales of activations to the platform, one result per shared scale.

    Of several imported scales in a group, the one with the largest magnitude of its range counts,
    among observed tensors if any of these has one. Groups without an imported scale are left out.

    Parameters
    ----------
    imported
        Imported quantization.
    shared_groups
        Groups of tensors that share a scale.
    target, config
        The target and the settings.
    stats
        Statistics of real data; empty without.
    factors
        {tensor: number [1] that divides its values in the graph to be lowered}; 1 if missing. That
        of a group's first tensor counts.
    can_widen
        Whether 16 bits may replace zero points that operators do not support.

    Returns
    -------
    tensors : dict
        {tensor: parameters}, for all tensors of the groups.
    conversions : list of ImportedQParams
        The conversion of each imported scale.
    """
    by_tensor: dict[str, Affine] = {}
    conversions = []
    for group in shared_groups:
        grids = {
            name: imported.activations[name]
            for name in group.tensors
            if name in imported.activations
        }
        if not grids:
            continue
        observed = [grid for name, grid in grids.items() if name in group.observed_tensors]
        widest = max(observed or grids.values(), key=lambda grid: max(map(abs, grid.ends)))
        factor = float(factors.get(group.tensors[0], np.ones(1))[0])
        if can_widen and _needs_symmetric_range(widest, group):
            widest = Affine(widest.scale, WIDE_BITS)
        qparams = _convert_activation_qparams(widest, target, config, group, stats, factor)
        by_tensor.update(dict.fromkeys(group.tensors, qparams))
        for name, grid in grids.items():
            conversions.append(_record_activation(name, grid, qparams, factor))
    return by_tensor, conversions


def _needs_symmetric_range(grid: Affine, group: SharedScaleGroup) -> bool:
    """Whether `grid` of up to 8 bits has a zero point that an operator next to `group` lacks."""
    return grid.bits <= 8 and bool(grid.signed_zero) and not group.allows_zero_point


def _record_activation(name: str, grid: Affine, qparams: Affine, factor: float) -> ImportedQParams:
    """Return the record that the imported `grid` of activation `name` became `qparams`.

    `factor` divides its values in the graph, so the new scale counts times `factor`. Bits lost are
    log2(old / new scale), 0 within a relative 1e-6.
    """
    new_scale = qparams.scale * factor
    bits_lost = 0.0
    if not math.isclose(grid.scale, new_scale, rel_tol=1e-6):
        bits_lost = math.log2(grid.scale / new_scale)
    return ImportedQParams(name, grid.scale, grid.signed_zero, grid.bits, qparams, bits_lost)


def _convert_activation_qparams(
    grid: Affine,
    target: Target,
    config: QuantConfig,
    group: SharedScaleGroup,
    stats: Stats,
    factor: float,
) -> Affine:
    """Convert the imported parameters `grid` of an activation, divided by `factor`, to the target.

    The width becomes the largest supported one up to that of `grid`, else the smallest. A zero
    point is removed (with a scale for a symmetric range) if the width changes, exceeds 8 bits or
    the group does not allow it. In mode q-value the scale becomes a power of two, for which the
    statistics of the group count.
    """
    supported_bits = [width for width in target.bits if width <= grid.bits]
    bits = max(supported_bits, default=min(target.bits))
    scale, zero = grid.scale, grid.signed_zero
    if bits != grid.bits or (zero and (bits > 8 or not group.allows_zero_point)):
        top = (1 << (bits - 1)) - 1
        scale, zero = top / max(map(abs, grid.ends)), 0
    scale /= factor
    if config.mode == "q-value":
        zero = 0 if target.needs_power_of_two_scales else zero
        scale = _choose_power_of_two(scale, group.merged_stats(stats), bits, zero)
    return Affine(float(np.float32(scale)), bits, zero_point=zero)


def _choose_power_of_two(scale: float, stats: TensorStats | None, bits: int, zero: int) -> float:
    """Return the power of two next below or above `scale` that is better for the values.

    A scale that is one within a relative 1e-5 becomes that one. Otherwise it is the one with less
    quantization error over `stats`, at `bits` and zero point `zero`; without statistics the upper
    one if that clips at most 1/15 of the range.
    """
    lower = floor_power_of_two(scale, imported=True)
    if math.isclose(lower, scale, rel_tol=1e-5):
        return lower
    if stats is not None and stats.sum_of_squares > 0:
        low, high = -(1 << (bits - 1)) - zero, (1 << (bits - 1)) - 1 - zero
        return min(
            (lower, 2 * lower),
            key=lambda candidate: float(stats.quantization_error(candidate, low, high)),
        )
    return 2 * lower if 2 * lower * (1 - _MAX_CLIPPED_SHARE) <= scale else lower


def import_weight_qparams(
    imported: ImportedQuantization, partition: Partition, target: Target, config: QuantConfig
) -> tuple[dict[str, Affine], dict[str, Affine]]:
    """Return the imported scales of weights that keep their integers on the platform.

    A weight keeps them if its values lie on an imported grid (integers / scale) that the target
    supports.

    Returns
    -------
    tensors : dict
        {weight: parameters} of the weights that keep their integers.
    grids : dict
        {weight: imported grid} of every weight that has one; the matching one if there are
        several, else the first.
    """
    by_weight: dict[str, Affine] = {}
    grids: dict[str, Affine] = {}
    for node, op, name, values in iter_quantized_weights(partition):
        for grid in candidate_weight_qparams(imported, node, name, values):
            grids.setdefault(name, grid)
            qparams = _match_weight_qparams(grid, values, op.integer_op, target, config)
            if qparams is not None:
                by_weight[name], grids[name] = qparams, grid
                break
    return by_weight, grids


def candidate_weight_qparams(
    imported: ImportedQuantization, node: ir.Node, name: str, values: np.ndarray
) -> list[Affine]:
    """Return the imported parameters that may belong to weight `name`; [] if there are none.

    Those of that name come first; then those of the layer, each followed by its form with scales
    adapted to a folded batch normalization. If the name has some, only those of the layer that are
    identical to them are added.

    Parameters
    ----------
    imported
        Imported quantization.
    node
        Node of the weight.
    name
        Name of the weight.
    values
        Its current values, which may include a folded batch normalization.
    """
    named_grid = imported.weights.get(name)
    candidates = [] if named_grid is None else [named_grid]
    for grid, original in imported.layers.get(ir.origin_name(node), ()):
        if named_grid is None or grid is named_grid:
            candidates += [grid, *_rescale_for_folded_norm(grid, original, values)]
    return candidates


def iter_quantized_weights(partition: Partition) -> Iterator[tuple[ir.Node, Op, str, np.ndarray]]:
    """Yield (node, operator, weight name, values) of every quantized weight, in graph order.

    Values are float64. Weights that are not constant are left out; those of a batch normalization
    are its folded factors.
    """
    for node, op in partition.integer_nodes:
        for index in op.weight_inputs(node):
            values = get_weight_values(node, index)
            if values is not None:
                yield node, op, ir.input_name(node, index), np.asarray(values, np.float64)


def _rescale_for_folded_norm(
    grid: Affine, original: np.ndarray, values: np.ndarray
) -> list[Affine]:
    """Return [`grid` with the scales of a weight whose channels a folded normalization scaled].

    The scale of each channel of axis 0 is multiplied by its largest magnitude in `original` over
    that in `values`. The list is empty if the shapes differ, there is only one axis or channel, the
    grid has another axis, or a channel is all zero.
    """
    if original.shape != values.shape or original.ndim < 2 or grid.axis not in (None, 0):
        return []
    before, after = (
        np.abs(array.reshape(len(array), -1)).max(axis=1)
        for array in (original.astype(np.float64), values)
    )
    if not (before > 0).all() or not (after > 0).all():
        return []
    scales = grid.broadcast(before.shape) * before / after
    return [Affine(scales, grid.bits, PerAxis(0), signed=grid.signed)] if len(scales) > 1 else []


def _match_weight_qparams(
    grid: Affine, values: np.ndarray, op_format: Format, target: Target, config: QuantConfig
) -> Affine | None:
    """Return the parameters of a weight's `values` on `grid`, or None if its integers would change.

    A width that the platform lacks becomes its largest one, if that is wider, else None. Groups
    must have the size of `weight_scales`, their own width, and an operator with groups; scales per
    channel need the operator's channel axis, with `weight_scales` other than "tensor". The values
    must lie on the grid, and in mode q-value its scales must be powers of two.
    """
    bits = grid.bits
    if bits not in target.bits:
        bits = max((width for width in target.bits if width >= bits), default=0)
    if isinstance(grid.granularity, PerGroup):
        is_supported = (
            op_format.supports_group_scales
            and bits == grid.bits
            and grid.granularity.size == parse_group_size(config.weight_scales)
        )
        if not is_supported:
            return None
        return _accept_if_on_grid(values, _regroup_qparams(grid, values), config)
    if not bits:
        return None
    if grid.single:
        return _accept_if_on_grid(values, Affine(grid.scale, bits), config)
    axis = op_format.channel_axis
    if axis is None or config.weight_scales == "tensor":
        return None
    if values.shape[axis] != grid.scales.size:
        return None
    return _accept_if_on_grid(values, Affine(grid.scales, bits, PerAxis(axis)), config)


def _regroup_qparams(grid: Affine, values: np.ndarray) -> Affine | None:
    """Return `grid` with groups along the rows of `values` [O, I], its scales as S / m.

    S is a scale per row and m an integer per group. Returns None above 8 bits, if the shapes do not
    match, or if the scales of a row have no such integers.
    """
    assert isinstance(grid.granularity, PerGroup)
    if values.ndim != 2 or grid.bits > 8:
        return None
    transposed, size = grid.along(1), grid.granularity.size
    if transposed.scales.shape != (len(values), -(-values.shape[1] // size)):
        return None
    try:
        return make_grouped_qparams(*transposed.factors, size, grid.bits)
    except ValueError:
        return None


def _accept_if_on_grid(
    values: np.ndarray, qparams: Affine | None, config: QuantConfig
) -> Affine | None:
    """Return `qparams` if `values` lie on its integers and the mode supports its scales, else None.

    Values times scales may differ from integers by less than 0.01, all must be in range, and in
    mode q-value all scales powers of two. None for `qparams` of None.
    """
    if qparams is None or (config.mode == "q-value" and not qparams.power_of_two):
        return None
    counts = values * qparams.broadcast(values.shape)
    nearest = np.rint(counts)
    is_in_range = (
        qparams.low <= nearest.min(initial=0.0) and nearest.max(initial=0.0) <= qparams.high
    )
    is_on_grid = np.abs(counts - nearest).max(initial=0.0) < _GRID_TOLERANCE
    return qparams if is_in_range and is_on_grid else None


def measure_weight_conversion(
    partition: Partition, tensors: Mapping[str, Affine], grids: Mapping[str, Affine]
) -> list[ImportedQParams]:
    """Return the conversion of each weight that has imported parameters and new ones.

    `sqnr` of a conversion is in dB, of the rounding to the new parameters; None if the noise is at
    most 1e-8 of the weight's power.

    Parameters
    ----------
    partition
        The float graph.
    tensors
        {weight: parameters on the platform}.
    grids
        {weight: imported parameters}.
    """
    by_weight = {}
    for _, _, name, values in iter_quantized_weights(partition):
        if name not in grids or name not in tensors:
            continue
        qparams, grid = tensors[name], grids[name]
        error = qparams.on_grid(values) - values
        noise, power = float((error**2).sum()), float((values**2).sum())
        sqnr = None if noise <= power * 1e-8 else ratio_db(power, noise)
        by_weight[name] = ImportedQParams(
            name,
            float(grid.scales.min()),
            int(grid.zero_points.flat[0]),
            grid.bits,
            qparams,
            None,
            sqnr,
        )
    return list(by_weight.values())


def format_model_import(
    imported: Sequence[ImportedQParams],
    missing: Sequence[str],
    synthetic: bool,
    full: bool,
    has_wide_missing: bool = False,
) -> list[str]:
    """Return notes for the report on the conversion of a quantized model's scales.

    Parameters
    ----------
    imported
        Conversions of the scales.
    missing
        Tensors without an imported scale; the first three are named.
    synthetic
        Whether the missing ones were calibrated on synthetic inputs.
    full
        Whether each change also gets a note of its own.
    has_wide_missing
        Whether the missing ones have `WIDE_BITS` bits.
    """
    activations = [conversion for conversion in imported if conversion.bits_lost is not None]
    weights = [conversion for conversion in imported if conversion.bits_lost is None]
    counts = f"{_count_kept(activations)} activations and {_count_kept(weights)} weights"
    notes = [f"imported scales: {counts} unchanged", *_format_activation_changes(activations)]
    notes += _format_requantized(weights)
    if missing:
        names = format_names(missing, max_names=3)
        width = f"{WIDE_BITS} bits, " if has_wide_missing else ""
        notes.append(f"no imported scale for {names}: {width}{calibration_hint(synthetic)}")
    if full:
        notes += [str(conversion) for conversion in imported if not conversion.kept]
    return notes


def _format_requantized(weights: Sequence[ImportedQParams]) -> list[str]:
    """Return [the note with the number and lowest SQNR of weights with new integers], or [].

    Those are the conversions in `weights` that have an SQNR.
    """
    requantized = [(weight.sqnr, weight.tensor) for weight in weights if weight.sqnr is not None]
    if not requantized:
        return []
    sqnr, tensor = min(requantized, key=lambda entry: entry[0])
    return [f"{len(requantized)} weights requantized: SQNR at least {sqnr:.1f} dB ('{tensor}')"]


def _count_kept(conversions: Sequence[ImportedQParams]) -> str:
    """Format the number of conversions that changed nothing, such as "3 of 5"."""
    return f"{sum(conversion.kept for conversion in conversions)} of {len(conversions)}"


def _format_activation_changes(activations: Sequence[ImportedQParams]) -> list[str]:
    """Return notes on removed zero points and on changed scales of activations.

    One note each, left out if there is nothing to say. The second gives mean and largest loss in
    bits of resolution; it may be negative, and 0 does not count as a change.
    """
    notes = []
    widened_count = sum(conversion.is_widened for conversion in activations)
    if widened_count:
        notes.append(f"{widened_count} zero points replaced by {WIDE_BITS} bits of the same scale")
    centered = [
        conversion
        for conversion in activations
        if conversion.zero_point and not conversion.qparams.shifted and not conversion.is_widened
    ]
    if centered:
        notes.append(f"{len(centered)} zero points removed; ranges made symmetric")
    losses = [
        (conversion.bits_lost, conversion.tensor)
        for conversion in activations
        if conversion.bits_lost
    ]
    if losses:
        mean = sum(bits for bits, _ in losses) / len(losses)
        worst_bits, worst_tensor = max(losses, key=lambda loss: loss[0])
        notes.append(
            f"{len(losses)} activation scales changed: {mean:.2f} bits of resolution lost on "
            f"average, {worst_bits:.2f} at most ('{worst_tensor}')"
        )
    return notes


def calibration_hint(synthetic: bool) -> str:
    """Return text on how tensors without an imported scale were calibrated.

    It asks for real data if `synthetic`: the inputs were random.
    """
    if synthetic:
        return "calibrated on synthetic inputs; pass real data with --calib"
    return "calibrated"


def format_names(names: Sequence[str], max_names: int) -> str:
    """Return `names` in quotes, the first `max_names` of them, and the number of the others."""
    others = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(f"'{name}'" for name in names[:max_names]) + others
