"""Conversion of checkpoints of LSTM layers with projection between layouts.

C cells, P elements of the projected state, I inputs. There are four layouts; ``m.`` is the path of
a module:

    layout     W [4C, I]                 b [4C], asr [1, 4C]     R [4C, P]
    asr        m.weight_x                m.weight_bias           m.weight_r
    plain, ub  m.input_linearity.weight  m.input_linearity.bias  m.state_linearity.weight
    torch      m.weight_ih_l0            m.bias_ih_l0, bias_hh   m.weight_hh_l0

The projection P [P, C] is m.weight_p, m.state_projection.weight and m.weight_hr_l0. The order of
the gates is i, f, g, o, in `asr` i, f, o, g. Two directions are the modules ``m`` and ``m2`` in
`asr` and `plain`, one module with ``_reverse`` keys in `torch`, and ``m.forward_lstmp`` and
``m.backward_lstmp`` in `ub` (`UBLSTMP`); a layer of `ub` without a path is the module ``lstmp`` in
the other layouts. It becomes two modules in `torch` (`FastUBLSTMP`).

The conversion is exact with one exception: torch's two biases are added, and the sum becomes
``bias_ih`` in the other direction. Other tensors of the checkpoint are not changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...common.errors import ConfigError, ModelError
from .file import write_value
from .parameters import read_checkpoint

__all__ = ["LAYOUTS", "ConvertedCheckpoint", "convert_state_dict", "convert_checkpoint"]

LAYOUTS = ("asr", "plain", "torch", "ub")

_PLAIN = (
    "input_linearity.weight",
    "input_linearity.bias",
    "state_linearity.weight",
    "state_projection.weight",
)
_ASR = ("weight_x", "weight_bias", "weight_r", "weight_p")
_TORCH = ("weight_ih", "bias_ih", "bias_hh", "weight_hh", "weight_hr")
_DIRECTION_NAMES = ("forward_lstmp", "backward_lstmp")
#: Module of a layer of layout `ub` without a path, in layouts of two modules.
_DEFAULT_MODULE = "lstmp"
#: Limit of names in a message.
_MAX_LISTED_NAMES = 4


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A converted state_dict.

    Attributes
    ----------
    state
        The state_dict.
    layout, to
        Layouts before and after the conversion.
    layers
        Names of the converted layers.
    kept
        Names of the tensors that are not changed.
    notes
        Remarks for the user.
    """

    state: dict[str, Tensor]
    layout: str
    to: str
    layers: tuple[str, ...]
    kept: tuple[str, ...]
    notes: tuple[str, ...]


class _ProjectedWeights(NamedTuple):
    """Tensors of one direction in layout `plain`: W [4C, I], b [4C], R [4C, P], P [P, C]."""

    w: Tensor
    b: Tensor
    r: Tensor
    p: Tensor


@dataclass(frozen=True)
class _ProjectedLayer:
    """One direction of a layer: the module, its kind ("one", "pair" or "ub"), and its weights."""

    base: str
    kind: str
    is_backward: bool
    weights: _ProjectedWeights


def convert_state_dict(
    state: Mapping[str, Any], target_layout: str, layout: str = "auto"
) -> ConvertedCheckpoint:
    """Convert a state_dict to another layout.

    Parameters
    ----------
    state
        A state_dict, also nested in a dict such as {"model": state_dict}; not modified.
    target_layout
        asr, plain, torch or ub.
    layout
        Current layout, or auto for the only one that has a layer.

    Raises
    ------
    ConfigError
        If there is no such layout.
    ModelError
        If the state_dict does not have the layout, or cannot be converted.
    """
    _check_layout_name(target_layout, LAYOUTS)
    _check_layout_name(layout, ("auto", *LAYOUTS))
    tensors = read_checkpoint(state)
    keys_by_layout = _group_keys_by_module(tensors)
    layout = _resolve_layout(keys_by_layout, layout)
    layers = _make_layers(keys_by_layout[layout], tensors, layout)
    layer_by_first_key: dict[str, _ProjectedLayer] = {}
    layer_keys: set[str] = set()
    for module, layer in layers.items():
        module_keys = [key for key in tensors if key in keys_by_layout[layout][module]]
        layer_by_first_key[module_keys[0]] = layer
        layer_keys.update(module_keys)
    converted: dict[str, Tensor] = {}
    converted_layers = []
    for key, tensor in tensors.items():
        if key in layer_by_first_key:
            name, new_tensors = _convert_layer(layer_by_first_key[key], target_layout)
            converted_layers.append(name)
        elif key not in layer_keys:
            new_tensors = {key: tensor}
        else:
            continue
        duplicate = next((name for name in new_tensors if name in converted), None)
        if duplicate is not None:
            raise ModelError(
                f"'{duplicate}' would be written twice in layout {target_layout}; rename one of "
                "the modules"
            )
        converted.update(new_tensors)
    kept = tuple(key for key in tensors if key in converted and key not in layer_keys)
    notes = _make_notes(layers.values(), layout, target_layout)
    return ConvertedCheckpoint(
        converted, layout, target_layout, tuple(converted_layers), kept, tuple(notes)
    )


