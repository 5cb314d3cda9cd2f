"""Check of an export: runs in torch on several sizes, compared with the graph in onnxruntime.

This module accesses a module through its `FlattenedModel`, and a graph by its names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...common.errors import ConfigError, LingerOnnxError, ModelError, format_exception
from ...ir import ir
from ...runtime.runners import FloatRunner
from .signature import Axes, FlattenedModel, resize_inputs, resolve_dynamic_axes

__all__ = ["TorchRun", "compare_with_torch", "run_by_name", "run_on_dynamic_axes"]


@dataclass(frozen=True)
class TorchRun:
    """A run in torch: sizes of the dynamic axes by name, inputs by name, and results in order."""

    sizes: dict[str, int]
    feed: dict[str, np.ndarray]
    results: list[np.ndarray]


def run_by_name(flat: FlattenedModel, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Run the model on `tensors`, in the order of its inputs, and return {result name: tensor}.

    Raises ModelError if the user's code fails.
    """
    try:
        return flat.run_by_name(*tensors)
    except (LingerOnnxError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's code
        raise ModelError(
            f"the model fails on the given inputs ({format_exception(error)}); pass inputs that "
            "its forward accepts"
        ) from error


def _run_all_sizes(
    flat: FlattenedModel, inputs: Mapping[str, Tensor], axes: Axes
) -> list[TorchRun]:
    """Run the model on the given inputs and on up to two other sizes of the dynamic axes.

    The first run has the given inputs; ModelError if the model fails on them. Other sizes on which
    it fails are skipped.
    """
    given_sizes = {}
    for name, symbols in axes.items():
        for axis, symbol in symbols.items():
            given_sizes[symbol] = inputs[name].shape[axis]
    runs = [_run_sizes(flat, inputs, axes, given_sizes)]
    if not given_sizes:
        return runs
    for sizes in _propose_sizes(given_sizes):
        if len(runs) < 3 and all(sizes != run.sizes for run in runs):
            with contextlib.suppress(ModelError):
                runs.append(_run_sizes(flat, inputs, axes, sizes))
    return runs


def _propose_sizes(given_sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Return four proposals of other sizes of the dynamic axes, each symbol -> size.

    No two sizes change in the same way, so that the size of an output can be attributed to one.
    """
    proposals: list[dict[str, int]] = [{}, {}, {}, {}]
    for index, (symbol, size) in enumerate(given_sizes.items()):
        proposals[0][symbol] = size + 1 + index
        proposals[1][symbol] = 2 * size + 1 + index
        proposals[2][symbol] = size * (2 + index)
        proposals[3][symbol] = size * (3 + index)
    return proposals


def run_on_dynamic_axes(
    flat: FlattenedModel,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    dynamic_axes: Mapping[str, Any] | None,
    notes: list[str],
) -> tuple[Axes, Axes, list[TorchRun]]:
    """Resolve the dynamic axes and run the model on several sizes of them.

    If it runs on no other sizes, sizes without a name become those of other inputs. Notes for the
    user are appended to `notes`.

    Returns
    -------
    axes, output_labels
        Named dynamic axes of the inputs, and requested names for sizes of outputs.
    runs : list of TorchRun
        The first run has the given sizes.

    Raises
    ------
    ConfigError
        If requested axes are fixed by the model.
    """
    resolved = resolve_dynamic_axes(dynamic_axes, inputs, outputs)
    labels = resolved.output_labels
    if resolved.note:
        notes.append(resolved.note)
    runs = _run_all_sizes(flat, inputs, resolved.inputs)
    if not resolved.inputs or len(runs) > 1:
        return resolved.inputs, labels, runs
    merged = resolved.merge_unnamed(inputs)
    merged_runs = _run_all_sizes(flat, inputs, merged.inputs)
    if len(merged_runs) > 1:
        if merged.note:
            notes.append(merged.note)
        return merged.inputs, labels, merged_runs
    sizes = _format_sizes(runs[0].sizes)
    if dynamic_axes is not None:
        raise ConfigError(
            f"dynamic axes: the model itself runs at {sizes} only; omit the axes that it fixes"
        )
    notes.append(f"no axis is dynamic: the model itself runs at {sizes} only")
    return {}, labels, _run_all_sizes(flat, inputs, {})


def _format_sizes(sizes: Mapping[str, int]) -> str:
    """Format the sizes of dynamic axes: "N 2, time 10"; "" without any."""
    return ", ".join(f"{symbol} {size}" for symbol, size in sizes.items())


def _run_sizes(
    flat: FlattenedModel, inputs: Mapping[str, Tensor], axes: Axes, sizes: dict[str, int]
) -> TorchRun:
    """Run the model on inputs whose dynamic axes are resized to `sizes` (symbol -> size).

    Returns the sizes, the inputs and the results as arrays. Raises ModelError if the model fails.
    """
    tensors = resize_inputs(inputs, axes, sizes)
    results = run_by_name(flat, tensors)
    feed = {name: _to_array(tensor) for name, tensor in zip(inputs, tensors, strict=True)}
    return TorchRun(sizes, feed, [_to_array(tensor) for tensor in results.values()])


def _to_array(tensor: Tensor) -> np.ndarray:
    """Copy a tensor to a new numpy array on the CPU, without its gradient history."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().numpy().copy()


def compare_with_torch(
    graph: ir.Model, names: Sequence[str], runs: Sequence[TorchRun], tolerance: float
) -> float:
    """Return the largest relative difference between the graph in onnxruntime and torch.

    Parameters
    ----------
    names
        Outputs of the graph, in the order of the results.
    tolerance
        Limit of the difference relative to the largest magnitude of an output.

    Raises
    ------
    ModelError
        If a difference exceeds `tolerance`, or the graph does not run.
    """
    runner = FloatRunner(graph, names)
    max_difference = 0.0
    for run in runs:
        location = f" ({_format_sizes(run.sizes)})" if run.sizes else ""
        try:
            arrays = {name: array for name, array, _ in runner.run(run.feed)}
        except ModelError as error:
            raise ModelError(
                f"the exported graph does not run where torch does{location}: {error}; if the "
                "trace has fixed a dynamic axis, try the other --exporter, or --dynamic-axes none"
            ) from error
        for name, expected in zip(names, run.results, strict=True):
            difference = _get_relative_difference(expected, arrays[name])
            if not difference <= tolerance:
                raise ModelError(
                    f"output '{name}' of the exported graph differs from torch{location}: "
                    f"{difference:.2g} of its range, limit {tolerance:g}; try the other --exporter"
                )
            max_difference = max(max_difference, difference)
    return max_difference


def _get_relative_difference(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest difference divided by the largest expected magnitude.

    Infinite if shapes or dtypes differ, or integers, NaN or infinities; 0 if all are equal.
    """
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    is_finite = np.isfinite(expected)
    if not np.array_equal(expected[~is_finite], actual[~is_finite], equal_nan=True):
        return float("inf")
    expected_values = expected[is_finite].astype(np.float64)
    actual_values = actual[is_finite].astype(np.float64)
    difference = float(np.abs(expected_values - actual_values).max(initial=0.0))
    if not difference:
        return 0.0
    return difference / max(float(np.abs(expected_values).max(initial=0.0)), 1e-30)
