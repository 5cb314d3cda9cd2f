"""The kinds of hostile input. Each makes a case of random numbers: good files of ours, a few
changes, and a call.
"""

import io
import json
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from tests.robustness import byte_mutations
from tests.robustness.case import Case, write_member
from tests.robustness.cut_nets import cut_net
from tests.robustness.graph_mutations import mutate_model
from tests.robustness.values import FLOATS, INTS, PIECES, TEXTS, pick

__all__ = ["KINDS", "SPLICED", "make"]

GOOD = Path(__file__).parent.parent / "files" / "0.1"
NETS = ("conv", "branches", "lstm", "gru", "attention", "stream")
PLATFORMS = ("generic", "venus", "arcs", "venusA")


def make(kind, seed, most=None):
    """Return the case of a kind and a seed; `most` changes of those that the seed makes."""
    rng = np.random.default_rng([seed, *kind.encode()])
    count = min(int(pick(rng, (1, 1, 1, 2, 2, 3, 5))), most or 5)
    return {**KINDS, **SPLICED}[kind](rng, count)


def make_valid_cases():
    """Return cases in which nothing is hostile, that use most of what there is."""
    for net in NETS[:5]:
        for target in ("generic", "arcs"):
            files = {
                "m.onnx": read_valid_file(f"{net}_{target}.onnx"),
                "d.npz": read_valid_file(f"{net}.npz"),
            }
            yield Case(["simulate", "m.onnx", "--input", "d.npz"], files)
    files = {
        "m.onnx": read_valid_file("conv.onnx"),
        "q.onnx": read_valid_file("conv_venus.onnx"),
        "d.npz": read_valid_file("conv.npz"),
    }
    yield Case(["quantize", "m.onnx", "--calib", "d.npz", "--effort", "fast"], files)
    yield Case(["compare", "m.onnx", "q.onnx", "--data", "d.npz", "-o", "c"], files)


def make_common_cases():
    """Return cases whose work many others do once more: a difference in each tensor, and a host
    part as C.
    """
    return [*(make("dumps", seed) for seed in range(50)), make("names", 610_003)]


@cache
def read_valid_file(name):
    """Return the bytes of one of our files."""
    return (GOOD / name).read_bytes()


@cache
def _models(kind):
    """Return the names of our models: float, integer, or standard ONNX with integers."""
    names = sorted(path.name for path in GOOD.glob("*.onnx"))
    standard = [name for name in names if name.endswith(("_qdq.onnx", "_qoperator.onnx"))]
    floats = [f"{net}.onnx" for net in NETS]
    return {
        "float": floats,
        "qdq": standard,
        "integer": [n for n in names if n not in standard and n not in floats],
    }[kind]


def _net(name):
    return next(net for net in NETS if name.startswith(net))


def _of(kind, rng):
    """Return (name of a net, bytes of one of its models)."""
    name = pick(rng, _models(kind))
    return _net(name), read_valid_file(name)


def _pick_float_net(rng):
    """Return (model file, .npz file of its inputs) of a float net: nine of ten are short."""
    net = pick(rng, NETS)
    files = read_valid_file(f"{net}.onnx"), read_valid_file(f"{net}.npz")
    return pick(rng, cut_net(*files)) if rng.integers(10) else files


def _grammar(kind):
    def made(rng, count):
        if kind == "float":
            good, data = _pick_float_net(rng)
            model = mutate_model(onnx.ModelProto.FromString(good), rng, count)
            case = _on_model(rng, kind, NETS[0], model.SerializeToString())
            return replace(case, files={**case.files, "d.npz": data, "good.onnx": good})
        net, content = _of(kind, rng)
        model = mutate_model(onnx.ModelProto.FromString(content), rng, count)
        return _on_model(rng, kind, net, model.SerializeToString())

    return made


def _spliced(kind):
    def made(rng, count):
        net, content = _of(kind, rng)
        _, other = _of(pick(rng, (kind, kind, "float", "integer", "qdq")), rng)
        return _on_model(rng, kind, net, byte_mutations.splice_messages(content, other, rng, count))

    return made


