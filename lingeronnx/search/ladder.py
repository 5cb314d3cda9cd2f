"""The ladder of attempts, cheap ones first: efforts, wide outputs, wide layers, float layers.

Layers that share a scale are changed together. Within a rung, groups are ordered by benefit per
cost: the error at the outputs that disappears when only this group is exempt from rounding
(`analysis.sensitivity.trial`), divided by the group's fraction of the multiply-accumulates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from ..analysis.sensitivity.layers import (
    RoundedOperator,
    build_roundable_model,
    list_rounded_operators,
)
from ..analysis.sensitivity.trial import RoundedSet
from ..analysis.sensitivity.trial_runs import choose_block_size
from ..common.escaping import quote_shell
from ..ir import ir
from ..ir.disjoint import DisjointSets
from ..operators.integer_ops import QUANT
from ..operators.macs import count_macs
from ..quantization import PlannedModel
from ..quantization.config import Override, QuantConfig
from ..quantization.scales import group_shared_scales
from ..targets import Target

__all__ = [
    "MAX_FLOAT_MAC_FRACTION",
    "Attempt",
    "LayerGroup",
    "NarrowLayer",
    "rank_layer_groups",
    "rank_narrow_layers",
    "iter_rungs",
]


#: Largest fraction of the multiply-accumulates that an attempt may compute in float. Beyond it the
#: model hardly counts as quantized.
MAX_FLOAT_MAC_FRACTION = 0.5

_MAX_SAMPLES = 32  # calibration samples used to rank the groups


@dataclass(frozen=True)
class Attempt:
    """Options of `quantize` on top of the user's; layers are given by selector.

    Parameters
    ----------
    effort
        Effort to use, or "" for the user's.
    raw
        Layers that produce graph outputs and use the platform's widest output.
    wide
        Layers with wider data and weights, as (selector, bits, weight bits).
    floats
        Layers that stay in float.
    """

    effort: str = ""
    raw: tuple[str, ...] = ()
    wide: tuple[tuple[str, int, int], ...] = ()
    floats: tuple[str, ...] = ()

    def overrides(self, target: Target) -> dict[str, dict[str, Any]]:
        """Return the per-layer overrides of the attempt: settings by selector.

        `wide` layers get their widths, `raw` ones the target's largest output width, unless they
        are in float.
        """
        overrides: dict[str, dict[str, Any]] = {
            name: {"bits": bits, "weight_bits": weight_bits}
            for name, bits, weight_bits in self.wide
        }
        for name in self.raw:
            if name in self.floats:  # a float layer has no output width
                continue
            overrides.setdefault(name, {})["out_bits"] = max(target.out_bits)
        return overrides

    def apply_to(self, config: QuantConfig, target: Target) -> QuantConfig:
        """Return a copy of `config` with the attempt's overrides and, if it has one, its effort.

        Where both override the same setting of a layer, the user's value in `config` is kept.
        """
        overrides = dict(config.overrides)
        for name, settings in self.overrides(target).items():
            user_settings = overrides[name].to_settings if name in overrides else {}
            overrides[name] = Override(**{**settings, **user_settings})
        update: dict[str, Any] = {"overrides": overrides}
        if self.effort:
            update["effort"] = self.effort
        return config.model_copy(update=update)

    def to_cli_options(self, target: Target) -> list[str]:
        """Return the attempt as options of `quantize`: effort, overrides, then skipped layers.

        Each entry is one option with its value, quoted for a shell.
        """
        options = [f"--effort {self.effort}"] if self.effort else []
        for name, settings in self.overrides(target).items():
            pairs = ",".join(f"{key}:{value}" for key, value in settings.items())
            options.append(f"--override {quote_shell(f'{name}={pairs}')}")
        return [*options, *(f"--skip {quote_shell(name)}" for name in self.floats)]

    @property
    def description(self) -> str:
        """A short description, such as "effort best, 3 layers 16x16"; else "as requested"."""
        changes = [f"effort {self.effort}"] if self.effort else []
        changes += ["wide outputs"] if self.raw else []
        for width in dict.fromkeys(pair[1:] for pair in self.wide):
            count = sum(pair[1:] == width for pair in self.wide)
            changes.append(f"{_format_layer_count(count)} {width[0]}x{width[1]}")
        changes += [f"{_format_layer_count(len(self.floats))} in float"] if self.floats else []
        return ", ".join(changes) or "as requested"


def _format_layer_count(count: int) -> str:
    """Format a number of layers: "1 layer", "3 layers"."""
    return f"{count} layer{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share scales and are changed together.

    Parameters
    ----------
    layers
        The operators of the group.
    gain
        Decrease of the output error, relative to the outputs' power, when only this group is exempt
        from rounding.
    mac_fraction
        Fraction of the model's multiply-accumulates.
    """

    layers: tuple[RoundedOperator, ...]
    gain: float
    mac_fraction: float

    @property
    def selectors(self) -> tuple[str, ...]:
        """The distinct selectors of the layers in options, in order.

        A layer without selector has its name if it is a Quant, where quantization starts, else
        none.
        """
        names = (
            layer.selector or (layer.name if layer.op_type == QUANT.name else "")
            for layer in self.layers
        )
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def float_selectors(self) -> tuple[str, ...]:
        """The distinct selectors of the layers that can stay in float, in order.

        Layers without a selector, such as a Quant, are left out.
        """
        return tuple(dict.fromkeys(layer.selector for layer in self.layers if layer.selector))


