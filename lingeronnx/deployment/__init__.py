"""Write the files that a board needs for an integer graph, and verify the board's results.

    deploy   chip part, host parts, packer command, C header or program, golden vectors, manifest
    verify   compare a device's dumps with the simulator: first differing element and its causes

Must not know: commands, torch.
"""

from .comparison import Cause, TensorDifference, Verification, verify
from .deploy import Deployment, check_folder, deploy

__all__ = [
    "Cause",
    "Deployment",
    "TensorDifference",
    "Verification",
    "check_folder",
    "deploy",
    "verify",
]
