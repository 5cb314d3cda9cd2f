"""Differences that are understood and not mended yet: counted apart, and no failure. An entry goes
with its cause.
"""

import re
from dataclasses import dataclass

__all__ = ["KNOWN", "Known", "find_known_reason"]


@dataclass(frozen=True)
class Known:
    """A difference: what is said of it (a regular expression), why it is there, and a net that
    shows it.
    """

    text: str
    why: str
    family: str
    seed: int
    platform: str

    def says(self, text):
        """Whether a sentence is about it."""
        return re.search(self.text, text) is not None


KNOWN: tuple[Known, ...] = ()


def find_known_reason(text):
    """Return why a sentence is no failure; None where it is one."""
    return next((one.why for one in KNOWN if one.says(text)), None)
