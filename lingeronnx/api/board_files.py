"""Write the files for a board, of an integer graph or of a float model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..common.errors import ConfigError, ConstraintError
from ..deployment import Deployment, check_folder
from ..deployment import deploy as deploy_graph
from ..interchange.qdq.qoperators import is_quantized
from ..ir import ir
from ..operators.invalid_models import explain_invalid_models
from ..quantization import QuantizedModel, require_calibrated_scales, require_data
from ..runtime.session import is_integer_graph
from ..runtime.streaming import CallCount
from ..targets import LatencyOptions
from .quantization import quantize

__all__ = ["deploy"]


@explain_invalid_models
def deploy(
    model: ir.ModelLike,
    folder: str | os.PathLike[str],
    calib: object = None,
    *,
    data: object = None,
    stem: str | None = None,
    samples: int = 3,
    state: Mapping[str, str] | None = None,
    calls: CallCount | None = None,
    packages: str = "one",
    attempt: bool = False,
    **settings: Any,
) -> Deployment:
    """Write the files for a board to `folder`, atomically.

    Parameters
    ----------
    model
        An integer graph, or a float model, which is quantized first.
    folder
        A new folder, or one that `deploy` wrote.
    calib, settings
        Arguments of `quantize` for a float model; clock, budget_ms and timing also for others.
        Without calib, a model is calibrated on `data`, and a note says so.
    data
        Samples for the golden vectors; default calib.
    stem, samples
        Prefix of file names and, in lowercase, of C names. Number of golden samples.
    state
        {output: input} of states that are fed back from call to call.
    calls
        With `state`: number of consecutive calls in an item of the data, or "all" for one sample
        per call; None: one. An item of several calls is a sequence that begins with zero states.
    packages, attempt
        "one" file for all packages, or "many". Whether to compile the C program, run it and
        compare it with the simulator.

    Raises
    ------
    ConstraintError
        If a chip part does not run on the chip, or a call takes longer than the budget.
    ConfigError
        If the comparison fails, the folder has other files, settings are given for a quantized
        graph, or a float model has no data.
    """
    check_folder(Path(folder))
    data, notes = calib if data is None else data, list[str]()
    latency = LatencyOptions(*(settings.pop(key, None) for key in ("clock", "budget_ms", "timing")))
    options: dict[str, Any] = {
        "samples": samples,
        "state": state,
        "calls": calls,
        "packages": packages,
        "attempt": attempt,
        "wish": latency,
        "allow_unmeasured": bool(settings.get("allow_unmeasured")),
    }
    if not isinstance(model, QuantizedModel):
        loaded = ir.as_model(model)
        if is_integer_graph(loaded):
            _reject_float_settings(settings)
            return deploy_graph(model, folder, data, stem=stem, **options)
        if stem is None and isinstance(model, str | os.PathLike):
            stem = f"{Path(model).stem}_quant"
        needs_calib = calib is None and settings.get("plan") is None and not is_quantized(loaded)
        if needs_calib and data is not None and not isinstance(data, Iterator):
            calib = data
            notes = ["calibrated on the samples of --input; pass more samples with --calib"]
        need = "deploy needs data to calibrate a float model; pass --calib DATA or --input DATA"
        require_data(need, loaded, calib, settings.get("plan"))
        model = quantize(loaded, calib, state=state, calls=calls, **settings)
        require_calibrated_scales(need, loaded, model.plan)
    graph = _require_single_part(model, settings)
    return deploy_graph(graph, folder, data, stem=stem or "model_quant", notes=notes, **options)


def _reject_float_settings(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first setting with a true value: the model is an integer graph.

    Settings are those of `quantize`, for float models; `progress` and `allow_unmeasured` are
    accepted.
    """
    for key, value in settings.items():
        if value and key not in ("progress", "allow_unmeasured"):
            raise ConfigError(f"'{key}' is for float models; this one is quantized already")


def _require_single_part(model: QuantizedModel, settings: Mapping[str, Any]) -> ir.Model:
    """Return the integer graph of a quantized model, if the setting `parts` allows it.

    Raises
    ------
    ConstraintError
        If `parts` is 1 and the model is not chip-ready as one part.
    """
    if settings.get("parts") == 1 and not model.report.chip_ready:
        raise ConstraintError(
            "the model is not chip-ready as one part, and --parts 1 does not allow several; remove "
            "--parts, or see the report of quantize"
        )
    return model.graph
