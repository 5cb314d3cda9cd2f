"""`quantize_static`: `api.quantize` with the arguments of onnxruntime.

Each argument is mapped to a setting of this package or rejected with a hint; none is ignored. Enums
of onnxruntime are recognized by the names of their members, which can also be passed as strings, so
onnxruntime.quantization is not needed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import onnx

from ..common.errors import ConfigError, suggest_nearest
from ..ir import ir
from ..targets import GENERIC

if TYPE_CHECKING:
    from ..quantization import QuantizedModel

__all__ = ["quantize_dynamic", "quantize_static"]

_Setting = TypeVar("_Setting")

_FORMATS = {"QDQ": "qdq", "QOperator": "qoperator"}
_BITS = {"QInt4": 4, "QInt8": 8, "QUInt8": 8, "QInt16": 16}
_CALIBRATORS = {"MinMax": "max", "Entropy": "kl", "Percentile": "percentile"}
#: Extra options that are accepted only with the value that applies here anyway.
_REQUIRED_VALUES = {"WeightSymmetric": True, "DedicatedQDQPair": False}
_ACTIVATION_SYMMETRY = {True: "symmetric", False: "asymmetric"}
#: Text in messages of `quantize` -> the corresponding argument of the caller.
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
    quant_format: object = "QDQ",
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
    """Quantize `model_input` and write the result to `model_output`.

    Parameters
    ----------
    model_input, model_output
        The float model, and the file to write.
    calibration_data_reader
        An object with `get_next`, or any data that `quantize` accepts.
    quant_format
        QuantFormat.QDQ (as there the default) or QOperator for standard ONNX, which onnxruntime
        runs; None for the format of the simulator, the packer and the chips.
    op_types_to_quantize, nodes_to_quantize
        Operator types or nodes to quantize; all others stay in float.
    per_channel
        Whether to use one weight scale per output channel, if the platform supports it.
    reduce_range, use_external_data_format
        Must be False.
    activation_type, weight_type
        QuantType.QInt8, or QInt4 or QInt16 if the platform supports them. QUInt8 activations are
        stored as int8 with zero points, QUInt8 weights as int8 without.
    nodes_to_exclude
        Nodes that stay in float.
    calibrate_method
        CalibrationMethod.MinMax, Entropy or Percentile.
    calibration_providers
        None or ["CPUExecutionProvider"].
    extra_options
        CalibPercentile; ActivationSymmetric, which can be False if the platform has zero points (by
        default the integers are symmetric); WeightSymmetric as True; DedicatedQDQPair as False.
    settings
        Further settings of `quantize`, among them `platform` (by default generic) and `state`.

    Returns
    -------
    QuantizedModel
        The result of `quantize`.

    Raises
    ------
    ConfigError
        If an argument has no counterpart, or a float model has no data. Other errors are those of
        `quantize`.
    """
    from ..api import quantize
    from ..quantization import require_calibrated_scales, require_data

    to = "thinker" if quant_format is None else _map_enum("quant_format", quant_format, _FORMATS)
    if reduce_range:
        raise ConfigError(
            "reduce_range = True: sums are exact here, so a smaller weight range gains nothing; "
            "omit it"
        )
    if use_external_data_format:
        raise ConfigError(
            "use_external_data_format = True: the model is written to a single file; omit it"
        )
    if calibration_providers not in (None, ["CPUExecutionProvider"]):
        raise ConfigError(
            f"calibration_providers = {calibration_providers}: calibration runs on the CPU; omit it"
        )
    if isinstance(model_input, onnx.ModelProto):
        model = ir.convert_user_model(model_input)
    else:
        model = ir.load(model_input)
    data_hint = "quantize_static calibrates a float model: pass calibration_data_reader"
    require_data(data_hint, model, calibration_data_reader, settings.get("plan"))
    skipped = _nodes_to_skip(model, op_types_to_quantize, nodes_to_quantize, nodes_to_exclude)
    all_settings = {
        **_map_types(activation_type, weight_type, per_channel),
        **_map_extra_options(extra_options or {}),
        **settings,
    }
    all_settings["skip"] = [*settings.get("skip", ()), *skipped]
    all_settings["calibrator"] = _map_enum("calibrate_method", calibrate_method, _CALIBRATORS)
    with _translate_errors():
        result = quantize(model, calibration_data_reader, **all_settings)
    require_calibrated_scales(data_hint, model, result.plan)
    result.save(model_output, to=to)
    return result


def quantize_dynamic(
    model_input: object, model_output: object = None, *_args: object, **_settings: object
) -> None:
    """Raise ConfigError: scales at run time do not exist on the platforms; says what to call."""
    raise ConfigError(
        "quantize_dynamic computes scales at run time, which no platform has: call quantize_static "
        "with a few samples as calibration_data_reader, or lingeronnx quantize --calib DATA"
    )


def _map_enum(argument: str, value: object, settings: Mapping[str, _Setting]) -> _Setting:
    """Return the entry of `settings` for an enum member of onnxruntime, or for its name.

    Raises ConfigError, naming `argument`, if the member is not supported.
    """
    name = _enum_name(value)
    if name not in settings:
        raise ConfigError(f"{argument} = {name}: not supported; use {' or '.join(settings)}")
    return settings[name]


def _enum_name(value: object) -> str:
    """Return the name of an enum member, or a string as it is."""
    return str(getattr(value, "name", value))


def _map_types(activation: object, weight: object, per_channel: bool) -> dict[str, Any]:
    """Return the settings of the bit widths and scales, on the platform generic.

    The type QUInt8 of activations gives them zero points; None stands for the default setting.
    Raises ConfigError for other types than those of `_BITS`.
    """
    return {
        "platform": GENERIC.name,
        "bits": _map_enum("activation_type", activation, _BITS),
        "weight_bits": _map_enum("weight_type", weight, _BITS),
        "weight_scales": "channel" if per_channel else None,
        "activations": "asymmetric" if _enum_name(activation) == "QUInt8" else None,
    }


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Context manager that rewrites a ConfigError of `quantize` for `quantize_static`.

    Names of settings in its message become the arguments that the caller knows.
    """
    try:
        yield
    except ConfigError as error:
        message = str(error)
        for setting, argument in _ERROR_TRANSLATIONS:
            message = re.sub(rf"(?<![\w-]){re.escape(setting)}", argument, message)
        raise ConfigError(message) from error


