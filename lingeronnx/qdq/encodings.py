"""Scales that another tool wrote into a JSON file beside a float model, to start from.

AIMET's encodings, by the version that stands in the file (fields as aimet-onnx 2.42 writes them):

    0.4 to 0.6.1  {"activation_encodings": {tensor: [one, or one for each channel]}, "param_encodings": {...}}; each has
                  scale, offset, bitwidth, dtype ("int" where it is missing) and is_symmetric
                  ("True": signed integers)
    1.0.0         lists of {name, enc_type, dtype "INT", bw, is_sym, scale [...], offset [...]}
    2.0.0         {"encodings": [{name, output_dtype "int8", y_scale, y_zero_point, axis}]}, as QuantizeLinear has them

Before 2.0.0 an offset counts from the lowest integer, as if integers were unsigned: ``x = (q +
offset) * scale`` with q in 0..2^bits - 1, so 0 is the integer -offset. esp-ppq (PPQ) has, for each
operator,

    {"configs": {node: {tensor: {bit_width, policy, state, quant_min, quant_max, dominator}}},
     "values": {dominator: {scale, zero_point}}}

with ``x = (q - zero_point) * scale``. Its exporters give some tensors names of their own; where a
node is known and has as many tensors as the file says, these stand in the order of its inputs and
outputs.

Knows no platform: what becomes of the scales is the flow's to say.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from ..deprecation import keep_old_members
from ..errors import ConfigError, suggest_nearest
from ..files import read_user_file
from ..graph import ir
from ..plan import Affine, Plan
from .import_model import ImportedQuantization, make_file_qparams

__all__ = ["Encoding", "Encodings", "read_plan"]

_BIAS_BITS = 32  # bits of a bias: its scale is that of input times weight
_MIN_BITS, _MAX_BITS = 2, 32  # bits
_MAX_FILE_BYTES = 1 << 28  # bytes of a file

#: AIMET's kinds of encodings that are one scale, or one for each channel.
_SUPPORTED_GRANULARITIES = ("PER_TENSOR", "PER_CHANNEL")


@dataclass(frozen=True)
class Encoding:
    """What a file says of one tensor.

    qparams : how it is held; None where it is not, for `rejection`. node, place : the operator that
    the file speaks of, and which of its inputs and outputs this is, out of `tensor_count`; empty
    where it speaks of tensors alone.
    """

    tensor: str
    qparams: Affine | None
    rejection: str = ""
    node: str = ""
    position: int = 0
    tensor_count: int = 0


@keep_old_members("0.3", where="source_name", on="resolve_for")
@dataclass(frozen=True)
class Encodings:
    """Scales that `tool` wrote for a float model; `source_name` : the file, as messages call it."""

    tool: str
    entries: tuple[Encoding, ...]
    source_name: str = "the plan"

    def resolve_for(self, model: ir.Model) -> ImportedQuantization:
        """Return what this means for the float `model`.

        Scales of its activations and of its weights.
        Raises ConfigError where it speaks of no tensor that the model has.
        """
        values = {str(value.name): value for value in ir.iter_values(model)}
        constants = {
            str(value.name): array.ndim
            for node in model.graph
            for value in node.inputs
            if value is not None and (array := ir.const_value(value)) is not None
        }
        nodes = {str(node.name): node for node in model.graph}
        known = values.keys() | constants.keys()
        by_tensor: dict[str, Affine] = {}
        refused: dict[str, str] = {}
        for entry in self.entries:
            name = _resolve_tensor_name(entry, nodes, known)
            if name not in known:
                refused.setdefault(
                    name, f"the model has no tensor of that name{suggest_nearest(name, known)}"
                )
            elif entry.qparams is None:
                if constants.get(name, 2) > 1:  # of a bias nothing is needed
                    refused.setdefault(name, entry.rejection)
            else:
                by_tensor.setdefault(name, entry.qparams)
        if not by_tensor:
            raise ConfigError(
                f"{self.source_name} ({self.tool}) has a scale for no tensor of this model; "
                f"{_format_first_rejection(refused)}"
            )
        weights = {name: grid for name, grid in by_tensor.items() if name in constants}
        layers = {
            str(node.name): tuple(
                (weights[str(value.name)], array)
                for value in node.inputs
                if value is not None
                and str(value.name) in weights
                and (array := ir.const_value(value)) is not None
            )
            for node in model.graph
        }
        return ImportedQuantization(
            model,
            {name: grid for name, grid in by_tensor.items() if name not in constants},
            weights,
            {name: grids for name, grids in layers.items() if grids},
            (),
            self.tool,
            {name: why for name, why in refused.items() if name not in by_tensor},
        )


def _format_first_rejection(refused: Mapping[str, str]) -> str:
    return next((f"'{name}': {why}" for name, why in refused.items()), "it holds none")


def _resolve_tensor_name(
    entry: Encoding, nodes: Mapping[str, ir.Node], known: Container[str]
) -> str:
    """Return the model's name of the tensor that an entry speaks of."""
    node = nodes.get(entry.node)
    if entry.tensor in known or node is None:
        return entry.tensor
    tensors = [str(value.name) for value in (*node.inputs, *node.outputs) if value is not None]
    return tensors[entry.position] if len(tensors) == entry.tensor_count else entry.tensor


