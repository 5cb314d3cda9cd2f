"""Which operators lose accuracy when they are quantized, one at a time.

Owns trials of a plan, operators in float or by their integer kernels, their journal and their
ranking. Compares no integer graphs.
"""
