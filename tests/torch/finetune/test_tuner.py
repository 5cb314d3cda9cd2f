"""Fine-tuning end to end on small nets: it helps, it holds what it was told to hold, it can be
resumed.
"""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.api.finetuning import replace_initializers
from lingeronnx.ir import ir
from lingeronnx.quantization import plan_model, prepare_model
from lingeronnx.quantization.lower import lower
from tests import nets

torch = pytest.importorskip("torch")

from lingeronnx.torch.finetune import Recipe, Tuner  # noqa: E402
from lingeronnx.torch.finetune import tuner as training  # noqa: E402
from lingeronnx.torch.finetune.samples import Samples  # noqa: E402
from lingeronnx.torch.qat.qat_module import QatModule  # noqa: E402

QUICK = {"method": "both", "epochs": 2, "block_epochs": 1, "batch_size": 8, "lr": 3e-3}


def samples(count=32, seed=5, shape=(3, 12, 12)):
    return {"x": np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)}


def sqnr(model, graph, feeds):
    return lo.evaluate(graph, feeds, metric="sqnr", baseline=model).value


@pytest.mark.slow
@pytest.mark.parametrize("platform, mode", (("generic", "max-value"), ("venus", "q-value")))
@pytest.mark.parametrize("method", ("blocks", "whole"))
def test_training_brings_coarse_weights_nearer_to_the_float_model(platform, mode, method):
    model, held_out = nets.plain(), samples(64, seed=9)
    bits = {"weight_bits": 4} if platform == "generic" else {}
    coarse = {"platform": platform, "mode": mode, "calibrator": "max", "effort": "fast", **bits}
    before = lo.quantize(model, samples(), **coarse)
    after = lo.finetune(
        model, samples(), method=method, epochs=15, block_epochs=15, batch_size=8, lr=3e-3, **coarse
    )
    assert sqnr(model, after.session(), held_out) > sqnr(model, before.session(), held_out) + 1.0
    assert after.report.integer_macs == 1.0
    assert [line["loss"] for line in after.report.training]


def test_the_integer_graph_computes_what_the_bridge_computed():
    """Results are lowered anew from weights and plan: nothing is lost on the way."""
    feeds = samples(16, shape=(4, 12, 12))
    ready = plan_model(prepare_model(nets.residual(), feeds, None, {"platform": "venus"}))
    bridge = QatModule(ready.graph, ready.plan, ready.prepared.target, feeds)
    Tuner(bridge, ready.graph, Samples(ready.prepared.data), Recipe(**QUICK)).run()
    exact = bridge.partition.with_graph(replace_initializers(ready.graph, bridge.get_weights()))
    integers = lower(exact, bridge.plan, ready.prepared.target).graph
    (output,) = integers.graph.outputs
    want = lo.Session(integers).run(None, feeds)[0]
    assert np.array_equal(
        bridge({"x": torch.from_numpy(feeds["x"])})[output.name].detach().numpy(), want
    )
    assert bridge.plan != ready.plan or any(
        not np.array_equal(array, ir.const_value(ready.graph.graph.initializers[name]))
        for name, array in bridge.get_weights().items()
    )


def test_weights_of_four_bits_learn_from_mirrored_samples_without_labels():
    """The path of docs/tutorials/fine-tuning.md: other samples choose the epoch, and a third set
    tells what it gained.
    """
    model, shape = nets.residual(), (4, 12, 12)
    x = samples(24, shape=shape)["x"]
    mirrored = [{"x": np.concatenate([x, x[..., ::-1], x[..., ::-1, :]])}]
    chip = {"platform": "arcs", "weight_bits": 4, "effort": "fast"}
    before = lo.quantize(model, mirrored, **chip)
    held, others = samples(32, 11, shape), samples(64, 9, shape)
    recipe = {"epochs": 8, "batch_size": 16, "lr": 1e-3, "scales": "fixed"}
    after = lo.finetune(model, mirrored, held, metric="sqnr", **recipe, **chip)
    assert sqnr(model, after.session(), others) > sqnr(model, before.session(), others) + 0.5
    assert after.plan.tensors == before.plan.tensors
    assert any(q.bits == 4 for q in after.plan.tensors.values())
    assert after.report.chip_ready


