"""Require calibration data where a result without them would be meaningless.

Only `quantize` itself runs without data, on random inputs, to check whether a model fits a chip.
"""

from __future__ import annotations

from ...errors import ConfigError
from ...graph import ir
from ...plan import Plan
from ...plan.synthetic_calibration import is_synthetic
from ...qdq.import_model import is_quantized

__all__ = ["require_calibrated_scales", "require_data"]


def require_data(request: str, model: ir.Model, calib: object, plan: object = None) -> None:
    """Raise ConfigError if there are no data, no plan, and no scales in the model itself.

    Parameters
    ----------
    request
        Subject of the requirement and how to pass data; begins the message.
    model
        The user's model.
    calib
        Calibration data, or None.
    plan
        Plan or scales from a file, or None.
    """
    if calib is None and plan is None and not is_quantized(model):
        raise ConfigError(
            f"{request}; only `quantize` runs without data, as a check that the model fits a chip"
        )


def require_calibrated_scales(request: str, model: ir.Model, plan: Plan) -> None:
    """Raise ConfigError if `plan` has scales or weights determined with random inputs.

    Accepts a model that was written with such a plan: it carries a warning.

    Parameters
    ----------
    request
        Requirement that begins the message.
    model
        The user's model.
    plan
        Its plan.
    """
    if plan.synthetic and not is_synthetic(model):
        raise ConfigError(
            f"{request}: not all of its scales and weights come from a plan or from the model "
            "itself"
        )
