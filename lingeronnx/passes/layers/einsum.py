"""Einsum of two factors as other operators: Transpose, Reshape, and MatMul or Mul.

Exact but for the order of sums.
The axes of a factor are, by where their letters stand,

    shared     in both factors and in the result     a product for each position; the batch is the
    first of them summed     in both factors only                  the inner axis of the product
    own        in one factor and in the result       rows of the left one, columns of the right one

    left [shared.., own, summed]  @  right [shared.., summed, own]  ->  Transpose to the result

Where nothing is summed, it is a Mul of factors with axes of one position. The first axis of a
factor that is no constant is its batch. A constant is the right factor and has no batch; where it
shares no axis, the rows of the left one stay axes of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...graph import ir
from ...graph.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["decompose_einsum"]


def decompose_einsum(model: ir.Model) -> PassResult:
    """Rewrite the Einsum of `model` that are one product."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "Einsum" or node.domain:
            continue
        product = _parse_einsum(node)
        if isinstance(product, str):
            why.append(SkipReason(node, product))
            continue
        make = SubgraphBuilder(model, node)
        _emit_matmul(make, product) if product.summed_letters else _emit_mul(make, product)
        make.replace_node()
        changed += 1
    return PassResult(changed, why)


@dataclass(frozen=True)
class _EinsumFactor:
    """A factor: the letters of its axes, and its numbers where it is a constant."""

    value: ir.Value
    letters: str
    sizes: dict[str, ir.Dim]
    array: np.ndarray | None


@dataclass(frozen=True)
class _EinsumProduct:
    """Two factors and the letters of the result."""

    left: _EinsumFactor
    right: _EinsumFactor
    result: str

    @property
    def batch_letter(self) -> str:
        """The letter of the samples."""
        return self.left.letters[0]

    @cached_property
    def sizes(self) -> dict[str, ir.Dim]:
        """The size of every letter."""
        return {**self.right.sizes, **self.left.sizes}

    @cached_property
    def summed_letters(self) -> str:
        """The letters of both factors that the result does not have."""
        return "".join(
            c for c in self.left.letters if c in self.right.letters and c not in self.result
        )

    @cached_property
    def shared(self) -> str:
        """The letters of both factors that the result has, and the batch before them."""
        both = (c for c in self.left.letters if c in self.right.letters and c in self.result)
        return self.batch_letter + "".join(c for c in both if c != self.batch_letter)

    def exclusive_letters(self, factor: _EinsumFactor) -> str:
        """The letters of `factor` alone."""
        return "".join(c for c in factor.letters if c not in self.shared + self.summed_letters)


