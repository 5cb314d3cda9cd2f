"""Relax clipping that costs an output more than the finer step gains.

Calibration by mean square error clips rare large values. It weights all values of a tensor equally,
but the rare ones may be all that matters at an output: one face among a thousand empty positions.
Only the outputs can tell. So this applies only to models with an output half of whose power is in
few of its elements. Let N be the error power of each output relative to its own power, with part of
the plan applied and everything else in float:

1. Clipping alone: a tensor is considered if this causes a quarter of the N of the entire plan at
   some output. Groups of tensors are bisected, so that a model without such a tensor costs two
   runs.
2. The tensor at its scale, and at a scale that is an octave coarser: the latter is chosen if N
   decreases more than it increases, summed over the outputs, each relative to the N of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...ir import ir
from ...ir.plan import Affine, Plan
from ...operators.lowerings import get_weight_values
from ...runtime.runners import FloatRunner
from ..calibration.calibrators import full_range_scale
from ..calibration.statistics import Stats, TensorStats
from ..partition import Partition
from ..scales.fake_quant import build_fake_quantized_graph
from ..scales.scale_policy import ScalePolicy
from ..scales.shared_scales import SharedScaleGroup

__all__ = ["find_costly_clipping"]

_SPARSE_SHARE = 0.02  # an output is sparse if this fraction of its elements has half of its power
_MIN_NOISE_SHARE = 0.25  # minimum fraction of an output's noise that clipping must cause
_EPSILON = 1e-30  # added so that ratios are defined without noise or power
_EXTRA_BITS = 12  # additional bits that keep the clipping but leave almost no rounding

_Tensors = Mapping[str, Affine]
_Feeds = Sequence[Mapping[str, np.ndarray]]


def find_costly_clipping(
    partition: Partition,
    plan: Plan,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    policy: ScalePolicy,
    batches: _Feeds,
    float_outputs: Callable[[], _Feeds],
) -> dict[str, float]:
    """Find tensors and weights of `plan` whose clipping costs more at the outputs than it gains.

    Noise is the error power of each graph output relative to its power, with the given tensors
    quantized and everything else in float. Nothing is found unless an output has half of its power
    in less than 2 % of its elements.

    Parameters
    ----------
    partition, plan
        The float graph and its plan.
    shared_groups
        Groups of tensors that share a scale.
    stats
        Statistics of the activations of `partition`.
    policy
        Policy that the scales of `plan` were made with.
    batches
        Calibration samples, each batch by graph input.
    float_outputs
        Returns the outputs of the user's model for each batch; only called if a scale clips.

    Returns
    -------
    dict
        {tensor or weight: coarser scale}, for all tensors of a shared scale. A scale is coarser if
        that lowers the noise of an output by more than a quarter of the plan's noise there, and
        lowers the sum of these ratios over outputs.
    """
    candidates = list(_iter_clipped_tensors(partition, plan, shared_groups, stats, policy))
    if not candidates:
        return {}
    noise = _OutputNoise(partition.graph, plan, batches, float_outputs())
    if not noise.has_sparse_output_power:
        return {}
    plan_noise = noise(plan.tensors)

    def clip_without_rounding(group: Iterable[dict[str, Affine]]) -> dict[str, Affine]:
        """Return parameters that clip the tensors of `group` as planned, but hardly round them."""
        names = [name for relaxed in group for name in relaxed]
        return {name: _as_near_float(plan.tensors[name]) for name in names}

    def search(group: list[dict[str, Affine]]) -> list[dict[str, Affine]]:
        """Return those of `group` whose coarser scales lower the noise of the outputs.

        Each candidate is {name: coarser parameters}. The group is halved until one is left, and
        dropped if its clipping alone causes at most a quarter of the plan's noise at each output.
        """
        if not (noise(clip_without_rounding(group)) > _MIN_NOISE_SHARE * plan_noise).any():
            return []
        if len(group) > 1:
            half = len(group) // 2
            return search(group[:half]) + search(group[half:])
        relaxed = group[0]
        gain = noise({name: plan.tensors[name] for name in relaxed}) - noise(relaxed)
        relative_gain = gain / plan_noise
        is_better = relative_gain.max() > _MIN_NOISE_SHARE and relative_gain.sum() > 0
        return group if is_better else []

    scales = {}
    for relaxed in search(candidates):
        scales.update({name: qparams.scale for name, qparams in relaxed.items()})
    return scales


def _iter_clipped_tensors(
    partition: Partition,
    plan: Plan,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    policy: ScalePolicy,
) -> Iterable[dict[str, Affine]]:
    """Yield coarser parameters {name: parameters} of each shared scale and weight that clips.

    Shared scales that must leave room below the smallest value, or without statistics, are left
    out.
    """
    for shared_scale in shared_groups:
        merged_stats = shared_scale.merged_stats(stats)
        if merged_stats is not None and shared_scale.headroom_below is None:
            yield from _relax_clipping(shared_scale.tensors, merged_stats, plan, policy)
    for node, op in partition.integer_nodes:
        for index in op.weight_inputs(node):
            values = get_weight_values(node, index)
            if values is not None and values.size:
                yield from _relax_clipping(
                    [ir.input_name(node, index)],
                    TensorStats.from_array(np.asarray(values)),
                    plan,
                    policy,
                )


def _relax_clipping(
    names: Sequence[str], stats: TensorStats, plan: Plan, policy: ScalePolicy
) -> Iterable[dict[str, Affine]]:
    """Yield coarser parameters {name: parameters} of tensors whose shared scale clips values.

    The scale is halved, but with free scales not below that of the full range. Yields one dict or
    nothing: nothing unless the "mse" calibrator chose the scale, and for scales per channel, zero
    points and tensors that are not in the plan.
    """
    setting = policy.policy_for_tensors(names, policy.bits)
    if setting.scale is not None or setting.calibrator != "mse":
        return
    qparams = [plan.tensors[name] for name in names if name in plan.tensors]
    if len(qparams) != len(names):
        return
    first = qparams[0]
    if not first.single or first.zero_point:
        return  # a range with a zero point stays as calibration chose it
    if not stats.sum_of_squares > 0:
        return
    full_range = full_range_scale(stats.low, stats.high, first.bits)
    if first.scale <= full_range:
        return
    scale = first.scale / 2
    if not setting.power_of_two:
        scale = max(scale, full_range)
    yield {name: tensor.changed(scale) for name, tensor in zip(names, qparams, strict=True)}


def _as_near_float(qparams: Affine) -> Affine:
    """Return `qparams` with the same range and 12 more bits, so that hardly anything is rounded."""
    return qparams.changed(qparams.scale * 2.0**_EXTRA_BITS, qparams.bits + _EXTRA_BITS)


class _OutputNoise:
    """Error of the outputs as a function of the quantized tensors, everything else in float.

    Parameters
    ----------
    graph
        Float graph.
    plan
        Its plan.
    batches
        Samples.
    outputs
        Outputs of the float model for each batch.
    """

    def __init__(self, graph: ir.Model, plan: Plan, batches: _Feeds, outputs: _Feeds) -> None:
        """Keep graph, plan, samples and their float `outputs`; constant outputs do not count."""
        self._graph, self._plan, self._batches = graph, plan, batches
        self._names = [  # constants have no noise
            str(value.name) for value in graph.graph.outputs if value.producer() is not None
        ]
        self._float_outputs = outputs

    @property
    def has_sparse_output_power(self) -> bool:
        """Whether some output has half of its power in less than 2 % of its elements.

        The elements of all batches are taken together.
        """
        for name in self._names:
            arrays = [outputs[name].astype(np.float64) for outputs in self._float_outputs]
            squares = [np.square(array).reshape(-1) for array in arrays]
            power = np.sort(np.concatenate(squares))[::-1]
            half = int(np.searchsorted(np.cumsum(power), power.sum() / 2)) + 1
            if power.any() and half < _SPARSE_SHARE * len(power):
                return True
        return False

    def _select_outputs(self, tensors: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the computed graph outputs among `tensors` as float64, in graph order."""
        return [tensors[name].astype(np.float64) for name in self._names]

    def __call__(self, tensors: _Tensors) -> np.ndarray:
        """Return the error power of each output relative to its own power, float64 [outputs].

        `tensors` are {name: parameters} of the tensors that are quantized; everything else is in
        float. Sums run over all batches. The result is never 0.
        """
        error, power = np.zeros((2, len(self._names)))
        float_outputs = map(self._select_outputs, self._float_outputs)
        for expected, actual in zip(float_outputs, self._run(tensors), strict=True):
            power += [np.square(array).sum() for array in expected]
            error += [np.square(a - b).sum() for a, b in zip(expected, actual, strict=True)]
        return error / np.maximum(power, _EPSILON) + _EPSILON

    def _run(self, tensors: _Tensors) -> Iterator[list[np.ndarray]]:
        """Yield the outputs of each batch, with only `tensors` quantized, as float64 arrays.

        `tensors` are {name: parameters}; outputs are in graph order, without constant ones.
        """
        copy, users = build_fake_quantized_graph(self._graph, self._plan.with_tensors(tensors))
        names = {user: name for name, user in users.items()}
        runner = FloatRunner(copy, {names[name] for name in self._names})
        for feed in self._batches:
            outputs = {users[name]: array for name, array, _ in runner.run(feed)}
            yield self._select_outputs(outputs)
