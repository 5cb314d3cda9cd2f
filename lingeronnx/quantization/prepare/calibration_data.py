"""Load the user's calibration data, or generate synthetic ones; unroll calls with states.

Only `quantize` itself runs without data, on random inputs, to check whether a model fits a chip.
Other calls require data, where a result without them would be meaningless.

The dimensions of inputs that a file leaves open are set from the user or from the first sample.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ...common.errors import ConfigError, suggest_nearest
from ...interchange.qdq.qoperators import is_quantized
from ...ir import batch_axes, ir
from ...ir.plan import Plan
from ...ir.plan.synthetic_calibration import is_synthetic
from ...runtime.data import MAX_UNBOUNDED_SAMPLES, Data, InputSpec
from ...runtime.runners import get_input_specs
from ...runtime.streaming import UnrolledCalls, check_call_count, unroll_calls
from ..normalize.entry.dynamic_batch import make_batch_dynamic
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
    "infer_input_shapes",
    "set_input_shapes",
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
    if calls.fed_back_count:
        note = f"states are fed back over {calls.call_count} calls"
    elif calls.call_count > 1:
        note = (
            f"each of the {calls.call_count} calls of the data has states of its own, or another "
            "number of samples than the one before, so no state is fed back"
        )
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


def set_input_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Set the shapes of the inputs named in `shapes` (input -> sizes of all axes), in place.

    The batch axis stays dynamic, unless the file fixes it. A symbolic dimension of the file gets
    the same value in all inputs.

    Raises
    ------
    ConfigError
        If the model has no such input, or the file declares other dimensions.
    """
    specs = {spec.name: spec for spec in get_input_specs(model)}
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name, shape in shapes.items():
        if name not in specs:
            raise ConfigError(
                f"--input-shape {name}: the model has no such input{suggest_nearest(name, specs)}; "
                f"inputs are {', '.join(specs)}"
            )
        _check_input_shape(name, shape, ir.get_shape(inputs[name]))
    user_set_axes = batch_axes.BATCH_AXES_KEY in model.metadata_props
    batch_axis_of = _find_batch_axes(inputs, specs, shapes, user_set_axes)
    symbol_sizes = _collect_symbol_sizes(inputs, shapes, batch_axis_of)
    for name, value in inputs.items():
        if name in shapes:
            declared = list(value.shape or ())
            dims = _merge_dims(declared, shapes[name], batch_axis_of[name])
        else:
            dims = [symbol_sizes.get(_symbol_of(dim) or "", dim) for dim in value.shape or ()]
        if dims:
            value.shape = ir.Shape(dims)


def _collect_symbol_sizes(
    inputs: Mapping[str, ir.Value],
    shapes: Mapping[str, Sequence[int]],
    batch_axis_of: Mapping[str, int | None],
) -> dict[str, int]:
    """Return {symbol: size in `shapes`} of the inputs' symbolic dimensions, except on batch axes.

    If inputs disagree, the last one counts.
    """
    symbol_sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        for axis, dim in enumerate(inputs[name].shape or ()):
            symbol = _symbol_of(dim)
            if axis != batch_axis_of[name] and symbol is not None:
                symbol_sizes[symbol] = shape[axis]
    return symbol_sizes


def _merge_dims(
    declared: Sequence[ir.Dim],
    shape: Sequence[int],
    batch_axis: int | None,
) -> list[ir.Dim]:
    """Return `shape` with the declared dimension on the batch axis, a number or a symbol.

    Without a declared one the symbol is "N". A `batch_axis` of None changes nothing.
    """
    dims: list[ir.Dim] = list(shape)
    if batch_axis is not None:
        declared_dim = declared[batch_axis] if declared else None
        if isinstance(declared_dim, int):
            dims[batch_axis] = declared_dim
        else:
            dims[batch_axis] = _symbol_of(declared_dim) or "N"
    return dims


