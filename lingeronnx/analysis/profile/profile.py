"""What a model's operators read and write.

Range, mean, variance and histogram of every tensor, over all of the data.
One row for each tensor of each operator: its inputs and outputs, weights and bias. Integers count
as real values. One pass, memory that does not grow with the data (`metrics.Spread`). `Recorder`
follows runs, `Profile` is what was seen: tables, TensorBoard's histograms, and a file to go on from
(`saved`). Knows sessions, no commands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import ConfigError
from ...files import ensure_folder, write_text
from ...formats import find_integer_op, is_quantized_domain, read_attributes
from ...graph import ir
from ...graph.attributes import get_number
from ...graph.module_scopes import get_module_name
from ...plan import Affine, make_bias_qparams
from ...run.session import Session
from ..compare.real_values import RealValues
from ..stats.distribution import Distribution
from ..text import format_table
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
    """A tensor as one operator has it.

    op : the operator's type. module : the node's name. attr : input, output, weight or bias. tensor
    : its name. stack : where in the source the operator comes from, "" where the file does not say.
    path : the module that it comes from,
    as torch calls it; the node's name where the file does not say.
    """

    op: str
    module: str
    attr: str
    tensor: str
    stack: str = ""
    path: str = ""


@dataclass
class RecordedTensor:
    """What was seen of a tensor.

    dtype : as it is stored. scale : counts per real unit of integers, a tuple for one per channel;
    None for floats. shape : of the first batch. spread : of its real values. channels : the same
    for each index of axis 1 (of axis 0 for a weight), where asked for.
    """

    dtype: str
    scale: _SCALES
    shape: tuple[int, ...]
    distribution: Distribution
    channels: list[Distribution]

    @property
    def scale_text(self) -> str:
        """The scale in a cell: "-" for floats, the least and the largest where channels have their own."""
        if self.scale is None:
            return "-"
        if isinstance(self.scale, tuple):
            return f"{min(self.scale):g} to {max(self.scale):g}"
        return f"{self.scale:g}"


def list_operator_tensors(model: ir.Model) -> list[OperatorTensor]:
    """Return the rows of `model`'s operators, in graph order.

    Constants that are no numbers of a layer have none.
    """
    rows = []
    for node in model.graph:
        if node.op_type == "Constant" and not node.domain:
            continue
        stack, path = source_location(node), get_module_name(node)
        for index, value in enumerate(node.inputs):
            if value is not None and value.name:
                attr = _input_role(node, index, value)
                if attr:
                    rows.append(
                        OperatorTensor(
                            node.op_type, str(node.name), attr, str(value.name), stack, path
                        )
                    )
        for value in node.outputs:
            if value.name:
                rows.append(
                    OperatorTensor(
                        node.op_type, str(node.name), "output", str(value.name), stack, path
                    )
                )
    return rows


def _input_role(node: ir.Node, index: int, value: ir.Value) -> str:
    """Return what input `index` of a node is; "" for a constant such as a shape."""
    array = ir.const_value(value)
    if array is None:
        maker = ir.producer(value)
        return (
            ""
            if maker is not None and maker.op_type == "Constant" and not maker.domain
            else "input"
        )
    if is_quantized_domain(node):
        return (
            "bias"
            if index > 1 and array.dtype.itemsize >= 4
            else "weight"
            if array.dtype.kind == "i"
            else ""
        )
    if array.dtype.kind != "f":
        return ""
    return (
        "bias"
        if index > 1 and ir.formal_input_name(node, index) in ("B", "C", "bias")
        else "weight"
    )


#: A line of a stack as either exporter of torch writes it: File "net.py", line 7, in forward; net.py(7): forward
_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<where>\w+)|'
    r"(?P<file2>\S+)\((?P<line2>\d+)\): (?P<where2>\w+)"
)


def source_location(node: ir.Node) -> str:
    """Return ``file:line in function`` of the operator's source, as torch's exporters note it.

    "" where they did not.
    The dynamo exporter writes the stack into the node's metadata, outermost call first;
    torchscript's, where asked to be verbose, into its doc string, innermost first. The innermost
    call outside of torch itself counts.
    """
    dynamo = node.metadata_props.get("pkg.torch.onnx.stack_trace", "")
    calls = [match.groupdict() for match in _FRAME.finditer(dynamo or node.doc_string or "")]
    named = [
        (c["file"] or c["file2"], c["line"] or c["line2"], c["where"] or c["where2"]) for c in calls
    ]
    inwards = named if dynamo else named[::-1]
    own = [call for call in inwards if "torch" not in Path(call[0]).parts] or inwards
    return "{}:{} in {}".format(*own[-1]) if own else ""


# ---- recording ---------------------------------------------------------------------------------------------------


class Recorder:
    """Follows the runs of a session.

    `add` is called with every tensor of every batch, as `Session.watched` does.
    per_channel : keep a histogram for each channel too (128 kB each where a channel has many
    values). on_tensor : is shown every tensor as well.
    """

    def __init__(
        self,
        session: Session,
        *,
        per_channel: bool = False,
        on_tensor: Callable[[str, np.ndarray, Affine | None], None] | None = None,
    ) -> None:
        self.session, self._per_channel, self._on_tensor = session, per_channel, on_tensor
        self._real = RealValues(session)
        self.entries = list_operator_tensors(session.model)
        self._known = {entry.tensor for entry in self.entries}
        self._seen: dict[str, RecordedTensor] = {}

    @property
    def has_run(self) -> bool:
        """Whether anything was run."""
        return bool(self._seen)

    def add(self, name: str, array: np.ndarray, qparams: Affine | None) -> None:
        """Take in one batch of tensor `name`."""
        if self._on_tensor is not None:
            self._on_tensor(name, array, qparams)
        if name in self._known and array.dtype.kind in "fiub":
            scale = None if qparams is None else qparams.scale
            self._add_values(name, self._real(name, array, qparams), str(array.dtype), scale, 1)

    def profile(self) -> Profile:
        """Return what was seen so far, constants too; ConfigError where nothing was run."""
        if not self._seen:
            raise ConfigError("nothing to profile; call the model on data first")
        constants = _constant_qparams(self.session.model)
        for entry in self.entries:
            if entry.attr in ("weight", "bias") and entry.tensor not in self._seen:
                array = ir.const_value(self.session.model.graph.initializers[entry.tensor])
                if array is not None and array.size:
                    q = constants.get(entry.tensor)
                    real, scale = (array, None) if q is None else (q.real(array), q.attribute)
                    self._add_values(entry.tensor, real, str(array.dtype), scale, 0)
        recorded = [entry for entry in self.entries if entry.tensor in self._seen]
        return Profile(recorded, self._seen, ir.compute_digest(self.session.model))

    def _add_values(
        self, name: str, real: np.ndarray, dtype: str, scale: _SCALES, axis: int
    ) -> None:
        """Take in a batch of real values whose channels lie along `axis`."""
        recorded = self._seen.get(name)
        if recorded is None:
            recorded = self._seen[name] = RecordedTensor(
                dtype, scale, real.shape, Distribution(), []
            )
        recorded.distribution.add(real)
        if self._per_channel and real.ndim > 1:
            parts = np.moveaxis(real, axis, 0)
            recorded.channels += [
                Distribution() for _ in range(len(parts) - len(recorded.channels))
            ]
            for channel, part in zip(recorded.channels, parts, strict=True):
                channel.add(part)


def _constant_qparams(model: ir.Model) -> dict[str, Affine]:
    """Return how the values are held of the integer weights and biases of `model`.

    A bias has the scale of what is summed up: the input's times the weight's.
    """
    by_constant: dict[str, Affine] = {}
    for node in model.graph:
        form = find_integer_op(node) if is_quantized_domain(node) else None
        if form is None:
            continue
        attrs = read_attributes(form, node)
        biases = [
            i
            for i, value in enumerate(node.inputs)
            if value is not None
            and ir.const_value(value) is not None
            and _input_role(node, i, value) == "bias"
        ]
        for (key, index), sums in zip(
            form.weight_scales.items(), ("scale_x", "scale_h"), strict=False
        ):
            if key not in attrs or len(node.inputs) <= index or node.inputs[index] is None:
                continue
            own = by_constant[ir.input_name(node, index)] = form.weight_qparams(
                attrs, node, key
            ).changed(bits=8)
            if biases and attrs.get(sums):
                by_constant[ir.input_name(node, biases.pop(0))] = make_bias_qparams(
                    get_number(attrs, sums) * own.sums.scales, False
                )
    return by_constant


# ---- what was seen -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """Rows in graph order, and of every tensor what was seen.

    entries : the rows. seen : {tensor: what was seen of it}. model : the model's digest.
    """

    entries: Sequence[OperatorTensor]
    tensors: Mapping[str, RecordedTensor]
    model: str

    def select(
        self, prefixes: Sequence[str] | None = None, types: Sequence[str] | None = None
    ) -> list[OperatorTensor]:
        """Return the rows of operators whose name begins with one of `prefixes` and whose type is one of `types`.

        A name is the node's, and the module's as torch calls it. None or nothing chooses all.
        Raises ConfigError where no row is left.
        """
        wanted = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes or ("",))
        kinds = (types,) if isinstance(types, str) else tuple(types or ())
        rows = [
            e for e in self.entries if _matches_prefix(e, wanted) and (not kinds or e.op in kinds)
        ]
        if not rows:
            known = ", ".join(sorted({entry.op for entry in self.entries}))
            raise ConfigError(
                f"no operator fits prefixes {list(wanted)} and types {list(kinds)}; its types are "
                f"{known}"
            )
        return rows

    def text(
        self,
        prefixes: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        with_stack: bool = False,
    ) -> str:
        """Return the table of `statistic.txt`.

        With_stack adds where in the source an operator comes from.
        """
        rows = []
        index, last = -1, ""
        for entry in self.select(prefixes, types):
            index, last = index + (entry.module != last or index < 0), entry.module
            recorded = self.tensors[entry.tensor]
            spread = recorded.distribution
            numbers = [
                f"{value:.6g}" for value in (spread.low, spread.high, spread.mean, spread.variance)
            ]
            rows.append(
                [
                    str(index),
                    entry.op,
                    entry.module,
                    entry.attr,
                    recorded.dtype,
                    recorded.scale_text,
                    *numbers,
                    str(list(recorded.shape)),
                    *([entry.stack or "unknown"] if with_stack else []),
                ]
            )
        return format_table((*COLUMNS, *([STACK_COLUMN] if with_stack else [])), rows)

    def table(
        self,
        out_dir: str | os.PathLike[str],
        prefixes: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        with_stack: bool = False,
    ) -> Path:
        """Write `statistic.txt` into the folder `out_dir` and return its path."""
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

        Return that folder.
        A tag is ``operator/attr/tensor``. force_per_channel : one for every channel,
        ``operator/attr/tensor/channel``; ConfigError where the profile has none.
        """
        chosen = self.select(prefixes, types)
        if force_per_channel and not any(recorded.channels for recorded in self.tensors.values()):
            raise ConfigError("this profile was made without channels; make it with per_channel")
        home = ensure_folder(ensure_folder(out_dir) / "tensorboard")
        write_histograms(home / EVENTS_FILE, self._tagged(chosen, force_per_channel))
        return home

    def _tagged(
        self, chosen: Sequence[OperatorTensor], per_channel: bool
    ) -> Iterator[tuple[str, Distribution]]:
        for entry in chosen:
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
        """Return the rows as JSON-ready values."""
        rows = []
        for entry in self.select(prefixes, types):
            recorded, spread = self.tensors[entry.tensor], self.tensors[entry.tensor].distribution
            rows.append(
                {
                    **vars(entry),
                    "dtype": recorded.dtype,
                    "scale": recorded.scale,
                    "shape": list(recorded.shape),
                    "min": spread.low,
                    "max": spread.high,
                    "mean": spread.mean,
                    "var": spread.variance,
                    "count": spread.count,
                    "skipped": spread.skipped,
                }
            )
        return rows


def _matches_prefix(entry: OperatorTensor, prefixes: tuple[str, ...]) -> bool:
    """Whether a name of the operator begins with one of `prefixes`."""
    return entry.module.startswith(prefixes) or entry.path.startswith(prefixes)
