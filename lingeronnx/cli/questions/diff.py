"""The command `diff`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click

from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    GroupedCommand,
    batch_options,
    format_examples,
    json_option,
    make_data_loader,
    parse_pairs,
    picture_options,
    print_json,
    state_options,
)
from ..terminal import echo, progress_bar

__all__ = ["diff"]


@click.command(
    cls=GroupedCommand,
    option_groups=(
        ("Values", ("data", "baseline", "state", "calls", "batch", "limit")),
        ("Verdict", ("fail-if-worse", "max-loss")),
    ),
    epilog=format_examples(
        "lingeronnx diff old_quant.onnx new_quant.onnx",
        "lingeronnx diff old_quant.onnx new_quant.onnx --data test.npz --baseline model.onnx "
        "--html diff.html",
        "lingeronnx diff main.onnx branch.onnx --data test.npz --baseline model.onnx "
        "--fail-if-worse",
    ),
)
@click.argument("model_a", type=PATH_TYPE, metavar="A")
@click.argument("model_b", type=PATH_TYPE, metavar="B")
@click.option("--data", metavar="DATA", help=f"Also compare values, on {DATA_HELP}.")
@click.option(
    "--baseline",
    "baselines",
    type=PATH_TYPE,
    multiple=True,
    metavar="FLOAT",
    help="With --data: compare both with this float model, too. Twice: that of A, and that of B.",
)
@click.option(
    "--fail-if-worse",
    is_flag=True,
    help="Exit code 1 if B is not chip-ready any more, slower by 5%, or with --baseline less "
    "accurate.",
)
@click.option(
    "--max-loss",
    type=click.FloatRange(0),
    metavar="DB",
    help="With --fail-if-worse: accepted loss of an output's SQNR.  [default: 0.5]",
)
@click.option(
    "--html",
    "page_file",
    type=PATH_TYPE,
    metavar="FILE",
    help="Also write the differences as an HTML page.",
)
@state_options
@picture_options
@batch_options
@json_option
def diff(
    model_a: Path,
    model_b: Path,
    data: str | None,
    baselines: Sequence[Path],
    fail_if_worse: bool,
    max_loss: float | None,
    page_file: Path | None,
    state: Sequence[str],
    calls: int | Literal["all"] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what differs between two models, such as two quantizations of one network.

    These are settings, scales, widths, nodes, sizes, the cost on the chip, and with --data the SQNR
    of each tensor.
    """
    load_data = make_data_loader(options, data)
    if baselines and data is None:
        raise click.UsageError("--baseline needs --data DATA")
    if len(baselines) > 2:
        raise click.UsageError("--baseline: pass one model, or that of A and that of B")
    if max_loss is not None and not fail_if_worse:
        raise click.UsageError("--max-loss needs --fail-if-worse")
    with progress_bar() as progress:
        from ... import api
        from ...analysis.diff import DEFAULT_MAX_LOSS_DB

        max_loss_db = DEFAULT_MAX_LOSS_DB if max_loss is None else max_loss
        result = api.diff(
            model_a,
            model_b,
            load_data(data),
            baseline=(baselines[0], baselines[-1]) if baselines else None,
            state=parse_pairs("--state", state, "OUT=IN") or None,
            calls=calls,
            progress=progress,
            **options,
        )
    if page_file is not None:
        from ...analysis.diff_page import render_diff_page
        from ...common.files import write_text

        write_text(page_file, render_diff_page(result))
    for line in result.lines():
        echo(line, err=as_json)
    regressions = result.find_regressions(max_loss_db)
    for line in regressions:
        echo(f"worse: {line}", err=as_json)
    if as_json:
        print_json({**result.to_dict(), "regressions": regressions})
    if fail_if_worse and regressions:
        click.get_current_context().exit(1)
