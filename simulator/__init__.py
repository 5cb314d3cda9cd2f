"""A bit-exact simulator of small integer NPUs.

The package computes integer graphs the way the NPU does: every rounding, shift and saturation is
exact. It knows kernels, shapes and integers; it does not know model files, float models or its
callers.

=============  ====================================================================================
`fixed_point`  rounding, shifting, saturation; conversion of a ratio to a multiplier and a shift
`kernels`      the operators, as frozen values with their constants
`program`      steps -> a program that runs any batch on several threads and yields named tensors
=============  ====================================================================================

Importing `simulator` is free; the modules below it import Numba.
"""
