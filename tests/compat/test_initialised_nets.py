"""Nets after `lo.torch.init` in the calls of tools for such nets: their integer graph is looked at."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - behind the check that torch is installed

import lingeronnx as lo  # noqa: E402
from lingeronnx.common.errors import ConfigError  # noqa: E402


def make_net():
    """Return a small float net with the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 5)
    )


@pytest.fixture(scope="module")
def net():
    """Return (net after init that was called, an input)."""
    torch.manual_seed(1)
    x = torch.randn(2, 3, 4, 4)
    net = lo.torch.init(make_net(), out_bits=8)
    net(x)
    return net.eval(), x


def test_check_qat_model(net, tmp_path, capsys):
    """All five parts, with the calls of the modules as the float net makes them."""
    net, x = net
    lo.compat.check_qat_model(net, x, save_results=True, out_dir=tmp_path)
    text = (tmp_path / "model_check_result.txt").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["0", "Conv2d", "1"] in rows
    assert ["/0/Conv", "Conv", "1"] in rows
    assert capsys.readouterr().out


def test_model_profiler(net, tmp_path):
    """The operands of the integer operators of each call, under the paths of the modules."""
    net, x = net
    with lo.compat.ModelProfiler(net, tmp_path) as p:
        net(x)
        net(-x)
    table = p.get_info_manager.table().read_text()
    rows = [line.split("|")[2:6] for line in table.splitlines() if "LinearInt" in line]
    assert {row[2].strip() for row in rows} == {"input", "output", "weight", "bias"}
    classes = p.get_info_manager.table(types=(nn.Conv2d,)).read_text()
    assert "Conv2dInt" in classes
    assert "LinearInt" not in classes


class _Block(nn.Module):
    """A convolution, a function and a sum, each on a line of its own."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        z = torch.relu(y)
        return nn.functional.interpolate(y + z, scale_factor=2, mode="nearest")


def test_model_profiler_with_stack(tmp_path):
    """Every operator names the line of `forward` that it comes from."""
    torch.manual_seed(1)
    x = torch.randn(1, 3, 4, 4)
    net = lo.torch.init(_Block(), out_bits=8)
    net(x)
    net.eval()
    with lo.compat.ModelProfiler(net, tmp_path) as p:
        net(x)
    table = p.get_info_manager.table(with_stack=True).read_text()
    assert "unknown" not in table
    start = inspect.getsourcelines(_Block.forward)[1]
    lines = {}
    for row in table.splitlines():
        if f"{__file__}:" in row:
            operator = row.split("|")[2].strip()
            lines[operator] = int(row.split(f"{__file__}:")[1].split()[0]) - start
    assert lines == {
        "Quant": 1,
        "Conv2dInt": 1,
        "Relu": 2,
        "iqAdd": 3,
        "Resize": 3,
        "Dequant": 3,
    }
    with pytest.raises(ConfigError, match=r"interpolate is a function.*pass operator types"):
        p.get_info_manager.table(types=(nn.functional.interpolate,))


def test_dumper(net, tmp_path):
    """A row for each module that writes a tensor, named by its path; the values are the net's."""
    net, x = net
    with lo.compat.Dumper() as d:
        d.analyse_layer_output(net, match_pattern="root.")
        expected = net(x).detach().abs()
        rows = d.save_out_analyse_log(save_log_path=tmp_path / "Analyse_layer_output.log")
    by_name = {row.name: row for row in rows}
    assert {"root.0", "root.1", "root.2", "root.3"} <= by_name.keys()
    assert by_name["root.3"].max_abs == pytest.approx(float(expected.max()), rel=1e-6)
    assert by_name["root.3"].mean == pytest.approx(float(expected.mean()), rel=1e-5)
    with lo.compat.Dumper() as d:
        d.analyse_layer_output(net, match_pattern=r"root\.3$")
        net(x)
        assert [row.name for row in d.save_out_analyse_log(tmp_path / "log")] == ["root.3"]


@pytest.mark.parametrize("kind", ("fake_quant", "quantized"))
def test_quant_analysis(net, tmp_path, kind):
    """A float net against the same net after init, as users of the original pass them."""
    net, x = net
    analysis = lo.compat.QuantAnalysis(make_net(), net, kind, out_dir=tmp_path)
    analysis.auto_find_bad_case([x, x / 2])
    analysis.run()
    rows = {row.name: row for row in analysis.compare_per_layer().rows}
    assert {"/0/Conv_output_0", "output"} <= rows.keys()
    assert rows["/0/Conv_output_0"].arrived.cosine > 0.95
    ranking = analysis.sensitivity()
    assert {row[0] for row in ranking} >= {"/0/Conv", "/3/Gemm"}


def test_a_float_module_is_no_analysed_model(tmp_path):
    """The message says what is missing."""
    with pytest.raises(ConfigError, match="is a float module; call lo.torch.init and the net once"):
        lo.compat.QuantAnalysis(make_net(), make_net(), "fake_quant", out_dir=tmp_path)
    with pytest.raises(ConfigError, match="not traced yet: call it once"):
        lo.compat.QuantAnalysis(make_net(), lo.torch.init(make_net()), "fake_quant")
