"""Torch checkpoints loaded into the initializers of a float graph by name, and saved from them.

A graph of `export` has the names, layouts and values of its module's state_dict, with batch norms
that are not folded. A checkpoint is loaded before the passes, which then fold them. The weights of
recurrent layers, which are stored in the layout of ONNX (`recurrent_weights`), are converted. A
graph of torch.onnx.export can be loaded as far as it has kept the names. Checkpoints are read with
``weights_only=True``: no code in them is executed.

A checkpoint may differ in a prefix of all names (``module.`` or ``model.``, found by comparison;
``_orig_mod.`` is removed everywhere), a wrapper such as ``{"state_dict": ...}``, the float type,
``num_batches_tracked``, and second names of shared parameters. All other differences are reported
in one ModelError.
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

from ...common.errors import ConfigError, ModelError, format_exception, suggest_nearest
from ...ir import ir
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
#: Preferred prefixes, in this order, if several match equally well.
_PREFIXES = ("", "module.", "model.")
#: Counter of batch normalization in training.
_BATCH_COUNTER = "num_batches_tracked"
#: Limit of names of one kind in a message.
_MAX_LISTED_NAMES = 8


@dataclass(frozen=True)
class LoadResult:
    """Result of `load_checkpoint`.

    Attributes
    ----------
    names
        Names that were loaded.
    prefix
        Prefix that was removed from the checkpoint's names (or added, if it starts with "+").
    unexpected, missing
        Names that only the checkpoint has, and that it lacks.
    """

    names: tuple[str, ...]
    prefix: str
    unexpected: tuple[str, ...]
    missing: tuple[str, ...]


def load_checkpoint(graph: ir.Model, source: Any, *, strict: bool = True) -> LoadResult:
    """Load a checkpoint into the initializers of `graph`, in place.

    Parameters
    ----------
    source
        Path of a checkpoint, a state_dict (also wrapped, also of arrays), or a module.
    strict
        False ignores names that only one side has; shapes must match in any case.

    Raises
    ------
    ModelError
        If the checkpoint does not match; the graph is not modified.
    ConfigError
        If the checkpoint cannot be read.
    """
    slots, packed_by_name = _collect_slots(graph)
    shapes = {key: array.shape for key, array in slots.items()}
    tensors, result = _match_tensors(read_checkpoint(source), shapes, strict)
    arrays: dict[str, np.ndarray] = {}
    for key, tensor in tensors.items():
        arrays[key] = _as_array(key, tensor, slots[key].dtype)
    for name, packed in packed_by_name.items():
        keys = [key for direction_keys in packed.keys for key in direction_keys]
        if any(key in arrays for key in keys):
            arrays[name] = packed.pack({key: arrays.pop(key, slots[key]) for key in keys})
    for name, array in arrays.items():
        const_value = ir.tensor(np.ascontiguousarray(array), name=name)
        graph.graph.initializers[name].const_value = const_value
    return result


def load_module_checkpoint(model: nn.Module, source: Any) -> LoadResult:
    """Load a checkpoint into a module, in place; both must have the same names and shapes.

    Names may have a common prefix. Only batch counters of batch norms and further names of shared
    tensors may be absent on one side.

    Raises
    ------
    ModelError
        If the checkpoint does not match; the module is not modified.
    ConfigError
        If the checkpoint cannot be read.
    """
    model_state = model.state_dict(keep_vars=True)
    name_counts = Counter(id(tensor) for tensor in model_state.values())
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in model_state.items()
        if isinstance(tensor, Tensor) and not name.endswith(_BATCH_COUNTER)
    }
    tensors, result = _match_tensors(read_checkpoint(source), shapes, strict=False)
    loaded_ids = {id(model_state[name]) for name in tensors}
    missing = []
    for name in result.missing:
        tensor_id = id(model_state[name])
        is_loaded_by_other_name = name_counts[tensor_id] > 1 and tensor_id in loaded_ids
        if not is_loaded_by_other_name:
            missing.append(name)
    _raise_mismatch(missing, result.unexpected, {}, shapes)
    for name, tensor in tensors.items():
        _as_array(name, tensor, None)
    model.load_state_dict(tensors, strict=False)
    return LoadResult(result.names, result.prefix, (), ())


def state_dict(graph: ir.Model) -> dict[str, Tensor]:
    """Return {name: tensor} of the parameters among the initializers of `graph`.

    Weights of recurrent layers are converted from ONNX's layout to torch's parameters. The tensors
    are copies.
    """
    slots, _ = _collect_slots(graph)
    return {key: torch.from_numpy(np.array(array)) for key, array in slots.items()}


def save_checkpoint(graph: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write the parameters of a float graph as a state_dict to a file with torch.save, atomically.

    Raises ModelError if no initializer has the name of a parameter.
    """
    state = state_dict(graph)
    if not state:
        raise ModelError(
            "no initializer of the graph has the name of a parameter; there is nothing to save"
        )
    write_value(Path(path), state)


