"""The command `badcase`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...common.escaping import escape_invisible
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
from ..terminal import console_for, progress_bar

__all__ = ["badcase"]


@click.command(
    epilog=format_examples(
        "lingeronnx badcase model.onnx model_quant.onnx --data test.npz -o badcase.npz",
        "lingeronnx compare model.onnx model_quant.onnx --data badcase.npz -o compared",
    )
)
@click.argument("float_model", type=PATH_TYPE, metavar="FLOAT")
@click.argument("quant_model", type=PATH_TYPE, metavar="QUANT")
@click.option("--data", required=True, metavar="DATA", help=f"Samples to search: {DATA_HELP}.")
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    default=Path("badcase.npz"),
    show_default=True,
    metavar="OUT.npz",
    help="File for the sample.",
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
    help="With module:function: whether the worst value is the smallest or the largest.",
)
@click.option("--tensor", metavar="OUTPUT", help="Graph output to compare.  [default: the first]")
@click.option(
    "--steps", type=click.IntRange(1), metavar="N", help="Search only the first N batches."
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
    """Find the sample on which two models differ most, and save it.

    Samples are compared one by one. The file contains the inputs, and the label if there is one.
    """
    load_data = make_data_loader(options, data)
    check_output_path(output, [float_model, quant_model, data])
    with progress_bar() as progress:
        from ... import api

        if batch is not None:
            options["batch"] = batch
        bad_case = api.find_bad_case(
            float_model, quant_model, load_data(data), output=tensor, progress=progress, **options
        )
        bad_case.save(output)
    console = console_for(as_json)
    console.print(
        f"worst of {bad_case.samples} samples: number {bad_case.index}, "
        f"{bad_case.metric} {bad_case.value:.6g} (mean {bad_case.mean:.6g})",
        soft_wrap=True,
    )
    for index, value in bad_case.worst[1:]:
        console.print(f"  then number {index}, {value:.6g}", soft_wrap=True)
    console.print(escape_invisible(f"saved to {output}"), soft_wrap=True)
    if as_json:
        print_json(
            {
                "file": output,
                "metric": bad_case.metric,
                "tensor": bad_case.output,
                "index": bad_case.index,
                "value": bad_case.value,
                "mean": bad_case.mean,
                "samples": bad_case.samples,
                "worst": [{"index": index, "value": value} for index, value in bad_case.worst],
            }
        )
