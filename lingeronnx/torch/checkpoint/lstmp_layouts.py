"""Checkpoints of LSTM layers with projection, from one layout into another.

C cells, P values of projected state, I inputs. Four layouts; ``m.`` stands for the path of a
module:

==========  ========================  ======================  =======================  =======================
layout      W                         b                       R                        P
==========  ========================  ======================  =======================  =======================
asr         m.weight_x                m.weight_bias           m.weight_r               m.weight_p
plain, ub   m.input_linearity.weight  m.input_linearity.bias  m.state_linearity.weight
m.state_projection.weight torch       m.weight_ih_l0            m.bias_ih_l0, bias_hh
m.weight_hh_l0           m.weight_hr_l0 sizes       [4C, I]                   [4C], asr [1, 4C]
[4C, P]                  [P, C]
==========  ========================  ======================  =======================  =======================

Gates stand in the order i, f, g, o, in `asr` i, f, o, g. Two directions are the modules ``m`` and
``m2`` in `asr` and `plain`, one module with ``_reverse`` keys in `torch`, ``m.forward_lstmp`` and
``m.backward_lstmp`` in `ub` (`UBLSTMP`), where m is ``....lstmp`` elsewhere. What is `ub` becomes
two modules in `torch` as well (`FastUBLSTMP`).

Everything is exact but one thing: torch's two biases are added up, and the sum goes to ``bias_ih``
on the way back. Other tensors of the checkpoint are passed on as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import ConfigError, ModelError
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
_MAX_LISTED_NAMES = 4  # names that a message lists


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A state_dict in layout `to`; `layout` it was in; the `layers` written, by name.

    `kept` as they were; `notes`.
    """

    state: dict[str, Tensor]
    layout: str
    to: str
    layers: tuple[str, ...]
    kept: tuple[str, ...]
    notes: tuple[str, ...]


class _ProjectedWeights(NamedTuple):
    """The tensors of one direction, as `plain` has them: W [4C, I], b [4C], R [4C, P], P [P, C]."""

    w: Tensor
    b: Tensor
    r: Tensor
    p: Tensor


@dataclass(frozen=True)
class _ProjectedLayer:
    """One direction: the module, what it is one of ("one", "pair" or "ub"), and whether it goes back."""

    base: str
    kind: str
    is_backward: bool
    parts: _ProjectedWeights


def convert_state_dict(
    state: Mapping[str, Any], target_layout: str, layout: str = "auto"
) -> ConvertedCheckpoint:
    """Return the state_dict `state`, of `layout` asr, plain, torch, ub or auto, in layout `target_layout`.

    Raises ConfigError for another word, and ModelError for a state_dict that is not in the layout.
    """
    if target_layout not in LAYOUTS or layout not in ("auto", *LAYOUTS):
        wrong, known = (
            (target_layout, LAYOUTS)
            if target_layout not in LAYOUTS
            else (layout, ("auto", *LAYOUTS))
        )
        raise ConfigError(
            f"there is no layout '{wrong}' of projected LSTMs; choose {', '.join(known)}"
        )
    held = read_checkpoint(state)
    found = _group_keys_by_module(held)
    layout = _resolve_layout(found, layout)
    layers = _make_layers(found[layout], held, layout)
    first = {
        _get_module_keys(module, found[layout], held)[0]: layer for module, layer in layers.items()
    }
    gone = {key for module in layers for key in _get_module_keys(module, found[layout], held)}
    new: dict[str, Tensor] = {}
    written, notes = [], []
    for key, tensor in held.items():
        if key in first:
            name, tensors = _convert_layer(first[key], target_layout)
            written.append(name)
        elif key not in gone:
            tensors = {key: tensor}
        else:
            continue
        double = next((name for name in tensors if name in new), None)
        if double is not None:
            raise ModelError(
                f"'{double}' would be written twice in layout {target_layout}; rename one of the "
                "modules"
            )
        new.update(tensors)
    if layout == "torch":
        notes.append("bias_ih and bias_hh are added up: one bias remains")
    for layer in layers.values():
        if (
            layout in ("asr", "plain")
            and target_layout in ("torch", "ub")
            and layer.kind == "pair"
            and not layer.is_backward
        ):
            notes.append(
                f"{layer.base} and {layer.base}2 are taken for the two directions of one layer"
            )
    kept = tuple(key for key in held if key in new and key not in gone)
    return ConvertedCheckpoint(new, layout, target_layout, tuple(written), kept, tuple(notes))


