"""Layouts of the weights of LSTM, GRU and RNN layers in torch and in ONNX.

torch has, per layer k and direction, ``weight_ih_lk [G*H, I]``, ``weight_hh_lk [G*H, H]``,
``bias_ih_lk [G*H]`` and ``bias_hh_lk [G*H]`` (with the suffix ``_reverse`` for the reverse
direction), gates in the order i f g o (LSTM) and r z n (GRU). ONNX has, per node, W [D, G*H, I],
R [D, G*H, H] and B [D, 2*G*H], gates in the order i o f c and z r h.

An exported graph has W under torch's name ``weight_ih_lk``, R under ``weight_hh_lk`` and B under
``bias_lk``. This module knows numpy and these names, but no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...ir import ir

__all__ = ["PackedWeights", "match_packed_weights"]

#: Operator -> index in torch of each gate of ONNX.
_GATE_ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}

#: Input index -> name of the initializer, and names of torch's parameters, without layer and
#: direction.
_INPUT_PARAMETERS = {
    1: ("weight_ih", ("weight_ih",)),
    2: ("weight_hh", ("weight_hh",)),
    3: ("bias", ("bias_ih", "bias_hh")),
}


class PackedWeights(NamedTuple):
    """The parameters of torch that an input of a recurrent ONNX node consists of.

    Attributes
    ----------
    name
        Name of the initializer.
    keys
        Names of the parameters, for each direction.
    gate_order
        Index in torch of each gate of ONNX.
    """

    name: str
    keys: tuple[tuple[str, ...], ...]
    gate_order: tuple[int, ...]

    def pack(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the array of ONNX, [D, ...], of torch's parameters (name -> array).

        The gates of each parameter are reordered, and the parameters of a direction concatenated.
        """
        directions = []
        for keys in self.keys:
            reordered = [_reorder_gates(arrays[key], self.gate_order) for key in keys]
            directions.append(np.concatenate(reordered))
        return np.stack(directions)

    def unpack(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """Return torch's parameters (name -> array) in an array of ONNX, [D, ...].

        The array is split by direction and parameter, and the gates get torch's order.
        """
        inverse_order = [self.gate_order.index(gate) for gate in range(len(self.gate_order))]
        arrays = {}
        for keys, direction in zip(self.keys, array, strict=True):
            for key, gates in zip(keys, np.split(direction, len(keys)), strict=True):
                arrays[key] = _reorder_gates(gates, inverse_order)
        return arrays

    def can_unpack(self, array: np.ndarray) -> bool:
        """Whether `array` has a shape that `unpack` supports.

        [D, ...] with one entry per direction, two axes for a bias and else three, and axis 1
        divisible by the number of gates and of parameters.
        """
        is_bias = len(self.keys[0]) > 1
        if array.ndim != (2 if is_bias else 3) or len(array) != len(self.keys):
            return False
        return array.shape[1] % (len(self.gate_order) * len(self.keys[0])) == 0


def _reorder_gates(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return `array` with the gates on axis 0 reordered: gate ``order[i]`` becomes gate i."""
    gates = np.split(array, len(order))
    return np.concatenate([gates[index] for index in order])


def match_packed_weights(node: ir.Node, index: int, name: str) -> PackedWeights | None:
    """Return the parameters that input `index` of a recurrent node consists of.

    Returns None if `node` is not a recurrent layer, or `name` is not a name of torch.

    Parameters
    ----------
    name
        Name of the initializer, or of one of the parameters in it.
    """
    if node.domain or node.op_type not in _GATE_ORDERS or index not in _INPUT_PARAMETERS:
        return None
    base, parameters = _INPUT_PARAMETERS[index]
    match = re.fullmatch(rf"(.*\.)?(?:{'|'.join((base, *parameters))})_l(\d+)(?:_reverse)?", name)
    if match is None:
        return None
    module, layer = match.group(1) or "", match.group(2)
    suffixes = {"bidirectional": ("", "_reverse"), "reverse": ("_reverse",)}.get(
        ir.get_attr(node, "direction", ""), ("",)
    )
    keys = []
    for suffix in suffixes:
        keys.append(tuple(f"{module}{parameter}_l{layer}{suffix}" for parameter in parameters))
    initializer = f"{module}{base}_l{layer}{suffixes[0]}"
    return PackedWeights(initializer, tuple(keys), _GATE_ORDERS[node.op_type])
