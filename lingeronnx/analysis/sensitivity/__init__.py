"""Rank operators by the accuracy that is lost when each is quantized alone.

This package owns trials of a plan (operators in float or run by their integer kernels), their
journal and their ranking. It does not compare integer graphs.
"""
