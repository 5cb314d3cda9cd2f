"""Torch checkpoints onto the initializers of a float graph, by name, and back.

A graph of `export` carries the names, layouts and values of its module's state_dict, batch
normalisation unfolded, so a checkpoint goes onto it before normalisation, whose passes then fold
what they fold. The weights of recurrent layers are stored in ONNX's order (`recurrent_weights`) and
are turned on the way. A graph of torch.onnx.export itself fits as far as it kept the names.
Checkpoints are read with ``weights_only=True``: nothing in them is executed.

What may differ: a prefix on all names (``module.``, ``model.``, found by comparison; ``_orig_mod.``
is dropped wherever it stands), a wrapping such as ``{"state_dict": ...}``, the float type,
``num_batches_tracked``, and a second name of a shared parameter. Everything else that does not fit
is one ModelError that names it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import ConfigError, ModelError, format_exception, suggest_nearest
from ...graph import ir
from .file import write_value
from .recurrent_weights import PackedWeights, match_packed_weights

__all__ = [
    "LoadResult",
    "is_parameter",
    "load_checkpoint",
    "load_module_checkpoint",
    "read_arrays",
    "read_checkpoint",
    "save_checkpoint",
    "state_dict",
]

_WRAPPER_KEYS = (
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "net",
    "network",
    "weights",
    "params",
)
_PREFIXES = ("", "module.", "model.")  # preferred, in this order, where several fit equally well
_BATCH_COUNTER = "num_batches_tracked"  # of batch normalisation in training
_MAX_LISTED_NAMES = 8  # names of one kind that a message lists


@dataclass(frozen=True)
class LoadResult:
    """What `load_checkpoint` did.

    The names it loaded, the prefix it took off, and names it left, of either side.
    """

    names: tuple[str, ...]
    prefix: str
    unexpected: tuple[str, ...]
    missing: tuple[str, ...]


def load_checkpoint(graph: ir.Model, source: Any, *, strict: bool = True) -> LoadResult:
    """Put the weights of `source` onto the initializers of `graph`, in place, or change nothing and raise ModelError.

    source : the path of a checkpoint, a state_dict (also wrapped, also of arrays), or a module.
    strict : False leaves alone what only one side has; shapes must fit all the same.
    """
    slots, packs = _collect_slots(graph)
    found, loaded = _match_tensors(
        read_checkpoint(source), {key: array.shape for key, array in slots.items()}, strict
    )
    new: dict[str, np.ndarray] = {}
    for key, tensor in found.items():
        new[key] = _as_array(key, tensor, slots[key].dtype)
    for name, pack in packs.items():
        keys = [key for keys in pack.keys for key in keys]
        if any(key in new for key in keys):
            new[name] = pack.pack({key: new.pop(key, slots[key]) for key in keys})
    for name, array in new.items():
        graph.graph.initializers[name].const_value = ir.tensor(
            np.ascontiguousarray(array), name=name
        )
    return loaded


def load_module_checkpoint(model: nn.Module, source: Any) -> LoadResult:
    """Load `source` into `model`, or change nothing and raise ModelError.

    See `load_checkpoint` for what may differ.
    """
    own = model.state_dict(keep_vars=True)
    state = read_checkpoint(source)
    ids = Counter(id(tensor) for tensor in own.values())
    wanted = {
        name: tuple(t.shape)
        for name, t in own.items()
        if isinstance(t, Tensor) and not name.endswith(_BATCH_COUNTER)
    }
    found, loaded = _match_tensors(state, wanted, strict=False)
    given = {id(own[name]) for name in found}
    missing = [
        name for name in loaded.missing if not (ids[id(own[name])] > 1 and id(own[name]) in given)
    ]
    _raise_mismatch(missing, loaded.unexpected, {}, wanted)
    for name, tensor in found.items():
        _as_array(name, tensor, None)
    model.load_state_dict(found, strict=False)
    return LoadResult(loaded.names, loaded.prefix, (), ())


def state_dict(graph: ir.Model) -> dict[str, Tensor]:
    """Return the initializers of `graph` that carry a state_dict's names, as torch has them."""
    slots, _ = _collect_slots(graph)
    return {key: torch.from_numpy(np.array(array)) for key, array in slots.items()}


