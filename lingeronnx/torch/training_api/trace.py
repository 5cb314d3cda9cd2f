"""Trace of a torch module: its float graph, its plan, and a `QatModule` that runs the plan.

    export -> fold batch norms -> replace what is computed from parameters alone by constants
    -> prepare -> choose the integer nodes -> plan -> `QatModule` with constants from parameters

A node with parameters becomes integer if its module is selected for quantization. A node without
parameters becomes integer if all its inputs are integer, provided that layers have integer outputs
at all. This module knows torch modules and graphs, but no training.
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

from ...common.errors import DataError
from ...common.escaping import escape_invisible
from ...common.files import temporary_folder
from ...ir import ir
from ...ir.plan import Plan
from ...operators.lowerings import find_lowering_rule
from ...quantization import PlannedModel, PreparedModel, plan_model, prepare_model
from ...quantization.config import QuantConfig
from ...runtime.runners import get_input_specs
from ...targets import Target
from ..checkpoint.parameters import state_dict
from ..exporter.data_dependence import DataDependenceTracker
from ..exporter.float_export import evaluation_mode, export
from ..exporter.signature import ModuleCall
from ..qat.qat_module import QatModule
from .computed_constants import ComputedConstants
from .module_wrappers import LayerBits, get_annotations, original_classes
from .parameter_constants import (
    ConstantOrigins,
    NetParameters,
    NumberedGraphs,
    PlannedConstants,
    copy_with_parameters,
    fold_norms,
    number_elements,
)

__all__ = ["Settings", "Traced", "export_with_folded_norms", "get_layer_bits", "trace_net"]


@dataclass(frozen=True)
class Settings:
    """Settings of `init`.

    Attributes
    ----------
    kinds
        Types of the modules that are quantized.
    platform, mode
        Target and kind of scales.
    widths
        Bits of inputs, weights and outputs.
    calib
        Calibration data; None for scales that follow the running extremes.
    exporter
        Name of the exporter for the trace.
    """

    kinds: tuple[type[nn.Module], ...]
    platform: Target
    mode: str
    widths: LayerBits
    calib: Any = None
    exporter: str | None = "torchscript"


@dataclass(frozen=True)
class ExportedNet:
    """A float graph as exported, with folded batch norms.

    Attributes
    ----------
    inputs, outputs
        Names of the graph inputs and outputs.
    scopes
        Node name -> path of its module.
    unused
        Trainable parameters that the graph does not contain, since `forward` does not use them.
    """

    graph: ir.Model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scopes: Mapping[str, str]
    unused: tuple[str, ...]


@dataclass(frozen=True)
class Traced:
    """A traced net.

    Attributes
    ----------
    inputs
        Names of the tensors of a call, in order.
    outputs
        Names of the results in order; None for a result that is not a tensor.
    non_tensor_outputs
        The results that are not tensors, in the same order; None for a tensor.
    output_tree
        Structure of the results (a pytree spec).
    qat_module
        Runs the planned graph with fake quantization.
    constants
        How the constants of `qat_module` follow from `parameters`.
    output_limits
        Tensor name -> largest absolute value of a clamped output.
    quantized_modules
        The modules that are quantized.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str | None, ...]
    non_tensor_outputs: tuple[Any, ...]
    output_tree: Any
    prepared: PreparedModel
    planned: PlannedModel
    qat_module: QatModule
    parameters: NetParameters
    constants: PlannedConstants
    output_limits: Mapping[str, float]
    quantized_modules: Sequence[nn.Module]

    @property
    def batch_axes(self) -> dict[str, int | None]:
        """The batch axis of each graph input by name; None for an input without one."""
        return {spec.name: spec.axis for spec in get_input_specs(self.planned.graph)}

    @cached_property
    def input_shapes(self) -> dict[str, list[int | None]]:
        """The traced shape of each graph input by name, with None on the batch axis."""
        shapes = {}
        for spec in get_input_specs(self.planned.graph):
            shape = list(spec.shape or ())
            shapes[spec.name] = [
                None if axis == spec.axis else size for axis, size in enumerate(shape)
            ]
        return shapes

    @property
    def frozen_constants(self) -> dict[str, Tensor]:
        """The constants that depend on parameters but keep their traced values, by name."""
        initializers = self.planned.graph.graph.initializers
        return {
            name: torch.from_numpy(np.array(ir.const_value(initializers[name])))
            for name in self.constants.frozen
        }

    def get_feed(self, net: nn.Module, args: Any, kwargs: Any) -> dict[str, Tensor]:
        """Return the tensors of a call of `net` by input name.

        Tensors that the graph does not read are left out. Raises DataError if the rank, or a size
        other than the batch, differs from the trace.
        """
        call = ModuleCall(net, args, kwargs, self.inputs)
        graph_inputs = {spec.name for spec in self.qat_module.network.inputs}
        feed = {}
        for name, tensor in zip(call.names, call.tensors, strict=True):
            if name in graph_inputs:
                _check_shape(name, tensor, self.input_shapes[name])
                feed[name] = tensor
        return feed

    def result(self, tensors: Mapping[str, Tensor]) -> Any:
        """Return the result of the net's forward, made of graph outputs `tensors` by name.

        It has the structure and the non-tensor values of the traced call.
        """
        leaves = []
        for name, value in zip(self.outputs, self.non_tensor_outputs, strict=True):
            leaves.append(value if name is None else tensors[name])
        return pytree.tree_unflatten(leaves, self.output_tree)

    def update_constants(self) -> dict[str, Tensor]:
        """Recompute the constants of `qat_module` from the current parameters, and return them.

        The result maps initializer names to tensors with gradients to the parameters.
        """
        tensors = self.constants.tensors(
            self.parameters.get_effective_tensors(), self.qat_module.used_initializers
        )
        self.qat_module.substitute_initializers(tensors)
        return tensors