def _check_layout_name(layout: str, known_layouts: Sequence[str]) -> None:
    """Raise ConfigError if the checkpoint layout `layout` is not one of `known_layouts`."""
    if layout not in known_layouts:
        raise ConfigError(
            f"there is no layout '{layout}' of projected LSTMs; use {', '.join(known_layouts)}"
        )


def _make_notes(layers: Iterable[_ProjectedLayer], layout: str, target_layout: str) -> list[str]:
    """Return remarks on added biases and on modules that become one layer.

    The former for source `layout` "torch", the latter for each pair from "asr" or "plain" to
    "torch" or "ub".
    """
    notes = []
    if layout == "torch":
        notes.append("bias_ih and bias_hh are added: one bias remains")
    if layout in ("asr", "plain") and target_layout in ("torch", "ub"):
        for layer in layers:
            if layer.kind == "pair" and not layer.is_backward:
                notes.append(
                    f"{layer.base} and {layer.base}2 are treated as the two directions of one layer"
                )
    return notes


def convert_checkpoint(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    target_layout: str,
    layout: str = "auto",
) -> ConvertedCheckpoint:
    """Convert a checkpoint file of projected LSTMs to another layout, written to `path` atomically.

    Layouts are asr, plain, torch and ub; "auto" detects that of `source`. No code of the file is
    executed.

    Raises
    ------
    ConfigError
        If there is no such layout, or a file cannot be read or written.
    ModelError
        If the checkpoint does not have the layout, or cannot be converted.
    """
    converted = convert_state_dict(read_checkpoint(source), target_layout, layout)
    write_value(Path(path), converted.state)
    return converted


# ---- reading ------------------------------------------------------------------------------------


def _group_keys_by_module(state: Mapping[str, Tensor]) -> dict[str, dict[str, list[str]]]:
    """Group the keys of a state_dict that belong to projected LSTMs: layout -> module -> keys.

    In layout torch a module is the path, a colon and the suffix of its keys, ``_l0`` or
    ``_l0_reverse``; layers without projection are left out there.
    """
    groups: dict[str, dict[str, list[str]]] = {layout: {} for layout in LAYOUTS}
    torch_key = re.compile(rf"(?:(.*)\.)?(?:{'|'.join(_TORCH)})(_l\d+(?:_reverse)?)")
    for key in state:
        for layout, names in (("asr", _ASR), ("plain", _PLAIN)):
            module = _remove_parameter_name(key, names)
            if module is None:
                continue
            is_direction = module.rpartition(".")[2] in _DIRECTION_NAMES
            group = groups["ub" if layout == "plain" and is_direction else layout]
            group.setdefault(module, []).append(key)
        match = torch_key.fullmatch(key)
        if match is not None:
            torch_module = f"{match.group(1) or ''}:{match.group(2)}"
            groups["torch"].setdefault(torch_module, []).append(key)
    # Ignore LSTM and GRU layers without a projection.
    for module, keys in list(groups["torch"].items()):
        if not any("weight_hr_l" in key for key in keys):
            del groups["torch"][module]
    return groups


def _remove_parameter_name(key: str, names: Sequence[str]) -> str | None:
    """Return the module path of a key that ends with one of the parameter names, else None."""
    for name in names:
        if key == name or key.endswith(f".{name}"):
            return key.removesuffix(name).rstrip(".")
    return None


def _resolve_layout(groups: Mapping[str, Mapping[str, Any]], layout: str) -> str:
    """Return `layout`, or for auto the only layout with a layer in a checkpoint.

    `groups` maps each layout to its layers' parameters. Raises ModelError if `layout` has no layer,
    or for auto if no layout has one or several have.
    """
    present = [name for name in LAYOUTS if groups[name]]
    if layout != "auto":
        if not groups[layout]:
            hint = f"; it is in layout {present[0]}" if present else ""
            raise ModelError(
                f"the checkpoint contains no LSTM with projection in layout {layout}{hint}"
            )
        return layout
    if not present:
        raise ModelError(
            "the checkpoint contains no LSTM with projection in a known layout; these have keys "
            f"such as {_ASR[0]}, {_PLAIN[0]} or weight_hr_l0"
        )
    if len(present) > 1:
        examples = "; ".join(
            f"{name}: {next(iter(groups[name])).replace(':', '.')}" for name in present
        )
        raise ModelError(
            f"the checkpoint contains more than one layout ({examples}); choose one: --from "
            f"{present[0]}"
        )
    return present[0]


