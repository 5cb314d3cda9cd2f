"""What a model's tensors hold over data: ranges, histograms, outliers; recorded once, kept in a file.

Owns recordings and their files. Says nothing of quantization errors.
"""
