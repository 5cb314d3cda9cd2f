"""Accuracy methods: each takes a float graph with what is known of it and returns a better one.

A method keeps the float function of the graph (checked in onnxruntime by the caller) and says
through the plan's transforms what its tensors mean afterwards. Must not know: stages, reports.
"""

from .refine import RefinementOptions

__all__ = ["RefinementOptions"]
