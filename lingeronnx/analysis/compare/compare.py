"""Two models compared tensor by tensor, and the files that tell of it: `compare`.

`compare_per_layer_out.txt` and `.csv` (columns as those who know such tables expect, the csv with
more behind them), `abnormal_layer_advisor.txt` and `profiler.html`. What is wrong is `advice`'s to
say.
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
from ...files import created_folder, write_text
from ...graph import ir
from ...run.cluster import map_jobs
from ...run.data import Batch, Progress
from ..latency import cycles_of_nodes
from .advice import diagnose
from .comparison import COLUMNS, CSV_ONLY_COLUMNS, Comparison, format_number
from .input_layout import check_input_layout
from .join import PartialJoin, TensorJoin, iter_batches
from .option_trials import rank_findings, try_options
from .page import render_comparison_page
from .sources import DumpSource, TensorSource, open_source_pair

__all__ = ["Comparison", "compare", "write_comparison"]

_MAX_EXAMINED_SAMPLES = 16  # samples to look closer with
_MAX_KEPT_SAMPLES = 64  # samples that options are tried on, and first layers asked with


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

    float_model, quant_model : paths, graphs or sessions, float or integer; a `QuantizedModel`; the
    folder of a dump;
        or a `TensorSource`. data : as everywhere. out : a folder for the files, see
        `write_comparison`. state : {output: input} fed back from call to call; an item of the data
        is a call then. workers, cluster : where the batches are computed, see `run.cluster.spread`;
        the result is the same to the last bit.
    Raises DataError where the data do not fit or the models have nothing in common, ConfigError for
    wrong settings.
    """
    base, other = open_source_pair(float_model, quant_model)
    ordered = state is not None or any(isinstance(side, DumpSource) for side in (base, other))
    if ordered and (workers is not None or cluster is not None):
        raise ConfigError(
            "with state, and with a dump, samples follow one another: leave workers and cluster out"
        )
    tensor_join = TensorJoin(base, other, state=state)
    few: dict[str, np.ndarray] = {}

    def iter_recorded_batches() -> Iterator[Batch]:
        for feeds, labels in iter_batches(
            list(base.inputs), data, tensor_join, state, batch, limit
        ):
            _keep_first_samples(few, feeds, single=ordered)
            yield feeds, labels

    def report_progress() -> None:
        if progress is not None:
            progress("comparing", tensor_join.samples, None)

    if ordered:
        for item in iter_recorded_batches():
            tensor_join.add(*item)
            report_progress()
    else:
        for part in map_jobs(_JoinJob(base, other), iter_recorded_batches(), workers, cluster):
            tensor_join.merge(part)
            report_progress()
    result = _build_comparison(
        tensor_join, few, ordered, (_model_name(float_model), _model_name(quant_model))
    )
    if out is not None:
        write_comparison(result, out)
    return result


def _build_comparison(
    tensor_join: TensorJoin, few: Mapping[str, np.ndarray], ordered: bool, names: tuple[str, str]
) -> Comparison:
    """Return what was found, with options tried on `few` samples.

    Ordered : they are calls in turn, none is tried.
    """
    closer = {
        name: array[:_MAX_EXAMINED_SAMPLES] if array.ndim else array for name, array in few.items()
    }
    answers = (
        {}
        if ordered
        else {
            spec.name: check_input_layout(tensor_join.base, spec.name, few)
            for spec in tensor_join.base.inputs
        }
    )
    findings = diagnose(tensor_join, closer, answers)
    options = None if ordered else try_options(tensor_join, findings, few)
    return Comparison(
        tensor_join,
        rank_findings(findings, options),
        names,
        accuracy=tensor_join.accuracy,
        outputs=tensor_join.outputs,
        cycles=cycles_of_nodes(
            tensor_join.other.graph, {row.nodes[1] for row in tensor_join.rows.values()}
        ),
        weight_bits=_weight_bits(tensor_join.other.graph),
        option_results=options,
        notes=[said.undecided for said in answers.values() if said.undecided],
    )


def _weight_bits(graph: ir.Model | None) -> dict[str, int]:
    """Return {node: bits of its weights} of an integer graph; nothing where all have 8."""
    found = (
        {}
        if graph is None
        else {str(node.name): ir.get_attr(node, "parameter_bits") for node in graph.graph}
    )
    known = {name: int(bits) for name, bits in found.items() if isinstance(bits, int)}
    return known if set(known.values()) - {8} else {}


@dataclass(frozen=True)
class _JoinJob:
    """The work of one batch, for whoever does it."""

    base: TensorSource
    other: TensorSource

    def start(self) -> Callable[[Batch], PartialJoin]:
        """Return what joins both on one batch."""
        return self._join

    def _join(self, item: Batch) -> PartialJoin:
        one = TensorJoin(self.base, self.other)
        one.add(*item)
        return one.part


def _keep_first_samples(
    few: dict[str, np.ndarray], feeds: Mapping[str, np.ndarray], single: bool
) -> None:
    """Add samples of a batch to `few`, as far as `_MAX_KEPT_SAMPLES` of them.

    Of calls in turn those of the first alone.
    """
    for name, array in feeds.items():
        if name not in few or not array.ndim:
            few.setdefault(name, array[:_MAX_KEPT_SAMPLES] if array.ndim else array)
        elif (
            not single
            and len(few[name]) < _MAX_KEPT_SAMPLES
            and few[name].shape[1:] == array.shape[1:]
        ):
            few[name] = np.concatenate([few[name], array[: _MAX_KEPT_SAMPLES - len(few[name])]])


def _model_name(model: object) -> str:
    return Path(model).name if isinstance(model, str | os.PathLike) else "model"


def write_comparison(comparison: Comparison, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the four files into `folder`, which is made where need be, and return their paths.

    Raises ConfigError where that cannot be written.
    """
    target = Path(folder)
    texts = {
        "compare_per_layer_out.txt": _format_table(comparison),
        "compare_per_layer_out.csv": _format_csv(comparison),
        "abnormal_layer_advisor.txt": comparison.format_advice(),
        "profiler.html": render_comparison_page(comparison),
    }
    with created_folder(target, parents=True):
        for name, text in texts.items():
            write_text(target / name, text)
    return [target / name for name in texts]


def _format_table(comparison: Comparison) -> str:
    names = (*COLUMNS, *comparison.width_columns)
    rows = [names, *([_format_cell(cells[name]) for name in names] for cells in comparison.table())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    return "".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() + "\n"
        for row in rows
    )


def _format_csv(comparison: Comparison) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = (*COLUMNS, *CSV_ONLY_COLUMNS, *comparison.width_columns)
    writer.writerow(names)
    writer.writerows(
        [_format_csv_cell(cells[name]) for name in names] for cells in comparison.table()
    )
    return out.getvalue()


def _format_cell(value: object) -> str:
    if value is None:
        return "-"
    return format_number(value) if isinstance(value, float) else str(value).replace(" ", "")


def _format_csv_cell(value: object) -> object:
    """Return a cell of the csv: floats so that they read back as they are."""
    if isinstance(value, float):
        return repr(float(value))
    return "" if value is None else "x".join(map(str, value)) if isinstance(value, list) else value