def _check_shape(name: str, tensor: Tensor, traced_shape: Sequence[int | None]) -> None:
    """Raise DataError if input `name` has another shape than in the trace.

    None in `traced_shape`, the batch, matches any size.
    """
    has_same_rank = len(traced_shape) == tensor.dim()
    if has_same_rank and all(
        expected in (None, size) for expected, size in zip(traced_shape, tensor.shape, strict=True)
    ):
        return
    formatted = ["N" if size is None else size for size in traced_shape]
    raise DataError(
        f"input '{name}' is {list(tensor.shape)}; the net was traced with {formatted}; only the "
        "batch may differ"
    )


def export_with_folded_norms(
    net: nn.Module, args: Any, kwargs: Any, exporter: str | None
) -> tuple[ExportedNet, NetParameters]:
    """Export `net` for this call, without its wrapper classes, and fold its batch norms.

    The modules of folded batch norms and their layers are annotated in place. `exporter` is None
    for the default. The exported net lists the trainable parameters that the graph does not use.
    """
    parameters = NetParameters(net)
    with original_classes(net), temporary_folder() as folder:
        exported = export(net, args, folder / "net.onnx", kwargs=kwargs or None, exporter=exporter)
        graph = ir.load(exported.path)
        input_names = ModuleCall(net, args, kwargs, None).names
    graph_parameters = state_dict(graph)
    unused = tuple(
        name
        for name, parameter in net.named_parameters()
        if parameter.requires_grad and name not in graph_parameters
    )
    fold_norms(graph, parameters)
    parameters.computed_constants = ComputedConstants(graph)
    exported_net = ExportedNet(
        graph, tuple(input_names), tuple(exported.outputs), exported.scopes, unused
    )
    return exported_net, parameters


