"""Arguments and results of a model as flat lists of named tensors, and their dynamic axes.

Arguments can be nested in tuples, lists and dicts, and can contain values that are not tensors,
which become part of the graph. Names are derived from the parameters of `forward`, keys and
positions: ``x``, ``batch.mask``, ``states.0``.
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

from ...common.errors import ConfigError, DataError, ModelError, suggest_nearest

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

#: Tensor name -> axis -> name of the dynamic size.
Axes = Mapping[str, Mapping[int, str]]

BATCH_SYMBOL = "N"


class ModuleCall:
    """The arguments of a call, as tensors with names.

    Parameters
    ----------
    args
        A tensor, a tuple of positional arguments, or a dict of keyword arguments.
    kwargs
        Further keyword arguments.
    names
        Names of the tensors; None to derive them.

    Raises
    ------
    ConfigError
        If the arguments contain no tensor, or `names` are invalid.
    """

    def __init__(
        self, model: nn.Module, args: Any, kwargs: Mapping[str, Any], names: Sequence[str] | None
    ) -> None:
        """Flatten the arguments of a call, and name its tensors.

        Parameters
        ----------
        args
            The positional arguments; a single value stands for one argument, and a mapping for
            keyword arguments. NumPy arrays, also nested ones, become tensors.
        names
            The names of the tensors, or None to derive them from the parameters of `model.forward`.

        Raises
        ------
        ConfigError
            If the arguments contain no tensor.
        """
        if isinstance(args, Mapping):
            args, kwargs = (), {**args, **kwargs}
        elif not isinstance(args, tuple | list):
            args = (args,)
        parameters = _get_positional_parameters(model)
        paths, self._spec = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
        self._leaves = [
            torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf for _, leaf in paths
        ]
        self._tensor_indices = [
            index for index, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)
        ]
        if not self._tensor_indices:
            raise ConfigError("the arguments contain no tensor; a graph needs at least one input")
        derived = [_make_input_name(paths[index][0], parameters) for index in self._tensor_indices]
        self.names = _choose_names(names, derived, "input")
        self.tensors: tuple[Tensor, ...] = tuple(
            self._leaves[index] for index in self._tensor_indices
        )

    def build_arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (args, kwargs) of the call with its tensors, in order, replaced by `tensors`."""
        leaves = list(self._leaves)
        for index, tensor in zip(self._tensor_indices, tensors, strict=True):
            leaves[index] = tensor
        return pytree.tree_unflatten(leaves, self._spec)


class FlattenedModel(nn.Module):
    """Wrapper of a model that takes tensors as arguments and returns a tuple of tensors.

    The wrapper itself stays in training mode, since the TorchScript exporter merges parameters of
    equal values if the outermost module is in evaluation mode.
    """

    def __init__(self, model: nn.Module, call: ModuleCall) -> None:
        """Wrap `model` to take the tensors in the arguments of `call` as flat arguments."""
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the model and return the tensors in its result in order.

        Those that are inputs, parameters, buffers or duplicates are copied, which gives each output
        a name of its own in the graph.
        """
        named = [*tensors, *self.model.parameters(), *self.model.buffers()]
        outputs: list[Tensor] = []
        for tensor in self.run_by_name(*tensors).values():
            is_named = any(tensor is other for other in (*named, *outputs))
            outputs.append(tensor.clone() if is_named else tensor)
        return tuple(outputs)

    def run_by_name(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Run the model and return {derived name: tensor} of its result, in order.

        `tensors` replace those of the call. Raises ModelError if the result has no tensor, or a
        value that is no tensor, None, number, bool or text.
        """
        args, kwargs = self._call.build_arguments(tensors)
        outputs: dict[str, Tensor] = {}
        for path, leaf in pytree.tree_flatten_with_path(self.model(*args, **kwargs))[0]:
            if isinstance(leaf, Tensor):
                outputs[_make_output_name(path, self._call.names)] = leaf
            elif not isinstance(leaf, _PLAIN_TYPES):
                raise ModelError(
                    f"the model returns a {type(leaf).__name__}; return tensors, or tuples, lists "
                    "and dicts of tensors"
                )
        if not outputs:
            raise ModelError("the model returns no tensor; a graph needs at least one output")
        return outputs

    def choose_output_names(
        self, derived: Sequence[str], names: Sequence[str] | None
    ) -> tuple[str, ...]:
        """Return `names` for the outputs, or the `derived` names if `names` is None.

        Raises ConfigError if their number is wrong, they are not unique, or one is empty or the
        name of an input.
        """
        output_names = _choose_names(names, derived, "output")
        conflicts = set(output_names) & set(self._call.names)
        if conflicts:
            raise ConfigError(
                f"'{min(conflicts)}' is the name of an input and of an output; names must differ"
            )
        return output_names


