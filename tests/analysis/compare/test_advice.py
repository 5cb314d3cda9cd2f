"""Planted faults: the advisor's first finding names the layer and the cause."""

import numpy as np
import onnx
import pytest

from benchmarks import fault_injection
from benchmarks.fault_injection import (
    FAULT_INJECTORS,
    NETS,
    PLAIN,
    _inner,
    _Weights,
    dense_net,
    evaluate_first_finding,
    get_applicable_faults,
    inject_concat_scale,
    inject_dead_channel,
    inject_large_scale,
    inject_missing_relu,
    inject_outlier_activation,
    inject_outlier_channel,
    inject_saturated_bias,
    inject_small_scale,
    inject_swapped_channels,
    inject_swapped_input_channels,
    inject_wrong_normalization,
    inject_wrong_pads,
)
from lingeronnx.analysis.compare import advice
from lingeronnx.analysis.compare.advice import (
    _extend_to_shared_scale,
    _user_fixed_tensors,
    diagnose,
    find_copies,
    find_parent_rows,
)
from lingeronnx.analysis.compare.compare import compare
from lingeronnx.analysis.compare.finding import make_finding
from lingeronnx.analysis.compare.input_layout import check_input_layout
from lingeronnx.analysis.compare.join import ComparedTensor, TensorJoin, join_tensors
from lingeronnx.analysis.compare.network import compute_error_shares
from lingeronnx.analysis.compare.sources import open_source
from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.ir.digests import compute_output_digest
from lingeronnx.runtime.provenance import METADATA_KEY, store_provenance
from lingeronnx.runtime.session import Session


@pytest.fixture(scope="module")
def dense():
    """A net with 8 samples, which are enough to see a layer that is wrong."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fault_injection, "SAMPLES", 8)
        patched.setattr(fault_injection, "CALIBRATED", 8)
        return dense_net()


@pytest.fixture(scope="module")
def sampled_dense():
    """The same net with 64 samples, for what shows in the data only."""
    return dense_net()


def find_first(spoiled):
    """Find the first finding of `compare`, without trying its options."""
    joined = join_tensors(open_source(spoiled.model), open_source(spoiled.graph), spoiled.data)
    answers = {
        spec.name: check_input_layout(joined.base, spec.name, spoiled.data)
        for spec in joined.base.inputs
    }
    closer = {name: array[:16] for name, array in spoiled.data.items()}
    return diagnose(joined, closer, answers)[0]


def check_fault(net, kind):
    """Plant a fault and assert that the first finding names its layer and its cause."""
    spoiled = kind(net, np.random.default_rng(3))
    found = find_first(spoiled)
    message = (
        f"{sorted(spoiled.causes)} at {sorted(spoiled.layers)}; found {found.kind} at {found.layer}"
    )
    assert found.layer in spoiled.layers, message
    assert found.kind in spoiled.causes, message


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind",
    (inject_small_scale, inject_concat_scale, inject_large_scale),
    ids=lambda kind: kind.__name__,
)
def test_a_wrong_scale_is_the_first_finding(dense, kind):
    check_fault(dense, kind)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind",
    (inject_saturated_bias, inject_swapped_channels, inject_missing_relu, inject_wrong_pads),
    ids=lambda kind: kind.__name__,
)
def test_a_layer_that_computes_something_else_is_the_first_finding(dense, kind):
    check_fault(dense, kind)


@pytest.mark.parametrize(
    "kind", (inject_outlier_channel, inject_dead_channel), ids=lambda kind: kind.__name__
)
def test_a_channel_that_spoils_the_others_is_the_first_finding(dense, kind):
    check_fault(dense, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    (inject_wrong_normalization, inject_swapped_input_channels, inject_outlier_activation),
    ids=lambda kind: kind.__name__,
)
def test_what_the_data_show_is_the_first_finding(sampled_dense, kind):
    check_fault(sampled_dense, kind)


def test_data_that_are_not_normalised_are_the_first_finding(dense):
    check_fault(dense, inject_wrong_normalization)


def test_the_comparison_of_a_planted_fault_says_so_first(dense):
    """`compare` as a whole, with options tried."""
    outcome = evaluate_first_finding(inject_small_scale(dense, np.random.default_rng(3)))
    assert outcome.layer, f"{outcome.wanted}; said: {outcome.first}"
    assert outcome.cause, f"{outcome.wanted}; said: {outcome.first}"


def test_every_kind_is_planted():
    """The tests above and below plant each kind of fault that there is."""
    tested = {
        inject_small_scale,
        inject_concat_scale,
        inject_large_scale,
        inject_saturated_bias,
        inject_swapped_channels,
        inject_missing_relu,
        inject_wrong_pads,
    }
    tested |= {
        inject_outlier_channel,
        inject_dead_channel,
        inject_wrong_normalization,
        inject_swapped_input_channels,
        inject_outlier_activation,
    }
    assert set(FAULT_INJECTORS) == tested


def test_a_scale_that_calibration_chose_is_not_called_too_small(dense):
    """Weights of one channel, silent but for a few values, make the chip's rules bind the scale:
    these are the cause.

    Of a graph that does not say who chose its scales, and where the user chose this one, the scale
    itself is named.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(dense.proto)
    nodes = _inner(proto)[-1]
    values, cut = Session(dense.model).run(
        [nodes[0].output[0], nodes[1].output[0]], {dense.input: dense.calib}
    )
    channel, gain = int(cut.max(axis=(0, 2, 3)).argmax()), 600.0
    _Weights(proto).affine(
        nodes[0], channel, gain, 15 * float(cut.max()) - gain * float(values[:, channel].max())
    )
    joined = join_tensors(*map(open_source, dense.quantized(proto)), dense.data)
    unknown = diagnose(joined, dense.data)[0]
    assert unknown.kind == "scale too small"
    given = [{"overrides": {name: {"scale": 8.0}}} for name in ("scores", unknown.layer)]
    for settings, named in (({"calibrator": "max"}, False), (given[0], False), (given[1], True)):
        store_provenance(joined.other.graph, compute_output_digest(joined.base.graph), settings)
        first = diagnose(joined, dense.data)[0]
        assert (first.kind == unknown.kind) == named
        assert named or first.options == ("--effort normal",)


