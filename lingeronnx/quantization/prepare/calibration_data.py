"""Load the user's calibration data, or generate synthetic ones; unroll calls with states.

Only `quantize` itself runs without data, on random inputs, to check whether a model fits a chip.
Other calls require data, where a result without them would be meaningless.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ...common.errors import ConfigError
from ...interchange.qdq.qoperators import is_quantized
from ...ir import ir
from ...ir.plan import Plan
from ...ir.plan.synthetic_calibration import is_synthetic
from ...runtime.data import MAX_UNBOUNDED_SAMPLES, Data, InputSpec
from ...runtime.runners import get_input_specs
from ...runtime.streaming import UnrolledCalls, check_call_count, unroll_calls
from ..normalize.folding.scalar_inputs import (
    find_scalar_inputs,
    format_fix_suggestion,
    suggest_value,
)
from .recurrent_states import suggest_missing_input_fix

if TYPE_CHECKING:
    from ..config import QuantConfig

__all__ = [
    "generate_synthetic_inputs",
    "load_calibration_data",
    "require_calibrated_scales",
    "require_data",
]

_SYNTHETIC_SAMPLES = 16
_SYNTHETIC_CALLS = 4  # for a model whose states are fed back
_SYNTHETIC_ELEMENTS = 1 << 24  # maximum for one input; large samples reduce their number


def load_calibration_data(
    calib: object,
    model: ir.Model,
    config: QuantConfig,
    fixed: Mapping[str, np.ndarray],
    hold_out: bool,
) -> tuple[Data, UnrolledCalls | None]:
    """Load the calibration data, or generate synthetic inputs if `calib` is None.

    Parameters
    ----------
    calib
        The user's data.
    model
        The float model.
    config
        Settings of the run.
    fixed
        Values of inputs that are constant.
    hold_out
        Whether some samples are held out of calibration.

    Returns
    -------
    data : Data
        The samples.
    calls : UnrolledCalls or None
        The calls that they were made of, if states are fed back (setting `state`).
    """
    specs = get_input_specs(model)
    if config.calls is not None:
        check_call_count(config.state, config.calls)
    if config.state:
        return _unroll_calibration_calls(calib, model, specs, config, fixed, hold_out)
    source = calib
    if calib is None:
        source = [generate_synthetic_inputs(specs, config.seed, _setting_values(model))]
    data = Data(
        source,
        specs,
        limit=config.limit,
        label="calibration data",
        fixed=fixed,
        hold_out=hold_out,
        max_samples=MAX_UNBOUNDED_SAMPLES,
        record=True,
        advice=partial(suggest_missing_input_fix, model),
    )
    if calib is None and (scalar_inputs := find_scalar_inputs(model)):
        data.notes.append(format_fix_suggestion(model, scalar_inputs))
    return data, None


def _unroll_calibration_calls(
    calib: object,
    model: ir.Model,
    specs: Sequence[InputSpec],
    config: QuantConfig,
    fixed: Mapping[str, np.ndarray],
    hold_out: bool,
) -> tuple[Data, UnrolledCalls]:
    """Run the calls of a model with states, and return their inputs and states as samples.

    Without `calib`, 4 calls with synthetic inputs are used. States start as the calls say and are
    fed back from one call to the next; a note on this is added to the data's notes. The unrolled
    calls are returned, too.
    """
    call_count = config.calls
    if calib is None:
        state_inputs = config.state.values()
        data_specs = [spec for spec in specs if spec.name not in state_inputs]
        calib = [
            generate_synthetic_inputs(data_specs, config.seed + index, _setting_values(model))
            for index in range(_SYNTHETIC_CALLS)
        ]
        call_count = None
    calls = unroll_calls(
        model,
        calib,
        config.state,
        fixed,
        hold_out,
        config.limit,
        calls_per_item=call_count,
        advice=partial(suggest_missing_input_fix, model),
    )
    data = Data(calls.items, specs, limit=config.limit, label="calibration data")
    if calls.call_count > 1:
        note = f"states are fed back over {calls.call_count} calls"
    else:
        note = (
            "calibration data contain a single call, so no state is fed back; pass one item per "
            "call, or divide an item into calls with --calls"
        )
    data.notes.append(note)
    return data, calls


def _setting_values(model: ir.Model) -> dict[str, float]:
    """Return {input that is a scalar setting: value that the model suggests for it}.

    Inputs without a suggestion are left out.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    suggestions = {name: suggest_value(inputs[name]) for name in find_scalar_inputs(model)}
    return {name: value for name, value in suggestions.items() if value is not None}


