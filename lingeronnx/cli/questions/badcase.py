"""The command `badcase`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from ..show import console_for

__all__ = ["badcase"]


@click.command(
    epilog=format_examples(
        "lingeronnx badcase model.onnx model_quant.onnx --data test.npz -o badcase.npz",
        "lingeronnx compare model.onnx model_quant.onnx --data badcase.npz -o compared",
    )
)
@click.argument("float_model", type=PATH_TYPE, metavar="FLOAT")
@click.argument("quant_model", type=PATH_TYPE, metavar="QUANT")
@click.option("--data", required=True, metavar="DATA", help=f"Where to look: {DATA_HELP}.")
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    default=Path("badcase.npz"),
    show_default=True,
    metavar="OUT.npz",
    help="The file for the sample.",
)
@click.option(
    "--metric",
    default="L1",
    show_default=True,
    metavar="NAME",
    help="L1 | MSE | KL | Cosine | SQNR | module:function of (float output, quantized output)",
)
@click.option(
    "--order",
    type=click.Choice(["ascending", "descending"]),
    help="With module:function: which values are the worst first.",
)
@click.option(
    "--tensor", metavar="OUTPUT", help="The graph output to look at.  [default: the first]"
)
@click.option(
    "--steps", type=click.IntRange(1), metavar="N", help="Look at the first N batches only."
)
@picture_options
@batch_options
@json_option
def badcase(
    float_model: Path,
    quant_model: Path,
    data: str,
    output: Path,
    tensor: str | None,
    batch: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the sample on which two models are furthest apart, and save it.

    Samples are looked at one by one, not in batches. The file holds the inputs, and the label where
    there is one.
    """
    source = make_data_loader(options)
    check_output_path(output, [float_model, quant_model, data])
    with progress_bar() as progress:
        from ... import api

        if batch is not None:
            options["batch"] = batch
        found = api.find_bad_case(
            float_model, quant_model, source(data), output=tensor, progress=progress, **options
        )
        found.save(output)
    console = console_for(as_json)
    console.print(
        f"worst of {found.samples} samples: number {found.index}, {found.metric} {found.value:.6g} "
        f"(mean {found.mean:.6g})",
        soft_wrap=True,
    )
    for index, value in found.worst[1:]:
        console.print(f"  then number {index}, {value:.6g}", soft_wrap=True)
    console.print(f"saved to {output}", soft_wrap=True)
    if as_json:
        print_json(
            {
                "file": output,
                "metric": found.metric,
                "tensor": found.output,
                "index": found.index,
                "value": found.value,
                "mean": found.mean,
                "samples": found.samples,
                "worst": [{"index": index, "value": value} for index, value in found.worst],
            }
        )
