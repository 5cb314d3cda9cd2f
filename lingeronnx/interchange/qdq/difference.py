"""Differences between the simulator on an integer graph and onnxruntime on its QDQ graph.

Every operator of the simulator reads the integers of the QDQ graph, so that the differences of
operators do not accumulate:

    steps = |integer of the simulator - integer of QuantizeLinear|, both from the same inputs

Rounding causes one step: the simulator rounds ties up, QuantizeLinear to even.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.errors import ConfigError, DataError, ModelError
from ...ir import ir
from ...ir.plan import Affine
from ...runtime.integer.runner import IntegerRunner, detect_target
from ...runtime.runners import FloatRunner
from ...runtime.session import Session
from .qdq_writer import QdqGraph

__all__ = [
    "SimulatorDifference",
    "format_differences",
    "generate_random_inputs",
    "measure_differences",
]

_SAMPLES = 8
_RANGE_SIGMAS = 4  # the integer range of random inputs, in standard deviations


@dataclass(frozen=True)
class SimulatorDifference:
    """Difference of one integer tensor between the integer graph and its QDQ graph.

    Attributes
    ----------
    tensor
        Name of the tensor.
    operator
        Name of the format of the operator that computes it.
    computes_in_float
        Whether the QDQ graph computes a function in float that the integers approximate.
    max_steps, mean
        Largest and average difference in integer steps.
    """

    tensor: str
    operator: str
    computes_in_float: bool
    max_steps: int
    mean: float

    @property
    def is_notable(self) -> bool:
        """Whether the difference is more than one of rounding: over 1 step, or by a float form."""
        return self.computes_in_float or self.max_steps > 1


def measure_differences(
    model: ir.Model, standard: QdqGraph, feeds: Mapping[str, np.ndarray]
) -> list[SimulatorDifference]:
    """Measure the differences between an integer graph and its QDQ graph.

    Each integer tensor is computed by the simulator from the tensors of the QDQ graph, so that
    differences do not accumulate.

    Parameters
    ----------
    model
        The integer graph.
    standard
        The QDQ graph that was written for it.
    feeds
        Inputs by name.

    Returns
    -------
    list of SimulatorDifference
        One for every integer tensor, in graph order.

    Raises
    ------
    ModelError
        If the platform writes integers of other widths than the attributes specify.
    """
    runner = FloatRunner(standard.graph, set(standard.quantized_names.values()))
    original_names = {integer_name: name for name, integer_name in standard.quantized_names.items()}
    force = {original_names[name]: array for name, array, _ in runner.run(feeds)}
    differences = []
    stream = Session(model).tensors(feeds, list(force), force)
    try:
        for name, array, _ in stream:
            steps = np.abs(array.astype(np.int64) - force[name].astype(np.int64))
            op_format = standard.formats[name]
            differences.append(
                SimulatorDifference(
                    name,
                    op_format.name,
                    op_format.has_inexact_float_model,
                    int(steps.max(initial=0)),
                    float(steps.mean()),
                )
            )
    except DataError as error:
        platform = detect_target(model).name
        raise ModelError(
            f"attributes specify another width than {platform} writes: {error}; quantize the model "
            "again"
        ) from error
    return differences


def generate_random_inputs(model: ir.Model, seed: int = 0) -> dict[str, np.ndarray] | None:
    """Generate normally distributed inputs for an integer graph, within the ranges of its inputs.

    `_SAMPLES` samples if the graph takes any batch size, else one. Returns input name -> array, or
    None if an input has unknown dimensions other than the batch. Integer inputs are 0.
    """
    runner, rng, feeds = IntegerRunner(model), np.random.default_rng(seed), {}
    for spec in runner.inputs:
        if spec.shape is None:
            return None
        size = []
        for axis, axis_size in enumerate(spec.shape):
            is_batch = axis == spec.axis
            if axis_size is None and not is_batch:
                return None
            accepts_samples = is_batch and spec.accepts_any_batch and not spec.is_single_sample
            size.append(_SAMPLES if accepts_samples else int(axis_size or 1))
        feeds[spec.name] = _sample_input(rng, size, spec.dtype, runner.input_qparams.get(spec.name))
    return feeds


def _sample_input(
    rng: np.random.Generator, size: list[int], dtype: np.dtype, qparams: Affine | None
) -> np.ndarray:
    """Return random values of shape `size` for one input: zeros for integers, else normal ones.

    Their standard deviation is a quarter of the range of `qparams`, 1 without.
    """
    if dtype.kind != "f":
        return np.zeros(size, dtype)
    values = rng.standard_normal(size)
    if qparams is not None:
        values = values * ((qparams.high + 1) / _RANGE_SIGMAS) / qparams.scale
    return values.astype(dtype)


def _format_operator(operator: str, group: Sequence[SimulatorDifference], data: str) -> str:
    """Format the differences of the tensors `group`, computed by `operator`, as one line.

    It has the number of tensors, the most integer steps with the name of that tensor, and the mean
    over tensors of the mean difference in steps. `data` names the kind of inputs.
    """
    worst = max(group, key=lambda difference: difference.max_steps)
    prefix = "computed in float, " if worst.computes_in_float else ""
    mean = np.mean([difference.mean for difference in group])
    return (
        f"{len(group)} {operator}: {prefix}at most {worst.max_steps} steps from the simulator on "
        f"{data} ('{worst.tensor}'), {mean:.2g} on average"
    )


def format_differences(
    model: ir.Model, standard: QdqGraph, samples: Mapping[str, np.ndarray] | None = None
) -> list[str]:
    """Format the differences between an integer graph and its QDQ graph as report lines.

    One line per operator with a notable difference (`SimulatorDifference.is_notable`), and one for
    all others. If they cannot be compared, a single line with the reason.

    Parameters
    ----------
    model
        The integer graph.
    standard
        The QDQ graph that was written for it.
    samples
        Inputs by name; None for random ones.
    """
    feeds = samples or generate_random_inputs(model)
    if feeds is None:
        return ["not compared with the simulator: input dimensions are unknown"]
    try:
        differences = measure_differences(model, standard, feeds)
    except ConfigError as error:
        return [f"not compared with the simulator: {error}"]
    data = "calibration data" if samples else "random inputs"
    notable = [d.operator for d in differences if d.is_notable]
    lines = []
    for operator in dict.fromkeys(notable):
        group = [difference for difference in differences if difference.operator == operator]
        lines.append(_format_operator(operator, group, data))
    others = [difference for difference in differences if not difference.is_notable]
    if others:
        is_equal = all(difference.max_steps == 0 for difference in others)
        distance = "equal to" if is_equal else "at most 1 step from"
        lines.append(
            f"the {'other ' if lines else ''}{len(others)} integer tensors: {distance} the "
            f"simulator on {data} (ties round to even, not up)"
        )
    return lines
