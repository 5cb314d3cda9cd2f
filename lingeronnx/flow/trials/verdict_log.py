"""Log the decision of each trial and its figures, as one JSON object per verdict.

The logger `lingeronnx.verdicts` gets a DEBUG record for each verdict, so that
`benchmarks/compare_versions.py` also finds changed decisions that do not change any file.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping

__all__ = ["LOGGER", "log_verdict"]

LOGGER = logging.getLogger("lingeronnx.verdicts")

_DIGITS = 9  # significant digits of a figure


def log_verdict(
    trial: str,
    accepted: bool,
    *,
    criterion: Mapping[str, float],
    measured: Mapping[str, float],
    label: str = "",
) -> bool:
    """Log a verdict and return whether the proposal was accepted.

    Parameters
    ----------
    trial
        Name of the trial, such as ``"ends"``.
    accepted
        The verdict.
    criterion
        Thresholds of the decision, in dB or standard errors, by name.
    measured
        Figures that were compared with them, by name.
    label
        Which of the proposals of the trial, if it makes several.
    """
    if LOGGER.isEnabledFor(logging.DEBUG):
        record = {
            "trial": trial,
            "label": label,
            "accepted": bool(accepted),
            "criterion": _round_figures(criterion),
            "measured": _round_figures(measured),
        }
        LOGGER.debug("%s", json.dumps(record))
    return accepted


def _round_figures(figures: Mapping[str, float]) -> dict[str, float | str]:
    """Round figures to `_DIGITS` significant digits; infinity and NaN become strings for JSON."""
    rounded = {name: float(f"{float(value):.{_DIGITS}g}") for name, value in figures.items()}
    return {name: value if math.isfinite(value) else str(value) for name, value in rounded.items()}
