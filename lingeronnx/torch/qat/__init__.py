"""A planned graph as a torch module: fake quantizers for integer nodes, torch for float nodes.

The integers and their gradients are those of `fake_quant`. The package knows no training and no
torch modules of users.
"""

from .qat_module import QatModule

__all__ = ["QatModule"]
