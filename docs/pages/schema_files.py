"""docs/reference/json.md: the files that users write or read, from their JSON Schemas."""

from __future__ import annotations

import json
from typing import Any

import click

from lingeronnx.cli import main
from lingeronnx.quantization.json_schemas import SCHEMA_DESCRIPTIONS, make_json_schema
from lingeronnx.quantization.settings import SETTINGS

from .markdown import MADE, cell, table

__all__ = ["page"]

_HEAD = f"""{MADE}

# JSON and YAML files

`lingeronnx schema NAME` prints the JSON Schema of each file; editors that know it complete and check `quant.yaml` as it
is typed. The fields of the first level:
"""
_OVERRIDE_HEAD = """The settings of a selector in `overrides`; none is set by default:
"""


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for name, what in SCHEMA_DESCRIPTIONS.items():
        schema = make_json_schema(name)
        lines += [f"## {name}", "", _sentence(what), ""]
        lines += _settings(schema) if name == "quant" else _fields(schema)
    return "\n".join(lines).rstrip() + "\n"


def _fields(schema: dict[str, Any]) -> list[str]:
    """Return the table of the fields of an object."""
    needed = schema.get("required", [])
    return table(
        ["field", "type", ""],
        (
            [f"`{field}`", cell(_type(of, schema)), cell(_text(field, of, needed))]
            for field, of in schema["properties"].items()
        ),
    )


def _settings(schema: dict[str, Any]) -> list[str]:
    """Return the table of the settings, with their options of `quantize`, and that of overrides."""
    options = {option.name: option for option in main.commands["quantize"].params}
    settings = table(
        ["setting", "option", "type", "", "default"],
        (
            [
                f"`{name}`",
                _spelling(options.get(name)),
                cell(_type(of, schema)),
                cell(of["description"]),
                _default(name),
            ]
            for name, of in schema["properties"].items()
        ),
    )
    overrides = table(
        ["setting", "type", ""],
        (
            [f"`{name}`", cell(_type(of, schema)), cell(of["description"])]
            for name, of in schema["$defs"]["Override"]["properties"].items()
        ),
    )
    return [*settings, _OVERRIDE_HEAD, *overrides]


def _spelling(option: click.Parameter | None) -> str:
    """Return the spellings of an option with the placeholder of its value; empty for None."""
    if option is None:
        return ""
    spellings = (*option.opts, *option.secondary_opts)
    value = f" {option.metavar}".replace("|", "\\|") if option.metavar else ""
    return " / ".join(f"`{spelling}{value}`" for spelling in spellings)


def _default(name: str) -> str:
    """Return the default of a setting: as in YAML, in words, or empty."""
    setting = SETTINGS[name]
    if isinstance(setting.default, bool | int | float | str):
        return f"`{json.dumps(setting.default)}`"
    return cell(setting.default_label)


def _text(field: str, of: dict[str, Any], needed: list[str]) -> str:
    words = [_sentence(of["description"])]
    if "default" in of and of["default"] not in ([], {}):
        words.append(f"Default: `{json.dumps(of['default'])}`.")
    if field in needed:
        words.append("Always there.")
    return " ".join(words)


def _sentence(text: str) -> str:
    """Return a description with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def _type(of: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    if "$ref" in of:
        return _type(schema["$defs"][of["$ref"].rpartition("/")[2]], schema)
    if "const" in of:
        return f"`{json.dumps(of['const'])}`"
    if "enum" in of:
        return " or ".join(f"`{json.dumps(each)}`" for each in of["enum"])
    several = of.get("anyOf") or of.get("oneOf")
    if several:
        return " or ".join(dict.fromkeys(_type(each, schema) for each in several))
    kind = of.get("type", "any")
    if kind == "array":
        inner = of.get("items")
        return f"list of {_type(inner, schema)}" if isinstance(inner, dict) and inner else "list"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
