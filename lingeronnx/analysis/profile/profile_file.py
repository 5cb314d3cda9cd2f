"""A profile as a file: an .npz without pickle, loaded without running anything.

    lingeronnx_profile    bytes of a JSON text: version, the model's digest, entries, and of every
                          tensor its dtype, scale, shape and the numbers of its distributions (the
                          tensor's own first, then those of channels): count, skipped, low, high,
                          mean, mean_absolute, variance, first, exponent
    <n>.values            float64: all values of distribution n, up to 4096
    <n>.bins, <n>.counts  int64: the nonzero bins of a distribution with more values, and their
                          counts; bin k counts the values in
                          [(first + k) * 2**exponent, (first + k + 1) * 2**exponent)

A loaded profile equals the saved one: it gives the same tables and the same histograms.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...common.errors import DataError
from ...runtime.dump import write_npz
from ..stats.distribution import Distribution
from ..stats.histogram import Histogram, NonzeroBins
from .profile import OperatorTensor, Profile, RecordedTensor

__all__ = ["PROFILE_FILE", "load_profile", "save_profile"]

#: The name of the file in a profile's folder.
PROFILE_FILE = "profile.npz"

_KEY, _VERSION = "lingeronnx_profile", 1
_EMPTY_MOMENTS = (math.inf, -math.inf, math.nan, 0.0, 0.0)  # range, mean and sums of no values


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile to the .npz file `path`, completely or not at all.

    It contains one JSON text, and the exact values or the bins of each distribution as arrays.
    """
    arrays: dict[str, np.ndarray] = {}
    index = 0
    tensors = {}
    for name, recorded in profile.tensors.items():
        distributions = []
        for distribution in (recorded.distribution, *recorded.channels):
            distributions.append(_dump_distribution(distribution, index, arrays))
            index += 1
        tensors[name] = {
            "dtype": recorded.dtype,
            "scale": recorded.scale,
            "shape": recorded.shape,
            "spreads": distributions,
        }
    body = {
        "version": _VERSION,
        "model": profile.model,
        "entries": [asdict(entry) for entry in profile.entries],
        "tensors": tensors,
    }
    write_npz(path, {_KEY: np.frombuffer(json.dumps(body).encode(), np.uint8), **arrays})


def _dump_distribution(
    distribution: Distribution, index: int, arrays: dict[str, np.ndarray]
) -> dict[str, object]:
    """Return the numbers of a distribution for JSON, and add its arrays to `arrays` in place.

    The arrays are named "INDEX.values" if the exact values are stored, else "INDEX.bins" and
    "INDEX.counts". An empty distribution has no arrays: only its count 0 and skipped are returned.
    """
    if not distribution.count:
        return {"count": 0, "skipped": distribution.skipped}
    numbers = {
        "count": distribution.count,
        "skipped": distribution.skipped,
        "low": distribution.low,
        "high": distribution.high,
        "mean": distribution.mean,
        "mean_absolute": distribution.mean_absolute,
        "variance": distribution.variance,
    }
    values = distribution.histogram.exact_values
    if values is not None:
        arrays[f"{index}.values"] = values
        return {**numbers, "number": index}
    bins = distribution.histogram.nonzero_bins
    arrays[f"{index}.bins"], arrays[f"{index}.counts"] = bins.index, bins.counts
    return {**numbers, "number": index, "first": bins.first, "exponent": bins.exponent}


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Load a profile from a file, or from a folder with a file `profile.npz`.

    Raises
    ------
    DataError
        If the file cannot be read, is not a profile, or is one of another version.
    """
    file = Path(path) / PROFILE_FILE if Path(path).is_dir() else Path(path)
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            body = json.loads(arrays[_KEY].tobytes())
            if body["version"] != _VERSION:
                raise DataError(
                    f"{file} is a profile of version {body['version']}; this lingeronnx reads "
                    f"{_VERSION}: upgrade it, or profile again with --keep"
                )
            tensors = {
                name: _load_tensor(stored, arrays) for name, stored in body["tensors"].items()
            }
            entries = [OperatorTensor(**entry) for entry in body["entries"]]
            return Profile(entries, tensors, str(body["model"]))
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"cannot read the profile {file}: {error.strerror}; pass the folder written by "
            "`profile`"
        ) from error
    except Exception as error:  # BadZipFile, KeyError, ValueError ... of damaged files
        raise DataError(
            f"{file} is not a lingeronnx profile ({type(error).__name__}); pass the folder "
            "written by `profile`"
        ) from error


def _load_tensor(stored: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> RecordedTensor:
    """Create the record of a tensor from its JSON object (dtype, scale, shape, spreads).

    The values of its distributions are read from `arrays`. The first of "spreads" is the
    distribution of the tensor, the others are those of its channels.
    """
    distribution, *channels = [_load_distribution(numbers, arrays) for numbers in stored["spreads"]]
    scale = tuple(stored["scale"]) if isinstance(stored["scale"], list) else stored["scale"]
    return RecordedTensor(stored["dtype"], scale, tuple(stored["shape"]), distribution, channels)


def _load_distribution(
    numbers: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Distribution:
    """Create a distribution from its JSON numbers (count, range, moments) and the file's arrays.

    The arrays "INDEX.values" (exact values), or "INDEX.bins" and "INDEX.counts", become its
    histogram. With count 0 the distribution is empty but for its skipped values.
    """
    count, skipped = numbers["count"], numbers["skipped"]
    if not count:
        return Distribution.from_state([0, skipped, *_EMPTY_MOMENTS, None])
    low, high, index = numbers["low"], numbers["high"], numbers["number"]
    sums = numbers["mean_absolute"] * count, numbers["variance"] * count
    distribution = Distribution.from_state(
        [count, skipped, low, high, numbers["mean"], *sums, None]
    )
    if "first" not in numbers:
        distribution.histogram.add(arrays[f"{index}.values"])
        return distribution
    bins = NonzeroBins(
        numbers["exponent"], numbers["first"], arrays[f"{index}.bins"], arrays[f"{index}.counts"]
    )
    distribution.histogram = Histogram.from_bins(low, high, count, bins)
    return distribution
