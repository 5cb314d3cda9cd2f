"""How results look in a terminal.

Tables and facts, printed with rich, which is imported inside the functions.
Knows the values that `api` returns, nothing of options, files to write or exit codes; `cli` calls
it.
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..json_values import to_json_value
from ..number_format import difference_unit, format_decibels, format_value
from ..targets import Target

if TYPE_CHECKING:
    from rich.console import Console

    from ..api import Comparison, Deployment, Evaluation, Simulation, Verification
    from ..deployment import TensorDifference
    from ..plan import Affine
    from ..run.dump import TensorSummary

__all__ = [
    "console_for",
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

_LABEL_WIDTH = 20  # where values begin


def console_for(as_json: bool) -> Console:
    """Return the console for tables: stderr where stdout is left to JSON."""
    from rich.console import Console

    stream = sys.stderr if as_json else sys.stdout
    known = stream.isatty() or "COLUMNS" in os.environ
    return Console(
        stderr=as_json, width=None if known else 100, highlight=False, markup=False, emoji=False
    )


def print_facts(console: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """Print (label, value, style of the value), long values folded under themselves."""
    from rich.text import Text

    for label, value, style in rows:
        for line in textwrap.wrap(value, max(console.width - _LABEL_WIDTH, 20)) or [""]:
            line = line.replace("\u00a0", " ")
            console.print(
                Text.assemble((f"  {label:<{_LABEL_WIDTH - 2}}", "cyan"), (line, style)),
                soft_wrap=True,
            )
            label = ""


def print_table(
    console: Console,
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: str = "",
) -> None:
    """Print a table under a title; `right` names the column to align on the right."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="cyan")
    for name in head:
        table.add_column(name, overflow="fold", justify="right" if name == right else "left")
    for row in rows:
        table.add_row(*row)
    console.print(f"\n  {title}\n" if title else "", style="bold", soft_wrap=True)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def print_title(console: Console, text: str) -> None:
    """Print a title with a line before and behind it."""
    console.print(f"\n{text}\n", style="bold", soft_wrap=True)


def print_line(console: Console, label: str, text: str) -> None:
    """Print a value that must stay whole, such as a path or a command."""
    from rich.text import Text

    console.print(Text.assemble((f"  {label:<{_LABEL_WIDTH - 2}}", "cyan"), text), soft_wrap=True)


def print_notes(
    console: Console, notes: Sequence[str], kind: str = "note", style: str = "yellow"
) -> None:
    """Print notes, long ones folded under themselves."""
    for note in notes:
        told = textwrap.wrap(
            f"  {kind}: {note}", console.width, subsequent_indent="    ", break_on_hyphens=False
        )
        console.print("\n".join(told), style=style, soft_wrap=True)


def show_simulation(console: Console, result: Simulation, output: Path, dump: Path | None) -> None:
    """Print the tensors of a run."""
    made_of = {key: name for name, key in result.outputs.items()}
    rows = []
    for name, array in result.arrays.items():
        role = (
            ""
            if name not in made_of
            else "output"
            if made_of[name] == name
            else f"output {made_of[name]}"
        )
        rows.append(
            (
                name,
                role,
                str(array.dtype),
                _format_shape(array.shape),
                _format_scale(result.held[name]),
            )
        )
    print_table(console, "", ["tensor", "role", "type", "shape", "scale"], rows, right="scale")
    if result.at is not None:
        _print_tensor_summary(console, result.at)
    if result.at is None:
        console.print()
    print_notes(console, result.notes)
    if dump is not None:
        print_line(console, "dumped", str(dump))
    print_line(console, "written", f"{output} ({result.samples} samples, {size_text(output)})")


def _print_tensor_summary(console: Console, at: TensorSummary) -> None:
    def both(value: float) -> str:
        return f"{value:g}" if at.held is None else f"{value:g}  = {real(value)}"

    def real(value: float) -> str:
        return f"{at.real(value):g}"

    console.print()
    rows = [
        ("at", at.name),
        ("type", f"{at.dtype} {_format_shape(at.shape)}"),
        ("scale", _format_scale(at.held)),
        ("min", both(at.low)),
        ("max", both(at.high)),
        ("mean", both(at.mean)),
        ("first", "  ".join(f"{value:g}" for value in at.first)),
        ("as real", "  ".join(map(real, at.first))),
    ]
    print_facts(
        console,
        [(*row, "") for row in rows if at.held is not None or row[0] not in ("scale", "as real")],
    )
    console.print()


