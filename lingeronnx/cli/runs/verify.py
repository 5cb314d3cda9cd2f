"""The command `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    calls_option,
    format_examples,
    json_option,
    make_data_loader,
    parse_pairs,
    picture_options,
    print_json,
    setting_option,
    unmeasured_option,
)
from ..show import show_verification
from ..terminal import console_for

__all__ = ["verify"]


@click.command(
    epilog=format_examples(
        (
            "lingeronnx verify board/model_chip.onnx --input board/golden/0/input.npz "
            "--device-dump "
            "workspace/data"
        ),
        "lingeronnx verify model_quant.onnx --input test.npz --sample 3 --device-log uart.log",
        "lingeronnx verify model_quant.onnx --input test.npz --device-output output.bin",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "--input", "data", required=True, metavar="DATA", help=f"Inputs of the device: {DATA_HELP}."
)
@click.option(
    "--device-dump",
    "dump",
    type=PATH_TYPE,
    metavar="DIR",
    help="Folder with dumps of the executor, text or binary.",
)
@click.option(
    "--device-log",
    "log",
    type=PATH_TYPE,
    metavar="FILE",
    help="Log of a board with a line of checksums per tensor; not verified on silicon.",
)
@click.option(
    "--device-output",
    "output",
    type=PATH_TYPE,
    metavar="FILE",
    help="Concatenated outputs: raw, or .txt with one integer per line.",
)
@click.option(
    "--sample",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Index of the sample of DATA that ran last, from 0.",
)
@setting_option("state", "Output OUT was fed back to input IN; items of DATA are calls in order.")
@calls_option
@click.option(
    "--packer-args", metavar="ARGS", help="Packer arguments of the package, to check its plan."
)
@unmeasured_option
@picture_options
@json_option
def verify(model: Path, data: str, state: Sequence[str], as_json: bool, **options: Any) -> None:
    """Compare the results of a device with the simulator.

    Reports the first layer and element that differ, the difference in integer steps, and a known
    executor fault if it reproduces all differing integers, at least 16. It also says which versions
    of the executor compute the device's integers. The exit code is 0 if all
    tensors are equal, else 1.
    """
    load_data = make_data_loader(options, data)
    from ... import api

    verification = api.verify(
        model, load_data(data), state=parse_pairs("--state", state, "OUT=IN") or None, **options
    )
    show_verification(console_for(as_json), verification)
    if as_json:
        print_json({"model": model, **verification.to_dict()})
    if not verification.agrees:
        click.get_current_context().exit(1)
