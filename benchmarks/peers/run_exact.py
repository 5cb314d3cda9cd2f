"""Samples through a file, one by one, in onnxruntime with its own settings or OpenVINO.

Run in a tool's environment.
    python run_exact.py onnxruntime|openvino FILE.onnx FEEDS.npz OUT.npz

FEEDS.npz has every input with the samples along axis 0, OUT.npz the outputs likewise. Prints the
version. Needs numpy and the runtime, nothing of this project.
"""

import sys

import numpy as np


def main() -> None:
    """Run all samples."""
    runtime, model, feeds, out = sys.argv[1:]
    with np.load(feeds) as data:
        given = {name: data[name] for name in data.files}
    count = len(next(iter(given.values())))
    samples = [{name: array[i : i + 1] for name, array in given.items()} for i in range(count)]
    if runtime == "onnxruntime":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names, version = [value.name for value in session.get_outputs()], ort.__version__
        found = [session.run(names, sample) for sample in samples]
    else:
        import openvino as ov

        core = ov.Core()
        compiled, version = core.compile_model(core.read_model(model), "CPU"), ov.__version__
        names = [output.get_any_name() for output in compiled.outputs]
        found = [
            [np.array(compiled(sample)[index]) for index in range(len(names))] for sample in samples
        ]
    np.savez(
        out,
        **{
            f"y{index}": np.concatenate(arrays)
            for index, arrays in enumerate(zip(*found, strict=True))
        },
    )
    print(version)


if __name__ == "__main__":
    main()
