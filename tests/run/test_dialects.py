"""Whose arithmetic a graph means: by the domain and the names of its operators, unless one is asked
for.
"""

import pytest
from onnx import TensorProto, helper

from lingeronnx.common.errors import ConfigError, ModelError
from lingeronnx.ir import ir
from lingeronnx.luna import VENUS
from lingeronnx.operators.integer_ops import INTEGER_OPS
from lingeronnx.runtime.integer.dialects import ARITHMETICS, ArithmeticSide, detect_dialect


def graph(*nodes):
    """Return a graph of nodes (domain, operator), one behind the other."""
    made = [
        helper.make_node(op, [f"t{i}"], [f"t{i + 1}"], domain=domain)
        for i, (domain, op) in enumerate(nodes)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.INT8, [1, 2])
        for name in ("t0", f"t{len(made)}")
    ]
    opsets = [
        helper.make_opsetid(domain, 13 if not domain else 1) for domain in ("", "linger", "thinker")
    ]
    return ir.from_proto(
        helper.make_model(helper.make_graph(made, "g", ends[:1], ends[1:]), opset_imports=opsets)
    )


def test_a_graph_is_of_the_third_where_all_names_are():
    assert detect_dialect(graph(("linger", "QAdd"), ("", "Relu"))) == 3
    assert detect_dialect(graph(("thinker", "iqAdd"))) == 1
    assert detect_dialect(graph(("", "Relu"))) == 1
    assert detect_dialect(graph(("linger", "QAdd"), ("linger", "iqAdd"))) == 1


@pytest.mark.parametrize("op, domain", [("QAdd", "linger"), ("iqAdd", "thinker")])
def test_the_default_follows_the_graph_and_a_name_goes_before_it(op, domain):
    model = graph((domain, op))
    trains = detect_dialect(model) == 3
    assert bool(ArithmeticSide.resolve(model, VENUS, None).dialect) == trains
    assert ArithmeticSide.resolve(model, VENUS, "executor").dialect == 0
    assert ArithmeticSide.resolve(model, VENUS, "training").dialect == detect_dialect(model)


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(ConfigError) as told:
        ArithmeticSide.resolve(graph(("", "Relu")), VENUS, "train")
    assert all(name in str(told.value) for name in ARITHMETICS)


def test_the_executors_arithmetic_is_the_platforms_and_what_it_lacks_is_named():
    node = next(iter(graph(("thinker", "iqAdd")).graph))
    side = ArithmeticSide(VENUS)
    for form in INTEGER_OPS:
        held = VENUS.find_arithmetic(form.name)
        if held is not None:
            assert side.arithmetic(form, node) is held
            continue
        with pytest.raises(ModelError, match="venus has no such operator"):
            side.arithmetic(form, node)
