"""The command `trace`."""

from __future__ import annotations

from pathlib import Path

import click

from .._shared import (
    PATH_TYPE,
    check_output_path,
    format_examples,
    json_option,
    print_json,
    setting_option,
)
from ..show import print_facts, print_line
from ..terminal import console_for

__all__ = ["trace"]


@click.command(
    epilog=format_examples(
        "lingeronnx trace model_quant.onnx -o t.json",
        "lingeronnx trace model_quant.onnx -o t.json --clock 300",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "-o", "--output", type=PATH_TYPE, metavar="FILE", required=True, help="The trace, as JSON."
)
@setting_option("clock", "Clock of the chip in MHz; without it, a cycle is shown as a microsecond.")
@click.option("--platform", metavar="NAME", help="Default: the one the graph was made for.")
@click.option(
    "--packer-args", metavar="ARGS", help="In quotes.  [default: those that quantize prints]"
)
@setting_option("timing")
@json_option
def trace(
    model: Path,
    output: Path,
    clock: float | None,
    platform: str | None,
    packer_args: str | None,
    timing: Path | None,
    as_json: bool,
) -> None:
    """Write a timeline of an integer graph with lanes for the NPU, the DMA and the host.

    Open it in Perfetto (ui.perfetto.dev), speedscope or Chrome (chrome://tracing). The cost of host
    operators is unknown: they are marks without duration.
    """
    from ... import api

    check_output_path(output, [model, timing])
    timeline = api.trace(model, platform, packer_args, clock=clock, timing=timing)
    timeline.write(output)
    console = console_for(as_json)
    lines = timeline.time.lines()
    print_facts(
        console, [("time" if index == 0 else "", line, "") for index, line in enumerate(lines)]
    )
    print_line(console, "written", f"{output} ({len(timeline.slices)} slices)")
    if as_json:
        print_json(
            {
                "model": model,
                "output": output,
                "slices": len(timeline.slices),
                "time": timeline.time.to_dict(),
            }
        )
