"""The command `convert`."""

from __future__ import annotations

from pathlib import Path

import click

from .._shared import PATH_TYPE, check_output_path, format_examples, json_option, print_json

__all__ = ["convert"]


@click.command(
    epilog=format_examples(
        "lingeronnx convert model_quant.onnx -o model_linger.onnx --to linger",
        "lingeronnx convert exported.onnx -o for_packer.onnx --to thinker",
        "lingeronnx convert model_quant.onnx -o model_qdq.onnx --to qdq",
        "lingeronnx convert model_quant.onnx -o model_exact.onnx --to qdq --exact --functions",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "-o", "--output", type=PATH_TYPE, metavar="OUT", required=True, help="The file to write."
)
@click.option(
    "--to", metavar="thinker|linger|qdq|qoperator", required=True, help="The form to write."
)
@click.option(
    "--platform", metavar="NAME", help="Of a model that another tool has quantized: what it is for."
)
@click.option(
    "--exact",
    is_flag=True,
    help="With qdq: give the simulator's integers bit for bit; name what does not.",
)
@click.option(
    "--functions",
    is_flag=True,
    help="With --exact: write that as functions of operators on integers.",
)
@json_option
def convert(
    model: Path,
    output: Path,
    to: str,
    platform: str | None,
    exact: bool,
    functions: bool,
    as_json: bool,
) -> None:
    """Write an integer graph with the names and attributes of another generation, or as standard ONNX.

    `thinker` is generation 1 (Conv2dInt, iqAdd), `linger` generation 3 (QConv2d, QAdd). `qdq` has
    QuantizeLinear and DequantizeLinear around standard operators, for onnxruntime, OpenVINO,
    TensorRT and others; `qoperator` also QLinearConv and QLinearMatMul. What means something else
    afterwards is said; where a node has no counterpart nothing is written and all such nodes are
    named.

    `--exact` adds half a step to every sum in front of a QuantizeLinear, so that ties go up as on
    the chip, and compares the file with the simulator.

    A model that another tool has quantized is taken as well, its scales kept as far as the platform
    holds them.
    """
    check_output_path(output, [model])
    from ... import api

    found = api.convert(model, to, platform, exact, functions)
    found.save(output)
    click.echo(f"{model} -> {output}", err=as_json)
    for note in found.notes:
        click.echo(f"  {note}", err=as_json)
    if as_json:
        print_json({"model": model, "output": output, "to": to, "notes": list(found.notes)})
