"""First stage: a float model, its data, and what of it becomes integer."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, ModelError
from ...graph import ir, operators
from ...graph.batch_axes import set_batch_axes
from ...graph.digests import compute_output_digest
from ...graph.dynamic_tail import DynamicTail, split_dynamic_tail
from ...graph.fixed_inputs import FixedValue, fix_inputs
from ...legalization import AppliedRewrite, collect_host_reasons
from ...passes import PassLog, SkipReason, run_entry_passes
from ...passes.entry.check_schemas import check_schemas
from ...passes.entry.dynamic_batch import make_batch_dynamic
from ...plan.config import QuantConfig
from ...qdq.encodings import Encodings
from ...qdq.import_model import ImportedQuantization, import_quantized_model, is_quantized
from ...run.data import Data
from ...run.memory import bytes_per_sample, choose_batch_size
from ...run.runners import FallbackSessionCache, FloatRunner
from ...run.streaming import UnrolledCalls
from ...targets import Target
from ..factor_groups import partition_with_clip_fallback
from ..partition import Partition
from .calibration_data import load_calibration_data
from .float_outputs import FloatOutputCache, map_outputs_to_logits
from .input_sizes import infer_input_shapes, set_input_shapes
from .recurrent_states import find_state_packing, propose_states
from .rewriter import (
    OutputChangedError,
    Rewriter,
    RewriteResult,
    check_deterministic,
    check_outputs_unchanged,
)
from .selectors import Selectors
from .settings import adapt_config_to_import, resolve_config, resolve_target

__all__ = ["PreparedModel", "normalize_model", "prepare_model"]

#: What makes shares of a row, from 0 to 1, of any numbers.
_SOFTMAX_OPS = operators.SOFTMAX_FAMILY_OPS & operators.NONNEGATIVE_OPS
_MAX_COMPARISON_BATCH = 16  # samples that outputs are compared on at a time
_FLOAT_OUTPUT_BUDGET_DIVISOR = (
    16  # the part of the budget that outputs of the user's model may take
)


@dataclass(frozen=True)
class PreparedModel:
    """A float model ready to be calibrated.

    original : the user's graph, as other passes can read it. parts : what of it becomes integer,
    normalised and fitted. source : the user's graph in onnxruntime; float_outputs : what it gives
    on the data. data : for calibration; synthetic : whether they are made up. stem : of the file
    name that the packer's line speaks of. skip : {node of the normalised graph: why the user or a
    state keeps it in float}. calls : of a model that is fed its own states.
    reasons : why passes left nodes alone that they are made for.
    digest : of the user's graph, whose inputs `fixed` have one value for all time and are constants
    of it. tail : what was cut off behind `original`, whose sizes the data decide.
    opened : the host's parts of integer graphs in onnxruntime, by their content (`FloatFallback`).
    read : what a model that was quantized already holds, whose scales are kept, or what another
    tool's plan means for a float one; else None.
    """

    original: ir.Model
    parts: Partition
    source: FloatRunner
    float_outputs: FloatOutputCache
    target: Target
    conf: QuantConfig
    data: Data
    fitted: Sequence[AppliedRewrite]
    notes: Sequence[str]
    stem: str
    synthetic: bool
    skip: Mapping[str, str]
    calls: UnrolledCalls | None = None
    reasons: Sequence[SkipReason] = ()
    read: ImportedQuantization | None = None
    digest: str = ""
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)
    tail: DynamicTail | None = None
    opened: FallbackSessionCache = field(default_factory=dict, compare=False)

    @property
    def graph(self) -> ir.Model:
        """The normalised and fitted graph."""
        return self.parts.graph

    @property
    def weights_fixed(self) -> bool:
        """Whether the weights are those that another tool has rounded, and stay as they are."""
        return self.read is not None and not self.read.source_tool

    @property
    def allows_layer_offload(self) -> bool:
        """Whether layers may move to the host, so that the chip runs the rest in parts.

        With `max_parts`.
        """
        return self.conf.max_parts is not None and self.target.has_packer and self.read is None

    @cached_property
    def input_bytes(self) -> int:
        """The bytes of the inputs of one sample."""
        return sum(array.nbytes for array in self.data.first().values())

    @property
    def comparison_batch_size(self) -> int:
        """How many samples outputs are compared on at a time."""
        return choose_batch_size(
            bytes_per_sample(self.graph), _MAX_COMPARISON_BATCH, self.conf.budget
        )

    @cached_property
    def runner(self) -> FloatRunner:
        """What runs `graph`: the activations that become integers, and the outputs."""
        return FloatRunner(self.graph, {*self.parts.activations, *_output_names(self.graph)})

    def selectors(self, graph: ir.Model) -> Selectors:
        """Return what finds the nodes and tensors that the user names in `graph`, made from the normalised one."""
        return Selectors(self.original, graph)

    @property
    def without_effort(self) -> PreparedModel:
        """The same model with `effort: fast`."""
        return self.with_settings({"effort": "fast"})

    def with_settings(self, settings: Mapping[str, str]) -> PreparedModel:
        """Return the same model with other settings; it is run by what runs this one."""
        changed = replace(self, conf=self.conf.model_copy(update=settings))
        vars(changed).update(
            {name: runner for name, runner in vars(self).items() if name == "runner"}
        )
        return changed

    @cached_property
    def moved(self) -> dict[str, str]:
        """{node: why} of what the host computes though the chip could, and though nobody asked for it."""
        able = self.with_host_nodes({}).parts.ops
        return {name: why for name, why in self.parts.floats.items() if name in able}

    def with_host_nodes(self, nodes: Mapping[str, str]) -> PreparedModel:
        """Return the same model with more `nodes` of the normalised graph left to the host.

        {node: why}.
        """
        return replace(
            self,
            parts=partition_with_clip_fallback(
                self.graph, self.target, {**nodes, **self.skip}, self.conf.bits
            ),
        )


def prepare_model(
    model: ir.ModelLike,
    calib: object,
    config: QuantConfig | str | os.PathLike[str] | None,
    settings: Mapping[str, Any],
    hold_out: bool = True,
    encodings: Encodings | None = None,
) -> PreparedModel:
    """Load, accept, normalise, fit and divide `model`.

    The arguments are those of `quantize`; settings of None are left out. hold : keep some data out
    of calibration. encodings : scales that another tool chose for a float model.
    """
    conf = resolve_config(config, settings)
    target, loaded = resolve_target(conf), ir.as_owned_model(model)
    fixed = fix_inputs(loaded, conf.fix)
    digest = compute_output_digest(loaded)
    brought, came = (
        _import_if_quantized(loaded, conf)
        if encodings is None
        else _import_encodings(encodings, loaded)
    )
    if brought is not None:
        loaded = ir.clone(brought.graph)
        conf = conf if conf.requantize else adapt_config_to_import(conf, target, brought)
    set_batch_axes(loaded, conf.batch_axis)
    set_input_shapes(loaded, conf.input_shape)
    record = PassLog(conf.debug_dump)
    original, tail, notes = _accept_model(loaded, record)
    data, calls = load_calibration_data(
        calib, original, conf, fixed, hold_out and calib is not None
    )
    notes += [
        *_format_tail_note(tail),
        *_suggest_states(original, conf),
        *came,
        *infer_input_shapes(original, data),
    ]
    names = dict.fromkeys([*_output_names(original), *map_outputs_to_logits(original).values()])
    source = FloatRunner(original, names)
    float_outputs = FloatOutputCache(
        source, list(names), conf.budget // _FLOAT_OUTPUT_BUDGET_DIVISOR
    )
    check_deterministic(original, source, data.first())

    def partition_rewritten(changed: RewriteResult) -> PreparedModel:
        left = {
            **collect_host_reasons(changed.graph),
            **find_state_packing(changed.graph, conf.state, target),
        }
        skip = {**left, **changed.selectors.resolve_skips(conf.skip)}
        return PreparedModel(
            original=original,
            parts=partition_with_clip_fallback(changed.graph, target, skip, conf.bits),
            source=source,
            float_outputs=float_outputs,
            target=target,
            conf=conf,
            data=data,
            fitted=changed.rewrites,
            notes=notes,
            stem=Path(model).stem + "_quant"
            if isinstance(model, str | os.PathLike)
            else "model_quant",
            synthetic=calib is None,
            skip=skip,
            calls=calls,
            reasons=record.get_skip_reasons(),
            read=None if conf.requantize else brought,
            digest=digest,
            fixed=fixed,
            tail=tail,
        )

    rewriter = Rewriter(original, source, data.first(), target, conf)
    prepared = _offload_nonfinite_nodes(_rewrite_checked(rewriter, record, partition_rewritten))
    notes[:] = [
        *data.notes,
        *notes,
        *rewriter.notes(),
        *(record.format_skip_reasons() if conf.notes == "full" else ()),
    ]
    return prepared


def _accept_model(
    model: ir.Model, record: PassLog | None = None
) -> tuple[ir.Model, DynamicTail | None, list[str]]:
    """Return `model` as other passes can read it, the tail that was cut off behind it, and notes."""
    original, notes = run_entry_passes(model, record)
    tail = split_dynamic_tail(original)
    if tail is None:
        return original, None, notes
    make_batch_dynamic(tail.body)
    return tail.body, tail, notes


def _format_tail_note(tail: DynamicTail | None) -> list[str]:
    """Return a note on what was cut off."""
    if tail is None:
        return []
    what = (
        "operators that nobody here knows"
        if tail.has_unknown_operator
        else "sizes that the data decide"
    )
    behind = (
        f"{what}: {len(tail.host_reasons)} nodes from {next(iter(tail.host_reasons))} on are "
        "the host's"
    )
    return [f"{behind}; what is measured is what they read: {', '.join(tail.input_names)}"]


def _suggest_states(original: ir.Model, config: QuantConfig) -> list[str]:
    """Return a note on what looks like states, where the user named none."""
    looks = {} if config.state else propose_states(original)
    line = " ".join(f"--state {output}={name}" for output, name in looks.items())
    return (
        [f"{', '.join(looks)}: a state that is fed back from call to call? Then say {line}"]
        if looks
        else []
    )


def _rewrite_checked(
    rewriter: Rewriter, record: PassLog, divided: Callable[[RewriteResult], PreparedModel]
) -> PreparedModel:
    """Return the rewritten model, without the passes after which an output is another one."""
    while True:
        prepared = divided(rewriter.run(record))
        try:
            check_outputs_unchanged(
                prepared.source,
                prepared.runner,
                _output_names(prepared.original),
                prepared.data.first(),
            )
        except (OutputChangedError, ModelError) as wrong:
            rewriter.exclude_breaking_pass(wrong)
        else:
            return prepared


def _offload_nonfinite_nodes(prepared: PreparedModel) -> PreparedModel:
    """Return the same model, what reads or writes infinite values left to the host."""
    while more := _find_nonfinite_nodes(prepared):
        prepared = replace(prepared.with_host_nodes(more), skip={**more, **prepared.skip})
    return prepared


def _find_nonfinite_nodes(prepared: PreparedModel) -> dict[str, str]:
    """Return {node: why} of integer nodes whose tensors hold infinities of a constant.

    The host's padding and masks.
    """
    graph = prepared.graph.graph
    constants = {name: ir.const_value(value) for name, value in graph.initializers.items()}
    reached = {
        n
        for n, a in constants.items()
        if a is not None and a.dtype.kind == "f" and not np.isfinite(a).all()
    }
    if not reached:
        return {}
    for node in graph:
        if (
            any(value is not None and value.name in reached for value in node.inputs)
            and node.op_type not in _SOFTMAX_OPS
        ):
            reached.update(str(value.name) for value in node.outputs)
    strange = _find_nonfinite_tensors(prepared, reached.intersection(prepared.parts.activations))
    why = "it reads or writes infinite values, which come from a constant of the model"
    return dict.fromkeys(prepared.parts.nodes_touching(strange), why)


def _find_nonfinite_tensors(prepared: PreparedModel, names: Collection[str]) -> set[str]:
    """Return which of the tensors are infinite somewhere."""
    found = set[str]()
    feeds = _iter_samples(prepared.data, prepared.comparison_batch_size)
    while names and (feed := next(feeds, None)) is not None:
        tensors = prepared.runner.run(feed, names)
        found |= {
            name
            for name, array, _ in tensors
            if array.dtype.kind == "f" and not np.isfinite(array).all()
        }
        names = set(names) - found
    return found


def _iter_samples(data: Data, few: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield all samples, a few at a time; the first alone where they can be read once only."""
    if not data.is_rereadable:
        yield data.first(few)
        return
    for feed, _ in data.batches(few):
        yield feed
    yield from data.held()


