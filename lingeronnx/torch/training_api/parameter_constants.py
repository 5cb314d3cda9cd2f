"""From a module's parameters to the constants of its planned graph, with gradients.

    parameter --fold, clamp--> in effect --move, repeat, pad--> normalised --factor--> planned

The first step is `marks.in_effect`. What the passes do to a parameter is found by letting them work
on two copies of the graph whose parameters count their elements, from 1 on and from K + 1 on. An
element that is c times element i comes out as c i and c (i + K), which gives c and i; one that is
the same in both is a constant. All is checked on the real numbers. The other factors are those that
ranges and equalization move into the weights. A constant that some pass computes otherwise has no
such form: it stays as it is, and its parameters are told. What the net itself computes from
parameters alone, such as a product of two, counts as a parameter of its own (`expressions`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import ModelError
from ...flow import PlannedModel
from ...flow.methods import factors
from ...graph import ir, operators
from ..checkpoint.parameters import load_checkpoint
from .computed_constants import ComputedConstants
from .module_wrappers import get_effective_parameters, get_or_create_annotations

__all__ = [
    "ConstantOrigins",
    "NetParameters",
    "PlannedConstants",
    "fold_norms",
    "number_elements",
    "with_parameter_values",
]

_MAX_ELEMENTS = 1 << 23  # elements: whole numbers up to twice as many are exact in float32
_LAYERS = operators.LAYER_OPS - operators.RECURRENT_OPS - {"MatMul"}  # with a bias


class NetParameters:
    """The parameters and buffers of a net by the names of its state_dict, as they are at any time.

    computed_constants : what the net computes from them alone, by names of its own; None before the
    net is exported.
    """

    def __init__(self, net: nn.Module) -> None:
        self.computed_constants: ComputedConstants | None = None
        self.owner_of_name: dict[str, tuple[nn.Module, str]] = {}
        for path, module in net.named_modules():
            for name in (*module._parameters, *module._buffers):
                if getattr(module, name) is not None:
                    self.owner_of_name[f"{path}.{name}" if path else name] = module, name
        self._paths = {id(module): path for path, module in net.named_modules()}
        self._modules = dict(net.named_modules())

    def name_of(self, module: nn.Module, attribute: str) -> str:
        """Return what an attribute of `module` is called in the state_dict."""
        path = self._paths[id(module)]
        return f"{path}.{attribute}" if path else attribute

    def get_module_chain(self, path: str) -> list[nn.Module]:
        """Return the modules from the net itself to the one at `path`."""
        words = path.split(".") if path else []
        return [
            self._modules[p]
            for n in range(len(words) + 1)
            if (p := ".".join(words[:n])) in self._modules
        ]

    def get_owner_chains(self, names: Collection[str]) -> list[list[nn.Module]]:
        """Return for each of the parameters `names` the modules from the net itself to its owner."""
        return [self.get_module_chain(name.rpartition(".")[0]) for name in names]

    def get_effective_tensors(self) -> dict[str, Tensor]:
        """Return all parameters that hold floats by name, folded and clamped.

        Also biases that folding adds.
        What the net computes from these alone stands beside them.
        """
        found: dict[str, Tensor] = {}
        changed: set[int] = set()
        for name, (module, attribute) in self.owner_of_name.items():
            tensor = module._parameters.get(attribute)
            if tensor is not None and tensor.is_floating_point():
                found[name] = tensor
                changed.add(id(module))
        for module in {
            id(m): m for m, _ in self.owner_of_name.values() if id(m) in changed
        }.values():
            found.update(
                {
                    self.name_of(module, key): t
                    for key, t in get_effective_parameters(module).items()
                }
            )
        return (
            found
            if self.computed_constants is None
            else {**found, **self.computed_constants.tensors(found)}
        )


def fold_norms(graph: ir.Model, parameters: NetParameters) -> None:
    """Fold the batch norms behind layers of `graph`, an exported one, in place, and mark their modules so.

    Each pair must be of two modules that nothing else in the graph uses. The layers' weights are
    left as they are.
    """
    for node in list(graph.graph):
        layer = (
            ir.producer(node.inputs[0])
            if node.op_type == "BatchNormalization" and not node.domain
            else None
        )
        if (
            layer is None
            or layer.op_type not in _LAYERS
            or layer.domain
            or ir.sole_consumer(layer.outputs[0]) != node
        ):
            continue
        weight, mean = (
            parameters.owner_of_name.get(ir.input_name(n, i)) for n, i in ((layer, 1), (node, 3))
        )
        if (
            weight is None
            or mean is None
            or not (_is_sole_consumer(layer, 1) and _is_sole_consumer(node, 3))
        ):
            continue
        if weight[1] != "weight" or mean[1] != "running_mean" or not _is_standard_linear(layer):
            continue
        get_or_create_annotations(weight[0]).folded_norm = mean[0]
        get_or_create_annotations(mean[0]).is_folded_norm = True
        if len(layer.inputs) < 3:
            layer.resize_inputs(3)
        if layer.inputs[2] is None:
            size = len(ir.const_value(node.inputs[3]))  # type: ignore[arg-type]
            name = parameters.name_of(weight[0], "bias")
            layer.replace_input_with(2, ir.add_initializer(graph, name, np.zeros(size, np.float32)))
        ir.absorb_consumer(graph, layer, node)
    ir.remove_unused(graph)


def _is_sole_consumer(node: ir.Node, index: int) -> bool:
    return len(ir.require_input(node, index).uses()) == 1


def _is_standard_linear(layer: ir.Node) -> bool:
    """Whether a Gemm is what nn.Linear becomes: its weight has the outputs on axis 0."""
    plain = ir.get_attr(layer, "alpha", 1.0) == 1 and ir.get_attr(layer, "beta", 1.0) == 1
    return layer.op_type != "Gemm" or (
        plain and ir.get_attr(layer, "transB", 0) == 1 and not ir.get_attr(layer, "transA", 0)
    )


def with_parameter_values(graph: ir.Model, arrays: Mapping[str, np.ndarray]) -> ir.Model:
    """Return a copy of an exported graph with `arrays` for parameters, by the names of the state_dict."""
    copy = ir.clone(graph)
    load_checkpoint(copy, arrays, strict=False)
    return copy


def number_elements(arrays: Mapping[str, np.ndarray], offset: int = 0) -> dict[str, np.ndarray]:
    """Return arrays of the same shapes that count all elements through, from `offset` + 1 on.

    ModelError for too many.
    """
    total = sum(array.size for array in arrays.values())
    if total >= _MAX_ELEMENTS:
        raise ModelError(
            f"the net has {total} parameters; up to {_MAX_ELEMENTS - 1} can be trained as integers"
        )
    found, start = {}, offset + 1
    for name, array in arrays.items():
        found[name] = np.arange(start, start + array.size, dtype=np.float32).reshape(array.shape)
        start += array.size
    return found


@dataclass(frozen=True)
class _ElementOrigin:
    """Where the elements of a constant come from.

    One parameter as it is, or places among all, 0 for a zero.
    factor : float64 of its shape, or 1, that they are multiplied by.
    """

    shape: tuple[int, ...]
    parameter_names: tuple[str, ...]
    indices: Tensor | None
    factor: Any


class ConstantOrigins:
    """The constants of a normalised graph that follow from parameters, and how.

    numbers : the parameters in effect that `normal` was made with, by name. marked : the same graph
    made from them `number_elements`, from 1 on and from their total + 1 on.
    """

    def __init__(
        self, normal: ir.Model, marked: tuple[ir.Model, ir.Model], numbers: Mapping[str, np.ndarray]
    ) -> None:
        self._order = list(numbers)
        self._flat = np.concatenate(
            [np.zeros(1, np.float32), *(a.reshape(-1) for a in numbers.values())]
        )
        self._starts = np.cumsum([1, *(array.size for array in numbers.values())])
        #: (node, index of its input) -> how that constant comes about, None where no element is one of a parameter's.
        self.at: dict[tuple[str, int], _ElementOrigin | None] = {}
        for node, *others in _match_nodes(normal, *marked):
            for index, value in enumerate(node.inputs):
                real = ir.const_value(value)
                first, second = (
                    ir.const_value(n.inputs[index]) if index < len(n.inputs) else None
                    for n in others
                )
                if real is None or first is None or second is None or real.dtype != np.float32:
                    continue
                if first.shape != second.shape or not np.array_equal(first, second, equal_nan=True):
                    same = real.shape == first.shape == second.shape
                    self.at[str(node.name), index] = (
                        self._trace_elements(real, first, second) if same else None
                    )

    def _trace_elements(
        self, real: np.ndarray, first: np.ndarray, second: np.ndarray
    ) -> _ElementOrigin | None:
        """Return where the elements come from; None where they are no multiples of single ones."""
        free = first != second
        if not (np.isfinite(first).all() and np.isfinite(second).all()) or real[~free].any():
            return None
        factor = np.ones(real.shape)
        factor[free] = (second[free].astype(np.float64) - first[free]) / (len(self._flat) - 1)
        for usual in (1.0, float(np.median(factor[free]))):
            if np.allclose(factor, usual, rtol=1e-5, atol=0):
                factor = np.full(real.shape, usual)
        index = np.where(free, np.rint(first / factor), 0).astype(np.int64)
        if index.min() < 0 or index.max() >= len(self._flat):
            return None
        if not np.allclose(self._flat[index] * factor, real, rtol=1e-5, atol=0):
            return None
        parts = np.unique(np.searchsorted(self._starts, index[free], side="right") - 1)
        start, stop = self._starts[parts[0]], self._starts[parts[0] + 1]
        same = len(parts) == 1 and np.array_equal(index.reshape(-1), np.arange(start, stop))
        names = tuple(self._order[part] for part in parts)
        places = None if same else torch.from_numpy(index.reshape(-1))
        return _ElementOrigin(index.shape, names, places, 1.0 if np.all(factor == 1) else factor)

    @property
    def untraceable_nodes(self) -> list[str]:
        """The nodes with constants that are no form of single parameters."""
        return list(dict.fromkeys(name for (name, _), moved in self.at.items() if moved is None))

    def get_parameter_names(self, node: ir.Node) -> set[str]:
        """Return the names of the parameters in the constants of a node."""
        moved = (self.at.get((str(node.name), index)) for index in range(len(node.inputs)))
        return {name for found in moved if found is not None for name in found.parameter_names}

    def depends_on_parameters(self, node: ir.Node) -> bool:
        """Whether a constant of `node` depends on a parameter, in whatever way."""
        return any((str(node.name), index) in self.at for index in range(len(node.inputs)))

    def for_planned_graph(self, planned: PlannedModel) -> PlannedConstants:
        """Return the same of the planned graph, whose weights have taken up factors."""
        scales = _get_transform_factors(planned)
        found, frozen = {}, []
        for node in planned.graph.graph:
            for index in range(len(node.inputs)):
                place = str(node.name), index
                moved = self.at.get(place)
                if moved is None:
                    frozen += [ir.input_name(node, index)] if place in self.at else []
                else:
                    factor = scales[str(node.name), index] * moved.factor
                    scale = (
                        None if np.all(factor == 1) else torch.from_numpy(factor.astype(np.float64))
                    )
                    found[ir.input_name(node, index)] = moved, scale
        return PlannedConstants(self._order, found, tuple(frozen))


class PlannedConstants:
    """The constants of a planned graph, with gradients to the parameters.

    frozen : the names of those that stay as they were at the trace, whatever becomes of their
    parameters.
    """

    def __init__(
        self,
        order: Sequence[str],
        held: Mapping[str, tuple[_ElementOrigin, Tensor | None]],
        frozen: tuple[str, ...] = (),
    ) -> None:
        self._order, self._held, self.frozen = order, held, frozen

    def find_untrained_parameters(self, wanted: Collection[str]) -> list[str]:
        """Return the parameters that none of the constants in `wanted` is made of."""
        used = {
            name
            for key, (moved, _) in self._held.items()
            if key in wanted
            for name in moved.parameter_names
        }
        return [name for name in self._order if name not in used]

    def tensors(
        self, effective: Mapping[str, Tensor], wanted: Collection[str]
    ) -> dict[str, Tensor]:
        """Return the constants in `wanted` as float32 tensors, made of the parameters in effect."""
        flat: Tensor | None = None
        found: dict[str, Tensor] = {}
        for name, (moved, factor) in self._held.items():
            if name not in wanted:
                continue
            if moved.indices is None:
                tensor = effective[moved.parameter_names[0]]
            else:
                if flat is None:
                    parts = [effective[key].reshape(-1) for key in self._order]
                    flat = torch.cat([parts[0].new_zeros(1), *parts])
                tensor = flat[moved.indices.to(flat.device)]
            tensor = tensor.reshape(moved.shape)
            found[name] = (
                tensor
                if factor is None
                else (tensor.double() * factor.to(tensor.device)).to(tensor.dtype)
            )
        return found


def _match_nodes(*graphs: ir.Model) -> Iterator[tuple[ir.Node, ...]]:
    """Yield the nodes that stand for each other.

    In order where the graphs have the same operators, else by name.
    """
    nodes = [list(graph.graph) for graph in graphs]
    if len({tuple(node.op_type for node in each) for each in nodes}) == 1:
        yield from zip(*nodes, strict=True)
        return
    named = [{str(node.name): node for node in each} for each in nodes]
    for name in named[0]:
        if all(name in each for each in named):
            yield tuple(each[name] for each in named)


def _get_transform_factors(planned: PlannedModel) -> dict[tuple[str, int], np.ndarray]:
    """Return what the plan's transforms multiply the constants of the planned graph by.

    (node, index) -> factors.
    """
    ones = ir.clone(planned.graph)
    for value in ones.graph.initializers.values():
        array = ir.const_value(value)
        if array is not None and array.dtype == np.float32:
            ir.set_initializer_value(value, np.ones_like(array))
    factors.apply_factors(
        planned.partition.with_graph(ones),
        {name: np.array(t.factor) for name, t in planned.plan.transforms.items()},
    )
    return {
        (str(node.name), index): array
        for node in ones.graph
        for index, value in enumerate(node.inputs)
        if (array := ir.const_value(value)) is not None
    }
