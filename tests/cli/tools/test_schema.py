"""`lingeronnx schema`: each kind is one JSON object that says what it describes."""

from __future__ import annotations

import json

import pytest

from lingeronnx.quantization.json_schemas import SCHEMA_DESCRIPTIONS
from tests.cli.helpers import CommandFolder


@pytest.mark.parametrize("kind", SCHEMA_DESCRIPTIONS)
def test_each_is_a_schema(here: CommandFolder, kind: str) -> None:
    body = json.loads(here.run_ok("schema", kind))
    assert body["$schema"].startswith("https://json-schema.org/")
    assert body["properties"]


def test_another_word_is_a_usage_error(here: CommandFolder) -> None:
    result = here("schema", "plans")
    assert result.exit_code == 2
    assert "'plans' is not one of" in result.stderr