# ---- reading -----------------------------------------------------------------------------------------------------


def read_plan(path: str | os.PathLike[str]) -> Plan | Encodings:
    """Return the scales in a JSON file.

    Our own plan, AIMET's encodings, or what esp-ppq exports beside a model.
    Raises ConfigError for a file that cannot be read, and for one that is none of these or is
    damaged.
    """
    path = Path(path)
    content = read_user_file(path, "the plan", _MAX_FILE_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the plan {path} is not a lingeronnx plan (no UTF-8 text); --save-plan writes one"
        ) from error
    where = f"the plan {path}"
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where} is not a lingeronnx plan, nor another tool's (no JSON: {error}); --save-plan "
            "writes one"
        ) from error
    if isinstance(body, dict) and "lingeronnx_plan" not in body:
        if "encodings" in body or "activation_encodings" in body or "param_encodings" in body:
            return _EncodingsFile(where, body).read_aimet()
        if "configs" in body and "values" in body:
            return _EncodingsFile(where, body).read_ppq()
    if isinstance(body, dict) and "lingeronnx_plan" in body:
        return Plan.from_json(text, where)
    raise ConfigError(
        f"{where} is not a lingeronnx plan, nor AIMET encodings (activation_encodings, or "
        "encodings), nor esp-ppq's "
        "JSON (configs and values)"
    )


