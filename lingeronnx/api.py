"""One function per job: what commands and Python programs call.

The work is done in the files that are named here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .analysis.board import profile_board
from .analysis.check.check import check, structure
from .analysis.check.report import Check
from .analysis.compare.badcase import BadCase, find_bad_case
from .analysis.compare.compare import Comparison, compare
from .analysis.profile.outliers import (
    WEIGHT_COLUMNS,
    OutlierRow,
    analyse_outputs,
    compute_outlier_rows,
    format_outlier_table,
    iter_constants,
)
from .analysis.profile.recording import compare_kept, profile
from .analysis.sensitivity.ranking import Sensitivity
from .analysis.sensitivity.sensitivity import sensitivity
from .analysis.timeline import Timeline, trace
from .deployment import Deployment, Verification, check_folder, verify
from .deployment import deploy as deploy_graph
from .errors import ConfigError, ConstraintError, DataError
from .files import write_text
from .flow import QuantizedModel, require_calibrated_scales, require_data
from .formats.node_validation import check_nodes
from .graph import ir
from .graph.name_mapping import restore_user_names
from .qdq.import_model import is_quantized
from .qdq.qdq_writer import PLATFORM_KEY
from .quantization import quantize
from .report_page import report
from .run.data import Progress
from .run.evaluation import Evaluation, evaluate
from .run.session import is_integer_graph
from .run.simulation import Simulation, simulate
from .targets import LatencyOptions, Target
from .tuning import finetune

if TYPE_CHECKING:
    from .conversion import ConversionResult
    from .repair import Repaired
    from .torch.checkpoint.lstmp_layouts import ConvertedCheckpoint
    from .torch.exporter.float_export import Exported

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


# ---- analyse -----------------------------------------------------------------------------------------------------


def wb_analyse(
    model: object, log: str | os.PathLike[str] | None = "./wb_analyse.log"
) -> list[OutlierRow]:
    """Return a row for every weight, and write the table to `log` (None: nowhere).

    See `analysis.outliers`.
    model : an .onnx file or graph; a torch checkpoint, in which a nested state_dict is found and
    nothing is executed; a state_dict, or any dict of arrays; a torch module. Raises ModelError for
    a file that is none of these, DataError where it holds no number, ConfigError also for a
    checkpoint where PyTorch is not installed.
    """
    if isinstance(model, str | os.PathLike) and Path(model).suffix == ".onnx":
        model = ir.load(model)
    if isinstance(model, ir.Model):
        rows = compute_outlier_rows(iter_constants(model))
    elif (
        isinstance(model, Mapping)
        and model
        and all(isinstance(value, np.ndarray) for value in model.values())
    ):
        rows = compute_outlier_rows(model)
    else:
        from .torch.checkpoint.parameters import read_arrays

        rows = compute_outlier_rows(read_arrays(model))
    if not rows:
        raise DataError(
            "there is no array of numbers to analyse; give a model, or a checkpoint with its "
            "weights"
        )
    if log is not None:
        write_text(log, format_outlier_table(rows, WEIGHT_COLUMNS))
    return rows


# ---- convert -----------------------------------------------------------------------------------------------------


def convert(
    model: ir.ModelLike,
    to: str,
    platform: str | Target | None = None,
    exact: bool = False,
    functions: bool = False,
) -> ConversionResult:
    """Return an integer graph in the other generation's names and attributes, or in standard ONNX.

    A model that another tool has quantized (QuantizeLinear, QLinearConv) becomes an integer graph
    first, by the scales that it has.

    Parameters
    ----------
    model
        A path or a graph in memory, which is left as it is.
    to
        "thinker" (generation 1), "linger" (generation 3), "qdq" (QuantizeLinear and
        DequantizeLinear) or "qoperator" (also QLinearConv and QLinearMatMul).
    platform
        Of a model that another tool has quantized: what its integer graph is for. Default: the one
        that it was converted from, else venus.
    exact
        Of "qdq": a file that gives the simulator's integers bit for bit in onnxruntime. Half a step
        is added to every sum in front of a QuantizeLinear, so that ties go up. Operators that are
        not exact are named.
    functions
        Of an exact file: whether these operators are written as model-local functions of operators
        on integers.

    Raises
    ------
    ConfigError
        For another word, for a platform where the graph has one, and for a model of another tool
        that lacks scales.
    ModelError
        For a float graph, and where nodes have no counterpart; all of them are named.
    """
    from dataclasses import replace

    from .conversion import ConversionResult, check_conversion_target
    from .conversion import convert as run

    check_conversion_target(to, exact, functions)
    loaded = restore_user_names(ir.as_model(model))
    if not is_quantized(loaded):
        check_nodes(loaded)
        if platform is not None:
            raise ConfigError(
                "convert: a platform is for models of QuantizeLinear; this graph has its own"
            )
        return run(loaded, to, exact=exact, functions=functions)
    made = quantize(loaded, platform=platform or loaded.metadata_props.get(PLATFORM_KEY))
    require_calibrated_scales(
        "convert has no data; quantize --calib DATA finds what scales are missing",
        loaded,
        made.plan,
    )
    if to == "thinker":
        return ConversionResult(made.graph, tuple(made.report.notes))
    found = run(made.graph, to, exact=exact, functions=functions)
    return replace(found, notes=(*made.report.notes, *found.notes))


# ---- deploy ------------------------------------------------------------------------------------------------------


def deploy(
    model: ir.ModelLike,
    folder: str | os.PathLike[str],
    calib: object = None,
    *,
    data: object = None,
    stem: str | None = None,
    samples: int = 3,
    state: Mapping[str, str] | None = None,
    packages: str = "one",
    attempt: bool = False,
    **settings: Any,
) -> Deployment:
    """Write everything a board needs into `folder`, as a whole or not at all.

    Parameters
    ----------
    model
        An integer graph, or a float model, which is quantized first.
    folder
        A new folder, or one that `deploy` wrote before.
    calib, settings
        Those of `quantize`, for a float model, and for all clock, budget_ms and timing. Without
        calib a model is calibrated on `data`, and a note says so.
    data
        Samples for the golden vectors; default calib.
    stem, samples
        Beginning of the files' names, and, in small letters, of the C names. Number of golden
        samples.
    state
        {output: input} of states that are fed back from call to call.
    packages, attempt
        "one" file of all packages, or "many". Whether to compile the C program here, run and prove
        it.

    Raises
    ------
    ConstraintError
        Where a part is for the chip and does not run there, or a call takes longer than it may.
    ConfigError
        For a proof that fails, for a folder that holds other files, for settings of a graph that is
        quantized already, and for a float model without data.
    """
    check_folder(Path(folder))
    data, notes = calib if data is None else data, list[str]()
    how: dict[str, Any] = {
        "samples": samples,
        "state": state,
        "packages": packages,
        "attempt": attempt,
    }
    how["wish"] = LatencyOptions(
        *(settings.pop(key, None) for key in ("clock", "budget_ms", "timing"))
    )
    if not isinstance(model, QuantizedModel):
        loaded = ir.as_model(model)
        if is_integer_graph(loaded):
            if given := [key for key, value in settings.items() if value and key != "progress"]:
                raise ConfigError(
                    f"'{given[0]}' is for float models; this one is quantized already"
                )
            return deploy_graph(model, folder, data, stem=stem, **how)
        name = f"{Path(model).stem}_quant" if isinstance(model, str | os.PathLike) else None
        alone = calib is None and settings.get("plan") is None and not is_quantized(loaded)
        if alone and data is not None and not isinstance(data, Iterator):
            calib, notes = (
                data,
                ["calibrated on the samples of --input: give more of them with --calib"],
            )
        what = "deploy needs data to calibrate a float model: give --calib DATA, or --input DATA"
        require_data(what, loaded, calib, settings.get("plan"))
        model, stem = quantize(loaded, calib, state=state, **settings), stem or name
        require_calibrated_scales(what, loaded, model.plan)
    return deploy_graph(
        _require_single_part(model, settings),
        folder,
        data,
        stem=stem or "model_quant",
        notes=notes,
        **how,
    )


def _require_single_part(model: QuantizedModel, settings: Mapping[str, Any]) -> ir.Model:
    """Return the integer graph; ConstraintError for what must not be cut and is not one part."""
    if settings.get("parts") == 1 and not model.report.chip_ready:
        raise ConstraintError(
            "parts 1 cuts nothing, and the model is not chip-ready as one part: there is nothing "
            "to deploy; leave "
            "--parts out, or see what quantize says of it"
        )
    return model.graph


# ---- export ------------------------------------------------------------------------------------------------------


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
        What its forward takes.
    path
        The file to write.

    Raises
    ------
    ModelError
        Where the module cannot be exported, or the file does not compute what torch computes.
    ConfigError
        For wrong settings, and where PyTorch is not installed.
    """
    from .torch.exporter.float_export import export as run

    return run(model, args, path, **settings)


def convert_checkpoint(
    source: str | os.PathLike[str], path: str | os.PathLike[str], to: str, layout: str = "auto"
) -> ConvertedCheckpoint:
    """Write a checkpoint of LSTM layers with projection in another layout.

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
        For what is not in `layout`.
    ConfigError
        For another word, and where PyTorch is not installed.
    """
    from .torch.checkpoint.lstmp_layouts import convert_checkpoint as run

    return run(source, path, to, layout)


# ---- repair ------------------------------------------------------------------------------------------------------


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
    from .repair import fix_dequant as run

    return run(path, check)