def _get_positional_parameters(model: nn.Module) -> list[str]:
    """Return the names of the parameters of `forward` that can be passed by position, in order."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        name for name, p in inspect.signature(model.forward).parameters.items() if p.kind in kinds
    ]


def _format_tree_path(path: Sequence[Any]) -> list[str]:
    """Return the index, key or attribute name of each step of a tree path, as text."""
    steps = []
    for step in path:
        keys = [getattr(step, attribute, None) for attribute in ("idx", "key", "name")]
        steps.append(str(next(key for key in keys if key is not None)))
    return steps


def _make_input_name(path: Sequence[Any], parameters: Sequence[str]) -> str:
    """Return the name of an input tensor, "PARAMETER.PATH".

    It is the parameter of `forward`, and the path inside the argument. The first two steps of
    `path` are the position (0 for positional arguments) and the argument's index or name; surplus
    positional ones are "input_N".
    """
    kind, first, *inner = _format_tree_path(path)
    if kind == "0":  # positional
        first = parameters[int(first)] if int(first) < len(parameters) else f"input_{first}"
    return ".".join([first, *inner])


def _make_output_name(path: Sequence[Any], input_names: Sequence[str]) -> str:
    """Return the name of a result tensor by its path, with "_out" if an input has this name.

    A path that begins with a key is joined by dots; one that begins with an index is "output_" and
    the steps, and the empty path "output".
    """
    steps = _format_tree_path(path)
    name = ".".join(steps) if steps and not steps[0].isdigit() else "_".join(["output", *steps])
    return f"{name}_out" if name in input_names else name


def _choose_names(
    names: Sequence[str] | None, derived: Sequence[str], kind: str
) -> tuple[str, ...]:
    """Return `names`, or the `derived` names if `names` is None.

    Raises ConfigError, mentioning `kind` ("input" or "output"), if their number is wrong, they are
    not unique or one is empty.
    """
    if names is None:
        return tuple(derived)
    if len(names) != len(derived):
        raise ConfigError(
            f"{len(names)} {kind} names for {len(derived)} {kind}s ({', '.join(derived)})"
        )
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError(f"{kind} names must differ and not be empty: {', '.join(names)}")
    return tuple(names)


# ---- inputs from shapes -------------------------------------------------------------------------


class InputShape(NamedTuple):
    """An input to generate: its name or None, its shape, and the name of its torch dtype."""

    name: str | None
    sizes: tuple[int, ...]
    dtype: str = "float32"


def make_inputs(
    model: nn.Module, shapes: Sequence[InputShape]
) -> tuple[Any, dict[str, Any], list[str] | None]:
    """Generate random inputs with a fixed seed.

    Floats are standard normal; integers and booleans are 0 or 1, which are valid indices into any
    table.

    Returns
    -------
    args, kwargs
        Arguments of `forward`. Inputs whose names are parameters of `forward` are keyword
        arguments, others positional.
    names
        Names of positional inputs, or None.

    Raises
    ------
    ConfigError
        If only some inputs are named, or only some names are parameters of `forward`.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [InputShape(*shape) for shape in shapes]
    tensors = [_make_random_tensor(shape, generator) for shape in shapes]
    names = [shape.name for shape in shapes if shape.name is not None]
    parameters = list(inspect.signature(model.forward).parameters)
    _check_input_names(names, len(shapes), parameters)
    if names and all(name in parameters for name in names):
        return (), dict(zip(names, tensors, strict=True)), None
    return tuple(tensors), {}, names or None


def _check_input_names(names: Sequence[str], input_count: int, parameters: Sequence[str]) -> None:
    """Raise ConfigError if names of inputs are incomplete, duplicate or partly unknown.

    All or none of the names may be parameters of forward.
    """
    if len(names) not in (0, input_count):
        raise ConfigError("name every input or none: --input-shape NAME=1,3,224,224")
    if len(set(names)) < len(names):
        raise ConfigError(f"duplicate input name: {', '.join(names)}")
    unknown = [name for name in names if name not in parameters]
    if unknown and len(unknown) < len(names):
        raise ConfigError(
            f"forward has no parameter '{unknown[0]}'{suggest_nearest(unknown[0], parameters)}; "
            f"its parameters are {', '.join(parameters)}"
        )


