"""What every tensor of a damaged graph is.

Integers with a scale, real numbers, or something else (indices, masks).
Three walks over the nodes, none of which changes anything:

    roots   what a tensor is where every Dequant is looked through: the scale that its integers have
    wants   who needs it, against the direction of the edges: integers at which scale, real numbers,
    a Dequant;
            `demands` has this walk
    kinds   what it is with the Dequants that may stay, from which follows where one is missing
    (`TensorKinds.missing_dequants`)

A Dequant may stay where its scale is that of the integers it reads and nobody behind it needs
integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from onnx import ModelProto, TensorProto

from ..errors import LingerOnnxError
from ..formats import SHUFFLE_CHANNEL, Format, KernelInfo
from ..plan import Affine
from ..targets import GENERIC, Target, get_target
from .demands import Demands
from .graph_view import GraphView, NodeView, TensorRead, TensorView, is_scale, same_scale
from .node_semantics import (
    FLOAT,
    INTEGERS,
    MISSING,
    OTHER,
    REAL,
    REALS,
    RECURRENT,
    TensorKind,
    always_passes_integers,
    current_attributes,
    data_inputs,
    has_output_scale,
    integer_inputs,
    integer_operator,
    is_dequant,
    is_quant,
    is_quantized,
    make_op_view,
    merge_kinds,
    passes_integers_on_demand,
    produces_indices,
    real_inputs,
    standard_kind,
    takes_reals,
)

__all__ = ["KindAnalysis", "TensorKinds", "dequant_input", "find_scale"]


def _detect_platform(model: ModelProto, view: GraphView) -> Target | None:
    """Return the platform a graph was made for, None where it names one that is not known."""
    named = next(
        (entry.value for entry in model.metadata_props if entry.key == "lingeronnx.platform"), None
    )
    named = named or next(
        (n.attributes["platform"] for n in view.nodes if n.attributes.get("platform")), "venus"
    )
    try:
        return get_target(str(named))
    except LingerOnnxError:
        return None


@dataclass
class TensorKinds:
    """What the third walk found.

    kind_of : the kind of every tensor; kept : the Dequants that may stay; source : for the output
    of a Dequant that may not, the tensor it stands for; why : what is wrong with it. reals : for
    integer tensors, who reads them as real numbers without a Dequant. faults : integer operators
    that read something else, with what they read
    """

    kind_of: dict[TensorView, TensorKind] = field(default_factory=dict)
    kept: set[NodeView] = field(default_factory=set)
    stands_for: dict[TensorView, TensorView] = field(default_factory=dict)
    invalid_dequants: dict[NodeView, str] = field(default_factory=dict)
    missing_dequants: dict[TensorView, list[TensorRead]] = field(default_factory=dict)
    invalid_reads: list[tuple[TensorRead, TensorView]] = field(default_factory=list)

    def resolve(self, tensor: TensorView) -> TensorView:
        """Return what `tensor` stands for once the Dequants that may not stay are gone."""
        return self.stands_for.get(tensor, tensor)


class KindAnalysis:
    """The three walks over a view."""

    @classmethod
    def for_view(cls, view: GraphView) -> KindAnalysis:
        """Return what was found out about `view`, found out once."""
        if "kinship" not in view.cache:
            view.cache["kinship"] = cls(view)
        return view.cache["kinship"]

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.target = _detect_platform(view.model, view)
        self.demand_of = Demands(view).demand_of
        self.retyped: dict[TensorView, TensorKind] = {}
        self.root_kinds: dict[TensorView, TensorKind] = {}
        self._walk_roots()

    # ---- along the edges, Dequants looked through ----

    def _walk_roots(self) -> None:
        for scope in self.view.scopes:
            for tensor in list(scope.tensors.values()):
                if tensor.missing:
                    self.root_kinds[tensor] = MISSING
                elif tensor.constant is not None:
                    real = tensor.constant in REALS
                    self.root_kinds[tensor] = TensorKind(
                        "real" if real else "other", element_type=tensor.constant
                    )
                elif tensor.entry is not None:
                    self.root_kinds[tensor] = self._input_kind(tensor)
        for node in self.view.order:
            for tensor, kind in self._iter_output_kinds(node, self.root_kinds, dequants=True):
                self.root_kinds[tensor] = kind

    def _input_kind(self, tensor: TensorView) -> TensorKind:
        """Return what a graph input is.

        As it is declared, unless its readers leave no doubt that it is not.
        """
        assert tensor.entry is not None
        declared, wants = tensor.entry.type.tensor_type.elem_type, self.demand_of(tensor)
        if tensor.scope.parent is not None:
            return REAL if declared in (0, 1) else TensorKind("other", element_type=declared)
        scales = wants.scales()
        bits = max((b for _, b, _ in wants.integer_readers if b), default=8)
        if declared in INTEGERS and (wants.integer_readers or wants.dequant_scales):
            return TensorKind(
                "integer", scales[0] if len(scales) == 1 else None, {3: 8, 5: 16, 6: 32}[declared]
            )
        if declared in (0, 1) and wants.integer_readers and not wants.real:
            self.retyped[tensor] = TensorKind(
                "integer", scales[0] if len(scales) == 1 else None, bits
            )
            return self.retyped[tensor]
        if declared == TensorProto.INT8 and wants.real and self._surely_real(tensor):
            self.retyped[tensor] = FLOAT
            return FLOAT
        if declared in (0, 1):
            return FLOAT
        return TensorKind("real" if declared in REALS else "other", element_type=declared)

    def _surely_real(self, tensor: TensorView) -> bool:
        """Whether some reader of an input certainly takes real numbers.

        The other operands are as far as is known.
        """
        for read in tensor.reads:
            if read.node is None:
                continue
            others = []
            for mate in read.node.inputs:
                constant = mate is not None and mate.constant == TensorProto.FLOAT
                produced = mate is not None and mate.writer is not None and mate is not tensor
                declared = (
                    mate is not None
                    and mate.entry is not None
                    and mate.entry.type.tensor_type.elem_type == 1
                )
                others.append(REAL if constant or produced or declared else OTHER)
            if takes_reals(read.node, read.index, others):
                return True
        return False

    def _iter_output_kinds(
        self, node: NodeView, of: Mapping[TensorView, TensorKind], *, dequants: bool
    ) -> Iterator[tuple[TensorView, TensorKind]]:
        """Yield the outputs of a node with their kinds, given those of its inputs."""
        kinds = [MISSING if t is None else of.get(t, MISSING) for t in node.inputs]
        for index, tensor in enumerate(node.outputs):
            if tensor is None or tensor.writer is not node:
                continue
            if tensor.constant is not None:
                yield (
                    tensor,
                    TensorKind(
                        "real" if tensor.constant in REALS else "other",
                        element_type=tensor.constant,
                    ),
                )
            elif is_dequant(node):
                yield tensor, (kinds[0] if dequants and kinds else FLOAT)
            elif is_quantized(node):
                yield tensor, self._quantized_output_kind(node, index, tensor, kinds)
            elif always_passes_integers(node):
                second = index and node.proto.op_type in ("MaxPool", "Dropout")
                yield tensor, TensorKind("other") if second else kinds[0] if kinds else REAL
            elif passes_integers_on_demand(node):
                yield tensor, merge_kinds([kinds[i] for i in data_inputs(node)])
            elif produces_indices(node):
                yield tensor, TensorKind("other", element_type=TensorProto.INT64)
            elif node.proto.op_type == "If" and node.standard:
                yield tensor, merge_kinds([of.get(t, MISSING) for t in branch_results(node, index)])
            else:
                yield tensor, standard_kind(node, index, kinds)

    def _quantized_output_kind(
        self, node: NodeView, index: int, tensor: TensorView, kinds: Sequence[TensorKind]
    ) -> TensorKind:
        """Return the kind of output `index` of an integer node, by its attributes."""
        form, attrs = integer_operator(node), current_attributes(node)
        bits = attrs.get(
            "o_bits" if form is None else form.width
        )  # damaged graphs hold anything there
        width = bits if isinstance(bits, int) and 2 <= bits <= 32 else 8
        if form is None:
            return self._unknown_operator_kind(attrs, kinds, width)
        if form.allows_float_output and attrs.get("scale_o") is None:
            return FLOAT
        if form in RECURRENT and index:
            return self._recurrent_state_kind(node, form, attrs, index, tensor, width)
        if form is SHUFFLE_CHANNEL:
            return kinds[0] if kinds else MISSING
        if has_output_scale(form) and attrs.get("scale_o") is None:
            return TensorKind("integer", None, width)
        before = [Affine(kind.scale) if kind.is_integer and kind.scale else None for kind in kinds]
        try:
            q = form.output_qparams(attrs, before)
            scale = None if q is None else q.scale
        except (LingerOnnxError, KeyError, TypeError, ValueError, OverflowError):
            scale = None
        return TensorKind("integer", scale if is_scale(scale) else None, width)

    def _unknown_operator_kind(
        self, attrs: Mapping[str, Any], kinds: Sequence[TensorKind], width: int
    ) -> TensorKind:
        """Return the output of an operator of the quantized domains that no table knows."""
        if is_scale(attrs.get("scale_o")):
            return TensorKind("integer", float(attrs["scale_o"]), width)
        if any(name.startswith("scale_") for name in attrs):
            return FLOAT
        return (
            TensorKind("integer", None, width) if any(kind.is_integer for kind in kinds) else OTHER
        )

    def _recurrent_state_kind(
        self,
        node: NodeView,
        op_format: Format,
        attrs: Mapping[str, Any],
        index: int,
        tensor: TensorView,
        width: int,
    ) -> TensorKind:
        """Return the last state or cell of a recurrent layer.

        Integers, but for the training side's exports.
        Those of the first generation are told by their name for the input's scale, later ones by
        what they declare.
        """
        declared, first = _declared_type(tensor), "scale_i" in node.attributes
        later = node.proto.domain == "linger" and declared == TensorProto.FLOAT
        if (first and declared not in INTEGERS) or later:
            return FLOAT
        how = (self.target or GENERIC).find_arithmetic(op_format.name)
        if how is None:
            return TensorKind("other", element_type=TensorProto.INT32)
        bound = KernelInfo(make_op_view(node), dict(attrs), {}, how)
        try:
            q = op_format.all_output_qparams(bound, [None] * len(node.inputs))[index]
            scale = None if q is None else q.scale
        except (LingerOnnxError, KeyError, TypeError, ValueError, IndexError):
            scale = None
        if scale is None or not is_scale(scale):  # packed by the executor: no plain tensor
            return TensorKind("other", element_type=TensorProto.INT32)
        return TensorKind("integer", scale, 32 if index == 2 else width)

    # ---- with the Dequants that may stay ----

    @cached_property
    def kinds(self) -> TensorKinds:
        """Return what every tensor is, and what is wrong."""
        kinds = TensorKinds()
        for tensor, kind in self.root_kinds.items():
            if tensor.writer is None or tensor.constant is not None:
                kinds.kind_of[tensor] = kind
        for node in self.view.order:
            self._visit_node(node, kinds)
        for scope in self.view.scopes:
            for index, value in enumerate(scope.graph.output):
                self._check_graph_output(TensorRead(None, index, value, scope), kinds)
        return kinds

    def _visit_node(self, node: NodeView, found: TensorKinds) -> None:
        source = [None if t is None else found.resolve(t) for t in node.inputs]
        kinds = [MISSING if t is None else found.kind_of.get(t, MISSING) for t in source]
        result = node.outputs[0] if node.outputs else None
        if is_dequant(node):
            if result is not None and result.writer is node:
                self._judge_dequant(
                    node,
                    source[0] if source else None,
                    kinds[0] if kinds else MISSING,
                    result,
                    found,
                )
            return
        handed = (
            merge_kinds([kinds[i] for i in data_inputs(node)])
            if passes_integers_on_demand(node)
            else MISSING
        )
        moving = result is not None and self._passes_integers(result, handed)
        reading: Sequence[int] = []
        if is_quantized(node):
            reading = real_inputs(node)
            for index in integer_inputs(node) if not is_quant(node) else ():
                tensor = source[index]
                if tensor is not None and not kinds[index].is_integer:
                    found.invalid_reads.append((TensorRead(node, index, scope=node.scope), tensor))
        elif not (always_passes_integers(node) or moving or produces_indices(node)):
            reading = range(len(source))
        for index in reading:
            tensor = source[index] if index < len(source) else None
            if tensor is not None and kinds[index].is_integer:
                found.missing_dequants.setdefault(tensor, []).append(
                    TensorRead(node, index, scope=node.scope)
                )
        for tensor, kind in self._iter_output_kinds(node, found.kind_of, dequants=False):
            found.kind_of[tensor] = (
                FLOAT
                if passes_integers_on_demand(node) and kind.is_integer and not moving
                else kind
            )

    def _judge_dequant(
        self,
        node: NodeView,
        source: TensorView | None,
        kind: TensorKind,
        result: TensorView,
        kinds: TensorKinds,
    ) -> None:
        scale, wants = node.attributes.get("scale_o"), self.demand_of(result)
        if source is None:
            kinds.kind_of[result] = MISSING
            return
        if kind.category == "missing":  # not its fault
            kinds.kept.add(node)
            kinds.kind_of[result] = FLOAT
            return
        if (
            kind.is_integer
            and not wants.integer_readers
            and (same_scale(scale, kind.scale) or (kind.scale is None and is_scale(scale)))
        ):
            kinds.kept.add(node)
            kinds.kind_of[result] = FLOAT
            return
        if kind.is_integer and wants.integer_readers:
            kinds.invalid_dequants[node] = "misplaced"
        elif kind.is_integer:
            kinds.invalid_dequants[node] = "scale"
        else:
            kinds.invalid_dequants[node] = "double" if kind.category == "real" else "index"
        kinds.kind_of[result] = kind
        kinds.stands_for[result] = source

    def _passes_integers(self, result: TensorView, kind: TensorKind) -> bool:
        """Whether a lazy node whose data are of `kind` hands on integers.

        Somebody behind needs them.
        """
        if not kind.is_integer:
            return False
        wants = self.demand_of(result)
        return bool(wants.integer_readers) or any(
            same_scale(scale, kind.scale) for scale in wants.dequant_scales
        )

    def _check_graph_output(self, read: TensorRead, kinds: TensorKinds) -> None:
        """Note a graph output that hands out integers.

        The main graph's never do, a branch's where the If does not.
        """
        assert read.scope is not None
        assert read.output is not None
        tensor = read.scope.find(read.output.name)
        if tensor is None:
            return
        source, owner = kinds.resolve(tensor), read.scope.owner
        if not kinds.kind_of.get(source, MISSING).is_integer:
            return
        if owner is not None and owner.proto.op_type == "If":
            result = owner.outputs[read.index] if read.index < len(owner.outputs) else None
            if result is not None and kinds.kind_of.get(result, MISSING).is_integer:
                return
        kinds.missing_dequants.setdefault(source, []).append(read)


def branch_results(node: NodeView, index: int) -> list[TensorView]:
    """Return what the branches of an If hand out as its output `index`."""
    names = [(s, s.graph.output[index].name) for s in node.scopes if index < len(s.graph.output)]
    return [tensor for scope, name in names if (tensor := scope.find(name)) is not None]


def _declared_type(tensor: TensorView) -> int:
    """Return the element type that the file declares for a node's output, 0 where it does not."""
    for value in (*tensor.scope.graph.output, *tensor.scope.graph.value_info):
        if value.name == tensor.name:
            return int(value.type.tensor_type.elem_type)
    return 0


def dequant_input(node: NodeView) -> TensorView:
    """Return what a Dequant reads."""
    tensor = node.inputs[0]
    assert tensor is not None
    return tensor


def find_scale(tensor: TensorView, kinds: TensorKinds) -> float | None:
    """Return the scale of an integer tensor.

    Its own, or where nothing says it, that of a Dequant which reads it.
    """
    own = kinds.kind_of[tensor].scale
    if own is not None:
        return own
    stays = (n for n in kinds.kept if kinds.resolve(dequant_input(n)) is tensor)
    return next((float(n.attributes["scale_o"]) for n in stays), None)