def convert_checkpoint(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    target_layout: str,
    layout: str = "auto",
) -> ConvertedCheckpoint:
    """Convert the checkpoint file `source` and write the state_dict to `path`, as a whole or not at all.

    Files are read with ``weights_only=True``. Raises ConfigError and ModelError as
    `convert_state_dict` does.
    """
    done = convert_state_dict(read_checkpoint(source), target_layout, layout)
    write_value(Path(path), done.state)
    return done


# ---- reading -----------------------------------------------------------------------------------------------------


def _group_keys_by_module(state: Mapping[str, Tensor]) -> dict[str, dict[str, list[str]]]:
    """Return {layout: {module.

    Keys}}, a module of torch with its ending ``_l0`` or ``_l0_reverse`` behind a colon.
    """
    found: dict[str, dict[str, list[str]]] = {layout: {} for layout in LAYOUTS}
    for key in state:
        for layout, names in (("asr", _ASR), ("plain", _PLAIN)):
            name = next((name for name in names if key == name or key.endswith(f".{name}")), None)
            if name is not None:
                module = key.removesuffix(name).rstrip(".")
                kind = (
                    "ub"
                    if layout == "plain" and module.rpartition(".")[2] in _DIRECTION_NAMES
                    else layout
                )
                found[kind].setdefault(module, []).append(key)
        match = re.fullmatch(rf"(?:(.*)\.)?(?:{'|'.join(_TORCH)})(_l\d+(?:_reverse)?)", key)
        if match is not None:
            found["torch"].setdefault(f"{match.group(1) or ''}:{match.group(2)}", []).append(key)
    # LSTM and GRU layers without a projection are no business of ours
    found["torch"] = {
        m: keys for m, keys in found["torch"].items() if any("weight_hr_l" in key for key in keys)
    }
    return found


def _resolve_layout(found: Mapping[str, Mapping[str, Any]], layout: str) -> str:
    present = [name for name in LAYOUTS if found[name]]
    if layout == "auto":
        if not present:
            raise ModelError(
                "the checkpoint holds no LSTM with projection in a layout that is known; they have "
                "keys "
                f"such as {_ASR[0]}, {_PLAIN[0]} or weight_hr_l0"
            )
        if len(present) > 1:
            each = "; ".join(
                f"{name}: {next(iter(found[name])).replace(':', '.')}" for name in present
            )
            raise ModelError(
                f"the checkpoint holds more than one layout ({each}); choose one: --from "
                f"{present[0]}"
            )
        return present[0]
    if not found[layout]:
        other = f"; it is in layout {present[0]}" if present else ""
        raise ModelError(f"the checkpoint holds no LSTM with projection in layout {layout}{other}")
    return layout


def _get_module_keys(
    module: str, modules: Mapping[str, list[str]], state: Mapping[str, Tensor]
) -> list[str]:
    return [key for key in state if key in modules[module]]


def _make_layers(
    modules: Mapping[str, list[str]], state: Mapping[str, Tensor], layout: str
) -> dict[str, _ProjectedLayer]:
    """Return {module: layer} of one layout."""
    parts = {module: _get_weights(module, state, layout) for module in modules}
    found = {}
    for module, tensors in parts.items():
        path, _, ending = module.partition(":")
        parent, _, last = path.rpartition(".")
        if last in _DIRECTION_NAMES and not ending.endswith("_reverse"):
            found[module] = _ProjectedLayer(parent, "ub", last == _DIRECTION_NAMES[1], tensors)
        elif layout == "torch":
            kind = "pair" if f"{path}:_l0_reverse" in modules else "one"
            found[module] = _ProjectedLayer(path, kind, ending.endswith("_reverse"), tensors)
        elif (
            path.removesuffix("2") in parts
            and path.endswith("2")
            and _have_equal_shapes(tensors, parts[path[:-1]])
        ):
            found[module] = _ProjectedLayer(path[:-1], "pair", True, tensors)
        else:
            two = parts.get(f"{path}2")
            kind = "pair" if two is not None and _have_equal_shapes(two, tensors) else "one"
            found[module] = _ProjectedLayer(path, kind, False, tensors)
    return found


def _have_equal_shapes(one: _ProjectedWeights, two: _ProjectedWeights) -> bool:
    return all(a.shape == b.shape for a, b in zip(one, two, strict=True))


