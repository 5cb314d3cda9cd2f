"""JSON Schemas (draft 2020-12) of configuration, plan, report and timing files.

The schemas of quant.yaml and of timing files are derived from the classes that check these files.
Those of the plan and the report are written here; the tests validate real files against them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SCHEMA_DESCRIPTIONS", "make_json_schema"]

#: Name of each schema -> description.
SCHEMA_DESCRIPTIONS = {
    "quant": "the configuration of `lingeronnx quantize --config`, a YAML or JSON file",
    "plan": "the scales that `lingeronnx quantize --save-plan` writes and `--plan` reads",
    "report": "the output of `lingeronnx quantize --json`",
    "timing": "the kernel costs that `lingeronnx profile-board -o` writes and `--timing` reads",
}

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_Schema = dict[str, Any]


def make_json_schema(name: str) -> _Schema:
    """Return the JSON Schema with this name, a key of `SCHEMA_DESCRIPTIONS`.

    Raises KeyError for another name.
    """
    body = {
        "quant": _config_schema,
        "plan": _plan_schema,
        "report": _report_schema,
        "timing": _timing_schema,
    }[name]()
    return {"$schema": _DIALECT, "title": name, "description": SCHEMA_DESCRIPTIONS[name], **body}


def _config_schema() -> _Schema:
    """Return the schema of a settings file, from `QuantConfig`, without title and description."""
    from .config import QuantConfig

    schema = QuantConfig.model_json_schema()
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


def _timing_schema() -> _Schema:
    """Return the schema of a file of kernel timings, from `TimingCalibration`.

    Without title and description.
    """
    from ..targets.timing_calibration import TimingCalibration

    schema = TimingCalibration.model_json_schema()
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


# ---- schema elements -----------------------------------------------------------------------------

_STRING, _INTEGER, _NUMBER, _BOOLEAN = (
    {"type": kind} for kind in ("string", "integer", "number", "boolean")
)
_COUNT = {"type": "integer", "minimum": 0}


def _with_description(schema: _Schema, description: str) -> _Schema:
    """Return a copy of `schema` with a description."""
    return {**schema, "description": description}


def _object_of(fields: dict[str, _Schema], optional: tuple[str, ...] = ()) -> _Schema:
    """Return the schema of an object with only the properties `fields` (name -> schema).

    All are required except those in `optional`.
    """
    required = [name for name in fields if name not in optional]
    return {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


def _map_of(values: _Schema) -> _Schema:
    """Return the schema of an object with any names, whose values match `values`."""
    return {"type": "object", "additionalProperties": values}


def _array_of(items: _Schema) -> _Schema:
    """Return the schema of an array whose elements match `items`."""
    return {"type": "array", "items": items}


def _nullable(schema: _Schema) -> _Schema:
    """Return the schema of a value that matches `schema` or is null."""
    return {"anyOf": [schema, {"type": "null"}]}


# ---- plan ----------------------------------------------------------------------------------------


def _plan_schema() -> _Schema:
    """Return the schema of a plan file."""
    positive = {"type": "number", "exclusiveMinimum": 0}
    several = {"type": "array", "items": positive, "minItems": 2}
    tensor = _object_of(
        {
            "scale": _with_description(
                {"anyOf": [positive, several]},
                "integer steps per unit: q = round(x * scale) + zero_point",
            ),
            "bits": {"type": "integer", "minimum": 2, "maximum": 32},
            "axis": _with_description(
                _INTEGER,
                "axis of the scales if `scale` is a list",
            ),
            "zero_point": _with_description(
                _INTEGER, "integer that represents 0.0; omitted if it is 0"
            ),
        },
        ("axis", "zero_point"),
    )
    factor = {"type": "array", "items": positive, "minItems": 1}
    return _object_of(
        {
            "lingeronnx_plan": _with_description({"enum": [1, 2]}, "the version of this format"),
            "platform": _STRING,
            "executor": _with_description(
                _STRING, "version of the chip's executor; empty if there is none"
            ),
            "mode": {"enum": ["q-value", "max-value"]},
            "tensors": _map_of(tensor),
            "transforms": _with_description(
                _map_of(_object_of({"factor": factor})),
                "tensors that are stored multiplied by one factor, or by one per channel",
            ),
            "floats": _with_description(
                _map_of(_STRING), "nodes that stay in float, with the reason"
            ),
            "scaled": _with_description(
                _map_of(_STRING),
                "tensors next to a product on the host, with the model's tensor on its other side",
            ),
            "synthetic": _with_description(
                _BOOLEAN, "whether scales come from random inputs; omitted if not"
            ),
            "settings": _with_description(
                {"type": "object"},
                (
                    "non-default settings that the scales were computed with; omitted if they "
                    "are unknown"
                ),
            ),
        },
        ("executor", "transforms", "floats", "scaled", "synthetic", "settings"),
    )


# ---- report --------------------------------------------------------------------------------------


def _part_schema() -> _Schema:
    """Return the schema of one part of a program in a report, with all properties required."""
    sizes = dict.fromkeys(("nodes", "macs", "float_operations", "shared", "psram"), _COUNT)
    names = dict.fromkeys(("inputs", "outputs"), _array_of(_STRING))
    words = dict.fromkeys(("name", "packer_args", "packer"), _STRING)
    return _object_of(
        {
            **words,
            "chip": _BOOLEAN,
            "runs": _BOOLEAN,
            **sizes,
            **names,
            "findings": _array_of(_finding_schema()),
        }
    )


def _merge_schema() -> _Schema:
    """Return the schema of a change that lets the chip run an operator between its parts."""
    return _object_of(
        {"operator": _STRING, **dict.fromkeys(("nodes", "chips", "instead"), _array_of(_STRING))}
    )


#: Fields that reports of version 0.1 lack, except for the first one, which requires --deploy.
_OPTIONAL_REPORT_FIELDS = (
    "deployment",
    "unknown_macs",
    "macs",
    "doubts",
    "why_not",
    "next",
    "time",
    "cycles",
    "merges",
    "written",
    "lingeronnx_report",
)


def _report_schema() -> _Schema:
    """Return the schema of the JSON report of `quantize`."""
    node = _object_of({"node": _STRING, "op_type": _STRING, "why": _STRING, "macs": _COUNT})
    part = {
        **dict.fromkeys(("axis", "first", "last"), _COUNT),
        "cosine": _nullable(_NUMBER),
        "sqnr": _nullable(_NUMBER),
    }
    fidelity = {"type": "object", "additionalProperties": _nullable(_NUMBER)}
    return _object_of(
        {
            "lingeronnx_report": _with_description({"enum": [1]}, "the version of this format"),
            "model": _with_description(_STRING, "the file that was quantized"),
            "output": _with_description(_STRING, "the file that was written"),
            "chip_part": _with_description(
                _nullable(_STRING), "file for the packer, if the host computes a part"
            ),
            "chip_parts": _with_description(
                _array_of(_STRING), "files for the packer, if the chip runs several parts"
            ),
            "plan": _with_description(_nullable(_STRING), "the file of --save-plan"),
            "written": _with_description(_array_of(_STRING), "all files that were written"),
            "platform": _STRING,
            "mode": {"enum": ["q-value", "max-value"]},
            "layers": _with_description(
                _map_of(_COUNT), "number of nodes of each integer operator"
            ),
            "chip_ready": _BOOLEAN,
            "chip_ready_basis": _with_description(
                {"enum": ["", "computed", "assumed"]},
                "from measured rules, or from facts that were not measured; empty without a claim",
            ),
            "integer_macs": _with_description(
                {"type": "number", "minimum": 0, "maximum": 1},
                "fraction of the multiply-accumulates that are computed in integers",
            ),
            "unknown_macs": _with_description(
                _map_of(_COUNT),
                ("number of nodes of each operator whose multiply-accumulates cannot be counted"),
            ),
            "macs": _with_description(
                _object_of(
                    {
                        **dict.fromkeys(("chip", "host_integer", "host_float"), _COUNT),
                        "unknown": _map_of(_COUNT),
                    }
                ),
                "multiply-accumulates of one sample by what computes them, and the number of nodes "
                "of each operator for which they are unknown",
            ),
            "float_nodes": _with_description(
                _array_of(node), "float operators between integer ones"
            ),
            "host_part": _with_description(
                _array_of(node), "float operators before the first or after the last integer one"
            ),
            "fitted": _with_description(
                _array_of(
                    _object_of(
                        {
                            "node": _STRING,
                            "what": _STRING,
                            "cost": _STRING,
                            "checked_samples": _with_description(
                                _COUNT, "samples on which the outputs were compared: equal"
                            ),
                        }
                    )
                ),
                "rewritten nodes",
            ),
            "packer": _with_description(_STRING, "packer command; empty without a packer"),
            "packer_args": _STRING,
            "program": _with_description(
                _array_of(_part_schema()),
                "parts of the program, if float operators split the chip's work",
            ),
            "runs": _with_description(
                _STRING, "the parts as a line of text; empty if there is only one"
            ),
            "merges": _with_description(
                _array_of(_merge_schema()),
                "changes that would let the chip run float operators between its parts",
            ),
            "notes": _array_of(_STRING),
            "findings": _with_description(
                _array_of(_finding_schema()), "limits that the graph exceeds"
            ),
            "cost": _with_description(_nullable(_cost_schema()), "on the chip; sizes in bytes"),
            "time": _with_description(_time_schema(), "latency of one call on the chip"),
            "cycles": _with_description(
                _nullable(_saved_cycles_schema()),
                "cycles of a call before and after rewrites that keep all integers",
            ),
            "names": _with_description(_map_of(_STRING), "names in the file of renamed tensors"),
            "outputs": _with_description(
                _map_of(fidelity),
                "fidelity of each output: cosine, sqnr in dB (null: infinite) and others",
            ),
            "parts": _with_description(
                _array_of(_object_of({"output": _STRING, **part})),
                "fidelity of each part of outputs that concatenate tensors",
            ),
            "measured_on": _with_description(_STRING, "the data of `outputs`"),
            "doubts": _with_description(
                _map_of(_STRING), "outputs whose fidelity is not meaningful, with the reason"
            ),
            "warnings": _array_of(_STRING),
            "why_not": _with_description(
                _array_of(_STRING), "reasons why the graph is not ready for the chip"
            ),
            "next": _with_description(
                _array_of(_object_of({"options": _array_of(_STRING), "gives": _STRING})),
                "options to try next",
            ),
            "accuracy": _with_description(_nullable(_accuracy_schema()), "with --eval"),
            "search": _with_description(
                _nullable(_search_schema()),
                "with a requirement: --max-drop, --min-sqnr, --max-flash",
            ),
            "training": _with_description(
                _array_of({"type": "object"}), "of `finetune`: the loss of each block and epoch"
            ),
            "scales_taken": _with_description(
                _array_of(_imported_scale_schema()),
                "scales imported from a quantized model or another tool's file",
            ),
            "scales_refused": _with_description(
                _map_of(_STRING), "entries of such a file that were not imported, with the reason"
            ),
            "deployment": _with_description(
                {"type": "object"}, "with --deploy: the files for the board"
            ),
        },
        _OPTIONAL_REPORT_FIELDS,
    )


def _finding_schema() -> _Schema:
    """Return the schema of a finding: its level, node, rule, value and remedy, all required."""
    return _object_of(
        {
            "level": _with_description(
                {"enum": ["packs", "right", "plan", "time"]},
                "does not pack; wrong on the chip; writes past the memory plan; too slow",
            ),
            "basis": _with_description(
                {"enum": ["measured", "read"]},
                "rules are measured on the vendor's tools, or only read in their sources",
            ),
            **dict.fromkeys(("node", "rule", "value", "remedy"), _STRING),
        }
    )


def _cost_schema() -> _Schema:
    """Return the schema of a report's cost: memory in bytes and MACs, in total and by layer."""
    sizes = ("weights", "activations", "dma", "shared", "shared_limit", "psram", "psram_limit")
    counts = ("macs", "weights", "activations", "work_area", "dma")
    layer = _object_of(
        {"node": _STRING, "op_type": _STRING, "width": _STRING, **dict.fromkeys(counts, _COUNT)}
    )
    return _object_of(
        {
            "layers": _array_of(layer),
            "macs": _with_description(
                _map_of(_COUNT), "of one sample, by width: activation bits x weight bits"
            ),
            **dict.fromkeys(sizes, _COUNT),
            "largest": _map_of(_COUNT),
        }
    )


