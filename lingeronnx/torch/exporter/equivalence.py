"""What an export is proven by.

Runs in torch on several sizes, and what onnxruntime makes of the graph on the same.
Knows a module by its `FlattenedModel` face, a graph by its names; nothing of how either came about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import ConfigError, LingerOnnxError, ModelError
from ...graph import ir
from ...run.runners import FloatRunner
from .signature import Axes, FlattenedModel, resize_inputs, resolve_dynamic_axes

__all__ = ["TorchRun", "compare_with_torch", "run_by_name", "run_on_dynamic_axes"]


@dataclass(frozen=True)
class TorchRun:
    """One run in torch: the sizes of the dynamic axes, what went in, what came out (arrays, in order)."""

    sizes: dict[str, int]
    feed: dict[str, np.ndarray]
    results: list[np.ndarray]


def run_by_name(flat: FlattenedModel, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return what the model gives for `tensors`, by name; ModelError where its own code fails."""
    try:
        return flat.run_by_name(*tensors)
    except LingerOnnxError:
        raise
    except Exception as error:  # the user's code
        raise ModelError(
            f"the model fails on the given inputs ({type(error).__name__}: {error}); give what its "
            "forward takes"
        ) from error


def _run_all_sizes(
    flat: FlattenedModel, inputs: Mapping[str, Tensor], axes: Axes
) -> list[TorchRun]:
    """Return runs on the given inputs and on up to two other sizes of the dynamic axes that torch can run."""
    given = {
        symbol: inputs[name].shape[axis]
        for name, free in axes.items()
        for axis, symbol in free.items()
    }
    runs = [_one_run(flat, inputs, axes, given)]
    # No two sizes go along with each other, so that one can tell whose an output is.
    others = (
        {symbol: size + 1 + index for index, (symbol, size) in enumerate(given.items())},
        {symbol: 2 * size + 1 + index for index, (symbol, size) in enumerate(given.items())},
        {symbol: size * (2 + index) for index, (symbol, size) in enumerate(given.items())},
        {symbol: size * (3 + index) for index, (symbol, size) in enumerate(given.items())},
    )
    for sizes in others if given else ():
        if len(runs) < 3 and all(sizes != run.sizes for run in runs):
            with contextlib.suppress(ModelError):
                runs.append(_one_run(flat, inputs, axes, sizes))
    return runs


def run_on_dynamic_axes(
    flat: FlattenedModel,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    given: Mapping[str, Any] | None,
    notes: list[str],
) -> tuple[Axes, Axes, list[TorchRun]]:
    """Return the dynamic axes, names for sizes of outputs, and the runs.

    ConfigError for axes that are fixed.
    """
    axes, labels, note = resolve_dynamic_axes(given, inputs, outputs)
    notes += [note] if note else []
    runs = _run_all_sizes(flat, inputs, axes)
    if axes and len(runs) == 1:
        told = ", ".join(f"{symbol} {size}" for symbol, size in runs[0].sizes.items())
        if given is not None:
            raise ConfigError(
                f"dynamic axes: the model itself runs at {told} only; leave out the axes that it "
                "fixes"
            )
        notes.append(f"no axis is dynamic: the model itself runs at {told} only")
        axes, runs = {}, _run_all_sizes(flat, inputs, {})
    return axes, labels, runs


def _one_run(
    flat: FlattenedModel, inputs: Mapping[str, Tensor], axes: Axes, sizes: dict[str, int]
) -> TorchRun:
    tensors = resize_inputs(inputs, axes, sizes)
    results = run_by_name(flat, tensors)
    feed = {name: _to_array(tensor) for name, tensor in zip(inputs, tensors, strict=True)}
    return TorchRun(sizes, feed, [_to_array(tensor) for tensor in results.values()])


def _to_array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().resolve_conj().resolve_neg().numpy().copy()


def compare_with_torch(
    graph: ir.Model, names: Sequence[str], runs: Sequence[TorchRun], tolerance: float
) -> float:
    """Return the largest difference between the graph in onnxruntime and torch.

    ModelError above `tolerance`.
    """
    runner = FloatRunner(graph, names)
    worst = 0.0
    for run in runs:
        told = ", ".join(f"{symbol} {size}" for symbol, size in run.sizes.items())
        place = f" ({told})" if told else ""
        try:
            arrays = {name: array for name, array, _ in runner.run(run.feed)}
        except ModelError as error:
            raise ModelError(
                f"the exported graph does not run where torch does{place}: {error}; is an axis "
                "dynamic that the trace "
                "has fixed? try the other --exporter, or --dynamic-axes none"
            ) from error
        for name, want in zip(names, run.results, strict=True):
            off = _get_relative_difference(want, arrays[name])
            if not off <= tolerance:
                raise ModelError(
                    f"output '{name}' of the exported graph is not what torch computes{place}: "
                    f"{off:.2g} of its range, "
                    f"limit {tolerance:g}; try the other --exporter"
                )
            worst = max(worst, off)
    return worst


def _get_relative_difference(want: np.ndarray, have: np.ndarray) -> float:
    """Return the largest difference in parts of the largest magnitude.

    Infinite where shapes or types differ.
    """
    if want.shape != have.shape or want.dtype != have.dtype:
        return float("inf")
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(want, have) else float("inf")
    sound = np.isfinite(want)
    if not np.array_equal(want[~sound], have[~sound], equal_nan=True):
        return float("inf")
    one, two = want[sound].astype(np.float64), have[sound].astype(np.float64)
    off = float(np.abs(one - two).max(initial=0.0))
    return off / max(float(np.abs(one).max(initial=0.0)), 1e-30) if off else 0.0
