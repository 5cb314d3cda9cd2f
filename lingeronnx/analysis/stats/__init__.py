"""Measures of one tensor and of pairs, and histograms, over any number of batches in constant memory.

Owns arithmetic on batches. Knows no model.
"""