def _time_schema() -> _Schema:
    """Return the schema of a report's latency: cycles in total and by layer, and milliseconds.

    Cycles and milliseconds are null if they are unknown.
    """
    ends = ("total", "low", "high")
    sums = dict.fromkeys(("luna", "overhead", "moved", "waits", *ends), _NUMBER)
    counted = ("cycles", "low", "high", "start", "wait", "dma", "moved", "overhead", "fetch")
    layer = _object_of(
        {
            **dict.fromkeys(("name", "operator", "node"), _STRING),
            **dict.fromkeys(counted, _NUMBER),
            "priced": _BOOLEAN,
            "calls": _COUNT,
        }
    )
    work = _object_of(
        {"name": _STRING, "what": _STRING, "bytes": _COUNT, "bound": _nullable(_NUMBER)}
    )
    run = _object_of(
        {
            "platform": _STRING,
            **sums,
            "calls": _with_description(_COUNT, "number of kernel calls"),
            "layers": _with_description(
                _array_of(layer), "layers in execution order, after the packer's fusions"
            ),
            "unpriced": _with_description(
                _array_of(work), "work without a cost model; bound: upper bound of its cycles"
            ),
        }
    )
    return _object_of(
        {
            "unknown": _with_description(
                _STRING,
                "reason why the cycles are unknown; empty if they are known or not needed",
            ),
            "clock_mhz": _nullable(_NUMBER),
            "budget_ms": _nullable(_NUMBER),
            "too_slow": _nullable(_finding_schema()),
            "milliseconds": _nullable(_object_of(dict.fromkeys(ends, _NUMBER))),
            "cycles": _nullable(run),
        }
    )


