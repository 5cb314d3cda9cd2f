"""Values of other data beyond the range that calibration saw: there the integers are cut."""

from __future__ import annotations

import numpy as np

from ...run.data import Data
from ...run.memory import bytes_per_sample, choose_batch_size
from ...run.runners import FloatRunner, get_input_specs
from .quantized_model import QuantizedModel

__all__ = ["format_clipped_values"]

_SAMPLES = 256
_BATCH = 16
_RANGE_MARGIN = (
    1.25  # a scale is a power of two, or the best for most values: a little beyond is nothing
)
_MIN_CLIPPED_SHARE = 1e-3  # of the values of a tensor, or
_MAX_OVERSHOOT = 2.0  # how many times the calibrated range, from which on one value is enough
_MAX_LINES = 3


def format_clipped_values(
    result: QuantizedModel, data: object, budget: int, limit: int | None = None
) -> list[str]:
    """Return a line for each of the worst tensors whose values in `data` leave the range that calibration saw.

    budget : bytes that may be taken. At most 256 samples are looked at. None where the plan was
    made elsewhere: what its data were like is not known.
    """
    if not result.ranges:
        return []
    runner = FloatRunner(result.float_graph, set(result.ranges))
    source = Data(
        data,
        get_input_specs(result.float_graph),
        limit=min(limit or _SAMPLES, _SAMPLES),
        what="evaluation data",
    )
    if not source.is_rereadable:
        return []
    counts = dict.fromkeys(result.ranges, (0, 0, 0.0))
    few = choose_batch_size(bytes_per_sample(result.float_graph), _BATCH, budget)
    for feeds, _ in source.batches(few):
        for name, array, _scale in runner.run(feeds):
            reach = np.abs(array)
            limits = result.ranges[name]
            out = (array > _RANGE_MARGIN * limits[1]) & (array > 0) | (
                array < _RANGE_MARGIN * limits[0]
            ) & (array < 0)
            many, total, far = counts[name]
            counts[name] = (
                many + int(out.sum()),
                total + array.size,
                max(far, float(reach[out].max(initial=0.0))),
            )
    clipped = []
    for name, (many, total, far) in counts.items():
        most = max(abs(limit) for limit in result.ranges[name])
        if many and (many >= _MIN_CLIPPED_SHARE * total or far > _MAX_OVERSHOOT * most):
            clipped.append((many / total, name, many, far, most))
    return [
        f"evaluation data: {many} values ({share:.2%}) of '{name}' lie beyond what calibration saw "
        f"(up to {far:.3g}, calibrated to {most:.3g}) and are cut; calibrate with data like these"
        for share, name, many, far, most in sorted(clipped, reverse=True)[:_MAX_LINES]
    ]
