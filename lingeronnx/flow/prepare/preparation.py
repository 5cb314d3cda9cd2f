"""First stage: a float model, its data, and what of it becomes integer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, ModelError
from ...fit import Fitted
from ...graph import ir
from ...graph.batch_axes import tell_batch_axes
from ...graph.digests import whole
from ...graph.fixed_inputs import fix_inputs
from ...graph.tail import Tail, cut
from ...passes import Reason, Record, accept
from ...passes.entry.free_batch import free_batch
from ...plan.config import QuantConfig
from ...qdq.encodings import Encodings
from ...qdq.read import Read, is_quantized, read
from ...run.data import Data, InputSpec
from ...run.memory import bytes_per_sample, piece
from ...run.runners import FloatRunner, Islands, input_specs
from ...run.streaming import Calls, unrolled
from ...targets import Target, by_name
from ..assign.imported_scales import defaults
from ..methods.ranges import partition_with_clips
from ..partition import Partition
from .float_outputs import Reference
from .rewriter import Changed, Rewriter, check_repeatable, check_same
from .selectors import Selectors
from .states import advice, apart, proposals

__all__ = ["Prepared", "normalised", "prepare", "synthetic"]

_SYNTHETIC_SAMPLES = 16
_SYNTHETIC_CALLS = 4  # of a model whose states are fed back
_SYNTHETIC_ELEMENTS = 1 << 24  # of one input: fewer samples where one is large
_FEW = 16  # samples that outputs are compared on at a time
_REFERENCE = 16  # the part of the budget that outputs of the user's model may take


@dataclass(frozen=True)
class Prepared:
    """A float model ready to be calibrated.

    original : the user's graph, as other passes can read it. parts : what of it becomes integer, normalised and
    fitted. source : the user's graph in onnxruntime; reference : its outputs on the data. data : for
    calibration; synthetic : whether they are made up. stem : of the file name that the packer's line speaks of.
    skip : {node of the normalised graph: why the user or a state keeps it in float}. calls : of a model that is fed its
    own states.
    reasons : why passes left nodes alone that they are made for.
    tail : what was cut off behind `original`, whose sizes the data decide.
    opened : the host's parts of integer graphs in onnxruntime, by their content (`FloatIsland`).
    read : what a model that was quantized already holds, whose scales are kept, or what another tool's plan means for
    a float one; else None.
    """

    original: ir.Graph
    parts: Partition
    source: FloatRunner
    reference: Reference
    target: Target
    conf: QuantConfig
    data: Data
    fitted: Sequence[Fitted]
    notes: Sequence[str]
    stem: str
    synthetic: bool
    skip: Mapping[str, str]
    calls: Calls | None = None
    reasons: Sequence[Reason] = ()
    read: Read | None = None
    digest: str = ""
    tail: Tail | None = None
    opened: Islands = field(default_factory=dict, compare=False)

    @property
    def graph(self) -> ir.Graph:
        """The normalised and fitted graph."""
        return self.parts.graph

    @property
    def weights_fixed(self) -> bool:
        """Whether the weights are those that another tool has rounded, and stay as they are."""
        return self.read is not None and not self.read.tool

    @cached_property
    def input_bytes(self) -> int:
        """The bytes of the inputs of one sample."""
        return sum(array.nbytes for array in self.data.first().values())

    @property
    def few(self) -> int:
        """How many samples outputs are compared on at a time."""
        return piece(bytes_per_sample(self.graph), _FEW, self.conf.budget)

    @cached_property
    def runner(self) -> FloatRunner:
        """What runs `graph`: the activations that become integers, and the outputs."""
        return FloatRunner(self.graph, {*self.parts.activations, *_outputs(self.graph)})

    def selectors(self, graph: ir.Graph) -> Selectors:
        """Return what finds the nodes and tensors that the user names in `graph`, made from the normalised one."""
        return Selectors(self.original, graph)

    @property
    def without_effort(self) -> Prepared:
        """The same model with `effort: fast`."""
        return self.with_settings({"effort": "fast"})

    def with_settings(self, settings: Mapping[str, str]) -> Prepared:
        """Return the same model with other settings; it is run by what runs this one."""
        found = replace(self, conf=self.conf.model_copy(update=settings))
        vars(found).update({name: held for name, held in vars(self).items() if name == "runner"})
        return found

    def with_host(self, nodes: Mapping[str, str]) -> Prepared:
        """Return the same model with more `nodes` of the normalised graph left to the host: {node: why}."""
        return replace(
            self, parts=partition_with_clips(self.graph, self.target, {**nodes, **self.skip}, self.conf.bits)
        )


def prepare(
    model: str | os.PathLike[str] | ir.Graph,
    calib: object,
    config: QuantConfig | str | os.PathLike[str] | None,
    settings: Mapping[str, Any],
    hold: bool = True,
    encodings: Encodings | None = None,
) -> Prepared:
    """Load, accept, normalise, fit and divide `model`.

    The arguments are those of `quantize`; settings of None are left out. hold : keep some data out of calibration.
    encodings : scales that another tool chose for a float model.
    """
    conf = _config(config, settings)
    row = _row(conf)
    given = ir.load(model) if isinstance(model, str | os.PathLike) else ir.clone(model)
    digest = whole(given)
    found, came = _read(given, conf) if encodings is None else _borrow(given, encodings)
    if found is not None:
        given = ir.clone(found.graph)
        conf = conf if conf.requantize else defaults(conf, row, found)
    fixed = fix_inputs(given, conf.fix)
    tell_batch_axes(given, conf.batch_axis)
    record = Record(conf.debug_dump)
    original, notes = accept(given, record)
    if (tail := cut(original)) is not None:
        original = tail.body
        free_batch(original)
        what = "operators that nobody here knows" if tail.unknown else "sizes that the data decide"
        notes.append(
            f"{what}: {len(tail.why)} nodes from {next(iter(tail.why))} on are the host's; what is "
            f"measured is what they read: {', '.join(tail.reads)}"
        )
    stem = Path(model).stem + "_quant" if isinstance(model, str | os.PathLike) else "model_quant"
    data, calls = _calibration(calib, original, conf, fixed, hold and calib is not None)
    if not conf.state and (looks := proposals(original)):
        line = " ".join(f"--state {output}={name}" for output, name in looks.items())
        notes.append(f"{', '.join(looks)}: a state that is fed back from call to call? Then say {line}")
    notes += [*came, *_fix_sizes(original, data)]
    source = FloatRunner(original, _outputs(original))
    reference = Reference(source, _outputs(original), conf.budget // _REFERENCE)
    check_repeatable(original, source, data.first())
    rewriter = Rewriter(original, source, data.first(), row, conf)
    while True:
        graph, selectors, fitted = rewriter.run(record)
        skip = {**apart(graph, conf.state, row), **selectors.skipped(conf.skip)}
        parts = partition_with_clips(graph, row, skip, conf.bits)
        prepared = Prepared(
            original, parts, source, reference, row, conf, data, fitted, notes, stem, calib is None, skip, calls,
            record.last_reasons(), None if conf.requantize else found, digest, tail,
        )  # fmt: skip
        try:
            check_same(source, prepared.runner, _outputs(original), data.first())
        except (Changed, ModelError) as wrong:
            rewriter.leave_out_wrong(wrong)
        else:
            break
    while more := _infinite(prepared):
        prepared = replace(prepared.with_host(more), skip={**more, **prepared.skip})
    notes += [*rewriter.notes(), *data.notes, *(record.reasons() if conf.notes == "full" else ())]
    return prepared


def _infinite(prepared: Prepared) -> dict[str, str]:
    """Return {node: why} of integer nodes whose tensors hold infinities of a constant: the host's padding and masks."""
    graph = prepared.graph.graph
    constants = {name: ir.const(value) for name, value in graph.initializers.items()}
    reached = {n for n, a in constants.items() if a is not None and a.dtype.kind == "f" and not np.isfinite(a).all()}
    if not reached:
        return {}
    for node in graph:
        if any(value is not None and value.name in reached for value in node.inputs):
            reached.update(str(value.name) for value in node.outputs)
    names = reached.intersection(prepared.parts.activations)
    tensors = prepared.runner.run(prepared.data.first(prepared.few), names) if names else ()
    strange = {name for name, array, _ in tensors if array.dtype.kind == "f" and not np.isfinite(array).all()}
    why = "it reads or writes infinite values, which come from a constant of the model"
    return dict.fromkeys(prepared.parts.touching(strange), why)


