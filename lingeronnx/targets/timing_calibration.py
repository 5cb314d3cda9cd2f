"""The file of `profile-board -o`: kernel costs of a chip fitted to a board's log.

The costs are factors on the cost formulas of another chip. This module depends on no kernel: the
vendor defines the families of kernels and how a factor is applied.
"""

from __future__ import annotations

import json
import os
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..common.errors import ConfigError
from ..common.files import read_user_file
from ..common.validation import format_validation_error

__all__ = ["FamilyFactor", "TimingCalibration", "read_timing_calibration"]

_MAX_FILE_BYTES = 1_000_000


class FamilyFactor(BaseModel):
    """Factors on the start overhead and on the remaining cycles of the kernels of one family."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    start: float = Field(ge=0, le=1e6, description="factor on the start overhead of a call")
    rest: float = Field(ge=0, le=1e6, description="factor on the remaining cycles of a call")


class TimingCalibration(BaseModel):
    """Kernel costs of a chip, fitted to a board's log.

    base : the chip whose formulas are corrected.
    node : cycles of the host core per node.
    factors : by family of kernels; a family without factors is as on `base`.
    spread : relative error bound: in cross-validation, nine of ten nodes were within it.
    clock_mhz : clock of the board, if known.
    nodes, runs, median_error : size of the log that was fitted, and the median relative error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    lingeronnx_timing: Literal[1] = Field(description="the version of this format")
    platform: str = Field(description="the chip whose costs were fitted")
    base: str = Field(description="the chip whose formulas the factors correct")
    node: float = Field(ge=0, le=1e9, description="cycles of the host core per node")
    factors: dict[str, FamilyFactor] = Field(
        description="by family of kernels: factors on its start and on the rest of its cycles"
    )
    spread: float = Field(ge=0, le=1e3, description="relative error bound of a node's cycles")
    clock_mhz: float | None = Field(
        default=None, gt=0, le=1e6, description="clock of the board in MHz, if known"
    )
    nodes: int = Field(ge=0, description="number of nodes in the fitted log")
    runs: int = Field(ge=0, description="number of runs in the fitted log")
    median_error: float = Field(ge=0, description="median relative error of these nodes")


def read_timing_calibration(path: str | os.PathLike[str]) -> TimingCalibration:
    """Read the timing calibration file at `path`, JSON of at most 1 MB.

    Raises
    ------
    ConfigError
        If the file cannot be read or is not a valid calibration.
    """
    text = read_user_file(path, "the timing file", _MAX_FILE_BYTES)
    try:
        return TimingCalibration.model_validate_json(text)
    except ValidationError as error:
        message = format_validation_error(error, TimingCalibration, _parse_json(text))
        raise ConfigError(
            f"the timing file {os.fspath(path)}: {message}; profile-board writes one"
        ) from error


def _parse_json(text: bytes) -> object:
    """Parse JSON; None if `text` is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
