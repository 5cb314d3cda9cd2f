"""Recordings of a model's tensors over data: ranges, histograms and outliers.

A profile is recorded once and stored in a file. This package does not measure quantization errors.
"""
