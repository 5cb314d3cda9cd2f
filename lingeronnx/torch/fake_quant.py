"""Fake quantizers: what each simulator kernel computes, in torch, with gradients.

One function per kind of kernel (`FAKE_QUANTIZERS`): a bound kernel says everything that an operator's node says.
Tensors hold counts, which are whole numbers in floating point. The forward pass gives the simulator's integers to the
last bit. The backward pass is that of the real function.

    f(kernel, inputs, at) -> outputs          at: the types of the inputs, the parameters, the output's scale

Products and sums are exact: they are computed in float32 where they stay below 2^23, else in float64. Operators of
another arithmetic (softmax, layer norm, recurrent layers) take their forward value from the simulator's kernel. A
kernel that no lowered graph holds, and through which nothing trains, stands in `OUT_OF_REACH` with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from simulator import kernels as k
from simulator import machine
from simulator.fixed import Rescale
from simulator.kernel import Call, Kernel, Spec
from simulator.kernels._common import Window, image_size, magnitude
from simulator.kernels.recurrent import Recurrent

from ..errors import ModelError
from ..formats import recurrent
from ..formats.layers import FloatLinear
from ..graph import ir
from .rounding import FLOAT32_EXACT, ratio, replaced, rescaled, rounded

__all__ = ["OUT_OF_REACH", "FAKE_QUANTIZERS", "At", "counts", "held_by", "fake_quantizer"]


@dataclass(frozen=True)
class At:
    """Where a fake quantizer stands.

    dtypes : of the inputs, as the simulator has them. given : parameters in counts, in place of the integers that the
    kernel holds, by the node's input index; of a recurrent layer, whose weights stand behind what it is given, by the
    kernel's field, or "h" and "c". probe : log2 of the output's scale, where its gradient is wanted. floats : of a
    float island, tensors in place of its own constants, by name.
    """

    dtypes: Sequence[np.dtype]
    given: Mapping[int | str, Any] = field(default_factory=dict)
    probe: Any = None
    floats: Mapping[str, Any] = field(default_factory=dict)

    def size(self, index: int = 0) -> int:
        """Return the largest |count| of an input."""
        return magnitude(self.dtypes[index])

    def held(self, index: int | str, array: np.ndarray | None, like: Any) -> Any:
        """Return parameter `index`, else the kernel's own `array`; None where there is neither."""
        if index in self.given:
            return self.given[index]
        return None if array is None else counts(array, like)


FakeQuantizer = Callable[[Any, Sequence[Any], At], tuple[Any, ...]]


def fake_quantizer(kernel: Kernel) -> FakeQuantizer:
    """Return the fake quantizer of a kernel; ModelError where it has none."""
    kind = type(kernel)
    if kind in OUT_OF_REACH:
        raise ModelError(f"{kind.__name__} has no fake quantizer to train through: {OUT_OF_REACH[kind]}")
    if kind not in FAKE_QUANTIZERS:
        raise ModelError(f"{kind.__name__} has no fake quantizer to train through; leave the node in float")
    return FAKE_QUANTIZERS[kind]


def held_by(kernel: Kernel, node: ir.Node) -> dict[int | str, ir.Value]:
    """Return the inputs of a kernel's node by what `At.given` calls them."""
    if isinstance(kernel, Recurrent):
        found: Mapping[Any, int] = recurrent.places(node)
    else:
        found = {index: index for index in range(len(node.inputs))}
    return {key: value for key, index in found.items() if (value := node.inputs[index]) is not None}


def counts(array: np.ndarray, like: Any) -> Any:
    """Return an integer array as a tensor of counts on the device of `like`: float32 where that holds them exactly."""
    wide = array.dtype.itemsize > 2 and bool(np.abs(array.astype(np.float64)).max(initial=0) >= 1 << 24)
    return torch.from_numpy(array.astype(np.float64 if wide else np.float32)).to(like.device)


def _largest(weight: Any, bias: Any, size: int) -> int:
    """Return the largest |accumulator| for inputs of at most `size`; `weight` has the outputs on axis 0."""
    sums = weight.detach().abs().flatten(1).sum(1, dtype=torch.float64) * size
    if bias is not None:
        sums = sums + bias.detach().abs()
    return int(sums.max().item()) + 1 if sums.numel() else 1


