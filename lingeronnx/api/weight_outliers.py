"""Find weights with outliers in models, checkpoints and arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

import numpy as np

from ..analysis.profile.outliers import (
    WEIGHT_COLUMNS,
    OutlierRow,
    compute_outlier_rows,
    format_outlier_table,
    iter_constants,
)
from ..common.errors import DataError
from ..common.files import write_text
from ..ir import ir

__all__ = ["wb_analyse"]


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
