"""JSON Schemas (draft 2020-12) of configuration, plan, report, page and timing files.

The schemas of quant.yaml and of timing files are derived from the classes that check these files.
Those of the plan and the report are written here; the tests validate real files against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .page_schema import make_page_schema
from .settings import SETTINGS

__all__ = ["SCHEMA_DESCRIPTIONS", "make_json_schema"]

#: Name of each schema -> description.
SCHEMA_DESCRIPTIONS = {
    "quant": "the configuration of `lingeronnx quantize --config`, a YAML or JSON file",
    "plan": "the scales that `lingeronnx quantize --save-plan` writes and `--plan` reads",
    "report": "the output of `lingeronnx quantize --json`",
    "page": "the data of a report page, the file report.json of `lingeronnx report`",
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
        "page": make_page_schema,
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


def _fields(schema: _Schema, **descriptions: str) -> dict[str, _Schema]:
    """Return {name: `schema` with the description} for several fields of the same kind."""
    return {name: _with_description(schema, text) for name, text in descriptions.items()}


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


def _mode_schema() -> _Schema:
    """Return the schema of the setting `mode`."""
    setting = SETTINGS["mode"]
    return _with_description({"enum": list(setting.choices)}, setting.description)


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
            "bits": _with_description(
                {"type": "integer", "minimum": 2, "maximum": 32}, "width of the integers"
            ),
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
    factor = _with_description(
        {"type": "array", "items": positive, "minItems": 1},
        "factor of the tensor, or one per channel",
    )
    return _object_of(
        {
            "lingeronnx_plan": _with_description({"enum": [1, 2]}, "the version of this format"),
            "platform": _with_description(_STRING, "the platform that the scales are for"),
            "executor": _with_description(
                _STRING, "version of the chip's executor; empty if there is none"
            ),
            "mode": _mode_schema(),
            "tensors": _with_description(
                _map_of(tensor), "quantization parameters of each tensor by name"
            ),
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
    return _object_of(
        {
            **_fields(
                _STRING,
                name="chip1, host1 and so on",
                packer_args="arguments for the packer; empty for a host part",
                packer="packer command for the files that were written",
            ),
            **_fields(
                _BOOLEAN,
                chip="whether the part runs on the chip",
                runs="whether the packer accepts a chip part and the chip computes it correctly",
            ),
            **_fields(
                _COUNT,
                nodes="number of nodes",
                macs="multiply-accumulates of a chip part for one sample",
                float_operations="float operations of a host part for one sample",
                shared="bytes of shared memory of a chip part",
                psram="bytes of PSRAM of a chip part",
            ),
            **_fields(
                _array_of(_STRING),
                inputs="names of its input tensors in the file",
                outputs="names of its output tensors in the file",
            ),
            "findings": _with_description(_array_of(_finding_schema()), "limits that it exceeds"),
        }
    )


def _merge_schema() -> _Schema:
    """Return the schema of a change that lets the chip run an operator between its parts."""
    return _object_of(
        {
            "operator": _with_description(_STRING, "operator type"),
            **_fields(
                _array_of(_STRING),
                nodes="its nodes that stay in float",
                chips="other chips that support all of these nodes",
                instead="activation functions that this chip supports in their place",
            ),
        }
    )


#: Fields that reports of version 0.1 lack, except for the first one, which requires --deploy.
_OPTIONAL_REPORT_FIELDS = (
    "deployment",
    "steps",
    "versions",
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
    node = _object_of(
        {
            **_fields(
                _STRING,
                node="name of the node",
                op_type="its operator type",
                why="reason why it stays in float",
            ),
            "macs": _with_description(_COUNT, "its multiply-accumulates for one sample"),
        }
    )
    part = {
        "output": _with_description(_STRING, "name of the graph output"),
        **_fields(
            _COUNT,
            axis="axis of the concatenation",
            first="first index of the part on this axis",
            last="last index of the part on this axis",
        ),
        **_fields(
            _nullable(_NUMBER),
            cosine="cosine similarity to the float model",
            sqnr="SQNR in dB; null: infinite",
        ),
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
            "platform": _with_description(_STRING, "the platform that the graph is for"),
            "mode": _mode_schema(),
            "layers": _with_description(
                _map_of(_COUNT), "number of nodes of each integer operator"
            ),
            "chip_ready": _with_description(
                _BOOLEAN,
                "whether no float operator stands between integer ones, the packer accepts the "
                "graph, and the chip computes it correctly",
            ),
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
                        **_fields(
                            _COUNT,
                            chip="on the chip",
                            host_integer="on the host, in integers",
                            host_float="on the host, in float",
                        ),
                        "unknown": _with_description(
                            _map_of(_COUNT), "number of nodes of each operator without a count"
                        ),
                        "executed": _with_description(
                            _COUNT, "of the graph as it runs; rewrites can add and remove some"
                        ),
                    },
                    optional=("executed",),  # versions 0.1 and 0.2 do not write it
                ),
                "multiply-accumulates of one sample of the model by what computes them, and the "
                "number of nodes of each operator for which they are unknown",
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
                            **_fields(
                                _STRING,
                                node="name of the node",
                                what="description of the change",
                                cost="exact, or what the rewrite costs",
                            ),
                            "checked_samples": _with_description(
                                _COUNT, "samples on which the outputs were compared: equal"
                            ),
                        }
                    )
                ),
                "rewritten nodes",
            ),
            "packer": _with_description(_STRING, "packer command; empty without a packer"),
            "packer_args": _with_description(
                _STRING, "arguments for the packer; empty without a packer"
            ),
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
            "notes": _with_description(
                _array_of(_STRING), "remarks of the steps, one line of text each"
            ),
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
                _array_of(_object_of(part)),
                "fidelity of each part of outputs that concatenate tensors",
            ),
            "measured_on": _with_description(_STRING, "the data of `outputs`"),
            "doubts": _with_description(
                _map_of(_STRING), "outputs whose fidelity is not meaningful, with the reason"
            ),
            "warnings": _with_description(
                _array_of(_STRING), "signs that the accuracy is low or not meaningful"
            ),
            "why_not": _with_description(
                _array_of(_STRING), "reasons why the graph is not ready for the chip"
            ),
            "next": _with_description(
                _array_of(
                    _object_of(
                        {
                            "options": _with_description(
                                _array_of(_STRING), "options of `quantize` to add"
                            ),
                            "gives": _with_description(_STRING, "their effect"),
                        }
                    )
                ),
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
            "versions": _with_description(
                _version_table_schema(),
                "versions of packer and executor on which the file gives the same integers and "
                "its memory plan is safe; empty lists for a file that the chip does not run",
            ),
            "deployment": _with_description(
                {"type": "object"}, "with --deploy: the files for the board"
            ),
            "steps": _with_description(
                _array_of(_step_schema()),
                "with --steps: the steps in the order of their start",
            ),
        },
        _OPTIONAL_REPORT_FIELDS,
    )


def _version_table_schema() -> _Schema:
    """Return the schema of a file on all versions of packer and executor of a chip."""
    described = _with_description
    row = _object_of(
        {
            **_fields(_STRING, platform="name of the target", version="name of the version"),
            "basis": described(
                {"enum": ["measured", "read"]},
                "its programs were run, or only their source text was read",
            ),
            **_fields(
                _BOOLEAN,
                packs="whether its packer accepts the file",
                has_equal_integers="whether the file packs and gives the same integers",
            ),
            "plan": described(
                {"enum": ["safe", "unsafe", "unmeasured"]},
                "whether bytes are written past the memory plan; unmeasured if that is not known",
            ),
            "findings": described(
                _array_of(_finding_schema(("packs", "right", "other", "plan", "unmeasured"))),
                "nodes because of which the version is missing in a list",
            ),
        }
    )
    return _object_of(
        {
            **_fields(
                _array_of(_STRING),
                equal_integers="versions that give the same integers, read ones included",
                safe_plans="versions on which the memory plan is known to be safe",
                nodes="nodes that narrow the lists",
            ),
            "versions": described(_array_of(row), "all known versions of the chip, oldest first"),
        }
    )


def _step_schema() -> _Schema:
    """Return the schema of a step of `quantize` in a report, with the verdicts of a trial."""
    figures = _map_of({"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]})
    described = _with_description
    verdict = _object_of(
        {
            "trial": described(_STRING, "name of the trial"),
            "label": described(_STRING, "which of the trial's proposals"),
            "accepted": described(_BOOLEAN, "whether the proposal was kept"),
            "criterion": described(figures, "thresholds in dB or standard errors, by name"),
            "measured": described(figures, "figures in dB, by name"),
        }
    )
    return _object_of(
        {
            "name": described(_STRING, "name of the step or trial"),
            "depth": described(_COUNT, "number of steps that it runs inside of"),
            "seconds": described({"type": "number", "minimum": 0}, "wall time"),
            "changes": described(_array_of(_STRING), "what it changed"),
            "verdicts": described(_array_of(verdict), "decisions of a trial, in order"),
        }
    )


#: Level of a finding -> what it says.
_LEVEL_DESCRIPTIONS = {
    "packs": "does not pack",
    "right": "wrong on the chip",
    "other": "integers of another formula",
    "plan": "writes past the memory plan",
    "unmeasured": "planned memory was not measured",
    "time": "too slow",
}


def _finding_schema(levels: Sequence[str] = ("packs", "right", "plan", "time")) -> _Schema:
    """Return the schema of a finding of `levels`: level, node, rule, value and remedy."""
    return _object_of(
        {
            "level": _with_description(
                {"enum": list(levels)}, "; ".join(_LEVEL_DESCRIPTIONS[level] for level in levels)
            ),
            "basis": _with_description(
                {"enum": ["measured", "read"]},
                "rules are measured on the vendor's tools, or only read in their sources",
            ),
            **_fields(
                _STRING,
                node="the node that it is about, or graph, or an option",
                rule="the limit",
                value="the value that exceeds it",
                remedy="how to stay within the limit",
            ),
        }
    )


def _cost_schema() -> _Schema:
    """Return the schema of a report's cost: memory in bytes and MACs, in total and by layer."""
    layer = _object_of(
        {
            **_fields(
                _STRING,
                node="the node of the model that the layer comes from",
                op_type="its integer operator",
                width="activation bits x weight bits",
            ),
            **_fields(
                _COUNT,
                macs="multiply-accumulates of one sample",
                weights="bytes of stored constants, bias included",
                activations="bytes of activations that are read and written",
                work_area="bytes of its work area",
                dma="bytes of constants that are fetched and of activations in PSRAM",
            ),
        }
    )
    buffer = _object_of(
        {
            **_fields(
                _STRING,
                name="the tensor, or what the area is for",
                kind="tensor, area (work area) or buffer (of the DMA)",
            ),
            **_fields(
                _COUNT,
                offset="first byte in the shared memory",
                bytes="its size",
                first="index of the first layer that uses it",
                last="index of the last layer that uses it",
            ),
        }
    )
    return _object_of(
        {
            "layers": _with_description(_array_of(layer), "layers in execution order"),
            "macs": _with_description(
                _map_of(_COUNT), "of one sample, by width: activation bits x weight bits"
            ),
            **_fields(
                _COUNT,
                weights="stored constants of all layers, bias included",
                activations="activations that all layers read and write",
                dma="constants that are fetched, and activations in PSRAM, of all layers",
                shared="peak of shared memory",
                shared_limit="shared memory of the chip",
                psram="peak of PSRAM, constants included",
                psram_limit="PSRAM of the chip",
            ),
            "largest": _with_description(
                _map_of(_COUNT), "size of the largest tensors in shared memory, by name"
            ),
            "buffers": _with_description(_array_of(buffer), "the plan of the shared memory"),
        },
        optional=("buffers",),  # versions 0.1 and 0.2 do not write it
    )


