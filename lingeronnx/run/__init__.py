"""Models at work: data, the float runner (onnxruntime), the integer runner (simulator), sessions, metrics.

Knows the operators and the platforms; nothing of how scales are found.
"""
