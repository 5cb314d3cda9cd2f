"""Count the multiply-accumulates (MACs) of a model by what computes them.

Every node counts, whatever runs it: the integer nodes, the float nodes of host parts, and the tail
that is split off because its shapes depend on input values. The MACs of such a node are unknown.
The counts are those of the user's model: the nodes that rewrites make of one of its nodes, such as
a dense convolution for a dilated one, share the MACs of that node. How many the rewritten graph has
is counted apart.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from ...ir import ir
from ...ir.dynamic_tail import DynamicTail
from ...operators.macs import count_macs_if_known, get_batch_axis, is_integer_product
from ..partition import Partition

__all__ = ["MacShares", "count_mac_shares", "count_model_macs", "count_tail_macs"]


@dataclass(frozen=True)
class MacShares:
    """Multiply-accumulates of one sample by what computes them.

    Attributes
    ----------
    chip
        MACs of integer nodes on the chip.
    host_integer
        MACs in integers on the host: all integer nodes of a platform that is not a chip, and
        operators of the model such as MatMulInteger.
    host_float
        MACs in float on the host.
    unknown
        {operator: number of nodes whose MACs are unknown}, because shapes depend on input values,
        or because the operator cannot be counted.
    executed
        Known MACs of the graph as it runs. Rewrites can add some, with zero weights for example, or
        remove some, such as those of padding.
    """

    chip: int = 0
    host_integer: int = 0
    host_float: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    executed: int = 0

    @property
    def total(self) -> int:
        """All MACs that are known."""
        return self.chip + self.host_integer + self.host_float

    @property
    def is_mixed(self) -> bool:
        """Whether there are MACs of more than one kind, or unknown ones."""
        kinds = (self.chip, self.host_integer, self.host_float, sum(self.unknown.values()))
        return sum(map(bool, kinds)) > 1

    def __str__(self) -> str:
        """Format the shares of the known MACs, and the number of nodes without a count."""
        total = max(self.total, 1)
        text = ", ".join(
            f"{name} {100 * count / total:.1f} %"
            for name, count in (
                ("chip", self.chip),
                ("host integer", self.host_integer),
                ("host float", self.host_float),
            )
        )
        nodes = sum(self.unknown.values())
        if not nodes:
            return text
        return f"{text}, unknown {nodes} node" + ("" if nodes == 1 else "s")

    def to_dict(self) -> dict[str, object]:
        """Return the counts as JSON-ready values."""
        return {**vars(self), "unknown": dict(self.unknown)}


def count_mac_shares(
    partition: Partition,
    tail_macs: Mapping[ir.Node, int | None],
    is_chip: bool,
    model_macs: Mapping[str, int],
) -> MacShares:
    """Count the MACs of a partitioned model and its tail.

    Parameters
    ----------
    partition
        The float graph, and which of its nodes are integer.
    tail_macs
        Result of `count_tail_macs`.
    is_chip
        Whether a chip runs the integer nodes, else the host.
    model_macs
        Result of `count_model_macs` for the user's model. The nodes made for one of its nodes share
        that node's MACs in proportion to their own; a node made for none of these has its own.
    """
    counts_by_origin: dict[str, Counter[str]] = {}
    unknown: Counter[str] = Counter()
    body_nodes = list(partition.graph.graph)
    body_names = {str(node.name) for node in body_nodes}
    nodes = [(node, count_macs_if_known(node)) for node in body_nodes]
    nodes += [entry for entry in tail_macs.items() if str(entry[0].name) not in body_names]
    for node, macs in nodes:
        counts = counts_by_origin.setdefault(ir.origin_name(node), Counter())
        if macs is None:
            unknown[ir.display_op_type(node)] += 1
        elif id(node) in partition.integer_node_ids:
            counts["chip" if is_chip else "host_integer"] += macs
        else:
            counts["host_integer" if is_integer_product(node) else "host_float"] += macs
    shares: Counter[str] = Counter()
    for origin, counts in counts_by_origin.items():
        shares.update(_split_macs(model_macs.get(origin) or counts.total(), counts))
    executed = sum(counts.total() for counts in counts_by_origin.values())
    return MacShares(**shares, unknown=unknown, executed=executed)


def _split_macs(macs: int, counts: Counter[str]) -> dict[str, int]:
    """Split `macs` in proportion to `counts`; all are 0 if these are."""
    total = counts.total()
    if not total:
        return {}
    parts = {kind: macs * count // total for kind, count in counts.items()}
    parts[max(counts, key=counts.__getitem__)] += macs - sum(parts.values())
    return parts


def count_model_macs(model: ir.Model) -> dict[str, int]:
    """Count the MACs of the nodes of a float model by name, for one sample.

    Nodes that cannot be counted, because shapes are not known either, are left out. Does not modify
    the model.
    """
    proto, _ = ir.detach_large_constants(model)
    counts = {}
    for node in _infer_sample_shapes(proto).graph:
        macs = count_macs_if_known(node)
        if macs is not None and node.name and _has_sample_shapes(node):
            counts[node.name] = macs
    return counts


def _has_sample_shapes(node: ir.Node) -> bool:
    """Whether all sizes of the inputs of `node` are known, but for the batch."""
    batch_axis = get_batch_axis(node)
    for value in node.inputs:
        shape = () if value is None else ir.get_shape(value)
        if shape is None or None in (*shape[:batch_axis], *shape[batch_axis + 1 :]):
            return False
    return True


def count_tail_macs(tail: DynamicTail, body: ir.Model) -> dict[ir.Node, int | None]:
    """Count the MACs of the nodes of a tail, None where shapes depend on input values.

    Parameters
    ----------
    tail
        The tail.
    body
        The model that computes the inputs of the tail, with known shapes.
    """
    shapes = {}
    for value in (*body.graph.inputs, *body.graph.outputs):
        shapes[str(value.name)] = ir.get_shape(value)
    proto = ir.to_proto(tail.model)
    for info in proto.graph.input:
        shape = shapes.get(info.name)
        if shape is not None:
            dims = [1 if axis == 0 and dim is None else dim for axis, dim in enumerate(shape)]
            element_type = info.type.tensor_type.elem_type
            info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, element_type, dims))
    del proto.graph.value_info[:]
    nodes = _infer_sample_shapes(proto).graph
    return {node: count_macs_if_known(node, needs_static_shapes=True) for node in nodes}


def _infer_sample_shapes(proto: onnx.ModelProto) -> ir.Model:
    """Return the model with the shapes that onnx infers for one sample; `proto` is modified.

    An unknown size of axis 0 of an input is the batch. Declared shapes of outputs are ignored.
    """
    for info in proto.graph.input:
        dims = info.type.tensor_type.shape.dim
        if dims and not dims[0].HasField("dim_value"):
            dims[0].dim_value = 1
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    return ir.from_proto(proto)
