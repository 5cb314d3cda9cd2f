"""Long sums in blocks: generated C and C written here, compiled, beside sums in double
precision.
"""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

from lingeronnx.deployment.c_program import host_source
from lingeronnx.deployment.c_program.blocked_sums import block_long_sums
from lingeronnx.deployment.c_program.build import HOST_FLAGS
from lingeronnx.deployment.host_tolerances import run_in_double_precision
from tests.passes.helpers import proto, rand

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
needs_generator = pytest.mark.skipif(
    host_source.explain_missing_generator() is not None, reason="emx-onnx-cgen is not installed"
)

#: name -> (operator, constants, shapes of input and output, opset)
OPERATORS = {
    "conv": (
        "Conv<pads = [1, 1, 1, 1]>(x, w)",
        {"w": rand(4, 170, 3, 3)},
        (1, 170, 5, 5),
        (1, 4, 5, 5),
        17,
    ),
    "spectrum": ("Conv(x, w)", {"w": rand(16, 400, 1)}, (1, 400, 30), (1, 16, 30), 17),
    "depthwise": ("Conv<group = 3>(x, w)", {"w": rand(3, 1, 500)}, (1, 3, 520), (1, 3, 21), 17),
    "transposed": ("ConvTranspose(x, w)", {"w": rand(300, 4, 3)}, (1, 300, 9), (1, 4, 11), 17),
    "matmul": ("MatMul(x, w)", {"w": rand(900, 7)}, (1, 9, 900), (1, 9, 7), 17),
    "gemm": ("Gemm(x, w, b)", {"w": rand(900, 7), "b": rand(7)}, (9, 900), (9, 7), 17),
    "mean": ("ReduceMean<axes = [2, 3]>(x)", {}, (1, 16, 30, 41), (1, 16, 1, 1), 13),
    "groups": (
        "InstanceNormalization(x, s, b)",
        {"s": rand(3), "b": rand(3)},
        (1, 3, 64, 63),
        (1, 3, 64, 63),
        17,
    ),
    "rows": ("LayerNormalization(x, s)", {"s": rand(1000)}, (1, 9, 1000), (1, 9, 1000), 17),
    "gates": (
        "LSTM<hidden_size = 16>(x, w, r)",
        {"w": rand(1, 64, 500), "r": rand(1, 64, 16)},
        (3, 1, 500),
        (3, 1, 1, 16),
        17,
    ),
}


def computed(text, call, folder, *arrays):
    (folder / "a.c").write_text(text)
    made = folder / "a.so"
    subprocess.run(
        ["cc", *HOST_FLAGS, "-shared", "-fPIC", "-o", made, folder / "a.c", "-lm"], check=True
    )
    getattr(ctypes.CDLL(str(made)), call)(*(ctypes.c_void_p(array.ctypes.data) for array in arrays))


@pytest.mark.sweep
@needs_generator
@needs_compiler
@pytest.mark.parametrize("name", OPERATORS)
def test_generated_sums_are_nearer(name, tmp_path, monkeypatch):
    """The same function of what lies far from zero, nearer to double precision."""
    operator, constants, shape, result, opset = OPERATORS[name]
    sizes = [",".join(map(str, one)) for one in (shape, result)]
    model = proto(
        f"g (float[{sizes[0]}] x) => (float[{sizes[1]}] y) {{ y = {operator} }}",
        opset=opset,
        **constants,
    )
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32) * (
        0.05 if name == "gates" else 1
    )
    x += np.float32(0.05 if name == "gates" else 20)
    exact, off = run_in_double_precision(model, {"x": x})["y"], {}
    for word, change in (("plain", lambda text: text), ("blocks", block_long_sums)):
        monkeypatch.setattr(host_source, "block_long_sums", change)
        y = np.zeros(result, np.float32)
        source = host_source.generate_host_source(model, "part", [x], [y])
        (place := tmp_path / word).mkdir()
        computed(source.text, "part", place, x, y, np.zeros(source.scratch_bytes + 16, np.uint8))
        off[word] = float(np.sqrt(np.mean((y - exact) ** 2)) / np.abs(exact).max())
    assert off["blocks"] < 2e-6
    assert off["blocks"] < off["plain"] * 2 / 3


SUM = """static void part(const float *x, float *y) {
    const int many = 1000;
    float acc = 0.0f;
    float last = 0.0f;
    int count = 0;
    for (int i = 0; i < LIMIT; ++i) {
        BODY
    }
    y[0] = acc + last + (float)count;
}
"""


def written(body, limit="1000"):
    return SUM.replace("BODY", body).replace("LIMIT", limit)


@needs_compiler
@pytest.mark.parametrize("limit", ("1000", "many", "65", "97"))
def test_every_term_is_added_once(limit, tmp_path):
    """Whole numbers of float have one sum, whatever the order."""
    text = block_long_sums(
        written("float t = x[i];\n        acc += t;\n        last += 2.0f * t;", limit)
    )
    assert text.count("_part += ") == 2
    assert re.search(r"i_first \+= (\d+)", text)
    x, y = (
        np.random.default_rng(0).integers(-99, 99, 1000).astype(np.float32),
        np.zeros(1, np.float32),
    )
    computed(text.replace("static void", "void"), "part", tmp_path, x, y)
    assert y[0] == 3 * x[: 1000 if limit == "many" else int(limit)].sum()


INNER = "for (int k = 0; k < 9; ++k) {\n            acc += x[k];\n        }"


@pytest.mark.parametrize(
    "body, limit",
    [
        ("acc += x[i];", "64"),  # short
        ("acc += x[i];", "unknown"),
        ("count += x[i] > 0.0f;", "1000"),  # no float
        ("y[i] += x[i];", "1000"),  # no variable
        ("acc += x[i] * acc;", "1000"),  # what was added up is read
        ("acc += x[i];\n        y[i] = acc;", "1000"),
        ("float acc = 0.0f;\n        acc += x[i];\n        y[i] = 1.0f;", "1000"),  # one of its own
        ("while (count < 9) acc += x[count++];", "1000"),
        ("\n        ".join([INNER, INNER]), "1000"),  # no one nest
    ],
)
def test_what_stays(body, limit):
    text = written(body, limit)
    assert block_long_sums(text) == text


def test_two_functions():
    """A variable that another function has says nothing."""
    own = written("acc += x[i];")
    other = own.replace("    float acc = 0.0f;\n", "").replace("part", "other")
    assert block_long_sums(own + other) == block_long_sums(own) + other
