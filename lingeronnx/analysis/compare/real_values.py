"""The user's real values behind what a session yields.

Integers divided by their scale, equalization divided out.
"""

from __future__ import annotations

import numpy as np

from ...flow.lower import extract_plan
from ...plan import Affine
from ...run.session import Session
from ..stats.stored_form import StoredForm, matching_factors

__all__ = ["RealValues"]


class RealValues:
    """Turns tensors as `Session.tensors` yields them into the user's real values."""

    def __init__(self, session: Session) -> None:
        moved = extract_plan(session.model).transforms if session.is_integer else {}
        users = session.floats if session.is_integer else {}
        names = {user: name for name, user in users.items()}
        #: {tensor of the graph: what its channels were multiplied by}
        self._factors = {
            names.get(user, user): transform.factor for user, transform in moved.items()
        }

    def __call__(self, name: str, array: np.ndarray, qparams: Affine | None) -> np.ndarray:
        """Return the real values of a batch of tensor `name`, of the same shape."""
        if qparams is None:
            return array
        return StoredForm(qparams, matching_factors(self._factors.get(name, (1.0,)), array)).real(
            array
        )