def is_parameter(name: str) -> bool:
    """Whether an initializer called `name` can be a parameter of a module.

    False for names that exporters give to constants, such as "/conv/Constant" or "val_3".
    """
    if name.startswith("/") or "::" in name:
        return False
    return not re.fullmatch(r"(val|Constant|const)_\d+\w*", name)


def _collect_slots(graph: ir.Model) -> tuple[dict[str, np.ndarray], dict[str, PackedWeights]]:
    """Return the current parameters of `graph`, and its packed weights by initializer.

    Returns
    -------
    slots : dict of str to ndarray
        Name in the state_dict -> current value in torch's layout.
    packed_by_name : dict of str to PackedWeights
        Initializers of recurrent layers.
    """
    slots: dict[str, np.ndarray] = {}
    packed_by_name: dict[str, PackedWeights] = {}
    for name, value in graph.graph.initializers.items():
        array = ir.const_value(value)
        if array is None or not is_parameter(name):
            continue
        packed = _find_packed(value, name, array)
        if packed is None:
            slots[name] = array
        else:
            packed_by_name[name] = packed
            slots.update(packed.unpack(array))
    return slots, packed_by_name


def _find_packed(value: ir.Value, name: str, array: np.ndarray) -> PackedWeights | None:
    """Return the packing of a recurrent layer's weights in initializer `value`, or None.

    `name` and `array` are its name and contents; the recurrent nodes that read it decide.
    """
    for node, index in value.uses():
        packed = match_packed_weights(node, index, name)
        if packed is not None and packed.name == name and packed.can_unpack(array):
            return packed
    return None


# ---- reading ------------------------------------------------------------------------------------


