"""LSTM layers with projection: the formula, torch's own layer, export by both exporters, integers
on every platform.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError, DataError, ModelError
from lingeronnx.ir import ir
from lingeronnx.torch.checkpoint.parameters import load_checkpoint, state_dict
from lingeronnx.torch.training_api.lstmp import LSTMP, UBLSTMP, FastUBLSTMP, NormalizeFastLSTMP
from tests.case_selection import mark_rest_slow

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

#: dynamo takes some seconds for each model.
each = pytest.mark.parametrize(
    "exporter", (pytest.param("dynamo", marks=pytest.mark.slow), "torchscript")
)
WIDTH, P, C = 5, 3, 6


def seeded(kind, *args, **kwargs):
    torch.manual_seed(1)
    return kind(*args, **kwargs).eval()


def array(tensor):
    return tensor.detach().numpy()


def naive(layer, x, h, c, forward=True):
    """The formula step by step, in float64: y [N, T, P], the last state and cell."""
    w, b, r, p = (
        array(t).astype(np.float64)
        for t in (
            layer.input_linearity.weight,
            layer.input_linearity.bias,
            layer.state_linearity.weight,
            layer.state_projection.weight,
        )
    )
    y = np.zeros((x.shape[0], x.shape[1], len(p)))
    for t in range(x.shape[1]) if forward else reversed(range(x.shape[1])):
        i, f, g, o = np.split(x[:, t] @ w.T + b + h @ r.T, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-v)) for v in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = (o * np.tanh(c)) @ p.T
        y[:, t] = h
    return y, h, c


# ---- in torch ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forward", (True, False))
@pytest.mark.parametrize(
    "sizes", ((WIDTH, P, C), (2, 7, 4), (1, 1, 1))
)  # also more values than cells
def test_formula(sizes, forward):
    """Outputs and states are those of the formula, from zeros and from given states in both
    shapes.
    """
    inputs, state, cells = sizes
    layer = seeded(LSTMP, inputs, state, cells, go_forward=forward)
    x, h, c = torch.randn(4, 9, inputs), torch.randn(4, state), torch.randn(4, cells)
    starts = (
        (None, np.zeros((4, state)), np.zeros((4, cells))),
        ((h, c), array(h), array(c)),
        ((h[None], c[None]), array(h), array(c)),
    )
    for states, hidden, cell in starts:
        y, (last, last_cell) = layer(x, states)
        want = naive(layer, array(x), hidden, cell, forward)
        assert last.shape == (1, 4, state)
        assert last_cell.shape == (1, 4, cells)
        for got, expected in zip((y, last[0], last_cell[0]), want, strict=True):
            np.testing.assert_allclose(array(got), expected, rtol=0, atol=2e-6)


def paired(layer, reference):
    """Give `layer`, a UBLSTMP, the weights of the bidirectional nn.LSTM `reference`."""
    sides = ((layer.forward_lstmp, ""), (layer.backward_lstmp, "_reverse"))
    for side, end in sides:
        of = {
            name: getattr(reference, f"{name}_l0{end}")
            for name in ("weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh")
        }
        side.load_state_dict(
            {
                "input_linearity.weight": of["weight_ih"],
                "input_linearity.bias": of["bias_ih"] + of["bias_hh"],
                "state_linearity.weight": of["weight_hh"],
                "state_projection.weight": of["weight_hr"],
            }
        )
    return layer


def test_equals_torch():
    """A UBLSTMP is nn.LSTM with proj_size, bidirectional: outputs, states and gradients, to float
    rounding.
    """
    reference = seeded(nn.LSTM, WIDTH, C, proj_size=P, bidirectional=True, batch_first=True)
    layer = paired(UBLSTMP(WIDTH, P, C), reference)
    x, states = torch.randn(4, 9, WIDTH), (torch.randn(2, 4, P), torch.randn(2, 4, C))
    for hx in (None, states):
        (want, (h, c)), (got, (h2, c2)) = reference(x, hx), layer(x, hx)
        for one, two in ((want, got), (h, h2), (c, c2)):
            torch.testing.assert_close(two, one, rtol=0, atol=1e-6)
    for run in (reference, layer):
        (run(x, states)[0] ** 2).sum().backward()
    for mine, name in (
        ("state_linearity.weight", "weight_hh_l0"),
        ("state_projection.weight", "weight_hr_l0"),
        ("input_linearity.bias", "bias_ih_l0"),
    ):
        torch.testing.assert_close(
            layer.forward_lstmp.get_parameter(mine).grad,
            getattr(reference, name).grad,
            rtol=1e-4,
            atol=1e-5,
        )


def test_fast_is_the_same():
    """FastUBLSTMP computes what UBLSTMP does, states too."""
    fast = seeded(FastUBLSTMP, WIDTH, P, C)
    reference = nn.LSTM(WIDTH, C, proj_size=P, bidirectional=True, batch_first=True)
    for side, end in ((fast.forward_lstmp, ""), (fast.backward_lstmp, "_reverse")):
        for name, tensor in side.named_parameters():
            reference.get_parameter(f"{name}{end}").data.copy_(tensor)
    slow = paired(UBLSTMP(WIDTH, P, C), reference)
    x, states = torch.randn(2, 7, WIDTH), (torch.randn(2, 2, P), torch.randn(2, 2, C))
    for hx in (None, states):
        (y, ends), (y2, ends2) = slow(x, hx), fast(x, hx)
        for one, two in zip((y, *ends), (y2, *ends2), strict=True):
            torch.testing.assert_close(two, one, rtol=0, atol=1e-6)


def test_clamps():
    """NormalizeFastLSTMP is nn.LSTM of clamped weights and biases, with clamped outputs; its
    parameters stay.
    """
    args = {"num_layers": 2, "bidirectional": True, "proj_size": P}
    layer = seeded(
        NormalizeFastLSTMP,
        WIDTH,
        C,
        **args,
        normalize_weight_value=0.2,
        normalize_bias_value=0.1,
        normalize_output_value=0.01,
    )
    before = {name: tensor.clone() for name, tensor in layer.named_parameters()}
    plain = nn.LSTM(WIDTH, C, **args)
    plain.load_state_dict(
        {
            name: tensor.clamp(-(v := 0.1 if "bias" in name else 0.2), v)
            for name, tensor in before.items()
        }
    )
    x = torch.randn(7, 2, WIDTH)
    (want, (h, c)), (got, (h2, c2)) = plain(x), layer(x)
    assert want.abs().max() > 0.01
    torch.testing.assert_close(got, want.clamp(-0.01, 0.01), rtol=0, atol=1e-6)
    torch.testing.assert_close((h2, c2), (h, c), rtol=0, atol=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.named_parameters())
    free = seeded(
        NormalizeFastLSTMP,
        WIDTH,
        C,
        **args,
        normalize_weight_value=None,
        normalize_bias_value=None,
        normalize_output_value=None,
    )
    plain.load_state_dict(before)
    torch.testing.assert_close(free(x)[0], plain(x)[0], rtol=0, atol=0)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 4]))
    assert layer(packed)[0].data.abs().max() <= 0.01
    assert len(layer(x[:, 0])[0].shape) == 2  # without a batch


@pytest.mark.parametrize(
    "build, kind, text",
    (
        (
            lambda: LSTMP(WIDTH, P, C, batch_first=False),
            ConfigError,
            "supports the batch on axis 0 only",
        ),
        (
            lambda: UBLSTMP(WIDTH, P, C, batch_first=False),
            ConfigError,
            "supports the batch on axis 0 only",
        ),
        (
            lambda: FastUBLSTMP(WIDTH, P, C, batch_first=False),
            ConfigError,
            "supports the batch on axis 0 only",
        ),
        (
            lambda: LSTMP(WIDTH, 0, C),
            ConfigError,
            "hidden_size of an LSTMP is 0; it must be at least 1",
        ),
        (
            lambda: FastUBLSTMP(WIDTH, C, C),
            ConfigError,
            "fewer outputs than cells, not 6 outputs for 6 cells",
        ),
        (lambda: NormalizeFastLSTMP(WIDTH, C), ConfigError, "needs proj_size"),
        (
            lambda: NormalizeFastLSTMP(WIDTH, C, proj_size=P, normalize_bias_value=0),
            ConfigError,
            "each must be above 0, or None",
        ),
        (
            lambda: LSTMP(WIDTH, P, C)(
                torch.randn(2, 4, WIDTH), (torch.randn(2, C), torch.randn(2, C))
            ),
            DataError,
            r"the initial state of an LSTMP has shape \[2, 6\]; it must be \[1, 2, 3\] or \[2, 3\]",
        ),
        (
            lambda: UBLSTMP(WIDTH, P, C)(
                torch.randn(2, 4, WIDTH), (torch.randn(2, P), torch.randn(2, C))
            ),
            DataError,
            (
                r"two directions must have shapes \[2, N, P\] and \[2, N, C\]; these have \[2, 3\] and "
                r"\[2, "
                r"6\]"
            ),
        ),
    ),
)
def test_wrong_calls(build, kind, text):
    """One line each."""
    with pytest.raises(kind, match=text):
        build()


# ---- export ------------------------------------------------------------------------------------------------------


class Stateful(nn.Module):
    """One direction that is given its states and gives them back."""

    def __init__(self):
        super().__init__()
        self.lstmp = LSTMP(WIDTH, P, C)

    def forward(self, x, h, c):
        y, (h, c) = self.lstmp(x, (h, c))
        return y, h[0], c[0]


class First(nn.Module):
    """The outputs alone of a layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


