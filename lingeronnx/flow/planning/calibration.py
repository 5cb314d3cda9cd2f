"""Calibration: channels equalized where effort allows, and what the data say of every tensor that becomes integer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...graph import ir
from ...run.data import Progress
from ...run.memory import bytes_per_sample, choose_batch_size, trim_memory
from ...run.runners import FloatRunner
from ..assign.scale_policy import resolve_scale_policy
from ..assign.shared_scales import SharedScaleGroup, find_softmax_inputs, group_shared_scales
from ..methods.cell_clipping import format_cell_clipping
from ..methods.equalize import ChannelStats, equalize_channels
from ..observe.constant_inputs import ConstantInputDetector
from ..observe.statistics import TensorStats, collect_stats
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..prepare.recurrent_states import find_16bit_state_tensors

__all__ = ["CalibrationResult", "calibrate_model"]

_EQUALIZE_SAMPLES = 64  # enough for the ranges of channels


@dataclass(frozen=True)
class CalibrationResult:
    """The prepared model after calibration under an `effort`.

    partition : what becomes integer of it, channels equalized. even : {tensor: factors [C]} of
    that. stats : of every tensor that becomes integer. channels : of these before that, per
    channel, where equalizing asked. softmax_axes : the tensors that Softmaxes alone read, of which
    only what has a share was counted. shared : their scales.
    """

    effort: str
    partition: Partition
    equalization_factors: Mapping[str, np.ndarray]
    stats: Mapping[str, TensorStats]
    notes: Sequence[str]
    channel_stats: Mapping[str, ChannelStats] = field(default_factory=dict)
    softmax_axes: Mapping[str, int] = field(default_factory=dict)
    shared: Sequence[SharedScaleGroup] = ()


def calibrate_model(
    prepared: PreparedModel,
    progress: Progress | None = None,
    previous: CalibrationResult | None = None,
) -> CalibrationResult:
    """Equalize the channels where effort allows, and run the calibration data once.

    previous : what was seen of the same graph on the same data, where less was left to the host; it
    is taken over for the tensors whose factors are the same now.
    """
    target, conf = prepared.target, prepared.conf
    parts = prepared.parts.with_graph(ir.clone(prepared.graph))
    few = choose_batch_size(bytes_per_sample(parts.graph), conf.batch, conf.budget)
    even: Mapping[str, np.ndarray] = {}
    notes: list[str] = []
    channels = {} if previous is None else dict(previous.channel_stats)
    if conf.effort != "fast":
        feeds = prepared.data.first(
            choose_batch_size(prepared.input_bytes, _EQUALIZE_SAMPLES, conf.budget)
        )
        pieces = list(prepared.data.split_feeds(feeds, few))
        even = equalize_channels(
            parts, pieces, resolve_scale_policy(prepared, parts), prepared.runner, channels
        )
        wide = (
            find_16bit_state_tensors(parts, conf.state, target)
            if conf.bits < 16
            else parts.activations
        )
        notes += format_cell_clipping(parts, target, feeds, wide)
    done = 0

    def count(samples: int) -> None:
        nonlocal done
        done += samples
        if progress is not None:
            progress("calibrating", done, None)

    soft = find_softmax_inputs(parts)
    names, runner, factors_left = set(parts.activations), prepared.runner, even
    if even and conf.mode == "max-value":  # there scales are read off to the last bit
        runner, factors_left = FloatRunner(parts.graph, names), {}
    known = (
        {}
        if previous is None or runner is not prepared.runner
        else _reusable_stats(previous, even, soft)
    )
    watched = ConstantInputDetector(
        () if prepared.synthetic else prepared.data.inputs.values(), conf.state.values()
    )
    batches = watched.watch_batches(prepared.data.batches(few))
    stats = collect_stats(
        runner,
        batches,
        names,
        factors=factors_left,
        known_stats=known,
        softmax_axes=soft,
        on_batch=count,
    )
    trim_memory()
    alike = previous is not None and previous.partition.floats == parts.floats
    shared = (
        previous.shared if previous is not None and alike else group_shared_scales(parts, target)
    )
    return CalibrationResult(
        effort=conf.effort,
        partition=parts,
        equalization_factors=even,
        stats=stats,
        notes=[*notes, *watched.notes()],
        channel_stats=channels,
        softmax_axes=soft,
        shared=shared,
    )


def _reusable_stats(
    before: CalibrationResult, even: Mapping[str, np.ndarray], soft: Mapping[str, int]
) -> dict[str, TensorStats]:
    """Return the statistics of the tensors whose factors were those of `even`, and whose Softmaxes those of `soft`."""
    one = np.ones(1)
    return {
        name: stats
        for name, stats in before.stats.items()
        if np.array_equal(before.equalization_factors.get(name, one), even.get(name, one))
        and before.softmax_axes.get(name) == soft.get(name)
    }
