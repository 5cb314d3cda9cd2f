"""Runs of layers with a number of tiles: what is tried, and the graph that comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .....fit._base import chunks
from .....graph import ir
from ...._target import Fitted
from ..read_graph import ReadGraph
from .emit import emit
from .runs import Rows, Tile, TiledRun, runs_from, size

__all__ = ["Cut", "cuts", "tiled"]

#: Numbers of tiles to try, few first: every tile computes its halo again.
_COUNTS = (2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Cut:
    """A run and its tiles."""

    run: TiledRun
    tiles: tuple[tuple[Rows, Tile], ...]

    @property
    def peak(self) -> int:
        """The most bytes that one layer of one tile reads and writes, results that wait to be joined aside."""
        most = 0
        for _, tile in self.tiles:
            for node in self.run.nodes:
                values = {v for v in (*node.inputs, *node.outputs) if v is not None and v in tile.wanted}
                most = max(most, sum(map(tile.bytes, values)))
        return most

    def text(self) -> Fitted:
        """Return what is done, for the report."""
        names = [str(node.name) for node in self.run.nodes]
        which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} layers)"
        rows = max(last - first for (first, last), _ in self.tiles)
        more = self._halo()
        cost = "exact" if more < 0.005 else f"exact; {100 * more:.0f} % more rows are computed, where tiles overlap"
        what = f"{which} in {len(self.tiles)} tiles of {rows} rows, one after the other, so that shared memory suffices"
        return Fitted(names[0], what, cost)

    def _halo(self) -> float:
        """Return the share of elements that are computed more than once."""
        whole = sum(size(node.outputs[0]) for node in self.run.nodes)
        done = sum(tile.bytes(node.outputs[0]) for _, tile in self.tiles for node in self.run.nodes)
        return done / whole - 1


def tiled(read: ReadGraph, cut: Cut) -> ReadGraph:
    """Return a copy of the graph with the tiles in place of the run."""
    copy = ir.clone(read.graph)
    twins = dict(zip(read.graph.graph, copy.graph, strict=True))
    run = TiledRun(tuple(twins[node] for node in cut.run.nodes))
    emit(copy, run, [(rows, tile) for rows, _ in cut.tiles if (tile := run.tile(rows)) is not None])
    return read.other(copy)


def cuts(graph: ir.Graph, start: int, large: ir.Node, limit: int) -> Iterator[Cut]:
    """Yield the cuts worth trying that begin with node `start` and hold `large`.

    Up to where the maps are small first, then long ones. Of each run few tiles first, as far as a single layer of a
    tile takes `limit` bytes at most.
    """
    runs = runs_from(list(graph.graph), start, large)
    small = [run for run in runs if 3 * size(run.result) <= limit][:1]
    for run in [*small, *(run for run in reversed(runs) if run not in small)]:
        for count in _COUNTS:
            cut = _cut(run, count)
            if cut is not None and cut.peak <= limit:
                yield cut


def _cut(run: TiledRun, count: int) -> Cut | None:
    """Return the run in `count` tiles; None where they would be too thin."""
    rows = (ir.shape(run.result) or (1, 1, 1))[2] or 1
    if rows < count:
        return None
    tiles = []
    for first, last in chunks(rows, count):
        tile = run.tile((first, last))
        if tile is None:
            return None
        tiles.append(((first, last), tile))
    return Cut(run, tuple(tiles))
