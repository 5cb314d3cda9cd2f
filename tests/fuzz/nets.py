"""(family, seed) -> a random net and its data, always the same."""

import zlib
from dataclasses import dataclass, field

import numpy as np
import onnx

from tests.fuzz.families import FAMILIES
from tests.fuzz.random_net import RandomNet

__all__ = ["CALLS", "SAMPLES", "Case", "case"]

SAMPLES, CALLS = 12, 5


@dataclass(frozen=True)
class Case:
    """A float net: its model (ModelProto), {input: samples}, {output: input} where it streams,
    {tensor: its shape}, and its kind where a family draws several.
    """

    family: str
    seed: int
    model: object
    data: dict
    state: dict
    sizes: dict = field(default_factory=dict)
    kind: str = ""

    @property
    def calls(self):
        """What the net is fed call after call, without its states: of a streaming net."""
        fed = {name: a for name, a in self.data.items() if name not in self.state.values()}
        many = {name: np.array_split(array, CALLS) for name, array in fed.items()}
        least = min(len(part[-1]) for part in many.values())
        return [{name: parts[i][:least] for name, parts in many.items()} for i in range(CALLS)]

    @property
    def digest(self):
        """A number that tells the net from other ones."""
        return zlib.crc32(self.model.SerializeToString(deterministic=True))

    @property
    def calib(self):
        """What `quantize` is calibrated on."""
        return self.calls if self.state else self.data

    @property
    def settings(self):
        """What `quantize` is told besides."""
        return {"state": self.state} if self.state else {}

    def feeds(self, count, seed=1):
        """Return fresh samples: normal ones, the second far out of range, the third zero."""
        found = samples(self.model, count, seed, self.data)
        for array in found.values():
            if array.dtype.kind == "f":
                array[1:2] *= 30
                array[2:3] = 0
        return found


def case(family, seed):
    """Return the net of this family and seed."""
    rng = np.random.default_rng([zlib.crc32(family.encode()), seed])
    opset = int(rng.choice([13, 17, 18, 20]))
    net = RandomNet(rng, opset, batch=1 if rng.random() < 0.15 else "N")
    outputs = FAMILIES[family](net)
    model = net.finish(outputs)
    ranges = {name: np.arange(count) for name, count in net.whole.items()}
    data = samples(model, SAMPLES, seed, ranges)
    return Case(family, seed, model, data, net.state, net.size, net.kind)


def samples(model, count, seed, ranges=None):
    """Return seeded inputs; integer ones are drawn from what `ranges` holds."""
    rng, found = np.random.default_rng(seed), {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [count, *(d.dim_value for d in kind.shape.dim[1:])]
        if kind.elem_type == 1:
            found[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            found[value.name] = rng.choice(np.unique((ranges or {})[value.name]), shape).astype(
                dtype
            )
    return found
