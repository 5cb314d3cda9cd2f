"""The command `try`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...common.errors import ConfigError
from ...targets import DEFAULT
from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    format_examples,
    input_size_options,
    json_option,
    print_json,
)
from ..terminal import echo

__all__ = ["try_model"]


@click.command(
    "try",
    epilog=format_examples(
        "lingeronnx try model.onnx",
        f"lingeronnx try model.onnx --platform {DEFAULT}",
        "lingeronnx try model.onnx --input-shape x=1,3,224,224",
    ),
)
@click.argument("model", type=PATH_TYPE)
@click.option("--platform", metavar="P", help="Judge this chip only.  [default: all built-in ones]")
@click.option("--calib", metavar="DATA", help=f"Data for dynamic input shapes only: {DATA_HELP}.")
@click.option(
    "--budget",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Judge chips for this time, the first for 10 at least.  [default: 10]",
)
@input_size_options
@json_option
def try_model(model: Path, budget: float | None, as_json: bool, **options: Any) -> None:
    """Tell what a float model is, which platforms run it, and what to type next. Needs no data.

    It shows inputs, outputs, operators, MACs and parameters; the share of integer MACs and whether
    the model fits each chip, with the first reason if not; weights that 8 bits represent badly; and
    commands to continue with. Nothing is written. Exit code 1 if the model cannot be judged.
    """
    from ... import api

    if budget is not None:
        options["budget_s"] = budget
    result = api.assess(model, **options)
    for line in result.lines():
        echo(line, err=as_json)
    if as_json:
        print_json({"model": model, **result.to_dict()})
    if result.problem:
        raise ConfigError(result.problem)
