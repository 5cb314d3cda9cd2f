"""The calls of the vendor's training library: ``lo.torch.init`` and its companions.

They make the user's own module train with fake quantization. The package owns the meaning of the
calls, the classes that wrap the user's modules, and the mapping from parameters to constants of the
graph. It contains no training loop: that is the user's.
"""
