"""Two models compared tensor by tensor, and the files that tell of it: `compare`.

`compare_per_layer_out.txt` and `.csv` (columns as those who know such tables expect, the csv with more behind them),
`abnormal_layer_advisor.txt` and `profiler.html`. What is wrong is `advice`'s to say.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import ConfigError
from ...files import making, write_text
from ...run.cluster import spread
from ...run.data import Batch, Progress
from ..latency import cycles_of_nodes
from .advice import advise
from .comparison import COLUMNS, MORE_COLUMNS, Comparison, number
from .join import Join, JoinedPart, batches
from .page import page
from .sources import DumpSource, TensorSource, source

__all__ = ["Comparison", "compare", "write"]

_CLOSER = 16  # samples to look closer with


def compare(
    float_model: object,
    quant_model: object,
    data: object,
    out: str | os.PathLike[str] | None = None,
    *,
    state: Mapping[str, str] | None = None,
    batch: int | None = None,
    limit: int | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models tensor by tensor in one pass over `data`, and say what is wrong with the second.

    float_model, quant_model : paths, graphs or sessions, float or integer; a `QuantizedModel`; the folder of a dump;
        or a `TensorSource`. data : as everywhere. out : a folder for the files, see `write`. state : {output:
        input} fed back from call to call; an item of the data is a call then. workers, cluster : where the batches are
        computed, see `run.cluster.spread`; the result is the same to the last bit.
    Raises DataError where the data do not fit or the models have nothing in common, ConfigError for wrong settings.
    """
    base, other = source(float_model), source(quant_model)
    ordered = state is not None or any(isinstance(side, DumpSource) for side in (base, other))
    if ordered and (workers is not None or cluster is not None):
        raise ConfigError("with state, and with a dump, samples follow one another: leave workers and cluster out")
    tensor_join = Join(base, other, state=state)
    few: dict[str, np.ndarray] = {}

    def noted() -> Iterator[Batch]:
        for feeds, labels in batches(list(base.inputs), data, tensor_join, state, batch, limit):
            few.update({} if few else {n: array[:_CLOSER] if array.ndim else array for n, array in feeds.items()})
            yield feeds, labels

    def tell() -> None:
        if progress is not None:
            progress("comparing", tensor_join.samples, None)

    if ordered:
        for item in noted():
            tensor_join.add(*item)
            tell()
    else:
        for part in spread(_Joining(base, other), noted(), workers, cluster):
            tensor_join.merge(part)
            tell()
    result = Comparison(
        tensor_join,
        advise(tensor_join, few),
        (_name(float_model), _name(quant_model)),
        tensor_join.accuracy,
        tensor_join.outputs,
        cycles_of_nodes(other.graph, {row.nodes[1] for row in tensor_join.rows.values()}),
    )
    if out is not None:
        write(result, out)
    return result


@dataclass(frozen=True)
class _Joining:
    """The work of one batch, for whoever does it."""

    base: TensorSource
    other: TensorSource

    def start(self) -> Callable[[Batch], JoinedPart]:
        """Return what joins both on one batch."""
        return self._join

    def _join(self, item: Batch) -> JoinedPart:
        one = Join(self.base, self.other)
        one.add(*item)
        return one.part


def _name(model: object) -> str:
    return Path(model).name if isinstance(model, str | os.PathLike) else "model"


def write(comparison: Comparison, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the four files into `folder`, which is made where need be, and return their paths.

    Raises ConfigError where that cannot be written.
    """
    target = Path(folder)
    texts = {
        "compare_per_layer_out.txt": _table(comparison),
        "compare_per_layer_out.csv": _csv(comparison),
        "abnormal_layer_advisor.txt": comparison.advice(),
        "profiler.html": page(comparison),
    }
    with making(target, parents=True):
        for name, text in texts.items():
            write_text(target / name, text)
    return [target / name for name in texts]


def _table(comparison: Comparison) -> str:
    rows = [COLUMNS, *([_text(cells[name]) for name in COLUMNS] for cells in comparison.table())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return "".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def _csv(comparison: Comparison) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = (*COLUMNS, *MORE_COLUMNS)
    writer.writerow(names)
    writer.writerows([_exact(cells[name]) for name in names] for cells in comparison.table())
    return out.getvalue()


def _text(value: object) -> str:
    if value is None:
        return "-"
    return number(value) if isinstance(value, float) else str(value).replace(" ", "")


def _exact(value: object) -> object:
    """Return a cell of the csv: floats so that they read back as they are."""
    if isinstance(value, float):
        return repr(float(value))
    return "" if value is None else "x".join(map(str, value)) if isinstance(value, list) else value
