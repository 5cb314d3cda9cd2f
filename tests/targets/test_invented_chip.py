"""Law: platforms are rows. A chip that nobody built, added as a value here and nowhere else, is
quantized for and
simulated: it rounds down, takes kernels of three, wants its gates in another order, and multiplies
nothing.
"""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.common.errors import InternalError
from lingeronnx.ir import ir
from lingeronnx.luna import packer_profile
from lingeronnx.luna.faults import LunaFault
from lingeronnx.luna.vendor import LunaVendor
from lingeronnx.targets import Target, get_target, make_support_rows
from lingeronnx.targets.arithmetic import (
    ActivationTable,
    AddArithmetic,
    AddOperandPrecision,
    Arithmetic,
    AverageDivisor,
    AveragePoolArithmetic,
    ConcatArithmetic,
    LayerArithmetic,
    LeftShiftBehavior,
    LstmArithmetic,
    QuantArithmetic,
    RequantArithmetic,
    Requantization,
    RoundingMode,
    SoftmaxArithmetic,
)
from lingeronnx.targets.limits import MatrixLimits, SoftmaxLimits
from tests.nets import Net, plain, residual, samples
from tests.ops.test_recurrent import classifier, inputs

DOWN = Requantization(shifts=True, left=LeftShiftBehavior.REFUSED, rounding=RoundingMode.DOWN)

PACKING = replace(
    packer_profile.VENUS,
    name="nimbus",
    platform_attribute="nimbus",
    conv=replace(
        packer_profile.VENUS.conv,
        max_kernel=3,
        max_kernel_dilated=3,
        strides=(1, 2),
        max_pad=2,
        max_kernel_1d=3,
    ),
)


def chip(requantize=DOWN, gates="iofg"):
    """Return a row."""
    return Target(
        name="nimbus",
        executor="0.1",
        title="a chip that nobody built",
        modes=("q-value",),
        bits=(8,),
        single_sample=True,
        exponents=(-5, 12),
        shared_memory=1 << 20,
        vendor=LunaVendor(PACKING),
        faults=(LunaFault.AVGPOOL_SCALE,),
        node_attributes={"": {"platform": "nimbus", "platform_quant": "luna_quant"}},
        ops=MappingProxyType(
            {
                **make_support_rows(QuantArithmetic(), "Quant"),
                **make_support_rows(RequantArithmetic(requantize), "Requant"),
                **make_support_rows(
                    Arithmetic(),
                    "Dequant",
                    "Relu",
                    "Flatten",
                    "Reshape",
                    "Transpose",
                    "Gather",
                    "Squeeze",
                ),
                **make_support_rows(Arithmetic(), "MaxPool", limits=PACKING.pool),
                **make_support_rows(LayerArithmetic(requantize), "Conv2dInt", limits=PACKING.conv),
                **make_support_rows(
                    LayerArithmetic(requantize), "LinearInt", limits=MatrixLimits(rank=3)
                ),
                **make_support_rows(AddArithmetic(requantize, AddOperandPrecision.WIDE), "iqAdd"),
                **make_support_rows(ConcatArithmetic(requantize), "iqCat"),
                **make_support_rows(
                    AveragePoolArithmetic(requantize, AverageDivisor.AREA),
                    "AvgPool2dInt",
                    limits=PACKING.pool,
                ),
                **make_support_rows(
                    SoftmaxArithmetic(Requantization(shifts=True)),
                    "SoftmaxInt",
                    limits=SoftmaxLimits(max_length=8),
                ),
                **make_support_rows(
                    LstmArithmetic(
                        Requantization(shifts=True), ActivationTable.VENUSA, gates=gates
                    ),
                    "LSTMInt",
                ),
            }
        ),
    )


def same_both_ways(result, row, feeds, outputs=("y",)):
    """Compare the simulator with the plain classes, output by output; return the simulator's
    numbers.
    """
    got = result.session().run(list(outputs), feeds)
    reference = ReferenceEvaluator(ir.to_proto(result.graph), new_ops=lo.reference_ops(row))
    for i in range(len(next(iter(feeds.values())))):
        want = reference.run(
            list(outputs), {name: array[i : i + 1] for name, array in feeds.items()}
        )
        for one, other in zip(got, want, strict=True):
            assert np.array_equal(one[i : i + 1], other)
    return got


