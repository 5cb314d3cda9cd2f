"""Checks and conversions of a user's graph: validity, opset, float type and dynamic batch."""
