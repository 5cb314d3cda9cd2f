"""Result of `sensitivity`, and the files that it is written to."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...common.deprecation import keep_old_members
from ...common.escaping import join_lines
from ...common.files import write_text
from ..stats.output_measures import is_lower_better, metric_unit
from .page import render_sensitivity_page

__all__ = ["RankedTrial", "Sensitivity", "SkipAdvice"]

_MIN_GAIN_FRACTION = 0.8  # of the best gain that makes longer advice not worth its options


@dataclass(frozen=True)
class RankedTrial:
    """One trial with its results.

    Parameters
    ----------
    name, op_type
        Name and type of the operator.
    kind
        What is rounded: "weight", "activation" or "both".
    values
        Value of each metric.
    """

    name: str
    kind: str
    op_type: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class SkipAdvice:
    """Predicted effect of exempting operators from rounding.

    Parameters
    ----------
    operators
        Names of the operators.
    options
        Options of `quantize` that exempt them.
    value
        Predicted value of the metric with these options.
    """

    operators: tuple[str, ...]
    options: tuple[str, ...]
    value: float


@keep_old_members("0.3", least="min_gain")
@dataclass(frozen=True)
class Sensitivity:
    """Result of `sensitivity`.

    Parameters
    ----------
    ranking
        Trials, most sensitive first by the first of `metrics`; reversed with `reserve`.
    metrics
        Names of the metrics.
    advised_by
        Metric of `exact`, `quantized` and `advice`.
    exact, quantized
        Value of the float model, and with everything rounded.
    advice
        Effect of exempting the worst 1, 2, 3 ... operators.
    samples
        Number of samples.
    macs
        Multiply-accumulates that were computed in total.
    whole
        Multiply-accumulates of complete runs for all trials.
    for_chip
        Whether a skipped operator makes the graph unfit for running entirely on the platform.
    notes
        Remarks on the data and the plan.
    min_gain
        Gain required of advice, in the unit of the metric.
    finding
        First finding of `compare`, if no advice has the required gain.
    weight_bits
        Bits of weights by operator.
    """

    ranking: Sequence[RankedTrial]
    metrics: Sequence[str]
    advised_by: str
    exact: float
    quantized: float
    advice: Sequence[SkipAdvice]
    samples: int
    macs: int
    whole: int
    for_chip: bool
    notes: Sequence[str] = ()
    min_gain: float = 0.0
    finding: str = ""
    weight_bits: Mapping[str, int] = field(default_factory=dict)

    def to_list(self) -> list[list[object]]:
        """Return [operator, kind, type, value, ...] for each trial, in the order of the ranking."""
        return [[row.name, row.kind, row.op_type, *row.values] for row in self.ranking]

    @property
    def best(self) -> SkipAdvice | None:
        """The first advice (shortest first) with at least 80 % of the best gain, or None.

        Its gain must also be at least `min_gain`. None if no gain is positive or none reaches
        `min_gain`.
        """
        best_gain = max((self.gain(advice) for advice in self.advice), default=0.0)
        if not best_gain > 0 or not best_gain >= self.min_gain:
            return None
        required_gain = max(_MIN_GAIN_FRACTION * best_gain, self.min_gain)
        for advice in self.advice:
            if self.gain(advice) >= required_gain:
                return advice
        return None

    def gain(self, advice: SkipAdvice) -> float:
        """Return the predicted gain of `advice` over the model with everything rounded.

        In the unit of the metric that advises; positive is better, whether the metric should be
        high or low. 0 for equal values.
        """
        if advice.value == self.quantized:  # also if both are infinite
            return 0.0
        difference = advice.value - self.quantized
        return -difference if is_lower_better(self.advised_by) else difference

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write sensitive_ops.txt, .json and .html into an existing folder.

        The JSON is a list of rows, in which values that are not finite are null.
        """
        rows = [list(map(_to_json_value, row)) for row in self.to_list()]
        lines = ",\n ".join(json.dumps(row) for row in rows)
        write_text(Path(folder) / "sensitive_ops.json", f"[{lines}]\n")
        write_text(Path(folder) / "sensitive_ops.txt", self.text() + "\n")
        write_text(Path(folder) / "sensitive_ops.html", render_sensitivity_page(self.text(), rows))

    def text(self, most: int | None = None) -> str:
        """Format the first `most` rows of the ranking (None: all) as a table, then the advice.

        The table has the bits of weights if an operator has other than 8 bits.
        """
        heads = ["op_name", "sensitive_type", "op_type", *self.metrics]
        rows = []
        for trial in self.ranking[:most]:
            values = [f"{value:.6g}" for value in trial.values]
            rows.append([trial.name, trial.kind, trial.op_type, *values])
        if set(self.weight_bits.values()) - {8}:
            heads.append("weight_bits")
            rows = [[*row, str(self.weight_bits.get(row[0], "-"))] for row in rows]
        lines = _format_columns([heads, *rows], (0, 1, 2))
        omitted = len(self.ranking) - len(rows)
        if omitted:
            lines.append(f"({omitted} more, see sensitive_ops.txt)")
        return join_lines([*lines, "", *self._format_advice()])

    def _format_advice(self) -> list[str]:
        """Format the accuracy in float and rounded, the effect of each advice, and options.

        If nothing is lost, a line says so. If no option exempts an operator, or no advice gains
        enough, a line refers to `compare` instead of the options.
        """
        name, quantized = self.advised_by, self._format_value(self.quantized)
        exact = self._format_value(self.exact)
        samples = f" on {self.samples} samples" if self.samples else ""
        lines = [f"{name}{samples}: {exact} in float, {quantized} with everything rounded"]
        if self.exact == self.quantized:
            return [*lines, "no accuracy is lost; nothing to skip"]
        if not self.advice:
            return [*lines, "no option exempts one of these operators", *self._format_referral()]
        rows = []
        previous_count = 0
        for advice in self.advice:
            new_options = " ".join(advice.options[previous_count:])
            previous_count = len(advice.options)
            value, gain = self._format_value(advice.value), f"{self.gain(advice):+.4g}"
            rows.append([str(len(advice.operators)), value, gain, new_options])
        lines += [
            "predicted if the most sensitive are exempt together, each row with the options above:",
            "",
            *_format_columns([["exempt", name, "gain", "options"], *rows], (3,)),
            "",
        ]
        if self.best is None:
            return [*lines, *self._format_referral()]
        options = " ".join(self.best.options)
        gain = f"{self.gain(self.best):+.4g} against everything rounded"
        lines += [
            "add to quantize:",
            f"  {options}",
            f"predicted: {name} {self._format_value(self.best.value)}, {gain}",
        ]
        if self.for_chip and "--skip" in options:
            lines.append(
                "skipped operators run in float; the graph then no longer runs entirely on the chip"
            )
        return lines

    def _format_referral(self) -> list[str]:
        """Return one line: no layer left in float helps, and the first finding of `compare`."""
        limit = f" (at least {self._format_value(self.min_gain)})" if self.min_gain else ""
        finding = self.finding or "no issues found"
        return [f"no layer left in float helps{limit}; compare explains the loss: {finding}"]

    def _format_value(self, value: float) -> str:
        """Format a value with four significant digits and the unit of the metric that advises."""
        return f"{value:.4g} {metric_unit(self.advised_by)}".rstrip()


def _to_json_value(item: object) -> object:
    """Return None for a float that is not finite, which JSON lacks, else the item itself."""
    if isinstance(item, float) and not math.isfinite(item):
        return None
    return item


def _format_columns(rows: Sequence[Sequence[str]], left_aligned: Collection[int]) -> list[str]:
    """Format rows as lines of aligned columns.

    The columns `left_aligned` (indices) are left-aligned, others right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for column, (text, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(text.ljust(width) if column in left_aligned else text.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return lines
