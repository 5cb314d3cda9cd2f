"""What firmware of a chip does around a deployed program: sections, cache maintenance, start-up.

Deployed folders have it as a header and an example. Nothing of it was tried on a board.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BoardSupport"]


class BoardSupport(NamedTuple):
    """Names of a chip's software development kit (SDK) that firmware needs around a program.

    source : where the names are from, for a comment; "" if none are known. includes : headers.
    shared_section, psram_section : attributes of arrays in shared memory and PSRAM. clean_cache,
    invalidate_cache : C expressions of `data` and `bytes`. cache_off : statements that switch the
    data cache off. start : statements that run once, before the program's init. Empty fields are
    unknown.
    """

    source: str = ""
    includes: tuple[str, ...] = ()
    shared_section: str = ""
    psram_section: str = ""
    clean_cache: str = ""
    invalidate_cache: str = ""
    cache_off: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
