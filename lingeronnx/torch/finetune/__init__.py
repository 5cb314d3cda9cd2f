"""Fine-tuning of a `QatModule`: block by block or end to end, with learned scales and rounding.

The package owns the optimized parameters and the loss. It does not know how integers are computed
(`qat`), nor torch modules of users.
"""

from .recipe import Constraints, EpochReport, Recipe
from .tuner import Tuner

__all__ = ["Constraints", "EpochReport", "Recipe", "Tuner"]
