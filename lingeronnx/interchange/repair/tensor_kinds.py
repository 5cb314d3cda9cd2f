"""Analysis of the kind of each tensor of a damaged graph.

A tensor contains integers of a scale, real numbers, or something else (indices, masks). The kinds
result from three walks over the nodes, none of which modifies the model:

    root kinds  along the edges, looking through all Dequants: the scale of the integers of a tensor
    demands     against the edges (`demands`): which consumers need integers at which scale, real
                numbers, or a Dequant
    kinds       along the edges with the valid Dequants only; this shows where one is missing
                (`TensorKinds.missing_dequants`)

A Dequant is valid if its scale is that of its integer input and no consumer needs integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from onnx import ModelProto, TensorProto

from ...common.errors import LingerOnnxError
from ...ir.plan import Affine
from ...operators.integer_ops import SHUFFLE_CHANNEL, Format, KernelInfo
from ...targets import GENERIC, Target, get_target
from .demands import Demands
from .graph_view import GraphView, NodeView, TensorRead, TensorView, is_scale, same_scale
from .node_semantics import (
    FLOAT,
    INTEGERS,
    MISSING,
    OTHER,
    REAL,
    REALS,
    TensorDemand,
    TensorKind,
    always_passes_integers,
    current_attributes,
    data_inputs,
    get_kinds,
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

#: Declared types of a float tensor; a missing type counts as float.
_FLOAT_OR_UNDEFINED = (TensorProto.UNDEFINED, TensorProto.FLOAT)
#: Bits of the ONNX types of quantized integers.
_INTEGER_BITS: dict[int, int] = {TensorProto.INT8: 8, TensorProto.INT16: 16, TensorProto.INT32: 32}


def _detect_platform(model: ModelProto, view: GraphView) -> Target | None:
    """Return the platform that the metadata or else the first node attribute names.

    venus if none does; None if the name is unknown.
    """
    name = next(filter(None, _iter_platform_names(model, view)))
    try:
        return get_target(str(name))
    except LingerOnnxError:
        return None


def _iter_platform_names(model: ModelProto, view: GraphView) -> Iterator[object]:
    """Yield the platform in the metadata of `model`, that of each node of `view`, then "venus".

    None for each node without the attribute `platform`.
    """
    for entry in model.metadata_props:
        if entry.key == "lingeronnx.platform":
            yield entry.value
    for node in view.nodes:
        yield node.attributes.get("platform")
    yield "venus"


@dataclass
class TensorKinds:
    """The kinds of all tensors, and the faults found on the way.

    Attributes
    ----------
    kind_of
        The kind of each tensor.
    valid_dequants
        The Dequants that are correct.
    dequant_sources
        The output of each invalid Dequant -> the tensor that it dequantizes.
    invalid_dequants
        Each invalid Dequant -> its fault: "misplaced", "scale", "double" or "index".
    missing_dequants
        Integer tensors -> the uses that read them as real numbers without a Dequant.
    invalid_reads
        Uses by integer operators that do not get integers, with the tensor that they get.
    """

    kind_of: dict[TensorView, TensorKind] = field(default_factory=dict)
    valid_dequants: set[NodeView] = field(default_factory=set)
    dequant_sources: dict[TensorView, TensorView] = field(default_factory=dict)
    invalid_dequants: dict[NodeView, str] = field(default_factory=dict)
    missing_dequants: dict[TensorView, list[TensorRead]] = field(default_factory=dict)
    invalid_reads: list[tuple[TensorRead, TensorView]] = field(default_factory=list)

    def resolve(self, tensor: TensorView) -> TensorView:
        """Return the tensor that the invalid Dequant with the output `tensor` dequantizes.

        Consecutive invalid Dequants are looked through. `tensor` itself if no invalid Dequant
        computes it.
        """
        return self.dequant_sources.get(tensor, tensor)


class KindAnalysis:
    """Analysis of which tensors of a damaged graph hold integers, real numbers or indices.

    An integer kind has a scale and a width.

    Attributes
    ----------
    root_kinds
        Kind of each tensor if all Dequants are looked through.
    retyped_inputs
        Graph inputs whose declared type contradicts their consumers, with their actual kind.
    """

    @classmethod
    def for_view(cls, view: GraphView) -> KindAnalysis:
        """Return the analysis of `view`, computed once per view."""
        if "kind_analysis" not in view.cache:
            view.cache["kind_analysis"] = cls(view)
        analysis: KindAnalysis = view.cache["kind_analysis"]
        return analysis

    def __init__(self, view: GraphView) -> None:
        """Detect the platform of `view`, collect the needs of consumers, and fill `root_kinds`."""
        self.view = view
        self.target = _detect_platform(view.model, view)
        self.demand_of = Demands(view).demand_of
        self.retyped_inputs: dict[TensorView, TensorKind] = {}
        self.root_kinds: dict[TensorView, TensorKind] = {}
        self._analyze_root_kinds()

    # ---- along the edges, looking through Dequants ----

    def _analyze_root_kinds(self) -> None:
        """Fill `root_kinds` (integers, reals or indices, per tensor) and `retyped_inputs`.

        First come undefined tensors, constants and graph inputs, then node by node the outputs, as
        if Dequants passed integers on.
        """
        for scope in self.view.scopes:
            for tensor in list(scope.tensors.values()):
                if tensor.is_undefined:
                    self.root_kinds[tensor] = MISSING
                elif tensor.constant_type is not None:
                    self.root_kinds[tensor] = _declared_kind(tensor.constant_type)
                elif tensor.graph_input is not None:
                    self.root_kinds[tensor] = self._input_kind(tensor)
        for node in self.view.order:
            output_kinds = self._iter_output_kinds(node, self.root_kinds, through_dequants=True)
            for tensor, kind in output_kinds:
                self.root_kinds[tensor] = kind

    def _input_kind(self, tensor: TensorView) -> TensorKind:
        """Return the kind of a graph input: as declared, unless its consumers contradict that.

        A declared integer that is read by integer operators or Dequants is an integer tensor with
        the scale they agree on. A contradiction is added to `retyped_inputs`. Inputs of subgraphs
        are never integer.
        """
        assert tensor.graph_input is not None
        declared = tensor.graph_input.type.tensor_type.elem_type
        is_float = declared in _FLOAT_OR_UNDEFINED
        if tensor.scope.parent is not None:
            return REAL if is_float else TensorKind("other", element_type=declared)
        demand = self.demand_of(tensor)
        if declared in INTEGERS and (demand.integer_readers or demand.dequant_scales):
            return TensorKind("integer", _unique_scale(demand), _INTEGER_BITS[declared])
        actual_kind = self._find_contradicting_kind(tensor, declared, demand)
        if actual_kind is not None:
            self.retyped_inputs[tensor] = actual_kind
            return actual_kind
        return FLOAT if is_float else _declared_kind(declared)

    def _find_contradicting_kind(
        self, tensor: TensorView, declared: int, demand: TensorDemand
    ) -> TensorKind | None:
        """Return the kind of a graph input whose consumers contradict `declared`, or None.

        A float input that is only read as integers is an integer tensor of their largest width
        (default 8); an int8 input that is certainly read as real numbers is float.
        """
        if declared in _FLOAT_OR_UNDEFINED and demand.integer_readers and not demand.real:
            bits = [reader.bits for reader in demand.integer_readers if reader.bits]
            return TensorKind("integer", _unique_scale(demand), max(bits, default=8))
        if declared == TensorProto.INT8 and demand.real and self._is_surely_real(tensor):
            return FLOAT
        return None

    def _is_surely_real(self, tensor: TensorView) -> bool:
        """Whether a node that reads the graph input `tensor` certainly takes real numbers there.

        Decided by the node's schema, with its other operands presumed real or unknown.
        """
        for read in tensor.reads:
            if read.node is None:
                continue
            operand_kinds = [
                REAL if _is_presumably_real(operand) else OTHER for operand in read.node.inputs
            ]
            if takes_reals(read.node, read.index, operand_kinds):
                return True
        return False

    def _iter_output_kinds(
        self,
        node: NodeView,
        kind_of: Mapping[TensorView, TensorKind],
        *,
        through_dequants: bool,
    ) -> Iterator[tuple[TensorView, TensorKind]]:
        """Yield the outputs of `node` with what they hold: integers, real numbers or indices.

        Absent outputs, and those that an earlier node computes too, are left out. `kind_of` has the
        kinds of the upstream tensors. With `through_dequants` a Dequant passes on the kind of its
        input instead of producing floats.
        """
        input_kinds = get_kinds(node.inputs, kind_of)
        for index, tensor in enumerate(node.outputs):
            if tensor is None or tensor.producer is not node:
                continue
            if tensor.constant_type is not None:
                yield tensor, _declared_kind(tensor.constant_type)
            elif is_dequant(node):
                yield tensor, input_kinds[0] if through_dequants and input_kinds else FLOAT
            elif is_quantized(node):
                yield tensor, self._quantized_output_kind(node, index, tensor, input_kinds)
            else:
                yield tensor, _float_output_kind(node, index, input_kinds, kind_of)

    def _quantized_output_kind(
        self, node: NodeView, index: int, tensor: TensorView, input_kinds: Sequence[TensorKind]
    ) -> TensorKind:
        """Return the kind of output `index` of the integer operator `node`, by its attributes.

        Bits outside 2 to 32 count as 8. It is float if the operator allows that and has no
        `scale_o`; the scale is unknown if `scale_o` is missing otherwise.
        """
        form, attrs = integer_operator(node), current_attributes(node)
        bits = attrs.get("o_bits" if form is None else form.width)
        if not isinstance(bits, int) or not 2 <= bits <= 32:  # attributes may be damaged
            bits = 8
        if form is None:
            return _unknown_operator_kind(attrs, input_kinds, bits)
        if form.allows_float_output and attrs.get("scale_o") is None:
            return FLOAT
        if form.states and index:
            return self._recurrent_state_kind(node, form, attrs, index, tensor, bits)
        if form is SHUFFLE_CHANNEL:
            return input_kinds[0] if input_kinds else MISSING
        if has_output_scale(form) and attrs.get("scale_o") is None:
            return TensorKind("integer", None, bits)
        return TensorKind("integer", _compute_output_scale(form, attrs, input_kinds), bits)

    def _recurrent_state_kind(
        self,
        node: NodeView,
        op_format: Format,
        attrs: Mapping[str, Any],
        index: int,
        tensor: TensorView,
        bits: int,
    ) -> TensorKind:
        """Return the kind of the last hidden (`index` 1) or cell state (2) of a recurrent layer.

        States are integers, except for those that the exports of the training side declare as
        float. States without a plain scale are packed by the executor and count as "other".
        """
        if _is_float_state(node, tensor):
            return FLOAT
        packed = TensorKind("other", element_type=TensorProto.INT32)
        arithmetic = (self.target or GENERIC).find_arithmetic(op_format.name)
        if arithmetic is None:
            return packed
        info = KernelInfo(make_op_view(node), dict(attrs), {}, arithmetic)
        try:
            qparams = op_format.all_output_qparams(info, [None] * len(node.inputs))[index]
        except (LingerOnnxError, KeyError, TypeError, ValueError, IndexError):
            return packed
        if qparams is None or not is_scale(qparams.scale):
            return packed
        return TensorKind("integer", qparams.scale, 32 if index == 2 else bits)

    # ---- along the edges, with the valid Dequants ----

    @cached_property
    def kinds(self) -> TensorKinds:
        """The kinds of all tensors if valid Dequants give reals, and all faults.

        Faults are invalid Dequants, integers that a node or a graph output reads as reals without a
        Dequant, and integer operators that do not get integers. The output of an invalid Dequant
        has the kind of the tensor that it dequantizes. Computed once, node by node in topological
        order.
        """
        kinds = TensorKinds()
        for tensor, kind in self.root_kinds.items():
            if tensor.producer is None or tensor.constant_type is not None:
                kinds.kind_of[tensor] = kind
        for node in self.view.order:
            if is_dequant(node):
                self._classify_dequant(node, kinds)
            else:
                self._check_node(node, kinds)
        for scope in self.view.scopes:
            for index, value in enumerate(scope.graph.output):
                self._check_graph_output(TensorRead(None, index, value, scope), kinds)
        return kinds

    def _check_node(self, node: NodeView, kinds: TensorKinds) -> None:
        """Add the output kinds and the faults of `node`, which is no Dequant, to `kinds`.

        Faults are integer operators that do not get integers, and real reads without a Dequant. An
        operator that can pass integers does so only if its consumers need them, else it is float.
        """
        sources = [None if tensor is None else kinds.resolve(tensor) for tensor in node.inputs]
        input_kinds = get_kinds(sources, kinds.kind_of)
        is_on_demand = passes_integers_on_demand(node)
        passes_integers = is_on_demand and self._is_integer_needed(node, input_kinds)
        for index in integer_inputs(node) if is_quantized(node) and not is_quant(node) else ():
            source = sources[index]
            if source is not None and not input_kinds[index].is_integer:
                kinds.invalid_reads.append((TensorRead(node, index, scope=node.scope), source))
        _record_missing_dequants(node, sources, passes_integers, kinds)
        for tensor, kind in self._iter_output_kinds(node, kinds.kind_of, through_dequants=False):
            runs_in_float = is_on_demand and not passes_integers
            kinds.kind_of[tensor] = FLOAT if runs_in_float and kind.is_integer else kind

    def _is_integer_needed(self, node: NodeView, input_kinds: Sequence[TensorKind]) -> bool:
        """Whether `node`, which may run in integers or in float, passes its data on as integers.

        It does if the data are integers, and an integer operator or a Dequant of their scale
        consumes its first output.
        """
        result = node.outputs[0] if node.outputs else None
        kind = merge_kinds([input_kinds[index] for index in data_inputs(node)])
        if result is None or not kind.is_integer:
            return False
        demand = self.demand_of(result)
        if demand.integer_readers:
            return True
        return any(same_scale(scale, kind.scale) for scale in demand.dequant_scales)

    def _classify_dequant(self, node: NodeView, kinds: TensorKinds) -> None:
        """Add the Dequant `node` to the valid or invalid ones of `kinds`, with its output's kind.

        The output of a valid one is float; that of an invalid one has the kind of the tensor that
        it dequantizes. Without an input the kind is "missing". Nothing happens if another node
        computes the output.
        """
        result = node.outputs[0] if node.outputs else None
        if result is None or result.producer is not node:
            return
        if not node.inputs or node.inputs[0] is None:
            kinds.kind_of[result] = MISSING
            return
        source = kinds.resolve(node.inputs[0])
        kind = kinds.kind_of.get(source, MISSING)
        fault = self._find_dequant_fault(node, kind, result)
        if fault is None:
            kinds.valid_dequants.add(node)
            kinds.kind_of[result] = FLOAT
            return
        kinds.invalid_dequants[node] = fault
        kinds.kind_of[result] = kind
        kinds.dequant_sources[result] = source

    def _find_dequant_fault(
        self, node: NodeView, kind: TensorKind, result: TensorView
    ) -> str | None:
        """Return the fault of a Dequant that reads a tensor of `kind`, or None if it is valid.

        The faults: "double" (real numbers), "index" (indices), "misplaced" (a consumer of `result`
        needs integers) and "scale" (another scale than the tensor's).
        """
        if kind.category == "missing":  # the fault is upstream
            return None
        if kind.category == "real":
            return "double"
        if kind.category == "other":
            return "index"
        if self.demand_of(result).integer_readers:
            return "misplaced"
        scale = node.attributes.get("scale_o")
        if same_scale(scale, kind.scale) or (kind.scale is None and is_scale(scale)):
            return None
        return "scale"

    def _check_graph_output(self, read: TensorRead, kinds: TensorKinds) -> None:
        """Record in `kinds` that the graph output `read` lacks a Dequant, if it returns integers.

        Outputs of the main graph are always real; the branch of an If may return integers if the
        output of the If is integer too.
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


def _record_missing_dequants(
    node: NodeView, sources: Sequence[TensorView | None], passes_integers: bool, kinds: TensorKinds
) -> None:
    """Record in `kinds` the inputs of `node` that must be real numbers but are integers.

    `sources` are the node's inputs, where the output of an invalid Dequant is replaced by the
    tensor that it dequantizes; `passes_integers` says that the node passes integers on, and so
    needs no real numbers.
    """
    for index in _real_operands(node, passes_integers):
        source = sources[index] if index < len(sources) else None
        if source is not None and kinds.kind_of.get(source, MISSING).is_integer:
            read = TensorRead(node, index, scope=node.scope)
            kinds.missing_dequants.setdefault(source, []).append(read)


def _declared_kind(element_type: int) -> TensorKind:
    """Return the kind of a tensor declared with this ONNX `element_type`: "real" or "other"."""
    category = "real" if element_type in REALS else "other"
    return TensorKind(category, element_type=element_type)


def _unique_scale(demand: TensorDemand) -> float | None:
    """Return the only scale that the consumers in `demand` expect; None if none or several."""
    scales = demand.scales()
    return scales[0] if len(scales) == 1 else None


def _is_presumably_real(tensor: TensorView | None) -> bool:
    """Whether `tensor` is a float constant, a float32 graph input, or the output of any node.

    False for None and for other constants and inputs.
    """
    if tensor is None:
        return False
    if tensor.constant_type == TensorProto.FLOAT or tensor.producer is not None:
        return True
    if tensor.graph_input is None:
        return False
    return tensor.graph_input.type.tensor_type.elem_type == TensorProto.FLOAT


def _float_output_kind(
    node: NodeView,
    index: int,
    input_kinds: Sequence[TensorKind],
    kind_of: Mapping[TensorView, TensorKind],
) -> TensorKind:
    """Return the kind of output `index` of `node`, which is no integer operator.

    Operators that pass integers on, always or on demand, have the kind of their inputs; the second
    output of MaxPool and Dropout and the results of index operators are "other", those of an If
    have the kind that its branches return, and all others the type of their ONNX schema.
    """
    if always_passes_integers(node):
        if index and node.proto.op_type in ("MaxPool", "Dropout"):
            return TensorKind("other")
        return input_kinds[0] if input_kinds else REAL
    if passes_integers_on_demand(node):
        return merge_kinds([input_kinds[data_index] for data_index in data_inputs(node)])
    if produces_indices(node):
        return TensorKind("other", element_type=TensorProto.INT64)
    if node.proto.op_type == "If" and node.is_standard:
        return merge_kinds(get_kinds(_find_branch_outputs(node, index), kind_of))
    return standard_kind(node, index, input_kinds)


def _unknown_operator_kind(
    attrs: Mapping[str, Any], input_kinds: Sequence[TensorKind], bits: int
) -> TensorKind:
    """Return the output kind of an operator of a quantized domain that has no known format.

    Integer with a valid `scale_o`; float if it has other scales only; without scales, integer of
    unknown scale if an input is integer, else OTHER.
    """
    if is_scale(attrs.get("scale_o")):
        return TensorKind("integer", float(attrs["scale_o"]), bits)
    if any(name.startswith("scale_") for name in attrs):
        return FLOAT
    if any(kind.is_integer for kind in input_kinds):
        return TensorKind("integer", None, bits)
    return OTHER


def _compute_output_scale(
    op_format: Format, attrs: Mapping[str, Any], input_kinds: Sequence[TensorKind]
) -> float | None:
    """Return the output scale of an integer operator from its attributes and input kinds.

    None if they do not give one, or give several or an invalid one.
    """
    input_qparams = [
        Affine(kind.scale) if kind.is_integer and kind.scale else None for kind in input_kinds
    ]
    try:
        qparams = op_format.output_qparams(attrs, input_qparams)
    except (LingerOnnxError, KeyError, TypeError, ValueError, OverflowError):
        return None
    if qparams is None or not is_scale(qparams.scale):
        return None
    return qparams.scale


def _is_float_state(node: NodeView, tensor: TensorView) -> bool:
    """Whether `tensor`, a state output of the recurrent layer `node`, is float.

    In exports of the first generation, which have the attribute `scale_i`, a state is float unless
    it is declared as integer. Later ones of the domain "linger" declare float states.
    """
    declared = _declared_type(tensor)
    if "scale_i" in node.attributes and declared not in INTEGERS:
        return True
    return node.proto.domain == "linger" and declared == TensorProto.FLOAT


def _real_operands(node: NodeView, passes_integers: bool) -> Sequence[int]:
    """Return the indices of the inputs of `node` that must be real numbers.

    For integer operators, those that the operator defines; none for nodes that pass integers on
    (`passes_integers`, or always) or produce indices; all inputs of others.
    """
    if is_quantized(node):
        return real_inputs(node)
    if always_passes_integers(node) or passes_integers or produces_indices(node):
        return ()
    return range(len(node.inputs))


def _find_branch_outputs(node: NodeView, index: int) -> list[TensorView]:
    """Return the tensors that the branches of an If return as its output `index`.

    One per branch, without undefined ones.
    """
    outputs = []
    for branch in node.subgraphs:
        if index < len(branch.graph.output):
            tensor = branch.find(branch.graph.output[index].name)
            if tensor is not None:
                outputs.append(tensor)
    return outputs


def _declared_type(tensor: TensorView) -> int:
    """Return the ONNX element type that graph outputs or value_info declare for `tensor`.

    0 without.
    """
    for value in (*tensor.scope.graph.output, *tensor.scope.graph.value_info):
        if value.name == tensor.name:
            return int(value.type.tensor_type.elem_type)
    return 0


def dequant_input(node: NodeView) -> TensorView:
    """Return the tensor that `node`, a Dequant, reads, which must exist."""
    tensor = node.inputs[0]
    assert tensor is not None
    return tensor


def find_scale(tensor: TensorView, kinds: TensorKinds) -> float | None:
    """Return the scale of an integer tensor, or None if it is unknown.

    If the producer does not specify it, it is the scale of a valid Dequant of the tensor.
    """
    scale = kinds.kind_of[tensor].scale
    if scale is not None:
        return scale
    for node in kinds.valid_dequants:
        if kinds.resolve(dequant_input(node)) is tensor:
            return float(node.attributes["scale_o"])
    return None
