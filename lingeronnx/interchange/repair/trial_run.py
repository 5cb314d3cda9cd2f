"""Trial run of a repaired graph: whether it runs, and which values its outputs have.

The graph runs in the simulator on random inputs with a fixed seed; float operators run in
onnxruntime. Open dimensions are 1. Any error is reported in one line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from onnx import ModelProto

from ...common.errors import LingerOnnxError, ModelError
from ...ir import ir
from ...ir.name_mapping import restore_user_names
from ...runtime.runners import get_input_specs
from ...runtime.session import Session
from .shapes import infer_shapes

__all__ = ["OutputSummary", "TrialRunResult", "run_repaired_graph"]

#: Largest tensor that is run, in elements.
_MAX_ELEMENTS = 1 << 28


@dataclass(frozen=True)
class OutputSummary:
    """Shape, numpy dtype and range of a graph output; the range is None without finite values."""

    name: str
    shape: Sequence[int]
    dtype: str
    low: float | None
    high: float | None


@dataclass(frozen=True)
class TrialRunResult:
    """Result of a trial run: summaries of the outputs, or the error as text, and remarks."""

    outputs: Sequence[OutputSummary] = ()
    error: str | None = None
    notes: Sequence[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the trial run's result as lines: the error or a line per output, then notes."""
        if self.error is not None:
            lines = [f"check: the model does not run: {self.error}"]
        else:
            lines = ["check: the model runs; outputs for random inputs:"]
            lines += _format_outputs(self.outputs)
        return lines + [f"note: {note}" for note in self.notes]

    def to_dict(self) -> dict[str, object]:
        """Return `outputs`, `error` (None if the model runs) and `notes` as JSON values."""
        return {
            "outputs": [asdict(output) for output in self.outputs],
            "error": self.error,
            "notes": list(self.notes),
        }


def _format_outputs(outputs: Sequence[OutputSummary]) -> list[str]:
    """Return one aligned, indented line per output: name, shape, dtype and range of values."""
    rows = [
        (f"'{output.name}'", str(list(output.shape)), output.dtype, _format_range(output))
        for output in outputs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for *cells, value_range in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        lines.append("  " + "  ".join([*padded, value_range]))
    return lines


def _format_range(output: OutputSummary) -> str:
    """Return "LOW to HIGH", or "no finite values" if they are None."""
    if output.low is None or output.high is None:
        return "no finite values"
    return f"{output.low:.6g} to {output.high:.6g}"


def run_repaired_graph(model: ModelProto, seed: int = 0) -> TrialRunResult:
    """Run `model` once on random inputs; never raises an error of the graph or the runner.

    Such an error is in `TrialRunResult.error`. Floats are normally distributed, integers uniform (0
    if wider than 16 bits); `seed` makes them repeatable.
    """
    try:
        return _run_unguarded(model, seed)
    except LingerOnnxError as error:
        return TrialRunResult(error=str(error))
    except MemoryError:
        return TrialRunResult(error="its tensors do not fit into memory")
    except Exception as error:  # the input may be any file, so a failure of the runner is its fault
        text = " ".join(str(error).split()) or type(error).__name__
        return TrialRunResult(error=f"the runner failed: {text[:200]}")


def _run_unguarded(model: ModelProto, seed: int) -> TrialRunResult:
    """Run `model` once on random inputs; raises any error of the graph or the runner.

    Open dimensions are 1. The result has a summary per output and notes, as for an output that is
    declared float but gets integers. `seed` makes the inputs repeatable.
    """
    for name, (_, dims) in infer_shapes(model).items():
        _check_size(f"tensor '{name}'", dims or ())
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = restore_user_names(ir.from_proto(copy))
    notes = []
    feeds: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(seed)
    for spec in get_input_specs(graph):
        shape = tuple(1 if dim is None else dim for dim in spec.shape or ())
        if None in (spec.shape or ()):
            notes.append(
                f"input '{spec.name}' has open dimensions; the check uses shape {list(shape)}"
            )
        _check_size(f"input '{spec.name}'", shape)
        feeds[spec.name] = _random_values(rng, shape, spec.dtype)
    names = ir.get_output_names(graph)
    arrays = Session(graph).run(names, feeds)
    declared = {value.name: value.dtype for value in graph.graph.outputs}
    summaries = []
    for name, array in zip(names, arrays, strict=True):
        type_name = getattr(declared[name], "name", "FLOAT")
        if type_name == "FLOAT" and array.dtype.kind != "f":
            notes.append(
                f"output '{name}' is declared float, but the simulator returns {array.dtype}"
            )
        summaries.append(_summarize_output(name, array))
    return TrialRunResult(summaries, None, notes)


def _check_size(label: str, dims: Sequence[int | None]) -> None:
    """Raise ModelError if a tensor has more than `_MAX_ELEMENTS` elements.

    Open dimensions (None) count as 1. `label` is the subject of the message.
    """
    element_count = math.prod(dim or 1 for dim in dims)
    if element_count > _MAX_ELEMENTS:
        raise ModelError(
            f"{label} has {element_count:.2g} elements; at most {_MAX_ELEMENTS:.2g} can be run"
        )


def _random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return random values: standard normal floats, uniform bools and integers of at most 16 bits.

    Wider integers are 0, since they may be indices.
    """
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu" and dtype.itemsize <= 2:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    return np.zeros(shape, dtype)


def _summarize_output(name: str, array: np.ndarray) -> OutputSummary:
    """Return name, shape, dtype and (low, high) of an output, ignoring infinities and NaN.

    Low and high are None without finite numbers.
    """
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    usable = finite.size and array.dtype.kind in "iufb"
    low, high = (float(finite.min()), float(finite.max())) if usable else (None, None)
    return OutputSummary(name, list(array.shape), array.dtype.name, low, high)
