"""Operators that choose by position, element by element."""

import itertools

import numpy as np


def pick(x, indices, fill):
    """y[p] = x[indices[0][p0], indices[1][p1], ..]; `fill` where an index is -1; None stands for
    all positions.
    """
    lists = [
        list(range(n)) if i is None else [int(k) for k in i]
        for i, n in zip(indices, x.shape, strict=True)
    ]
    y = np.zeros([len(each) for each in lists], object)
    for place in itertools.product(*(range(n) for n in y.shape)):
        source = [each[k] for each, k in zip(lists, place, strict=True)]
        y[place] = fill if -1 in source else x[tuple(source)]
    return y


def gather(x, axis, indices):
    """The axes of `indices` in place of `axis`."""
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    y = np.zeros(shape, object)
    for place in itertools.product(*(range(n) for n in shape)):
        chosen = int(indices[place[axis : axis + indices.ndim]])
        y[place] = x[(*place[:axis], chosen, *place[axis + indices.ndim :])]
    return y


def largest(row):
    """(value, first position)."""
    best = 0
    for i, value in enumerate(row):
        if value > row[best]:
            best = i
    return [int(row[best]), best]
