"""Calibration data: the user's, or random ones for a look; states fed back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from ...errors import ConfigError
from ...graph import ir
from ...plan.config import QuantConfig
from ...run.data import MOST_UNBOUNDED, Data, InputSpec
from ...run.runners import input_specs
from ...run.streaming import Calls, unrolled
from .states import advice

__all__ = ["calibration_data", "synthetic"]

_SYNTHETIC_SAMPLES = 16
_SYNTHETIC_CALLS = 4  # of a model whose states are fed back
_SYNTHETIC_ELEMENTS = 1 << 24  # of one input: fewer samples where one is large


def calibration_data(
    calib: object, model: ir.Graph, conf: QuantConfig, fixed: Mapping[str, np.ndarray], hold: bool
) -> tuple[Data, Calls | None]:
    """Return the calibration data, and the calls they were made of where states are fed back."""
    specs = input_specs(model)
    if conf.state:
        fed = [spec for spec in specs if spec.name not in conf.state.values()]
        if calib is None:
            calib = [synthetic(fed, conf.seed + number) for number in range(_SYNTHETIC_CALLS)]
        calls = unrolled(model, calib, conf.state, fixed, hold, conf.limit)
        data = Data(calls.items, specs, limit=conf.limit, what="calibration data")
        alone = "the calibration data hold one call: nothing is fed back; give one item per call"
        data.notes.append(f"states are fed back over {calls.number} calls" if calls.number > 1 else alone)
        return data, calls
    source = calib if calib is not None else [synthetic(specs, conf.seed)]
    data = Data(
        source,
        specs,
        limit=conf.limit,
        what="calibration data",
        fixed=fixed,
        hold=hold,
        most=MOST_UNBOUNDED,
        advice=partial(advice, model),
    )
    return data, None


def synthetic(specs: Iterable[InputSpec], seed: int) -> dict[str, np.ndarray]:
    """Return seeded standard normal inputs (integers: zeros); ConfigError where a size is not known."""
    rng = np.random.default_rng(seed)
    shapes: dict[InputSpec, list[int | None]] = {}
    for spec in specs:
        shapes[spec] = list(spec.shape or ())
        if spec.shape is None or any(d is None for i, d in enumerate(spec.shape) if i != spec.axis):
            raise ConfigError(
                f"input '{spec.name}' has dimensions of unknown size; give calibration data with --calib{_sizes(spec)}"
            )
    stated = [count for spec, sizes in shapes.items() if spec.axis is not None and (count := sizes[spec.axis])]
    largest = max((math.prod(d or 1 for d in sizes) for sizes in shapes.values()), default=1)
    many = stated[0] if stated else max(1, min(_SYNTHETIC_SAMPLES, _SYNTHETIC_ELEMENTS // max(largest, 1)))
    feeds = {}
    for spec, sizes in shapes.items():
        size = tuple(many if d is None else d for d in sizes)
        real = spec.dtype.kind == "f"
        feeds[spec.name] = rng.standard_normal(size).astype(spec.dtype) if real else np.zeros(size, spec.dtype)
    return feeds


def _sizes(spec: InputSpec) -> str:
    if spec.shape is None:
        return ""
    told = ",".join(str(d or (1 if i == spec.axis else "?")) for i, d in enumerate(spec.shape))
    return f", or its sizes with --input-shape {spec.name}={told}"