def _outputs(model: ir.Graph) -> list[str]:
    return [str(value.name) for value in model.graph.outputs]


def _read(model: ir.Graph, conf: QuantConfig) -> tuple[Read | None, list[str]]:
    """Return what a model that is quantized already holds, None for a float one, and notes.

    Raises ConfigError where a float model is to be quantized again.
    """
    if not is_quantized(model):
        if conf.requantize:
            raise ConfigError(
                "requantize: the model has no QuantizeLinear; it is for models that are quantized already"
            )
        return None, []
    found = read(model)
    what = "the weights alone are taken from it" if conf.requantize else "its scales are taken"
    return found, [f"the model is quantized already: {what}", *found.notes]


def _borrow(model: ir.Graph, encodings: Encodings) -> tuple[Read, list[str]]:
    """Return what another tool's plan means for the float `model`; ConfigError where it has scales of its own."""
    if is_quantized(model):
        raise ConfigError(f"{encodings.where} ({encodings.tool}) is for a float model; this one is quantized already")
    return encodings.on(model), []


def normalised(model: ir.Graph, target: Target, calib: object) -> tuple[ir.Graph, list[str]]:
    """Return `model` normalised as for `target` but without fitting it to the chip, and notes.

    One that another tool has quantized is the float model that it stands for.
    """
    conf, came = _config(None, {"platform": target, "fit": False}), []
    if is_quantized(model):
        model = read(model).graph
        came = ["the model is quantized already (QuantizeLinear): judged is the float model that it stands for"]
    original, notes = accept(model)
    notes = [*came, *notes]
    if (tail := cut(original)) is not None:
        original = tail.body
        free_batch(original)
    data, _ = _calibration(calib, original, conf, {}, False)
    notes += _fix_sizes(original, data)
    rewriter = Rewriter(original, None, data.first(), target, conf)
    return rewriter.run().graph, [*notes, *rewriter.notes(), *data.notes]


