"""Which operators lose accuracy when they are quantized, one at a time.

Owns trials in float runs of a plan, their journal and their ranking. Compares no integer graphs.
"""
