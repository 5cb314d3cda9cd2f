"""The command `sensitivity`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...common.escaping import escape_invisible
from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    batch_options,
    format_examples,
    input_options,
    json_option,
    make_data_loader,
    parse_pairs,
    picture_options,
    print_json,
    quantize_options,
    state_options,
    worker_options,
)
from ..terminal import console_for, progress_bar

__all__ = ["sensitivity"]

_MAX_ROWS = 20  # rows on the screen; the file has all


@click.command(
    epilog=format_examples(
        "lingeronnx sensitivity model.onnx --calib calib.npz --eval test.npz -o sensitivity",
        (
            "lingeronnx sensitivity model.onnx --calib calib.npz -o sensitivity --metric SQNR "
            "--metric "
            "KL --what all"
        ),
        (
            "lingeronnx sensitivity model.onnx --calib calib.npz --eval test.npz -o sensitivity "
            "--metric top1 --workers 4"
        ),
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option("--calib", metavar="DATA", help=f"Calibration data: {DATA_HELP}.")
@click.option("--eval", "eval_data", metavar="DATA", help="What to measure on.  [default: --calib]")
@click.option(
    "-o",
    "--output",
    "folder",
    type=PATH_TYPE,
    required=True,
    metavar="DIR",
    help="Folder for sensitive_ops.txt, sensitive_ops.json and what --resume needs.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="L1 | MSE | KL | Cosine | SQNR of the output against the float model's, top1 | top5, or "
    "module:function of (outputs, labels). Repeatable; the first ranks.  [default: L1]",
)
@click.option(
    "--order",
    type=click.Choice(["ascending", "descending"]),
    help="Which values are the most sensitive first.  [default: a function's least]",
)
@click.option(
    "--what",
    type=click.Choice(["both", "weight", "activation", "all"]),
    default="both",
    show_default=True,
    help="What of an operator is quantized.",
)
@click.option(
    "--all-but-one", is_flag=True, help="Quantize everything but the operator, instead of it alone."
)
@click.option(
    "--reserve",
    is_flag=True,
    help="The other way round: the operators to take back to 8 bits first.",
)
@click.option(
    "--tensor",
    "output",
    metavar="OUTPUT",
    help="The graph output to look at.  [default: the first]",
)
@click.option(
    "--min-gain",
    type=click.FloatRange(0),
    metavar="GAIN",
    help=(
        "What advice must give back, in its metric's unit.  [default: 0.5 dB, 0.25 points of "
        "accuracy]"
    ),
)
@click.option(
    "--max-float-macs",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    metavar="SHARE",
    help="The largest share of multiply-accumulates that advice may leave in float.",
)
@click.option(
    "--resume", is_flag=True, help="Go on where a run into the same folder was broken off."
)
@click.option(
    "--plots",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Draw histograms of the N best and worst layers, as PDF files.  [default: none]",
)
@quantize_options
@input_options
@state_options
@picture_options
@batch_options
@worker_options
@json_option
def sensitivity(
    model: Path,
    calib: str | None,
    eval_data: str | None,
    folder: Path,
    metrics: Sequence[str],
    overrides: Sequence[str],
    state: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Rank the operators of a float model by the loss from quantizing each one alone.

    The report ends with options of quantize that keep the worst operators in float, and their
    predicted gain.
    """
    load_data = make_data_loader(options, calib, eval_data)
    with progress_bar() as progress:
        from ... import api
        from ...quantization.config import merge_overrides

        ranking = api.sensitivity(
            model,
            load_data(calib),
            load_data(eval_data),
            folder=folder,
            metric=metrics or ("L1",),
            overrides=merge_overrides(overrides) or None,
            state=parse_pairs("--state", state, "OUT=IN") or None,
            progress=progress,
            **options,
        )
    console = console_for(as_json)
    console.print(ranking.text(_MAX_ROWS), soft_wrap=True)
    for note in ranking.notes:
        console.print(escape_invisible(f"note: {note}"), soft_wrap=True)
    if as_json:
        best = ranking.best
        print_json(
            {
                "model": model,
                "folder": folder,
                "metrics": list(ranking.metrics),
                "sensitive_ops": ranking.to_list(),
                "weight_bits": dict(ranking.weight_bits),
                "samples": ranking.samples,
                "advised_by": ranking.advised_by,
                "float": ranking.exact,
                "quantized": ranking.quantized,
                "advice": list(ranking.advice),
                "options": [] if best is None else list(best.options),
                "macs": ranking.macs,
                "macs_of_whole_runs": ranking.whole,
                "notes": list(ranking.notes),
            }
        )
