"""What one integer graph gains over another at the outputs, and how much of that may be chance.

Two are compared sample by sample. With E the summed squared error of an output, a gain in dB is

    G = mean over the outputs of 10 log10(E_old / E_new)

and its standard error is that of the jackknife, with G_i the gain without sample i (Efron and Stein
1981):

    s^2 = (n - 1) / n * sum_i (G_i - mean of G_i)^2
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["SIGNIFICANCE_Z", "STEP_SIGNIFICANCE_Z", "Gain", "compute_gain"]

SIGNIFICANCE_Z = 1.645  #: standard errors that a gain has at least: by chance that is one of 20
STEP_SIGNIFICANCE_Z = 3.0  #: and that of a single scale, of which a net has dozens: one of 700
_EPSILON = 1e-10  # of an output's power: less is no error


@dataclass(frozen=True)
class Gain:
    """A gain in dB and its standard error, on so many samples.

    `worst_output_db` : that of the least SQNR of the outputs.
    """

    value: float
    standard_error_db: float
    samples: int
    worst_output_db: float = 0.0

    def is_significant(self, min_db: float, z: float) -> bool:
        """Whether it is `min_db` dB, and above zero by so many standard errors, and the worst output loses nothing."""
        return (
            self.value >= min_db
            and self.value > z * self.standard_error_db
            and self.worst_output_db >= 0
        )

    @property
    def is_nonzero(self) -> bool:
        """Whether any sample tells a difference."""
        return self.value != 0 or self.standard_error_db != 0

    @property
    def figures(self) -> dict[str, float]:
        """The figures of a verdict in dB, by name, as `log_verdict` takes them."""
        return {
            "gain_db": self.value,
            "standard_error_db": self.standard_error_db,
            "worst_gain_db": self.worst_output_db,
        }

    def is_hopeless(self, errors: float) -> bool:
        """Whether even so many standard errors more would be no gain."""
        return self.value + errors * self.standard_error_db <= 0

    def __str__(self) -> str:
        spread = "" if math.isinf(self.standard_error_db) else f" +- {self.standard_error_db:.2f}"
        return f"{self.value:+.2f}{spread} dB"


def compute_gain(old: np.ndarray, new: np.ndarray, power: np.ndarray, counts: int) -> Gain:
    """Return what `new` gains over `old`, squared errors [outputs, n] of the same samples.

    power : of each output, [outputs]. counts : samples that the n stand for.
    """
    sums = np.stack([old, new])
    whole = sums.sum(axis=2)
    least = _EPSILON * power + np.finfo(float).tiny
    value = 10 * np.log10(np.maximum(whole, least))
    left = 10 * np.log10(np.maximum(whole[..., None] - sums, least[:, None]))
    each = (left[0] - left[1]).mean(axis=0)
    n = len(each)
    error = (
        math.sqrt((n - 1) / n * float(np.square(each - each.mean()).sum())) if n > 1 else math.inf
    )
    level = 10 * np.log10(np.maximum(power, np.finfo(float).tiny))
    worst = float((level - value[1]).min() - (level - value[0]).min())
    return Gain(float((value[0] - value[1]).mean()), error, counts, worst)
