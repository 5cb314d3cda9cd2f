"""Set the dimensions of inputs that a file leaves open, from the user or from the first sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...common.errors import ConfigError, suggest_nearest
from ...ir import batch_axes, ir
from ...runtime.data import Data, InputSpec
from ...runtime.runners import get_input_specs
from ..normalize.entry.dynamic_batch import make_batch_dynamic

__all__ = ["infer_input_shapes", "set_input_shapes"]


def set_input_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Set the shapes of the inputs named in `shapes` (input -> sizes of all axes), in place.

    The batch axis stays dynamic, unless the file fixes it. A symbolic dimension of the file gets
    the same value in all inputs.

    Raises
    ------
    ConfigError
        If the model has no such input, or the file declares other dimensions.
    """
    specs = {spec.name: spec for spec in get_input_specs(model)}
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name, shape in shapes.items():
        if name not in specs:
            raise ConfigError(
                f"--input-shape {name}: the model has no such input{suggest_nearest(name, specs)}; "
                f"inputs are {', '.join(specs)}"
            )
        _check_input_shape(name, shape, ir.get_shape(inputs[name]))
    user_set_axes = batch_axes.BATCH_AXES_KEY in model.metadata_props
    batch_axis_of = _find_batch_axes(inputs, specs, shapes, user_set_axes)
    symbol_sizes = _collect_symbol_sizes(inputs, shapes, batch_axis_of)
    for name, value in inputs.items():
        if name in shapes:
            declared = list(value.shape or ())
            dims = _merge_dims(declared, shapes[name], batch_axis_of[name])
        else:
            dims = [symbol_sizes.get(_symbol_of(dim) or "", dim) for dim in value.shape or ()]
        if dims:
            value.shape = ir.Shape(dims)


def _collect_symbol_sizes(
    inputs: Mapping[str, ir.Value],
    shapes: Mapping[str, Sequence[int]],
    batch_axis_of: Mapping[str, int | None],
) -> dict[str, int]:
    """Return {symbol: size in `shapes`} of the inputs' symbolic dimensions, except on batch axes.

    If inputs disagree, the last one counts.
    """
    symbol_sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        for axis, dim in enumerate(inputs[name].shape or ()):
            symbol = _symbol_of(dim)
            if axis != batch_axis_of[name] and symbol is not None:
                symbol_sizes[symbol] = shape[axis]
    return symbol_sizes


def _merge_dims(
    declared: Sequence[ir.Dim],
    shape: Sequence[int],
    batch_axis: int | None,
) -> list[ir.Dim]:
    """Return `shape` with the declared dimension on the batch axis, a number or a symbol.

    Without a declared one the symbol is "N". A `batch_axis` of None changes nothing.
    """
    dims: list[ir.Dim] = list(shape)
    if batch_axis is not None:
        declared_dim = declared[batch_axis] if declared else None
        if isinstance(declared_dim, int):
            dims[batch_axis] = declared_dim
        else:
            dims[batch_axis] = _symbol_of(declared_dim) or "N"
    return dims


def _symbol_of(dim: ir.Dim) -> str | None:
    """Return the name of a symbolic dimension; None for a number, a str or an unknown one."""
    return None if isinstance(dim, int | str | None) else dim.value


def _check_input_shape(
    name: str, shape: Sequence[int], declared: Sequence[int | None] | None
) -> None:
    """Raise ConfigError unless `shape` is positive and matches the declared dimensions.

    `name` is the input; None in `declared`, or instead of it, matches any size.
    """
    if declared is None:
        declared = [None] * len(shape)
    matches = len(declared) == len(shape) and all(
        declared_dim in (None, dim) for dim, declared_dim in zip(shape, declared, strict=True)
    )
    if not matches or min(shape, default=1) < 1:
        shape_text, declared_text = (
            ",".join(str(dim or "?") for dim in dims) for dims in (shape, declared)
        )
        raise ConfigError(
            f"--input-shape {name}={shape_text}: the model declares {declared_text}; match it, "
            "with a positive size for each ?"
        )


def _find_batch_axes(
    inputs: Mapping[str, ir.Value],
    specs: Mapping[str, InputSpec],
    shapes: Mapping[str, Sequence[int]],
    user_set_axes: bool,
) -> dict[str, int | None]:
    """Return {input: batch axis} of each input in `shapes`, None for one without.

    If the file fixes axis 0, as for states [2, ?, 128], or the input has no batch axis, it is the
    first open axis whose size equals the batch size of another input, if there is one. With
    `user_set_axes`, the axes are those of the user.
    """
    axes = {name: specs[name].axis for name in shapes}
    declared = {name: ir.get_shape(inputs[name]) or [None] * len(shapes[name]) for name in shapes}
    batch_sizes = {
        shapes[name][axis]
        for name, axis in axes.items()
        if axis is not None and declared[name][axis] is None
    }
    if user_set_axes:
        return axes
    for name, axis in axes.items():
        if axis is None or (axis == 0 and declared[name][0] not in (None, 1)):
            axes[name] = _find_axis(declared[name], shapes[name], batch_sizes, axis)
    return axes


def _find_axis(
    declared: Sequence[int | None],
    shape: Sequence[int],
    batch_sizes: Collection[int],
    default: int | None,
) -> int | None:
    """Return the first open axis (None in `declared`) whose size in `shape` is in `batch_sizes`.

    Returns `default` if there is none.
    """
    for axis, dim in enumerate(declared):
        if dim is None and shape[axis] in batch_sizes:
            return axis
    return default


def infer_input_shapes(model: ir.Model, data: Data) -> list[str]:
    """Set open dimensions of the inputs to those of the first sample; return notes on them.

    Changes `model` and the input specs of `data` in place. A batch axis stays dynamic; if any shape
    was set, the batch of the whole model is made dynamic again. There is one note per input that
    was set.
    """
    notes = []
    feed = data.first()
    for value in model.graph.inputs:
        name = str(value.name)
        array = feed.get(name)
        axis = data.inputs[name].axis
        if array is None or _is_complete(ir.get_shape(value), axis):
            continue
        shape = ir.get_shape(value)
        dims: list[int | str] = list(array.shape)
        if axis is not None and (not shape or shape[axis] is None):
            dims[axis] = "N"
        value.shape = ir.Shape(dims)
        sample_shape = [dim for i, dim in enumerate(array.shape) if i != axis]
        notes.append(
            f"input '{name}' has dynamic dimensions; using {sample_shape} per sample from the "
            "calibration data"
        )
    if notes:  # all dimensions are known now
        make_batch_dynamic(model)
    data.inputs.update({spec.name: spec for spec in get_input_specs(model)})
    return notes


def _is_complete(shape: Sequence[int | None] | None, batch_axis: int | None) -> bool:
    """Whether all dimensions of `shape` but the batch axis are known; False for an unknown rank."""
    if shape is None:
        return False
    return all(dim is not None for i, dim in enumerate(shape) if i != batch_axis)
