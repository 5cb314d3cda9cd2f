"""Nothing stays among the temporary files of who trains or exports."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
from lingeronnx.torch.dynamo import import_dynamo
import torch
import_dynamo()
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == {own!r}
"""


@pytest.mark.slow
@pytest.mark.parametrize("own", (None, "mine"))
def test_an_optimizer_leaves_no_folder(own, tmp_path):
    env = {key: value for key, value in os.environ.items() if key != "TORCHINDUCTOR_CACHE_DIR"}
    (tmp_path / "tmp").mkdir()
    env["TMPDIR"] = str(tmp_path / "tmp")
    folder = None if own is None else str(tmp_path / own)
    if folder is not None:
        env["TORCHINDUCTOR_CACHE_DIR"] = folder
    subprocess.run([sys.executable, "-c", PROGRAM.format(own=folder)], env=env, check=True)
    assert not list((tmp_path / "tmp").iterdir())
