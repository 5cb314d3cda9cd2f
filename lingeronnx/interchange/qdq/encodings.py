"""Read scales that another tool wrote into a JSON file for a float model.

AIMET's encodings, by the version in the file (fields as aimet-onnx 2.42 writes them):

    0.4 to 0.6.1  {"activation_encodings": {tensor: [one, or one per channel]},
                  "param_encodings": {...}}; each has scale, offset, bitwidth, dtype (default "int")
                  and is_symmetric ("True": signed integers)
    1.0.0         lists of {name, enc_type, dtype "INT", bw, is_sym, scale [...], offset [...]}
    2.0.0         {"encodings": [{name, output_dtype "int8", y_scale, y_zero_point, axis}]}, with
                  the semantics of QuantizeLinear

Before 2.0.0 an offset is relative to the lowest integer, as if integers were unsigned: ``x = (q +
offset) * scale`` with q in 0..2^bits - 1, so the zero point is -offset. esp-ppq (PPQ) has, for each
operator,

    {"configs": {node: {tensor: {bit_width, policy, state, quant_min, quant_max, dominator}}},
     "values": {dominator: {scale, zero_point}}}

with ``x = (q - zero_point) * scale``. Its exporters rename some tensors; if the model has the node,
with as many tensors as the file, they are matched in the order of its inputs and outputs.

Must not know: platforms; the flow decides how the scales are used.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ...common.deprecation import keep_old_members
from ...common.errors import ConfigError, suggest_nearest
from ...common.files import read_user_file
from ...ir import ir
from ...ir.plan import Affine, Plan
from .import_model import ImportedQuantization, make_file_qparams

__all__ = ["Encoding", "Encodings", "read_plan"]

_BIAS_BITS = 32  # a bias has the scale of input times weight
_MIN_BITS, _MAX_BITS = 2, 32
_MAX_FILE_BYTES = 1 << 28

#: AIMET's types of encodings with one scale, or one per channel.
_SUPPORTED_GRANULARITIES = ("PER_TENSOR", "PER_CHANNEL")


@dataclass(frozen=True)
class Encoding:
    """The scale of one tensor as another tool wrote it into a file, or why it cannot be used.

    Attributes
    ----------
    tensor
        Name of the tensor in the file.
    qparams
        Quantization parameters; None if they cannot be used, with the reason in `rejection`.
    rejection
        Reason why the entry cannot be used.
    node
        Name of the operator that the entry belongs to; "" if the file has no operators.
    position
        Index among the inputs and outputs of that operator.
    tensor_count
        Number of the operator's inputs and outputs in the file.
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
    """Scales that another tool wrote for a float model.

    Attributes
    ----------
    tool
        Name of the tool or format.
    entries
        Entries of the file, in its order.
    source_name
        Name of the file in messages.
    """

    tool: str
    entries: tuple[Encoding, ...]
    source_name: str = "the plan"

    def resolve_for(self, model: ir.Model) -> ImportedQuantization:
        """Assign the entries to the tensors of a float model.

        Parameters
        ----------
        model
            The float model.

        Returns
        -------
        ImportedQuantization
            Scales of its activations and weights, and the reasons why entries are not used.

        Raises
        ------
        ConfigError
            If no entry has a scale for a tensor of the model.
        """
        constants = _get_constant_ranks(model)
        nodes = {str(node.name): node for node in model.graph}
        shapes = {str(value.name): ir.get_shape(value) for value in ir.iter_values(model)}
        ranks = {name: len(shape) for name, shape in shapes.items() if shape is not None}
        ranks |= constants
        model_tensors = shapes.keys() | constants.keys()
        qparams: dict[str, Affine] = {}
        rejections: dict[str, str] = {}
        for entry in self.entries:
            name = _resolve_tensor_name(entry, nodes, model_tensors)
            if name not in model_tensors:
                suggestion = suggest_nearest(name, model_tensors)
                rejections.setdefault(name, f"the model has no tensor of that name{suggestion}")
            elif entry.qparams is not None:
                if reason := _check_axis(entry.qparams.axis, ranks.get(name)):
                    rejections.setdefault(name, reason)
                else:
                    qparams.setdefault(name, entry.qparams)
            elif constants.get(name, 2) > 1:  # a bias needs no scale
                rejections.setdefault(name, entry.rejection)
        if not qparams:
            raise ConfigError(
                f"{self.source_name} ({self.tool}) has a scale for no tensor of this model; "
                f"{_format_first_rejection(rejections)}"
            )
        weights = {name: affine for name, affine in qparams.items() if name in constants}
        layers = {str(node.name): _get_weight_qparams(node, weights) for node in model.graph}
        return ImportedQuantization(
            model,
            {name: affine for name, affine in qparams.items() if name not in constants},
            weights,
            {name: layer_weights for name, layer_weights in layers.items() if layer_weights},
            (),
            self.tool,
            {name: reason for name, reason in rejections.items() if name not in qparams},
        )


