"""What a model is called with and what it returns, as flat lists of named tensors.

And which axes are free.
Arguments may be nested in tuples, lists and dicts, and hold values that are no tensors: those
become part of the graph. Names come from the parameters of `forward`, from keys and from positions:
``x``, ``batch.mask``, ``states.0``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from ...errors import ConfigError, DataError, ModelError, suggest_nearest

__all__ = [
    "Axes",
    "ModuleCall",
    "FlattenedModel",
    "InputShape",
    "resolve_dynamic_axes",
    "make_inputs",
    "resize_inputs",
]

_PLAIN_TYPES = (type(None), bool, int, float, complex, str)

#: Tensor name -> axis -> the name of its size.
Axes = Mapping[str, Mapping[int, str]]

BATCH_SYMBOL = "N"


class ModuleCall:
    """One call of a model: `tensors` under `names`, and how to put them back into its arguments.

    args : a tensor, a tuple of positional arguments, or a dict of keyword arguments. names :
    instead of the derived ones, one for each tensor. Raises ConfigError for arguments without a
    tensor and for names that do not fit.
    """

    def __init__(
        self, model: nn.Module, args: Any, kwargs: Mapping[str, Any], names: Sequence[str] | None
    ) -> None:
        if isinstance(args, Mapping):
            args, kwargs = (), {**args, **kwargs}
        elif not isinstance(args, tuple | list):
            args = (args,)
        parameters = _get_positional_parameters(model)
        paths, self._spec = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
        self._leaves = [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for _, v in paths]
        self._places = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        if not self._places:
            raise ConfigError("the arguments hold no tensor; a graph needs at least one input")
        derived = [_make_input_name(paths[i][0], parameters) for i in self._places]
        self.names = _choose_names(names, derived, "input")
        self.tensors: tuple[Tensor, ...] = tuple(self._leaves[i] for i in self._places)

    def build_arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments with `tensors` in their places."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self._spec)


class FlattenedModel(nn.Module):
    """A model with tensors for arguments and a tuple of tensors for a result.

    Its modules are below ``model``.
    It stays in training mode itself, which has no meaning here but one: the TorchScript exporter
    merges parameters of equal values when the outermost module is in evaluation mode.
    """

    def __init__(self, model: nn.Module, call: ModuleCall) -> None:
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of the result, in their order.

        Copies of what has a name in the graph already.
        """
        taken = [*tensors, *self.model.parameters(), *self.model.buffers()]
        found: list[Tensor] = []
        for tensor in self.run_by_name(*tensors).values():
            named = any(tensor is other for other in (*taken, *found))
            found.append(tensor.clone() if named else tensor)
        return tuple(found)

    def run_by_name(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Return the tensors of the result by their derived names."""
        args, kwargs = self._call.build_arguments(tensors)
        found: dict[str, Tensor] = {}
        for path, leaf in pytree.tree_flatten_with_path(self.model(*args, **kwargs))[0]:
            if isinstance(leaf, Tensor):
                found[_make_output_name(path, self._call.names)] = leaf
            elif not isinstance(leaf, _PLAIN_TYPES):
                raise ModelError(
                    f"the model returns a {type(leaf).__name__}; return tensors, or tuples, lists "
                    "and dicts of them"
                )
        if not found:
            raise ModelError("the model returns no tensor; a graph needs at least one output")
        return found

    def choose_output_names(
        self, derived: Sequence[str], names: Sequence[str] | None
    ) -> tuple[str, ...]:
        """Return the names of the outputs, `names` where given.

        ConfigError where they do not fit.
        """
        chosen = _choose_names(names, derived, "output")
        if both := set(chosen) & set(self._call.names):
            raise ConfigError(
                f"'{min(both)}' is the name of an input and of an output; names must differ"
            )
        return chosen


def _get_positional_parameters(model: nn.Module) -> list[str]:
    """Return the names of the positional parameters of `forward`."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        name for name, p in inspect.signature(model.forward).parameters.items() if p.kind in kinds
    ]


