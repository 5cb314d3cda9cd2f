"""A planned graph as a torch module.

Fake quantizers for integer operators, plain torch for what stays in float.
Owns: the simulator's integers in torch, and their gradients. Must not know: torch modules of users,
training, files.
"""

from .qat_module import QatModule

__all__ = ["QatModule"]
