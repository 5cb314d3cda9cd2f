"""What an integer graph was made from, so that a comparison knows whether it is still as it was made.

Written into its metadata under `KEY`: {"from": digest of the float model, "graph": its own, "settings": the settings of
`quantize` that its scales come from, as far as they are no defaults}; its plan carries these, too. Digests are of what
the outputs are computed from (`graph.digests`), whatever nodes and inner tensors are called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..graph import ir
from ..graph.digests import whole

__all__ = ["KEY", "made_from", "made_of", "made_with", "note_made"]

KEY = "lingeronnx.made"


def note_made(model: ir.Graph, source: str, settings: Mapping[str, object] | None = None) -> None:
    """Write into the integer graph `model`, as it is now, that it is made from the float model with digest `source`.

    settings : those of `quantize`, in types that JSON has; None where they are not known.
    """
    own = whole(model)
    if own and source:
        said = {"from": source, "graph": own} | ({} if settings is None else {"settings": dict(settings)})
        model.metadata_props[KEY] = json.dumps(said, sort_keys=True)


def made_with(model: ir.Graph) -> dict[str, object] | None:
    """Return the settings of `quantize` that the scales of `model` come from; None where it does not say."""
    settings = ir.noted(model, KEY).get("settings")
    return settings if isinstance(settings, dict) else None


def made_of(model: ir.Graph) -> str:
    """Return the digest of the float model that `model` was made from; empty where it was changed since, or is mute."""
    said = ir.noted(model, KEY)
    return str(said.get("from", "")) if said and said.get("graph") == whole(model) else ""


def made_from(model: ir.Graph | None, source: ir.Graph | None) -> bool:
    """Whether `model` says that it was made from `source`, and was not changed since."""
    origin = "" if model is None else made_of(model)
    return bool(origin) and source is not None and origin == whole(source)
