"""An integer graph, made once."""

import pytest

from tests.analysis.check.helpers import quantized


@pytest.fixture(scope="module")
def integer():
    """The bytes of an integer graph."""
    return quantized().SerializeToString()