def _format_tree_path(path: Sequence[Any]) -> list[str]:
    """Return the steps of a tree path as words."""
    return [
        str(next(v for k in ("idx", "key", "name") if (v := getattr(step, k, None)) is not None))
        for step in path
    ]


def _make_input_name(path: Sequence[Any], parameters: Sequence[str]) -> str:
    side, first, *rest = _format_tree_path(path)
    if side == "0":
        first = parameters[int(first)] if int(first) < len(parameters) else f"input_{first}"
    return ".".join([first, *rest])


def _make_output_name(path: Sequence[Any], taken: Sequence[str]) -> str:
    words = _format_tree_path(path)
    name = ".".join(words) if words and not words[0].isdigit() else "_".join(["output", *words])
    return f"{name}_out" if name in taken else name


def _choose_names(
    names: Sequence[str] | None, derived: Sequence[str], what: str
) -> tuple[str, ...]:
    if names is None:
        return tuple(derived)
    if len(names) != len(derived):
        raise ConfigError(
            f"{len(names)} {what} names for {len(derived)} {what}s ({', '.join(derived)})"
        )
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError(f"{what} names must differ and not be empty: {', '.join(names)}")
    return tuple(names)


# ---- inputs from shapes --------------------------------------------------------------------------------------------


class InputShape(NamedTuple):
    """An input to be made up: `name` or None, sizes, and the dtype's name in torch."""

    name: str | None
    sizes: tuple[int, ...]
    dtype: str = "float32"


