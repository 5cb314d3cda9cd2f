"""How far the floats of a host part may be from onnxruntime's.

1e-5 of their range, or what single precision costs.
Where sums nearly cancel and a logarithm follows, as in a log spectrum, the last bits of the sums
decide, and so does their order: onnxruntime itself may be farther from exact arithmetic than 1e-5.
There a part's result is compared with the same graph in double precision, computed with ONNX's own
reference implementation. A program that is no farther from it than onnxruntime is differs from
onnxruntime by twice that at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from ..graph import ir
from ..run.parts_runner import PartRun
from ..run.program_parts import ProgramPart
from ..run.runners import FloatRunner
from .dumps import HOST_TOLERANCE, absolute_difference, max_magnitude

__all__ = ["compute_host_tolerances", "run_in_double_precision"]

#: Outputs that move by more than this, where inputs move by their last bit, are looked at in double precision.
_SENSITIVITY_THRESHOLD = HOST_TOLERANCE / 10
_LAST_BIT_FACTORS = np.array([1 - 2**-23, 1 + 2**-23], np.float32)
#: Of so many calls, those in which they move most.
_MAX_DOUBLE_CALLS = 2


def compute_host_tolerances(part: ProgramPart, runs: Sequence[PartRun]) -> dict[str, float]:
    """Return how far each float that a host part writes may be from onnxruntime's, as a fraction of its range.

    runs : of that part, one for each call. A range is that of all of them. At least
    `HOST_TOLERANCE`; that, too, where the reference implementation cannot run the part.
    """
    spans = {
        name: max_magnitude(run.outputs[name] for run in runs)
        for name in part.outputs
        if runs[0].outputs[name].dtype == np.float32
    }
    found = dict.fromkeys(spans, HOST_TOLERANCE)
    runner, rng = FloatRunner(part.graph, part.outputs), np.random.default_rng(0)
    moves = [_measure_sensitivity(runner, run, spans, rng) for run in runs]
    shaky = [name for name in spans if max(move[name] for move in moves) > _SENSITIVITY_THRESHOLD]
    if not shaky:
        return found
    most = sorted(range(len(runs)), key=lambda at: -max(moves[at][name] for name in shaky))
    for run in (runs[at] for at in most[:_MAX_DOUBLE_CALLS]):
        exact = run_in_double_precision(ir.to_proto(part.graph), run.inputs)
        for name in shaky if exact else ():
            off = max_magnitude([absolute_difference(run.outputs[name], exact[name])]) / spans[name]
            found[name] = max(found[name], float(f"{2 * off:.2g}"))
    return found


def _measure_sensitivity(
    runner: FloatRunner, run: PartRun, spans: Mapping[str, float], rng: np.random.Generator
) -> dict[str, float]:
    """Return by how much of its range each output moves where each input moves by its last bit, up or down."""
    given = {
        name: array * rng.choice(_LAST_BIT_FACTORS, array.shape)
        if array.dtype == np.float32
        else array
        for name, array in run.inputs.items()
    }
    made = {name: np.asarray(array) for name, array, _ in runner.run(given)}
    return {
        name: max_magnitude([absolute_difference(made[name], run.outputs[name])]) / span
        if span
        else 0.0
        for name, span in spans.items()
    }


def run_in_double_precision(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the outputs of `model` with all floats in double precision.

    {} where an operator has no reference.
    """
    wide = (
        inline_local_functions(model)
        if model.functions
        else onnx.ModelProto.FromString(model.SerializeToString())
    )
    for tensor in wide.graph.initializer:
        _widen(tensor)
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            if (
                node.op_type == "Cast"
                and attribute.name == "to"
                and attribute.i == onnx.TensorProto.FLOAT
            ):
                attribute.i = onnx.TensorProto.DOUBLE
    given = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in inputs.items()}
    try:
        with np.errstate(all="ignore"):
            made = ReferenceEvaluator(wide).run(None, given)
    except (
        Exception
    ):  # a foreign implementation's, of operators that it has not or not for these shapes
        return {}
    return {
        value.name: np.asarray(array) for value, array in zip(wide.graph.output, made, strict=True)
    }


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == onnx.TensorProto.FLOAT:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
