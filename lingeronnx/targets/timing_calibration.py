"""The file of `profile-board -o`.

What a board's log says of a chip's prices, beside the formulas of another chip.
Knows no kernel: a vendor says which families of kernels there are, and what a factor is to them.
"""

from __future__ import annotations

import os
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ConfigError
from ..files import read_user_file

__all__ = ["FamilyFactor", "TimingCalibration", "read_timing_calibration"]

_MAX_FILE_BYTES = 1_000_000  # bytes of a file


class FamilyFactor(BaseModel):
    """Times a kernel's start and times the rest of it, by the formulas of the chip `base`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    start: float = Field(ge=0, le=1e6)
    rest: float = Field(ge=0, le=1e6)


class TimingCalibration(BaseModel):
    """Prices of a chip, fitted to a board's log.

    base : the chip whose formulas are corrected. node : cycles of the host core for each node.
    factors : by family of kernels; a family that is not named is as on `base`. spread : how far off
    a node may be, as a share: of nodes that were left out of the fit in turn, nine of ten were as
    near. clock_mhz : of the board, where it was told. nodes, runs, median_error : of the log that
    it was fitted to, and how near it is to that.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    lingeronnx_timing: Literal[1] = Field(description="the version of this format")
    platform: str
    base: str = Field(description="the chip whose formulas the factors correct")
    node: float = Field(ge=0, le=1e9, description="cycles of the host core for each node")
    factors: dict[str, FamilyFactor] = Field(
        description="by family of kernels: times its start, times the rest"
    )
    spread: float = Field(ge=0, le=1e3, description="how far off a node may be, as a share of it")
    clock_mhz: float | None = Field(default=None, gt=0, le=1e6)
    nodes: int = Field(ge=0, description="nodes of the log that it was fitted to")
    runs: int = Field(ge=0)
    median_error: float = Field(ge=0, description="of these nodes, as a share")


def read_timing_calibration(path: str | os.PathLike[str]) -> TimingCalibration:
    """Return the row in the file at `path`.

    ConfigError for a file that cannot be read or holds something else.
    """
    text = read_user_file(path, "the timing file", _MAX_FILE_BYTES)
    try:
        return TimingCalibration.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        where = f"{os.fspath(path)}: {place}" if place else os.fspath(path)
        raise ConfigError(
            f"the timing file {where}: {first['msg']}; profile-board writes one"
        ) from error
