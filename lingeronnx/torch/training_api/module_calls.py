"""The calls of the vendor's training library: a torch module that trains with fake quantization.

    lo.torch.trace_layers(net, net, x)                     # fold batch norms; once, and first
    lo.torch.disable_normalize(net.fc)
    lo.torch.normalize_layers(net)                         # clamps in forward
    lo.torch.disable_quant(net.fc)
    net = lo.torch.init(net, mode=lo.torch.QuantMode.QValue, out_bits=8)
    net.load_state_dict(torch.load("float.pt"))            # the keys of the float net
    ...                                                    # train as before
    lo.torch.export(net, x, "net.onnx")

All of them note what they are told on the modules (`counterparts`); `init` makes the net compute
what its integers will (`quantized_net`). The parameters stay the same objects, under the same
names. Must not know: graphs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import Enum
from typing import Any

from torch import nn

from ...errors import ConfigError
from ...plan.config import QuantConfig
from ...targets import DEFAULT, GENERIC, Target, get_target
from .export_calls import patch_torch_onnx_export
from .module_wrappers import (
    Clamp,
    LayerBits,
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

_CLAMPABLE_TYPES = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.ConvTranspose2d)


class QuantMode(Enum):
    """What scales may be: any number (MaxValue), or powers of two (QValue)."""

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
    """Fold the batch norms of `target_model`, a part of `root_model` or all of it, into the layers before them.

    Their mean and variance stay from then on; all other parameters train on. inputs : what
    target_model is called with. Where a layer is followed by a Relu, its output takes its scale
    from the positive side, here always: the last four can only be True. Returns `root_model`.
    Raises ModelError for what cannot be traced, with the module's name, and ConfigError where it
    comes second or after other calls.
    """
    _check_uninitialised_net(root_model)
    known = {"fuse_bn": fuse_bn, "ahead_conv_relu": ahead_conv_relu, "ahead_bn_relu": ahead_bn_relu}
    for name, value in {**known, "ahead_linear_relu": ahead_linear_relu}.items():
        if not value:
            raise ConfigError(
                f"trace_layers: {name}=False is not offered: an integer graph always has it so"
            )
    if all(module is not target_model for module in root_model.modules()):
        raise ConfigError("trace_layers: the target model is no part of the root model")
    for path, module in root_model.named_modules():
        marks = get_annotations(module)
        if marks.trace_args is not None:
            raise ConfigError("trace_layers was called for this model before; once is all")
        if marks.clamp or marks.is_clamp_exempt or marks.bits or not marks.allows_quantization:
            raise ConfigError(
                f"trace_layers comes first: module '{path or type(module).__name__}' was set before"
            )
    args = inputs if isinstance(inputs, tuple | dict) else (inputs,)
    export_with_folded_norms(target_model, args, {}, _EXPORTER)
    get_or_create_annotations(root_model).trace_args = args if target_model is root_model else ()
    for module in target_model.modules():
        update_module_class(module)
    return root_model


_EXPORTER = "torchscript"


# ---- what is quantized -------------------------------------------------------------------------------------------


def disable_quant(module: nn.Module) -> nn.Module:
    """Leave `module`, with all that is in it, in float; before `init`. Returns it."""
    _check_before_init(module, "disable_quant")
    get_or_create_annotations(module).allows_quantization = False
    return module


def quant_module(
    module: nn.Module, data_bits: int = 8, parameter_bits: int = 8, out_bits: int | None = None
) -> nn.Module:
    """Quantize `module`, whatever its type, and give it its own widths.

    Before `init`, which checks them. Returns it.
    out_bits : None for a float32 output.
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
    """Make `net` compute what its integers will, with gradients; return it.

    Parameters
    ----------
    net
        A module in float32. It keeps its parameters, as objects and by name.
    quant_modules
        The types of modules that are quantized, by their inputs, weights and outputs.
    mode
        QuantMode.MaxValue, or QuantMode.QValue for powers of two; default QValue for a chip, else
        MaxValue.
    data_bits, parameter_bits, out_bits
        Widths of inputs, weights and outputs. out_bits None: outputs are float32, and what stands
        between two layers computes in float; 8: operators without parameters that read integers
        only compute in integers, too.
    platform
        Default generic for MaxValue and the first chip for QValue.
    example_inputs
        What net is called with. With it, or after `trace_layers` of the whole net, the net is
        traced now, else at its first call. These inputs also give the first ranges.
    calib
        Calibration data, as `quantize` takes them. With them the scales are calibrated and stay;
        without, they follow the running maximum in training and stay in evaluation.
    exporter
        The exporter that traces, as `export` takes it.

    Raises
    ------
    ConfigError
        For settings that the platform has not, and for a net that was initialised before.
    ModelError
        For what cannot be traced, with the module's name.
    """
    _check_uninitialised_net(net)
    kinds = _resolve_module_types(net, quant_modules)
    chosen, row = _resolve_mode_and_target(mode, platform)
    widths = LayerBits(data_bits, parameter_bits, out_bits)
    config = {
        "platform": row,
        "mode": chosen.value,
        "bits": data_bits,
        "weight_bits": parameter_bits,
    }
    QuantConfig.of(config, "init").check_platform(row)
    _check_modules(net, row)
    _check_widths("init", widths, row)
    patch_torch_onnx_export()
    state = initialise_net(net, Settings(kinds, row, chosen.value, widths, calib, exporter))
    example = example_inputs if example_inputs is not None else get_annotations(net).trace_args
    if example is not None and not (isinstance(example, tuple) and not example):
        positional = (
            example
            if isinstance(example, tuple)
            else ()
            if isinstance(example, dict)
            else (example,)
        )
        state.trace(net, positional, example if isinstance(example, dict) else {})
    return net