def _get_constant_ranks(model: ir.Model) -> dict[str, int]:
    """Return constant name -> number of axes, for the constants that nodes of `model` read."""
    ranks: dict[str, int] = {}
    for node in model.graph:
        for value in node.inputs:
            array = ir.const_value(value)
            if value is not None and array is not None:
                ranks[str(value.name)] = array.ndim
    return ranks


def _check_axis(axis: int | None, rank: int | None) -> str:
    """Return the reason why a tensor of `rank` axes has no scales along `axis`; "" if it may.

    `axis` is None for a single scale, `rank` if it is unknown.
    """
    if axis is None or rank is None or -rank <= axis < rank:
        return ""
    return f"it has scales along axis {axis}, and the tensor {rank} axes"


def _get_weight_qparams(
    node: ir.Node, weights: Mapping[str, Affine]
) -> tuple[tuple[Affine, np.ndarray], ...]:
    """Return (parameters, array) of each constant input of `node` that is in `weights`.

    `weights` maps tensor names to quantization parameters; the pairs are in input order.
    """
    pairs = []
    for value in node.inputs:
        array = ir.const_value(value)
        if value is not None and array is not None and str(value.name) in weights:
            pairs.append((weights[str(value.name)], array))
    return tuple(pairs)


def _format_first_rejection(rejections: Mapping[str, str]) -> str:
    """Format the first of `rejections` (tensor name -> reason) for an error message.

    "the file has no entries" if there is none.
    """
    for name, reason in rejections.items():
        return f"'{name}': {reason}"
    return "the file has no entries"


def _resolve_tensor_name(
    entry: Encoding, nodes: Mapping[str, ir.Node], model_tensors: Container[str]
) -> str:
    """Return the name in the model of an entry's tensor; the entry's name if there is no match.

    If the model has no such tensor, the entry's node is searched, and its input or output at the
    entry's position is taken if the node has as many tensors as in the file.
    """
    node = nodes.get(entry.node)
    if entry.tensor in model_tensors or node is None:
        return entry.tensor
    tensors = [str(value.name) for value in (*node.inputs, *node.outputs) if value is not None]
    return tensors[entry.position] if len(tensors) == entry.tensor_count else entry.tensor


# ---- reading -------------------------------------------------------------------------------------


def read_plan(path: str | os.PathLike[str]) -> Plan | Encodings:
    """Read quantization parameters from a JSON file.

    Parameters
    ----------
    path
        A plan of this tool, AIMET encodings, or the JSON file that esp-ppq exports with a model.

    Returns
    -------
    Plan or Encodings
        A plan, or the encodings of another tool.

    Raises
    ------
    ConfigError
        If the file cannot be read, has another format, or is malformed.
    """
    path = Path(path)
    content = read_user_file(path, "the plan", _MAX_FILE_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the plan {path} is not a lingeronnx plan (no UTF-8 text); --save-plan writes one"
        ) from error
    source_name = f"the plan {path}"
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{source_name} is not a lingeronnx plan, nor another tool's (no JSON: {error}); "
            "--save-plan writes one"
        ) from error
    if isinstance(body, dict):
        if "lingeronnx_plan" in body:
            return Plan.from_json(text, source_name)
        if not body.keys().isdisjoint(("encodings", "activation_encodings", "param_encodings")):
            return _EncodingsFile(source_name, body).read_aimet()
        if "configs" in body and "values" in body:
            return _EncodingsFile(source_name, body).read_ppq()
    raise ConfigError(
        f"{source_name} is not a lingeronnx plan, AIMET encodings (activation_encodings or "
        "encodings) or esp-ppq JSON (configs and values)"
    )


