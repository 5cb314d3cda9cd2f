"""A few random nets of every family on every platform; `make fuzz-nets N=...` runs any number (docs/fuzzing.md)."""

import pytest

from tests.fuzz.checks import PLATFORMS, Made, failures
from tests.fuzz.families import FAMILIES
from tests.fuzz.nets import case


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", (1, 2))
def test_every_check_holds(family, platform, seed):
    """Nothing that we have disagrees with anything else on these nets."""
    assert failures(Made(case(family, seed), platform)) == {}
