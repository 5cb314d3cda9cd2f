"""A planned graph as a torch module: fake quantizers for integer nodes, torch for float nodes.

The package owns the simulator's integers in torch, and their gradients. It knows no training and no
torch modules of users.
"""

from .qat_module import QatModule

__all__ = ["QatModule"]
