"""Comparison of a board's profile log with the latency model: `profile_board`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..common.errors import ConfigError, split_words
from ..common.files import read_user_file, write_text
from ..ir import ir
from ..runtime.integer.runner import detect_target
from ..runtime.program_parts import split_into_parts
from ..targets import LatencyOptions, Target, get_target
from ..targets.board_profile import BoardProfile

__all__ = ["profile_board"]

_MAX_LOG_BYTES = 16_000_000


def profile_board(
    log: str | os.PathLike[str],
    model: ir.ModelLike,
    output: str | os.PathLike[str] | None = None,
    *,
    platform: str | Target | None = None,
    packer_args: str | Sequence[str] | None = None,
    clock: float | None = None,
) -> BoardProfile:
    """Compare a board's profile log with the latency model, and derive kernel costs from it.

    Writes the calibrated kernel costs as JSON to `output` if it is given, and nothing else. Returns
    the comparison of all parts of the model that run on the chip.

    Parameters
    ----------
    log
        Text printed by the executor, built with its profiling option.
    model
        The integer graph that ran.
    output
        File for the kernel costs, which `check` and `quantize` take as `timing`.
    platform, packer_args
        Platform, by default the one that the graph was quantized for, and arguments of the packer,
        by default those chosen for the graph.
    clock
        Clock of the board in MHz, noted in the file.

    Raises
    ------
    ConfigError
        If the log cannot be read or does not belong to this model, if the platform is not a chip,
        or if the model has no integer operator.
    """
    graph = ir.as_model(model)
    target = detect_target(graph) if platform is None else get_target(platform)
    target = LatencyOptions(clock_mhz=clock).apply_to(target)
    argv = split_words(packer_args) if isinstance(packer_args, str) else packer_args
    text = read_user_file(log, "the log", _MAX_LOG_BYTES).decode(errors="replace")
    if not target.has_packer:
        raise ConfigError(f"profile logs come from chips, but {target.name} is not a chip")
    parts = split_into_parts(target.with_safe_names(graph), target).chip
    if not parts:
        raise ConfigError(
            f"no part of the model runs on {target.name}: it has no integer operator; quantize it "
            "first"
        )
    part_graphs = [part.graph for part in parts]
    profile = target.vendor.analyze_board_log(part_graphs, target, argv, text, clock)
    if output is not None:
        write_text(output, profile.calibration.model_dump_json(indent=2) + "\n")
    return profile
