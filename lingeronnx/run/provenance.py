"""What an integer graph was made from, so that a comparison knows whether it is still as it was made.

Written into its metadata under `METADATA_KEY`: {"from": digest of the float model, "graph": its
own, "settings": the settings of `quantize` that its scales come from, as far as they are no
defaults, "fixed": the inputs that were given one value for all time}; its plan carries the
settings, too. Digests are of what the outputs are computed from (`graph.digests`), whatever nodes
and inner tensors are called, with the fixed inputs as constants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from ..graph import ir
from ..graph.digests import compute_output_digest
from ..graph.fixed_inputs import fix_inputs

__all__ = [
    "METADATA_KEY",
    "apply_fixed_inputs",
    "is_made_from",
    "load_fixed_inputs",
    "load_quantize_settings",
    "load_source_digest",
    "store_provenance",
]

METADATA_KEY = "lingeronnx.made"


def store_provenance(
    model: ir.Model,
    source: str,
    settings: Mapping[str, object] | None = None,
    fixed: Mapping[str, np.ndarray | Sequence[float]] | None = None,
) -> None:
    """Write into the integer graph `model`, as it is now, that it is made from the float model with digest `source`.

    settings : those of `quantize`, in types that JSON has; None where they are not known. fixed :
    {input: its numbers}.
    """
    own = compute_output_digest(model)
    if own and source:
        said: dict[str, object] = {"from": source, "graph": own}
        said |= {} if settings is None else {"settings": dict(settings)}
        said |= (
            {"fixed": {name: np.ravel(given).tolist() for name, given in fixed.items()}}
            if fixed
            else {}
        )
        model.metadata_props[METADATA_KEY] = json.dumps(said, sort_keys=True)


def apply_fixed_inputs(model: ir.Model, made: ir.Model) -> ir.Model:
    """Return the float `model` with those inputs as constants that were fixed when `made` was quantized from it.

    It is `model` itself where none of them is an input of it.
    """
    inputs = {value.name for value in model.graph.inputs if value.const_value is None}
    fixed = {name: given for name, given in load_fixed_inputs(made).items() if name in inputs}
    if not fixed:
        return model
    changed = ir.clone(model)
    fix_inputs(changed, fixed)
    return changed


def load_fixed_inputs(model: ir.Model) -> dict[str, list[float]]:
    """Return {input: its numbers} of the inputs of the float model that are constants of `model`."""
    fixed = ir.read_json_metadata(model, METADATA_KEY).get("fixed")
    return fixed if isinstance(fixed, dict) else {}


def load_quantize_settings(model: ir.Model) -> dict[str, object] | None:
    """Return the settings of `quantize` that the scales of `model` come from.

    None where it does not say.
    """
    settings = ir.read_json_metadata(model, METADATA_KEY).get("settings")
    return settings if isinstance(settings, dict) else None


def load_source_digest(model: ir.Model) -> str:
    """Return the digest of the float model that `model` was made from.

    Empty where it was changed since, or is mute.
    """
    said = ir.read_json_metadata(model, METADATA_KEY)
    return (
        str(said.get("from", ""))
        if said and said.get("graph") == compute_output_digest(model)
        else ""
    )


def is_made_from(model: ir.Model | None, source: ir.Model | None) -> bool:
    """Whether `model` says that it was made from `source`, and was not changed since."""
    origin = "" if model is None else load_source_digest(model)
    return bool(origin) and source is not None and origin == compute_output_digest(source)