def trace_net(
    net: nn.Module,
    args: Any,
    kwargs: Any,
    settings: Settings,
    plan: Plan | None,
    frozen: Mapping[str, Tensor],
) -> Traced:
    """Trace `net`.

    Warns of places where the code of the net makes decisions that depend on its data.

    Parameters
    ----------
    args, kwargs
        Arguments of a call; they determine the shapes and the initial ranges.
    plan
        Scales and factors to reuse, or None to compute new ones.
    frozen
        `Traced.frozen_constants` of the net that the parameters come from, to be reused.

    Raises
    ------
    ModelError
        If the net cannot be traced; the message names the module. Other errors are those of
        `quantize`.
    """
    args, kwargs = pytree.tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs))
    exported, parameters = export_with_folded_norms(net, args, kwargs, settings.exporter)
    with original_classes(net), evaluation_mode(net), torch.no_grad():
        call = ModuleCall(net, args, kwargs, None)
        with DataDependenceTracker(call.tensors) as decisions:
            result = net(*args, **kwargs)
    for line in decisions.lines():
        warnings.warn(escape_invisible(line), stacklevel=2)
    arrays = _get_planning_arrays(exported.graph, parameters)
    feeds = {
        name: tensor.cpu().numpy() for name, tensor in zip(call.names, call.tensors, strict=True)
    }
    data = feeds if settings.calib is None else settings.calib
    config = _make_config(settings, {})
    numbered_graphs = _prepare_numbered_graphs(exported.graph, arrays, feeds, config)
    graph = copy_with_parameters(exported.graph, arrays)
    prepared = prepare_model(graph, data, None, config, hold_out=False)
    constants = ConstantOrigins(prepared.graph, numbered_graphs, arrays)
    if constants.untraceable_nodes:
        summands = _prepare_summands(exported.graph, parameters, arrays, feeds, config)
        if summands is not None:
            constants.trace_sums(summands)
    layers = _ChosenLayers(prepared, constants, parameters, exported.scopes, settings)
    prepared = prepared.with_host_nodes(layers.float_reasons)
    conf = QuantConfig.of(_make_config(settings, layers.get_overrides(prepared)))
    conf.check_platform(prepared.target)
    prepared = replace(prepared, conf=conf, selects_generated=True)
    planned = plan_model(prepared, plan)
    for name, tensor in frozen.items():
        ir.set_initializer_value(planned.graph.graph.initializers[name], tensor.numpy())
    qat_module = QatModule(planned.graph, planned.plan, prepared.target, feeds, trainable=())
    planned_constants = constants.for_planned_graph(planned)
    untrained = [
        *planned_constants.find_untrained_parameters(qat_module.used_initializers),
        *(f"constants of {name}" for name in constants.untraceable_nodes),
    ]
    # After a data-dependent decision, parameters of the branch not taken are expected to be unused.
    _warn_untrained(untrained, () if decisions.locations else exported.unused)
    leaves, output_tree = pytree.tree_flatten(result)
    output_names = iter(exported.outputs)
    return Traced(
        inputs=exported.inputs,
        outputs=tuple(next(output_names) if isinstance(leaf, Tensor) else None for leaf in leaves),
        non_tensor_outputs=tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves),
        output_tree=output_tree,
        prepared=prepared,
        planned=planned,
        qat_module=qat_module,
        parameters=parameters,
        constants=planned_constants,
        output_limits=layers.get_output_limits(planned),
        quantized_modules=layers.modules,
    )


def _get_planning_arrays(graph: ir.Model, parameters: NetParameters) -> dict[str, np.ndarray]:
    """Return parameter name -> value after folding and clamping, for the parameters in `graph`.

    Vectors of zeros become nearly zero, so that passes do not remove them.
    """
    with torch.no_grad():
        effective = parameters.get_effective_tensors()
        return {
            name: _get_planning_array(effective[name])
            for name in state_dict(graph)
            if name in effective
        }


def _prepare_numbered_graphs(
    graph: ir.Model,
    arrays: Mapping[str, np.ndarray],
    feeds: Mapping[str, np.ndarray],
    config: dict[str, Any],
    zeros: Mapping[str, np.ndarray] | None = None,
) -> NumberedGraphs:
    """Prepare two copies of `graph` whose parameters have their element numbers as values.

    The numbers of the first copy start at 1, those of the second after the total number of
    elements. From the difference follows which element each constant comes from, and its factor.
    `arrays` has the parameters by name, `feeds` the inputs, `config` the settings of `quantize`,
    and `zeros` the values of parameters that get no numbers.
    """
    total = sum(array.size for array in arrays.values())
    first, second = (
        prepare_model(
            copy_with_parameters(graph, {**number_elements(arrays, offset), **(zeros or {})}),
            feeds,
            None,
            config,
            hold_out=False,
        ).graph
        for offset in (0, total)
    )
    return first, second


def _prepare_summands(
    graph: ir.Model,
    parameters: NetParameters,
    arrays: Mapping[str, np.ndarray],
    feeds: Mapping[str, np.ndarray],
    config: dict[str, Any],
) -> tuple[NumberedGraphs, NumberedGraphs] | None:
    """Prepare numbered graphs without the state's biases, and without the input's.

    A pass may add these two biases of a recurrent layer. None if no parameter is such a bias. The
    arguments are those of `_prepare_numbered_graphs`.
    """
    zeros_by_prefix: dict[str, dict[str, np.ndarray]] = {"bias_hh": {}, "bias_ih": {}}
    for name, array in arrays.items():
        module, attribute = parameters.owner_of_name.get(name, (None, ""))
        for prefix, zeros in zeros_by_prefix.items():
            if isinstance(module, nn.RNNBase) and attribute.startswith(prefix):
                zeros[name] = np.full_like(array, _NONZERO_PLACEHOLDER)
    if not all(zeros_by_prefix.values()):
        return None
    first, second = (
        _prepare_numbered_graphs(graph, arrays, feeds, config, zeros)
        for zeros in zeros_by_prefix.values()
    )
    return first, second


