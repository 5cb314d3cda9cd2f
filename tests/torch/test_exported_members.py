"""Every public name of `lo.torch` loads, from the module that defines it."""

import lingeronnx as lo
from tests.api.public import torch_names
from tests.each import check_each


def test_all_is_importable():
    def check(name):
        member = getattr(lo.torch, name)
        assert member.__name__ == name
        assert member.__module__.startswith("lingeronnx.torch.")

    assert lo.torch.__all__ == torch_names()
    check_each(check, lo.torch.__all__)
