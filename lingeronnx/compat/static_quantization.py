"""`quantize_static` with onnxruntime's arguments: a thin face over `api.quantize`.

Every argument is mapped to a setting of ours, or refused with what to say instead; none is passed
over. The enums of onnxruntime are taken by the names of their members, and so are these names as
text: onnxruntime.quantization need not be there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import onnx

from ..errors import ConfigError, suggest_nearest
from ..graph import ir
from ..targets import GENERIC

if TYPE_CHECKING:
    from ..flow import QuantizedModel

__all__ = ["quantize_static"]

_Ours = TypeVar("_Ours")

_FORMATS = {"QDQ": "qdq", "QOperator": "qoperator"}
_BITS = {"QInt4": 4, "QInt8": 8, "QUInt8": 8, "QInt16": 16}
_CALIBRATORS = {"MinMax": "max", "Entropy": "kl", "Percentile": "percentile"}
#: Extra options that ask for what is done here anyway.
_REQUIRED_VALUES = {"WeightSymmetric": True, "DedicatedQDQPair": False}
_ACTIVATION_SYMMETRY = {True: "symmetric", False: "asymmetric"}
#: What our messages say -> what the caller's arguments are called.
_ERROR_TRANSLATIONS = (
    ("weight_scales channel", "per_channel = True"),
    ("activations asymmetric", "activation_type = QUInt8, or ActivationSymmetric = False,"),
    ("weight_bits ", "weight_type of bits "),
    ("bits ", "activation_type of bits "),
    ("--weight-scales", "per_channel"),
    ("--activations", "them"),
    ("choose --platform generic", 'give platform="generic"'),
    ("calibrator", "calibrate_method"),
    ("--calib DATA", "calibration_data_reader"),
)


def quantize_static(
    model_input: str | os.PathLike[str] | onnx.ModelProto,
    model_output: str | os.PathLike[str],
    calibration_data_reader: object = None,
    quant_format: object = None,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: object = "QInt8",
    weight_type: object = "QInt8",
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: object = "MinMax",
    calibration_providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> QuantizedModel:
    """Quantize `model_input`, write `model_output`, and return what `quantize` returns.

    calibration_data_reader : with `get_next`, or any data that `quantize` takes.
    quant_format : QuantFormat.QDQ or QOperator; standard ONNX; None writes the form that simulator,
    packer and
        chips read.
    op_types_to_quantize, nodes_to_quantize : all other nodes stay in float. nodes_to_exclude :
    these do. per_channel : a weight scale for each output channel, where the platform has them.
    activation_type, weight_type : QuantType.QInt8, and where the platform has them QInt4 and
    QInt16. Activations of
        QUInt8 have zero points, and are held as int8 with these; weights of QUInt8 are held as int8
        without.
    calibrate_method : CalibrationMethod.MinMax, Entropy or Percentile.
    extra_options : CalibPercentile; ActivationSymmetric (False where the platform has zero points;
    without it the integers are symmetric); WeightSymmetric as True.
    settings : those of `quantize` beyond onnxruntime's, `platform` (here generic by default) and
    `state` among them. Raises ConfigError for an argument that has no counterpart and for a float
    model without data, and what `quantize` raises.
    """
    from ..api import quantize
    from ..flow import require_calibrated_scales, require_data

    to = "thinker" if quant_format is None else _map_enum("quant_format", quant_format, _FORMATS)
    _reject_argument(
        reduce_range,
        "reduce_range",
        "sums are exact here, there is nothing to save weights' range for",
    )
    _reject_argument(use_external_data_format, "use_external_data_format", "one file is written")
    if calibration_providers not in (None, ["CPUExecutionProvider"]):
        raise ConfigError(
            f"calibration_providers = {calibration_providers}: calibration runs on the CPU; leave "
            "it out"
        )
    model = (
        ir.from_proto(model_input)
        if isinstance(model_input, onnx.ModelProto)
        else ir.load(model_input)
    )
    what = "quantize_static calibrates a float model: give calibration_data_reader"
    require_data(what, model, calibration_data_reader, settings.get("plan"))
    left_out = _nodes_to_skip(model, op_types_to_quantize, nodes_to_quantize, nodes_to_exclude)
    chosen = {
        **_map_types(activation_type, weight_type, per_channel),
        **_map_extra_options(extra_options or {}),
        **settings,
    }
    chosen |= {"skip": [*settings.get("skip", ()), *left_out]}
    chosen |= {"calibrator": _map_enum("calibrate_method", calibrate_method, _CALIBRATORS)}
    with _translate_errors():
        result = quantize(model, calibration_data_reader, **chosen)
    require_calibrated_scales(what, model, result.plan)
    result.save(model_output, to=to)
    return result


def _map_enum(argument: str, value: object, known: Mapping[str, _Ours]) -> _Ours:
    """Return our word for a member of an enum, or its name; ConfigError where there is none."""
    name = _enum_name(value)
    if name not in known:
        raise ConfigError(
            f"{argument} = {name}: there is no such thing here; take {' or '.join(known)}"
        )
    return known[name]


def _enum_name(value: object) -> str:
    return str(getattr(value, "name", value))


def _map_types(activation: object, weight: object, per_channel: bool) -> dict[str, Any]:
    """Return the settings for what activations and weights are held in, on the default platform."""
    return {
        "platform": GENERIC.name,
        "bits": _map_enum("activation_type", activation, _BITS),
        "weight_bits": _map_enum("weight_type", weight, _BITS),
        "weight_scales": "channel" if per_channel else None,
        "activations": "asymmetric" if _enum_name(activation) == "QUInt8" else None,
    }


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Inside, a ConfigError names the caller's arguments in place of our settings."""
    try:
        yield
    except ConfigError as error:
        message = str(error)
        for ours, theirs in _ERROR_TRANSLATIONS:
            message = re.sub(rf"(?<![\w-]){re.escape(ours)}", theirs, message)
        raise ConfigError(message) from error


def _reject_argument(asked: bool, argument: str, why: str) -> None:
    if asked:
        raise ConfigError(f"{argument} = True: {why}; leave it out")


def _nodes_to_skip(
    model: ir.Model,
    kinds: Sequence[str] | None,
    only: Sequence[str] | None,
    excluded: Sequence[str] | None,
) -> list[str]:
    """Return the names of nodes that stay in float.

    ConfigError for one that the model does not have.
    """
    names = {str(node.name): node.op_type for node in model.graph}
    for argument, wanted in (("nodes_to_quantize", only), ("nodes_to_exclude", excluded)):
        for name in wanted or ():
            if name not in names:
                raise ConfigError(
                    f"{argument}: the model has no node '{name}'{suggest_nearest(name, names)}; "
                    "a viewer such as Netron shows the names"
                )
    return [
        name
        for name, kind in names.items()
        if (kinds and kind not in kinds) or (only and name not in only) or name in (excluded or ())
    ]


def _map_extra_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for onnxruntime's extra options.

    ConfigError for one that has no counterpart.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "CalibPercentile":
            found["percentile"] = float(value)
        elif name == "ActivationSymmetric":
            found["activations"] = _ACTIVATION_SYMMETRY[bool(value)]
        elif name not in _REQUIRED_VALUES or value != _REQUIRED_VALUES[name]:
            known = ", ".join(
                [
                    "CalibPercentile",
                    "ActivationSymmetric",
                    *(f"{key}={held}" for key, held in _REQUIRED_VALUES.items()),
                ]
            )
            raise ConfigError(
                f"extra_options: {name} = {value} has no counterpart here; known are {known}"
            )
    return found