def _warn_untrained(constants: Sequence[str], unused: Sequence[str]) -> None:
    """Warn of constants that cannot follow the parameters, and of parameters that are not used.

    Both are names for the message; no warning for an empty sequence.
    """
    if constants:
        warnings.warn(
            f"not trained, since the graph stores them in another form: {', '.join(constants)}",
            stacklevel=3,
        )
    if unused:
        warnings.warn(
            f"not trained, since forward in evaluation does not use them: {', '.join(unused)}",
            stacklevel=3,
        )


_NONZERO_PLACEHOLDER = 1e-30


def _get_planning_array(tensor: Tensor) -> np.ndarray:
    """Return the value of a parameter for planning; a vector of zeros becomes 1e-30.

    Passes would remove a zero bias, which could then not be trained in the integer graph.
    """
    array = tensor.cpu().numpy().copy()
    if array.ndim == 1 and not array.any():
        return np.full_like(array, _NONZERO_PLACEHOLDER)
    return array


def _make_config(settings: Settings, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `quantize`, as a dict, that correspond to those of `init`.

    `overrides` are settings by tensor. Without calibration data the calibrator is "max".
    """
    config = {
        "platform": settings.platform,
        "mode": settings.mode,
        "bits": settings.widths.data,
        "weight_bits": settings.widths.parameter_bits,
        "overrides": overrides,
    }
    if settings.calib is None:
        config["calibrator"] = "max"
    return config


def get_layer_bits(module_chain: Sequence[nn.Module], settings: Settings) -> LayerBits | None:
    """Return the bit widths of the innermost module of a chain, or None if it is not quantized.

    The innermost annotated bits count, else the defaults if a module of the chain has one of the
    types to quantize. It is not quantized without either, or if a module of the chain excludes
    quantization.

    Parameters
    ----------
    module_chain
        Modules from the root down to the layer, each containing the next.
    settings
        Defaults, given to `init`.
    """
    annotations = [get_annotations(module) for module in module_chain]
    if not all(annotation.allows_quantization for annotation in annotations):
        return None
    for annotation in reversed(annotations):
        if annotation.bits is not None:
            return annotation.bits
    if not any(isinstance(module, settings.kinds) for module in module_chain):
        return None
    return settings.widths


class _ChosenLayers:
    """The nodes of a prepared graph that become integer, by the modules that they belong to.

    Attributes
    ----------
    float_reasons
        Nodes that stay in float -> reason.
    modules
        The modules that are quantized.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        constants: ConstantOrigins,
        parameters: NetParameters,
        scopes: Mapping[str, str],
        settings: Settings,
    ) -> None:
        """Partition the nodes into integer and float, and collect the modules of integer layers.

        Repeats the partition until it adds no node to the host part. `float_reasons` maps the nodes
        kept in float to the reason; `modules` are the innermost modules of the integer nodes that
        depend on parameters.
        """
        self._constants, self._parameters, self._settings = constants, parameters, settings
        self._scopes = scopes
        unsupported: set[str] = set()
        while True:
            self.float_reasons, self._integer_nodes = self._partition_nodes(prepared, unsupported)
            partition = prepared.with_host_nodes(self.float_reasons).parts
            new_floats = partition.floats.keys() - self.float_reasons.keys() - unsupported
            if not new_floats:
                break
            unsupported |= new_floats
        self.modules = [
            self._get_module_chain(node)[-1]
            for node in self._integer_nodes
            if constants.depends_on_parameters(node)
        ]

    def _get_module_chain(self, node: ir.Node) -> list[nn.Module]:
        """Return the modules from the net to the one that a node belongs to.

        It is the owner of the node's parameters or, without parameters, the module that executed
        the node in the trace.
        """
        names = self._constants.get_parameter_names(node)
        if names:
            return self._parameters.get_owner_chain(min(names))
        return self._parameters.get_module_chain(self._scopes.get(ir.origin_name(node), ""))

    def _get_bits(self, module_chain: Sequence[nn.Module]) -> LayerBits | None:
        """Return the bit widths of the last module of a chain, or None if it is not quantized.

        The chain has the modules from the net to the layer, each containing the next.
        """
        return get_layer_bits(module_chain, self._settings)

    def _partition_nodes(
        self, prepared: PreparedModel, unsupported: Collection[str]
    ) -> tuple[dict[str, str], list[ir.Node]]:
        """Partition the nodes that can be lowered into float and integer ones.

        Nodes named in `unsupported` are skipped.

        Returns
        -------
        float_reasons : dict of str to str
            Nodes that stay in float -> reason.
        integer_nodes : list of Node
            Nodes that become integer.
        """
        integer_tensors: set[str] = set()
        float_reasons: dict[str, str] = {}
        integer_nodes: list[ir.Node] = []
        for node in prepared.graph.graph:
            op, _ = find_lowering_rule(node, prepared.target)
            if op is None or str(node.name) in unsupported:
                continue
            inputs = {ir.input_name(node, index) for index in op.data(node)}
            reason = self._find_float_reason(node, inputs <= integer_tensors)
            if reason:
                float_reasons[str(node.name)] = reason
                continue
            integer_nodes.append(node)
            integer_tensors |= inputs  # the inputs of a layer are quantized for it
            for index in op.quantized_outputs(node):
                integer_tensors.add(str(node.outputs[index].name))
        return float_reasons, integer_nodes

    def _find_float_reason(self, node: ir.Node, has_integer_inputs: bool) -> str:
        """Return the reason why `node` stays in float, or "" if it becomes an integer node.

        A node with parameters needs bits. Others need `out_bits`, modules that allow quantization,
        and only integer inputs (`has_integer_inputs`).
        """
        module_chain = self._get_module_chain(node)
        if self._constants.depends_on_parameters(node):
            if self._get_bits(module_chain):
                return ""
            class_name = get_annotations(module_chain[-1]).original_class.__name__
            return f"its module, a {class_name}, is not quantized"
        if self._settings.widths.out_bits is None:
            return "the outputs of layers are float32 (out_bits=None)"
        if not all(get_annotations(module).allows_quantization for module in module_chain):
            return "its module is not quantized"
        return "" if has_integer_inputs else "it reads a float tensor"

    def get_overrides(self, prepared: PreparedModel) -> dict[str, dict[str, Any]]:
        """Return the settings of tensors whose bits differ from the defaults, by tensor name.

        Only layers with bits that depend on parameters count: "weight_bits" and "bits" or
        "out_bits" belong to the output, the "bits" of the data to the inputs. Without `out_bits` a
        wide output that no integer node reads is "float".
        """
        overrides: dict[str, dict[str, Any]] = {}
        defaults = self._settings.widths
        for node, op in prepared.parts.integer_nodes:
            bits = self._get_bits(self._get_module_chain(node))
            if bits is None or not self._constants.depends_on_parameters(node):
                continue
            output = overrides.setdefault(ir.output_name(node), {})
            if bits.parameter_bits != defaults.parameter_bits:
                output["weight_bits"] = bits.parameter_bits
            if bits.data != defaults.data:
                for index in op.data(node):
                    overrides.setdefault(ir.input_name(node, index), {})["bits"] = bits.data
            if bits.out_bits is not None:
                if bits.out_bits != defaults.data:
                    key = "bits" if bits.out_bits in prepared.target.bits else "out_bits"
                    output[key] = bits.out_bits
            elif op.allows_wide_output and not _has_integer_consumer(node, prepared):
                output["out_bits"] = "float"
        return {name: settings for name, settings in overrides.items() if settings}

    def get_output_limits(self, planned: PlannedModel) -> dict[str, float]:
        """Return the largest absolute values of clamped outputs by tensor name.

        If the plan scales channels of the tensor by factors, the limit is multiplied by the largest
        factor.
        """
        limits = {}
        for node in self._integer_nodes:
            clamp = get_annotations(self._get_module_chain(node)[-1]).clamp
            if clamp is None or clamp.output is None:
                continue
            if not self._constants.depends_on_parameters(node):
                continue
            name = ir.output_name(node)
            transform = planned.plan.transforms.get(name)
            factor = 1.0 if transform is None else max(transform.factor)
            limits[name] = clamp.output * factor
        return limits


def _has_integer_consumer(node: ir.Node, prepared: PreparedModel) -> bool:
    """Whether an integer node reads the first output of `node`."""
    integer_ids = prepared.parts.integer_node_ids
    return any(id(use.node) in integer_ids for use in node.outputs[0].uses())
