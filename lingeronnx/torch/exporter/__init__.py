"""From a torch module to a clean float ONNX file.

The name `export` belongs to the call ``lo.torch.export``.
Owns: how a module is called and traced, what a clean graph is, the proof that both compute the
same. Must not know: integers, plans, training.
"""
