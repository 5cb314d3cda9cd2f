"""Calibration: channels equalized where effort allows, and what the data say of every tensor that becomes integer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...graph import ir
from ...run.data import Progress
from ...run.memory import bytes_per_sample, piece, release
from ...run.runners import FloatRunner
from ..assign.choice import choice_for
from ..assign.shared_scales import SharedScale, shared_scales, soft_rows
from ..methods.cell_clipping import cell_notes
from ..methods.equalize import ChannelSpans, equalize
from ..observe.constant_inputs import Watched
from ..observe.statistics import TensorStats, observe
from ..partition import Partition
from ..prepare.preparation import Prepared
from ..prepare.states import wide_states

__all__ = ["Observed", "observe_model"]

_EQUALIZE_SAMPLES = 64  # enough for the ranges of channels


@dataclass(frozen=True)
class Observed:
    """The prepared model after calibration under an `effort`.

    parts : what becomes integer of it, channels equalized. even : {tensor: factors [C]} of that. stats : of every
    tensor that becomes integer. channels : of these before that, per channel, where equalizing asked.
    soft : the tensors that Softmaxes alone read, of which only what has a share was counted. shared : their scales.
    """

    effort: str
    parts: Partition
    even: Mapping[str, np.ndarray]
    stats: Mapping[str, TensorStats]
    notes: Sequence[str]
    channels: Mapping[str, ChannelSpans] = field(default_factory=dict)
    soft: Mapping[str, int] = field(default_factory=dict)
    shared: Sequence[SharedScale] = ()


def observe_model(prepared: Prepared, progress: Progress | None = None, before: Observed | None = None) -> Observed:
    """Equalize the channels where effort allows, and run the calibration data once.

    before : what was seen of the same graph on the same data, where less was left to the host; it is taken over for the
    tensors whose factors are the same now.
    """
    target, conf = prepared.target, prepared.conf
    parts = prepared.parts.on(ir.clone(prepared.graph))
    few = piece(bytes_per_sample(parts.graph), conf.batch, conf.budget)
    even: Mapping[str, np.ndarray] = {}
    notes: list[str] = []
    channels = {} if before is None else dict(before.channels)
    if conf.effort != "fast":
        feeds = prepared.data.first(piece(prepared.input_bytes, _EQUALIZE_SAMPLES, conf.budget))
        pieces = list(prepared.data.pieces(feeds, few))
        even = equalize(parts, pieces, choice_for(prepared, parts), prepared.runner, channels)
        wide = wide_states(parts, conf.state, target) if conf.bits < 16 else parts.activations
        notes += cell_notes(parts, target, feeds, wide)
    done = 0

    def count(samples: int) -> None:
        nonlocal done
        done += samples
        if progress is not None:
            progress("calibrating", done, None)

    soft = soft_rows(parts)
    names, runner, factors_left = set(parts.activations), prepared.runner, even
    if even and conf.mode == "max-value":  # there scales are read off to the last bit
        runner, factors_left = FloatRunner(parts.graph, names), {}
    known = {} if before is None or runner is not prepared.runner else _alike(before, even, soft)
    watched = Watched(() if prepared.synthetic else prepared.data.inputs.values(), conf.state.values())
    batches = watched.of(prepared.data.batches(few))
    stats = observe(runner, batches, names, factors=factors_left, known=known, soft=soft, on_batch=count)
    release()
    alike = before is not None and before.parts.floats == parts.floats
    shared = before.shared if before is not None and alike else shared_scales(parts, target)
    return Observed(
        effort=conf.effort,
        parts=parts,
        even=even,
        stats=stats,
        notes=[*notes, *watched.notes()],
        channels=channels,
        soft=soft,
        shared=shared,
    )


def _alike(before: Observed, even: Mapping[str, np.ndarray], soft: Mapping[str, int]) -> dict[str, TensorStats]:
    """Return the statistics of the tensors whose factors were those of `even`, and whose Softmaxes those of `soft`."""
    one = np.ones(1)
    return {
        name: stats
        for name, stats in before.stats.items()
        if np.array_equal(before.even.get(name, one), even.get(name, one)) and before.soft.get(name) == soft.get(name)
    }
