"""Fixtures of all tests of the backend passes."""

import pytest

from lingeronnx.luna.backend_passes import pipeline
from lingeronnx.luna.result_cache import ResultCache


class _NoCache(ResultCache):
    """Finds each answer anew."""

    def get_or_compute(self, key_bytes, target, compute):
        return compute()


@pytest.fixture(autouse=True)
def finish_anew(monkeypatch):
    """Make the last rewrites each time: tests take some of them away and ask for the same graph."""
    monkeypatch.setattr(pipeline, "_CACHE", _NoCache())
