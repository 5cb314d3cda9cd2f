"""Sizes of inputs that a file leaves open: the user's, or those of the first sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import ConfigError, nearest
from ...graph import ir
from ...passes.entry.free_batch import free_batch
from ...run.data import Data
from ...run.runners import input_specs

__all__ = ["fix_sizes", "tell_sizes"]


def tell_sizes(model: ir.Graph, told: Mapping[str, Sequence[int]]) -> None:
    """Give the inputs named in `told` all their sizes, in place; the axis that counts samples stays open.

    Raises ConfigError for an input that the model does not have, and for sizes that are not those of the file.
    """
    specs = {spec.name: spec for spec in input_specs(model)}
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name, wanted in told.items():
        if name not in specs:
            raise ConfigError(
                f"--input-shape {name}: the model has no such input{nearest(name, specs)}; "
                f"inputs are {', '.join(specs)}"
            )
        shape, axis = ir.shape(inputs[name]), specs[name].axis
        held = [None] * len(wanted) if shape is None else list(shape)
        fits = len(held) == len(wanted) and all(d in (None, w) for d, w in zip(held, wanted, strict=True))
        if not fits or min(wanted, default=1) < 1:
            texts = (",".join(str(d or "?") for d in sizes) for sizes in (wanted, held))
            raise ConfigError(
                "--input-shape {}={}: in the file its sizes are {}; give these, and a size from 1 for each ?".format(
                    name, *texts
                )
            )
        inputs[name].shape = ir.oir_shape(["N" if i == axis and held[i] is None else d for i, d in enumerate(wanted)])


def fix_sizes(model: ir.Graph, data: Data) -> list[str]:
    """Give the inputs of `model` the sizes of the first sample where the file leaves them open; return notes."""
    notes = []
    feed = data.first()
    for value in model.graph.inputs:
        array = feed.get(str(value.name))
        shape, axis = ir.shape(value), data.inputs[str(value.name)].axis
        if array is None or (shape is not None and all(d is not None for i, d in enumerate(shape) if i != axis)):
            continue
        sizes: list[int | str] = list(array.shape)
        if axis is not None and (not shape or shape[axis] is None):
            sizes[axis] = "N"
        value.shape = ir.oir_shape(sizes)
        sample = [d for i, d in enumerate(array.shape) if i != axis]
        notes.append(
            f"input '{value.name}': the file leaves sizes open; {sample} per sample is taken from the calibration data"
        )
    if notes:  # with all sizes known
        free_batch(model)
    data.inputs.update({spec.name: spec for spec in input_specs(model)})
    return notes
