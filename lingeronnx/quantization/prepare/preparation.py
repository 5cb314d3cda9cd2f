"""First stage: prepare a float model and its data, and decide which nodes become integers."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx

from ...common.errors import ConfigError, ModelError
from ...interchange.qdq.qoperators import is_dynamically_quantized, is_quantized
from ...ir import float_ops, ir
from ...ir.batch_axes import set_batch_axes
from ...ir.digests import compute_output_digest
from ...ir.dynamic_tail import DynamicTail, split_dynamic_tail
from ...ir.fixed_inputs import FixedValue, fix_inputs
from ...operators.attention_masks import (
    RUN_TIME_MASK_REASON,
    find_masked_nodes,
    is_mask_array,
)
from ...runtime.data import Data, HoldOut
from ...runtime.memory import bytes_per_sample, choose_batch_size
from ...runtime.runners import FallbackSessionCache, FloatRunner
from ...runtime.runners.missing_kernels import check_expanded_nodes, get_expanded_nodes
from ...runtime.streaming import UnrolledCalls
from ...targets import Target
from ..factor_groups import partition_with_clip_fallback
from ..legalize import AppliedRewrite, collect_host_reasons
from ..normalize import PassLog, SkipReason, run_entry_passes
from ..normalize.entry.dynamic_batch import make_batch_dynamic
from ..normalize.entry.reject_unsupported import check_schemas
from ..partition import Partition, partition_graph
from ..recipe import DRAFT_EFFORT, RECIPES, EffortRecipe
from .calibration_data import infer_input_shapes, load_calibration_data, set_input_shapes
from .expansions import choose_expansions
from .float_outputs import FloatOutputCache, map_outputs_to_logits
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

if TYPE_CHECKING:
    from ...interchange.qdq.encodings import Encodings
    from ...interchange.qdq.import_model import ImportedQuantization
    from ..config import QuantConfig

__all__ = ["PreparedModel", "normalize_model", "prepare_model"]

#: Operators whose results are from 0 to 1 even for infinite inputs.
_SOFTMAX_OPS = float_ops.SOFTMAX_FAMILY_OPS & float_ops.NONNEGATIVE_OPS
_MAX_COMPARISON_BATCH = 16  # samples per batch when outputs are compared
_FLOAT_OUTPUT_BUDGET_DIVISOR = 16  # 1 / this of the memory budget is for cached float outputs


@dataclass(frozen=True)
class PreparedModel:
    """A float model that is ready for calibration.

    Attributes
    ----------
    original
        The user's graph after the entry passes.
    parts
        Partition of the normalized and fitted graph.
    source, float_outputs
        Runner of `original`, and its cached outputs.
    target, conf
        The target and the settings.
    data, synthetic
        Calibration data, and whether they are random.
    fitted
        Rewrites that fit the graph to the target.
    notes
        Notes for the report.
    stem
        Stem of the file name in the packer command: that of the model's file with "_quant".
    skip
        {node of the normalized graph: reason} of nodes that the user or a state keeps in float.
    calls
        Calls of a model that is fed its own states, or None.
    reasons
        Reasons why passes did not change nodes that they are made for.
    read
        Scales of a model that was quantized already, or of another tool's plan; None if there are
        none or they are not used.
    digest
        Digest of the user's graph.
    fixed
        Values of inputs that are constant.
    tail
        The part after `original` whose shapes depend on values, or None.
    is_draft
        Whether the recipe of drafts applies instead of that of the configured effort.
    opened
        Cached onnxruntime sessions of host parts, by content (`FloatFallback`).
    selects_generated
        Whether the selectors of overrides select in `graph`, with the nodes that passes created,
        instead of in `original`: they are names that a program took from it.
    has_fixed_batch
        Whether the user's graph fixes the number of samples of all inputs.
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
    is_draft: bool = False
    opened: FallbackSessionCache = field(default_factory=dict, compare=False)
    selects_generated: bool = False
    has_fixed_batch: bool = False

    @property
    def graph(self) -> ir.Model:
        """The normalized graph after fitting to the target, whose partition is `parts`."""
        return self.parts.graph

    @property
    def weights_fixed(self) -> bool:
        """Whether the weights were quantized by another tool and must not change.

        That is so for a model with QuantizeLinear, not for scales from a file.
        """
        return self.read is not None and not self.read.source_tool

    @property
    def allows_layer_offload(self) -> bool:
        """Whether layers may move to the host so that the chip runs the rest in parts.

        That needs the setting `max_parts`, a platform with a packer, and scales that are not
        imported.
        """
        return self.conf.max_parts is not None and self.target.has_packer and self.read is None

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of all inputs of the first calibration sample."""
        return sum(array.nbytes for array in self.data.first().values())

    @property
    def comparison_batch_size(self) -> int:
        """Number of samples per batch when outputs are compared: at most 16, as memory allows."""
        return choose_batch_size(
            bytes_per_sample(self.graph), _MAX_COMPARISON_BATCH, self.conf.budget
        )

    @cached_property
    def runner(self) -> FloatRunner:
        """Runner of `graph` for the activations that become integers and the outputs; kept."""
        names = {*self.parts.activations, *ir.get_output_names(self.graph)}
        return FloatRunner(self.graph, names)

    def selectors(self, graph: ir.Model) -> Selectors:
        """Return the resolver of selectors for `graph`, a version of the normalized graph."""
        return Selectors(graph if self.selects_generated else self.original, graph)

    @property
    def recipe(self) -> EffortRecipe:
        """The steps that the configured effort runs, or those of drafts."""
        return RECIPES[DRAFT_EFFORT if self.is_draft else self.conf.effort]

    @property
    def draft(self) -> PreparedModel:
        """A copy that is quantized by the recipe of drafts; its settings, as recorded, stay.

        It shares the runner of the graph if there is one already.
        """
        return self._replace_fields(is_draft=True)

    def with_settings(self, settings: Mapping[str, object]) -> PreparedModel:
        """Return a copy with other values of `settings`, which are not checked.

        It shares the runner of the graph if there is one already.
        """
        return self._replace_fields(conf=self.conf.model_copy(update=settings))

    def _replace_fields(self, **changes: Any) -> PreparedModel:
        """Return a copy with other fields but the same graph; it shares the runner, if any."""
        copy = replace(self, **changes)
        if "runner" in vars(self):
            vars(copy)["runner"] = self.runner
        return copy

    @cached_property
    def moved(self) -> dict[str, str]:
        """{node: reason} of the float nodes that would be integer with only `skip` in float.

        These were moved to the host: the chip supports them, and the user did not ask.
        """
        chip_nodes = self.with_host_nodes({}).parts.ops
        return {name: reason for name, reason in self.parts.floats.items() if name in chip_nodes}

    def with_hold_out(self, rule: HoldOut) -> PreparedModel:
        """Return a copy whose data hold out other samples; it shares the runner if there is one."""
        return self._replace_fields(data=self.data.with_hold_out(rule))

    def with_host_nodes(self, nodes: Mapping[str, str]) -> PreparedModel:
        """Return a copy with the given nodes in float, in addition to those of `skip`.

        Parameters
        ----------
        nodes
            {node of the normalized graph: reason}.
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
    """Load, check, normalize, fit and partition a model; a model in memory is not modified.

    Parameters
    ----------
    model, calib
        The user's model (path or graph) and calibration data; None for synthetic data.
    config
        Settings, as a value or a YAML file; None for the defaults.
    settings
        Settings of the call, which take precedence; those that are None are ignored.
    hold_out
        Whether some samples are held out of calibration; not without `calib`.
    encodings
        Scales that another tool chose for a float model; None without.

    Raises
    ------
    ModelError, DataError, ConfigError
        If the model, the data or the settings are wrong.
    """
    conf = resolve_config(config, settings)
    target, loaded = resolve_target(conf), ir.as_owned_model(model)
    fixed = fix_inputs(loaded, conf.fix) if conf.fix else {}
    digest = compute_output_digest(loaded)
    dynamic_notes = _restore_dynamic_layers(loaded)
    if encodings is None:
        imported, import_notes = _import_if_quantized(loaded, conf)
    else:
        imported, import_notes = _import_encodings(encodings, loaded)
    if imported is not None:
        loaded = imported.graph.clone()
        conf = conf if conf.requantize else adapt_config_to_import(conf, target, imported)
    if conf.batch_axis:
        set_batch_axes(loaded, conf.batch_axis)
    if conf.input_shape:
        set_input_shapes(loaded, conf.input_shape)
    has_fixed_batch = _has_fixed_batch(loaded)
    log = PassLog(conf.debug_dump)
    accepted = _accept_model(loaded, log)
    original, tail, notes = accepted.original, accepted.tail, accepted.notes
    data, calls = load_calibration_data(
        calib, original, conf, fixed, hold_out and calib is not None
    )
    notes += [
        *([] if tail is None else [_format_tail_note(tail)]),
        *_suggest_states(original, conf),
        *dynamic_notes,
        *import_notes,
        *infer_input_shapes(original, data),
    ]
    outputs = ir.get_output_names(original)
    measured = list(dict.fromkeys([*outputs, *map_outputs_to_logits(original).values()]))
    source = FloatRunner(original, measured)
    float_outputs = FloatOutputCache(source, measured, conf.budget // _FLOAT_OUTPUT_BUDGET_DIVISOR)
    check_deterministic(original, source, data.first())
    if accepted.expanded:
        notes += accepted.check_expanded_nodes(data.first())

    def partition_rewritten(rewritten: RewriteResult) -> PreparedModel:
        """Partition a rewritten graph into chip and host nodes; return the prepared model.

        On the host are nodes with a host reason, the packing of states, and those that the user
        skips.
        """
        skip = {
            **collect_host_reasons(rewritten.graph),
            **find_state_packing(rewritten.graph, conf.state, target),
            **rewritten.selectors.resolve_skips(conf.skip),
        }
        return PreparedModel(
            original=original,
            parts=partition_with_clip_fallback(rewritten.graph, target, skip, conf.bits),
            source=source,
            float_outputs=float_outputs,
            target=target,
            conf=conf,
            data=data,
            fitted=rewritten.rewrites,
            notes=(),  # complete when all rewrites are known
            stem=stem,
            synthetic=calib is None,
            skip=skip,
            calls=calls,
            reasons=log.get_skip_reasons(),
            read=None if conf.requantize else imported,
            digest=digest,
            fixed=fixed,
            tail=tail,
            has_fixed_batch=has_fixed_batch,
        )

    stem = "model_quant"
    if isinstance(model, str | os.PathLike):
        stem = f"{Path(model).stem}_quant"
    rewriter = Rewriter(original, source, data.first(), target, conf)
    notes += choose_expansions(
        rewriter,
        original,
        lambda: partition_rewritten(rewriter.run()).parts,
        target,
        Selectors(original, original).resolve_skips(conf.skip),
    )
    prepared = _rewrite_checked(rewriter, log, partition_rewritten)
    if any(ir.is_standard_op(node, "Softmax") for node in prepared.graph.graph):
        prepared = _offload_input_masks(prepared)
    prepared = _offload_nonfinite_nodes(prepared)
    notes = [*data.notes, *notes, *rewriter.notes()]
    if conf.notes == "full":
        notes += log.format_skip_reasons()
    return prepared._replace_fields(notes=notes)


def _has_fixed_batch(model: ir.Model) -> bool:
    """Whether `model` declares a number as the first size of all its inputs; False without any."""
    shapes = [ir.get_shape(value) for value in model.graph.inputs if value.const_value is None]
    return bool(shapes) and all(shape and shape[0] is not None for shape in shapes)


class _AcceptedModel(NamedTuple):
    """A model after the passes that every model goes through first.

    Attributes
    ----------
    original
        The model without its tail.
    tail
        The part whose shapes depend on values, or from an unknown operator on; None without one.
    notes
        Notes of the passes.
    expanded
        Nodes that onnxruntime lacks, as they were before they became function bodies.
    """

    original: ir.Model
    tail: DynamicTail | None
    notes: list[str]
    expanded: list[onnx.NodeProto]

    def check_expanded_nodes(self, feed: Mapping[str, np.ndarray]) -> list[str]:
        """Compare the expanded nodes with onnx's reference on the sample `feed`; return notes."""
        present = {str(value.name) for value in ir.iter_values(self.original)}
        present.update(str(value.name) for value in self.original.graph.inputs)

        def run(names: Sequence[str]) -> dict[str, np.ndarray]:
            """Return those of the tensors `names` that the model has, constants included."""
            arrays = {name: feed[name] for name in names if name in feed}
            computed = []
            for name in names:
                initializer = self.original.graph.initializers.get(name)
                if initializer is not None:
                    arrays[name] = ir.require_const_value(initializer)
                elif name in present and name not in arrays:
                    computed.append(name)
            if computed:
                stream = FloatRunner(self.original, computed).run(feed)
                arrays.update((name, array) for name, array, _ in stream)
            return arrays

        return check_expanded_nodes(self.expanded, ir.get_opset(self.original), run)


def _accept_model(model: ir.Model, log: PassLog | None = None) -> _AcceptedModel:
    """Run the passes that every model goes through first, and split off a dynamic tail."""
    original, notes = run_entry_passes(model, log)
    expanded = get_expanded_nodes(original)
    tail = split_dynamic_tail(original)
    if tail is None:
        return _AcceptedModel(original, None, notes, expanded)
    make_batch_dynamic(tail.body)
    return _AcceptedModel(tail.body, tail, notes, expanded)


def _format_tail_note(tail: DynamicTail) -> str:
    """Format the note that a dynamic tail of the model runs on the host.

    It gives the reason, the number of nodes and where accuracy is measured.
    """
    reason = "shapes that depend on values"
    if tail.has_unknown_operator:
        reason = "unknown operators"
    first_node = next(iter(tail.host_reasons))
    return (
        f"{reason}: {len(tail.host_reasons)} nodes from {first_node} on run on the host; accuracy "
        f"is measured at their inputs: {', '.join(tail.input_names)}"
    )


def _suggest_states(original: ir.Model, config: QuantConfig) -> list[str]:
    """Return [a suggestion of options for outputs that look like states], or [].

    Empty if the user named states, or none look so.
    """
    if config.state:
        return []
    states = propose_states(original)
    if not states:
        return []
    options = " ".join(f"--state {output}={name}" for output, name in states.items())
    verb = "looks like a recurrent state" if len(states) == 1 else "look like recurrent states"
    return [f"{', '.join(states)} {verb}; if so, pass {options}"]


def _rewrite_checked(
    rewriter: Rewriter, log: PassLog, partition: Callable[[RewriteResult], PreparedModel]
) -> PreparedModel:
    """Rewrite and partition the model, without passes that change an output.

    `partition` makes a prepared model of a rewritten graph. After each attempt the outputs for the
    first sample are compared with the original's; a pass that changes them is excluded, and the
    model rewritten again. The rewrites of the result are marked as checked on that sample.
    OutputChangedError or ModelError of the comparison is raised if no pass can be excluded.
    """
    while True:
        prepared = partition(rewriter.run(log))
        try:
            check_outputs_unchanged(
                prepared.source,
                prepared.runner,
                ir.get_output_names(prepared.original),
                prepared.data.first(),
            )
        except (OutputChangedError, ModelError) as error:
            rewriter.exclude_breaking_pass(error)
        else:
            checked = [replace(rewrite, checked_samples=1) for rewrite in prepared.fitted]
            return prepared._replace_fields(fitted=checked)


def _offload_input_masks(prepared: PreparedModel) -> PreparedModel:
    """Move sums with a mask that is a graph input, and the Softmax behind, to the host.

    Whether an input is a mask shows in the calibration samples. The nodes are added to `skip` of
    the returned copy, too.
    """
    candidates = {str(value.name) for value in prepared.graph.graph.inputs}
    if not find_masked_nodes(prepared.graph, candidates):
        return prepared
    mask_inputs = set[str]()
    for feed in _iter_samples(prepared.data, prepared.comparison_batch_size):
        mask_inputs |= {name for name, array in feed.items() if is_mask_array(array)}
    integer_nodes = {str(node.name) for node, _ in prepared.parts.integer_nodes}
    names = find_masked_nodes(prepared.graph, mask_inputs) & integer_nodes
    if not names:
        return prepared
    host_nodes = dict.fromkeys(sorted(names), RUN_TIME_MASK_REASON)
    return replace(prepared.with_host_nodes(host_nodes), skip={**host_nodes, **prepared.skip})


def _offload_nonfinite_nodes(prepared: PreparedModel) -> PreparedModel:
    """Move nodes with infinite values to the host until there are none among the integer nodes.

    The nodes are added to `skip` of the returned copy, too.
    """
    while nonfinite := _find_nonfinite_nodes(prepared):
        prepared = replace(prepared.with_host_nodes(nonfinite), skip={**nonfinite, **prepared.skip})
    return prepared


def _find_nonfinite_nodes(prepared: PreparedModel) -> dict[str, str]:
    """Return {node: reason} of integer nodes with NaN or infinite values that come from constants.

    Such constants are padding values and masks. Activations computed from them are checked on the
    calibration samples; those downstream of a Softmax only do not count.
    """
    graph = prepared.graph.graph
    candidates = set()
    for name, value in graph.initializers.items():
        array = ir.const_value(value)
        if array is not None and _has_nonfinite(array):
            candidates.add(str(name))
    if not candidates:
        return {}
    for node in graph:
        inputs = {value.name for value in node.inputs if value is not None}
        if not inputs.isdisjoint(candidates) and node.op_type not in _SOFTMAX_OPS:
            candidates.update(str(value.name) for value in node.outputs)
    activations = candidates.intersection(prepared.parts.activations)
    nonfinite = _find_nonfinite_tensors(prepared, activations)
    reason = "it reads or writes infinite values that come from a model constant"
    return dict.fromkeys(prepared.parts.nodes_touching(nonfinite), reason)


def _has_nonfinite(array: np.ndarray) -> bool:
    """Whether `array` is a float array that contains NaN or infinity."""
    return array.dtype.kind == "f" and not np.isfinite(array).all()


def _find_nonfinite_tensors(prepared: PreparedModel, names: Collection[str]) -> set[str]:
    """Return the tensors of `names` that contain NaN or infinity for a calibration sample.

    Held-out samples are checked as well; it stops when all tensors are found.
    """
    nonfinite: set[str] = set()
    remaining = set(names)
    feeds = _iter_samples(prepared.data, prepared.comparison_batch_size)
    while remaining and (feed := next(feeds, None)) is not None:
        for name, array, _ in prepared.runner.run(feed, remaining):
            if _has_nonfinite(array):
                nonfinite.add(name)
        remaining -= nonfinite
    return nonfinite


def _iter_samples(data: Data, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the inputs of all samples in batches of `batch_size`, held-out ones last."""
    for feed, _ in data.batches(batch_size):
        yield feed
    yield from data.held_out_batches()


def _import_if_quantized(
    model: ir.Model, config: QuantConfig
) -> tuple[ImportedQuantization | None, list[str]]:
    """Return the scales of a model that is quantized already, and notes.

    (None, []) for a float one. Raises ConfigError if a float model is to be requantized (setting
    `requantize`).
    """
    if not is_quantized(model):
        if config.requantize:
            raise ConfigError(
                "requantize: the model has no QuantizeLinear; this option is for models that are "
                "quantized already"
            )
        return None, []
    imported = _import_checked(model)
    usage = "its scales are imported"
    if config.requantize:
        usage = "only its weights are used"
    return imported, [f"the model is quantized already: {usage}", *imported.notes]


def _restore_dynamic_layers(model: ir.Model) -> list[str]:
    """Replace dynamically quantized layers of `model` by float ones, in place; return a note.

    No note without such layers. Raises ModelError if one cannot be replaced.
    """
    if not is_dynamically_quantized(model):
        return []
    from ...interchange.qdq.dynamic_layers import restore_dynamic_layers  # only such models

    check_schemas(model)
    count = restore_dynamic_layers(model)
    noun = "1 layer is" if count == 1 else f"{count} layers are"
    replacement = "replaced by the float layers that their weights represent"
    return [f"{noun} quantized dynamically: {replacement}"]


def _import_checked(model: ir.Model) -> ImportedQuantization:
    """Return the float model and scales of a quantized `model`, after checking its operators.

    Raises ModelError if a node violates the schema of its operator.
    """
    from ...interchange.qdq.import_model import import_quantized_model  # only quantized models

    check_schemas(model)
    return import_quantized_model(model)


def _import_encodings(
    encodings: Encodings, model: ir.Model
) -> tuple[ImportedQuantization, list[str]]:
    """Return the scales of another tool's file, mapped to the float `model`, and no notes ([]).

    Raises ConfigError if the model is quantized.
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
    """Return the normalized graph of a model for `target`, without fitting it to the chip.

    Parameters
    ----------
    model
        The model. If another tool has quantized it, the float model that it represents is used.
    target
        The target.
    calib
        Data for the shapes of inputs, or None.
    input_shape, fix
        Shapes and constant values of inputs, by input. `model` itself is not modified.

    Returns
    -------
    graph : ir.Model
        The normalized graph.
    notes : list of str
        Notes for the report.
    """
    conf = resolve_config(None, {"platform": target, "fit": False})
    if input_shape or fix or is_dynamically_quantized(model):
        model = model.clone()
    import_notes = _restore_dynamic_layers(model)
    if is_quantized(model):
        model = _import_checked(model).graph
        import_notes.append(
            "the model is quantized already (QuantizeLinear): checking the float model that it "
            "represents"
        )
    fixed = fix_inputs(model, fix)
    set_input_shapes(model, input_shape)
    accepted = _accept_model(model)
    original = accepted.original
    data, _ = load_calibration_data(calib, original, conf, fixed, False)
    notes = [*import_notes, *accepted.notes, *infer_input_shapes(original, data)]
    rewriter = Rewriter(original, None, data.first(), target, conf)
    notes += choose_expansions(
        rewriter,
        original,
        lambda: partition_graph(rewriter.run().graph, target, {}),
        target,
        (),
    )
    return rewriter.run().graph, [*notes, *rewriter.notes(), *data.notes]
