"""Softmax, its logarithm, and layer normalization."""