def test_what_a_softmax_reads_is_what_it_learns():
    """Oracle: the same net without its softmax has the same losses, and ends with the same
    weights.
    """
    feeds, learned = samples(16, shape=(2, 5, 5)), []
    for ends in ("z", "y"):
        net = nets.Net(2, 5, 5, seed=8)
        scores = net.linear(
            net.node("Flatten", net.node("Relu", net.conv("x", (3, 2, 3, 3)))), (27, 4), out="z"
        )
        model = net.graph(scores if ends == "z" else net.node("Softmax", scores, out="y"))
        ready = plan_model(
            prepare_model(model, feeds, None, {"platform": "venus", "calibrator": "max"})
        )
        bridge = QatModule(ready.graph, ready.plan, ready.prepared.target, feeds)
        history = Tuner(
            bridge,
            ready.graph,
            Samples(ready.prepared.data),
            Recipe(epochs=3, batch_size=4, lr=3e-3),
        ).run()
        learned.append((list(bridge.get_weights().values()), [line.loss for line in history]))
    (plain, losses), (behind, same) = learned
    assert losses == pytest.approx(same)
    assert losses[-1] < losses[0]
    assert all(np.allclose(a, b) for a, b in zip(plain, behind, strict=True))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes():
    runs = [
        lo.finetune(nets.plain(), samples(), platform="venus", seed=seed, **QUICK)
        for seed in (3, 3, 4)
    ]
    first, again, other = (
        ir.to_proto(run.graph).SerializeToString(deterministic=True) for run in runs
    )
    assert first == again != other


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_result(tmp_path, monkeypatch):
    settings = {
        "platform": "generic",
        "mode": "max-value",
        "weight_bits": 4,
        "epochs": 4,
        "block_epochs": 2,
        "batch_size": 8,
        "method": "both",
    }
    whole = lo.finetune(nets.plain(), samples(), **settings)
    path = tmp_path / "state.pt"

    class Killed(Exception):
        pass

    step, count = training.Tuner._apply_step, 0

    def dies(self, *args):
        nonlocal count
        count += 1
        if count == 40:  # in the middle of an epoch
            raise Killed
        step(self, *args)

    monkeypatch.setattr(training.Tuner, "_apply_step", dies)
    with pytest.raises(Killed):
        lo.finetune(nets.plain(), samples(), checkpoint=path, **settings)
    monkeypatch.setattr(training.Tuner, "_apply_step", step)
    assert path.exists()
    resumed = lo.finetune(nets.plain(), samples(), checkpoint=path, resume=True, **settings)
    assert ir.to_proto(resumed.graph) == ir.to_proto(whole.graph)
    assert [line["loss"] for line in resumed.report.training] == [
        line["loss"] for line in whole.report.training
    ]


def test_a_loss_that_is_no_number_stops_with_the_last_good_state_kept(tmp_path):
    path, calls = tmp_path / "state.pt", []

    def loss(outputs, targets, labels):
        calls.extend([1] * torch.is_grad_enabled())  # what is only measured does not count
        return sum(v.mean() for v in outputs.values()) * (float("nan") if len(calls) == 6 else 1.0)

    with pytest.raises(
        lo.ConfigError, match=r"the loss became nan in epoch 2, step 2; lower --lr .*state\.pt"
    ):
        lo.finetune(
            nets.plain(),
            samples(),
            loss=loss,
            checkpoint=path,
            **{**QUICK, "method": "whole", "epochs": 3},
        )
    kept = torch.load(path, weights_only=True)
    assert kept["epochs"] == 1
    assert all(torch.isfinite(t).all() for t in kept["state"].values())


def test_limits_hold_for_all_layers_for_one_and_not_for_others():
    model = nets.plain()
    convs = [node for node in model.graph if node.op_type == "Conv"]
    first, second = (str(node.name) for node in convs)
    top = max(np.abs(ir.const_value(convs[0].inputs[1])).max(), 0.5)
    done = lo.finetune(
        model,
        samples(),
        platform="generic",
        effort="fast",
        clamp_weight=0.3 * top,
        constraints={first: {"weight": 0.1 * top}, second: None},
        **QUICK,
    )

    def largest(node):
        found = next(n for n in done.graph.graph if n.name == node)
        weight = ir.const_value(found.inputs[1])
        return np.abs(weight).max() / ir.get_attr(found, "scale_w")

    assert largest(first) <= 0.1 * top * 1.01
    assert largest(second) > 0.3 * top


def test_frozen_layers_keep_their_weights():
    model = nets.plain()
    first = next(str(node.name) for node in model.graph if node.op_type == "Conv")
    chosen = {"platform": "generic", "effort": "fast"}
    done = lo.finetune(model, samples(), scales="fixed", freeze=[first], **chosen, **QUICK)
    plain = lo.quantize(model, samples(), **chosen)
    same = {}
    for node in done.graph.graph:
        other = next((n for n in plain.graph.graph if n.name == node.name), None)
        if node.op_type in ("Conv2dInt", "LinearInt") and other is not None:
            same[str(node.name)] = np.array_equal(
                ir.const_value(node.inputs[1]), ir.const_value(other.inputs[1])
            )
    assert same.pop(first)
    assert not all(same.values())


