"""Parameters that a net computes with before it uses them: all are trained, and saved as what was
trained.
"""

import copy
import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.torch.training_api.computed_constants import (
    ComputedConstants,
    _find_constant_subgraphs,
)
from lingeronnx.torch.training_api.lstmp import LSTMP, UBLSTMP, FastUBLSTMP, NormalizeFastLSTMP
from lingeronnx.torch.training_api.parameter_constants import NetParameters
from lingeronnx.torch.training_api.trace import export_with_folded_norms
from tests.passes.helpers import graph as parsed
from tests.torch.calls.test_module_calls import Shared, made, numbers, simulated, trained

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

WIDTH, P, C, T = 5, 3, 6, 7
KINDS = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.LSTM, LSTMP)


class Projected(nn.Module):
    """A recurrent layer with projection, and a linear layer on each step."""

    def __init__(self, layer, width):
        super().__init__()
        self.rnn, self.fc = layer, nn.Linear(width, 4)

    def forward(self, x):
        return self.fc(self.rnn(x)[0])


class Normed(nn.Module):
    """A convolution whose weight is g v / |v|."""

    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(WIDTH, 6, 3, padding=1))
        self.fc = nn.Linear(6 * T, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x.transpose(1, 2))).flatten(1))


#: Class -> the net, and P and R in it.
LAYERS = {
    "LSTMP": (
        lambda: Projected(LSTMP(WIDTH, P, C), P),
        "rnn.state_projection.weight",
        "rnn.state_linearity.weight",
    ),
    "LSTMP backward": (
        lambda: Projected(LSTMP(WIDTH, P, C, go_forward=False), P),
        "rnn.state_projection.weight",
        "rnn.state_linearity.weight",
    ),
    "UBLSTMP": (
        lambda: Projected(UBLSTMP(WIDTH, P, C), 2 * P),
        "rnn.backward_lstmp.state_projection.weight",
        "rnn.backward_lstmp.state_linearity.weight",
    ),
    "nn.LSTM": (
        lambda: Projected(nn.LSTM(WIDTH, C, proj_size=P, batch_first=True), P),
        "rnn.weight_hr_l0",
        "rnn.weight_hh_l0",
    ),
    "nn.LSTM in both directions": (
        lambda: Projected(
            nn.LSTM(WIDTH, C, proj_size=P, batch_first=True, bidirectional=True), 2 * P
        ),
        "rnn.weight_hr_l0_reverse",
        "rnn.weight_hh_l0_reverse",
    ),
    "FastUBLSTMP": (
        lambda: Projected(FastUBLSTMP(WIDTH, P, C), 2 * P),
        "rnn.forward_lstmp.weight_hr_l0",
        "rnn.forward_lstmp.weight_hh_l0",
    ),
    "NormalizeFastLSTMP": (
        lambda: Projected(
            NormalizeFastLSTMP(
                WIDTH, C, proj_size=P, batch_first=True, normalize_weight_value=0.35
            ),
            P,
        ),
        "rnn.weight_hr_l0",
        "rnn.weight_hh_l0",
    ),
    "weight_norm": (
        Normed,
        "conv.parametrizations.weight.original0",
        "conv.parametrizations.weight.original1",
    ),
}


def build(name, seed=0):
    torch.manual_seed(seed)
    return LAYERS[name][0](), torch.randn(8, T, WIDTH)


def initialised(name, seed=0, **settings):
    """Return the net after init, where nothing may be said to stay untrained, and inputs for it."""
    net, x = build(name, seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="not trained")
        lo.torch.init(net, KINDS, **{"out_bits": 8, **settings}, example_inputs=x)
    return net, x


