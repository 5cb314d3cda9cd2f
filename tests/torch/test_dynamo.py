"""Nothing stays among the temporary files of who trains or exports."""

import os
import subprocess
import sys

import pytest

#: Imports torch once, then runs a process for each folder: the caller's own, or none.
PROGRAM = """
import os, sys, traceback
from lingeronnx.torch.dynamo import import_dynamo
import torch

def check(own):
    if own is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = own
    import_dynamo()
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == own

for own in (None, sys.argv[1]):
    child = os.fork()
    if not child:
        status = 1
        try:
            check(own)
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, own
    assert not os.listdir(os.environ["TMPDIR"]), own
"""


@pytest.mark.slow
def test_an_optimizer_leaves_no_folder(tmp_path):
    env = {key: value for key, value in os.environ.items() if key != "TORCHINDUCTOR_CACHE_DIR"}
    (tmp_path / "tmp").mkdir()
    env["TMPDIR"] = str(tmp_path / "tmp")
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "mine")], env=env, check=True)
