"""One function per job.

The flow of `quantize` reads from top to bottom:

    load -> trace shapes -> normalise -> fit -> partition -> equalize -> observe -> ranges -> assign -> refine -> lower
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from . import ir
from .analysis.check import Check, check_float, check_integer
from .assign import Choice, assign, legalize, observed, partition
from .chip import chip_part
from .config import QuantConfig, select, select_tensors
from .data import Data, InputSpec, Progress
from .errors import ConfigError, ConstraintError, DataError, InternalError, ModelError, nearest
from .evaluation import Evaluation, evaluate
from .fit import Fitted, fit
from .improve import factors
from .improve.cells import cell_notes
from .improve.equalize import equalize
from .improve.host_scale import free_borders, settle
from .improve.ranges import clips_without_scale, range_factors
from .improve.refine import refine, samples_that_fit
from .int_runner import row_of
from .lower import lower
from .metrics import Agreement
from .observe import TensorStats, observe
from .ops import float_op
from .passes import accept, normalize, straighten
from .passes.shapes import trace_shapes
from .plan import Plan, Transform
from .platforms import Platform
from .platforms import platform as platform_row
from .report import Report, describe
from .runners import FloatRunner, input_specs
from .session import Session, is_integer_graph
from .simulation import Simulation, simulate

__all__ = [
    "Check",
    "Evaluation",
    "Progress",
    "QuantizedModel",
    "Simulation",
    "check",
    "evaluate",
    "quantize",
    "simulate",
]

_CHECK_SAMPLES = 8  # for the comparison of normalised and original outputs
_FIDELITY_SAMPLES = 64  # calibration samples for the output fidelity in the report
_SYNTHETIC_SAMPLES = 16
_SYNTHETIC_ELEMENTS = 1 << 24  # of one input: fewer samples where one is large
_REFINE_SAMPLES = 256  # for the moments and mean errors of every layer
_EQUALIZE_SAMPLES = 64  # enough for the ranges of channels


@dataclass(frozen=True)
class QuantizedModel:
    """What `quantize` returns.

    graph : the integer graph. plan : its scales. report : what was done. float_graph : the normalised float graph that
    the plan speaks of, with ranges fitted.
    """

    graph: ir.Graph
    plan: Plan
    report: Report
    float_graph: ir.Graph

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the integer graph to `path`, as a whole or not at all."""
        ir.save(self.graph, path)

    @cached_property
    def chip(self) -> ir.Graph | None:
        """The part the packer takes, without the host part; None where the graph is not chip-ready or has none."""
        return chip_part(self.graph) if self.report.chip_ready and self.report.host_part else None

    def save_chip(self, path: str | os.PathLike[str]) -> None:
        """Write the part the packer takes to `path`; ConstraintError where the graph is not chip-ready."""
        if not self.report.chip_ready:
            raise ConstraintError("the graph is not chip-ready: it has no part that a chip could run by itself")
        ir.save(self.graph if self.chip is None else self.chip, path)

    def session(self) -> Session:
        """Return a session on the integer graph."""
        return Session(self.graph)


