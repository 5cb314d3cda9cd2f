"""The calls of a training library: what a module gives in evaluation is what its integer graph
gives, to the bit.
"""

import copy
import io
import pickle

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError, ModelError
from tests.case_selection import mark_rest_slow

QValue, MaxValue = lo.torch.QuantMode.QValue, lo.torch.QuantMode.MaxValue


class Small(nn.Module):
    """Conv-BN-Relu, max pool, a residual, linear."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.again = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.fc = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.fc(torch.flatten(x + self.again(x), 1))


class Up(nn.Module):
    """A transposed convolution in groups with a batch norm behind it, and a 1-d one of a line."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 8, 2, 2, groups=2)
        self.norm = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 4, 3, 2, 1)

    def forward(self, x):
        return self.down(torch.relu(self.norm(self.up(x))))


class Sequence(nn.Module):
    """An LSTM and a linear layer on each step."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        return self.fc(self.lstm(x)[0])


class Encoder(nn.Module):
    """A transformer block."""

    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        return self.block(x)


class Words(nn.Module):
    """An embedding and a GRU, which take integers."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.gru = nn.GRU(8, 6, batch_first=True)
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(self.gru(self.words((x * 3).long().clamp(0, 10)))[0][:, -1])


class Structured(nn.Module):
    """Inputs by keyword, outputs in a dict with a number among them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, *, other):
        y = self.a(x) + self.b(other["z"])
        return {"sum": y, "pair": (self.a(y), 3)}


class Shared(nn.Module):
    """One convolution in two places, a batch norm behind the first."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.conv(torch.relu(self.norm(self.conv(x))))


def made(kind, shape, seed=0):
    """Return a net with other than fresh statistics, and inputs and targets for it."""
    torch.manual_seed(seed)
    net = kind()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return net, torch.randn(6, *shape)


def trained(net, x, steps=2, rate=0.05):
    """Train `net` towards zeros for some steps, and put it into evaluation mode."""
    optimizer = torch.optim.SGD(net.parameters(), rate)
    net.train()
    for _ in range(steps):
        loss = (net(x) - 0.5).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def numbers(net, *xs):
    with torch.no_grad():
        return net(*xs).numpy()


def simulated(path, *xs):
    session = lo.Session(path)
    return session.run(
        None, {v.name: x.numpy() for v, x in zip(session.get_inputs(), xs, strict=True)}
    )[0]


@pytest.fixture(scope="module")
def done():
    """A net that was trained for two steps for venus, its inputs, and the float checkpoint."""
    net, x = made(Small, (3, 8, 8))
    checkpoint = copy.deepcopy(net.state_dict())
    assert lo.torch.init(net, mode=QValue, out_bits=8) is net
    return trained(net, x), x, checkpoint


# ---- the law -----------------------------------------------------------------------------------------------------


def test_evaluation_is_the_simulator(done, tmp_path):
    """With out_bits=8 what eval gives is what the integer graph gives."""
    net, x, _ = done
    result = lo.torch.export(net, x, tmp_path / "net.onnx")
    assert result.report.chip_ready
    assert result.report.integer_macs == 1
    other = torch.randn(3, 3, 8, 8)
    for some in (x, other):
        np.testing.assert_array_equal(numbers(net, some), simulated(tmp_path / "net.onnx", some))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind, shape, row",
    mark_rest_slow(
        3,
        (
            (Up, (4, 6, 6), "venus"),
            (Sequence, (4, 6), "arcs"),
            (Words, (5,), "generic"),
            (Sequence, (4, 6), "venus"),
            (Encoder, (5, 16), "arcs"),
            (Encoder, (5, 16), "generic"),
        ),
    ),
)
def test_other_layers(kind, shape, row, tmp_path):
    """The same of transposed convolutions, recurrent layers, attention; every parameter is
    trained.
    """
    net, x = made(kind, shape)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    kinds = (
        nn.Conv2d,
        nn.ConvTranspose2d,
        nn.Linear,
        nn.LSTM,
        nn.GRU,
        nn.Embedding,
        nn.TransformerEncoderLayer,
    )
    lo.torch.init(net, kinds, QValue, out_bits=8, platform=row, example_inputs=x)
    trained(net, x)
    assert all(not torch.equal(p, before[name]) for name, p in net.named_parameters())
    lo.torch.export(net, x, tmp_path / "net.onnx")
    np.testing.assert_array_equal(numbers(net, x), simulated(tmp_path / "net.onnx", x))


