"""The JSON Schemas that `lingeronnx schema` prints, held against the files that they describe."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from lingeronnx import cli
from lingeronnx.quantization.config import QuantConfig
from lingeronnx.quantization.json_schemas import SCHEMA_DESCRIPTIONS, make_json_schema

HERE = Path(__file__).parents[1]
MODEL = HERE / "qdq" / "files" / "planned_by_peers.onnx"
KINDS = {
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
KNOWN = {
    "$schema",
    "$defs",
    "$ref",
    "title",
    "description",
    "default",
    "type",
    "properties",
    "required",
    "items",
    "additionalProperties",
    "anyOf",
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
    "prefixItems",
}


def faults(value, schema, root, where="$"):
    """Yield the violations of a schema, for the subset of JSON Schema that our schemas use."""
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    kind = schema.get("type")
    if kind is not None:
        right = isinstance(value, KINDS[kind]) and (
            kind == "boolean" or not isinstance(value, bool)
        )
        if not right:
            yield f"{where}: {value!r} is no {kind}"
            return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if "anyOf" in schema and all(
        list(faults(value, alternative, root, where)) for alternative in schema["anyOf"]
    ):
        yield f"{where}: {value!r} is none of the forms"
    limits = (
        ("minimum", lambda a, b: a >= b),
        ("maximum", lambda a, b: a <= b),
        ("exclusiveMinimum", lambda a, b: a > b),
    )
    for word, holds in limits:
        if word in schema and not holds(value, schema[word]):
            yield f"{where}: {value!r} breaks {word} {schema[word]}"
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{where}: {len(value)} items"
        for index, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), root, f"{where}[{index}]")
    if isinstance(value, dict):
        additional, fields = schema.get("additionalProperties", True), schema.get("properties", {})
        yield from (
            f"{where}: no {name}" for name in schema.get("required", ()) if name not in value
        )
        for name, item in value.items():
            if name in fields:
                yield from faults(item, fields[name], root, f"{where}.{name}")
            elif additional is False:
                yield f"{where}: unknown {name}"
            elif isinstance(additional, dict):
                yield from faults(item, additional, root, f"{where}.{name}")


def check(value, name):
    schema = make_json_schema(name)
    return list(faults(value, schema, schema))


@pytest.mark.parametrize("name", SCHEMA_DESCRIPTIONS)
def test_command(name):
    result = CliRunner().invoke(cli.main, ["schema", name])
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert body["title"] == name
    assert body["$schema"].startswith("https://json-schema.org/")


def without_description(schema, where):
    """Yield the fields of a schema that have no description."""
    for name, field in schema.get("properties", {}).items():
        if not field.get("description"):
            yield f"{where}.{name}"
    children = {
        **schema.get("properties", {}),
        **schema.get("$defs", {}),
        **dict(enumerate(schema.get("anyOf", ()))),
        "[]": schema.get("items"),
        "{}": schema.get("additionalProperties"),
    }
    for name, child in children.items():
        if isinstance(child, dict):
            yield from without_description(child, f"{where}.{name}")


@pytest.mark.parametrize("name", SCHEMA_DESCRIPTIONS)
def test_every_field_has_a_description(name):
    assert list(without_description(make_json_schema(name), name)) == []


def test_a_field_without_description_is_found_at_any_depth():
    incomplete = {"properties": {"a": {"anyOf": [{"items": {"properties": {"b": {}}}}]}}}
    assert list(without_description(incomplete, "x")) == ["x.a", "x.a.0.[].b"]


def test_an_unknown_word_is_a_usage_error():
    assert CliRunner().invoke(cli.main, ["schema", "plans"]).exit_code == 2


@pytest.mark.sweep
@pytest.mark.parametrize(
    "arguments",
    (
        [],
        [
            "--platform",
            "generic",
            "--weight-scales",
            "channel",
            "--activations",
            "asymmetric",
            "--mode",
            "max-value",
        ],
        ["--platform", "generic", "--min-sqnr", "200"],
        ["--eval", "x.npz", "--metric", "sqnr"],
        ["--plan", str(MODEL.parent / "aimet_1.0.0.encodings")],
    ),
)
def test_what_quantize_writes_and_prints(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.random.default_rng(0).normal(size=(16, 2, 6, 6)).astype(np.float32))
    argv = [
        "quantize",
        str(MODEL),
        "-o",
        "q.onnx",
        "--calib",
        "x.npz",
        "--save-plan",
        "p.json",
        "--json",
        "--steps",
        *arguments,
    ]
    result = CliRunner().invoke(cli.main, argv)
    assert result.exit_code == 0, result.output
    assert check(json.loads(Path("p.json").read_text()), "plan") == []
    report = json.loads(result.stdout)
    assert check(report, "report") == []
    properties = make_json_schema("report")["properties"]
    assert set(properties) - {"deployment"} == set(report)


@pytest.mark.parametrize(
    "change, message",
    (
        ({"lingeronnx_plan": 3}, "none of"),
        ({"tensors": {"x": {"scale": 0, "bits": 8}}}, "forms"),
        ({"tensors": {"x": {"scale": [1.0], "bits": 8}}}, "forms"),
        ({"tensors": {"x": {"scale": 1.0}}}, "no bits"),
        ({"tensors": {"x": {"scale": 1.0, "bits": 64}}}, "maximum"),
        ({"more": 1}, "unknown more"),
    ),
)
def test_the_plans_schema_refuses(change, message):
    plan = {"lingeronnx_plan": 2, "platform": "venus", "mode": "q-value", "tensors": {}}
    assert check(plan, "plan") == []
    assert any(message in fault for fault in check({**plan, **change}, "plan"))


def test_every_setting_is_in_the_configurations_schema():
    assert set(make_json_schema("quant")["properties"]) == set(QuantConfig.model_fields)


@pytest.mark.parametrize(
    "text", ("platform: venus\nbits: 8\noverrides: {conv: {calibrator: max}}", "state: {h1: h0}")
)
def test_a_configuration_that_is_read_is_valid(text):
    body = yaml.safe_load(text)
    QuantConfig.of(body)
    assert check(body, "quant") == []


@pytest.mark.parametrize(
    "text", ("bit: 8", "mode: q", "batch: 0", "overrides: {conv: {calibratr: max}}", "skip: conv")
)
def test_a_configuration_that_is_refused_is_not_valid(text):
    assert check(yaml.safe_load(text), "quant")
