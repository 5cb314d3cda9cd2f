"""Parameters in files: onto a float graph and back, between layouts, and the state of a training run.

Owns: names and layouts of parameters. Must not know: how a graph came about, integers, plans.
"""

from .parameters import load_checkpoint, save_checkpoint

__all__ = ["load_checkpoint", "save_checkpoint"]
