"""What a comparison of two models found, as a value.

Rows, findings, accuracy, and the texts made of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...deprecation import keep_old_members
from ...message_grouping import escape_invisible
from ..stats.pair_measures import METRICS
from ..text import wrap_text
from .advice import format_options
from .finding import LayerFinding
from .join import ComparedTensor, TensorJoin
from .option_trials import MIN_GAIN_DB, OptionTrialResult

__all__ = ["COLUMNS", "CSV_ONLY_COLUMNS", "Comparison", "format_number"]

_RANGE_COLUMNS = tuple(
    f"{side}_model_{name}" for name in ("min", "max", "mean", "var") for side in ("base", "analy")
)

#: Of both tables, in this order; the first is the row's number.
COLUMNS = (
    "",
    "mod_name",
    "base_op_type",
    "analy_op_type",
    "shape",
    "quant_dtype",
    "qscale",
    *METRICS,
    *_RANGE_COLUMNS,
)

#: Behind these, in the csv.
CSV_ONLY_COLUMNS = (
    *(f"local_{name}" for name in METRICS),
    "saturation",
    "clipped",
    "used_range",
    "node",
    "module",
)


@keep_old_members("0.3", tried="option_results", advice="format_advice", why="finding_kind_of")
@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    join : every tensor that both have, measured. findings : what is wrong, the worst first. names :
    of the two models. accuracy : top-1 in percent of both, where the data have labels. outputs :
    the SQNR in dB by graph output. cycles : {node of the second model: cycles of a call on its
    chip, with those of nodes before it that no row has}, where they are known. weight_bits : {node
    of the second model: bits of its weights}; nothing where all have 8. option_results : what the
    findings' options give; None where they were not tried. notes : what cannot be told.
    """

    join: TensorJoin
    findings: Sequence[LayerFinding]
    names: tuple[str, str]
    accuracy: tuple[float, float] | None
    outputs: Mapping[str, float]
    cycles: Mapping[str, float] = field(default_factory=dict)
    weight_bits: Mapping[str, int] = field(default_factory=dict)
    option_results: OptionTrialResult | None = None
    notes: Sequence[str] = ()

    @property
    def rows(self) -> list[ComparedTensor]:
        """The tensors, in graph order."""
        return list(self.join.rows.values())

    @property
    def worst(self) -> list[ComparedTensor]:
        """The five tensors whose own layer adds most, the worst first."""
        return sorted(self.rows, key=lambda row: row.effective.sqnr)[:5]

    def finding_kind_of(self, row: ComparedTensor) -> str:
        """Return what the findings say of a row, in a few words."""
        return next((f.kind for f in self.findings if row.name in (f.layer, *f.also)), "")

    @property
    def options(self) -> str:
        """The options that help, ready to paste behind `lingeronnx quantize MODEL --calib DATA`.

        Those of all findings where nothing was tried, else the best of them together.
        """
        return (
            format_options(self.findings)
            if self.option_results is None
            else " ".join(self.option_results.best)
        )

    def table(self) -> list[dict[str, object]]:
        """Return a mapping of COLUMNS, CSV_ONLY_COLUMNS and `width_columns` for every tensor."""
        return [
            {
                **_cells(index, row),
                **{name: self.weight_bits.get(row.nodes[1]) for name in self.width_columns},
            }
            for index, row in enumerate(self.rows)
        ]

    @property
    def width_columns(self) -> tuple[str, ...]:
        """The last columns of both tables.

        The bits of weights, where some layer has others than 8.
        """
        return ("weight_bits",) if self.weight_bits else ()

    def to_dict(self) -> dict[str, object]:
        """Return everything but histograms as JSON-ready values."""
        return {
            "models": list(self.names),
            "samples": self.join.samples,
            "accuracy": None if self.accuracy is None else list(self.accuracy),
            "outputs": dict(self.outputs),
            "options": self.options,
            "options_tried": None if self.option_results is None else vars(self.option_results),
            "notes": list(self.notes),
            "findings": [finding.to_dict() for finding in self.findings],
            "layers": [
                {key or "index": value for key, value in cells.items()} for cells in self.table()
            ],
            "unpaired": list(self.join.unpaired),
        }

    def format_advice(self) -> str:
        """Return the text of the advisor's file."""
        lines = [
            f"{self.names[1]} against {self.names[0]}, {self.join.samples} samples",
            *self._summary(),
            "",
        ]
        for place, finding in enumerate(self.findings, 1):
            also = (
                f" (and {', '.join(finding.also)}, which share its scale)" if finding.also else ""
            )
            lines += wrap_text(f"{finding.kind}: {finding.place}{also}", f"{place}. ", _INDENT)
            for head in ("measured", "limit", "remedy"):
                lines += wrap_text(
                    getattr(finding, head), f"   {head + ':':<10}", f"{_INDENT}          "
                )
            lines += [*(f"   option:   {option}" for option in finding.options), ""]
        if not self.findings:
            lines += ["Nothing is out of the ordinary.", ""]
        return "\n".join([*lines, *self._together()])

    def _together(self) -> list[str]:
        """Return the lines on all options.

        Which to take, and what they gave where they were tried.
        """
        if not format_options(self.findings):
            return []
        if self.option_results is None:
            return ["All options together (not tried):", f"   {self.options}", ""]
        found = self.option_results
        with_all = (
            f"with all options {format_number(found.every)} dB, without "
            f"{format_number(found.now)} dB"
        )
        if not found.best:
            sure = "gives" if found.value - found.now < MIN_GAIN_DB else "is sure to give"
            itself = (
                ""
                if sure == "gives"
                else f", where the graph itself has {format_number(found.graph)} dB"
            )
            return [
                *wrap_text(
                    f"No option {sure} {MIN_GAIN_DB:g} dB: {with_all}{itself}.", "", _INDENT
                ),
                "",
            ]
        whole = set(found.best) == {
            option for finding in self.findings for option in finding.options
        }
        head = "All options together:"
        if not whole:
            head = (
                f"The options that give {MIN_GAIN_DB:g} dB each (all "
                f"{format_number(found.every)} dB):"
            )
        how = "weights refined" if found.refined else "rounding alone"
        measured = (
            f"   tried on these data, {how}: {format_number(found.value)} dB, without "
            f"{format_number(found.now)} dB"
        )
        return [head, f"   {self.options}", measured, ""]

    def _summary(self) -> list[str]:
        lines = [
            f"output '{name}': {format_number(value)} dB" for name, value in self.outputs.items()
        ]
        if self.accuracy is not None:
            lines.append(f"accuracy: {self.accuracy[0]:.2f} % -> {self.accuracy[1]:.2f} %")
        return [*lines, *(line for note in self.notes for line in wrap_text(note, "", _INDENT))]


_INDENT = "   "


def _cells(index: int, row: ComparedTensor) -> dict[str, object]:
    own = {} if row.local is None else row.local.to_dict()
    values = row.arrived.to_dict()
    form = row.stored_form
    return {
        "": index,
        "mod_name": escape_invisible(row.name),
        "base_op_type": row.kinds[0],
        "analy_op_type": row.kinds[1],
        "shape": list(row.total_shape),
        "quant_dtype": "float32" if form is None else f"int{form.q.bits}",
        "qscale": None if form is None else form.q.scale,
        **{name: values[name] for name in (*METRICS, *_RANGE_COLUMNS)},
        **{f"local_{name}": own.get(name) for name in METRICS},
        **{name: values[name] for name in ("saturation", "clipped", "used_range")},
        "node": escape_invisible(row.nodes[0]),
        "module": escape_invisible(row.module),
    }


def format_number(value: float) -> str:
    """Return six digits of a value, infinities as words."""
    return f"{value:.6g}" if math.isfinite(value) else str(value)