def test_structured_calls():
    """Arguments by keyword and results in dicts come and go as in the net itself."""
    torch.manual_seed(0)
    net, x, z = Structured(), torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad():
        want = net(x, other={"z": z})
        lo.torch.init(net, mode=QValue, out_bits=8)
        got = net.eval()(x, other={"z": z})
    assert list(got) == ["sum", "pair"]
    assert got["pair"][1] == 3
    np.testing.assert_allclose(got["sum"], want["sum"], atol=0.1)
    np.testing.assert_allclose(got["pair"][0], want["pair"][0], atol=0.1)


def test_what_is_not_trained_is_told(tmp_path):
    """A batch norm behind one of two uses of a convolution gives that use weights of its own, which
    stay.
    """
    net, x = made(Shared, (3, 6, 6))
    with pytest.warns(
        UserWarning, match=r"not trained.*norm.weight, norm.bias, constants of /conv/Conv$"
    ):
        lo.torch.init(net, mode=QValue, out_bits=8, example_inputs=x)
    trained(net, x)
    lo.torch.export(net, x, tmp_path / "net.onnx")
    np.testing.assert_array_equal(numbers(net, x), simulated(tmp_path / "net.onnx", x))


def test_max_value_is_generic(tmp_path):
    """MaxValue means generic, with scales that follow to the last bit."""
    net, x = made(Small, (3, 8, 8))
    lo.torch.init(net, mode=MaxValue, out_bits=8)
    trained(net, x)
    result = lo.torch.export(net, x, tmp_path / "net.onnx")
    assert result.platform.name == "generic"
    assert not all(q.power_of_two for q in result.plan.tensors.values())
    np.testing.assert_array_equal(numbers(net, x), simulated(tmp_path / "net.onnx", x))


