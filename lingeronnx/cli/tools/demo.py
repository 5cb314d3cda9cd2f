"""The command `demo`."""

from __future__ import annotations

from dataclasses import replace

import click

from .._shared import format_examples, json_option, print_json, progress_bar
from ..report import show_demo
from ..show import console_for

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
        from ...demo import demo as run

        done = run(progress=progress)
    report = replace(done.result.report, accuracy=done.evaluation.accuracy)
    show_demo(console_for(as_json), done, report)
    if as_json:
        print_json(
            {
                "model": done.model,
                "output": done.output,
                "seconds": done.seconds,
                **report.to_dict(),
            }
        )