def read_checkpoint(source: Any) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, without gradient history.

    A state_dict is also found in a mapping around it, such as {"model": state_dict}. No code in a
    file is executed; its tensors are on the CPU.

    Parameters
    ----------
    source
        A path, a mapping or a module.

    Raises
    ------
    ConfigError
        If `source` is anything else, or the file cannot be read.
    ModelError
        If the file does not contain a state_dict.
    """
    if isinstance(source, nn.Module):
        return dict(source.state_dict())
    if isinstance(source, Mapping):
        return _unwrap_state_dict(source, "the state_dict")
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"a {type(source).__name__} is not a checkpoint; pass a path or a state_dict"
        )
    path = Path(source)
    if not path.is_file():
        raise ConfigError(f"cannot read the checkpoint {path}: there is no such file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    # UnpicklingError, RuntimeError, EOFError ... of damaged files and of other objects
    except Exception as error:
        # Omit the location in torch's sources.
        reason = re.sub(r"\[enforce fail[^\]]*\][ .]*", "", format_exception(error))[:160]
        raise ModelError(
            f"cannot read the checkpoint {path}: not a file of torch.save with tensors only "
            f"({reason}); save model.state_dict()"
        ) from error
    if not isinstance(content, Mapping):
        raise ModelError(
            f"the checkpoint {path} contains a {type(content).__name__}; save model.state_dict()"
        )
    return _unwrap_state_dict(content, f"the checkpoint {path}")


def read_arrays(source: Any) -> dict[str, np.ndarray]:
    """Read the values in a checkpoint (path, mapping or module) as arrays by name.

    NaN and infinity are allowed. Half precision becomes float32, quantized tensors are dequantized,
    sparse ones become dense, and complex ones get an axis for real and imaginary part. Raises
    ConfigError or ModelError if there is no state_dict.
    """
    arrays = {}
    for name, tensor in read_checkpoint(source).items():
        tensor = tensor.detach().cpu()
        tensor = tensor.dequantize() if tensor.is_quantized else tensor
        tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
            tensor = tensor.float()
        arrays[name] = tensor.numpy()
    return arrays


def _unwrap_state_dict(content: Mapping[Any, Any], source: str) -> dict[str, Tensor]:
    """Return the state_dict in `content`, a mapping that may be a wrapper of one.

    A mapping under one of the usual keys ("state_dict", "model" ...) takes precedence, then a
    single mapping without tensors beside it. Prefixes of compiled models are removed. Raises
    ModelError, mentioning `source`, if there is none.
    """
    tensors = {}
    wrapped = {}
    for key, value in content.items():
        if isinstance(value, Tensor | np.ndarray):
            tensors[str(key)] = _to_tensor(value)
        elif isinstance(value, Mapping) and _contains_tensors(value):
            wrapped[str(key)] = value
    for key in _WRAPPER_KEYS:
        if key in wrapped:
            return _unwrap_state_dict(wrapped[key], source)
    if len(wrapped) == 1 and not tensors:
        return _unwrap_state_dict(next(iter(wrapped.values())), source)
    if not tensors:
        keys = ", ".join(map(str, list(content)[:_MAX_LISTED_NAMES])) or "nothing"
        raise ModelError(f"{source} contains no unique state_dict; its keys are {keys}")
    return {key.replace("_orig_mod.", ""): tensor for key, tensor in tensors.items()}


def _contains_tensors(content: Mapping[Any, Any]) -> bool:
    """Whether a mapping has at least one tensor (torch or NumPy) by name.

    Also true if it has a mapping under one of the usual wrapper keys, such as "state_dict".
    """
    for key, value in content.items():
        if isinstance(key, str) and isinstance(value, Tensor | np.ndarray):
            return True
    return any(isinstance(content.get(key), Mapping) for key in _WRAPPER_KEYS)


def _to_tensor(value: Any) -> Tensor:
    """Return a torch tensor without its gradient history, or a copy of an array as a tensor."""
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


# ---- matching -----------------------------------------------------------------------------------


def _match_tensors(
    state: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], strict: bool
) -> tuple[dict[str, Tensor], LoadResult]:
    """Return the tensors of a checkpoint under the names of the model, and the result of loading.

    Names that only one side has are listed in the result, except batch counters of batch norms and
    copies of shared weights.

    Parameters
    ----------
    shapes
        Shapes of the model's tensors by name.
    strict
        Whether such names are an error; shapes must match in any case.

    Raises
    ------
    ModelError
        If names or shapes do not match.
    """
    prefix, names = _match_names(list(state), shapes)
    tensors = {key: state[name] for name, key in names.items() if key in shapes}
    shape_mismatches = {}
    for key, tensor in tensors.items():
        if tuple(tensor.shape) != tuple(shapes[key]):
            shape_mismatches[key] = tuple(tensor.shape), tuple(shapes[key])
    missing = [key for key in shapes if key not in tensors and not key.endswith(_BATCH_COUNTER)]
    unexpected = []
    for name, key in names.items():
        if key in shapes or key.endswith(_BATCH_COUNTER):
            continue
        if not _is_shared_duplicate(state[name], tensors.values()):
            unexpected.append(name)
    if strict:
        _raise_mismatch(missing, unexpected, shape_mismatches, shapes)
    else:
        _raise_mismatch((), (), shape_mismatches, shapes)
    return tensors, LoadResult(tuple(tensors), prefix, tuple(unexpected), tuple(missing))


def _match_names(names: Sequence[str], keys: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Find the prefix that makes most names of a checkpoint equal to names of the model.

    Parameters
    ----------
    names, keys
        Names in the checkpoint and in the model.

    Returns
    -------
    prefix : str
        Prefix to remove from the checkpoint's names; ``+prefix`` has to be added.
    mapping : dict of str to str
        Name in the checkpoint -> name in the model.
    """
    match_counts = _count_prefixes(names, keys)

    def rank(prefix: str) -> tuple[int, int, int, str]:
        """Sort key of a prefix: most matches first, then known, short and smaller ones."""
        preference = _PREFIXES.index(prefix) if prefix in _PREFIXES else len(_PREFIXES)
        return -match_counts[prefix], preference, len(prefix), prefix

    prefix = min(match_counts, key=rank, default="")
    if prefix.startswith("+"):
        return prefix, {name: prefix[1:] + name for name in names}
    return prefix, {name: name.removeprefix(prefix) for name in names}


