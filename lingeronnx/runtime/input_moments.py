"""Store mean and standard deviation of calibration inputs, to detect data of another distribution.

They are stored in the integer graph's metadata under `METADATA_KEY`: {input: {"mean": [...], "std":
[...]}}, one value per channel of pictures [N, C, H, W] with up to 16 channels, else one for all.
Pictures of several channels also have {"samples": N, "spread": [...]}, by which chance is told from
channels that are exchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from ..common.errors import ModelError
from ..ir import ir

__all__ = [
    "METADATA_KEY",
    "compute_channel_spread",
    "compute_moments",
    "format_magnitude_warnings",
    "load_channel_spreads",
    "load_input_moments",
    "store_input_moments",
]

METADATA_KEY = "lingeronnx.inputs"

_MAX_CHANNELS = 16
_MAX_MAGNITUDE_RATIO = 8.0  # of the root mean squares of data and of calibration data
_MAX_CHECKED_SAMPLES = 16
_MAX_PIXEL = 255


def compute_moments(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (means, standard deviations) of a batch as float64 vectors.

    They have one value per channel for [N, C, H, W] with at most `_MAX_CHANNELS` channels, else one
    for all elements.
    """
    has_channel_moments = array.ndim == 4 and array.shape[1] <= _MAX_CHANNELS
    axes = (0, 2, 3) if has_channel_moments else tuple(range(array.ndim))
    array = array.astype(np.float64)
    return np.atleast_1d(array.mean(axis=axes)), np.atleast_1d(array.std(axis=axes))


def compute_channel_spread(array: np.ndarray) -> np.ndarray:
    """Compute the spread of the channel means of samples [N, C, H, W] against each other.

    Returns float64 [C]: the standard deviation, over the samples, of the difference between a
    channel's mean and the sample's mean.
    """
    means = array.astype(np.float64).mean(axis=(2, 3))
    return np.asarray((means - means.mean(axis=1, keepdims=True)).std(axis=0))


def store_input_moments(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> None:
    """Store mean and standard deviation of the float arrays `feeds` in the metadata of `model`.

    `feeds` maps input -> array; values are rounded to 6 digits. Arrays of other types, and empty
    ones, are left out; nothing is stored if none is left.
    """
    moments = {}
    for name, array in feeds.items():
        if array.dtype.kind == "f" and array.size:
            mean, std = compute_moments(array)
            entry: dict[str, object] = {"mean": _round_values(mean), "std": _round_values(std)}
            if len(mean) > 1:
                entry["samples"] = len(array)
                entry["spread"] = _round_values(compute_channel_spread(array))
            moments[name] = entry
    if moments:
        model.metadata_props[METADATA_KEY] = json.dumps(moments, sort_keys=True)


def _round_values(values: np.ndarray) -> list[float]:
    """Return the values with 6 digits."""
    return [float(f"{value:.6g}") for value in values]


def load_channel_spreads(model: ir.Model) -> dict[str, tuple[int, np.ndarray]]:
    """Return input -> (number of samples, spread of the channel means) from the metadata.

    Inputs without channels are missing, as are all in graphs that older versions wrote.

    Raises
    ------
    ModelError
        If the metadata are invalid.
    """
    spreads = _read_values(model, "samples", "spread", is_optional=True)
    means = load_input_moments(model)
    for name, (count, spread) in spreads.items():
        if count.shape or not 1 <= count < np.inf or spread.shape != means[name][0].shape:
            raise _make_metadata_error()
    return {name: (int(count), spread) for name, (count, spread) in spreads.items()}


def _make_metadata_error() -> ModelError:
    """Make the error of metadata that cannot be read."""
    return ModelError(f"the metadata '{METADATA_KEY}' are corrupt; quantize the model again")


def load_input_moments(model: ir.Model) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return input -> (means, standard deviations) from the metadata of `model`.

    {} if there are none.

    Raises
    ------
    ModelError
        If the metadata are invalid.
    """
    return _read_values(model, "mean", "std")


def _read_values(
    model: ir.Model, first: str, second: str, *, is_optional: bool = False
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return input -> the float64 values of two keys of its entry in the metadata.

    With `is_optional`, inputs without key `second` are left out; else that is an error. Raises
    ModelError if the metadata are invalid.
    """
    try:
        return {
            name: (np.asarray(entry[first], np.float64), np.asarray(entry[second], np.float64))
            for name, entry in ir.read_json_metadata(model, METADATA_KEY).items()
            if second in entry or not is_optional
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _make_metadata_error() from error


def format_magnitude_warnings(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> list[str]:
    """Return a warning for each float input whose data are far larger than at calibration.

    The root mean square of a channel exceeds the largest one of the calibration data by a factor of
    `_MAX_MAGNITUDE_RATIO`, as for pixels of 0..255 if the model was calibrated on 0..1.

    Parameters
    ----------
    model
        The model; without moments in its metadata there are no warnings.
    feeds
        {input: array} of a batch, of which the first `_MAX_CHECKED_SAMPLES` samples are checked.

    Raises
    ------
    ModelError
        If the metadata are invalid.
    """
    warnings = []
    for name, (mean, std) in load_input_moments(model).items():
        array = feeds.get(name)
        if array is None or array.dtype.kind != "f" or not array.size or not array.ndim:
            continue
        array = array[:_MAX_CHECKED_SAMPLES]
        magnitude = float(np.hypot(*compute_moments(array)).max())
        expected = float(np.hypot(mean, std).max(initial=0.0))
        if not magnitude > _MAX_MAGNITUDE_RATIO * expected > 0:
            continue
        is_pixel = array.min() >= 0 and array.max() <= _MAX_PIXEL
        question = "; are they pixels of 0..255 that are not normalized?" if is_pixel else ""
        warnings.append(
            f"input '{name}': the data are {magnitude / expected:.3g} times as large as at "
            f"calibration (root mean square {magnitude:.3g}, limit "
            f"{_MAX_MAGNITUDE_RATIO * expected:.3g}){question}; prepare them as the calibration "
            "data, or quantize with data like these"
        )
    return warnings
