"""Export of a torch module to a clean float ONNX file.

The name `export` belongs to the call ``lo.torch.export``. The package owns how a module is called
and traced, the cleanup of the graph, and the check that graph and module compute the same. It knows
no integers, plans or training.
"""
