"""`lingeronnx schema`: each kind is one JSON object that says what it describes."""

from __future__ import annotations

import json

import pytest

from lingeronnx.schemas.files import FILES
from tests.cli.helpers import Here


@pytest.mark.parametrize("kind", FILES)
def test_each_is_a_schema(here: Here, kind: str) -> None:
    body = json.loads(here.good("schema", kind))
    assert body["$schema"].startswith("https://json-schema.org/")
    assert body["properties"]


def test_another_word_is_a_usage_error(here: Here) -> None:
    result = here("schema", "plans")
    assert result.exit_code == 2
    assert "'plans' is not one of" in result.stderr
