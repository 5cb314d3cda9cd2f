"""From an integer graph to a board and back.

The files a board needs, and proof that it computes the same integers.
    deploy   the chip's part, the host's parts, the packer's line, a C header, golden vectors, a
    manifest verify   a device's dumps against the simulator: the first layer and element that
    differ, and why

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
