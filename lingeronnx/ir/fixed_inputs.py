"""Replace graph inputs whose value never changes, such as a sampling rate, by constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..common.errors import ConfigError, suggest_nearest
from . import ir

__all__ = ["fix_inputs"]


#: Value of a fixed input: a number, a sequence of numbers, or a string of numbers and commas.
FixedValue = str | float | Sequence[float]


def fix_inputs(model: ir.Model, values: Mapping[str, FixedValue]) -> dict[str, np.ndarray]:
    """Convert the inputs named in `values` to initializers, in place.

    Parameters
    ----------
    model
        The model.
    values
        Input name -> one number for all elements of the input, or one number per element.

    Returns
    -------
    dict of str to numpy.ndarray
        Input name -> constant.

    Raises
    ------
    ConfigError
        The model has no such input, or one of unknown size, the number of values does not match, or
        the type of the input cannot represent a value.
    """
    inputs = {str(value.name): value for value in model.graph.inputs if value.const_value is None}
    fixed = {}
    for name, fixed_value in values.items():
        if name not in inputs:
            raise ConfigError(
                f"--fix {name}: the model has no such input{suggest_nearest(name, inputs)}; "
                f"inputs are {', '.join(inputs)}"
            )
        value = inputs[name]
        fixed[name] = _to_input_array(value, fixed_value)
        ir.convert_input_to_initializer(model, value, fixed[name])
    if values and len(fixed) == len(inputs):
        raise ConfigError(
            f"--fix {', '.join(fixed)}: no input remains; leave at least one input variable"
        )
    return fixed


def _to_input_array(value: ir.Value, fixed_value: FixedValue) -> np.ndarray:
    """Convert `fixed_value` to an array of the shape and type of the input `value`.

    One number fills the array, else there is one for each element. Without a type it is float32.

    Raises
    ------
    ConfigError
        If a dimension of the input is not known, the values are no numbers, their count is neither
        1 nor that of the elements, or an integer or boolean type cannot represent them exactly.
    """
    option = f"--fix {value.name}"
    shape = ir.get_shape(value)
    if shape is None or None in shape:
        raise ConfigError(
            f"{option}: the shape of this input is not known; only inputs of known shape can be "
            "fixed"
        )
    dims = [int(dim or 0) for dim in shape]
    try:
        numbers = [float(number) for number in _split_values(fixed_value)]
    except ValueError:
        raise ConfigError(
            f"{option}={fixed_value}: write a number, or a list of numbers such as 1,2,3"
        ) from None
    count = int(np.prod(dims))
    if len(numbers) not in (1, count):
        raise ConfigError(
            f"{option}={fixed_value}: {len(numbers)} values for the {count} elements of shape "
            f"{list(shape)}; give one value, or one for each element"
        )
    values = np.broadcast_to(np.array(numbers, np.float64), count).reshape(dims)
    dtype = np.dtype(np.float32) if value.dtype is None else np.dtype(value.dtype.numpy())
    array = values.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(array.astype(np.float64), values):
        raise ConfigError(
            f"{option}={fixed_value}: the input is {dtype}; give a value of that type"
        )
    return array


def _split_values(fixed_value: FixedValue) -> Sequence[str | float]:
    """Return the values as a sequence: a text split at its commas, a number as a list of one.

    Any other sequence is returned as it is.
    """
    if isinstance(fixed_value, str):
        return fixed_value.split(",")
    return fixed_value if isinstance(fixed_value, Sequence) else [fixed_value]
