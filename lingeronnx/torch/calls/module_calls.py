"""The calls of the vendor's training library: a torch module that trains with fake quantization.

    lo.torch.trace_layers(net, net, x)                     # fold batch norms; once, and first
    lo.torch.disable_normalize(net.fc)
    lo.torch.normalize_layers(net)                         # clamps in forward
    lo.torch.disable_quant(net.fc)
    net = lo.torch.init(net, mode=lo.torch.QuantMode.QValue, out_bits=8)
    net.load_state_dict(torch.load("float.pt"))            # the keys of the float net
    ...                                                    # train as before
    lo.torch.export(net, x, "net.onnx")

All of them note what they are told on the modules (`counterparts`); `init` makes the net compute what its integers will
(`quantized_net`). The parameters stay the same objects, under the same names. Must not know: graphs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import Enum
from typing import Any

from torch import nn

from ...errors import ConfigError
from ...plan.config import QuantConfig
from ...targets import DEFAULT, GENERIC, Target, by_name
from .counterparts import Clamp, Widths, dress, marked, marks_of
from .export_calls import export_through_us
from .quantized_net import initialise
from .trace import Settings, exported

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

_CLAMPED = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.ConvTranspose2d)


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

    Their mean and variance stay from then on; all other parameters train on. inputs : what target_model is called
    with. Where a layer is followed by a Relu, its output takes its scale from the positive side, here always: the last
    four can only be True. Returns `root_model`. Raises ModelError for what cannot be traced, with the module's name,
    and ConfigError where it comes second or after other calls.
    """
    _whole(root_model)
    known = {"fuse_bn": fuse_bn, "ahead_conv_relu": ahead_conv_relu, "ahead_bn_relu": ahead_bn_relu}
    for name, value in {**known, "ahead_linear_relu": ahead_linear_relu}.items():
        if not value:
            raise ConfigError(f"trace_layers: {name}=False is not offered: an integer graph always has it so")
    if all(module is not target_model for module in root_model.modules()):
        raise ConfigError("trace_layers: the target model is no part of the root model")
    for path, module in root_model.named_modules():
        marks = marked(module)
        if marks.traced is not None:
            raise ConfigError("trace_layers was called for this model before; once is all")
        if marks.clamp or marks.exempt or marks.widths or not marks.quantize:
            raise ConfigError(f"trace_layers comes first: module '{path or type(module).__name__}' was set before")
    args = inputs if isinstance(inputs, tuple | dict) else (inputs,)
    exported(target_model, args, {}, _EXPORTER)
    marks_of(root_model).traced = args if target_model is root_model else ()
    for module in target_model.modules():
        dress(module)
    return root_model


_EXPORTER = "torchscript"


# ---- what is quantized -------------------------------------------------------------------------------------------


def disable_quant(module: nn.Module) -> nn.Module:
    """Leave `module`, with all that is in it, in float; before `init`. Returns it."""
    _before(module, "disable_quant")
    marks_of(module).quantize = False
    return module


def quant_module(
    module: nn.Module, data_bits: int = 8, parameter_bits: int = 8, out_bits: int | None = None
) -> nn.Module:
    """Quantize `module`, whatever its type, and give it its own widths; before `init`, which checks them. Returns it.

    out_bits : None for a float32 output.
    """
    _before(module, "quant_module")
    marks_of(module).widths = Widths(data_bits, parameter_bits, out_bits)
    return module