def _wide_enough(bound: int, *tensors: Any) -> list[Any]:
    """Return the tensors in a type that is exact up to `bound`."""
    kind = torch.float32 if bound < FLOAT32_EXACT else torch.float64
    return [None if t is None else t.to(kind) for t in tensors]


# ---- weights -----------------------------------------------------------------------------------------------------


def _padded(x: Any, window: Window, axes: int, value: float = 0.0, more: Sequence[int] = (0, 0)) -> Any:
    """Return `x` with the window's padding around, and `more` at the ends."""
    top, left, bottom, right = window.pads
    around = [left, right + more[1], top, bottom + more[0]][: 2 * axes]
    return F.pad(x, around, value=value) if any(around) else x


def _centered(inputs: Sequence[Any], *zeros: int) -> list[Any]:
    """Return counts less what stands for 0: their padding is 0 then, whatever it was."""
    return [x - zero if zero else x for x, zero in zip(inputs, zeros, strict=True)]


def _conv(kernel: k.Conv, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,), size = _centered(inputs, kernel.zero), at.size() + abs(kernel.zero)
    weight, bias = at.held(1, kernel.weight, x), at.held(2, kernel.bias, x)
    bound = _largest(weight, bias, size)
    axes, window = weight.ndim - 2, kernel._window()
    x, weight, bias = _wide_enough(bound, _padded(x, window, axes), weight, bias)
    convolve = F.conv2d if axes == 2 else F.conv1d
    acc = convolve(x, weight, bias, window.strides[2 - axes :], 0, window.dilations[2 - axes :], kernel.group)
    return (rescaled(acc, kernel.rescale, bound, at.probe),)


def _conv_transpose(kernel: k.ConvTranspose, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,), size = _centered(inputs, kernel.zero), at.size() + abs(kernel.zero)
    weight, bias = at.held(1, kernel.weight, x), at.held(2, kernel.bias, x)
    # Every output adds up at most all inputs' taps of its channel.
    bound = int(weight.detach().abs().transpose(0, 1).flatten(1).sum(1).max().item()) * size + (
        0 if bias is None else int(bias.detach().abs().max().item())
    )
    window = kernel._window()
    (spec,) = kernel.infer(Spec(tuple(x.shape), np.dtype(np.int8)))
    x, weight, bias = _wide_enough(bound, _as_image(x), _as_image(weight), bias)
    top, left = window.pads[:2]
    acc = F.conv_transpose2d(x, weight, bias, window.strides, 0, 0, kernel.group, window.dilations)
    height, width = image_size(spec.shape[2:])
    short = [max(top + height - acc.shape[2], 0), max(left + width - acc.shape[3], 0)]
    if any(short):  # what output_padding adds lies beyond every tap, where only the bias is
        beyond = acc.new_zeros(1, acc.shape[1], 1, 1) if bias is None else bias.reshape(1, -1, 1, 1)
        inner = acc - beyond
        acc = F.pad(inner, (0, short[1], 0, short[0])) + beyond
    acc = acc[:, :, top : top + height, left : left + width].reshape(spec.shape)
    return (rescaled(acc, kernel.rescale, bound, at.probe),)


def _as_image(x: Any) -> Any:
    """Return a line [.., .., W] as an image of one row."""
    return x if x.ndim == 4 else x[:, :, None]


def _linear(kernel: k.Linear, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,), size = _centered(inputs, kernel.zero), at.size() + abs(kernel.zero)
    weight, bias = at.held(1, kernel.weight, x), at.held(2, kernel.bias, x)
    bound = _largest(weight, bias, size)
    x, weight, bias = _wide_enough(bound, x, weight, bias)
    return (rescaled(F.linear(x, weight, bias), kernel.rescale, bound, at.probe, axis=-1),)


