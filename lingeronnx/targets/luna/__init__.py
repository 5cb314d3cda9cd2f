"""LISTENAI's LUNA: three chips of one family, with their packer and executor 3.0.4.

`venus`, `arcs`, `venusa` are the chips as rows of data, which `common`, `packing`, `faults` and
`trained` serve; `vendor` is what they answer by code. `packer/` knows what the vendor's packer
takes and refuses, `backend_passes/` rewrites the integer graph into what packs and is right,
`dialects` writes it in the names of the other dialect. Nobody outside imports from here but the
registry, `targets`.
"""

from __future__ import annotations

from .arcs import ARCS
from .venus import VENUS
from .venusa import VENUSA

__all__ = ["ARCS", "PLATFORMS", "VENUS", "VENUSA"]

PLATFORMS = (VENUS, ARCS, VENUSA)
