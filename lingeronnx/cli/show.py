"""Terminal output of results: tables and facts.

rich is imported inside the functions. This module knows the values that `api` returns; it knows no
options, files or exit codes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.escaping import escape_invisible, escape_lines
from ..common.json_values import to_json_value
from ..common.text import difference_unit, format_decibels, format_value
from ..targets import Target, describe_unmeasured, get_versions
from ..targets._target import format_platform_name
from ..targets.version_changes import list_version_changes

if TYPE_CHECKING:
    from ..api import Comparison, Deployment, Evaluation, Simulation, Verification
    from ..deployment import TensorDifference
    from ..ir.plan import Affine
    from ..runtime.dump import TensorSummary
    from .rich_console import EscapingConsole

__all__ = [
    "print_facts",
    "print_line",
    "print_notes",
    "print_table",
    "print_title",
    "show_comparison",
    "show_deployment",
    "show_evaluation",
    "show_platform",
    "show_platforms",
    "show_simulation",
    "show_verification",
    "size_text",
]

_LABEL_WIDTH = 20  # column where values begin
_MAX_NAMES = 8  # names listed in one line
_MAX_FINDINGS = 5  # findings of a comparison that are printed


def print_facts(console: EscapingConsole, rows: Sequence[tuple[str, str, str]]) -> None:
    """Print (label, value, style of the value) rows in two columns; long values wrap in theirs.

    The label is printed in the first line of a row only. Lines do not break at no-break spaces.
    """
    from rich.text import Text

    for label, value, style in rows:
        for line in textwrap.wrap(escape_lines(value), max(console.width - _LABEL_WIDTH, 20)) or [
            ""
        ]:
            line = line.replace("\u00a0", " ")
            console.print(
                Text.assemble((f"  {label:<{_LABEL_WIDTH - 2}}", "cyan"), (line, style)),
                soft_wrap=True,
            )
            label = ""


def print_table(
    console: EscapingConsole,
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: str = "",
) -> None:
    """Print a table under a title.

    Parameters
    ----------
    console
        Console to print on.
    title
        Title, or "" for an empty line.
    header
        Names of the columns.
    rows
        Cells of each row.
    right
        Name of the column to align on the right.
    """
    from rich import box
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="cyan")
    for name in header:
        table.add_column(name, overflow="fold", justify="right" if name == right else "left")
    for row in rows:
        table.add_row(*map(escape_invisible, row))
    console.print(f"\n  {escape_invisible(title)}\n" if title else "", style="bold", soft_wrap=True)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def print_title(console: EscapingConsole, text: str) -> None:
    """Print `text` in bold between blank lines, with control characters escaped."""
    console.print(f"\n{escape_invisible(text)}\n", style="bold", soft_wrap=True)


def print_line(console: EscapingConsole, label: str, text: str) -> None:
    """Print a label and a text that is not wrapped, such as a path or a command line.

    Control characters in the text are escaped.
    """
    from rich.text import Text

    shown = escape_invisible(text)
    console.print(Text.assemble((f"  {label:<{_LABEL_WIDTH - 2}}", "cyan"), shown), soft_wrap=True)


def print_notes(
    console: EscapingConsole, notes: Sequence[str], kind: str = "note", style: str = "yellow"
) -> None:
    """Print each of `notes` after the word `kind`, wrapped, with further lines indented.

    Prints nothing for no notes. `style` is a style of rich.
    """
    for note in notes:
        lines = textwrap.wrap(
            f"  {kind}: {escape_lines(note)}",
            console.width,
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
        console.print("\n".join(lines), style=style, soft_wrap=True)


def show_simulation(
    console: EscapingConsole, result: Simulation, output: Path, dump: Path | None
) -> None:
    """Print a table of the tensors of a run, notes, and the paths of the written files.

    If one tensor was requested by --at, also its statistics. `output` is the file of the results,
    `dump` the folder of dumped tensors or None.
    """
    output_by_tensor = {tensor: name for name, tensor in result.outputs.items()}
    rows = []
    for name, array in result.arrays.items():
        scale = _format_scale(result.held[name])
        role = _format_role(name, output_by_tensor.get(name))
        rows.append((name, role, str(array.dtype), _format_shape(array.shape), scale))
    print_table(console, "", ["tensor", "role", "type", "shape", "scale"], rows, right="scale")
    if result.at is not None:
        _print_tensor_summary(console, result.at)
    else:
        console.print()
    print_notes(console, result.notes)
    if dump is not None:
        print_line(console, "dumped", str(dump))
    print_line(console, "written", f"{output} ({result.samples} samples, {size_text(output)})")


def _format_role(tensor: str, output: str | None) -> str:
    """Return the role of a tensor: "", "output", or "output NAME" if its name differs.

    `output` is the name of the graph output that the tensor is, or None.
    """
    if output is None:
        return ""
    return "output" if output == tensor else f"output {output}"


def _print_tensor_summary(console: EscapingConsole, summary: TensorSummary) -> None:
    """Print name, type, scale, extremes, mean and first values of one tensor.

    Integers with quantization parameters are shown as real values, too; without parameters the rows
    of the scale and of real values are omitted.
    """

    def format_real(value: float) -> str:
        """Format the real value that the stored integer `value` stands for."""
        return f"{summary.real(value):g}"

    def format_both(value: float) -> str:
        """Return `value` as text, followed by its real value if the tensor has a scale."""
        return f"{value:g}" if summary.qparams is None else f"{value:g}  = {format_real(value)}"

    rows = [
        ("at", summary.name),
        ("type", f"{summary.dtype} {_format_shape(summary.shape)}"),
        ("scale", _format_scale(summary.qparams)),
        ("min", format_both(summary.low)),
        ("max", format_both(summary.high)),
        ("mean", format_both(summary.mean)),
        ("first", "  ".join(f"{value:g}" for value in summary.first_values)),
        ("as real", "  ".join(map(format_real, summary.first_values))),
    ]
    if summary.qparams is None:
        rows = [row for row in rows if row[0] not in ("scale", "as real")]
    console.print()
    print_facts(console, [(*row, "") for row in rows])
    console.print()


def show_evaluation(
    console: EscapingConsole, evaluation: Evaluation, model: Path, baseline: Path | None
) -> None:
    """Print the value of a metric, the baseline's value, and the drop (baseline - value).

    The latter two are omitted for a metric that compares with the baseline model. Also prints the
    number of samples, and warnings.
    """
    unit = evaluation.unit
    text = f"{format_value(evaluation.value, unit)}  {model}"
    if baseline is not None and evaluation.baseline is None:
        text += f" against {baseline}"
    rows = [(evaluation.metric, text, "bold")]
    if evaluation.baseline is not None:
        drop = format_value(evaluation.baseline - evaluation.value, difference_unit(unit))
        rows.append(("baseline", f"{format_value(evaluation.baseline, unit)}  {baseline}", ""))
        rows.append(("drop", drop, ""))
    print_facts(console, [*rows, ("samples", str(evaluation.samples), "")])
    print_notes(console, evaluation.warnings, "WARNING", "bold red")


def show_deployment(console: EscapingConsole, deployment: Deployment) -> None:
    """Print the files that were written for a board, with sizes; golden vectors as one row.

    Also notes, memory, the result of the trial on this PC if there was one, and how to run the
    packer.
    """
    rows, golden_sizes = [], []
    for name, size in deployment.files.items():
        if name.startswith("golden/"):
            golden_sizes.append(size)
        else:
            rows.append((name, str(size)))
    rows.append((f"golden/ ({len(golden_sizes)} files)", str(sum(golden_sizes))))
    title = f"{deployment.folder}, for {deployment.platform}"
    print_table(console, title, ["file", "bytes"], rows, right="bytes")
    console.print()
    print_notes(console, deployment.notes)
    if deployment.sizes is not None:
        print_facts(console, [("memory", deployment.sizes.format_summary(), "")])
    if deployment.proof is not None:
        print_facts(console, [("tried", text, "") for text in deployment.proof.lines()])
    print_line(console, "pack it with", f"sh {deployment.folder / 'pack.sh'}")


def show_verification(console: EscapingConsole, verification: Verification) -> None:
    """Print whether a device agrees with the simulator, or its first difference and the causes.

    Also names in the device's results that the graph does not have, tensors of the graph that the
    device did not show, and notes.
    """
    tensor_count = len(verification.compared)
    count = f"{tensor_count} tensor{'' if tensor_count == 1 else 's'} compared"
    if verification.agrees:
        print_facts(console, [("agrees", f"{count}, all equal", "bold green")])
    if verification.first is not None:
        differing = f"{count}, {len(verification.different)} differ"
        print_facts(console, [("differs", differing, "bold red")])
        _print_first_difference(console, verification.first)
    if verification.unknown:
        print_facts(console, [("not in the graph", _format_names(verification.unknown), "")])
    if verification.unseen:
        print_facts(console, [("not shown", _format_names(verification.unseen), "")])
    if line := verification.versions.format_line():
        print_facts(console, [("version", line, "")])
    print_notes(console, verification.notes)


def _print_first_difference(console: EscapingConsole, first: TensorDifference) -> None:
    """Print the first tensor that differs on the device: layer, first element, remarks and causes.

    A cause that predicts the device's values exactly is labelled "explained by".
    """
    layer = f"{first.operator} {first.node}"
    if list(first.nodes) != [first.node]:
        layer += f"; the fault is in one of {_format_names(first.nodes)}"
    rows = [
        ("first layer", layer, "bold"),
        ("tensor", f"{first.tensor} ({first.dump})", ""),
        ("first element", _format_first_element(first), ""),
        *(("remark", text, "") for text in first.remarks),
    ]
    for cause in first.causes:
        if cause.exact:
            rows.append(("explained by", f"{cause.kind}: {cause.text}", "bold"))
        elif cause.kind == "packer":
            rows.append(("packer", cause.text, ""))
        else:
            rows.append((cause.kind, cause.text, "bold"))
    print_facts(console, rows)


def _format_names(names: Sequence[str]) -> str:
    """Return the first `_MAX_NAMES` names, joined by commas, and the number of others if any."""
    hidden = len(names) - _MAX_NAMES
    suffix = f" and {hidden} more, listed with --json" if hidden > 0 else ""
    return ", ".join(names[:_MAX_NAMES]) + suffix


def _format_first_element(first: TensorDifference) -> str:
    """Return text with index and both values of the first differing element of a tensor.

    Also how many differ and by how much, if known. It says "unknown" if only checksums were
    compared.
    """
    if first.index is None:
        return "unknown: only checksums were compared"
    text = f"{list(first.index)}: {first.found} on the device, {first.expected} here"
    if first.differing is None:
        return text
    unit = "" if isinstance(first.largest, float) else " counts"
    return f"{text}; {first.differing} of {first.size} differ, by {first.largest}{unit} at most"


def show_platforms(console: EscapingConsole, targets: Sequence[Target]) -> None:
    """Print a table with a line per platform, and how to print the details of one."""
    rows = []
    for target in targets:
        modes, count = ", ".join(target.modes), str(len(target.ops))
        rows.append((target.name, target.executor or "-", target.title, modes, count))
    header = ["name", "executor", "description", "modes", "operators"]
    print_table(console, "", header, rows, right="operators")
    for target in targets:
        show_versions(console, target)
    console.print("\n  lingeronnx platforms NAME prints details of one platform or version")


def show_versions(console: EscapingConsole, target: Target) -> None:
    """Print a table with a line per version of a chip's executor, if there are several.

    A line tells whether the version was measured, and what changed against the one before.
    """
    versions = get_versions(target)
    if len(versions) < 2:
        return
    rows = [
        (
            change.target.executor,
            change.basis,
            ", ".join(change.changed_operators) or "-",
            ", ".join(change.fixed_faults) or "-",
            ", ".join(change.new_faults) or "-",
        )
        for change in list_version_changes(versions)
    ]
    title = f"Versions of {target.chip}: --platform {format_platform_name(target.chip, 'VERSION')}"
    header = ["version", "basis", "changed operators", "faults fixed", "new faults"]
    print_table(console, title, header, rows)


def show_platform(console: EscapingConsole, target: Target) -> None:
    """Print properties, limits, operators and known faults of the platform `target`."""
    print_title(console, f"{target.name}: {target.title}")
    min_exponent, max_exponent = target.exponents
    facts = [
        ("executor", target.executor or "-"),
        *(("not measured", line) for line in describe_unmeasured(target, target.ops)),
        ("chip", "yes" if target.has_packer else "no"),
        ("modes", ", ".join(target.modes)),
        ("bits", ", ".join(map(str, target.bits))),
        ("scales", f"activations 2^{min_exponent} to 2^{max_exponent}"),
    ]
    if target.has_packer:
        facts.append(("packer", target.vendor.packer_command))
    print_facts(console, [(*fact, "") for fact in facts])
    limit_rows = _format_limits(target)
    if limit_rows:
        title = "Limits (elements; memory and line buffers in bytes)"
        print_table(console, title, ["limit", "value"], limit_rows)
    arithmetic = [(name, str(support.arithmetic)) for name, support in target.ops.items()]
    print_table(console, "Operators", ["operator", "arithmetic"], arithmetic)
    if target.faults:
        title = "Known faults of the executor, worked around"
        faults = [(fault.key, fault.text) for fault in target.faults]
        print_table(console, title, ["operator", "fault"], faults)
    show_versions(console, target)


def _format_limits(target: Target) -> list[tuple[str, str]]:
    """Return rows (limit, value) on memories, convolutions and pooling of platform `target`.

    Limits that are None are left out.
    """
    limits: dict[str, Any] = {
        "shared_memory": target.shared_memory,
        "external_memory": target.external_memory,
    }
    for kind, group in (("conv", target.conv_limits), ("pool", target.pool_limits)):
        for key, value in (to_json_value(group) or {}).items():
            limits[f"{kind} {key}"] = value
    rows = []
    for key, value in limits.items():
        if value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((key.replace("_", " "), text))
    return rows


def _format_scale(qparams: Affine | None) -> str:
    """Return a scale as text, "2^e" if it is a power of two, else with six digits; "" for None.

    A nonzero zero point follows as " from <zero point>".
    """
    if qparams is None:
        return ""
    mantissa, exponent = math.frexp(qparams.scale)
    text = f"2^{exponent - 1}" if mantissa == 0.5 else f"{qparams.scale:.6g}"
    return f"{text} from {qparams.zero_point}" if qparams.shifted else text


def _format_shape(shape: Sequence[int]) -> str:
    """Return `shape` as text in the form of a list, such as "[1, 3, 4]"."""
    return f"[{', '.join(map(str, shape))}]"


def size_text(path: Path) -> str:
    """Return the size of file `path` as text, in MB from 10^6 bytes on, else in kB."""
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def show_comparison(console: EscapingConsole, comparison: Comparison, folder: Path) -> None:
    """Print the summary, the worst layers and the first findings of a comparison of two models.

    `folder` is where its files were written.
    """
    samples = comparison.join.samples
    models = f"{comparison.names[1]} against {comparison.names[0]}, {samples} samples"
    rows = [("models", models, "")]
    rows += [("", line, "") for line in comparison.format_fixed_inputs()]
    if comparison.accuracy is not None:
        before, after = comparison.accuracy
        rows.append(("accuracy", f"{before:.2f} % -> {after:.2f} %", "bold"))
    suffix = " (from 1 sample)" if samples == 1 else ""
    for name, sqnr in comparison.outputs.items():
        rows.append(("output", f"'{name}' {format_decibels(sqnr)}{suffix}", ""))
    print_facts(console, rows)
    print_notes(console, comparison.warnings, "WARNING", "bold red")
    layers = [
        (
            tensor.display_name,
            tensor.kinds[0],
            f"{tensor.effective.sqnr:.1f}",
            f"{tensor.arrived.sqnr:.1f}",
            comparison.finding_kind_of(tensor),
        )
        for tensor in comparison.worst
    ]
    header = ("node", "operator", "own error, dB", "total error, dB", "finding")
    print_table(console, "layers with the largest loss", header, layers)
    console.print()
    print_facts(console, [*_format_findings(comparison), _format_written_pages(folder)])


def _format_findings(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return rows (label, value, style) of the first `_MAX_FINDINGS` findings of a comparison.

    Each is followed by a row with its remedy. A last row has the number of others, if there are
    any.
    """
    rows = []
    for finding in comparison.findings[:_MAX_FINDINGS]:
        text = f"{finding.place}: {finding.evidence}"
        options = "".join(f": {option}" for option in finding.options)
        rows.append((finding.kind, text, ""))
        rows.append(("", f"{finding.remedy}{options}", "green"))
    hidden = len(comparison.findings) - _MAX_FINDINGS
    if hidden > 0:
        rows.append(("", f"and {hidden} more in abnormal_layer_advisor.txt", ""))
    return rows


def _format_written_pages(folder: Path) -> tuple[str, str, str]:
    """Return the row (label, value, style) that names the files of a comparison in `folder`."""
    files = "profiler.html, abnormal_layer_advisor.txt, compare_per_layer_out.txt, .csv"
    return "written", f"{folder}: {files}", ""