@pytest.mark.sweep
@pytest.mark.parametrize(
    "settings, words",
    (
        ({"clamp_weight": -1}, "limit -1 of weight"),
        ({"clamp_output": "p99"}, "limit p99 of output"),
        ({"constraints": {"type:Conv": {"wieght": 1}}}, "did you mean 'weight'"),
        ({"constraints": {"nothing": {"weight": 1}}}, "matches no node"),
        ({"freeze": ["type:Tanh"]}, "matches no node"),
        ({"method": "magic"}, "method 'magic'"),
        ({"epochs": -1}, "epochs -1"),
        ({"lr": float("nan")}, "lr nan"),
        ({"loss": "labels", "method": "whole"}, "no labels"),
        ({"loss": "nowhere.py:f"}, "no file nowhere.py"),
        ({"batch_norm": "often"}, "batch_norm 'often'"),
        ({"batch_norm": "reestimate"}, "no BatchNormalization"),
        ({"device": "tpu"}, "device 'tpu'"),
    ),
)
def test_what_cannot_be_is_told_in_one_line(settings, words):
    with pytest.raises(lo.LingerOnnxError) as error:
        lo.finetune(nets.plain(), samples(), platform="generic", **{**QUICK, **settings})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_labels_train_a_classifier():
    """A net that knows nothing learns a rule from labels, in integers."""
    feeds = samples(96, seed=1)
    labels = (feeds["x"].mean(axis=(1, 2, 3)) > 0).astype(np.int64)
    data = [(feeds, labels)]
    done = lo.finetune(
        nets.plain(),
        data,
        platform="venus",
        loss="labels",
        method="whole",
        epochs=25,
        lr=0.05,
        batch_size=16,
    )
    assert lo.evaluate(done.session(), data, metric="top1").value > 80


def test_the_command_writes_what_it_says(tmp_path):
    ir.save(nets.plain(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", **samples())
    args = [
        "finetune",
        tmp_path / "net.onnx",
        "--train",
        tmp_path / "data.npz",
        "--eval",
        tmp_path / "data.npz",
        "-o",
        tmp_path / "out.onnx",
        "--epochs",
        "2",
        "--block-epochs",
        "1",
        "--save-plan",
        tmp_path / "plan.json",
        "--checkpoint",
        tmp_path / "state.pt",
        "--clamp",
        "type:Conv=weight:4,output:8",
        "--json",
    ]
    result = CliRunner().invoke(cli.main, [str(a) for a in args])
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert body["chip_ready"]
    assert {line["part"] for line in body["training"]} >= {"whole"}
    assert all(line["metric"] is not None for line in body["training"] if line["part"] == "whole")
    out = lo.Session(tmp_path / "out.onnx").run(None, samples(2))[0]
    assert out.shape == (2, 5)
    assert (tmp_path / "plan.json").exists()


def test_the_command_takes_zero_and_no_for_an_answer(tmp_path, monkeypatch):
    seen = {}

    def take(*args, **settings):
        seen.update(settings)
        raise lo.ConfigError("enough")

    monkeypatch.setattr("lingeronnx.api.finetune", take)
    np.savez(tmp_path / "data.npz", **samples(2))
    args = [
        "finetune",
        tmp_path / "net.onnx",
        "--train",
        tmp_path / "data.npz",
        "-o",
        tmp_path / "out.onnx",
        "--epochs",
        "0",
        "--lr",
        "0",
        "--no-fit",
    ]
    assert CliRunner().invoke(cli.main, [str(a) for a in args]).exit_code == 1
    assert (seen["epochs"], seen["lr"], seen["fit"]) == (0, 0.0, False)


def test_the_command_refuses_before_any_work(tmp_path):
    ir.save(nets.plain(), tmp_path / "net.onnx")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for more, code in (
        (["--resume"], 2),
        (["--clamp", "type:Conv"], 1),
        (["--train", "missing.npz"], 1),
    ):
        args = [
            "finetune",
            tmp_path / "net.onnx",
            "--train",
            tmp_path / "net.npz",
            "-o",
            tmp_path / "o.onnx",
            *more,
        ]
        result = CliRunner().invoke(cli.main, [str(a) for a in args])
        assert result.exit_code == code, result.output
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def normalised_net():
    """A Conv with a BatchNormalization whose statistics are those of other data."""
    net = nets.Net(3, 8, 8, seed=4)
    c = net.conv("x", (6, 3, 3, 3), bias=False)
    constants = [
        net.const(np.full(6, v, np.float32)) for v in (1.0, 0.0, 0.0, 25.0)
    ]  # deviation 5 instead of about 1.4
    n = net.node("BatchNormalization", c, *constants)
    f = net.node("Flatten", net.node("GlobalAveragePool", net.node("Relu", n)))
    return net.graph(net.linear(f, (6, 3), out="y"))


def test_batch_normalisation_can_be_estimated_anew():
    from lingeronnx.api.finetuning import reestimate_batch_norm
    from lingeronnx.runtime.data import Data
    from lingeronnx.runtime.runners import FloatRunner, get_input_specs

    model, feeds = normalised_net(), samples(64, shape=(3, 8, 8))
    reestimate_batch_norm(model, Data([feeds], get_input_specs(model)))
    norm = next(node for node in model.graph if node.op_type == "BatchNormalization")
    ((_, array, _),) = FloatRunner(model, [norm.outputs[0].name]).run(feeds)
    assert np.abs(array.mean(axis=(0, 2, 3))).max() < 1e-4
    assert np.abs(array.std(axis=(0, 2, 3)) - 1).max() < 1e-3
    done = lo.finetune(
        normalised_net(), feeds, batch_norm="reestimate", platform="generic", **QUICK
    )
    assert lo.evaluate(done.session(), feeds, metric="sqnr", baseline=model).value > 20


def test_a_checkpoint_of_the_torch_model_goes_onto_the_graph_first(tmp_path):
    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)
            self.norm = torch.nn.BatchNorm2d(4)
            self.head = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))

    torch.manual_seed(0)
    first, second = Small().eval(), Small().eval()
    feeds = samples(16, shape=(3, 8, 8))
    lo.export(
        first, (torch.from_numpy(feeds["x"][:2]),), tmp_path / "net.onnx", exporter="torchscript"
    )
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in second.state_dict().items()}},
        tmp_path / "second.pt",
    )
    done = lo.finetune(
        tmp_path / "net.onnx", feeds, platform="generic", state_dict=tmp_path / "second.pt", **QUICK
    )
    with torch.no_grad():
        want = second(torch.from_numpy(feeds["x"])).numpy()
    got = done.session().run(None, feeds)[0]
    assert 10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()) > 20


