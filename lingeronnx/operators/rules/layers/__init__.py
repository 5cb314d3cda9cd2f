"""Rules of layers, pooling, normalization and matrix products."""
