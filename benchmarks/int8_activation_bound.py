"""What activations in 8 bits cost at the least.

Float weights, and for every activation the best power of two.
    python benchmarks/int8_activation_bound.py MODEL.onnx --calib DATA --test DATA [--platform
    venus] [--effort normal]
        [--output TENSOR] [--reach 2] [--samples 256]

The model is planned as `quantize` plans it; then its weights stay in float and the activations
alone are rounded (`plan.fake`). From the plan's exponents on, coordinate by coordinate, every group
of tensors that share a scale gets the exponent within plus and minus `reach` of the plan's with the
highest SQNR of the outputs on the calibration data, until none moves. What the search found is
measured on the test data, which it never sees; so is the plan itself, and the integer graph. SQNR
is that of all outputs together, or of one tensor such as the input of a final softmax.

The search may choose what fits its samples by chance, so that it is lower on the test data than on
its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lingeronnx.ir import ir
from lingeronnx.quantization import build_quantized_model, plan_model, prepare_model, refine_weights
from lingeronnx.quantization.scales import group_shared_scales
from lingeronnx.quantization.scales.fake_quant import build_fake_quantized_graph
from lingeronnx.quantization.steps import PlannedModel
from lingeronnx.runtime.data import Data
from lingeronnx.runtime.metrics import Agreement
from lingeronnx.runtime.runners import FloatRunner, get_input_specs, open_ort_session

BATCH = 64


class RoundedActivationModel:
    """The planned graph, weights in float, with the scale of every activation as an input of the model."""

    def __init__(self, planned: PlannedModel, outputs: Sequence[str]) -> None:
        activations = {
            name: q
            for name, q in planned.plan.tensors.items()
            if name in set(planned.partition.activations)
        }
        model, users = build_fake_quantized_graph(
            planned.graph, planned.plan.with_tensors(activations), activations
        )
        self._groups: dict[str, int] = {}
        self.exponents: list[int] = []
        for group in group_shared_scales(planned.partition, planned.prepared.target):
            held = [activations[name] for name in group.tensors if name in activations]
            if held:
                self._groups.update(dict.fromkeys(group.tensors, len(self.exponents)))
                self.exponents.append(round(np.log2(held[0].scale)))
        self._scales = {}
        for value in list(ir.iter_values(model)):
            tensor, node = users.get(str(value.name)), ir.producer(value)
            if tensor in activations and node is not None and node.op_type == "Div":
                self._scales[self._free_scale(model, node)] = self._groups[tensor]
        names = {user: name for name, user in users.items()}
        fetch = [names.get(name, name) for name in outputs]
        proto = ir.to_proto(model)
        del proto.graph.output[:]
        proto.graph.output.extend(_named(name) for name in fetch)
        self._fetch, self._session = fetch, open_ort_session(proto, "the rounded model")

    @staticmethod
    def _free_scale(model: ir.Model, last: ir.Node) -> str:
        """Let the nodes that round one tensor, of which `last` divides, read their scale from a new input."""
        nodes = [last]
        while nodes[0].op_type != "Mul":
            maker = ir.producer(nodes[0].inputs[0])
            assert maker is not None
            nodes.insert(0, maker)
        entry = ir.Value(
            name=ir.unique_tensor_name(model, "scale"),
            shape=ir.Shape([]),
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        model.graph.inputs.append(entry)
        for node in (nodes[0], last):
            node.replace_input_with(1, entry)
        return str(entry.name)

    def measure_sqnr(
        self, data: list[tuple[Mapping[str, np.ndarray], list[np.ndarray]]], exponents: list[int]
    ) -> float:
        """Return the SQNR of all outputs on (feeds, outputs in float), with these exponents of the groups."""
        scales = {
            name: np.array(2.0 ** exponents[group], np.float32)
            for name, group in self._scales.items()
        }
        found = Agreement()
        for feeds, wants in data:
            for want, have in zip(
                wants, self._session.run(self._fetch, {**feeds, **scales}), strict=True
            ):
                found.add(want, have)
        return found.sqnr

    def search_exponents(
        self, data: list[tuple[Mapping[str, np.ndarray], list[np.ndarray]]], reach: int
    ) -> list[int]:
        """Return the exponents of the groups, chosen on `data`."""
        start, best = self.exponents, list(self.exponents)
        highest, moved = self.measure_sqnr(data, best), True
        while moved:
            moved = False
            for group, first in enumerate(start):
                for exponent in range(first - reach, first + reach + 1):
                    tried = [*best[:group], exponent, *best[group + 1 :]]
                    if (
                        exponent != best[group]
                        and (value := self.measure_sqnr(data, tried)) > highest
                    ):
                        highest, best, moved = value, tried, True
        return best


def _named(name: str) -> Any:
    import onnx

    return onnx.ValueInfoProto(name=name)


def iterate_samples(
    source: Data, runner: FloatRunner, names: Sequence[str], most: int
) -> Iterator[Any]:
    """Yield (feeds, the float model's outputs) of at most `most` samples, a batch at a time."""
    for feeds in source.split_feeds(source.first(most), BATCH):
        found = {name: array for name, array, _ in runner.run(feeds, names)}
        yield feeds, [found[name] for name in names]


def main() -> None:
    """Parse the arguments and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--platform", default="venus")
    parser.add_argument(
        "--effort", default="normal", help="fast: without equalized channels and fitted ranges"
    )
    parser.add_argument("--output", help="the tensor to measure, default all outputs together")
    parser.add_argument("--reach", type=int, default=2)
    parser.add_argument("--samples", type=int, default=256, help="at most, of either data")
    args = parser.parse_args()
    prepared = prepare_model(
        args.model, args.calib, None, {"platform": args.platform, "effort": args.effort}
    )
    planned = plan_model(prepared)
    session = build_quantized_model(planned, refine_weights(planned)).session()
    names = (
        [args.output]
        if args.output
        else [str(value.name) for value in prepared.original.graph.outputs]
    )
    rounded = RoundedActivationModel(planned, names)
    test = Data(args.test, get_input_specs(prepared.original))
    seen = list(iterate_samples(prepared.data, prepared.source, names, args.samples))
    unseen = list(iterate_samples(test, prepared.source, names, args.samples))
    best = rounded.search_exponents(seen, args.reach)
    integers = Agreement()
    for feeds, wants in unseen:
        for want, have in zip(wants, session.run(names, feeds), strict=True):
            integers.add(want, have)
    moved = sum(a != b for a, b in zip(best, rounded.exponents, strict=True))
    print(f"{len(best)} scales, {moved} moved by the search")
    for what, exponents in (("plan", rounded.exponents), ("ceiling", best)):
        on = " ".join(
            f"{where} {rounded.measure_sqnr(data, exponents):6.2f} dB"
            for where, data in (("calib", seen), ("test", unseen))
        )
        print(f"{what:12s} {on}", flush=True)
    print(f"{'integers':12s} {'':15s} test {integers.sqnr:6.2f} dB")


if __name__ == "__main__":
    main()
