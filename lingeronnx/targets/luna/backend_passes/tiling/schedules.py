"""Runs of layers with a number of tiles: what is tried, and the graph that comes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .....graph import ir
from ...._target import AppliedRewrite
from ..packer_view import PackerGraphView
from .cascades import Cascade, Tile, axis_length, find_cascades, sample_bytes
from .emit import emit_tiles
from .output_channel_splits import split_oversized_convs

__all__ = ["TileSchedule", "apply_schedule", "iterate_schedules"]

#: Numbers of tiles to try, few first: every tile computes its halo again.
_TILE_COUNTS = (2, 4, 8, 16, 32)
_STRIP_COUNTS = (2, 4, 8, 16)  # of columns, where rows alone do not do
_LIMIT_FRACTIONS = (
    1.0,
    0.75,
    0.5,
)  # of the limit, since a plan takes more than what one layer reads and writes


@dataclass(frozen=True)
class TileSchedule:
    """A run and its tiles.

    tiles : of rows. strips : of columns, each of which is cut into the tiles; none where a tile is
    as wide as the map.
    """

    run: Cascade
    tiles: tuple[Tile, ...]
    strips: tuple[Tile, ...] = ()

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes that one layer of one tile reads and writes, results that wait to be joined aside."""
        held = self.tiles[0].held_rows
        layers = [
            {v for v in (*node.inputs, *node.outputs) if v is not None and v in held}
            for node in self.run.nodes
        ]
        return max(sum(self._bytes(value, max) for value in layer) for layer in layers)

    @cached_property
    def recomputed_elements(self) -> int:
        """The elements that are computed more than once."""
        results = [node.outputs[0] for node in self.run.nodes]
        return sum(self._bytes(value, sum) - sample_bytes(value) for value in results)

    def describe(self) -> AppliedRewrite:
        """Return what is done, for the report."""
        names = [str(node.name) for node in self.run.nodes]
        which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} layers)"
        tiles = (
            f"{len(self.tiles)} tiles of "
            f"{max(tile.count_rows(self.run.result) for tile in self.tiles)} rows"
        )
        if self.strips:
            columns = max(strip.count_rows(self.run.result) for strip in self.strips)
            tiles = f"{len(self.strips)} strips of {columns} columns, each in {tiles}"
        share = self.recomputed_elements / sum(
            sample_bytes(node.outputs[0]) for node in self.run.nodes
        )
        again = (
            f"{100 * share:.0f} % more {'places' if self.strips else 'rows'} are computed, "
            "where tiles overlap"
        )
        cost = "exact" if share < 0.005 else f"exact; {again}"
        return AppliedRewrite(
            names[0],
            f"{which} in {tiles}, one after the other, so that shared memory suffices",
            cost,
        )

    def _bytes(self, value: ir.Value, of: Callable[[Iterable[int]], int]) -> int:
        """Return the bytes of a tensor that the tiles hold.

        Of the largest (`max`) or of all (`sum`).
        """
        share = (
            sample_bytes(value)
            // axis_length(value, 2)
            * of(tile.count_rows(value) for tile in self.tiles)
        )
        if not self.strips:
            return share
        return share // axis_length(value, 3) * of(strip.count_rows(value) for strip in self.strips)


def apply_schedule(read: PackerGraphView, cut: TileSchedule) -> PackerGraphView:
    """Return a copy of the graph with the tiles in place of the run."""
    copy = ir.clone(read.graph)
    twins = dict(zip(read.graph.graph, copy.graph, strict=True))
    run = Cascade(tuple(twins[node] for node in cut.run.nodes))
    strips = [run]
    if cut.strips:
        across = replace(split_oversized_convs(copy, run, read), axis=3)
        strips = emit_tiles(copy, across, _make_tiles(across, len(cut.strips)) or ())
    for strip in strips if len(cut.tiles) > 1 else ():
        emit_tiles(copy, strip, _make_tiles(strip, len(cut.tiles)) or ())
    return read.for_graph(copy)


def iterate_schedules(
    graph: ir.Model, start: int, large: ir.Node, limit: int, outside: int = 0
) -> Iterator[TileSchedule]:
    """Yield the cuts worth trying that begin with node `start` and hold `large`.

    Up to where the maps are small first, then long ones. Of each run few tiles first, as far as a
    single layer of a tile takes `limit` bytes at most. Runs of which a layer takes more in all
    these tiles come last, in tiles of rows and columns, where `outside` bytes of external memory
    hold the result and its tiles: first where least is computed again, and least is copied out and
    in.
    """
    runs = find_cascades(list(graph.graph), start, large)
    small = [run for run in runs if 3 * sample_bytes(run.result) <= limit][:1]
    wide = []
    for run in [*small, *(run for run in reversed(runs) if run not in small)]:
        found = [
            cut
            for count in _TILE_COUNTS
            if (cut := _make_row_schedule(run, count)) is not None and cut.peak_bytes <= limit
        ]
        yield from found
        if not found and 2 * sample_bytes(run.result) <= outside:
            wide += _make_strip_schedules(run, limit)
    yield from sorted(
        wide, key=lambda cut: cut.recomputed_elements + 2 * sample_bytes(cut.run.result)
    )


def _make_strip_schedules(run: Cascade, limit: int) -> list[TileSchedule]:
    """Return the cuts of a run into rows and columns with which least is computed again, for parts of the limit."""
    across = run.along_columns
    if across is None:
        return []
    strips = [tiles for count in _STRIP_COUNTS if (tiles := _make_tiles(across, count)) is not None]
    rows = [tiles for count in (1, *_TILE_COUNTS) if (tiles := _make_tiles(run, count)) is not None]
    every = sorted(
        (TileSchedule(run, *both) for both in itertools.product(rows, strips)),
        key=lambda cut: cut.recomputed_elements,
    )
    best = (
        next((cut for cut in every if cut.peak_bytes <= part * limit), None)
        for part in _LIMIT_FRACTIONS
    )
    return list(dict.fromkeys(cut for cut in best if cut is not None))


def _make_row_schedule(run: Cascade, count: int) -> TileSchedule | None:
    """Return the run in `count` tiles; None where they would be too thin."""
    tiles = _make_tiles(run, count)
    return None if tiles is None else TileSchedule(run, tiles)


def _make_tiles(run: Cascade, count: int) -> tuple[Tile, ...] | None:
    """Return `count` tiles of a run; None where they would be too thin."""
    whole = axis_length(run.result, run.axis)
    if whole < count:
        return None
    bounds = [
        whole * i // count for i in range(count + 1)
    ]  # no tile is much thinner than the others
    tiles = [run.tile(part) for part in itertools.pairwise(bounds)]
    return None if None in tiles else tuple(tile for tile in tiles if tile is not None)
