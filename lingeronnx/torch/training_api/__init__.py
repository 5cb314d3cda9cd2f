"""A training library's calls (``lo.torch.init`` and its companions).

A user's own module that trains through a bridge.
Owns: what the calls mean, the modules that stand in for a user's, which constants follow which
parameters. Must not know: loops of training, which are the user's.
"""
