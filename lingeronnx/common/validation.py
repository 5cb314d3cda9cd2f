"""Format pydantic's validation errors as one line for users.

The line has the path of the value in the file or mapping, the value, the allowed values as the
model's JSON Schema has them, and the nearest allowed word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import suggest_nearest

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

__all__ = ["format_validation_error"]

_MAX_VALUE_LENGTH = 100  # characters of a value in a message

#: Type of JSON Schema -> (one value, several values).
_NOUNS = {
    "integer": ("an integer", "integers"),
    "number": ("a number", "numbers"),
    "string": ("a string", "strings"),
    "null": ("null", "null"),
}
_LIMIT_SIGNS = (("exclusiveMinimum", ">"), ("minimum", ">="), ("maximum", "<="))

_Schema = Mapping[str, Any]


class _Location(NamedTuple):
    """A place in a document: its path, the value there, and the schema of the value."""

    path: str
    value: object
    schema: _Schema


def format_validation_error(
    error: ValidationError, model: type[BaseModel], document: object
) -> str:
    """Return one line about the first error of validating `document` with the pydantic `model`.

    It names the place and the value, the allowed values and the nearest allowed word.
    """
    first_error = error.errors(include_url=False)[0]
    kind = first_error["type"]
    root = model.model_json_schema()
    parts = first_error["loc"]
    if kind == "json_invalid":
        return first_error["msg"]
    if kind in ("extra_forbidden", "missing", "invalid_key"):
        place = _locate(parts[:-1], document, root)
        return _format_key_error(str(parts[-1]), kind == "missing", place)
    place = _locate(parts, document, root)
    prefix = f"{place.path} = {_format_value(place.value)}" if place.path else "the document"
    if kind == "value_error":
        return f"{prefix}: {first_error['msg'].removeprefix('Value error, ')}"
    if kind == "finite_number":
        return f"{prefix}: expected a finite number"
    nearest = suggest_nearest(str(place.value), map(str, _iter_words(place.schema)))
    return f"{prefix}: expected {_describe(place.schema, root)}{nearest}"


def _format_key_error(key: str, is_missing: bool, place: _Location) -> str:
    """Return the message that the mapping at `place` lacks `key`, or must not have it.

    The latter lists the known keys and the nearest of them.
    """
    known = place.schema["properties"]
    within = f" in {place.path}" if place.path else ""
    if is_missing:
        return f"the key '{key}'{within} is missing"
    return f"unknown key '{key}'{within}{suggest_nearest(key, known)}; known: {', '.join(known)}"


def _locate(parts: Sequence[int | str], document: object, root: _Schema) -> _Location:
    """Follow the path `parts` in `document`, whose JSON Schema is `root`, and return the place.

    It ends where the schema does, since further parts name alternatives of a union. The value is
    None from a missing one on.
    """
    place = _Location("", document, root)
    for part in parts:
        schema = _get_child_schema(place.schema, part)
        if schema is None:
            break
        place = _Location(
            f"{place.path}{_format_part(part)}".removeprefix("."),
            _get_child(place.value, part),
            _resolve(schema, root),
        )
    return place


def _get_child_schema(schema: _Schema, part: int | str) -> _Schema | None:
    """Return the schema of an item (an integer `part`) or of the value of a key in `schema`.

    None if it has no such schema.
    """
    if isinstance(part, int):
        items: _Schema | None = schema.get("items")
        return items
    additional = schema.get("additionalProperties")
    child: _Schema | None = schema.get("properties", {}).get(part)
    return child or (additional if isinstance(additional, Mapping) else None)


def _get_child(value: object, part: int | str) -> object:
    """Return item or value `part` of a sequence or mapping; None if there is none."""
    if isinstance(value, Mapping):
        return value.get(part)
    if isinstance(value, Sequence) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _resolve(schema: _Schema, root: _Schema) -> _Schema:
    """Return the definition in `root` that `schema` refers to by "$ref", or `schema` itself."""
    reference = schema.get("$ref")
    return schema if reference is None else root["$defs"][reference.rpartition("/")[2]]


def _format_part(part: int | str) -> str:
    """Return a part of a path as text: `.key`, `['a key of other characters']` or `[index]`."""
    if isinstance(part, str) and re.fullmatch(r"\w+", part):
        return f".{part}"
    return f"[{part!r}]"


def _format_value(value: object) -> str:
    """Return the repr of `value`, shortened to `_MAX_VALUE_LENGTH` characters and "..."."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."


def _iter_words(schema: _Schema) -> Iterator[object]:
    """Yield the single values that `schema` allows (enum, const), also in its alternatives."""
    yield from schema.get("enum", ())
    if "const" in schema:
        yield schema["const"]
    for alternative in schema.get("anyOf", ()):
        yield from _iter_words(alternative)


def _describe(schema: _Schema, root: _Schema, is_plural: bool = False) -> str:
    """Return text on the values that `schema` allows, such as "an integer >= 1 or null".

    References are resolved in `root`; `is_plural` gives "integers" instead of "an integer".
    """
    *others, last = dict.fromkeys(_list_alternatives(schema, root, is_plural))
    return f"{', '.join(others)} or {last}" if others else last


def _list_alternatives(schema: _Schema, root: _Schema, is_plural: bool) -> list[str]:
    """Return texts for the words and kinds of values that `schema` allows, one per alternative.

    Such as ["auto", "an integer >= 1"]. References are resolved in `root`; `is_plural` gives
    "integers" instead of "an integer".
    """
    schema = _resolve(schema, root)
    if "anyOf" in schema:
        lists = [_list_alternatives(child, root, is_plural) for child in schema["anyOf"]]
        return [text for alternatives in lists for text in alternatives]
    words = [str(word) for word in _iter_words(schema)]
    kind = schema.get("type")
    if kind == "boolean":
        words = ["true", "false"]
    if words:
        return words
    if kind == "array":
        noun = "lists" if is_plural else "a list"
        return [f"{noun} of {_describe(schema['items'], root, is_plural=True)}"]
    if kind == "object":
        noun = "mappings" if is_plural else "a mapping"
        return [f"{noun} {_describe_entries(schema, root)}"]
    return [f"{_NOUNS[str(kind)][is_plural]} {_format_limits(schema)}".rstrip()]


def _format_limits(schema: _Schema) -> str:
    """Return the limits of a number in `schema` as text, such as ">= 1", or "" without limits."""
    minimum = schema.get("minimum")
    if minimum is not None and minimum == schema.get("maximum"):
        return f"equal to {minimum}"
    return " and ".join(f"{sign} {schema[key]:g}" for key, sign in _LIMIT_SIGNS if key in schema)


def _describe_entries(schema: _Schema, root: _Schema) -> str:
    """Return text on the mappings that `schema` allows, such as "of names to integers".

    For a mapping with fixed keys it is "with the keys a, b".
    """
    if "properties" in schema:
        return f"with the keys {', '.join(schema['properties'])}"
    return f"of names to {_describe(schema['additionalProperties'], root, is_plural=True)}"
