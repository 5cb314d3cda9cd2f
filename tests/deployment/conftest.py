"""What the tests of deployed folders share."""

import pytest

from tests.c_tools import keep_objects, keep_templates


@pytest.fixture(scope="session")
def c_tools():
    """Keep the results of the C generator and the C compiler."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_templates(monkeypatch)
        keep_objects(monkeypatch)
        yield
