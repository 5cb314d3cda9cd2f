"""Accuracy methods: each takes a float graph with its statistics and returns a better one.

A method keeps the float function of the graph (the caller checks that in onnxruntime). The
transforms of the plan record how its tensors differ from the original ones. Must not know: stages,
reports.
"""

from .refine import RefinementOptions

__all__ = ["RefinementOptions"]
