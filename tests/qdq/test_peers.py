"""Other tools, where they are installed: NNCF and torchao quantize for us, OpenVINO runs what we
write.

`files/` has what two of them wrote: nncf_depthwise.onnx is `tests.nets.depthwise` by NNCF 3.4,
pt2e_conv.onnx two convolutions and a linear layer prepared and converted by torchao 0.18's PT2E
flow (X86InductorQuantizer) and exported by torch 2.13's `torch.onnx.export(dynamo=True)`.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from tests import nets
from tests.nets import samples

FILES = Path(__file__).parent / "files"


def noise(want, got):
    return float(((want - got) ** 2).mean() / (want**2).mean())


@pytest.mark.parametrize(("name", "kept"), (("nncf_depthwise", 5), ("pt2e_conv", 3)))
def test_kept_files(name, kept):
    """All weights keep their integers on generic; on venus the graph is chip-ready; both compute
    what the file does.
    """
    path = FILES / f"{name}.onnx"
    session = ort.InferenceSession(path)
    feed = {
        "x": np.random.default_rng(0)
        .normal(size=(16, *session.get_inputs()[0].shape[1:]))
        .astype(np.float32)
    }
    want = session.run(None, feed)[0]
    made = lo.quantize(path, feed, platform="generic", effort="fast")
    assert sum(taken.bits_lost is None and taken.kept for taken in made.report.taken) == kept
    assert noise(want, made.session().run(None, feed)[0]) < 0.02
    chip = lo.quantize(path, feed, platform="venus", effort="fast")
    assert chip.report.chip_ready
    assert noise(want, chip.session().run(None, feed)[0]) < 0.05


@pytest.mark.filterwarnings("ignore")
def test_nncf(tmp_path):
    nncf = pytest.importorskip("nncf")
    graph = nets.residual()
    feeds = samples(graph)
    data = nncf.Dataset([{"x": array[None]} for array in feeds["x"]])
    onnx.save(
        nncf.quantize(ir.to_proto(graph), data, subset_size=len(feeds["x"])), tmp_path / "q.onnx"
    )
    want = ort.InferenceSession(tmp_path / "q.onnx").run(None, feeds)[0]
    made = lo.quantize(tmp_path / "q.onnx", feeds, platform="generic")
    assert all(taken.kept for taken in made.report.taken if taken.bits_lost is None)
    assert noise(want, made.session().run(None, feeds)[0]) < 0.02


@pytest.mark.filterwarnings("ignore")  # other packages'
def test_pt2e(tmp_path):
    """A module prepared and converted by torch's own flow, which lives in torchao, exports to what
    is read here.
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 1)
    ).eval()
    x = torch.randn(8, 2, 6, 6)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(net, (x,)).module(), quantizer)
    prepared(x)
    converted = convert_pt2e(prepared)
    torch.onnx.export(converted, (x,), dynamo=True, verbose=False).save(tmp_path / "q.onnx")
    made = lo.quantize(tmp_path / "q.onnx", x.numpy(), platform="generic")
    assert sum(taken.bits_lost is None and taken.kept for taken in made.report.taken) == 2
    assert noise(converted(x).detach().numpy(), made(x.numpy())) < 0.02


@pytest.mark.parametrize("name", ("cnn", "lstm", "gru", "attention"))
@pytest.mark.parametrize("platform", ("venus", "generic"))
def test_openvino_takes_any_batch(name, platform):
    """Of a chip's graph, too, and recurrent layers: it gives what it gives for the samples alone."""
    openvino = pytest.importorskip("openvino")
    made = lo.quantize(f"models/digits_{name}.onnx", None, platform=platform, effort="fast")
    core = openvino.Core()
    file = core.read_model(ir.to_bytes(lo.convert(made.graph, "qdq").graph))
    model = core.compile_model(file, "CPU")
    x = np.random.default_rng(0).standard_normal((5, 1, 8, 8)).astype(np.float32)
    together = model([x])[0]
    single = np.concatenate([model([x[i : i + 1]])[0] for i in range(5)])
    assert np.abs(together - single).max() * made.plan.tensors["logits"].scale <= 3


@pytest.mark.parametrize("platform", ("venus", "generic"))
def test_openvino(platform, tmp_path):
    """What we write runs in OpenVINO, near the simulator."""
    openvino = pytest.importorskip("openvino")
    graph = nets.residual()
    feeds = samples(graph, 1)
    made = lo.quantize(graph, samples(graph), platform=platform, effort="fast")
    lo.convert(made.graph, "qdq").save(tmp_path / "q.onnx")
    model = openvino.Core().compile_model(tmp_path / "q.onnx", "CPU")
    got = model([feeds["x"]])[0]
    assert (
        np.abs(got - made.session().run(None, feeds)[0]).max() * made.plan.tensors["y"].scale <= 3
    )
