"""unbind: parts at the front of a transposed tensor are cut out before it is transposed."""

import re

import numpy as np
import pytest

from lingeronnx.quantization.normalize.axes.unbind import slice_before_transpose
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, graph

QKV = """g (float[N,4,30] x) => (float[N,5,4,2] q, float[N,5,4,2] k, float[N,5,4,2] v) {{
    r = Reshape(x, s) t = Transpose<perm = [{perm}]>(r) {parts} }}"""
GATHER = "q = Gather<axis = 0>(t, i0) k = Gather<axis = 0>(t, i1) v = Gather<axis = 0>(t, i2)"
SPLIT = "a, b, c = Split<axis = 0>(t) q = Squeeze(a, z) k = Squeeze(b, z) v = Squeeze(c, z)"
SLICES = """a = Slice(t, b0, b1, z) b = Slice(t, b1, b2, z) c = Slice(t, b2, b9, z)
    q = Squeeze(a, z) k = Squeeze(b, z) v = Squeeze(c, z)"""
CUT = ["Slice", "Reshape", "Transpose"] * 3


def qkv(parts, perm="2, 0, 3, 1, 4", sizes=(0, 4, 3, 5, 2), **arrays):
    arrays = {
        "z": np.array([0]),
        "i0": np.array(0),
        "i1": np.array(1),
        "i2": np.array(-1),
        "b0": np.array([0]),
        "b1": np.array([1]),
        "b2": np.array([2]),
        "b9": np.array([2**62]),
        **arrays,
    }
    used = {name: array for name, array in arrays.items() if re.search(rf"\b{name}\b", parts)}
    return graph(QKV.format(parts=parts, perm=perm), s=np.array(sizes), **used)


@pytest.mark.parametrize("parts", (GATHER, SPLIT, SLICES))
def test_queries_keys_values(parts):
    check_pass_fires(qkv(parts), slice_before_transpose, 1, CUT, atol=0)


def test_a_part_that_nobody_reads():
    text = (
        "g (float[N,4,6] x) => (float[N,4,2] y) { r = Reshape(x, s) t = Transpose<perm = [2, "
        "0, "
        "1, 3]>(r) %s }"
    )
    part = "y = Gather<axis = 0>(t, i)"
    model = graph(text % part, s=np.array([0, 0, 3, 2]), i=np.array(1))
    check_pass_fires(model, slice_before_transpose, 1, ["Slice", "Reshape", "Transpose"], atol=0)


def test_the_batch_must_come_next():
    text = (
        "g (float[2,4,6] x) => (float[4,2,2] y) { r = Reshape(x, s) t = Transpose<perm = [2, "
        "1, "
        "0, 3]>(r) %s }"
    )
    part = "y = Gather<axis = 0>(t, i)"
    check_pass_leaves_alone(
        graph(text % part, s=np.array([2, 4, 3, 2]), i=np.array(1)),
        slice_before_transpose,
        trace=False,
    )


def test_a_transpose_that_is_read_as_a_whole():
    text = """g (float[N,4,6] x) => (float[N,4,2] y, float[3,N,4,2] z) {
        r = Reshape(x, s) t = Transpose<perm = [2, 0, 1, 3]>(r) y = Gather<axis = 0>(t, i) z = Exp(t) }"""
    check_pass_leaves_alone(
        graph(text, s=np.array([0, 0, 3, 2]), i=np.array(1)), slice_before_transpose
    )


def test_several_parts_at_once():
    text = """g (float[N,4,6] x) => (float[2,N,4,2] y) {
        r = Reshape(x, s) t = Transpose<perm = [2, 0, 1, 3]>(r) y = Gather<axis = 0>(t, i) }"""
    check_pass_leaves_alone(
        graph(text, s=np.array([0, 0, 3, 2]), i=np.array([0, 2])), slice_before_transpose
    )


def test_a_reshape_that_joins_axes():
    text = """g (float[N,6,4] x) => (float[N,8] y) {
        r = Reshape(x, s) t = Transpose<perm = [1, 0, 2]>(r) y = Gather<axis = 0>(t, i) }"""
    check_pass_leaves_alone(
        graph(text, s=np.array([0, 3, 8]), i=np.array(1)), slice_before_transpose
    )


def test_slices_of_several_positions():
    text = """g (float[N,4,6] x) => (float[2,N,4,2] y) {
        r = Reshape(x, s) t = Transpose<perm = [2, 0, 1, 3]>(r) y = Slice(t, a, b, z) }"""
    model = graph(text, s=np.array([0, 0, 3, 2]), a=np.array([0]), b=np.array([2]), z=np.array([0]))
    check_pass_leaves_alone(model, slice_before_transpose)
