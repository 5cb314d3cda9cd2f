"""Calibration data: the user's, or random ones for a look; states fed back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from ...errors import ConfigError
from ...graph import ir
from ...passes.folding.scalar_inputs import find_scalar_inputs, format_fix_suggestion, suggest_value
from ...plan.config import QuantConfig
from ...run.data import MAX_UNBOUNDED_SAMPLES, Data, InputSpec
from ...run.runners import get_input_specs
from ...run.streaming import UnrolledCalls, unroll_calls
from .recurrent_states import suggest_missing_input_fix

__all__ = ["generate_synthetic_inputs", "load_calibration_data"]

_SYNTHETIC_SAMPLES = 16
_SYNTHETIC_CALLS = 4  # of a model whose states are fed back
_SYNTHETIC_ELEMENTS = 1 << 24  # of one input: fewer samples where one is large


def load_calibration_data(
    calib: object,
    model: ir.Model,
    config: QuantConfig,
    fixed: Mapping[str, np.ndarray],
    hold_out: bool,
) -> tuple[Data, UnrolledCalls | None]:
    """Return the calibration data, and the calls they were made of where states are fed back."""
    specs = get_input_specs(model)
    if config.state:
        fed = [spec for spec in specs if spec.name not in config.state.values()]
        if calib is None:
            calib = [
                generate_synthetic_inputs(fed, config.seed + number, _setting_values(model))
                for number in range(_SYNTHETIC_CALLS)
            ]
        calls = unroll_calls(model, calib, config.state, fixed, hold_out, config.limit)
        data = Data(calls.items, specs, limit=config.limit, what="calibration data")
        alone = "the calibration data hold one call: nothing is fed back; give one item per call"
        data.notes.append(
            f"states are fed back over {calls.call_count} calls" if calls.call_count > 1 else alone
        )
        return data, calls
    source = (
        calib
        if calib is not None
        else [generate_synthetic_inputs(specs, config.seed, _setting_values(model))]
    )
    data = Data(
        source,
        specs,
        limit=config.limit,
        what="calibration data",
        fixed=fixed,
        hold_out=hold_out,
        most=MAX_UNBOUNDED_SAMPLES,
        advice=partial(suggest_missing_input_fix, model),
    )
    if calib is None and (numbers := find_scalar_inputs(model)):
        data.notes.append(format_fix_suggestion(model, numbers))
    return data, None


def _setting_values(model: ir.Model) -> dict[str, float]:
    """Return {setting: the number that the model tells of it}."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    told = {name: suggest_value(inputs[name]) for name in find_scalar_inputs(model)}
    return {name: number for name, number in told.items() if number is not None}


def generate_synthetic_inputs(
    specs: Iterable[InputSpec],
    seed: int,
    setting_values: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Return seeded standard normal inputs (integers: zeros).

    ConfigError where a size is not known.
    setting_values : {input: the number that it is filled with instead}.
    """
    rng = np.random.default_rng(seed)
    shapes = {spec: list(spec.shape or ()) for spec in specs}
    unknown = [s for s in shapes if s.shape is None or _has_open_sizes(s)]
    if unknown:
        raise _unknown_size_error(unknown)
    stated = [
        count
        for spec, sizes in shapes.items()
        if spec.axis is not None and (count := sizes[spec.axis])
    ]
    largest = max((math.prod(d or 1 for d in sizes) for sizes in shapes.values()), default=1)
    many = (
        stated[0]
        if stated
        else max(1, min(_SYNTHETIC_SAMPLES, _SYNTHETIC_ELEMENTS // max(largest, 1)))
    )
    feeds = {}
    for spec, sizes in shapes.items():
        size = tuple(many if d is None else d for d in sizes)
        normal = spec.dtype.kind == "f" and spec.name not in setting_values
        number = setting_values.get(spec.name, 0)
        feeds[spec.name] = (rng.standard_normal(size) if normal else np.full(size, number)).astype(
            spec.dtype
        )
    return feeds


def _has_open_sizes(spec: InputSpec) -> bool:
    """Whether the file leaves a size open that is not the number of samples."""
    return any(size is None for axis, size in enumerate(spec.shape or ()) if axis != spec.axis)


def _unknown_size_error(unknown: Sequence[InputSpec]) -> ConfigError:
    """Return the error that asks for the sizes of inputs, with the options to fill in where their ranks are known."""
    names = ", ".join(f"'{spec.name}'" for spec in unknown)
    if any(spec.shape is None for spec in unknown):
        return ConfigError(
            f"dimensions of unknown size: input {names}; give calibration data with --calib"
        )
    told = " ".join(map(_format_input_shape_option, unknown))
    return ConfigError(
        f"dimensions of unknown size: input {names}; give calibration data with --calib, or sizes "
        f"with {told}"
    )


def _format_input_shape_option(spec: InputSpec) -> str:
    told = ",".join(
        str(d or (1 if i == spec.axis else "?")) for i, d in enumerate(spec.shape or ())
    )
    return f"--input-shape {spec.name}={told}"
