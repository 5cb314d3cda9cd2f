"""The command `quantize`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import ConfigError
from ...files import chip_file_path
from .._result import show_result
from .._shared import (
    DATA_HELP,
    METRICS_HELP,
    PATH_TYPE,
    RecordedCommand,
    batch_options,
    check_output_path,
    current_command_line,
    default_output_path,
    format_examples,
    input_options,
    json_option,
    make_data_loader,
    parse_pairs,
    picture_options,
    progress_bar,
    quantize_options,
    timing_options,
)

if TYPE_CHECKING:
    from ...deployment import Deployment
    from ...flow import QuantizedModel
    from ...plan import Plan
    from ...qdq.encodings import Encodings

__all__ = ["quantize"]

_DEPLOY_NEEDS_DATA = "--deploy writes what is shipped: give --calib DATA"


@click.command(
    cls=RecordedCommand,
    epilog=format_examples(
        "lingeronnx quantize model.onnx --calib calib.npz",
        (
            "lingeronnx quantize model.onnx --calib calib.npz --eval test.npz --metric top1 "
            "--require-chip"
        ),
        (
            "lingeronnx quantize model.onnx --calib calib.npz --eval test.npz --max-drop 0.5 --budget "
            "30"
        ),
        "lingeronnx quantize model.onnx --calib calib.npz --weight-bits auto --max-flash 60000",
        (
            "lingeronnx quantize model.onnx --calib calib.npz --skip type:Softmax --override "
            "'type:Conv=calibrator:max'"
        ),
    ),
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="OUT",
    help="Default: MODEL_quant.onnx beside the model.",
)
@click.option("--calib", metavar="DATA", help=f"Calibration data: {DATA_HELP}.")
@quantize_options
@timing_options
@click.option(
    "--state",
    multiple=True,
    metavar="OUT=IN",
    help="A state output that a caller feeds back into a state input: items of --calib are calls, "
    "one after "
    "the other. Repeatable.",
)
@input_options
@click.option(
    "--memory",
    type=float,
    metavar="GB",
    help="What passes over the data may take beyond the model itself.  [default: 0.5]",
)
@click.option(
    "--format",
    "written",
    type=click.Choice(["thinker", "linger", "qdq", "qoperator"]),
    default="thinker",
    show_default=True,
    help="Names and attributes of the graph: generation 1, or 3, or standard ONNX, as by convert.",
)
@click.option(
    "--requantize/--no-requantize",
    default=None,
    help="Of a model that is quantized already (QuantizeLinear, QLinearConv) take the weights "
    "alone, or keep its "
    "scales. Default: with calibration data both are measured, and the better is taken.",
)
@click.option(
    "--plan",
    "plan_in",
    type=PATH_TYPE,
    metavar="FILE",
    help="Use the scales of --save-plan; nothing is calibrated. Or begin with those of another "
    "tool: AIMET's encodings "
    "or esp-ppq's JSON.",
)
@click.option("--save-plan", type=PATH_TYPE, metavar="FILE", help="Write the scales as JSON.")
@click.option(
    "--deploy",
    "deploy_to",
    type=PATH_TYPE,
    metavar="DIR",
    help="Write what a board needs as well, as by deploy.",
)
@click.option(
    "--report",
    "report_to",
    type=PATH_TYPE,
    metavar="DIR",
    help="Write one page on all of it as well, as report.",
)
@click.option(
    "--eval", "eval_data", metavar="DATA", help="Measure float against integer on this data."
)
@click.option(
    "--metric",
    metavar="NAME",
    help=f"With --eval: {METRICS_HELP}.  [default: top1 with labels, else sqnr]",
)
@click.option(
    "--max-drop",
    type=float,
    metavar="POINTS",
    help="Find the cheapest quantization that loses so much of the metric on --eval at most.",
)
@click.option(
    "--min-sqnr",
    type=float,
    metavar="DB",
    help="Find the cheapest one that gives every output so many dB at least; needs no labels.",
)
@click.option(
    "--max-flash",
    type=int,
    metavar="BYTES",
    help="With one of these two: the constants take so many bytes of the package at most. Alone, "
    "with --weight-bits "
    "auto: the most accurate mix of widths that keeps it.",
)
@click.option(
    "--max-ms", type=float, metavar="MS", help="The same of the time of a call, with --clock."
)
@click.option(
    "--budget",
    type=float,
    metavar="MINUTES",
    help="With one of these four: begin no attempt after that.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="With one of these four: make attempts side by side on a Dask cluster, such as "
    "tcp://host:8786. The result is "
    "the same.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="With one of these four: go on with the attempts in OUT_search.jsonl.",
)
@click.option(
    "--verbose",
    is_flag=True,
    help="Say also what looks wrong with the model as it is held, as check -o does.",
)
@picture_options
@batch_options
@json_option
def quantize(
    model: Path,
    output: Path | None,
    plan_in: Path | None,
    save_plan: Path | None,
    eval_data: str | None,
    overrides: Sequence[str],
    state: Sequence[str],
    written: str,
    deploy_to: Path | None,
    report_to: Path | None,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Quantize a model and say what became of it.

    A model that another tool has quantized (QuantizeLinear, QLinearConv) keeps its scales as far as
    the platform holds them. Without --calib the scales of others come from random inputs: good to
    see whether a model fits a chip, and for nothing else, as the report and the file say. Where
    float operators before or after the integers stay with the host, the part for the packer is
    written as well.
    """
    wishes, source = _has_search_goal(options, eval_data), make_data_loader(options)
    output = output or default_output_path(model, "_quant.onnx")
    read = [model, options["calib"], options["config"], plan_in, eval_data]
    check_output_path(output, read)  # names are made of it
    attempts, *pages = (
        output.with_name(f"{output.stem}_search.{kind}") for kind in ("jsonl", "html", "svg")
    )
    _check_output_paths(read, output, save_plan, [attempts, *pages] if wishes else ())
    _check_format(written, deploy_to)
    _check_report(report_to, eval_data or options["calib"])
    plan = None if plan_in is None else _read_plan(plan_in, options)
    calib, fed_back = options.pop("calib"), parse_pairs("--state", state, "OUT=IN") or None
    with progress_bar() as progress:
        from ... import api
        from ...plan.config import merge_overrides

        _check_deploy(deploy_to, model, calib, plan)
        calib = source(calib)
        result = api.quantize(
            model,
            calib,
            plan=plan,
            overrides=merge_overrides(overrides),
            state=fed_back,
            eval_data=source(eval_data),
            log=attempts if wishes else None,
            progress=progress,
            **options,
        )
        result = _add_suspicion_notes(result) if verbose else result
        board = {
            "state": fed_back,
            "stem": output.stem,
            "parts": options["parts"],
            **_timing_settings(options),
        }
        deployed = _write_deployment(deploy_to, model, result, calib, **board)
        done = result.write(output, written, plan=save_plan)
        _write_search(result, model, pages)
        compared, told = (
            source(eval_data) if eval_data else calib,
            replace(result, report=done.report),
        )
        _write_report(report_to, model, told, compared, state=fed_back, **_timing_settings(options))
    show_result(model, done, as_json, deployed)


