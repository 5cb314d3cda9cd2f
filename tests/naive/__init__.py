"""Oracles: what every integer operator means, in loops over Python integers; nothing is shared with the code.

Slow, obvious, exact. NumPy is used for holding arrays only. A requantization is a triple (multiplier, shift, bits).
"""
