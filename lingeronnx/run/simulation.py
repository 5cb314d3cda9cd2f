"""Running a model, integer or float, over data and keeping tensors of it: `simulate`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError
from ..formats import DEQUANT
from ..graph import ir
from ..plan import Affine
from ..plan.synthetic_calibration import collect_calibration_warnings
from .data import Data, Progress
from .dump import DumpFolder, TensorSummary
from .session import Session

__all__ = ["Simulation", "simulate"]


@dataclass(frozen=True)
class Simulation:
    """Tensors of a run over all samples.

    arrays : by tensor name, batch on axis 0. held : how, where the array holds integers, else None.
    outputs : graph output -> the tensor of `arrays` that stands for it. at : the summary that was
    asked for.
    """

    arrays: Mapping[str, np.ndarray]
    held: Mapping[str, Affine | None]
    outputs: Mapping[str, str]
    samples: int
    at: TensorSummary | None
    notes: Sequence[str]


def simulate(
    model: ir.ModelLike | Session,
    data: object,
    *,
    taps: Sequence[str] = (),
    integers: bool = False,
    dump: str | os.PathLike[str] | None = None,
    at: str | None = None,
    batch: int = 64,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Simulation:
    """Run a model, integer or float, on data and return its outputs and the tensors named in `taps` ("all": every one).

    integers : integers instead of real values, and for an output that is dequantized the integer
    tensor behind it. dump : a folder for the `taps` (without any: every tensor) as they are stored,
    see `dump.DumpFolder`. at : a tensor to summarise. Raises DataError for wrong data, ConfigError
    for a tensor that is not there.
    """
    session = model if isinstance(model, Session) else Session(model)
    if integers and not session.is_integer:
        raise ConfigError("integers are asked of a float model, which has none; quantize it first")
    source = Data(data, session.inputs, limit=limit, what="input data")
    every = [str(v.name) for v in ir.iter_values(session.model)]
    outputs = {
        str(v.name): _integer_tensor_name(v) if integers else str(v.name)
        for v in session.model.graph.outputs
    }
    named = dict.fromkeys(
        [*outputs.values(), *(t for t in taps if t != "all"), *([at] if at is not None else [])]
    )
    kept = set(every if "all" in taps else taps) | set(outputs.values())
    dumped = set() if dump is None else set(every) if "all" in taps or not taps else set(taps)
    wanted = list({**named, **{name: None for name in every if name in kept or name in dumped}})
    parts: dict[str, list[np.ndarray]] = {}
    ways: dict[str, Affine | None] = {}
    summary = TensorSummary(at) if at is not None else None
    done = 0
    with contextlib.nullcontext() if dump is None else DumpFolder(dump) as folder:
        for feeds, _ in source.batches(batch):
            seen = set()
            for name, array, held in session.tensors(feeds, wanted):
                seen.add(name)
                if folder is not None and name in dumped:
                    folder.add(name, array, held)
                if summary is not None and name == at:
                    summary.add(array, held)
                if name in kept:
                    ways[name] = held if integers else None
                    if held is not None and not integers:
                        array = held.real(array).astype(np.float32)
                    parts.setdefault(name, []).append(array)
            if lost := [name for name in named if name not in seen]:
                raise ConfigError(
                    f"tensor '{lost[0]}' is not computed by itself: it lies between float nodes "
                    "that run "
                    "as one, or before the quantized input that was fed; take the tensor behind it"
                )
            done += min((len(array) for array in feeds.values()), default=1)
            if progress is not None:
                progress("simulating", done, None)
    arrays = {name: _concatenate_batches(name, pieces) for name, pieces in parts.items()}
    return Simulation(
        arrays,
        ways,
        outputs,
        done,
        summary,
        [*collect_calibration_warnings(session.model), *source.notes],
    )


def _integer_tensor_name(value: ir.Value) -> str:
    """Return the name of the integer tensor that `value` dequantizes, or its own."""
    node = ir.producer(value)
    read = node.inputs[0] if node is not None and node.op_type == DEQUANT.name else None
    return str(value.name if read is None else read.name)


def _concatenate_batches(name: str, pieces: Sequence[np.ndarray]) -> np.ndarray:
    pieces = [np.atleast_1d(piece) for piece in pieces]
    if len({piece.shape[1:] for piece in pieces}) > 1:
        raise ConfigError(
            f"tensor '{name}' does not have the batch on axis 0; give a --batch that holds all "
            "samples"
        )
    return np.concatenate(pieces)
