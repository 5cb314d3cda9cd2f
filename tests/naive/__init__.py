"""Oracles: the meaning of every integer operator in plain Python, loops over Python integers, nothing shared with the code.

Slow, obvious, exact. NumPy is used for holding arrays only. A requantization is a triple (multiplier, shift, bits).
"""
