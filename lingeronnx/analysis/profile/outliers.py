"""Which tensors have a range that a few outliers made.

Mean, largest and 0.99 quantile of the absolute values.
    Multiple = Max / Mean        Versu = Max / Dynamic        Dynamic = the 0.99 quantile

all of |x|, over every element of every batch. A scale that covers Max has only 1 / Versu of its
steps for 99 % of the values: above `MAX_RATIO` a row of ``!!!`` follows, and the layer wants
normalising or clamping.

Weights are read whole: their quantile is numpy's, linear between elements. Outputs stream: exact up
to 4096 elements, beyond that to Max / 4096 (`metrics.Histogram`). 0 / 0 counts as 1, so that a
tensor of zeros is no outlier; a NaN or an infinity makes a row of ``!!!``. Knows sessions and
arrays; no torch, no commands.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...files import write_text
from ...graph import ir
from ...plan import Affine
from ...run.data import Data, Progress
from ...run.session import Session
from ..compare.real_values import RealValues
from ..stats.distribution import Distribution
from ..text import format_table

__all__ = [
    "MAX_RATIO",
    "OUTPUT_COLUMNS",
    "WEIGHT_COLUMNS",
    "OutputCollector",
    "OutlierRow",
    "analyse_outputs",
    "iter_constants",
    "format_outlier_table",
    "select_layers",
    "compile_name_filter",
    "compute_outlier_rows",
]

#: The heads of the two tables.
WEIGHT_COLUMNS = ("Layer_name", "Mean", "Max", "Multiple", "Dynamic 0.99", "Versu")
OUTPUT_COLUMNS = (
    "Layer_name",
    "Mean",
    "Max",
    "Multiple(Max/Mean)",
    "Dynamic 0.99",
    "Versu(Max/Dynamic)",
)

#: The largest Versu of a sound layer, and the share of values that Dynamic covers.
MAX_RATIO, QUANTILE = 10.0, 0.99


@dataclass(frozen=True)
class OutlierRow:
    """One tensor: mean, largest and 0.99 quantile of its absolute values."""

    name: str
    mean: float
    max_abs: float
    quantile_99: float

    @property
    def multiple(self) -> float:
        """Return the largest value over the mean."""
        return _ratio(self.max_abs, self.mean)

    @property
    def versu(self) -> float:
        """Return the largest value over the 0.99 quantile."""
        return _ratio(self.max_abs, self.quantile_99)

    @property
    def is_outlier(self) -> bool:
        """Whether the range is an outlier's."""
        return not self.versu <= MAX_RATIO  # also where it is not a number

    def values(self) -> tuple[float, ...]:
        """Return the numbers in the order of the columns."""
        return self.mean, self.max_abs, self.multiple, self.quantile_99, self.versu

    def to_dict(self) -> dict[str, object]:
        """Return the row as JSON-ready values."""
        keys = ("mean", "max", "multiple", "dynamic", "versu")
        return {
            "name": self.name,
            **dict(zip(keys, self.values(), strict=True)),
            "outlier": self.is_outlier,
        }


def _ratio(above: float, below: float) -> float:
    if below == 0:
        return 1.0 if above == 0 else math.inf
    return above / below


def format_outlier_table(rows: Sequence[OutlierRow], head: Sequence[str]) -> str:
    """Return the table as text, framed by ``+---+`` and ``|``, a row of ``!!!`` under each outlier's."""
    lines: list[Sequence[str]] = []
    for row in rows:
        lines.append((row.name, *(f"{value:.6g}" for value in row.values())))
        lines += [("!!!",) * len(head)] if row.is_outlier else []
    return format_table(head, lines)


# ---- weights -----------------------------------------------------------------------------------------------------


