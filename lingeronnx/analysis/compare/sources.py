"""What can be compared: float models, plans computed in float, integer graphs, dumps.

One face for all of them.
A `TensorSource` runs a batch and yields its tensors under the user's names, each with how it is
held. Integer tensors that stand for a user's tensor (behind a Quant, before a Dequant) go by its
name, and the factors that channels were equalized with are part of how they are held. Knows
sessions and dumps, no measure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Protocol

import numpy as np
import onnx

from ...errors import ConfigError, DataError
from ...flow import QuantizedModel
from ...flow.lower import extract_plan
from ...graph import ir
from ...plan import Affine, Plan
from ...plan.fake_quant import build_fake_quantized_graph, split_at_tensors
from ...run.data import InputSpec
from ...run.dump import INDEX_FILE, qparams_from_json
from ...run.provenance import apply_fixed_inputs
from ...run.runners import FloatRunner
from ...run.session import Session
from ..stats.stored_form import StoredForm, matching_factors
from .clipped_inputs import MIN_OPSET, duplicate_with_clipped_inputs

__all__ = [
    "DumpSource",
    "FloatSource",
    "IntegerSource",
    "Item",
    "PlannedSource",
    "TensorSource",
    "open_source",
    "open_source_pair",
]

#: The user's name of a tensor, its values as they are stored, how it is held (None: as the user's real values).
Item = tuple[str, np.ndarray, StoredForm | None]


class TensorSource(Protocol):
    """Something that has values for the tensors of a model.

    kind : in a word. apart : whether its layers can be computed one by one, see `run_isolated`.
    """

    kind: str
    has_isolated_layers: bool

    @property
    def graph(self) -> ir.Model | None:
        """Its graph, None for a dump."""
        ...

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """What a batch must hold, nothing for a dump."""
        ...

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Yield every tensor of a batch, in graph order."""
        ...

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield every tensor as it is computed where all that is read has the values `real`.

        Nothing if not `has_isolated_layers`.
        real : by the user's names. Called after `run` on the same feeds.
        """
        ...

    def node(self, name: str) -> ir.Node | None:
        """Return the node that writes what goes by the user's `name`."""
        ...


class FloatSource:
    """A float model in onnxruntime."""

    kind = "float"
    has_isolated_layers = False

    def __init__(self, session: Session) -> None:
        self.session, self.inputs = session, session.inputs
        self.graph: ir.Model = session.model
        self._nodes = {str(v.name): node for node in self.graph.graph for v in node.outputs}
        self._doubled: tuple[Mapping[str, StoredForm], FloatRunner, Mapping[str, str]] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return FloatSource, (self.session,)

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Yield every tensor of a batch.

        What is none, such as a sequence, is compared with nothing.
        """
        for name, array, _ in self.session.tensors(feeds):
            if isinstance(array, np.ndarray):
                yield name, array, None

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield nothing: this source computes no tensor again."""
        return iter(())

    def run_with_clipped_inputs(
        self,
        feeds: Mapping[str, np.ndarray],
        real: Mapping[str, np.ndarray],
        held: Mapping[str, StoredForm],
    ) -> dict[str, np.ndarray]:
        """Return each layer's tensors as computed from what integers can hold of its inputs, by name.

        real : the tensors as `run` gave them. held : how tensors are held. Nothing where no value
        is cut off, and of models whose operators cannot cut one off, of opset 7 and older.
        """
        ends = {
            name: form.representable_range(real[name].ndim)
            for name, form in held.items()
            if name in real
        }
        beyond = any(
            ((real[name] < low) | (real[name] > high)).any() for name, (low, high) in ends.items()
        )
        if not beyond or self.graph.graph.opset_imports.get("", 0) < MIN_OPSET:
            return {}
        if self._doubled is None or self._doubled[0] != held:
            graph, names = duplicate_with_clipped_inputs(
                self.graph, {name: held[name] for name in ends}, real
            )
            self._doubled = dict(held), FloatRunner(graph, {*names}), names
        _, runner, stands_for = self._doubled
        known = {spec.name for spec in self.inputs}
        inputs = {name: array for name, array in feeds.items() if name in known}
        return {stands_for[name]: array for name, array, _ in runner.run(inputs)}

    def node(self, name: str) -> ir.Node | None:
        """Return the node that writes a tensor."""
        return self._nodes.get(name)