def _symbol_of(dim: ir.Dim) -> str | None:
    """Return the name of a symbolic dimension; None for a number, a str or an unknown one."""
    return None if isinstance(dim, int | str | None) else dim.value


def _check_input_shape(
    name: str, shape: Sequence[int], declared: Sequence[int | None] | None
) -> None:
    """Raise ConfigError unless `shape` is positive and matches the declared dimensions.

    `name` is the input; None in `declared`, or instead of it, matches any size.
    """
    if declared is None:
        declared = [None] * len(shape)
    matches = len(declared) == len(shape) and all(
        declared_dim in (None, dim) for dim, declared_dim in zip(shape, declared, strict=True)
    )
    if not matches or min(shape, default=1) < 1:
        shape_text, declared_text = (
            ",".join(str(dim or "?") for dim in dims) for dims in (shape, declared)
        )
        raise ConfigError(
            f"--input-shape {name}={shape_text}: the model declares {declared_text}; match it, "
            "with a positive size for each ?"
        )


def _find_batch_axes(
    inputs: Mapping[str, ir.Value],
    specs: Mapping[str, InputSpec],
    shapes: Mapping[str, Sequence[int]],
    user_set_axes: bool,
) -> dict[str, int | None]:
    """Return {input: batch axis} of each input in `shapes`, None for one without.

    If the file fixes axis 0, as for states [2, ?, 128], or the input has no batch axis, it is the
    first open axis whose size equals the batch size of another input, if there is one. With
    `user_set_axes`, the axes are those of the user.
    """
    axes = {name: specs[name].axis for name in shapes}
    declared = {name: ir.get_shape(inputs[name]) or [None] * len(shapes[name]) for name in shapes}
    batch_sizes = {
        shapes[name][axis]
        for name, axis in axes.items()
        if axis is not None and declared[name][axis] is None
    }
    if user_set_axes:
        return axes
    for name, axis in axes.items():
        if axis is None or (axis == 0 and declared[name][0] not in (None, 1)):
            axes[name] = _find_axis(declared[name], shapes[name], batch_sizes, axis)
    return axes


def _find_axis(
    declared: Sequence[int | None],
    shape: Sequence[int],
    batch_sizes: Collection[int],
    default: int | None,
) -> int | None:
    """Return the first open axis (None in `declared`) whose size in `shape` is in `batch_sizes`.

    Returns `default` if there is none.
    """
    for axis, dim in enumerate(declared):
        if dim is None and shape[axis] in batch_sizes:
            return axis
    return default


def infer_input_shapes(model: ir.Model, data: Data) -> list[str]:
    """Set open dimensions of the inputs to those of the first sample; return notes on them.

    Changes `model` and the input specs of `data` in place. A batch axis stays dynamic; if any shape
    was set, the batch of the whole model is made dynamic again. There is one note per input that
    was set.
    """
    notes = []
    feed = data.first()
    for value in model.graph.inputs:
        name = str(value.name)
        array = feed.get(name)
        axis = data.inputs[name].axis
        if array is None or _is_complete(ir.get_shape(value), axis):
            continue
        shape = ir.get_shape(value)
        dims: list[int | str] = list(array.shape)
        if axis is not None and (not shape or shape[axis] is None):
            dims[axis] = "N"
        value.shape = ir.Shape(dims)
        sample_shape = [dim for i, dim in enumerate(array.shape) if i != axis]
        notes.append(
            f"input '{name}' has dynamic dimensions; using {sample_shape} per sample from the "
            "calibration data"
        )
    if notes:  # all dimensions are known now
        make_batch_dynamic(model)
    data.inputs.update({spec.name: spec for spec in get_input_specs(model)})
    return notes


def _is_complete(shape: Sequence[int | None] | None, batch_axis: int | None) -> bool:
    """Whether all dimensions of `shape` but the batch axis are known; False for an unknown rank."""
    if shape is None:
        return False
    return all(dim is not None for i, dim in enumerate(shape) if i != batch_axis)
