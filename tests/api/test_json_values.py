"""Values as JSON has them."""

import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lingeronnx.common.json_values import to_json_value


class Color(Enum):
    RED = "r"


@dataclass
class Row:
    color: Color
    file: Path
    level: float


def test_values_are_told_in_types_of_json():
    value = {1: (math.nan, "a", None, True, 3), "row": Row(Color.RED, Path("a/b"), math.inf)}
    found = to_json_value(value)
    assert found == {
        "1": [None, "a", None, True, 3],
        "row": {"color": "red", "file": "a/b", "level": None},
    }
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_every_text_is_told_in_one_way():
    assert to_json_value({"a": ["b", Path("c")]}, str.upper) == {"A": ["B", "C"]}
