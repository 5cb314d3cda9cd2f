"""Programs are generated and compiled with tools that keep their results."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _c_tools(c_tools):
    """Use them in every test of this folder."""