def test_float_outputs(tmp_path):
    """out_bits=None: only the chosen modules are integer, what stands between them is float."""
    net, x = made(Small, (3, 8, 8))
    lo.torch.init(net, mode=MaxValue)
    trained(net, x)
    lo.torch.export(net, x, tmp_path / "net.onnx")
    kinds = {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    assert {"Conv2dInt", "LinearInt", "Relu", "Add", "MaxPool"} <= kinds
    assert "iqAdd" not in kinds
    np.testing.assert_allclose(numbers(net, x), simulated(tmp_path / "net.onnx", x), atol=1e-5)


# ---- parameters --------------------------------------------------------------------------------------------------


def test_parameters_stay_the_same_objects():
    """An optimizer that was made before init trains what init made of the net, the folded batch
    norm too.
    """
    net, x = made(Small, (3, 8, 8))
    held = dict(net.named_parameters())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    lo.torch.init(net, mode=QValue, out_bits=8)
    first = net(x)
    first.square().mean().backward()
    optimizer.step()
    now = dict(net.named_parameters())
    assert list(now) == list(held)
    assert all(now[name] is held[name] for name in held)
    assert all(p.grad is not None and p.grad.any() for p in held.values())
    assert not torch.equal(net(x), first)


def test_gradients_are_straight_through_with_clipping():
    """Against the formula in numpy: the gradient of a linear layer, zero where input, weight or
    output is cut.
    """
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 3))
    x = torch.randn(5, 4)
    lo.torch.init(net, mode=QValue, out_bits=8, example_inputs=x)
    net.eval()  # scales stay
    with torch.no_grad():
        net[0].weight[1] *= 3
        net[0].weight[0, 2] = 50.0  # cut off
    big = (4 * x).requires_grad_()
    y = net(big)
    pull = torch.randn_like(y)
    (y * pull).sum().backward()
    plan = lo.torch.export(net, x, io.BytesIO()).plan.tensors
    sx, sw, sy = plan["input"].scale, plan["0.weight"].scale, plan["output"].scale
    w, b = (p.detach().double().numpy() for p in net[0].parameters())
    real = big.detach().double().numpy()

    def held(v, s):
        return np.clip(np.floor(v * s + 0.5), -128, 127) / s

    def inside(v, s):
        return (v * s >= -128.5) & (v * s <= 127.5)

    acc = held(real, sx) @ held(w, sw).T + np.floor(b * sx * sw + 0.5) / (sx * sw)
    through = pull.numpy() * inside(acc, sy)
    assert not inside(w, sw).all()
    assert not inside(real, sx).all()
    assert not inside(acc, sy).all()
    np.testing.assert_allclose(
        net[0].weight.grad, (through.T @ held(real, sx)) * inside(w, sw), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(net[0].bias.grad, through.sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        big.grad, (through @ held(w, sw)) * inside(real, sx), rtol=1e-5, atol=1e-6
    )


def test_scales_follow_in_training_and_stay_in_evaluation():
    """Ten times larger inputs: the scale of the input falls while training, and not in
    evaluation.
    """
    net, x = made(Small, (3, 8, 8))
    lo.torch.init(net, mode=MaxValue, out_bits=8)

    def scale():
        return lo.torch.export(net, x, io.BytesIO()).plan.tensors["x"].scale

    net.train()
    net(x)
    first = scale()
    assert first == pytest.approx(127 / x.abs().max().item(), rel=1e-3)
    net.eval()
    numbers(net, 10 * x)
    assert scale() == first
    net.train()
    net(10 * x)  # a tenth of the way
    top = x.abs().max().item()
    assert scale() == pytest.approx(127 / (0.9 * top + 0.1 * 10 * top), rel=1e-3)


def test_load_state_dict_takes_the_float_keys(done):
    """The float checkpoint fits by its keys after init, and a trained one gives the same scales
    back.
    """
    net, x, checkpoint = done
    again, _ = made(Small, (3, 8, 8), seed=1)
    lo.torch.init(again, mode=QValue, out_bits=8)
    assert not any(again.load_state_dict(checkpoint))
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in checkpoint.items())
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    np.testing.assert_array_equal(numbers(again.eval(), x), numbers(net, x))


def test_a_checkpoint_of_another_init(done):
    """Scales that belong to other settings are refused."""
    net, x, _ = done
    other, _ = made(Small, (3, 8, 8))
    lo.torch.init(other, mode=MaxValue, out_bits=8)
    other.load_state_dict(net.state_dict())
    with pytest.raises(ConfigError, match="the checkpoint was saved with other settings of init"):
        other(x)


def test_copies(done):
    """A deep copy and a pickled net give the same numbers."""
    net, x, _ = done
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(numbers(other, x), numbers(net, x))


def test_calibrated_scales_stay():
    """With calib the scales are the calibrator's, and training leaves them."""
    net, x = made(Small, (3, 8, 8))
    lo.torch.init(net, mode=QValue, out_bits=8, calib={"x": x.numpy()}, example_inputs=x)
    plan = lo.torch.export(net, x, io.BytesIO()).plan
    trained(net, 5 * x, rate=1.0)
    assert lo.torch.export(net, x, io.BytesIO()).plan == plan


# ---- which modules -----------------------------------------------------------------------------------------------


