"""Calibration: equalize channels and collect statistics of every tensor that becomes integer.

Inputs that have the same value everywhere are found in the same run of the data. If all inputs are
constant, no scale can be determined, which is an error. A single constant input gets a note: its
scale is that of the one value, as of a state that is zero in all samples. An input whose values are
all nearly 0 is an error too: its scale exceeds float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...common.errors import DataError
from ...runtime.data import Batch, InputSpec, Progress
from ...runtime.memory import bytes_per_sample, choose_batch_size, trim_memory
from ...runtime.runners import FloatRunner
from ..calibration.statistics import TensorStats, collect_stats
from ..methods.cell_clipping import find_clipped_cells
from ..methods.equalize import ChannelStats, equalize_channels
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..prepare.recurrent_states import find_16bit_state_tensors
from ..recipe import EffortRecipe
from ..scales.scale_policy import resolve_scale_policy
from ..scales.shared_scales import SharedScaleGroup, find_softmax_inputs, group_shared_scales

__all__ = [
    "CalibrationResult",
    "calibrate_model",
]

_EQUALIZE_SAMPLES = 64  # sufficient for the ranges of channels
_JOINED_NOTE = (
    "channels equalized across Concat, Slice, LeakyRelu and PRelu, too: the outputs came closer to "
    "the float model's"
)
#: Smallest range of an input: the scale of 16 bits, 32767 / range, must fit in float32.
_MIN_RANGE = 2.0**-112


@dataclass(frozen=True)
class CalibrationResult:
    """A prepared model after calibration.

    Attributes
    ----------
    recipe
        Recipe of the calibration.
    partition
        Partition of the float graph with equalized channels.
    equalization_factors
        {tensor: factors, float64 [C]}.
    stats
        Statistics of every tensor that becomes integer.
    notes
        Notes for the report.
    channel_stats
        Statistics per channel before equalization.
    softmax_axes
        {tensor: axis} of tensors whose only consumers are Softmaxes; their logits were clipped.
    shared
        Groups of tensors that share a scale.
    wide_states
        Outputs of LSTM layers whose states have 16 bits, so that their cells are not clipped.
    unscaled_stats
        Statistics without the factors of tensors that have factors, if they were requested.
    input_notes
        Those of `notes` that are on constant inputs.
    trusts_joined
        As in `equalize_channels`.
    """

    recipe: EffortRecipe
    partition: Partition
    equalization_factors: Mapping[str, np.ndarray]
    stats: Mapping[str, TensorStats]
    notes: Sequence[str]
    channel_stats: Mapping[str, ChannelStats] = field(default_factory=dict)
    softmax_axes: Mapping[str, int] = field(default_factory=dict)
    shared: Sequence[SharedScaleGroup] = ()
    wide_states: Sequence[str] = ()
    unscaled_stats: Mapping[str, TensorStats] = field(default_factory=dict)
    input_notes: Sequence[str] = ()
    trusts_joined: bool = False


def calibrate_model(
    prepared: PreparedModel,
    progress: Progress | None = None,
    previous: CalibrationResult | None = None,
    *,
    with_unscaled: bool = False,
    trusts_joined: bool = False,
) -> CalibrationResult:
    """Equalize channels, if the recipe says so, and collect statistics over the calibration data.

    The graph of `prepared` is copied before it is equalized. Notes of the result are on clipped
    LSTM cells and constant inputs.

    Parameters
    ----------
    prepared
        The model.
    progress
        Callback for progress messages.
    previous
        Result for the same graph and data with fewer nodes on the host, or None. Its statistics are
        reused for tensors whose factors are the same.
    with_unscaled
        Whether to collect statistics without factors in the same run of the data, for a calibration
        of the same data without equalization.
    trusts_joined
        As in `equalize_channels`; also set if `previous` was calibrated so.
    """
    target, conf = prepared.target, prepared.conf
    partition = prepared.parts.with_graph(prepared.graph.clone())
    batch_size = choose_batch_size(bytes_per_sample(partition.graph), conf.batch, conf.budget)
    factors: Mapping[str, np.ndarray] = {}
    notes: list[str] = []
    wide_states: tuple[str, ...] = ()
    channel_stats = {} if previous is None else dict(previous.channel_stats)
    trusts_joined = trusts_joined or (previous is not None and previous.trusts_joined)
    if prepared.recipe.equalizes_channels:
        max_samples = choose_batch_size(prepared.input_bytes, _EQUALIZE_SAMPLES, conf.budget)
        feeds = prepared.data.first(max_samples)
        feed_batches = list(prepared.data.split_feeds(feeds, batch_size))
        policy = resolve_scale_policy(prepared, partition)
        factors = equalize_channels(
            partition,
            feed_batches,
            policy,
            prepared.runner,
            channel_stats,
            trusts_joined=trusts_joined,
        )
        wide: Sequence[str] = partition.activations
        if conf.bits < 16:
            wide = find_16bit_state_tensors(partition, conf.state, target)
        if trusts_joined:
            notes.append(_JOINED_NOTE)
        clipped_cells = find_clipped_cells(partition, target, feeds, wide)
        if clipped_cells and 16 in target.bits:
            wide_states = tuple(cells.output for cells in clipped_cells)
            policy = resolve_scale_policy(prepared, partition, wide_states)
        for cells in clipped_cells:
            notes.append(cells.describe(target.name, policy.width(cells.output)))
    softmax_axes = find_softmax_inputs(partition)
    names, runner, stats_factors = set(partition.activations), prepared.runner, factors
    known_stats = {}
    if factors and conf.mode == "max-value":  # free scales need the exact ranges
        runner, stats_factors = FloatRunner(partition.graph, names), {}
    elif previous is not None:
        known_stats = _reusable_stats(previous, factors, softmax_axes)
    unscaled_stats = {} if previous is None else dict(previous.unscaled_stats)
    detector = ConstantInputDetector(
        () if prepared.synthetic else prepared.data.inputs.values(), conf.state.values()
    )
    stats = collect_stats(
        runner,
        detector.watch_batches(prepared.data.batches(batch_size)),
        names,
        factors=stats_factors,
        known_stats=known_stats,
        softmax_axes=softmax_axes,
        unscaled_stats=unscaled_stats if with_unscaled else None,
        progress=progress,
    )
    trim_memory()
    if previous is not None and names <= known_stats.keys():  # no data were run
        input_notes = previous.input_notes
    else:
        input_notes = detector.notes()
    if previous is not None and previous.partition.floats == partition.floats:
        shared = previous.shared
    else:
        shared = group_shared_scales(partition, target)
    return CalibrationResult(
        recipe=prepared.recipe,
        partition=partition,
        equalization_factors=factors,
        stats=stats,
        notes=[*notes, *input_notes],
        channel_stats=channel_stats,
        softmax_axes=softmax_axes,
        shared=shared,
        wide_states=wide_states,
        unscaled_stats=unscaled_stats,
        input_notes=input_notes,
        trusts_joined=trusts_joined,
    )


def _reusable_stats(
    previous: CalibrationResult,
    factors: Mapping[str, np.ndarray],
    softmax_axes: Mapping[str, int],
) -> dict[str, TensorStats]:
    """Return the previous statistics of tensors with the same factors and Softmax axis."""
    reusable = {}
    for name, stats in previous.stats.items():
        if previous.softmax_axes.get(name) != softmax_axes.get(name):
            continue
        old_factors, new_factors = previous.equalization_factors.get(name), factors.get(name)
        if _are_equal(old_factors, new_factors):
            reusable[name] = stats
        elif _are_equal(new_factors, None) and name in previous.unscaled_stats:
            reusable[name] = previous.unscaled_stats[name]
    return reusable


def _are_equal(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Whether two factors of a tensor, float64 [C], are the same; None is a factor of 1."""
    one = np.ones(1)
    return np.array_equal(
        one if first is None else first,
        one if second is None else second,
    )


