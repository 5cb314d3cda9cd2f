"""Journal records of search attempts: writing them, parsing them, and detecting damaged ones."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from ..common.errors import DataError
from .cost import AttemptCost
from .goal import Measurement

__all__ = ["Record", "is_complete", "make_record", "parse_cost"]

#: Journal entry of an attempt, as JSON-ready values.
Record = dict[str, Any]


def make_record(measurement: Measurement, cost: AttemptCost, ready: bool) -> Record:
    """Return the measurement and cost of an attempt as JSON-ready values for the search journal.

    The attempt itself is not included. `ready` tells whether the result is fit for the chip; True
    if the platform is not a chip.
    """
    figures = {key: getattr(cost, key) for key in ("bytes", "cycles", "flash")}
    return {
        "value": measurement.value,
        "float": measurement.float_value,
        **figures,
        "macs": dict(cost.macs),
        "ready": ready,
    }


def parse_cost(record: Mapping[str, Any]) -> AttemptCost:
    """Return the cost stored in a journal record that has all its fields.

    Raises
    ------
    DataError
        If "macs" has a key that is not a width such as "8x4" or "float".
    """
    if any(re.fullmatch(r"float|\d{1,2}x\d{1,2}", width) is None for width in record["macs"]):
        raise DataError(
            "the search journal is damaged: 'macs' has invalid widths; run without --resume"
        )
    return AttemptCost(record["bytes"], record["macs"], record.get("cycles"), record.get("flash"))


def is_complete(record: Mapping[str, Any], labels: bool) -> bool:
    """Whether a journal record has all valid fields; an attempt without them is run again.

    A record with a reason ("why") needs only "attempt" and "seconds" besides. With `labels` the
    metric of the float model ("float") is required as well.
    """
    seconds = record.get("seconds")
    if not isinstance(record.get("attempt"), dict):
        return False
    if not _is_number(seconds) or not math.isfinite(seconds):
        return False
    if "why" in record:
        return isinstance(record["why"], str)
    if not isinstance(record.get("ready"), bool) or not isinstance(record.get("macs"), dict):
        return False
    sizes = [record.get("bytes"), *record["macs"].values()]
    if record.get("flash") is not None:
        sizes.append(record["flash"])
    if not all(_is_size(size) for size in sizes):
        return False
    cycles = record.get("cycles")
    if cycles is not None and not _is_number(cycles):
        return False
    return _is_number(record.get("value")) and (not labels or _is_number(record.get("float")))


def _is_size(value: object) -> bool:
    """Whether `value` is an integer of at least 0; False for a bool."""
    return isinstance(value, int) and _is_number(value) and value >= 0


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a float or an integer of fewer than 64 bits, and not a boolean."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 63)
