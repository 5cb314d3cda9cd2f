"""Compute the tolerance of a host part's floats from their range and single-precision error.

It is 1e-5 of the range, or more if single precision is less accurate.

If sums nearly cancel and a logarithm follows, as in a log spectrum, the last bits of the sums and
thus their order decide: onnxruntime itself may differ from exact arithmetic by more than 1e-5. The
result of such a part is compared with the same graph in double precision, computed by ONNX's
reference implementation. A program that is at least as accurate as onnxruntime then differs from
onnxruntime by at most twice that error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from ..ir import ir
from ..runtime.parts_runner import PartRun
from ..runtime.program_parts import ProgramPart
from ..runtime.runners import FloatRunner
from .dumps import HOST_TOLERANCE, absolute_difference, max_magnitude

__all__ = ["compute_host_tolerances", "run_in_double_precision"]

#: Outputs that change by more than this when inputs change by their last bit are computed in double
#: precision.
_SENSITIVITY_THRESHOLD = HOST_TOLERANCE / 10
_LAST_BIT_FACTORS = np.array([1 - 2**-23, 1 + 2**-23], np.float32)
#: Number of calls computed in double precision: those with the largest changes.
_MAX_DOUBLE_CALLS = 2


def compute_host_tolerances(part: ProgramPart, runs: Sequence[PartRun]) -> dict[str, float]:
    """Compute the tolerance of each float output of a host part against onnxruntime.

    Parameters
    ----------
    part
        The host part.
    runs
        Its inputs and outputs, one run for each call.

    Returns
    -------
    dict of str to float
        Tolerance as a fraction of the output's largest magnitude in all runs, by name of the
        float32 outputs. `HOST_TOLERANCE`, or more for an output that amplifies small errors: twice
        its error against double precision, unless the reference implementation cannot run the part.
    """
    ranges = {}
    for name in part.outputs:
        if runs[0].outputs[name].dtype == np.float32:
            ranges[name] = max_magnitude(run.outputs[name] for run in runs)
    tolerances = dict.fromkeys(ranges, HOST_TOLERANCE)
    runner, rng = FloatRunner(part.graph, part.outputs), np.random.default_rng(0)
    sensitivities = [_measure_sensitivity(runner, run, ranges, rng) for run in runs]
    sensitive = []
    for name in ranges:
        if max(sensitivity[name] for sensitivity in sensitivities) > _SENSITIVITY_THRESHOLD:
            sensitive.append(name)
    if not sensitive:
        return tolerances
    by_sensitivity = sorted(
        range(len(runs)), key=lambda i: -max(sensitivities[i][name] for name in sensitive)
    )
    for index in by_sensitivity[:_MAX_DOUBLE_CALLS]:
        run = runs[index]
        exact = run_in_double_precision(ir.to_proto(part.graph), run.inputs)
        for name in sensitive if exact else ():
            error = max_magnitude([absolute_difference(run.outputs[name], exact[name])])
            tolerance = float(f"{2 * (error / ranges[name]):.2g}")
            tolerances[name] = max(tolerances[name], tolerance)
    return tolerances


def _measure_sensitivity(
    runner: FloatRunner, run: PartRun, ranges: Mapping[str, float], rng: np.random.Generator
) -> dict[str, float]:
    """Measure how much outputs change, relative to their range, if inputs change by the last bit.

    Parameters
    ----------
    runner
        Runner of the host part.
    run
        Run with the inputs, whose float32 values change by 2^-23 up or down at random, and outputs.
    ranges
        Largest magnitude of each output by name; one of 0 gives a sensitivity of 0.
    rng
        Source of the random directions.
    """
    inputs = {}
    for name, array in run.inputs.items():
        if array.dtype == np.float32:
            array = array * rng.choice(_LAST_BIT_FACTORS, array.shape)
        inputs[name] = array
    outputs = {name: np.asarray(array) for name, array, _ in runner.run(inputs)}
    sensitivity = dict.fromkeys(ranges, 0.0)
    for name, output_range in ranges.items():
        if output_range:
            change = max_magnitude([absolute_difference(outputs[name], run.outputs[name])])
            sensitivity[name] = change / output_range
    return sensitivity


def run_in_double_precision(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run a double-precision copy of `model` with ONNX's reference implementation.

    float32 inputs are converted to double. Returns the outputs by name, or an empty dict if the
    reference implementation fails.
    """
    double_model = _make_double_model(model)
    double_inputs = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in inputs.items()
    }
    try:
        with np.errstate(all="ignore"):
            outputs = ReferenceEvaluator(double_model).run(None, double_inputs)
    except (
        Exception
    ):  # any error of the implementation, for operators or shapes it does not support
        return {}
    names = [value.name for value in double_model.graph.output]
    return {name: np.asarray(array) for name, array in zip(names, outputs, strict=True)}


def _make_double_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model with its functions inlined, and float32 constants as double.

    Casts to float32 become Casts to double. Subgraphs stay as they are.
    """
    if model.functions:
        double_model = inline_local_functions(model)
    else:
        double_model = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in double_model.graph.initializer:
        _convert_to_double(tensor)
    for node in double_model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _convert_to_double(attribute.t)
            is_cast_type = node.op_type == "Cast" and attribute.name == "to"
            if is_cast_type and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE
    return double_model


def _convert_to_double(tensor: onnx.TensorProto) -> None:
    """Convert a float32 tensor to double in place; tensors of other types are unchanged."""
    if tensor.data_type == onnx.TensorProto.FLOAT:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
