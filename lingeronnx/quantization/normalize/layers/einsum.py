"""Decompose an Einsum of two factors into Transpose, Reshape, and MatMul or Mul.

Exact except for the order of sums. The axes of a factor are, by the terms that contain their
letters,

    shared      in both factors and the result    a product per position; the batch is the first
    summed      in both factors only              the inner axis of the product
    exclusive   in one factor and the result      rows of the left, columns of the right factor

    left [shared.., exclusive, summed] @ right [shared.., summed, exclusive] -> Transpose

If nothing is summed, it is a Mul of factors with axes of size one. The first axis of a factor that
is not constant is its batch. A constant is the right factor and has no batch; if it shares no axis,
the rows of the left factor remain separate axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ....ir import ir
from ....ir.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["decompose_einsum"]


def decompose_einsum(model: ir.Model) -> PassResult:
    """Decompose each Einsum of `model` that is a product of two factors, in place.

    It becomes a MatMul if letters are summed, else a Mul, with Transposes and Reshapes as needed.
    Others are skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "Einsum" or node.domain:
            continue
        product = _parse_einsum(node)
        if isinstance(product, str):
            skipped.append(SkipReason(node, product))
            continue
        build = SubgraphBuilder(model, node)
        if product.summed_letters:
            _emit_matmul(build, product)
        else:
            _emit_mul(build, product)
        build.replace_node()
        changes += 1
    return PassResult(changes, skipped)


class _EinsumFactor(NamedTuple):
    """An operand of an Einsum: a letter per axis, their sizes, and its array if it is constant."""

    value: ir.Value
    letters: str
    sizes: dict[str, ir.Dim]
    array: np.ndarray | None


@dataclass(frozen=True)
class _EinsumProduct:
    """An Einsum of two operands, and the letters of the axes of its result."""

    left: _EinsumFactor
    right: _EinsumFactor
    result: str

    @property
    def batch_letter(self) -> str:
        """The letter of the batch axis: the first one of the left operand."""
        return self.left.letters[0]

    @cached_property
    def sizes(self) -> dict[str, ir.Dim]:
        """The size of the axis of each letter."""
        return {**self.right.sizes, **self.left.sizes}

    @cached_property
    def summed_letters(self) -> str:
        """The letters that both operands of the Einsum have and its result has not."""
        return "".join(c for c in self._common_letters if c not in self.result)

    @cached_property
    def shared(self) -> str:
        """The letters that both operands and the result of the Einsum have, the batch letter first.

        The batch letter is included even if the right operand, a constant, lacks it.
        """
        inner = [c for c in self._common_letters if c in self.result and c != self.batch_letter]
        return self.batch_letter + "".join(inner)

    @property
    def _common_letters(self) -> list[str]:
        """The letters that both operands of the Einsum have, in the order of the left one."""
        return [c for c in self.left.letters if c in self.right.letters]

    def exclusive_letters(self, factor: _EinsumFactor) -> str:
        """The letters of `factor`, one of the two operands, that the other one lacks.

        Without the batch.
        """
        return "".join(c for c in factor.letters if c not in self.shared + self.summed_letters)


def _parse_einsum(node: ir.Node) -> _EinsumProduct | str:
    """Return the product that an Einsum computes, or the reason why it is not supported.

    A constant factor becomes the right one. Supported are two factors with distinct letters.
    """
    terms, result = _parse_equation(str(ir.get_attr(node, "equation", "")))
    has_distinct_letters = all(t.isalpha() and len(set(t)) == len(t) for t in terms)
    if len(terms) != 2 or not has_distinct_letters or not result:
        return "it does not have two factors with a distinct letter per axis and a result with axes"
    first = _make_factor(node.inputs[0], terms[0])
    second = _make_factor(node.inputs[1], terms[1])
    if first is None or second is None:
        return "a size other than the batch is not known"
    if first.array is not None:
        first, second = second, first
    product = _EinsumProduct(first, second, result)
    return _explain_unsupported(product) or product


def _make_factor(value: ir.Value | None, term: str) -> _EinsumFactor | None:
    """Return the Einsum factor of `value` with the axis letters `term`, one letter per axis.

    None if a size other than the first is unknown or the rank is not the number of letters.
    """
    shape = ir.get_shape(value)
    if value is None or shape is None or None in shape[1:] or len(shape) != len(term):
        return None
    sizes: dict[str, ir.Dim] = dict(zip(term, value.shape or (), strict=True))
    return _EinsumFactor(value, term, sizes, ir.const_value(value))


def _parse_equation(equation: str) -> tuple[list[str], str]:
    """Return the letters of each input, and those of the result, of an Einsum `equation`.

    An implicit result (no "->") has the letters that occur once, in alphabetical order.
    """
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:
        unique_letters = [c for c in set(inputs) - {","} if inputs.count(c) == 1]
        result = "".join(sorted(unique_letters))
    return inputs.split(","), result


