"""How far onnxruntime is from the simulator on one graph in two forms.

Integers, and QuantizeLinear around reals.
Every operator is given the integers that the other form had before it, so that each difference is
its own:

    count = |integer of the simulator - integer of QuantizeLinear|, both from the same inputs

Rounding makes one count: half up here, half to even there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError, DataError, ModelError
from ..graph import ir
from ..run.integer.runner import IntegerRunner, detect_target
from ..run.runners import FloatRunner
from ..run.session import Session
from .qdq_writer import QdqGraph

__all__ = [
    "SimulatorDifference",
    "format_differences",
    "generate_random_inputs",
    "measure_differences",
]

_SAMPLES, _RANGE_SIGMAS = (
    8,
    4,
)  # made-up inputs: normal, the range of the integers at so many standard deviations


@dataclass(frozen=True)
class SimulatorDifference:
    """Of one integer tensor: what computes it, and by how many counts the two forms differ.

    computes_in_float : whether the standard form computes in real numbers what the integers
    approximate.
    """

    tensor: str
    operator: str
    computes_in_float: bool
    max_steps: int
    mean: float


def measure_differences(
    model: ir.Model, standard: QdqGraph, feeds: Mapping[str, np.ndarray]
) -> list[SimulatorDifference]:
    """Return the differences between the integer graph `model` and what was written for it, in graph order.

    ModelError where the platform writes integers of other widths than the attributes say: no
    standard form has those.
    """
    runner = FloatRunner(standard.graph, set(standard.quantized_names.values()))
    back = {integer_name: name for name, integer_name in standard.quantized_names.items()}
    force = {back[name]: array for name, array, _ in runner.run(feeds)}
    rows = []
    stream = Session(model).tensors(feeds, list(force), force)
    try:
        for name, array, _ in stream:
            off = np.abs(array.astype(np.int64) - force[name].astype(np.int64))
            form = standard.formats[name]
            rows.append(
                SimulatorDifference(
                    name,
                    form.name,
                    form.has_inexact_float_model,
                    int(off.max(initial=0)),
                    float(off.mean()),
                )
            )
    except DataError as error:
        platform = detect_target(model).name
        raise ModelError(
            f"attributes say another width than {platform} writes: {error}; quantize the model "
            "again"
        ) from error
    return rows


def generate_random_inputs(model: ir.Model, seed: int = 0) -> dict[str, np.ndarray] | None:
    """Return inputs for the integer graph `model`, normal within each Quant's range.

    None where sizes are open.
    """
    runner, rng, feeds = IntegerRunner(model), np.random.default_rng(seed), {}
    for spec in runner.inputs:
        shape = spec.shape
        if shape is None or any(size is None for i, size in enumerate(shape) if i != spec.axis):
            return None
        open_size = spec.accepts_any_batch and not spec.is_single_sample
        size = [
            _SAMPLES if i == spec.axis and open_size else int(n or 1) for i, n in enumerate(shape)
        ]
        q = runner.input_qparams.get(spec.name)
        if spec.dtype.kind != "f":
            feeds[spec.name] = np.zeros(size, spec.dtype)
        elif q is None:
            feeds[spec.name] = rng.standard_normal(size).astype(spec.dtype)
        else:
            spread = (q.high + 1) / _RANGE_SIGMAS
            feeds[spec.name] = (rng.standard_normal(size) * spread / q.scale).astype(spec.dtype)
    return feeds


def format_differences(
    model: ir.Model, standard: QdqGraph, samples: Mapping[str, np.ndarray] | None = None
) -> list[str]:
    """Return what a user should know.

    Each operator that is computed in real numbers, and the worst of the others.
    samples : inputs; None: made-up ones.
    """
    feeds = samples or generate_random_inputs(model)
    if feeds is None:
        return ["not compared with the simulator: sizes of inputs are open"]
    try:
        rows = measure_differences(model, standard, feeds)
    except ConfigError as error:
        return [f"not compared with the simulator: {error}"]
    on = "on calibration data" if samples else "on random inputs"
    told = []
    for operator in dict.fromkeys(
        row.operator for row in rows if row.computes_in_float or row.max_steps > 1
    ):
        those = [row for row in rows if row.operator == operator]
        worst = max(those, key=lambda row: row.max_steps)
        what = "computed in real numbers between, " if worst.computes_in_float else ""
        told.append(
            f"{len(those)} {operator}: {what}at most {worst.max_steps} counts from the simulator "
            f"{on} "
            f"('{worst.tensor}'), {np.mean([row.mean for row in those]):.2g} on average"
        )
    rest = [row for row in rows if not row.computes_in_float and row.max_steps <= 1]
    if rest:
        worst_rest = max(row.max_steps for row in rest)
        told.append(
            f"the {'other ' if told else ''}{len(rest)} integer tensors: at most {worst_rest} "
            "count from the simulator "
            f"{on} (ties round to even, not up)"
        )
    return told