def test_print_shows_what_is_quantized():
    """disable_quant leaves a module out; the others have counterparts in their places."""
    net, x = made(Small, (3, 8, 8))
    assert lo.torch.disable_quant(net.fc) is net.fc
    lo.torch.init(net, mode=QValue, out_bits=8, example_inputs=x)
    text = str(net)
    assert "(conv): QuantizedConv2d(3, 8," in text
    assert "data_bits=8, parameter_bits=8, out_bits=8" in text
    assert "(fc): Linear(" in text
    assert isinstance(net.conv, nn.Conv2d)
    result = lo.torch.export(net, x, io.BytesIO())
    assert [node.op_type for node in result.report.host_part] == ["Gemm"]
    assert result.report.chip_ready
    trained(net, x)
    assert net.fc.weight.grad.any()


def test_print_shows_it_before_the_first_call():
    """What is chosen is shown at once; what the trace then leaves in float is shown as it is."""
    net, x = made(Small, (3, 8, 8))
    lo.torch.init(net, mode=QValue, out_bits=8)
    assert "(conv): QuantizedConv2d(3, 8," in str(net)
    net(x)
    assert "(conv): QuantizedConv2d(3, 8," in str(net)


def test_types_that_fit_nothing_are_told():
    net, _ = made(Small, (3, 8, 8))
    with pytest.warns(
        UserWarning,
        match=r"quant_modules \(LSTM\) match no module; the net has BatchNorm2d, Conv2d, Lin",
    ):
        lo.torch.init(net, nn.LSTM)


def test_completion_lists_the_calls():
    assert {"init", "export", "QuantMode", "LSTMP"} <= {*dir(lo.torch)}


def test_only_the_given_types():
    """quant_modules: what is none of these types stays in float, and so does what reads it."""
    net, x = made(Small, (3, 8, 8))
    lo.torch.init(net, nn.Linear, QValue, out_bits=8, example_inputs=x)
    result = lo.torch.export(net, x, io.BytesIO())
    assert [n.op_type for n in result.graph.graph if n.op_type.endswith("Int")] == ["LinearInt"]


def test_quant_module_gives_own_widths(tmp_path):
    """A linear layer of 16 bits with a 32 bit output beside layers of 8."""
    net, x = made(Small, (3, 8, 8))
    lo.torch.quant_module(net.fc, data_bits=16, parameter_bits=16, out_bits=32)
    lo.torch.init(net, mode=MaxValue, out_bits=8)
    trained(net, x)
    plan = lo.torch.export(net, x, tmp_path / "net.onnx").plan.tensors
    assert (plan["fc.weight"].bits, plan["conv.weight"].bits, plan["output"].bits) == (16, 8, 32)
    np.testing.assert_array_equal(numbers(net, x), simulated(tmp_path / "net.onnx", x))


def test_quant_module_where_a_chip_has_no_such_width():
    """One line, at init."""
    net, _ = made(Small, (3, 8, 8))
    lo.torch.quant_module(net.fc, data_bits=16, parameter_bits=16, out_bits=32)
    with pytest.raises(ConfigError, match="quant_module of 'fc': data_bits 16; venus supports 8$"):
        lo.torch.init(net, mode=QValue)


# ---- trace_layers ------------------------------------------------------------------------------------------------


def test_trace_layers_folds(done):
    """The float net gives the same with its batch norm folded, whose statistics stay in
    training.
    """
    net, x = made(Small, (3, 8, 8))
    want = numbers(net.eval(), x)
    assert lo.torch.trace_layers(net, net, x) is net
    assert "(conv): FoldedConv2d(" in str(net)
    assert "(norm): FoldedBatchNorm2d(" in str(net)
    np.testing.assert_allclose(numbers(net, x), want, atol=1e-5)
    np.testing.assert_array_equal(numbers(net.train(), x), numbers(net.eval(), x))
    lo.torch.init(net, mode=QValue, out_bits=8)
    assert "QuantizedConv2d" in str(net)  # traced on what trace_layers was given


