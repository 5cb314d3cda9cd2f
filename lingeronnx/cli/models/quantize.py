"""The command `quantize`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import ConfigError
from ...common.files import check_writable_folder, chip_file_path
from .._result import show_result
from .._shared import (
    DATA_HELP,
    METRICS_HELP,
    PATH_TYPE,
    GroupedCommand,
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
    quantize_options,
    setting_option,
    state_options,
    timing_options,
)
from ..terminal import progress_bar

if TYPE_CHECKING:
    from ...deployment import Deployment
    from ...interchange.qdq.encodings import Encodings
    from ...ir.plan import Plan
    from ...quantization import QuantizedModel

__all__ = ["quantize"]

_DEPLOY_NEEDS_DATA = "--deploy needs calibration data; pass --calib DATA"

#: Headings of the help and the long names of their options.
OPTION_GROUPS = (
    (
        "Data",
        (
            "calib",
            "eval",
            "metric",
            "state",
            "calls",
            "fix",
            "input-shape",
            "batch-axis",
            "batch",
            "limit",
            "memory",
            "seed",
        ),
    ),
    ("Images", ("image-size", "mean", "std", "layout", "color", "resize")),
    (
        "Accuracy",
        (
            "effort",
            "mode",
            "calibrator",
            "bits",
            "weight-bits",
            "weight-scales",
            "activations",
            "override",
            "plan",
            "requantize",
        ),
    ),
    (
        "Target",
        (
            "platform",
            "allow-unmeasured",
            "skip",
            "cells",
            "fit",
            "parts",
            "max-parts",
            "objective",
        ),
    ),
    ("Hardware limits", ("require-chip", "clock", "budget-ms", "timing")),
    (
        "Search for the cheapest quantization",
        ("max-drop", "min-sqnr", "max-flash", "max-ms", "budget", "cluster", "resume"),
    ),
    (
        "Output",
        (
            "output",
            "format",
            "save-plan",
            "deploy",
            "report",
            "notes",
            "verbose",
            "steps",
            "debug-dump",
            "json",
        ),
    ),
)


@click.command(
    cls=GroupedCommand,
    option_groups=OPTION_GROUPS,
    epilog=format_examples(
        "lingeronnx quantize model.onnx --calib calib.npz",
        "lingeronnx quantize model.onnx --calib calib.npz --eval test.npz --metric top1 "
        "--require-chip",
        "lingeronnx quantize model.onnx --calib calib.npz --eval test.npz --max-drop 0.5 "
        "--budget 30",
        "lingeronnx quantize model.onnx --calib calib.npz --weight-bits auto --max-flash 60000",
        "lingeronnx quantize model.onnx --calib calib.npz --skip type:Softmax --override "
        "'type:Conv=calibrator:max'",
    ),
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="OUT",
    help="Integer graph to write.  [default: MODEL_quant.onnx beside the model]",
)
@click.option("--calib", metavar="DATA", help=f"Calibration data: {DATA_HELP}.")
@quantize_options
@timing_options
@state_options
@input_options
@setting_option("memory")
@click.option(
    "--format",
    "graph_format",
    type=click.Choice(["thinker", "linger", "qdq", "qoperator"]),
    default="thinker",
    show_default=True,
    help="Dialect of the graph: generation 1 or 3 of the vendor, or standard ONNX; see convert.",
)
@setting_option("requantize")
@click.option(
    "--plan",
    "plan_in",
    type=PATH_TYPE,
    metavar="FILE",
    help="Use the scales of --save-plan without calibration, or start from AIMET encodings or "
    "esp-ppq JSON.",
)
@click.option("--save-plan", type=PATH_TYPE, metavar="FILE", help="Write the scales as JSON.")
@click.option(
    "--deploy",
    "deploy_to",
    type=PATH_TYPE,
    metavar="DIR",
    help="Also write the files for a board, as deploy does.",
)
@click.option(
    "--report",
    "report_to",
    type=PATH_TYPE,
    metavar="DIR",
    help="Also write an HTML report, as report does.",
)
@click.option(
    "--eval", "eval_data", metavar="DATA", help="Compare float and integer accuracy on DATA."
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
    help="Maximum loss of the metric on --eval.",
)
@click.option(
    "--min-sqnr",
    type=float,
    metavar="DB",
    help="Minimum SQNR of every output, in dB; needs no labels.",
)
@click.option(
    "--max-flash",
    type=int,
    metavar="BYTES",
    help="Maximum size of the constants in the packages; weights of host parts and code are not "
    "counted. Without an accuracy limit, with --weight-bits auto: the most accurate bit widths of "
    "that size.",
)
@click.option(
    "--max-ms",
    type=float,
    metavar="MS",
    help="Maximum time of a call at --clock; otherwise like --max-flash.",
)
@click.option(
    "--budget",
    type=float,
    metavar="MINUTES",
    help="Start no further attempt after this time. With --report: time to try what may raise the "
    "accuracy; then 1 by default.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Run attempts in parallel on a Dask cluster, such as tcp://host:8786; the result is the "
    "same.",
)
@click.option("--resume", is_flag=True, help="Continue with the attempts in OUT_search.jsonl.")
@click.option(
    "--verbose",
    is_flag=True,
    help="Also report suspicious properties of the quantized model, as check -o does.",
)
@click.option(
    "--steps",
    "show_steps",
    is_flag=True,
    help="Print the steps with their time, what each changed, and the verdict on each alternative.",
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
    graph_format: str,
    deploy_to: Path | None,
    report_to: Path | None,
    verbose: bool,
    show_steps: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Quantize a float ONNX model to an integer graph and print a report.

    Without --calib, scales come from random inputs: good enough to see whether a model fits a chip,
    and for nothing else; the report and the file say so. A model that is already quantized
    (QuantizeLinear, QLinearConv) keeps its scales where the platform supports them. If float
    operators at the start or end run on the host, the chip part is also written to its own file.
    """
    searches = _check_search_options(options, eval_data)
    load_data = make_data_loader(options, options["calib"], eval_data)
    output = output or default_output_path(model, "_quant.onnx")
    inputs = [model, options["calib"], options["config"], plan_in, eval_data]
    check_output_path(output, inputs)  # before other names are derived from it
    attempts, *pages = (
        output.with_name(f"{output.stem}_search.{suffix}") for suffix in ("jsonl", "html", "svg")
    )
    _check_output_paths(inputs, output, save_plan, [attempts, *pages] if searches else ())
    _check_format(graph_format, deploy_to)
    _check_report(report_to, eval_data or options["calib"])
    plan = None if plan_in is None else _read_plan(plan_in, options)
    calib = options.pop("calib")
    state_feedback = parse_pairs("--state", state, "OUT=IN") or None
    with progress_bar() as progress:
        from ... import api
        from ...quantization.config import merge_overrides

        _check_deploy(deploy_to, model, calib, plan)
        calib = load_data(calib)
        result = api.quantize(
            model,
            calib,
            plan=plan,
            overrides=merge_overrides(overrides),
            state=state_feedback,
            eval_data=load_data(eval_data),
            log=attempts if searches else None,
            progress=progress,
            **options,
        )
        if verbose:
            result = _add_suspicion_notes(result)
        deployed = _write_deployment(
            deploy_to,
            model,
            result,
            calib,
            state=state_feedback,
            calls=options["calls"],
            stem=output.stem,
            parts=options["parts"],
            **_timing_settings(options),
        )
        written = result.write(output, graph_format, plan=save_plan)
        _write_search(result, model, pages)
        _write_report(
            report_to,
            model,
            result.with_report(written.report),
            load_data(eval_data) if eval_data else calib,
            calib=calib,
            budget=options["budget"],
            state=state_feedback,
            calls=options["calls"],
            **_timing_settings(options),
        )
    show_result(model, written, as_json, deployed, result.steps if show_steps else None)


