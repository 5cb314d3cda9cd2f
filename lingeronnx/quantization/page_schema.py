"""JSON Schema of report.json: the data of the sections of a report page, which its charts draw."""

from __future__ import annotations

from typing import Any

__all__ = ["make_page_schema"]

_Schema = dict[str, Any]
_STRING: _Schema = {"type": "string"}
_BOOLEAN: _Schema = {"type": "boolean"}
_INTEGER: _Schema = {"type": "integer"}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_NUMBER: _Schema = {"type": "number"}
#: JSON has no infinities and NaN: they are the words "inf", "-inf" and "nan".
_MEASURE: _Schema = {"anyOf": [_NUMBER, _STRING, {"type": "null"}]}
_STRINGS: _Schema = {"type": "array", "items": _STRING}
_OBJECT: _Schema = {"type": "object"}
_OBJECTS: _Schema = {"type": "array", "items": _OBJECT}


def make_page_schema() -> _Schema:
    """Return the schema of the file, without title and description."""
    optional = {
        "schedule": (_schedule_schema(), "what runs when, if the chip runs a part that packs"),
        "sensitivity": ({"type": "array"}, "the rows of sensitive_ops.json"),
        "quantize": (_OBJECT, "what `lingeronnx quantize --json` prints, without files"),
        "search": (_OBJECT, "the attempts of a search"),
    }
    schema = _object_of(
        overview=(_overview_schema(), "the first screen"),
        network=(_network_schema(), "the graph, and what its nodes can be colored by"),
        compare=(_comparison_schema(), "the measures of each tensor"),
        check=(_OBJECT, "what `lingeronnx check --json` prints"),
    )
    schema["properties"] |= _describe_fields(optional)
    return schema


def _describe_fields(fields: dict[str, tuple[_Schema, str]]) -> dict[str, _Schema]:
    """Return {name: schema with its description}."""
    return {name: {**schema, "description": text} for name, (schema, text) in fields.items()}


def _object_of(**fields: tuple[_Schema, str]) -> _Schema:
    """Return the schema of an object with these fields, all required, and no others."""
    return {
        "type": "object",
        "properties": _describe_fields(fields),
        "required": list(fields),
        "additionalProperties": False,
    }


def _list_of(**fields: tuple[_Schema, str]) -> _Schema:
    """Return the schema of an array of objects with these fields."""
    return {"type": "array", "items": _object_of(**fields)}


def _overview_schema() -> _Schema:
    """Return the schema of tiles, losses, actions and hints."""
    tiles = _list_of(
        label=(_STRING, "what the figure is"),
        value=(_STRING, "the figure"),
        remark=(_STRING, "what it stands on"),
        state=({"enum": ["good", "bad", ""]}, "its color"),
    )
    losses = _list_of(
        tensor=(_STRING, "tensor that the layer makes"),
        place=(_STRING, "operator and node"),
        cause=(_STRING, "kind of the finding; empty if no cause was found"),
        measured=(_STRING, "what was measured, and its limit"),
        remedy=(_STRING, "how to fix it"),
        share_percent=(_NUMBER, "part of the error that the layer makes, in percent"),
        total_share_percent=(_NUMBER, "the same with layers that follow from it"),
        own_db=(_MEASURE, "SQNR of the layer alone, in dB"),
        also=(_STRINGS, "tensors with the same scale and problem"),
    )
    actions = _list_of(
        options=(_STRING, "options of quantize; empty: quantize again as before"),
        reason=(_STRING, "why they may help"),
        gain_db=(_MEASURE, "measured gain of the worst output, in dB; null if not tried"),
        untried_reason=(_STRING, "why they were not tried"),
        tensor=(_STRING, "tensor that they are about"),
        costs=(_STRINGS, "what they cost"),
    )
    hints = _list_of(
        source=(_STRING, "command that found the problem"),
        text=(_STRING, "the problem"),
        options=(_STRING, "options of quantize to add"),
    )
    return _object_of(
        tiles=(tiles, "the four figures"),
        losses=(losses, "layers that lose accuracy, the worst first"),
        actions=(actions, "what may raise the accuracy"),
        hints=(hints, "other problems and warnings"),
    )


