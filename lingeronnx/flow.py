"""The quantizing flow, in two halves with room between them.

    prepare    load -> trace shapes -> normalise -> fit -> partition -> equalize -> observe -> ranges -> assign
    complete   lower -> report -> compare with the float model

Between the two the float graph's weights may be changed under the plan: `refined` does for `quantize`, training does
for `tuning`. Must not know: files that are written, commands, torch.
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
from .assign import Choice, assign, legalize, observed, partition
from .chip import chip_part
from .config import QuantConfig, select, select_tensors
from .data import Data, InputSpec, Progress
from .errors import ConfigError, ConstraintError, DataError, InternalError, ModelError, nearest
from .fit import Fitted, fit
from .improve import factors
from .improve.cells import cell_notes
from .improve.equalize import equalize
from .improve.host_scale import free_borders, settle
from .improve.ranges import clips_without_scale, range_factors
from .improve.refine import refine, samples_that_fit
from .lower import lower
from .metrics import Agreement
from .observe import TensorStats, observe
from .ops import float_op
from .passes import Record, Step, Watch, accept, normalize, straighten
from .passes.shapes import trace_shapes
from .plan import Plan, Transform
from .platforms import Platform
from .platforms import platform as platform_row
from .report import Report, describe
from .runners import FloatRunner, input_specs
from .session import Session
from .streaming import unrolled

__all__ = ["Prepared", "QuantizedModel", "complete", "normalised", "prepare", "refined"]

_CHECK_SAMPLES = 8  # for the comparison of normalised and original outputs
_FIDELITY_SAMPLES = 64  # calibration samples for the output fidelity in the report
_SYNTHETIC_SAMPLES = 16
_SYNTHETIC_CALLS = 4  # of a model whose states are fed back
_SYNTHETIC_ELEMENTS = 1 << 24  # of one input: fewer samples where one is large
_REFINE_SAMPLES = 256  # for the moments and mean errors of every layer
_EQUALIZE_SAMPLES = 64  # enough for the ranges of channels


@dataclass(frozen=True)
class QuantizedModel:
    """What `quantize` and `finetune` return.

    graph : the integer graph. plan : its scales. report : what was done. float_graph : the normalised float graph that
    the plan speaks of, with ranges fitted.
    """

    graph: ir.Graph
    plan: Plan
    report: Report
    float_graph: ir.Graph

    def save(self, path: str | os.PathLike[str], to: str = "thinker") -> None:
        """Write the integer graph to `path`, as a whole or not at all; `to` is a generation as `convert` takes it."""
        ir.save(self.graph if to == "thinker" else _converted(self.graph, to), path)

    @cached_property
    def chip(self) -> ir.Graph | None:
        """The part the packer takes, without the host part; None where the graph is not chip-ready or has none."""
        return chip_part(self.graph) if self.report.chip_ready and self.report.host_part else None

    def save_chip(self, path: str | os.PathLike[str], to: str = "thinker") -> None:
        """Write the part the packer takes to `path`; ConstraintError where the graph is not chip-ready."""
        if not self.report.chip_ready:
            raise ConstraintError("the graph is not chip-ready: it has no part that a chip could run by itself")
        part = self.graph if self.chip is None else self.chip
        ir.save(part if to == "thinker" else _converted(part, to), path)

    def session(self) -> Session:
        """Return a session on the integer graph."""
        return Session(self.graph)


def _converted(graph: ir.Graph, to: str) -> ir.Graph:
    from .conversion import convert

    return convert(graph, to).graph


@dataclass(frozen=True)
class Prepared:
    """A float graph and the plan it will be lowered under.

    original : the user's graph. graph : normalised, fitted, with ranges moved into the weights. data : the calibration
    data. stem : of the file name that the packer's line speaks of.
    """

    original: ir.Graph
    graph: ir.Graph
    plan: Plan
    row: Platform
    conf: QuantConfig
    data: Data
    fitted: Sequence[Fitted]
    notes: Sequence[str]
    stem: str


def prepare(
    model: str | os.PathLike[str] | ir.Graph,
    calib: Any,
    config: QuantConfig | str | os.PathLike[str] | None,
    settings: Mapping[str, Any],
    plan: Plan | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Return what there is to lower; the arguments are those of `quantize`, settings of None left out."""
    conf = _config(config, settings)
    row = _row(conf)
    record = Record(conf.debug_dump)
    original, found = accept(ir.load(model) if isinstance(model, str | os.PathLike) else model, record)
    stem = Path(model).stem + "_quant" if isinstance(model, str | os.PathLike) else "model_quant"
    data = _calibration(calib, original, conf)
    found += _fix_sizes(original, data)
    graph = ir.clone(original)
    fitted = _normalise(graph, original, data, row, conf, record)
    floats = _partition(graph, original, row, conf)
    notes = [*found, *data.notes, *(record.reasons() if conf.notes == "full" else ())]
    if calib is None and not (plan is not None and conf.effort == "fast"):
        notes.append("calibrated on synthetic inputs: give real data with --calib for real accuracy")
    if plan is None:
        plan = _calibrate(graph, data, row, floats, conf, original, notes, progress)
    else:
        plan = _taken_over(plan, graph, row, conf, notes)
    _check_same(original, graph, data.first())
    return Prepared(original, graph, plan, row, conf, data, fitted, notes, stem)


