"""Parameters in files: loaded into a float graph, saved from it, converted between layouts.

The package also stores the state of a training run. It owns names and layouts of parameters, and
knows nothing of integers and plans.
"""

from .parameters import load_checkpoint, save_checkpoint

__all__ = ["load_checkpoint", "save_checkpoint"]
