"""Activations that are computed with tables: sigmoid, tanh, GLU, GELU, Swish and others."""