@pytest.mark.parametrize("build", (plain, residual))
def test_a_net_is_quantized_and_simulated(build):
    """Every layer in integers, rounded down: other numbers than a chip gives that rounds half
    up.
    """
    row, model = chip(), build()
    feeds = samples(model, 4, seed=1)
    result = lo.quantize(model, samples(model), platform=row, effort="fast")
    assert (result.report.integer_macs, result.report.chip_ready, result.report.platform) == (
        1.0,
        True,
        "nimbus",
    )
    assert result.report.packer.startswith("tpacker -g model_quant.onnx -p nimbus")
    down = same_both_ways(result, row, feeds)
    half_up = lo.Session(
        result.graph, platform=chip(replace(DOWN, rounding=RoundingMode.HALF_UP))
    ).run(None, feeds)
    assert not np.array_equal(down[0], half_up[0])
    want = lo.Session(model).run(["y"], feeds)[0]
    assert np.corrcoef(want.reshape(-1), down[0].reshape(-1))[0, 1] > 0.95


def test_its_limits_are_kept():
    """A 5x5 kernel is told of, and split into kernels of three."""
    net = Net(3, 10, 10, seed=4)
    model = net.graph(net.conv("x", (4, 3, 5, 5), pads=[2] * 4, out="y"))
    row = chip()
    (found,) = lo.check(model, platform=row).violations
    assert (found.rule, found.value) == ("kernel height and width must not exceed 3", "5x5")
    assert not lo.check(model, platform="generic").violations
    result = lo.quantize(model, samples(model), platform=row, effort="fast")
    kernels = [
        ir.get_attr(node, "kernel_shape")
        for node in result.graph.graph
        if node.op_type == "Conv2dInt"
    ]
    assert len(kernels) == 4
    assert max(side for kernel in kernels for side in kernel) == 3
    same_both_ways(result, row, samples(model, 2, seed=1))


def test_its_gates_stand_in_its_order():
    """The weights of an LSTM are written in the row's order, and mean the same as in another."""
    model = classifier("LSTM", "forward")
    x, results = inputs(model, 4, seed=1), []
    for gates in ("iofg", "ifgo", "gofi"):
        row = chip(gates=gates)
        result = lo.quantize(model, {"x": inputs(model)}, platform=row, effort="fast")
        assert result.report.layers["LSTMInt"] == 2
        name = str(model.graph.outputs[0].name)
        results.append((result, same_both_ways(result, row, {"x": x}, [name])[0]))
    assert np.array_equal(results[0][1], results[1][1])
    assert np.array_equal(results[0][1], results[2][1])
    held = [result.graph.graph.initializers for result, _ in results]
    weights = [name for name, value in held[0].items() if ir.const_value(value).shape[:1] == (32,)]
    assert any(
        not np.array_equal(ir.const_value(held[0][name]), ir.const_value(held[1][name]))
        for name in weights
    )


def test_what_it_has_not_is_refused():
    """No operator is computed by another's arithmetic, and none by a value of another kind."""
    net = Net(4, 6, 6, seed=6)
    a = net.conv("x", (4, 4, 3, 3), pads=[1] * 4)
    model = net.graph(net.node("Sub", a, net.node("Relu", a), out="y"))
    of_generic = lo.quantize(model, samples(model), platform="generic", effort="fast")
    with pytest.raises(lo.ModelError, match="iqSub .*: nimbus has no such operator"):
        lo.Session(of_generic.graph, platform=chip()).run(None, samples(model, 1))
    assert (
        lo.quantize(model, samples(model), platform=chip()).report.host_part[0].why
        == "nimbus has no operator for Sub"
    )
    wrong = chip().with_op("Conv2dInt", arithmetic=Arithmetic(DOWN))
    with pytest.raises(
        InternalError, match="Conv2dInt .* has arithmetic Arithmetic; expected LayerArithmetic"
    ):
        lo.quantize(model, samples(model), platform=wrong)


def test_it_is_a_value_everywhere():
    """By a config, by check, and by name only where it is one of the table."""
    row = chip()
    assert get_target(row) is row
    with pytest.raises(lo.ConfigError, match="unknown platform 'nimbus'"):
        get_target("nimbus")
    from lingeronnx.quantization.config import QuantConfig

    with pytest.raises(lo.ConfigError, match="platform = 3: it must be a name or a Target"):
        QuantConfig.of({"platform": 3})
    with pytest.raises(lo.ConfigError, match="platform = 'nimbus' is for integer graphs"):
        lo.Session(plain(), platform=row)
    model = plain()
    by_config = lo.quantize(
        model, samples(model), config=QuantConfig.of({"platform": row, "effort": "fast"})
    )
    assert by_config.platform is row
    checked = lo.check(by_config.graph, platform=row)
    assert not checked.violations, checked.lines()


@pytest.mark.parametrize(
    "make",
    (
        lambda: AddArithmetic(DOWN, AddOperandPrecision.INT8),
        lambda: LstmArithmetic(gates="ifg"),
    ),
)
def test_values_that_mean_nothing(make):
    """What the simulator could not do is refused where the row is written."""
    with pytest.raises(ValueError, match="round|gates"):
        make()
