"""A board's profile log beside the model of its time: `profile_board`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import ConfigError, split_words
from ..files import read_user_file, write_text
from ..graph import ir
from ..run.integer.runner import detect_target
from ..run.program_parts import split_into_parts
from ..targets import LatencyOptions, Target, get_target
from ..targets.board_profile import BoardProfile

__all__ = ["profile_board"]

_MAX_LOG_BYTES = 16_000_000  # bytes of a log


def profile_board(
    log: str | os.PathLike[str],
    model: ir.ModelLike,
    output: str | os.PathLike[str] | None = None,
    *,
    platform: str | Target | None = None,
    packer_args: str | Sequence[str] | None = None,
    clock: float | None = None,
) -> BoardProfile:
    """Return where the model of a chip's time is off a board's log, and the prices that the log gives.

    log : the text that the executor printed, built with its profiling option. model : the integer
    graph that ran. output : a file for the prices, as `check` and `quantize` take them by timing.
    platform, packer_args : as `latency` takes them. clock : MHz of the board, noted in the file.
    Raises ConfigError for a log that cannot be read or is not of this model, and for a platform
    that is no chip.
    """
    graph = ir.as_model(model)
    target = LatencyOptions(clock_mhz=clock).apply_to(
        detect_target(graph) if platform is None else get_target(platform)
    )
    words = split_words(packer_args) if isinstance(packer_args, str) else packer_args
    text = read_user_file(log, "the log", _MAX_LOG_BYTES).decode(errors="replace")
    if not target.has_packer:
        raise ConfigError(f"a board's log is of a chip; {target.name} is none")
    parts = split_into_parts(target.with_safe_names(graph), target).chip
    if not parts:
        raise ConfigError(
            f"nothing of the model is for {target.name}: it has no integer operator; quantize it "
            "first"
        )
    profile = target.vendor.analyze_board_log(
        [part.graph for part in parts], target, words, text, clock
    )
    if output is not None:
        write_text(output, profile.calibration.model_dump_json(indent=2) + "\n")
    return profile