def _on_model(rng, kind, net, content):
    files = {
        "m.onnx": content,
        "d.npz": read_valid_file(f"{net}.npz"),
        "data.bin": bytes(4096),
        "good.onnx": read_valid_file(f"{net}.onnx"),
    }
    target = pick(rng, PLATFORMS)
    quick = ["--platform", target, "--effort", "fast"]
    data = ["--calib", "d.npz"] if rng.integers(3) else []
    runs = [
        ["simulate", "m.onnx", "--input", "d.npz"],
        ["check", "m.onnx", "--platform", target],
        ["api", "session"],
        ["evaluate", "m.onnx", "--data", "d.npz"],
        ["analyze", "weights", "m.onnx"],
        ["api", "structure"],
        ["profile", "m.onnx", "--data", "d.npz", "-o", "p"],
    ]
    quantizing = [
        ["quantize", "m.onnx", *data, *quick],
        ["api", "quantize", target],
        ["api", "proto", target],
        ["deploy", "m.onnx", "-o", "out", *data, *quick],
    ]
    integer = [
        ["fix-dequant", "m.onnx"],
        ["fix-dequant", "m.onnx", "--check"],
        ["api", "check_model"],
        ["api", "taps"],
        [
            "convert",
            "m.onnx",
            "-o",
            "o.onnx",
            "--to",
            pick(rng, ["thinker", "linger", "qdq", "qoperator"]),
        ],
        ["compare", "good.onnx", "m.onnx", "--data", "d.npz", "-o", "c"],
        ["api", "reference"],
        ["deploy", "m.onnx", "-o", "out", "--input", "d.npz"],
        ["badcase", "good.onnx", "m.onnx", "--data", "d.npz"],
        ["check", "m.onnx"],
        ["api", "graph"],
    ]
    calls = {
        "float": [*quantizing * 3, *runs],
        "qdq": [*quantizing, *integer[:5], *runs],
        "integer": [*integer * 2, *runs],
    }
    return Case(pick(rng, calls[kind]), files)


# ---- data ----------------------------------------------------------------------------------------------------------


def _npy(array):
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def _array(rng, x):
    """Return the bytes of an array file: wrong type, sizes or numbers, or a header that lies."""
    way = int(rng.integers(9))
    if way == 0:
        kind = pick(
            rng, ("f2", "f8", "i1", "u1", "i8", "?", "c8", "U3", "S2", "O", "M8[s]", "f4,i4", ">f4")
        )
        try:
            return _npy(np.zeros(x.shape, kind))
        except TypeError:
            return b""
    if way == 1:
        with np.errstate(all="ignore"):
            flat = x.astype(pick(rng, ("f4", "f8"))).reshape(-1)
            flat[int(rng.integers(flat.size))] = pick(rng, FLOATS)
        return _npy(flat.reshape(x.shape))
    if way == 2:
        return _npy(
            np.zeros(
                pick(
                    rng, [(), (0,), (0, *x.shape[1:]), (1,), x.shape[1:], (*x.shape, 1), (3,) * 12]
                ),
                "f4",
            )
        )
    if way == 3:
        return _npy(np.array([{"a": 1}, "x"], dtype=object))
    content = _npy(x)
    if way == 4:
        sizes = pick(
            rng,
            (
                f"({2**62}, 8)",
                f"({2**40},)",
                "(-1,)",
                "(3,",
                "(1.5,)",
                "(" * 200,
                "x",
                f"{(1,) * 200}",
            ),
        )
        kind = pick(rng, ("<f4", "|O", "|V2000000000", "<f99", "x", "|S0", "[('a', '<f4')]"))
        head = (
            f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {sizes}, }}".encode().ljust(117)
            + b"\n"
        )
        return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + content[128:]
    return byte_mutations.damage_bytes(content, rng)


def _npz(rng, net):
    arrays = dict(np.load(io.BytesIO(read_valid_file(f"{net}.npz"))).items())
    if not rng.integers(4):
        return byte_mutations.damage_bytes(read_valid_file(f"{net}.npz"), rng)
    out = io.BytesIO()
    with zipfile.ZipFile(
        out, "w", zipfile.ZIP_DEFLATED if rng.integers(2) else zipfile.ZIP_STORED
    ) as file:
        for key, value in arrays.items():
            name = (
                f"{key}.npy"
                if rng.integers(6)
                else pick(rng, (*TEXTS, "labels.npy", "../x.npy", "x", f"{key}"))
            )
            write_member(
                file,
                name.replace("\0", "0") or "e",
                _array(rng, value) if rng.integers(2) else _npy(value),
            )
        if not rng.integers(4):
            name = pick(rng, ("labels.npy", "y.npy", "x/y.npy"))
            write_member(file, name, _array(rng, np.arange(4)))
    return out.getvalue()


