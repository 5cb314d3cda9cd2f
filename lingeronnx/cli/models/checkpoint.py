"""The command `checkpoint`."""

from __future__ import annotations

from pathlib import Path

import click

from .._shared import PATH_TYPE, check_output_path, format_examples, json_option, print_json
from ..terminal import echo

__all__ = ["checkpoint"]

_LAYOUTS = "asr|plain|torch|ub"


@click.command(
    epilog=format_examples(
        "lingeronnx checkpoint old.pt -o new.pt --to plain",
        "lingeronnx checkpoint trained.pt -o fast.pt --from ub --to torch",
    )
)
@click.argument("checkpoint_file", metavar="IN.pt", type=PATH_TYPE)
@click.option(
    "-o", "--output", type=PATH_TYPE, required=True, metavar="OUT.pt", help="Checkpoint to write."
)
@click.option(
    "--from",
    "layout",
    metavar=f"auto|{_LAYOUTS}",
    default="auto",
    help="Layout of IN.pt.  [default: auto]",
)
@click.option("--to", required=True, metavar=_LAYOUTS, help="Layout of OUT.pt.")
@json_option
def checkpoint(checkpoint_file: Path, output: Path, layout: str, to: str, as_json: bool) -> None:
    """Convert a checkpoint of LSTM layers with projection to another layout.

    asr: weight_x, weight_r, weight_p; plain: LSTMP, input_linearity etc.; torch: nn.LSTM with
    proj_size; ub: UBLSTMP with two directions. Other tensors are copied unchanged. No code in the
    file is executed.
    """
    check_output_path(output, [checkpoint_file])
    from ... import api

    converted = api.convert_checkpoint(checkpoint_file, output, to, layout)
    echo(
        f"{checkpoint_file} ({converted.layout}) -> {output} ({to}): "
        f"{len(converted.layers)} layers, {len(converted.kept)} other tensors unchanged",
        err=as_json,
    )
    for line in (*converted.layers, *(f"note: {note}" for note in converted.notes)):
        echo(f"  {line}", err=as_json)
    if as_json:
        print_json(
            {
                "checkpoint": checkpoint_file,
                "output": output,
                "from": converted.layout,
                "to": to,
                "layers": list(converted.layers),
                "kept": list(converted.kept),
                "notes": list(converted.notes),
            }
        )
