"""The command `quantize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError
from ..platforms import platform as platform_row
from ..show import accuracy_of, console_for, show_report
from ._shared import (
    DATA,
    METRICS,
    PATH,
    amounts,
    check_target,
    examples,
    json_option,
    print_json,
    progress_bar,
    quantizing,
)

if TYPE_CHECKING:
    from ..plan import Plan
    from ..report import Report

__all__ = ["quantize", "repacked"]


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
@quantizing
@click.option("--state", multiple=True, metavar="OUT=IN",
              help="A state output that a caller feeds back into a state input: items of --calib are calls, one after "
              "the other. Repeatable.")  # fmt: skip
@click.option("--format", "written", type=click.Choice(["thinker", "linger"]), default="thinker", show_default=True,
              help="Names and attributes of the graph: generation 1, or 3 as by convert.")  # fmt: skip
@click.option("--plan", "plan_in", type=PATH, metavar="FILE", help="Use these scales; nothing is calibrated.")
@click.option("--save-plan", type=PATH, metavar="FILE", help="Write the scales as JSON.")
@click.option("--eval", "eval_data", metavar="DATA", help="Measure float against integer on this data.")
@click.option("--metric", metavar="NAME", help=f"With --eval: {METRICS}.  [default: top1 with labels, else sqnr]")
@amounts
@json_option
def quantize(
    model: Path, output: Path | None, plan_in: Path | None, save_plan: Path | None, eval_data: str | None,
    metric: str | None, overrides: Sequence[str], state: Sequence[str], written: str, as_json: bool,
    **options: Any,
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
                              state=_pairs(state) or None, progress=progress, **options)  # fmt: skip
        part = chip_output if result.chip is not None else None
        report = repacked(result.report, part or output)
        if eval_data is not None:
            sizes: dict[str, Any] = {key: options[key] for key in ("batch", "limit") if options[key] is not None}
            found = api.evaluate(result.session(), eval_data, metric=metric, baseline=model, progress=progress, **sizes)
            report = replace(report, accuracy=accuracy_of(found))
        notes = api.convert(result.graph, written).notes if written != "thinker" else ()
        report = replace(report, notes=(*report.notes, *notes))
        result.save(output, written)
        if part is not None:
            result.save_chip(part, written)
        if save_plan is not None:
            write_text(save_plan, result.plan.to_json())
    show_report(console_for(as_json), report, model, output, save_plan, part)
    if as_json:
        print_json({"model": model, "output": output, "chip_part": part, "plan": save_plan, **report.to_dict()})


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """Split OUT=IN."""
    found = {}
    for text in texts:
        output, equals, name = text.rpartition("=")
        if not (output and equals and name):
            raise ConfigError(f"--state {text}: write OUT=IN, the names of an output and an input")
        found[output] = name
    return found


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


def repacked(report: Report, output: Path) -> Report:
    """Put the file that is really written into the packer's line."""
    row = platform_row(report.platform)
    if not row.packer:
        return report
    line = row.packer.format(model=output, stem=output.with_suffix(""))
    return replace(report, packer=f"{line} {report.packer_args}".strip())
