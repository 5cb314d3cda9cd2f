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
    progress_bar,
)

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
    """Find the weights and outputs whose range a few outliers made."""


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
    help="The table.",
)
@json_option
def weights(model: Path, output: Path, as_json: bool) -> None:
    """Write mean, largest and 0.99 quantile of every weight's absolute values.

    Nothing in a checkpoint is executed. Under a weight whose largest value is over 10 times its
    0.99 quantile stands a row of !!!: clamp or normalise that layer.
    """
    check_output_path(output, [model])
    from ... import api

    rows = api.wb_analyse(model, output)
    _print_outliers(rows, model, output, as_json)


@analyze.command(
    epilog=format_examples(
        "lingeronnx analyze outputs model.onnx --data calib.npz",
        (
            "lingeronnx analyze outputs model_quant.onnx --data calib.npz --match '^/layer1/' -o "
            "layer1.log"
        ),
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option("--data", required=True, metavar="DATA", help=f"What to run: {DATA_HELP}.")
@click.option("--match", metavar="REGEX", help="Only layers in whose names this is found.")
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="LOG",
    default=Path("Analyse_layer_output.log"),
    show_default=True,
    help="The table.",
)
@picture_options
@batch_options
@json_option
def outputs(
    model: Path, data: str, output: Path, as_json: bool, batch: int | None, **options: Any
) -> None:
    """Write mean, largest and 0.99 quantile of every layer's absolute outputs, over all of the data.

    Takes float models and integer graphs, whose integers count as real values. Under a layer whose
    largest output is over 10 times its 0.99 quantile stands a row of !!!.
    """
    source = make_data_loader(options)
    check_output_path(output, [model, data])
    with progress_bar() as progress:
        from ... import api

        if batch is not None:
            options["batch"] = batch
        rows = api.analyse_outputs(model, source(data), log=output, progress=progress, **options)
    _print_outliers(rows, model, output, as_json)


def _print_outliers(rows: Sequence[OutlierRow], model: Path, output: Path, as_json: bool) -> None:
    """Print the outliers' rows, and with --json all."""
    outliers = [row for row in rows if row.is_outlier]
    for row in outliers:
        click.echo(
            f"{row.name}: its largest value {row.max_abs:.4g} is {row.versu:.3g} times its 0.99 "
            "quantile "
            f"{row.quantile_99:.4g}; clamp or normalise this layer",
            err=as_json,
        )
    click.echo(f"{output}: {len(rows)} rows, {len(outliers)} with an outlier's range", err=as_json)
    if as_json:
        print_json({"model": model, "output": output, "rows": [row.to_dict() for row in rows]})
