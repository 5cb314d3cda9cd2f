"""The command `report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    batch_options,
    format_examples,
    json_option,
    make_data_loader,
    parse_pairs,
    picture_options,
    print_json,
    state_options,
    timing_options,
)
from ..show import print_line
from ..terminal import console_for, progress_bar

__all__ = ["report"]


@click.command(
    epilog=format_examples(
        "lingeronnx report model.onnx model_quant.onnx --data test.npz -o report",
        (
            "lingeronnx report model.onnx model_quant.onnx --data test.npz -o report "
            "--calib calib.npz --sensitivity sensitivity"
        ),
    )
)
@click.argument("float_model", type=PATH_TYPE, metavar="MODEL")
@click.argument("quant_model", type=PATH_TYPE, metavar="QUANT")
@click.option(
    "--data",
    required=True,
    metavar="DATA",
    help=f"What to run both on: {DATA_HELP}; may hold labels.",
)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    required=True,
    metavar="DIR",
    help="The folder for report.html and .json.",
)
@click.option(
    "--calib",
    metavar="DATA",
    help="Calibration data: try what may raise the accuracy, by quantizing again with it.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="MINUTES",
    default=1.0,
    show_default=True,
    help="With --calib: time for these trials together.",
)
@click.option(
    "--sensitivity",
    type=PATH_TYPE,
    metavar="DIR",
    help="A folder that sensitivity wrote: show it, too.",
)
@state_options
@timing_options
@picture_options
@batch_options
@json_option
def report(
    float_model: Path,
    quant_model: Path,
    data: str,
    output: Path,
    calib: str | None,
    budget: float,
    sensitivity: Path | None,
    state: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Write an HTML report on a quantized model.

    It covers suggestions, limits, memory, cost, time and every layer, and needs no other files and
    no network. quantize --report DIR writes the same page with the report of quantize.
    """
    load_data = make_data_loader(options, data, calib)
    state_feedback = parse_pairs("--state", state, "OUT=IN") or None
    with progress_bar() as progress:
        from ... import api

        files = api.report(
            float_model,
            quant_model,
            load_data(data),
            output,
            calib=load_data(calib) if calib else None,
            budget=budget,
            sensitivity=sensitivity,
            state=state_feedback,
            progress=progress,
            **options,
        )
    print_line(console_for(as_json), "written", ", ".join(map(str, files)))
    if as_json:
        print_json({"model": float_model, "quantized": quant_model, "written": list(files)})