def init(
    net: nn.Module,
    quant_modules: type[nn.Module] | Sequence[type[nn.Module]] = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear),
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
        QuantMode.MaxValue, or QuantMode.QValue for powers of two; default QValue for a chip, else MaxValue.
    data_bits, parameter_bits, out_bits
        Widths of inputs, weights and outputs. out_bits None: outputs are float32, and what stands between two layers
        computes in float; 8: operators without parameters that read integers only compute in integers, too.
    platform
        Default generic for MaxValue and the first chip for QValue.
    example_inputs
        What net is called with. With it, or after `trace_layers` of the whole net, the net is traced now, else at its
        first call. These inputs also give the first ranges.
    calib
        Calibration data, as `quantize` takes them. With them the scales are calibrated and stay; without, they follow
        the running maximum in training and stay in evaluation.
    exporter
        The exporter that traces, as `export` takes it.

    Raises
    ------
    ConfigError
        For settings that the platform has not, and for a net that was initialised before.
    ModelError
        For what cannot be traced, with the module's name.
    """
    _whole(net)
    kinds = _kinds(net, quant_modules)
    chosen, row = _row(mode, platform)
    widths = Widths(data_bits, parameter_bits, out_bits)
    config = {"platform": row, "mode": chosen.value, "bits": data_bits, "weight_bits": parameter_bits}
    QuantConfig.of(config, "init").check_platform(row)
    _check_modules(net, row)
    _check_widths("init", widths, row)
    export_through_us()
    state = initialise(net, Settings(kinds, row, chosen.value, widths, calib, exporter))
    example = example_inputs if example_inputs is not None else marked(net).traced
    if example is not None and not (isinstance(example, tuple) and not example):
        positional = example if isinstance(example, tuple) else () if isinstance(example, dict) else (example,)
        state.trace(net, positional, example if isinstance(example, dict) else {})
    return net


def _kinds(net: nn.Module, quant_modules: type[nn.Module] | Sequence[type[nn.Module]]) -> tuple[type[nn.Module], ...]:
    """Return the types of modules that are quantized; ConfigError for what is no such type.

    Warns where no module of `net` is of any of them: that may be a mistake.
    """
    kinds: tuple[Any, ...] = tuple(quant_modules) if isinstance(quant_modules, Sequence) else (quant_modules,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ConfigError(f"init: quant_modules holds {kind!r}, which is no type of a torch.nn.Module")
    if kinds and not any(isinstance(module, kinds) for module in net.modules()):
        told = ", ".join(kind.__name__ for kind in kinds)
        have = sorted({marked(module).original.__name__ for module in net.modules() if not [*module.children()]})
        warnings.warn(f"init: quant_modules ({told}) fit no module; the net has {', '.join(have)}", stacklevel=3)
    return kinds


def _check_modules(net: nn.Module, row: Target) -> None:
    """Raise ConfigError for what single modules were told and `init` cannot do."""
    for path, module in net.named_modules():
        own = marked(module).widths
        _check_widths(f"quant_module of '{path}'", own, row)
        if (clamp := marked(module).clamp) is not None and clamp.percent is not None:
            raise ConfigError(
                f"init: module '{path}' has normalize_dynamic_percent, which is for finding odd layers, not for "
                "training; normalize the layers without it"
            )


def _row(mode: QuantMode | None, platform: str | Target | None) -> tuple[QuantMode, Target]:
    """Return mode and platform, the usual one of what is None; ConfigError for what do not go together."""
    if mode is not None and not isinstance(mode, QuantMode):
        raise ConfigError(f"init: mode {mode!r} is no QuantMode; choose QuantMode.MaxValue or QuantMode.QValue")
    if platform is None:
        mode = mode or QuantMode.MaxValue
        return mode, GENERIC if mode is QuantMode.MaxValue else DEFAULT
    target = by_name(platform)
    usual = QuantMode.QValue if target.power_of_two else QuantMode.MaxValue
    mode = mode or usual
    if mode.value not in target.modes:
        raise ConfigError(
            f"QuantMode.{mode.name} on {target.name}: a chip takes powers of two only; choose QuantMode.QValue, or "
            'platform="generic"'
        )
    return mode, target


def _check_widths(what: str, widths: Widths | None, target: Target) -> None:
    """Raise ConfigError for widths that `target` has not."""
    if widths is None:
        return
    allowed = {"data_bits": target.bits, "parameter_bits": target.bits, "out_bits": (*target.bits, *target.out_bits)}
    given = {"data_bits": widths.data, "parameter_bits": widths.parameter, "out_bits": widths.out}
    for key, bits in given.items():
        if bits not in allowed[key] and not (key == "out_bits" and bits is None):
            told = ", ".join(map(str, sorted(set(allowed[key]))))
            raise ConfigError(
                f"{what}: {key} {bits}; {target.name} has {told}" + (" or None" if key == "out_bits" else "")
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
    """Clamp weights, biases and outputs in the forward of all layers of some types; before `init`. Returns `net`.

    Layers that `normalize_module` or `disable_normalize` named keep what they have. normalize_dynamic_percent : the
    share of the values that are not cut, between 0 and 1; for finding odd layers, not for training.
    """
    _before(net, "normalize_layers")
    kinds: tuple[Any, ...] = tuple(normalize_modules)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, _CLAMPED)):
            told = ", ".join(k.__name__ for k in _CLAMPED)
            raise ConfigError(f"normalize_layers: {getattr(kind, '__name__', kind)} has no clamps; these have: {told}")
    clamp = _clamp(normalize_weight_value, normalize_bias_value, normalize_output_value, normalize_dynamic_percent)
    for module in net.modules():
        if isinstance(module, kinds) and marked(module).clamp is None and not marked(module).exempt:
            marks_of(module).clamp = clamp
            dress(module)
    return net


def normalize_module(
    module: nn.Module,
    normalize_weight_value: float | None = 8,
    normalize_bias_value: float | None = 8,
    normalize_output_value: float | None = 8,
) -> nn.Module:
    """Clamp weight, bias and output of one layer; None for no limit; before `init`. Returns it."""
    _before(module, "normalize_module")
    if not isinstance(module, _CLAMPED):
        raise ConfigError(f"normalize_module: a {type(module).__name__} has no clamps")
    marks = marks_of(module)
    marks.clamp, marks.exempt = (
        _clamp(normalize_weight_value, normalize_bias_value, normalize_output_value, None),
        False,
    )
    dress(module)
    return module


def disable_normalize(module: nn.Module) -> nn.Module:
    """Let `module`, with all that is in it, be without clamps; before `init`. Returns it."""
    _before(module, "disable_normalize")
    for part in module.modules():
        marks = marks_of(part)
        marks.clamp, marks.exempt = None, True
        dress(part)
    return module


def _clamp(weight: float | None, bias: float | None, output: float | None, percent: float | None) -> Clamp:
    for name, value in (("weight", weight), ("bias", bias), ("output", output)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"normalize_{name}_value {value}: it is a positive number, or None for no limit")
    if percent is not None and not 0 < percent <= 1:
        raise ConfigError(f"normalize_dynamic_percent {percent}: it is a share between 0 and 1, such as 0.99")
    return Clamp(weight, bias, output, percent)


# ---- order -------------------------------------------------------------------------------------------------------


def _whole(net: nn.Module) -> None:
    """Raise ConfigError for what is no module, and for a net of which something was initialised."""
    given: Any = net
    if not isinstance(given, nn.Module):
        raise ConfigError(
            f"a {type(net).__name__} is no torch.nn.Module; give the net itself, not its outputs or state_dict"
        )
    if any(marked(module).inside for module in net.modules()):
        raise ConfigError(f"the {marked(net).original.__name__} was initialised before; init is the last call")


def _before(module: nn.Module, call: str) -> None:
    given: Any = module
    if not isinstance(given, nn.Module):
        raise ConfigError(f"{call}: a {type(module).__name__} is no torch.nn.Module")
    if any(marked(part).inside for part in module.modules()):
        raise ConfigError(f"{call} comes before init; the {marked(module).original.__name__} was initialised already")
