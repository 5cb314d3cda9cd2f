"""Annotations of single modules, and the wrapper classes of annotated modules.

A module that is clamped, folded or quantized gets another class, a subclass of its original one,
and keeps everything else: its parameters stay the same objects under the same names. ``print``
shows the new class. It computes with its effective parameters:

    fold     w' = w * a,  b' = (b - mean) * a + beta,  a = gamma / sqrt(var + eps)
             of the batch norm after it
    clamp    clamp(w', -limit, limit)

with gradients to w, b, gamma and beta; mean and var are constant. This module knows torch modules,
but no graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "Clamp",
    "LayerBits",
    "ModuleAnnotations",
    "WrappedModule",
    "get_annotations",
    "get_effective_parameters",
    "get_or_create_annotations",
    "original_classes",
    "update_module_class",
]

_KEY = "lingeronnx_marks"


@dataclass(frozen=True)
class Clamp:
    """Largest absolute values of a layer's weight, bias and output; None for no limit.

    If `percent` is given, each limit is at most the magnitude that this fraction (0 to 1) of the
    values does not exceed.
    """

    weight: float | None
    bias: float | None
    output: float | None
    percent: float | None = None

    def apply(self, tensor: Tensor, limit: float | None) -> Tensor:
        """Return `tensor` clamped to [-limit, limit]; the gradient of clamped elements is zero.

        With `percent` the limit is at most that quantile of the magnitudes. A `limit` of None is
        none.
        """
        if self.percent is not None:
            magnitudes = tensor.detach().abs().flatten()
            rank = max(round(self.percent * magnitudes.numel()), 1)
            percentile = float(magnitudes.kthvalue(rank).values)
            limit = percentile if limit is None else min(limit, percentile)
        return tensor if limit is None else torch.clamp(tensor, -limit, limit)


@dataclass(frozen=True)
class LayerBits:
    """Bit widths of a layer's input, weight and output; an output of None bits is float32."""

    data: int
    parameter_bits: int
    out_bits: int | None


@dataclass
class ModuleAnnotations:
    """Settings of a module, and its state in an initialised net.

    Attributes
    ----------
    original_class
        Class of the module without the wrapper.
    allows_quantization
        Whether the module and its submodules may be quantized.
    bits
        Bit widths of the module, if they are set.
    clamp
        Limits of weight, bias and output.
    is_clamp_exempt
        Whether `normalize_layers` skips the module.
    folded_norm
        The batch norm that is folded into the module.
    is_folded_norm
        Whether the module is a batch norm that is folded into another one.
    is_selected
        Whether `init` selected the module for quantization.
    is_quantized
        Whether the integer graph has the module in integers.
    is_initialised
        Whether the module belongs to an initialised net.
    trace_args
        Arguments that `trace_layers` called the module with; () if that was for a submodule.
    """

    original_class: type[nn.Module]
    allows_quantization: bool = True
    bits: LayerBits | None = None
    clamp: Clamp | None = None
    is_clamp_exempt: bool = False
    folded_norm: nn.Module | None = None
    is_folded_norm: bool = False
    is_selected: bool = False
    is_quantized: bool = False
    is_initialised: bool = False
    trace_args: Any = None


def get_or_create_annotations(module: nn.Module) -> ModuleAnnotations:
    """Return the annotations of `module`, adding empty ones if it has none."""
    if _KEY not in module.__dict__:
        module.__dict__[_KEY] = ModuleAnnotations(type(module))
    return module.__dict__[_KEY]


def get_annotations(module: nn.Module) -> ModuleAnnotations:
    """Return the annotations of `module`, or unattached empty ones; does not modify the module."""
    return module.__dict__.get(_KEY) or ModuleAnnotations(type(module))


# ---- effective parameters -----------------------------------------------------------------------


