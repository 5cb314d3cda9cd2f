"""How torch stores the weights of LSTM, GRU and RNN layers, and how ONNX wants them.

torch keeps, per layer k and direction, ``weight_ih_lk [G*H, I]``, ``weight_hh_lk [G*H, H]``,
``bias_ih_lk [G*H]`` and ``bias_hh_lk [G*H]`` (the reverse direction with ``_reverse`` behind the
name), gates in the order i f g o (LSTM) and r z n (GRU). ONNX has, per node, W [D, G*H, I], R [D,
G*H, H] and B [D, 2*G*H], gates in the order i o f c and z r h.

An exported graph keeps W under the name of torch's ``weight_ih_lk``, R under ``weight_hh_lk`` and B
under ``bias_lk``. Knows numpy and these names; no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...graph import ir

__all__ = ["PackedWeights", "match_packed_weights"]

#: Operator -> for each gate of ONNX its place in torch.
_GATE_ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}

#: Input of the operator -> the name of the initializer and those of torch's parameters, without layer and direction.
_INPUT_PARAMETERS = {
    1: ("weight_ih", ("weight_ih",)),
    2: ("weight_hh", ("weight_hh",)),
    3: ("bias", ("bias_ih", "bias_hh")),
}


class PackedWeights(NamedTuple):
    """Torch's parameters in one input of one ONNX node.

    name : of the initializer. keys : for each direction, the names of the parameters. gates :
    torch's places.
    """

    name: str
    keys: tuple[tuple[str, ...], ...]
    gate_order: tuple[int, ...]

    def pack(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return what ONNX wants, [D, ...], of torch's parameters by their names."""
        rows = [
            np.concatenate([self._reorder_gates(arrays[key], self.gate_order) for key in keys])
            for keys in self.keys
        ]
        return np.stack(rows)

    def unpack(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """Return torch's parameters by their names; the inverse of `pack`."""
        back = tuple(self.gate_order.index(place) for place in range(len(self.gate_order)))
        return {
            key: self._reorder_gates(part, back)
            for keys, row in zip(self.keys, array, strict=True)
            for key, part in zip(keys, np.split(row, len(keys)), strict=True)
        }

    def can_unpack(self, array: np.ndarray) -> bool:
        """Whether `array` has a size that `unpack` can take apart."""
        vector = len(self.keys[0]) > 1  # the biases
        rows = len(self.gate_order) * len(self.keys[0])
        return (
            array.ndim == (2 if vector else 3)
            and len(array) == len(self.keys)
            and array.shape[1] % rows == 0
        )

    @staticmethod
    def _reorder_gates(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
        parts = np.split(array, len(order))
        return np.concatenate([parts[place] for place in order])


def match_packed_weights(node: ir.Node, index: int, name: str) -> PackedWeights | None:
    """Return what input `index` of `node` is made of, where `name` is that of the initializer or of a parameter in it.

    None where `node` is no recurrent layer, or the name none of torch's.
    """
    if node.domain or node.op_type not in _GATE_ORDERS or index not in _INPUT_PARAMETERS:
        return None
    base, parameters = _INPUT_PARAMETERS[index]
    match = re.fullmatch(rf"(.*\.)?(?:{'|'.join((base, *parameters))})_l(\d+)(?:_reverse)?", name)
    if match is None:
        return None
    module, layer = match.group(1) or "", match.group(2)
    ends = {"bidirectional": ("", "_reverse"), "reverse": ("_reverse",)}.get(
        ir.get_attr(node, "direction", ""), ("",)
    )
    keys = tuple(tuple(f"{module}{key}_l{layer}{end}" for key in parameters) for end in ends)
    return PackedWeights(f"{module}{base}_l{layer}{ends[0]}", keys, _GATE_ORDERS[node.op_type])
