"""Names: those the packer cannot take are others in a chip's file, and nobody who reads the file
notices.
"""

import json
import string

import numpy as np
import onnx
import pytest
from hypothesis import Phase, example, given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.ir.name_mapping import (
    NAMES_KEY,
    NameMapping,
    apply_file_names,
    apply_file_names_to_proto,
    restore_user_names,
)
from lingeronnx.luna import VENUS
from lingeronnx.luna.packer.names import build_safe_names, is_safe
from lingeronnx.quantization.lower import extract_plan
from lingeronnx.runtime.provenance import map_to_float_names
from tests.case_selection import limit_examples

CHIPS = ("venus", "arcs", "venusA")
#: What packer.md lists, and what only looks like it.
UNSAFE = (
    "a@b",
    "@",
    "Scale",
    "Scale_1",
    "Scaled",
    "workspace",
    "my_workspace_2",
    "dma_buffer1",
    "dma_buffer2",
    "x:0",
    "a::b",
    "a,b",
    "line\nbreak",
)
SAFE = (
    "scale_1",
    "MyScale",
    "work",
    "a/b.c-d e",
    "/x",
    "0",
    "é 中 #[0] = % {} * \\ '",
    "dma_buffer",
    "y_q",
    "_",
)


def kept(name):
    """What packer.md says, in words of its own: no code in common with the rule under test."""
    words = name.count("workspace") + name.count("dma_buffer1") + name.count("dma_buffer2")
    return not words and not set("@:,") & set(name) and name[:5] != "Scale" and name.isprintable()


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe(name):
    """Each form that the packer fails on or misreads."""
    assert not is_safe(name)
    assert not kept(name)


@pytest.mark.parametrize("name", SAFE)
def test_safe(name):
    """What was measured to pass stays."""
    assert is_safe(name)
    assert kept(name)


@given(st.text(min_size=1))
def test_any_text(name):
    """The rule agrees with the page for any name, and what it makes of one is safe."""
    assert is_safe(name) == kept(name)


# ---- a net by other names ------------------------------------------------------------------------

TENSORS = ("x", "a", "b", "c", "d", "y", "z")


def net(names, nodes=()):
    """Two convolutions, a sum, a host's Sin and a fully connected layer; `names` for TENSORS,
    `nodes` for the nodes.
    """
    x, a, b, c, d, y, z = names
    rng = np.random.default_rng(0)
    held = {
        f"{prefix}{end}": (
            rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:], initial=4))
        ).astype(np.float32)
        for prefix, shape in (("u", (8, 4, 3, 3)), ("v", (8, 8, 3, 3)), ("w", (8, 5)))
        for end, shape in (
            ("_weight", shape),
            ("_bias", shape[-1:] if prefix == "w" else shape[:1]),
        )
    }
    make = onnx.helper.make_node
    made = [
        make("Conv", [x, "u_weight", "u_bias"], [a], pads=[1] * 4),
        make("Relu", [a], [b]),
        make("Conv", [b, "v_weight", "v_bias"], [c], pads=[1] * 4),
        make("Add", [b, c], [d]),
        make("GlobalAveragePool", [d], ["pooled"]),
        make("Flatten", ["pooled"], ["flat"]),
        make("Gemm", ["flat", "w_weight", "w_bias"], [y]),
        make("Sin", [d], [z]),
    ]
    for node, name in zip(made, nodes, strict=False):
        node.name = name
    ends = [
        onnx.helper.make_tensor_value_info(n, 1, s)
        for n, s in ((x, ["N", 4, 8, 8]), (y, ["N", 5]), (z, ["N", 8, 8, 8]))
    ]
    graph = onnx.helper.make_graph(
        made,
        "net",
        ends[:1],
        ends[1:],
        [onnx.numpy_helper.from_array(v, k) for k, v in held.items()],
    )
    return ir.from_proto(
        onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8
        )
    )


SAMPLES = np.random.default_rng(1).standard_normal((4, 4, 8, 8)).astype(np.float32)
PLAIN = {}


def plain(chip):
    """The same net with plain names, once per chip."""
    if chip not in PLAIN:
        PLAIN[chip] = lo.quantize(net(TENSORS), {"x": SAMPLES}, platform=chip, effort="fast")
    return PLAIN[chip]


PART = st.sampled_from(
    (
        "@",
        "Scale",
        "workspace",
        "dma_buffer1",
        "_q",
        "_q16",
        "x",
        "y",
        "/",
        "_",
        ":",
        ",",
        "é",
        "中",
        "_2",
        " ",
        "_bias",
        "L" * 60,
    )
)
NAME = st.lists(PART, min_size=1, max_size=4).map("".join) | st.text(
    string.printable, min_size=1, max_size=8
)
TAKEN = {f"{p}{e}" for p in "uvw" for e in ("_weight", "_bias")} | {"pooled", "flat"}


