"""The command `profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...common.errors import ConfigError
from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    batch_options,
    format_examples,
    json_option,
    make_data_loader,
    picture_options,
    print_json,
)
from ..terminal import echo, progress_bar

__all__ = ["profile"]

#: Option -> the folder that it adds to the files of a profile.
_OPTIONAL_FOLDERS = {"tensorboard": "tensorboard", "keep": "tensors"}


@click.command(
    epilog=format_examples(
        "lingeronnx profile model.onnx --data calib.npz -o profile",
        (
            "lingeronnx profile model_quant.onnx --data calib.npz -o profile --prefix /layer1/ "
            "--type "
            "Conv2dInt"
        ),
        "lingeronnx profile model.onnx --data calib.npz -o profile --tensorboard --per-channel",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option("--data", required=True, metavar="DATA", help=f"Input data: {DATA_HELP}.")
@click.option(
    "-o",
    "--output",
    "out_dir",
    type=PATH_TYPE,
    required=True,
    metavar="DIR",
    help="Folder to write.",
)
@click.option(
    "--prefix",
    "prefixes",
    multiple=True,
    metavar="P",
    help="Only operators whose node name starts with P. Repeatable.",
)
@click.option(
    "--type", "types", multiple=True, metavar="T", help="Only operators of this type. Repeatable."
)
@click.option(
    "--stack",
    "with_stack",
    is_flag=True,
    help="Add a column with the source location, if the exporter of torch recorded it.",
)
@click.option("--tensorboard", is_flag=True, help="Write histograms into DIR/tensorboard.")
@click.option("--per-channel", is_flag=True, help="With --tensorboard: one histogram per channel.")
@click.option(
    "--keep",
    is_flag=True,
    help="Also write every tensor to DIR/tensors, to compare later without running again.",
)
@picture_options
@batch_options
@json_option
def profile(
    model: Path, data: str, out_dir: Path, as_json: bool, batch: int | None, **options: Any
) -> None:
    """Write range, mean and variance of the tensors of each operator of a model.

    DIR gets statistic.txt, with one row per input, output, weight and bias of each operator;
    profile.html, the same for a browser; and profile.npz, which also contains histograms. Integers
    are dequantized. Accepts float models and integer graphs.
    """
    load_data = make_data_loader(options, data)
    if options["per_channel"] and not options["tensorboard"]:
        raise click.UsageError("--per-channel needs --tensorboard")
    if not out_dir.parent.is_dir():
        raise ConfigError(
            f"cannot create folder {out_dir}: folder {out_dir.parent} does not exist; create it "
            "first"
        )
    with progress_bar() as progress:
        from ... import api

        if batch is not None:
            options["batch"] = batch
        recorded = api.profile(model, load_data(data), out_dir, progress=progress, **options)
    rows = recorded.to_dict(options["prefixes"], options["types"])
    files = ["profile.html", "profile.npz", "statistic.txt"]
    files += [name for key, name in _OPTIONAL_FOLDERS.items() if options[key]]
    echo(
        (
            f"{out_dir}: {len(rows)} rows of {len({row['module'] for row in rows})} operators; "
            f"{', '.join(files)}"
        ),
        err=as_json,
    )
    if as_json:
        print_json({"model": model, "output": out_dir, "rows": rows})
