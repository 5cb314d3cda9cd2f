"""Compute the SQNR gain of one integer graph over another, and its standard error.

Both graphs are compared on the same samples. With E the summed squared error of an output, the gain
in dB is

    G = mean over the outputs of 10 log10(E_old / E_new)

and its standard error s is that of the jackknife, with G_i the gain without sample i (Efron and
Stein 1981):

    s^2 = (n - 1) / n * sum_i (G_i - mean of G_i)^2
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...decibels import convert_to_db

__all__ = ["SIGNIFICANCE_Z", "STEP_SIGNIFICANCE_Z", "Gain", "compute_gain"]

SIGNIFICANCE_Z = 1.645  #: minimum gain in standard errors (one-sided test at 5 %)
STEP_SIGNIFICANCE_Z = 3.0  #: the same for one of dozens of scales: by chance one of 700
_EPSILON = 1e-10  # lower bound of an error, as a fraction of the output's power


@dataclass(frozen=True)
class Gain:
    """SQNR gain of one graph over another.

    Attributes
    ----------
    value
        Mean gain of the outputs in dB.
    standard_error_db
        Its standard error in dB.
    samples
        Number of samples that were compared.
    worst_output_db
        Gain of the lowest SQNR among the outputs in dB.
    """

    value: float
    standard_error_db: float
    samples: int
    worst_output_db: float = 0.0

    def is_significant(self, min_db: float, z: float) -> bool:
        """Whether the gain reaches `min_db` dB and exceeds `z` standard errors.

        The worst output must not get worse either.
        """
        return (
            self.value >= min_db
            and self.value > z * self.standard_error_db
            and self.worst_output_db >= 0
        )

    @property
    def is_nonzero(self) -> bool:
        """Whether any sample differs between the two graphs."""
        return self.value != 0 or self.standard_error_db != 0

    @property
    def figures(self) -> dict[str, float]:
        """The figures by name, in dB, for `log_verdict`."""
        return {
            "gain_db": self.value,
            "standard_error_db": self.standard_error_db,
            "worst_gain_db": self.worst_output_db,
        }

    def is_hopeless(self, z: float) -> bool:
        """Whether the gain would not be positive even with `z` standard errors added."""
        return self.value + z * self.standard_error_db <= 0

    def __str__(self) -> str:
        """Format the gain in dB with its standard error, which is left out if infinite."""
        spread = "" if math.isinf(self.standard_error_db) else f" +- {self.standard_error_db:.2f}"
        return f"{self.value:+.2f}{spread} dB"


def compute_gain(old: np.ndarray, new: np.ndarray, power: np.ndarray, counts: int) -> Gain:
    """Compute the gain of `new` over `old`.

    The gain is the mean over the outputs, in dB; its standard error is that of the jackknife over
    the n errors, infinite for n = 1.

    Parameters
    ----------
    old, new
        Squared errors [outputs, n] on the same samples, not averaged.
    power
        Power of each output, [outputs].
    counts
        Number of samples that the `n` errors were summed from, for messages.
    """
    tiny = np.finfo(float).tiny
    errors = np.stack([old, new])  # [2, outputs, n]
    totals = errors.sum(axis=2)
    floor = _EPSILON * power + tiny
    total_db = convert_to_db(totals, floor)
    leave_one_out_db = convert_to_db(totals[..., None] - errors, floor[:, None])
    jackknife_gains = (leave_one_out_db[0] - leave_one_out_db[1]).mean(axis=0)
    n = len(jackknife_gains)
    standard_error = math.inf
    if n > 1:
        squares = np.square(jackknife_gains - jackknife_gains.mean())
        standard_error = math.sqrt((n - 1) / n * float(squares.sum()))
    power_db = convert_to_db(power, tiny)
    worst_gain = float((power_db - total_db[1]).min() - (power_db - total_db[0]).min())
    return Gain(float((total_db[0] - total_db[1]).mean()), standard_error, counts, worst_gain)
