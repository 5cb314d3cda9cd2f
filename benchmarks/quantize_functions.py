"""Count the named functions and files of this package that one `quantize` call runs.

    python -m benchmarks.quantize_functions [--effort normal] [--list]

The model is a Conv with a Relu, for venus, with 16 random samples. A first call in a process also
runs what is cached afterwards (operators, kernels, limits); the second one is what a reader of the
pipeline has to follow. Lambdas, comprehensions and generator expressions are not counted.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo

ROOT = Path(lo.__file__).parents[1]
PACKAGES = (str(ROOT / "lingeronnx"), str(ROOT / "simulator"))


def make_model() -> onnx.ModelProto:
    """Make a model of one 3x3 convolution and a Relu: x [N, 3, 8, 8] -> y [N, 4, 6, 6]."""
    weight = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 6, 6])
    graph = helper.make_graph(nodes, "net", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def count_functions(call: Callable[[], object]) -> dict[str, set[str]]:
    """Run `call` and return {file of this package: names of its functions that ran}."""
    functions: dict[str, set[str]] = {}

    def record_call(frame: FrameType, event: str, _: Any) -> None:
        """Record the function of a Python call."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGES) and code.co_name[0] != "<":
            functions.setdefault(code.co_filename, set()).add(code.co_qualname)

    sys.setprofile(record_call)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions


def main() -> None:
    """Print the counts of a first and a second call."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--list", action="store_true", help="print the functions by file")
    arguments = parser.parse_args()
    samples = np.random.default_rng(1).normal(size=(16, 3, 8, 8)).astype(np.float32)
    model = make_model()
    for label in ("first", "second"):
        functions = count_functions(
            lambda: lo.quantize(model, {"x": samples}, platform="venus", effort=arguments.effort)
        )
        count = sum(map(len, functions.values()))
        print(f"{label} call: {count} functions in {len(functions)} files")
    folders = Counter[str]()
    for path, names in functions.items():
        folders[str(Path(path).relative_to(ROOT).parent)] += len(names)
    for folder, count in folders.most_common():
        print(f"{count:6} {folder}")
    if arguments.list:
        for path, names in sorted(functions.items()):
            print(f"{Path(path).relative_to(ROOT)}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
