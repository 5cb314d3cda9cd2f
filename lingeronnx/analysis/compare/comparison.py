"""Result of a comparison of two models: rows, findings, accuracy, and texts made from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...common.deprecation import keep_old_members
from ...common.escaping import escape_invisible, join_lines
from ...common.notebook import (
    format_summary,
    render_depth_chart,
    render_fact_table,
    render_fragment,
)
from ...common.text import wrap_text
from ..stats.pair_measures import TABLE_METRICS
from .advice import format_options
from .finding import LayerFinding
from .join import ComparedTensor, TensorJoin
from .option_trials import MIN_GAIN_DB, OptionTrialResult

__all__ = ["COLUMNS", "CSV_ONLY_COLUMNS", "Comparison", "format_number"]

_RANGE_COLUMNS = tuple(
    f"{side}_model_{name}" for name in ("min", "max", "mean", "var") for side in ("base", "analy")
)

#: Columns of both tables; the first one is the index of the row.
COLUMNS = (
    "",
    "mod_name",
    "base_op_type",
    "analy_op_type",
    "shape",
    "quant_dtype",
    "qscale",
    *TABLE_METRICS,
    *_RANGE_COLUMNS,
)

#: Further columns of the CSV file.
CSV_ONLY_COLUMNS = (
    *(f"local_{name}" for name in TABLE_METRICS),
    "saturation",
    "clipped",
    "used_range",
    "node",
    "module",
    "KL_softmax",
)


@keep_old_members(
    "0.3", tried="option_results", advice="format_advice", why="finding_kind_of", table="to_rows"
)
@dataclass(frozen=True)
class Comparison:
    """Result of a comparison of two models.

    Parameters
    ----------
    join
        All tensors that both models have, measured.
    findings
        Problems of the second model, worst first.
    names
        Names of the two models.
    accuracy
        Top-1 accuracy of both in percent, or None without labels.
    outputs
        SQNR in dB by graph output.
    cycles
        Cycles per call by node of the second model, if they are known. Nodes without a row count
        towards the next node that has one.
    weight_bits
        Bits of weights by node of the second model; empty if all have 8 bits.
    option_results
        Effect of the findings' options, or None if they were not tried.
    notes
        Checks that could not be decided.
    warnings
        Problems of the accuracy and of the outputs: a loss, chance level, a single predicted class,
        a constant or saturated output.
    fixed_inputs
        Values of the inputs of the float model that were fixed when the second model was quantized;
        both models have them as constants here.
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
    warnings: Sequence[str] = ()
    fixed_inputs: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the outputs, findings and worst layers as text of one screen."""
        return format_summary(self._title, [*self._list_facts(), *self._list_worst()])

    def _repr_html_(self) -> str:
        """Render the outputs, the error over the depth and the worst layers for a notebook."""
        chart = render_depth_chart(
            "SQNR over the layers",
            {
                "SQNR as it arrives": [row.arrived.sqnr for row in self.rows],
                "of the layer alone": [row.effective.sqnr for row in self.rows],
            },
        )
        table = render_fact_table("Layers with most error", self._list_worst())
        return render_fragment(self._title, render_fact_table("", self._list_facts()), chart, table)

    @property
    def _title(self) -> str:
        """The names of both models."""
        return f"{self.names[1]} against {self.names[0]}"

    def format_fixed_inputs(self) -> list[str]:
        """Return a line on each fixed input, such as "input 'rate' is fixed at 16000".

        Of more than `_MAX_FIXED_VALUES` values the first ones, and their number.
        """
        lines = []
        for name, values in self.fixed_inputs.items():
            text = ", ".join(f"{value:g}" for value in values[:_MAX_FIXED_VALUES])
            if len(values) > _MAX_FIXED_VALUES:
                text += f", ... ({len(values)} values)"
            lines.append(f"input '{name}' is fixed at {text}")
        return lines

    def _list_worst(self) -> list[tuple[str, str]]:
        """List the layers with most error and the SQNR of each alone."""
        return [(row.name, f"own SQNR {row.effective.sqnr:.1f} dB") for row in self.worst]

    def _list_facts(self) -> list[tuple[str, str]]:
        """List (label, text) of samples, accuracy, outputs, warnings and findings."""
        facts = [("samples", str(self.join.samples))]
        facts += [("fixed", line) for line in self.format_fixed_inputs()]
        if self.accuracy is not None:
            facts.append(("top-1", " -> ".join(f"{value:.2f} %" for value in self.accuracy)))
        facts += [(f"output {name}", f"{sqnr:.1f} dB") for name, sqnr in self.outputs.items()]
        facts += [("warning", warning) for warning in self.warnings]
        return facts + [
            (finding.kind, f"{finding.place}: {finding.remedy}") for finding in self.findings
        ]

    @property
    def rows(self) -> list[ComparedTensor]:
        """A new list of the measures of each compared tensor, in graph order."""
        return list(self.join.rows.values())

    @property
    def worst(self) -> list[ComparedTensor]:
        """The five tensors whose own layer adds most error (lowest effective SQNR), worst first."""
        return sorted(self.rows, key=lambda row: row.effective.sqnr)[:5]

    def finding_kind_of(self, row: ComparedTensor) -> str:
        """Return the kind of the first finding about a tensor, or "" if there is none.

        A finding is about its layer and about the tensors in its `also`.
        """
        for finding in self.findings:
            if row.name in (finding.layer, *finding.also):
                return finding.kind
        return ""

    @property
    def options(self) -> str:
        """The options that help, as arguments of `lingeronnx quantize MODEL --calib DATA`.

        If options were tried, the best combination, which may be empty; else those of all findings.
        """
        if self.option_results is None:
            return format_options(self.findings)
        return " ".join(self.option_results.best)

    def to_rows(self) -> list[dict[str, object]]:
        """Return {column: cell} for every tensor, in graph order: the rows of the CSV file."""
        rows = []
        for index, row in enumerate(self.rows):
            widths = {name: self.weight_bits.get(row.nodes[1]) for name in self.width_columns}
            rows.append({**_cells(index, row), **widths})
        return rows

    @property
    def width_columns(self) -> tuple[str, ...]:
        """("weight_bits",), the last column of both tables, or () if all weights have 8 bits."""
        return ("weight_bits",) if self.weight_bits else ()

    def to_dict(self) -> dict[str, object]:
        """Return models, accuracy, outputs, options, findings and all rows as JSON-ready values.

        Histograms are not included.
        """
        layers = []
        for cells in self.to_rows():
            layers.append({key or "index": value for key, value in cells.items()})
        return {
            "models": list(self.names),
            "samples": self.join.samples,
            "fixed_inputs": {name: list(values) for name, values in self.fixed_inputs.items()},
            "accuracy": None if self.accuracy is None else list(self.accuracy),
            "outputs": dict(self.outputs),
            "options": self.options,
            "options_tried": None if self.option_results is None else self.option_results.to_dict(),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "findings": [finding.to_dict() for finding in self.findings],
            "layers": layers,
            "unpaired": list(self.join.unpaired),
        }

    def format_advice(self) -> str:
        """Return the text of abnormal_layer_advisor.txt: summary, numbered findings and options."""
        lines = [
            f"{self.names[1]} against {self.names[0]}, {self.join.samples} samples",
            *self.format_fixed_inputs(),
            *self._format_summary(),
            "",
        ]
        for number, finding in enumerate(self.findings, 1):
            title = f"{finding.kind}: {finding.place}"
            if finding.also:
                title += f" (and {', '.join(finding.also)}, with the same scale)"
            lines += wrap_text(title, f"{number}. ", _INDENT)
            for field_name in ("measured", "limit", "remedy"):
                text = getattr(finding, field_name)
                head = f"   {field_name + ':':<10}"
                lines += wrap_text(text, head, f"{_INDENT}          ") if text else []
            lines += [*(f"   option:   {option}" for option in finding.options), ""]
        if not self.findings:
            lines += ["No issues found.", ""]
        return join_lines([*lines, *self._format_option_advice()])

    def _format_option_advice(self) -> list[str]:
        """Return the lines that advise options, with their measured effect if they were tried.

        If none helped when tried, the lines explain that. Empty if no finding has an option.
        """
        if not format_options(self.findings):
            return []
        results = self.option_results
        if results is None:
            return ["All options together (not tried):", f"   {self.options}", ""]
        if not results.best:
            return [*wrap_text(_explain_no_option(results), "", _INDENT), ""]
        head = "All options together:"
        all_options = set().union(*(finding.options for finding in self.findings))
        if set(results.best) != all_options:
            head = (
                f"The options that gain {MIN_GAIN_DB:g} dB each (all options together: "
                f"{format_number(results.all_options_sqnr)} dB):"
            )
        method = "weights refined" if results.refined else "rounding only"
        measured = (
            f"   tried on these data, {method}: {format_number(results.best_sqnr)} dB, "
            f"without options {format_number(results.baseline_sqnr)} dB"
        )
        return [head, f"   {self.options}", measured, ""]

    def _format_summary(self) -> list[str]:
        """Return lines on the outputs' SQNR, the accuracy if known, warnings and notes."""
        lines = [
            f"output '{name}': {format_number(value)} dB" for name, value in self.outputs.items()
        ]
        if self.accuracy is not None:
            lines.append(f"accuracy: {self.accuracy[0]:.2f} % -> {self.accuracy[1]:.2f} %")
        for warning in self.warnings:
            lines += wrap_text(warning, "WARNING: ", _INDENT)
        for note in self.notes:
            lines += wrap_text(note, "", _INDENT)
        return lines


