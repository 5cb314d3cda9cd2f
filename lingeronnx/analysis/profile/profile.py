"""Range, mean, variance and histogram of every tensor of a model, over all of the data.

There is one row for each tensor of each operator: its inputs and outputs, weights and bias.
Integers are converted to float values. Recording takes one pass, and memory does not grow with the
data (`stats.distribution`). `Recorder` follows runs; `Profile` is the result, with tables,
TensorBoard histograms and a file format (`profile_file`). This module knows sessions but no
commands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...common.deprecation import keep_old_members
from ...common.errors import ConfigError
from ...common.files import ensure_folder, write_text
from ...common.text import format_table
from ...ir import ir
from ...ir.attributes import get_number
from ...ir.name_mapping import get_module_name
from ...ir.plan import Affine, make_bias_qparams
from ...operators.integer_ops import find_integer_op, is_quantized_domain, read_attributes
from ...runtime.session import Session
from ..compare.real_values import RealValues
from ..stats.distribution import Distribution
from .events import write_histograms

__all__ = [
    "COLUMNS",
    "EVENTS_FILE",
    "TABLE_FILE",
    "OperatorTensor",
    "Profile",
    "Recorder",
    "RecordedTensor",
    "list_operator_tensors",
    "source_location",
]

#: The columns of statistic.txt; with_stack adds the last.
COLUMNS = (
    "Index",
    "Op Name",
    "Mod Name",
    "Attr",
    "Dtype",
    "Scale",
    "Min",
    "Max",
    "Mean",
    "Var",
    "Shape",
)
STACK_COLUMN = "Stack"

#: The files of a profile.
TABLE_FILE, EVENTS_FILE = "statistic.txt", "events.out.tfevents.lingeronnx"

_SCALES = float | tuple[float, ...] | None


@dataclass(frozen=True)
class OperatorTensor:
    """A tensor in its role at one operator.

    Parameters
    ----------
    op
        Type of the operator.
    module
        Name of the node.
    attr
        Role of the tensor: input, output, weight or bias.
    tensor
        Name of the tensor.
    stack
        Source location of the operator, or "" if the file does not have it.
    path
        Module of the operator as torch names it, or the node's name if the file does not have it.
    """

    op: str
    module: str
    attr: str
    tensor: str
    stack: str = ""
    path: str = ""


@keep_old_members("0.3", spread="distribution")
@dataclass
class RecordedTensor:
    """Statistics of a tensor.

    Parameters
    ----------
    dtype
        Stored data type.
    scale
        Integer steps per unit, as a tuple if there is one per channel; None for floats.
    shape
        Shape of the first batch.
    distribution
        Distribution of the float values.
    channels
        Distribution for each index of axis 1 (axis 0 of a weight), if requested.
    """

    dtype: str
    scale: _SCALES
    shape: tuple[int, ...]
    distribution: Distribution
    channels: list[Distribution]

    @property
    def scale_text(self) -> str:
        """The scale (integer steps per unit) as text.

        "-" for float tensors, "LOWEST to HIGHEST" if there is one per channel, else the number.
        """
        if self.scale is None:
            return "-"
        if isinstance(self.scale, tuple):
            return f"{min(self.scale):g} to {max(self.scale):g}"
        return f"{self.scale:g}"


def list_operator_tensors(model: ir.Model) -> list[OperatorTensor]:
    """List the inputs, weights, biases and outputs of all operators of a model, in graph order.

    An entry has the operator's type, node name, role of the tensor, tensor name, source location
    and torch module. A tensor occurs once for each operator that uses it. Constant nodes, constants
    that are not parameters (such as shapes) and tensors without a name are left out.
    """
    entries = []
    for node in model.graph:
        if node.op_type == "Constant" and not node.domain:
            continue
        roles: list[tuple[str, str]] = []  # (role, tensor)
        for index, value in enumerate(node.inputs):
            if value is not None and value.name:
                roles.append((_input_role(node, index, value), str(value.name)))
        roles += [("output", str(value.name)) for value in node.outputs if value.name]
        stack, path = source_location(node), get_module_name(node)
        for role, tensor in roles:
            if role:
                entries.append(
                    OperatorTensor(node.op_type, str(node.name), role, tensor, stack, path)
                )
    return entries


def _input_role(node: ir.Node, index: int, value: ir.Value) -> str:
    """Classify an input of a node: "input", "weight", "bias", or "" for a constant such as a shape.

    Everything that is not constant is an "input". In an integer node a constant from the third
    input on of 32 bits or more is a bias, other signed integers are weights. In a float node a
    float constant from the third input on is a bias if the operator's schema calls it B, C or bias,
    else a weight.
    """
    array = ir.const_value(value)
    if array is None:
        producer = ir.producer(value)
        if producer is not None and producer.op_type == "Constant" and not producer.domain:
            return ""
        return "input"
    if is_quantized_domain(node):
        if index > 1 and array.dtype.itemsize >= 4:
            return "bias"
        return "weight" if array.dtype.kind == "i" else ""
    if array.dtype.kind != "f":
        return ""
    is_bias = index > 1 and ir.formal_input_name(node, index) in ("B", "C", "bias")
    return "bias" if is_bias else "weight"


#: A line of a stack as torch's exporters write it: File "net.py", line 7, in forward (dynamo), or
#: net.py(7): forward (torchscript).
_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<where>\w+)|'
    r"(?P<file2>\S+)\((?P<line2>\d+)\): (?P<where2>\w+)"
)


def source_location(node: ir.Node) -> str:
    """Return the source of an operator as ``file:line in function``, or "" if it is unknown.

    The dynamo exporter stores the stack in the node's metadata, outermost call first. The verbose
    torchscript exporter stores it in the doc string, innermost call first. The innermost call
    outside of torch counts, or the innermost one if all are in torch.
    """
    dynamo_stack = node.metadata_props.get("pkg.torch.onnx.stack_trace", "")
    calls = []
    for match in _FRAME.finditer(dynamo_stack or node.doc_string or ""):
        frame = match.groupdict()
        file, line = frame["file"] or frame["file2"], frame["line"] or frame["line2"]
        calls.append((file, line, frame["where"] or frame["where2"]))
    if not calls:
        return ""
    if not dynamo_stack:
        calls.reverse()
    user_calls = [call for call in calls if "torch" not in Path(call[0]).parts] or calls
    return "{}:{} in {}".format(*user_calls[-1])


# ---- recording ------------------------------------------------------------------------------


class Recorder:
    """Records the tensors of a session's runs.

    `add` is called with every tensor of every batch, as `Session.watched` does.

    Parameters
    ----------
    session
        The session.
    per_channel
        Whether to record a distribution per channel too (128 kB for each channel with many values).
    on_tensor
        Function that is called with every tensor as well.
    """

    def __init__(
        self,
        session: Session,
        *,
        per_channel: bool = False,
        on_tensor: Callable[[str, np.ndarray, Affine | None], None] | None = None,
    ) -> None:
        """List the tensors of the model's operators; nothing is recorded yet.

        `on_tensor` is called with each tensor that `add` gets: name, array as stored, and
        quantization parameters or None. `per_channel` also records a distribution per channel.
        """
        self.session, self._per_channel, self._on_tensor = session, per_channel, on_tensor
        self._real = RealValues(session)
        self.entries = list_operator_tensors(session.model)
        self._tensor_names = {entry.tensor for entry in self.entries}
        self._recorded: dict[str, RecordedTensor] = {}

    @property
    def has_run(self) -> bool:
        """Whether at least one batch of a tensor was recorded."""
        return bool(self._recorded)

    def add(self, name: str, array: np.ndarray, qparams: Affine | None) -> None:
        """Record a batch of the tensor `name`: update its distribution by its real values.

        `array` is as the session stores it, with `qparams` or None for float values; channels are
        on axis 1. Tensors that no operator uses, and arrays without numbers, are not recorded.
        `on_tensor` is called in every case.
        """
        if self._on_tensor is not None:
            self._on_tensor(name, array, qparams)
        if name in self._tensor_names and array.dtype.kind in "fiub":
            scale = None if qparams is None else qparams.scale
            self._add_values(name, self._real(name, array, qparams), str(array.dtype), scale, 1)

    def profile(self) -> Profile:
        """Return the profile of all runs so far; the model's weights and biases are recorded first.

        Raises
        ------
        ConfigError
            If nothing was recorded.
        """
        if not self._recorded:
            raise ConfigError("no data recorded; run the model first")
        qparams_by_constant = _constant_qparams(self.session.model)
        for entry in self.entries:
            if entry.attr not in ("weight", "bias") or entry.tensor in self._recorded:
                continue
            array = ir.const_value(self.session.model.graph.initializers[entry.tensor])
            if array is None or not array.size:
                continue
            q = qparams_by_constant.get(entry.tensor)
            real, scale = (array, None) if q is None else (q.real(array), q.attribute)
            self._add_values(entry.tensor, real, str(array.dtype), scale, 0)
        entries = [entry for entry in self.entries if entry.tensor in self._recorded]
        return Profile(entries, self._recorded, ir.compute_digest(self.session.model))

    def _add_values(
        self, name: str, real: np.ndarray, dtype: str, scale: _SCALES, axis: int
    ) -> None:
        """Add a batch of float values, with channels along `axis`, to the record of `name`.

        The record is created at the first batch, with that batch's shape. Distributions of channels
        are kept if recording is per channel and the tensor has more than one axis.
        """
        recorded = self._recorded.get(name)
        if recorded is None:
            recorded = RecordedTensor(dtype, scale, real.shape, Distribution(), [])
            self._recorded[name] = recorded
        recorded.distribution.add(real)
        if self._per_channel and real.ndim > 1:
            arrays = np.moveaxis(real, axis, 0)
            missing = len(arrays) - len(recorded.channels)
            recorded.channels += [Distribution() for _ in range(missing)]
            for channel, array in zip(recorded.channels, arrays, strict=True):
                channel.add(array)


def _constant_qparams(model: ir.Model) -> dict[str, Affine]:
    """Return {tensor: quantization parameters} of the integer weights and biases of a model.

    Weights are given 8 bits here, whatever their width. The scale of a bias is that of the
    accumulator: the input's scale times the weight's. Float nodes have no entries.
    """
    qparams: dict[str, Affine] = {}
    for node in model.graph:
        form = find_integer_op(node) if is_quantized_domain(node) else None
        if form is None:
            continue
        attrs = read_attributes(form, node)
        biases = _bias_inputs(node)
        weights_and_input_scales = zip(
            form.weight_scales.items(), ("scale_x", "scale_h"), strict=False
        )
        for (key, index), input_scale in weights_and_input_scales:
            if key not in attrs or len(node.inputs) <= index or node.inputs[index] is None:
                continue
            weight = form.weight_qparams(attrs, node, key).changed(bits=8)
            qparams[ir.input_name(node, index)] = weight
            if biases and attrs.get(input_scale):
                scales = get_number(attrs, input_scale) * weight.sums.scales
                qparams[biases.pop(0)] = make_bias_qparams(scales, False)
    return qparams


def _bias_inputs(node: ir.Node) -> list[str]:
    """Return the names of the constant inputs of a node that are biases, in order of inputs.

    In an integer node these are constants of 32 bits or more from the third input on; in a float
    node those that the operator's schema calls B, C or bias.
    """
    names = []
    for index, value in enumerate(node.inputs):
        if value is None or ir.const_value(value) is None:
            continue
        if _input_role(node, index, value) == "bias":
            names.append(ir.input_name(node, index))
    return names


# ---- the result -----------------------------------------------------------------------------


@keep_old_members("0.3", seen="tensors", chosen="select")
@dataclass(frozen=True)
class Profile:
    """Statistics of all tensors of a model.

    Parameters
    ----------
    entries
        Tensors by operator, in graph order.
    tensors
        Statistics by tensor.
    model
        Digest of the model.
    """

    entries: Sequence[OperatorTensor]
    tensors: Mapping[str, RecordedTensor]
    model: str

    def select(
        self, prefixes: Sequence[str] | None = None, types: Sequence[str] | None = None
    ) -> list[OperatorTensor]:
        """Return the entries of operators with given name prefixes and types.

        Parameters
        ----------
        prefixes
            Prefixes of the node's name, or of the module's as torch names it; a single string is
            one prefix. None or empty selects all.
        types
            Operator types; a single string is one type. None or empty selects all.

        Raises
        ------
        ConfigError
            If no entry matches.
        """
        name_prefixes = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes or ("",))
        op_types = (types,) if isinstance(types, str) else tuple(types or ())
        entries = []
        for entry in self.entries:
            if _matches_prefix(entry, name_prefixes) and (not op_types or entry.op in op_types):
                entries.append(entry)
        if not entries:
            known = ", ".join(sorted({entry.op for entry in self.entries}))
            raise ConfigError(
                f"no operator matches prefixes {list(name_prefixes)} and types {list(op_types)}; "
                f"types of the model: {known}"
            )
        return entries

    def text(
        self,
        prefixes: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        with_stack: bool = False,
    ) -> str:
        """Format the table of `statistic.txt`: a row for each tensor of each selected operator.

        `prefixes` (of node or module names) and `types` (of operators) select operators; None or
        empty selects all. The first column counts runs of consecutive rows of the same module, from
        0. `with_stack` adds a column with source locations, "unknown" without one. Raises
        ConfigError if no operator matches.
        """
        rows = []
        index, previous_module = -1, ""
        for entry in self.select(prefixes, types):
            if entry.module != previous_module or index < 0:
                index += 1
            previous_module = entry.module
            recorded = self.tensors[entry.tensor]
            values = recorded.distribution
            statistics = (values.low, values.high, values.mean, values.variance)
            cells = [
                str(index),
                entry.op,
                entry.module,
                entry.attr,
                recorded.dtype,
                recorded.scale_text,
                *(f"{value:.6g}" for value in statistics),
                str(list(recorded.shape)),
            ]
            if with_stack:
                cells.append(entry.stack or "unknown")
            rows.append(cells)
        return format_table((*COLUMNS, *([STACK_COLUMN] if with_stack else [])), rows)

    def table(
        self,
        out_dir: str | os.PathLike[str],
        prefixes: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        with_stack: bool = False,
    ) -> Path:
        """Write the table of operator tensors to `statistic.txt` in `out_dir`, and return its path.

        The folder is created if necessary; the file is replaced. `prefixes` (of node or module
        names) and `types` (of operators) select operators; None or empty selects all. `with_stack`
        adds a column with source locations. Raises ConfigError if no operator matches.
        """
        text = self.text(prefixes, types, with_stack)
        path = ensure_folder(out_dir) / TABLE_FILE
        write_text(path, text)
        return path

    def tensorboard(
        self,
        out_dir: str | os.PathLike[str],
        prefixes: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        force_per_channel: bool = False,
    ) -> Path:
        """Write histograms of inputs, outputs, weights and biases into `out_dir`/tensorboard.

        Parameters
        ----------
        out_dir
            Parent of the folder.
        prefixes, types
            Prefixes of the nodes' or modules' names, and operator types; None or empty selects all.
        force_per_channel
            Whether to write a histogram per channel, with the tag ``module/attr/tensor/channel``
            instead of ``module/attr/tensor``. A tensor without channels has one histogram.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        ConfigError
            If channels are requested and the profile has none, no entry matches, or the folder
            cannot be written.
        """
        entries = self.select(prefixes, types)
        if force_per_channel and not any(recorded.channels for recorded in self.tensors.values()):
            raise ConfigError("the profile has no channels; record it again with per_channel")
        folder = ensure_folder(ensure_folder(out_dir) / "tensorboard")
        write_histograms(folder / EVENTS_FILE, self._iter_tagged(entries, force_per_channel))
        return folder

    def _iter_tagged(
        self, entries: Sequence[OperatorTensor], per_channel: bool
    ) -> Iterator[tuple[str, Distribution]]:
        """Yield (tag, distribution) for each entry, or for each of its channels with `per_channel`.

        The tag is MODULE/ATTR/TENSOR, with /INDEX for a channel; an entry without channels is
        yielded once.
        """
        for entry in entries:
            recorded = self.tensors[entry.tensor]
            tag = f"{entry.module}/{entry.attr}/{entry.tensor}"
            if not per_channel or not recorded.channels:
                yield tag, recorded.distribution
                continue
            for index, channel in enumerate(recorded.channels):
                yield f"{tag}/{index}", channel

    def to_dict(
        self, prefixes: Sequence[str] | None = None, types: Sequence[str] | None = None
    ) -> list[dict[str, object]]:
        """Return a JSON-ready dict for each tensor of each selected operator, in graph order.

        It has the entry (op, module, attr, tensor, stack, path), dtype, scale, shape, min, max,
        mean, var, count and skipped. `prefixes` (of node or module names) and `types` (of
        operators) select operators; None or empty selects all. Raises ConfigError if no operator
        matches.
        """
        rows = []
        for entry in self.select(prefixes, types):
            recorded = self.tensors[entry.tensor]
            values = recorded.distribution
            rows.append(
                {
                    **vars(entry),
                    "dtype": recorded.dtype,
                    "scale": recorded.scale,
                    "shape": list(recorded.shape),
                    "min": values.low,
                    "max": values.high,
                    "mean": values.mean,
                    "var": values.variance,
                    "count": values.count,
                    "skipped": values.skipped,
                }
            )
        return rows


def _matches_prefix(entry: OperatorTensor, prefixes: tuple[str, ...]) -> bool:
    """Whether an operator's node name or torch module path begins with one of `prefixes`."""
    return entry.module.startswith(prefixes) or entry.path.startswith(prefixes)