def _time_schema() -> _Schema:
    """Return the schema of a report's latency: cycles in total and by layer, and milliseconds.

    Cycles and milliseconds are null if they are unknown.
    """
    bounds = {
        "total": "latency of the call, without work that has no cost model",
        "low": "lower bound",
        "high": "upper bound, with all work that has a bound",
    }
    layer = _object_of(
        {
            **_fields(
                _STRING,
                name="name of the layer",
                operator="its integer operator",
                node="the node of the model that it comes from",
            ),
            **_fields(
                _NUMBER,
                cycles="cycles of the NPU, for work with a cost model",
                low="lower bound of the cycles",
                high="upper bound of the cycles",
                start="cycle at which the layer starts",
                wait="cycles that it then waits for its constants",
                dma="cycles of the DMA transfer of its constants",
                moved="cycles of copies of activations from and to PSRAM",
                overhead="cycles before the first element of each kernel call",
                fetch="cycle at which the DMA transfer of its constants starts",
            ),
            "priced": _with_description(_BOOLEAN, "whether all of its work has a cost model"),
            "calls": _with_description(_COUNT, "number of kernel calls"),
        }
    )
    work = _object_of(
        {
            **_fields(_STRING, name="name of the layer", what="description of the work"),
            "bytes": _with_description(_COUNT, "number of bytes that are moved"),
            "bound": _with_description(_nullable(_NUMBER), "upper bound of the cycles, if known"),
        }
    )
    run = _object_of(
        {
            "platform": _with_description(_STRING, "the chip"),
            **_fields(
                _NUMBER,
                luna="cycles of the NPU, for work with a cost model",
                overhead="cycles of the NPU before the first element of each kernel call",
                moved="cycles of copies of activations from and to PSRAM",
                waits="cycles in which the NPU waits for constants",
                **bounds,
            ),
            "calls": _with_description(_COUNT, "number of kernel calls"),
            "layers": _with_description(
                _array_of(layer), "layers in execution order, after the packer's fusions"
            ),
            "unpriced": _with_description(_array_of(work), "work without a cost model"),
        }
    )
    return _object_of(
        {
            "unknown": _with_description(
                _STRING,
                "reason why the cycles are unknown; empty if they are known or not needed",
            ),
            "clock_mhz": _with_description(_nullable(_NUMBER), "clock of the chip in MHz, if set"),
            "budget_ms": _with_description(
                _nullable(_NUMBER), "longest allowed call in ms, if set"
            ),
            "too_slow": _with_description(
                _nullable(_finding_schema()), "finding of a call that takes longer"
            ),
            "milliseconds": _with_description(
                _nullable(_object_of(_fields(_NUMBER, **bounds))),
                "latency in ms, if the clock and the cycles are known",
            ),
            "cycles": _with_description(_nullable(run), "latency in cycles, if they are known"),
        }
    )


