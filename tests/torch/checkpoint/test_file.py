"""Files of torch.save."""

import torch

from lingeronnx.torch.checkpoint.file import Checkpoint, write_value


def test_the_same_values_give_the_same_bytes(tmp_path):
    """Whatever the file is called, by whichever process, at its place or through a temporary
    name.
    """
    for name in ("a.pt", "b.pt"):
        write_value(tmp_path / name, {"w": torch.arange(6.0), "n": 3})
    Checkpoint(tmp_path / "c.pt").write({"w": torch.arange(6.0), "n": 3})
    assert len({(tmp_path / name).read_bytes() for name in ("a.pt", "b.pt", "c.pt")}) == 1
    assert torch.load(tmp_path / "a.pt", weights_only=True)["w"].tolist() == [0, 1, 2, 3, 4, 5]
