"""What an override says of a layer, and of the tensor that it gives, where the layer moves to the
host.
"""

import numpy as np
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


def make_framed(**override):
    """Prepare a long convolution of one channel whose consumers are computed by the host."""
    net = Net(1, 1400)
    c = net.conv("x", (6, 1, 400), out="c", strides=[160])
    squares = net.node("Mul", c, c)
    net.node("Log", net.node("Add", squares, net.const(np.float32(1e-3))), out="y")
    model = net.graph("y")
    return prepare_model(
        model,
        samples(model, 4),
        None,
        {"platform": "venus", "overrides": {"c": override}},
    )


def test_settings_of_a_product_with_frames_reach_it():
    """The host scales its result, so that the tensor of that name is not the layer's."""
    prepared = make_framed(out_bits=8, weight_bits=8)
    own = resolve_scale_policy(prepared, prepared.parts).overrides
    (layer,) = [node for node, op in prepared.parts.integer_nodes if op.weight_inputs(node)]
    assert own[layer.outputs[0].name]["out_bits"] == 8
    assert {"bits": 8} in own.values()
    assert describe_ineffective_overrides(prepared) == []


def test_settings_of_its_tensor_are_named_as_ignored():
    (note,) = describe_ineffective_overrides(make_framed(scale=8.0, out_bits=8))
    assert note.startswith("override 'c': 'c' runs on the host (")
    assert note.endswith("; scale 8.0 is ignored")
