"""A torch module traced once.

Its float graph, its plan, and a bridge that computes with the module's own parameters.
    export -> fold batch norms -> cut out what parameters make -> prepare -> what becomes integer ->
    plan -> bridge, constants from parameters

Of the nodes that hold parameters those become integer whose modules are chosen. What holds none
does where all that it reads is integer already, if the layers' outputs are to be integers at all.
Knows torch modules and graphs; nothing of training.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from ...errors import DataError
from ...files import temporary_folder
from ...flow import PlannedModel, PreparedModel, plan_model, prepare_model
from ...graph import ir
from ...ops import find_lowering_rule
from ...plan import Plan
from ...plan.config import QuantConfig
from ...run.runners import get_input_specs
from ...targets import Target
from ..checkpoint.parameters import state_dict
from ..exporter.float_export import evaluation_mode, export
from ..exporter.signature import ModuleCall
from ..qat.qat_module import QatModule
from .computed_constants import ComputedConstants
from .data_dependence import DataDependenceTracker
from .module_wrappers import LayerBits, get_annotations, original_classes
from .parameter_constants import (
    ConstantOrigins,
    NetParameters,
    PlannedConstants,
    fold_norms,
    number_elements,
    with_parameter_values,
)

__all__ = ["Settings", "Traced", "export_with_folded_norms", "get_layer_bits", "trace_net"]


@dataclass(frozen=True)
class Settings:
    """What `init` was told.

    kinds : the types of modules that are quantized. widths : of their inputs, weights and outputs.
    calib : data that the scales come from, None for the running maximum. exporter : the one that
    traces.
    """

    kinds: tuple[type[nn.Module], ...]
    platform: Target
    mode: str
    widths: LayerBits
    calib: Any = None
    exporter: str | None = "torchscript"


@dataclass(frozen=True)
class ExportedNet:
    """A float graph as exported, batch norms folded; what goes in and comes out.

    {node: path of its module}.
    unused : the parameters that it does not hold: this way through `forward` has no use for them.
    """

    graph: ir.Model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scopes: Mapping[str, str]
    unused: tuple[str, ...]


@dataclass(frozen=True)
class Traced:
    """A net after its trace.

    inputs : the names of the tensors of a call, in order. outputs : those of the results, None in
    place of what is no tensor; form : how to put these together. constants : how the bridge's
    constants follow from `parameters`. output_limits : {tensor: largest |value| of a clamped
    output}. chosen : the modules that are quantized.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str | None, ...]
    non_tensor_outputs: tuple[Any, ...]
    output_tree: Any
    prepared: PreparedModel
    planned: PlannedModel
    bridge: QatModule
    parameters: NetParameters
    constants: PlannedConstants
    output_limits: Mapping[str, float]
    quantized_modules: Sequence[nn.Module]

    @property
    def batch_axes(self) -> dict[str, int | None]:
        """The axis of each input that counts the samples, None where none does."""
        return {spec.name: spec.axis for spec in get_input_specs(self.planned.graph)}

    @cached_property
    def input_sizes(self) -> dict[str, list[int | None]]:
        """The sizes of each input, None for the batch."""
        specs = get_input_specs(self.planned.graph)
        return {
            s.name: [None if i == s.axis else d for i, d in enumerate(s.shape or ())] for s in specs
        }

    @property
    def frozen_constants(self) -> dict[str, Tensor]:
        """The constants that depend on parameters and do not follow them."""
        held = self.planned.graph.graph.initializers
        return {
            name: torch.from_numpy(np.array(ir.const_value(held[name])))
            for name in self.constants.frozen
        }

    def get_feed(self, net: nn.Module, args: Any, kwargs: Any) -> dict[str, Tensor]:
        """Return the tensors of a call by the graph's names.

        DataError where sizes are others than in the trace.
        """
        call = ModuleCall(net, args, kwargs, self.inputs)
        known = {spec.name for spec in self.bridge.network.inputs}
        found = {name: x for name, x in zip(call.names, call.tensors, strict=True) if name in known}
        for name, tensor in found.items():
            sizes = self.input_sizes[name]
            if len(sizes) != tensor.dim() or any(
                a not in (None, b) for a, b in zip(sizes, tensor.shape, strict=True)
            ):
                told = ["N" if size is None else size for size in sizes]
                raise DataError(
                    f"input '{name}' is {list(tensor.shape)}; the net was traced with {told}; only "
                    "the batch may differ"
                )
        return found

    def result(self, found: Mapping[str, Tensor]) -> Any:
        """Return what the net's own forward returns, with the tensors of `found`."""
        leaves = [
            own if name is None else found[name]
            for name, own in zip(self.outputs, self.non_tensor_outputs, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.output_tree)

    def update_constants(self) -> dict[str, Tensor]:
        """Let the bridge compute with the parameters as they are now, and return its constants."""
        tensors = self.constants.tensors(
            self.parameters.get_effective_tensors(), self.bridge.used_initializers
        )
        self.bridge.substitute_initializers(tensors)
        return tensors


def export_with_folded_norms(
    net: nn.Module, args: Any, kwargs: Any, exporter: str | None
) -> tuple[ExportedNet, NetParameters]:
    """Export `net` as it is without its marks, and fold its batch norms."""
    parameters = NetParameters(net)
    with original_classes(net), temporary_folder() as folder:
        done = export(net, args, folder / "net.onnx", kwargs=kwargs or None, exporter=exporter)
        graph = ir.load(done.path)
        names = ModuleCall(net, args, kwargs, None).names
    held = state_dict(graph)
    unused = tuple(
        name for name, p in net.named_parameters() if p.requires_grad and name not in held
    )
    fold_norms(graph, parameters)
    parameters.computed_constants = ComputedConstants(graph)
    return ExportedNet(graph, tuple(names), tuple(done.outputs), done.scopes, unused), parameters


def trace_net(
    net: nn.Module,
    args: Any,
    kwargs: Any,
    settings: Settings,
    plan: Plan | None,
    frozen: Mapping[str, Tensor],
) -> Traced:
    """Trace `net` on the given arguments, which give sizes and the first ranges.

    plan : scales and factors to take over, None for new ones. frozen : `Traced.frozen_constants` of
    the net that the parameters come from; its constants stay. Warns of places where the net's own
    code decides by its data. Raises ModelError for what cannot be traced, with the module's name,
    and as `quantize` does.
    """
    args, kwargs = pytree.tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs))
    made, parameters = export_with_folded_norms(net, args, kwargs, settings.exporter)
    with original_classes(net), evaluation_mode(net), torch.no_grad():
        call = ModuleCall(net, args, kwargs, None)
        with DataDependenceTracker(call.tensors) as decisions:
            result = net(*args, **kwargs)
        leaves, form = pytree.tree_flatten(result)
    for line in decisions.lines():
        warnings.warn(line, stacklevel=2)
    outputs = iter(made.outputs)
    names = tuple(next(outputs) if isinstance(leaf, Tensor) else None for leaf in leaves)
    plain = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    with torch.no_grad():
        effective = parameters.get_effective_tensors()
        numbers = {
            name: _get_planning_array(effective[name])
            for name in state_dict(made.graph)
            if name in effective
        }
    feeds = {name: x.cpu().numpy() for name, x in zip(call.names, call.tensors, strict=True)}
    data = feeds if settings.calib is None else settings.calib
    conf = _make_config(settings, {})
    counts = _counted_graphs(made.graph, numbers, feeds, conf)
    prepared = prepare_model(
        with_parameter_values(made.graph, numbers), data, None, conf, hold_out=False
    )
    constants = ConstantOrigins(prepared.graph, counts, numbers)
    layers = _ChosenLayers(prepared, constants, parameters, made.scopes, settings)
    prepared = prepared.with_host_nodes(layers.floats)
    own = QuantConfig.of(_make_config(settings, layers.get_overrides(prepared)))
    own.check_platform(prepared.target)
    prepared = replace(prepared, conf=own)
    planned = plan_model(prepared, plan)
    for name, tensor in frozen.items():
        ir.set_initializer_value(planned.graph.graph.initializers[name], tensor.numpy())
    bridge = QatModule(planned.graph, planned.plan, prepared.target, feeds, trainable=())
    planned_constants = constants.for_planned_graph(planned)
    traced = Traced(
        inputs=made.inputs,
        outputs=names,
        non_tensor_outputs=plain,
        output_tree=form,
        prepared=prepared,
        planned=planned,
        bridge=bridge,
        parameters=parameters,
        constants=planned_constants,
        output_limits=layers.get_output_limits(planned),
        quantized_modules=layers.chosen,
    )
    others = [
        *planned_constants.find_untrained_parameters(bridge.used_initializers),
        *(f"constants of {name}" for name in constants.untraceable_nodes),
    ]
    _warn_untrained(
        others, () if decisions.locations else made.unused
    )  # those of the other branch are no news
    return traced


