"""The command `fix-dequant`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ...errors import RepairError
from .._shared import (
    PATH_TYPE,
    check_output_path,
    default_output_path,
    format_examples,
    json_option,
    print_json,
)

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
    help="Default: MODEL_fix.onnx beside the model.",
)
@click.option(
    "--check", is_flag=True, help="Run the repaired graph in the simulator, on random input."
)
@click.option(
    "--dry-run", is_flag=True, help="Say what is wrong and what would be done; write nothing."
)
@json_option
def fix_dequant(
    model: Path, output: Path | None, check: bool, dry_run: bool, as_json: bool
) -> None:
    """Repair a legacy quantized graph.

    Dequants missing, misplaced or wrong, lost edges, wrong types.
    Every finding and every edit is told. What has more than one answer is told and not guessed:
    nothing is written then. Exit code 1 where the graph cannot be repaired, or with --check where
    it does not run.
    """
    from ... import api

    target = output or default_output_path(model, "_fix.onnx")
    if not dry_run:
        check_output_path(target, [model])
    try:
        fixed = api.fix_dequant(model, check)
    except RepairError as error:
        if error.report is not None:
            _print_lines(error.report.lines(), as_json)
            if as_json:
                print_json(
                    {"model": model, "repaired": False, "changed": False, **error.report.to_dict()}
                )
        raise
    lines = [
        *fixed.report.lines(planned=dry_run),
        *(fixed.trial_run.lines() if fixed.trial_run is not None else []),
    ]
    if not dry_run:
        fixed.save(target)
        same = (
            ""
            if fixed.changed
            else ", byte for byte the input"
            if _has_same_bytes(model, target)
            else ", the same graph"
        )
        lines.append(f"written: {target}{same}")
    _print_lines(lines, as_json)
    if as_json:
        print_json({**fixed.to_dict(), "written": None if dry_run else target})
    if fixed.trial_run is not None and fixed.trial_run.error is not None:
        click.get_current_context().exit(1)


def _print_lines(lines: Sequence[str], as_json: bool) -> None:
    for line in lines:
        click.echo(line, err=as_json)


def _has_same_bytes(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
