"""Activations, elementwise functions and Softmax, converted to one node each."""
