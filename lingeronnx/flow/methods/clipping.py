"""Undo cuts that cost an output more than the finer step brings.

Calibration by the mean square cuts rare large values off. All values of a tensor count alike there,
but the rare ones may be all that an output speaks of: one face among a thousand empty places. No
statistics of the tensor tell; the outputs do. So only a model is looked at of which an output holds
half of its power in a few of its elements. With the noise N of a part of the plan, all else float,
as a share of an output's power:

1. what is cut, alone: a tensor is looked at where that is a quarter of the whole plan's N at some output. Groups of
   tensors are halved until single ones are left, so that a net without such a tensor costs two
   runs;
2. the tensor at its scale, and at a scale that cuts an octave less: this is taken where it lowers the whole plan's N
   by more, over the outputs, than it raises it, each output measured by what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...graph import ir
from ...ops import get_weight_values
from ...plan import Affine, Plan
from ...plan.fake_quant import build_fake_quantized_graph
from ...run.runners import FloatRunner
from ..assign.calibrators import full_range_scale
from ..assign.scale_policy import ScalePolicy
from ..assign.shared_scales import SharedScaleGroup
from ..observe.statistics import Stats, TensorStats
from ..partition import Partition

__all__ = ["find_costly_clipping"]

_SPARSE_SHARE = (
    0.02  # of an output's elements: these hold half of its power where it speaks of rare values
)
_MIN_NOISE_SHARE = 0.25  # of an output's noise
_EPSILON = 1e-30  # so that shares are defined where there is no noise, or nothing at all
_EXTRA_BITS = 12  # bits more, so that a tensor is cut where it was, but next to nothing is rounded

_Tensors = Mapping[str, Affine]
_Feeds = Sequence[Mapping[str, np.ndarray]]


def find_costly_clipping(
    partition: Partition,
    plan: Plan,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    policy: ScalePolicy,
    pieces: _Feeds,
    float_outputs: Callable[[], _Feeds],
) -> dict[str, float]:
    """Return {tensor or weight: its scale} for those of `plan` that are better cut less.

    stats : of the activations of `partition`, whose scales `policy` made. pieces : calibration
    samples. given : returns the outputs of the user's model for each, which are those of
    `partition`; called where they are needed.
    """
    cut = list(_iter_clipped_tensors(partition, plan, shared_groups, stats, policy))
    if not cut:
        return {}
    noise = _OutputNoise(partition.graph, plan, pieces, float_outputs())
    if not noise.has_sparse_output_power:
        return {}
    whole = noise(plan.tensors)

    def fine(group: Iterable[dict[str, Affine]]) -> dict[str, Affine]:
        return {n: _as_near_float(plan.tensors[n]) for less in group for n in less}

    def search(group: list[dict[str, Affine]]) -> list[dict[str, Affine]]:
        if not (noise(fine(group)) > _MIN_NOISE_SHARE * whole).any():
            return []
        if len(group) > 1:
            half = len(group) // 2
            return search(group[:half]) + search(group[half:])
        less = group[0]
        gain = noise({n: plan.tensors[n] for n in less}) - noise(less)
        return group if (gain / whole).max() > _MIN_NOISE_SHARE and (gain / whole).sum() > 0 else []

    return {name: q.scale for less in search(cut) for name, q in less.items()}


def _iter_clipped_tensors(
    partition: Partition,
    plan: Plan,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    policy: ScalePolicy,
) -> Iterable[dict[str, Affine]]:
    """Yield, for the tensors that share a scale, and for each weight, that mse cuts.

    How they are cut less.
    """
    for shared_scale in shared_groups:
        observed = shared_scale.merged_stats(stats)
        if observed is not None and shared_scale.headroom_below is None:
            yield from _relax_clipping(shared_scale.tensors, observed, plan, policy)
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
    parameters = [plan.tensors.get(name) for name in names]
    setting = policy.policy_for_tensors(names, policy.bits)
    q = parameters[0]
    if q is None or None in parameters or not q.single or q.zero_point:
        return  # a window with a zero point stays as calibration chose it
    if setting.scale is not None or setting.calibrator != "mse":
        return
    if stats.sum_of_squares > 0 and q.scale > (full := full_range_scale(stats, q.bits)):
        scale = q.scale / 2 if setting.power_of_two else max(q.scale / 2, full)
        yield {
            name: tensor.changed(scale)
            for name, tensor in zip(names, parameters, strict=True)
            if tensor
        }


def _as_near_float(qparams: Affine) -> Affine:
    """Return the same range in finer steps."""
    return qparams.changed(qparams.scale * 2.0**_EXTRA_BITS, qparams.bits + _EXTRA_BITS)


class _OutputNoise:
    """What holding tensors in integers does to the outputs, all else float."""

    def __init__(self, graph: ir.Model, plan: Plan, pieces: _Feeds, outputs: _Feeds) -> None:
        self._graph, self._plan, self._pieces = graph, plan, pieces
        self._names = [
            str(v.name) for v in graph.graph.outputs if v.producer() is not None
        ]  # constants have no noise
        self._given = outputs

    @property
    def has_sparse_output_power(self) -> bool:
        """Whether an output holds half of its power in few of its elements."""
        for name in self._names:
            arrays = [outputs[name].astype(np.float64) for outputs in self._given]
            power = np.sort(np.concatenate([np.square(array).reshape(-1) for array in arrays]))[
                ::-1
            ]
            half = int(np.searchsorted(np.cumsum(power), power.sum() / 2)) + 1
            if power.any() and half < _SPARSE_SHARE * len(power):
                return True
        return False

    def _ordered(self, found: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [found[name].astype(np.float64) for name in self._names]

    def __call__(self, tensors: _Tensors) -> np.ndarray:
        """Return the power of each output's error as a share of the output's own, float64 [outputs]."""
        error, power = np.zeros((2, len(self._names)))
        for want, have in zip(map(self._ordered, self._given), self._outputs(tensors), strict=True):
            power += [np.square(a).sum() for a in want]
            error += [np.square(a - b).sum() for a, b in zip(want, have, strict=True)]
        return error / np.maximum(power, _EPSILON) + _EPSILON

    def _outputs(self, tensors: _Tensors) -> Iterator[list[np.ndarray]]:
        """Yield the outputs, float64, of piece after piece."""
        copy, users = build_fake_quantized_graph(self._graph, self._plan.with_tensors(tensors))
        names = {user: name for name, user in users.items()}
        runner = FloatRunner(copy, {names[name] for name in self._names})
        for feed in self._pieces:
            yield self._ordered({users[name]: array for name, array, _ in runner.run(feed)})
