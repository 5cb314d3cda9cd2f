"""From a module's parameters to the constants of its planned graph, with gradients.

    parameter --fold, clamp--> in effect --move, repeat, pad--> normalised --factor--> planned

The first step is `marks.in_effect`. What the passes do to a parameter is found by letting them work on a copy of the
graph whose parameters count their elements from 1 on: what comes out says for each element whence it came (0: a zero
that was put in). It is checked on the real numbers. The factors are those that ranges and equalization move into the
weights. A constant that some pass computes otherwise has no such form: it stays as it is, and is told.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..flow import Planned
from ..flow.improve import factors
from ..graph import ir
from .checkpoint import load_checkpoint
from .marks import in_effect, marks_of

__all__ = ["Constants", "Parameters", "PlannedConstants", "counted", "filled", "fold_norms"]

_MOST = 1 << 24  # elements: whole numbers below are exact in float32
_LAYERS = ("Conv", "ConvTranspose", "Gemm")


class Parameters:
    """The parameters and buffers of a net by the names of its state_dict, as they are at any time."""

    def __init__(self, net: nn.Module) -> None:
        self.holders: dict[str, tuple[nn.Module, str]] = {}
        for path, module in net.named_modules():
            for name in (*module._parameters, *module._buffers):
                if getattr(module, name) is not None:
                    self.holders[f"{path}.{name}" if path else name] = module, name
        self._paths = {id(module): path for path, module in net.named_modules()}
        self._modules = dict(net.named_modules())

    def name_of(self, module: nn.Module, attribute: str) -> str:
        """Return what an attribute of `module` is called in the state_dict."""
        path = self._paths[id(module)]
        return f"{path}.{attribute}" if path else attribute

    def chain(self, path: str) -> list[nn.Module]:
        """Return the modules from the net itself to the one at `path`."""
        words = path.split(".") if path else []
        return [self._modules[p] for n in range(len(words) + 1) if (p := ".".join(words[:n])) in self._modules]

    def owners(self, names: Collection[str]) -> list[list[nn.Module]]:
        """Return for each of the parameters `names` the modules from the net itself to its owner."""
        return [self.chain(name.rpartition(".")[0]) for name in names]

    def in_effect(self) -> dict[str, Tensor]:
        """Return all parameters that hold floats by name, folded and clamped; also biases that folding adds."""
        found: dict[str, Tensor] = {}
        changed: set[int] = set()
        for name, (module, attribute) in self.holders.items():
            tensor = module._parameters.get(attribute)
            if tensor is not None and tensor.is_floating_point():
                found[name] = tensor
                changed.add(id(module))
        for module in {id(m): m for m, _ in self.holders.values() if id(m) in changed}.values():
            found.update({self.name_of(module, key): t for key, t in in_effect(module).items()})
        return found


def fold_norms(graph: ir.Graph, parameters: Parameters) -> None:
    """Fold the batch norms behind layers of `graph`, an exported one, in place, and mark their modules so.

    Each pair must be of two modules that nothing else in the graph uses. The layers' weights are left as they are.
    """
    for node in list(graph.graph):
        layer = ir.producer(node.inputs[0]) if node.op_type == "BatchNormalization" and not node.domain else None
        if layer is None or layer.op_type not in _LAYERS or layer.domain or ir.sole_consumer(layer.outputs[0]) != node:
            continue
        weight, mean = (parameters.holders.get(ir.read_name(n, i)) for n, i in ((layer, 1), (node, 3)))
        if weight is None or mean is None or not (_alone(layer, 1) and _alone(node, 3)):
            continue
        if weight[1] != "weight" or mean[1] != "running_mean" or not _turned_right(layer):
            continue
        marks_of(weight[0]).norm = mean[0]
        marks_of(mean[0]).folded = True
        if len(layer.inputs) < 3:
            layer.resize_inputs(3)
        if layer.inputs[2] is None:
            size = len(ir.const(node.inputs[3]))  # type: ignore[arg-type]
            name = parameters.name_of(weight[0], "bias")
            layer.replace_input_with(2, ir.add_initializer(graph, name, np.zeros(size, np.float32)))
        ir.absorb(graph, layer, node)
    ir.remove_unused(graph)


def _alone(node: ir.Node, index: int) -> bool:
    return len(ir.source(node, index).uses()) == 1


def _turned_right(layer: ir.Node) -> bool:
    """Whether a Gemm is what nn.Linear becomes: its weight has the outputs on axis 0."""
    plain = ir.attr(layer, "alpha", 1.0) == 1 and ir.attr(layer, "beta", 1.0) == 1
    return layer.op_type != "Gemm" or (plain and ir.attr(layer, "transB", 0) == 1 and not ir.attr(layer, "transA", 0))


def filled(graph: ir.Graph, arrays: Mapping[str, np.ndarray]) -> ir.Graph:
    """Return a copy of an exported graph with `arrays` for parameters, by the names of the state_dict."""
    copy = ir.clone(graph)
    load_checkpoint(copy, arrays, strict=False)
    return copy


def counted(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays of the same shapes that count all elements through, from 1 on; ModelError for too many."""
    total = sum(array.size for array in arrays.values())
    if total >= _MOST:
        raise ModelError(f"the net has {total} parameters; up to {_MOST - 1} can be trained as integers")
    found, start = {}, 1
    for name, array in arrays.items():
        found[name] = np.arange(start, start + array.size, dtype=np.float32).reshape(array.shape)
        start += array.size
    return found