def test_the_scales_that_the_user_gave_are_known(dense):
    """By tensor, by pattern or by type, as the override says it."""
    joined = TensorJoin(*map(open_source, (dense.model, dense.lowered)))
    for overrides in (
        {"block0_0_a": {"scale": 2.0}},
        {"block0_0_[a]": {"scale": 2.0}, "scores": {"bits": 8}},
    ):
        store_provenance(
            joined.other.graph, compute_output_digest(joined.base.graph), {"overrides": overrides}
        )
        assert _user_fixed_tensors(joined) == {"block0_0_a"}
    store_provenance(
        joined.other.graph,
        compute_output_digest(joined.base.graph),
        {"overrides": {"type:MaxPool": {"scale": 2.0}}},
    )
    assert _user_fixed_tensors(joined) == {"pool"}
    store_provenance(
        joined.other.graph,
        compute_output_digest(joined.base.graph),
        {"overrides": {"unknown": {"scale": 2.0}}},
    )
    assert not _user_fixed_tensors(joined)


def test_few_bits_of_channels_hide_no_layer_that_is_wrong(dense):
    """A channel that leaves the others few bits, and a Relu left out behind it: this comes
    first.
    """
    spoiled = inject_outlier_channel(dense, np.random.default_rng(0))
    graph = spoiled.graph.clone()
    users = Session(graph).floats
    (relu,) = [
        node
        for node in graph.graph
        if node.op_type == "Relu"
        and users.get(ir.output_name(node), ir.output_name(node)) in spoiled.layers
    ]
    name = users.get(ir.output_name(relu), ir.output_name(relu))
    for use in list(relu.outputs[0].uses()):
        use.node.replace_input_with(use.idx, relu.inputs[0])
    graph.graph.remove(relu)
    joined = join_tensors(*map(open_source, (spoiled.model, graph)), dense.data)
    findings = diagnose(joined, dense.data)
    assert (findings[0].kind, findings[0].layer) == ("missing Relu", name)
    assert any(finding.kind == "outlier channel" for finding in findings)


def test_a_sound_graph_that_says_nothing_of_itself_computes_nothing_else(dense):
    """Also with a channel that leaves the others few bits."""
    for spoiled in (None, inject_outlier_channel(dense, np.random.default_rng(0))):
        model, graph = (
            (dense.model, dense.lowered) if spoiled is None else (spoiled.model, spoiled.graph)
        )
        graph = graph.clone()
        graph.metadata_props.pop(METADATA_KEY, None)
        findings = diagnose(join_tensors(*map(open_source, (model, graph)), dense.data), dense.data)
        assert not [finding for finding in findings if finding.order == 1]


