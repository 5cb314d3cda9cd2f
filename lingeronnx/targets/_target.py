"""What the core may ask of any chip.

A row of data (`Target`), and a few methods for what is no data (`Vendor`).
The core asks `Target`, which nobody derives from. Where a chip comes with code of its own (a
packer, limits that are computed, rewrites before the file is written), its vendor derives from
`Vendor`; every method has a default, that of a target which takes what its columns say. `Target`
hands copies to those that change something. No calibration, no rounding method and no grouping of
nodes lives here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, final

from ..deprecation import accept_old_parameters, keep_old_members
from ..errors import ConfigError, InternalError, ModelError
from .arithmetic import Arithmetic
from .latency import Latency
from .limits import (
    ConvLimits,
    LayerNormLimits,
    Limits,
    MatrixLimits,
    PoolLimits,
    RecurrentLimits,
    SigmoidLimits,
    SoftmaxLimits,
    TransposeLimits,
)
from .verdict import PackerArguments, require_latency

if TYPE_CHECKING:
    import onnx

    from ..graph import ir
    from ..graph.name_mapping import NameMapping
    from .board_profile import BoardProfile
    from .timing_calibration import TimingCalibration

__all__ = [
    "AppliedRewrite",
    "Fault",
    "LimitCheck",
    "OperatorSupport",
    "Target",
    "Vendor",
    "format_limit_rule",
    "make_support_rows",
]

_Kind = TypeVar("_Kind")

#: A limit of a node: it takes a node, float or integer, and the platform, and returns the value that breaks the limit,
#: or None. Its docstring is the rule that users read, ``rule | remedy``, filled in from the platform as `target`.
LimitCheck: TypeAlias = "Callable[[ir.Node, Target], object]"


class Fault(Protocol):
    """Something that an executor does wrong. key : its short name in reports.

    Text : what users read.
    """

    @property
    def key(self) -> str:
        """Its short name."""

    @property
    def text(self) -> str:
        """What is wrong, and what the quantizer does about it."""


@dataclass(frozen=True)
class AppliedRewrite:
    """One rewrite that was applied: at which node, what was done, and what it costs."""

    node: str
    what: str
    cost: str


@dataclass(frozen=True)
class Vendor:
    """What a target answers by code. The defaults are those of a target without a packer."""

    @property
    def packer_command(self) -> str:
        """The packer's call; empty without a packer."""
        return ""

    def get_limit_checks(self, operator: str) -> tuple[LimitCheck, ...]:
        """Return what the target takes of an integer operator beyond its columns.

        Limits of the nodes lowered to it.
        """
        return ()

    def has_limit(self, limit: LimitCheck, target: Target) -> bool:
        """Whether `target` has such a limit of `get_limit_checks`, or none of its numbers make it one.

        Pages of limits ask.
        """
        return True

    def get_limits_fixed_by(self, rewrite_name: str) -> tuple[LimitCheck, ...]:
        """Return the limits that a rewrite of `fit` is for, by its name.

        It acts on nodes that break one of them.
        """
        return ()

    def explain_rejected_weight_bits(self, node: ir.Node, bits: int, target: Target) -> str | None:
        """Return why the weights of the float `node` cannot have as few `bits`, None where they can.

        Asked where an operator of the target has weights of so few bits and not all have
        (`OperatorSupport.weight_bits`).
        """
        return None

    def find_triggered_faults(self, node: ir.Node, target: Target) -> Sequence[Fault]:
        """Return the faults of the executor that the float `node` would meet, and the quantizer works around."""
        return ()

    def run_backend_passes(
        self, graph: ir.Model, target: Target
    ) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
        """Return the integer `graph` as the executor needs it, the same integers, and what was done; it may change."""
        return graph, ()

    def assign_resident_constants(
        self, graphs: Sequence[ir.Model], target: Target
    ) -> Sequence[PackerArguments | None]:
        """Write into the parts of one graph, in place, which of them keep their constants in the memory of all.

        Return for each part the choice of arguments, where that was made for it; nothing where none
        was.
        """
        return ()

    def names(self, graph: ir.Model) -> NameMapping:
        """Return the names that cannot stand in a file for the target, and others for them."""
        from ..graph.name_mapping import NameMapping

        return NameMapping()

    def evaluate_packing(
        self, graph: ir.Model | onnx.ModelProto, target: Target, argv: Sequence[str] | None
    ) -> PackerArguments:
        """Return what becomes of the part for the chip.

        Words : the packer's, None: the best that are found.
        """
        raise ConfigError(f"{target.name} has no packer; choose a chip")

    def explain_missing_timing(self, target: Target) -> str:
        """Say why nothing is known of the time on a chip; empty where verdicts know it."""
        return f"nothing is known of the time on {target.name}; choose a chip"

    def with_timing_calibration(self, calibration: TimingCalibration, target: Target) -> Vendor:
        """Return the same code with prices of a board.

        ConfigError where the row is of another chip.
        """
        raise ConfigError(f"a timing file is for a chip; {self.explain_missing_timing(target)}")

    def analyze_board_log(
        self,
        graphs: Sequence[ir.Model],
        target: Target,
        argv: Sequence[str] | None,
        log_text: str,
        clock_mhz: float | None,
    ) -> BoardProfile:
        """Return a board's log, the text, beside the model of its parts for the chip, and the prices that it gives.

        argv : as for `evaluate_packing`. clock : MHz of the board. ConfigError where the log is not
        of these graphs.
        """
        raise ConfigError(f"a board's log is of a chip; {self.explain_missing_timing(target)}")

    @property
    def clock_mhz(self) -> float | None:
        """MHz, where a board's row tells them."""
        return None

    def convert_dialect(self, graph: ir.Model, domain: str, target: Target) -> Sequence[str]:
        """Write `graph` in the names of another domain, in place.

        Return what means something else there.
        """
        raise ModelError(
            f"a graph for {target.name} has no counterpart in domain {domain}, which knows the "
            "chips only"
        )

    def format_packer_command(self, argv: Sequence[str], graph_path: str, package_path: str) -> str:
        """Return the packer's call for the files `graph_path` and `package_path`, quoted for a shell."""
        return ""


