"""The command `finetune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...errors import ConfigError
from ...files import chip_file_path
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
    progress_bar,
    quantize_options,
)

__all__ = ["finetune"]


@click.command(
    epilog=format_examples(
        "lingeronnx finetune model.onnx --train calib.npz -o tuned.onnx",
        (
            "lingeronnx finetune model.onnx --train calib.npz --eval val.npz --metric top1 -o "
            "tuned.onnx --epochs 30"
        ),
        (
            "lingeronnx finetune model.onnx --train calib.npz -o tuned.onnx --platform generic "
            "--weight-bits 4"
        ),
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "--train",
    required=True,
    metavar="DATA",
    help=f"What to train on, with or without labels: {DATA_HELP}.",
)
@click.option(
    "-o", "--output", required=True, type=PATH_TYPE, metavar="OUT", help="The integer graph."
)
@click.option(
    "--eval",
    "eval_data",
    metavar="DATA",
    help="Measure every epoch on this data and keep the best.",
)
@click.option(
    "--metric",
    metavar="NAME",
    help=f"With --eval: {METRICS_HELP}.  [default: top1 with labels, else sqnr]",
)
@click.option(
    "--method",
    type=click.Choice(["blocks", "whole", "both"]),
    help="Train block by block, all at once, or one after the other.  [default: whole]",
)
@click.option(
    "--epochs",
    type=click.IntRange(0),
    metavar="N",
    help="Epochs of training as a whole.  [default: 10]",
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
    help="Adam's step, relative to a parameter's size.  [default: 0.0003]",
)
@click.option("--scale-lr", type=float, metavar="X", help="Adam's step for log2 of scales.")
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="Samples per step.  [default: 32]"
)
@click.option(
    "--loss", metavar="NAME", help="distill | labels | file.py:function  [default: distill]"
)
@click.option(
    "--scales",
    type=click.Choice(["learned", "fixed"]),
    help="Whether scales are trained.  [default: learned where they are powers of two]",
)
@click.option(
    "--rounding",
    type=click.Choice(["nearest", "soft"]),
    help="How blocks round their weights; soft is AdaRound.",
)
@click.option(
    "--batch-norm",
    type=click.Choice(["frozen", "reestimate"]),
    help="Keep its statistics, or take them anew from --train.  [default: frozen]",
)
@click.option(
    "--clamp-weight",
    metavar="V",
    help="Largest |weight|, or p99.9: a percentile of its own values.",
)
@click.option(
    "--clamp-bias", metavar="V", help="Largest |bias|, or p99.9: a percentile of its own values."
)
@click.option("--clamp-output", metavar="V", help="Largest |output| of a layer during training.")
@click.option(
    "--clamp",
    "clamps",
    multiple=True,
    metavar="SELECTOR=KIND:V,...",
    help="Other limits of weight, bias or output for some layers. Repeatable.",
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
    help="Put a torch checkpoint onto the graph first.",
)
@click.option(
    "--patience",
    type=click.IntRange(1),
    metavar="N",
    help="With --eval: stop after N epochs without a better one.",
)
@click.option(
    "--checkpoint",
    type=PATH_TYPE,
    metavar="FILE",
    help="Save the state here after every block and epoch.",
)
@click.option("--resume", is_flag=True, help="Go on from the file of --checkpoint.")
@click.option("--device", metavar="NAME", help="cpu | cuda | cuda:1 ...  [default: cpu]")
@quantize_options
@click.option("--save-plan", type=PATH_TYPE, metavar="FILE", help="Write the scales as JSON.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Use the first N samples.")
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
    """Quantize a float model and train it through the chip's own arithmetic.

    Without labels it learns to give what the float model gives. Needs PyTorch: pip install
    'lingeronnx[torch]'.
    """
    source = make_data_loader(options)
    if options["metric"] is not None and eval_data is None:
        raise click.UsageError("--metric needs --eval DATA")
    if options["resume"] and options["checkpoint"] is None:
        raise click.UsageError("--resume needs --checkpoint FILE")
    if options["patience"] is not None and eval_data is None:
        raise click.UsageError("--patience needs --eval DATA")
    read = [model, train, eval_data, options["config"], options["state_dict"]]
    check_output_path(output, read)
    chip_output = chip_file_path(output)
    written = [*read, output, chip_output]
    for path, others in (
        (chip_output, read),
        (save_plan, written),
        (options["checkpoint"], written),
    ):
        if path is not None:
            check_output_path(path, others)
    given = {key: value for key, value in options.items() if value is not None and value != ()}
    with progress_bar() as progress:
        from ... import api
        from ...plan.config import merge_overrides

        result = api.finetune(
            model,
            source(train),
            source(eval_data),
            overrides=merge_overrides(overrides),
            constraints=_parse_constraints(clamps, no_clamp),
            progress=progress,
            **given,
        )
        done = result.write(output, plan=save_plan)
    show_result(model, done, as_json)


def _parse_constraints(
    clamps: Sequence[str], none: Sequence[str]
) -> dict[str, dict[str, str] | None]:
    """Return selector -> limits of ``SELECTOR=KIND:V,...`` texts."""
    found: dict[str, dict[str, str] | None] = {}
    for text in clamps:
        selector, equals, body = text.rpartition("=")
        pairs = [part.partition(":") for part in body.split(",")]
        if not (selector and equals) or any(not colon for _, colon, _ in pairs):
            raise ConfigError(
                f"--clamp '{text}': write SELECTOR=KIND:V, for instance "
                "'type:Conv=weight:4,output:8'"
            )
        found[selector] = {
            **(found.get(selector) or {}),
            **{key.strip(): v.strip() for key, _, v in pairs},
        }
    return {**found, **dict.fromkeys(none)}
