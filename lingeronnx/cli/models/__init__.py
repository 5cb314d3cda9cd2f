"""Commands that convert, quantize, train or deploy models."""
