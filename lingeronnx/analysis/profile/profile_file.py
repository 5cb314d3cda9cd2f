"""A profile as a file: an .npz without pickle, read without running anything.

    lingeronnx_profile   bytes of a JSON text: version, the model's digest, entries, and of every
    tensor its dtype,
                         scale, shape and the numbers of its spreads (the tensor's own first, then
                         those of channels): count, skipped, low, high, mean, mean_absolute,
                         variance, first, exponent
    <n>.values           float64: of spread n up to 4096 values, all there are
    <n>.bins, <n>.counts int64: of a spread with more, the bins that hold any, and how many each
    holds: bin k counts the
                         values in [(first + k) * 2**exponent, (first + k + 1) * 2**exponent)

A profile that was read goes on as the one that was written: the same tables, the same histograms.
Knows `Profile`.
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

from ...errors import DataError
from ...run.dump import write_npz
from ..stats.distribution import Distribution
from ..stats.histogram import Histogram, NonzeroBins
from .profile import OperatorTensor, Profile, RecordedTensor

__all__ = ["PROFILE_FILE", "load_profile", "save_profile"]

#: The name of the file in a profile's folder.
PROFILE_FILE = "profile.npz"

_KEY, _VERSION = "lingeronnx_profile", 1
_EMPTY_MOMENTS = (math.inf, -math.inf, math.nan, 0.0, 0.0)  # range, mean and sums of no value


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write `profile` to `path`, as a whole or not at all."""
    arrays: dict[str, np.ndarray] = {}
    number = 0
    tensors = {}
    for name, recorded in profile.tensors.items():
        spreads = []
        for spread in (recorded.distribution, *recorded.channels):
            spreads.append(_dump_distribution(spread, number, arrays))
            number += 1
        tensors[name] = {
            "dtype": recorded.dtype,
            "scale": recorded.scale,
            "shape": recorded.shape,
            "spreads": spreads,
        }
    body = {
        "version": _VERSION,
        "model": profile.model,
        "entries": [asdict(entry) for entry in profile.entries],
        "tensors": tensors,
    }
    write_npz(path, {_KEY: np.frombuffer(json.dumps(body).encode(), np.uint8), **arrays})


def _dump_distribution(
    spread: Distribution, number: int, arrays: dict[str, np.ndarray]
) -> dict[str, object]:
    """Return the numbers of a spread, its arrays put into `arrays`."""
    if not spread.count:
        return {"count": 0, "skipped": spread.skipped}
    numbers = {
        "count": spread.count,
        "skipped": spread.skipped,
        "low": spread.low,
        "high": spread.high,
        "mean": spread.mean,
        "mean_absolute": spread.mean_absolute,
        "variance": spread.variance,
    }
    if (values := spread.histogram.kept) is not None:
        arrays[f"{number}.values"] = values
        return {**numbers, "number": number}
    bins = spread.histogram.nonzero_bins
    arrays[f"{number}.bins"], arrays[f"{number}.counts"] = bins.index, bins.counts
    return {**numbers, "number": number, "first": bins.first, "exponent": bins.exponent}


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Return the profile in the file `path`, or in the folder `path`.

    DataError for any other content.
    """
    file = Path(path) / PROFILE_FILE if Path(path).is_dir() else Path(path)
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            body = json.loads(arrays[_KEY].tobytes())
            if body["version"] != _VERSION:
                raise DataError(
                    f"{file} is a profile of version {body['version']}; this lingeronnx reads "
                    f"{_VERSION}: upgrade it, "
                    "or profile again with --keep"
                )
            recorded = {
                name: _load_tensor(stored, arrays) for name, stored in body["tensors"].items()
            }
            return Profile(
                [OperatorTensor(**entry) for entry in body["entries"]], recorded, str(body["model"])
            )
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"cannot read the profile {file}: {error.strerror}; give the folder that profile wrote"
        ) from error
    except (
        Exception
    ) as error:  # zipfile.BadZipFile, KeyError, ValueError ... of other and of damaged files
        raise DataError(
            f"{file} is no profile that lingeronnx wrote ({type(error).__name__}); give the folder "
            "that profile wrote"
        ) from error


def _load_tensor(stored: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> RecordedTensor:
    spread, *channels = [_load_distribution(numbers, arrays) for numbers in stored["spreads"]]
    scale = tuple(stored["scale"]) if isinstance(stored["scale"], list) else stored["scale"]
    return RecordedTensor(stored["dtype"], scale, tuple(stored["shape"]), spread, channels)


def _load_distribution(
    numbers: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Distribution:
    """Return a distribution from its numbers and the arrays that they name."""
    count, skipped = numbers["count"], numbers["skipped"]
    if not count:
        return Distribution.from_state([0, skipped, *_EMPTY_MOMENTS, None])
    low, high, number = numbers["low"], numbers["high"], numbers["number"]
    sums = numbers["mean_absolute"] * count, numbers["variance"] * count
    values = Distribution.from_state([count, skipped, low, high, numbers["mean"], *sums, None])
    if "first" not in numbers:
        values.histogram.add(arrays[f"{number}.values"])
        return values
    bins = NonzeroBins(
        numbers["exponent"], numbers["first"], arrays[f"{number}.bins"], arrays[f"{number}.counts"]
    )
    values.histogram = Histogram.from_bins(low, high, count, bins)
    return values
