"""What can be given back to a quantized model, cheap things first.

Efforts, wider outputs, wider layers, float layers.
Layers that share a scale go together. Within a rung they are ordered by what they give back for
their cost: the error at the outputs that goes away when a group alone is left out of everything
rounded (`analysis.trial`), divided by its share of the multiply-accumulates.
"""

from __future__ import annotations

import shlex
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
from ..flow import PlannedModel
from ..flow.assign import group_shared_scales
from ..formats import QUANT
from ..graph import ir
from ..graph.disjoint import DisjointSets
from ..ops.macs import count_macs
from ..plan.config import Override, QuantConfig
from ..targets import Target

__all__ = [
    "EFFORTS",
    "MAX_FLOAT_MAC_SHARE",
    "Attempt",
    "LayerGroup",
    "NarrowLayer",
    "rank_layer_groups",
    "rank_narrow_layers",
    "iter_rungs",
]

#: From quick to thorough.
EFFORTS = ("fast", "normal", "best")

#: Share of the multiply-accumulates in float beyond which a model is no quantized one: no attempt goes there.
MAX_FLOAT_MAC_SHARE = 0.5

_MAX_SAMPLES = 32  # that the groups are ranked on


@dataclass(frozen=True)
class Attempt:
    """Options of `quantize` beyond the user's.

    effort : another one, or nothing. raw : layers whose output, a graph output, is as wide as the
    platform has it. wide : layers with wider data and weights: (selector, bits, bits of weights).
    floats : layers in float. All by selector.
    """

    effort: str = ""
    raw: tuple[str, ...] = ()
    wide: tuple[tuple[str, int, int], ...] = ()
    floats: tuple[str, ...] = ()

    def overrides(self, target: Target) -> dict[str, dict[str, Any]]:
        """Return the overrides, by selector."""
        overrides: dict[str, dict[str, Any]] = {
            name: {"bits": bits, "weight_bits": weight_bits}
            for name, bits, weight_bits in self.wide
        }
        for name in self.raw:
            if name in self.floats:  # it has no width there
                continue
            overrides.setdefault(name, {})["out_bits"] = max(target.out_bits)
        return overrides

    def apply_to(self, config: QuantConfig, target: Target) -> QuantConfig:
        """Return `config` with these options; what the user said of a layer stays."""
        overrides = dict(config.overrides)
        for name, settings in self.overrides(target).items():
            own = overrides[name].to_settings if name in overrides else {}
            overrides[name] = Override(**{**settings, **own})
        return config.model_copy(
            update={"overrides": overrides, **({"effort": self.effort} if self.effort else {})}
        )

    def to_cli_options(self, target: Target) -> list[str]:
        """Return the options as they are typed."""
        words = [f"--effort {self.effort}"] if self.effort else []
        for name, settings in self.overrides(target).items():
            said = ",".join(f"{key}:{value}" for key, value in settings.items())
            words.append(f"--override {shlex.quote(f'{name}={said}')}")
        return [*words, *(f"--skip {shlex.quote(name)}" for name in self.floats)]

    @property
    def description(self) -> str:
        """What it does, in few words."""
        parts = [f"effort {self.effort}"] if self.effort else []
        parts += ["wide outputs"] if self.raw else []
        for width in dict.fromkeys(pair[1:] for pair in self.wide):
            count = sum(pair[1:] == width for pair in self.wide)
            parts.append(f"{_format_layer_count(count)} {width[0]}x{width[1]}")
        parts += [f"{_format_layer_count(len(self.floats))} in float"] if self.floats else []
        return ", ".join(parts) or "as asked for"