def test_a_scale_that_the_user_gave_is_theirs_wherever_it_holds(dense):
    """Of a Conv's output that is the Relu's, too, and of all that a Concat joins; of nothing behind
    a layer.
    """
    one = {name: array[:1] for name, array in dense.data.items()}
    rows = join_tensors(*map(open_source, (dense.model, dense.lowered)), one)
    found = _extend_to_shared_scale({"block0_0_a"}, rows.rows, find_parent_rows(rows))
    assert found == {"block0_0_a", "block0_0_a_relu"}
    shared = _extend_to_shared_scale({"block0_1_cat"}, rows.rows, find_parent_rows(rows))
    assert {"block0_1_cat", "block0_1_b_relu"} <= shared
    assert not {"image", "block0_1_a", "scores"} & shared


def test_what_a_given_scale_binds_is_not_called_the_users(dense):
    """One scale 8 times too large makes the rules of the chip bind others: that is told of them,
    behind the cause.
    """
    for seed in range(2):
        spoiled = inject_large_scale(dense, np.random.default_rng(seed))
        assert find_first(spoiled).layer in spoiled.layers


def test_dead_channels_of_a_layer_are_its_own(monkeypatch):
    """They are told with those of the Relu behind, and apart from those of a layer of the same
    scale by chance.
    """
    monkeypatch.setattr(advice, "has_same_scale", lambda *_: True)
    rows = {
        name: ComparedTensor(name, (kind, ""), ("", ""))
        for name, kind in zip("abc", ("Conv", "Relu", "Conv"), strict=True)
    }
    words = {"measured": "m", "limit": "l", "remedy": "r", "order": 3, "sqnr_db": 30.0}
    for kind, groups in (
        ("dead channel", [("a", ("b",)), ("c", ())]),
        ("scale too large", [("a", ("b", "c"))]),
    ):
        found = {name: make_finding(row, kind=kind, **words) for name, row in rows.items()}
        made = advice._group_findings(found, rows, {"a": [], "b": ["a"], "c": ["b"]})
        assert [(finding.layer, finding.also) for finding in made] == groups


@pytest.mark.deep
@pytest.mark.parametrize("kind", FAULT_INJECTORS, ids=lambda kind: kind.__name__)
def test_the_whole_table(sampled_dense, kind):
    """Four models of each kind, and two of a trained net where one lies beside the repository and
    has it.

    Of them one may be missed. What plain scales have without a fault, too, is left out.
    `benchmarks.fault_injection_advice` has all nets.
    """
    nets = [(sampled_dense, 4)] + ([(NETS["resnet"](), 2)] if "resnet" in NETS else [])
    there = [
        (net, many)
        for net, many in nets
        if FAULT_INJECTORS.index(kind) in get_applicable_faults(net)
    ]
    found = []
    for net, many in there:
        spoiled = [kind(net, np.random.default_rng(seed)) for seed in range(many)]
        plain = (
            compare(*net.quantized(net.proto), net.data).findings
            if spoiled[0].expected_sentence == PLAIN
            else ()
        )
        own = {(finding.kind, finding.layer) for finding in plain}
        found += [evaluate_first_finding(one, own) for one in spoiled]
    missed = [f"{o.wanted}; said: {o.first}" for o in found if not (o.layer and o.cause)]
    assert len(found) >= 4
    assert len(missed) <= 1, missed


def test_two_copies_of_a_tensor_have_one_error():
    """The output of the If is no tensor of the integer graph; both nodes only move its values."""
    text = """<ir_version: 8, opset_import: ["": 13]>
    g (float[N,4] x) => (float[N,1,4] a, float[N,1,4] b) <bool yes = {1}, int64[1] axis = {1}> {
        t = If (yes) <
            then_branch = then () => (float[N,4] t0) {m = MatMul(x, w) t0 = Relu(m)},
            else_branch = otherwise () => (float[N,4] t1) {t1 = Neg(x)}
        >
        a = Unsqueeze(t, axis)
        u = Unsqueeze(t, axis)
        b = Mul(u, u)
    }"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((4, 4)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    data = {"x": rng.standard_normal((16, 4)).astype(np.float32)}
    quantized = quantize(ir.from_proto(proto), data, platform="generic", effort="fast")
    rows = compare(proto, quantized, data).join
    assert "t" not in rows.rows
    assert find_copies(rows) == {"u": "a"}
    shares = compute_error_shares(rows)
    assert shares["a"] > 0
    assert shares["u"] == 0
    assert sum(shares.values()) == pytest.approx(100)