@dataclass(frozen=True)
class NarrowLayer:
    """A layer with fewer bits for its weights than for its data.

    Parameters
    ----------
    selector
        Name of the layer in options.
    gain
        Decrease of the relative output error when only its weights are exempt from rounding, as in
        `LayerGroup.gain`.
    extra_bytes
        Bytes added if its weights get as many bits as the data.
    """

    selector: str
    gain: float
    extra_bytes: float

    @property
    def selectors(self) -> tuple[str, ...]:
        """The selector as a tuple of one, the interface that groups of layers have, too."""
        return (self.selector,)


def rank_layer_groups(planned: PlannedModel) -> list[LayerGroup]:
    """List groups of layers that share scales, best gain per multiply-accumulate first.

    The gain is the relative error at the outputs that disappears if only this group is not rounded.
    A group costs at least as much as an average one.
    """
    operators = list_rounded_operators(planned)
    groups = _group_by_shared_scale(planned, operators)
    gains = _measure_gains(planned, operators, [_merge_rounded(group) for group in groups])
    macs = _macs_by_node(planned)
    total_macs = max(sum(macs.values()), 1)
    layer_groups = []
    for group, gain in zip(groups, gains, strict=True):
        group_macs = sum(macs.get(node, 0) for node in _merge_rounded(group).weights)
        layer_groups.append(LayerGroup(tuple(group), gain, group_macs / total_macs))
    min_cost = 1 / max(len(layer_groups), 1)  # a layer without weights has a cost, too
    return sorted(layer_groups, key=lambda group: -group.gain / max(group.mac_fraction, min_cost))


def _merge_rounded(operators: Sequence[RoundedOperator]) -> RoundedSet:
    """Return the union of the rounded tensors and weights of `operators`."""
    return reduce(or_, (operator.all_rounded for operator in operators), RoundedSet())


def rank_narrow_layers(planned: PlannedModel) -> list[NarrowLayer]:
    """List the layers whose weights have fewer bits than the data, best gain per byte first.

    Bytes are those that widening the weights to the bits of the data adds. Layers without a
    selector are left out.
    """
    operators = list_rounded_operators(planned)
    sizes = [(layer, _widening_bytes(planned, layer)) for layer in operators]
    sizes = [(layer, size) for layer, size in sizes if layer.selector and size]
    if not sizes:
        return []
    gains = _measure_gains(planned, operators, [layer.weight for layer, _ in sizes])
    narrow_layers = [
        NarrowLayer(layer.selector, gain, size)
        for (layer, size), gain in zip(sizes, gains, strict=True)
    ]
    return sorted(narrow_layers, key=lambda layer: -layer.gain / layer.extra_bytes)