@pytest.mark.sweep
@pytest.mark.parametrize("name", LAYERS)
def test_trained_and_saved_are_the_same_integers(name, tmp_path):
    """Every parameter is trained; the checkpoint gives the same outputs elsewhere, and the same
    graph.
    """
    net, x = initialised(name, mode=lo.torch.QuantMode.QValue, platform="generic")
    before = {key: p.detach().clone() for key, p in net.named_parameters()}
    trained(net, x, steps=4, rate=0.5)
    assert all(not torch.equal(p, before[key]) for key, p in net.named_parameters())
    want = numbers(net, x)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    again, _ = initialised(name, seed=1, mode=lo.torch.QuantMode.QValue, platform="generic")
    again.load_state_dict(torch.load(file, weights_only=True))
    np.testing.assert_array_equal(numbers(again.eval(), x), want)
    one, two = (
        lo.torch.export(each, x, tmp_path / f"{k}.onnx").graph
        for k, each in enumerate((net, again))
    )
    held = [
        {n: ir.const_value(v) for n, v in graph.graph.initializers.items()} for graph in (one, two)
    ]
    assert all(np.array_equal(held[0][key], held[1][key]) for key in held[0] | held[1])
    np.testing.assert_array_equal(simulated(tmp_path / "0.onnx", x), want)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_against_finite_differences(name):
    """Those of P and R in 16 bits are near the finite differences of the float net, in float64."""
    net, x = initialised(
        name, mode=lo.torch.QuantMode.MaxValue, data_bits=16, parameter_bits=16, out_bits=16
    )
    exact, _ = build(name)
    exact.double().eval()
    x = 0.8 * x  # within the ranges: at their ends a gradient is cut
    target = torch.randn(8, T, 4) if exact(x.double()).dim() == 3 else torch.randn(8, 4)
    net.eval()
    (net(x) * target).sum().backward()
    for key in LAYERS[name][1:]:
        have, parameter = net.get_parameter(key).grad, exact.get_parameter(key)
        want = torch.zeros_like(parameter)
        flat, differences = parameter.data.view(-1), want.view(-1)
        for index in range(len(flat)):
            both = []
            for step in (1e-5, -1e-5):
                held = flat[index].item()
                flat[index] += step
                with torch.no_grad():
                    both.append(float((exact(x.double()) * target).sum()))
                flat[index] = held
            differences[index] = (both[0] - both[1]) / 2e-5
        assert float(want.norm()) > 0
        assert float((have - want).norm()) < 0.02 * float(want.norm()), key


def test_what_stays_frozen_is_saved_with_its_numbers(tmp_path):
    """Weights of which a pass made others do not follow; the checkpoint holds them as they were in
    training.
    """
    net, x = made(Shared, (3, 6, 6))
    with pytest.warns(UserWarning, match="not trained"):
        lo.torch.init(net, mode=lo.torch.QuantMode.QValue, out_bits=8, example_inputs=x)
    trained(net, x, steps=4, rate=0.5)
    want = numbers(net, x)
    again, _ = made(Shared, (3, 6, 6), seed=1)
    lo.torch.init(again, mode=lo.torch.QuantMode.QValue, out_bits=8)
    again.load_state_dict(net.state_dict())
    with pytest.warns(UserWarning, match="not trained"):
        np.testing.assert_array_equal(numbers(again.eval(), x), want)
    with pytest.warns(UserWarning, match="not trained"):
        np.testing.assert_array_equal(numbers(copy.deepcopy(again), x), want)
    lo.torch.export(again, x, tmp_path / "net.onnx")
    np.testing.assert_array_equal(simulated(tmp_path / "net.onnx", x), want)


def test_moved_parameters_are_no_expressions():
    """Parameters that are only moved keep their own names: nothing is computed."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))
    made, parameters = export_with_folded_norms(net, (torch.randn(1, 3, 6, 6),), {}, "torchscript")
    assert parameters.computed_constants.tensors({}) == {}
    assert set(made.graph.graph.initializers) >= {name for name, _ in net.named_parameters()}


def test_an_operator_without_gradient_stays():
    """What torch does not know is left to the passes: the graph computes the same."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 4] y) {
        d = Det(square) e = Mul(d, w) y = Add(x, e) }"""
    import onnx

    proto = onnx.parser.parse_model(text)
    for name, array in {"square": np.eye(3, dtype=np.float32), "w": np.ones(4, np.float32)}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = ir.from_proto(proto)
    assert ComputedConstants(graph).tensors({}) == {}
    assert [node.op_type for node in graph.graph] == ["Det", "Mul", "Add"]


def test_names_are_those_of_the_net():
    """The state_dict is what it was, with nothing but the scales beside the parameters."""
    net, _ = initialised("nn.LSTM")
    plain, _ = build("nn.LSTM")
    assert net.state_dict().keys() - {"_extra_state"} == plain.state_dict().keys()
    assert set(NetParameters(plain).get_effective_tensors()) == set(dict(plain.named_parameters()))


class Twofold(nn.Module):
    """Another layer in training than in evaluation, and a parameter that is read as a number."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.by = (
            nn.Linear(4, 3),
            nn.Linear(4, 3),
            nn.Parameter(torch.ones(())),
        )
        self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x):
        return (self.one(x) if self.training else self.other(x)) * self.by.item()


def test_parameters_that_the_trace_does_not_meet_are_told():
    with pytest.warns(
        UserWarning, match=r"not trained, since forward .* use them: by, one.weight, one.bias$"
    ):
        lo.torch.init(Twofold(), out_bits=8, example_inputs=torch.randn(3, 4))


def test_what_only_moves_elements_is_no_expression():
    """It follows its parameter through the passes by itself: blocks of channels, as any other order
    of the elements.
    """
    body = "v = DepthToSpace<blocksize = 2>(w) y = Conv(x, v)"
    graph = parsed(
        f"g (float[N,2,4,4] x) => (float[N,1,3,3] y) {{ {body} }}",
        w=np.ones((1, 8, 1, 1), np.float32),
    )
    assert _find_constant_subgraphs(graph) == {}
