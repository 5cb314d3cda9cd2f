"""The command `convert`."""

from __future__ import annotations

from pathlib import Path

import click

from .._shared import PATH_TYPE, check_output_path, format_examples, json_option, print_json
from ..terminal import echo

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
    "-o", "--output", type=PATH_TYPE, metavar="OUT", required=True, help="Graph to write."
)
@click.option(
    "--to", metavar="thinker|linger|qdq|qoperator", required=True, help="Dialect to write."
)
@click.option("--platform", metavar="NAME", help="Platform of a model that another tool quantized.")
@click.option(
    "--exact",
    is_flag=True,
    help="With qdq: reproduce the simulator's integers bit for bit, and list nodes that do not.",
)
@click.option(
    "--functions",
    is_flag=True,
    help="With --exact: write such nodes as ONNX functions on integers.",
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
    """Convert an integer graph to the dialect of another generation, or to standard ONNX.

    `thinker` is generation 1 (Conv2dInt, iqAdd), `linger` generation 3 (QConv2d, QAdd). `qdq` has
    QuantizeLinear and DequantizeLinear around standard operators, for onnxruntime, OpenVINO,
    TensorRT and others; `qoperator` also has QLinearConv and QLinearMatMul. Differences in meaning
    are reported. If nodes have no counterpart, they are listed and nothing is written.

    `--exact` adds half a step to every sum before a QuantizeLinear, so that ties round up as on the
    chip, and compares the file with the simulator.

    A model that another tool quantized is also accepted; it keeps its scales where the platform
    supports them.
    """
    check_output_path(output, [model])
    from ... import api

    converted = api.convert(model, to, platform, exact, functions)
    converted.save(output)
    echo(f"{model} -> {output}", err=as_json)
    for note in converted.notes:
        echo(f"  {note}", err=as_json)
    if as_json:
        print_json({"model": model, "output": output, "to": to, "notes": list(converted.notes)})
