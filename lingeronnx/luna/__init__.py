"""LISTENAI's LUNA: three chips of one family, with their packer and executor.

The chips with version 3.0.4 are described by `venus`, `arcs` and `venusa`, with data from `common`,
`packer_profile`, `faults` and `training_arithmetic`; `versions/` has the changes of later versions,
and `vendor` implements their behavior. `packer/` models the vendor's packer, `backend_passes/`
rewrites the integer graph so that it packs and is correct, and `dialects` converts graphs between
the two dialects. Only the registry, `targets`, imports from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import make_name_loader
from .arcs import ARCS
from .venus import VENUS
from .venusa import VENUSA

__all__ = ["ARCS", "PLATFORMS", "VENUS", "VENUSA", "VERSIONS"]

PLATFORMS = (VENUS, ARCS, VENUSA)

if TYPE_CHECKING:
    from .versions import VERSIONS as VERSIONS
else:  # loaded when a version is asked for
    __getattr__ = make_name_loader(__name__, {"VERSIONS": ".versions"})
