"""The families of random nets: name -> `build(draw)`, which draws a net and returns the names of
its outputs.
"""

from tests.fuzz.families import (
    attention,
    curves,
    ends,
    image,
    line,
    moves,
    narrow,
    parts,
    recurrent,
    rows,
    streaming,
    twice,
    unet,
)

FAMILIES = {
    module.__name__.rpartition(".")[2]: module.build
    for module in (
        attention,
        curves,
        ends,
        image,
        line,
        moves,
        narrow,
        parts,
        recurrent,
        rows,
        streaming,
        twice,
        unet,
    )
}

__all__ = ["FAMILIES"]