def _parse_einsum(node: ir.Node) -> _EinsumProduct | str:
    """Return the one product that an Einsum is, or why it is none."""
    equation = str(ir.get_attr(node, "equation", "")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    letters = terms.split(",")
    if not arrow:
        result = "".join(sorted(c for c in set(terms) - {","} if terms.count(c) == 1))
    if (
        len(letters) != 2
        or not all(t.isalpha() and len(set(t)) == len(t) for t in letters)
        or not result
    ):
        return "it has not two factors with a letter for each axis, or a result without axes"
    found = []
    for value, term in zip(node.inputs, letters, strict=True):
        shape = ir.get_shape(value)
        if value is None or shape is None or None in shape[1:] or len(shape) != len(term):
            return "a size other than the batch is not known"
        found.append(
            _EinsumFactor(
                value, term, dict(zip(term, value.shape or (), strict=True)), ir.const_value(value)
            )
        )
    left, right = found if found[0].array is None else found[::-1]
    product = _EinsumProduct(left, right, result)
    return _explain_unsupported(product) or product


def _explain_unsupported(product: _EinsumProduct) -> str:
    """Return why `product` cannot be written with other operators, or nothing."""
    left, right = product.left, product.right
    if left.array is not None or left.value.dtype is None or left.value.dtype.name != "FLOAT":
        return "it is of constants, or not of float32"
    if product.batch_letter not in product.result or (
        right.array is None and right.letters[0] != product.batch_letter
    ):
        return "the first axis of a factor is not the batch of the result"
    if right.array is not None and product.batch_letter in right.letters:
        return "a constant differs between samples"
    if any(left.sizes[c] != right.sizes[c] for c in (product.shared + product.summed_letters)[1:]):
        return "an axis of one position meets a longer one"
    return (
        ""
        if set(left.letters) ^ set(right.letters) <= set(product.result)
        else "one factor is summed by itself"
    )


def _emit_matmul(make: SubgraphBuilder, product: _EinsumProduct) -> None:
    """Make a product of matrices."""
    left, right, summed = product.left, product.right, product.summed_letters
    shared, rows, columns = (
        product.shared,
        product.exclusive_letters(left),
        product.exclusive_letters(right),
    )
    if (
        right.array is not None and shared == product.batch_letter
    ):  # one matrix for all rows, which stay axes of their own
        groups = [*shared, *rows, summed], [summed, columns], [*shared, *rows, columns]
    else:
        groups = [*shared, rows, summed], [*shared, summed, columns], [*shared, rows, columns]
    _emit_product(make, product, "MatMul", *groups)


def _emit_mul(make: SubgraphBuilder, product: _EinsumProduct) -> None:
    """Make a product of numbers."""
    groups = [
        *product.shared,
        *product.exclusive_letters(product.left),
        *product.exclusive_letters(product.right),
    ]
    _emit_product(make, product, "Mul", groups, groups, groups)


def _emit_product(
    make: SubgraphBuilder,
    product: _EinsumProduct,
    op_type: str,
    left: list[str],
    right: list[str],
    outcome: list[str],
) -> None:
    """Make the product of the factors with an axis for each group of letters in `left` and `right`."""
    factors = [
        _arrange_factor(make, factor, groups, what)
        for factor, groups, what in ((product.left, left, "left"), (product.right, right, "right"))
    ]
    value = make(op_type, factors, _group_sizes(product.sizes, outcome), "product")
    letters = "".join(outcome)
    if any(len(group) != 1 for group in outcome):
        value = make.reshape(
            value, [_size_or_one(n) for n in _group_sizes(product.sizes, letters[1:])], "axes"
        )
    if letters != product.result:
        perm = [letters.index(c) for c in product.result]
        make(
            "Transpose",
            [value],
            _group_sizes(product.sizes, product.result),
            "turned",
            {"perm": perm},
        )


def _arrange_factor(
    make: SubgraphBuilder, factor: _EinsumFactor, groups: Sequence[str], what: str
) -> ir.Value:
    """Return `factor` with an axis for each of `groups`, of one position where it has none of the letters."""
    letters = "".join(c for group in groups for c in group if c in factor.letters)
    perm, sizes = [factor.letters.index(c) for c in letters], _group_sizes(factor.sizes, groups)
    if factor.array is not None:
        return make.constant(
            factor.array.transpose(perm).reshape([_size_or_one(n) for n in sizes]), what
        )
    value = factor.value
    if letters != factor.letters:
        value = make(
            "Transpose",
            [value],
            _group_sizes(factor.sizes, letters),
            f"{what}_turned",
            {"perm": perm},
        )
    if list(groups) != list(letters):
        value = make.reshape(value, [_size_or_one(n) for n in sizes[1:]], what)
    return value


def _group_sizes(sizes: Mapping[str, ir.Dim], groups: Iterable[str]) -> list[ir.Dim]:
    """Return the size of each group of letters.

    What `sizes` does not have counts as one position.
    """
    return [
        sizes.get(group, 1)
        if len(group) == 1
        else math.prod(_size_or_one(sizes.get(c)) for c in group)
        for group in groups
    ]


def _size_or_one(size: ir.Dim) -> int:
    """Return a size as a number, 1 where it is not known: of a sample all are."""
    return size if isinstance(size, int) else 1