def save_checkpoint(graph: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write `state_dict(graph)` to `path` with torch.save, as a whole or not at all."""
    state = state_dict(graph)
    if not state:
        raise ModelError(
            "no initializer of the graph carries a name of a state_dict; there is nothing to save"
        )
    write_value(Path(path), state)


def is_parameter(name: str) -> bool:
    """Whether an initializer of this name is taken for a module's.

    Exporters call constants otherwise.
    """
    return (
        not name.startswith("/")
        and "::" not in name
        and not re.fullmatch(r"(val|Constant|const)_\d+\w*", name)
    )


def _collect_slots(graph: ir.Model) -> tuple[dict[str, np.ndarray], dict[str, PackedWeights]]:
    """Return state_dict name -> the array now there, in torch's form, and those of the initializers that are packed."""
    slots: dict[str, np.ndarray] = {}
    packs: dict[str, PackedWeights] = {}
    for name, value in graph.graph.initializers.items():
        array = ir.const_value(value)
        if array is None or not is_parameter(name):
            continue
        found = (match_packed_weights(user, index, name) for user, index in value.uses())
        pack = next(
            (p for p in found if p is not None and p.name == name and p.can_unpack(array)), None
        )
        if pack is None:
            slots[name] = array
        else:
            packs[name] = pack
            slots.update(pack.unpack(array))
    return slots, packs


# ---- reading -----------------------------------------------------------------------------------------------------


def read_checkpoint(source: Any) -> dict[str, Tensor]:
    """Return the state_dict in `source`, a path, a mapping or a module.

    Raises ModelError and ConfigError.
    """
    if isinstance(source, nn.Module):
        return dict(source.state_dict())
    if isinstance(source, Mapping):
        return _unwrap_state_dict(source, "the state_dict")
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"a {type(source).__name__} is no checkpoint; give a path or a state_dict"
        )
    path = Path(source)
    if not path.is_file():
        raise ConfigError(f"cannot read the checkpoint {path}: there is no such file")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    # UnpicklingError, RuntimeError, EOFError ... of damaged files and of foreign objects
    except Exception as error:
        reason = re.sub(r"\[enforce fail[^\]]*\][ .]*", "", format_exception(error))[
            :160
        ]  # where in torch's sources
        raise ModelError(
            f"cannot read the checkpoint {path}: no file of torch.save with tensors only "
            f"({reason}); save "
            "model.state_dict()"
        ) from error
    if not isinstance(found, Mapping):
        raise ModelError(
            f"the checkpoint {path} holds a {type(found).__name__}; save model.state_dict()"
        )
    return _unwrap_state_dict(found, f"the checkpoint {path}")


def read_arrays(source: Any) -> dict[str, np.ndarray]:
    """Return the numbers in a checkpoint as they are, NaN too.

    `source` as `read_checkpoint` takes it.
    Half precision becomes float32; quantized tensors are dequantized; sparse ones are made dense,
    complex ones split.
    """
    found = {}
    for name, tensor in read_checkpoint(source).items():
        plain = tensor.detach().cpu()
        plain = plain.dequantize() if plain.is_quantized else plain
        plain = plain.to_dense() if plain.layout != torch.strided else plain
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        wide = plain.dtype in (torch.float32, torch.float64) or not plain.is_floating_point()
        found[name] = (plain if wide else plain.float()).numpy()
    return found


def _unwrap_state_dict(found: Mapping[Any, Any], what: str) -> dict[str, Tensor]:
    tensors = {
        str(key): _to_tensor(value)
        for key, value in found.items()
        if isinstance(value, Tensor | np.ndarray)
    }
    inner = {
        str(key): value
        for key, value in found.items()
        if isinstance(value, Mapping) and _holds_weights(value)
    }
    for key in _WRAPPER_KEYS:
        if key in inner:
            return _unwrap_state_dict(inner[key], what)
    if len(inner) == 1 and not tensors:
        return _unwrap_state_dict(next(iter(inner.values())), what)
    if not tensors:
        keys = ", ".join(map(str, list(found)[:_MAX_LISTED_NAMES])) or "nothing"
        raise ModelError(
            f"{what} holds no state_dict that could be told apart; its keys are {keys}"
        )
    return {key.replace("_orig_mod.", ""): tensor for key, tensor in tensors.items()}


def _holds_weights(value: Mapping[Any, Any]) -> bool:
    return any(
        isinstance(k, str) and isinstance(v, Tensor | np.ndarray) for k, v in value.items()
    ) or any(key in value and isinstance(value[key], Mapping) for key in _WRAPPER_KEYS)


