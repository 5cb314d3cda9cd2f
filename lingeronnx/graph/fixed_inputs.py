"""Inputs that the user gives one value for all time, such as a sampling rate.

They become constants of the model.
Knows nothing of data and runners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ConfigError, suggest_nearest
from . import ir

__all__ = ["fix_inputs"]


#: What an input is fixed at: a number, numbers, or text with commas between them.
FixedValue = str | float | Sequence[float]


def fix_inputs(model: ir.Model, values: Mapping[str, FixedValue]) -> dict[str, np.ndarray]:
    """Turn the inputs named in `values` into initializers, in place; return {input: its array}.

    values : one number for all elements of an input, or as many numbers as it has. Raises
    ConfigError for an input the model does not have, an open size, another number of values, or a
    value that the input's type does not hold.
    """
    inputs = {str(value.name): value for value in model.graph.inputs if value.const_value is None}
    fixed = {}
    for name, wanted in values.items():
        if name not in inputs:
            raise ConfigError(
                f"--fix {name}: the model has no such input{suggest_nearest(name, inputs)}; inputs "
                "are "
                f"{', '.join(inputs)}"
            )
        value = inputs[name]
        fixed[name] = _to_input_array(value, wanted)
        ir.convert_input_to_initializer(model, value, fixed[name])
    if values and len(fixed) == len(inputs):
        raise ConfigError(
            f"--fix {', '.join(fixed)}: no input is left; the model would compute one answer for "
            "ever"
        )
    return fixed


def _to_input_array(value: ir.Value, given: FixedValue) -> np.ndarray:
    where = f"--fix {value.name}"
    shape = ir.get_shape(value)
    if shape is None or None in shape:
        raise ConfigError(
            f"{where}: the file leaves sizes of this input open; only inputs of known size can be "
            "fixed"
        )
    try:
        numbers = [float(part) for part in _split_values(given)]
    except ValueError:
        raise ConfigError(
            f"{where}={given}: write a number, or a list of numbers such as 1,2,3"
        ) from None
    count = int(np.prod([int(d or 0) for d in shape]))
    if len(numbers) not in (1, count):
        raise ConfigError(
            f"{where}={given}: {len(numbers)} values for the {count} elements of shape "
            f"{list(shape)}; "
            "give one for all, or as many"
        )
    real = np.broadcast_to(np.array(numbers, np.float64), count).reshape(
        [int(d or 0) for d in shape]
    )
    dtype = np.dtype(np.float32) if value.dtype is None else np.dtype(value.dtype.numpy())
    array = real.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(array.astype(np.float64), real):
        raise ConfigError(f"{where}={given}: the input is {dtype}; give a value of that type")
    return array


def _split_values(given: FixedValue) -> Sequence[str | float]:
    if isinstance(given, Sequence):
        return given.split(",") if isinstance(given, str) else given
    return [given]
