"""The commands `analyze weights` and `analyze outputs`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    batch_options,
    check_output_path,
    format_examples,
    json_option,
    make_data_loader,
    picture_options,
    print_json,
)
from ..terminal import echo, progress_bar

if TYPE_CHECKING:
    from ...analysis.profile.outliers import OutlierRow

__all__ = ["analyze"]


@click.group(
    epilog=format_examples(
        "lingeronnx analyze weights model.onnx",
        "lingeronnx analyze outputs model.onnx --data calib.npz",
    )
)
def analyze() -> None:
    """Find weights and outputs whose range is dominated by outliers."""


@analyze.command(
    epilog=format_examples(
        "lingeronnx analyze weights model.onnx",
        "lingeronnx analyze weights best.pt -o wb_analyse.log",
    )
)
@click.argument("model", metavar="MODEL.onnx|CHECKPOINT.pt", type=PATH_TYPE)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="LOG",
    default=Path("wb_analyse.log"),
    show_default=True,
    help="File for the table.",
)
@json_option
def weights(model: Path, output: Path, as_json: bool) -> None:
    """Write mean, maximum and 0.99 quantile of the absolute values of every weight.

    No code in a checkpoint is executed. A row of !!! follows a weight whose maximum exceeds 10
    times its 0.99 quantile: clamp or normalize that layer.
    """
    check_output_path(output, [model])
    from ... import api

    rows = api.wb_analyse(model, output)
    _print_outliers(rows, model, output, as_json)


@analyze.command(
    epilog=format_examples(
        "lingeronnx analyze outputs model.onnx --data calib.npz",
        "lingeronnx analyze outputs model_quant.onnx --data calib.npz --match '^/layer1/' -o "
        "layer1.log",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option("--data", required=True, metavar="DATA", help=f"Inputs to run: {DATA_HELP}.")
@click.option("--match", metavar="REGEX", help="Only layers whose names match.")
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="LOG",
    default=Path("Analyse_layer_output.log"),
    show_default=True,
    help="File for the table.",
)
@picture_options
@batch_options
@json_option
def outputs(
    model: Path, data: str, output: Path, as_json: bool, batch: int | None, **options: Any
) -> None:
    """Write mean, maximum and 0.99 quantile of the absolute outputs of every layer.

    Accepts float models and integer graphs, whose integers are dequantized. A row of !!! follows a
    layer whose maximum exceeds 10 times its 0.99 quantile.
    """
    load_data = make_data_loader(options, data)
    check_output_path(output, [model, data])
    with progress_bar() as progress:
        from ... import api

        if batch is not None:
            options["batch"] = batch
        rows = api.analyse_outputs(model, load_data(data), log=output, progress=progress, **options)
    _print_outliers(rows, model, output, as_json)


def _print_outliers(rows: Sequence[OutlierRow], model: Path, output: Path, as_json: bool) -> None:
    """Print the rows with outliers and their number; with `as_json` also all rows as JSON.

    With `as_json` the text goes to stderr. `output` is the path of the written table, for the
    message.
    """
    outliers = [row for row in rows if row.is_outlier]
    for row in outliers:
        echo(
            f"{row.name}: maximum {row.max_abs:.4g} is {row.versu:.3g} times the 0.99 quantile "
            f"{row.quantile_99:.4g}; clamp or normalize this layer",
            err=as_json,
        )
    echo(f"{output}: {len(rows)} rows, {len(outliers)} with outliers", err=as_json)
    if as_json:
        print_json({"model": model, "output": output, "rows": [row.to_dict() for row in rows]})
