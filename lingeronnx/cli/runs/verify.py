"""The command `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    format_examples,
    json_option,
    make_data_loader,
    parse_pairs,
    picture_options,
    print_json,
)
from ..show import console_for, show_verification

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
    "--input", "data", required=True, metavar="DATA", help=f"What the device was fed: {DATA_HELP}."
)
@click.option(
    "--device-dump",
    "dump",
    type=PATH_TYPE,
    metavar="DIR",
    help="The executor's dumps, text or binary.",
)
@click.option(
    "--device-log",
    "log",
    type=PATH_TYPE,
    metavar="FILE",
    help="A board's log with a line of checksums per tensor; its form was not tried on silicon.",
)
@click.option(
    "--device-output",
    "output",
    type=PATH_TYPE,
    metavar="FILE",
    help="All outputs one after another: raw, or .txt with an integer per line.",
)
@click.option(
    "--sample",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="The sample of DATA that was run last, counted from 0.",
)
@click.option(
    "--state",
    multiple=True,
    metavar="OUT=IN",
    help="A state output that was fed back: items of DATA are calls. Repeatable.",
)
@click.option(
    "--packer-args", metavar="ARGS", help="What the packer was told, to judge its plan by."
)
@picture_options
@json_option
def verify(model: Path, data: str, state: Sequence[str], as_json: bool, **options: Any) -> None:
    """Compare what a device computed with the simulator.

    Finds the first layer and element that differ, by how many counts, and names the fault that
    would explain it. Exit code 0 where all that was shown is equal, else 1.
    """
    load_data = make_data_loader(options)
    from ... import api

    verification = api.verify(
        model, load_data(data), state=parse_pairs("--state", state, "OUT=IN") or None, **options
    )
    show_verification(console_for(as_json), verification)
    if as_json:
        print_json({"model": model, **verification.to_dict()})
    if not verification.agrees:
        click.get_current_context().exit(1)