def _get_weights(module: str, state: Mapping[str, Tensor], layout: str) -> _ProjectedWeights:
    """Return the tensors of a module as `plain` has them."""
    path, _, ending = module.partition(":")
    dot = f"{path}." if path else ""
    if layout == "torch":
        if not ending.startswith("_l0"):
            raise ModelError(
                f"'{path}' has several layers ({dot}weight_hr{ending}); a module of another layout "
                "holds "
                "one: save the layers as modules of their own"
            )
        bias = [dot + f"bias_{which}{ending}" for which in ("ih", "hh")]
        names = [f"{dot}weight_{which}{ending}" for which in ("ih", "hh", "hr")]
        w, r, p = _get_tensors(state, names, path, layout)
        given = _get_tensors(state, bias, path, layout) if any(key in state for key in bias) else []
        b = given[0] + given[1] if given else w.new_zeros(len(w))
    else:
        w, b, r, p = _get_tensors(
            state, [dot + name for name in (_ASR if layout == "asr" else _PLAIN)], path, layout
        )
    units = p.shape[1] if p.dim() == 2 else 0
    wanted = {
        "W": (w, (4 * units, w.shape[-1] if w.dim() else 0)),
        "R": (r, (4 * units, len(p) if p.dim() else 0)),
        "b": (b, (1, 4 * units) if layout == "asr" else (4 * units,)),
    }
    for what, (tensor, sizes) in wanted.items():
        if tuple(tensor.shape) != sizes or not units:
            raise ModelError(
                f"'{path}' in layout {layout}: {what} has shape {list(tensor.shape)}, not "
                f"{list(sizes)}, "
                f"where the projection is {list(p.shape)}; it is another layout or no LSTM"
            )
    return (
        _ProjectedWeights(
            _swap_last_gates(w), _swap_last_gates(b.reshape(-1)), _swap_last_gates(r), p
        )
        if layout == "asr"
        else _ProjectedWeights(w, b, r, p)
    )


def _get_tensors(
    state: Mapping[str, Tensor], keys: list[str], module: str, layout: str
) -> list[Tensor]:
    missing = [key for key in keys if key not in state]
    if missing:
        more = (
            f" and {len(missing) - _MAX_LISTED_NAMES} more"
            if len(missing) > _MAX_LISTED_NAMES
            else ""
        )
        raise ModelError(
            f"'{module}' in layout {layout} lacks {', '.join(missing[:_MAX_LISTED_NAMES])}{more}"
        )
    tensors = [state[key] for key in keys]
    for key, tensor in zip(keys, tensors, strict=True):
        if not tensor.is_floating_point():
            raise ModelError(
                f"'{key}' in the checkpoint is {str(tensor.dtype).removeprefix('torch.')}; weights "
                "are floats"
            )
    return tensors


def _swap_last_gates(tensor: Tensor) -> Tensor:
    """Return weights or a bias with the last two gates exchanged: i, f, o, g and i, f, g, o.

    Its own inverse.
    """
    i, f, third, fourth = tensor.chunk(4)
    return torch.cat([i, f, fourth, third])


# ---- writing -----------------------------------------------------------------------------------------------------


def _convert_layer(layer: _ProjectedLayer, to: str) -> tuple[str, dict[str, Tensor]]:
    """Return the layer's name in layout `to`, and its tensors by their keys there."""
    w, b, r, p = layer.parts
    module, ending = _get_target_module(layer, to)
    dot = f"{module}." if module else ""
    if to == "torch":
        tensors = {
            "weight_ih": w,
            "weight_hh": r,
            "bias_ih": b,
            "bias_hh": torch.zeros_like(b),
            "weight_hr": p,
        }
        return f"{dot}weight_hr{ending}", {
            f"{dot}{name}{ending}": tensor for name, tensor in tensors.items()
        }
    if to == "asr":
        w, b, r = _swap_last_gates(w), _swap_last_gates(b)[None], _swap_last_gates(r)
    names = _ASR if to == "asr" else _PLAIN
    return module, {dot + name: tensor for name, tensor in zip(names, (w, b, r, p), strict=True)}


def _get_target_module(layer: _ProjectedLayer, to: str) -> tuple[str, str]:
    """Return the module that the layer is in layout `to`, and torch's ending of the keys."""
    dot = f"{layer.base}." if layer.base else ""
    side = _DIRECTION_NAMES[layer.is_backward]
    if to == "torch":
        if layer.kind == "ub":
            return dot + side, "_l0"
        return layer.base, "_l0_reverse" if layer.is_backward else "_l0"
    if to == "ub":
        if layer.kind == "one":
            raise ModelError(
                f"'{layer.base}' goes in one direction; layout ub has two: '{layer.base}2' is not "
                "there, "
                "or has other sizes"
            )
        parent, _, last = layer.base.rpartition(".")
        if layer.kind == "pair" and last == "lstmp":
            dot = f"{parent}." if parent else ""
        return dot + side, ""
    name = f"{dot}lstmp" if layer.kind == "ub" else layer.base
    return f"{name}2" if layer.is_backward else name, ""