def iter_constants(model: ir.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, array) of the initializers of `model` and of the tensors in its Constant nodes."""
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            yield str(name), value.const_value.numpy()
    for node in ir.iter_nodes_recursive(model.graph):
        if node.op_type == "Constant" and not node.domain and "value" in node.attributes:
            yield ir.output_name(node), np.asarray(ir.get_attr(node, "value"))


def compute_outlier_rows(
    tensors: Mapping[str, Any] | Iterator[tuple[str, Any]],
) -> list[OutlierRow]:
    """Return a row for each tensor of numbers, counters such as `num_batches_tracked` too.

    Empty ones have none.
    """
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    arrays = ((name, np.asarray(array)) for name, array in pairs)
    return [_compute_row(name, array) for name, array in arrays if _is_number(array) and array.size]


def _is_number(array: np.ndarray) -> bool:
    return (
        array.dtype.kind in "fiub"
        or array.dtype.name in ("bfloat16",)
        or "float8" in array.dtype.name
    )


def _compute_row(name: str, array: np.ndarray) -> OutlierRow:
    sizes = np.abs(array.reshape(-1).astype(np.float64))
    if not np.isfinite(sizes).all():
        return OutlierRow(name, math.nan, float(sizes.max()), math.nan)
    return OutlierRow(
        name, float(sizes.mean()), float(sizes.max()), float(np.quantile(sizes, QUANTILE))
    )


# ---- outputs -----------------------------------------------------------------------------------------------------


class OutputCollector:
    """The outputs of a model's layers over any number of calls, in constant memory.

    layers : {tensor: the layer's name in the table}, or None: every tensor under its own name.
    session : whose tensors they are; None for tensors that are real values.
    """

    def __init__(
        self, layers: Mapping[str, str] | None = None, session: Session | None = None
    ) -> None:
        self.layers = layers
        self._real = None if session is None else RealValues(session)
        self._seen: dict[str, Distribution] = {}

    def add(self, name: str, array: np.ndarray, qparams: Affine | None) -> None:
        """Take in one batch of tensor `name`, as `Session.tensors` yields it."""
        layer = name if self.layers is None else self.layers.get(name)
        if layer is None or array.dtype.kind not in "fiub" or not array.size:
            return
        real = array if self._real is None else self._real(name, array, qparams)
        self._seen.setdefault(layer, Distribution()).add(np.abs(real.astype(np.float64)))

    def rows(self) -> list[OutlierRow]:
        """Return a row for each layer seen, in the order in which they were first seen."""
        return [
            _row_from_distribution(name, distribution) for name, distribution in self._seen.items()
        ]


def _row_from_distribution(name: str, distribution: Distribution) -> OutlierRow:
    if distribution.skipped or not distribution.count:
        return OutlierRow(name, math.nan, math.inf if distribution.skipped else math.nan, math.nan)
    return OutlierRow(
        name, distribution.mean, distribution.high, distribution.histogram.quantile(QUANTILE)
    )


def compile_name_filter(pattern: str | None, root: str = "") -> Callable[[str], bool]:
    """Return what says whether `pattern` is found in a name behind `root`.

    ConfigError for no regular expression.
    """
    try:
        wanted = re.compile(pattern or "")
    except re.error as error:
        raise ConfigError(
            f"'{pattern}' is no regular expression ({error}); a backslash before . * + ? ( ) [ ] "
            "takes it as it is"
        ) from error
    return lambda name: wanted.search(root + name) is not None


def select_layers(session: Session, pattern: str | None = None, root: str = "") -> dict[str, str]:
    """Return {tensor: layer} of the nodes in whose name, `root` before it, a regular expression is found; None: all.

    A layer is called `root` and its node's name; further outputs of a node by their tensors. Raises
    ConfigError for a pattern that is none, and where nothing has such a name.
    """
    wanted = compile_name_filter(pattern, root)
    layer_of: dict[str, str] = {}
    for node in session.model.graph:
        if node.op_type == "Constant" and not node.domain:
            continue
        for place, value in enumerate(node.outputs):
            layer = str(value.name if place else node.name)
            if value.name and wanted(layer):
                layer_of[str(value.name)] = root + layer
    if not layer_of:
        raise ConfigError(
            f"no layer has a name in which '{pattern}' is found; layers are called by their nodes"
        )
    return layer_of


def analyse_outputs(
    model: ir.ModelLike | Session,
    data: object,
    *,
    match: str | None = None,
    log: str | os.PathLike[str] | None = None,
    batch: int = 64,
    limit: int | None = None,
    progress: Progress | None = None,
) -> list[OutlierRow]:
    """Run a model, integer or float, on data and return a row for each layer's output.

    match : a regular expression that is found in the names of the layers wanted. log : where to
    write the table. Raises DataError and ConfigError.
    """
    session = model if isinstance(model, Session) else Session(model)
    layers = select_layers(session, match)
    outputs = OutputCollector(layers, session)
    source = Data(data, session.inputs, limit=limit, what="data")
    done = 0
    for feeds, _ in source.batches(batch):
        for name, array, q in session.tensors(feeds, list(layers)):
            outputs.add(name, array, q)
        done += min((len(array) for array in feeds.values()), default=1)
        if progress is not None:
            progress("analysing", done, None)
    rows = outputs.rows()
    if log is not None:
        write_text(log, format_outlier_table(rows, OUTPUT_COLUMNS))
    return rows