def _saved_cycles_schema() -> _Schema:
    """Return the schema of the cycles before and after rewrites, on `platform`."""
    return _object_of(
        {
            **_fields(
                _COUNT,
                before="upper bound of the cycles without the rewrites",
                after="upper bound of the cycles with them",
            ),
            "platform": _with_description(_STRING, "the chip"),
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
            **_fields(
                _STRING,
                metric="name of the metric",
                unit="unit of its values; empty if they have none",
            ),
            **_fields(
                _nullable(_NUMBER),
                float="value of the float model",
                integer="value of the integer model",
                drop="loss of the integer model against the float model",
            ),
            "drop_standard_error": _with_description(
                _nullable(_NUMBER), "from the samples that only one of both models has correct"
            ),
            "samples": _with_description(_COUNT, "number of samples"),
        },
        optional=("drop_standard_error",),
    )


def _search_schema() -> _Schema:
    """Return the schema of a search in a report: its goal, its outcome, and all attempts."""
    trial = _object_of(
        {
            "what": _with_description(_STRING, "description of the attempt"),
            "options": _with_description(_array_of(_STRING), "options that repeat it"),
            **_fields(
                _nullable(_NUMBER),
                value="measured accuracy",
                missing="accuracy that is missing to the goal; 0 if it is reached",
            ),
            **_fields(
                _BOOLEAN,
                met="whether it reaches the goal and keeps all limits",
                chosen="whether it is the selected attempt",
            ),
            "bytes": _with_description(
                _nullable(_COUNT), "bytes of all constants; two 4-bit weights take one byte"
            ),
            "macs": _with_description(
                _nullable(_map_of(_COUNT)), "multiply-accumulates of one sample, by width"
            ),
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
            "seconds": _with_description(_NUMBER, "time that the attempt took"),
            "why": _with_description(
                _STRING, "reason why the attempt is not allowed; empty if it is"
            ),
        },
        ("cycles", "flash"),  # added after version 0.1
    )
    return _object_of(
        {
            **_fields(
                _STRING,
                goal="the requirement as text",
                unit="unit of the accuracy",
                stopped="met, or the reason why the search ended",
            ),
            "met": _with_description(_BOOLEAN, "whether the selected attempt meets the goal"),
            "options": _with_description(
                _array_of(_STRING), "options that repeat the selected attempt"
            ),
            **_fields(
                _nullable(_NUMBER),
                float="accuracy of the float model",
                wanted="least accuracy that the goal allows; null if only costs are limited",
            ),
            "weight_bits": _with_description(
                _map_of(_COUNT), "weight bits of each layer of the selected attempt"
            ),
            "trials": _with_description(
                _array_of(trial), "all attempts, in the order in which they were made"
            ),
        },
        ("weight_bits",),  # added after version 0.1
    )


def _imported_scale_schema() -> _Schema:
    """Return the schema of a scale imported from a file, with the one used instead (``held_``)."""
    return _object_of(
        {
            "tensor": _with_description(_STRING, "name of the tensor"),
            "scale": _with_description(_NUMBER, "scale in the file, in integer steps per unit"),
            "zero_point": _with_description(_INTEGER, "zero point in the file"),
            "bits": _with_description(_COUNT, "bits in the file"),
            "held_scale": _with_description(
                {"anyOf": [_NUMBER, _array_of(_NUMBER)]}, "scale in use, or one per channel"
            ),
            "held_bits": _with_description(_COUNT, "bits in use"),
            "held_zero_point": _with_description(_INTEGER, "zero point in use"),
            "bits_lost": _with_description(
                _nullable(_NUMBER), "lost bits of resolution of an activation"
            ),
            "sqnr": _with_description(
                _nullable(_NUMBER), "SQNR in dB of a weight whose integers changed"
            ),
            "kept": _with_description(_BOOLEAN, "whether the conversion changed nothing"),
        }
    )
