"""The command `profile-board`."""

from __future__ import annotations

from pathlib import Path

import click

from .._shared import PATH_TYPE, check_output_path, format_examples, json_option, print_json
from ..show import console_for, print_facts, print_line, print_notes, print_table

__all__ = ["profile_board"]

_MAX_ROWS = 10  # layers


@click.command(
    "profile-board",
    epilog=format_examples(
        "lingeronnx profile-board board.log --model model_quant.onnx",
        "lingeronnx profile-board board.log --model model_quant.onnx --clock 300 -o timing.json",
    ),
)
@click.argument("log", type=PATH_TYPE)
@click.option(
    "--model",
    type=PATH_TYPE,
    metavar="QUANT",
    required=True,
    help="The integer graph that ran on the board.",
)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="FILE",
    help="Write the prices that the log gives, for --timing.",
)
@click.option("--clock", type=float, metavar="MHZ", help="Of the board; noted in the file.")
@click.option("--platform", metavar="NAME", help="Default: the one the graph was made for.")
@click.option(
    "--packer-args",
    metavar="ARGS",
    help="It was packed with these.  [default: those that quantize prints]",
)
@json_option
def profile_board(
    log: Path,
    model: Path,
    output: Path | None,
    clock: float | None,
    platform: str | None,
    packer_args: str | None,
    as_json: bool,
) -> None:
    """Compare the executor's profile lines with the cycles that are foretold, layer by layer, and fit prices to them.

    The lines are NAME | CYCLES | (input) | (output), as the executor prints them when it is built
    with its profiling option; other lines are passed over, and of several runs the median is taken.
    With -o check, quantize, trace and deploy use the prices by --timing.
    """
    from ... import api

    if output is not None:
        check_output_path(output, [log, model])
    found = api.profile_board(
        log, model, output, platform=platform, packer_args=packer_args, clock=clock
    )
    console = console_for(as_json)
    row = found.calibration
    facts = [
        ("board", f"{found.platform}: {len(found.layers)} layers measured, runs: {found.runs}", ""),
        (
            "model",
            (
                f"formulas of {found.base_platform}: {100 * (found.median_relative_error or 0):.1f} % "
                "off at the median"
            ),
            "",
        ),
        ("fitted", f"{100 * row.median_error:.1f} % off at the median", "bold"),
        (
            "",
            f"nine of ten layers that a fit has not seen: within {100 * row.spread:.0f} %",
            "bold",
        ),
        ("each node", f"{row.node:,.0f} cycles of the host", ""),
    ]
    facts += [
        (name, f"start times {f.start:.3g}, rest times {f.rest:.3g}", "")
        for name, f in row.factors.items()
    ]
    print_facts(console, facts)
    rows = [
        (
            layer.name,
            layer.operator,
            f"{layer.measured:,.0f}",
            f"{layer.model or 0:,.0f}",
            f"{layer.fitted or 0:,.0f}",
        )
        for layer in found.layers_by_error[:_MAX_ROWS]
    ]
    print_table(
        console,
        "layers that are furthest off",
        ["layer", "operator", "measured", "model", "fitted"],
        rows,
    )
    console.print()
    unpriced = [layer.name for layer in found.layers if layer.model is None]
    notes = [
        f"{len(names)} layers {what}: {', '.join(names[:4])}{' ...' * (len(names) > 4)}"
        for names, what in (
            (unpriced, "have no price, and are not in the fit"),
            (found.unmatched_layers, "have no line in the log"),
        )
        if names
    ]
    print_notes(console, notes)
    if output is not None:
        print_line(console, "written", str(output))
    if as_json:
        print_json({"log": log, "model": model, "output": output, **found.to_dict()})