def _make_layers(
    modules: Mapping[str, list[str]], state: Mapping[str, Tensor], layout: str
) -> dict[str, _ProjectedLayer]:
    """Return the layers of one checkpoint layout by module, each one direction with its weights.

    `modules` maps a module (torch: path and suffix with a colon in between) to its keys in `state`.
    By the names of its module, its suffix or its number a layer is single, one of a pair of
    directions, or of kind "ub". Raises ModelError for weights that are missing or do not match.
    """
    weights_of = {module: _get_weights(module, state, layout) for module in modules}
    layers = {}
    for module, weights in weights_of.items():
        path, _, suffix = module.partition(":")
        parent, _, last = path.rpartition(".")
        if last in _DIRECTION_NAMES and not suffix.endswith("_reverse"):
            layers[module] = _ProjectedLayer(parent, "ub", last == _DIRECTION_NAMES[1], weights)
        elif layout == "torch":
            kind = "pair" if f"{path}:_l0_reverse" in modules else "one"
            layers[module] = _ProjectedLayer(path, kind, suffix.endswith("_reverse"), weights)
        else:
            layers[module] = _make_numbered_layer(path, weights_of)
    return layers


def _make_numbered_layer(path: str, weights_of: Mapping[str, _ProjectedWeights]) -> _ProjectedLayer:
    """Return the layer of module `path` in a layout where the second direction has the suffix 2.

    It is part of a pair, forward or backward, if the module of the other direction exists in
    `weights_of` with equal shapes; else a single one.
    """
    weights = weights_of[path]
    forward = weights_of.get(path[:-1]) if path.endswith("2") else None
    if forward is not None and _have_equal_shapes(weights, forward):
        return _ProjectedLayer(path[:-1], "pair", True, weights)
    backward = weights_of.get(f"{path}2")
    is_pair = backward is not None and _have_equal_shapes(backward, weights)
    return _ProjectedLayer(path, "pair" if is_pair else "one", False, weights)


def _have_equal_shapes(first: _ProjectedWeights, second: _ProjectedWeights) -> bool:
    """Whether corresponding tensors of two directions of an LSTM have equal shapes."""
    return all(a.shape == b.shape for a, b in zip(first, second, strict=True))


def _get_weights(module: str, state: Mapping[str, Tensor], layout: str) -> _ProjectedWeights:
    """Return the weights of a module as W [4C, I], b [4C], R [4C, P], P [P, C], gates i, f, g, o.

    In layout "asr" the last two gates are swapped, and the bias gets one axis. Raises ModelError if
    a tensor is missing or the shapes do not match.
    """
    path, _, suffix = module.partition(":")
    prefix = f"{path}." if path else ""
    if layout == "torch":
        weights = _get_torch_weights(path, suffix, state)
    else:
        names = [prefix + name for name in (_ASR if layout == "asr" else _PLAIN)]
        w, b, r, p = _get_tensors(state, names, path, layout)
        weights = _ProjectedWeights(w, b, r, p)
    _check_shapes(weights, path, layout)
    if layout != "asr":
        return weights
    return _ProjectedWeights(
        _swap_last_gates(weights.w),
        _swap_last_gates(weights.b.reshape(-1)),
        _swap_last_gates(weights.r),
        weights.p,
    )


def _get_torch_weights(path: str, suffix: str, state: Mapping[str, Tensor]) -> _ProjectedWeights:
    """Return the tensors of one direction of a module in layout torch; the biases are added.

    Without biases the bias is zero. Raises ModelError for a second layer (`suffix` "_l1").
    """
    prefix = f"{path}." if path else ""
    if not suffix.startswith("_l0"):
        raise ModelError(
            f"'{path}' has several layers ({prefix}weight_hr{suffix}), but a module of another "
            "layout has one: save the layers as separate modules"
        )
    names = [f"{prefix}weight_{name}{suffix}" for name in ("ih", "hh", "hr")]
    w, r, p = _get_tensors(state, names, path, "torch")
    bias_names = [f"{prefix}bias_{name}{suffix}" for name in ("ih", "hh")]
    if not any(name in state for name in bias_names):
        return _ProjectedWeights(w, w.new_zeros(len(w)), r, p)
    bias_ih, bias_hh = _get_tensors(state, bias_names, path, "torch")
    return _ProjectedWeights(w, bias_ih + bias_hh, r, p)


