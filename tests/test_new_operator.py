"""Law: a new operator is a line or a class in six files, and nothing else learns of it.

An operator that nobody has, x / (1 + |x|) with an instruction, a table and a kernel of its own, is put into the tables
that these files fill. A net is then quantized for a chip that has it, simulated, computed by a plain class and trained
through, while a chip without it goes on as before.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx import formats, ops, reference, schemas
from lingeronnx.formats import Attr, Bound
from lingeronnx.formats import inference as rules
from lingeronnx.formats._base import Unary
from lingeronnx.formats.inference import Signature
from lingeronnx.graph import ir
from lingeronnx.ops import Op
from lingeronnx.reference._base import Integer
from lingeronnx.targets import PLATFORMS, Vendor, rows
from lingeronnx.targets.arithmetic import Arithmetic, Requantize
from simulator.kernel import PlainKernel, Spec
from tests.nets import Net, samples
from tests.test_invented_chip import chip

PACKAGE = Path(lo.__file__).parent

#: Where a new operator of a family is written. A new family also has a line in `formats/__init__.py` and in
#: `reference/__init__.py`; one whose kernel is a table needs no fake quantizer of its own.
FILES = (
    "formats/curves.py",  # the format, in FAMILY
    "ops/lut.py",  # the rule
    "ops/__init__.py",  # its line in OPS
    "targets/luna/venusa.py",  # the row that has it
    "reference/curves.py",  # the plain class, in FAMILY
    "torch/fake_values.py",  # the fake quantizer of its kernel, in VALUES
)


@dataclass(frozen=True, eq=False)
class Squash(PlainKernel):
    """int8 x -> int8: the entry of a table in the chip."""

    table: np.ndarray

    def infer(self, *specs):
        return (Spec(specs[0].shape, np.dtype(np.int8)),)

    def __call__(self, *arrays):
        return (self.table[arrays[0].astype(int) + 128],)


class SquashFormat(Unary):
    """The integer operator."""

    name = "iqSquash"
    attributes = (Attr("scale_x", "f"), Attr("scale_o", "f"), Attr("data_bits", "i", 8), Attr("o_bits", "i", 8))
    signature = Signature("x:integer", "integer", rules.same(rules.width))

    def bind(self, bound: Bound):
        x, o = (float(bound.attrs[key]) for key in ("scale_x", "scale_o"))
        counts = np.arange(-128, 128)
        return Squash(np.clip(np.floor(counts * o / (x + np.abs(counts)) + 0.5), -128, 127).astype(np.int8))


SQUASH = SquashFormat()


class SquashRule(Op):
    """Softsign where the chip has it."""

    format = SQUASH
    floats = (("", "Softsign"),)
    factor = "fixed"

    def ties(self, node, row):
        return []

    def lower(self, node, low):
        scales = SQUASH.scales(low.read(node, 0), low.written(node))
        low.emit(SQUASH, node, [low.integer(node, 0)], scales)


class PlainSquash(Integer):
    """The same number by number, in fractions."""

    names = ("iqSquash",)

    def compute(self, a, how, *inputs):
        x, o = Fraction(a.scale("scale_x")), Fraction(a.scale("scale_o"))

        def one(v):
            return max(min(floor(int(v) * o / (x + abs(int(v))) + Fraction(1, 2)), 127), -128)

        return np.vectorize(one, otypes=[np.int8])(inputs[0])


@pytest.fixture
def nimbus(monkeypatch):
    """Put each piece where its file has it; return the chip that has the operator. It has no packer to be told."""
    monkeypatch.setitem(formats._BY_NAME, "iqSquash", SQUASH)
    rule = SquashRule()
    monkeypatch.setitem(ops._BY_FORMAT, SQUASH, rule)
    monkeypatch.setitem(ops._BY_FLOAT, ("", "Softsign"), [*ops._BY_FLOAT["", "Softsign"], rule])
    monkeypatch.setitem(schemas._TABLE, "iqSquash", SQUASH)
    monkeypatch.setattr(reference, "_CLASSES", (*reference._CLASSES, PlainSquash))
    row = chip(Requantize(shifts=True))
    free = {name: replace(found, limits=None) for name, found in row.ops.items()}
    return replace(row, vendor=Vendor(), faults=(), ops={**free, **rows(Arithmetic(), "iqSquash")})


def net():
    """Softsign between two layers."""
    made = Net(4, 6, 6, seed=8)
    a = made.node("Softsign", made.conv("x", (6, 4, 3, 3), pads=[1] * 4))
    return made.graph(made.conv(a, (3, 6, 1, 1), out="y"))


def test_it_is_quantized_simulated_and_checked(nimbus):
    model = net()
    result = lo.quantize(model, samples(model), platform=nimbus, effort="fast")
    assert result.report.integer_macs == 1.0
    assert not result.report.float_nodes
    assert [node.op_type for node in result.graph.graph].count("iqSquash") == 1
    lo.check_model(result.graph)
    feeds = samples(model, 3, seed=1)
    (got,) = result.session().run(["y"], feeds)
    plain = ReferenceEvaluator(ir.to_proto(result.graph), new_ops=lo.reference_ops(nimbus))
    for i in range(3):
        (want,) = plain.run(["y"], {"x": feeds["x"][i : i + 1]})
        assert np.array_equal(got[i : i + 1], want)
    (real,) = lo.Session(model).run(["y"], feeds)
    assert np.corrcoef(real.reshape(-1), got.reshape(-1))[0, 1] > 0.99


def test_it_has_a_fake_quantizer(nimbus, monkeypatch):
    torch = pytest.importorskip("torch")
    from lingeronnx.torch import fake_quant
    from lingeronnx.torch.bridge import Bridge
    from lingeronnx.torch.rounding import replaced

    def squash(kernel, inputs, at):
        (x,) = inputs
        exact = torch.from_numpy(kernel.table.astype(np.float32))[x.detach().long() + 128]
        return (replaced(x * (exact.abs().max() / 128), exact),)

    monkeypatch.setattr(fake_quant, "FAKE_QUANTIZERS", {**fake_quant.FAKE_QUANTIZERS, Squash: squash})
    model = net()
    result = lo.quantize(model, samples(model), platform=nimbus, effort="fast")
    feeds = samples(model, 2, seed=1)
    bridge = Bridge(result.float_graph, result.plan, nimbus, feeds)
    follow = dict(bridge.integers({"x": torch.from_numpy(feeds["x"])}))
    held = {name: array for name, array, scale in result.session().taps(feeds) if scale is not None}
    (node,) = (node for node in result.graph.graph if node.op_type == "iqSquash")
    assert str(node.outputs[0].name) in held
    for name, array in held.items():
        assert np.array_equal(follow[name].detach().numpy(), array), name


@pytest.mark.parametrize("row", PLATFORMS, ids=lambda row: row.name)
def test_others_go_on_as_before(nimbus, row):
    """Two rules claim Softsign, and neither knows of the other: each platform gets what it has."""
    model = net()
    result = lo.quantize(model, samples(model), platform=row, effort="fast")
    kinds = [node.op_type for node in result.graph.graph]
    assert "iqSquash" not in kinds
    assert ("iqTable" if row.runs("iqTable") else "Softsign") in kinds


def test_six_files():
    """The places named above are there, and the tables in them are those that are filled here."""
    assert len(FILES) <= 6
    assert all((PACKAGE / name).is_file() for name in FILES)
    text = {name: (PACKAGE / name).read_text() for name in FILES}
    for name, table in (
        ("formats/curves.py", "FAMILY"),
        ("reference/curves.py", "FAMILY"),
        ("ops/__init__.py", "OPS"),
        ("torch/fake_values.py", "VALUES"),
    ):
        assert f"\n{table}: " in text[name]