def _on_data(rng, data):
    net, platform = "conv", pick(rng, PLATFORMS)
    model = pick(rng, ("m.onnx", "good.onnx"))
    call = pick(
        rng,
        [
            ["simulate", model, "--input", data],
            ["evaluate", model, "--data", data],
            ["evaluate", "m.onnx", "--data", data, "--baseline", "good.onnx", "--metric", "sqnr"],
            ["quantize", "good.onnx", "--calib", data, "--effort", "fast", "--platform", platform],
            ["compare", "good.onnx", "m.onnx", "--data", data, "-o", "c"],
            ["profile", model, "--data", data, "-o", "p"],
            ["badcase", "good.onnx", "m.onnx", "--data", data],
            ["verify", "m.onnx", "--input", data, "--device-output", "out.bin"],
            ["check", "good.onnx", "--calib", data],
        ],
    )
    return call, {
        "m.onnx": read_valid_file("conv_venus.onnx"),
        "good.onnx": read_valid_file(f"{net}.onnx"),
        "out.bin": bytes(20),
    }


def data(rng, count):
    """A .npz or .npy file, or a folder of them."""
    way = int(rng.integers(3))
    name = ("x.npz", "x.npy", "in")[way]
    call, files = _on_data(rng, name)
    x = np.load(io.BytesIO(read_valid_file("conv.npz")))["x"]
    if way == 2:
        files.update(
            {
                "in/0.npz": read_valid_file("conv.npz"),
                f"in/{pick(rng, ('1.npz', '1.npy', 'x.txt', '1.png'))}": _npz(rng, "conv"),
            }
        )
    else:
        files[name] = _npz(rng, "conv") if way == 0 else _array(rng, x)
    return Case(call, files)


