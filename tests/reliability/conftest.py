"""The folders with a tiny model that the tests of the command line have."""

from tests.cli.conftest import here, quant, tiny_quant

__all__ = ["here", "quant", "tiny_quant"]
