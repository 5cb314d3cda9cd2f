"""Scales that a quantized model brought along, as the platform holds them, and what each change cost.

kept            the platform holds the scale as it is
symmetric       a zero point that the platform or an operator around has not: ``scale = top /
max(|low|, |high|)``
                of the range it had
power of two    the next lower one, which holds the whole range; the next higher where that cuts off
less than a
                fifteenth. With calibration data, the one of the two with the smaller mean squared
                error
weights         held as they are where their numbers lie on the platform's grid, else quantized anew

What it costs: bits of resolution of an activation, ``log2(old / new)``; of a weight the SQNR of its
new integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...formats import Format
from ...graph import ir
from ...ops import Op, get_weight_values
from ...plan import Affine, PerAxis, PerGroup, make_grouped_qparams
from ...plan.config import QuantConfig, parse_group_size
from ...plan.power_of_two import floor_power_of_two
from ...qdq.import_model import ImportedQuantization
from ...targets import Target
from ..observe.statistics import Stats, TensorStats
from ..partition import Partition
from .shared_scales import SharedScaleGroup

__all__ = [
    "ImportedQParams",
    "candidate_weight_qparams",
    "format_model_import",
    "import_activation_qparams",
    "import_weight_qparams",
    "iter_quantized_weights",
    "measure_weight_conversion",
]

_MAX_CLIPPED_SHARE = 1 / 15  # of a range, which may be cut off for twice the resolution
_GRID_TOLERANCE = 1e-2  # counts that a number may be off


@dataclass(frozen=True)
class ImportedQParams:
    """One scale that came with the model.

    scale, zero_point, bits : as it came (the coarsest of a weight's). held : as it is held now.
    lost : bits of resolution of an activation, None for a weight; sqnr : of a weight's new integers
    in dB, None where none changed.
    """

    tensor: str
    scale: float
    zero_point: int
    bits: int
    held: Affine
    bits_lost: float | None = None
    sqnr: float | None = None

    @property
    def kept(self) -> bool:
        """Whether nothing changed."""
        return (
            self.sqnr is None
            if self.bits_lost is None
            else self.bits_lost == 0 and self.held.zero_point == self.zero_point
        )

    def __str__(self) -> str:
        new = float(self.held.scales.min())
        what = (
            f"{self.bits_lost:.2f} bits of resolution"
            if self.bits_lost is not None
            else f"{self.sqnr:.1f} dB"
        )
        centre = (
            f" (zero point {self.zero_point})" if self.zero_point and not self.held.shifted else ""
        )
        return f"'{self.tensor}': scale {self.scale:.6g}{centre} is held as {new:.6g}: {what}"

    def to_dict(self) -> dict[str, object]:
        """Return JSON-ready values."""
        now = self.held
        return {
            "tensor": self.tensor,
            "scale": self.scale,
            "zero_point": self.zero_point,
            "bits": self.bits,
            "held_scale": now.scales.tolist(),
            "held_bits": now.bits,
            "held_zero_point": int(now.zero_points.flat[0]),
            "bits_lost": self.bits_lost,
            "sqnr": self.sqnr,
            "kept": self.kept,
        }


def import_activation_qparams(
    imported: ImportedQuantization,
    shared_groups: Sequence[SharedScaleGroup],
    target: Target,
    config: QuantConfig,
    stats: Stats,
    factors: Mapping[str, np.ndarray],
) -> tuple[dict[str, Affine], list[ImportedQParams]]:
    """Return how the tensors that `imported` has scales for are held, all of a shared scale alike, and what that cost.

    stats : of real data, empty without. factors : {tensor: what it is multiplied by in the graph to
    be lowered}.
    """
    by_tensor: dict[str, Affine] = {}
    taken = []
    for group in shared_groups:
        known = {
            name: imported.activations[name]
            for name in group.tensors
            if name in imported.activations
        }
        if not known:
            continue
        statistics_of = {
            name: grid for name, grid in known.items() if name in group.observed_tensors
        } or known
        widest = max(statistics_of.values(), key=lambda grid: max(map(abs, grid.ends)))
        factor = float(factors.get(group.tensors[0], np.ones(1))[0])
        q = _convert_activation_qparams(widest, target, config, group, stats, factor)
        by_tensor.update(dict.fromkeys(group.tensors, q))
        for name, grid in known.items():
            levels = 2.0 ** (grid.bits - q.bits)
            lost = math.log2(grid.scale / (q.scale * factor)) if levels else 0.0
            exact = math.isclose(grid.scale, q.scale * factor, rel_tol=1e-6)
            taken.append(
                ImportedQParams(
                    name, grid.scale, grid.signed_zero, grid.bits, q, 0.0 if exact else lost
                )
            )
    return by_tensor, taken


def _convert_activation_qparams(
    grid: Affine,
    target: Target,
    config: QuantConfig,
    group: SharedScaleGroup,
    stats: Stats,
    factor: float,
) -> Affine:
    bits = max((width for width in target.bits if width <= grid.bits), default=min(target.bits))
    top = (1 << (bits - 1)) - 1
    scale, zero = grid.scale, grid.signed_zero
    if bits != grid.bits or (zero and (bits > 8 or not group.allows_zero_point)):
        scale, zero = top / max(map(abs, grid.ends)), 0
    scale /= factor
    if config.mode == "q-value":
        zero = 0 if target.needs_power_of_two_scales else zero
        scale = _choose_power_of_two(scale, group.merged_stats(stats), bits, zero)
    return Affine(float(np.float32(scale)), bits, zero_point=zero)


def _choose_power_of_two(scale: float, stats: TensorStats | None, bits: int, zero: int) -> float:
    """Return a power of two in place of `scale`."""
    lower = floor_power_of_two(scale, imported=True)
    if math.isclose(lower, scale, rel_tol=1e-5):
        return lower
    if stats is not None and stats.sum_of_squares > 0:
        ends = -(1 << (bits - 1)) - zero, (1 << (bits - 1)) - 1 - zero
        return min(
            (lower, 2 * lower), key=lambda tried: float(stats.quantization_error(tried, *ends))
        )
    return 2 * lower if 2 * lower * (1 - _MAX_CLIPPED_SHARE) <= scale else lower


def import_weight_qparams(
    imported: ImportedQuantization, partition: Partition, target: Target, config: QuantConfig
) -> tuple[dict[str, Affine], dict[str, Affine]]:
    """Return the weights whose numbers lie on a grid that came along and that the platform holds, and all grids."""
    by_weight: dict[str, Affine] = {}
    grids: dict[str, Affine] = {}
    for node, op, name, values in iter_quantized_weights(partition):
        for grid in candidate_weight_qparams(imported, node, name, values):
            grids.setdefault(name, grid)
            q = _match_weight_qparams(grid, values, op.integer_op, target, config)
            if q is not None:
                by_weight[name], grids[name] = q, grid
                break
    return by_weight, grids


def candidate_weight_qparams(
    imported: ImportedQuantization, node: ir.Node, name: str, values: np.ndarray
) -> list[Affine]:
    """Return the grids that `imported` may have meant for the weight `name` of `node`, which holds `values` now."""
    grid = imported.weights.get(name)
    named = [] if grid is None else [grid]
    own = [
        pair
        for pair in imported.layers.get(ir.origin_name(node), ())
        if grid is None or pair[0] is grid
    ]
    return [
        *named,
        *(
            candidate
            for grid, old in own
            for candidate in (grid, *_rescale_for_folded_norm(grid, old, values))
        ),
    ]


def iter_quantized_weights(partition: Partition) -> Iterator[tuple[ir.Node, Op, str, np.ndarray]]:
    """Yield every quantized weight: its node and rule, its name, its real numbers."""
    for node, op in partition.integer_nodes:
        for index in op.weight_inputs(node):
            values = get_weight_values(node, index)
            if values is not None:
                yield node, op, ir.input_name(node, index), np.asarray(values, np.float64)


def _rescale_for_folded_norm(grid: Affine, old: np.ndarray, values: np.ndarray) -> list[Affine]:
    """Return the grid of a weight whose channels were multiplied by something.

    A batch normalisation folded in.
    """
    if old.shape != values.shape or old.ndim < 2 or grid.axis not in (None, 0):
        return []
    before, after = (
        np.abs(array.reshape(len(array), -1)).max(axis=1)
        for array in (old.astype(np.float64), values)
    )
    if not (before > 0).all() or not (after > 0).all():
        return []
    scales = grid.broadcast(before.shape) * before / after
    return [Affine(scales, grid.bits, PerAxis(0), signed=grid.signed)] if len(scales) > 1 else []


def _match_weight_qparams(
    grid: Affine, values: np.ndarray, op_format: Format, target: Target, config: QuantConfig
) -> Affine | None:
    """Return how `values` are held on `grid`, None where the platform or the numbers do not fit it."""
    axis = op_format.channel_axis
    bits = (
        max((width for width in target.bits if width >= grid.bits), default=0)
        if grid.bits not in target.bits
        else grid.bits
    )
    many = not grid.single
    if isinstance(grid.granularity, PerGroup):
        taken = (
            op_format.supports_group_scales
            and bits == grid.bits
            and grid.granularity.size == parse_group_size(config.weight_scales)
        )
        return _accept_if_on_grid(values, _regroup_qparams(grid, values), config) if taken else None
    if not bits or (
        many
        and (
            axis is None
            or config.weight_scales == "tensor"
            or values.shape[axis] != grid.scales.size
        )
    ):
        return None
    q = (
        Affine(grid.scales, bits, PerAxis(axis))
        if axis is not None and many
        else Affine(grid.scale, bits)
    )
    return _accept_if_on_grid(values, q, config)


def _regroup_qparams(grid: Affine, values: np.ndarray) -> Affine | None:
    """Return the groups of `grid` along the rows of `values` [O, I], None where they do not fit or have no factors."""
    assert isinstance(grid.granularity, PerGroup)
    turned, size = grid.along(1), grid.granularity.size
    if (
        values.ndim != 2
        or turned.scales.shape != (len(values), -(-values.shape[1] // size))
        or grid.bits > 8
    ):
        return None
    try:
        return make_grouped_qparams(*turned.factors, size, grid.bits)
    except ValueError:
        return None


def _accept_if_on_grid(
    values: np.ndarray, qparams: Affine | None, config: QuantConfig
) -> Affine | None:
    """Return `qparams` where `values` lie on its integers and the mode has its scales, else None."""
    if qparams is None or (config.mode == "q-value" and not qparams.power_of_two):
        return None
    counts = values * qparams.broadcast(values.shape)
    near = np.rint(counts)
    inside = qparams.low <= near.min(initial=0.0) and near.max(initial=0.0) <= qparams.high
    return qparams if inside and np.abs(counts - near).max(initial=0.0) < _GRID_TOLERANCE else None


def measure_weight_conversion(
    partition: Partition, tensors: Mapping[str, Affine], grids: Mapping[str, Affine]
) -> list[ImportedQParams]:
    """Return what became of the weights.

    Those on their grid, and those that were quantized anew.
    """
    by_weight = {}
    for _, _, name, values in iter_quantized_weights(partition):
        if name not in grids or name not in tensors:
            continue
        q, grid = tensors[name], grids[name]
        off = q.on_grid(values) - values
        noise, power = float((off**2).sum()), float((values**2).sum())
        exact = noise <= power * 1e-8
        sqnr = None if exact else 10 * math.log10(power / noise)
        by_weight[name] = ImportedQParams(
            name, float(grid.scales.min()), int(grid.zero_points.flat[0]), grid.bits, q, None, sqnr
        )
    return list(by_weight.values())


def format_model_import(
    imported: Sequence[ImportedQParams], missing: Sequence[str], synthetic: bool, full: bool
) -> list[str]:
    """Return what a user should read of it."""
    activations = [t for t in imported if t.bits_lost is not None]
    weights = [t for t in imported if t.bits_lost is None]
    counts = [f"{sum(t.kept for t in those)} of {len(those)}" for those in (activations, weights)]
    told = [
        (
            f"scales of the quantized model: {counts[0]} activations and {counts[1]} weights are held "
            "as they came"
        )
    ]
    centred = [t for t in activations if t.zero_point and not t.held.shifted]
    if centred:
        told.append(f"{len(centred)} zero points are taken out: the ranges are made symmetric")
    changed = [t for t in activations if t.bits_lost]
    if changed:
        worst = max(changed, key=lambda t: t.bits_lost or 0.0)
        mean = sum(t.bits_lost or 0.0 for t in changed) / len(changed)
        told.append(
            f"{len(changed)} activations are held at other scales: {mean:.2f} bits of resolution "
            "lost on average, "
            f"{worst.bits_lost:.2f} at most ('{worst.tensor}')"
        )
    anew = [t for t in weights if t.sqnr is not None]
    if anew:
        least = min(anew, key=lambda t: t.sqnr or 0.0)
        told.append(
            f"{len(anew)} weights are quantized anew: {least.sqnr:.1f} dB at least "
            f"('{least.tensor}')"
        )
    if missing:
        how = (
            "calibrated on synthetic inputs, give real data with --calib"
            if synthetic
            else "calibrated"
        )
        names = ", ".join(f"'{name}'" for name in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        told.append(f"the quantized model has no scale for {names}{more}: {how}")
    return [*told, *(str(t) for t in imported if full and not t.kept)]
