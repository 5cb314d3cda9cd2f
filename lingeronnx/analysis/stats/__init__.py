"""Measures of tensors and pairs of tensors, and histograms, over batches in constant memory.

This package works on arrays only and knows no models.
"""
