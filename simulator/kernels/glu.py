"""Gated linear unit: the first half of the last axis times the sigmoid of the second half.

y = rescale(a * gate[b])      gate: sigmoid of every int8 b in Q15
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.fixed import Rescale, rsh, sat_array
from simulator.kernel import Kernel, Run, Spec, require
from simulator.kernels.elementwise import requantize
from simulator.lut import piecewise

__all__ = ["Glu"]


@dataclass(frozen=True, eq=False)
class Glu(Kernel):
    """Map int8 x [.., 2K] -> [.., K].

    Parameters
    ----------
    gate
        int64 [256], Q15, for b = -128..127; see `gates`.
    rescale
        Product at the scale of x times 2^15 -> output.
    """

    gate: np.ndarray
    rescale: Rescale

    @classmethod
    def gates(cls, q: int) -> np.ndarray:
        """Return venusA's sigmoid of -128..127 at scale 2^q: Q27 -> Q31 -> Q15, each rounded half up."""
        x = rsh(np.arange(-128, 128), q - 27)
        return np.asarray(rsh(piecewise("sigmoid", "venusA").rounded(sat_array(x, 32), 32), 16))

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Halve the last axis."""
        (x,) = specs
        require(x.dtype == np.int8 and x.shape[-1] % 2 == 0, f"Glu takes int8 [.., 2K], not {x}")
        return (Spec((*x.shape[:-1], x.shape[-1] // 2), self.rescale.dtype),)

    def build(self, specs: Sequence[Spec], channel_last: bool) -> Run:
        """Bound the product."""
        half, form = specs[0].shape[-1] // 2, self.rescale.within(128 << 15)

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            a, b = ins[0][..., :half], ins[0][..., half:]
            product = a * self.gate[b.astype(np.int64) + 128]
            requantize(product.reshape(-1), form, outs[0].reshape(-1))

        return run
