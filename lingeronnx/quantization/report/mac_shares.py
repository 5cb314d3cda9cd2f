"""Count the multiply-accumulates (MACs) of a model by what computes them.

Every node counts, whatever runs it: the integer nodes, the float nodes of host parts, and the tail
that is split off because its shapes depend on input values. The MACs of such a node are unknown.
The counts are those of the graph as it runs: rewrites for a platform, such as a dilated convolution
that becomes a dense one, add products to those of the model.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from ...ir import ir
from ...ir.dynamic_tail import DynamicTail
from ...operators.macs import count_macs_if_known, is_integer_product
from ..partition import Partition

__all__ = ["MacShares", "count_mac_shares", "count_tail_macs"]


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
    """

    chip: int = 0
    host_integer: int = 0
    host_float: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)

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
    partition: Partition, tail_macs: Mapping[ir.Node, int | None], is_chip: bool
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
    """
    counts: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    body_nodes = list(partition.graph.graph)
    body_names = {str(node.name) for node in body_nodes}
    nodes = [(node, count_macs_if_known(node)) for node in body_nodes]
    nodes += [entry for entry in tail_macs.items() if str(entry[0].name) not in body_names]
    for node, macs in nodes:
        if macs is None:
            unknown[ir.display_op_type(node)] += 1
        elif id(node) in partition.integer_node_ids:
            counts["chip" if is_chip else "host_integer"] += macs
        else:
            counts["host_integer" if is_integer_product(node) else "host_float"] += macs
    return MacShares(**counts, unknown=unknown)


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
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    nodes = ir.from_proto(proto).graph
    return {node: count_macs_if_known(node, needs_static_shapes=True) for node in nodes}
