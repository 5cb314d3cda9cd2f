"""Compare two models tensor by tensor, and write the result to files: `compare`.

The files are `compare_per_layer_out.txt` and `.csv` (with the usual columns of such tables, and
further ones at the end of the csv), `abnormal_layer_advisor.txt` and `profiler.html`. The findings
come from `advice`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...common.errors import ConfigError
from ...common.escaping import format_csv
from ...common.files import check_writable_folder, created_folder, write_text
from ...ir import ir
from ...operators.invalid_models import explain_invalid_models
from ...runtime.cluster import map_jobs
from ...runtime.data import Batch, Progress
from ...runtime.provenance import load_fixed_inputs
from ...runtime.streaming import CallCount
from ..latency import cycles_of_nodes
from .advice import diagnose
from .comparison import COLUMNS, CSV_ONLY_COLUMNS, Comparison, format_number
from .input_layout import check_input_layout
from .join import PartialJoin, TensorJoin, iter_batches
from .option_trials import rank_findings, try_options
from .page import render_comparison_page
from .sources import DumpSource, TensorSource, open_source_pair

__all__ = ["Comparison", "compare", "write_comparison"]

_MAX_EXAMINED_SAMPLES = 16  # samples used to examine layers
_MAX_TRIAL_SAMPLES = 64  # samples used to try options and to check the layout of inputs


@explain_invalid_models
def compare(
    float_model: object,
    quant_model: object,
    data: object,
    out: str | os.PathLike[str] | None = None,
    *,
    state: Mapping[str, str] | None = None,
    calls: CallCount | None = None,
    batch: int | None = None,
    limit: int | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models tensor by tensor in one pass over `data`, and diagnose the second model.

    Parameters
    ----------
    float_model, quant_model
        Paths, graphs or sessions, float or integer; a `QuantizedModel`; the folder of a dump; or a
        `TensorSource`.
    data
        Input data, in any form that other commands take.
    out
        Folder for the files of `write_comparison`; None writes none.
    state
        Inputs by the outputs that are fed back to them; an item of the data is then a call.
    calls
        With `state`: number of consecutive calls in an item of the data, or "all" for one sample
        per call; None: one. An item of several calls is a sequence that begins with zero states.
    batch
        Samples run together; None: as many as fit in memory.
    limit
        Largest number of samples.
    workers, cluster
        Number of processes, and address of a Dask cluster, that compute the batches; None: this
        process. The result is the same to the last bit.
    progress
        Progress callback.

    Raises
    ------
    DataError
        If the data do not fit or the models have no tensor in common.
    ConfigError
        If settings are wrong, such as workers with `state` or a dump, or `out` cannot be written.
    """
    if out is not None:
        check_writable_folder(out)
    base, other = open_source_pair(float_model, quant_model)
    ordered = state is not None or isinstance(base, DumpSource) or isinstance(other, DumpSource)
    _check_order(ordered, workers, cluster)
    tensor_join = TensorJoin(base, other, state=state)
    trial_feeds: dict[str, np.ndarray] = {}

    def iter_recorded_batches() -> Iterator[Batch]:
        """Yield the batches of the data, and add their first samples to `trial_feeds`.

        Options are tried on these samples after the comparison.
        """
        specs = list(base.inputs)
        for feeds, labels in iter_batches(specs, data, tensor_join, state, calls, batch, limit):
            _add_trial_samples(trial_feeds, feeds, first_call_only=ordered)
            yield feeds, labels

    def report_progress() -> None:
        """Report the number of samples so far to the `progress` callback, if there is one."""
        if progress is not None:
            progress("comparing", tensor_join.samples, None)

    if ordered:
        for feeds, labels in iter_recorded_batches():
            tensor_join.add(feeds, labels)
            report_progress()
    else:
        for result in map_jobs(_JoinJob(base, other), iter_recorded_batches(), workers, cluster):
            tensor_join.merge(result)
            report_progress()
    names = (_model_name(float_model), _model_name(quant_model))
    comparison = _build_comparison(tensor_join, trial_feeds, ordered, names)
    if out is not None:
        write_comparison(comparison, out)
    return comparison


def _check_order(ordered: bool, workers: int | None, cluster: str | None) -> None:
    """Raise ConfigError if batches that must be processed in order are to be distributed."""
    if ordered and (workers is not None or cluster is not None):
        raise ConfigError(
            "with state, and with a dump, samples must be processed in order: omit workers and "
            "cluster"
        )


