"""The command `finetune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...common.errors import ConfigError
from ...common.files import chip_file_path
from .._result import show_result
from .._shared import (
    DATA_HELP,
    METRICS_HELP,
    PATH_TYPE,
    check_output_path,
    format_examples,
    json_option,
    make_data_loader,
    picture_options,
    quantize_options,
    setting_option,
)
from ..terminal import echo, progress_bar

__all__ = ["finetune"]


@click.command(
    epilog=format_examples(
        "lingeronnx finetune model.onnx --train calib.npz -o tuned.onnx",
        "lingeronnx finetune model.onnx --train calib.npz --eval val.npz --metric top1 -o "
        "tuned.onnx --epochs 30",
        "lingeronnx finetune model.onnx --train calib.npz -o tuned.onnx --platform generic "
        "--weight-bits 4",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "--train",
    required=True,
    metavar="DATA",
    help=f"Training data, with or without labels: {DATA_HELP}.",
)
@click.option(
    "-o", "--output", required=True, type=PATH_TYPE, metavar="OUT", help="Integer graph to write."
)
@click.option(
    "--eval",
    "eval_data",
    metavar="DATA",
    help="Evaluate every epoch on DATA and keep the best one.",
)
@click.option(
    "--metric",
    metavar="NAME",
    help=f"With --eval: {METRICS_HELP}.  [default: top1 with labels, else sqnr]",
)
@click.option(
    "--method",
    type=click.Choice(["blocks", "whole", "both"]),
    help="Train block by block, end to end, or both in this order.  [default: whole]",
)
@click.option(
    "--epochs",
    type=click.IntRange(0),
    metavar="N",
    help="Epochs of end-to-end training.  [default: 10]",
)
@click.option(
    "--block-epochs",
    type=click.IntRange(0),
    metavar="N",
    help="Epochs of each block.  [default: 10]",
)
@click.option(
    "--lr",
    type=float,
    metavar="X",
    help="Learning rate of Adam, relative to a parameter's size.  [default: 0.0003]",
)
@click.option("--scale-lr", type=float, metavar="X", help="Learning rate of log2(scale).")
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="Samples per step.  [default: 32]"
)
@click.option(
    "--loss", metavar="NAME", help="distill | labels | file.py:function  [default: distill]"
)
@click.option(
    "--scales",
    type=click.Choice(["learned", "fixed"]),
    help="Whether scales are trained.  [default: learned if they are powers of two]",
)
@click.option(
    "--rounding",
    type=click.Choice(["nearest", "soft"]),
    help="Weight rounding of block training; soft: AdaRound.",
)
@click.option(
    "--batch-norm",
    type=click.Choice(["frozen", "reestimate"]),
    help="Keep the statistics, or estimate them again from --train.  [default: frozen]",
)
@click.option(
    "--clamp-weight",
    metavar="V",
    help="Maximum |weight|, or p99.9: a percentile of the weights.",
)
@click.option(
    "--clamp-bias", metavar="V", help="Maximum |bias|, or p99.9: a percentile of the biases."
)
@click.option("--clamp-output", metavar="V", help="Maximum |output| of a layer during training.")
@click.option(
    "--clamp",
    "clamps",
    multiple=True,
    metavar="SELECTOR=KIND:V,...",
    help="Limits of weight, bias or output of single layers. Repeatable.",
)
@click.option(
    "--no-clamp", multiple=True, metavar="SELECTOR", help="No limits for these layers. Repeatable."
)
@click.option(
    "--freeze", multiple=True, metavar="SELECTOR", help="Do not train these layers. Repeatable."
)
@click.option(
    "--state-dict",
    type=PATH_TYPE,
    metavar="FILE.pt",
    help="Load a torch checkpoint into the graph first.",
)
@click.option(
    "--patience",
    type=click.IntRange(1),
    metavar="N",
    help="With --eval: stop after N epochs without improvement.",
)
@click.option(
    "--checkpoint",
    type=PATH_TYPE,
    metavar="FILE",
    help="Save the training state to FILE after every block and epoch.",
)
@click.option("--resume", is_flag=True, help="Continue from the file of --checkpoint.")
@click.option("--device", metavar="NAME", help="cpu | cuda | cuda:1 ...  [default: cpu]")
@quantize_options
@click.option("--save-plan", type=PATH_TYPE, metavar="FILE", help="Write the scales as JSON.")
@setting_option("limit")
@picture_options
@json_option
def finetune(
    model: Path,
    output: Path,
    train: str,
    eval_data: str | None,
    save_plan: Path | None,
    overrides: Sequence[str],
    clamps: Sequence[str],
    no_clamp: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Quantize a float model and fine-tune it through the arithmetic of the chip.

    Without labels, training minimizes the distance to the float model's outputs. Needs PyTorch: pip
    install 'lingeronnx[torch]'.
    """
    load_data = make_data_loader(options, train, eval_data)
    if options["metric"] is not None and eval_data is None:
        raise click.UsageError("--metric needs --eval DATA")
    if options["resume"] and options["checkpoint"] is None:
        raise click.UsageError("--resume needs --checkpoint FILE")
    if options["patience"] is not None and eval_data is None:
        raise click.UsageError("--patience needs --eval DATA")
    inputs = [model, train, eval_data, options["config"], options["state_dict"]]
    check_output_path(output, inputs)
    chip_output = chip_file_path(output)
    check_output_path(chip_output, inputs)
    for path in (save_plan, options["checkpoint"]):
        if path is not None:
            check_output_path(path, [*inputs, output, chip_output])
    settings = {key: value for key, value in options.items() if value is not None and value != ()}
    with progress_bar() as progress:
        from ... import api
        from ...quantization.config import merge_overrides

        result = api.finetune(
            model,
            load_data(train),
            load_data(eval_data),
            overrides=merge_overrides(overrides),
            constraints=_parse_constraints(clamps, no_clamp),
            progress=progress,
            on_epoch=lambda report: echo(str(report), err=True),
            **settings,
        )
        written = result.write(output, plan=save_plan)
    show_result(model, written, as_json)


def _parse_constraints(
    clamps: Sequence[str], unclamped: Sequence[str]
) -> dict[str, dict[str, str] | None]:
    """Parse the values of --clamp and --no-clamp to {layer selector: {kind: text of the limit}}.

    A --clamp is "SELECTOR=KIND:V,..."; limits of one selector are merged. The selectors of
    --no-clamp, `unclamped`, map to None, also if they have limits. Raises ConfigError for a
    malformed --clamp.
    """
    limits: dict[str, dict[str, str] | None] = {}
    for text in clamps:
        selector, equals, body = text.rpartition("=")
        pairs = [part.partition(":") for part in body.split(",")]
        if not (selector and equals) or any(not colon for _, colon, _ in pairs):
            raise ConfigError(
                f"--clamp '{text}': write SELECTOR=KIND:V, such as 'type:Conv=weight:4,output:8'"
            )
        new_limits = {key.strip(): value.strip() for key, _, value in pairs}
        limits[selector] = {**(limits.get(selector) or {}), **new_limits}
    return {**limits, **dict.fromkeys(unclamped)}