def complete(ready: Prepared, exact: ir.Graph, progress: Progress | None = None) -> QuantizedModel:
    """Lower `exact`, the prepared graph with its weights as they shall be, and say what became of the model.

    Raises ConstraintError with require_chip where the result is not chip-ready.
    """
    lowered = lower(exact, ready.plan, ready.row)
    report = describe(ready.graph, lowered, ready.plan, ready.row, ready.fitted, ready.notes, ready.stem)
    if ready.conf.require_chip and not report.chip_ready:
        raise _not_ready(report, ready.row)
    result = QuantizedModel(lowered, ready.plan, report, ready.graph)
    outputs = _fidelity(ready.original, result, ready.data, progress)
    return replace(result, report=replace(report, outputs=outputs))


def refined(ready: Prepared) -> ir.Graph:
    """Return the prepared graph, or where effort allows a copy of it with weights and biases refined."""
    if ready.conf.effort == "fast":
        return ready.graph
    copy = ir.clone(ready.graph)
    feeds, _ = next(iter(ready.data.peek(samples_that_fit(copy, _REFINE_SAMPLES))))
    refine(copy, ready.plan, ready.row, feeds)
    return copy


def normalised(model: ir.Graph, row: Platform, calib: Any) -> tuple[ir.Graph, list[str]]:
    """Return `model` normalised as for `row` but without fitting it to the chip, and notes."""
    conf = _config(None, {"platform": row.name, "fit": False})
    original, notes = accept(model)
    data = _calibration(calib, original, conf)
    notes += _fix_sizes(original, data)
    graph = ir.clone(original)
    _normalise(graph, original, data, row, conf, None)
    return graph, [*notes, *data.notes]


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
    if conf.state:
        fed = [spec for spec in specs if spec.name not in conf.state.values()]
        synthetic = [_synthetic(fed, conf.seed + number) for number in range(_SYNTHETIC_CALLS)]
        feeds, calls = unrolled(model, synthetic if calib is None else calib, conf.state)
        data = Data(feeds, specs, limit=conf.limit, what="calibration data")
        alone = "the calibration data hold one call: nothing is fed back; give one item per call"
        data.notes.append(f"states are fed back over {calls} calls" if calls > 1 else alone)
        return data
    source = calib if calib is not None else [_synthetic(specs, conf.seed)]
    return Data(source, specs, limit=conf.limit, what="calibration data")


def _synthetic(specs: Iterable[InputSpec], seed: int) -> dict[str, np.ndarray]:
    """Return seeded standard normal inputs (integers: zeros); ConfigError where a size is not known."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for spec in specs:
        if spec.shape is None or any(d is None for i, d in enumerate(spec.shape) if i != spec.axis):
            raise ConfigError(f"input '{spec.name}' has dimensions of unknown size; give calibration data with --calib")
        sample = math.prod(int(d or 1) for i, d in enumerate(spec.shape) if i != spec.axis)
        many = max(1, min(_SYNTHETIC_SAMPLES, _SYNTHETIC_ELEMENTS // max(sample, 1)))
        open_size = not spec.shape or spec.shape[spec.axis] is None
        size = tuple(many if i == spec.axis and open_size else int(d or 1) for i, d in enumerate(spec.shape))
        feeds[spec.name] = rng.standard_normal(size).astype(spec.dtype) if spec.dtype.kind == "f" else np.zeros(
            size, spec.dtype)  # fmt: skip
    return feeds


def _fix_sizes(model: ir.Graph, data: Data) -> list[str]:
    """Give the inputs of `model` the sizes of the first sample where the file leaves them open; return notes."""
    notes = []
    feed = data.first()
    for value in model.graph.inputs:
        array = feed.get(str(value.name))
        shape, axis = ir.shape(value), data.inputs[str(value.name)].axis
        if array is None or (shape is not None and all(d is not None for i, d in enumerate(shape) if i != axis)):
            continue
        sizes: list[int | str] = list(array.shape)
        if shape is None or not shape or shape[axis] is None:
            sizes[axis] = "N"
        value.shape = ir.oir_shape(sizes)
        sample = [d for i, d in enumerate(array.shape) if i != axis]
        notes.append(f"input '{value.name}': the file leaves sizes open; {sample} per sample is taken from the "
                     "calibration data")  # fmt: skip
    data.inputs.update({spec.name: spec for spec in input_specs(model)})
    return notes


def _normalise(
    graph: ir.Graph, original: ir.Graph, data: Data, row: Platform, conf: QuantConfig, watch: Watch | None
) -> list[Fitted]:
    """Normalise and fit `graph`, a copy of `original`, in place; return what fitting did."""
    feed = data.first()
    straighten(graph, feed, watch)
    normalize(graph, watch)
    trace_shapes(graph, feed)
    if not (conf.fit and row.chip):
        return []
    fitted = fit(graph, row, _skipped(graph, original, conf.skip))
    if watch is not None:
        watch(Step("fit", len(fitted)), graph)
    return fitted


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