@pytest.mark.slow
@limit_examples(25, phases=set(Phase) - {Phase.shrink})
@given(
    st.lists(NAME.filter(lambda name: name not in TAKEN), min_size=7, max_size=7, unique=True),
    st.lists(NAME, max_size=8),
    st.sampled_from(CHIPS),
)
@example(["@", "@@", "Scale", "workspace", ":", "0", "00"], ["conv"] * 8, "venus")
@example(["y_q", "y", "x_q", "x_q_2", "conv_q", "d", "d_q"], ["Quant_y_q"], "arcs")
def test_hostile_names(tmp_path_factory, names, nodes, chip):
    """Law: through a file, any names give the plain net's integers by the user's names, and a file
    of safe ones.
    """
    known, path = (
        dict(zip(TENSORS, names, strict=True)),
        tmp_path_factory.mktemp("names") / "net.onnx",
    )
    found, want = (
        lo.quantize(net(names, nodes), {known["x"]: SAMPLES}, platform=chip, effort="fast"),
        plain(chip),
    )
    found.save(path)

    raw = onnx.load(path)
    tensors = [v.name for v in (*raw.graph.input, *raw.graph.output, *raw.graph.initializer)]
    tensors += [name for node in raw.graph.node for name in (*node.input, *node.output)]
    titles = [node.name for node in raw.graph.node]
    assert all(kept(name) for name in (*tensors, *titles))
    assert len(set(titles)) == len(titles)
    computed = {
        name
        for node in raw.graph.node
        for name in node.output
        if node.op_type not in ("Dequant", "Sin")
    }
    assert len({name.replace("/", "_")[:64] for name in computed}) == len(computed)

    session, other = lo.Session(path), want.session()
    assert [i.name for i in session.get_inputs()] == [known["x"]]
    assert [o.name for o in session.get_outputs()] == [known["y"], known["z"]]
    for got, array in zip(
        session.run(None, {known["x"]: SAMPLES}), other.run(None, {"x": SAMPLES}), strict=True
    ):
        np.testing.assert_array_equal(got, array)
    pairs, plain_pairs = session.floats, map_to_float_names(want.graph)
    taps, plain_taps = session.taps({known["x"]: SAMPLES}), other.taps({"x": SAMPLES})
    for (tensor, array, scale), (plain_tensor, plain_array, plain_scale) in zip(
        taps, plain_taps, strict=True
    ):
        np.testing.assert_array_equal(array, plain_array)
        assert scale == plain_scale
        own = plain_pairs.get(plain_tensor, plain_tensor)
        assert own not in known or pairs.get(tensor, tensor) == known[own]
    assert extract_plan(session.model).tensors == extract_plan(found.graph).tensors
    assert found.report.names == build_safe_names(found.graph).tensors
    assert set(found.plan.tensors) >= {known["x"], known["d"], known["y"]}
    right = other.run(["y"], {"x": SAMPLES})[0].argmax(axis=1)
    assert (
        lo.evaluate(path, [({known["x"]: SAMPLES}, right)], metric="top1", output=known["y"]).value
        == 100
    )


@pytest.mark.parametrize("skip", (("conv",), ("conv@1",)))
def test_a_selector_means_one_node(skip):
    """A node whose name begins like another's is not skipped with it, and what passes made of a
    node is.
    """
    names = ["conv", "relu", "conv@1", "add", "conv_2", "flat", "gemm", "sin"]
    found = lo.quantize(
        net(TENSORS, names), {"x": SAMPLES}, platform="venus", effort="fast", skip=skip
    )
    skipped = [
        line.node
        for line in (*found.report.float_nodes, *found.report.host_part)
        if "skipped" in line.why
    ]
    assert skipped == list(skip)


# ---- the map -------------------------------------------------------------------------------------


def small(chip="venus"):
    """A net with names that change."""
    return lo.quantize(
        net(["in@0", "a@1", "b", "Scale", "d", "y::0", "workspace"], ["conv@1"]),
        {"in@0": SAMPLES},
        platform=chip,
        effort="fast",
    )


def test_generic_keeps_names(tmp_path):
    """No packer reads the file: names stay, and there is no map."""
    found = small("generic")
    found.save(tmp_path / "g.onnx")
    raw = onnx.load(tmp_path / "g.onnx")
    assert [v.name for v in (*raw.graph.input, *raw.graph.output)] == ["in@0", "y::0", "workspace"]
    assert NAMES_KEY not in {p.key for p in raw.metadata_props}
    assert found.report.names == {}


def test_the_report_tells():
    """The map stands in the report, and a note speaks of it."""
    found = small()
    assert found.report.to_dict()["names"]["in@0"] == "in_0"
    assert any(
        note.startswith("tensor 'in@0' is renamed to 'in_0' in the file")
        for note in found.report.notes
    )
    assert plain("venus").report.names == {}
    assert not any("in the file" in note for note in plain("venus").report.notes)


