"""Operators of one's own.

An integer operator that is not in `formats`, known everywhere by one call.
    with lo.extended(SQUASH, rule=SquashRule(), reference=PlainSquash, fake={Squash: fake_squash}):
        lo.quantize(model, data, platform=chip)

The chip's row says that it has the operator (`ops`), as of any other. Stands above the tables that
it fills, and below what uses them; the fake quantizer is kept for `torch`, which is not loaded for
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from . import formats, ops, schemas
from . import reference as plain_classes
from .errors import ConfigError
from .formats import Format
from .ops import Op

__all__ = ["OperatorRegistration", "extended", "get_fake_quantizers"]

#: Kernel -> its fake quantizer, of the operators that are known now.
_FAKE_QUANTIZERS: dict[type, Callable[..., Any]] = {}


class OperatorRegistration:
    """An operator that was made known.

    Leaving the ``with`` block, or `remove`, takes it out again.
    """

    def __init__(
        self, form: Format, rule: Op | None, plain: type[Any] | None, fake: Mapping[type, Any]
    ) -> None:
        self._parts = form, rule, plain, dict(fake)

    def remove(self) -> None:
        """Forget the operator; a second call changes nothing."""
        form, rule, plain, fake = self._parts
        schemas.deregister_schema(form)
        formats.remove_integer_op(form)
        if rule is not None:
            ops.remove_lowering_rule(rule)
        if plain is not None:
            plain_classes.unregister_reference_op(plain)
        for kernel in fake:
            _FAKE_QUANTIZERS.pop(kernel, None)

    def __enter__(self) -> OperatorRegistration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def extended(
    form: Format,
    rule: Op | None = None,
    reference: type[Any] | None = None,
    fake: Mapping[type, Callable[..., Any]] | None = None,
) -> OperatorRegistration:
    """Make an integer operator known in this process, until it is removed.

    Parameters
    ----------
    form
        The operator: a value of a class of `lingeronnx.formats.Format`.
    rule
        Which float operators become it; without one only graphs that have the operator are read and
        computed. Where several rules take a float operator it is asked last.
    reference
        Its plain class, which `reference_ops` then has.
    fake
        Its kernels -> what each computes in torch, with gradients.

    Returns
    -------
    Extension
        For a ``with`` block; without one the operator stays known.

    Raises
    ------
    ConfigError
        A name is taken, or the parts are not those of one operator.
    """
    _check_registration(form, rule, reference, fake or {})
    formats.add_integer_op(form)
    if rule is not None:
        ops.add_lowering_rule(rule)
    if reference is not None:
        plain_classes.register_reference_op(reference)
    _FAKE_QUANTIZERS.update(fake or {})
    return OperatorRegistration(form, rule, reference, fake or {})


def _check_registration(
    form: Format, rule: Op | None, plain: type[Any] | None, fake: Mapping[type, Any]
) -> None:
    for name in form.names:
        if formats.find_integer_op_by_name(name) is not None:
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


def get_fake_quantizers() -> Mapping[type, Callable[..., Any]]:
    """Return {kernel: its fake quantizer} of the operators that are known by `extended`."""
    return _FAKE_QUANTIZERS