def _counted_graphs(
    graph: ir.Model,
    numbers: Mapping[str, np.ndarray],
    feeds: Mapping[str, np.ndarray],
    conf: dict[str, Any],
) -> tuple[ir.Model, ir.Model]:
    """Run the passes on two copies of `graph` whose parameters number their elements (`ConstantOrigins`)."""
    total = sum(array.size for array in numbers.values())
    first, second = (
        prepare_model(
            with_parameter_values(graph, number_elements(numbers, above)),
            feeds,
            None,
            conf,
            hold_out=False,
        ).graph
        for above in (0, total)
    )
    return first, second


def _warn_untrained(constants: Sequence[str], unused: Sequence[str]) -> None:
    """Warn of `constants` that do not follow the parameters, and of parameters that `forward` does not use."""
    if constants:
        warnings.warn(
            f"not trained, since the graph holds them in another form: {', '.join(constants)}",
            stacklevel=3,
        )
    if unused:
        warnings.warn(
            f"not trained, since forward in evaluation does not use them: {', '.join(unused)}",
            stacklevel=3,
        )


_NONZERO_PLACEHOLDER = 1e-30


def _get_planning_array(tensor: Tensor) -> np.ndarray:
    """Return what stands for a parameter while the net is planned.

    Nearly zero for a vector of zeros.
    Passes drop a fresh bias of zeros, which would then have no place in the integer graph.
    """
    array = tensor.cpu().numpy().copy()
    return (
        np.full_like(array, _NONZERO_PLACEHOLDER) if array.ndim == 1 and not array.any() else array
    )


