"""The command `checkpoint`."""

from __future__ import annotations

from pathlib import Path

import click

from .._shared import PATH_TYPE, check_output_path, format_examples, json_option, print_json

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
    "-o", "--output", type=PATH_TYPE, required=True, metavar="OUT.pt", help="The file to write."
)
@click.option(
    "--from",
    "layout",
    metavar=f"auto|{_LAYOUTS}",
    default="auto",
    help="The layout it is in.  [default: auto]",
)
@click.option("--to", required=True, metavar=_LAYOUTS, help="The layout to write.")
@json_option
def checkpoint(checkpoint_file: Path, output: Path, layout: str, to: str, as_json: bool) -> None:
    """Write a checkpoint of LSTM layers with projection in another layout.

    asr: weight_x, weight_r, weight_p; plain: LSTMP, input_linearity and so on; torch: nn.LSTM with
    proj_size; ub: UBLSTMP with its two directions. Other tensors are passed on as they are. Nothing
    in the file is executed.
    """
    check_output_path(output, [checkpoint_file])
    from ... import api

    done = api.convert_checkpoint(checkpoint_file, output, to, layout)
    click.echo(
        f"{checkpoint_file} ({done.layout}) -> {output} ({to}): {len(done.layers)} layers, "
        f"{len(done.kept)} other tensors as they were",
        err=as_json,
    )
    for line in (*done.layers, *(f"note: {note}" for note in done.notes)):
        click.echo(f"  {line}", err=as_json)
    if as_json:
        print_json(
            {
                "checkpoint": checkpoint_file,
                "output": output,
                "from": done.layout,
                "to": to,
                "layers": list(done.layers),
                "kept": list(done.kept),
                "notes": list(done.notes),
            }
        )
