"""The command line as its users meet it: real files in, exit code and whole outputs out."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from lingeronnx import __version__, api, cli
from lingeronnx.cli._shared import progress_bar
from lingeronnx.conversion import STANDARD, TARGETS
from lingeronnx.errors import InternalError
from lingeronnx.plan.config import QuantConfig
from lingeronnx.platforms import PLATFORMS
from lingeronnx.run import dump, pictures
from lingeronnx.run.session import Session

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "models" / "digits_cnn.onnx"
CALIB = ROOT / "models" / "digits_calib.npz"
TEST = ROOT / "models" / "digits_test.npz"
HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "numba", "pydantic", "yaml", "rich", "torch")

TINY = """
<ir_version: 8, opset_import: ["": 13]>
tiny (float[N, 2, 4, 4] x) => (float[N, 3] y) {
    [conv] c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w, b)
    [relu] r = Relu(c)
    [pool] p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r)
    [flat] f = Flatten(p)
    [fc] y = Gemm<transB=1>(f, v, d)
}
"""

# An operator without an integer form between two convolutions; names that a terminal library could misread.
GAP = """
<ir_version: 8, opset_import: ["": 13]>
gap (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y) {
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w, b)
    e = Erf(c)
    y = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(e, w, b)
}
"""


def write_model(path: Path, text: str, rename: dict[str, str] | None = None) -> Path:
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(7)
    for name, shape in {"w": (2, 2, 3, 3), "b": (2,), "v": (3, 8), "d": (3,)}.items():
        if any(name in node.input for node in model.graph.node):
            array = rng.integers(-8, 8, shape).astype(np.float32) / 16
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for node in model.graph.node:
        node.name = (rename or {}).get(node.output[0], node.name)
    onnx.save(model, path)
    return path


def samples(count: int = 20) -> np.ndarray:
    return np.random.default_rng(3).integers(-16, 17, (count, 2, 4, 4)).astype(np.float32) / 16


class Here:
    """A folder of its own to run commands in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *args: object) -> Result:
        return CliRunner().invoke(cli.main, [str(a) for a in args])

    def good(self, *args: object) -> str:
        """Run a command that must succeed, and return its output without trailing spaces."""
        result = self(*args)
        assert result.exit_code == 0, result.output
        return plain(result.stdout)

    def json(self, *args: object) -> dict:
        """Run with --json: one object is all of stdout, and the tables are on stderr."""
        result = self(*args, "--json")
        assert result.exit_code == 0, result.output
        assert result.stderr.strip()
        body = json.loads(result.stdout, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
        assert isinstance(body, dict)
        return body

    def files(self) -> dict[str, bytes]:
        """Every file, hidden ones too, with its content."""
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}


def plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """A current folder with tiny.onnx, calib.npz and test.npz (labels: what the float model says)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_model(tmp_path / "tiny.onnx", TINY)
    np.savez(tmp_path / "calib.npz", x=samples())
    labels = np.argmax(api.simulate("tiny.onnx", {"x": samples()}).arrays["y"], axis=1)
    np.savez(tmp_path / "test.npz", x=samples(), labels=labels)
    return Here(tmp_path)


@pytest.fixture(scope="session")
def tiny_quant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, quantized."""
    folder = tmp_path_factory.mktemp("tiny")
    api.quantize(write_model(folder / "tiny.onnx", TINY), samples()).save(folder / "tiny_quant.onnx")
    return folder / "tiny_quant.onnx"


@pytest.fixture
def quant(here: Here, tiny_quant: Path) -> Here:
    """The same folder with tiny_quant.onnx in it."""
    shutil.copy(tiny_quant, here.folder / "tiny_quant.onnx")
    return here


