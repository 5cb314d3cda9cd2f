"""The command `profile-board`."""

from __future__ import annotations

from pathlib import Path

import click

from .._shared import PATH_TYPE, check_output_path, format_examples, json_option, print_json
from ..show import print_facts, print_line, print_notes, print_table
from ..terminal import console_for

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
    help="Integer graph that ran on the board.",
)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="FILE",
    help="Timing file to write, for --timing.",
)
@click.option("--clock", type=float, metavar="MHZ", help="Clock of the board, stored in the file.")
@click.option("--platform", metavar="NAME", help="Platform.  [default: that of the graph]")
@click.option(
    "--packer-args",
    metavar="ARGS",
    help="Packer arguments of the package.  [default: those that quantize prints]",
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
    """Compare the profile of the executor with the predicted cycles and fit the cost model to it.

    Profile lines have the form NAME | CYCLES | (input) | (output), as printed by an executor that
    is built with its profiling option. Other lines are ignored; of several runs, the median is
    used. check, quantize, trace and deploy read the file of -o with --timing.
    """
    from ... import api

    if output is not None:
        check_output_path(output, [log, model])
    fit = api.profile_board(
        log, model, output, platform=platform, packer_args=packer_args, clock=clock
    )
    console = console_for(as_json)
    calibration = fit.calibration
    facts = [
        ("board", f"{fit.platform}: {len(fit.layers)} layers measured, runs: {fit.runs}", ""),
        (
            "model",
            (
                f"formulas of {fit.base_platform}: {100 * (fit.median_relative_error or 0):.1f} % "
                "off at the median"
            ),
            "",
        ),
        ("fitted", f"{100 * calibration.median_error:.1f} % off at the median", "bold"),
        (
            "",
            f"nine of ten layers outside the fit: within {100 * calibration.spread:.0f} %",
            "bold",
        ),
        ("each node", f"{calibration.node:,.0f} cycles of the host", ""),
    ]
    facts += [
        (name, f"start times {f.start:.3g}, rest times {f.rest:.3g}", "")
        for name, f in calibration.factors.items()
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
        for layer in fit.layers_by_error[:_MAX_ROWS]
    ]
    print_table(
        console,
        "layers that are furthest off",
        ["layer", "operator", "measured", "model", "fitted"],
        rows,
    )
    console.print()
    unpriced = [layer.name for layer in fit.layers if layer.model is None]
    notes = [
        f"{len(names)} layers {problem}: {', '.join(names[:4])}{' ...' * (len(names) > 4)}"
        for names, problem in (
            (unpriced, "have no price, and are not in the fit"),
            (fit.unmatched_layers, "have no line in the log"),
        )
        if names
    ]
    print_notes(console, notes)
    if output is not None:
        print_line(console, "written", str(output))
    if as_json:
        print_json({"log": log, "model": model, "output": output, **fit.to_dict()})
