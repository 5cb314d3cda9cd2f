"""Reshape, Flatten, Squeeze, Unsqueeze and Transpose."""
