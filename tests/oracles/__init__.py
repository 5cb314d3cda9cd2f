"""Oracles: what every integer operator means, in loops over Python integers; nothing is shared with
the code.

Slow, obvious, exact. What `lingeronnx.operators.references` says already is taken from there: it
shares no code with the simulator either. NumPy is used for holding arrays only. A requantization is
a triple (multiplier, shift, bits).
"""
