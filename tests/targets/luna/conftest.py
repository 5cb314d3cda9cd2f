"""What tests of the chip's form share."""

import importlib

import pytest


@pytest.fixture
def as_formed(monkeypatch):
    """Leave graphs in the form that the packer wants: no other form of the same integers is taken for its price."""
    stage = importlib.import_module("lingeronnx.targets.luna.finish.cheaper")
    monkeypatch.setattr(stage, "cheaper", lambda graph, target: (graph, [], None))
