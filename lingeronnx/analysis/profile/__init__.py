"""What a model's tensors hold over data: ranges, histograms, outliers.

Recorded once, kept in a file.
Owns recordings and their files. Says nothing of quantization errors.
"""