# ---- start-up and help -----------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    commands = [[], *([name] for name in cli.main.commands)]
    code = (
        "import sys\nfrom lingeronnx.cli import main\n"
        f"for command in {commands!r}:\n"
        "    main([*command, '--help'], standalone_mode=False)\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_python_m_lingeronnx() -> None:
    done = subprocess.run([sys.executable, "-m", "lingeronnx", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lingeronnx {__version__}\n", "")


@pytest.mark.parametrize("name", sorted(cli.main.commands))
def test_help_of_every_command_has_an_example(here: Here, name: str) -> None:
    text = here.good(name, "--help")
    assert f"Examples:\n    lingeronnx {name}" in text
    assert max(map(len, text.splitlines())) <= 120


def test_choices_are_those_of_the_configuration() -> None:
    # law: the command line offers nothing that does not exist
    for option in cli.main.commands["quantize"].params:
        if isinstance(option.type, click.Choice) and option.name == "written":
            assert set(option.type.choices) == {*TARGETS, *STANDARD}
        elif option.name in ("layout", "color", "resize"):
            assert set(option.type.choices) == set(get_args(getattr(pictures, str(option.name).title())))
        elif isinstance(option.type, click.Choice):
            assert set(option.type.choices) <= set(get_args(QuantConfig.model_fields[str(option.name)].annotation))


# ---- quantize --------------------------------------------------------------------------------------------------------


def test_quantize_the_whole_output(here: Here) -> None:
    text = here.good("quantize", "tiny.onnx", "--calib", "calib.npz", "--eval", "test.npz", "--save-plan", "plan.json")
    text = re.sub(r"cosine 0\.99\d{4}, SQNR \d\d\.\d\d dB", "cosine 0.99xxxx, SQNR xx.xx dB", text)
    text = re.sub(r"integer \d+\.\d\d %, drop -?\d+\.\d\d points", "integer xx %, drop xx points", text)
    assert re.sub(r"\(\d\.\d kB\)", "(x kB)", text) == (
        "tiny.onnx -> venus, q-value\n"
        "\n"
        "  integer layers    5: Conv2dInt 1, Flatten 1, LinearInt 1, MaxPool 1, Relu 1\n"
        "  chip-ready        yes\n"
        "  integer MACs      100.0 %\n"
        "  on the chip       600 MACs 8x8; weights 208 bytes; shared memory 320 of 655,360 bytes, psram 208\n"
        "                    of 8,388,608; 208 bytes over DMA\n"
        "  fidelity          y: cosine 0.99xxxx, SQNR xx.xx dB on the calibration data\n"
        "  accuracy          float 100.00 %, integer xx %, drop xx points (top1, 20 samples)\n"
        "\n"
        "  Cost on the chip, the heaviest nodes (all of them with --json)\n"
        "\n"
        "  layer  operator   MACs  width  weights  activations  work area  DMA\n"
        "  conv   Conv2dInt   576  8x8        160           64          0  160\n"
        "  pool   MaxPool       0               0           40          0    0\n"
        "  flat   Flatten       0               0           16          0    0\n"
        "  fc     LinearInt    24  8x8         48           11         64   48\n"
        "  total              600  8x8        208          131             208\n"
        "\n"
        "  pack it with      tpacker -g tiny_quant.onnx -p venus -d False -o tiny_quant.pkg\n"
        "  plan              plan.json\n"
        "  written           tiny_quant.onnx (x kB)\n"
    )
    assert {"tiny_quant.onnx", "plan.json"} < set(here.files())


def test_quantize_digits_as_json(here: Here) -> None:
    body = here.json("quantize", DIGITS, "--calib", CALIB, "--eval", TEST, "--metric", "top1", "-o", "d.onnx")
    assert body["chip_ready"] is True
    assert body["integer_macs"] == 1.0
    assert body["float_nodes"] == body["host_part"] == body["notes"] == []
    assert body["packer"] == "tpacker -g d.onnx -p venus -d False -o d.pkg"
    assert body["packer_args"] == "-p venus -d False"
    assert body["findings"] == []
    assert body["cost"]["macs"] == {"8x8": sum(layer["macs"] for layer in body["cost"]["layers"])}
    assert body["cost"]["shared"] <= body["cost"]["shared_limit"]
    assert body["outputs"]["logits"]["cosine"] > 0.99
    assert body["output"] == "d.onnx"
    accuracy = body["accuracy"]
    assert (accuracy["metric"], accuracy["samples"], accuracy["float"]) == ("top1", 500, pytest.approx(99.2))
    assert accuracy["integer"] >= 98.5
    assert accuracy["drop"] == pytest.approx(accuracy["float"] - accuracy["integer"])


def test_the_default_output_is_beside_the_model(here: Here) -> None:
    (here.folder / "sub").mkdir()
    write_model(here.folder / "sub" / "m.onnx", TINY)
    here.good("quantize", "sub/m.onnx", "--calib", "calib.npz")
    assert (here.folder / "sub" / "m_quant.onnx").is_file()


def test_without_calibration_data_it_says_so(here: Here) -> None:
    text = here.good("quantize", "tiny.onnx")
    assert "  note: calibrated on synthetic inputs: give real data with --calib for real accuracy\n" in text


def test_the_part_for_the_packer_is_written_beside(here: Here) -> None:
    """With a host part behind the integers, the graph without it is written too, and the packer's line names it."""
    text = TINY.replace("y = Gemm<transB=1>(f, v, d)", "g = Gemm<transB=1>(f, v, d) [soft] y = Softmax<axis=1>(g)")
    write_model(here.folder / "soft.onnx", text)
    shown = here.json("quantize", "soft.onnx", "--calib", "calib.npz")
    assert shown["chip_part"] == "soft_quant_chip.onnx"
    assert "soft_quant_chip.onnx" in shown["packer"]
    part = onnx.load(here.folder / "soft_quant_chip.onnx")
    assert [node.op_type for node in part.graph.node][-2:] == ["LinearInt", "Dequant"]
    assert [value.name for value in part.graph.output] == ["g"]


def test_float_nodes_are_listed_with_their_names_unchanged(here: Here) -> None:
    write_model(here.folder / "gap.onnx", GAP, {"e": "/[red]x[/red]/:smile:/Erf"})
    text = here.good("quantize", "gap.onnx", "--calib", "calib.npz")
    assert "  chip-ready        no\n" in text
    assert "pack it with" not in text
    assert "  Float nodes between integer ones\n" in text
    assert re.search(r"  /\[red\]x\[/red\]/:smile:/Erf +Erf +venus has no operator for Erf\n", text)


def test_a_plan_gives_the_same_graph_again(here: Here) -> None:
    here.good("quantize", "tiny.onnx", "--calib", "calib.npz", "-o", "a.onnx", "--save-plan", "plan.json")
    here.good("quantize", "tiny.onnx", "--plan", "plan.json", "--calib", "calib.npz", "-o", "b.onnx")
    files = here.files()
    assert files["a.onnx"] == files["b.onnx"]


def test_a_plan_brings_its_platform_and_mode(here: Here) -> None:
    made = ("--platform", "generic", "--mode", "max-value", "--save-plan", "plan.json")
    here.good("quantize", "tiny.onnx", "--calib", "calib.npz", "-o", "a.onnx", *made)
    body = here.json("quantize", "tiny.onnx", "--plan", "plan.json", "--calib", "calib.npz", "-o", "b.onnx")
    assert (body["platform"], body["mode"]) == ("generic", "max-value")
    result = here("quantize", "tiny.onnx", "--plan", "plan.json", "--platform", "venus")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: --platform venus: the plan plan.json is for generic; drop one of the two\n",
    )


def test_options_win_over_the_configuration(here: Here) -> None:
    (here.folder / "quant.yaml").write_text("platform: generic\nmode: max-value\ncalibrator: max\nskip: [fc]\n")
    config = ("quantize", "tiny.onnx", "--calib", "calib.npz", "--config", "quant.yaml")
    body = here.json(*config)
    assert (body["platform"], body["mode"]) == ("generic", "max-value")
    assert [node["node"] for node in body["host_part"]] == ["fc"]
    body = here.json(*config, "--mode", "q-value", "--skip", "conv")
    assert (body["platform"], body["mode"]) == ("generic", "q-value")
    assert [node["node"] for node in body["host_part"]] == ["conv"]


def test_overrides_reach_the_plan(here: Here) -> None:
    override = ("--override", "x=scale:2^4", "--override", "type:Conv=calibrator:max")
    here.good("quantize", "tiny.onnx", "--calib", "calib.npz", *override, "--save-plan", "plan.json")
    assert json.loads((here.folder / "plan.json").read_text())["tensors"]["x"]["scale"] == 16.0


@pytest.mark.parametrize("calibrator", ("percentile", "kl"))
def test_calibrators(here: Here, calibrator: str) -> None:
    body = here.json("quantize", "tiny.onnx", "--calib", "calib.npz", "--calibrator", calibrator)
    assert body["outputs"]["y"]["cosine"] > 0.99


def test_widths_on_the_command_line(here: Here) -> None:
    widths = ("--platform", "generic", "--bits", "16", "--weight-bits", "16", "--override", "y=out_bits:float")
    override = ("--override", "conv=bits:8,weight_bits:4,percentile:99.9", "--save-plan", "plan.json")
    body = here.json("quantize", "tiny.onnx", "--calib", "calib.npz", *widths, *override)
    assert body["outputs"]["y"]["cosine"] > 0.99
    tensors = json.loads((here.folder / "plan.json").read_text())["tensors"]
    assert {name: tensors[name]["bits"] for name in ("x", "w", "c", "v")} == {"x": 16, "w": 4, "c": 8, "v": 16}
    assert "y" not in tensors
    result = here("quantize", "tiny.onnx", "--calib", "calib.npz", "--override", "y=out_bits:16")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: override y: out_bits 16 on platform venus: an output that leaves the")


# ---- simulate --------------------------------------------------------------------------------------------------------


def test_simulate_the_whole_output(quant: Here) -> None:
    text = quant.good("simulate", "tiny_quant.onnx", "--input", "test.npz", "--taps", "p", "--limit", "3")
    assert re.sub(r"\d\.\d kB", "x kB", text) == (
        "  tensor   role     type      shape          scale\n"
        "  ────────────────────────────────────────────────\n"
        "  p                 float32   [3, 2, 2, 2]\n"
        "  y        output   float32   [3, 3]\n"
        "\n"
        "  written           tiny_quant_out.npz (3 samples, x kB)\n"
    )
    with np.load("tiny_quant_out.npz") as written:
        assert set(written.files) == {"p", "y"}


def test_simulate_integers_are_the_real_values_times_the_scale(quant: Here) -> None:
    quant.good("simulate", "tiny_quant.onnx", "--input", "test.npz", "--taps", "p", "-o", "real.npz")
    body = quant.json(
        "simulate", "tiny_quant.onnx", "--input", "test.npz", "--taps", "p", "--integers", "-o", "int.npz"
    )
    scales = {entry["name"]: entry["scale"] for entry in body["tensors"]}
    assert {entry["name"]: entry["output"] for entry in body["tensors"]} == {"p": None, "y_q": "y"}
    with np.load("real.npz") as real, np.load("int.npz") as integers:
        for name, key in (("p", "p"), ("y", "y_q")):
            assert integers[key].dtype == np.int8
            assert np.array_equal(real[name] * scales[key], integers[key])


def test_simulate_gives_the_same_for_every_batch_size(quant: Here) -> None:
    for batch in (1, 7, 1000):
        run = ("simulate", "tiny_quant.onnx", "--input", "test.npz", "--taps", "all", "--batch", batch)
        quant.good(*run, "-o", f"{batch}.npz", "--dump", f"dump{batch}")
    files = quant.files()
    assert files["1.npz"] == files["7.npz"] == files["1000.npz"]
    dumps = [{k.partition("/")[2]: v for k, v in files.items() if k.startswith(f"dump{n}/")} for n in (1, 7, 1000)]
    assert dumps[0] == dumps[1] == dumps[2]


def test_dump_holds_every_tensor_as_it_is(quant: Here) -> None:
    quant.good("simulate", "tiny_quant.onnx", "--input", "test.npz", "--dump", "out", "--batch", "6")
    index = json.loads((quant.folder / "out" / "index.json").read_text())
    stream = list(Session("tiny_quant.onnx").taps({"x": samples()}))
    assert [entry["name"] for entry in index] == [name for name, _, _ in stream]
    for entry, (_, array, scale) in zip(index, stream, strict=True):
        read = np.load(quant.folder / "out" / entry["file"])
        assert (str(read.dtype), list(read.shape), entry["scale"]) == (entry["dtype"], entry["shape"], scale)
        assert np.array_equal(read, array)
    assert {p.name for p in (quant.folder / "out").iterdir()} == {"index.json", *(entry["file"] for entry in index)}


def test_dump_of_some_tensors_has_safe_file_names(here: Here) -> None:
    quantize = ("quantize", DIGITS, "--calib", CALIB, "-o", "d.onnx", "--effort", "fast")
    here.good(*quantize)
    name = "/pool/MaxPool_output_0"
    here.good("simulate", "d.onnx", "--input", TEST, "--limit", "5", "--taps", name, "--dump", "out")
    (entry,) = json.loads((here.folder / "out" / "index.json").read_text())
    assert (entry["name"], entry["file"]) == (name, "0000_pool_MaxPool_output_0.npy")
    assert entry["shape"] == [5, 32, 4, 4]


def test_at_shows_one_tensor(quant: Here) -> None:
    run = ("simulate", "tiny_quant.onnx", "--input", "test.npz", "--at", "x_q", "--batch", "6")
    at = quant.json(*run)["at"]
    exact = samples() * at["scale"]
    want = np.clip(exact, -128, 127)
    assert (at["name"], at["dtype"], at["shape"]) == ("x_q", "int8", [20, 2, 4, 4])
    assert (at["min"], at["max"], at["first"]) == (want.min(), want.max(), want.reshape(-1)[:8].tolist())
    assert at["mean"] == pytest.approx(want.mean())
    text = quant.good(*run)
    assert f"  min               {want.min():g}  = {want.min() / at['scale']:g}\n" in text
    assert "  type              int8 [20, 2, 4, 4]\n" in text


def test_simulate_a_float_model(here: Here) -> None:
    body = here.json("simulate", "tiny.onnx", "--input", "test.npz", "--taps", "all", "--batch", "8")
    assert [entry["name"] for entry in body["tensors"]] == ["x", "c", "r", "p", "f", "y"]
    with np.load("tiny_out.npz") as written:
        assert np.array_equal(written["x"], samples())
        assert written["y"].shape == (20, 3)


def test_npz_takes_any_tensor_name(tmp_path: Path) -> None:
    arrays = {"file": np.arange(3), "/a/b:0": np.ones((2, 2), np.int8), "": np.zeros(1)}
    dump.write_npz(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as read:
        assert read.files == list(arrays)
        for name, array in arrays.items():
            assert np.array_equal(read[name], array)


# ---- evaluate, platforms, demo, warmup -------------------------------------------------------------------------------


def test_evaluate_the_whole_output(here: Here) -> None:
    shutil.copy(DIGITS, "digits.onnx")
    text = here.good("evaluate", "digits.onnx", "--data", TEST, "--baseline", "digits.onnx")
    assert text == (
        "  top1              99.20 %  digits.onnx\n"
        "  baseline          99.20 %  digits.onnx\n"
        "  drop              0.00 points\n"
        "  samples           500\n"
    )


def test_evaluate_as_json_writes_infinity_as_null(here: Here) -> None:
    body = here.json("evaluate", "tiny.onnx", "--data", "calib.npz", "--baseline", "tiny.onnx")
    assert body == {
        "model": "tiny.onnx",
        "baseline_model": "tiny.onnx",
        "metric": "sqnr",
        "unit": "dB",
        "value": None,
        "baseline": None,
        "drop": None,
        "samples": 20,
    }
    text = here.good("evaluate", "tiny.onnx", "--data", "calib.npz", "--baseline", "tiny.onnx")
    assert text == ("  sqnr              infinite (equal)  tiny.onnx against tiny.onnx\n  samples           20\n")


def test_evaluate_another_tensor(quant: Here) -> None:
    data = ("--data", "test.npz", "--baseline", "tiny.onnx", "--metric", "cosine")
    assert quant.json("evaluate", "tiny_quant.onnx", *data, "--output", "y")["value"] > 0.99


def test_platforms(here: Here) -> None:
    rows = here.json("platforms")["platforms"]
    assert [row["name"] for row in rows] == [row.name for row in PLATFORMS]
    text = here.good("platforms")
    for row in PLATFORMS:
        assert re.search(rf"^  {row.name} .* {len(row.ops)}$", text, re.M)
        more = here.good("platforms", row.name)
        assert all(word in more for word in (*row.ops, *(fault.key for fault in row.faults)))
        assert set(here.json("platforms", row.name)["ops"]) == set(row.ops)


def test_the_page_of_operators_is_what_the_code_says(here: Here) -> None:
    # mended by: lingeronnx platforms --markdown > docs/operators.md
    text = here("platforms", "--markdown").stdout
    assert text == (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    assert "| Conv2dInt | Conv | yes | limits | limits | limits |" in text
    assert "- venus, arcs, venusA: kernel sides are at most 5\n" in text
    assert not set("{}") & set(text)
    for row in PLATFORMS:
        assert all(f"- {fault.text}\n" in text for fault in row.faults)


def test_demo(here: Here) -> None:
    text = here.good("demo")
    assert "  float accuracy    99.20 % of 500 held-out digits\n" in text
    assert re.search(r"^  integer accuracy  9[89]\.\d\d % of 500 held-out digits$", text, re.M)
    assert "  chip-ready        yes\n" in text
    assert max(len(line) for line in text.splitlines() if "--input" not in line) <= 100
    assert re.findall(r"\d", text.split("\n\n")[1].splitlines()[-1]) == ["2", "0", "3", "8", "4", "1"]
    assert "build/digits_cnn_quant.onnx" in here.files()
    body = here.json("demo")
    assert body["output"] == "build/digits_cnn_quant.onnx"
    assert body["accuracy"]["samples"] == 500


def test_warmup(here: Here) -> None:
    body = here.json("warmup")
    assert body["seconds"] > 0
    assert Path(body["cache"]).is_dir()


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as progress:
        assert progress is not None
        progress("calibrating", 64, None)
    assert "calibrating" in stderr.getvalue()
    assert "64 samples" in stderr.getvalue()


# ---- errors: exit code, one line, nothing left behind ----------------------------------------------------------------


def fails(here: Here, code: int, words: str, *args: object) -> Result:
    """Run a command that must fail with `words` and leave every file as it was."""
    before = here.files()
    result = here(*args)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert result.stdout == ""
    assert here.files() == before
    if code == 1:
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    return result


def write_bad_files(folder: Path) -> None:
    good = (folder / "tiny.onnx").read_bytes()
    x = samples()
    holed = x.copy()
    holed[3, 0, 1, 1] = np.nan
    (folder / "cut.onnx").write_bytes(good[: len(good) // 2])
    (folder / "noise.onnx").write_bytes(np.random.default_rng(0).bytes(2000))
    (folder / "nothing.onnx").write_bytes(b"")
    (folder / "cut.npz").write_bytes((folder / "calib.npz").read_bytes()[:300])
    np.savez(folder / "empty.npz")
    np.savez(folder / "none.npz", x=x[:0])
    np.savez(folder / "name.npz", a=x, b=x)
    np.savez(folder / "shape.npz", x=x[:, :, :3])
    np.savez(folder / "batch.npz", x=x[0])
    np.savez(folder / "nan.npz", x=holed)
    np.savez(folder / "labels.npz", x=x, labels=np.full(len(x), 9))
    (folder / "key.yaml").write_text("calibrater: max\n")
    (folder / "cut.yaml").write_text("skip: [\n")
    (folder / "build").write_text("a file")
    (folder / "plan.json").write_text('{"lingeronnx_plan": 1}')
    write_model(folder / "gap.onnx", GAP, {"e": "gap"})


QUANTIZE = ("quantize", "tiny.onnx", "--calib", "calib.npz")
SIMULATE = ("simulate", "tiny.onnx", "--input", "test.npz")


@pytest.mark.parametrize(
    "args, words",
    [
        (("quantize", "gone.onnx"), "cannot read the model gone.onnx: it does not exist"),
        (("quantize", "cut.onnx"), "cannot read the model cut.onnx: not a valid ONNX file"),
        (("quantize", "noise.onnx"), "cannot read the model noise.onnx: not a valid ONNX file"),
        (("quantize", "nothing.onnx"), "cannot use the model nothing.onnx: its graph has no node"),
        (("quantize", 300 * "a" + ".onnx"), "File name too long"),
        ((*QUANTIZE[:3], "gone.npz"), "calibration data: cannot read gone.npz"),
        ((*QUANTIZE[:3], "cut.npz"), "calibration data: cut.npz is not a readable .npz file"),
        ((*QUANTIZE[:3], "empty.npz"), "no array for input 'x'; found nothing"),
        ((*QUANTIZE[:3], "none.npz"), "calibration data holds no sample"),
        ((*QUANTIZE[:3], "name.npz"), "'a' is not an input of the model"),
        ((*QUANTIZE[:3], "shape.npz"), "input 'x' has shape [20, 2, 3, 4], the model takes [N, 2, 4, 4]"),
        ((*QUANTIZE[:3], "batch.npz"), "add the batch axis"),
        ((*QUANTIZE[:3], "nan.npz"), "input 'x' holds NaN or infinity in sample 3"),
        ((*QUANTIZE, "--platform", "venuss"), "unknown platform 'venuss'; did you mean 'venus'?"),
        ((*QUANTIZE, "--mode", "max-value"), "mode max-value on platform venus"),
        ((*QUANTIZE, "--bits", "4"), "bits 4 on platform venus"),
        ((*QUANTIZE, "--skip", "con"), "selector 'con' matches no node or tensor; did you mean 'conv'?"),
        ((*QUANTIZE, "--override", "conv"), "override 'conv': write SELECTOR=KEY:VALUE"),
        ((*QUANTIZE, "--override", "conv=calibratr:max"), "unknown key 'calibratr'"),
        ((*QUANTIZE, "--override", "nope=scale:2^3"), "selector 'nope' matches no node or tensor"),
        ((*QUANTIZE, "--config", "key.yaml"), "unknown key 'calibrater'; did you mean 'calibrator'?"),
        ((*QUANTIZE, "--config", "cut.yaml"), "the configuration cut.yaml is not YAML"),
        ((*QUANTIZE, "--config", "gone.yaml"), "cannot read the configuration gone.yaml"),
        ((*QUANTIZE, "--plan", "gone.json"), "cannot read the plan gone.json"),
        ((*QUANTIZE, "--plan", "plan.json"), "the plan plan.json is not a lingeronnx plan"),
        ((*QUANTIZE, "--plan", "calib.npz"), "the plan calib.npz is not a lingeronnx plan"),
        ((*QUANTIZE, "-o", "gone/q.onnx"), "cannot write gone/q.onnx: there is no folder gone"),
        ((*QUANTIZE, "-o", "."), "it is a folder"),
        ((*QUANTIZE, "-o", "tiny.onnx"), "tiny.onnx would be overwritten"),
        ((*QUANTIZE, "-o", "calib.npz"), "calib.npz would be overwritten"),
        ((*QUANTIZE, "-o", "q.onnx", "--save-plan", "./q.onnx"), "q.onnx would be overwritten"),
        ((*QUANTIZE, "--save-plan", "gone/plan.json"), "there is no folder gone"),
        ((*QUANTIZE, "--eval", "test.npz", "--metric", "top2"), "unknown metric 'top2'"),
        ((*QUANTIZE, "--eval", "calib.npz", "--metric", "top1"), "metric top1 needs labels"),
        ((*QUANTIZE, "--eval", "labels.npz"), "label 9 is beyond the 3 classes"),
        (("quantize", "gap.onnx", "--calib", "calib.npz", "--require-chip"), "not chip-ready: Erf gap stays in float"),
        (("simulate", "cut.onnx", "--input", "test.npz"), "not a valid ONNX file"),
        ((*SIMULATE[:3], "shape.npz"), "the model takes [N, 2, 4, 4]"),
        ((*SIMULATE, "--taps", "q"), "the model has no tensor 'q'"),
        ((*SIMULATE, "--at", "nope"), "the model has no tensor 'nope'"),
        ((*SIMULATE, "--integers"), "integers are asked of a float model"),
        ((*SIMULATE, "-o", "test.npz"), "test.npz would be overwritten"),
        ((*SIMULATE, "--dump", "build"), "cannot dump into build: it is a file"),
        ((*SIMULATE, "--dump", "."), "--dump .: the folder holds the data that are read"),
        ((*SIMULATE, "--dump", "gone/out"), "cannot dump into gone/out: No such file or directory"),
        (("evaluate", "tiny.onnx", "--data", "calib.npz"), "the data have no labels"),
        (("evaluate", "tiny.onnx", "--data", "test.npz", "--metric", "mse"), "metric mse compares two models"),
        (("evaluate", "tiny.onnx", "--data", "test.npz", "--output", "z"), "the model has no tensor 'z'"),
        (("platforms", "venu"), "unknown platform 'venu'; did you mean 'venus'?"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_mistakes_get_one_line_and_leave_no_file(here: Here, args: tuple[str, ...], words: str) -> None:
    write_bad_files(here.folder)
    fails(here, 1, words, *args)
    fails(here, 1, words, *args, "--json")


@pytest.mark.parametrize(
    "args, words",
    [
        ((), "Usage: "),
        (("quantise",), "No such command 'quantise'"),
        (("quantize",), "Missing argument 'MODEL'"),
        ((*QUANTIZE, "--bit", "8"), "No such option '--bit'"),
        ((*QUANTIZE, "--calibrator", "kld"), "'kld' is not one of 'max', 'percentile', 'mse', 'kl'"),
        ((*QUANTIZE, "--metric", "top1"), "--metric needs --eval DATA"),
        ((*QUANTIZE, "--batch", "0"), "0 is not in the range"),
        (("platforms", "venus", "--markdown"), "--markdown prints one page on all platforms"),
        ((*QUANTIZE, "--seed", "-1"), "-1 is not in the range"),
        (("simulate", "tiny.onnx"), "Missing option '--input'"),
    ],
)
def test_wrong_options_are_usage_errors(here: Here, args: tuple[str, ...], words: str) -> None:
    fails(here, 2, words, *args)


@pytest.mark.parametrize("error", [RuntimeError("oops"), InternalError("oops"), MemoryError(), RecursionError("oops")])
def test_our_bugs_show_a_traceback(here: Here, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fall(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api, "quantize", fall)
    result = fails(here, 70, "this is a bug in lingeronnx: please report it", *QUANTIZE, "--json")
    assert "Traceback (most recent call last)" in result.stderr


def test_ctrl_c(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "quantize", stop)
    assert fails(here, 130, "interrupted", *QUANTIZE).stderr == "interrupted\n"


@pytest.mark.parametrize("error, code", [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 1)])
def test_a_write_that_breaks_off_leaves_the_old_files(
    quant: Here, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    (quant.folder / "old.npz").write_bytes(b"old")
    (quant.folder / "dump").mkdir()
    (quant.folder / "dump" / "index.json").write_text("old")

    def half(file: io.IOBase, *_: object, **__: object) -> None:
        file.write(b"half")
        raise error

    simulate = ("simulate", "tiny_quant.onnx", "--input", "test.npz")
    monkeypatch.setattr(dump.np.lib.format, "write_array", half)
    fails(quant, code, "", *simulate, "-o", "old.npz")
    monkeypatch.setattr(dump, "_header", half)
    fails(quant, code, "", *simulate, "-o", "new.npz", "--dump", "dump")
    fails(quant, code, "", *simulate, "-o", "new.npz", "--dump", "new")
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: half(self.open("wb")))
    fails(quant, code, "", *QUANTIZE, "-o", "tiny_quant.onnx")


def test_an_evaluation_that_fails_leaves_the_old_graph(quant: Here) -> None:
    write_bad_files(quant.folder)
    fails(quant, 1, "label 9 is beyond", *QUANTIZE, "--eval", "labels.npz", "--save-plan", "plan2.json")