@dataclass(frozen=True)
class OperatorSupport:
    """One integer operator on a target.

    arithmetic : how it computes. limits : what it takes; None: whatever its definition takes.
    miscompiled : whether it packs and computes something else than the operator is meant to: a
    graph that has it is computed as the chip does, but the quantizer writes something else.
    weight_bits : widths that its weights may have beside those of the target.
    """

    arithmetic: Arithmetic = Arithmetic()
    limits: Limits | None = None
    miscompiled: bool = False
    weight_bits: tuple[int, ...] = ()


def make_support_rows(
    arithmetic: Arithmetic, *operators: str, limits: Limits | None = None, miscompiled: bool = False
) -> dict[str, OperatorSupport]:
    """Return the same row for each of the operators."""
    return dict.fromkeys(operators, OperatorSupport(arithmetic, limits, miscompiled))


@final
@keep_old_members(
    "0.3",
    arithmetic="find_arithmetic",
    breaks="needs_rewrite",
    broken_transposes="unsupported_perms",
    bytes_only="is_int8_only",
    computes="get_arithmetic",
    conv="conv_limits",
    curve="sigmoid_limits",
    finish="run_backend_passes",
    latency="estimate_latency",
    limits="get_limits",
    linear="linear_limits",
    named="with_safe_names",
    norm="layer_norm_limits",
    packs="has_packer",
    pool="pool_limits",
    power_of_two="needs_power_of_two_scales",
    recurrent="recurrent_limits",
    right="is_computed_correctly",
    runs="can_run",
    softmax="softmax_limits",
    timed="with_timing_calibration",
    translated="convert_dialect",
    verdict="evaluate_packing",
    weight_bits="get_weight_bits",
    weight_widths="all_weight_bits",
)
@dataclass(frozen=True)
class Target:
    """One target: a chip with its executor, or the generic one.

    ops : the integer operators the target is known to run. also : further ones that the quantizer
    never writes, and how a graph that has them is computed. training : dialect of graphs ->
    operator -> how the software computes it that such graphs are trained with. why : integer
    operator -> why it is not there, or not written. vendor : its code.
    """

    name: str
    executor: str
    title: str
    modes: tuple[str, ...]
    bits: tuple[int, ...]
    ops: Mapping[str, OperatorSupport]
    also: Mapping[str, Arithmetic] = field(default_factory=dict)
    weight_scales: tuple[str, ...] = (
        "tensor",
    )  # "channel": one for each output channel; "group": of a row
    zero_points: bool = False  # it takes activations whose real 0 is another integer than 0
    single_sample: bool = False  # graphs are written for one sample, with a batch of 1
    out_bits: tuple[int, ...] = (8,)  # of a fully connected layer whose output leaves the integers
    curve_bits: tuple[int, ...] = ()  # of one whose output a sigmoid or tanh alone reads, beside 8
    exponents: tuple[int, int] = (-126, 126)  # of activations' power-of-two scales
    shared_memory: int | None = None  # bytes
    external_memory: int | None = None
    opset: int = 12  # of the standard operators in what is written
    ir_version: int = 6  # of the file format, where it has no functions
    node_attributes: Mapping[str, Mapping[str, object]] = field(
        default_factory=dict
    )  # "" = every integer node
    faults: tuple[Fault, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    training: Mapping[int, Mapping[str, Arithmetic]] = field(default_factory=dict)
    vendor: Vendor = field(default_factory=Vendor)

    def __init_subclass__(cls) -> None:
        raise TypeError(
            "Target is final: what is data is a column, what a target answers by code is its "
            "vendor's"
        )

    def __str__(self) -> str:
        return self.name

    @property
    def needs_power_of_two_scales(self) -> bool:
        """Whether the target takes power-of-two scales only: it shifts."""
        return self.modes == ("q-value",)

    @property
    def is_int8_only(self) -> bool:
        """Whether operands have 8 bits, and so biases 32."""
        return self.bits == (8,)

    @property
    def all_weight_bits(self) -> tuple[int, ...]:
        """The widths that weights of some operator may have."""
        more = {bits for row in self.ops.values() for bits in row.weight_bits}
        return tuple(sorted({*self.bits, *more}))

    def get_weight_bits(self, operator: str) -> tuple[int, ...]:
        """Return the widths that the weights of `operator` may have."""
        return tuple(
            sorted({*self.bits, *(self.ops[operator].weight_bits if operator in self.ops else ())})
        )

    def with_op(self, operator: str, **columns: Any) -> Target:
        """Return a copy in which `operator` has other `columns` of `OperatorSupport`."""
        return replace(self, ops={**self.ops, operator: replace(self.ops[operator], **columns)})

    def can_run(self, operator: str) -> bool:
        """Whether the integer operator is in this row's list."""
        return operator in self.ops

    def is_computed_correctly(self, operator: str) -> bool:
        """Whether the target runs the operator as it is meant.

        Where another will do, the quantizer writes that.
        """
        return operator in self.ops and not self.ops[operator].miscompiled

    def find_arithmetic(self, operator: str) -> Arithmetic | None:
        """Return how the operator is computed, also where the quantizer never writes it.

        None where it is not known.
        """
        row = self.ops.get(operator)
        return self.also.get(operator) if row is None else row.arithmetic

    @accept_old_parameters("0.3", kind="arithmetic_type")
    def get_arithmetic(self, operator: str, arithmetic_type: type[_Kind]) -> _Kind | None:
        """Return the arithmetic of `operator`, an `arithmetic_type`, or None if the target does not run it."""
        return self._check_type(
            operator,
            self.ops[operator].arithmetic if operator in self.ops else None,
            arithmetic_type,
        )

    @accept_old_parameters("0.3", kind="limits_type")
    def get_limits(self, operator: str, limits_type: type[_Kind]) -> _Kind | None:
        """Return the limits of `operator`, which are of class `limits_type`, or None where it has none."""
        return self._check_type(
            operator, self.ops[operator].limits if operator in self.ops else None, limits_type
        )

    def _check_type(self, operator: str, arithmetic: object, kind: type[_Kind]) -> _Kind | None:
        if arithmetic is None or isinstance(arithmetic, kind):
            return arithmetic
        raise InternalError(
            f"platform {self.name}: {operator} has {type(arithmetic).__name__} where "
            f"{kind.__name__} belong"
        )

    # ---- limits that rules quote, or several operators ask for -----------------------------------------------------

    @property
    def conv_limits(self) -> ConvLimits | None:
        """What is taken of convolutions, as far as rewrites aim at it.

        None where they take everything.
        """
        return self.get_limits("Conv2dInt", ConvLimits)

    @property
    def pool_limits(self) -> PoolLimits | None:
        """What is taken of averages over windows, likewise."""
        return self.get_limits("AvgPool2dInt", PoolLimits)

    @property
    def linear_limits(self) -> MatrixLimits | None:
        """Limits of a fully connected layer."""
        return self.get_limits("LinearInt", MatrixLimits)

    @property
    def recurrent_limits(self) -> RecurrentLimits | None:
        """Limits of an LSTM."""
        return self.get_limits("LSTMInt", RecurrentLimits)

    @property
    def transpose(self) -> TransposeLimits | None:
        """Return the limits of permutations; None where there are none."""
        return self.get_limits("Transpose", TransposeLimits)

    @property
    def unsupported_perms(self) -> tuple[tuple[int, ...], ...]:
        """Permutations that are not written: each is made by two others."""
        return () if self.transpose is None else self.transpose.unsupported_perms

    @property
    def softmax_limits(self) -> SoftmaxLimits | None:
        """Limits of the rows of a softmax."""
        return self.get_limits("SoftmaxInt", SoftmaxLimits)

    @property
    def layer_norm_limits(self) -> LayerNormLimits | None:
        """Limits of layer normalisation."""
        return self.get_limits("LayerNormInt", LayerNormLimits)

    @property
    def sigmoid_limits(self) -> SigmoidLimits | None:
        """Limits of the sigmoid that GluInt stands in for."""
        return self.get_limits("iqSigmoid", SigmoidLimits)

    # ---- what the vendor's code answers ----------------------------------------------------------------------------

    @property
    def has_packer(self) -> bool:
        """Whether it has a packer: whether there is something to be chip-ready for."""
        return bool(self.vendor.packer_command)

    @accept_old_parameters("0.3", rewrite="rewrite_name")
    def needs_rewrite(self, node: ir.Node, rewrite_name: str) -> bool:
        """Whether `node` breaks a limit that the rewrite of that name is for."""
        return any(
            limit(node, self) is not None for limit in self.vendor.get_limits_fixed_by(rewrite_name)
        )

    def run_backend_passes(self, graph: ir.Model) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
        """Return a copy of the integer `graph` as the executor needs it, the same integers, and what was done."""
        from ..graph import ir

        made, done = self.vendor.run_backend_passes(ir.clone(graph), self)
        ir.assign_node_names(made)
        return made, done

    @accept_old_parameters("0.3", to="domain")
    def convert_dialect(self, graph: ir.Model, domain: str) -> tuple[ir.Model, Sequence[str]]:
        """Return a copy of the integer `graph` in the names of another domain, and what means something else there.

        ModelError where the target has none, or an operator no counterpart.
        """
        from ..graph import ir

        copy = ir.clone(graph)
        return copy, self.vendor.convert_dialect(copy, domain, self)

    def with_safe_names(self, graph: ir.Model, names: NameMapping | None = None) -> ir.Model:
        """Return `graph` with names that can stand in a file for the target.

        The way back stands in its metadata.
        names : those of a larger graph that `graph` is part of.
        """
        from ..graph.name_mapping import apply_file_names

        return apply_file_names(graph, self.vendor.names(graph) if names is None else names)

    @accept_old_parameters("0.3", words="argv")
    def evaluate_packing(
        self, graph: ir.Model | onnx.ModelProto, argv: Sequence[str] | None = None
    ) -> PackerArguments:
        """Return what the packer and the chip make of a graph, its part for the chip alone.

        argv : the packer's arguments; None: the best that are found. ConfigError for a target
        without a packer, or for arguments that its packer does not have.
        """
        return self.vendor.evaluate_packing(graph, self, argv)

    @accept_old_parameters("0.3", row="calibration")
    def with_timing_calibration(self, calibration: TimingCalibration) -> Target:
        """Return the target with prices that a board gave.

        ConfigError where they are another chip's.
        """
        return replace(self, vendor=self.vendor.with_timing_calibration(calibration, self))

    @accept_old_parameters("0.3", words="argv")
    def estimate_latency(
        self, graph: ir.Model | onnx.ModelProto, argv: Sequence[str] | None = None
    ) -> Latency:
        """Return how many cycles a graph takes, its part for the chip alone.

        argv : as for `evaluate_packing`. ConfigError for a target of which nothing is known, and
        for a graph that does not pack.
        """
        if unknown := self.vendor.explain_missing_timing(self):
            raise ConfigError(unknown)
        return require_latency(self.evaluate_packing(graph, argv).verdict)


def format_limit_rule(limit: Callable[..., Any], target: Target) -> tuple[str, str]:
    """Return (rule, remedy) as users read them.

    The limit's docstring, filled in from the row, split at the bar.
    In a docstring `target` is the platform and `own` its vendor's code.
    """
    text = " ".join((limit.__doc__ or "").split()).format(target=target, own=target.vendor)
    rule, _, remedy = text.partition(" | ")
    return rule.rstrip("."), remedy.rstrip(".") or "change the model or leave the node in float"
