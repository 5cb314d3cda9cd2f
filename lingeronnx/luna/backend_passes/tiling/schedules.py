"""Tile schedules: candidates of a cascade with its tiles, and the graph that results from one."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ....ir import ir
from ....targets._target import AppliedRewrite
from ..packer_view import PackerGraphView
from .cascades import Cascade, Tile, axis_length, find_cascades, sample_bytes
from .emit import emit_tiles
from .output_channel_splits import split_oversized_convs

__all__ = ["TileSchedule", "Tiling", "apply_schedule", "iterate_schedules"]

#: Tile counts to try, in ascending order, since every tile recomputes its halo.
_TILE_COUNTS = (2, 4, 8, 16, 32)
_STRIP_COUNTS = (2, 4, 8, 16)  # strips of columns, if rows alone do not suffice
#: Fractions of the limit to try, since a plan needs more than the data of one layer.
_LIMIT_FRACTIONS = (1.0, 0.75, 0.5)


@dataclass(frozen=True, eq=False)
class Tiling:
    """The tiles of a cascade along one axis, in order; rows are columns for axis 3."""

    tiles: tuple[Tile, ...]

    @cached_property
    def max_rows(self) -> Mapping[ir.Value, int]:
        """Rows of each tensor in the tile that holds most of it."""
        return self._combine_rows(max)

    @cached_property
    def total_rows(self) -> Mapping[ir.Value, int]:
        """Rows of each tensor in all tiles together; those that tiles share count in each."""
        return self._combine_rows(operator.add)

    def _combine_rows(self, combine: Callable[[int, int], int]) -> dict[ir.Value, int]:
        """Return the rows of each tensor, those of several tiles combined by `combine`."""
        counts: dict[ir.Value, int] = {}
        for tile in self.tiles:
            for value, (start, end) in tile.held_rows.items():
                counts[value] = combine(counts.get(value, 0), end - start)
        return counts


@dataclass(frozen=True, eq=False)
class TileSchedule:
    """A cascade and its tiles.

    Attributes
    ----------
    rows
        Tiles of rows.
    strips
        Strips of columns, each of which is split into the tiles; None if tiles span all columns.
    """

    run: Cascade
    rows: Tiling
    strips: Tiling | None = None

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes that inputs and outputs of one layer need together in its largest tile.

        Tensors that are not tiled, and results of other tiles, are not counted.
        """
        columns = None if self.strips is None else self.strips.max_rows
        tensor_bytes = self._measure_tensors(self.rows.max_rows, columns)
        peak_bytes = 0
        for layer in self.run.layers:
            layer_bytes = sum(tensor_bytes[value] for value in {*layer.inputs, layer.output})
            peak_bytes = max(peak_bytes, layer_bytes)
        return peak_bytes

    @cached_property
    def recomputed_elements(self) -> int:
        """Number of elements that overlapping tiles compute again, over all layers."""
        columns = None if self.strips is None else self.strips.total_rows
        tensor_bytes = self._measure_tensors(self.rows.total_rows, columns)
        sizes = self.run.tensor_sizes
        return sum(
            tensor_bytes[layer.output] - sizes[layer.output].size_bytes for layer in self.run.layers
        )

    def describe(self) -> AppliedRewrite:
        """Describe layers, tiles and strips for the report.

        From 0.5 % on, the recomputed fraction is part of the cost; otherwise the cost is "exact".
        """
        names = [str(node.name) for node in self.run.nodes]
        layers = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} layers)"
        max_rows = self.rows.max_rows[self.run.result]
        tiles = f"{len(self.rows.tiles)} tiles of {max_rows} rows"
        if self.strips is not None:
            max_columns = self.strips.max_rows[self.run.result]
            tiles = f"{len(self.strips.tiles)} strips of {max_columns} columns, each in {tiles}"
        total = sum(sample_bytes(node.outputs[0]) for node in self.run.nodes)
        recomputed = self.recomputed_elements / total
        cost = "exact"
        if recomputed >= 0.005:
            unit = "elements" if self.strips else "rows"
            cost = f"exact; overlapping tiles recompute {100 * recomputed:.0f} % of the {unit}"
        return AppliedRewrite(
            names[0], f"{layers} tiled into {tiles} to fit in shared memory", cost
        )

    def _measure_tensors(
        self, rows: Mapping[ir.Value, int], columns: Mapping[ir.Value, int] | None
    ) -> dict[ir.Value, int]:
        """Return the bytes of each tensor with the given rows and columns, None for all columns."""
        sizes = self.run.tensor_sizes
        tensor_bytes = {value: sizes[value].row_bytes * count for value, count in rows.items()}
        if columns is None:
            return tensor_bytes
        return {
            value: size_bytes // sizes[value].columns * columns[value]
            for value, size_bytes in tensor_bytes.items()
        }