def _has_search_goal(options: dict[str, Any], eval_data: str | None) -> bool:
    """Whether the cheapest quantization is asked for.

    UsageError for options that belong to others not given.
    """
    if options["metric"] is not None and eval_data is None:
        raise click.UsageError("--metric needs --eval DATA")
    wishes = any(
        options[key] is not None for key in ("max_drop", "min_sqnr", "max_flash", "max_ms")
    )
    given = [key for key in ("resume", "budget", "cluster") if options[key] not in (None, False)]
    if not wishes and given:
        raise click.UsageError(
            f"--{given[0]} needs --max-drop POINTS, --min-sqnr DB, --max-flash BYTES or --max-ms MS"
        )
    return wishes


def _check_output_paths(
    read: Sequence[str | Path | None], output: Path, save_plan: Path | None, search: Iterable[Path]
) -> None:
    """Raise ConfigError where a file that is written would replace one that is read, or another."""
    chip_output = chip_file_path(output)
    check_output_path(chip_output, read)
    for path in (*([] if save_plan is None else [save_plan]), *search):
        check_output_path(path, [*read, output, chip_output])


def _check_format(written: str, deploy_to: Path | None) -> None:
    """Raise UsageError for a format that a board's files cannot be made of."""
    if deploy_to is not None and written != "thinker":
        raise click.UsageError("--deploy writes files for the packer, which takes --format thinker")


def _check_report(folder: Path | None, data: str | None) -> None:
    """Raise UsageError for a page that has no data to compare both models on."""
    if folder is not None and data is None:
        raise click.UsageError(
            "--report compares both models on data: give --eval DATA or --calib DATA"
        )


def _check_deploy(
    folder: Path | None, model: Path, calib: str | None, plan: Plan | Encodings | None
) -> None:
    """Raise ConfigError where a board's files cannot be written to `folder`, or have no data behind them."""
    from ...deployment import check_folder
    from ...flow import require_data
    from ...graph import ir

    if folder is not None:
        check_folder(folder)
        require_data(_DEPLOY_NEEDS_DATA, ir.load(model), calib, plan)


def _timing_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options on time."""
    return {key: options[key] for key in ("clock", "budget_ms", "timing")}


def _write_deployment(
    folder: Path | None, model: Path, result: QuantizedModel, calib: object, **settings: Any
) -> Deployment | None:
    """Write a board's files, if they are asked for.

    ConfigError where a scale comes from no data.
    """
    from ... import api
    from ...flow import require_calibrated_scales
    from ...graph import ir

    if folder is None:
        return None
    require_calibrated_scales(_DEPLOY_NEEDS_DATA, ir.load(model), result.plan)
    return api.deploy(result, folder, calib, **settings)


def _write_report(
    folder: Path | None, model: Path, result: QuantizedModel, data: object, **settings: Any
) -> None:
    """Write the page on all of it, if it is asked for."""
    from ... import api

    if folder is not None:
        api.report(model, result, data, folder, again=current_command_line(), **settings)


def _write_search(result: QuantizedModel, model: Path, pages: Sequence[Path]) -> None:
    """Write the attempts of a search, if there was one, as a page and as a picture."""
    if result.report.search is not None:
        from ...search.page import write_search_page

        page, picture = pages
        write_search_page(
            result.report.search, f"{model.name}, {result.report.platform}", page, picture
        )


def _add_suspicion_notes(result: QuantizedModel) -> QuantizedModel:
    """Return the result, its notes with what looks wrong with the model as it is held."""
    from ... import api

    doubts = tuple(f"looks wrong: {line}" for line in api.structure(result).lines())
    return replace(result, report=replace(result.report, notes=(*result.report.notes, *doubts)))


def _read_plan(path: Path, options: dict[str, Any]) -> Plan | Encodings:
    """Read a plan; put the platform and mode of one of ours into `options`.

    ConfigError where others were given.
    """
    from ...plan import Plan
    from ...qdq.encodings import read_plan

    plan = read_plan(path)
    if not isinstance(plan, Plan):
        return plan
    for key, have in (("platform", plan.platform), ("mode", plan.mode)):
        if options[key] not in (None, have):
            raise ConfigError(
                f"--{key} {options[key]}: the plan {path} is for {have}; drop one of the two"
            )
        options[key] = have
    return plan
