"""Tensors that hold a user's tensor times a factor, because a factor was folded into its layer.

They are recorded in the metadata of the normalized graph and of the integer graph: tensor ->
[user's tensor, factor].
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from ..common.errors import ModelError
from ._onnx_ir import Model
from .graph_queries import read_json_metadata

__all__ = ["FOLDED_FACTORS_KEY", "FoldedFactor", "add_folded_factor", "load_folded_factors"]

#: Metadata key, in the normalized graph and the integer graph.
FOLDED_FACTORS_KEY = "lingeronnx.folded_factors"


class FoldedFactor(NamedTuple):
    """The user's tensor that a tensor is computed from: value = factor * user's value."""

    user_name: str
    factor: float


def add_folded_factor(model: Model, old_name: str, new_name: str, factor: float) -> None:
    """Record that tensor `old_name` of `model` was multiplied by `factor` and is now `new_name`.

    If `old_name` is itself recorded, the factors are multiplied.
    """
    recorded = load_folded_factors(model)
    user_name, old_factor = recorded.pop(old_name, FoldedFactor(old_name, 1.0))
    recorded[new_name] = FoldedFactor(user_name, old_factor * factor)
    model.metadata_props[FOLDED_FACTORS_KEY] = json.dumps(recorded)


def load_folded_factors(model: Model) -> dict[str, FoldedFactor]:
    """Return {tensor: user's tensor and factor} from the metadata of `model`.

    Raises ModelError if they are malformed.
    """
    recorded = {}
    for name, entry in read_json_metadata(model, FOLDED_FACTORS_KEY).items():
        match entry:
            case [str(user_name), float(factor)] if 0 < factor < math.inf:
                recorded[name] = FoldedFactor(user_name, factor)
            case _:
                raise ModelError(
                    f"the metadata '{FOLDED_FACTORS_KEY}' are malformed; quantize again"
                )
    return recorded
