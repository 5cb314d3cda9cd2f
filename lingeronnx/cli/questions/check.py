"""The command `check`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ...targets import DEFAULT
from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    format_examples,
    input_size_options,
    json_option,
    json_text,
    print_json,
    timing_options,
)

__all__ = ["check"]


@click.command(
    epilog=format_examples(
        "lingeronnx check model.onnx",
        f"lingeronnx check model_quant.onnx --platform {DEFAULT} -o findings",
        "lingeronnx check model_quant.onnx --clock 300 --budget-ms 20",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "--platform",
    metavar="NAME",
    help=f"Default: the one an integer graph was made for, else {DEFAULT}.",
)
@click.option(
    "--calib",
    metavar="DATA",
    help=f"Sizes of inputs that the file leaves open; with -o scales: {DATA_HELP}.",
)
@click.option(
    "--packer-args",
    metavar="ARGS",
    help="Judge an integer graph under these packer arguments, in quotes.",
)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="DIR",
    help="Write in here check.txt, check.html and, of a float model with --calib, "
    "model_check_result.txt, the texts as "
    ".json too; and cycles.svg, where cycles are known.",
)
@click.option(
    "--notes",
    type=click.Choice(["short", "full"]),
    default="short",
    show_default=True,
    help="full: every node and layer, where findings of one rule are one line otherwise.",
)
@input_size_options
@timing_options
@json_option
def check(
    model: Path,
    platform: str | None,
    calib: str | None,
    packer_args: str | None,
    output: Path | None,
    notes: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Say whether a model breaks limits of a platform, and which: node, value, limit and remedy.

    Takes float models and integer graphs. Says of float models which rewrites of --fit would help
    and what would remain; of both whether the packer takes them with its arguments (chosen where
    none are given), whether the chip then computes the same integers, and the cost: MACs, bytes,
    memory, DMA, cycles. Exit code 0 where nothing is wrong, else 1.

    With -o also how the model is built and would be held: what is left unfused, used twice or
    never, the scale of each output and weight, and what looks wrong. A float model is planned on
    --calib for that, and this is left out without.
    """
    from ... import api
    from ...analysis.check.page import render_check_page
    from ...analysis.check.structure import RESULT_FILE
    from ...analysis.check.time_plot import render_time_plot
    from ...graph import ir
    from ...qdq.import_model import is_quantized

    found = api.check(
        model,
        platform=platform,
        calib=calib,
        packer_args=packer_args,
        **given,
    )
    lines, every = found.lines(notes == "full"), found.lines(True)
    body = {"model": model, **found.to_dict()}
    if output is not None:
        files: dict[str, str] = {}
        if calib is None and found.kind == "float" and not is_quantized(ir.load(model)):
            click.echo(
                (
                    f"note: {RESULT_FILE} tells scales and ranges: it is written with --calib DATA "
                    "only"
                ),
                err=True,
            )
        else:
            built = api.structure(
                model, platform=platform, calib=calib, violations=found.violations
            )
            wrong = [f"looks wrong: {line}" for line in built.lines()]
            lines, every = lines + wrong, every + wrong
            files = {
                RESULT_FILE: built.text(),
                f"{Path(RESULT_FILE).stem}.json": json_text(built.to_dict()) + "\n",
            }
        if found.time.latency is not None:
            files["cycles.svg"] = render_time_plot(found.time, f"{model.name} on {found.platform}")
        files["check.html"] = render_check_page(found, model.name)
        texts = {"check.txt": "\n".join(every) + "\n", "check.json": json_text(body) + "\n"}
        _write_files(output, {**texts, **files})
    for line in lines:
        click.echo(line, err=as_json)
    if as_json:
        print_json(body)
    if not found.sound:
        click.get_current_context().exit(1)


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files into `folder`, which is made where it is not there.

    ConfigError where it cannot be.
    """
    from ...files import created_folder, write_text

    with created_folder(folder):
        for name, text in files.items():
            write_text(folder / name, text)