MODELS = {
    "forward": lambda: LSTMP(WIDTH, P, C),
    "backward": lambda: LSTMP(WIDTH, P, C, go_forward=False),
    "both": lambda: UBLSTMP(WIDTH, P, C),
    "fast": lambda: FastUBLSTMP(WIDTH, P, C),
    "torch": lambda: nn.LSTM(
        WIDTH, C, num_layers=2, bidirectional=True, proj_size=P, batch_first=True
    ),
    "torch, time first": lambda: nn.Sequential(First(nn.LSTM(WIDTH, C, proj_size=P, bias=False))),
    "clamped": lambda: NormalizeFastLSTMP(
        WIDTH, C, proj_size=P, batch_first=True, normalize_weight_value=0.2
    ),
}


@pytest.mark.sweep
@each
@pytest.mark.parametrize("name", MODELS)
def test_export(name, exporter, tmp_path):
    """The file runs in onnxruntime as torch runs it (`export` compares), under the parameters' own
    names.
    """
    model = seeded(MODELS[name])
    axes = {} if "time" in name else None
    done = lo.export(
        model, torch.randn(2, 7, WIDTH), tmp_path / "m.onnx", exporter=exporter, dynamic_axes=axes
    )
    assert done.difference < 1e-5
    assert not done.notes
    proto = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert {node.domain for node in proto.graph.node} == {""}
    assert "forward" not in model.__dict__
    assert all("forward" not in module.__dict__ for module in model.modules())
    graph = ir.load(tmp_path / "m.onnx")
    assert {key: tuple(t.shape) for key, t in state_dict(graph).items()} == {
        key: tuple(t.shape) for key, t in model.state_dict().items()
    }


