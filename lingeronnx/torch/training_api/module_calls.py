"""The calls of the vendor's training library: a torch module that trains with fake quantization.

    lo.torch.trace_layers(net, net, x)                     # fold batch norms; once, and first
    lo.torch.disable_normalize(net.fc)
    lo.torch.normalize_layers(net)                         # clamps in forward
    lo.torch.disable_quant(net.fc)
    net = lo.torch.init(net, mode=lo.torch.QuantMode.QValue, out_bits=8)
    net.load_state_dict(torch.load("float.pt"))            # the keys of the float net
    ...                                                    # train as before
    lo.torch.export(net, x, "net.onnx")

The calls annotate the modules (`module_wrappers`); `init` makes the net compute like its integer
graph (`quantized_net`). The parameters stay the same objects under the same names. This module
knows no graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import Enum
from typing import Any

from torch import nn

from ...common.errors import ConfigError
from ...quantization.config import QuantConfig
from ...targets import DEFAULT, GENERIC, Target, get_target
from .export_calls import patch_torch_onnx_export
from .module_wrappers import (
    Clamp,
    LayerBits,
    ModuleAnnotations,
    get_annotations,
    get_or_create_annotations,
    update_module_class,
)
from .quantized_net import initialise_net
from .trace import Settings, export_with_folded_norms

__all__ = [
    "QuantMode",
    "disable_normalize",
    "disable_quant",
    "init",
    "normalize_layers",
    "normalize_module",
    "quant_module",
    "trace_layers",
]

_EXPORTER = "torchscript"
_CLAMPABLE_TYPES = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.ConvTranspose2d)


class QuantMode(Enum):
    """Kind of scales: any number (MaxValue), or powers of two (QValue)."""

    MaxValue = "max-value"
    QValue = "q-value"


def trace_layers(
    root_model: nn.Module,
    target_model: nn.Module,
    inputs: Any,
    fuse_bn: bool = True,
    ahead_conv_relu: bool = True,
    ahead_bn_relu: bool = True,
    ahead_linear_relu: bool = True,
) -> nn.Module:
    """Fold the batch norms of a net, or of a part of it, into the layers before them.

    Mean and variance are constant afterwards; all other parameters remain trainable.

    Parameters
    ----------
    root_model
        The net.
    target_model
        The part of the net to fold, or the net itself.
    inputs
        Arguments of `target_model`.
    fuse_bn, ahead_conv_relu, ahead_bn_relu, ahead_linear_relu
        Must be True. The output scale of a layer before a Relu always follows the positive values.

    Returns
    -------
    nn.Module
        `root_model`.

    Raises
    ------
    ConfigError
        If the call is repeated or does not come before the other calls.
    ModelError
        If the net cannot be traced; the message names the module.
    """
    _check_uninitialised_net(root_model)
    options = {
        "fuse_bn": fuse_bn,
        "ahead_conv_relu": ahead_conv_relu,
        "ahead_bn_relu": ahead_bn_relu,
        "ahead_linear_relu": ahead_linear_relu,
    }
    for name, is_enabled in options.items():
        if not is_enabled:
            raise ConfigError(
                f"trace_layers: {name}=False is not supported; integer graphs are always fused"
            )
    _check_first_call(root_model, target_model)
    args = inputs if isinstance(inputs, tuple | dict) else (inputs,)
    export_with_folded_norms(target_model, args, {}, _EXPORTER)
    get_or_create_annotations(root_model).trace_args = args if target_model is root_model else ()
    for module in target_model.modules():
        update_module_class(module)
    return root_model


def _check_first_call(root_model: nn.Module, target_model: nn.Module) -> None:
    """Raise ConfigError if `trace_layers`, or a call that sets options, was already made.

    Calls for any part of `root_model` count. Also if `target_model` is not a module of
    `root_model`.
    """
    if all(module is not target_model for module in root_model.modules()):
        raise ConfigError("trace_layers: the target model is not part of the root model")
    for path, module in root_model.named_modules():
        annotations = get_annotations(module)
        if annotations.trace_args is not None:
            raise ConfigError("trace_layers was already called for this model; call it only once")
        if _has_settings(annotations):
            raise ConfigError(
                "trace_layers must be the first call: module "
                f"'{path or type(module).__name__}' already has settings"
            )


def _has_settings(annotations: ModuleAnnotations) -> bool:
    """Whether `annotations` has a setting of a call other than `trace_layers`.

    These are a clamp or its exemption, bits, and quantization switched off.
    """
    if annotations.clamp or annotations.is_clamp_exempt:
        return True
    return annotations.bits is not None or not annotations.allows_quantization


# ---- selection of modules -----------------------------------------------------------------------


def disable_quant(module: nn.Module) -> nn.Module:
    """Keep `module` and its submodules in float, and return it. Must be called before `init`."""
    _check_before_init(module, "disable_quant")
    get_or_create_annotations(module).allows_quantization = False
    return module


def quant_module(
    module: nn.Module, data_bits: int = 8, parameter_bits: int = 8, out_bits: int | None = None
) -> nn.Module:
    """Quantize `module`, whatever its type, with its own bit widths.

    Must be called before `init`, which validates the bit widths.

    Parameters
    ----------
    module
        The layer.
    data_bits, parameter_bits, out_bits
        Bits of inputs, weights and outputs; `out_bits` None for a float32 output.

    Returns
    -------
    nn.Module
        `module`.
    """
    _check_before_init(module, "quant_module")
    get_or_create_annotations(module).bits = LayerBits(data_bits, parameter_bits, out_bits)
    return module


def init(
    net: nn.Module,
    quant_modules: type[nn.Module] | Sequence[type[nn.Module]] = (
        nn.Conv2d,
        nn.ConvTranspose2d,
        nn.Linear,
    ),
    mode: QuantMode | None = None,
    data_bits: int = 8,
    parameter_bits: int = 8,
    out_bits: int | None = None,
    *,
    platform: str | Target | None = None,
    example_inputs: Any = None,
    calib: Any = None,
    exporter: str | None = _EXPORTER,
) -> nn.Module:
    """Make `net` compute like its integer graph, with gradients, by changing its modules' classes.

    From then on `torch.onnx.export` writes the integer graph of such a net.

    Parameters
    ----------
    net
        A module in float32. Its parameters stay the same objects under the same names.
    quant_modules
        Types of the modules whose inputs, weights and outputs are quantized.
    mode
        QuantMode.MaxValue, or QuantMode.QValue for powers of two; by default QValue for a chip and
        MaxValue for the generic platform.
    data_bits, parameter_bits, out_bits
        Bits of inputs, weights and outputs. With `out_bits` None outputs are float32, and operators
        between layers run in float; with 8, operators without parameters whose inputs are all
        integer run in integers too.
    platform
        By default generic for MaxValue and the first chip for QValue.
    example_inputs
        Arguments of `net`. With them, or after `trace_layers` of the complete net, the net is
        traced now, otherwise at its first call. They also determine the initial ranges.
    calib
        Calibration data, a file or arrays. With data the scales are calibrated and constant;
        without, they follow the running extremes in training and are constant in evaluation.
    exporter
        Torch's exporter for the trace, "dynamo" or "torchscript"; None for its default.

    Returns
    -------
    nn.Module
        `net`.

    Raises
    ------
    ConfigError
        If the platform does not support a setting, or the net is already initialised.
    ModelError
        If the net cannot be traced; the message names the module.
    """
    _check_uninitialised_net(net)
    module_types = _resolve_module_types(net, quant_modules)
    mode, target = _resolve_mode_and_target(mode, platform)
    bits = LayerBits(data_bits, parameter_bits, out_bits)
    config = {
        "platform": target,
        "mode": mode.value,
        "bits": data_bits,
        "weight_bits": parameter_bits,
    }
    QuantConfig.of(config, "init").check_platform(target)
    _check_modules(net, target)
    _check_bits("init", bits, target)
    patch_torch_onnx_export()
    state = initialise_net(net, Settings(module_types, target, mode.value, bits, calib, exporter))
    example = example_inputs if example_inputs is not None else get_annotations(net).trace_args
    is_empty = isinstance(example, tuple) and not example
    if example is not None and not is_empty:
        state.trace_on_example(net, example)
    return net


def _resolve_module_types(
    net: nn.Module, quant_modules: type[nn.Module] | Sequence[type[nn.Module]]
) -> tuple[type[nn.Module], ...]:
    """Return the module types to quantize as a tuple.

    Raises ConfigError if one is not a module type. Warns if `net` has no module of these types.
    """
    module_types: tuple[Any, ...] = (
        tuple(quant_modules) if isinstance(quant_modules, Sequence) else (quant_modules,)
    )
    for module_type in module_types:
        if not (isinstance(module_type, type) and issubclass(module_type, nn.Module)):
            raise ConfigError(
                f"init: quant_modules contains {module_type!r}, which is not a type of "
                "torch.nn.Module"
            )
    if module_types and not any(isinstance(module, module_types) for module in net.modules()):
        type_names = ", ".join(module_type.__name__ for module_type in module_types)
        warnings.warn(
            f"init: quant_modules ({type_names}) match no module; the net has "
            f"{', '.join(_list_leaf_types(net))}",
            stacklevel=3,
        )
    return module_types


def _list_leaf_types(net: nn.Module) -> list[str]:
    """Return the sorted names of the original classes of the modules without submodules."""
    leaves = [module for module in net.modules() if not [*module.children()]]
    return sorted({get_annotations(module).original_class.__name__ for module in leaves})


def _check_modules(net: nn.Module, target: Target) -> None:
    """Raise ConfigError if a module has settings that `target` or training does not support.

    These are unsupported bit widths, and clamps at a percentile.
    """
    for path, module in net.named_modules():
        annotations = get_annotations(module)
        _check_bits(f"quant_module of '{path}'", annotations.bits, target)
        if annotations.clamp is not None and annotations.clamp.percent is not None:
            raise ConfigError(
                f"init: module '{path}' has normalize_dynamic_percent, which is for finding "
                "abnormal layers, not for training; normalize the layers without it"
            )


def _resolve_mode_and_target(
    mode: QuantMode | None, platform: str | Target | None
) -> tuple[QuantMode, Target]:
    """Return the kind of scales and the target platform, with defaults for None.

    Without a platform, MaxValue (the default) is for generic and QValue for the default chip.
    Without a mode, a chip with scales of powers of two gets QValue, others MaxValue. Raises
    ConfigError for a mode of another type, or if the platform does not support it.
    """
    if mode is not None and not isinstance(mode, QuantMode):
        raise ConfigError(
            f"init: mode {mode!r} is not a QuantMode; use QuantMode.MaxValue or QuantMode.QValue"
        )
    if platform is None:
        mode = mode or QuantMode.MaxValue
        return mode, GENERIC if mode is QuantMode.MaxValue else DEFAULT
    target = get_target(platform)
    if mode is None:
        mode = QuantMode.QValue if target.needs_power_of_two_scales else QuantMode.MaxValue
    if mode.value not in target.modes:
        raise ConfigError(
            f"QuantMode.{mode.name} on {target.name}: the chip supports powers of two only; use "
            'QuantMode.QValue, or platform="generic"'
        )
    return mode, target


def _check_bits(source: str, bits: LayerBits | None, target: Target) -> None:
    """Raise ConfigError, naming `source`, if `target` does not support one of the bit widths.

    `bits` None, and an output of None bits, are always supported.
    """
    if bits is None:
        return
    _check_supported_bits(f"{source}: data_bits {bits.data}", bits.data, target.bits, target)
    _check_supported_bits(
        f"{source}: parameter_bits {bits.parameter_bits}", bits.parameter_bits, target.bits, target
    )
    supported = (*target.bits, *target.out_bits)
    if bits.out_bits is not None:
        setting = f"{source}: out_bits {bits.out_bits}"
        _check_supported_bits(setting, bits.out_bits, supported, target, " or None")


def _check_supported_bits(
    setting: str, bits: int, supported: Sequence[int], target: Target, alternative: str = ""
) -> None:
    """Raise ConfigError, which starts with `setting`, if `bits` is not among `supported`.

    The message lists them and appends `alternative`, another allowed value.
    """
    if bits not in supported:
        listed = ", ".join(map(str, sorted(set(supported))))
        raise ConfigError(f"{setting}; {target.name} supports {listed}{alternative}")


# ---- constraint training ------------------------------------------------------------------------


def normalize_layers(
    net: nn.Module,
    normalize_modules: Sequence[type[nn.Module]] = (nn.Conv2d, nn.Linear),
    normalize_weight_value: float | None = 8,
    normalize_bias_value: float | None = 8,
    normalize_output_value: float | None = 8,
    normalize_dynamic_percent: float | None = None,
) -> nn.Module:
    """Clamp weights, biases and outputs in the forward of all layers of some types.

    Must be called before `init`. Layers with settings of `normalize_module` or `disable_normalize`
    are not changed.

    Parameters
    ----------
    net
        The net.
    normalize_modules
        Types of the layers.
    normalize_weight_value, normalize_bias_value, normalize_output_value
        Largest absolute value; None for no limit.
    normalize_dynamic_percent
        Fraction of the values that is not clamped, between 0 and 1; for finding abnormal layers,
        not for training.

    Returns
    -------
    nn.Module
        `net`.

    Raises
    ------
    ConfigError
        A part of `net` is already initialised, or a type cannot be clamped.
    """
    _check_before_init(net, "normalize_layers")
    module_types: tuple[Any, ...] = tuple(normalize_modules)
    for module_type in module_types:
        if not (isinstance(module_type, type) and issubclass(module_type, _CLAMPABLE_TYPES)):
            clampable = ", ".join(item.__name__ for item in _CLAMPABLE_TYPES)
            raise ConfigError(
                f"normalize_layers: {getattr(module_type, '__name__', module_type)} cannot be "
                f"clamped; supported are {clampable}"
            )
    clamp = _make_clamp(
        normalize_weight_value,
        normalize_bias_value,
        normalize_output_value,
        normalize_dynamic_percent,
    )
    for module in net.modules():
        annotations = get_annotations(module)
        is_unset = annotations.clamp is None and not annotations.is_clamp_exempt
        if isinstance(module, module_types) and is_unset:
            get_or_create_annotations(module).clamp = clamp
            update_module_class(module)
    return net


def normalize_module(
    module: nn.Module,
    normalize_weight_value: float | None = 8,
    normalize_bias_value: float | None = 8,
    normalize_output_value: float | None = 8,
) -> nn.Module:
    """Clamp weight, bias and output of one layer in its forward, and return the layer.

    Must be called before `init`.

    Parameters
    ----------
    module
        A Conv1d, Conv2d, ConvTranspose2d or Linear.
    normalize_weight_value, normalize_bias_value, normalize_output_value
        Largest absolute value; None for no limit.

    Raises
    ------
    ConfigError
        A part of `module` is already initialised, or its type cannot be clamped.
    """
    _check_before_init(module, "normalize_module")
    if not isinstance(module, _CLAMPABLE_TYPES):
        raise ConfigError(f"normalize_module: a {type(module).__name__} cannot be clamped")
    annotations = get_or_create_annotations(module)
    annotations.clamp = _make_clamp(
        normalize_weight_value, normalize_bias_value, normalize_output_value, None
    )
    annotations.is_clamp_exempt = False
    update_module_class(module)
    return module


def disable_normalize(module: nn.Module) -> nn.Module:
    """Remove the clamps of `module` and its submodules, and return it; call this before `init`."""
    _check_before_init(module, "disable_normalize")
    for submodule in module.modules():
        annotations = get_or_create_annotations(submodule)
        annotations.clamp, annotations.is_clamp_exempt = None, True
        update_module_class(submodule)
    return module


def _make_clamp(
    weight: float | None, bias: float | None, output: float | None, percent: float | None
) -> Clamp:
    """Return the clamp with these largest absolute values; None is no limit.

    Raises ConfigError unless the values are positive and finite, and `percent`, the fraction of
    values that is not clamped, is in (0, 1].
    """
    for name, value in (("weight", weight), ("bias", bias), ("output", output)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(
                f"normalize_{name}_value {value}: it must be positive, or None for no limit"
            )
    if percent is not None and not 0 < percent <= 1:
        raise ConfigError(
            f"normalize_dynamic_percent {percent}: it must be a fraction from 0 to 1, such as 0.99"
        )
    return Clamp(weight, bias, output, percent)


# ---- order of the calls -------------------------------------------------------------------------


def _check_uninitialised_net(net: nn.Module) -> None:
    """Raise ConfigError if `net` is no torch module, or if `init` was called for a part of it."""
    argument: Any = net
    if not isinstance(argument, nn.Module):
        raise ConfigError(
            f"a {type(net).__name__} is not a torch.nn.Module; pass the net itself, not its "
            "outputs or state_dict"
        )
    if any(get_annotations(module).is_initialised for module in net.modules()):
        raise ConfigError(
            f"the {get_annotations(net).original_class.__name__} is already initialised; init must "
            "be the last call"
        )


def _check_before_init(module: nn.Module, call: str) -> None:
    """Raise ConfigError if `module` is no module, or if a part of it is already initialised.

    `call` is the name of the call for the message.
    """
    argument: Any = module
    if not isinstance(argument, nn.Module):
        raise ConfigError(f"{call}: a {type(module).__name__} is not a torch.nn.Module")
    if any(get_annotations(submodule).is_initialised for submodule in module.modules()):
        raise ConfigError(
            f"{call} must be called before init; the "
            f"{get_annotations(module).original_class.__name__} is already initialised"
        )
