"""Law: the bridge has the simulator's integers, tensor by tensor; float islands agree to 1e-5 of
the largest number.

Each step is exact from the simulator's own tensors. In a whole walk an island's last bit can tip a
Quant behind it. Everything that other tests build is run: families of nets, single operators,
attention; on every platform, one sample and several. Recurrent layers: `test_bridge_recurrent`.
"""

import itertools
import os
from pathlib import Path

import numpy as np
import onnx_ir as oir
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.quantization.lower import lower
from lingeronnx.quantization.partition import Partition
from lingeronnx.runtime.integer.runner import IntegerRunner
from lingeronnx.runtime.runners import FloatFallback
from lingeronnx.runtime.session import Session
from lingeronnx.targets import PLATFORMS, get_target
from tests.case_selection import mark_rest_slow, pair_in_rotation
from tests.nets import NETS, Net, residual, samples
from tests.ops import test_recurrent as recurrent
from tests.ops.test_breadth import CASES
from tests.passes.test_attention import D, T, attention
from tests.torch.fake_quant.fake_quant_checks import tensor

torch = pytest.importorskip("torch")

from lingeronnx.torch.fake_quant.common import FakeQuantContext  # noqa: E402
from lingeronnx.torch.qat.qat_module import QatModule  # noqa: E402

ROWS = [target.name for target in PLATFORMS]
ISLANDS = 1e-5
#: Families of nets that are always run, on these platforms.
FEW = list(itertools.product((NETS[1], NETS[-1]), ("generic", "arcs")))


def tensors(feed):
    return {name: torch.from_numpy(array) for name, array in feed.items()}