def get_effective_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return weight and bias of `module` after folding its batch norm and clamping, by attribute.

    Parameters that are neither folded nor clamped are not included. The tensors have gradients.
    """
    annotations = get_annotations(module)
    tensors: dict[str, Tensor] = {}
    if annotations.folded_norm is not None:
        tensors = _fold_batch_norm(module, annotations.folded_norm)
    clamp = annotations.clamp
    if clamp is None:
        return tensors
    for name, limit in (("weight", clamp.weight), ("bias", clamp.bias)):
        tensor = tensors.get(name, module._parameters.get(name))
        if tensor is not None:
            tensors[name] = clamp.apply(tensor, limit)
    return tensors


def _fold_batch_norm(layer: nn.Module, norm: nn.Module) -> dict[str, Tensor]:
    """Fold the batch norm `norm` into weight and bias of the layer before it, in float64.

    Uses the running statistics; returns new "weight" and "bias" in the type of the weight.
    """
    mean, var = (getattr(norm, name).double() for name in ("running_mean", "running_var"))
    gamma, beta = norm._parameters.get("weight"), norm._parameters.get("bias")
    factor = torch.rsqrt(var + float(norm.eps))
    factor = factor if gamma is None else gamma.double() * factor
    weight, bias = layer._parameters["weight"], layer._parameters.get("bias")
    assert weight is not None
    shift = -mean if bias is None else bias.double() - mean
    offset = shift * factor if beta is None else shift * factor + beta.double()
    if isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d):  # [in, out / groups, ...]
        groups = layer.groups
        grouped = weight.double().reshape(groups, -1, *weight.shape[1:])
        scaled = grouped * factor.reshape(groups, 1, -1, *[1] * (weight.dim() - 2))
    else:
        scaled = weight.double() * factor.reshape(-1, *[1] * (weight.dim() - 1))
    return {
        "weight": scaled.reshape(weight.shape).to(weight.dtype),
        "bias": offset.to(weight.dtype),
    }


# ---- wrapper classes ----------------------------------------------------------------------------


class WrappedModule(nn.Module):
    """Mixin before the original class: computes with effective parameters and clamps the output."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original forward with the effective parameters, and clamp its result.

        A batch norm that is folded into the layer before it returns its input.
        """
        annotations = get_annotations(self)
        if annotations.is_folded_norm:
            return args[0] if args else next(iter(kwargs.values()))
        tensors = get_effective_parameters(self)
        self.__dict__.update(tensors)  # instance attributes hide the parameters of these names
        try:
            result = super().forward(*args, **kwargs)
        finally:
            for name in tensors:
                del self.__dict__[name]
        if annotations.clamp is None:
            return result
        return annotations.clamp.apply(result, annotations.clamp.output)

    def extra_repr(self) -> str:
        """Return the settings of the module for ``print(module)``, after those of its class.

        Bits if it is quantized, the limits of clamps, and whether a batch norm is folded in.
        """
        annotations = get_annotations(self)
        settings = [super().extra_repr()]
        if annotations.is_quantized and annotations.bits is not None:
            bits = annotations.bits
            settings.append(
                f"data_bits={bits.data}, parameter_bits={bits.parameter_bits}, "
                f"out_bits={bits.out_bits}"
            )
        if annotations.clamp is not None:
            for kind in ("weight", "bias", "output"):
                limit = getattr(annotations.clamp, kind)
                if limit is not None:
                    settings.append(f"normalize_{kind}={limit:g}")
        if annotations.folded_norm is not None:
            settings.append("batch norm folded in")
        return ", ".join(setting for setting in settings if setting)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the recipe for pickle to create the wrapper class, which exists only at run time.

        These are the arguments of `make_wrapped_class`, followed by the usual state of the module.
        """
        _, _, *state = super().__reduce_ex__(protocol)
        return (_rebuild_wrapped, type(self).recipe, *state)


def _rebuild_wrapped(*recipe: Any) -> nn.Module:
    """Return an instance without attributes of a wrapper class, whose state pickle then restores.

    `recipe` are the arguments of `make_wrapped_class`: prefix, original class and mixin.
    """
    wrapped_class: Any = make_wrapped_class(*recipe)
    module: nn.Module = wrapped_class.__new__(wrapped_class)
    return module


def make_wrapped_class(prefix: str, original: Any, base: Any) -> type[nn.Module]:
    """Return a subclass of `base` and `original`, in this order, with `prefix` in its name.

    The name is `prefix` and that of `original`.
    """
    return type(
        f"{prefix}{original.__name__}",
        (base, original),
        {"__module__": __name__, "recipe": (prefix, original, base)},
    )


def update_module_class(module: nn.Module, base: type[nn.Module] = WrappedModule) -> None:
    """Set the class of `module` to the wrapper class that its annotations need.

    That is, with the prefix before the name of the original class: Quantized if it is quantized or
    `base` is not the default, else Normalize if it is clamped, else Folded if a batch norm is
    folded in or it is one that is folded; otherwise the original class.

    Parameters
    ----------
    base
        Mixin for the wrapper class; `QuantizedNet` for a complete net.
    """
    annotations = get_or_create_annotations(module)
    if annotations.is_quantized or base is not WrappedModule:
        prefix = "Quantized"
    elif annotations.clamp is not None:
        prefix = "Normalize"
    elif annotations.is_folded_norm or annotations.folded_norm is not None:
        prefix = "Folded"
    else:
        module.__class__ = annotations.original_class
        return
    module.__class__ = make_wrapped_class(prefix, annotations.original_class, base)


@contextlib.contextmanager
def original_classes(net: nn.Module) -> Iterator[None]:
    """Restore the original classes of all modules in `net` within a context.

    Modules that are not selected for quantization still clamp their outputs.
    """
    wrapped = [(module, module.__class__) for module in net.modules()]
    for module, _ in wrapped:
        module.__class__ = _get_float_class(get_annotations(module))
    try:
        yield
    finally:
        for module, wrapped_class in wrapped:
            module.__class__ = wrapped_class


def _get_float_class(annotations: ModuleAnnotations) -> type[nn.Module]:
    """Return the class that a module with `annotations` has during the float export.

    It is the original one or, for a module that is not selected for quantization and has an output
    clamp, one that clamps its output.
    """
    clamp = annotations.clamp
    if clamp is None or clamp.output is None or annotations.is_selected:
        return annotations.original_class
    return make_wrapped_class("Limited", annotations.original_class, _ClampedOutput)


class _ClampedOutput(nn.Module):
    """Mixin before the original class: clamps the output, with unmodified parameters."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the original forward, and return its output clamped to the module's output limit."""
        clamp = get_annotations(self).clamp
        assert clamp is not None
        return clamp.apply(super().forward(*args, **kwargs), clamp.output)
