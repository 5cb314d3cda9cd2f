"""The functions that commands and Python programs call, one per task.

Each imports its implementation when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from ..analysis.board import profile_board
from ..analysis.check.check import check, structure
from ..analysis.check.report import Check
from ..analysis.compare.badcase import BadCase, find_bad_case
from ..analysis.compare.compare import Comparison, compare
from ..analysis.profile.outliers import (
    WEIGHT_COLUMNS,
    OutlierRow,
    analyse_outputs,
    compute_outlier_rows,
    format_outlier_table,
    iter_constants,
)
from ..analysis.profile.recording import compare_kept, profile
from ..analysis.sensitivity.ranking import Sensitivity
from ..analysis.sensitivity.sensitivity import sensitivity
from ..analysis.timeline import Timeline, trace
from ..common.errors import ConfigError, ConstraintError, DataError
from ..common.files import write_text
from ..deployment import Deployment, Verification, check_folder, verify
from ..deployment import deploy as deploy_graph
from ..interchange.qdq.import_model import is_quantized
from ..interchange.qdq.qdq_writer import PLATFORM_KEY
from ..ir import ir
from ..ir.name_mapping import restore_user_names
from ..operators.node_validation import check_nodes
from ..quantization import QuantizedModel, require_calibrated_scales, require_data
from ..runtime.data import Progress
from ..runtime.evaluation import Evaluation, evaluate
from ..runtime.session import is_integer_graph
from ..runtime.simulation import Simulation, simulate
from ..runtime.streaming import CallCount
from ..targets import LatencyOptions, Target
from .finetuning import finetune
from .quantization import quantize
from .report_page import report

if TYPE_CHECKING:
    from ..interchange.convert import ConversionResult
    from ..interchange.repair import Repaired
    from ..torch.checkpoint.lstmp_layouts import ConvertedCheckpoint
    from ..torch.exporter.float_export import Exported

__all__ = [
    "BadCase",
    "Check",
    "Comparison",
    "Deployment",
    "Evaluation",
    "Progress",
    "QuantizedModel",
    "Sensitivity",
    "Simulation",
    "Timeline",
    "Verification",
    "analyse_outputs",
    "check",
    "compare",
    "compare_kept",
    "convert",
    "convert_checkpoint",
    "deploy",
    "evaluate",
    "export",
    "find_bad_case",
    "finetune",
    "fix_dequant",
    "profile",
    "profile_board",
    "quantize",
    "report",
    "sensitivity",
    "simulate",
    "structure",
    "trace",
    "verify",
    "wb_analyse",
]


def wb_analyse(
    model: object, log: str | os.PathLike[str] | None = "./wb_analyse.log"
) -> list[OutlierRow]:
    """Find weights whose range is dominated by outliers: maximum above 10 times 0.99 quantile.

    Parameters
    ----------
    model
        An .onnx file or graph, a torch checkpoint (a nested state_dict is found, no code is
        executed), a state_dict or dict of arrays, or a torch module.
    log
        File for the table; None: no file.

    Returns
    -------
    list of OutlierRow
        One row per weight.

    Raises
    ------
    ModelError
        If `model` is none of these.
    DataError
        If there are no numbers.
    ConfigError
        If `log` cannot be written, or a checkpoint needs PyTorch and it is not installed.
    """
    if isinstance(model, str | os.PathLike) and Path(model).suffix == ".onnx":
        model = ir.load(model)
    if isinstance(model, ir.Model):
        rows = compute_outlier_rows(iter_constants(model))
    elif _is_array_dict(model):
        rows = compute_outlier_rows(model)
    else:
        from ..torch.checkpoint.parameters import read_arrays

        rows = compute_outlier_rows(read_arrays(model))
    if not rows:
        raise DataError(
            "there are no arrays to analyze; pass a model, or a checkpoint with weights"
        )
    if log is not None:
        write_text(log, format_outlier_table(rows, WEIGHT_COLUMNS))
    return rows


def _is_array_dict(model: object) -> TypeGuard[Mapping[str, np.ndarray]]:
    """Whether `model` is a nonempty mapping of numpy arrays."""
    if not isinstance(model, Mapping) or not model:
        return False
    return all(isinstance(value, np.ndarray) for value in model.values())


def convert(
    model: ir.ModelLike,
    to: str,
    platform: str | Target | None = None,
    exact: bool = False,
    functions: bool = False,
) -> ConversionResult:
    """Convert an integer graph to the dialect of another generation, or to standard ONNX.

    A model that another tool quantized (QuantizeLinear, QLinearConv) first becomes an integer graph
    with its own scales.

    Parameters
    ----------
    model
        A path, or a graph in memory, which is not modified.
    to
        "thinker" (generation 1), "linger" (generation 3), "qdq" (QuantizeLinear and
        DequantizeLinear) or "qoperator" (also QLinearConv and QLinearMatMul).
    platform
        Platform of a model that another tool quantized. Default: the platform that it was
        converted from, else venus.
    exact
        With "qdq": reproduce the simulator's integers bit for bit in onnxruntime. Half a step is
        added to every sum before a QuantizeLinear, so that ties round up. Operators that are not
        exact are listed.
    functions
        With `exact`: whether to write such operators as model-local functions on integers.

    Raises
    ------
    ConfigError
        For an unknown `to`, for a platform if the graph has one, and for a model of another tool
        without scales.
    ModelError
        For a float graph, and for nodes without counterpart, all of which are listed.
    """
    from dataclasses import replace

    from ..interchange.convert import ConversionResult, check_conversion_target
    from ..interchange.convert import convert as run

    check_conversion_target(to, exact, functions)
    loaded = restore_user_names(ir.as_model(model))
    if not is_quantized(loaded):
        check_nodes(loaded)
        if platform is not None:
            raise ConfigError(
                "convert: a platform is only for models with QuantizeLinear; this graph has one"
            )
        return run(loaded, to, exact=exact, functions=functions)
    quantized = quantize(loaded, platform=platform or loaded.metadata_props.get(PLATFORM_KEY))
    require_calibrated_scales(
        "convert has no data; quantize --calib DATA determines missing scales",
        loaded,
        quantized.plan,
    )
    if to == "thinker":
        return ConversionResult(quantized.graph, tuple(quantized.report.notes))
    converted = run(quantized.graph, to, exact=exact, functions=functions)
    return replace(converted, notes=(*quantized.report.notes, *converted.notes))


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


def export(
    model: object, args: object = None, path: str | os.PathLike[str] = "model.onnx", **settings: Any
) -> Exported:
    """Export a torch module to a clean float ONNX file.

    `lingeronnx.torch.exporter.float_export.export` has all settings.

    Parameters
    ----------
    model
        A torch.nn.Module or ``file.py:name``.
    args
        Arguments of its forward.
    path
        The file to write.

    Raises
    ------
    ModelError
        If the module cannot be exported, or the file does not compute the same as torch.
    ConfigError
        For wrong settings, or if PyTorch is not installed.
    """
    from ..torch.exporter.float_export import export as run

    return run(model, args, path, **settings)


def convert_checkpoint(
    source: str | os.PathLike[str], path: str | os.PathLike[str], to: str, layout: str = "auto"
) -> ConvertedCheckpoint:
    """Convert a checkpoint of LSTM layers with projection to another layout.

    Parameters
    ----------
    source, path
        The checkpoint to read and the one to write.
    to, layout
        The layout to write and the one to read: asr, plain, torch or ub; see
        `lingeronnx.torch.checkpoint.lstmp_layouts`. "auto" finds the layout to read.

    Raises
    ------
    ModelError
        If the checkpoint is not in `layout`.
    ConfigError
        For an unknown layout, or if PyTorch is not installed.
    """
    from ..torch.checkpoint.lstmp_layouts import convert_checkpoint as run

    return run(source, path, to, layout)


def fix_dequant(path: str | os.PathLike[str], check: bool = False) -> Repaired:
    """Repair a legacy quantized graph.

    Missing, misplaced or wrong Dequants, lost edges, wrong types.
    Nothing is written before `save`.

    Parameters
    ----------
    path
        The file to repair, which is left as it is.
    check
        Whether to run the repaired graph on random inputs; `checked` tells how it went.

    Raises
    ------
    ModelError
        For a file that is no graph.
    RepairError
        For a graph that cannot be repaired, or where there is more than one way; its `report` holds
        all findings.
    """
    from ..interchange.repair import fix_dequant as run

    return run(path, check)
