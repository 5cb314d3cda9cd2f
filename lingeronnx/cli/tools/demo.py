"""The command `demo`."""

from __future__ import annotations

import click

from .._shared import format_examples, json_option, print_json
from ..report import show_demo
from ..terminal import console_for, progress_bar

__all__ = ["demo"]


@click.command(
    epilog=format_examples(
        "lingeronnx demo",
    )
)
@json_option
def demo(as_json: bool) -> None:
    """Quantize a small CNN for handwritten digits and measure it on digits it never saw.

    The model and the digits are part of the package. Writes build/digits_cnn_quant.onnx in the
    current folder.
    """
    with progress_bar() as progress:
        from ..demo_model import demo as run

        result = run(progress=progress)
    report = result.result.report.with_accuracy(result.evaluation)
    show_demo(console_for(as_json), result, report)
    if as_json:
        print_json(
            {
                "model": result.model,
                "output": result.output,
                "seconds": result.seconds,
                **report.to_dict(),
            }
        )
