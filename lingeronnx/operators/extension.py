"""Registration of custom integer operators with a single call.

    with lo.extended(SQUASH, rule=SquashRule(), reference=PlainSquash, fake={Squash: fake_squash}):
        lo.quantize(model, data, platform=chip)

The target of the chip lists the operator in `ops`, like any other. This module fills the registries
of formats, lowering rules, schemas and reference operators. Fake quantizers are stored here for
`torch`, which is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from simulator.kernel import Kernel

from ..common.errors import ConfigError
from . import integer_ops, schemas
from . import lowerings as ops
from . import references as plain_classes
from .integer_ops import Format
from .lowerings import Op

if TYPE_CHECKING:
    from ._reference_op import Integer

__all__ = ["OperatorRegistration", "extended", "get_fake_quantizers"]

#: It takes a kernel, tensors and a context of torch, and returns a tuple of tensors.
FakeQuantizer: TypeAlias = Callable[..., object]

#: Fake quantizers of the registered operators, by kernel class.
_FAKE_QUANTIZERS: dict[type[Kernel], FakeQuantizer] = {}


class OperatorRegistration:
    """A registered operator; leaving the ``with`` block, or `remove`, unregisters it."""

    def __init__(
        self,
        form: Format,
        rule: Op | None,
        plain: type[Integer] | None,
        fake: Mapping[type[Kernel], FakeQuantizer],
    ) -> None:
        """Store the registered parts of an operator, to be unregistered by `remove`.

        These are the format, the lowering rule or None, the reference class or None, and the fake
        quantizers by kernel class.
        """
        self._parts = form, rule, plain, dict(fake)

    def remove(self) -> None:
        """Unregister the operator; has no effect if it is called again."""
        form, rule, plain, fake = self._parts
        schemas.deregister_schema(form)
        integer_ops.remove_integer_op(form)
        if rule is not None:
            ops.remove_lowering_rule(rule)
        if plain is not None:
            plain_classes.unregister_reference_op(plain)
        for kernel in fake:
            _FAKE_QUANTIZERS.pop(kernel, None)

    def __enter__(self) -> OperatorRegistration:
        """Return the registration itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unregister the operator; an exception of the block is passed on."""
        self.remove()


def extended(
    form: Format,
    rule: Op | None = None,
    reference: type[Integer] | None = None,
    fake: Mapping[type[Kernel], FakeQuantizer] | None = None,
) -> OperatorRegistration:
    """Register an integer operator in this process, until it is removed.

    Parameters
    ----------
    form
        The operator: an instance of a subclass of `lingeronnx.operators.Format`.
    rule
        Lowers float operators to it. Without a rule, only graphs that contain the operator can be
        read and run. It is tried after the other rules for the same float operator.
    reference
        Reference implementation, which `reference_ops` returns from then on.
    fake
        Kernel class -> function that computes the kernel in torch, with gradients.

    Returns
    -------
    OperatorRegistration
        Context manager that unregisters the operator; without a ``with`` block it stays registered.

    Raises
    ------
    ConfigError
        If a name is in use, or the arguments belong to different operators.
    """
    _check_registration(form, rule, reference, fake or {})
    integer_ops.add_integer_op(form)
    if rule is not None:
        ops.add_lowering_rule(rule)
    if reference is not None:
        plain_classes.register_reference_op(reference)
    _FAKE_QUANTIZERS.update(fake or {})
    return OperatorRegistration(form, rule, reference, fake or {})


def _check_registration(
    form: Format,
    rule: Op | None,
    plain: type[Integer] | None,
    fake: Mapping[type[Kernel], FakeQuantizer],
) -> None:
    """Raise ConfigError if a name is in use, or the arguments belong to different operators.

    The rule must write `form`, the plain class have one of its names, and no kernel class of `fake`
    have a fake quantizer yet. `rule` and `plain` may be None.
    """
    for name in form.names:
        if integer_ops.find_integer_op_by_name(name) is not None:
            raise ConfigError(f"operator '{form.name}': the name '{name}' is taken; choose another")
    if rule is not None and rule.integer_op is not form:
        raise ConfigError(
            f"operator '{form.name}': its rule writes '{rule.integer_op.name}'; give the rule that "
            "writes it"
        )
    if plain is not None and not set(plain.names) & set(form.names):
        names = ", ".join(plain.names)
        raise ConfigError(
            f"operator '{form.name}': its plain class computes {names}; give the class that "
            "computes it"
        )
    for kernel in fake:
        if kernel in _FAKE_QUANTIZERS:
            raise ConfigError(
                f"operator '{form.name}': {kernel.__name__} has a fake quantizer already"
            )


def get_fake_quantizers() -> Mapping[type[Kernel], Callable[..., Any]]:
    """Return {kernel class: fake quantizer} of the operators that `extended` registered.

    It is the registry itself, which changes with later registrations.
    """
    return _FAKE_QUANTIZERS
