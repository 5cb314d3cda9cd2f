"""The settings of `quantize` by name and type, so that type checkers find misspelled names.

`QuantConfig` checks the values; a test checks that both have the same names. None keeps the
default of a setting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict

__all__ = [
    "Activations",
    "Calibrator",
    "Cells",
    "Effort",
    "NotesLength",
    "Objective",
    "QuantSettings",
]

# The values of settings that are one of several words; `QuantConfig` has them too.
Activations: TypeAlias = Literal["symmetric", "asymmetric"]
Calibrator: TypeAlias = Literal["max", "percentile", "mse", "kl"]
Effort: TypeAlias = Literal["fast", "normal", "best"]
Objective: TypeAlias = Literal["accuracy", "time", "memory", "plain"]
Cells: TypeAlias = Literal["auto", "chip", "host"]
NotesLength: TypeAlias = Literal["short", "full"]


class QuantSettings(TypedDict, total=False):
    """Keyword arguments of `quantize` besides those in its signature."""

    bits: int | None
    weight_bits: int | Literal["auto"] | None
    weight_scales: str | None
    activations: Activations | None
    calibrator: Calibrator | None
    percentile: float | None
    effort: Effort | None
    objective: Objective | None
    fit: bool | None
    require_chip: bool | None
    parts: int | None
    cells: Cells | None
    max_parts: int | None
    state: Mapping[str, str] | None
    calls: int | Literal["all"] | None
    fix: Mapping[str, float | str | Sequence[float]] | None
    batch_axis: Mapping[str, int | None] | None
    input_shape: Mapping[str, Sequence[int]] | None
    batch: int | None
    limit: int | None
    memory: float | None
    seed: int | None
    notes: NotesLength | None
    requantize: bool | None
    debug_dump: str | os.PathLike[str] | None
    clock: float | None
    budget_ms: float | None
    timing: str | os.PathLike[str] | None
