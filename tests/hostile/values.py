"""Values that programs do not expect."""

import math

__all__ = ["FLOATS", "INTS", "PIECES", "TEXTS", "pick"]

INTS = (-(2**63), -(2**31) - 1, -100, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 62, 63, 64, 100, 255, 2**14,
        2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)  # fmt: skip
FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 1e-45, 1e-30, 0.3, 2.0**-62, 2.0**62, 2.0**-20, 3.4e38, 1.0,
          2.0, 128.0, 1e308)  # fmt: skip
TEXTS = ("", "x", "\n", "a|b", "<b>", "</script>", "é", "\u202e", "../x", "a\0b", "x" * 5000, "floor", "SAME_UPPER",
         "venus", "arcs", "training", "@", "%s", "{0}", "[red]", "[/]", "nan", "-1", "1e999", "😀", " ", "'", '"',
         "linear", "constant", "tensor(float)", "/dev/zero", ".", "con:", "--help")  # fmt: skip
#: What takes the place of a number or a word in a text.
PIECES = (*(str(value) for value in INTS), *(str(value) for value in FLOATS), "9" * 5000, "null", "true", "[]", "{}",
          '""', "[" * 2000, "{" * 500, "!!python/object/apply:os.system [x]", "&a [*a]", "'", '"', ":", "-", "\0", "\t",
          "1e999", "0x10", "1_000", "~", "2^-7", "2^9999999", "[1, [2, [3]]]", "é", "\ud7ff", "NaN", "Infinity",
          "-Infinity")  # fmt: skip


def pick(rng, things):
    """Return one of `things`, as it is: numpy would make other types of it."""
    return things[int(rng.integers(len(things)))]