def _widening_bytes(planned: PlannedModel, layer: RoundedOperator) -> float:
    """Return the bytes added if the weights of `layer` get as many bits as the data.

    Weights that have at least that many, and layers without weights, add 0.
    """
    tensors, partition = planned.plan.tensors, planned.partition
    weight_names: set[str] = set()
    for node in partition.graph.graph:
        if str(node.name) in layer.weight.weights:
            indices = partition.ops[str(node.name)].weight_inputs(node)
            weight_names.update(ir.input_name(node, index) for index in indices)
    extra_bytes = 0.0
    for name in weight_names & tensors.keys():
        extra_bits = planned.prepared.conf.bits - tensors[name].bits
        if extra_bits > 0:
            constant = ir.require_const_value(partition.graph.graph.initializers[name])
            extra_bytes += constant.size * extra_bits / 8
    return extra_bytes


def _group_by_shared_scale(
    planned: PlannedModel, operators: Sequence[RoundedOperator]
) -> list[list[RoundedOperator]]:
    """Group operators whose tensors are connected through shared scales, also indirectly.

    Each operator is in one group; the groups and their members are in the order of `operators`.
    """
    sets = DisjointSets()
    for shared_scale in group_shared_scales(planned.partition, planned.prepared.target):
        for name in shared_scale.tensors:
            sets.union(f"tensor {name}", f"tensor {shared_scale.tensors[0]}")
    for index, layer in enumerate(operators):
        for name in layer.activation.tensors:
            sets.union(f"layer {index}", f"tensor {name}")
    members: dict[str, list[RoundedOperator]] = {}
    for index, layer in enumerate(operators):
        members.setdefault(sets.find(f"layer {index}"), []).append(layer)
    return list(members.values())


def _macs_by_node(planned: PlannedModel) -> dict[str, int]:
    """Return {node: multiply-accumulates for one sample} of the planned graph."""
    return {str(node.name): count_macs(node) for node in planned.partition.graph.graph}


def _measure_gains(
    planned: PlannedModel, operators: Sequence[RoundedOperator], rounded_sets: Sequence[RoundedSet]
) -> list[float]:
    """Return the relative output error that each of `rounded_sets` causes; may be negative.

    The gain of a set is the error with everything rounded minus the error with everything but this
    set rounded: squared error over squared output, summed over the float outputs, on up to
    `_MAX_SAMPLES` calibration samples. `operators` are all that can be rounded.
    """
    output_names = ir.get_output_names(planned.prepared.original)
    engine = build_roundable_model(planned, operators, output_names).create_engine()
    all_rounded = _merge_rounded(operators)
    settings = [all_rounded, *(all_rounded - rounded_set for rounded_set in rounded_sets)]
    max_samples = min(choose_block_size(planned, engine.segments), _MAX_SAMPLES)
    errors = np.zeros((len(settings), len(output_names)))
    power = np.zeros(len(output_names))
    for _, _, samples in engine.split_samples(planned.prepared.data.first(max_samples)):
        exact = engine.run_base(RoundedSet(), samples).tensors
        base = engine.run_base(all_rounded, samples)
        for row, setting in enumerate(settings):
            outputs = engine.outputs(setting, base, samples)
            for column, name in enumerate(output_names):
                errors[row, column] += _squared_norm(outputs[name], exact[name])
        power += [_squared_norm(exact[name]) for name in output_names]
    relative_errors = (errors / np.where(power > 0, power, 1)).sum(axis=1)
    return [float(relative_errors[0] - error) for error in relative_errors[1:]]


