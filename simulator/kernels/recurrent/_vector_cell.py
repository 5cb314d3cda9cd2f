"""The cell of a recurrent layer whose step is one function of machine code.

`make_vector_cell` packs the constants of a step that `_vector_lstm` or `_vector_gru` writes. Must
not know: the arithmetic of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from simulator import _llvm
from simulator._jit import jit
from simulator.fixed_point import RescaleForm
from simulator.kernels.loops import _conv_simd, _register_tile
from simulator.kernels.loops._vector_curve import pack_curve
from simulator.kernels.recurrent._sequence_loop import (
    CompiledRecurrentKernel,
    make_line_scratch,
    unpack_step,
    view_lines,
)
from simulator.kernels.recurrent.layer import compute_gate_sums
from simulator.piecewise import Piecewise, load_piecewise

__all__ = ["VectorCell", "make_vector_cell"]


@jit
def _vector_step(cell: Any, memory: Any) -> None:
    """Compute a step of any arithmetic by its machine code.

    The states, views of `memory`, change in place, unless the length of a sample is reached. cell :
    a `VectorCell`.
    """
    a, h, c, lengths, step = unpack_step(memory)
    samples, units = h.shape
    state_sums = view_lines(cell.state_sums, samples)
    compute_gate_sums(h, cell.weights[0], cell.weights[1], state_sums)
    _conv_simd.call_code(
        cell.code,
        (
            _conv_simd.array_address(a),
            _conv_simd.array_address(state_sums),
            _conv_simd.array_address(h),
            _conv_simd.array_address(c),
            _conv_simd.array_address(lengths),
            step,
            samples,
            units,
            _conv_simd.array_address(cell.sigmoid),
            _conv_simd.array_address(cell.tanh),
            _conv_simd.array_address(cell.form),
        ),
    )


class VectorCell(NamedTuple):
    """Constants and scratch memory of a step that is one function of machine code."""

    weights: Any  # `words` and `plain` of the states' sums, see `compute_gate_sums`
    code: int  # address of the function
    sigmoid: np.ndarray  # int64, see `pack_curve`
    tanh: np.ndarray
    form: np.ndarray  # int64, stages of the rescales: see `_register_tile`
    state_sums: Any  # `make_line_scratch` of the sums of all gates without spare elements

    @staticmethod
    def rule() -> Any:
        """Return the jitted function of a step in machine code."""
        return _vector_step


def make_vector_cell(
    kernel: CompiledRecurrentKernel,
    write_ir: Callable[..., str],
    arithmetic: Any,
    table: str,
    curves: Sequence[tuple[int, int]],
    forms: Sequence[RescaleForm],
    pack: Callable[[Piecewise, int, int], tuple[Any, np.ndarray] | None] = pack_curve,
) -> VectorCell | None:
    """Return the constants of a step in machine code; None if it does not support the layer.

    Parameters
    ----------
    kernel
        The layer.
    write_ir
        Function of (instruction set, arithmetic, kinds of sigmoid and tanh, stages, width of the
        state) that writes the LLVM module.
    arithmetic
        Its second argument.
    table
        Chip whose sigmoid and tanh tables are used.
    curves
        Width of the table's values and right shift after the table, of sigmoid and tanh.
    forms
        Rescales with results of at most 32 bits; the stages of all follow each other.
    pack
        Function that returns kind and table of a function for `write_ir`, or None.
    """
    instructions = _conv_simd.active_instruction_set()
    if instructions is None:
        return None
    functions = zip(("sigmoid", "tanh"), curves, strict=True)
    sigmoid, tanh = (
        pack(load_piecewise(name, table), bits, after) for name, (bits, after) in functions
    )
    stages: tuple[str, ...] = ()
    stage_values: list[np.ndarray] = []
    for form in forms:
        tile_form = _conv_simd.make_tile_form(form, 32)
        if tile_form is None:
            return None
        stages += tile_form[0]
        stage_values.append(tile_form[1].reshape(-1))
    if sigmoid is None or tanh is None:
        return None
    state_bits = 8 * kernel.rescale_o.dtype.itemsize
    code = _llvm.get_function_address(
        write_ir,
        (instructions, arithmetic, sigmoid[0], tanh[0], stages, state_bits),
        _register_tile.FUNCTION_NAME,
        instructions.features,
    )
    return VectorCell(
        kernel.make_hidden_sums().arguments(),
        code,
        sigmoid[1],
        tanh[1],
        np.concatenate(stage_values),
        make_line_scratch(len(kernel.bias_h), 0),
    )
