"""JSON Schemas (draft 2020-12) of the files that users write or read: quant.yaml, a plan, the report of `quantize`.

That of quant.yaml is derived from `QuantConfig`, which checks the file. Those of the plan and the report are written
down here; the tests hold real files against them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FILES", "schema_of"]

#: What has a schema -> what it is.
FILES = {
    "quant": "the configuration of `lingeronnx quantize --config`, a YAML file",
    "plan": "the scales that `lingeronnx quantize --save-plan` writes and `--plan` reads",
    "report": "what `lingeronnx quantize --json` prints",
    "timing": "a chip's prices that `lingeronnx profile-board -o` writes and `--timing` reads",
}

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_Schema = dict[str, Any]


def schema_of(what: str) -> _Schema:
    """Return the JSON Schema of `what`, a key of `FILES`."""
    body = {"quant": _quant, "plan": _plan, "report": _report, "timing": _timing}[what]()
    return {"$schema": _DIALECT, "title": what, "description": FILES[what], **body}


def _quant() -> _Schema:
    from ..plan.config import QuantConfig

    found = QuantConfig.model_json_schema()
    return {key: value for key, value in found.items() if key not in ("title", "description")}


def _timing() -> _Schema:
    from ..targets.timing_row import TimingRow

    found = TimingRow.model_json_schema()
    return {key: value for key, value in found.items() if key not in ("title", "description")}


# ---- what schemas are written with -------------------------------------------------------------------------------

_TEXT, _WHOLE, _NUMBER, _TRUTH = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
_COUNT = {"type": "integer", "minimum": 0}


def _told(schema: _Schema, description: str) -> _Schema:
    return {**schema, "description": description}


def _record(fields: dict[str, _Schema], optional: tuple[str, ...] = ()) -> _Schema:
    """Return an object of these fields and no others."""
    required = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def _named(values: _Schema) -> _Schema:
    return {"type": "object", "additionalProperties": values}


def _many(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _maybe(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


# ---- plan --------------------------------------------------------------------------------------------------------


def _plan() -> _Schema:
    positive = {"type": "number", "exclusiveMinimum": 0}
    several = {"type": "array", "items": positive, "minItems": 2}
    tensor = _record(
        {
            "scale": _told({"anyOf": [positive, several]}, "counts per real unit: q = round(x * scale) + zero_point"),
            "bits": {"type": "integer", "minimum": 2, "maximum": 32},
            "axis": _told(_WHOLE, "the axis along which there is a scale for each element, where scale is a list"),
            "zero_point": _told(_WHOLE, "the integer that stands for 0, where it is not 0"),
        },
        ("axis", "zero_point"),
    )
    factor = {"type": "array", "items": positive, "minItems": 1}
    return _record(
        {
            "lingeronnx_plan": _told({"enum": [1, 2]}, "the version of this format"),
            "platform": _TEXT,
            "executor": _told(_TEXT, "the version of the chip's executor; empty where there is none"),
            "mode": {"enum": ["q-value", "max-value"]},
            "tensors": _named(tensor),
            "transforms": _told(
                _named(_record({"factor": factor})),
                "tensors that are stored multiplied, by one factor or by one for each channel",
            ),
            "floats": _told(_named(_TEXT), "nodes that stay in float, and why"),
            "scaled": _told(
                _named(_TEXT),
                "tensors beside a product of the host, and the model's tensors on its other side",
            ),
            "synthetic": _told(_TRUTH, "whether scales come from random inputs; left out where they do not"),
            "settings": _told(
                {"type": "object"},
                "settings that the scales come from, where they are no defaults; left out where nobody knows",
            ),
        },
        ("executor", "transforms", "floats", "scaled", "synthetic", "settings"),
    )


# ---- report ------------------------------------------------------------------------------------------------------


def _part() -> _Schema:
    sizes = dict.fromkeys(("nodes", "macs", "float_operations", "shared", "psram"), _COUNT)
    names = dict.fromkeys(("inputs", "outputs"), _many(_TEXT))
    words = dict.fromkeys(("name", "packer_args", "packer"), _TEXT)
    return _record({**words, "chip": _TRUTH, "runs": _TRUTH, **sizes, **names, "findings": _many(_finding())})


def _merge() -> _Schema:
    return _record({"operator": _TEXT, **dict.fromkeys(("nodes", "chips", "instead"), _many(_TEXT))})


#: Fields that reports of 0.1 do not have, but for the first, which is there with --deploy.
_YOUNGER = ("deployment", "unknown_macs", "doubts", "why_not", "next", "time", "cycles", "merges", "written",
            "lingeronnx_report")  # fmt: skip


def _report() -> _Schema:
    node = _record({"node": _TEXT, "op_type": _TEXT, "why": _TEXT, "macs": _COUNT})
    part = {**dict.fromkeys(("axis", "first", "last"), _COUNT), "cosine": _maybe(_NUMBER), "sqnr": _maybe(_NUMBER)}
    fidelity = {"type": "object", "additionalProperties": _maybe(_NUMBER)}
    return _record(
        {
            "lingeronnx_report": _told({"enum": [1]}, "the version of this format"),
            "model": _told(_TEXT, "the file that was quantized"),
            "output": _told(_TEXT, "the file that was written"),
            "chip_part": _told(_maybe(_TEXT), "the file for the packer, where the host computes a part"),
            "chip_parts": _told(_many(_TEXT), "the files for the packer, where the chip runs several parts"),
            "plan": _told(_maybe(_TEXT), "the file of --save-plan"),
            "written": _told(_many(_TEXT), "all files that were written"),
            "platform": _TEXT,
            "mode": {"enum": ["q-value", "max-value"]},
            "layers": _told(_named(_COUNT), "integer operators, and how many of each"),
            "chip_ready": _TRUTH,
            "integer_macs": _told(
                {"type": "number", "minimum": 0, "maximum": 1}, "share of the multiply-accumulates done in integers"
            ),
            "unknown_macs": _told(
                _named(_COUNT), "operators whose multiply-accumulates cannot be counted, and how many nodes they are"
            ),
            "float_nodes": _told(_many(node), "float operators between integer ones"),
            "host_part": _told(_many(node), "float operators before the first or after the last integer one"),
            "fitted": _told(_many(_record({"node": _TEXT, "what": _TEXT, "cost": _TEXT})), "nodes written otherwise"),
            "packer": _told(_TEXT, "the packer's call, empty without a packer"),
            "packer_args": _TEXT,
            "program": _told(_many(_part()), "the parts in which it runs, where float operators cut the chip's work"),
            "runs": _told(_TEXT, "the same as a line, empty where nothing is cut"),
            "merges": _told(_many(_merge()), "what would let float operators between its parts be the chip's"),
            "notes": _many(_TEXT),
            "findings": _told(_many(_finding()), "what the packer or the chip has against the graph"),
            "cost": _told(_maybe(_cost()), "on the chip; sizes in bytes"),
            "time": _told(_time(), "of one call on the chip"),
            "cycles": _told(_maybe(_saved()), "of a call before and after other forms of the same integers"),
            "names": _told(_named(_TEXT), "tensors with another name in the file"),
            "outputs": _told(_named(fidelity), "of each output: cosine, sqnr in dB (null: infinite) and others"),
            "parts": _told(
                _many(_record({"output": _TEXT, **part})), "of outputs that join tensors: each part likewise"
            ),
            "measured_on": _told(_TEXT, "the data of `outputs`"),
            "doubts": _told(_named(_TEXT), "outputs whose figures say little, and why"),
            "warnings": _many(_TEXT),
            "why_not": _told(_many(_TEXT), "what keeps the graph from being chip-ready"),
            "next": _told(_many(_record({"options": _many(_TEXT), "gives": _TEXT})), "options to try next"),
            "accuracy": _told(_maybe(_accuracy()), "with --eval"),
            "search": _told(_maybe(_search()), "with a wish: --max-drop, --min-sqnr, --max-flash"),
            "training": _told(_many({"type": "object"}), "of `finetune`: the loss of each block and epoch"),
            "scales_taken": _told(_many(_taken()), "scales of a quantized model, or of another tool's plan"),
            "scales_refused": _told(_named(_TEXT), "what such a plan speaks of and was not taken, and why"),
            "deployment": _told({"type": "object"}, "with --deploy: the files for the board"),
        },
        _YOUNGER,
    )


def _finding() -> _Schema:
    return _record(
        {
            "level": _told(
                {"enum": ["packs", "right", "plan", "time"]},
                "the packer refuses; wrong on the chip; written past the plan; too slow",
            ),
            **dict.fromkeys(("node", "rule", "value", "remedy"), _TEXT),
        }
    )


def _cost() -> _Schema:
    sizes = ("weights", "activations", "dma", "shared", "shared_limit", "psram", "psram_limit")
    counts = ("macs", "weights", "activations", "work_area", "dma")
    layer = _record({"node": _TEXT, "op_type": _TEXT, "width": _TEXT, **dict.fromkeys(counts, _COUNT)})
    return _record(
        {
            "layers": _many(layer),
            "macs": _told(_named(_COUNT), "of one sample, by width: bits of data x bits of weights"),
            **dict.fromkeys(sizes, _COUNT),
            "largest": _named(_COUNT),
        }
    )


def _time() -> _Schema:
    ends = ("total", "low", "high")
    sums = dict.fromkeys(("luna", "overhead", "moved", "waits", *ends), _NUMBER)
    counted = ("cycles", "low", "high", "start", "wait", "dma", "moved", "overhead", "fetch")
    layer = _record(
        {
            **dict.fromkeys(("name", "operator", "node"), _TEXT),
            **dict.fromkeys(counted, _NUMBER),
            "priced": _TRUTH,
            "calls": _COUNT,
        }
    )
    work = _record({"name": _TEXT, "what": _TEXT, "bytes": _COUNT, "bound": _maybe(_NUMBER)})
    run = _record(
        {
            "platform": _TEXT,
            **sums,
            "calls": _told(_COUNT, "kernels that are called"),
            "layers": _told(_many(layer), "as the chip runs them, after the packer's fusions"),
            "unpriced": _told(_many(work), "work whose cycles nobody has published; bound: cycles at most"),
        }
    )
    return _record(
        {
            "unknown": _told(_TEXT, "why no cycles are known; empty where they are, or the chip does not run it"),
            "clock_mhz": _maybe(_NUMBER),
            "budget_ms": _maybe(_NUMBER),
            "too_slow": _maybe(_finding()),
            "milliseconds": _maybe(_record(dict.fromkeys(ends, _NUMBER))),
            "cycles": _maybe(run),
        }
    )


def _saved() -> _Schema:
    ends = {"before": _COUNT, "after": _COUNT}
    return _record({**ends, "platform": _TEXT, "assumed": _told(_TRUTH, "by another chip's prices")})


def _accuracy() -> _Schema:
    return _record(
        {
            "metric": _TEXT,
            "unit": _TEXT,
            "float": _maybe(_NUMBER),
            "integer": _maybe(_NUMBER),
            "drop": _maybe(_NUMBER),
            "samples": _COUNT,
        }
    )


def _search() -> _Schema:
    trial = _record(
        {
            "what": _TEXT,
            "options": _many(_TEXT),
            "value": _maybe(_NUMBER),
            "missing": _maybe(_NUMBER),
            "met": _TRUTH,
            "chosen": _TRUTH,
            "bytes": _maybe(_COUNT),
            "macs": _maybe(_named(_COUNT)),
            "work": _told(_maybe(_NUMBER), "the product of the widths on average, 1 is 8x8 bits"),
            "cycles": _told(_maybe(_NUMBER), "of a call on the chip, where its prices are known"),
            "flash": _told(_maybe(_COUNT), "bytes of the constants as the packages store them"),
            "seconds": _NUMBER,
            "why": _told(_TEXT, "why the attempt is not allowed, empty where it is"),
        },
        ("cycles", "flash"),  # younger than 0.1
    )
    return _record(
        {
            "goal": _TEXT,
            "unit": _TEXT,
            "met": _TRUTH,
            "stopped": _TEXT,
            "options": _many(_TEXT),
            "float": _maybe(_NUMBER),
            "wanted": _maybe(_NUMBER),
            "weight_bits": _told(_named(_COUNT), "{layer of the chosen attempt: bits of its weights}"),
            "trials": _many(trial),
        },
        ("weight_bits",),  # younger than 0.1
    )


def _taken() -> _Schema:
    return _record(
        {
            "tensor": _TEXT,
            "scale": _told(_NUMBER, "as it came, counts per real unit"),
            "zero_point": _WHOLE,
            "bits": _COUNT,
            "held_scale": {"anyOf": [_NUMBER, _many(_NUMBER)]},
            "held_bits": _COUNT,
            "held_zero_point": _WHOLE,
            "bits_lost": _told(_maybe(_NUMBER), "of resolution, of an activation"),
            "sqnr": _told(_maybe(_NUMBER), "in dB, of a weight whose integers changed"),
            "kept": _TRUTH,
        }
    )
