"""The command `quantize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError
from ..platforms import PLATFORMS
from ..platforms import platform as platform_row
from ..show import accuracy_of, console_for, show_report
from ._shared import DATA, METRICS, PATH, amounts, check_target, examples, json_option, print_json, progress_bar

if TYPE_CHECKING:
    from ..plan import Plan
    from ..report import Report

__all__ = ["quantize"]


@click.command(
    epilog=examples(
        "lingeronnx quantize model.onnx --calib calib.npz",
        "lingeronnx quantize model.onnx --calib calib.npz --eval test.npz --metric top1 --require-chip",
        "lingeronnx quantize model.onnx --calib calib.npz --skip type:Softmax --override 'type:Conv=calibrator:max'",
    )
)
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=PATH, metavar="OUT", help="Default: MODEL_quant.onnx beside the model.")
@click.option("--calib", metavar="DATA", help=f"Calibration data: {DATA}.")
@click.option("--platform", metavar="NAME", help=f"{' | '.join(row.name for row in PLATFORMS)}  [default: venus]")
@click.option("--mode", type=click.Choice(["q-value", "max-value"]),
              help="Scales: powers of two, or any.  [default: q-value]")  # fmt: skip
@click.option("--bits", type=int, metavar="N", help="Width of activations.  [default: 8]")
@click.option("--weight-bits", type=int, metavar="N", help="Width of weights.  [default: 8]")
@click.option("--calibrator", type=click.Choice(["max", "percentile", "mse", "kl"]),
              help="How ranges are chosen.  [default: mse]")  # fmt: skip
@click.option("--effort", type=click.Choice(["fast", "normal"]), help="Time spent on accuracy.  [default: normal]")
@click.option("--fit/--no-fit", default=None, help="Rewrite layers that break a limit of the chip.  [default: fit]")
@click.option("--require-chip", is_flag=True, default=None, help="Fail where the graph is not chip-ready.")
@click.option("--skip", multiple=True, metavar="SELECTOR",
              help="Leave these nodes in float: a node, a tensor, a glob or type:Conv. Repeatable.")  # fmt: skip
@click.option("--override", "overrides", multiple=True, metavar="SELECTOR=KEY:VALUE,...",
              help="Other settings for some tensors: calibrator, percentile, scale (such as 2^-7), bits, weight_bits, "
              "out_bits. Repeatable.")  # fmt: skip
@click.option("--config", type=PATH, metavar="FILE", help="Options from a YAML file; those given here win.")
@click.option("--plan", "plan_in", type=PATH, metavar="FILE", help="Use these scales; nothing is calibrated.")
@click.option("--save-plan", type=PATH, metavar="FILE", help="Write the scales as JSON.")
@click.option("--eval", "eval_data", metavar="DATA", help="Measure float against integer on this data.")
@click.option("--metric", metavar="NAME", help=f"With --eval: {METRICS}.  [default: top1 with labels, else sqnr]")
@amounts
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of everything random.  [default: 0]")
@json_option
def quantize(
    model: Path, output: Path | None, plan_in: Path | None, save_plan: Path | None, eval_data: str | None,
    metric: str | None, overrides: Sequence[str], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Quantize a float model and say what became of it.

    Without --calib the scales come from random inputs: good to see whether a model fits a chip, not for its accuracy.
    Where float operators before or after the integers stay with the host, the part for the packer is written as well.
    """
    if metric is not None and eval_data is None:
        raise click.UsageError("--metric needs --eval DATA")
    output = output or model.with_name(f"{model.stem}_quant.onnx")
    read = [model, options["calib"], options["config"], plan_in, eval_data]
    check_target(output, read)
    chip_output = output.with_name(f"{output.stem}_chip{output.suffix}")
    check_target(chip_output, read)
    if save_plan is not None:
        check_target(save_plan, [*read, output])
    plan = None if plan_in is None else _read_plan(plan_in, options)
    with progress_bar() as progress:
        from .. import api
        from ..config import merge_overrides
        from ..files import write_text

        result = api.quantize(model, options.pop("calib"), plan=plan, overrides=merge_overrides(overrides),
                              progress=progress, **options)  # fmt: skip
        part = chip_output if result.chip is not None else None
        report = _repacked(result.report, part or output)
        if eval_data is not None:
            sizes: dict[str, Any] = {key: options[key] for key in ("batch", "limit") if options[key] is not None}
            found = api.evaluate(result.session(), eval_data, metric=metric, baseline=model, progress=progress, **sizes)
            report = replace(report, accuracy=accuracy_of(found))
        result.save(output)
        if part is not None:
            result.save_chip(part)
        if save_plan is not None:
            write_text(save_plan, result.plan.to_json())
    show_report(console_for(as_json), report, model, output, save_plan, part)
    if as_json:
        print_json({"model": model, "output": output, "chip_part": part, "plan": save_plan, **report.to_dict()})


def _read_plan(path: Path, options: dict[str, Any]) -> Plan:
    """Read a plan and put its platform and mode into `options`; ConfigError where others were given."""
    from ..plan import Plan

    try:
        plan = Plan.from_json(path.read_text(encoding="utf-8"), f"the plan {path}")
    except OSError as error:
        raise ConfigError(f"cannot read the plan {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the plan {path} is not a lingeronnx plan (no UTF-8 text)") from error
    for key, have in (("platform", plan.platform), ("mode", plan.mode)):
        if options[key] not in (None, have):
            raise ConfigError(f"--{key} {options[key]}: the plan {path} is for {have}; drop one of the two")
        options[key] = have
    return plan


def _repacked(report: Report, output: Path) -> Report:
    """Put the file that is really written into the packer's line."""
    row = platform_row(report.platform)
    if not row.packer:
        return report
    line = row.packer.format(model=output, stem=output.with_suffix(""))
    return replace(report, packer=f"{line} {report.packer_args}".strip())
