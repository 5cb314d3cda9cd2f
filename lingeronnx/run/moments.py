"""Mean and standard deviation of what a graph input was calibrated with, so that other data can be told from it later.

Written into the integer graph's metadata under `KEY`: {input: {"mean": [...], "std": [...]}}, one value per channel of
pictures [N, C, H, W] with up to 16 channels, else one for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from ..errors import ModelError
from ..graph import ir

__all__ = ["KEY", "moments", "note_inputs", "noted_inputs"]

KEY = "lingeronnx.inputs"

_CHANNELS = 16


def moments(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (means, standard deviations), float64, of a batch: per channel or one for all, as the module says."""
    channels = array.ndim == 4 and array.shape[1] <= _CHANNELS
    over = (0, 2, 3) if channels else tuple(range(array.ndim))
    wide = array.astype(np.float64)
    return np.atleast_1d(wide.mean(axis=over)), np.atleast_1d(wide.std(axis=over))


def note_inputs(model: ir.Graph, feeds: Mapping[str, np.ndarray]) -> None:
    """Write the moments of the float arrays `feeds`, by input, into the metadata of `model`."""
    found = {}
    for name, array in feeds.items():
        if array.dtype.kind == "f" and array.size:
            mean, std = moments(array)
            found[name] = {"mean": [float(f"{v:.6g}") for v in mean], "std": [float(f"{v:.6g}") for v in std]}
    if found:
        model.metadata_props[KEY] = json.dumps(found, sort_keys=True)


def noted_inputs(model: ir.Graph) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return {input: (means, standard deviations)} as noted; nothing for a graph that says nothing."""
    try:
        return {
            name: (np.asarray(entry["mean"], np.float64), np.asarray(entry["std"], np.float64))
            for name, entry in ir.noted(model, KEY).items()
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"the metadata '{KEY}' are not as they were written; quantize the model again") from error
