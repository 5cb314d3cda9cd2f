"""Run models: data, float runner (onnxruntime), integer runner (simulator), sessions and metrics.

Knows the operators and the platforms; nothing of how scales are chosen.
"""