def _saved_cycles_schema() -> _Schema:
    """Return the schema of the cycles before and after rewrites, on `platform`."""
    ends = {"before": _COUNT, "after": _COUNT}
    return _object_of(
        {
            **ends,
            "platform": _STRING,
            "assumed": _with_description(
                _BOOLEAN, "whether they are estimated with another chip's kernel costs"
            ),
            "checked_samples": _with_description(
                _COUNT, "samples on which both gave the same integers; 0 if not compared"
            ),
        }
    )


def _accuracy_schema() -> _Schema:
    """Return the schema of the accuracy in float and in integers; each may be null."""
    return _object_of(
        {
            "metric": _STRING,
            "unit": _STRING,
            "float": _nullable(_NUMBER),
            "integer": _nullable(_NUMBER),
            "drop": _nullable(_NUMBER),
            "drop_standard_error": _with_description(
                _nullable(_NUMBER), "from the samples that only one of both models has correct"
            ),
            "samples": _COUNT,
        },
        optional=("drop_standard_error",),
    )


def _search_schema() -> _Schema:
    """Return the schema of a search in a report: its goal, its outcome, and all attempts."""
    trial = _object_of(
        {
            "what": _STRING,
            "options": _array_of(_STRING),
            "value": _nullable(_NUMBER),
            "missing": _nullable(_NUMBER),
            "met": _BOOLEAN,
            "chosen": _BOOLEAN,
            "bytes": _nullable(_COUNT),
            "macs": _nullable(_map_of(_COUNT)),
            "work": _with_description(
                _nullable(_NUMBER), "average product of the widths, relative to 8x8 bits"
            ),
            "cycles": _with_description(
                _nullable(_NUMBER), "cycles of a call on the chip, if its kernel costs are known"
            ),
            "flash": _with_description(
                _nullable(_COUNT),
                "bytes of the constants as stored in the packages, without host parts and code",
            ),
            "seconds": _NUMBER,
            "why": _with_description(
                _STRING, "reason why the attempt is not allowed; empty if it is"
            ),
        },
        ("cycles", "flash"),  # added after version 0.1
    )
    return _object_of(
        {
            "goal": _STRING,
            "unit": _STRING,
            "met": _BOOLEAN,
            "stopped": _STRING,
            "options": _array_of(_STRING),
            "float": _nullable(_NUMBER),
            "wanted": _nullable(_NUMBER),
            "weight_bits": _with_description(
                _map_of(_COUNT), "weight bits of each layer of the selected attempt"
            ),
            "trials": _array_of(trial),
        },
        ("weight_bits",),  # added after version 0.1
    )


def _imported_scale_schema() -> _Schema:
    """Return the schema of a scale imported from a file, with the one used instead (``held_``)."""
    return _object_of(
        {
            "tensor": _STRING,
            "scale": _with_description(_NUMBER, "scale in the file, in integer steps per unit"),
            "zero_point": _INTEGER,
            "bits": _COUNT,
            "held_scale": {"anyOf": [_NUMBER, _array_of(_NUMBER)]},
            "held_bits": _COUNT,
            "held_zero_point": _INTEGER,
            "bits_lost": _with_description(
                _nullable(_NUMBER), "lost bits of resolution of an activation"
            ),
            "sqnr": _with_description(
                _nullable(_NUMBER), "SQNR in dB of a weight whose integers changed"
            ),
            "kept": _BOOLEAN,
        }
    )