def pictures(rng, count):
    """A folder of pictures, and how they are read."""
    from PIL import Image

    call, files = _on_data(rng, "in")
    for number in range(count):
        mode = pick(rng, ("RGB", "L", "RGBA", "P", "1", "I", "CMYK", "I;16"))
        out = io.BytesIO()
        size = pick(rng, ((8, 8), (1, 1), (1, 900), (33, 7)))
        kind = pick(rng, ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM"))
        try:
            Image.new(mode, size).save(out, kind)
        except (OSError, ValueError, KeyError):
            Image.new("RGB", size).save(out, "PNG")
        content = out.getvalue()
        if rng.integers(2):
            content = byte_mutations.damage_bytes(content, rng)
        files[f"in/{number}.{pick(rng, ('png', 'jpg', 'bmp', 'gif', 'webp', 'JPEG', 'npy'))}"] = (
            content
        )
    sides = pick(
        rng,
        (
            "8,8",
            "8,8",
            "8,8",
            "0,0",
            "-1,8",
            "nan,2",
            "inf,8",
            "1e9,1e9",
            "8",
            "8,8,8",
            "",
            "x,y",
            "8.5,8",
            "1000000,1",
        ),
    )
    words = ["--image-size", sides]
    for option in ("--mean", "--std"):
        if rng.integers(2):
            words += [
                option,
                pick(
                    rng,
                    ("0", "1,2,3", "nan", "0,0,0", "1,2", "inf", "1e-320", "x", "", "-1", "1e999"),
                ),
            ]
    if not rng.integers(3):
        words += ["--color", "gray"]
    if not rng.integers(3):
        words += ["--layout", "nhwc"]
    if not rng.integers(3):
        words += ["--resize", pick(rng, ("fit", "crop", "pad"))]
    return Case([*call, *words], files)


# ---- texts ---------------------------------------------------------------------------------------------------------


def _pieces(text, rng, count):
    """Return `text` with some numbers or words of it replaced."""
    import re

    for _ in range(count):
        found = list(re.finditer(r"[-+]?\d[\d.e+-]*|[A-Za-z_][\w.]*|[\[\]{}:,]", text))
        if not found:
            break
        place = pick(rng, found)
        way = rng.integers(5)
        new = pick(rng, PIECES) if way < 3 else "" if way == 3 else place.group() * 2
        text = text[: place.start()] + new + text[place.end() :]
    return text


def _json(value, rng, count):
    """Return `value` as JSON after some changes of what it holds."""
    root = {"": json.loads(json.dumps(value))}
    for _ in range(count):
        holder, key = root, ""
        while isinstance(holder[key], dict | list) and holder[key] and rng.integers(8):
            holder = holder[key]
            key = (
                pick(rng, list(holder))
                if isinstance(holder, dict)
                else int(rng.integers(len(holder)))
            )
        way = rng.integers(5)
        if way == 0 and holder is not root and len(holder) > 1:
            del holder[key]
        elif way == 1 and isinstance(holder, dict) and holder is not root:
            holder[pick(rng, TEXTS)] = holder[key]
        else:
            holder[key] = pick(
                rng,
                [
                    None,
                    True,
                    [],
                    {},
                    [None],
                    {"": 1},
                    [[1]],
                    *INTS,
                    *FLOATS,
                    *TEXTS,
                    2**70,
                    10**400,
                ],
            )
    return json.dumps(root[""])


def _bytes(text):
    return text.encode("utf-8", "surrogatepass")


_YAML = """platform: generic
mode: q-value
bits: 8
weight_bits: 8
effort: fast
calibrator: percentile
percentile: 99.9
skip: ['type:MaxPool']
seed: 1
batch: 2
fit: true
overrides:
  t3: {bits: 16, calibrator: max}
  type:Conv: {weight_bits: 8, calibrator: kl}
"""


def yaml(rng, count):
    """A configuration."""
    import yaml as text_format

    if rng.integers(2):  # values of another kind; JSON is YAML, too
        text = _json(text_format.safe_load(_YAML), rng, int(rng.integers(1, 3)))
    else:
        text = _pieces(_YAML, rng, count)
    content = (
        byte_mutations.damage_bytes(_bytes(text), rng) if not rng.integers(6) else _bytes(text)
    )
    files = {
        "m.onnx": read_valid_file("conv.onnx"),
        "d.npz": read_valid_file("conv.npz"),
        "q.yaml": content,
    }
    return Case(["quantize", "m.onnx", "--calib", "d.npz", "--config", "q.yaml"], files)


_AIMET = {
    "version": "1.0.0",
    "activation_encodings": {
        name: [
            {
                "bitwidth": 8,
                "max": 3.0,
                "min": -3.0,
                "scale": 0.0235,
                "offset": -128,
                "is_symmetric": "False",
                "dtype": "int",
            }
        ]
        for name in ("x", "t0", "t1", "t2", "t3", "logits")
    },
    "param_encodings": {
        "k0": [
            {
                "bitwidth": 8,
                "max": 1.0,
                "min": -1.0,
                "scale": 0.008,
                "offset": -128,
                "is_symmetric": "True",
                "dtype": "int",
            }
        ]
    },
}


def plan(rng, count):
    """A plan, ours or another tool's."""
    value = pick(
        rng,
        (
            json.loads(read_valid_file("conv_plan.json")),
            json.loads(read_valid_file("conv_plan.json")),
            _AIMET,
        ),
    )
    text = _json(value, rng, count) if rng.integers(2) else _pieces(json.dumps(value), rng, count)
    content = (
        byte_mutations.damage_bytes(_bytes(text), rng) if not rng.integers(8) else _bytes(text)
    )
    files = {
        "m.onnx": read_valid_file("conv.onnx"),
        "d.npz": read_valid_file("conv.npz"),
        "p.json": content,
    }
    calls = [
        ["quantize", "m.onnx", "--calib", "d.npz", "--plan", "p.json", "--effort", "fast"],
        ["quantize", "m.onnx", "--plan", "p.json", "--effort", "fast"],
        ["api", "read_plan"],
    ]
    return Case(pick(rng, calls), files)


def journals(rng, count):
    """What a run that goes on reads: journals of a search and of sensitivity, kept profiles, a
    deployed folder.
    """
    way = int(rng.integers(3))
    if way == 0:
        files = {
            "m.onnx": read_valid_file("branches.onnx"),
            "d.npz": read_valid_file("branches.npz"),
            "o_search.jsonl": _bytes(
                _pieces(read_valid_file("wish_search.jsonl").decode(), rng, count)
            ),
        }
        # the time is over after one attempt that the journal has not, in three of four cases
        budget = ["--budget", "0.0001"] if rng.integers(4) else []
        return Case(
            [
                "quantize",
                "m.onnx",
                "--calib",
                "d.npz",
                "--eval",
                "d.npz",
                "--platform",
                "generic",
                "--effort",
                "fast",
                "--calibrator",
                "max",
                "--min-sqnr",
                "60",
                "-o",
                "o.onnx",
                "--resume",
                *budget,
            ],
            files,
        )
    if way == 1:
        files = {
            f"s/{p.name}": p.read_bytes() for p in (GOOD / "sensitivity").iterdir() if p.is_file()
        }
        name = pick(rng, sorted(files))
        files[name] = (
            byte_mutations.damage_bytes(files[name], rng)
            if rng.integers(2)
            else _bytes(_pieces(files[name].decode("utf-8", "replace"), rng, count))
        )
        files.update(
            {"m.onnx": read_valid_file("branches.onnx"), "d.npz": read_valid_file("branches.npz")}
        )
        return Case(
            [
                "sensitivity",
                "m.onnx",
                "--calib",
                "d.npz",
                "-o",
                "s",
                "--platform",
                "venus",
                "--effort",
                "fast",
                "--calibrator",
                "max",
                "--metric",
                "L1",
                "--metric",
                "SQNR",
                "--batch",
                "4",
                "--resume",
            ],
            files,
        )
    files = {"m.onnx": read_valid_file("conv.onnx"), "q.onnx": read_valid_file("conv_venus.onnx")}
    for side in ("float", "venus"):
        root = GOOD / f"profile_{side}"
        files.update(
            {
                f"{side}/{p.relative_to(root)}": p.read_bytes()
                for p in root.rglob("*")
                if p.is_file()
            }
        )
    name = pick(rng, sorted(files))
    files[name] = byte_mutations.damage_bytes(files[name], rng)
    return Case(["compare", "m.onnx", "q.onnx", "--profiles", "float", "venus", "-o", "c"], files)


def dumps(rng, count):
    """What a device gave: a folder of dumps, a log, raw outputs."""
    root = GOOD / "board" / "golden" / "0"
    files = {
        "m.onnx": read_valid_file("conv_venus.onnx"),
        "d.npz": (root / "input.npz").read_bytes(),
    }
    way = int(rng.integers(3))
    if way == 0:
        files.update({f"dump/{p.name}": p.read_bytes() for p in (root / "data").iterdir()})
        for _ in range(count):
            name = pick(rng, sorted(n for n in files if n.startswith("dump/")))
            content = files.pop(name)
            if rng.integers(3):
                content = (
                    byte_mutations.damage_bytes(content, rng)
                    if rng.integers(2)
                    else _bytes(_pieces(content.decode("utf-8", "replace"), rng, 2))
                )
            else:
                name = pick(
                    rng,
                    (
                        name + ".bin",
                        name.replace("_8", "_0"),
                        name.replace("##", "#"),
                        "dump/é##_1.txt",
                        "dump/x##_99999999999999999999_2.txt",
                        name.replace(".txt", ".bin"),
                        f"dump/t0##_{'9' * 200}.txt",
                    ),
                )
            files[name] = content
        call = ["verify", "m.onnx", "--input", "d.npz", "--device-dump", "dump"]
    elif way == 1:
        of = ("t0", "t1", "t2", "logits_q", *(pick(rng, TEXTS) for _ in range(2)))
        sums = "data = [0x00000000-0x01020304-0xffffffff]"
        lines = [
            f"crc32_calc = 0x{int(rng.integers(2**32)):08x}, {sums}, name = {name}" for name in of
        ]
        log = (
            _bytes(_pieces("\n".join(lines), rng, count))
            if rng.integers(2)
            else _bytes("\n".join(lines))
        )
        files["log"] = byte_mutations.damage_bytes(log, rng) if rng.integers(2) else log
        call = ["verify", "m.onnx", "--input", "d.npz", "--device-log", "log"]
    else:
        name = pick(rng, ("o.bin", "o.txt"))
        files[name] = (
            byte_mutations.damage_bytes((root / "output0.bin").read_bytes(), rng)
            if name == "o.bin"
            else _bytes(_pieces("1\n2\n-3\n4\n5\n", rng, count))
        )
        call = ["verify", "m.onnx", "--input", "d.npz", "--device-output", name]
    return Case(call, files)


def checkpoints(rng, count):
    """A checkpoint of torch."""
    name = pick(
        rng,
        (
            "one_asr.pt",
            "one_plain.pt",
            "one_torch.pt",
            "two_torch.pt",
            "two_ub.pt",
            "conv_training.pt",
        ),
    )
    content = (
        byte_mutations.repacked(read_valid_file(name), rng)
        if rng.integers(3)
        else byte_mutations.damage_bytes(read_valid_file(name), rng)
    )
    if not rng.integers(20):
        content = b""
    files = {
        "a.pt": content,
        "m.onnx": read_valid_file("conv.onnx"),
        "d.npz": read_valid_file("conv.npz"),
    }
    calls = [
        ["checkpoint", "a.pt", "-o", "b.pt", "--to", pick(rng, ("asr", "plain", "torch", "ub"))],
        [
            "checkpoint",
            "a.pt",
            "-o",
            "b.pt",
            "--from",
            pick(rng, ("asr", "plain", "torch", "ub")),
            "--to",
            "torch",
        ],
        ["analyze", "weights", "a.pt"],
    ]
    return Case(pick(rng, calls), files)


# ---- names, options, functions -------------------------------------------------------------------------------------


def names(rng, count):
    """A good model whose tensors and nodes have hostile names."""
    kind = pick(rng, ("float", "float", "integer"))
    if kind == "float":
        net, (good, data) = NETS[0], _pick_float_net(rng)
        model = onnx.ModelProto.FromString(good)
    else:
        net, content = _of(kind, rng)
        good, data = read_valid_file(f"{net}.onnx"), read_valid_file(f"{net}.npz")
        model = onnx.ModelProto.FromString(content)
    used = sorted({n for node in model.graph.node for n in (*node.input, *node.output) if n})
    new = {}
    for _ in range(count):
        old = pick(rng, used)
        new[old] = pick(rng, [t for t in TEXTS if t]) + (str(len(new)) if rng.integers(2) else "")
    for node in model.graph.node:
        if rng.integers(2):
            node.name = pick(rng, TEXTS)
        for side in (node.input, node.output):
            for place, held in enumerate(side):
                side[place] = new.get(held, held)
    for value in (
        *model.graph.input,
        *model.graph.output,
        *model.graph.value_info,
        *model.graph.initializer,
    ):
        value.name = new.get(value.name, value.name)
    arrays = np.load(io.BytesIO(data))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for key in arrays:
            write_member(file, f"{new.get(key, key)}.npy".replace("\0", "0"), _npy(arrays[key]))
    found = _on_model(rng, kind, net, model.SerializeToString())
    return Case(found.call, {**found.files, "d.npz": out.getvalue(), "good.onnx": good})


_OPTIONS = {
    "quantize": (
        "--platform",
        "--mode",
        "--bits",
        "--weight-bits",
        "--weight-scales",
        "--activations",
        "--calibrator",
        "--effort",
        "--skip",
        "--override",
        "--seed",
        "--state",
        "--fix",
        "--batch-axis",
        "--memory",
        "--format",
        "--eval",
        "--metric",
        "--max-drop",
        "--min-sqnr",
        "--budget",
        "--batch",
        "--limit",
        "-o",
        "--save-plan",
        "--deploy",
        "--debug-dump",
        "--calib",
        "--plan",
        "--config",
    ),
    "simulate": ("--taps", "--dump", "--at", "--batch", "--limit", "-o", "--input"),
    "evaluate": ("--metric", "--output", "--batch", "--limit", "--baseline", "--data"),
    "check": ("--platform", "--packer-args", "-o", "--calib"),
    "deploy": (
        "--samples",
        "--input",
        "--state",
        "--platform",
        "--bits",
        "-o",
        "--skip",
        "--override",
        "--fix",
    ),
    "compare": ("--state", "--batch", "--limit", "-o", "--data", "--profiles"),
    "badcase": ("--metric", "--tensor", "--steps", "--order", "--batch", "--limit", "-o"),
    "sensitivity": (
        "--metric",
        "--tensor",
        "--what",
        "--plots",
        "--order",
        "--batch",
        "--bits",
        "--skip",
        "--override",
    ),
    "verify": (
        "--sample",
        "--packer-args",
        "--device-output",
        "--device-dump",
        "--device-log",
        "--state",
    ),
    "profile": ("--prefix", "--type", "--batch", "--limit", "-o"),
    "analyze": ("--match", "-o", "--batch", "--limit"),
    "export": ("--input-shape", "--dynamic-axes", "--opset"),
    "platforms": ("--markdown",),
    "schema": (),
}
_WORDS = (
    *TEXTS,
    *(str(v) for v in INTS),
    *(str(v) for v in FLOATS),
    "x=y",
    "y=x",
    "x=",
    "=x",
    "x=0",
    "x=none",
    "x=nan",
    "t3=bits:16",
    "t3=bits:99",
    "t3=bits:x",
    "t3=scale:inf",
    "t3=scale:2^-7",
    "t3=scale:2^99999",
    "t3=scale:-1",
    "type:Conv=weight_bits:4",
    "*=calibrator:nonsense",
    "*=percentile:nan",
    "*=out_bits:float",
    "type:Conv",
    "..t3",
    "t3..",
    "..",
    "type:",
    "[",
    "*",
    "?[",
    "m.onnx",
    "good.onnx",
    "d.npz",
    "missing",
    "/dev/null",
    "/dev/full",
    "/proc/1/x",
    "nosuch:function",
    "hostile.py:nothing",
    "os:getcwd",
    "sys:exit",
    "os:_exit_not",
    "top1",
    "sqnr",
    "mse",
    "cosine",
    "top5",
    "L1",
    "x,y,z",
    "-s '",
    '--a "b',
    "\\",
    "a" * 300,
    "out/deep/x",
    "in/",
    "x" * 100_000,
    "x=1,3,8,8",
    "x=1",
    "x=0,0",
    "x=-1",
    "x=a:0",
)
_ENVIRONMENT = ("LINGERONNX_THREADS", "LINGERONNX_SIMD", "LINGERONNX_CACHE_DIR")


def options(rng, count):
    """Words of the command line, and variables of the environment."""
    command = pick(rng, [name for name in _OPTIONS for _ in range(max(len(_OPTIONS[name]), 2))])
    words = {
        "quantize": ["m.onnx", "--calib", "d.npz", "--effort", "fast"],
        "simulate": ["q.onnx", "--input", "d.npz"],
        "evaluate": ["q.onnx", "--data", "d.npz"],
        "check": [pick(rng, ("q.onnx", "m.onnx"))],
        "deploy": ["q.onnx", "-o", "out"],
        "compare": ["m.onnx", "q.onnx", "--data", "d.npz", "-o", "c"],
        "badcase": ["m.onnx", "q.onnx", "--data", "d.npz"],
        "sensitivity": [
            "m.onnx",
            "--calib",
            "d.npz",
            "-o",
            "s",
            "--effort",
            "fast",
            "--limit",
            "2",
        ],
        "verify": ["q.onnx", "--input", "d.npz", "--device-output", "o.bin"],
        "profile": ["m.onnx", "--data", "d.npz", "-o", "p"],
        "analyze": ["outputs", "m.onnx", "--data", "d.npz"],
        "export": ["net.py:net", "-o", "e.onnx", "--input-shape", "x=1,3"],
        "platforms": [],
        "schema": [],
    }[command]
    words = list(words)
    for _ in range(count):
        way = rng.integers(6)
        if way == 0 and words:
            words[int(rng.integers(len(words)))] = pick(rng, _WORDS)
        elif way == 1:
            words.insert(int(rng.integers(len(words) + 1)), pick(rng, _WORDS))
        elif _OPTIONS[command]:
            words += [pick(rng, _OPTIONS[command]), pick(rng, _WORDS)]
        if not rng.integers(8):
            words.append("--json")
    words = [
        word.replace("\0", "0").replace("/dev/null", "null").replace("/dev/full", "full")
        for word in words
    ]  # another test's business
    files = {
        "m.onnx": read_valid_file("conv.onnx"),
        "q.onnx": read_valid_file("conv_venus.onnx"),
        "d.npz": read_valid_file("conv.npz"),
        "o.bin": bytes(5),
        "net.py": b"import torch\nnet = torch.nn.Linear(3, 2)\n",
        "good.onnx": read_valid_file("lstm.onnx"),
    }
    environment = {}
    if not rng.integers(6):
        environment[pick(rng, _ENVIRONMENT)] = pick(
            rng, ("abc", "-1", "0", "", "1e9", "99999999999", "x" * 300, "inf", "2")
        )
    return Case([command, *words], files, environment)


_RAISED = (
    "raise ValueError('a\\nb')",
    "raise SystemExit(0)",
    "raise SystemExit('bye')",
    "raise KeyError",
    "raise Bad",
    "raise StopIteration",
    "raise RecursionError",
    "raise MemoryError",
    "raise OSError(5, 'x')",
    "raise Worse()",
    "f()",
    "import nothing_such",
    "1/0",
    "raise BrokenPipeError(32, 'x')",
    "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'y')",
    "raise EOFError",
    "raise Warning('w')",
    "exit(3)",
    "raise GeneratorExit",
    "raise BaseExceptionGroup('g', [KeyError(), GeneratorExit()])",
    "import asyncio; raise asyncio.CancelledError",
    "import warnings; warnings.warn('w')",
)
_GIVEN = (
    "None",
    "3",
    "'x'",
    "b'x'",
    "[]",
    "{}",
    "[[]]",
    "[None]",
    "[{}]",
    "object()",
    "f",
    "[object()]",
    "np.zeros(3)",
    "np.zeros((0, 3, 8, 8), 'f4')",
    "np.broadcast_to(np.float32(0), (2**33, 3, 8, 8))",
    "np.array(None)",
    "{'x': None}",
    "{'x': [[1], [1, 2]]}",
    "{'x': 'abc'}",
    "{1: 2}",
    "[{'x': np.zeros((1, 3, 8, 8), 'f4')}, 5]",
    "[({'x': np.zeros((1, 3, 8, 8), 'f4')},)]",
    "[(1, 2, 3, 4)]",
    "np.ma.masked_all((2, 3, 8, 8))",
    "Odd()",
    "[Odd()]",
    "np.zeros((2, 3, 8, 8), 'U4')",
    "np.full((2, 3, 8, 8), 1e300)",
    "{'x': Odd()}",
    "iter(())",
    "range(10**9)",
    "[({'x': np.zeros((1, 3, 8, 8), 'f4')}, Odd())]",
    "[({'x': np.zeros((1, 3, 8, 8), 'f4')}, 'cat')]",
    "[({'x': np.zeros((1, 3, 8, 8), 'f4')}, np.array([10**9]))]",
    "np.zeros((2, 3, 8, 8), complex)",
    "np.zeros((2, 3, 8, 8), 'O')",
    "(np.zeros((1, 3, 8, 8)) for _ in range(2))",
    "float('nan')",
    "10**400",
)
_PROGRAM = """import numpy as np
class Bad(Exception):
    def __str__(self): raise RuntimeError('no text')
class Worse(BaseException):
    def __repr__(self): raise Bad
    __str__ = __repr__
class Odd:
    def __len__(self): return {length}
    def __getitem__(self, i): {body}
    def __array__(self, *a, **k): {body}
    def __iter__(self): {body}
    def __repr__(self): raise Bad
    shape = (1, 3, 8, 8)
def f(*a, **k):
    {body}
def g(*a, **k):
    yield {{'x': np.zeros((1, 3, 8, 8), 'f4')}}
    {body}
def h(*a, **k):
    return {value}
"""


def functions(rng, count):
    """Functions of users: they raise what nobody expects, or return what nobody can use."""
    text = _PROGRAM.format(
        body=pick(rng, _RAISED),
        value=pick(rng, _GIVEN),
        length=pick(rng, ("-1", "2**70", "3", "'x'", "0")),
    )
    if not rng.integers(12):
        text = pick(
            rng,
            (
                "1/0",
                "def f(:",
                "f = 3",
                "\0",
                "raise SystemExit",
                "f = g = h = None",
                "import os; os.nothing",
                "é" * 9,
            ),
        )
    name = pick(rng, "fgh")
    where = f"u.py:{name}"
    files = {
        "m.onnx": read_valid_file("conv.onnx"),
        "q.onnx": read_valid_file("conv_venus.onnx"),
        "d.npz": read_valid_file("conv.npz"),
        "u.py": _bytes(text),
    }
    calls = [
        ["quantize", "m.onnx", "--calib", where, "--effort", "fast"],
        ["simulate", "q.onnx", "--input", where],
        ["evaluate", "q.onnx", "--data", where],
        ["evaluate", "q.onnx", "--data", "d.npz", "--metric", where],
        ["badcase", "m.onnx", "q.onnx", "--data", "d.npz", "--metric", where],
        ["compare", "m.onnx", "q.onnx", "--data", where, "-o", "c"],
        ["quantize", "m.onnx", "--calib", "d.npz", "--eval", where, "--effort", "fast"],
        ["profile", "m.onnx", "--data", where, "-o", "p"],
        [
            "quantize",
            "m.onnx",
            "--calib",
            "d.npz",
            "--eval",
            "d.npz",
            "--metric",
            where,
            "--effort",
            "fast",
        ],
        ["export", where, "-o", "e.onnx", "--input-shape", "x=1,3"],
        ["sensitivity", "m.onnx", "--calib", where, "-o", "s", "--effort", "fast"],
        ["api", "calib", name],
        ["api", "metric", name],
        ["api", "feeds", name],
        ["finetune", "m.onnx", "--train", where, "-o", "t.onnx", "--epochs", "1"],
    ]
    return Case(pick(rng, calls), files)


#: The first grammar.
KINDS = {
    "float": _grammar("float"),
    "integer": _grammar("integer"),
    "qdq": _grammar("qdq"),
    "data": data,
    "pictures": pictures,
    "yaml": yaml,
    "plan": plan,
    "journals": journals,
    "dumps": dumps,
    "checkpoints": checkpoints,
    "names": names,
    "options": options,
    "functions": functions,
}

#: The second one: no knowledge of what the parts of a file mean.
SPLICED = {f"spliced-{kind}": _spliced(kind) for kind in ("float", "integer", "qdq")}
