"""The command `deploy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...targets import DEFAULT
from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    batch_options,
    format_examples,
    input_options,
    json_option,
    make_data_loader,
    parse_pairs,
    picture_options,
    print_json,
    quantize_options,
    state_options,
    timing_options,
)
from ..show import show_deployment
from ..terminal import console_for, progress_bar

__all__ = ["deploy"]


@click.command(
    epilog=format_examples(
        "lingeronnx deploy model.onnx --calib calib.npz -o board",
        "lingeronnx deploy model_quant.onnx --input test.npz -o board --try",
        "lingeronnx deploy spotter.onnx --calib calls.py:calls --state h_out=h_in --platform "
        f"{DEFAULT} -o board",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="DIR",
    required=True,
    help="Folder to write: a new one, or one that deploy wrote.",
)
@click.option("--calib", metavar="DATA", help=f"Calibration data of a float model: {DATA_HELP}.")
@click.option(
    "--input",
    "data",
    metavar="DATA",
    help="Samples for the golden vectors; without --calib also for calibration.  "
    "[default: --calib]",
)
@click.option(
    "--prefix",
    metavar="NAME",
    help="Prefix of C names and file names.  [default: the model's name]",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Number of samples in the golden vectors.",
)
@state_options
@click.option(
    "--packages",
    type=click.Choice(["one", "many"]),
    default="one",
    show_default=True,
    help="Write the packages of several chip parts to one file, or to one file each.",
)
@click.option(
    "--try",
    "attempt",
    is_flag=True,
    help="Compile the C program with cc, run it on the samples and compare it with the simulator.",
)
@quantize_options
@timing_options
@input_options
@picture_options
@batch_options
@json_option
def deploy(
    model: Path,
    output: Path,
    calib: str | None,
    data: str | None,
    prefix: str | None,
    samples: int,
    state: Sequence[str],
    overrides: Sequence[str],
    packages: str,
    attempt: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write everything a board needs into one folder.

    A float model is quantized first, with the options of quantize; an integer graph is used
    unchanged. The folder contains the graph and its parts, a script that calls the packer, a C
    program that runs all parts, with a known-answer test, golden vectors, a README with the steps
    and a manifest with hashes. --try tests the program on this PC.
    """
    load_data = make_data_loader(options, calib, data)
    with progress_bar() as progress:
        from ... import api
        from ...quantization.config import merge_overrides

        deployment = api.deploy(
            model,
            output,
            load_data(calib),
            data=load_data(data),
            stem=_check_prefix(prefix),
            samples=samples,
            state=parse_pairs("--state", state, "OUT=IN") or None,
            overrides=merge_overrides(overrides),
            packages=packages,
            attempt=attempt,
            progress=progress,
            **options,
        )
    show_deployment(console_for(as_json), deployment)
    if as_json:
        print_json({"model": model, **deployment.to_dict()})


def _check_prefix(name: str | None) -> str | None:
    """Return `name`, which may be None; raise ConfigError if C names cannot begin with it."""
    from ...common.errors import ConfigError
    from ...deployment.deploy import is_valid_stem

    if name is not None and not is_valid_stem(name):
        raise ConfigError(
            f"--prefix {name}: not a prefix of C names; use lowercase letters, digits and single "
            "underscores, a letter first, and no reserved name of C or its tools, such as main"
        )
    return name