def _check_search_options(options: dict[str, Any], eval_data: str | None) -> bool:
    """Return whether a search is requested: an option limits accuracy, size or time.

    `options` are the parsed options by name.

    Raises
    ------
    click.UsageError
        If --metric is given without evaluation data, or --resume, --budget or --cluster without a
        search.
    """
    if options["metric"] is not None and eval_data is None:
        raise click.UsageError("--metric needs --eval DATA")
    searches = any(
        options[key] is not None for key in ("max_drop", "min_sqnr", "max_flash", "max_ms")
    )
    search_only = [key for key in ("resume", "budget", "cluster") if options[key]]
    if search_only and not searches:
        raise click.UsageError(
            f"--{search_only[0]} needs --max-drop POINTS, --min-sqnr DB, --max-flash BYTES or "
            "--max-ms MS"
        )
    return searches


def _check_output_paths(
    inputs: Sequence[str | Path | None],
    output: Path,
    save_plan: Path | None,
    search_files: Iterable[Path],
) -> None:
    """Raise ConfigError if an output cannot be written or would replace another file.

    The chip part's file must differ from the inputs; the plan and the files of a search from the
    inputs, `output` and the chip part's file; the files of a search from the plan.
    """
    chip_output = chip_file_path(output)
    check_output_path(chip_output, inputs)
    plan_files = [] if save_plan is None else [save_plan]
    for path in plan_files:
        check_output_path(path, [*inputs, output, chip_output])
    for path in search_files:
        check_output_path(path, [*inputs, output, chip_output, *plan_files])


