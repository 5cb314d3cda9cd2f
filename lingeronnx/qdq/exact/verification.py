"""A written file beside the simulator.

Outputs of single samples, bit for bit, and whether its batch may be open.
onnxruntime opens the file with its own settings, all its fusions among them. An output that a
Dequant makes is compared by the integers that it stands for: where a scale is no power of two,
`1 / scale` in float32 is one unit off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...formats import DEQUANT, read_attributes
from ...graph import ir, operators
from ...plan import Affine
from ...run.integer.runner import IntegerRunner
from ...run.runners.sessions import open_default_ort_session
from ...run.session import Session
from .batch_axis import separate_batch_axis

if TYPE_CHECKING:
    from ...run.runners.sessions import OrtSession

__all__ = [
    "Feeds",
    "MatchCount",
    "compare_with_simulator",
    "make_batch_dynamic",
    "open_as_user",
    "output_qparams",
    "outputs_match",
    "random_feeds",
]

Feeds = Mapping[str, np.ndarray]

#: Float operators of which each sample's numbers are its own, whatever stands beside it.
_BATCH_SAFE_OPS = (
    operators.SOFTMAX_FAMILY_OPS
    | operators.DATA_MOVEMENT_OPS
    | operators.BROADCASTING_OPS
    | operators.UNARY_ELEMENTWISE_OPS
)


@dataclass(frozen=True)
class MatchCount:
    """Of one kind of inputs: how many samples were compared, of how many all outputs are equal."""

    equal: int
    count: int


def open_as_user(model: ir.Model) -> OrtSession:
    """Return the standard graph as a user opens its file."""
    return open_default_ort_session(ir.to_bytes(model))


def random_feeds(
    model: ir.Model, like_calibration: bool, count: int
) -> list[dict[str, np.ndarray]] | None:
    """Return `count` inputs for the integer graph `model`; None where sizes are open.

    like_calibration : normal, the range of the input's integers at four standard deviations; else
    all over the range and a tenth beyond, with values half way between integers, where the
    simulator and the standard round otherwise.
    """
    runner, rng, found = IntegerRunner(model), np.random.default_rng(0), []
    for spec in runner.inputs:
        if spec.shape is None or any(
            size is None for i, size in enumerate(spec.shape) if i != spec.axis
        ):
            return None
    for _ in range(count):
        feed = {}
        for spec in runner.inputs:
            size = [int(n or 1) for n in spec.shape or ()]
            q = runner.input_qparams.get(spec.name) or Affine(32.0)
            if spec.dtype.kind != "f":
                feed[spec.name] = np.zeros(size, spec.dtype)
            elif like_calibration:
                feed[spec.name] = (rng.standard_normal(size) * (q.high + 1) / 4 / q.scale).astype(
                    spec.dtype
                )
            else:
                top = (q.high + 1) * 1.1
                counts = np.where(
                    rng.random(size) < 0.5,
                    np.rint(rng.uniform(-top, top, size) * 2) / 2,
                    rng.uniform(-top, top, size),
                )
                feed[spec.name] = (counts / q.scale).astype(spec.dtype)
        found.append(feed)
    return found


def compare_with_simulator(
    model: ir.Model, session: OrtSession, feeds: Iterable[Feeds]
) -> MatchCount:
    """Compare the integer graph `model` with what was written for it, on samples one by one."""
    simulator, names = Session(model), [value.name for value in session.get_outputs()]
    scales = output_qparams(model)
    equal = count = 0
    for feed in feeds:
        want, got = simulator.run(names, dict(feed)), session.run(names, dict(feed))
        count += 1
        equal += all(
            outputs_match(a, b, scales.get(name))
            for name, a, b in zip(names, want, got, strict=True)
        )
    return MatchCount(equal, count)


def output_qparams(model: ir.Model) -> dict[str, Affine]:
    """Return how the integers are held that outputs of Dequants stand for."""
    found = {}
    for value in model.graph.outputs:
        node = ir.producer(value)
        if node is not None and node.op_type in DEQUANT.names:
            attrs = read_attributes(DEQUANT, node)
            found[str(value.name)] = DEQUANT.input_qparams(attrs)[0]
    return found


def outputs_match(want: np.ndarray, got: np.ndarray, qparams: Affine | None) -> bool:
    """Return whether two outputs are the same, to the last bit or, held as `qparams`, by their integers."""
    if want.shape != got.shape:
        return False
    if qparams is None or np.array_equal(want, got):
        return bool(np.array_equal(want, got, equal_nan=want.dtype.kind == "f"))
    integers, counts = (np.rint(array.astype(np.float64) * qparams.scale) for array in (want, got))
    return bool(np.array_equal(integers, counts) and np.allclose(want, got, rtol=1e-6, atol=0))


def make_batch_dynamic(
    model: ir.Model, standard: ir.Model, feeds: list[dict[str, np.ndarray]]
) -> ir.Model | str:
    """Return the graph `standard`, written for the integer graph `model` of batch 1, for any batch; or why it has 1.

    feeds : samples, which must give the same together.
    """
    ones = [value for value in standard.graph.inputs if (ir.get_shape(value) or (0,))[0] == 1]
    if not ones or len(ones) < len(standard.graph.inputs):
        return "" if not ones else "not all inputs have a batch of 1"
    runner = IntegerRunner(model)
    list(runner.run(feeds[0]))
    if not runner.per_sample:
        return "some operator mixes what lies along the first axis"
    other = {
        node.op_type for node in model.graph if not node.domain and not ir.get_attr(node, "scale_o")
    }
    if strange := sorted(other - _BATCH_SAFE_OPS - {"Constant"}):
        return f"{', '.join(strange)} may mix samples"
    found = ir.clone(standard)
    separate_batch_axis(found)
    for node in found.graph:
        if node.op_type == "Reshape" and not node.domain:
            target = ir.const_value(node.inputs[1])
            if target is None or target.size == 0 or (target[0] > 1 and -1 in target):
                return "a size is worked out at run time"
            if target[0] > 0:  # heads of attention may stand on that axis, too
                first = 0 if (target[1:] == -1).any() else -1
                ir.set_constant_input(
                    found, node, 1, np.array([first, *target[1:]], np.int64), "any_batch"
                )
    _clear_static_shapes(found)
    names = [str(value.name) for value in standard.graph.outputs]
    try:
        session = open_as_user(found)
        alone = [session.run(names, feed) for feed in feeds]
        together = session.run(
            names, {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
        )
    except Exception as error:  # noqa: BLE001 - onnxruntime raises classes of its own, and the answer is the same
        return f"onnxruntime does not run it with more ({str(error).splitlines()[0][:80]})"
    same = all(
        np.array_equal(np.concatenate(parts), whole)
        for parts, whole in zip(zip(*alone, strict=True), together, strict=True)
    )
    return found if same else "samples give other numbers together"


def _clear_static_shapes(model: ir.Model) -> None:
    """Give inputs and outputs a batch of any size, and leave the sizes of what lies between open."""
    ends = {*model.graph.inputs, *model.graph.outputs}
    for value in ir.iter_values(model):
        if value.is_initializer() or value.shape is None:
            continue
        sizes = list(ir.get_shape(value) or ())
        value.shape = ir.make_shape(["batch", *sizes[1:]]) if value in ends and sizes else None