def _build_comparison(
    tensor_join: TensorJoin,
    trial_feeds: Mapping[str, np.ndarray],
    ordered: bool,
    names: tuple[str, str],
) -> Comparison:
    """Diagnose the joined tensors, and try the findings' options on the samples `trial_feeds`.

    Layers are examined on the first 16 of these. With `ordered`, samples are consecutive calls, so
    neither the input layout is checked nor options are tried. `names` are the titles of both
    models.
    """
    examined_feeds = {
        name: array[:_MAX_EXAMINED_SAMPLES] if array.ndim else array
        for name, array in trial_feeds.items()
    }
    layout_checks = {}
    if not ordered:
        for spec in tensor_join.base.inputs:
            layout_checks[spec.name] = check_input_layout(tensor_join.base, spec.name, trial_feeds)
    findings = diagnose(tensor_join, examined_feeds, layout_checks)
    options = None if ordered else try_options(tensor_join, findings, trial_feeds)
    other_graph = tensor_join.other.graph
    return Comparison(
        tensor_join,
        rank_findings(findings, options),
        names,
        accuracy=tensor_join.accuracy,
        outputs=tensor_join.outputs,
        cycles=cycles_of_nodes(other_graph, {row.nodes[1] for row in tensor_join.rows.values()}),
        weight_bits=_weight_bits(other_graph),
        option_results=options,
        notes=[check.undecided for check in layout_checks.values() if check.undecided],
        warnings=tensor_join.warnings,
        fixed_inputs=load_fixed_inputs(other_graph) if other_graph is not None else {},
    )


def _weight_bits(graph: ir.Model | None) -> dict[str, int]:
    """Return {node: bits of its weights} of an integer graph; empty if all have 8 bits.

    Nodes without the attribute `parameter_bits` are left out. Empty if `graph` is None.
    """
    bits_by_node: dict[str, int] = {}
    for node in () if graph is None else graph.graph:
        bits = ir.get_attr(node, "parameter_bits")
        if isinstance(bits, int):
            bits_by_node[str(node.name)] = int(bits)
    return bits_by_node if set(bits_by_node.values()) - {8} else {}


@dataclass(frozen=True)
class _JoinJob:
    """Cluster job that joins both sources on one batch."""

    base: TensorSource
    other: TensorSource

    def start(self) -> Callable[[Batch], PartialJoin]:
        """Return the function that joins both sources on one batch (feeds, labels)."""
        return self._join

    def _join(self, batch: Batch) -> PartialJoin:
        """Run one batch (feeds, labels) through both sources and return its measures alone."""
        tensor_join = TensorJoin(self.base, self.other)
        tensor_join.add(*batch)
        return tensor_join.partial_result


def _add_trial_samples(
    trial_feeds: dict[str, np.ndarray], feeds: Mapping[str, np.ndarray], first_call_only: bool
) -> None:
    """Add the first samples of a batch to `trial_feeds`, in place, up to _MAX_TRIAL_SAMPLES each.

    With `first_call_only`, an input that is in `trial_feeds` already gets no more samples. Scalars
    keep their first value, and samples whose shape differs from those so far are left out.
    """
    for name, array in feeds.items():
        if name not in trial_feeds or not array.ndim:
            trial_feeds.setdefault(name, array[:_MAX_TRIAL_SAMPLES] if array.ndim else array)
            continue
        samples = trial_feeds[name]
        missing = _MAX_TRIAL_SAMPLES - len(samples)
        if not first_call_only and missing > 0 and samples.shape[1:] == array.shape[1:]:
            trial_feeds[name] = np.concatenate([samples, array[:missing]])


def _model_name(model: object) -> str:
    """Return the file name of a path, or "model" for an object in memory."""
    return Path(model).name if isinstance(model, str | os.PathLike) else "model"


def write_comparison(comparison: Comparison, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the four files into `folder`, which is created if necessary, and return their paths.

    They are the table of all tensors as text and as CSV, the advisor's text, and the page
    profiler.html.

    Raises
    ------
    ConfigError
        If the folder cannot be written.
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
    """Format the comparison as a left-aligned text table: names of columns, then a row per tensor.

    The columns that are only in the CSV file (local errors, saturation ...) are left out.
    """
    names = (*COLUMNS, *comparison.width_columns)
    rows = [list(names)]
    for cells in comparison.to_rows():
        rows.append([_format_cell(cells[name]) for name in names])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip() + "\n")
    return "".join(lines)


def _format_csv(comparison: Comparison) -> str:
    """Format the comparison as CSV: names of all columns, then rows; lists are joined by "x"."""
    names = (*COLUMNS, *CSV_ONLY_COLUMNS, *comparison.width_columns)
    rows: list[list[object]] = [list(names)]
    for cells in comparison.to_rows():
        rows.append([_join_list(cells[name]) for name in names])
    return format_csv(rows)


def _format_cell(value: object) -> str:
    """Format a cell of the text table, without spaces; None is "-".

    Floats have six significant digits.
    """
    if value is None:
        return "-"
    return format_number(value) if isinstance(value, float) else str(value).replace(" ", "")


def _join_list(value: object) -> object:
    """Join the items of a list by "x", such as a shape to "1x3x8x8".

    Return other values unchanged.
    """
    return "x".join(map(str, value)) if isinstance(value, list) else value
