"""What onnxruntime says, in words of ours: no codes, no signatures of its functions, no places in
its sources.
"""

import pytest

from lingeronnx.runtime.runners.ort_errors import explain_ort_error

_PLACE = "/onnxruntime_src/onnxruntime/core/providers/cpu/tensor/reshape_helper.h:91 "
_FUNCTION = (
    "onnxruntime::Helper::Helper(const onnxruntime::TensorShape&, "
    "std::function<void(int)>, bool) const "
)

#: What it says (behind its code) -> what a user reads.
CASES = (
    (
        "Could not find an implementation for RoiAlign(22) node with name ''",
        (
            "it has no RoiAlign (version of opset 22) for these types; export the model with other "
            "operators, or in float32"
        ),
    ),
    (
        f"{_PLACE}{_FUNCTION}Unsupported model IR version: 14, max supported IR version: 13",
        (
            "its file format, IR version 14, is newer than the supported one (13); save the model with an "
            "older "
            "onnx"
        ),
    ),
    (
        (
            f"{_PLACE}{_FUNCTION}ONNX Runtime only *guarantees* support for models stamped with "
            "official released onnx "
            "opset "
            "versions. Opset 27 is under development. Current official support for domain ai.onnx "
            "is till opset 26."
        ),
        (
            "an operator has a version newer than opset 26 of ai.onnx, the newest supported one; "
            "export with an older opset"
        ),
    ),
    (
        "Fatal error: ai.onnx.preview:FlexAttention(-1) is not a registered function/op",
        (
            "it does not know the operator ai.onnx.preview:FlexAttention; export the model with "
            "standard operators"
        ),
    ),
    (
        "Node (a) Op (Range) [ShapeInferenceError] Input to 'start' op should be scalars",
        "Range a: Input to 'start' op should be scalars",
    ),
    (
        (
            "Non-zero status code returned while running GatherND node. Name:'g' Status Message: "
            "invalid index found, "
            "index 1"
        ),
        "GatherND g: invalid index found, index 1",
    ),
    (
        (
            "Non-zero status code returned while running Reshape node. Name:'r' Status Message: "
            f"{_PLACE}{_FUNCTION}"
            "input_shape_size == requested_shape_size was false. The input tensor cannot be "
            "reshaped to the requested "
            "shape."
        ),
        "Reshape r: The input tensor cannot be reshaped to the requested shape.",
    ),
    (
        (
            f"{_PLACE}{_FUNCTION}[with T = float] layout_ == 0 was false. Batchwise operations are "
            "not supported. If "
            "you "
            "need "
            "support create a github issue with justification."
        ),
        "Batchwise operations are not supported.",
    ),
    ("What nobody knows", "What nobody knows"),
)


@pytest.mark.parametrize(("message", "reason"), CASES)
def test_reason(message, reason):
    assert explain_ort_error(RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {message}\n")) == reason


def test_an_error_without_words():
    assert explain_ort_error(RuntimeError()) == "RuntimeError"


def test_places_and_contexts_of_another_library_are_left_out():
    told = explain_ort_error(
        RuntimeError(
            "[ONNXRuntimeError] : 1 : FAIL : a.cc:1 f one.cc:22 g it has no data ==> Context: Bad"
        )
    )
    assert told == "it has no data"
    told = explain_ort_error(
        RuntimeError("Exception during initialization: v >= 0 && x <= std::max() was false.")
    )
    assert told == "a size or an index in it is out of range"