def _format_layer_count(count: int) -> str:
    return f"{count} layer{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share scales.

    gain : share of the outputs' power that is no error any more when the group is left out of
    everything rounded. mac_share : of the multiply-accumulates.
    """

    layers: tuple[RoundedOperator, ...]
    gain: float
    mac_share: float

    @property
    def selectors(self) -> tuple[str, ...]:
        """What options call the layers, the tensors at which integers begin included."""
        names = (
            layer.selector or (layer.name if layer.op_type == QUANT.name else "")
            for layer in self.layers
        )
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def float_selectors(self) -> tuple[str, ...]:
        """The selectors of what can be left in float."""
        return tuple(dict.fromkeys(layer.selector for layer in self.layers if layer.selector))


@dataclass(frozen=True)
class NarrowLayer:
    """A layer that has fewer bits for its weights than for data, as an option calls it.

    gain : the error at the outputs that goes away when its weights alone are not rounded, as
    `LayerGroup.gain`. extra_bytes : what these take more with as many bits as data.
    """

    selector: str
    gain: float
    extra_bytes: float


def rank_layer_groups(planned: PlannedModel) -> list[LayerGroup]:
    """Return the groups of layers, those first that give back most for what they cost."""
    every = list_rounded_operators(planned)
    joined = _group_by_shared_scale(planned, every)
    gains = _measure_gains(
        planned,
        every,
        [reduce(or_, (layer.all_rounded for layer in members)) for members in joined],
    )
    work = _macs_by_node(planned)
    total = max(sum(work.values()), 1)
    layer_groups = []
    for members, gain in zip(joined, gains, strict=True):
        share = sum(work.get(node, 0) for layer in members for node in layer.weight.weights) / total
        layer_groups.append(LayerGroup(tuple(members), gain, share))
    least = 1 / max(len(layer_groups), 1)  # a layer without weights has a cost, too
    return sorted(layer_groups, key=lambda group: -group.gain / max(group.mac_share, least))


def rank_narrow_layers(planned: PlannedModel) -> list[NarrowLayer]:
    """Return the layers with narrow weights, those first that give back most for each byte."""
    tensors, by_name = (
        planned.plan.tensors,
        {str(node.name): node for node in planned.partition.graph.graph},
    )
    bits = planned.config.bits
    sizes: list[tuple[RoundedOperator, float]] = []
    for layer in list_rounded_operators(planned):
        nodes = [by_name[name] for name in layer.weight.weights]
        names = {
            ir.input_name(node, i)
            for node in nodes
            for i in planned.partition.ops[str(node.name)].weight_inputs(node)
        }
        saved = {name: (bits - tensors[name].bits) / 8 for name in names if name in tensors}
        constants = planned.partition.graph.graph.initializers
        size = sum(
            ir.require_const_value(constants[name]).size * each
            for name, each in saved.items()
            if each > 0
        )
        if layer.selector and size:
            sizes.append((layer, size))
    gains = (
        _measure_gains(
            planned, list_rounded_operators(planned), [layer.weight for layer, _ in sizes]
        )
        if sizes
        else []
    )
    narrow = [
        NarrowLayer(layer.selector, gain, size)
        for (layer, size), gain in zip(sizes, gains, strict=True)
    ]
    return sorted(narrow, key=lambda layer: -layer.gain / layer.extra_bytes)


def _group_by_shared_scale(
    planned: PlannedModel, operators: Sequence[RoundedOperator]
) -> list[list[RoundedOperator]]:
    sets = DisjointSets()
    for shared_scale in group_shared_scales(planned.partition, planned.target):
        for name in shared_scale.tensors:
            sets.union(f"tensor {name}", f"tensor {shared_scale.tensors[0]}")
    for number, layer in enumerate(operators):
        for name in layer.activation.tensors:
            sets.union(f"layer {number}", f"tensor {name}")
    members: dict[str, list[RoundedOperator]] = {}
    for number, layer in enumerate(operators):
        members.setdefault(sets.find(f"layer {number}"), []).append(layer)
    return list(members.values())


def _macs_by_node(planned: PlannedModel) -> dict[str, int]:
    return {str(node.name): count_macs(node) for node in planned.partition.graph.graph}


def _measure_gains(
    planned: PlannedModel, operators: Sequence[RoundedOperator], parts: Sequence[RoundedSet]
) -> list[float]:
    """Return what each of `parts` gives back that is left out of all that is rounded, on a few calibration samples."""
    outputs = [str(value.name) for value in planned.original.graph.outputs]
    engine = build_roundable_model(planned, operators, outputs).create_engine()
    whole = reduce(or_, (layer.all_rounded for layer in operators), RoundedSet())
    left = [whole - part for part in parts]
    few = min(choose_block_size(planned, engine.segments), _MAX_SAMPLES)
    errors, power = np.zeros((len(left) + 1, len(outputs))), np.zeros(len(outputs))
    for _, _, part in engine.split_samples(planned.data.first(few)):
        exact = engine.run_base(RoundedSet(), part).tensors
        base = engine.run_base(whole, part)
        for place, setting in enumerate([whole, *left]):
            found = engine.outputs(setting, base, part)
            for column, name in enumerate(outputs):
                errors[place, column] += _squared_norm(found[name], exact[name])
        power += [_squared_norm(exact[name]) for name in outputs]
    shares = (errors / np.where(power > 0, power, 1)).sum(axis=1)
    return [float(shares[0] - share) for share in shares[1:]]


def _squared_norm(array: np.ndarray, other: np.ndarray | None = None) -> float:
    if array.dtype.kind != "f":
        return 0.0
    values = array.astype(np.float64).reshape(-1)
    values = values if other is None else values - other.reshape(-1)
    return float(np.dot(values, values)) if np.isfinite(values).all() else 0.0


# ---- the rungs ---------------------------------------------------------------------------------------------------


def iter_rungs(planned: PlannedModel, start: Attempt) -> Iterator[list[Attempt]]:
    """Yield lists of attempts, each dearer than the one before it.

    A rung begins where the one before it ended.
    start : what `planned` was made with, beyond the user's own options.
    """
    target = planned.target
    if max(target.out_bits) > min(target.out_bits) and (names := _wide_output_selectors(planned)):
        start = replace(start, raw=names)
        yield [start]
    ranked = rank_layer_groups(planned)
    conf = planned.config
    for width in sorted(target.bits):
        pair = max(width, conf.bits), max(width, conf.weight_bits)
        if pair == (conf.bits, conf.weight_bits):
            continue
        before = {name: (bits, weight_bits) for name, bits, weight_bits in start.wide}
        rung = []
        alone = pair[0] == conf.bits  # the weights, not the data
        narrow = [(layer.selector,) for layer in rank_narrow_layers(planned)] if alone else []
        for names in _iter_prefixes(narrow if alone else [group.selectors for group in ranked]):
            held = {**before, **dict.fromkeys(names, pair)}
            rung.append(
                replace(start, wide=tuple((name, *widths) for name, widths in held.items()))
            )
        if rung:
            start = rung[-1]
            yield rung
    few, share = [], 1 - sum(group.mac_share for group in ranked)
    for group in ranked:
        if share + group.mac_share <= MAX_FLOAT_MAC_SHARE:
            share += group.mac_share
            few.append(group.float_selectors)
    yield [replace(start, floats=names) for names in _iter_prefixes(few)]


def _iter_prefixes(parts: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield the first part, the first two, and so on; empty ones are left out."""
    names: dict[str, None] = {}
    for part in parts:
        before = len(names)
        names.update(dict.fromkeys(part))
        if len(names) > before:
            yield tuple(names)


def _wide_output_selectors(planned: PlannedModel) -> tuple[str, ...]:
    """Return the selectors of layers whose output leaves the integers, and may be wide there."""
    names, said = planned.partition.wide_outputs(planned.target), planned.config.overrides
    selectors = [
        layer.selector
        for layer in list_rounded_operators(planned)
        if layer.selector and layer.activation.tensors & names
    ]
    return tuple(
        name for name in selectors if name not in said or "out_bits" not in said[name].to_settings
    )