class IntegerSource:
    """An integer graph in the simulator."""

    kind = "integer"
    has_isolated_layers = True

    def __init__(self, session: Session) -> None:
        self.session, self.inputs = session, session.inputs
        self.graph: ir.Model = session.model
        #: What the graph's attributes say of every tensor.
        self.plan = extract_plan(self.graph)
        self._nodes = {str(v.name): node for node in self.graph.graph for v in node.outputs}
        #: {integer or float tensor of the graph: the user's tensor}, one for each.
        self.user_names: dict[str, str] = {}
        self._kinds: dict[str, tuple[tuple[int, ...], np.dtype, StoredForm | None]] = {}
        names = session.floats
        taken, users = set(names.values()), set()
        for value in ir.iter_values(self.graph):
            name = str(value.name)
            user = names.get(name, name)
            if user in users or (name not in names and name in taken):
                # the float tensor beside the integers that hold it, or a second copy of these
                continue
            self.user_names[name] = user
            users.add(user)
        self._streams = {user: name for name, user in self.user_names.items()}

    def __reduce__(self) -> tuple[object, ...]:
        return IntegerSource, (self.session,)

    def graph_name(self, name: str) -> str:
        """Return what the user's tensor `name` is called in the graph."""
        return self._streams.get(name, name)

    def node(self, name: str) -> ir.Node | None:
        """Return the node that writes the integers of the user's tensor `name`."""
        return self._nodes.get(self.graph_name(name))

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Yield every tensor of a batch."""
        self._kinds = {}
        for name, array, q in self.session.tensors(feeds):
            user = self.user_names.get(name)
            if user is None:
                continue
            form = self._stored_form(user, array, q)
            self._kinds[name] = array.shape, array.dtype, form
            yield user, array, form

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield every tensor as computed from inputs that hold `real`."""
        force = {}
        for name, (shape, dtype, form) in self._kinds.items():
            array = real.get(self.user_names[name])
            if array is None or array.size != np.prod(shape) or name in feeds:
                continue
            array = array.reshape(shape)
            if form is not None:
                force[name] = form.quantize(array, dtype)
            elif dtype.kind == "f":
                force[name] = array.astype(dtype)
        return self._forced(feeds, force)

    def _forced(
        self, feeds: Mapping[str, np.ndarray], force: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        for name, array, q in self.session.tensors(feeds, force=force):
            if name in self.user_names:
                user = self.user_names[name]
                yield user, array, self._stored_form(user, array, q)

    def _stored_form(
        self, user: str, array: np.ndarray, qparams: Affine | None
    ) -> StoredForm | None:
        if qparams is None:
            return None
        own, moved = self.plan.tensors.get(user), self.plan.transforms.get(user)
        factor = (1.0,) if moved is None else matching_factors(moved.factor, array)
        return StoredForm(qparams if own is None else qparams.changed(bits=own.bits), factor)


class PlannedSource:
    """A plan computed in float.

    The normalised float graph, weights and tensors rounded to the plan's grid.
    """

    kind = "fake-quantized"
    has_isolated_layers = True

    def __init__(self, graph: ir.Model, plan: Plan) -> None:
        self.plan = plan
        self.graph: ir.Model = graph
        whole, self.user_names = build_fake_quantized_graph(graph, plan)
        self._session = Session(whole)
        self.inputs: Sequence[InputSpec] = self._session.inputs
        self._cut: tuple[frozenset[str], FloatRunner, dict[str, str], dict[str, str]] | None = None
        self._nodes = {str(v.name): node for node in graph.graph for v in node.outputs}

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle_planned_source, (ir.to_bytes(self.graph), self.plan)

    def node(self, name: str) -> ir.Node | None:
        """Return the node that writes a tensor."""
        return self._nodes.get(name)

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Yield every tensor of a batch that the plan knows, and the floats between."""
        for name, array, _ in self._session.tensors(feeds):
            if name in self.user_names:
                yield self.user_names[name], array, self._stored_form(self.user_names[name])

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield every tensor that the plan knows as computed from inputs that hold `real`."""
        at = frozenset(real)
        if self._cut is None or self._cut[0] != at:
            graph, reads, writes = split_at_tensors(self.graph, self.plan, at)
            self._cut = at, FloatRunner(graph, {*writes}), reads, writes
        _, runner, reads, writes = self._cut
        inputs = dict(feeds)
        for name, user in reads.items():
            form = self._stored_form(user)
            assert form is not None
            inputs[name] = form.q.real(form.quantize(real[user], np.dtype(np.int64))).astype(
                np.float32
            )
        return (
            (writes[name], array, self._stored_form(writes[name]))
            for name, array, _ in runner.run(inputs)
        )

    def _stored_form(self, user: str) -> StoredForm | None:
        q, moved = self.plan.tensors.get(user), self.plan.transforms.get(user)
        if q is None:
            return None
        return StoredForm(q, (1.0,) if moved is None else tuple(moved.factor))


def _unpickle_planned_source(content: bytes, plan: Plan) -> PlannedSource:
    return PlannedSource(ir.from_bytes(content), plan)


def load_dump(folder: Path) -> dict[str, tuple[np.ndarray, Affine | None]]:
    """Return {tensor: (all samples, mapped from disk; how it is held)} of a dump.

    Raises OSError, ValueError, KeyError or TypeError where the folder holds none, or a damaged one.
    """
    tensors = {}
    for entry in json.loads((folder / INDEX_FILE).read_text(encoding="utf-8")):
        try:
            array = np.load(folder / entry["file"], mmap_mode="r", allow_pickle=False)
        except (
            EOFError,
            SyntaxError,
            SystemError,
            TokenError,
        ) as error:  # what numpy meets in a damaged header
            raise ValueError(f"{entry['file']} has no readable header") from error
        tensors[str(entry["name"])] = array, qparams_from_json(entry, array.dtype)
    return tensors


class DumpSource:
    """Tensors on disk, as `simulate --dump` writes them, or by name.

    The samples one after another on axis 0.
    path : a folder with its index. A device's or another simulator's arrays come as {name: (array,
    how it is held or None)}.
    """

    kind = "dump"
    has_isolated_layers = False
    graph = None
    inputs: Sequence[InputSpec] = ()

    def __init__(
        self, given: str | os.PathLike[str] | Mapping[str, tuple[np.ndarray, Affine | None]]
    ) -> None:
        self._arrays: dict[str, tuple[np.ndarray, Affine | None]] = {}
        self._moved: dict[str, tuple[float, ...]] = {}
        self._next = 0
        if isinstance(given, Mapping):
            self._arrays = dict(given)
            return
        folder = Path(given)
        try:
            self._arrays = load_dump(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder} is no dump with a readable {INDEX_FILE} ({error}); dump the model again"
            ) from error

    def renamed_for(self, graph: IntegerSource) -> DumpSource:
        """Return the same as a dump of `graph`.

        Its tensors under the user's names, held as there.
        """
        dump = DumpSource(
            {
                graph.user_names[name]: kept
                for name, kept in self._arrays.items()
                if name in graph.user_names
            }
        )
        dump._moved = {name: tuple(moved.factor) for name, moved in graph.plan.transforms.items()}
        return dump

    def node(self, name: str) -> ir.Node | None:
        """A dump has no nodes."""
        return None

    def run(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Item]:
        """Yield the next samples, as many as `feeds` has; DataError where there are fewer."""
        count = max((len(array) for array in feeds.values() if array.ndim), default=1)
        start, self._next = self._next, self._next + count
        for name, (array, q) in self._arrays.items():
            if len(array) < self._next:
                raise DataError(
                    f"the dump holds {len(array)} samples of '{name}', the data more; give --limit"
                )
            piece = np.asarray(array[start : self._next])
            factor = self._moved.get(name, (1.0,))
            yield name, piece, None if q is None else StoredForm(q, factor)

    def run_isolated(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> Iterator[Item]:
        """Yield nothing: this source computes no tensor again."""
        return iter(())


def open_source_pair(float_model: object, quant_model: object) -> tuple[TensorSource, TensorSource]:
    """Return the sources of two models.

    Inputs that were fixed when the second was made are so in the first, too.
    """
    base, other = open_source(float_model), open_source(quant_model)
    if isinstance(base, FloatSource) and other.graph is not None:
        graph = apply_fixed_inputs(base.graph, other.graph)
        base = base if graph is base.graph else FloatSource(Session(graph))
    return base, other


def open_source(model: object) -> TensorSource:
    """Return the source that `model` is.

    A model's path, graph or session, a `QuantizedModel`, a dump, or a source.
    """
    if isinstance(model, FloatSource | IntegerSource | PlannedSource | DumpSource):
        return model
    if isinstance(model, QuantizedModel):
        return IntegerSource(model.session())
    if isinstance(model, str | os.PathLike) and Path(model).is_dir():
        return DumpSource(model)
    if isinstance(model, Mapping):
        return DumpSource(model)
    if not isinstance(model, str | os.PathLike | onnx.ModelProto | ir.Model | Session):
        raise ConfigError(
            f"a {type(model).__name__} cannot be compared; give a model, a session or a dump"
        )
    session = model if isinstance(model, Session) else Session(model)
    return IntegerSource(session) if session.is_integer else FloatSource(session)
