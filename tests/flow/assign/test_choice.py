"""What an override says of a layer, and of the tensor that it gives, where the layer moves to the
host.
"""

import pytest

from lingeronnx.quantization.prepare import prepare_model
from lingeronnx.quantization.scales.scale_policy import (
    describe_ineffective_overrides,
    resolve_scale_policy,
)
from tests.nets import Net, samples

SAID = {"scale": 64.0, "weight_bits": 8, "out_bits": 32}


@pytest.fixture(scope="module")
def prepared():
    net = Net(3, 6, 6)
    middle = net.conv("x", (4, 3, 1, 1), out="t")
    model = net.graph(net.conv(net.node("Relu", middle), (4, 4, 1, 1), out="y"))
    return prepare_model(
        model,
        samples(model, 4),
        None,
        {"platform": "venusA", "overrides": {"t": SAID, "y": {"scale": 8.0}}},
    )


def node_of(prepared, tensor):
    return next(str(node.name) for node in prepared.graph.graph if node.outputs[0].name == tensor)


def test_all_of_it_holds_on_the_chip(prepared):
    assert prepared.moved == {}
    own = resolve_scale_policy(prepared, prepared.parts).overrides
    assert own["t"] == {"scale": 64.0, "out_bits": 32}
    assert {"bits": 8} in own.values()
    assert describe_ineffective_overrides(prepared) == []


def test_of_a_layer_on_the_host_what_it_says_of_the_tensor_holds(prepared):
    """The next layer reads it in integers; the last layer's output stays in float."""
    first = prepared.with_host_nodes({node_of(prepared, "t"): "too large"})
    assert first.moved == {node_of(prepared, "t"): "too large"}
    own = resolve_scale_policy(first, first.parts).overrides
    assert own["t"] == {"scale": 64.0}
    assert {"bits": 8} not in own.values()
    assert describe_ineffective_overrides(first) == [
        "override 't': 't' runs on the host (too large); weight_bits 8, out_bits 32 is ignored"
    ]
    last = prepared.with_host_nodes({node_of(prepared, "y"): "too large"})
    assert describe_ineffective_overrides(last) == [
        "override 'y': 'y' runs on the host (too large); scale 8.0 is ignored"
    ]
