"""What an attempt leaves in the journal of a search, and whether a line of it can be believed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from ..errors import DataError
from .cost import AttemptCost
from .goal import Measurement

__all__ = ["Record", "is_complete", "make_record", "parse_cost"]

#: What an attempt leaves in the journal, as JSON-ready values.
Record = dict[str, Any]


def make_record(measured: Measurement, cost: AttemptCost, ready: bool) -> Record:
    """Return the figures of an attempt as JSON-ready values.

    Ready : whether it is fit for the chip, if any.
    """
    figures = {key: getattr(cost, key) for key in ("bytes", "cycles", "flash")}
    return {
        "value": measured.value,
        "float": measured.float_value,
        **figures,
        "macs": dict(cost.macs),
        "ready": ready,
    }


def parse_cost(record: Mapping[str, Any]) -> AttemptCost:
    """Return the cost that a whole line tells; DataError for widths that are none."""
    if any(re.fullmatch(r"float|\d{1,2}x\d{1,2}", width) is None for width in record["macs"]):
        raise DataError(
            "the journal of the search is damaged: it names no widths; search without --resume"
        )
    return AttemptCost(record["bytes"], record["macs"], record.get("cycles"), record.get("flash"))


def is_complete(record: Mapping[str, Any], labels: bool) -> bool:
    """Whether a log's line has all that an attempt leaves there; one that has not is made again.

    labels : whether attempts are compared with the float model's value, which a line then has to
    hold.
    """
    seconds, macs = record.get("seconds"), record.get("macs")
    if not (
        isinstance(record.get("attempt"), dict) and _is_number(seconds) and math.isfinite(seconds)
    ):
        return False
    if "why" in record:
        return isinstance(record["why"], str)
    sizes = [record.get("bytes"), *([] if record.get("flash") is None else [record["flash"]])]
    counts = [*sizes, *macs.values()] if isinstance(macs, dict) else [None]
    numbers = (record.get("value"), *([record.get("float")] if labels else []))
    return (
        isinstance(record.get("ready"), bool)
        and all(_is_number(number) for number in (*counts, *numbers))
        and all(isinstance(count, int) and count >= 0 for count in counts)
        and (record.get("cycles") is None or _is_number(record["cycles"]))
    )


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of JSON is a number, and no integer that is too long for a float."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 63)