@dataclass(frozen=True)
class _EncodingsFile:
    """The body of a file, and what is read of it."""

    where: str
    body: Mapping[str, Any]
    entries: list[Encoding] = field(default_factory=list)

    # ---- AIMET ---------------------------------------------------------------------------------------------------

    def read_aimet(self) -> Encodings:
        """Read AIMET's encodings."""
        version = self.body.get("version", "0.4.0")
        kind = (
            re.fullmatch(r"(0\.[4-6]|1\.0|2\.0)(\.\d+)?", version)
            if isinstance(version, str)
            else None
        )
        if kind is None:
            self._raise_damaged(
                "", f"version {version!r} of AIMET's encodings", "0.4 to 0.6.1, 1.0.0 or 2.0.0"
            )
        parts = ("encodings",) if kind[1] == "2.0" else ("activation_encodings", "param_encodings")
        for part in parts:
            entries = self.body.get(part, [])
            if kind[1] in ("1.0", "2.0"):
                one = self._read_v2 if kind[1] == "2.0" else self._read_v1
                for entry in self._check_list(entries, part):
                    one(self._get_text(entry, "name", part), entry)
            else:
                for name, entry in self._check_dict(entries, part).items():
                    self._read_v0(
                        name, [self._check_dict(e, name) for e in self._check_list(entry, name)]
                    )
        return Encodings(f"AIMET encodings {version}", tuple(self.entries), self.where)

    def _read_v0(self, name: str, channels: Sequence[Mapping[str, Any]]) -> None:
        if not channels:
            self._raise_damaged(name, "no encoding", "one, or one for each channel")
        first = channels[0]
        if first.get("dtype", "int") != "int":
            return self._reject(name, f"it is held as {first['dtype']}, not in integers")
        bits = self._check_bits(name, first.get("bitwidth"))
        signed = str(first.get("is_symmetric")).lower() == "true"
        scales = [c.get("scale") for c in channels]
        return self._add_offset_encoding(
            name, scales, [c.get("offset") for c in channels], bits, signed
        )

    def _read_v1(self, name: str, entry: Mapping[str, Any]) -> None:
        if entry.get("dtype", "INT") != "INT":
            return self._reject(name, f"it is held as {entry['dtype']}, not in integers")
        if entry.get("enc_type", "PER_TENSOR") not in _SUPPORTED_GRANULARITIES:
            return self._reject(
                name,
                f"{entry['enc_type']}: scales of blocks within a channel are not computed here",
            )
        if any(entry.get("zero_point_shift") or ()):
            return self._reject(name, "zero_point_shift: 0 stands for no integer")
        bits = self._check_bits(name, entry.get("bw"))
        scales, offsets = (
            self._check_list(entry.get("scale"), name),
            self._check_list(entry.get("offset"), name),
        )
        return self._add_offset_encoding(name, scales, offsets, bits, entry.get("is_sym") is True)

    def _read_v2(self, name: str, entry: Mapping[str, Any]) -> None:
        kind = self._get_text(entry, "output_dtype", name)
        integer = re.fullmatch(r"(u?)int(\d+)", kind)
        if integer is None:
            return self._reject(name, f"it is held as {kind}, not in integers")
        if "block_size" in entry or "per_block_int_scale" in entry:
            return self._reject(
                name, "block_size: scales of blocks within a channel are not computed here"
            )
        bits = self._check_bits(name, int(integer[2]))
        low = 0 if integer[1] else -(1 << (bits - 1))
        scales, zeros = entry.get("y_scale"), entry.get("y_zero_point")
        scales = scales if isinstance(scales, list) else [scales]
        zeros = (
            [0] * len(scales) if zeros is None else zeros if isinstance(zeros, list) else [zeros]
        )
        axis = entry.get("axis") or 0
        return self._add_entry(
            Encoding(name, self._make_qparams(name, scales, zeros, bits, low < 0, axis))
        )

    def _add_offset_encoding(
        self, name: str, scales: Sequence[Any], offsets: Sequence[Any], bits: int, signed: bool
    ) -> None:
        """Add a tensor whose offsets count from the lowest integer."""
        low = -(1 << (bits - 1)) if signed else 0
        zeros = [-(self._check_number(name, "offset", offset)) + low for offset in offsets]
        if signed and set(zeros) == {
            low + (1 << (bits - 1)) - 1
        }:  # without the lowest integer, around 0
            zeros = [0] * len(zeros)
        self._add_entry(Encoding(name, self._make_qparams(name, scales, zeros, bits, low < 0, 0)))

    # ---- PPQ -----------------------------------------------------------------------------------------------------

    def read_ppq(self) -> Encodings:
        """Read what esp-ppq's exporters write beside a model."""
        values = self._check_dict(self.body["values"], "values")
        for node, configs in self._check_dict(self.body["configs"], "configs").items():
            entries = self._check_dict(configs, node)
            for place, (name, config) in enumerate(entries.items()):
                read = self._read_ppq_config(name, self._check_dict(config, name), values)
                self._add_entry(replace(read, node=node, position=place, tensor_count=len(entries)))
        return Encodings("esp-ppq", tuple(self.entries), self.where)

    def _read_ppq_config(
        self, name: str, config: Mapping[str, Any], values: Mapping[str, Any]
    ) -> Encoding:
        policy, state = (
            self._check_dict(config.get("policy"), name),
            self._get_text(config, "state", name),
        )
        if state == "FP32":
            return Encoding(name, None, "it was left in float")
        for word in ("FLOATING", "DYNAMIC"):
            if policy.get(word):
                return Encoding(
                    name,
                    None,
                    f"its scale is {word.lower()}: integers of one fixed scale are computed here",
                )
        value = values.get(str(config.get("dominator")))
        if value is None:
            return Encoding(name, None, f"it has no scale in the file (state {state})")
        entry = self._check_dict(value, name)
        bits = self._check_bits(name, config.get("bit_width"))
        low, high = (
            int(self._check_number(name, key, config.get(key)))
            for key in ("quant_min", "quant_max")
        )
        if high <= low:
            self._raise_damaged(
                name, f"quant_min {low} and quant_max {high}", "the first is the smaller one"
            )
        if bits == _BIAS_BITS:
            return Encoding(name, Affine(1.0, bits))
        if entry.get("scale") is None:
            return Encoding(name, None, f"it has no scale in the file (state {state})")
        scales, zeros = (
            [v] if not isinstance(v, list) else v for v in (entry["scale"], entry.get("zero_point"))
        )
        # A range without its lowest integer is that of the type.
        return Encoding(name, self._make_qparams(name, scales, zeros, bits, low < 0, 0))

    # ---- what both are made of -----------------------------------------------------------------------------------

    def _add_entry(self, entry: Encoding) -> None:
        """Keep an entry, but for a bias: its scale follows from others."""
        if entry.qparams is None or entry.qparams.bits < _BIAS_BITS:
            self.entries.append(entry)

    def _reject(self, name: str, why: str) -> None:
        self.entries.append(Encoding(name, None, why))

    def _make_qparams(
        self,
        name: str,
        scales: Sequence[Any],
        zeros: Sequence[Any],
        bits: int,
        signed: bool,
        axis: object,
    ) -> Affine:
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        steps = [self._check_number(name, "scale", scale) for scale in scales]
        if not steps or len(zeros) != len(steps):
            self._raise_damaged(
                name, f"{len(steps)} scales and {len(zeros)} zero points", "as many, one at least"
            )
        for step in steps:
            if not (step > 0 and math.isfinite(1 / step)):
                self._raise_damaged(name, f"scale {step}", "a positive number")
        points = [self._check_number(name, "zero point", zero) for zero in zeros]
        for point in points:
            if point != int(point) or not low <= point <= high:
                self._raise_damaged(
                    name, f"zero point {point:g}", f"one of the integers {low} to {high}"
                )
        if not isinstance(axis, int) or isinstance(axis, bool):
            self._raise_damaged(name, f"axis {axis!r}", "an integer")
        return make_file_qparams([1 / step for step in steps], points, bits, signed, axis)

    def _check_bits(self, name: str, value: object) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not _MIN_BITS <= value <= _MAX_BITS
        ):
            self._raise_damaged(
                name, f"{value!r} bits", f"an integer from {_MIN_BITS} to {_MAX_BITS}"
            )
        return int(value)

    def _check_number(self, name: str, what: str, value: object) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            self._raise_damaged(name, f"{what} {value!r}", "a number")
        return float(value)

    def _get_text(self, entry: object, key: str, where: str) -> str:
        value = self._check_dict(entry, where).get(key)
        if not isinstance(value, str):
            self._raise_damaged(where, f"{key} {value!r}", "a text")
        return str(value)

    def _check_dict(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._raise_damaged(where, f"a {type(value).__name__}", "an object of named values")
        return dict(value)

    def _check_list(self, value: object, where: str) -> list[Any]:
        if not isinstance(value, list):
            self._raise_damaged(where, f"a {type(value).__name__}", "a list")
        return list(value)

    def _raise_damaged(self, name: str, found: str, wanted: str) -> NoReturn:
        at = f", '{name}'" if name else ""
        raise ConfigError(f"{self.where}{at}: it has {found}; wanted: {wanted}")
