"""An operator that nobody has, x / (1 + |x|) with an instruction, a table and a kernel of its own,
and a chip with it.

`lo.extended` is the one call that makes it known. No file of the packages knows of it.
"""

from dataclasses import replace

import lingeronnx as lo
from lingeronnx.targets import Vendor, make_support_rows
from lingeronnx.targets.arithmetic import Arithmetic, Requantization
from tests.targets.test_invented_chip import chip

from .fake import squash
from .kernel import Squash
from .operator import SQUASH, SquashRule
from .plain import PlainSquash

_ROW = chip(Requantization(shifts=True))
#: The chip; it has no packer to be told.
_FREE = {name: replace(found, limits=None) for name, found in _ROW.ops.items()}
NIMBUS = replace(
    _ROW, vendor=Vendor(), faults=(), ops={**_FREE, **make_support_rows(Arithmetic(), SQUASH.name)}
)


def known():
    """Make the operator known; the result is for a ``with`` block."""
    return lo.extended(SQUASH, rule=SquashRule(), reference=PlainSquash, fake={Squash: squash})
