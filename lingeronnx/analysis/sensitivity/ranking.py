"""What `sensitivity` found, and the files it is written to."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...deprecation import keep_old_members
from ...files import write_text
from ..stats.output_measures import is_lower_better, metric_unit
from .page import render_sensitivity_page

__all__ = ["RankedTrial", "Sensitivity", "SkipAdvice"]

_MIN_GAIN_SHARE = (
    0.8  # of what the longest advice gives back: a longer one is not worth its options
)


@dataclass(frozen=True)
class RankedTrial:
    """One trial: the operator, what of it is rounded ("weight", "activation", "both"), and a value for every metric."""

    name: str
    kind: str
    op_type: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class SkipAdvice:
    """What is predicted for leaving operators out.

    The options of `quantize`, and the value with them.
    """

    operators: tuple[str, ...]
    options: tuple[str, ...]
    value: float


@keep_old_members("0.3", least="min_gain")
@dataclass(frozen=True)
class Sensitivity:
    """What `sensitivity` found.

    ranking : most sensitive first by the first of `metrics`; with `reserve` last. advised_by : the
    metric of `exact` (the float model's value), `quantized` (with everything rounded) and the
    advice. advice : the worst 1, 2, 3 ... left out. macs : multiply-accumulates that were run in
    all. whole : those of a run of the whole model for each trial. for_chip : whether an operator
    that is left out makes the graph unfit for the platform. least : the gain that an advice must
    have, in the metric's unit. finding : what `compare` finds, where no advice has it. weight_bits
    : {operator: bits of its weights}, of those that have some.
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
        """Return [[operator, kind, type, value, ...], ...], in the order of the ranking."""
        return [[row.name, row.kind, row.op_type, *row.values] for row in self.ranking]

    @property
    def best(self) -> SkipAdvice | None:
        """The shortest advice that gives most of what the best gives back.

        None where none gives what is worth it.
        """
        most = max((self.gain(advice) for advice in self.advice), default=0.0)
        worth = most > 0 and most >= self.min_gain
        return next(
            (
                a
                for a in self.advice
                if worth and self.gain(a) >= max(_MIN_GAIN_SHARE * most, self.min_gain)
            ),
            None,
        )

    def gain(self, advice: SkipAdvice) -> float:
        """Return by how much the advice is better than everything rounded, in the metric's unit."""
        if advice.value == self.quantized:  # infinite ones, too
            return 0.0
        gained = advice.value - self.quantized
        return -gained if is_lower_better(self.advised_by) else gained

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write sensitive_ops.txt, .json and .html.

        In the second a value that is not finite is null.
        """
        rows = [
            [item if not isinstance(item, float) or math.isfinite(item) else None for item in row]
            for row in self.to_list()
        ]
        lines = ",\n ".join(json.dumps(row) for row in rows)
        write_text(Path(folder) / "sensitive_ops.json", f"[{lines}]\n")
        write_text(Path(folder) / "sensitive_ops.txt", self.text() + "\n")
        write_text(Path(folder) / "sensitive_ops.html", render_sensitivity_page(self.text(), rows))

    def text(self, most: int | None = None) -> str:
        """Return the ranking, its first `most` rows, and the advice, as a table and lines.

        The table has the bits of weights where some operator has others than 8.
        """
        heads = ["op_name", "sensitive_type", "op_type", *self.metrics]
        shown = self.to_list()[:most]
        rows = [[item if isinstance(item, str) else f"{item:.6g}" for item in row] for row in shown]
        if set(self.weight_bits.values()) - {8}:
            heads.append("weight_bits")
            rows = [[*row, str(self.weight_bits.get(row[0], "-"))] for row in rows]
        left = len(self.ranking) - len(rows)
        more = [f"({left} more, see sensitive_ops.txt)"] if left else []
        return "\n".join([*_format_columns([heads, *rows], (0, 1, 2)), *more, "", *self._advice()])

    def _advice(self) -> list[str]:
        """Return the lines on what to do."""
        name, exact, quantized = (
            self.advised_by,
            self._value(self.exact),
            self._value(self.quantized),
        )
        lines = [
            (
                f"{name} on {self.samples} samples: {exact} in float, {quantized} with everything "
                "rounded"
            )
            if self.samples
            else f"{name}: {exact} in float, {quantized} with everything rounded"
        ]
        if self.exact == self.quantized:
            return [*lines, "nothing is lost: no operator has to be left out"]
        if not self.advice:
            return [*lines, "no option leaves one of these operators out", *self._why()]
        before = [0, *(len(advice.options) for advice in self.advice)]
        rows = [
            [
                str(len(advice.operators)),
                self._value(advice.value),
                f"{self.gain(advice):+.4g}",
                " ".join(advice.options[there:]),
            ]
            for there, advice in zip(before, self.advice, strict=False)
        ]
        lines += [
            "predicted for the most sensitive left out together, each with the options above it:",
            "",
        ]
        lines += [*_format_columns([["left out", name, "gives back", "options"], *rows], (3,)), ""]
        if self.best is None:
            return [*lines, *self._why()]
        words = " ".join(self.best.options)
        gained = f"{self.gain(self.best):+.4g} against everything rounded"
        lines += [
            "add to quantize:",
            f"  {words}",
            f"predicted: {name} {self._value(self.best.value)}, {gained}",
        ]
        if self.for_chip and "--skip" in words:
            lines.append(
                "an operator that is skipped runs in float: a chip does not take the graph as a "
                "whole then"
            )
        return lines

    def _why(self) -> list[str]:
        """Return the lines that send a reader elsewhere."""
        least = f" (at least {self._value(self.min_gain)})" if self.min_gain else ""
        said = self.finding or "nothing is out of the ordinary"
        return [f"no layer left in float helps{least}; compare says why: {said}"]

    def _value(self, value: float) -> str:
        return f"{value:.4g} {metric_unit(self.advised_by)}".rstrip()


def _format_columns(rows: Sequence[Sequence[str]], flush: Collection[int]) -> list[str]:
    """Return the rows as lines of columns.

    Those of `flush` at their left ends, the others, numbers, at their right.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def cell(column: int, text: str) -> str:
        return text.ljust(widths[column]) if column in flush else text.rjust(widths[column])

    return ["  ".join(cell(i, text) for i, text in enumerate(row)).rstrip() for row in rows]
