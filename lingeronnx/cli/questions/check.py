"""The command `check`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ...common.escaping import join_lines
from ...quantization.settings import SETTINGS
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
    unmeasured_option,
)
from ..terminal import echo

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
    help=f"Target.  [default: that of an integer graph, else {DEFAULT}]",
)
@unmeasured_option
@click.option(
    "--calib",
    metavar="DATA",
    help=f"Data for dynamic input shapes and, with -o, scales: {DATA_HELP}.",
)
@click.option(
    "--packer-args",
    metavar="ARGS",
    help="Packer arguments for an integer graph, in quotes.",
)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="DIR",
    help="Write check.txt and check.html, for a float model with --calib also "
    "model_check_result.txt, the texts also as .json, and cycles.svg if cycles are known.",
)
@click.option(
    "--notes",
    type=click.Choice(SETTINGS["notes"].choices),
    default="short",
    show_default=True,
    help="short: one line for the findings of a rule; full: a line for each node and layer.",
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
    **options: Any,
) -> None:
    """Check a model against the limits of a platform; list node, value, limit and remedy.

    Takes float models and integer graphs. For float models it lists the rewrites of --fit that
    would help and the violations that would remain. For both it predicts whether the packer accepts
    the model with its arguments (chosen if none are given), whether the chip then computes the same
    integers, and the cost: MACs, bytes, memory, DMA and cycles. Exit code 0 if the model is
    accepted, else 1.

    With -o it also describes the structure of the model: nodes that stay unfused, tensors that are
    used several times or never, the scale of each output and weight, and suspicious findings. A
    float model is planned on --calib for that; without --calib this part is omitted.
    """
    from ... import api
    from ...analysis.check.page import render_check_page
    from ...analysis.check.structure import RESULT_FILE
    from ...analysis.check.time_plot import render_time_plot
    from ...interchange.qdq.qoperators import is_quantized
    from ...ir import ir

    result = api.check(
        model,
        platform=platform,
        calib=calib,
        packer_args=packer_args,
        **options,
    )
    lines, all_lines = result.lines(notes == "full"), result.lines(True)
    body = {"model": model, **result.to_dict()}
    if output is not None:
        files: dict[str, str] = {}
        if calib is None and result.kind == "float" and not is_quantized(ir.load(model)):
            echo(
                f"note: {RESULT_FILE} with scales and ranges is only written with --calib DATA",
                err=True,
            )
        else:
            structure = api.structure(
                model, platform=platform, calib=calib, violations=result.violations
            )
            wrong = [f"looks wrong: {line}" for line in structure.lines()]
            lines, all_lines = lines + wrong, all_lines + wrong
            files = {
                RESULT_FILE: structure.text(),
                f"{Path(RESULT_FILE).stem}.json": json_text(structure.to_dict()) + "\n",
            }
        if result.time.latency is not None:
            files["cycles.svg"] = render_time_plot(
                result.time, f"{model.name} on {result.platform}"
            )
        files["check.html"] = render_check_page(result, model.name)
        texts = {"check.txt": join_lines(all_lines) + "\n", "check.json": json_text(body) + "\n"}
        _write_files(output, {**texts, **files})
    for line in lines:
        echo(line, err=as_json)
    if as_json:
        print_json(body)
    if not result.sound:
        click.get_current_context().exit(1)


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write each text of `files` (name -> text) to `folder`, which is created if needed."""
    from ...common.files import created_folder, write_text

    with created_folder(folder):
        for name, text in files.items():
            write_text(folder / name, text)
