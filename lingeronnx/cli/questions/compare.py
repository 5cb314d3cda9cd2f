"""The command `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

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
    worker_options,
)
from ..show import show_comparison
from ..terminal import console_for, progress_bar

__all__ = ["compare"]


@click.command(
    epilog=format_examples(
        "lingeronnx compare model.onnx model_quant.onnx --data test.npz -o compared",
        "lingeronnx compare model.onnx model_quant.onnx --data badcase.npz -o compared --json",
    )
)
@click.argument("float_model", type=PATH_TYPE, metavar="FLOAT")
@click.argument("quant_model", type=PATH_TYPE, metavar="QUANT")
@click.option("--data", metavar="DATA", help=f"What to run both on: {DATA_HELP}; may hold labels.")
@click.option(
    "--profiles",
    nargs=2,
    type=PATH_TYPE,
    metavar="DIR DIR",
    help="In place of --data: folders of FLOAT and QUANT by `profile --keep`; nothing is run.",
)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    required=True,
    metavar="DIR",
    help="The folder for the four files.",
)
@state_options
@picture_options
@batch_options
@worker_options
@json_option
def compare(
    float_model: Path,
    quant_model: Path,
    data: str | None,
    profiles: tuple[Path, Path] | None,
    output: Path,
    state: Sequence[str],
    calls: int | Literal["all"] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare two models tensor by tensor: layers with a loss, its causes and remedies.

    FLOAT and QUANT are float models or integer graphs; QUANT may be a folder with a dump. Writes
    compare_per_layer_out.txt and .csv, abnormal_layer_advisor.txt and profiler.html to DIR.
    """
    load_data = make_data_loader(options, data)
    if (data is None) == (not profiles):
        raise click.UsageError("pass either --data DATA or --profiles DIR DIR")
    with progress_bar() as progress:
        from ... import api

        state_feedback = parse_pairs("--state", state, "OUT=IN") or None
        if profiles:
            comparison = api.compare_kept(
                float_model, quant_model, profiles, output, progress=progress, **options
            )
        else:
            comparison = api.compare(
                float_model,
                quant_model,
                load_data(data),
                output,
                state=state_feedback,
                calls=calls,
                progress=progress,
                **options,
            )
    show_comparison(console_for(as_json), comparison, output)
    if as_json:
        print_json({"folder": output, **comparison.to_dict()})
