"""What the calls note about single modules, and the counterparts that stand in for them.

A module that is clamped, folded or quantized gets another class, a subclass of its own, and keeps
everything else: its parameters stay the same objects under the same names. `print` shows the new
class. Its weights in effect are

    fold     w' = w * a,  b' = (b - mean) * a + beta,  a = gamma / sqrt(var + eps)     of the batch
    norm behind it clamp    clamp(w', -limit, limit)

with gradients to all of w, b, gamma and beta; mean and var stay as they are. Knows torch modules;
no graph.
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
    """Largest |value| of a layer's weight, bias and output, None for no limit.

    percent : the share of the values that a limit holds, between 0 and 1, where that gives a
    smaller one.
    """

    weight: float | None
    bias: float | None
    output: float | None
    percent: float | None = None

    def apply(self, tensor: Tensor, limit: float | None) -> Tensor:
        """Return `tensor` within `limit`; the gradient is zero where it was cut."""
        if self.percent is not None:
            sizes = tensor.detach().abs().flatten()
            own = float(sizes.kthvalue(max(round(self.percent * sizes.numel()), 1)).values)
            limit = own if limit is None else min(limit, own)
        return tensor if limit is None else torch.clamp(tensor, -limit, limit)


@dataclass(frozen=True)
class LayerBits:
    """Bits of a layer's input, weight and output; output None: float32."""

    data: int
    parameter_bits: int
    out_bits: int | None


@dataclass
class ModuleAnnotations:
    """What was said about a module.

    original_class : its class. quantize : whether it may be. widths : its own. clamp : its limits;
    exempt : it has none. folded_norm : the batch norm that is folded into it. folded : whether it
    is such a batch norm. chosen : whether `init` chose it. quantized : whether the graph has it in
    integers. inside : whether it belongs to an initialised net. trace_args : what `trace_layers`
    called it with, () where that was a part of it.
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
    """Return the marks of `module`, which gets some where it has none."""
    found = module.__dict__.get(_KEY)
    if found is None:
        found = module.__dict__[_KEY] = ModuleAnnotations(type(module))
    return found


def get_annotations(module: nn.Module) -> ModuleAnnotations:
    """Return the marks of `module`, fresh ones where it has none."""
    return module.__dict__.get(_KEY) or ModuleAnnotations(type(module))


# ---- weights in effect -------------------------------------------------------------------------------------------


def get_effective_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return the weight and the bias of `module` that count instead of its own, by attribute.

    Nothing where they do.
    """
    marks = get_annotations(module)
    found: dict[str, Tensor] = {}
    if marks.folded_norm is not None:
        found = _fold_batch_norm(module, marks.folded_norm)
    if marks.clamp is not None:
        own = {"weight": marks.clamp.weight, "bias": marks.clamp.bias}
        for name, limit in own.items():
            tensor = found.get(name, module._parameters.get(name))
            if tensor is not None:
                found[name] = marks.clamp.apply(tensor, limit)
    return found


def _fold_batch_norm(layer: nn.Module, norm: nn.Module) -> dict[str, Tensor]:
    """Return weight and bias of `layer` with `norm` behind it, computed in float64."""
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
        parts = weight.double().reshape(groups, -1, *weight.shape[1:])
        scaled = parts * factor.reshape(groups, 1, -1, *[1] * (weight.dim() - 2))
    else:
        scaled = weight.double() * factor.reshape(-1, *[1] * (weight.dim() - 1))
    return {
        "weight": scaled.reshape(weight.shape).to(weight.dtype),
        "bias": offset.to(weight.dtype),
    }


# ---- counterparts ------------------------------------------------------------------------------------------------


class WrappedModule(nn.Module):
    """Computes what the class behind it does, with the weights in effect and a clamped output."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original's forward; a folded batch norm passes its input on."""
        marks = get_annotations(self)
        if marks.is_folded_norm:
            return args[0] if args else next(iter(kwargs.values()))
        found = get_effective_parameters(self)
        self.__dict__.update(found)  # found before the parameters of these names
        try:
            result = super().forward(*args, **kwargs)
        finally:
            for name in found:
                del self.__dict__[name]
        return result if marks.clamp is None else marks.clamp.apply(result, marks.clamp.output)

    def extra_repr(self) -> str:
        """Say what is different."""
        marks = get_annotations(self)
        said = [super().extra_repr()]
        if marks.is_quantized and marks.bits is not None:
            widths = marks.bits
            said.append(
                f"data_bits={widths.data}, parameter_bits={widths.parameter_bits}, "
                f"out_bits={widths.out_bits}"
            )
        if marks.clamp is not None:
            kinds = ("weight", "bias", "output")
            said += [
                f"normalize_{kind}={v:g}"
                for kind in kinds
                if (v := getattr(marks.clamp, kind)) is not None
            ]
        if marks.folded_norm is not None:
            said.append("batch norm folded in")
        return ", ".join(text for text in said if text)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Name the class by what it is made of: no module holds it."""
        _, _, *rest = super().__reduce_ex__(protocol)
        return (_rebuild_wrapped, type(self).recipe, *rest)


def _rebuild_wrapped(*recipe: Any) -> nn.Module:
    kind: Any = make_wrapped_class(*recipe)
    made: nn.Module = kind.__new__(kind)
    return made


def make_wrapped_class(prefix: str, original: Any, base: Any) -> type[nn.Module]:
    """Return the class that stands for `original`: `base` before it."""
    return type(
        f"{prefix}{original.__name__}",
        (base, original),
        {"__module__": __name__, "recipe": (prefix, original, base)},
    )


def update_module_class(module: nn.Module, base: type[nn.Module] = WrappedModule) -> None:
    """Give `module` the class that its marks ask for.

    `base` : what stands before its own, of a whole net.
    """
    marks = get_or_create_annotations(module)
    if marks.is_quantized or base is not WrappedModule:
        prefix = "Quantized"
    elif marks.clamp is not None:
        prefix = "Normalize"
    elif marks.is_folded_norm or marks.folded_norm is not None:
        prefix = "Folded"
    else:
        module.__class__ = marks.original_class
        return
    module.__class__ = make_wrapped_class(prefix, marks.original_class, base)


@contextlib.contextmanager
def original_classes(net: nn.Module) -> Iterator[None]:
    """Give every module in `net` its own class back for a while, but for outputs clamped in float layers."""
    before = [(module, module.__class__) for module in net.modules()]
    for module, _ in before:
        marks = get_annotations(module)
        limited = (
            marks.clamp is not None and marks.clamp.output is not None and not marks.is_selected
        )
        module.__class__ = (
            make_wrapped_class("Limited", marks.original_class, _ClampedOutput)
            if limited
            else marks.original_class
        )
    try:
        yield
    finally:
        for module, kind in before:
            module.__class__ = kind


class _ClampedOutput(nn.Module):
    """Clamps its output; its weights are its own."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        clamp = get_annotations(self).clamp
        assert clamp is not None
        return clamp.apply(super().forward(*args, **kwargs), clamp.output)