def _network_schema() -> _Schema:
    """Return the schema of the data of the chart `network`."""
    weights = {"anyOf": [_OBJECT, {"type": "null"}]}
    places = {"enum": ["input", "output", "integer", "host"]}
    nodes = _list_of(
        name=(_STRING, "name of the node"),
        op=(_STRING, "operator type"),
        tensor=(_STRING, "its first output, by the user's name"),
        scope=(_STRING, "path in front of the name"),
        inputs=({"type": "array", "items": _COUNT}, "indices of the nodes that it reads"),
        place=(places, "where it runs"),
        alert=(_BOOLEAN, "whether it has a finding"),
        detail=(_STRING, "text of the tooltip"),
        weights=(weights, "largest weights by channel"),
        values=({"type": "object", "additionalProperties": _MEASURE}, "value of each measure"),
    )
    measures = _list_of(
        key=(_STRING, "key in the nodes' values"),
        title=(_STRING, "name"),
        unit=(_STRING, "unit"),
        order=({"enum": ["low", "high"]}, "values that deserve attention"),
        note=(_STRING, "explanation"),
    )
    optional = {
        "sum": (_BOOLEAN, "whether values add up in a scope"),
        "log": (_BOOLEAN, "whether the scale of colors is logarithmic"),
        "categories": (_STRINGS, "the words that are the values"),
    }
    measures["items"]["properties"] |= _describe_fields(optional)
    return _object_of(
        nodes=(nodes, "nodes in graph order"), measures=(measures, "what nodes are colored by")
    )


def _comparison_schema() -> _Schema:
    """Return the schema of the comparison."""
    accuracy = {"anyOf": [{"type": "array", "items": _NUMBER}, {"type": "null"}]}
    return _object_of(
        names=(_STRINGS, "names of both models"),
        samples=(_COUNT, "number of samples"),
        accuracy=(accuracy, "top-1 of both in percent, if there are labels"),
        outputs=({"type": "object", "additionalProperties": _MEASURE}, "SQNR by output, in dB"),
        warnings=(_STRINGS, "problems of accuracy and outputs"),
        worst=({"type": "array", "items": _COUNT}, "indices of the rows with most error"),
        findings=(_OBJECTS, "problems of single tensors, as `compare --json` has them"),
        options=(_STRING, "options of all findings"),
        rows=(_OBJECTS, "measures and histograms of each tensor"),
    )


def _schedule_schema() -> _Schema:
    """Return the schema of timeline, cycles and memory plans."""
    parts = _list_of(
        name=(_STRING, "chip1, host1 and so on"),
        chip=(_BOOLEAN, "whether the chip runs it"),
        start=(_MEASURE, "start in cycles"),
        length=(_MEASURE, "duration in cycles; 0 for the host, whose time is not known"),
        detail=(_STRING, "text of the tooltip"),
    )
    slices = _list_of(
        lane=(_COUNT, "index of the lane"),
        name=(_STRING, "layer, or kind of work"),
        kind=({"enum": ["compute", "start", "wait", "copy", "fetch"]}, "kind of work"),
        start=(_COUNT, "start in cycles"),
        length=(_COUNT, "duration in cycles"),
    )
    timeline = _object_of(
        lanes=(_STRINGS, "names of the lanes"),
        parts=(parts, "parts in execution order"),
        slices=(slices, "work of the lanes"),
        total=(_MEASURE, "cycles of a call; null if they are not known"),
        clock_mhz=(_MEASURE, "clock in MHz"),
    )
    buffers = _list_of(
        name=(_STRING, "tensor or area"),
        kind=({"enum": ["tensor", "area", "buffer"]}, "what it holds"),
        offset=(_COUNT, "offset in bytes"),
        bytes=(_COUNT, "size in bytes"),
        first=(_INTEGER, "index of the first layer that uses it"),
        last=(_INTEGER, "index of the last layer that uses it"),
    )
    plans = _list_of(
        part=(_STRING, "name of the part"),
        limit=(_COUNT, "bytes of shared memory"),
        resident=(_COUNT, "bytes of constants that stay there between calls"),
        layers=(_STRINGS, "nodes in execution order"),
        buffers=(buffers, "the plan"),
    )
    return _object_of(
        timeline=({"anyOf": [timeline, {"type": "null"}]}, "a call over time"),
        cycles=(_OBJECTS, "latency of each layer, in cycles"),
        plans=(plans, "memory plan of each chip part"),
    )