def _explain_unsupported(product: _EinsumProduct) -> str:
    """Explain why the Einsum `product` cannot be expressed with MatMul or Mul, or "" if it can.

    The first axis of each computed operand must be the batch of the result, shared axes must have
    equal sizes, and each letter of one operand only must be in the result.
    """
    left_factor, right_factor, batch = product.left, product.right, product.batch_letter
    if left_factor.array is not None or not ir.is_float32(left_factor.value):
        return "both factors are constant, or not float32"
    is_right_batched = right_factor.array is None
    if batch not in product.result or (is_right_batched and right_factor.letters[0] != batch):
        return "the first axis of a factor is not the batch of the result"
    if not is_right_batched and batch in right_factor.letters:
        return "a constant differs between samples"
    common_letters = (product.shared + product.summed_letters)[1:]
    if any(left_factor.sizes[c] != right_factor.sizes[c] for c in common_letters):
        return "an axis of size one is combined with a longer one"
    if not set(left_factor.letters) ^ set(right_factor.letters) <= set(product.result):
        return "one factor is summed by itself"
    return ""


def _emit_matmul(build: SubgraphBuilder, product: _EinsumProduct) -> None:
    """Append to `build` the nodes that compute the Einsum `product` by a MatMul.

    A constant right operand without other shared axes than the batch multiplies all rows, which
    remain separate axes; else rows and summed letters are one axis each.
    """
    left_factor, right_factor, summed = product.left, product.right, product.summed_letters
    rows, columns = product.exclusive_letters(left_factor), product.exclusive_letters(right_factor)
    shared = product.shared
    if right_factor.array is not None and shared == product.batch_letter:
        # one matrix for all rows, which remain separate axes
        _emit_product(
            build,
            product,
            "MatMul",
            [*shared, *rows, summed],
            [summed, columns],
            [*shared, *rows, columns],
        )
    else:
        _emit_product(
            build,
            product,
            "MatMul",
            [*shared, rows, summed],
            [*shared, summed, columns],
            [*shared, rows, columns],
        )


def _emit_mul(build: SubgraphBuilder, product: _EinsumProduct) -> None:
    """Append to `build` the nodes that compute the Einsum `product` by an elementwise Mul.

    It has an axis per letter: shared ones, those of the left, then those of the right operand.
    """
    rows = product.exclusive_letters(product.left)
    columns = product.exclusive_letters(product.right)
    groups = [*product.shared, *rows, *columns]
    _emit_product(build, product, "Mul", groups, groups, groups)


def _emit_product(
    build: SubgraphBuilder,
    product: _EinsumProduct,
    op_type: str,
    left_groups: list[str],
    right_groups: list[str],
    result_groups: list[str],
) -> None:
    """Append to `build` the Einsum `product`, computed by `op_type` ("MatMul" or "Mul").

    Each group of letters is one axis of an operand, or of the output, of `op_type`. The output is
    reshaped to one axis per letter and transposed to `product.result`, each if necessary.
    """
    left_value = _arrange_factor(build, product.left, left_groups, "left")
    right_value = _arrange_factor(build, product.right, right_groups, "right")
    sizes = product.sizes
    value = build(op_type, [left_value, right_value], _group_sizes(sizes, result_groups), "product")
    letters = "".join(result_groups)
    if any(len(group) != 1 for group in result_groups):
        split_sizes = [_size_or_one(size) for size in _group_sizes(sizes, letters[1:])]
        value = build.reshape(value, split_sizes, "axes")
    if letters != product.result:
        perm = [letters.index(letter) for letter in product.result]
        result_shape = _group_sizes(sizes, product.result)
        build("Transpose", [value], result_shape, "turned", {"perm": perm})


def _arrange_factor(
    build: SubgraphBuilder, factor: _EinsumFactor, groups: Sequence[str], suffix: str
) -> ir.Value:
    """Return an Einsum operand with one axis per group of letters, of size 1 for letters it lacks.

    A constant is rearranged itself; else a Transpose and a Reshape are appended to `build` where
    needed. `suffix` is for their names.
    """
    letters = "".join(c for group in groups for c in group if c in factor.letters)
    perm = [factor.letters.index(c) for c in letters]
    sizes = _group_sizes(factor.sizes, groups)
    if factor.array is not None:
        dims = [_size_or_one(size) for size in sizes]
        return build.constant(factor.array.transpose(perm).reshape(dims), suffix)
    value = factor.value
    if letters != factor.letters:
        shape = _group_sizes(factor.sizes, letters)
        value = build("Transpose", [value], shape, f"{suffix}_turned", {"perm": perm})
    if list(groups) != list(letters):
        value = build.reshape(value, [_size_or_one(size) for size in sizes[1:]], suffix)
    return value


def _group_sizes(sizes: Mapping[str, ir.Dim], groups: Iterable[str]) -> list[ir.Dim]:
    """Return the size of each of `groups` of letters, the product of its letters' `sizes`.

    A letter that is not in `sizes` counts as 1; a group of a single letter keeps an unknown size.
    """
    group_sizes: list[ir.Dim] = []
    for group in groups:
        if len(group) == 1:
            group_sizes.append(sizes.get(group, 1))
        else:
            group_sizes.append(math.prod(_size_or_one(sizes.get(letter)) for letter in group))
    return group_sizes


def _size_or_one(size: ir.Dim) -> int:
    """Return `size` as a number, or 1 for the batch, the only size that is not known."""
    return size if isinstance(size, int) else 1