def _check_shapes(weights: _ProjectedWeights, path: str, layout: str) -> None:
    """Raise ModelError if the shapes of the tensors do not match that of the projection.

    For a projection [P, C], W is [4C, any], R [4C, P], and b [4C] or in layout asr [1, 4C].
    """
    w, b, r, p = weights
    cell_count = p.shape[1] if p.dim() == 2 else 0
    expected_shapes = {
        "W": (w, (4 * cell_count, w.shape[-1] if w.dim() else 0)),
        "R": (r, (4 * cell_count, len(p) if p.dim() else 0)),
        "b": (b, (1, 4 * cell_count) if layout == "asr" else (4 * cell_count,)),
    }
    for name, (tensor, expected) in expected_shapes.items():
        if tuple(tensor.shape) != expected or not cell_count:
            raise ModelError(
                f"'{path}' in layout {layout}: {name} has shape {list(tensor.shape)}, not "
                f"{list(expected)}, for a projection of shape {list(p.shape)}; it has another "
                "layout or is no LSTM"
            )


def _get_tensors(
    state: Mapping[str, Tensor], keys: list[str], module: str, layout: str
) -> list[Tensor]:
    """Return the tensors `keys` of the state_dict `state`, in order.

    Raises ModelError if some are missing or not floats; `module` and `layout` are for the message.
    """
    missing = [key for key in keys if key not in state]
    if missing:
        other_count = len(missing) - _MAX_LISTED_NAMES
        others = f" and {other_count} more" if other_count > 0 else ""
        raise ModelError(
            f"'{module}' in layout {layout} lacks {', '.join(missing[:_MAX_LISTED_NAMES])}{others}"
        )
    tensors = [state[key] for key in keys]
    for key, tensor in zip(keys, tensors, strict=True):
        if not tensor.is_floating_point():
            raise ModelError(
                f"'{key}' in the checkpoint is {str(tensor.dtype).removeprefix('torch.')}; weights "
                "must be floats"
            )
    return tensors


def _swap_last_gates(tensor: Tensor) -> Tensor:
    """Exchange the last two gates of weights or a bias: i, f, o, g <-> i, f, g, o."""
    i, f, third, fourth = tensor.chunk(4)
    return torch.cat([i, f, fourth, third])


# ---- writing ------------------------------------------------------------------------------------


def _convert_layer(layer: _ProjectedLayer, target_layout: str) -> tuple[str, dict[str, Tensor]]:
    """Return the name of a layer in another layout, and its tensors by key.

    torch's second bias is zero; "asr" has the last two gates swapped and a bias of two axes.
    """
    w, b, r, p = layer.weights
    module, suffix = _get_target_module(layer, target_layout)
    prefix = f"{module}." if module else ""
    if target_layout == "torch":
        tensors = {
            f"{prefix}weight_ih{suffix}": w,
            f"{prefix}weight_hh{suffix}": r,
            f"{prefix}bias_ih{suffix}": b,
            f"{prefix}bias_hh{suffix}": torch.zeros_like(b),
            f"{prefix}weight_hr{suffix}": p,
        }
        return f"{prefix}weight_hr{suffix}", tensors
    if target_layout == "asr":
        w, b, r = _swap_last_gates(w), _swap_last_gates(b)[None], _swap_last_gates(r)
    names = _ASR if target_layout == "asr" else _PLAIN
    return module, {prefix + name: tensor for name, tensor in zip(names, (w, b, r, p), strict=True)}


def _get_target_module(layer: _ProjectedLayer, target_layout: str) -> tuple[str, str]:
    """Return the path of a layer's module in another layout, and the suffix of torch's keys.

    In "asr" and "plain" the backward direction has a "2" at the end; the suffix is for torch only.
    """
    prefix = f"{layer.base}." if layer.base else ""
    if target_layout == "torch":
        if layer.kind == "ub":
            return prefix + _DIRECTION_NAMES[layer.is_backward], "_l0"
        return layer.base, "_l0_reverse" if layer.is_backward else "_l0"
    if target_layout == "ub":
        return _get_ub_module(layer, prefix), ""
    name = layer.base or _DEFAULT_MODULE if layer.kind == "ub" else layer.base
    return f"{name}2" if layer.is_backward else name, ""


def _get_ub_module(layer: _ProjectedLayer, prefix: str) -> str:
    """Return the path of a module in layout ub, in which both directions have one parent.

    `prefix` is the path of the parent with a dot. Raises ModelError for a single direction.
    """
    if layer.kind == "one":
        raise ModelError(
            f"'{layer.base}' has one direction, but layout ub has two: '{layer.base}2' does not "
            "exist, or has other sizes"
        )
    return prefix + _DIRECTION_NAMES[layer.is_backward]