def test_other_weights_go_onto_the_file(tmp_path):
    """A checkpoint of the module goes onto the exported file by name: no weight is folded away."""
    lo.export(
        seeded(UBLSTMP, WIDTH, P, C),
        torch.randn(2, 7, WIDTH),
        tmp_path / "m.onnx",
        exporter="torchscript",
    )
    graph = ir.load(tmp_path / "m.onnx")
    torch.manual_seed(7)
    other = UBLSTMP(WIDTH, P, C)
    load_checkpoint(graph, other.state_dict())
    ir.save(graph, tmp_path / "other.onnx")
    x = torch.randn(3, 7, WIDTH)
    session = onnxruntime.InferenceSession(
        str(tmp_path / "other.onnx"), providers=["CPUExecutionProvider"]
    )
    (name,) = [value.name for value in session.get_inputs()]
    np.testing.assert_allclose(
        session.run(None, {name: x.numpy()})[0], array(other(x)[0]), rtol=0, atol=1e-6
    )


class Packing(nn.Module):
    """A layer that is given a PackedSequence."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, C, proj_size=P)

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.full((x.shape[1],), x.shape[0]))
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0])[0]


def test_packed_sequences_are_refused(tmp_path):
    with pytest.raises(ModelError, match="exported for padded sequences only"):
        lo.export(
            Packing().eval(),
            torch.randn(7, 2, WIDTH),
            tmp_path / "m.onnx",
            exporter="torchscript",
            dynamic_axes={},
        )


# ---- integers ----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Two bidirectional layers, the mean over time, a linear layer."""

    def __init__(self, fast=False):
        super().__init__()
        kind = FastUBLSTMP if fast else UBLSTMP
        self.first, self.second = kind(8, 4, 6), kind(8, 4, 6)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.second(self.first(x)[0])[0].mean(dim=1))


