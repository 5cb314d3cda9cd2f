"""The command `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .._shared import (
    DATA_HELP,
    METRICS_HELP,
    PATH_TYPE,
    batch_options,
    format_examples,
    json_option,
    make_data_loader,
    picture_options,
    print_json,
    worker_options,
)
from ..show import show_evaluation
from ..terminal import console_for, progress_bar

__all__ = ["evaluate"]


@click.command(
    epilog=format_examples(
        "lingeronnx evaluate model_quant.onnx --data test.npz --baseline model.onnx",
        "lingeronnx evaluate model_quant.onnx --data test.npz --baseline model.onnx --metric sqnr",
        "lingeronnx evaluate model_quant.onnx --data test.npz --workers 4",
    )
)
@click.argument("model", type=PATH_TYPE)
@click.option(
    "--data",
    required=True,
    metavar="DATA",
    help=f"Evaluation data: {DATA_HELP}; may contain labels.",
)
@click.option("--baseline", type=PATH_TYPE, metavar="FLOAT.onnx", help="Model to compare with.")
@click.option(
    "--metric", metavar="NAME", help=f"{METRICS_HELP}  [default: top1 with labels, else sqnr]"
)
@click.option(
    "--output", metavar="TENSOR", help="Tensor to evaluate.  [default: the first graph output]"
)
@picture_options
@batch_options
@worker_options
@json_option
def evaluate(model: Path, data: str, as_json: bool, batch: int | None, **options: Any) -> None:
    """Measure the accuracy of a model against labels, or its fidelity to a baseline model."""
    load_data = make_data_loader(options, data)
    with progress_bar() as progress:
        from ...runtime.evaluation import evaluate as run

        if batch is not None:
            options["batch"] = batch
        evaluation = run(model, load_data(data), progress=progress, **options)
    show_evaluation(console_for(as_json), evaluation, model, options["baseline"])
    if as_json:
        drop = None if evaluation.baseline is None else evaluation.baseline - evaluation.value
        print_json(
            {
                "model": model,
                "baseline_model": options["baseline"],
                "metric": evaluation.metric,
                "unit": evaluation.unit,
                "value": evaluation.value,
                "baseline": evaluation.baseline,
                "drop": drop,
                "samples": evaluation.samples,
                **({"warnings": list(evaluation.warnings)} if evaluation.warnings else {}),
            }
        )