def _config(config: QuantConfig | str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> QuantConfig:
    given = {key: value for key, value in settings.items() if value is not None}
    if isinstance(config, str | os.PathLike):
        return QuantConfig.read(os.fspath(config), **given)
    if config is not None:
        return QuantConfig.of({**dict(config), **given})
    return QuantConfig.of(given)


def _row(conf: QuantConfig) -> Target:
    target = by_name(conf.platform)
    conf.check_platform(target)
    return target


# ---- data --------------------------------------------------------------------------------------------------------


def _calibration(
    calib: object, model: ir.Graph, conf: QuantConfig, fixed: Mapping[str, np.ndarray], hold: bool
) -> tuple[Data, Calls | None]:
    """Return the calibration data, and the calls they were made of where states are fed back."""
    specs = input_specs(model)
    if conf.state:
        fed = [spec for spec in specs if spec.name not in conf.state.values()]
        if calib is None:
            calib = [synthetic(fed, conf.seed + number) for number in range(_SYNTHETIC_CALLS)]
        calls = unrolled(model, calib, conf.state, fixed, hold)
        data = Data(calls.items, specs, limit=conf.limit, what="calibration data")
        alone = "the calibration data hold one call: nothing is fed back; give one item per call"
        data.notes.append(f"states are fed back over {calls.number} calls" if calls.number > 1 else alone)
        return data, calls
    source = calib if calib is not None else [synthetic(specs, conf.seed)]
    data = Data(
        source,
        specs,
        limit=conf.limit,
        what="calibration data",
        fixed=fixed,
        hold=hold,
        advice=partial(advice, model),
    )
    return data, None


def synthetic(specs: Iterable[InputSpec], seed: int) -> dict[str, np.ndarray]:
    """Return seeded standard normal inputs (integers: zeros); ConfigError where a size is not known."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for spec in specs:
        if spec.shape is None or any(d is None for i, d in enumerate(spec.shape) if i != spec.axis):
            raise ConfigError(f"input '{spec.name}' has dimensions of unknown size; give calibration data with --calib")
        sample = math.prod(int(d or 1) for i, d in enumerate(spec.shape) if i != spec.axis)
        many = max(1, min(_SYNTHETIC_SAMPLES, _SYNTHETIC_ELEMENTS // max(sample, 1)))
        open_size = spec.batched and not spec.single
        size = tuple(many if i == spec.axis and open_size else int(d or 1) for i, d in enumerate(spec.shape))
        real = spec.dtype.kind == "f"
        feeds[spec.name] = rng.standard_normal(size).astype(spec.dtype) if real else np.zeros(size, spec.dtype)
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
        if axis is not None and (not shape or shape[axis] is None):
            sizes[axis] = "N"
        value.shape = ir.oir_shape(sizes)
        sample = [d for i, d in enumerate(array.shape) if i != axis]
        notes.append(
            f"input '{value.name}': the file leaves sizes open; {sample} per sample is taken from the calibration data"
        )
    if notes:  # with all sizes known
        free_batch(model)
    data.inputs.update({spec.name: spec for spec in input_specs(model)})
    return notes