def _check_format(graph_format: str, deploy_to: Path | None) -> None:
    """Raise UsageError if --deploy (a folder or None) is used with a format other than thinker.

    The packer reads only that one.
    """
    if deploy_to is not None and graph_format != "thinker":
        raise click.UsageError("--deploy writes files for the packer; use --format thinker")


def _check_report(folder: Path | None, data: str | None) -> None:
    """Check that a report into `folder`, unless it is None, can be written and has data.

    Raises
    ------
    ConfigError
        If the folder cannot be written.
    click.UsageError
        Without data to compare on.
    """
    if folder is None:
        return
    if data is None:
        raise click.UsageError(
            "--report compares both models on data; pass --eval DATA or --calib DATA"
        )
    check_writable_folder(folder)


def _check_deploy(
    folder: Path | None, model: Path, calib: str | None, plan: Plan | Encodings | None
) -> None:
    """Raise ConfigError if --deploy's folder cannot be written or calibration data are missing.

    A plan or a quantized model needs no data. Nothing is checked if `folder` is None.
    """
    if folder is None:
        return
    from ...deployment import check_folder
    from ...ir import ir
    from ...quantization import require_data

    check_folder(folder)
    require_data(_DEPLOY_NEEDS_DATA, ir.load(model), calib, plan)


def _timing_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return those of the parsed `options` for latency on the chip: clock, budget_ms, timing."""
    return {key: options[key] for key in ("clock", "budget_ms", "timing")}


def _write_deployment(
    folder: Path | None, model: Path, result: QuantizedModel, calib: object, **settings: Any
) -> Deployment | None:
    """Write the files for a board to `folder` and describe them; return None without a folder.

    Parameters
    ----------
    folder
        Folder to write, or None.
    model
        The user's model.
    result
        The quantized model.
    calib
        Calibration data, for the golden vectors.
    **settings
        Passed to `api.deploy`.

    Raises
    ------
    ConfigError
        If a scale does not come from calibration data.
    """
    if folder is None:
        return None
    from ... import api
    from ...ir import ir
    from ...quantization import require_calibrated_scales

    require_calibrated_scales(_DEPLOY_NEEDS_DATA, ir.load(model), result.plan)
    return api.deploy(result, folder, calib, **settings)


def _write_report(
    folder: Path | None, model: Path, result: QuantizedModel, data: object, **settings: Any
) -> None:
    """Write the HTML report on a quantized model to `folder`; do nothing if `folder` is None.

    The report compares the models on `data` and shows the running command line. `settings` are
    passed to `api.report`.
    """
    from ... import api

    if folder is not None:
        api.report(model, result, data, folder, again=current_command_line(), **settings)


def _write_search(result: QuantizedModel, model: Path, pages: Sequence[Path]) -> None:
    """Write the attempts of a search to the two files `pages`: an HTML page and an SVG plot.

    Does nothing if the report of `result` has no search.
    """
    if result.report.search is not None:
        from ...search.page import write_search_page

        page, picture = pages
        title = f"{model.name}, {result.report.platform}"
        write_search_page(result.report.search, title, page, picture)


def _add_suspicion_notes(result: QuantizedModel) -> QuantizedModel:
    """Return a copy of `result` with a note for each suspicious property of the quantized model."""
    from ... import api

    notes = tuple(f"looks wrong: {line}" for line in api.structure(result).lines())
    report = replace(result.report, notes=(*result.report.notes, *notes))
    return result.with_report(report)


def _read_plan(path: Path, options: dict[str, Any]) -> Plan | Encodings:
    """Read a plan, or encodings of another tool, from file `path`.

    The platform and mode of a lingeronnx plan are set in `options`, in place.

    Raises
    ------
    ConfigError
        If `options` select another platform or mode.
    """
    from ...interchange.qdq.encodings import read_plan
    from ...ir.plan import Plan

    plan = read_plan(path)
    if not isinstance(plan, Plan):
        return plan
    for key, value in (("platform", plan.platform), ("mode", plan.mode)):
        if options[key] not in (None, value):
            raise ConfigError(
                f"--{key} {options[key]}: the plan {path} is for {value}; remove one of the two"
            )
        options[key] = value
    return plan
