"""Lines that scripts for onnxruntime have, under onnxruntime and under this library."""

import importlib

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import LingerOnnxError
from tests.nets import Net, plain, samples

NAME = "x"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{library: file that it runs}: a float model, and its quantization for generic."""
    folder = tmp_path_factory.mktemp("ort")
    model = plain()
    net = Net(3, 12, 12, seed=1)
    net.node("Relu", net.conv(NAME, (4, 3, 3, 3)), out="y")
    onnx.save(net.proto("y"), folder / "float.onnx")
    data = samples(model, 8)
    lo.quantize(folder / "float.onnx", data, platform="generic", effort="fast").save(
        folder / "integer.onnx"
    )
    return {"onnxruntime": folder / "float.onnx", "lingeronnx": folder / "integer.onnx"}


@pytest.fixture(params=("onnxruntime", "lingeronnx"))
def script(request, files):
    """(the library as ``ort``, the path of its file as text)."""
    return importlib.import_module(request.param), str(files[request.param])


def batch(count=1):
    """Return an input of the model."""
    return np.random.default_rng(0).standard_normal((count, 3, 12, 12)).astype(np.float32)


def test_sessions_are_made_of_paths_and_bytes(script, files):
    """Options, providers by name and in pairs, a pathlib path, and the bytes of a file."""
    ort, path = script
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.enable_profiling = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert isinstance(ort.__version__, str)
    session = ort.InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"])
    ort.InferenceSession(path, options)
    ort.InferenceSession(files[ort.__name__], providers=[("CPUExecutionProvider", {})])
    content = files[ort.__name__].read_bytes()
    from_bytes = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert "CPUExecutionProvider" in session.get_provider_options()
    assert session.get_session_options().log_severity_level == 3
    x = batch()
    np.testing.assert_array_equal(from_bytes.run(None, {NAME: x}), session.run(None, {NAME: x}))


def test_what_a_model_is(script):
    """Inputs, outputs and metadata."""
    ort, path = script
    session = ort.InferenceSession(path)
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.type) == (NAME, "tensor(float)")
    assert (y.name, y.type) == ("y", "tensor(float)")
    assert x.shape[1:] == [3, 12, 12]
    assert not isinstance(x.shape[0], int)
    assert session.get_overridable_initializers() == []
    meta = session.get_modelmeta()
    assert isinstance(meta.custom_metadata_map, dict)
    for text in (meta.graph_name, meta.producer_name, meta.domain, meta.description):
        assert isinstance(text, str)


def test_runs(script):
    """A list of arrays, for any order of names, with options, of any layout in memory."""
    ort, path = script
    session = ort.InferenceSession(path)
    x = batch(3)
    results = session.run(None, {NAME: x})
    assert isinstance(results, list)
    assert [array.dtype for array in results] == [np.float32]
    for again in (
        session.run(["y"], {NAME: x}),
        session.run([], {NAME: x}),
        session.run(None, {NAME: np.asfortranarray(x)}),
        session.run(["y"], {NAME: x}, ort.RunOptions()),
        session.run(["y"], input_feed={NAME: x}),
    ):
        np.testing.assert_array_equal(again[0], results[0])
    twice = session.run(["y", "y"], {NAME: x})
    assert [array.shape for array in twice] == [results[0].shape] * 2


def test_values_and_bindings(script):
    """OrtValue in and out, and inputs and outputs that are bound before the run."""
    ort, path = script
    session = ort.InferenceSession(path)
    x = batch(2)
    (expected,) = session.run(None, {NAME: x})
    value = ort.OrtValue.ortvalue_from_numpy(x)
    assert value.shape() == [2, 3, 12, 12]
    assert (value.data_type(), value.element_type()) == ("tensor(float)", 1)
    assert value.is_tensor()
    assert value.has_value()
    (result,) = session.run_with_ort_values(["y"], {NAME: value})
    np.testing.assert_array_equal(result.numpy(), expected)
    binding = session.io_binding()
    binding.bind_cpu_input(NAME, x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), expected)
    binding = session.io_binding()
    binding.bind_ortvalue_input(NAME, value)
    target = ort.OrtValue.ortvalue_from_shape_and_type(expected.shape, np.float32, "cpu", 0)
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), expected)


@pytest.mark.parametrize(
    "call",
    (
        lambda s, x: s.run(None, {"no_such_input": x}),
        lambda s, x: s.run(None, {}),
        lambda s, x: s.run(["no_such_output"], {NAME: x}),
        lambda s, x: s.run(None, {NAME: x.astype(np.float64)}),
        lambda s, x: s.run(None, {NAME: x[..., :-1]}),
        lambda s, x: s.run(None, {NAME: x[None]}),
        lambda s, x: s.run(None, {NAME: x, "other": x}),
        lambda s, x: s.end_profiling() or 1 / 0,
    ),
    ids=("input", "no input", "output", "type", "shape", "rank", "other input", "profiling"),
)
def test_wrong_calls_are_errors(script, call):
    """Unknown and missing names, other types, shapes and ranks: one line here."""
    ort, path = script
    session = ort.InferenceSession(path)
    with pytest.raises(Exception) as error:  # noqa: PT011 - theirs have no common class
        call(session, batch())
    assert str(error.value).strip()
    if ort is lo:
        assert isinstance(error.value, LingerOnnxError)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", ("no_such_file.onnx", b"not a model", b""))
def test_what_is_no_model_is_an_error(script, source):
    """A missing file, and bytes of something else."""
    ort, _ = script
    with pytest.raises(Exception) as error:  # noqa: PT011 - theirs have no common class
        ort.InferenceSession(source)
    assert str(error.value).strip()


def test_what_differs(files):
    """An effect that there is none of here is refused or warned of, not ignored."""
    path = files["lingeronnx"]
    options = lo.SessionOptions()
    options.enable_profiling = True
    with pytest.raises(lo.ConfigError, match="enable_profiling: a session writes no profile"):
        lo.InferenceSession(path, options)
    with pytest.warns(UserWarning, match="provider 'CUDAExecutionProvider' is not available"):
        lo.InferenceSession(path, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    session = lo.InferenceSession(path)
    with pytest.raises(lo.ConfigError, match="run_async: call run in a thread"):
        session.run_async(None, {}, None)
    with pytest.raises(lo.ConfigError, match="memory is not read by its address"):
        session.io_binding().bind_input(NAME, "cpu", 0, np.float32, [1], 0)
    with pytest.raises(lo.DataError, match="convert it, or use lo.Session, which converts"):
        session.run(None, {NAME: batch().astype(np.float64)})
    assert lo.Session(path)(batch().astype(np.float64)).shape[0] == 1  # which is lenient
    last = np.moveaxis(batch(), 1, -1)
    with pytest.raises(lo.DataError, match=r"\(NHWC\): pass array.transpose\(0, 3, 1, 2\)"):
        session.run(None, {NAME: last})
