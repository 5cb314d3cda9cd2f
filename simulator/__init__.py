"""A bit-exact simulator of small integer NPUs.

The package computes integer graphs the way the NPU does: every rounding, shift and saturation is
exact. It knows kernels, shapes and integers; it knows nothing of model files, of float models or of
who calls it.

=============  ====================================================================================
`fixed`        rounding, shifting, saturation; how a real ratio becomes a multiplier and a shift
`kernels`      the operators, as frozen values holding their constants
`machine`      steps -> a program that runs any batch on several threads and yields named tensors
=============  ====================================================================================

Importing `simulator` is free; the modules below it import Numba.
"""