def show_evaluation(
    console: Console, evaluation: Evaluation, model: Path, baseline: Path | None
) -> None:
    """Print a metric's value."""
    against = f" against {baseline}" if baseline is not None and evaluation.baseline is None else ""
    rows = [
        (
            evaluation.metric,
            f"{format_value(evaluation.value, evaluation.unit)}  {model}{against}",
            "bold",
        )
    ]
    if evaluation.baseline is not None:
        rows += [
            ("baseline", f"{format_value(evaluation.baseline, evaluation.unit)}  {baseline}", ""),
            (
                "drop",
                format_value(
                    evaluation.baseline - evaluation.value, difference_unit(evaluation.unit)
                ),
                "",
            ),
        ]
    print_facts(console, [*rows, ("samples", str(evaluation.samples), "")])
    print_notes(console, evaluation.warnings, "WARNING", "bold red")


def show_deployment(console: Console, done: Deployment) -> None:
    """Print what was written for a board."""
    rows = [
        (name, str(size)) for name, size in done.files.items() if not name.startswith("golden/")
    ]
    golden = [size for name, size in done.files.items() if name.startswith("golden/")]
    rows.append((f"golden/ ({len(golden)} files)", str(sum(golden))))
    print_table(
        console, f"{done.folder}, for {done.platform}", ["file", "bytes"], rows, right="bytes"
    )
    console.print()
    print_notes(console, done.notes)
    if done.proof is not None:
        print_facts(console, [("proved", text, "") for text in done.proof.lines()])
    print_line(console, "pack it with", f"sh {done.folder / 'pack.sh'}")


def show_verification(console: Console, verification: Verification) -> None:
    """Print whether a device agrees, else where it begins to differ and why."""
    count = f"{len(verification.compared)} tensors compared"
    if verification.agrees:
        print_facts(console, [("agrees", f"{count}, every one equal", "bold green")])
    if verification.first is not None:
        first = verification.first
        nodes = (
            ""
            if list(first.nodes) == [first.node]
            else f"; the fault is in one of {_format_names(first.nodes)}"
        )
        print_facts(
            console,
            [
                ("differs", f"{count}, {len(verification.different)} differ", "bold red"),
                ("first layer", f"{first.operator} {first.node}{nodes}", "bold"),
                ("tensor", f"{first.tensor} ({first.dump})", ""),
                ("first element", _format_first_difference(first), ""),
                *(("remark", text, "") for text in first.remarks),
            ],
        )
        for cause in first.causes:
            label = (
                "explained by" if cause.exact else "packer" if cause.kind == "packer" else "perhaps"
            )
            print_facts(
                console, [(label, f"{cause.kind}: {cause.text}", "bold" if cause.exact else "")]
            )
    if verification.unknown:
        print_facts(console, [("not in the graph", _format_names(verification.unknown), "")])
    if verification.unseen:
        print_facts(console, [("not shown", _format_names(verification.unseen), "")])
    print_notes(console, verification.notes)


