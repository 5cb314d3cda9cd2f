"""The settings of a run.

A config, what a call adds to it, and what a quantized model makes of what nobody named.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from ...plan import PerGroup
from ...plan.config import QuantConfig
from ...qdq.import_model import ImportedQuantization
from ...targets import Target, get_target

__all__ = ["adapt_config_to_import", "resolve_config", "resolve_target"]


def resolve_config(
    config: QuantConfig | str | os.PathLike[str] | None, settings: Mapping[str, Any]
) -> QuantConfig:
    """Return the settings of `config`, a value or a YAML file, and on top of them those that are not None."""
    named = {key: value for key, value in settings.items() if value is not None}
    if isinstance(config, str | os.PathLike):
        return QuantConfig.read(os.fspath(config), **named)
    if config is not None:
        return QuantConfig.of({**dict(config), **named})
    return QuantConfig.of(named)


def resolve_target(config: QuantConfig) -> Target:
    """Return the target that `config` names, with the prices it names.

    ConfigError where it lacks what is asked for.
    """
    target = get_target(config.platform)
    config.check_platform(target)
    return config.time.apply_to(target)


def adapt_config_to_import(
    config: QuantConfig, target: Target, imported: ImportedQuantization
) -> QuantConfig:
    """Return `config` with a mode and weight scales that keep what `imported` holds, where the user has named none."""
    change: dict[str, Any] = {}
    grids = [*imported.activations.values(), *imported.weights.values()]
    free = any(math.frexp(scale)[0] != 0.5 for grid in grids for scale in grid.scales.flat)
    if "mode" not in config.model_fields_set and free and "max-value" in target.modes:
        change["mode"] = "max-value"
    sizes = [
        grid.granularity.size
        for grid in imported.weights.values()
        if isinstance(grid.granularity, PerGroup)
    ]
    by_channel = any(not grid.single for grid in imported.weights.values())
    if "weight_scales" not in config.model_fields_set:
        if sizes and "group" in target.weight_scales:
            change["weight_scales"] = f"group:{max(set(sizes), key=sizes.count)}"
        elif by_channel and "channel" in target.weight_scales:
            change["weight_scales"] = "channel"
    return config.model_copy(update=change)