@dataclass(frozen=True)
class _Moved:
    """Where the elements of a constant come from: one parameter as it is, or places among all, 0 for a zero."""

    shape: tuple[int, ...]
    made_of: tuple[str, ...]
    places: Tensor | None


class Constants:
    """The constants of a normalised graph that follow from parameters, and how.

    numbers : the parameters in effect that `normal` was made with, by name. marked : the same graph made from `counted`
    ones.
    """

    def __init__(self, normal: ir.Graph, marked: ir.Graph, numbers: Mapping[str, np.ndarray]) -> None:
        self._order = list(numbers)
        self._flat = np.concatenate([np.zeros(1, np.float32), *(a.reshape(-1) for a in numbers.values())])
        self._starts = np.cumsum([1, *(array.size for array in numbers.values())])
        #: (node, index of its input) -> how that constant comes about, None where no element is one of a parameter's.
        self.at: dict[tuple[str, int], _Moved | None] = {}
        there = {str(node.name): node for node in marked.graph}
        for node in normal.graph:
            other = there.get(str(node.name))
            for index, value in enumerate(node.inputs if other is not None else ()):
                real, count = ir.const(value), ir.const(other.inputs[index])  # type: ignore[union-attr]
                if real is None or count is None or real.dtype != np.float32:
                    continue
                if not np.array_equal(real, count, equal_nan=True):
                    self.at[str(node.name), index] = self._moved(real, count)

    def _moved(self, real: np.ndarray, count: np.ndarray) -> _Moved | None:
        if count.shape != real.shape or not np.isfinite(count).all():
            return None
        index = np.rint(count).astype(np.int64)
        if index.min() < 0 or index.max() >= len(self._flat) or not np.array_equal(self._flat[index], real):
            return None
        parts = np.unique(np.searchsorted(self._starts, index[index > 0], side="right") - 1)
        names = tuple(self._order[part] for part in parts)
        first = self._starts[parts[0]] if len(parts) else 0
        size = self._starts[parts[0] + 1] - first if len(parts) else 0
        same = len(parts) == 1 and np.array_equal(index.reshape(-1), np.arange(first, first + size))
        return _Moved(index.shape, names, None if same else torch.from_numpy(index.reshape(-1)))

    def parameters_of(self, node: ir.Node) -> set[str]:
        """Return the names of the parameters in the constants of a node."""
        moved = (self.at.get((str(node.name), index)) for index in range(len(node.inputs)))
        return {name for found in moved if found is not None for name in found.made_of}

    def holds_any(self, node: ir.Node) -> bool:
        """Whether a constant of `node` depends on a parameter, in whatever way."""
        return any((str(node.name), index) in self.at for index in range(len(node.inputs)))

    def planned(self, planned: Planned) -> PlannedConstants:
        """Return the same of the planned graph, whose weights have taken up factors."""
        scales = _factors(planned)
        found = {}
        for node in planned.graph.graph:
            for index in range(len(node.inputs)):
                moved = self.at.get((str(node.name), index))
                if moved is not None and moved.made_of:
                    factor = scales[str(node.name), index]
                    scale = None if np.all(factor == 1) else torch.from_numpy(factor.astype(np.float64))
                    found[ir.read_name(node, index)] = moved, scale
        return PlannedConstants(self._order, found)


class PlannedConstants:
    """The constants of a planned graph, with gradients to the parameters."""

    def __init__(self, order: Sequence[str], held: Mapping[str, tuple[_Moved, Tensor | None]]) -> None:
        self._order, self._held = order, held

    def untrained(self, wanted: Collection[str]) -> list[str]:
        """Return the parameters that none of the constants in `wanted` is made of."""
        used = {name for key, (moved, _) in self._held.items() if key in wanted for name in moved.made_of}
        return [name for name in self._order if name not in used]

    def tensors(self, effective: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
        """Return the constants in `wanted` as float32 tensors, made of the parameters in effect."""
        flat: Tensor | None = None
        found: dict[str, Tensor] = {}
        for name, (moved, factor) in self._held.items():
            if name not in wanted:
                continue
            if moved.places is None:
                tensor = effective[moved.made_of[0]]
            else:
                if flat is None:
                    parts = [effective[key].reshape(-1) for key in self._order]
                    flat = torch.cat([parts[0].new_zeros(1), *parts])
                tensor = flat[moved.places.to(flat.device)]
            tensor = tensor.reshape(moved.shape)
            found[name] = tensor if factor is None else (tensor.double() * factor.to(tensor.device)).to(tensor.dtype)
        return found


def _factors(planned: Planned) -> dict[tuple[str, int], np.ndarray]:
    """Return what the plan's transforms multiply the constants of the planned graph by: (node, index) -> factors."""
    ones = ir.clone(planned.graph)
    for value in ones.graph.initializers.values():
        array = ir.const(value)
        if array is not None and array.dtype == np.float32:
            ir.fill(value, np.ones_like(array))
    factors.apply(planned.parts.on(ones), {name: np.array(t.factor) for name, t in planned.plan.transforms.items()})
    return {
        (str(node.name), index): array
        for node in ones.graph
        for index, value in enumerate(node.inputs)
        if (array := ir.const(value)) is not None
    }