def test_each_epoch_is_reported(tmp_path):
    """Loss, metric, learning rate and time left, one line each, in Python and on stderr."""
    model, feeds = nets.plain(), samples(16)
    lines = []
    lo.finetune(
        model,
        feeds,
        samples(8, seed=7),
        platform="generic",
        effort="fast",
        on_epoch=lambda report: lines.append(str(report)),
        **QUICK,
    )
    assert [line.partition(":")[0] for line in lines[-2:]] == ["epoch 1 of 2", "epoch 2 of 2"]
    assert lines[0].startswith("block 1 of ")
    for line in lines[-2:]:
        for word in ("loss ", "metric ", "learning rate ", " s left"):
            assert word in line
    ir.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "train.npz", **feeds)
    command = ["finetune", str(tmp_path / "net.onnx"), "--train", str(tmp_path / "train.npz")]
    options = ["-o", str(tmp_path / "out.onnx"), "--epochs", "1", "--effort", "fast", "--lr", "0"]
    result = CliRunner().invoke(cli.main, [*command, *options])
    assert result.exit_code == 0
    assert "epoch 1 of 1: loss " in result.stderr
    assert "no epoch is better than the start, which was kept" in result.output


def test_an_interruption_keeps_the_best(monkeypatch):
    """Ctrl-C in the third epoch: the better of the first two is the result, and a note says so."""
    model, feeds = nets.plain(), samples(16)
    ready = plan_model(prepare_model(model, feeds, None, {"platform": "generic"}))
    bridge = QatModule(ready.graph, ready.plan, ready.prepared.target, feeds)
    values = iter([1.0, 3.0, 2.0])  # of the start and two epochs
    states = []

    def evaluate():
        states.append({name: array.copy() for name, array in bridge.get_weights().items()})
        return next(values)

    tuner = Tuner(
        bridge,
        ready.graph,
        Samples(ready.prepared.data),
        Recipe(epochs=5, batch_size=8, lr=3e-3),
        evaluate=evaluate,
    )
    train_epoch = tuner._train_epoch

    def interrupt(*arguments):
        if arguments[-1] == 2:
            raise KeyboardInterrupt
        return train_epoch(*arguments)

    monkeypatch.setattr(tuner, "_train_epoch", interrupt)
    assert len(tuner.run()) == 2
    assert tuner.notes == ["interrupted in epoch 3 of 5; the best state is kept"]
    for name, array in bridge.get_weights().items():
        np.testing.assert_array_equal(array, states[1][name])
