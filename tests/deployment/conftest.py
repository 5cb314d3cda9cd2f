"""What the tests of deployed folders share."""

import pytest

from lingeronnx.deployment.c import host


@pytest.fixture(scope="session")
def compiled_templates():
    """Keep the compiled templates of the C generator, where it is installed."""
    if host.available() is not None:
        yield
        return
    from tests.generator import patch_environment

    with pytest.MonkeyPatch.context() as monkeypatch:
        patch_environment(monkeypatch)
        yield