def test_trace_layers_of_a_part():
    """Only what is traced is folded; a second call is an error, as is one that does not come
    first.
    """
    net = nn.Sequential(made(Up, (4, 6, 6))[0], made(Up, (4, 6, 6))[0])
    x = torch.randn(2, 4, 6, 6)
    lo.torch.trace_layers(net, net[1], x)
    assert "FoldedConvTranspose2d" not in str(net[0])
    assert "FoldedConvTranspose2d" in str(net[1])
    with pytest.raises(
        ConfigError, match="trace_layers was already called for this model; call it only once"
    ):
        lo.torch.trace_layers(net, net[0], x)
    late = made(Up, (4, 6, 6))[0]
    lo.torch.normalize_layers(late)
    with pytest.raises(
        ConfigError,
        match="trace_layers must be the first call: module '(up|down)' already has settings",
    ):
        lo.torch.trace_layers(late, late, x)


def test_trace_layers_keywords():
    """What an integer graph always has cannot be turned off."""
    net, x = made(Small, (3, 8, 8))
    for name in ("fuse_bn", "ahead_conv_relu", "ahead_bn_relu", "ahead_linear_relu"):
        with pytest.raises(ConfigError, match=f"trace_layers: {name}=False is not supported"):
            lo.torch.trace_layers(net, net, x, **{name: False})
    with pytest.raises(ConfigError, match="is not part of the root model"):
        lo.torch.trace_layers(net, nn.Linear(2, 2), x)


class Untraceable(nn.Module):
    """A layer without an ONNX form."""

    def forward(self, x):
        return torch.linalg.qr(x)[0]


def test_what_cannot_be_traced_is_named():
    """The error names the module: at init with example inputs, else at the first call."""
    x = torch.randn(4, 4)
    with pytest.raises(ModelError, match="module '1'"):
        lo.torch.init(nn.Sequential(nn.Linear(4, 4), Untraceable()), example_inputs=x)
    net = lo.torch.init(nn.Sequential(nn.Linear(4, 4), Untraceable()))
    with pytest.raises(ModelError, match="module '1'"):
        net(x)


# ---- constraint training -----------------------------------------------------------------------------------------


