"""What holds for all tests of the last rewrites."""

import pytest

from lingeronnx.targets.luna.finish import finished
from lingeronnx.targets.luna.remembered import Remembered


class _Forgetful(Remembered):
    """Finds each answer anew."""

    def ask(self, body, target, find):
        return find()


@pytest.fixture(autouse=True)
def finish_anew(monkeypatch):
    """Make the last rewrites each time: tests take some of them away and ask for the same graph."""
    monkeypatch.setattr(finished, "_KNOWN", _Forgetful())