def _resolve_module_types(
    net: nn.Module, quant_modules: type[nn.Module] | Sequence[type[nn.Module]]
) -> tuple[type[nn.Module], ...]:
    """Return the types of modules that are quantized; ConfigError for what is no such type.

    Warns where no module of `net` is of any of them: that may be a mistake.
    """
    kinds: tuple[Any, ...] = (
        tuple(quant_modules) if isinstance(quant_modules, Sequence) else (quant_modules,)
    )
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ConfigError(
                f"init: quant_modules holds {kind!r}, which is no type of a torch.nn.Module"
            )
    if kinds and not any(isinstance(module, kinds) for module in net.modules()):
        told = ", ".join(kind.__name__ for kind in kinds)
        have = sorted(
            {
                get_annotations(module).original_class.__name__
                for module in net.modules()
                if not [*module.children()]
            }
        )
        warnings.warn(
            f"init: quant_modules ({told}) fit no module; the net has {', '.join(have)}",
            stacklevel=3,
        )
    return kinds


def _check_modules(net: nn.Module, row: Target) -> None:
    """Raise ConfigError for what single modules were told and `init` cannot do."""
    for path, module in net.named_modules():
        own = get_annotations(module).bits
        _check_widths(f"quant_module of '{path}'", own, row)
        if (clamp := get_annotations(module).clamp) is not None and clamp.percent is not None:
            raise ConfigError(
                f"init: module '{path}' has normalize_dynamic_percent, which is for finding odd "
                "layers, not for "
                "training; normalize the layers without it"
            )


def _resolve_mode_and_target(
    mode: QuantMode | None, platform: str | Target | None
) -> tuple[QuantMode, Target]:
    """Return mode and platform, the usual one of what is None.

    ConfigError for what do not go together.
    """
    if mode is not None and not isinstance(mode, QuantMode):
        raise ConfigError(
            f"init: mode {mode!r} is no QuantMode; choose QuantMode.MaxValue or QuantMode.QValue"
        )
    if platform is None:
        mode = mode or QuantMode.MaxValue
        return mode, GENERIC if mode is QuantMode.MaxValue else DEFAULT
    target = get_target(platform)
    usual = QuantMode.QValue if target.needs_power_of_two_scales else QuantMode.MaxValue
    mode = mode or usual
    if mode.value not in target.modes:
        raise ConfigError(
            f"QuantMode.{mode.name} on {target.name}: a chip takes powers of two only; choose "
            "QuantMode.QValue, or "
            'platform="generic"'
        )
    return mode, target


def _check_widths(what: str, widths: LayerBits | None, target: Target) -> None:
    """Raise ConfigError for widths that `target` has not."""
    if widths is None:
        return
    allowed = {
        "data_bits": target.bits,
        "parameter_bits": target.bits,
        "out_bits": (*target.bits, *target.out_bits),
    }
    given = {
        "data_bits": widths.data,
        "parameter_bits": widths.parameter_bits,
        "out_bits": widths.out_bits,
    }
    for key, bits in given.items():
        if bits not in allowed[key] and not (key == "out_bits" and bits is None):
            told = ", ".join(map(str, sorted(set(allowed[key]))))
            raise ConfigError(
                f"{what}: {key} {bits}; {target.name} has {told}"
                + (" or None" if key == "out_bits" else "")
            )


