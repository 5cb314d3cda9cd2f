"""Programs are generated with templates that are compiled once."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _generator(compiled_templates):
    """Use the compiled templates in every test of this folder."""
