"""JSON Schemas (draft 2020-12) of the files that users write or read.

Quant.yaml, a plan, the report of `quantize`.
That of quant.yaml is derived from `QuantConfig`, which checks the file. Those of the plan and the
report are written down here; the tests hold real files against them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SCHEMA_DESCRIPTIONS", "make_json_schema"]

#: What has a schema -> what it is.
SCHEMA_DESCRIPTIONS = {
    "quant": "the configuration of `lingeronnx quantize --config`, a YAML file",
    "plan": "the scales that `lingeronnx quantize --save-plan` writes and `--plan` reads",
    "report": "what `lingeronnx quantize --json` prints",
    "timing": "a chip's prices that `lingeronnx profile-board -o` writes and `--timing` reads",
}

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_Schema = dict[str, Any]


def make_json_schema(what: str) -> _Schema:
    """Return the JSON Schema of `what`, a key of `SCHEMA_DESCRIPTIONS`."""
    body = {
        "quant": _config_schema,
        "plan": _plan_schema,
        "report": _report_schema,
        "timing": _timing_schema,
    }[what]()
    return {"$schema": _DIALECT, "title": what, "description": SCHEMA_DESCRIPTIONS[what], **body}


def _config_schema() -> _Schema:
    from ..plan.config import QuantConfig

    found = QuantConfig.model_json_schema()
    return {key: value for key, value in found.items() if key not in ("title", "description")}


def _timing_schema() -> _Schema:
    from ..targets.timing_calibration import TimingCalibration

    found = TimingCalibration.model_json_schema()
    return {key: value for key, value in found.items() if key not in ("title", "description")}


# ---- what schemas are written with -------------------------------------------------------------------------------

_STRING, _INTEGER, _NUMBER, _BOOLEAN = (
    {"type": kind} for kind in ("string", "integer", "number", "boolean")
)
_COUNT = {"type": "integer", "minimum": 0}


def _with_description(schema: _Schema, description: str) -> _Schema:
    return {**schema, "description": description}


def _object_of(fields: dict[str, _Schema], optional: tuple[str, ...] = ()) -> _Schema:
    """Return an object of these fields and no others."""
    required = [name for name in fields if name not in optional]
    return {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


def _map_of(values: _Schema) -> _Schema:
    return {"type": "object", "additionalProperties": values}


def _array_of(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _nullable(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


# ---- plan --------------------------------------------------------------------------------------------------------


def _plan_schema() -> _Schema:
    positive = {"type": "number", "exclusiveMinimum": 0}
    several = {"type": "array", "items": positive, "minItems": 2}
    tensor = _object_of(
        {
            "scale": _with_description(
                {"anyOf": [positive, several]},
                "counts per real unit: q = round(x * scale) + zero_point",
            ),
            "bits": {"type": "integer", "minimum": 2, "maximum": 32},
            "axis": _with_description(
                _INTEGER,
                "the axis along which there is a scale for each element, where scale is a list",
            ),
            "zero_point": _with_description(
                _INTEGER, "the integer that stands for 0, where it is not 0"
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
                _STRING, "the version of the chip's executor; empty where there is none"
            ),
            "mode": {"enum": ["q-value", "max-value"]},
            "tensors": _map_of(tensor),
            "transforms": _with_description(
                _map_of(_object_of({"factor": factor})),
                "tensors that are stored multiplied, by one factor or by one for each channel",
            ),
            "floats": _with_description(_map_of(_STRING), "nodes that stay in float, and why"),
            "scaled": _with_description(
                _map_of(_STRING),
                "tensors beside a product of the host, and the model's tensors on its other side",
            ),
            "synthetic": _with_description(
                _BOOLEAN, "whether scales come from random inputs; left out where they do not"
            ),
            "settings": _with_description(
                {"type": "object"},
                (
                    "settings that the scales come from, where they are no defaults; left out where "
                    "nobody knows"
                ),
            ),
        },
        ("executor", "transforms", "floats", "scaled", "synthetic", "settings"),
    )


# ---- report ------------------------------------------------------------------------------------------------------


def _part_schema() -> _Schema:
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
    return _object_of(
        {"operator": _STRING, **dict.fromkeys(("nodes", "chips", "instead"), _array_of(_STRING))}
    )


#: Fields that reports of 0.1 do not have, but for the first, which is there with --deploy.
_OPTIONAL_REPORT_FIELDS = (
    "deployment",
    "unknown_macs",
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
                _nullable(_STRING), "the file for the packer, where the host computes a part"
            ),
            "chip_parts": _with_description(
                _array_of(_STRING), "the files for the packer, where the chip runs several parts"
            ),
            "plan": _with_description(_nullable(_STRING), "the file of --save-plan"),
            "written": _with_description(_array_of(_STRING), "all files that were written"),
            "platform": _STRING,
            "mode": {"enum": ["q-value", "max-value"]},
            "layers": _with_description(_map_of(_COUNT), "integer operators, and how many of each"),
            "chip_ready": _BOOLEAN,
            "integer_macs": _with_description(
                {"type": "number", "minimum": 0, "maximum": 1},
                "share of the multiply-accumulates done in integers",
            ),
            "unknown_macs": _with_description(
                _map_of(_COUNT),
                (
                    "operators whose multiply-accumulates cannot be counted, and how many nodes they "
                    "are"
                ),
            ),
            "float_nodes": _with_description(
                _array_of(node), "float operators between integer ones"
            ),
            "host_part": _with_description(
                _array_of(node), "float operators before the first or after the last integer one"
            ),
            "fitted": _with_description(
                _array_of(_object_of({"node": _STRING, "what": _STRING, "cost": _STRING})),
                "nodes written otherwise",
            ),
            "packer": _with_description(_STRING, "the packer's call, empty without a packer"),
            "packer_args": _STRING,
            "program": _with_description(
                _array_of(_part_schema()),
                "the parts in which it runs, where float operators cut the chip's work",
            ),
            "runs": _with_description(_STRING, "the same as a line, empty where nothing is cut"),
            "merges": _with_description(
                _array_of(_merge_schema()),
                "what would let float operators between its parts be the chip's",
            ),
            "notes": _array_of(_STRING),
            "findings": _with_description(
                _array_of(_finding_schema()), "what the packer or the chip has against the graph"
            ),
            "cost": _with_description(_nullable(_cost_schema()), "on the chip; sizes in bytes"),
            "time": _with_description(_time_schema(), "of one call on the chip"),
            "cycles": _with_description(
                _nullable(_saved_cycles_schema()),
                "of a call before and after other forms of the same integers",
            ),
            "names": _with_description(_map_of(_STRING), "tensors with another name in the file"),
            "outputs": _with_description(
                _map_of(fidelity), "of each output: cosine, sqnr in dB (null: infinite) and others"
            ),
            "parts": _with_description(
                _array_of(_object_of({"output": _STRING, **part})),
                "of outputs that join tensors: each part likewise",
            ),
            "measured_on": _with_description(_STRING, "the data of `outputs`"),
            "doubts": _with_description(
                _map_of(_STRING), "outputs whose figures say little, and why"
            ),
            "warnings": _array_of(_STRING),
            "why_not": _with_description(
                _array_of(_STRING), "what keeps the graph from being chip-ready"
            ),
            "next": _with_description(
                _array_of(_object_of({"options": _array_of(_STRING), "gives": _STRING})),
                "options to try next",
            ),
            "accuracy": _with_description(_nullable(_accuracy_schema()), "with --eval"),
            "search": _with_description(
                _nullable(_search_schema()), "with a wish: --max-drop, --min-sqnr, --max-flash"
            ),
            "training": _with_description(
                _array_of({"type": "object"}), "of `finetune`: the loss of each block and epoch"
            ),
            "scales_taken": _with_description(
                _array_of(_imported_scale_schema()),
                "scales of a quantized model, or of another tool's plan",
            ),
            "scales_refused": _with_description(
                _map_of(_STRING), "what such a plan speaks of and was not taken, and why"
            ),
            "deployment": _with_description(
                {"type": "object"}, "with --deploy: the files for the board"
            ),
        },
        _OPTIONAL_REPORT_FIELDS,
    )


def _finding_schema() -> _Schema:
    return _object_of(
        {
            "level": _with_description(
                {"enum": ["packs", "right", "plan", "time"]},
                "the packer refuses; wrong on the chip; written past the plan; too slow",
            ),
            **dict.fromkeys(("node", "rule", "value", "remedy"), _STRING),
        }
    )


def _cost_schema() -> _Schema:
    sizes = ("weights", "activations", "dma", "shared", "shared_limit", "psram", "psram_limit")
    counts = ("macs", "weights", "activations", "work_area", "dma")
    layer = _object_of(
        {"node": _STRING, "op_type": _STRING, "width": _STRING, **dict.fromkeys(counts, _COUNT)}
    )
    return _object_of(
        {
            "layers": _array_of(layer),
            "macs": _with_description(
                _map_of(_COUNT), "of one sample, by width: bits of data x bits of weights"
            ),
            **dict.fromkeys(sizes, _COUNT),
            "largest": _map_of(_COUNT),
        }
    )


def _time_schema() -> _Schema:
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
            "calls": _with_description(_COUNT, "kernels that are called"),
            "layers": _with_description(
                _array_of(layer), "as the chip runs them, after the packer's fusions"
            ),
            "unpriced": _with_description(
                _array_of(work), "work whose cycles nobody has published; bound: cycles at most"
            ),
        }
    )
    return _object_of(
        {
            "unknown": _with_description(
                _STRING,
                "why no cycles are known; empty where they are, or the chip does not run it",
            ),
            "clock_mhz": _nullable(_NUMBER),
            "budget_ms": _nullable(_NUMBER),
            "too_slow": _nullable(_finding_schema()),
            "milliseconds": _nullable(_object_of(dict.fromkeys(ends, _NUMBER))),
            "cycles": _nullable(run),
        }
    )


def _saved_cycles_schema() -> _Schema:
    ends = {"before": _COUNT, "after": _COUNT}
    return _object_of(
        {
            **ends,
            "platform": _STRING,
            "assumed": _with_description(_BOOLEAN, "by another chip's prices"),
        }
    )


def _accuracy_schema() -> _Schema:
    return _object_of(
        {
            "metric": _STRING,
            "unit": _STRING,
            "float": _nullable(_NUMBER),
            "integer": _nullable(_NUMBER),
            "drop": _nullable(_NUMBER),
            "samples": _COUNT,
        }
    )


def _search_schema() -> _Schema:
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
                _nullable(_NUMBER), "the product of the widths on average, 1 is 8x8 bits"
            ),
            "cycles": _with_description(
                _nullable(_NUMBER), "of a call on the chip, where its prices are known"
            ),
            "flash": _with_description(
                _nullable(_COUNT), "bytes of the constants as the packages store them"
            ),
            "seconds": _NUMBER,
            "why": _with_description(_STRING, "why the attempt is not allowed, empty where it is"),
        },
        ("cycles", "flash"),  # younger than 0.1
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
                _map_of(_COUNT), "{layer of the chosen attempt: bits of its weights}"
            ),
            "trials": _array_of(trial),
        },
        ("weight_bits",),  # younger than 0.1
    )


def _imported_scale_schema() -> _Schema:
    return _object_of(
        {
            "tensor": _STRING,
            "scale": _with_description(_NUMBER, "as it came, counts per real unit"),
            "zero_point": _INTEGER,
            "bits": _COUNT,
            "held_scale": {"anyOf": [_NUMBER, _array_of(_NUMBER)]},
            "held_bits": _COUNT,
            "held_zero_point": _INTEGER,
            "bits_lost": _with_description(_nullable(_NUMBER), "of resolution, of an activation"),
            "sqnr": _with_description(
                _nullable(_NUMBER), "in dB, of a weight whose integers changed"
            ),
            "kept": _BOOLEAN,
        }
    )
