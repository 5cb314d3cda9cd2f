"""Apply output widths: last outputs in 32 bits or float, and 16-bit inputs of activations."""

from __future__ import annotations

from ...common.errors import ConfigError
from ...ir import ir
from ...ir.plan import Affine
from ...targets import Target
from ..calibration.statistics import Stats
from ..partition import Partition
from .scale_policy import ScalePolicy

__all__ = ["apply_output_bits"]


def apply_output_bits(
    tensors: dict[str, Affine],
    partition: Partition,
    stats: Stats,
    policy: ScalePolicy,
    target: Target,
) -> None:
    """Set the output widths that `policy` requests in `tensors`, in place.

    "float" removes a tensor's entry. A wide output gets the scale that the policy sets, else the
    calibrated one, but at most that of its accumulator, which loses nothing. A 16-bit input of a
    sigmoid or tanh gets the scale of that function's table.

    Raises
    ------
    ConfigError
        If the width is not supported for an output.
    """
    nodes = {ir.output_name(node): node for node, _ in partition.integer_nodes}
    wide_outputs = partition.wide_outputs(target)
    activation_exponents = partition.curve_input_exponents(target)
    for name, bits in policy.out_bits.items():
        if name in activation_exponents and bits in target.curve_bits:
            tensors[name] = Affine(2.0 ** activation_exponents[name], int(bits))
            continue
        _check_output_bits(name, bits, name in wide_outputs, target)
        if bits == "float":
            del tensors[name]
            continue
        node = nodes[name]
        weight_scale = float(tensors[ir.input_name(node, 1)].scales.min())
        accumulator_scale = tensors[ir.input_name(node)].scale * weight_scale
        setting = policy.policy_for_tensors([name], int(bits))
        output_stats = stats.get(name)
        if setting.scale:
            scale = setting.scale
        elif output_stats is None or output_stats.sum_of_squares == 0:
            scale = accumulator_scale
        else:
            scale = min(setting.choose_scale(output_stats), accumulator_scale)
        tensors[name] = Affine(scale, int(bits))


def _check_output_bits(name: str, bits: int | str, is_wide_output: bool, target: Target) -> None:
    """Raise ConfigError unless the output `name` can have the width `bits` (a number or "float").

    It must be the output of a layer that may be wider, `is_wide_output`, and the width one of the
    target's, or "float".
    """
    if not is_wide_output:
        activation_inputs = ""
        if target.curve_bits:
            activation_inputs = (
                f", or the {target.curve_bits[0]}-bit input of a sigmoid or tanh that is its only "
                "consumer,"
            )
        raise ConfigError(
            f"out_bits {bits} for tensor '{name}': only a fully connected layer with no integer "
            f"consumer{activation_inputs} can have a different output width; remove the setting"
        )
    if bits not in (*target.out_bits, "float"):
        supported = ", ".join(map(str, target.out_bits))
        raise ConfigError(
            f"override {name}: out_bits {bits} on platform {target.name}: the last integer output "
            f"supports {supported} bits, or float; {bits} bits are only for the input of a sigmoid "
            "or tanh"
        )
