"""Writes the files of one version: small graphs of all platforms and everything else that commands
read again.

    python -m tests.files.make tests/files/0.1

`COMMANDS` says how each file comes to be, and the folder's README.md is made of it. Float models
and their inputs are written first: they are small nets with random weights. Later versions must
read all of these files (`test_files.py`), so a folder that was published is never written again: a
new version gets a folder of its own.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from click.testing import CliRunner
from onnx import helper

from lingeronnx import __version__, cli
from tests.nets import Net

__all__ = ["COMMANDS", "main"]

PLATFORMS = ("generic", "venus", "arcs", "venusA")
STANDARD = ("qdq", "qoperator")
NETS = ("conv", "branches", "lstm", "gru", "attention", "stream")
SAMPLES = 12
CALLS = """\
import numpy as np


def calls():
    x = np.load("stream.npz")["x"]
    return [({"x": x[i : i + 1]}, None) for i in range(len(x))]
"""
CONFIG = """\
platform: venusA
effort: fast
calibrator: percentile
skip: [Softmax_y]
"""
STATES = "--state h_out=h_in --state c_out=c_in"

#: Runs of `quantize` beside the one of each net and platform: file, options.
VARIANTS = {
    "conv_max_value": "conv.onnx --calib conv.npz --platform generic --mode max-value",
    "conv_channel": (
        "conv.onnx --calib conv.npz --platform generic --mode max-value --weight-scales channel"
    ),
    "conv_zero_points": (
        "conv.onnx --calib conv.npz --platform generic --mode max-value --activations asymmetric"
    ),
    "conv_four_bits": "conv.onnx --calib conv.npz --platform generic --weight-bits 4",
    "conv_arcs_four_bits": "conv.onnx --calib conv.npz --platform arcs --weight-bits 4",
    "conv_groups": "conv.onnx --calib conv.npz --platform generic --mode max-value --weight-bits 4"
    " --weight-scales group:4",
    "conv_sixteen_bits": "conv.onnx --calib conv.npz --platform generic --bits 16",
    "conv_config": "conv.onnx --calib conv.npz --config conv.yaml",
    "branches_wide": "branches.onnx --calib branches.npz --platform venus --override z=out_bits:32",
    "conv_plan": "conv.onnx --calib conv.npz --platform arcs --save-plan conv_plan.json",
}


def _quantize() -> Iterator[tuple[str, str]]:
    for net in NETS:
        for platform in PLATFORMS:
            data = f"calls.py:calls {STATES}" if net == "stream" else f"{net}.npz"
            yield (
                f"{net}_{platform}.onnx",
                (
                    f"quantize {net}.onnx --calib {data} --platform {platform} -o "
                    f"{net}_{platform}.onnx"
                ),
            )
    for name, words in VARIANTS.items():
        yield f"{name}.onnx", f"quantize {words} -o {name}.onnx"


def _convert() -> Iterator[tuple[str, str]]:
    for net in NETS:
        for platform in PLATFORMS[1:]:  # that generation knows the chips alone
            stem = f"{net}_{platform}"
            yield f"{stem}_linger.onnx", f"convert {stem}.onnx -o {stem}_linger.onnx --to linger"
    for stem in (
        "conv_venus",
        "conv_generic",
        "conv_channel",
        "conv_zero_points",
        "attention_generic",
    ):
        for form in STANDARD:
            yield f"{stem}_{form}.onnx", f"convert {stem}.onnx -o {stem}_{form}.onnx --to {form}"


#: What is written, in this order: file or folder -> the command's words.
COMMANDS: dict[str, str] = {
    **dict(_quantize()),
    **dict(_convert()),
    "conv_report.json": (
        "quantize conv.onnx --calib conv.npz --eval conv.npz --platform venus --json -o again.onnx"
    ),
    # Scales of largest values, rounded to powers of two, are the same on every processor: resuming
    # finds its plan.
    "wish_search.jsonl": "quantize branches.onnx --calib branches.npz --eval branches.npz "
    "--platform generic"
    " --effort fast --calibrator max --min-sqnr 60 -o wish.onnx",
    "sensitivity": "sensitivity branches.onnx --calib branches.npz -o sensitivity --platform venus "
    "--effort fast"
    " --calibrator max --metric L1 --metric SQNR --batch 4",
    "board": "deploy conv_venus.onnx --input conv.npz --samples 2 -o board",
    "board_stream": (
        f"deploy stream_arcs.onnx --input calls.py:calls --samples 2 {STATES} -o board_stream"
    ),
    "dump": "simulate conv_venus.onnx --input conv.npz --limit 1 --dump dump -o dump_outputs.npz",
    "profile_float": "profile conv.onnx --data conv.npz -o profile_float --keep --limit 1",
    "profile_venus": "profile conv_venus.onnx --data conv.npz -o profile_venus --keep --limit 1",
    "conv_training.pt": "finetune conv.onnx --train conv.npz --epochs 1 --checkpoint "
    "conv_training.pt --platform arcs"
    " -o tuned.onnx",
    "one_asr.pt": "checkpoint one_torch.pt -o one_asr.pt --to asr",
    "one_plain.pt": "checkpoint one_torch.pt -o one_plain.pt --to plain",
    "two_ub.pt": "checkpoint two_torch.pt -o two_ub.pt --to ub",
}


def options(stem: str) -> str:
    """Return options of `simulate` for what a graph is expected to give; of a converted one the
    outputs alone.
    """
    return "--integers --limit 2" + ("" if stem.endswith("_linger") else " --taps all")


#: What commands write beside the file that is asked for, and no later version reads.
LEFT_OUT = (
    "*_chip.onnx",
    "*_chip[0-9].onnx",
    "again.onnx",
    "wish.onnx",
    "wish_search.html",
    "wish_search.svg",
    "dump_outputs.npz",
    "tuned.onnx",
)


# ---- the float models ----------------------------------------------------------------------------------------------


def _conv() -> onnx.ModelProto:
    """Convolutions: depthwise, ReLU6, a residual; a softmax for the host."""
    net = Net(3, 8, 8, seed=11)
    a = net.node("Relu", net.conv("x", (8, 3, 3, 3), pads=[1, 1, 1, 1]))
    b = net.relu6(net.conv(a, (8, 1, 3, 3), group=8, pads=[1] * 4))
    c = net.node("Relu", net.node("Add", net.conv(b, (8, 8, 1, 1)), a))
    d = net.node("MaxPool", c, kernel_shape=[2, 2], strides=[2, 2])
    f = net.node("Flatten", net.node("GlobalAveragePool", d))
    return net.proto(net.node("Softmax", net.linear(f, (8, 5), out="logits"), axis=-1, out="y"))


def _branches() -> onnx.ModelProto:
    """Two outputs, a product, pools of two kinds, a Concat, a Transpose."""
    net = Net(4, 8, 8, seed=12)
    a = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4, bias=False))
    m = net.node("Mul", a, net.node("Relu", net.conv("x", (8, 4, 1, 1))))
    p = net.node("AveragePool", m, kernel_shape=[2, 2], strides=[2, 2])
    q = net.node("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])
    net.conv(net.node("Concat", p, q, axis=1), (4, 16, 1, 1), out="y")
    rows = net.node(
        "Reshape", net.node("Transpose", p, perm=[0, 2, 3, 1]), net.const(np.array([0, -1, 8]))
    )
    weight = net.const((0.3 * net.rng.standard_normal((8, 6))).astype(np.float32))
    net.node("MatMul", rows, weight, out="z")
    return net.proto("y", "z")


def _recurrent(kind: str, seed: int) -> onnx.ModelProto:
    """A recurrent layer of 8 units over 3 steps of 6 features, linear on the last state."""
    net, gates = Net(3, 6, seed=seed), {"LSTM": 4, "GRU": 3}[kind]
    sequence = net.node("Transpose", "x", perm=[1, 0, 2])
    sizes = (1, gates * 8, 6), (1, gates * 8, 8), (1, 2 * gates * 8)
    weights = [
        net.const((0.35 * net.rng.standard_normal(size)).astype(np.float32)) for size in sizes
    ]
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    net.node(kind, sequence, *weights, hidden_size=8, **more)
    net.nodes[-1].output[:] = ["", "last"]
    state = net.node("Squeeze", "last", net.const(np.array([0])))
    return net.proto(net.linear(state, (8, 4), out="y"))


def _stream() -> onnx.ModelProto:
    """One step of an LSTM whose states go in and out, their samples on axis 1."""
    net = Net(1, 6, seed=15)
    net.inputs += [helper.make_tensor_value_info(name, 1, [1, "N", 8]) for name in ("h_in", "c_in")]
    sizes = (1, 32, 6), (1, 32, 8), (1, 64)
    weights = [
        net.const((0.3 * net.rng.standard_normal(size)).astype(np.float32)) for size in sizes
    ]
    sequence = net.node("Transpose", "x", perm=[1, 0, 2])
    net.node("LSTM", sequence, *weights, "", "h_in", "c_in", hidden_size=8)
    net.nodes[-1].output[:] = ["all", "h_out", "c_out"]
    rows = net.node(
        "Transpose", net.node("Squeeze", "all", net.const(np.array([1]))), perm=[1, 0, 2]
    )
    net.linear(net.node("Reshape", rows, net.const(np.array([-1, 8]))), (8, 4), out="y")
    return net.proto("y", "h_out", "c_out")


def _attention() -> onnx.ModelProto:
    """One block of two heads, layer norm, a mean over 8 positions, linear."""
    net, t, d = Net(8, 16, seed=14, opset=17), 8, 16

    def dense(x: str, inputs: int, outputs: int) -> str:
        weight = (net.rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)
        bias = (0.1 * net.rng.standard_normal(outputs)).astype(np.float32)
        return net.node("Add", net.node("MatMul", x, net.const(weight)), net.const(bias))

    def heads(x: str, perm: list[int]) -> str:
        return net.node(
            "Transpose", net.node("Reshape", x, net.const(np.array([0, t, 2, d // 2]))), perm=perm
        )

    gamma, beta = net.const(np.ones(d, np.float32)), net.const(np.zeros(d, np.float32))
    n = net.node("LayerNormalization", "x", gamma, beta, axis=-1)
    q, k, v = (heads(dense(n, d, d), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    weights = net.node(
        "Softmax", net.node("Mul", net.node("MatMul", q, k), net.const(np.float32(0.35))), axis=-1
    )
    mixed = net.node("Transpose", net.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    block = net.node(
        "Add", dense(net.node("Reshape", mixed, net.const(np.array([0, t, d]))), d, d), "x"
    )
    return net.proto(
        net.linear(net.node("ReduceMean", block, axes=[1], keepdims=0), (d, 4), out="y")
    )


def _float_models() -> dict[str, onnx.ModelProto]:
    return {
        "conv": _conv(),
        "branches": _branches(),
        "lstm": _recurrent("LSTM", 13),
        "gru": _recurrent("GRU", 16),
        "attention": _attention(),
        "stream": _stream(),
    }


# ---- the folder ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _run(words: str) -> str:
    result = CliRunner().invoke(cli.main, shlex.split(words))
    if result.exit_code:
        raise SystemExit(f"lingeronnx {words}\n{result.output}")
    return result.stdout


def _write(folder: Path) -> None:
    for number, (name, model) in enumerate(_float_models().items()):
        onnx.save(model, folder / f"{name}.onnx")
        rng, arrays = np.random.default_rng(number), {}
        for value in model.graph.input:
            shape = [dim.dim_value or SAMPLES for dim in value.type.tensor_type.shape.dim]
            arrays[value.name] = rng.standard_normal(shape).astype(np.float32)
        np.savez(folder / f"{name}.npz", **arrays)
    (folder / "calls.py").write_text(CALLS)
    (folder / "conv.yaml").write_text(CONFIG)
    _checkpoints(folder)
    (folder / "expected").mkdir()
    for name, words in COMMANDS.items():
        print("lingeronnx", words, flush=True)
        said = _run(words)
        if words.endswith(" --json -o again.onnx"):
            (folder / name).write_text(said)
    for graph in sorted(folder.glob("*.onnx")):
        if graph.name in COMMANDS and not graph.stem.endswith(STANDARD):
            target, net = folder / "expected" / f"{graph.stem}.npz", graph.stem.split("_")[0]
            _run(f"simulate {graph.name} --input {net}.npz {options(graph.stem)} -o {target}")
            with np.load(target) as found:
                arrays = dict(found)
            np.savez_compressed(target, **arrays)
    for pattern in LEFT_OUT:
        for path in folder.glob(pattern):
            path.unlink()


def _checkpoints(folder: Path) -> None:
    import torch

    torch.manual_seed(0)
    for directions in ("one", "two"):
        layer = torch.nn.LSTM(5, 6, proj_size=3, bidirectional=directions == "two")
        torch.save(layer.state_dict(), folder / f"{directions}_torch.pt")


def _readme(released: str) -> str:
    rows = "\n".join(f"| `{name}` | `lingeronnx {words}` |" for name, words in COMMANDS.items())
    return f"""# Files of lingeronnx {released}

Small files as this version wrote them. Later versions must read them: `tests/files/test_files.py` says what that means.
Nothing here is ever written again. Made by `python -m tests.files.make tests/files/{released.rpartition(".")[0]}`.
The commands were run in this folder:

| file | command |
|---|---|
{rows}

`NET.onnx` are the float models, `NET.npz` their inputs: seeded random numbers. `one_torch.pt` and `two_torch.pt` are
the state_dicts of an `nn.LSTM` with projection, of one and of two directions. `expected/GRAPH.npz` holds the integers
that the graph gives for the first two samples: `lingeronnx simulate GRAPH.onnx --input NET.npz {options("")}`,
and without `--taps` for what `convert` wrote.
"""


def main() -> None:
    """Write the folder that the command line names; it must not be there yet."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir()
    with _inside(folder):
        _write(folder)
    (folder / "README.md").write_text(_readme(__version__), encoding="utf-8")


if __name__ == "__main__":
    main()