def generate_synthetic_inputs(
    specs: Iterable[InputSpec],
    seed: int,
    setting_values: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Return {input: array} of seeded standard normal inputs; inputs of other types are zeros.

    The batch has the size that the model fixes, else 16 samples, or fewer if they are large.

    Parameters
    ----------
    specs
        Inputs of the model.
    seed
        Seed of the random numbers.
    setting_values
        {input: constant value to use instead}.

    Raises
    ------
    ConfigError
        If a dimension other than the number of samples is unknown.
    """
    rng = np.random.default_rng(seed)
    shapes = {spec: list(spec.shape or ()) for spec in specs}
    _check_known_sizes(shapes.keys())
    batch_size = _choose_synthetic_batch_size(shapes)
    feeds = {}
    for spec, dims in shapes.items():
        shape = tuple(batch_size if dim is None else dim for dim in dims)
        if spec.dtype.kind == "f" and spec.name not in setting_values:
            array = rng.standard_normal(shape)
        else:
            array = np.full(shape, setting_values.get(spec.name, 0))
        feeds[spec.name] = array.astype(spec.dtype)
    return feeds


def _choose_synthetic_batch_size(shapes: Mapping[InputSpec, Sequence[int | None]]) -> int:
    """Return the batch size that an input in `shapes` fixes, or else one that limits the largest.

    That is at most 16 samples and 2^24 elements per input, but at least 1 sample.
    """
    for spec, dims in shapes.items():
        fixed_size = dims[spec.axis] if spec.axis is not None else None
        if fixed_size:
            return fixed_size
    sizes = [math.prod(dim or 1 for dim in dims) for dims in shapes.values()]
    largest = max(sizes, default=1)
    return max(1, min(_SYNTHETIC_SAMPLES, _SYNTHETIC_ELEMENTS // max(largest, 1)))


def _check_known_sizes(specs: Iterable[InputSpec]) -> None:
    """Raise ConfigError if a dimension of `specs` other than the number of samples is unknown."""
    unknown = [spec for spec in specs if spec.shape is None or _has_open_sizes(spec)]
    if unknown:
        raise _make_unknown_shape_error(unknown)


def _has_open_sizes(spec: InputSpec) -> bool:
    """Whether a dimension of input `spec` other than the number of samples is unknown."""
    return any(size is None for axis, size in enumerate(spec.shape or ()) if axis != spec.axis)


def _make_unknown_shape_error(unknown: Sequence[InputSpec]) -> ConfigError:
    """Return the ConfigError for inputs with unknown dimensions.

    Its message has options to fill in if their ranks are known.
    """
    names = ", ".join(f"'{spec.name}'" for spec in unknown)
    message = f"unknown dimensions: input {names}; pass calibration data with --calib"
    if all(spec.shape is not None for spec in unknown):
        options = " ".join(map(_format_input_shape_option, unknown))
        message += f", or the shape with {options}"
    return ConfigError(message)


def _format_input_shape_option(spec: InputSpec) -> str:
    """Return the option --input-shape for `spec`, with "?" for each unknown dimension.

    The number of samples, if it is open, is 1.
    """
    dims = []
    for axis, dim in enumerate(spec.shape or ()):
        placeholder = "1" if axis == spec.axis else "?"
        dims.append(str(dim) if dim else placeholder)
    return f"--input-shape {spec.name}={','.join(dims)}"


def require_data(request: str, model: ir.Model, calib: object, plan: object = None) -> None:
    """Raise ConfigError if there are no data, no plan, and no scales in the model itself.

    Parameters
    ----------
    request
        Subject of the requirement and how to pass data; begins the message.
    model
        The user's model.
    calib
        Calibration data, or None.
    plan
        Plan or scales from a file, or None.
    """
    if calib is None and plan is None and not is_quantized(model):
        raise ConfigError(
            f"{request}; only `quantize` runs without data, as a check that the model fits a chip"
        )


def require_calibrated_scales(request: str, model: ir.Model, plan: Plan) -> None:
    """Raise ConfigError if `plan` has scales or weights determined with random inputs.

    Accepts a model that was written with such a plan: it carries a warning.

    Parameters
    ----------
    request
        Requirement that begins the message.
    model
        The user's model.
    plan
        Its plan.
    """
    if plan.synthetic and not is_synthetic(model):
        raise ConfigError(
            f"{request}: not all of its scales and weights come from a plan or from the model "
            "itself"
        )
