"""Run a model, integer or float, over data and return its tensors: `simulate`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ..common.errors import ConfigError
from ..ir import ir
from ..ir.plan import Affine
from ..ir.plan.synthetic_calibration import collect_calibration_warnings
from ..operators.integer_ops import DEQUANT
from ..operators.invalid_models import explain_invalid_models
from ..targets import require_measured
from .data import Data, Progress
from .dump import DumpFolder, TensorSummary
from .input_moments import format_magnitude_warnings
from .provenance import load_fixed_arrays
from .session import Session

__all__ = ["Simulation", "simulate"]


@dataclass(frozen=True)
class Simulation:
    """Tensors of a run over all samples.

    arrays : by tensor name, batch on axis 0. held : quantization parameters of arrays of integers,
    else None. outputs : {graph output: its tensor in `arrays`}. samples : their number. at : the
    requested summary. notes : remarks for the user.
    """

    arrays: Mapping[str, np.ndarray]
    held: Mapping[str, Affine | None]
    outputs: Mapping[str, str]
    samples: int
    at: TensorSummary | None
    notes: Sequence[str]


@explain_invalid_models
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
    allow_unmeasured: bool = False,
    progress: Progress | None = None,
) -> Simulation:
    """Run a model, integer or float, on data and return its outputs and further tensors.

    Parameters
    ----------
    model
        A path, a model in memory, or a `Session`.
    data
        Inputs, in the forms that `quantize` accepts.
    taps
        Further tensors to return; "all" for every tensor.
    integers
        Return integers instead of real values, and for a dequantized output its integer tensor.
    dump
        Folder to write the `taps` to, or every tensor if there are none, as stored: one .npy per
        tensor, with batches appended along axis 0, and an index.
    at
        Tensor to summarize.
    batch, limit
        Samples per batch, and number of samples to use; None uses all.
    allow_unmeasured
        Allow versions of the executor and operators that are known from reading only.
    progress
        Called with (description, processed samples, total samples or None).

    Raises
    ------
    DataError
        If the data are invalid.
    ConfigError
        If a tensor is unknown or not available, or `integers` is passed for a float model. If the
        executor or an operator was never measured and this is not allowed.
    """
    session = model if isinstance(model, Session) else Session(model)
    unmeasured: list[str] = []
    if session.target is not None:
        operators = [node.op_type for node in session.model.graph]
        unmeasured = require_measured(session.target, operators, allow_unmeasured)
    if integers and not session.is_integer:
        raise ConfigError("a float model has no integers; quantize it first")
    fixed = load_fixed_arrays(session.model)
    source = Data(data, session.inputs, limit=limit, label="input data", fixed=fixed)
    selection = _select_tensors(session, taps, integers, dump is not None, at)
    batches = source.batches(batch)
    first = next(batches)
    arrays: dict[str, list[np.ndarray]] = {}
    qparams_by_name: dict[str, Affine | None] = {}
    summary = TensorSummary(at) if at is not None else None
    sample_count = 0
    with contextlib.nullcontext() if dump is None else DumpFolder(dump) as folder:
        for feeds, _ in chain([first], batches):
            missing = dict.fromkeys(selection.required)
            for name, value, qparams in session.tensors(feeds, selection.requested):
                missing.pop(name, None)
                array = _as_array(name, value, is_first_batch=sample_count == 0)
                if folder is not None and name in selection.dumped:
                    folder.add(name, array, qparams)
                if summary is not None and name == at:
                    summary.add(array, qparams)
                if name in selection.returned:
                    qparams_by_name[name] = qparams if integers else None
                    if qparams is not None and not integers:
                        array = qparams.real(array).astype(np.float32)
                    arrays.setdefault(name, []).append(array)
            _check_none_missing(missing)
            sample_count += min((len(array) for array in feeds.values()), default=1)
            if progress is not None:
                progress("simulating", sample_count, None)
    return Simulation(
        arrays={name: _concatenate_batches(name, batches) for name, batches in arrays.items()},
        held=qparams_by_name,
        outputs=selection.outputs,
        samples=sample_count,
        at=summary,
        notes=[
            *unmeasured,
            *collect_calibration_warnings(session.model),
            *source.notes,
            *format_magnitude_warnings(session.model, first[0]),
        ],
    )


@dataclass(frozen=True)
class _TensorSelection:
    """Tensors of a simulation.

    outputs : {graph output: its tensor to return}. required : tensors that were named, which must
    be available. returned, dumped : those in the result and in the dump. requested : all of them,
    named ones first.
    """

    outputs: Mapping[str, str]
    required: Sequence[str]
    returned: Collection[str]
    dumped: Collection[str]
    requested: Sequence[str]


def _select_tensors(
    session: Session, taps: Sequence[str], integers: bool, has_dump: bool, at: str | None
) -> _TensorSelection:
    """Select the tensors of a simulation.

    Outputs are always returned, with `integers` as the tensors before their Dequant. `taps` are
    further ones, "all" for every tensor; with `has_dump`, the `taps` are dumped, or all tensors
    without any. `at` is a tensor to summarize.
    """
    all_names = [str(value.name) for value in ir.iter_values(session.model)]
    outputs = {}
    for value in session.model.graph.outputs:
        name = str(value.name)
        outputs[name] = _integer_tensor_name(value) if integers else name
    required = [*outputs.values(), *(name for name in taps if name != "all")]
    if at is not None:
        required.append(at)
    returned = set(all_names if "all" in taps else taps) | set(outputs.values())
    dumped: set[str] = set()
    if has_dump:
        dumped = set(all_names if "all" in taps or not taps else taps)
    optional = [name for name in all_names if name in returned or name in dumped]
    requested = list(dict.fromkeys([*required, *optional]))
    return _TensorSelection(outputs, required, returned, dumped, requested)


def _check_none_missing(missing: Collection[str]) -> None:
    """Raise ConfigError for the first of the tensors `missing`; does nothing without any."""
    for name in missing:
        raise ConfigError(
            f"tensor '{name}' is not available: it is internal to a fused float segment, or "
            "precedes the quantized input; request a later tensor"
        )


def _integer_tensor_name(value: ir.Value) -> str:
    """Return the name of the integer tensor that a Dequant converts to `value`.

    The name of `value` itself if no Dequant writes it.
    """
    node = ir.producer(value)
    source = node.inputs[0] if node is not None and node.op_type == DEQUANT.name else None
    return str(value.name if source is None else source.name)


def _as_array(name: str, value: np.ndarray | list[np.ndarray], is_first_batch: bool) -> np.ndarray:
    """Return `value`; the tensors of a sequence are stacked along a new axis 0.

    Raises ConfigError, with `name`, if their shapes differ or the batch is not the first one: the
    samples of a sequence are not on axis 0.
    """
    if isinstance(value, np.ndarray):
        return value
    if len({(item.shape, item.dtype) for item in value}) != 1:
        raise ConfigError(
            f"'{name}' is a sequence of tensors of different shapes or types; pass a model that "
            "ends in plain tensors"
        )
    if not is_first_batch:
        raise _make_batch_error(name)
    return np.stack(value)


def _make_batch_error(name: str) -> ConfigError:
    """Make the error of a tensor whose batches cannot be joined."""
    return ConfigError(
        f"tensor '{name}' does not have the batch on axis 0; pass a --batch that covers all samples"
    )


def _concatenate_batches(name: str, batches: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate the `batches` of a tensor along axis 0; scalars count as one row.

    Raises ConfigError, with `name`, if their other axes differ.
    """
    batches = [np.atleast_1d(batch) for batch in batches]
    if len({batch.shape[1:] for batch in batches}) > 1:
        raise _make_batch_error(name)
    return np.concatenate(batches)
