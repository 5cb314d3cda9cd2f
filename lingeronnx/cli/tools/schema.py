"""The command `schema`."""

from __future__ import annotations

import click

from .._shared import format_examples, print_json

__all__ = ["schema"]


@click.command(
    epilog=format_examples(
        "lingeronnx schema quant > quant.schema.json",
        "lingeronnx schema plan",
        "lingeronnx schema report",
    )
)
@click.argument("what", type=click.Choice(["quant", "plan", "report", "page", "timing"]))
def schema(what: str) -> None:
    """Print the JSON Schema of a file that users write or read.

    quant.yaml (--config), a plan (--save-plan), a report (quantize --json), the data of a page
    (report.json), prices of a chip (profile-board -o). An editor that knows it completes and checks
    quant.yaml as it is typed.
    """
    from ...quantization.json_schemas import make_json_schema

    print_json(make_json_schema(what))
