"""The command `simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...common.errors import ConfigError
from ...common.files import resolve_path
from .._shared import (
    DATA_HELP,
    PATH_TYPE,
    batch_options,
    check_output_path,
    format_examples,
    json_option,
    make_data_loader,
    picture_options,
    print_json,
    unmeasured_option,
)
from ..show import show_simulation
from ..terminal import console_for, progress_bar

__all__ = ["simulate"]


@click.command(
    epilog=format_examples(
        "lingeronnx simulate model_quant.onnx --input test.npz -o out.npz",
        "lingeronnx simulate model_quant.onnx --input test.npz --integers --taps all",
        (
            "lingeronnx simulate model_quant.onnx --input test.npz --limit 1 --dump tensors --at "
            "logits"
        ),
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option("--input", "data", required=True, metavar="DATA", help=f"Input data: {DATA_HELP}.")
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    metavar="OUT",
    help="File to write.  [default: MODEL_out.npz in the current folder]",
)
@click.option(
    "--integers",
    is_flag=True,
    help="Write integers, not dequantized values; for float outputs, the inputs of the Dequant.",
)
@click.option(
    "--taps",
    multiple=True,
    metavar="NAME|all",
    help="Also write this tensor, or all tensors. Repeatable.",
)
@click.option(
    "--dump",
    type=PATH_TYPE,
    metavar="DIR",
    help="Also write the tensors of --taps (default: all) as .npy files.",
)
@click.option("--at", metavar="TENSOR", help="Show range, mean and first values of one tensor.")
@unmeasured_option
@picture_options
@batch_options
@json_option
def simulate(
    model: Path, data: str, output: Path | None, as_json: bool, batch: int | None, **options: Any
) -> None:
    """Run an integer or float model and write its outputs.

    Integer graphs run in the simulator, which computes the integers of the chip's executor, float
    models in onnxruntime. Integer tensors are dequantized unless --integers is used; --dump writes
    the integers, and their scales to index.json.
    """
    load_data = make_data_loader(options, data)
    output = output or Path(f"{model.stem}_out.npz")
    check_output_path(output, [model, data])
    _check_dump_folder(options["dump"], data)
    with progress_bar() as progress:
        from ...runtime.dump import write_npz
        from ...runtime.simulation import simulate as run

        if batch is not None:
            options["batch"] = batch
        result = run(model, load_data(data), progress=progress, **options)
        write_npz(output, result.arrays)
    show_simulation(console_for(as_json), result, output, options["dump"])
    if as_json:
        from ...runtime.dump import qparams_to_json

        output_by_tensor = {key: name for name, key in result.outputs.items()}
        tensors = [
            {
                "name": name,
                "output": output_by_tensor.get(name),
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                **qparams_to_json(result.held[name]),
            }
            for name, array in result.arrays.items()
        ]
        print_json(
            {
                "model": model,
                "output": output,
                "dump": options["dump"],
                "samples": result.samples,
                "tensors": tensors,
                "at": result.at.to_dict() if result.at else None,
                "notes": list(result.notes),
            }
        )


def _check_dump_folder(path: Path | None, data: str) -> None:
    """Raise ConfigError if the input file `data` is in the folder `path`, or is that folder.

    `path` is the folder of --dump, which could replace the data; None, without a dump, is accepted.
    """
    if path is not None and resolve_path(data).is_relative_to(resolve_path(path)):
        raise ConfigError(
            f"--dump {path}: the folder contains the input data; choose another folder"
        )
