"""The command `fix-dequant`."""

from __future__ import annotations

import filecmp
from collections.abc import Sequence
from pathlib import Path

import click

from ...common.errors import RepairError
from .._shared import (
    PATH_TYPE,
    check_output_path,
    default_output_path,
    format_examples,
    json_option,
    print_json,
)
from ..terminal import echo

__all__ = ["fix_dequant"]


@click.command(
    epilog=format_examples(
        "lingeronnx fix-dequant legacy.onnx --dry-run",
        "lingeronnx fix-dequant legacy.onnx -o repaired.onnx --check",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="OUT",
    help="Graph to write.  [default: MODEL_fix.onnx beside the model]",
)
@click.option(
    "--check", is_flag=True, help="Run the repaired graph in the simulator on random input."
)
@click.option("--dry-run", is_flag=True, help="Print findings and edits; write nothing.")
@json_option
def fix_dequant(
    model: Path, output: Path | None, check: bool, dry_run: bool, as_json: bool
) -> None:
    """Repair a legacy quantized graph.

    Fixes missing, misplaced or wrong Dequant nodes, dangling edges and wrong types, and prints
    every finding and edit. If a repair is ambiguous, it is reported and nothing is written. The
    exit code is 1 if the graph cannot be repaired, or with --check if it does not run.
    """
    from ... import api

    target = output or default_output_path(model, "_fix.onnx")
    if not dry_run:
        check_output_path(target, [model])
    try:
        repaired = api.fix_dequant(model, check)
    except RepairError as error:
        if error.report is not None:
            _print_lines(error.report.lines(), as_json)
            if as_json:
                print_json(
                    {"model": model, "repaired": False, "changed": False, **error.report.to_dict()}
                )
        raise
    lines = list(repaired.report.lines(planned=dry_run))
    if repaired.trial_run is not None:
        lines += repaired.trial_run.lines()
    if not dry_run:
        repaired.save(target)
        suffix = "" if repaired.changed else _describe_unchanged(model, target)
        lines.append(f"written: {target}{suffix}")
    _print_lines(lines, as_json)
    if as_json:
        print_json({**repaired.to_dict(), "written": None if dry_run else target})
    if repaired.trial_run is not None and repaired.trial_run.error is not None:
        click.get_current_context().exit(1)


def _print_lines(lines: Sequence[str], as_json: bool) -> None:
    """Print each of `lines` on stdout or, if `as_json`, on stderr."""
    for line in lines:
        echo(line, err=as_json)


def _describe_unchanged(model: Path, written: Path) -> str:
    """Return the end of a sentence about a graph that was written without edits.

    It says whether file `written` has the same bytes as file `model`, or only the same graph.
    """
    return (
        ", byte for byte the input"
        if filecmp.cmp(model, written, shallow=False)
        else ", the same graph"
    )
