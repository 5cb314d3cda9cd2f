"""What would merge parts of a program: another chip that takes the operator, or an activation that
this chip has.
"""

import pytest

import lingeronnx as lo
from lingeronnx.ir import float_ops
from tests import nets


def gap(operator, **attributes):
    """Return the report on a convolution, an operator, a convolution, for venus."""
    net = nets.Net(3, 6, 6, seed=3)
    middle = net.node(operator, net.conv("x", (4, 3, 3, 3), pads=[1] * 4), **attributes)
    model = net.graph(net.conv(middle, (3, 4, 3, 3), pads=[1] * 4, out="y"))
    return lo.quantize(model, nets.samples(model, 8), platform="venus", effort="fast").report


def test_a_softmax_is_measured_on_other_chips():
    (merge,) = gap("Softmax", axis=1).merges
    assert merge.operator == "Softmax"
    assert merge.chips == ("arcs", "venusA")
    assert "supported on arcs, venusA" in str(merge)
    assert merge.to_dict()["chips"] == ["arcs", "venusA"]


@pytest.mark.parametrize("operator", ["Selu", "Softsign"])
def test_an_activation_has_one_in_its_place(operator):
    found = gap(operator).merges
    assert found
    assert all(
        merge.instead and set(merge.instead) <= set(float_ops.ACTIVATION_SUBSTITUTES[operator])
        for merge in found
    )


def test_a_model_in_one_part_needs_none():
    assert not gap("Relu").merges
