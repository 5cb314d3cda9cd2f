"""Sessions of onnxruntime: what is left out where it would end the process."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx.parser import parse_model

from lingeronnx.runtime.runners.sessions import open_ort_session

PLAIN = "y = Relu(x)"
BRANCHES = """
    c = Equal(rate, wanted)
    y = If(c) <
        then_branch = t () => (float[1, 6] p) { p = Relu(x) }, else_branch = e () => (float[1, 6] q) { q = Neg(x) }
    >
"""


CALLED = "y = own.branching(x)"
FUNCTION = f"""
    <domain: "own", opset_import: ["" : 16]>
    branching (x) => (y) {{
        rate = Constant<value_int = 16000>()
        wanted = Constant<value_int = 16000>()
        {BRANCHES}
    }}
"""


@pytest.mark.parametrize(
    ("body", "function", "left_out"),
    [(PLAIN, "", []), (BRANCHES, "", ["ConstantFolding"]), (CALLED, FUNCTION, ["ConstantFolding"])],
)
def test_branches_are_not_inlined_by_onnxruntime(monkeypatch, body, function, left_out):
    """It ends the process at some branches within branches; the answer is the same."""
    proto = parse_model(
        f"""<ir_version: 8, opset_import: ["" : 16, "own" : 1]>
        net (float[1, 6] x) => (float[1, 6] y) <int64 rate = {{16000}}, int64 wanted = {{16000}}> {{ {body} }}
        {function}"""
    )
    opened, told = ort.InferenceSession, []

    def spy(content, options, **others):
        told.append(others["disabled_optimizers"])
        return opened(content, options, **others)

    monkeypatch.setattr(ort, "InferenceSession", spy)
    (y,) = open_ort_session(proto, "a net").run(
        None, {"x": np.linspace(-1, 1, 6, dtype=np.float32)[None]}
    )
    assert told == [left_out]
    np.testing.assert_array_equal(y, np.maximum(np.linspace(-1, 1, 6, dtype=np.float32), 0)[None])