def _count_prefixes(names: Sequence[str], keys: Iterable[str]) -> Counter[str]:
    """Count by how many pairs of names and keys each prefix is supported.

    A prefix stands before the key to give the name; one with a leading "+" before the name to give
    the key.
    """
    keys_by_attribute: dict[str, list[str]] = {}
    for key in keys:
        keys_by_attribute.setdefault(key.rpartition(".")[2], []).append(key)
    counts: Counter[str] = Counter()
    for name in names:
        for key in keys_by_attribute.get(name.rpartition(".")[2], ()):
            if name == key or name.endswith(f".{key}"):
                counts[name[: len(name) - len(key)]] += 1
            elif key.endswith(f".{name}"):
                counts["+" + key[: len(key) - len(name)]] += 1
    return counts


def _is_shared_duplicate(tensor: Tensor, loaded: Iterable[Tensor]) -> bool:
    """Whether `tensor` equals one of the tensors `loaded` in shape, dtype and all values.

    Shared weights are saved once per name, so such a tensor may have another name.
    """
    for other in loaded:
        is_same_type = tensor.shape == other.shape and tensor.dtype == other.dtype
        if is_same_type and torch.equal(tensor, other):
            return True
    return False


def _raise_mismatch(
    missing: Sequence[str],
    unexpected: Sequence[str],
    shape_mismatches: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
    keys: Iterable[str],
) -> None:
    """Raise one ModelError that lists all differences of checkpoint and model, if there are any.

    Parameters
    ----------
    missing, unexpected
        Names that only the model, or only the checkpoint has.
    shape_mismatches
        Name -> shapes in the checkpoint and in the model.
    keys
        Names in the model, for suggestions.
    """
    differences = []
    if missing:
        hint = suggest_nearest(missing[0], unexpected) if len(missing) == 1 else ""
        differences.append(f"it lacks {_format_names(missing)}{hint}")
    if unexpected:
        is_only_difference = len(unexpected) == 1 and not missing
        hint = suggest_nearest(unexpected[0], keys) if is_only_difference else ""
        differences.append(f"the model has no {_format_names(unexpected)}{hint}")
    if shape_mismatches:
        shapes = [
            f"{name} {list(actual)}, not {list(expected)}"
            for name, (actual, expected) in shape_mismatches.items()
        ]
        differences.append(f"different shapes: {_format_names(shapes)}")
    if differences:
        raise ModelError(f"the checkpoint does not match the model: {'; '.join(differences)}")


def _format_names(names: Sequence[str]) -> str:
    """Join the first `_MAX_LISTED_NAMES` names by commas and count the rest: "a, b and 3 more"."""
    listed = ", ".join(names[:_MAX_LISTED_NAMES])
    if len(names) <= _MAX_LISTED_NAMES:
        return listed
    return f"{listed} and {len(names) - _MAX_LISTED_NAMES} more"


def _as_array(name: str, tensor: Tensor, dtype: np.dtype[Any] | None) -> np.ndarray:
    """Return a tensor of a checkpoint as an array of `dtype`; None keeps the type.

    Floats become float32 first. Raises ModelError for NaN, infinity, tensors that are not dense
    real numbers, and a type of another kind than `dtype`.
    """
    if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
        raise ModelError(
            f"'{name}' in the checkpoint is not a dense tensor of real numbers; save a float "
            "state_dict"
        )
    array = (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ModelError(
            f"'{name}' in the checkpoint contains NaN or infinity; the training diverged, or the "
            "file is damaged"
        )
    if dtype is not None and (array.dtype.kind == "f") != (dtype.kind == "f"):
        raise ModelError(f"'{name}' in the checkpoint is {array.dtype}, in the graph {dtype}")
    return array if dtype is None else array.astype(dtype)
