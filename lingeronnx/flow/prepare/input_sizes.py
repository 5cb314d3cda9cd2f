"""Sizes of inputs that a file leaves open: the user's, or those of the first sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import ConfigError, suggest_nearest
from ...graph import batch_axes, ir
from ...passes.entry.dynamic_batch import make_batch_dynamic
from ...run.data import Data, InputSpec
from ...run.runners import get_input_specs

__all__ = ["infer_input_shapes", "set_input_shapes"]


def set_input_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give the inputs named in `shapes` all their sizes, in place.

    The axis that counts samples stays open.
    A name that the file gives to a size means the same size in all inputs. Raises ConfigError for
    an input that the model does not have, and for sizes that are not those of the file.
    """
    specs = {spec.name: spec for spec in get_input_specs(model)}
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name, wanted in shapes.items():
        if name not in specs:
            raise ConfigError(
                f"--input-shape {name}: the model has no such input{suggest_nearest(name, specs)}; "
                f"inputs are {', '.join(specs)}"
            )
        shape = ir.get_shape(inputs[name])
        held = [None] * len(wanted) if shape is None else list(shape)
        fits = len(held) == len(wanted) and all(
            d in (None, w) for d, w in zip(held, wanted, strict=True)
        )
        if not fits or min(wanted, default=1) < 1:
            texts = (",".join(str(d or "?") for d in sizes) for sizes in (wanted, held))
            raise ConfigError(
                (
                    "--input-shape {}={}: in the file its sizes are {}; give these, and a size from 1 "
                    "for each ?"
                ).format(name, *texts)
            )
    counted = _find_batch_axes(
        inputs, specs, shapes, batch_axes.BATCH_AXES_KEY in model.metadata_props
    )
    named = {
        size.value: shapes[name][axis]
        for name in shapes
        for axis, size in enumerate(inputs[name].shape or ())
        if axis != counted[name] and not isinstance(size, int) and size.value is not None
    }
    for name, value in inputs.items():
        sizes: list[ir.Dim] = list(value.shape or [None] * len(shapes.get(name, ())))
        for axis, size in enumerate(sizes):
            symbol = None if isinstance(size, int | str | None) else size.value
            if name in shapes and axis != counted[name]:
                sizes[axis] = shapes[name][axis]
            elif name in shapes and not isinstance(size, int):
                sizes[axis] = symbol or "N"
            elif symbol in named:
                sizes[axis] = named[symbol]
        value.shape = value.shape if not sizes else ir.make_shape(sizes)


def _find_batch_axes(
    inputs: Mapping[str, ir.Value],
    specs: Mapping[str, InputSpec],
    told: Mapping[str, Sequence[int]],
    said: bool,
) -> dict[str, int | None]:
    """Return {told input: the axis that counts its samples}.

    Where the file fixes the size of axis 0, as of states [2, ?, 128], that is the first open axis
    that is told as many as axis 0 of another input. said : a user told the axes.
    """
    axes = {name: specs[name].axis for name in told}
    held = {name: ir.get_shape(inputs[name]) or [None] * len(told[name]) for name in told}
    samples = {
        told[name][axis]
        for name, axis in axes.items()
        if axis is not None and held[name][axis] is None
    }
    for name, axis in axes.items():
        fixed = axis is None or (axis == 0 and held[name][0] not in (None, 1))
        if fixed and not said:
            alike = (
                i for i, size in enumerate(held[name]) if size is None and told[name][i] in samples
            )
            axes[name] = next(alike, axis)
    return axes


def infer_input_shapes(model: ir.Model, data: Data) -> list[str]:
    """Give the inputs of `model` the sizes of the first sample where the file leaves them open.

    Return notes.
    """
    notes = []
    feed = data.first()
    for value in model.graph.inputs:
        array = feed.get(str(value.name))
        shape, axis = ir.get_shape(value), data.inputs[str(value.name)].axis
        if array is None or (
            shape is not None and all(d is not None for i, d in enumerate(shape) if i != axis)
        ):
            continue
        sizes: list[int | str] = list(array.shape)
        if axis is not None and (not shape or shape[axis] is None):
            sizes[axis] = "N"
        value.shape = ir.make_shape(sizes)
        sample = [d for i, d in enumerate(array.shape) if i != axis]
        notes.append(
            f"input '{value.name}': the file leaves sizes open; {sample} per sample is taken from "
            "the calibration data"
        )
    if notes:  # with all sizes known
        make_batch_dynamic(model)
    data.inputs.update({spec.name: spec for spec in get_input_specs(model)})
    return notes