def test_chip_part_has_the_same_names(tmp_path):
    """The part that the packer takes is called as the whole file is."""
    found = small()
    assert found.chip is not None
    found.save(tmp_path / "whole.onnx")
    found.save_chip(tmp_path / "chip.onnx")
    whole, part = (ir.load(tmp_path / name) for name in ("whole.onnx", "chip.onnx"))
    maps = [json.loads(graph.metadata_props[NAMES_KEY])["tensors"] for graph in (whole, part)]
    assert maps[1].items() <= maps[0].items()
    assert lo.Session(tmp_path / "chip.onnx").inputs[0].name == "in@0"
    assert all(kept(str(v.name)) for v in ir.iter_values(part))


def test_there_and_back(tmp_path):
    """What is read back is the graph that was written, and to write it again changes nothing."""
    found = small()
    found.save(tmp_path / "g.onnx")
    back = restore_user_names(ir.load(tmp_path / "g.onnx"))
    assert ir.to_proto(back) == ir.to_proto(found.graph)
    ir.save(apply_file_names(back, build_safe_names(back)), tmp_path / "h.onnx")
    assert (tmp_path / "g.onnx").read_bytes() == (tmp_path / "h.onnx").read_bytes()


@pytest.mark.parametrize("renames", (True, False))
def test_a_model_is_renamed_as_a_graph_is(renames):
    """The serialized model equals the copy with other names, byte for byte."""
    graph = small().graph
    names = build_safe_names(graph) if renames else NameMapping()
    proto = ir.to_proto(graph)
    apply_file_names_to_proto(proto, names)
    assert proto == ir.to_proto(apply_file_names(graph, names))
    assert bool(names.tensors) == renames


def test_convert_keeps_the_users_names(tmp_path):
    """Also of a file: the other generation speaks of the user's tensors, and its file has safe
    names.
    """
    small().save(tmp_path / "g.onnx")
    other = lo.convert(tmp_path / "g.onnx", "linger")
    assert str(other.graph.graph.inputs[0].name) == "in@0"
    other.save(tmp_path / "h.onnx")
    assert onnx.load(tmp_path / "h.onnx").graph.input[0].name == "in_0"
    assert lo.Session(tmp_path / "h.onnx").inputs[0].name == "in@0"


def test_check_speaks_of_the_users_names(tmp_path):
    """A limit that a file breaks is told by the user's name of the tensor."""
    found = small()
    node = next(n for n in found.graph.graph if n.op_type == "Conv2dInt")
    ir.set_attr(node, "scale_x", 3.0)
    found.save(tmp_path / "g.onnx")
    assert "d" in str(lo.check(tmp_path / "g.onnx").to_dict())
    assert "conv@1" in str(lo.check(tmp_path / "g.onnx").to_dict())


def test_a_damaged_map_is_told(tmp_path):
    """Metadata that are no map: one line, and no names are guessed."""
    graph = small().graph
    graph.metadata_props[NAMES_KEY] = '{"tensors": ["x"]}'
    ir.save(graph, tmp_path / "g.onnx")
    with pytest.raises(lo.ModelError, match=f"metadata '{NAMES_KEY}' cannot be read"):
        lo.Session(tmp_path / "g.onnx")


def test_a_name_taken_meanwhile_stays():
    """Another tool may have given the user's name to something else: no tensor gets a name that
    another one has.
    """
    graph = VENUS.with_safe_names(small().graph)
    first = next(iter(graph.graph))
    old = str(first.outputs[0].name)
    tensors = {old: str(graph.graph.inputs[0].name), "gone": "y"}
    graph.metadata_props[NAMES_KEY] = json.dumps({"tensors": tensors, "nodes": {}})
    assert str(next(iter(restore_user_names(graph).graph)).outputs[0].name) == old


def test_shared_constants_keep_their_names():
    """Writing one graph renames nothing in another that shares its data."""
    graph = small().graph
    before = ir.to_proto(graph).SerializeToString()
    assert VENUS.with_safe_names(graph) is not graph
    assert ir.to_proto(graph).SerializeToString() == before


def test_dumps_do_not_overwrite_each_other():
    """The executor's dump of a tensor is called after its first 64 characters, "/" as "_"."""
    names = ["x", "a", "a/b", "a_b", "d", "n" * 64 + "1", "n" * 64 + "2"]
    found = lo.quantize(net(names), {"x": SAMPLES}, platform="venus", effort="fast").report.names
    assert found == {"a_b": "a_b_2"}  # what the host computes is dumped by nobody
    names = ["x", "a", "n" * 64 + "1", "n" * 64 + "2", "d", "y", "z"]
    found = lo.quantize(net(names), {"x": SAMPLES}, platform="venus", effort="fast").report.names
    assert found == {"n" * 64 + "2": "n" * 62 + "_2"}
