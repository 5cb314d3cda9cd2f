"""Training a bridge: block by block, as a whole, the rounding of weights, the scales.

Owns: what is optimised, and by which loss. Must not know: how integers come about (`bridge`), torch
modules of users.
"""

from .recipe import Constraints, Recipe
from .tuner import Tuner

__all__ = ["Constraints", "Recipe", "Tuner"]
