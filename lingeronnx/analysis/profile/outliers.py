"""Tensors whose range is set by a few outliers.

The table has the mean, the largest and the 0.99 quantile of the absolute values:

    Multiple = Max / Mean        Versu = Max / Dynamic        Dynamic = the 0.99 quantile

all of |x|, over every element of every batch. A scale that covers Max leaves only 1 / Versu of its
steps for 99 % of the values. Above `MAX_RATIO` a row of ``!!!`` follows; the layer then needs
normalization or clamping.

Weights are read completely: their quantile is numpy's, with linear interpolation. Outputs are
streamed: the quantile is exact up to 4096 elements and accurate to Max / 4096 beyond that
(`stats.histogram`). 0 / 0 counts as 1, so a tensor of zeros is not an outlier; a NaN or an infinity
adds a row of ``!!!``. This module knows sessions and arrays, but neither torch nor commands.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.deprecation import keep_old_members
from ...common.errors import ConfigError
from ...common.files import write_text
from ...common.text import format_table
from ...ir import ir
from ...ir.plan import Affine
from ...runtime.data import Data, Progress
from ...runtime.provenance import load_fixed_arrays
from ...runtime.session import Session
from ..compare.real_values import RealValues
from ..stats.distribution import Distribution

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

#: Column heads of the tables of weights and of outputs.
WEIGHT_COLUMNS = ("Layer_name", "Mean", "Max", "Multiple", "Dynamic 0.99", "Versu")
OUTPUT_COLUMNS = (
    "Layer_name",
    "Mean",
    "Max",
    "Multiple(Max/Mean)",
    "Dynamic 0.99",
    "Versu(Max/Dynamic)",
)

#: The largest Versu without a warning, and the quantile shown as Dynamic.
MAX_RATIO, QUANTILE = 10.0, 0.99


@keep_old_members("0.3", largest="max_abs", dynamic="quantile_99", outlier="is_outlier")
@dataclass(frozen=True)
class OutlierRow:
    """Mean, maximum and 0.99 quantile of the absolute values of one tensor."""

    name: str
    mean: float
    max_abs: float
    quantile_99: float

    @property
    def multiple(self) -> float:
        """Largest absolute value divided by the mean of the absolute values; 1 if both are 0."""
        return _ratio(self.max_abs, self.mean)

    @property
    def versu(self) -> float:
        """Largest absolute value divided by the 0.99 quantile of |x|; 1 if both are 0."""
        return _ratio(self.max_abs, self.quantile_99)

    @property
    def is_outlier(self) -> bool:
        """Whether the largest absolute value exceeds 10 times the 0.99 quantile.

        Also true if the ratio is NaN, because a value is not finite.
        """
        return not self.versu <= MAX_RATIO  # true for NaN as well

    def values(self) -> tuple[float, ...]:
        """Return the numbers of the table row, of absolute values |x|.

        They are mean, maximum, maximum / mean, 0.99 quantile, maximum / quantile, in this order.
        """
        return self.mean, self.max_abs, self.multiple, self.quantile_99, self.versu

    def to_dict(self) -> dict[str, object]:
        """Return the row as JSON-ready values.

        Keys are name, mean, max, multiple (max / mean), dynamic (the 0.99 quantile), versu (max /
        dynamic) and outlier (bool).
        """
        keys = ("mean", "max", "multiple", "dynamic", "versu")
        numbers = dict(zip(keys, self.values(), strict=True))
        return {"name": self.name, **numbers, "outlier": self.is_outlier}


def _ratio(numerator: float, denominator: float) -> float:
    """Return `numerator` / `denominator`; 0 / 0 is 1 and anything else / 0 is infinite."""
    if denominator == 0:
        return 1.0 if numerator == 0 else math.inf
    return numerator / denominator


def format_outlier_table(rows: Sequence[OutlierRow], head: Sequence[str]) -> str:
    """Format rows of tensors as a text table with the column heads `head`.

    Numbers have six significant digits. Below each outlier follows a row of ``!!!``.
    """
    lines: list[Sequence[str]] = []
    for row in rows:
        lines.append((row.name, *(f"{value:.6g}" for value in row.values())))
        lines += [("!!!",) * len(head)] if row.is_outlier else []
    return format_table(head, lines)


# ---- weights --------------------------------------------------------------------------------


def iter_constants(model: ir.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, array) of the initializers and Constant nodes of a model, also in subgraphs."""
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            yield str(name), value.const_value.numpy()
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and not node.domain and "value" in node.attributes:
            yield ir.output_name(node), np.asarray(ir.get_attr(node, "value"))


def compute_outlier_rows(
    tensors: Mapping[str, Any] | Iterator[tuple[str, Any]],
) -> list[OutlierRow]:
    """Return a row of mean, maximum and 0.99 quantile of |x| for each tensor, in order.

    `tensors` are (name, array-like) pairs or a mapping. Empty arrays and those without numbers are
    left out; booleans count as numbers.
    """
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    arrays = ((name, np.asarray(array)) for name, array in pairs)
    return [_compute_row(name, array) for name, array in arrays if _is_number(array) and array.size]


def _is_number(array: np.ndarray) -> bool:
    """Whether the type of an array is a number or a boolean; bfloat16 and float8 are numbers."""
    return (
        array.dtype.kind in "fiub"
        or array.dtype.name in ("bfloat16",)
        or "float8" in array.dtype.name
    )


