"""The platforms as rows of data: limits, operators, algorithms, known faults.

Nothing outside this file may compare a platform's name; code asks the row. What the numbers mean is told by the
constraints in `ops`, whose one-line rules are filled in from these rows. Adding a chip adds a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .errors import ConfigError, nearest

__all__ = ["PLATFORMS", "ConvLimits", "Platform", "PoolLimits", "platform"]


@dataclass(frozen=True)
class ConvLimits:
    """What the packer takes of a 2-D convolution; sizes in elements, memory in bytes."""

    max_kernel: int
    strides: tuple[int, ...]
    max_pad: int
    dilations: tuple[int, ...]
    slab: int  # bytes of kernel rows of the input held at once
    slab_depthwise: int
    memory_depthwise: int  # bytes of input and output together
    channel_align: int
    depthwise_multiplier: bool
    max_kernel_1d: int


@dataclass(frozen=True)
class PoolLimits:
    """What the packer and the executor take of pooling."""

    max_kernel: int  # max pooling, per side
    max_average_area: int  # average pooling, elements of the window
    max_shared_area: int  # a larger global average was measured wrong unless all tensors are in external memory
    external_args: str  # the packer arguments that put them there


@dataclass(frozen=True)
class Platform:
    """One target: a chip with its executor, or the generic one.

    ops maps the integer operators the target runs right to the algorithm that computes them there.
    """

    name: str
    executor: str
    title: str
    modes: tuple[str, ...]
    bits: tuple[int, ...]
    ops: Mapping[str, str]
    chip: bool  # a real chip: batch 1, vendor packer
    conv: ConvLimits | None = None
    pool: PoolLimits | None = None
    exponents: tuple[int, int] = (-126, 126)  # of activations' power-of-two scales
    shared_memory: int | None = None  # bytes
    external_memory: int | None = None
    packer: str = ""  # the packer's call, {model} to fill in
    node_attributes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # "" = every integer node
    faults: Mapping[str, str] = field(default_factory=dict)  # key -> what the executor does wrong

    @property
    def power_of_two(self) -> bool:
        """Whether the target takes power-of-two scales only."""
        return self.modes == ("q-value",)

    def runs(self, operator: str) -> bool:
        """Whether the integer operator is in this row's list."""
        return operator in self.ops


_GENERIC_OPS = (
    "Quant", "Dequant", "Requant", "Conv2dInt", "Conv1dInt", "LinearInt", "BatchNorm2dInt", "iqAdd", "iqMul", "iqCat",
    "AvgPool2dInt", "MaxPool", "Relu", "Clip", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze",
)  # fmt: skip

GENERIC = Platform(
    name="generic",
    executor="",
    title="an idealised int8 NPU (docs/generic.md)",
    modes=("max-value", "q-value"),
    bits=(8,),
    ops=MappingProxyType(dict.fromkeys(_GENERIC_OPS, "generic")),
    chip=False,
)

VENUS = Platform(
    name="venus",
    executor="3.0.4",
    title="LISTENAI venus (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            "Quant": "luna",
            "Dequant": "luna",
            "Requant": "luna",
            "Conv2dInt": "luna",
            "Conv1dInt": "luna",
            "LinearInt": "luna",
            "BatchNorm2dInt": "luna",
            "iqAdd": "luna",
            "iqMul": "luna",
            "iqCat": "luna",
            "AvgPool2dInt": "luna-area8",
            "MaxPool": "luna",
            "Relu": "luna",
            "Reshape": "luna",
            "Flatten": "luna",
            "Transpose": "luna",
            "Squeeze": "luna",
            "Unsqueeze": "luna",
        }
    ),  # fmt: skip
    chip=True,
    conv=ConvLimits(
        max_kernel=5,
        strides=(1, 2, 4),
        max_pad=4,
        dilations=(1,),
        slab=65536,
        slab_depthwise=32768,
        memory_depthwise=512 * 1024 - 1,
        channel_align=2,
        depthwise_multiplier=False,
        max_kernel_1d=5,
    ),  # fmt: skip
    pool=PoolLimits(max_kernel=5, max_average_area=127, max_shared_area=64, external_args="--threshold4 1"),
    exponents=(-3, 16),
    shared_memory=640 * 1024,
    external_memory=8 * 1024 * 1024,
    packer="tpacker -g {model} -p venus -o {stem}.pkg",
    node_attributes=MappingProxyType(
        {"": MappingProxyType({"platform_quant": "luna_quant"}), "iqAdd": MappingProxyType({"mode": "Non_t710_mode"})}
    ),
    faults=MappingProxyType(
        {
            "avgpool-scale": "average pooling ignores scale_o: scales are tied",
            "avgpool-area": "a pooling window of more than 127 elements is divided by the wrong number: left in float",
            "clip": "Clip does not load: ReLU6 is made by saturation",
            "depthwise-multiplier": "a depthwise convolution with more outputs than inputs is wrong: left in float",
        }
    ),
)

PLATFORMS = (GENERIC, VENUS)


def platform(name: str) -> Platform:
    """Return the row called `name`; ConfigError naming the nearest when there is none."""
    for row in PLATFORMS:
        if row.name == name:
            return row
    names = [row.name for row in PLATFORMS]
    raise ConfigError(f"unknown platform '{name}'{nearest(name, names)}; known: {', '.join(names)}")
