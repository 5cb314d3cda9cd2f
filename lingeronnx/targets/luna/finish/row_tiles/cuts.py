"""Runs of layers with a number of tiles: what is tried, and the graph that comes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .....graph import ir
from ...._target import Fitted
from ..read_graph import ReadGraph
from .emit import emit
from .outputs import in_output_parts
from .runs import Tile, TiledRun, length, runs_from, size

__all__ = ["Cut", "cuts", "tiled"]

#: Numbers of tiles to try, few first: every tile computes its halo again.
_COUNTS = (2, 4, 8, 16, 32)
_STRIPS = (2, 4, 8, 16)  # of columns, where rows alone do not do
_PARTS = (1.0, 0.75, 0.5)  # of the limit, since a plan takes more than what one layer reads and writes


@dataclass(frozen=True)
class Cut:
    """A run and its tiles.

    tiles : of rows. strips : of columns, each of which is cut into the tiles; none where a tile is as wide as the map.
    """

    run: TiledRun
    tiles: tuple[Tile, ...]
    strips: tuple[Tile, ...] = ()

    @cached_property
    def peak(self) -> int:
        """The most bytes that one layer of one tile reads and writes, results that wait to be joined aside."""
        held = self.tiles[0].wanted
        layers = [{v for v in (*node.inputs, *node.outputs) if v is not None and v in held} for node in self.run.nodes]
        return max(sum(self._bytes(value, max) for value in layer) for layer in layers)

    @cached_property
    def again(self) -> int:
        """The elements that are computed more than once."""
        results = [node.outputs[0] for node in self.run.nodes]
        return sum(self._bytes(value, sum) - size(value) for value in results)

    def text(self) -> Fitted:
        """Return what is done, for the report."""
        names = [str(node.name) for node in self.run.nodes]
        which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} layers)"
        tiles = f"{len(self.tiles)} tiles of {max(tile.rows(self.run.result) for tile in self.tiles)} rows"
        if self.strips:
            columns = max(strip.rows(self.run.result) for strip in self.strips)
            tiles = f"{len(self.strips)} strips of {columns} columns, each in {tiles}"
        share = self.again / sum(size(node.outputs[0]) for node in self.run.nodes)
        again = f"{100 * share:.0f} % more {'places' if self.strips else 'rows'} are computed, where tiles overlap"
        cost = "exact" if share < 0.005 else f"exact; {again}"
        return Fitted(names[0], f"{which} in {tiles}, one after the other, so that shared memory suffices", cost)

    def _bytes(self, value: ir.Value, of: Callable[[Iterable[int]], int]) -> int:
        """Return the bytes of a tensor that the tiles hold: of the largest (`max`) or of all (`sum`)."""
        share = size(value) // length(value, 2) * of(tile.rows(value) for tile in self.tiles)
        if not self.strips:
            return share
        return share // length(value, 3) * of(strip.rows(value) for strip in self.strips)


def tiled(read: ReadGraph, cut: Cut) -> ReadGraph:
    """Return a copy of the graph with the tiles in place of the run."""
    copy = ir.clone(read.graph)
    twins = dict(zip(read.graph.graph, copy.graph, strict=True))
    run = TiledRun(tuple(twins[node] for node in cut.run.nodes))
    strips = [run]
    if cut.strips:
        across = replace(in_output_parts(copy, run, read), axis=3)
        strips = emit(copy, across, _tiles(across, len(cut.strips)) or ())
    for strip in strips if len(cut.tiles) > 1 else ():
        emit(copy, strip, _tiles(strip, len(cut.tiles)) or ())
    return read.other(copy)


def cuts(graph: ir.Graph, start: int, large: ir.Node, limit: int, outside: int = 0) -> Iterator[Cut]:
    """Yield the cuts worth trying that begin with node `start` and hold `large`.

    Up to where the maps are small first, then long ones. Of each run few tiles first, as far as a single layer of a
    tile takes `limit` bytes at most. Runs of which a layer takes more in all these tiles come last, in tiles of rows
    and columns, where `outside` bytes of external memory hold the result and its tiles: first where least is computed
    again, and least is copied out and in.
    """
    runs = runs_from(list(graph.graph), start, large)
    small = [run for run in runs if 3 * size(run.result) <= limit][:1]
    wide = []
    for run in [*small, *(run for run in reversed(runs) if run not in small)]:
        found = [cut for count in _COUNTS if (cut := _cut(run, count)) is not None and cut.peak <= limit]
        yield from found
        if not found and 2 * size(run.result) <= outside:
            wide += _in_strips(run, limit)
    yield from sorted(wide, key=lambda cut: cut.again + 2 * size(cut.run.result))


def _in_strips(run: TiledRun, limit: int) -> list[Cut]:
    """Return the cuts of a run into rows and columns with which least is computed again, for parts of the limit."""
    across = run.columns
    if across is None:
        return []
    strips = [tiles for count in _STRIPS if (tiles := _tiles(across, count)) is not None]
    rows = [tiles for count in (1, *_COUNTS) if (tiles := _tiles(run, count)) is not None]
    every = sorted((Cut(run, *both) for both in itertools.product(rows, strips)), key=lambda cut: cut.again)
    best = (next((cut for cut in every if cut.peak <= part * limit), None) for part in _PARTS)
    return list(dict.fromkeys(cut for cut in best if cut is not None))


def _cut(run: TiledRun, count: int) -> Cut | None:
    """Return the run in `count` tiles; None where they would be too thin."""
    tiles = _tiles(run, count)
    return None if tiles is None else Cut(run, tiles)


def _tiles(run: TiledRun, count: int) -> tuple[Tile, ...] | None:
    """Return `count` tiles of a run; None where they would be too thin."""
    whole = length(run.result, run.axis)
    if whole < count:
        return None
    bounds = [whole * i // count for i in range(count + 1)]  # no tile is much thinner than the others
    tiles = [run.tile(part) for part in itertools.pairwise(bounds)]
    return None if None in tiles else tuple(tile for tile in tiles if tile is not None)