def _output_names(model: ir.Model) -> list[str]:
    return [str(value.name) for value in model.graph.outputs]


def _import_if_quantized(
    model: ir.Model, config: QuantConfig
) -> tuple[ImportedQuantization | None, list[str]]:
    """Return what a model that is quantized already holds, None for a float one, and notes.

    Raises ConfigError where a float model is to be quantized again.
    """
    if not is_quantized(model):
        if config.requantize:
            raise ConfigError(
                "requantize: the model has no QuantizeLinear; it is for models that are quantized "
                "already"
            )
        return None, []
    read = _import_checked(model)
    what = "the weights alone are taken from it" if config.requantize else "its scales are taken"
    return read, [f"the model is quantized already: {what}", *read.notes]


def _import_checked(model: ir.Model) -> ImportedQuantization:
    """Return what a quantized model stands for.

    ModelError where a node is not what its operator's schema says.
    """
    check_schemas(model)
    return import_quantized_model(model)


def _import_encodings(
    encodings: Encodings, model: ir.Model
) -> tuple[ImportedQuantization, list[str]]:
    """Return what another tool's plan means for the float `model`.

    ConfigError where it has scales of its own.
    """
    if is_quantized(model):
        raise ConfigError(
            f"{encodings.source_name} ({encodings.tool}) is for a float model; this one is "
            "quantized already"
        )
    return encodings.resolve_for(model), []


def normalize_model(
    model: ir.Model,
    target: Target,
    calib: object,
    input_shape: Mapping[str, Sequence[int]],
    fix: Mapping[str, FixedValue],
) -> tuple[ir.Model, list[str]]:
    """Return `model` normalised as for `target` but without fitting it to the chip, and notes.

    One that another tool has quantized is the float model that it stands for.
    """
    conf, came = resolve_config(None, {"platform": target, "fit": False}), []
    if is_quantized(model):
        model = _import_checked(model).graph
        came = [
            (
                "the model is quantized already (QuantizeLinear): judged is the float model that it "
                "stands for"
            )
        ]
    if input_shape or fix:
        model = ir.clone(model)
    fixed = fix_inputs(model, fix)
    set_input_shapes(model, input_shape)
    original, _, notes = _accept_model(model)
    notes = [*came, *notes]
    data, _ = load_calibration_data(calib, original, conf, fixed, False)
    notes += infer_input_shapes(original, data)
    rewriter = Rewriter(original, None, data.first(), target, conf)
    return rewriter.run().graph, [*notes, *rewriter.notes(), *data.notes]