def _compute_row(name: str, array: np.ndarray) -> OutlierRow:
    """Compute mean, maximum and 0.99 quantile of |x| of an array that is not empty.

    If a value is NaN or infinite, mean and quantile are NaN.
    """
    magnitudes = np.abs(array.reshape(-1).astype(np.float64))
    max_abs = float(magnitudes.max())
    if not np.isfinite(magnitudes).all():
        return OutlierRow(name, math.nan, max_abs, math.nan)
    quantile = float(np.quantile(magnitudes, QUANTILE))
    return OutlierRow(name, float(magnitudes.mean()), max_abs, quantile)


# ---- outputs --------------------------------------------------------------------------------


class OutputCollector:
    """Collects the outputs of a model's layers over any number of calls, in constant memory.

    Parameters
    ----------
    layers
        Layer name in the table by tensor, or None for all tensors under their own names.
    session
        Session that the tensors come from; None if they are float values.
    """

    def __init__(
        self, layers: Mapping[str, str] | None = None, session: Session | None = None
    ) -> None:
        """Start without values.

        `layers` maps tensors to layer names of the table; None takes all tensors under their own
        names. `session` is where the tensors come from; None if they are float values.
        """
        self.layers = layers
        self._real = None if session is None else RealValues(session)
        self._distributions: dict[str, Distribution] = {}

    def add(self, name: str, array: np.ndarray, qparams: Affine | None) -> None:
        """Add the absolute real values of a batch of tensor `name` to its layer's distribution.

        `array` is as the session stores it, with quantization parameters or None for float values;
        it is converted to real values. Tensors that `layers` does not map to a layer, arrays
        without numbers and empty ones are left out. If `layers` is None, each tensor is a layer of
        its name.
        """
        layer = name if self.layers is None else self.layers.get(name)
        if layer is None or array.dtype.kind not in "fiub" or not array.size:
            return
        real = array if self._real is None else self._real(name, array, qparams)
        distribution = self._distributions.setdefault(layer, Distribution())
        distribution.add(np.abs(real.astype(np.float64)))

    def rows(self) -> list[OutlierRow]:
        """Return mean, maximum and 0.99 quantile of |x| of each layer, first seen first."""
        return [
            _row_from_distribution(name, distribution)
            for name, distribution in self._distributions.items()
        ]


def _row_from_distribution(name: str, distribution: Distribution) -> OutlierRow:
    """Create the table row (mean, maximum, 0.99 quantile) of a distribution of absolute values.

    If values were skipped (NaN or infinite), mean and quantile are NaN and the maximum is infinite;
    without any values all three are NaN.
    """
    if distribution.skipped:
        return OutlierRow(name, math.nan, math.inf, math.nan)
    if not distribution.count:
        return OutlierRow(name, math.nan, math.nan, math.nan)
    quantile = distribution.histogram.quantile(QUANTILE)
    return OutlierRow(name, distribution.mean, distribution.high, quantile)


def compile_name_filter(pattern: str | None, root: str = "") -> Callable[[str], bool]:
    """Return a predicate: whether the regular expression `pattern` is found in `root` + name.

    A pattern of None matches every name.

    Raises
    ------
    ConfigError
        If the pattern is not a regular expression.
    """
    try:
        regex = re.compile(pattern or "")
    except re.error as error:
        raise ConfigError(
            f"'{pattern}' is not a regular expression ({error}); put a backslash before "
            ". * + ? ( ) [ ] to match them literally"
        ) from error
    return lambda name: regex.search(root + name) is not None


def select_layers(session: Session, pattern: str | None = None, root: str = "") -> dict[str, str]:
    """Return {tensor: layer name} of the node outputs whose layer names match a regular expression.

    A layer is named `root` + the name of its node; further outputs of a node are named by their
    tensors. Constant nodes are left out.

    Parameters
    ----------
    session
        The model.
    pattern
        Regular expression searched in `root` + layer name; None selects all layers.
    root
        Prefix of layer names.

    Raises
    ------
    ConfigError
        If the pattern is not a regular expression or matches no layer.
    """
    matches = compile_name_filter(pattern, root)
    layer_by_tensor: dict[str, str] = {}
    for node in session.model.graph:
        if node.op_type == "Constant" and not node.domain:
            continue
        for index, value in enumerate(node.outputs):
            layer = str(value.name if index else node.name)
            if value.name and matches(layer):
                layer_by_tensor[str(value.name)] = root + layer
    if not layer_by_tensor:
        raise ConfigError(
            f"no layer has a name that matches '{pattern}'; layers are named by their nodes"
        )
    return layer_by_tensor


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
    """Run an integer or float model on data and return an outlier row for each layer's output.

    A row has mean, maximum and 0.99 quantile of the absolute real values over all samples. The
    table is also written to `log` if it is given.

    Parameters
    ----------
    model
        The model.
    data
        Input data, in any form that other commands take.
    match
        Regular expression to select layers by name.
    log
        File for the table; None writes none.
    batch
        Largest batch size.
    limit
        Largest number of samples.
    progress
        Progress callback.

    Raises
    ------
    DataError, ConfigError
        If the data do not fit the model, or if `match` is invalid or matches nothing.
    """
    session = model if isinstance(model, Session) else Session(model)
    layers = select_layers(session, match)
    collector = OutputCollector(layers, session)
    fixed = load_fixed_arrays(session.model)
    source = Data(data, session.inputs, limit=limit, label="data", fixed=fixed)
    sample_count = 0
    for feeds, _ in source.batches(batch):
        for name, array, q in session.tensors(feeds, list(layers)):
            collector.add(name, array, q)
        sample_count += min((len(array) for array in feeds.values()), default=1)
        if progress is not None:
            progress("analysing", sample_count, None)
    rows = collector.rows()
    if log is not None:
        write_text(log, format_outlier_table(rows, OUTPUT_COLUMNS))
    return rows