def test_normalize_layers_clamps_in_forward():
    """Weights, biases and outputs are clamped, their gradients with them; exempt layers are not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    with torch.no_grad():
        for layer in net:
            layer.weight *= 4
            layer.bias += 2
    x, w = (
        3 * torch.randn(5, 3),
        [(p.weight.detach().clone(), p.bias.detach().clone()) for p in net],
    )
    lo.torch.disable_normalize(net[2])
    lo.torch.normalize_module(
        net[1], normalize_weight_value=0.5, normalize_bias_value=None, normalize_output_value=1
    )
    lo.torch.normalize_layers(
        net, normalize_weight_value=1, normalize_bias_value=2, normalize_output_value=4
    )
    want = torch.clamp(x @ w[0][0].clamp(-1, 1).T + w[0][1].clamp(-2, 2), -4, 4)
    want = torch.clamp(want @ w[1][0].clamp(-0.5, 0.5).T + w[1][1], -1, 1) @ w[2][0].T + w[2][1]
    np.testing.assert_allclose(net(x).detach(), want, rtol=1e-5, atol=1e-5)
    net(x).sum().backward()
    assert not net[0].weight.grad[net[0].weight.abs() > 1].any()
    assert [type(layer).__name__ for layer in net] == [
        "NormalizeLinear",
        "NormalizeLinear",
        "Linear",
    ]
    assert list(net.state_dict()) == [
        f"{i}.{kind}" for i in range(3) for kind in ("weight", "bias")
    ]


@pytest.mark.slow
def test_init_carries_the_clamps_over(tmp_path):
    """A clamped output holds the scale, clamped weights are what is written."""
    net, x = made(Small, (3, 8, 8))
    with torch.no_grad():
        net.again.weight *= 20
        net.fc.weight[0, 0] = 30.0
    lo.torch.disable_normalize(net.fc)
    lo.torch.normalize_layers(net, normalize_weight_value=1, normalize_output_value=0.5)
    lo.torch.normalize_module(net.fc, normalize_weight_value=0.25)
    lo.torch.init(net, mode=MaxValue, out_bits=8)
    trained(net, x)
    result = lo.torch.export(net, x, tmp_path / "net.onnx")
    plan, held = (
        result.plan.tensors,
        {v.name: v for v in onnx.load(tmp_path / "net.onnx").graph.initializer},
    )
    largest = np.abs(onnx.numpy_helper.to_array(held["fc.weight"])).max() / plan["fc.weight"].scale
    assert largest <= 0.25 + 1e-6
    factor = (
        max(result.plan.transforms["/again/Conv_output_0"].factor, default=1)
        if result.plan.transforms
        else 1
    )
    assert plan["/again/Conv_output_0"].scale >= 127 / (0.5 * factor) * (1 - 1e-3)
    np.testing.assert_array_equal(numbers(net, x), simulated(tmp_path / "net.onnx", x))


def test_dynamic_percent_is_for_looking():
    """A share of the values holds in forward; init refuses it."""
    net = nn.Sequential(nn.Linear(50, 1, bias=False))
    lo.torch.normalize_layers(net, normalize_output_value=None, normalize_dynamic_percent=0.9)
    limit = np.sort(np.abs(net[0].weight.detach().numpy().reshape(-1)))[44]
    x = torch.eye(50)
    inner = np.clip(net[0].weight.detach().numpy()[0], -limit, limit)
    top = np.sort(np.abs(inner))[44]
    np.testing.assert_allclose(net(x).detach().numpy()[:, 0], np.clip(inner, -top, top), rtol=1e-6)
    with pytest.raises(
        ConfigError, match="normalize_dynamic_percent, which is for finding abnormal layers"
    ):
        lo.torch.init(net)


@pytest.mark.parametrize(
    "call, told",
    (
        (lambda net: lo.torch.normalize_layers(net, (nn.LSTM,)), "LSTM cannot be clamped"),
        (lambda net: lo.torch.normalize_module(nn.ReLU()), "a ReLU cannot be clamped"),
        (
            lambda net: lo.torch.normalize_layers(net, normalize_weight_value=-1),
            "normalize_weight_value -1",
        ),
        (
            lambda net: lo.torch.normalize_layers(net, normalize_dynamic_percent=99),
            "normalize_dynamic_percent 99",
        ),
        (
            lambda net: lo.torch.init(net, mode=MaxValue, platform="venus"),
            "QuantMode.MaxValue on venus: the chip supports",
        ),
        (lambda net: lo.torch.init(net, mode="QValue"), "mode 'QValue' is not a QuantMode"),
        (lambda net: lo.torch.init(net, ("Conv2d",)), "quant_modules contains 'Conv2d'"),
        (lambda net: lo.torch.init(net, data_bits=16, mode=QValue), "bits 16 on platform venus"),
        (
            lambda net: lo.torch.init(net, out_bits=12),
            "init: out_bits 12; generic supports 4, 8, 16, 32 or None",
        ),
        (lambda net: lo.torch.init("net"), "a str is not a torch.nn.Module"),
        (lambda net: lo.torch.disable_quant(3), "disable_quant: a int is not a torch.nn.Module"),
    ),
)
def test_refused(call, told):
    """One line each."""
    with pytest.raises(ConfigError, match=told) as error:
        call(nn.Sequential(nn.Linear(2, 2)))
    assert "\n" not in str(error.value)


def test_calls_after_init(done):
    """init is the last call; the others say so."""
    net, x, _ = done
    for call in (
        lo.torch.disable_quant,
        lo.torch.quant_module,
        lo.torch.normalize_layers,
        lo.torch.disable_normalize,
    ):
        with pytest.raises(ConfigError, match=f"{call.__name__} must be called before init"):
            call(net)
    with pytest.raises(ConfigError, match="normalize_module must be called before init"):
        lo.torch.normalize_module(net.conv)
    for call in (lambda: lo.torch.init(net), lambda: lo.torch.trace_layers(net, net, x)):
        with pytest.raises(ConfigError, match="is already initialised; init must be the last call"):
            call()