def _float_linear(kernel: FloatLinear, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    x = inputs[0].double() - kernel.zero
    weight, bias = at.held(1, kernel.weight, x), at.held(2, kernel.bias, x)
    acc = F.linear(x, weight.double(), None if bias is None else bias.double())
    scale = torch.from_numpy(kernel.scale).to(acc.device) if isinstance(kernel.scale, np.ndarray) else kernel.scale
    return ((acc / scale).float(),)


def _affine(kernel: k.Affine, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,), size = _centered(inputs, kernel.zero), at.size() + abs(kernel.zero)
    weight, bias = at.held(1, kernel.weight, x), at.held(2, kernel.bias, x)
    bound = _largest(weight[:, None], bias, size)
    x, weight, bias = _wide_enough(bound, x, weight, bias)
    place = (1, -1, *(1,) * (x.ndim - 2))
    return (rescaled(x * weight.reshape(place) + bias.reshape(place), kernel.rescale, bound, at.probe),)


# ---- two activations ---------------------------------------------------------------------------------------------


def _add_shift(kernel: k.AddShift, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    shifts = (kernel.shift_x, kernel.shift_y)
    parts = [
        rescaled(v, Rescale.from_shift(s, kernel.bits), at.size(i))
        for i, (v, s) in enumerate(zip(inputs, shifts, strict=True))
    ]
    top = 1 << (kernel.bits - 1)
    return (rounded(parts[0] + kernel.sign * parts[1], -top, top - 1, at.probe),)


def _add_scaled(kernel: k.AddScaled, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    rules = (kernel.x, kernel.y)
    fine = [rescaled(v.double(), rule, at.size(i)) for i, (v, rule) in enumerate(zip(inputs, rules, strict=True))]
    total = fine[0] + kernel.sign * fine[1]
    bound = sum(rule.bound(at.size(i)) for i, rule in enumerate(rules))
    return (rescaled(total, kernel.out, bound, at.probe),)


def _mul(kernel: k.Mul, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    bound = at.size() * at.size(1)
    x, y = _wide_enough(bound, *inputs)
    return (rescaled(x * y, kernel.rescale, bound, at.probe),)


def _matmul(kernel: k.MatMul, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    bound = at.size() * at.size(1) * inputs[0].shape[-1]
    x, y = _wide_enough(bound, *inputs)
    return (rescaled(x @ y, kernel.rescale, bound, at.probe),)


def _div_single(kernel: k.DivSingle, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    """Where it divides by zero there is no slope."""
    x, y = (v.double() for v in inputs)
    safe = torch.where(y == 0, 1.0, y)
    smooth = torch.where(y == 0, 0.0, x / safe) * (kernel.scale_o * kernel.scale_y / kernel.scale_x)
    (exact,) = _computed(kernel, [_integers(v, kind) for v, kind in zip(inputs, at.dtypes, strict=True)], smooth)
    top = 1 << (kernel.bits - 1)
    return (rounded(smooth, -top, top - 1, at.probe, exact),)


# ---- one activation ----------------------------------------------------------------------------------------------


def _quant(kernel: k.Quant, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    exact = _computed(kernel, [x.detach().float().cpu().numpy()], x)[0]
    top = 1 << (min(kernel.bits, 8) if kernel.rule == "luna" else kernel.bits) - 1
    smooth = (x.double() if kernel.bits > 24 else x) * kernel.scale
    if not kernel.zero:
        return (rounded(smooth, -top, top - 1, at.probe, exact),)
    moved = rounded(smooth, -top - kernel.zero, top - 1 - kernel.zero, at.probe, exact - kernel.zero)
    return (moved + kernel.zero,)


def _dequant(kernel: k.Dequant, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    return (((inputs[0].double() - kernel.zero) / kernel.scale).float(),)


def _requant(kernel: k.Requant, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    if not kernel.saturate and (right := kernel.rescale.pow2_shift) is not None and right < 0:
        bits = 8 * kernel.rescale.dtype.itemsize
        moved = x.double() * 2.0**-right
        wrapped = torch.remainder(moved.detach() + 2.0 ** (bits - 1), 2.0**bits) - 2.0 ** (bits - 1)
        return (replaced(moved if bits > 24 else moved.float(), wrapped),)
    return (rescaled(x.double() if at.size() >= FLOAT32_EXACT else x, kernel.rescale, at.size(), at.probe),)


def _clip(kernel: k.Clip, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    size = at.size()
    low, high = (min(max(bound, -size), size - 1) for bound in kernel.bounds)
    return (torch.clamp(inputs[0], low, high),)


def _table(kernel: k.Table, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    values = counts(kernel.values, x)
    index = x.detach().to(torch.int64) + len(values) // 2
    slope = _slopes(kernel.values, x)[index]
    return (replaced(x * slope, values[index]),)


def _slopes(values: np.ndarray, like: Any) -> Any:
    """Return the mean slope of a table around each entry: of a span wide enough to see past the rounding."""
    reach, last = max(len(values) // 64, 1), len(values) - 1
    at = np.arange(len(values))
    left, right = np.maximum(at - reach, 0), np.minimum(at + reach, last)
    span = values.astype(np.float64)
    return counts_of((span[right] - span[left]) / (right - left), like)


def counts_of(values: np.ndarray, like: Any) -> Any:
    """Return real values as a float32 tensor on the device of `like`."""
    return torch.from_numpy(values.astype(np.float32)).to(like.device)


def _glu(kernel: k.Glu, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    a, b = inputs[0].double().chunk(2, kernel.axis)
    index = b.detach().to(torch.int64) + 128
    gate = torch.from_numpy(kernel.gate.astype(np.float64)).to(b.device)
    slope = _slopes(kernel.gate, b).double()[index]
    return (rescaled(a * replaced(b * slope, gate[index]), kernel.rescale, 128 << 15, at.probe),)


# ---- windows -----------------------------------------------------------------------------------------------------


def _hanging(kernel: Any, x: Any, window: Window) -> list[int]:
    """Return how far the last windows reach beyond the padded image: with ceil_mode they may."""
    (spec,) = kernel.infer(Spec(tuple(x.shape), np.dtype(np.int8)))
    rows, places = image_size(x.shape[2:]), image_size(spec.shape[2:])
    more = []
    for axis in (0, 1):
        reach = (places[axis] - 1) * window.strides[axis] + window.dilations[axis] * (window.kernel[axis] - 1) + 1
        more.append(max(reach - rows[axis] - window.pads[axis] - window.pads[axis + 2], 0))
    return more


def _max_pool(kernel: k.MaxPool, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    window, axes = kernel._window(), x.ndim - 2
    padded = _padded(x, window, axes, -math.inf, _hanging(kernel, x, window))
    pool = F.max_pool2d if axes == 2 else F.max_pool1d
    y = pool(padded, window.kernel[2 - axes :], window.strides[2 - axes :], 0, window.dilations[2 - axes :])
    (spec,) = kernel.infer(Spec(tuple(x.shape), np.dtype(np.int8)))
    y = y[tuple(slice(n) for n in spec.shape)]
    # A window that lies in the padding only gives the least integer of the input's type.
    return (torch.where(y == -math.inf, -float(at.size()), y),)


def _avg_pool(kernel: k.AvgPool, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    window = kernel._window()
    bound = window.kernel[0] * window.kernel[1] * at.size()
    (x,) = _wide_enough(bound, x)
    return (rescaled(_totals(kernel, x, window), kernel.rule, bound, at.probe),)


def _totals(kernel: Any, x: Any, window: Window, around: float = 0.0) -> Any:
    """Return the sum of each window; `around` fills the padding, zeros what lies beyond."""
    more = _hanging(kernel, x, window)
    padded = F.pad(_padded(x, window, x.ndim - 2, around), [0, more[1], 0, more[0]][: 2 * (x.ndim - 2)])
    total = F.avg_pool2d(_as_image(padded), window.kernel, window.strides, divisor_override=1)
    (spec,) = kernel.infer(Spec(tuple(x.shape), np.dtype(np.int8)))
    places = image_size(spec.shape[2:])
    return total[:, :, : places[0], : places[1]].reshape(spec.shape)


def _mean(kernel: k.Mean, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    window = kernel._window(Spec(tuple(x.shape), at.dtypes[0]))
    number = _totals(kernel, torch.ones_like(x[:1, :1]), window, float(kernel.padded)).clamp(min=1)
    total = _totals(kernel, x.double(), window) * 2.0**kernel.shift
    (exact,) = _computed(kernel, [_integers(x, at.dtypes[0])], x)
    top = 1 << (kernel.bits - 1)
    return (rounded(total / (kernel.divisor or number), -top, top - 1, at.probe, exact),)


def _of_centered(kernel: k.Centered, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    kinds = [np.dtype(np.int16) if zero else kind for zero, kind in zip(kernel.zeros, at.dtypes, strict=True)]
    compute = fake_quantizer(kernel.kernel)
    return compute(kernel.kernel, _centered(inputs, *kernel.zeros), replace(at, dtypes=kinds))


# ---- moving ------------------------------------------------------------------------------------------------------


def _concat(kernel: k.Concat, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    count = max(x.shape[0] for x in inputs)
    parts = [
        x
        if rule.pow2_shift == 0 and rule.bits >= 8 * at.dtypes[i].itemsize
        else rescaled(x, rule, at.size(i), at.probe)
        for i, (x, rule) in enumerate(zip(inputs, kernel.rescales, strict=True))
    ]
    axis = kernel.axis % inputs[0].ndim
    parts = [p.expand(count, *p.shape[1:]) if axis and p.shape[0] == 1 else p for p in parts]
    return (torch.cat(parts, axis),)


def _reshape(kernel: k.Reshape, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (spec,) = kernel.infer(Spec(tuple(inputs[0].shape), np.dtype(np.int8)))
    return (inputs[0].reshape(spec.shape),)


def _transpose(kernel: k.Transpose, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    return (inputs[0].permute(tuple(kernel.perm)),)


def _pick(kernel: k.Pick, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    for axis, index in enumerate(kernel.indices):
        if index is None:
            continue
        place = torch.from_numpy(np.array(index, np.int64)).to(x.device)  # a copy: indices may run backwards
        x = x.index_select(axis, place.clamp(min=0))
        gaps = (place < 0).reshape(-1, *(1,) * (x.ndim - axis - 1))
        if bool(gaps.any()):
            assert kernel.fill is not None
            x = torch.where(gaps, float(kernel.fill), x)
    return (x,)


def _gather(kernel: k.Gather, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    place = torch.from_numpy(np.asarray(kernel.indices, np.int64)).to(x.device)
    axis = kernel.axis % x.ndim
    chosen = x.index_select(axis, place.reshape(-1))
    return (chosen.reshape(*x.shape[:axis], *place.shape, *x.shape[axis + 1 :]),)


def _lookup(kernel: k.Lookup, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    index = x.to(torch.int64)
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < len(kernel.table)):
        raise ModelError(
            f"an index from {int(index.min())} to {int(index.max())}: the table has {len(kernel.table)} rows"
        )
    return (at.held(0, kernel.table, x)[index],)


def _split(kernel: k.Split, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    return tuple(inputs[0].split([int(n) for n in kernel.sizes], kernel.axis))


def _constant(kernel: k.Constant, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    raise ModelError("a constant is no step of a bridge")  # the bridge holds them


# ---- from the simulator ------------------------------------------------------------------------------------------


def _computed(kernel: Kernel, arrays: Sequence[np.ndarray], like: Any) -> list[Any]:
    """Return what the simulator's kernel gives for integer (or float) arrays; of a single one, axis 0 is the batch."""
    names = [f"x{i}" for i in range(len(arrays))]
    ones = [Spec((1, *a.shape[1:]), a.dtype) for a in arrays]
    follows = len(arrays) == 1 and arrays[0].ndim > 0 and kernel.follows_batch(ones, [True])
    specs = dict(zip(names, ones if follows else [Spec(a.shape, a.dtype) for a in arrays], strict=True))
    outputs = [f"y{i}" for i in range(len(kernel.infer(*specs.values())))]
    program = machine.compile([Call(kernel, tuple(names), tuple(outputs))], specs, outputs)
    made = dict(program.run(dict(zip(names, arrays, strict=True))))
    return [counts(made[name], like) for name in outputs]


def _integers(x: Any, dtype: np.dtype) -> np.ndarray:
    return x.detach().cpu().numpy().astype(dtype)


def _softmax(kernel: k.Softmax, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    return _rows(kernel, inputs[0], at, torch.softmax)


def _log_softmax(kernel: k.LogSoftmax, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    return _rows(kernel, inputs[0], at, torch.log_softmax)


def _rows(kernel: Any, x: Any, at: At, function: Any) -> tuple[Any, ...]:
    entry, top = kernel.entry, len(kernel.entry) // 2
    unit = (int(entry[top + 16]) - int(entry[top - 16])) / 32 / 2.0**25  # of one count, in real numbers
    first = kernel.axis % x.ndim
    rows = x * unit if kernel.alone else (x * unit).reshape(*x.shape[:first], -1)
    smooth = function(rows, first if kernel.alone else -1).reshape(x.shape) * (2.0**15 * ratio(kernel.rescale))
    (exact,) = _computed(kernel, [_integers(x, at.dtypes[0])], x)
    bits = 1 << (kernel.rescale.bits - 1)
    return (rounded(smooth, -bits, bits - 1, at.probe, exact),)


def _layer_norm(kernel: k.LayerNorm, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    (x,) = inputs
    gamma, beta = at.held(1, kernel.gamma, x), at.held(2, kernel.beta, x)
    count = gamma.numel()
    flat = x.reshape(*x.shape[: x.ndim - kernel.axes], count)
    spread = flat.var(-1, unbiased=False, keepdim=True) + kernel.epsilon / count**2
    normal = (flat - flat.mean(-1, keepdim=True)) * torch.rsqrt(spread.clamp(min=1e-12))
    smooth = (normal * gamma.reshape(-1) * 2.0**kernel.fraction + beta.reshape(-1)) * ratio(kernel.rescale)
    own = replace(kernel, gamma=_whole(gamma), beta=_whole(beta))
    (exact,) = _computed(own, [_integers(x, at.dtypes[0])], x)
    top = 1 << (kernel.rescale.bits - 1)
    return (rounded(smooth.reshape(x.shape), -top, top - 1, at.probe, exact),)


def _whole(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy().reshape(-1).astype(np.int64)


def _given(kernel: Recurrent, more: Sequence[Any], x: Any, at: At) -> dict[str, Any]:
    """Return the lengths [N] or [1] and the states and cells [N, H] or [1, H], in counts, that there are."""
    found = {key: at.held(key, array, x) for key, array in kernel.fixed.items()}
    found |= {key: at.given[key] for key in recurrent.GIVEN if key in at.given}
    found |= dict(zip(kernel.given, more, strict=True))
    return {key: v.reshape(-1) if key == "lengths" else v.reshape(-1, kernel.units) for key, v in found.items()}


def _with_parameters(kernel: Any, parts: Sequence[Any], at: At) -> Any:
    """Return the kernel with the parameters, and with the states that are parameters, in place of its own."""
    kinds = {"h": kernel.rescale_o.dtype, "c": np.dtype(np.int32)}
    fixed = {key: _integers(at.given[key], kind) for key, kind in kinds.items() if key in at.given}
    wx, wh, bx, bh = parts
    return replace(
        kernel,
        weight_x=_integers(wx, kernel.weight_x.dtype),
        weight_h=_integers(wh, kernel.weight_h.dtype),
        bias_x=_whole(bx),
        bias_h=_whole(bh),
        fixed={**kernel.fixed, **fixed},
    )


def _recurrent(kernel: Any, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    """Walk through time with real gates and a state in counts; the integers are the simulator's."""
    x, *more = inputs
    x = x.float()  # at most 16 bits
    fields = ("weight_x", "weight_h", "bias_x", "bias_h")
    parts = [at.held(name, getattr(kernel, name), x) for name in fields]
    wx, wh, bx, bh = (part.float() for part in parts)
    in_sums, in_cell = _fractions(kernel)
    of_x, of_h = (ratio(rule) * 2.0**-in_sums for rule in (kernel.rescale_x, kernel.rescale_h))
    steps = x if kernel.time_axis else x.transpose(0, 1)
    sums = F.linear(steps, wx, bx) * of_x
    count, length = sums.shape[:2]
    known = _given(kernel, more, x, at)
    h, cell = (
        known[key].float().expand(count, -1) if key in known else x.new_zeros(count, kernel.units) for key in ("h", "c")
    )
    cell = cell * 2.0**-in_cell
    states = []
    times = range(length)
    for t in times if kernel.forward else reversed(times):
        new, following = _STEPS[type(kernel)](kernel, sums[:, t], h, cell, wh, bh, of_h, at.probe)
        if "lengths" in known:  # beyond its end a sample waits
            within = (t < known["lengths"])[:, None]
            h, cell = torch.where(within, new, h), torch.where(within, following, cell)
            states.append(torch.where(within, new, 0.0))
        else:
            h, cell = new, following
            states.append(h)
    smooth = [torch.stack(states if kernel.forward else states[::-1], 1), h[:, None], cell[:, None] * 2.0**in_cell]
    arrays = [_integers(v, kind) for v, kind in zip(inputs, at.dtypes, strict=True)]
    exact = _computed(_with_parameters(kernel, parts, at), arrays, x)
    smooth = [s if kernel.time_axis else s.transpose(0, 1) for s in smooth]
    return tuple(replaced(smooth[i].to(e.dtype), e) for i, e in zip(kernel.kept, exact, strict=True))


def _fractions(kernel: Recurrent) -> tuple[int, int]:
    """Return the fractional bits of the gate sums and of a cell as a tensor."""
    if isinstance(kernel, k.Lstm):
        return k.Lstm.formats[kernel.arithmetic][0], 7 if kernel.arithmetic == "q11" else 15
    return 27 if isinstance(kernel, k.Gru) else 11, 0


def _state(kernel: Any, value: Any, fraction: int, probe: Any) -> Any:
    """Return the real `value` as the kernel's state, in counts."""
    top = 1 << (kernel.rescale_o.bits - 1)
    return rounded(value * (2.0**fraction * ratio(kernel.rescale_o)), -top, top - 1, probe)


def _lstm_step(kernel: Any, a: Any, h: Any, cell: Any, wh: Any, bh: Any, of_h: float, probe: Any) -> tuple[Any, Any]:
    i, f, g, o = (a + F.linear(h, wh, bh) * of_h).chunk(4, -1)
    new = torch.sigmoid(i) * torch.tanh(g)
    cell = torch.sigmoid(f) * cell + new
    return _state(kernel, torch.sigmoid(o) * torch.tanh(cell), k.Lstm.formats[kernel.arithmetic][1], probe), cell


def _gru_step(kernel: Any, a: Any, h: Any, cell: Any, wh: Any, bh: Any, of_h: float, probe: Any) -> tuple[Any, Any]:
    units, scale = kernel.units, 2.0**31 * ratio(kernel.rescale_o)
    r, z = torch.sigmoid(a[:, : 2 * units] + F.linear(h, wh[: 2 * units], bh[: 2 * units]) * of_h).chunk(2, -1)
    inner, bias = wh[2 * units :], bh[2 * units :]
    own = r * F.linear(h, inner, bias) if kernel.reset_after else F.linear(r * h, inner, bias)
    n = torch.tanh(a[:, 2 * units :] + own * of_h)
    return _state(kernel, n + z * (h / scale - n), 31, probe), cell


def _halved_step(kernel: Any, a: Any, h: Any, cell: Any, wh: Any, bh: Any, of_h: float, probe: Any) -> tuple[Any, Any]:
    scale = 2.0**14 * ratio(kernel.rescale_o)
    own = F.linear(h, wh, bh) * of_h
    (r, z, n), (own_r, own_z, own_n) = a.chunk(3, -1), own.chunk(3, -1)
    r, z = (torch.sigmoid(v + w if kernel.joined else v) for v, w in ((r, own_r), (z, own_z)))
    n = torch.tanh(n + r * own_n)
    return _state(kernel, z * h / scale / 2 + (1 - z) * n, 14, probe), cell


def _opaque(kernel: Any, inputs: Sequence[Any], at: At) -> tuple[Any, ...]:
    """Only forwards: a result that no gradient goes through, such as an index."""
    with torch.no_grad():
        arrays = [_integers(x, dtype) for x, dtype in zip(inputs, at.dtypes, strict=True)]
        return tuple(_computed(kernel, arrays, inputs[0]))


FAKE_QUANTIZERS: Mapping[type, FakeQuantizer] = {
    k.AddScaled: _add_scaled, k.AddShift: _add_shift, k.Affine: _affine, k.ArgMax: _opaque, k.AvgPool: _avg_pool,
    k.Centered: _of_centered, k.Clip: _clip, k.Concat: _concat, k.Constant: _constant, k.Conv: _conv,
    k.ConvTranspose: _conv_transpose,
    k.Dequant: _dequant, k.Div: _opaque, k.DivSingle: _div_single, k.ExecutorGru: _recurrent, k.Gather: _gather,
    k.Glu: _glu, k.Gru: _recurrent, k.LayerNorm: _layer_norm, k.Linear: _linear, k.LogSoftmax: _log_softmax,
    k.Lookup: _lookup, k.Lstm: _recurrent, k.MatMul: _matmul, k.MaxPool: _max_pool, k.Mean: _mean, k.Mul: _mul,
    k.Pick: _pick, k.Quant: _quant, k.Relu: _clip, k.Requant: _requant, k.Reshape: _reshape, k.Softmax: _softmax,
    k.Split: _split, k.Table: _table, k.Transpose: _transpose, FloatLinear: _float_linear,
}  # fmt: skip

#: Kernels that no bridge holds -> why.
OUT_OF_REACH: Mapping[type, str] = dict.fromkeys(
    (k.TrainedLstm, k.TrainedGru),
    "it is the training side's arithmetic, and a lowered graph always means the executor's",
)

_STEPS = {k.Lstm: _lstm_step, k.Gru: _gru_step, k.ExecutorGru: _halved_step}