def _make_config(settings: Settings, overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "platform": settings.platform,
        "mode": settings.mode,
        "bits": settings.widths.data,
        "weight_bits": settings.widths.parameter_bits,
        "overrides": overrides,
        **({"calibrator": "max"} if settings.calib is None else {}),
    }


def get_layer_bits(modules: Sequence[nn.Module], settings: Settings) -> LayerBits | None:
    """Return the bits of the last of `modules`, which contain each other.

    None where it is not quantized.
    """
    if not all(get_annotations(m).allows_quantization for m in modules):
        return None
    own = [w for m in modules if (w := get_annotations(m).bits) is not None]
    if own:
        return own[-1]
    return settings.widths if any(isinstance(m, settings.kinds) for m in modules) else None


class _ChosenLayers:
    """Which nodes of a prepared graph become integer, by the modules that they belong to.

    chosen : the modules that are quantized. floats : {node: why it stays in float}.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        constants: ConstantOrigins,
        parameters: NetParameters,
        scopes: Mapping[str, str],
        settings: Settings,
    ) -> None:
        self._constants, self._parameters, self._settings = constants, parameters, settings
        self._scopes = scopes
        refused: set[str] = set()
        while True:
            self.floats, self._integer = self._partition_nodes(prepared, refused)
            more = (
                prepared.with_host_nodes(self.floats).parts.floats.keys()
                - self.floats.keys()
                - refused
            )
            if not more:
                break
            refused |= more
        self.chosen = [
            m
            for node in self._integer
            for m in self._get_module_chain(node)[-1:]
            if constants.depends_on_parameters(node)
        ]

    def _get_module_chain(self, node: ir.Node) -> list[nn.Module]:
        """Return the modules from the net itself to the one that a node belongs to.

        Its parameters', or its trace's.
        """
        names = self._constants.get_parameter_names(node)
        chains = self._parameters.get_owner_chains(sorted(names)) or [
            self._parameters.get_module_chain(self._scopes.get(ir.origin_name(node), ""))
        ]
        return chains[0]

    def _widths(self, modules: Sequence[nn.Module]) -> LayerBits | None:
        return get_layer_bits(modules, self._settings)

    def _partition_nodes(
        self, prepared: PreparedModel, refused: Collection[str]
    ) -> tuple[dict[str, str], list[ir.Node]]:
        """Return the nodes that stay in float, with the reason, and those that become integer.

        `refused` cannot.
        """
        integers: set[str] = set()
        floats: dict[str, str] = {}
        inside: list[ir.Node] = []
        for node in prepared.graph.graph:
            op, _ = find_lowering_rule(node, prepared.target)
            if op is None or str(node.name) in refused:
                continue
            modules = self._get_module_chain(node)
            reads = {ir.input_name(node, index) for index in op.data(node)}
            if self._constants.depends_on_parameters(node):
                kind = get_annotations(modules[-1]).original_class.__name__
                why = "" if self._widths(modules) else f"its module, a {kind}, is not quantized"
            elif self._settings.widths.out_bits is None:
                why = "the outputs of layers are float32 (out_bits=None)"
            elif not all(get_annotations(m).allows_quantization for m in modules):
                why = "its module is not quantized"
            else:
                why = "" if reads <= integers else "it reads what stays in float"
            if why:
                floats[str(node.name)] = why
            else:
                inside.append(node)
                integers |= reads  # a layer has them quantized
                integers.update(
                    str(node.outputs[index].name) for index in op.quantized_outputs(node)
                )
        return floats, inside

    def get_overrides(self, prepared: PreparedModel) -> dict[str, dict[str, Any]]:
        """Return the settings of tensors whose bits are others than the net's, by name."""
        target, found = prepared.target, dict[str, dict[str, Any]]()
        usual = self._settings.widths
        for node, op in prepared.parts.integer_nodes:
            if (
                not self._constants.depends_on_parameters(node)
                or (widths := self._widths(self._get_module_chain(node))) is None
            ):
                continue
            result = found.setdefault(ir.output_name(node), {})
            if widths.parameter_bits != usual.parameter_bits:
                result["weight_bits"] = widths.parameter_bits
            if widths.data != usual.data:
                for index in op.data(node):
                    found.setdefault(ir.input_name(node, index), {})["bits"] = widths.data
            read = any(
                id(use.node) in prepared.parts.integer_node_ids for use in node.outputs[0].uses()
            )
            if widths.out_bits is None:
                result.update({"out_bits": "float"} if op.allows_wide_output and not read else {})
            elif widths.out_bits != usual.data:
                result["bits" if widths.out_bits in target.bits else "out_bits"] = widths.out_bits
        return {name: settings for name, settings in found.items() if settings}

    def get_output_limits(self, planned: PlannedModel) -> dict[str, float]:
        """Return the largest |values| of clamped outputs by tensor.

        Of channels with factors, the largest one's.
        """
        found = {}
        for node in self._integer:
            modules = self._get_module_chain(node)
            clamp = get_annotations(modules[-1]).clamp
            if (
                clamp is None
                or clamp.output is None
                or not self._constants.depends_on_parameters(node)
            ):
                continue
            name = ir.output_name(node)
            transform = planned.plan.transforms.get(name)
            found[name] = clamp.output * (max(transform.factor) if transform is not None else 1.0)
        return found