def apply_schedule(view: PackerGraphView, schedule: TileSchedule) -> PackerGraphView:
    """Return a view of a copy of the graph in which tiles replace the schedule's cascade.

    With strips, convolutions that the packer would split are split by outputs, then the cascade by
    columns and each strip by rows.
    """
    graph = view.graph.clone()
    clones = dict(zip(view.graph.graph, graph.graph, strict=True))
    run = Cascade(tuple(clones[node] for node in schedule.run.nodes))
    strips = [run]
    if schedule.strips is not None:
        columns_run = replace(split_oversized_convs(graph, run, view), axis=3)
        tiles = _make_tiles(columns_run, len(schedule.strips.tiles)) or ()
        strips = emit_tiles(graph, columns_run, tiles)
    tile_count = len(schedule.rows.tiles)
    if tile_count > 1:
        for strip in strips:
            emit_tiles(graph, strip, _make_tiles(strip, tile_count) or ())
    return view.for_graph(graph)


def iterate_schedules(
    graph: ir.Model,
    start: int,
    required_node: ir.Node,
    limit_bytes: int,
    external_bytes: int = 0,
) -> Iterator[TileSchedule]:
    """Yield the schedules worth trying that begin with node `start` and contain `required_node`.

    The cascade that ends at a small result comes first, then long ones; of each, few tiles first,
    if a layer of a tile needs `limit_bytes` at most. Cascades that need more with any number of row
    tiles come last, in tiles of rows and columns, if twice the result fits in `external_bytes`;
    those come first that recompute and copy least.
    """
    runs = find_cascades(list(graph.graph), start, required_node)
    runs_with_small_result = [run for run in runs if 3 * sample_bytes(run.result) <= limit_bytes]
    first_runs = runs_with_small_result[:1]
    strip_schedules = []
    for run in [*first_runs, *(run for run in reversed(runs) if run not in first_runs)]:
        row_tilings = _make_tilings(run, _TILE_COUNTS)
        schedules = [TileSchedule(run, rows) for rows in row_tilings]
        schedules = [schedule for schedule in schedules if schedule.peak_bytes <= limit_bytes]
        yield from schedules
        if not schedules and 2 * sample_bytes(run.result) <= external_bytes:
            strip_schedules += _make_strip_schedules(run, row_tilings, limit_bytes)
    yield from sorted(
        strip_schedules,
        key=lambda schedule: schedule.recomputed_elements + 2 * sample_bytes(schedule.run.result),
    )


def _make_strip_schedules(
    run: Cascade, row_tilings: Sequence[Tiling], limit_bytes: int
) -> list[TileSchedule]:
    """Return the schedules in rows and columns that recompute least, for fractions of the limit.

    One per fraction of `limit_bytes` that any meets, without repeats; empty if the cascade cannot
    be split by columns. `row_tilings` are the tilings of `run` into several tiles of rows.
    """
    columns_run = run.along_columns
    if columns_run is None:
        return []
    rows = [*_make_tilings(run, (1,)), *row_tilings]
    pairs = itertools.product(rows, _make_tilings(columns_run, _STRIP_COUNTS))
    schedules = [TileSchedule(run, *pair) for pair in pairs]
    schedules.sort(key=lambda schedule: schedule.recomputed_elements)
    best: dict[TileSchedule, None] = {}  # an ordered set
    for fraction in _LIMIT_FRACTIONS:
        fitting = (s for s in schedules if s.peak_bytes <= fraction * limit_bytes)
        schedule = next(fitting, None)
        if schedule is not None:
            best[schedule] = None
    return list(best)


def _make_tilings(run: Cascade, counts: Iterable[int]) -> list[Tiling]:
    """Return the tilings of cascade `run` into each number of tiles that is possible."""
    splits = [_make_tiles(run, count) for count in counts]
    return [Tiling(tiles) for tiles in splits if tiles is not None]


def _make_tiles(run: Cascade, count: int) -> tuple[Tile, ...] | None:
    """Split the result of cascade `run` into `count` tiles that differ by one row at most.

    None if a tile would have no rows, or a window in it only padding.
    """
    length = axis_length(run.result, run.axis)
    if length < count:
        return None
    bounds = [length * i // count for i in range(count + 1)]  # the tiles differ by one row at most
    tiles = []
    for rows in itertools.pairwise(bounds):
        tile = run.tile(rows)
        if tile is None:
            return None
        tiles.append(tile)
    return tuple(tiles)
