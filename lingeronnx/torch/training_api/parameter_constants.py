"""Mapping from the parameters of a module to the constants of its planned graph, with gradients.

    parameter --fold, clamp--> effective --move, repeat, pad--> normalized --factor--> planned

The first step is `module_wrappers.get_effective_parameters`. The effect of the passes on parameters
is found by running them on two copies of the graph whose parameters have their element numbers as
values, from 1 and from K + 1 on. An element that is c times element i becomes c i and c (i + K),
which gives c and i; one that is equal in both copies is a constant. The result is verified on the
actual values. The two biases of a recurrent layer may be added by a pass: an element that is no
multiple of one parameter element is looked for as the sum of two, on copies whose biases of the
input or of the state are nearly zero. The last factors are those that range adjustment and
equalization move into weights.
A constant that a pass computes in any other way is frozen at its value, and its parameters are
reported as untrained. Values that the net itself computes from parameters alone, such as a product
of two, count as parameters of their own (`computed_constants`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...common.errors import ModelError
from ...ir import float_ops, ir
from ...quantization import PlannedModel
from ...quantization.methods import factors
from ..checkpoint.parameters import load_checkpoint
from .computed_constants import ComputedConstants
from .module_wrappers import get_effective_parameters, get_or_create_annotations

__all__ = [
    "ConstantOrigins",
    "NetParameters",
    "NumberedGraphs",
    "PlannedConstants",
    "fold_norms",
    "number_elements",
    "copy_with_parameters",
]

#: A normalized graph for two numberings of the elements of its parameters.
NumberedGraphs = tuple[ir.Model, ir.Model]

#: Limit of elements: integers up to twice this number are exact in float32.
_MAX_ELEMENTS = 1 << 23
#: Layers with a bias.
_LAYERS = float_ops.LAYER_OPS - float_ops.RECURRENT_OPS - {"MatMul"}


class NetParameters:
    """The current parameters and buffers of a net by their names in the state_dict.

    Attributes
    ----------
    owner_of_name
        Name -> module and attribute.
    computed_constants
        Values that the net computes from parameters alone; None before the net is exported.
    """

    def __init__(self, net: nn.Module) -> None:
        """Map the state_dict name of each parameter and buffer to (module, its name there).

        Absent ones (None) are omitted.
        """
        self.computed_constants: ComputedConstants | None = None
        self.owner_of_name: dict[str, tuple[nn.Module, str]] = {}
        for path, module in net.named_modules():
            for name in (*module._parameters, *module._buffers):
                if getattr(module, name) is not None:
                    self.owner_of_name[f"{path}.{name}" if path else name] = module, name
        self._paths = {id(module): path for path, module in net.named_modules()}
        self._modules = dict(net.named_modules())

    def name_of(self, module: nn.Module, attribute: str) -> str:
        """Return the state_dict name of the parameter or buffer `attribute` of `module`."""
        path = self._paths[id(module)]
        return f"{path}.{attribute}" if path else attribute

    def get_module_chain(self, path: str) -> list[nn.Module]:
        """Return the modules from the net to the one at dotted `path`, each containing the next.

        Names of the path that are no modules are skipped.
        """
        names = path.split(".") if path else []
        prefixes = [".".join(names[:depth]) for depth in range(len(names) + 1)]
        return [self._modules[prefix] for prefix in prefixes if prefix in self._modules]

    def get_owner_chain(self, name: str) -> list[nn.Module]:
        """Return the modules from the net to the one that owns the parameter `name` (state_dict).

        Each module contains the next; names of the path that are no modules are skipped.
        """
        return self.get_module_chain(name.rpartition(".")[0])

    def get_effective_tensors(self) -> dict[str, Tensor]:
        """Return the float parameters by state_dict name, after folding batch norms and clamping.

        They include biases that folding adds, and the constants that the net computes from
        parameters alone, under their names in the graph. The tensors have gradients.
        """
        tensors: dict[str, Tensor] = {}
        owners: dict[int, nn.Module] = {}
        for name, (module, attribute) in self.owner_of_name.items():
            tensor = module._parameters.get(attribute)
            if tensor is not None and tensor.is_floating_point():
                tensors[name] = tensor
                owners[id(module)] = module
        for module in owners.values():
            for attribute, tensor in get_effective_parameters(module).items():
                tensors[self.name_of(module, attribute)] = tensor
        if self.computed_constants is None:
            return tensors
        return {**tensors, **self.computed_constants.tensors(tensors)}


def fold_norms(graph: ir.Model, parameters: NetParameters) -> None:
    """Fold the batch norms after layers of an exported graph, in place, and annotate their modules.

    Both must be modules whose parameters nothing else in the graph uses. The values of the layers'
    weights in the graph are not changed; a layer without a bias gets one of zeros. The annotated
    modules compute the folded values from their parameters.
    """
    for node in list(graph.graph):
        layer = _find_foldable_layer(node)
        if layer is None:
            continue
        weight = parameters.owner_of_name.get(ir.input_name(layer, 1))
        mean = parameters.owner_of_name.get(ir.input_name(node, 3))
        if weight is None or weight[1] != "weight" or mean is None or mean[1] != "running_mean":
            continue
        layer_module, norm_module = weight[0], mean[0]
        get_or_create_annotations(layer_module).folded_norm = norm_module
        get_or_create_annotations(norm_module).is_folded_norm = True
        if len(layer.inputs) < 3:
            layer.resize_inputs(3)
        if layer.inputs[2] is None:
            size = len(ir.const_value(node.inputs[3]))  # type: ignore[arg-type]
            name = parameters.name_of(layer_module, "bias")
            layer.replace_input_with(2, ir.add_initializer(graph, name, np.zeros(size, np.float32)))
        ir.absorb_consumer(graph, layer, node)
    ir.remove_unused(graph)


def _find_foldable_layer(node: ir.Node) -> ir.Node | None:
    """Return the layer that `node`, if it is a batch norm, can be folded into, or None.

    The layer and its weight have no other consumer, nor have the statistics of the batch norm.
    """
    if node.op_type != "BatchNormalization" or node.domain:
        return None
    layer = ir.producer(node.inputs[0])
    if layer is None or layer.op_type not in _LAYERS or layer.domain:
        return None
    if ir.sole_consumer(layer.outputs[0]) != node or not _is_standard_linear(layer):
        return None
    if not _is_sole_consumer(layer, 1) or not _is_sole_consumer(node, 3):
        return None
    return layer


def _is_sole_consumer(node: ir.Node, index: int) -> bool:
    """Whether `node` is the only consumer of its input `index`."""
    return len(ir.require_input(node, index).uses()) == 1


def _is_standard_linear(layer: ir.Node) -> bool:
    """Whether `layer` is no Gemm, or a Gemm as exported from nn.Linear: x W^T + b.

    That is alpha = beta = 1, transB = 1 and transA = 0.
    """
    if layer.op_type != "Gemm":
        return True
    if ir.get_attr(layer, "alpha", 1.0) != 1 or ir.get_attr(layer, "beta", 1.0) != 1:
        return False
    return ir.get_attr(layer, "transB", 0) == 1 and not ir.get_attr(layer, "transA", 0)


def copy_with_parameters(graph: ir.Model, arrays: Mapping[str, np.ndarray]) -> ir.Model:
    """Return a copy of an exported graph with initializers set to `arrays`, by state_dict name.

    Names that the graph lacks are ignored.
    """
    copy = graph.clone()
    load_checkpoint(copy, arrays, strict=False)
    return copy


def number_elements(arrays: Mapping[str, np.ndarray], offset: int = 0) -> dict[str, np.ndarray]:
    """Number the elements of all arrays consecutively, starting at `offset` + 1.

    Returns arrays of the same shapes, float32. Raises ModelError if there are too many elements.
    """
    total = sum(array.size for array in arrays.values())
    if total >= _MAX_ELEMENTS:
        raise ModelError(
            f"the net has {total} parameters; up to {_MAX_ELEMENTS - 1} can be trained as integers"
        )
    numbered, start = {}, offset + 1
    for name, array in arrays.items():
        stop = start + array.size
        numbered[name] = np.arange(start, stop, dtype=np.float32).reshape(array.shape)
        start = stop
    return numbered


@dataclass(frozen=True)
class _ElementOrigin:
    """Origin of the elements of a constant, or of one summand of each.

    Attributes
    ----------
    parameter_names
        The parameters that the elements come from.
    indices
        Flat number of each element among all parameters, 0 for a zero; None if the constant is a
        single parameter in its own order.
    factor
        Float64 array of `shape`, or 1, that the elements are multiplied by.
    """

    shape: tuple[int, ...]
    parameter_names: tuple[str, ...]
    indices: Tensor | None
    factor: Any


#: Origin of a summand of a constant, and its factors; None for 1.
_Summand = tuple[_ElementOrigin, Tensor | None]


class ConstantOrigins:
    """The origins of the constants of a normalized graph that follow from parameters.

    Parameters
    ----------
    normalized
        The graph.
    numbered
        The same graph with parameters from `number_elements`, starting after 0 and after the total
        number of elements.
    arrays
        Effective parameters of `normalized` by name.

    Attributes
    ----------
    at
        Node name and input index -> origins of each constant that depends on parameters, whose sum
        it is; None if its elements are not multiples of parameter elements, or sums of two.
    """

    def __init__(
        self,
        normalized: ir.Model,
        numbered: NumberedGraphs,
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        """Find the constants of `normalized` that depend on parameters, and their origins, in `at`.

        A float constant depends on parameters if it differs between the two `numbered` graphs; its
        origin is None if the shapes differ, or if the elements cannot be traced. `numbered` are the
        same graph prepared with the numbers of `number_elements` as parameters, from 1 and from the
        number of elements + 1 on; `arrays` has the actual parameters by name.
        """
        self._order = list(arrays)
        flat_arrays = [array.reshape(-1) for array in arrays.values()]
        self._flat = np.concatenate([np.zeros(1, np.float32), *flat_arrays])
        self._starts = np.cumsum([1, *(array.size for array in flat_arrays)])
        self._normalized = normalized
        self.at: dict[tuple[str, int], tuple[_ElementOrigin, ...] | None] = {}
        for key, (actual, first, second) in _iterate_constants(normalized, *numbered):
            if first.shape == second.shape and np.array_equal(first, second, equal_nan=True):
                continue  # does not depend on parameters
            self.at[key] = None
            if actual.shape == first.shape == second.shape:
                self.at[key] = self._trace_sum(actual, ((first, second),))

    def trace_sums(self, summands: tuple[NumberedGraphs, NumberedGraphs]) -> None:
        """Look for constants without an origin as sums of two parameter elements, and add them.

        Parameters
        ----------
        summands
            The numbered graphs twice: with only the first summands of the parameters, and with only
            the second ones, the others being nearly zero.
        """
        (first, second), (third, fourth) = summands
        for key, (actual, *numbers) in _iterate_constants(
            self._normalized, first, second, third, fourth
        ):
            is_untraced = key in self.at and self.at[key] is None
            if is_untraced and all(array.shape == actual.shape for array in numbers):
                self.at[key] = self._trace_sum(
                    actual, ((numbers[0], numbers[1]), (numbers[2], numbers[3]))
                )

    def _trace_sum(
        self, actual: np.ndarray, numbers: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> tuple[_ElementOrigin, ...] | None:
        """Return the origins whose sum a constant is, one for each pair of its numbered values.

        None if one cannot be found, or if their sum is not `actual`, the value of the constant.
        """
        origins = [self._trace_elements(first, second) for first, second in numbers]
        total, depends = np.zeros(actual.shape), np.zeros(actual.shape, bool)
        tolerance = 0.0  # a sum of two is rounded
        for origin in origins:
            if origin is None:
                return None
            indices = self._get_indices(origin)
            summand = self._flat[indices] * origin.factor
            if len(origins) > 1:
                tolerance = max(tolerance, 1e-6 * float(np.abs(summand).max()))
            total += summand
            depends |= indices > 0
        if actual[~depends].any() or not np.allclose(total, actual, rtol=1e-5, atol=tolerance):
            return None
        return tuple(origin for origin in origins if origin is not None)

    def _get_indices(self, origin: _ElementOrigin) -> np.ndarray:
        """Return the number of each element of `origin` among all parameters, in its shape."""
        if origin.indices is not None:
            return np.asarray(origin.indices.numpy().reshape(origin.shape))
        start = int(self._starts[self._order.index(origin.parameter_names[0])])
        return np.arange(start, start + math.prod(origin.shape)).reshape(origin.shape)

    def _trace_elements(self, first: np.ndarray, second: np.ndarray) -> _ElementOrigin | None:
        """Return the parameter elements that a constant's elements come from, and their factors.

        None if an element is not a multiple of a single parameter element, or if none depends on
        one. `first` and `second` are the constant for the two numberings, of one shape.
        """
        depends = first != second
        if not (np.isfinite(first).all() and np.isfinite(second).all()) or not depends.any():
            return None
        element_count = len(self._flat) - 1
        factor = np.ones(first.shape)
        factor[depends] = (second[depends].astype(np.float64) - first[depends]) / element_count
        for common_factor in (1.0, float(np.median(factor[depends]))):
            if np.allclose(factor, common_factor, rtol=1e-5, atol=0):
                factor = np.full(first.shape, common_factor)
        indices = np.where(depends, np.rint(first / factor), 0).astype(np.int64)
        if indices.min() < 0 or indices.max() > element_count:
            return None
        flat_indices = indices.reshape(-1)
        owners = np.unique(np.searchsorted(self._starts, indices[depends], side="right") - 1)
        start, stop = self._starts[owners[0]], self._starts[owners[0] + 1]
        is_one_parameter = len(owners) == 1 and np.array_equal(flat_indices, np.arange(start, stop))
        return _ElementOrigin(
            indices.shape,
            tuple(self._order[owner] for owner in owners),
            None if is_one_parameter else torch.from_numpy(flat_indices),
            1.0 if np.all(factor == 1) else factor,
        )

    @property
    def untraceable_nodes(self) -> list[str]:
        """The names of the nodes with a constant that depends on parameters but has no origin."""
        return list(
            dict.fromkeys(name for (name, _), origins in self.at.items() if origins is None)
        )

    def get_parameter_names(self, node: ir.Node) -> set[str]:
        """Return the names of the parameters that the constant inputs of `node` come from."""
        names: set[str] = set()
        for index in range(len(node.inputs)):
            for origin in self.at.get((str(node.name), index)) or ():
                names.update(origin.parameter_names)
        return names

    def depends_on_parameters(self, node: ir.Node) -> bool:
        """Whether a constant input of `node` depends on a parameter, even without an origin."""
        return any((str(node.name), index) in self.at for index in range(len(node.inputs)))

    def for_planned_graph(self, planned: PlannedModel) -> PlannedConstants:
        """Return the computation of the planned graph's constants from parameters.

        A factor multiplies each element: that of its origin times that of the plan's transforms of
        the layer; None stands for all ones. Constants that depend on parameters but have no origin
        are listed as frozen.
        """
        transform_factors = _get_transform_factors(planned)
        constants: dict[str, list[_Summand]] = {}
        frozen = []
        for node in planned.graph.graph:
            for index in range(len(node.inputs)):
                key = str(node.name), index
                if key not in self.at:
                    continue
                name, origins = ir.input_name(node, index), self.at[key]
                if origins is None:
                    frozen.append(name)
                    continue
                constants[name] = []
                for origin in origins:
                    factor = (transform_factors[key] * origin.factor).astype(np.float64)
                    is_unscaled = bool(np.all(factor == 1))
                    scaling = None if is_unscaled else torch.from_numpy(factor)
                    constants[name].append((origin, scaling))
        return PlannedConstants(self._order, constants, tuple(frozen))


class PlannedConstants:
    """The constants of a planned graph, with gradients to the parameters.

    Parameters
    ----------
    order
        Names of all parameters in the order of their element numbers.
    constants
        Constant -> summands of its elements: their origin and factor, or None for 1.
    frozen
        Names of the constants that keep their values from the trace.
    """

    def __init__(
        self,
        order: Sequence[str],
        constants: Mapping[str, Sequence[_Summand]],
        frozen: tuple[str, ...] = (),
    ) -> None:
        """Keep the origins of the constants by name, with their factors (None for 1).

        `order` are the parameters in the order in which origins count their elements; `frozen`
        names the constants that depend on parameters in a way that cannot be followed.
        """
        self._order, self._constants, self.frozen = order, constants, frozen

    def find_untrained_parameters(self, used_constants: Collection[str]) -> list[str]:
        """Return the parameters on which none of `used_constants` depends, in the net's order."""
        trained: set[str] = set()
        for name, summands in self._constants.items():
            if name in used_constants:
                for origin, _ in summands:
                    trained.update(origin.parameter_names)
        return [name for name in self._order if name not in trained]

    def tensors(self, effective: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
        """Return those constants in `names` that come from the parameters `effective`, as tensors.

        `effective` are the parameters by name after folding and clamping. Each element is a
        parameter's element times its factor, or a sum of two of these, with gradient; elements
        without one are zero.
        """
        flat: Tensor | None = None
        tensors: dict[str, Tensor] = {}
        for name, summands in self._constants.items():
            if name not in names:
                continue
            if flat is None and any(origin.indices is not None for origin, _ in summands):
                parameters = [effective[key].reshape(-1) for key in self._order]
                flat = torch.cat([parameters[0].new_zeros(1), *parameters])
            terms = [_select_elements(effective, flat, *summand) for summand in summands]
            tensors[name] = terms[0] if len(terms) == 1 else torch.stack(terms).sum(0)
        return tensors


def _select_elements(
    effective: Mapping[str, Tensor],
    flat: Tensor | None,
    origin: _ElementOrigin,
    factor: Tensor | None,
) -> Tensor:
    """Return a summand of a constant: the elements of `origin` times `factor` (None for 1).

    `effective` are the parameters by name, and `flat` a zero and all their elements, which is
    needed unless the origin is a single parameter.
    """
    if origin.indices is None:
        tensor = effective[origin.parameter_names[0]]
    else:
        assert flat is not None
        tensor = flat[origin.indices.to(flat.device)]
    tensor = tensor.reshape(origin.shape)
    if factor is not None:
        tensor = (tensor.double() * factor.to(tensor.device)).to(tensor.dtype)
    return tensor


def _constant(node: ir.Node, index: int) -> np.ndarray | None:
    """Return the value of input `index` of `node` if it is a constant, else None.

    None too if the node has fewer inputs.
    """
    return ir.const_value(node.inputs[index]) if index < len(node.inputs) else None


def _float_constant(node: ir.Node, index: int) -> np.ndarray | None:
    """Return the value of input `index` of `node` if it is a float32 constant, else None."""
    array = _constant(node, index)
    return array if array is not None and array.dtype == np.float32 else None


def _iterate_constants(
    normalized: ir.Model, *numbered: ir.Model
) -> Iterator[tuple[tuple[str, int], list[np.ndarray]]]:
    """Yield (node name, input index) and values of each float32 constant of `normalized`.

    The first value is that of `normalized`, the others those of the `numbered` versions of it.
    """
    for nodes in _match_nodes(normalized, *numbered):
        for index in range(len(nodes[0].inputs)):
            actual = _float_constant(nodes[0], index)
            others = [_constant(node, index) for node in nodes[1:]]
            values = [array for array in (actual, *others) if array is not None]
            if len(values) == len(nodes):
                yield (str(nodes[0].name), index), values


def _match_nodes(*graphs: ir.Model) -> Iterator[tuple[ir.Node, ...]]:
    """Yield tuples of corresponding nodes of versions of a graph.

    They correspond by position if all have the same sequence of operators, else by name, without
    nodes that one of them lacks.
    """
    node_lists = [list(graph.graph) for graph in graphs]
    if len({tuple(node.op_type for node in nodes) for nodes in node_lists}) == 1:
        yield from zip(*node_lists, strict=True)
        return
    nodes_by_name = [{str(node.name): node for node in nodes} for nodes in node_lists]
    for name in nodes_by_name[0]:
        if all(name in nodes for nodes in nodes_by_name):
            yield tuple(nodes[name] for nodes in nodes_by_name)


def _get_transform_factors(planned: PlannedModel) -> dict[tuple[str, int], np.ndarray]:
    """Return (node name, input index) -> factors by which the plan's transforms multiply it.

    There is an entry for each constant input, elementwise and in its shape; 1 where nothing
    changes.
    """
    ones = planned.graph.clone()
    for value in ones.graph.initializers.values():
        array = ir.const_value(value)
        if array is not None and array.dtype == np.float32:
            ir.set_initializer_value(value, np.ones_like(array))
    factor_by_tensor = {
        name: np.array(transform.factor) for name, transform in planned.plan.transforms.items()
    }
    factors.apply_factors(planned.partition.with_graph(ones), factor_by_tensor)
    factor_by_input = {}
    for node in ones.graph:
        for index, operand in enumerate(node.inputs):
            array = ir.const_value(operand)
            if array is not None:
                factor_by_input[str(node.name), index] = array
    return factor_by_input
