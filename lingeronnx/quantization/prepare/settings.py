"""Resolve the settings of a run: a config, the arguments of a call, and an imported model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...common.errors import ConfigError
from ...ir.plan import PerGroup
from ...targets import Target, get_target, require_measured

if TYPE_CHECKING:
    from ...interchange.qdq.import_model import ImportedQuantization
    from ..config import QuantConfig

__all__ = ["adapt_config_to_import", "resolve_config", "resolve_target"]


def resolve_config(
    config: QuantConfig | str | os.PathLike[str] | None, settings: Mapping[str, Any]
) -> QuantConfig:
    """Return the settings of `config`, a value or a YAML file, updated by `settings`.

    Settings that are None are ignored; a `config` of None stands for the defaults. Raises
    ConfigError for an unknown key or an invalid value.
    """
    from ..config import QuantConfig  # loads pydantic, which only a call needs

    explicit = {key: value for key, value in settings.items() if value is not None}
    if isinstance(config, str | os.PathLike):
        return QuantConfig.read(os.fspath(config), **explicit)
    if config is None:
        return QuantConfig.of(explicit)
    if not isinstance(config, QuantConfig | Mapping):
        raise ConfigError(
            f"config is of type {type(config).__name__}; pass a QuantConfig, a mapping of "
            "settings, or the path of a YAML or JSON file"
        )
    return QuantConfig.of({**dict(config), **explicit})


def resolve_target(config: QuantConfig) -> Target:
    """Return the target of `config` with its cycle costs.

    Raises
    ------
    ConfigError
        If the target does not support the settings, or was never measured and
        `config.allow_unmeasured` is not set.
    """
    target = get_target(config.platform)
    require_measured(target, allow_unmeasured=config.allow_unmeasured)
    config.check_platform(target)
    return config.time.apply_to(target)


def adapt_config_to_import(
    config: QuantConfig, target: Target, imported: ImportedQuantization
) -> QuantConfig:
    """Return `config` with mode and weight scales such that imported scales are kept.

    Settings of the user stay. The mode becomes max-value if the platform has it and a scale is no
    power of two.
    """
    user_set = config.model_fields_set
    changes: dict[str, Any] = {}
    may_change_mode = "mode" not in user_set and "max-value" in target.modes
    if may_change_mode and not _has_only_powers_of_two(imported):
        changes["mode"] = "max-value"
    if "weight_scales" not in user_set:
        changes.update(_choose_weight_scales(target, imported))
    return config.model_copy(update=changes)


def _choose_weight_scales(target: Target, imported: ImportedQuantization) -> dict[str, str]:
    """Return {"weight_scales": setting} that keeps imported scales, or {} for the default.

    If the platform has them, groups of the most common size if some weight has groups, else one
    scale per channel if some weight has several scales.
    """
    weights = imported.weights.values()
    group_sizes = [
        weight.granularity.size for weight in weights if isinstance(weight.granularity, PerGroup)
    ]
    if group_sizes and "group" in target.weight_scales:
        most_common = max(set(group_sizes), key=group_sizes.count)
        return {"weight_scales": f"group:{most_common}"}
    if "channel" in target.weight_scales and any(not weight.single for weight in weights):
        return {"weight_scales": "channel"}
    return {}


def _has_only_powers_of_two(imported: ImportedQuantization) -> bool:
    """Whether all imported scales of activations and weights are powers of two."""
    for qparams in (*imported.activations.values(), *imported.weights.values()):
        if any(math.frexp(scale)[0] != 0.5 for scale in qparams.scales.flat):
            return False
    return True
