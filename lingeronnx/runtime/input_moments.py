"""Store mean and standard deviation of calibration inputs, to detect data of another distribution.

They are stored in the integer graph's metadata under `METADATA_KEY`: {input: {"mean": [...], "std":
[...]}}, one value per channel of pictures [N, C, H, W] with up to 16 channels, else one for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from ..common.errors import ModelError
from ..ir import ir

__all__ = ["METADATA_KEY", "compute_moments", "load_input_moments", "store_input_moments"]

METADATA_KEY = "lingeronnx.inputs"

_MAX_CHANNELS = 16


def compute_moments(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (means, standard deviations) of a batch as float64 vectors.

    They have one value per channel for [N, C, H, W] with at most `_MAX_CHANNELS` channels, else one
    for all elements.
    """
    is_per_channel = array.ndim == 4 and array.shape[1] <= _MAX_CHANNELS
    axes = (0, 2, 3) if is_per_channel else tuple(range(array.ndim))
    array = array.astype(np.float64)
    return np.atleast_1d(array.mean(axis=axes)), np.atleast_1d(array.std(axis=axes))


def store_input_moments(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> None:
    """Store mean and standard deviation of the float arrays `feeds` in the metadata of `model`.

    `feeds` maps input -> array; values are rounded to 6 digits. Arrays of other types, and empty
    ones, are left out; nothing is stored if none is left.
    """
    moments = {}
    for name, array in feeds.items():
        if array.dtype.kind == "f" and array.size:
            mean, std = compute_moments(array)
            moments[name] = {
                "mean": [float(f"{v:.6g}") for v in mean],
                "std": [float(f"{v:.6g}") for v in std],
            }
    if moments:
        model.metadata_props[METADATA_KEY] = json.dumps(moments, sort_keys=True)


def load_input_moments(model: ir.Model) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return input -> (means, standard deviations) from the metadata of `model`.

    {} if there are none.

    Raises
    ------
    ModelError
        If the metadata are invalid.
    """
    try:
        return {
            name: (np.asarray(entry["mean"], np.float64), np.asarray(entry["std"], np.float64))
            for name, entry in ir.read_json_metadata(model, METADATA_KEY).items()
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            f"the metadata '{METADATA_KEY}' are corrupt; quantize the model again"
        ) from error
