"""Mean and standard deviation of what a graph input was calibrated with, so that other data can be told from it later.

Written into the integer graph's metadata under `METADATA_KEY`: {input: {"mean": [...], "std":
[...]}}, one value per channel of pictures [N, C, H, W] with up to 16 channels, else one for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from ..errors import ModelError
from ..graph import ir

__all__ = ["METADATA_KEY", "compute_moments", "load_input_moments", "store_input_moments"]

METADATA_KEY = "lingeronnx.inputs"

_MAX_CHANNELS = 16


def compute_moments(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (means, standard deviations), float64, of a batch.

    Per channel or one for all, as the module says.
    """
    channels = array.ndim == 4 and array.shape[1] <= _MAX_CHANNELS
    over = (0, 2, 3) if channels else tuple(range(array.ndim))
    wide = array.astype(np.float64)
    return np.atleast_1d(wide.mean(axis=over)), np.atleast_1d(wide.std(axis=over))


def store_input_moments(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> None:
    """Write the moments of the float arrays `feeds`, by input, into the metadata of `model`."""
    found = {}
    for name, array in feeds.items():
        if array.dtype.kind == "f" and array.size:
            mean, std = compute_moments(array)
            found[name] = {
                "mean": [float(f"{v:.6g}") for v in mean],
                "std": [float(f"{v:.6g}") for v in std],
            }
    if found:
        model.metadata_props[METADATA_KEY] = json.dumps(found, sort_keys=True)


def load_input_moments(model: ir.Model) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return {input: (means, standard deviations)} as noted.

    Nothing for a graph that says nothing.
    """
    try:
        return {
            name: (np.asarray(entry["mean"], np.float64), np.asarray(entry["std"], np.float64))
            for name, entry in ir.read_json_metadata(model, METADATA_KEY).items()
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            f"the metadata '{METADATA_KEY}' are not as they were written; quantize the model again"
        ) from error