def _nodes_to_skip(
    model: ir.Model,
    op_types: Sequence[str] | None,
    included: Sequence[str] | None,
    excluded: Sequence[str] | None,
) -> list[str]:
    """Return the names of the nodes that stay in float, in graph order.

    Parameters
    ----------
    op_types, included
        Operator types and nodes to quantize; all if empty. With both, a node must be in both.
    excluded
        Nodes that stay in float in any case.

    Raises
    ------
    ConfigError
        If the model has no node of a name.
    """
    op_type_by_name = {str(node.name): node.op_type for node in model.graph}
    _check_node_names("nodes_to_quantize", included, op_type_by_name)
    _check_node_names("nodes_to_exclude", excluded, op_type_by_name)
    skipped = set(excluded or ())
    if op_types:
        skipped |= {name for name, op_type in op_type_by_name.items() if op_type not in op_types}
    if included:
        skipped |= op_type_by_name.keys() - set(included)
    return [name for name in op_type_by_name if name in skipped]


def _check_node_names(
    argument: str, names: Sequence[str] | None, known_names: Collection[str]
) -> None:
    """Raise ConfigError, naming `argument`, if the model does not have all nodes `names`."""
    for name in names or ():
        if name not in known_names:
            raise ConfigError(
                f"{argument}: the model has no node '{name}'{suggest_nearest(name, known_names)}; "
                "a viewer such as Netron shows the names"
            )


def _map_extra_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Map extra options of onnxruntime to settings; raises ConfigError for an unsupported one.

    CalibPercentile and ActivationSymmetric become settings; options of `_REQUIRED_VALUES` are
    accepted with that value only.
    """
    settings: dict[str, Any] = {}
    for name, value in options.items():
        if name == "CalibPercentile":
            settings["percentile"] = float(value)
        elif name == "ActivationSymmetric":
            settings["activations"] = _ACTIVATION_SYMMETRY[bool(value)]
        elif name not in _REQUIRED_VALUES or value != _REQUIRED_VALUES[name]:
            supported = ["CalibPercentile", "ActivationSymmetric"]
            supported += [f"{key}={required}" for key, required in _REQUIRED_VALUES.items()]
            raise ConfigError(
                f"extra_options: {name} = {value} is not supported; supported are "
                f"{', '.join(supported)}"
            )
    return settings