def _squared_norm(array: np.ndarray, other: np.ndarray | None = None) -> float:
    """Return the squared norm of `array`, or of its difference to `other`.

    The result is 0 if the array is not float or a value is not finite.
    """
    if array.dtype.kind != "f":
        return 0.0
    values = array.astype(np.float64).reshape(-1)
    values = values if other is None else values - other.reshape(-1)
    return float(np.dot(values, values)) if np.isfinite(values).all() else 0.0


# ---- rungs ----------------------------------------------------------------------------------


def iter_rungs(planned: PlannedModel, start: Attempt) -> Iterator[list[Attempt]]:
    """Yield the rungs of the ladder: lists of attempts, each more expensive than the previous one.

    Each rung extends the last attempt of the rung before it: wide graph outputs, wider layers (one
    rung per supported width), then float layers. Rungs that do not apply are left out, except for
    the last one, which may be empty: layers are put in float up to a fraction
    MAX_FLOAT_MAC_FRACTION of the multiply-accumulates. Gains are measured on the calibration
    samples after the first rung.

    Parameters
    ----------
    planned
        Model planned with `start`.
    start
        Options of `planned` on top of the user's own.
    """
    target = planned.prepared.target
    wide_output_names = _wide_output_selectors(planned)
    if max(target.out_bits) > min(target.out_bits) and wide_output_names:
        start = replace(start, raw=wide_output_names)
        yield [start]
    groups = rank_layer_groups(planned)
    config = planned.prepared.conf
    for width in sorted(target.bits):
        bit_widths = max(width, config.bits), max(width, config.weight_bits)
        if bit_widths == (config.bits, config.weight_bits):
            continue
        if bit_widths[0] == config.bits:  # only the weights get wider
            selectors = [layer.selectors for layer in rank_narrow_layers(planned)]
        else:
            selectors = [group.selectors for group in groups]
        rung = _widen_step_by_step(start, selectors, bit_widths)
        if rung:
            start = rung[-1]
            yield rung
    float_groups = []
    float_fraction = 1 - sum(group.mac_fraction for group in groups)
    for group in groups:
        if float_fraction + group.mac_fraction <= MAX_FLOAT_MAC_FRACTION:
            float_fraction += group.mac_fraction
            float_groups.append(group.float_selectors)
    yield [replace(start, floats=names) for names in _iter_prefixes(float_groups)]


def _widen_step_by_step(
    start: Attempt, selectors: Sequence[tuple[str, ...]], bit_widths: tuple[int, int]
) -> list[Attempt]:
    """Make one attempt per prefix of `selectors`, whose layers get (bits, weight bits).

    Widths that `start` has for other layers stay.
    """
    start_widths = {name: (bits, weight_bits) for name, bits, weight_bits in start.wide}
    rung = []
    for names in _iter_prefixes(selectors):
        widths = {**start_widths, **dict.fromkeys(names, bit_widths)}
        wide = tuple((name, *layer_widths) for name, layer_widths in widths.items())
        rung.append(replace(start, wide=wide))
    return rung


def _iter_prefixes(groups: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield the names of the first group, of the first two, and so on.

    Groups that add no new name are skipped.
    """
    names: dict[str, None] = {}
    for group in groups:
        previous_count = len(names)
        names.update(dict.fromkeys(group))
        if len(names) > previous_count:
            yield tuple(names)


def _wide_output_selectors(planned: PlannedModel) -> tuple[str, ...]:
    """Return the selectors of layers whose output leaves the integer part and may be wide.

    Layers whose output width the user has set are left out, and those without a selector.
    """
    wide_outputs = planned.partition.wide_outputs(planned.prepared.target)
    overrides = planned.prepared.conf.overrides
    selectors = []
    for layer in list_rounded_operators(planned):
        if not layer.selector or not layer.activation.tensors & wide_outputs:
            continue
        override = overrides.get(layer.selector)
        if override is None or "out_bits" not in override.to_settings:
            selectors.append(layer.selector)
    return tuple(selectors)
