"""The plain class: the same number by number, in fractions, from nothing that the kernel knows."""

from fractions import Fraction
from math import floor

import numpy as np

from lingeronnx.operators import Integer


class PlainSquash(Integer):
    """x / (1 + |x|), rounded half up."""

    names = ("iqSquash",)

    def compute(self, a, arithmetic, *inputs):
        x, o = Fraction(a.scale("scale_x")), Fraction(a.scale("scale_o"))

        def one(v):
            return max(min(floor(int(v) * o / (x + abs(int(v))) + Fraction(1, 2)), 127), -128)

        return np.vectorize(one, otypes=[np.int8])(inputs[0])
