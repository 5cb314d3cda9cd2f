"""Two streams joined: every tensor that both have, measured in one pass with constant memory.

Tensors meet under the user's names, in the user's terms: what equalization multiplied a channel by
is divided out. For every pair there is the error as it arrives (both run from the same inputs) and
the *local* one, which the tensor's own layer makes: all that it reads is given the baseline's
values, on both sides as far as integers hold them, for what was cut off before a layer is no error
of its own. What only a Relu or Clip reads is also measured as that sees it: a chip's scale need not
hold what is cut off behind. Knows sources and measures, no remedy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import ConfigError, DataError, suggest_nearest
from ...graph import ir, operators
from ...graph.module_scopes import format_node_label, get_module_name
from ...ops import is_relu_like
from ...ops.functions.activation import get_clip_bounds
from ...run.data import Data, InputSpec, Progress
from ...run.metrics import TopK
from ...run.streaming import make_zero_states
from ..stats.channels import ChannelSums, move_channel_axis
from ..stats.pair_measures import PairMeasures
from ..stats.stored_form import StoredForm
from .sources import DumpSource, FloatSource, IntegerSource, TensorSource

__all__ = [
    "TensorJoin",
    "PartialJoin",
    "ComparedTensor",
    "iter_batches",
    "join_tensors",
    "choose_comparison_batch_size",
]

_MAX_BATCH_BYTES = 64 << 20  # bytes of the baseline's tensors that are held at a time
_MAX_BATCH = 16  # samples


@dataclass
class ComparedTensor:
    """One tensor of both.

    name : the user's. kinds : the operators that write it in the baseline and in what is analysed;
    "" where there is no graph. nodes : their names. module : by which the user knows the
    baseline's. shape : of the last batch; `total_shape` of all that was seen, one batch behind the
    other. pair : the error as it arrives. local : what the layer itself adds; None where it cannot
    be told apart. seen : the local (else the other) error as the Relu or Clip sees it that alone
    reads the tensor, within `consumed_range`; None where something else does. channels : the same
    per channel.
    """

    name: str
    kinds: tuple[str, str]
    nodes: tuple[str, str]
    module: str = ""
    consumed_range: tuple[float, float] | None = None
    shape: tuple[int, ...] = ()
    arrived: PairMeasures = field(default_factory=PairMeasures)
    local: PairMeasures | None = None
    as_consumed: PairMeasures | None = None
    channels: ChannelSums = field(default_factory=ChannelSums)

    @property
    def display_name(self) -> str:
        """The node that writes it, by all names that the user knows.

        The tensor where there is none.
        """
        return format_node_label(self.nodes[0], self.module) or self.name

    @property
    def total_shape(self) -> tuple[int, ...]:
        """Its shape over all of the data: as many on axis 0 as all batches have."""
        one = math.prod(self.shape[1:])
        return (
            (seen // one, *self.shape[1:])
            if self.shape and one and (seen := self.arrived.total_count)
            else self.shape
        )

    @property
    def stored_form(self) -> StoredForm | None:
        """How what is analysed holds the tensor; None where in float."""
        return self.arrived.stored_form

    @property
    def local_or_arrived(self) -> PairMeasures:
        """The local error where it is known, else the error as it arrives."""
        return self.arrived if self.local is None else self.local

    @property
    def effective(self) -> PairMeasures:
        """What the layer itself does wrong, as far as it matters to what reads it."""
        return self.local_or_arrived if self.as_consumed is None else self.as_consumed

    @property
    def baseline_range(self) -> tuple[float, float]:
        """The least and the largest value of the baseline, as what reads it sees them."""
        low, high = (-math.inf, math.inf) if self.consumed_range is None else self.consumed_range
        x = self.arrived.x
        return float(np.clip(x.low, low, high)), float(np.clip(x.high, low, high))

    def add_effective(
        self, x: np.ndarray, y: np.ndarray, stored_form: StoredForm | None, whole: np.ndarray
    ) -> None:
        """Take in the two, of one shape, into `as_consumed` and `channels`.

        whole : x where nothing that it is computed from is cut off.
        """
        raw = whole
        if self.consumed_range is not None:
            low, high = self.consumed_range
            x, whole = np.clip(x, low, high), np.clip(whole, low, high)
            y = np.clip(y, low, high) if stored_form is None else stored_form.clip_stored(y, high)
            self.as_consumed = self.as_consumed or PairMeasures()
            self.as_consumed.add(x, y, stored_form, whole)
        factor = (1.0,) if stored_form is None else stored_form.factor
        self.channels.add(
            *(
                move_channel_axis(a, factor)
                for a in (x, y if stored_form is None else stored_form.real(y), raw)
            )
        )

    def merge(self, other: ComparedTensor) -> None:
        """Take in what another has counted."""
        self.shape = other.shape or self.shape
        self.arrived.merge(other.arrived)
        self.channels.merge(other.channels)
        if other.local is not None:
            self.local = self.local or PairMeasures()
            self.local.merge(other.local)
        if other.as_consumed is not None:
            self.as_consumed = self.as_consumed or PairMeasures()
            self.as_consumed.merge(other.as_consumed)


@dataclass(frozen=True)
class PartialJoin:
    """What a `TensorJoin` found on some samples; it can be sent elsewhere.

    Hits : the sums of `TopK` of both models.
    """

    rows: dict[str, ComparedTensor]
    unpaired: Sequence[str]
    samples: int
    labelled_samples: int
    hits: Sequence[Sequence[float]]


class TensorJoin:
    """What two sources have in common, batch by batch.

    state : {output: input} fed back from batch to batch, each side its own. local : whether to
    measure local errors. rows : by the user's name, in the order of what is analysed. unpaired :
    tensors of the latter that the baseline has not, such as the parts that a layer was split into.
    """

    def __init__(
        self,
        base: TensorSource,
        other: TensorSource,
        *,
        local: bool = True,
        state: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(base, IntegerSource) and isinstance(other, DumpSource):
            other = other.renamed_for(base)
        self.base, self.other, self._local = base, other, local and other.has_isolated_layers
        self.rows: dict[str, ComparedTensor] = {}
        self.unpaired: list[str] = []
        self.samples = 0
        self._top = (TopK(1), TopK(1))
        self._labelled = 0
        self._state = dict(state or {})
        self._turned = dict(_match_recurrent_outputs(base, other))
        self._ends: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Top-1 of both in percent, where all samples had labels that number the classes of the first output."""
        whole = self._labelled == self.samples > 0
        return (self._top[0].value, self._top[1].value) if whole else None

    @property
    def outputs(self) -> dict[str, float]:
        """The SQNR in dB of the graph outputs, as it arrives."""
        graph = self.base.graph if self.base.graph is not None else self.other.graph
        names = [] if graph is None else [str(v.name) for v in graph.graph.outputs]
        return {name: self.rows[name].arrived.sqnr for name in names if name in self.rows}

    def add(self, feeds: Mapping[str, np.ndarray], labels: np.ndarray | None = None) -> None:
        """Run a batch through both; DataError where they have no tensor in common."""
        known = {spec.name for spec in self.other.inputs}
        ours, theirs = ({**feeds, **ends} for ends in self._ends)
        real = {
            name: array
            for name, array in self._iter_real(self.base.run(ours))
            if array.dtype.kind == "f"
        }
        theirs = {name: array for name, array in theirs.items() if name in known or not known}
        ends: dict[str, np.ndarray] = {}
        real |= {
            name: _to_batch_first(real[user.name], user)
            for name, user in self._turned.items()
            if user.name in real
        }
        for name, array, form in self.other.run(theirs):
            want = self._find_baseline_tensor(name, array, form, real)
            if want is None:
                continue
            row = self.rows[name] = self.rows.get(name) or self._create_row(name)
            row.shape, array = want.shape, array.reshape(want.shape)
            row.arrived.add(want, array, form)
            if not self._local:
                row.add_effective(want, array, form, want)
            if name == self._scores_name:
                self._count_hits(labels, want, array if form is None else form.real(array))
            if name in self._state:
                ends[self._state[name]] = (
                    array if form is None else form.real(array).astype(np.float32)
                )
        if not self.rows:
            raise DataError(
                "the two models have no tensor in common; compare a model with what was made of it"
            )
        if self._local:
            own = self._tensors_from_clipped_inputs(ours, real)
            self._add_local({**theirs, **{n: a for n, a in ours.items() if n in theirs}}, real, own)
        for name, to in self._state.items():
            if name not in real or to not in ends:
                raise ConfigError(
                    f"state: no tensor is called '{name}' in both "
                    f"models{suggest_nearest(name, real)}"
                )
        self._ends = {to: real[name] for name, to in self._state.items()}, ends
        self.samples += max((len(array) for array in feeds.values() if array.ndim), default=1)

    def _tensors_from_clipped_inputs(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the baseline's tensors as made of what integers hold of a layer's inputs, where that differs."""
        if not isinstance(self.base, FloatSource):
            return {}
        held = {
            name: row.stored_form
            for name, row in self.rows.items()
            if row.stored_form is not None and name not in self._turned
        }
        own = self.base.run_with_clipped_inputs(feeds, real, held)
        turned = {
            n: _to_batch_first(own[user.name], user)
            for n, user in self._turned.items()
            if user.name in own
        }
        return {
            name: array.astype(np.float32, copy=False) for name, array in {**own, **turned}.items()
        }

    def _add_local(
        self,
        feeds: Mapping[str, np.ndarray],
        real: Mapping[str, np.ndarray],
        own: Mapping[str, np.ndarray],
    ) -> None:
        """Run the batch through the second with all that is read as in the first."""
        for name, array, form in self.other.run_isolated(feeds, real):
            row = self.rows.get(name)
            if row is None or name not in real or array.size != real[name].size:
                continue
            whole, array = real[name], array.reshape(real[name].shape)
            want = own.get(name, whole)
            row.add_effective(want, array, form, whole)
            row.local = row.local or PairMeasures()
            row.local.add(want, array, form, whole)

    @cached_property
    def _scores_name(self) -> str:
        """The first graph output."""
        graph = self.base.graph if self.base.graph is not None else self.other.graph
        return "" if graph is None else str(graph.graph.outputs[0].name)

    def _count_hits(self, labels: np.ndarray | None, want: np.ndarray, have: np.ndarray) -> None:
        """Count whose largest output is the label."""
        classes = (
            labels is not None and labels.dtype.kind in "iu" and labels.ndim == 1 and want.ndim == 2
        )
        if labels is not None and classes and labels.max(initial=0) < want.shape[1]:
            for top, scores in zip(self._top, (want, have), strict=True):
                top.add(labels, scores)
            self._labelled += len(labels)

    @property
    def part(self) -> PartialJoin:
        """What was found so far, without the models."""
        return PartialJoin(
            self.rows,
            self.unpaired,
            self.samples,
            self._labelled,
            tuple(top.sums for top in self._top),
        )

    def merge(self, other: PartialJoin) -> None:
        """Take in what another, of the same sources, has found on further samples."""
        for name, row in other.rows.items():
            if name in self.rows:
                self.rows[name].merge(row)
            else:
                self.rows[name] = row
        self.unpaired += [name for name in other.unpaired if name not in self.unpaired]
        self.samples += other.samples
        self._labelled += other.labelled_samples
        for top, sums in zip(self._top, other.hits, strict=True):
            top.merge(sums)

    def _iter_real(self, items: Iterator[Any]) -> Iterator[tuple[str, np.ndarray]]:
        for name, array, form in items:
            yield name, array if form is None else np.asarray(form.real(array), np.float32)

    def _find_baseline_tensor(
        self,
        name: str,
        array: np.ndarray,
        stored_form: StoredForm | None,
        real: Mapping[str, np.ndarray],
    ) -> np.ndarray | None:
        """Return the baseline's tensor to compare with, None where there is none."""
        want = real.get(name)
        if stored_form is None and array.dtype.kind != "f":
            return None  # indices, shapes
        if want is None or [d for d in want.shape if d != 1] != [d for d in array.shape if d != 1]:
            if name not in self.unpaired and name not in self.rows:
                self.unpaired.append(name)
            return None
        return want

    def baseline_name(self, name: str) -> str:
        """Return what the baseline calls the tensor of row `name`."""
        return self._turned[name].name if name in self._turned else name

    def row_of(self, name: str) -> str | None:
        """Return the row of the baseline's tensor `name`, None where it has none."""
        rows = (row for row, user in self._turned.items() if user.name == name)
        found = next(rows, name)
        return found if found in self.rows else None

    def _create_row(self, name: str) -> ComparedTensor:
        nodes = [self.base.node(self.baseline_name(name)), self.other.node(name)]
        kinds = [
            "" if side.graph is None else "Input" if node is None else node.op_type
            for side, node in zip((self.base, self.other), nodes, strict=True)
        ]
        names = ["" if node is None else str(node.name) for node in nodes]
        user = nodes[0] if self.base.graph is not None else nodes[1]
        known = "" if user is None else get_module_name(user)
        return ComparedTensor(
            name,
            (kinds[0], kinds[1]),
            (names[0], names[1]),
            known,
            _consumed_range(self.base.graph, nodes[0], name),
        )


@dataclass(frozen=True)
class _RecurrentOutput:
    """What a recurrent layer of the baseline puts out.

    Its name, and whether the batch stands first.
    """

    name: str
    batch_first: bool


def _match_recurrent_outputs(
    base: TensorSource, other: TensorSource
) -> Iterator[tuple[str, _RecurrentOutput]]:
    """Yield (what goes by another name in what is analysed, the baseline's tensor) for recurrent layers.

    Normalising gives their outputs a layout of its own, and so a name; the node keeps its name.
    """
    if base.graph is None or other.graph is None:
        return
    made = {str(node.name): node for node in other.graph.graph}
    users: Mapping[str, str] = getattr(other, "user_names", {})
    for node in base.graph.graph:
        theirs = made.get(str(node.name))
        if (
            node.op_type in operators.RECURRENT_OPS
            and not node.domain
            and theirs is not None
            and node.outputs[0].name
        ):
            name, own = str(theirs.outputs[0].name), str(node.outputs[0].name)
            if name != own:
                yield (
                    users.get(name, name),
                    _RecurrentOutput(own, bool(ir.get_attr(node, "layout", 0))),
                )


def _to_batch_first(array: np.ndarray, user: _RecurrentOutput) -> np.ndarray:
    """Return Y, [T, D, N, H] or batch first [N, T, D, H], as [N, T, D * H]."""
    turned = array if user.batch_first else array.transpose(2, 0, 1, 3)
    return turned.reshape(*turned.shape[:2], -1)


def _consumed_range(
    graph: ir.Model | None, node: ir.Node | None, name: str
) -> tuple[float, float] | None:
    """Return what the Relus and Clips from 0 that alone read a tensor let through.

    None where others read it.
    """
    value = (
        None
        if graph is None or node is None
        else next((v for v in node.outputs if v.name == name), None)
    )
    if value is None:
        return None
    passed = {_passed_range(use.node) for use in value.uses()}
    return passed.pop() if len(passed) == 1 and not value.is_graph_output() else None


def _passed_range(node: ir.Node) -> tuple[float, float] | None:
    limits = get_clip_bounds(node) if node.op_type == "Clip" and not node.domain else None
    if limits is None:
        return (0.0, np.inf) if is_relu_like(node) else None
    return (0.0, limits[1]) if limits[0] == 0 else None


def choose_comparison_batch_size(base: TensorSource, feeds: Mapping[str, np.ndarray]) -> int:
    """Return how many samples to run together, from one of them, whatever the number of all."""
    size = sum(array.nbytes for _, array, _ in base.run(feeds))
    return int(np.clip(_MAX_BATCH_BYTES // max(size, 1), 1, _MAX_BATCH))


def join_tensors(
    base: TensorSource,
    other: TensorSource,
    data: object,
    *,
    local: bool = True,
    state: Mapping[str, str] | None = None,
    batch: int | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> TensorJoin:
    """Measure every tensor that two sources have in common, over all samples of `data`.

    data : as `Data` takes it, for the inputs of the baseline. state : {output: input} fed back from
    call to call: an item of the data is a call then. batch : samples run together; None: as many as
    fit. Raises DataError for wrong data, and where the models have nothing in common.
    """
    specs = list(base.inputs)
    joined = TensorJoin(base, other, local=local, state=state)
    for feeds, labels in iter_batches(specs, data, joined, state, batch, limit):
        joined.add(feeds, labels)
        if progress is not None:
            progress("comparing", joined.samples, None)
    return joined


def iter_batches(
    specs: Sequence[InputSpec],
    data: object,
    tensor_join: TensorJoin,
    state: Mapping[str, str] | None,
    batch: int | None,
    limit: int | None,
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray | None]]:
    """Yield (feeds, labels), with zeros for the states of the first call.

    ConfigError for a state without an input.
    """
    inputs = [spec.name for spec in specs]
    if lost := next((name for name in (state or {}).values() if name not in inputs), ""):
        raise ConfigError(f"state: the model has no input '{lost}'{suggest_nearest(lost, inputs)}")
    fed = [spec for spec in specs if spec.name in (state or {}).values()]
    source = Data(data, specs, limit=limit, what="data", optional={spec.name for spec in fed})
    if state:
        for feeds, labels in source.batches(1 << 30):
            count = max(
                (spec.count_samples(feeds[spec.name]) for spec in specs if spec.name in feeds),
                default=1,
            )
            missing = [spec for spec in fed if spec.name not in feeds and not tensor_join.samples]
            yield {**make_zero_states(missing, count), **feeds}, labels
        return
    size = batch or choose_comparison_batch_size(tensor_join.base, source.first())
    yield from source.batches(size)