def make_inputs(
    model: nn.Module, shapes: Sequence[InputShape]
) -> tuple[Any, dict[str, Any], list[str] | None]:
    """Return positional and keyword arguments of seeded random tensors, and the names of the inputs where given.

    Floats are standard normal, integers and booleans 0 or 1 (an index into any table). Names that
    are parameters of `forward` are passed as such; otherwise the order counts. Raises ConfigError
    where only some are.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [InputShape(*shape) for shape in shapes]
    tensors = [_make_random_tensor(shape, generator) for shape in shapes]
    names = [shape.name for shape in shapes if shape.name is not None]
    known = list(inspect.signature(model.forward).parameters)
    matching = [name for name in names if name in known]
    if len(names) not in (0, len(shapes)):
        raise ConfigError("name every input or none: --input-shape NAME=1,3,224,224")
    if len(set(names)) < len(names):
        raise ConfigError(f"an input is named twice: {', '.join(names)}")
    if matching and len(matching) < len(names):
        other = next(name for name in names if name not in known)
        raise ConfigError(
            f"forward has no parameter '{other}'{suggest_nearest(other, known)}; its parameters "
            f"are {', '.join(known)}"
        )
    if matching:
        return (), dict(zip(names, tensors, strict=True)), None
    return tuple(tensors), {}, names or None


_MAX_ELEMENTS = 2**28  # elements of an example: a gigabyte


def _make_random_tensor(shape: InputShape, generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, shape.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(
            f"input '{shape.name}': '{shape.dtype}' is no dtype of torch; float32, int64 and bool "
            "are"
        )
    if math.prod(shape.sizes) > _MAX_ELEMENTS:
        raise ConfigError(
            f"input '{shape.name}' has {math.prod(shape.sizes)} elements; an example has "
            f"{_MAX_ELEMENTS} at most"
        )
    if dtype.is_floating_point:
        return torch.randn(shape.sizes, generator=generator).to(dtype)
    return torch.randint(0, 2, shape.sizes, generator=generator).to(dtype)


# ---- free axes -----------------------------------------------------------------------------------------------------


def resolve_dynamic_axes(
    given: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> tuple[dict[str, dict[int, str]], dict[str, dict[int, str]], str | None]:
    """Return the free axes of inputs and of outputs, and a note for the user or None.

    given : None for the batch, axis 0 of all inputs, where they agree on its size; {} for none;
    else by tensor name a list of axes, a dict of axis -> name, or both mixed. Unnamed sizes are
    ``N`` on axis 0, else ``<tensor>_<axis>``. Raises ConfigError for a tensor or an axis that is
    not there, and for one name with two sizes.
    """
    if given is None:
        return _resolve_batch_axis(inputs)
    known = {**inputs, **outputs}
    asked: dict[str, dict[int, str | None]] = {}
    for name, axes in given.items():
        if name not in known:
            raise ConfigError(
                f"dynamic axes: there is no input or output '{name}'{suggest_nearest(name, known)}"
            )
        asked[name] = _parse_axes(name, axes, known[name].dim())
    first = {inputs[name].shape[0] for name in inputs if asked.get(name, {}).get(0, "") is None}
    found: dict[str, dict[int, str]] = {}
    sizes: dict[str, int] = {}
    for name, tensor in inputs.items():
        for axis, symbol in asked.get(name, {}).items():
            symbol = symbol or (
                BATCH_SYMBOL
                if axis == 0 and len(first) == 1
                else f"{name.replace('.', '_')}_{axis}"
            )
            if sizes.setdefault(symbol, tensor.shape[axis]) != tensor.shape[axis]:
                raise ConfigError(
                    f"dynamic axes: '{symbol}' is {sizes[symbol]} in one place and "
                    f"{tensor.shape[axis]} on axis {axis} "
                    f"of '{name}'; give the second another name"
                )
            found.setdefault(name, {})[axis] = symbol
    labels = {name: {axis: s for axis, s in asked.get(name, {}).items() if s} for name in outputs}
    return found, labels, None


def _resolve_batch_axis(
    inputs: Mapping[str, Tensor],
) -> tuple[dict[str, dict[int, str]], dict[str, dict[int, str]], str | None]:
    sizes = {name: tensor.shape[0] for name, tensor in inputs.items() if tensor.dim()}
    if len(set(sizes.values())) == 1:
        return {name: {0: BATCH_SYMBOL} for name in sizes}, {}, None
    told = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return (
        {},
        {},
        f"no axis is dynamic: inputs differ on axis 0 ({told}); name dynamic axes to change that",
    )


def _parse_axes(name: str, axes: Any, rank: int) -> dict[int, str | None]:
    """Return axis -> the name of its size, or None where it has none."""
    if isinstance(axes, Mapping):
        pairs = list(axes.items())
    elif isinstance(axes, Sequence) and not isinstance(axes, str):
        pairs = [(axis, None) for axis in axes]
    else:
        raise ConfigError(
            f"dynamic axes of '{name}': give a list of axes or a dict of axis and name, not "
            f"{axes!r}"
        )
    found: dict[int, str | None] = {}
    for axis, symbol in pairs:
        if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
            raise ConfigError(
                f"dynamic axes of '{name}': there is no axis {axis!r}; it has {rank} axes"
            )
        if symbol is not None and not (isinstance(symbol, str) and symbol.isidentifier()):
            raise ConfigError(
                f"dynamic axes of '{name}': {symbol!r} is no name for a size; use letters and "
                "digits"
            )
        found[axis % rank] = symbol
    return found


def resize_inputs(
    inputs: Mapping[str, Tensor], axes: Axes, sizes: Mapping[str, int]
) -> tuple[Tensor, ...]:
    """Return the inputs with every free axis at the size of its name, rows repeated in turn where it grows."""
    found = []
    for name, tensor in inputs.items():
        for axis, symbol in axes.get(name, {}).items():
            if tensor.shape[axis] == 0:
                raise DataError(f"input '{name}' has size 0 on axis {axis}; give at least one row")
            rows = torch.arange(sizes[symbol], device=tensor.device) % tensor.shape[axis]
            tensor = tensor.index_select(axis, rows)
        found.append(tensor)
    return tuple(found)
