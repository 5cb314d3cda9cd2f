"""Running what was repaired.

On seeded inputs in the simulator, to see that it does run and what comes out.
Float operators go through onnxruntime. Sizes that the file leaves open are 1. Whatever happens is
told in one line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from onnx import ModelProto

from ..errors import LingerOnnxError
from ..graph import ir
from ..graph.name_mapping import restore_user_names
from ..run.runners import get_input_specs
from ..run.session import Session
from .shapes import infer_shapes

__all__ = ["OutputSummary", "TrialRunResult", "run_repaired_graph"]

_MAX_ELEMENTS = 1 << 28  # elements of one tensor


@dataclass(frozen=True)
class OutputSummary:
    """What came out at a graph output.

    Shape, element type and range (None where there is no number).
    """

    name: str
    shape: Sequence[int]
    dtype: str
    low: float | None
    high: float | None


@dataclass(frozen=True)
class TrialRunResult:
    """The outcome of a run: the outputs, or the error of the node that failed.

    Notes on what is odd.
    """

    outputs: Sequence[OutputSummary] = ()
    error: str | None = None
    notes: Sequence[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the outcome as text."""
        if self.error is not None:
            return [
                f"check: it does not run: {self.error}",
                *(f"note: {note}" for note in self.notes),
            ]
        rows = [
            (f"'{o.name}'", str(list(o.shape)), o.dtype, _format_range(o)) for o in self.outputs
        ]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        text = ["check: it runs; on random input it gives"]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            text.append("  " + "  ".join([*cells, row[3]]))
        return text + [f"note: {note}" for note in self.notes]

    def to_dict(self) -> dict[str, object]:
        """Return the outcome as JSON-ready values."""
        return {
            "outputs": [asdict(o) for o in self.outputs],
            "error": self.error,
            "notes": list(self.notes),
        }


def _format_range(output: OutputSummary) -> str:
    if output.low is None or output.high is None:
        return "no numbers"
    return f"{output.low:.6g} to {output.high:.6g}"


def run_repaired_graph(model: ModelProto, seed: int = 0) -> TrialRunResult:
    """Run `model` once, on normal random numbers and random integers.

    Errors become `TrialRunResult.error`.
    """
    try:
        return _run_unguarded(model, seed)
    except LingerOnnxError as error:
        return TrialRunResult(error=str(error))
    except MemoryError:
        return TrialRunResult(error="its tensors do not fit into memory")
    except (
        Exception
    ) as error:  # any file may come here; what the runner trips over is the graph's fault
        text = " ".join(str(error).split()) or type(error).__name__
        return TrialRunResult(error=f"it cannot be run: {text[:200]}")


def _run_unguarded(model: ModelProto, seed: int) -> TrialRunResult:
    for name, (_, dims) in infer_shapes(model).items():
        if dims is not None and math.prod(d or 1 for d in dims) > _MAX_ELEMENTS:
            return TrialRunResult(
                error=(
                    f"tensor '{name}' has {math.prod(d or 1 for d in dims):.2g} elements; too "
                    "many to run"
                )
            )
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = restore_user_names(ir.from_proto(copy))
    notes = []
    feeds, rng = {}, np.random.default_rng(seed)
    for spec in get_input_specs(graph):
        shape = tuple(1 if d is None else d for d in spec.shape or ())
        if None in (spec.shape or ()):
            notes.append(f"input '{spec.name}' is run as {list(shape)}: the file leaves sizes open")
        if math.prod(shape) > _MAX_ELEMENTS:
            return TrialRunResult(
                error=f"input '{spec.name}' has {math.prod(shape):.2g} elements; too many to run"
            )
        feeds[spec.name] = _random_values(rng, shape, spec.dtype)
    session = Session(graph)
    names = [str(value.name) for value in graph.graph.outputs]
    arrays = session.run(names, feeds)
    declared = {value.name: value.dtype for value in graph.graph.outputs}
    for name, array in zip(names, arrays, strict=True):
        kind = getattr(declared[name], "name", "FLOAT")
        if kind == "FLOAT" and array.dtype.kind != "f":
            notes.append(f"output '{name}' is declared float, the simulator gives {array.dtype}")
    return TrialRunResult(
        [_summarize_output(name, array) for name, array in zip(names, arrays, strict=True)],
        None,
        notes,
    )


def _random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return random values of a type.

    Integers of more than 16 bits, which may be indices, are 0.
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
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    usable = finite.size and array.dtype.kind in "iufb"
    low, high = (float(finite.min()), float(finite.max())) if usable else (None, None)
    return OutputSummary(name, list(array.shape), array.dtype.name, low, high)