def compare(got, want, behind=()):
    """Assert that the streams are the same integers, and nearly the same reals; return the number
    of integer tensors.

    got : name -> tensor. want : of a session's taps, (name, array, scale). behind : tensors that an
    island's reals reach; a Quant rounds those, so that one number in a thousand may be off by one
    count.
    """
    count = 0
    for name, array, scale in want:
        if name not in got:
            assert scale is None, (
                f"{name} is computed nowhere"
            )  # inside an island, or a constant or an input
            continue
        have = got[name].detach().numpy()
        assert have.shape == array.shape, name
        if array.dtype.kind == "i":
            off = np.abs(have.astype(np.int64) - array)
            if name in behind:
                assert off.max(initial=0) <= 1, name
                assert np.count_nonzero(off) <= max(off.size // 1000, 1), name
            else:
                assert not off.any(), name
            count += 1
        else:
            np.testing.assert_allclose(
                have,
                array,
                rtol=0,
                atol=ISLANDS * max(np.abs(array).max(initial=0), 1e-9),
                err_msg=name,
            )
    return count


def behind_fallbacks(network):
    """Return the tensors that follow from what a float island computes."""
    found = set()
    for step in network.steps:
        if isinstance(step.kernel, FloatFallback) or found.intersection(step.inputs):
            found.update(step.outputs)
    return found


def step_by_step(bridge, want, feed):
    """Assert that each step by itself gives the simulator's integers from the simulator's own
    tensors.
    """
    network, parameters = bridge.network, bridge._quantize_parameters()
    known = {name: tensor(array) for name, array, _ in want} | tensors(feed)
    known |= {name: tensor(array) for name, array in network.constants.items()}
    stream = {name: (name, array, scale) for name, array, scale in want}
    for step in network.steps:
        at = FakeQuantContext(
            step.dtypes, {i: parameters[name] for i, name in step.parameter_sources.items()}
        )
        results = step.compute(step.kernel, [known[name] for name in step.inputs], at)
        compare(
            dict(zip(step.outputs, results, strict=True)),
            [stream[name] for name in step.outputs if name in stream],
        )


def bridged(model, row, feed, **settings):
    """Return (what `quantize` gives, its bridge)."""
    result = quantize(model, feed, platform=row, effort="fast", **settings)
    return result, QatModule(result.float_graph, result.plan, get_target(row), feed)


def follows(model, row, feed, **settings):
    """Assert the law for one sample and for five, with gradients on and off.

    What a chip's packer wants besides changes no integer: inner tensors are compared before,
    outputs behind.
    """
    result, bridge = bridged(model, row, feed, **settings)
    specs, inner = (
        result.session().inputs,
        Session(lower(bridge.partition, bridge.plan, get_target(row)).graph),
    )
    for count in (1, 5):
        some = {spec.name: spec.slice_samples(feed[spec.name], 0, count) for spec in specs}
        want = list(inner.taps(some))
        got = dict(bridge.train(count == 5).integers(tensors(some)))
        integer = compare(got, want, behind_fallbacks(bridge.network))
        if count == 1:
            step_by_step(bridge, want, some)
        assert integer >= sum(scale is not None for _, _, scale in want)
        outputs = bridge(tensors(some))
        for value, array in zip(
            result.graph.graph.outputs, result.session().run(None, some), strict=True
        ):
            assert outputs[value.name].shape == array.shape
            if all(
                np.array_equal(got[n].detach().numpy(), a)
                for n, a, scale in want
                if scale is not None
            ):
                np.testing.assert_allclose(
                    outputs[value.name].detach().numpy(),
                    array,
                    rtol=0,
                    atol=ISLANDS * np.abs(array).max(),
                )
    return bridge


def test_a_curve_behind_16_bits():
    """A chip's layer that writes 16 bits for a sigmoid."""
    net = Net(2, 5, 5, seed=8)
    f = net.node("Flatten", net.node("Relu", net.conv("x", (3, 2, 3, 3))), out="f")
    model = net.graph(
        net.linear(net.node("Sigmoid", net.linear(f, (27, 6), out="z")), (6, 4), out="y")
    )
    bridge = follows(model, "venus", samples(model), overrides={"z": {"out_bits": 16}})
    assert bridge.plan.tensors["z"].bits == 16


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("net", "row"),
    mark_rest_slow(4, sorted(itertools.product(NETS, ROWS), key=lambda pair: pair not in FEW)),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_families(net, row):
    bridge = follows(net(), row, samples(net()))
    assert bridge.network.is_per_sample


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("row", ROWS)
def test_operators(row, name):
    """Also what a platform leaves in float."""
    make, _ = CASES[name]
    follows(make(), row, samples(make()), fit=False)


@pytest.mark.slow
@pytest.mark.parametrize("bits", (8, 16))
@pytest.mark.parametrize("mode", ("max-value", "q-value"))
@pytest.mark.parametrize("net", NETS, ids=lambda net: net.__name__)
def test_widths_and_modes_of_the_generic_target(net, mode, bits):
    """16-bit operands have sums beyond float32; ratios have 31 bits."""
    follows(net(), "generic", samples(net()), mode=mode, bits=bits)


@pytest.mark.slow
@pytest.mark.parametrize("opset", (13, 17))
@pytest.mark.parametrize("row", ROWS)
def test_attention(row, opset):
    follows(
        attention(opset),
        row,
        {"x": np.random.default_rng(0).standard_normal((32, T, D)).astype(np.float32)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_a_layer_that_keeps_its_cell(row):
    model = recurrent.with_cell()
    follows(model, row, {"x": recurrent.inputs(model)})


# ---- samples ----------------------------------------------------------------------------------------------------


def test_graphs_that_mix_samples(monkeypatch):
    """They go sample by sample, and the batch is what the samples give."""
    model = residual()
    feed = samples(model, 5)
    result, bridge = bridged(model, "generic", feed)
    monkeypatch.setattr(bridge.network, "is_per_sample", False)
    compare(dict(bridge.integers(tensors(feed))), result.session().taps(feed))
    y = bridge(tensors(feed))["y"]
    y.sum().backward()
    assert y.shape == (5, 4)


@pytest.mark.slow
def test_batch_on_another_axis():
    """A graph output whose batch is axis 1 keeps it there."""
    net = Net(9, 6, seed=4)
    turned = net.node("Transpose", "x", perm=[1, 0, 2])
    _, h = recurrent.layer(net, "LSTM", turned, 6, 5, "bidirectional")
    model = net.graph(net.node("Identity", h, out="y"))
    feed = {"x": recurrent.inputs(model)[:4]}
    result, bridge = bridged(model, "arcs", feed)
    (want,) = result.session().run(None, feed)
    got = bridge(tensors(feed))["y"].detach().numpy()
    assert got.shape == (2, 4, 5)
    np.testing.assert_allclose(got, want, rtol=0, atol=ISLANDS)


# ---- parameters -------------------------------------------------------------------------------------------------

#: Names that exporters and people give: a module's path, what a module itself has, marks of all kinds, none at all.
NAMES = (
    "model.0.weight",
    "model.0",
    "forward",
    "plan",
    "/a/b/w:0",
    "..",
    "a.",
    ".b",
    "training",
    "ß w",
    "network.x",
)


def renamed(model, names):
    """Give the initializers other names, those that train first."""
    values = sorted(model.graph.initializers.values(), key=lambda v: -len(ir.get_shape(v) or ()))
    for value, name in zip(values, names, strict=False):
        ir.rename_initializer(model, value, name)
    return model


def test_state_dict_has_the_graphs_names():
    """Whatever they are, they come back; a name too many or too few is an error."""
    model = renamed(residual(), NAMES)
    feed = samples(model, 8)
    result, bridge = bridged(model, "generic", feed)
    state = bridge.state_dict()
    assert (
        set(NAMES)
        <= state.keys()
        == bridge.parameter_of.keys()
        == dict(bridge.named_parameters()).keys()
    )
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter += 0.05 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(0)
            )
    other = QatModule(result.float_graph, result.plan, get_target("generic"), feed)
    assert not torch.equal(other(tensors(feed))["y"], bridge(tensors(feed))["y"])
    other.load_state_dict(bridge.state_dict())
    assert torch.equal(other(tensors(feed))["y"], bridge(tensors(feed))["y"])
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\).*other\.name"):
        other.load_state_dict({**state, "other.name": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*model\.0\.weight"):
        other.load_state_dict({name: t for name, t in state.items() if name != "model.0.weight"})


@pytest.mark.parametrize("row", ("generic", "venus"))
def test_other_weights_are_rounded_as_lowering_rounds_them(row):
    """After a change of the parameters, the integers are those of the graph with these weights
    under the same plan.
    """
    model = residual()
    feed = samples(model)
    result, bridge = bridged(model, row, feed)
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter *= 1 + 0.3 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(0)
            )
    other = result.float_graph.clone()
    for name, array in bridge.get_weights().items():
        assert not np.array_equal(array, ir.const_value(other.graph.initializers[name]))
        other.graph.initializers[name].const_value = oir.tensor(array, name=name)
    runner = IntegerRunner(
        lower(
            Partition.build(other, result.plan.floats, get_target(row)),
            result.plan,
            get_target(row),
        ).graph
    )
    assert compare(dict(bridge.integers(tensors(feed))), runner.run(feed)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("row", ("generic", "venusA"))
def test_every_parameter_has_a_gradient(row):
    """Finite, and not nothing: steps against it lower a loss."""
    model = residual()
    feed = samples(model)
    _, bridge = bridged(model, row, feed)
    target = bridge(tensors(feed))["y"].detach() * 0.5

    def loss():
        return (bridge(tensors(feed))["y"] - target).square().mean()

    before = loss()
    before.backward()
    grads = {name: p.grad for name, p in bridge.parameter_of.items()}
    assert grads
    for name, grad in grads.items():
        assert grad is not None, name
        assert torch.isfinite(grad).all(), name
        assert grad.any(), name
    optimizer = torch.optim.Adam(bridge.parameters(), lr=1e-3)
    found = []
    for _ in range(15):
        optimizer.zero_grad()
        found.append(loss())
        found[-1].backward()
        optimizer.step()
    assert min(found) < 0.8 * before


# ---- trained models ---------------------------------------------------------------------------------------------


def trained():
    """Return the models at hand: of the folder LINGERONNX_MODELS, or of the one beside the
    repository.
    """
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "models"
    return sorted(Path(os.environ.get("LINGERONNX_MODELS", beside)).glob("*.onnx"))


@pytest.mark.skipif(
    not trained(), reason="no trained models are at hand: LINGERONNX_MODELS names no folder of them"
)
@pytest.mark.parametrize(
    ("path", "row"),
    pair_in_rotation(sorted(trained(), key=lambda path: "gru" not in path.stem), ROWS),
    ids=lambda value: getattr(value, "stem", value),
)
def test_trained_models(path, row):
    """Real weights; inputs of the size that the model's statistics expect are not needed for the
    law.

    The GRU comes first, for generic: written out on chips it takes long, and test_network_recurrent
    has small ones.
    """
    model = ir.load(path)
    follows(model, row, samples(model, 8))
