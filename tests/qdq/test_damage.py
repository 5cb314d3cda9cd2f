"""Damaged QuantizeLinear and DequantizeLinear nodes: one line of ours, or a result; never another
exception.
"""

from pathlib import Path

import onnx
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir

FILES = [
    path
    for path in sorted((Path(__file__).parent / "files").glob("*.onnx"))
    if path.stem != "planned_by_peers"
]


def damages(model):
    """Yield (what was done, the model) for every kind of damage to each node; to one of those that
    stand alike.
    """
    producers = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    producers |= {name: node.op_type for node in model.graph.node for name in node.output}
    alike = set()
    for place, node in enumerate(model.graph.node):
        followers = sorted(
            {other.op_type for other in model.graph.node if set(other.input) & set(node.output)}
        )
        attributes = str([(attribute.name, attribute.i) for attribute in node.attribute])
        stands = (
            node.op_type,
            attributes,
            *followers,
            *(producers.get(name, bool(name)) for name in node.input),
        )
        if stands in alike:
            continue
        alike.add(stands)
        for what in (
            "last input gone",
            "all inputs but one gone",
            "last input empty",
            "attribute gone",
        ):
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            hit = copy.graph.node[place]
            if what == "attribute gone" and hit.attribute:
                del hit.attribute[0]
            elif what == "all inputs but one gone" and len(hit.input) > 1:
                del hit.input[1:]
            elif what == "last input gone" and hit.input:
                del hit.input[-1]
            elif what == "last input empty" and hit.input:
                hit.input[-1] = ""
            else:
                continue
            yield f"{node.op_type} {place}: {what}", copy


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_one_line_or_a_result(path):
    said = []
    for what, damaged in damages(onnx.load(path)):
        try:
            lo.quantize(ir.from_proto(damaged), None, platform="generic", effort="fast")
        except lo.LingerOnnxError as error:
            said.append((what, str(error)))
    assert not [pair for pair in said if "\n" in pair[1]]
    scales = [
        text for what, text in said if what.startswith("DequantizeLinear") and "attribute" in what
    ]
    assert any(
        " scales for " in text for text in scales
    )  # along another axis there is another number of channels