def _format_names(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more, listed with --json" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _format_first_difference(first: TensorDifference) -> str:
    if first.index is None:
        return "not known from a checksum"
    text = f"{list(first.index)}: {first.found} on the device, {first.expected} here"
    if first.differing is None:
        return text
    counts = "" if isinstance(first.largest, float) else " counts"
    return f"{text}; {first.differing} of {first.size} differ, by {first.largest}{counts} at most"


def show_platforms(console: Console, rows: Sequence[Target]) -> None:
    """Print one line per platform."""
    print_table(
        console,
        "",
        ["name", "executor", "what it is", "modes", "operators"],
        [(r.name, r.executor or "-", r.title, ", ".join(r.modes), str(len(r.ops))) for r in rows],
        right="operators",
    )
    console.print("\n  lingeronnx platforms NAME tells more about one")


def show_platform(console: Console, target: Target) -> None:
    """Print limits, operators and known faults of one platform."""
    print_title(console, f"{target.name}: {target.title}")
    low, high = target.exponents
    facts = [
        ("executor", target.executor or "-"),
        ("chip", "yes" if target.has_packer else "no"),
        ("modes", ", ".join(target.modes)),
        ("bits", ", ".join(map(str, target.bits))),
        ("scales", f"activations 2^{low} to 2^{high}"),
        *([("packer", target.vendor.packer_command)] if target.has_packer else []),
    ]
    print_facts(console, [(*fact, "") for fact in facts])
    limits: dict[str, Any] = {
        "shared_memory": target.shared_memory,
        "external_memory": target.external_memory,
    }
    limits |= {
        f"conv {key}": value for key, value in (to_json_value(target.conv_limits) or {}).items()
    }
    limits |= {
        f"pool {key}": value for key, value in (to_json_value(target.pool_limits) or {}).items()
    }
    shown = [
        (key.replace("_", " "), ", ".join(map(str, v)) if isinstance(v, list) else str(v))
        for key, v in limits.items()
        if v is not None
    ]
    if shown:
        print_table(
            console, "Limits (elements; memory and slabs in bytes)", ["limit", "value"], shown
        )
    print_table(
        console,
        "Operators",
        ["operator", "arithmetic"],
        [(name, str(entry.arithmetic)) for name, entry in target.ops.items()],
    )
    if target.faults:
        print_table(
            console,
            "Known faults of the executor, worked around",
            ["about", "what"],
            [(fault.key, fault.text) for fault in target.faults],
        )


def _format_scale(qparams: Affine | None) -> str:
    if qparams is None:
        return ""
    mantissa, exponent = math.frexp(qparams.scale)
    text = f"2^{exponent - 1}" if mantissa == 0.5 else f"{qparams.scale:.6g}"
    return f"{text} from {qparams.zero_point}" if qparams.shifted else text


def _format_shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def size_text(path: Path) -> str:
    """Return the size of a file."""
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


_MAX_FINDINGS = 5  # that are printed


def show_comparison(console: Console, comparison: Comparison, folder: Path) -> None:
    """Print the summary, the worst layers and the first findings of a comparison."""
    rows = [
        (
            "models",
            (
                f"{comparison.names[1]} against {comparison.names[0]}, {comparison.join.samples} "
                "samples"
            ),
            "",
        )
    ]
    if comparison.accuracy is not None:
        rows.append(
            (
                "accuracy",
                f"{comparison.accuracy[0]:.2f} % -> {comparison.accuracy[1]:.2f} %",
                "bold",
            )
        )
    single = " (from 1 sample)" if comparison.join.samples == 1 else ""
    rows += [
        ("output", f"'{name}' {format_decibels(value)}{single}", "")
        for name, value in comparison.outputs.items()
    ]
    print_facts(console, rows)
    print_table(
        console,
        "layers that cost most",
        ("node", "operator", "own error, dB", "as it arrives, dB", "finding"),
        [
            (
                row.display_name,
                row.kinds[0],
                f"{row.effective.sqnr:.1f}",
                f"{row.arrived.sqnr:.1f}",
                comparison.finding_kind_of(row),
            )
            for row in comparison.worst
        ],
    )
    lines = []
    for finding in comparison.findings[:_MAX_FINDINGS]:
        lines.append(
            (finding.kind, f"{finding.place}: {finding.measured} (limit: {finding.limit})", "")
        )
        lines.append(
            ("", f"{finding.remedy}{''.join(': ' + option for option in finding.options)}", "green")
        )
    more = len(comparison.findings) - _MAX_FINDINGS
    lines += [("", f"and {more} more in abnormal_layer_advisor.txt", "")] if more > 0 else []
    lines.append(
        (
            "written",
            f"{folder}: profiler.html, abnormal_layer_advisor.txt, compare_per_layer_out.txt, .csv",
            "",
        )
    )
    console.print()
    print_facts(console, lines)
