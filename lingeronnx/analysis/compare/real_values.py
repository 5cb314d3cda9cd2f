"""Float values of the user's tensors from the tensors of a session.

Integers are divided by their scale, and factors of equalization are divided out.
"""

from __future__ import annotations

import numpy as np

from ...ir.plan import Affine
from ...quantization.lower import extract_plan
from ...runtime.session import Session
from ..stats.stored_form import StoredForm, matching_factors

__all__ = ["RealValues"]


class RealValues:
    """Converts tensors as `Session.tensors` yields them to the user's float values."""

    def __init__(self, session: Session) -> None:
        """Read the channel factors of an integer graph's tensors; a float model has none."""
        transforms = extract_plan(session.model).transforms if session.is_integer else {}
        user_names = session.floats if session.is_integer else {}
        graph_names = {user_name: name for name, user_name in user_names.items()}
        #: Channel factors by tensor of the graph.
        self._factors = {
            graph_names.get(user_name, user_name): transform.factor
            for user_name, transform in transforms.items()
        }

    def __call__(self, name: str, array: np.ndarray, qparams: Affine | None) -> np.ndarray:
        """Convert a batch of tensor `name` to float values of the same shape.

        `array` is returned as it is without `qparams`; otherwise it has the stored integers, and
        the factors of channels are divided out.
        """
        if qparams is None:
            return array
        factor = matching_factors(self._factors.get(name, (1.0,)), array)
        return StoredForm(qparams, factor).real(array)