def _to_tensor(value: Any) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


# ---- fitting -----------------------------------------------------------------------------------------------------


def _match_tensors(
    state: Mapping[str, Tensor], wanted: Mapping[str, Sequence[int]], strict: bool
) -> tuple[dict[str, Tensor], LoadResult]:
    """Return the tensors of `state` under the names of `wanted`.

    ModelError where they do not fit.
    """
    prefix, names = _match_names(list(state), wanted)
    found = {key: state[name] for name, key in names.items() if key in wanted}
    shapes = {
        key: (tuple(tensor.shape), tuple(wanted[key]))
        for key, tensor in found.items()
        if tuple(tensor.shape) != tuple(wanted[key])
    }
    missing = [key for key in wanted if key not in found and not key.endswith(_BATCH_COUNTER)]
    rest = [
        name
        for name, key in names.items()
        if key not in wanted and not key.endswith(_BATCH_COUNTER)
    ]
    unexpected = [name for name in rest if not _is_shared_duplicate(state[name], found.values())]
    _raise_mismatch(missing if strict else (), unexpected if strict else (), shapes, wanted)
    return found, LoadResult(tuple(found), prefix, tuple(unexpected), tuple(missing))


def _match_names(have: Sequence[str], wanted: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Return the prefix that brings most names together, and name in the checkpoint -> name without it.

    A prefix ``+name`` is one that the checkpoint's names lack.
    """
    fits: Counter[str] = Counter()
    by_last: dict[str, list[str]] = {}
    for key in wanted:
        by_last.setdefault(key.rpartition(".")[2], []).append(key)
    for name in have:
        for key in by_last.get(name.rpartition(".")[2], ()):
            if name == key or name.endswith(f".{key}"):
                fits[name[: len(name) - len(key)]] += 1
            elif key.endswith(f".{name}"):
                fits["+" + key[: len(key) - len(name)]] += 1

    def rank(prefix: str) -> tuple[int, int, int, str]:
        known = _PREFIXES.index(prefix) if prefix in _PREFIXES else len(_PREFIXES)
        return -fits[prefix], known, len(prefix), prefix

    prefix = min(fits, key=rank, default="")
    if prefix.startswith("+"):
        return prefix, {name: prefix[1:] + name for name in have}
    return prefix, {name: name.removeprefix(prefix) for name in have}


def _is_shared_duplicate(tensor: Tensor, loaded: Iterable[Tensor]) -> bool:
    """Whether `tensor` is a parameter that is loaded under another name.

    Shared weights are saved once per name.
    """
    return any(
        tensor.shape == other.shape and tensor.dtype == other.dtype and torch.equal(tensor, other)
        for other in loaded
    )


def _raise_mismatch(
    missing: Sequence[str],
    unexpected: Sequence[str],
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
    wanted: Iterable[str],
) -> None:
    """Raise one ModelError that names everything that does not fit."""
    parts = []
    if missing:
        hint = suggest_nearest(missing[0], unexpected) if len(missing) == 1 else ""
        parts.append(f"it lacks {_format_names(missing)}{hint}")
    if unexpected:
        hint = (
            suggest_nearest(unexpected[0], wanted) if len(unexpected) == 1 and not missing else ""
        )
        parts.append(f"the model has no {_format_names(unexpected)}{hint}")
    if shapes:
        told = [f"{name} {list(have)}, not {list(want)}" for name, (have, want) in shapes.items()]
        parts.append(f"other shapes: {_format_names(told)}")
    if parts:
        raise ModelError(f"the checkpoint does not fit: {'; '.join(parts)}")


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
    return ", ".join(names[:_MAX_LISTED_NAMES]) + more


def _as_array(name: str, tensor: Tensor, dtype: np.dtype[Any] | None) -> np.ndarray:
    """Return `tensor` as an array of `dtype` (None: any).

    ModelError for NaN, infinity and another kind of type.
    """
    if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
        raise ModelError(
            f"'{name}' in the checkpoint is no plain tensor of real numbers; save a float "
            "state_dict"
        )
    array = (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ModelError(
            f"'{name}' in the checkpoint holds NaN or infinity; the training went wrong, or the "
            "file did"
        )
    if dtype is not None and (array.dtype.kind == "f") != (dtype.kind == "f"):
        raise ModelError(f"'{name}' in the checkpoint is {array.dtype}, in the graph {dtype}")
    return array if dtype is None else array.astype(dtype)