#: Limit of elements of a generated input, one gigabyte.
_MAX_ELEMENTS = 2**28


def _make_random_tensor(shape: InputShape, generator: torch.Generator) -> Tensor:
    """Return a random tensor; raises ConfigError for an unknown dtype or a too large shape.

    Floats are normally distributed; integers and booleans are 0 or 1.
    """
    dtype = getattr(torch, shape.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(
            f"input '{shape.name}': unknown dtype '{shape.dtype}'; use a torch dtype such as "
            "float32, int64 or bool"
        )
    if math.prod(shape.sizes) > _MAX_ELEMENTS:
        raise ConfigError(
            f"input '{shape.name}' has {math.prod(shape.sizes)} elements; the limit is "
            f"{_MAX_ELEMENTS}"
        )
    if dtype.is_floating_point:
        return torch.randn(shape.sizes, generator=generator).to(dtype)
    return torch.randint(0, 2, shape.sizes, generator=generator).to(dtype)


# ---- dynamic axes -------------------------------------------------------------------------------


class DynamicAxes(NamedTuple):
    """Dynamic axes of inputs, labels for the sizes of outputs, and a note for the user or None.

    `unnamed` are the sizes that the user gave no name.
    """

    inputs: dict[str, dict[int, str]]
    output_labels: dict[str, dict[int, str]]
    note: str | None
    unnamed: frozenset[str] = frozenset()

    def merge_unnamed(self, inputs: Mapping[str, Tensor]) -> DynamicAxes:
        """Return a copy in which unnamed sizes are those of other inputs, with a note.

        An unnamed size is merged into the first other one of the same axis with the same number in
        the example `inputs`; a size with a name is preferred.
        """
        merged: dict[str, str] = {}
        for name, symbols in self.inputs.items():
            for axis, symbol in symbols.items():
                others = [
                    other_symbols[axis]
                    for other, other_symbols in self.inputs.items()
                    if other_symbols.get(axis, symbol) != symbol
                    and inputs[other].shape[axis] == inputs[name].shape[axis]
                ]
                others = [merged.get(other, other) for other in others]
                others.sort(key=lambda other: other in self.unnamed)
                if symbol in self.unnamed and others and others[0] != symbol:
                    merged[symbol] = others[0]
        if not merged:
            return self
        axes = {
            name: {axis: merged.get(symbol, symbol) for axis, symbol in symbols.items()}
            for name, symbols in self.inputs.items()
        }
        pairs = ", ".join(f"{old} is {new}" for old, new in merged.items())
        note = f"the model runs only if sizes of its inputs are equal: {pairs}"
        return self._replace(inputs=axes, note=note, unnamed=self.unnamed - merged.keys())


def resolve_dynamic_axes(
    dynamic_axes: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> DynamicAxes:
    """Resolve the argument `dynamic_axes` of an export to named axes.

    Parameters
    ----------
    dynamic_axes
        Tensor name -> a list of axes, or a dict of axis -> name of the size. None means axis 0 of
        all inputs if they agree on its size; {} means no axis. Unnamed sizes are called ``N`` on
        axis 0, else ``<tensor>_<axis>``.
    inputs, outputs
        Example tensors by name.

    Raises
    ------
    ConfigError
        If a tensor or an axis does not exist, or a name is used for two sizes.
    """
    if dynamic_axes is None:
        return _resolve_batch_axis(inputs)
    tensors = {**inputs, **outputs}
    requested: dict[str, dict[int, str | None]] = {}
    for name, axes in dynamic_axes.items():
        if name not in tensors:
            raise ConfigError(
                f"dynamic axes: no input or output '{name}'{suggest_nearest(name, tensors)}"
            )
        requested[name] = _parse_axes(name, axes, tensors[name].dim())
    input_axes, unnamed = _name_input_axes(requested, inputs)
    output_labels = {}
    for name in outputs:
        symbols = requested.get(name, {})
        output_labels[name] = {axis: symbol for axis, symbol in symbols.items() if symbol}
    return DynamicAxes(input_axes, output_labels, None, unnamed)


def _name_input_axes(
    requested: Mapping[str, Mapping[int, str | None]], inputs: Mapping[str, Tensor]
) -> tuple[dict[str, dict[int, str]], frozenset[str]]:
    """Name the sizes of the requested axes of inputs: input -> axis -> symbol.

    The second result are the symbols that were not requested.

    `requested` gives an axis a symbol or None. None becomes the batch symbol for axis 0, if all
    such inputs have the same batch size, and else `input_axis`. Raises ConfigError if one symbol
    stands for two sizes.
    """
    batch_sizes = {
        tensor.shape[0]
        for name, tensor in inputs.items()
        if requested.get(name, {}).get(0, "") is None
    }
    named_axes: dict[str, dict[int, str]] = {}
    sizes: dict[str, int] = {}
    unnamed: set[str] = set()
    for name, tensor in inputs.items():
        for axis, requested_symbol in requested.get(name, {}).items():
            symbol = requested_symbol
            if not symbol and axis == 0 and len(batch_sizes) == 1:
                symbol = BATCH_SYMBOL
            elif not symbol:
                symbol = f"{name.replace('.', '_')}_{axis}"
            if not requested_symbol:
                unnamed.add(symbol)
            size = tensor.shape[axis]
            if sizes.setdefault(symbol, size) != size:
                raise ConfigError(
                    f"dynamic axes: '{symbol}' is {sizes[symbol]} on one axis and {size} on axis "
                    f"{axis} of '{name}'; use different names"
                )
            named_axes.setdefault(name, {})[axis] = symbol
    return named_axes, frozenset(unnamed)


def _resolve_batch_axis(inputs: Mapping[str, Tensor]) -> DynamicAxes:
    """Return axis 0 of all inputs as dynamic, called N, if they agree on its size.

    Otherwise no axis is dynamic, and the result has a note. Scalars are left out.
    """
    sizes = {name: tensor.shape[0] for name, tensor in inputs.items() if tensor.dim()}
    if len(set(sizes.values())) == 1:
        return DynamicAxes({name: {0: BATCH_SYMBOL} for name in sizes}, {}, None)
    formatted = ", ".join(f"{name} {size}" for name, size in sizes.items())
    note = (
        f"no axis is dynamic: inputs differ on axis 0 ({formatted}); set dynamic_axes to change "
        "this"
    )
    return DynamicAxes({}, {}, note)


def _parse_axes(name: str, axes: Any, rank: int) -> dict[int, str | None]:
    """Return the non-negative axes of a tensor with the name of each size, or None without one.

    `axes` is a list of axes, or a mapping axis -> name; raises ConfigError for anything else.
    """
    if isinstance(axes, Mapping):
        pairs = list(axes.items())
    elif isinstance(axes, Sequence) and not isinstance(axes, str):
        pairs = [(axis, None) for axis in axes]
    else:
        raise ConfigError(
            f"dynamic axes of '{name}': pass a list of axes or a dict of axis and name, not "
            f"{axes!r}"
        )
    parsed: dict[int, str | None] = {}
    for axis, symbol in pairs:
        _check_axis(name, axis, symbol, rank)
        parsed[axis % rank] = symbol
    return parsed


def _check_axis(name: str, axis: Any, symbol: Any, rank: int) -> None:
    """Raise ConfigError for an axis outside [-rank, rank), or an invalid name of its size.

    `symbol`, the name of the size, must be an identifier or None.
    """
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise ConfigError(
            f"dynamic axes of '{name}': there is no axis {axis!r}; it has {rank} axes"
        )
    if symbol is not None and not (isinstance(symbol, str) and symbol.isidentifier()):
        raise ConfigError(
            f"dynamic axes of '{name}': {symbol!r} is not a valid name of a size; use letters "
            "and digits"
        )


def resize_inputs(
    inputs: Mapping[str, Tensor], axes: Axes, sizes: Mapping[str, int]
) -> tuple[Tensor, ...]:
    """Resize the dynamic axes of inputs by repeating or dropping slices; return the new tensors.

    Parameters
    ----------
    axes
        Input -> axis -> name of the size.
    sizes
        Name of the size -> new size.

    Raises
    ------
    DataError
        A dynamic axis has size 0.
    """
    resized = []
    for name, tensor in inputs.items():
        for axis, symbol in axes.get(name, {}).items():
            if tensor.shape[axis] == 0:
                raise DataError(f"input '{name}' has size 0 on axis {axis}; at least 1 is required")
            indices = torch.arange(sizes[symbol], device=tensor.device) % tensor.shape[axis]
            tensor = tensor.index_select(axis, indices)
        resized.append(tensor)
    return tuple(resized)