@dataclass(frozen=True)
class _EncodingsFile:
    """Reader of the scales in a JSON file of AIMET or esp-ppq, whose content is `body`.

    The scales are collected in `entries`; `source_name` is for messages.
    """

    source_name: str
    body: Mapping[str, Any]
    entries: list[Encoding] = field(default_factory=list)

    # ---- AIMET -----------------------------------------------------------------------------------

    def read_aimet(self) -> Encodings:
        """Read AIMET's encodings of version 0.4 to 0.6.1 (the default), 1.0.0 or 2.0.0.

        Version 2.0 has one list of entries, 1.0 a list each for activations and parameters, older
        ones a dict each. Raises ConfigError for other versions and malformed files.
        """
        version = self.body.get("version", "0.4.0")
        match = None
        if isinstance(version, str):
            match = re.fullmatch(r"(0\.[4-6]|1\.0|2\.0)(\.\d+)?", version)
        if match is None:
            self._raise_malformed(
                "", f"version {version!r} of AIMET's encodings", "0.4 to 0.6.1, 1.0.0 or 2.0.0"
            )
        if match[1] == "2.0":
            self._read_aimet_list("encodings", self._read_v2)
        else:
            for key in ("activation_encodings", "param_encodings"):
                if match[1] == "1.0":
                    self._read_aimet_list(key, self._read_v1)
                else:
                    self._read_aimet_dict(key)
        return Encodings(f"AIMET encodings {version}", tuple(self.entries), self.source_name)

    def _read_aimet_list(self, key: str, read_entry: Callable[[str, dict[str, Any]], None]) -> None:
        """Call `read_entry` with (tensor name, entry) for each entry of the list `key` of the file.

        An absent list counts as empty; ConfigError for anything that is not as expected.
        """
        for entry in self._check_list(self.body.get(key, []), key):
            read_entry(self._get_text(entry, "name", key), entry)

    def _read_aimet_dict(self, key: str) -> None:
        """Add the entries of the section `key` of an AIMET file of a version before 1.0.

        The section maps a tensor name to a list of encodings, one or one per channel. ConfigError
        if it is absent or malformed.
        """
        for name, entry in self._check_dict(self.body.get(key, []), key).items():
            channels = [self._check_dict(item, name) for item in self._check_list(entry, name)]
            self._read_v0(name, channels)

    def _read_v0(self, name: str, channels: Sequence[Mapping[str, Any]]) -> None:
        """Add the scales of tensor `name` from an AIMET file of a version before 1.0.

        `channels` are one encoding, or one per channel. Bits, type and symmetry are those of the
        first. A float type is rejected: the entry is added with the reason. ConfigError for an
        empty list or malformed fields.
        """
        if not channels:
            self._raise_malformed(name, "no encoding", "one encoding, or one per channel")
        first = channels[0]
        if first.get("dtype", "int") != "int":
            return self._reject(name, f"its type is {first['dtype']}, not an integer type")
        bits = self._check_bits(name, first.get("bitwidth"))
        signed = str(first.get("is_symmetric")).lower() == "true"
        scales = [channel.get("scale") for channel in channels]
        offsets = [channel.get("offset") for channel in channels]
        return self._add_offset_encoding(name, scales, offsets, bits, signed)

    def _read_v1(self, name: str, entry: Mapping[str, Any]) -> None:
        """Add the scales of tensor `name` from an AIMET file of version 1.0.

        Float types, scales of blocks, and zero points that are not integers are rejected: the entry
        is added with the reason. Entries of 32 bits or more (biases) are skipped. Raises
        ConfigError if bits, scales or offsets are malformed.
        """
        if entry.get("dtype", "INT") != "INT":
            return self._reject(name, f"its type is {entry['dtype']}, not an integer type")
        if entry.get("enc_type", "PER_TENSOR") not in _SUPPORTED_GRANULARITIES:
            return self._reject(
                name, f"{entry['enc_type']}: scales of blocks within a channel are not supported"
            )
        if any(entry.get("zero_point_shift") or ()):
            return self._reject(name, "zero_point_shift: zero points must be integers")
        bits = self._check_bits(name, entry.get("bw"))
        scales = self._check_list(entry.get("scale"), name)
        offsets = self._check_list(entry.get("offset"), name)
        return self._add_offset_encoding(name, scales, offsets, bits, entry.get("is_sym") is True)

    def _read_v2(self, name: str, entry: Mapping[str, Any]) -> None:
        """Add the scales of tensor `name` from an AIMET file of version 2.0.

        It has y_scale, y_zero_point and axis as in ONNX; `output_dtype` gives bits and sign. Types
        that are not integers and scales of blocks are rejected: the entry is added with the reason.
        """
        dtype = self._get_text(entry, "output_dtype", name)
        match = re.fullmatch(r"(u?)int(\d{1,4})", dtype)
        if match is None:
            return self._reject(name, f"its type is {dtype}, not an integer type")
        if "block_size" in entry or "per_block_int_scale" in entry:
            return self._reject(
                name, "block_size: scales of blocks within a channel are not supported"
            )
        bits = self._check_bits(name, int(match[2]))
        scales, zeros = entry.get("y_scale"), entry.get("y_zero_point")
        scales = scales if isinstance(scales, list) else [scales]
        if zeros is None:
            zeros = [0] * len(scales)
        elif not isinstance(zeros, list):
            zeros = [zeros]
        is_signed, axis = not match[1], entry.get("axis") or 0
        qparams = self._make_qparams(name, scales, zeros, bits, is_signed, axis)
        return self._add_entry(Encoding(name, qparams))

    def _add_offset_encoding(
        self, name: str, scales: Sequence[Any], offsets: Sequence[Any], bits: int, signed: bool
    ) -> None:
        """Add the scales of tensor `name`, with offsets relative to the lowest integer.

        AIMET has such offsets. Zero points are the lowest integer minus the offset; those of a
        symmetric range without the lowest integer become 0. One scale and offset, or one per
        channel (axis 0).
        """
        low = -(1 << (bits - 1)) if signed else 0
        zeros = [-(self._check_number(name, "offset", offset)) + low for offset in offsets]
        # symmetric around 0, without the lowest integer
        if signed and set(zeros) == {low + (1 << (bits - 1)) - 1}:
            zeros = [0] * len(zeros)
        self._add_entry(Encoding(name, self._make_qparams(name, scales, zeros, bits, low < 0, 0)))

    # ---- PPQ -------------------------------------------------------------------------------------

    def read_ppq(self) -> Encodings:
        """Read the JSON file of esp-ppq's exporters; return its entries.

        `configs` maps node -> tensor -> config; each entry also gets its node, its position among
        the node's tensors, and their number. ConfigError for a malformed file.
        """
        values = self._check_dict(self.body["values"], "values")
        for node, configs in self._check_dict(self.body["configs"], "configs").items():
            tensors = self._check_dict(configs, node)
            for position, (name, config) in enumerate(tensors.items()):
                entry = self._read_ppq_config(name, self._check_dict(config, name), values)
                self._add_entry(
                    replace(entry, node=node, position=position, tensor_count=len(tensors))
                )
        return Encodings("esp-ppq", tuple(self.entries), self.source_name)

    def _read_ppq_config(
        self, name: str, config: Mapping[str, Any], values: Mapping[str, Any]
    ) -> Encoding:
        """Return the scale of tensor `name` from its `config` in a file of esp-ppq.

        `values` maps a dominator's key to its scale and zero point. The entry has a reason instead
        of parameters if the tensor stays in float, its scale is a float or dynamic one, or it has
        none. Biases of 32 bits get scale 1. The sign follows from quant_min; a narrower range
        counts as the full one of the type.
        """
        policy = self._check_dict(config.get("policy"), name)
        state = self._get_text(config, "state", name)
        if state == "FP32":
            return Encoding(name, None, "the file leaves it in float")
        for word in ("FLOATING", "DYNAMIC"):
            if policy.get(word):
                reason = f"its scale is {word.lower()}; only fixed integer scales are supported"
                return Encoding(name, None, reason)
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
            self._raise_malformed(
                name, f"quant_min {low} and quant_max {high}", "quant_min below quant_max"
            )
        if bits == _BIAS_BITS:
            return Encoding(name, Affine(1.0, bits))
        if entry.get("scale") is None:
            return Encoding(name, None, f"it has no scale in the file (state {state})")
        scales, zeros = (
            value if isinstance(value, list) else [value]
            for value in (entry["scale"], entry.get("zero_point"))
        )
        # a range without the lowest integer is treated as the full range of the type
        return Encoding(name, self._make_qparams(name, scales, zeros, bits, low < 0, 0))

    # ---- both formats ----------------------------------------------------------------------------

    def _add_entry(self, entry: Encoding) -> None:
        """Append `entry` to `entries`, unless it is a bias, whose scale is a product of others.

        Entries of at least `_BIAS_BITS` bits count as biases.
        """
        if entry.qparams is None or entry.qparams.bits < _BIAS_BITS:
            self.entries.append(entry)

    def _reject(self, name: str, reason: str) -> None:
        """Add tensor `name` without quantization parameters, because of `reason`."""
        self.entries.append(Encoding(name, None, reason))

    def _make_qparams(
        self,
        name: str,
        scales: Sequence[Any],
        zeros: Sequence[Any],
        bits: int,
        signed: bool,
        axis: object,
    ) -> Affine:
        """Check the parameters of a tensor, and return them as scales, zero points and bits.

        Raises ConfigError if they are malformed.

        Parameters
        ----------
        name
            Name of the tensor, for messages.
        scales, zeros
            Float value of an integer step, and zero points, one per tensor or channel.
        bits, signed
            Integer type.
        axis
            Channel axis; used if there are several scales.
        """
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        steps = [self._check_number(name, "scale", scale) for scale in scales]
        if not steps or len(zeros) != len(steps):
            self._raise_malformed(
                name,
                f"{len(steps)} scales and {len(zeros)} zero points",
                "equally many, and one or more",
            )
        for step in steps:
            if not (step > 0 and math.isfinite(1 / step)):
                self._raise_malformed(name, f"scale {step}", "a positive number")
        points = [self._check_number(name, "zero point", zero) for zero in zeros]
        for point in points:
            if point != int(point) or not low <= point <= high:
                self._raise_malformed(
                    name, f"zero point {point:g}", f"an integer from {low} to {high}"
                )
        if not isinstance(axis, int) or isinstance(axis, bool):
            self._raise_malformed(name, f"axis {axis!r}", "an integer")
        return make_file_qparams([1 / step for step in steps], points, bits, signed, axis)

    def _check_bits(self, name: str, value: object) -> int:
        """Return `value` if it is an integer within `_MIN_BITS` and `_MAX_BITS`.

        Raises ConfigError, which names the tensor `name`, otherwise; a bool is no integer.
        """
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not _MIN_BITS <= value <= _MAX_BITS
        ):
            self._raise_malformed(
                name, f"{value!r} bits", f"an integer from {_MIN_BITS} to {_MAX_BITS}"
            )
        return int(value)

    def _check_number(self, name: str, field_name: str, value: object) -> float:
        """Return `value` as a float if it is a finite number, else raise ConfigError.

        A bool is no number, nor is an integer beyond the range of floats. `name` (tensor) and
        `field_name` are for the message.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._raise_malformed(name, f"{field_name} {value!r}", "a finite number")
        try:
            number, shown = float(value), f"{value!r}"
        except OverflowError:
            number, shown = math.inf, f"of {len(str(abs(value)))} digits"
        if not math.isfinite(number):
            self._raise_malformed(
                name, f"{field_name} {shown}", "a finite number below 1.8e308 in magnitude"
            )
        return number

    def _get_text(self, entry: object, key: str, location: str) -> str:
        """Return the string `key` of the JSON object `entry`.

        ConfigError if it is absent or no string. `location` names the entry in the message.
        """
        value = self._check_dict(entry, location).get(key)
        if not isinstance(value, str):
            self._raise_malformed(location, f"{key} {value!r}", "a string")
        return str(value)

    def _check_dict(self, value: object, location: str) -> dict[str, Any]:
        """Return a copy of `value` if it is a JSON object, else raise ConfigError.

        `location` names it in the message.
        """
        if not isinstance(value, dict):
            self._raise_malformed(location, f"a {type(value).__name__}", "a JSON object")
        return dict(value)

    def _check_list(self, value: object, location: str) -> list[Any]:
        """Return a copy of `value` if it is a list, else raise ConfigError.

        `location` names it in the message.
        """
        if not isinstance(value, list):
            self._raise_malformed(location, f"a {type(value).__name__}", "a list")
        return list(value)

    def _raise_malformed(self, location: str, actual: str, expected: str) -> NoReturn:
        """Raise ConfigError that the file has `actual` where `expected` is required.

        `location` is the tensor or section of the file, "" for the file.
        """
        at = f", '{location}'" if location else ""
        raise ConfigError(f"{self.source_name}{at}: found {actual}; expected {expected}")