def quantize(
    model: str | os.PathLike[str] | ir.Graph,
    calib: Any = None,
    *,
    platform: str | None = None,
    mode: str | None = None,
    skip: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    config: QuantConfig | str | os.PathLike[str] | None = None,
    plan: Plan | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> QuantizedModel:
    """Quantize a float ONNX model and return the integer graph, its plan and a report.

    model : a path or an in-memory model, which is left as it is.
    calib : calibration data as `data.Data` takes it; None runs on synthetic inputs, and the report says so.
    config : a `QuantConfig` or a YAML file; the other settings win over it. plan : use these scales; nothing is
        calibrated.
    Raises ModelError, DataError, ConfigError; ConstraintError with require_chip where the result is not chip-ready.
    """
    conf = _config(config, {"platform": platform, "mode": mode, "skip": tuple(skip) or None,
                            "overrides": overrides or None, **settings})  # fmt: skip
    row = _row(conf)
    original, found = accept(ir.load(model) if isinstance(model, str | os.PathLike) else model)
    stem = Path(model).stem + "_quant" if isinstance(model, str | os.PathLike) else "model_quant"
    data = _calibration(calib, original, conf)
    found += _fix_sizes(original, data)
    graph = ir.clone(original)
    fitted = _normalise(graph, original, data, row, conf)
    floats = _partition(graph, original, row, conf)
    notes = [*found, *data.notes]
    if calib is None and not (plan is not None and conf.effort == "fast"):
        notes.append("calibrated on synthetic inputs: give real data with --calib for real accuracy")
    if plan is None:
        plan = _calibrate(graph, data, row, floats, conf, original, notes, progress)
    else:
        plan = _taken_over(plan, graph, row, conf, notes)
    _check_same(original, graph, data.first())
    exact = graph if conf.effort == "fast" else _refined(graph, plan, row, data)
    lowered = lower(exact, plan, row)
    report = describe(graph, lowered, plan, row, fitted, notes, stem)
    if conf.require_chip and not report.chip_ready:
        raise _not_ready(report, row)
    result = QuantizedModel(lowered, plan, report, graph)
    outputs = _fidelity(original, result, data, progress)
    return replace(result, report=replace(report, outputs=outputs))


def _config(config: QuantConfig | str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> QuantConfig:
    given = {key: value for key, value in settings.items() if value is not None}
    if isinstance(config, str | os.PathLike):
        return QuantConfig.read(os.fspath(config), **given)
    if config is not None:
        return QuantConfig.of({**config.model_dump(), **given})
    return QuantConfig.of(given)


def _row(conf: QuantConfig) -> Platform:
    row = platform_row(conf.platform)
    conf.check_platform(row)
    return row


def _calibration(calib: Any, model: ir.Graph, conf: QuantConfig) -> Data:
    specs = input_specs(model)
    source = calib if calib is not None else [_synthetic(specs, conf.seed)]
    return Data(source, specs, limit=conf.limit, what="calibration data")


def _synthetic(specs: Iterable[InputSpec], seed: int) -> dict[str, np.ndarray]:
    """Return seeded standard normal inputs (integers: zeros); ConfigError where a size is not known."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for spec in specs:
        if spec.shape is None or any(d is None for d in spec.shape[1:]):
            raise ConfigError(f"input '{spec.name}' has dimensions of unknown size; give calibration data with --calib")
        sample = math.prod(int(d or 1) for d in spec.shape[1:])
        many = max(1, min(_SYNTHETIC_SAMPLES, _SYNTHETIC_ELEMENTS // max(sample, 1)))
        batch = spec.shape[0] if spec.shape and spec.shape[0] is not None else many
        size = (batch, *(int(d or 1) for d in spec.shape[1:]))
        feeds[spec.name] = rng.standard_normal(size).astype(spec.dtype) if spec.dtype.kind == "f" else np.zeros(
            size, spec.dtype)  # fmt: skip
    return feeds


def _fix_sizes(model: ir.Graph, data: Data) -> list[str]:
    """Give the inputs of `model` the sizes of the first sample where the file leaves them open; return notes."""
    notes = []
    feed = data.first()
    for value in model.graph.inputs:
        array = feed.get(str(value.name))
        shape = ir.shape(value)
        if array is None or (shape is not None and None not in shape[1:]):
            continue
        sizes = [None, *array.shape[1:]] if shape is None or not shape or shape[0] is None else array.shape
        value.shape = ir.oir_shape(["N" if d is None else d for d in sizes])
        notes.append(f"input '{value.name}': the file leaves sizes open; [{', '.join(map(str, array.shape[1:]))}] per "
                     "sample is taken from the calibration data")  # fmt: skip
    data.inputs.update({spec.name: spec for spec in input_specs(model)})
    return notes


def _normalise(graph: ir.Graph, original: ir.Graph, data: Data, row: Platform, conf: QuantConfig) -> list[Fitted]:
    """Normalise and fit `graph`, a copy of `original`, in place; return what fitting did."""
    feed = data.first()
    straighten(graph, feed)
    normalize(graph)
    trace_shapes(graph, feed)
    return fit(graph, row, _skipped(graph, original, conf.skip)) if conf.fit and row.chip else []


def _partition(graph: ir.Graph, original: ir.Graph, row: Platform, conf: QuantConfig) -> dict[str, str]:
    """Return {node: why it stays in float} for the normalised `graph`."""
    floats = partition(graph, row, _skipped(graph, original, conf.skip))
    while unmet := clips_without_scale(graph, row, floats, conf.bits):
        floats = partition(graph, row, {**floats, **unmet})
    return floats


def _skipped(graph: ir.Graph, original: ir.Graph, selectors: Iterable[str]) -> dict[str, str]:
    """Resolve skip selectors on the user's graph and return the nodes of the normalised one they stand for."""
    skipped: dict[str, str] = {}
    for selector in selectors:
        chosen = select(original, selector)
        names = {str(n.name) for n in chosen} | {str(v.name) for n in chosen for v in n.outputs}
        for node in graph.graph:
            if (
                node.name in names
                or str(node.name).partition("@")[0] in names
                or any(v.name in names for v in node.outputs)
            ):
                skipped[str(node.name)] = f"skipped by '{selector}'"
    return skipped


def _observe(
    graph: ir.Graph, data: Data, floats: Mapping[str, str], conf: QuantConfig, progress: Progress | None
) -> dict[str, TensorStats]:
    names = set(observed(graph, floats))
    done = 0

    def count(samples: int) -> None:
        nonlocal done
        done += samples
        if progress is not None:
            progress("calibrating", done, None)

    return observe(FloatRunner(graph, names), data.batches(conf.batch), names, on_batch=count)


def _calibrate(
    graph: ir.Graph, data: Data, row: Platform, floats: Mapping[str, str], conf: QuantConfig, original: ir.Graph,
    notes: list[str], progress: Progress | None,
) -> Plan:  # fmt: skip
    """Improve `graph` in place, observe it and return its plan; appends to `notes`."""
    even: Mapping[str, np.ndarray] = {}
    if conf.effort != "fast":
        feeds, _ = next(iter(data.peek(_EQUALIZE_SAMPLES)))
        even = equalize(graph, floats, feeds, conf.bits, conf.weight_bits)
        notes += cell_notes(graph, row, floats, feeds)
    stats = _observe(graph, data, floats, conf, progress)
    host = free_borders(graph, stats, row, floats, conf.bits)
    floats = {**floats, **host}
    ranged = range_factors(graph, stats, row, floats, bits=conf.bits, weight_bits=conf.weight_bits,
                           search=conf.mode == "q-value" and conf.effort != "fast")  # fmt: skip
    factors.apply(graph, ranged, floats)
    settle(graph, host, ranged)
    scaled = {name: seen.scaled(float(ranged[name][0])) if name in ranged else seen for name, seen in stats.items()}
    plan, found = assign(graph, scaled, row, floats, _choice(graph, original, conf))
    notes += found
    both = factors.combine(even, ranged)
    return replace(plan, transforms={name: Transform(tuple(map(float, f))) for name, f in both.items()})


def _taken_over(plan: Plan, graph: ir.Graph, row: Platform, conf: QuantConfig, notes: list[str]) -> Plan:
    """Check a plan made elsewhere against `graph`, apply its transforms and return it legalized; appends to `notes`.

    Raises ConfigError for what the graph or the platform does not have.
    """
    values = {str(v.name): v for v in ir.values(graph)}
    known = {*values, *graph.graph.initializers, *(str(node.name) for node in graph.graph)}
    named = [*plan.tensors, *plan.transforms, *plan.floats, *(node for node, _ in plan.reads)]
    for name in named:
        if name not in known:
            raise ConfigError(f"the plan speaks of '{name}', which this model has not{nearest(name, known)}")
    for name, q in plan.tensors.items():
        if q.bits not in {*row.bits, *row.out_bits}:
            raise ConfigError(
                f"the plan holds '{name}' in {q.bits} bits; {row.name} computes in "
                f"{', '.join(map(str, row.bits))} bits only"
            )
    for name, transform in plan.transforms.items():
        shape = ir.shape(values[name]) if name in values else None
        channels = None if shape is None or len(shape) < 2 else shape[1]
        fits = len(transform.factor) in (1, channels) and all(0 < f < float("inf") for f in transform.factor)
        if not fits or transform.offset:
            raise ConfigError(
                f"the plan's transform of '{name}' does not fit: {len(transform.factor)} factors for "
                f"{channels} channels; factors are positive, offsets 0"
            )
    if plan.mode != conf.mode:
        raise ConfigError(f"the plan was made for mode {plan.mode}, not {conf.mode}; give --mode {plan.mode}")
    factors.apply(graph, {name: np.array(t.factor) for name, t in plan.transforms.items()}, plan.floats)
    plan, moves = legalize(plan, graph, row)
    notes += moves
    return plan


def _refined(graph: ir.Graph, plan: Plan, row: Platform, data: Data) -> ir.Graph:
    """Return a copy of `graph` with weights and biases refined."""
    copy = ir.clone(graph)
    feeds, _ = next(iter(data.peek(samples_that_fit(graph, _REFINE_SAMPLES))))
    refine(copy, plan, row, feeds)
    return copy


def _choice(graph: ir.Graph, original: ir.Graph, conf: QuantConfig) -> Choice:
    """Resolve the overrides to tensors of the normalised graph."""
    own: dict[str, dict[str, Any]] = {}
    present = {str(v.name) for v in ir.values(graph)} | set(graph.graph.initializers)
    by_node = {str(node.name): node for node in graph.graph}
    by_output = {ir.written_name(node): node for node in graph.graph}
    for selector, override in conf.overrides.items():
        names = [n for n in select_tensors(original, selector) if n in present]
        names += [ir.written_name(by_node[str(n.name)]) for n in _nodes(original, selector) if str(n.name) in by_node]
        if not names:
            raise ConfigError(
                f"override '{selector}': what it names is folded into its neighbours; name the tensor behind them"
            )
        for name in dict.fromkeys(names):
            settings = override.settings
            own.setdefault(name, {}).update({k: v for k, v in settings.items() if k != "weight_bits"})
            weights = _weights(by_output.get(name)) if "weight_bits" in settings else []
            for weight in weights:
                own.setdefault(weight, {})["bits"] = settings["weight_bits"]
    return Choice(conf.mode, conf.bits, conf.weight_bits, conf.calibrator, conf.percentile, own)


def _weights(node: ir.Node | None) -> list[str]:
    """Return the names of the quantized weights of a float node."""
    op = float_op(node)[0] if node is not None else None
    return [] if node is None or op is None else [ir.read_name(node, index) for index in op.parameters(node)]


def _nodes(original: ir.Graph, selector: str) -> list[ir.Node]:
    try:
        return select(original, selector)
    except ConfigError:
        return []  # a graph input


def _check_same(original: ir.Graph, graph: ir.Graph, feed: Mapping[str, np.ndarray]) -> None:
    """Compare the outputs of both in onnxruntime; InternalError when they differ by more than float32 rounding."""
    names = [str(v.name) for v in original.graph.outputs]
    before = {name: array for name, array, _ in FloatRunner(original, names).run(feed)}
    for name, array, _ in FloatRunner(graph, names).run(feed):
        want, have = before[name].astype(np.float64), array.astype(np.float64)
        if want.shape != have.shape:
            raise InternalError(f"normalisation changed the shape of output '{name}': {want.shape}, {have.shape}")
        sound = np.isfinite(want)
        scale = max(float(np.abs(want[sound]).max(initial=0.0)), 1e-30)
        off = float(np.abs(want[sound] - have[sound]).max(initial=0.0)) / scale
        if not np.array_equal(want[~sound], have[~sound], equal_nan=True):
            raise DataError(
                f"output '{name}' becomes NaN or infinite on the calibration data; check the model and its inputs"
            )
        if not off <= 1e-3:
            raise InternalError(f"normalisation changed output '{name}' by {off:.2g} of its range")


def _not_ready(report: Report, row: Platform) -> ConstraintError:
    if not row.chip:
        return ConstraintError(f"--require-chip: platform {row.name} is no chip; choose --platform venus")
    if not report.float_nodes:
        return ConstraintError("--require-chip: no operator of the model can be quantized")
    node = report.float_nodes[0]
    more = len(report.float_nodes) - 1
    rest = f" (and {more} more)" if more else ""
    return ConstraintError(f"not chip-ready: {node.op_type} {node.node} stays in float: {node.why}{rest}")


def _fidelity(
    original: ir.Graph, result: QuantizedModel, data: Data, progress: Progress | None
) -> dict[str, dict[str, float]]:
    """Compare float and integer outputs on the first calibration samples."""
    names = [str(v.name) for v in original.graph.outputs]
    runner, session = FloatRunner(original, names), result.session()
    found = {name: Agreement() for name in names}
    again = data if data.rereadable else Data([data.first()], list(data.inputs.values()))
    feeds, _ = next(iter(again.batches(_FIDELITY_SAMPLES)))
    if progress is not None:
        progress("comparing", len(next(iter(feeds.values()))), None)
    integers = dict(zip(names, session.run(names, feeds), strict=True))
    for name, want, _ in runner.run(feeds):  # in graph order
        if want.shape != integers[name].shape:
            raise ModelError(
                f"output '{name}' has no batch axis: it does not depend on the input, or mixes samples; take it out of "
                "the graph's outputs"
            )
        found[name].add(want, integers[name])
    return {name: {"cosine": a.cosine, "sqnr": a.sqnr} for name, a in found.items()}


# ---- check -------------------------------------------------------------------------------------------------------


def check(model: str | os.PathLike[str] | ir.Graph, *, platform: str | None = None, calib: Any = None) -> Check:
    """Return every limit of a platform that a model breaks, float (normalised as `quantize` would) or integer.

    platform : default the one an integer graph was made for, else venus. calib : data that give the sizes of inputs
    where the file leaves them open. Raises ModelError and ConfigError for what cannot be judged at all.
    """
    loaded = ir.load(model) if isinstance(model, str | os.PathLike) else model
    if is_integer_graph(loaded):
        return check_integer(loaded, row_of(loaded) if platform is None else platform_row(platform))
    conf = _config(None, {"platform": platform, "fit": False})
    row = platform_row(conf.platform)
    original, notes = accept(loaded)
    data = _calibration(calib, original, conf)
    notes += _fix_sizes(original, data)
    graph = ir.clone(original)
    _normalise(graph, original, data, row, conf)
    return check_float(graph, row, [*notes, *data.notes])