# ---- constraint training -----------------------------------------------------------------------------------------


def normalize_layers(
    net: nn.Module,
    normalize_modules: Sequence[type[nn.Module]] = (nn.Conv2d, nn.Linear),
    normalize_weight_value: float | None = 8,
    normalize_bias_value: float | None = 8,
    normalize_output_value: float | None = 8,
    normalize_dynamic_percent: float | None = None,
) -> nn.Module:
    """Clamp weights, biases and outputs in the forward of all layers of some types.

    Before `init`. Returns `net`.
    Layers that `normalize_module` or `disable_normalize` named keep what they have.
    normalize_dynamic_percent : the share of the values that are not cut, between 0 and 1; for
    finding odd layers, not for training.
    """
    _check_before_init(net, "normalize_layers")
    kinds: tuple[Any, ...] = tuple(normalize_modules)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, _CLAMPABLE_TYPES)):
            told = ", ".join(k.__name__ for k in _CLAMPABLE_TYPES)
            raise ConfigError(
                f"normalize_layers: {getattr(kind, '__name__', kind)} has no clamps; these have: "
                f"{told}"
            )
    clamp = _make_clamp(
        normalize_weight_value,
        normalize_bias_value,
        normalize_output_value,
        normalize_dynamic_percent,
    )
    for module in net.modules():
        if (
            isinstance(module, kinds)
            and get_annotations(module).clamp is None
            and not get_annotations(module).is_clamp_exempt
        ):
            get_or_create_annotations(module).clamp = clamp
            update_module_class(module)
    return net


def normalize_module(
    module: nn.Module,
    normalize_weight_value: float | None = 8,
    normalize_bias_value: float | None = 8,
    normalize_output_value: float | None = 8,
) -> nn.Module:
    """Clamp weight, bias and output of one layer; None for no limit; before `init`. Returns it."""
    _check_before_init(module, "normalize_module")
    if not isinstance(module, _CLAMPABLE_TYPES):
        raise ConfigError(f"normalize_module: a {type(module).__name__} has no clamps")
    marks = get_or_create_annotations(module)
    marks.clamp, marks.is_clamp_exempt = (
        _make_clamp(normalize_weight_value, normalize_bias_value, normalize_output_value, None),
        False,
    )
    update_module_class(module)
    return module


def disable_normalize(module: nn.Module) -> nn.Module:
    """Let `module`, with all that is in it, be without clamps; before `init`. Returns it."""
    _check_before_init(module, "disable_normalize")
    for part in module.modules():
        marks = get_or_create_annotations(part)
        marks.clamp, marks.is_clamp_exempt = None, True
        update_module_class(part)
    return module


def _make_clamp(
    weight: float | None, bias: float | None, output: float | None, percent: float | None
) -> Clamp:
    for name, value in (("weight", weight), ("bias", bias), ("output", output)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(
                f"normalize_{name}_value {value}: it is a positive number, or None for no limit"
            )
    if percent is not None and not 0 < percent <= 1:
        raise ConfigError(
            f"normalize_dynamic_percent {percent}: it is a share between 0 and 1, such as 0.99"
        )
    return Clamp(weight, bias, output, percent)


# ---- order -------------------------------------------------------------------------------------------------------


def _check_uninitialised_net(net: nn.Module) -> None:
    """Raise ConfigError for what is no module, and for a net of which something was initialised."""
    given: Any = net
    if not isinstance(given, nn.Module):
        raise ConfigError(
            f"a {type(net).__name__} is no torch.nn.Module; give the net itself, not its outputs "
            "or state_dict"
        )
    if any(get_annotations(module).is_initialised for module in net.modules()):
        raise ConfigError(
            f"the {get_annotations(net).original_class.__name__} was initialised before; init is "
            "the last call"
        )


def _check_before_init(module: nn.Module, call: str) -> None:
    given: Any = module
    if not isinstance(given, nn.Module):
        raise ConfigError(f"{call}: a {type(module).__name__} is no torch.nn.Module")
    if any(get_annotations(part).is_initialised for part in module.modules()):
        raise ConfigError(
            f"{call} comes before init; the {get_annotations(module).original_class.__name__} was "
            "initialised already"
        )