@dataclass
class _ValueRange:
    """Range of the values of one input, number of elements, and whether they are floats."""

    low: float
    high: float
    count: int
    is_float: bool


class ConstantInputDetector:
    """Detects inputs that have the same value in all batches.

    Parameters
    ----------
    inputs
        Inputs of the model.
    fed_back
        Inputs that are states; their values are computed, not data.
    """

    def __init__(self, inputs: Iterable[InputSpec], fed_back: Collection[str]) -> None:
        """Watch the `inputs` that have a batch axis, except those named in `fed_back` (states)."""
        self._names = {
            spec.name for spec in inputs if spec.axis is not None and spec.name not in fed_back
        }
        self._ranges: dict[str, _ValueRange] = {}

    def watch_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches (feeds, labels) unchanged, recording the ranges of the inputs."""
        for feeds, labels in batches:
            for name in self._names & feeds.keys():
                array = feeds[name]
                if not array.size:
                    continue
                low, high = float(array.min()), float(array.max())
                values = self._ranges.setdefault(name, _ValueRange(low, high, 0, True))
                values.low = min(values.low, low)
                values.high = max(values.high, high)
                values.count += array.size
                values.is_float = array.dtype.kind == "f"
            yield feeds, labels

    def notes(self) -> list[str]:
        """Return a note on each float input that had the same value everywhere, sorted by name.

        Inputs with one element in all batches together do not count.

        Raises
        ------
        DataError
            If there are inputs with more than one element in all batches and all of them are
            constant, or if the values of a float input are all nearer to 0 than `_MIN_RANGE`, but
            not all 0.
        """
        ranges = {name: values for name, values in sorted(self._ranges.items()) if values.count > 1}
        constant = {name: values for name, values in ranges.items() if values.low == values.high}
        if ranges and len(constant) == len(ranges):
            inputs = ", ".join(
                f"'{name}' is {values.low:g} everywhere" for name, values in constant.items()
            )
            raise DataError(
                f"calibration data: input {inputs}, so no scale can be determined; use "
                "representative samples"
            )
        for name, values in ranges.items():
            largest = max(-values.low, values.high)
            if values.is_float and 0 < largest < _MIN_RANGE:
                raise DataError(
                    f"calibration data: input '{name}' has no value beyond {largest:.2g}, and a "
                    f"scale needs {_MIN_RANGE:.2g}; multiply the data, or check how they are read"
                )
        return [
            f"input '{name}' is {values.low:g} in all calibration samples; its scale is arbitrary"
            for name, values in constant.items()
            if values.is_float
        ]