def _explain_no_option(results: OptionTrialResult) -> str:
    """Return a sentence: no option helps, or the gain is within the error of the trial itself."""
    effect = (
        f"with all options {format_number(results.all_options_sqnr)} dB, without "
        f"{format_number(results.baseline_sqnr)} dB"
    )
    if results.best_sqnr - results.baseline_sqnr < MIN_GAIN_DB:
        return f"No option gains {MIN_GAIN_DB:g} dB: {effect}."
    graph_db = format_number(results.graph_sqnr)
    return f"No option is sure to gain {MIN_GAIN_DB:g} dB: {effect}; the graph has {graph_db} dB."


_INDENT = "   "
_MAX_FIXED_VALUES = 4  # values of a fixed input in a line


def _cells(index: int, row: ComparedTensor) -> dict[str, object]:
    """Return {column: cell} of a tensor, without the bits of weights; `index` is its row number.

    None where a value is missing: scale, saturation and so on of float tensors, and local measures
    if none were taken.
    """
    local_values = {} if row.local is None else row.local.to_dict()
    arrived_values = row.arrived.to_dict()
    stored_form, kl_softmax = row.stored_form, row.arrived.kl_softmax
    return {
        "": index,
        "mod_name": escape_invisible(row.name),
        "base_op_type": row.kinds[0],
        "analy_op_type": row.kinds[1],
        "shape": list(row.total_shape),
        "quant_dtype": "float32" if stored_form is None else f"int{stored_form.q.bits}",
        "qscale": None if stored_form is None else stored_form.q.scale,
        **{name: arrived_values[name] for name in (*TABLE_METRICS, *_RANGE_COLUMNS)},
        **{f"local_{name}": local_values.get(name) for name in TABLE_METRICS},
        **{name: arrived_values[name] for name in ("saturation", "clipped", "used_range")},
        "node": escape_invisible(row.nodes[0]),
        "module": escape_invisible(row.module),
        "KL_softmax": None if math.isnan(kl_softmax) else kl_softmax,
    }


def format_number(value: float) -> str:
    """Format a value with six significant digits; infinities and NaN as words."""
    return f"{value:.6g}" if math.isfinite(value) else str(value)