def quantized(model, args, path, **settings):
    lo.export(model, args, path, exporter="torchscript", output_names=settings.pop("outputs", None))
    return lo.quantize(path, **settings)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "platform, fast",
    (
        ("generic", False),
        ("venus", True),
        pytest.param("venus", False, marks=pytest.mark.slow),
        pytest.param("arcs", False, marks=pytest.mark.slow),
        pytest.param("venusA", True, marks=pytest.mark.slow),
    ),
)
def test_net_in_integers(platform, fast, tmp_path):
    """Both directions are the chip's own LSTM, whatever the length: nothing is reversed, unrolled
    or left in float.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 24, 8)).astype(np.float32)
    net = seeded(Net, fast)
    done = quantized(
        net, torch.randn(2, 24, 8), tmp_path / "net.onnx", calib=x, platform=platform, effort="fast"
    )
    assert done.report.integer_macs == 1
    assert not done.report.float_nodes
    assert done.report.chip_ready or not done.report.is_chip
    nodes = [node for node in done.graph.graph if node.op_type == "LSTMInt"]
    assert [ir.get_attr(node, "go_forward") for node in nodes] in (
        [1, 0, 1, 0],
        [0, 1, 0, 1],
        [1, 0, 0, 1],
        [0, 1, 1, 0],
    )
    test = rng.standard_normal((16, 24, 8)).astype(np.float32)
    (got,) = done.session().run(None, {"x": test})
    want = array(net(torch.from_numpy(test)))
    assert 20 * np.log10(np.linalg.norm(want) / np.linalg.norm(got - want)) > 25


@pytest.mark.slow
@pytest.mark.parametrize("platform", mark_rest_slow(1, ("generic", "venus")))
def test_states_go_round(platform, tmp_path):
    """States in and out: integers, and calls in a row are near one run over all steps in torch."""
    rng = np.random.default_rng(0)
    model = seeded(Stateful)
    calls = [{"x": rng.standard_normal((16, 4, WIDTH)).astype(np.float32)} for _ in range(6)]
    example = (torch.randn(2, 4, WIDTH), torch.randn(2, P), torch.randn(2, C))
    done = quantized(
        model,
        example,
        tmp_path / "s.onnx",
        calib=lambda: iter(calls),
        platform=platform,
        effort="fast",
        state={"h_out": "h", "c_out": "c"},
        outputs=["y", "h_out", "c_out"],
    )
    assert done.report.integer_macs == 1
    assert not done.report.float_nodes
    x = rng.standard_normal((4, 12, WIDTH)).astype(np.float32)
    stream = done.session().stream({"h_out": "h", "c_out": "c"})
    got = np.concatenate(
        [stream.run(["y"], {"x": x[:, at : at + 4]})[0] for at in range(0, 12, 4)], axis=1
    )
    want = array(model(torch.from_numpy(x), torch.zeros(4, P), torch.zeros(4, C))[0])
    assert 20 * np.log10(np.linalg.norm(want) / np.linalg.norm(got - want)) > 20
