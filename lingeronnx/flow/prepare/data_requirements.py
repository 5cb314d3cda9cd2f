"""Who needs data: everybody but `quantize` by itself, which goes on without them, on random inputs, for a look."""

from __future__ import annotations

from ...errors import ConfigError
from ...graph import ir
from ...plan import Plan
from ...plan.synthetic_calibration import is_synthetic
from ...qdq.import_model import is_quantized

__all__ = ["require_calibrated_scales", "require_data"]


def require_data(what: str, model: ir.Model, calib: object, plan: object = None) -> None:
    """Raise ConfigError where nothing says which scales `model` has.

    No data, no plan, and none in the model itself.
    what : who asks, and how it is given data.
    """
    if calib is None and plan is None and not is_quantized(model):
        raise ConfigError(
            f"{what}; without data there is `quantize` alone, to see whether the model fits a chip"
        )


def require_calibrated_scales(what: str, model: ir.Model, plan: Plan) -> None:
    """Raise ConfigError where `plan`, made for `model`, holds scales, or weights refined, from random inputs.

    What the model says of itself is taken as it is: a warning goes with it.
    """
    if plan.synthetic and not is_synthetic(model):
        raise ConfigError(
            f"{what}: not all of its scales and weights come from a plan or from the model itself"
        )
